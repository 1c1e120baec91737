"""Every promise × face × action has the outcome that `composition.txt` records."""

from __future__ import annotations

import pytest

from contracts import composition
from metacal.promises.kinds import PROMISES

RECORDED = composition.TABLE.read_text(encoding="utf-8").splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("kind", composition.KINDS)
def test_outcomes_are_those_of_the_file(kind):
    recorded = [line for line in RECORDED if line.startswith(f"{kind} |")]
    assert composition.lines(kind) == recorded, composition.REWRITE


@pytest.mark.slow
def test_sentences_are_those_of_the_file():
    recorded = [line for line in RECORDED if line.startswith("sentence |")]
    assert composition.sentences() == recorded, composition.REWRITE


def test_no_action_ends_in_an_error_that_nobody_raised_on_purpose():
    assert not [line for line in RECORDED if "BUG" in line]


def test_every_registered_promise_is_in_the_file():
    named = {name.partition(",")[0] for name in composition.PROMISES}
    assert {*named, "PerClass", "PerGroup"} == set(PROMISES)
