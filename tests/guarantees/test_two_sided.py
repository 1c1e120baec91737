"""Promises about two classes, on known populations made to break them; `benchmarks/two_sided.py` has the rest."""

from __future__ import annotations

import math

import pytest

from benchmarks.two_sided import DELTA, PROMISES, cell

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


@pytest.mark.parametrize(
    ("promise", "least"), [("recall", 0.15), ("precision of both", 0.1), ("precision and recall", 0.2)]
)
def test_what_is_accepted(promise, least):
    assert cell(("even", promise, 1000, 10))["accepted"] > least
