"""Promises about two classes, on known populations made to break them; `benchmarks/two_sided.py`
has the rest.
"""

from __future__ import annotations

import math

import pytest

from benchmarks.two_sided import DELTA, MIXTURES, PER_GROUP, PROMISES, cell, group_cell

DRAWS = 60
WORST = {
    "precision": "oscillating",
    "precision, share declared": "flat at the target",
    "recall": "even",
    "false-positive rate": "flat",
    "precision of both": "flat at the target",
    "precision and recall": "offset",
    "accuracy, learned decision": "flat at the target",
    "accuracy, own decision": "flat at the target",
}


@pytest.mark.parametrize("promise", PROMISES)
def test_broken_no_more_often_than_said(promise):
    found = cell((WORST[promise], promise, 200, DRAWS))
    assert found["broken"] <= DRAWS * DELTA + 3.0 * math.sqrt(DRAWS * DELTA * (1.0 - DELTA))


@pytest.mark.slow
@pytest.mark.parametrize("promise", PER_GROUP)
@pytest.mark.parametrize(("mixture", "shares"), zip(MIXTURES, ["each", "together"]))
def test_groups_are_broken_no_more_often_than_said(mixture, promise, shares):
    found = group_cell((mixture, promise, shares, 600, 30))
    most = 30 * DELTA + 3.0 * math.sqrt(30 * DELTA * (1.0 - DELTA))
    assert (
        found["broken"] if shares == "together" else max(found["broken by group"].values())
    ) <= most
    if mixture == "three groups" and promise != "precision":
        assert found["accepted by group"]["usual"] > 0.1


def test_a_group_with_an_offset_has_its_own_decision():
    found = group_cell(("three groups", "precision and recall", "together", 3000, 5))
    accepted = found["accepted by group"]
    assert abs(accepted["usual"] - accepted["offset"]) < 0.1 < accepted["usual"]
    assert found["broken"] <= 2


@pytest.mark.parametrize(
    ("promise", "least"),
    [("recall", 0.15), ("precision of both", 0.1), ("precision and recall", 0.2)],
)
def test_what_is_accepted(promise, least):
    assert cell(("even", promise, 1000, 10))["accepted"] > least
