"""One door: every promise takes every kind of evidence, or says in a sentence why it cannot."""

from __future__ import annotations

import numpy as np
import pytest

import metacal as mc
from contracts.composition import PROMISES
from metacal.promises import Answers, Passes, Sample
from metacal.promises.cascade_candidates import PairedPredictions
from metacal.promises.two_model_cascade import TwoModelEvidence

RNG = np.random.default_rng(0)
SCORE = RNG.random(2000)
RIGHT = RNG.random(2000) > 0.2 * SCORE**2
LARGE = RIGHT | (RNG.random(2000) < 0.8)
PART = RNG.integers(2, size=2000)
EVIDENCE = {
    "rows": lambda score=SCORE: Sample.of(score, RIGHT, part=PART, names=["north", "south"]),
    "counts": lambda score=SCORE: Passes.over(
        lambda block: (score[block::4], RIGHT[block::4]), range(4)
    ),
    "answers": lambda score=SCORE: Answers(score, RIGHT.astype(np.int8)),
    "pair": lambda score=SCORE: TwoModelEvidence(
        PairedPredictions(score, score, RIGHT, LARGE, RIGHT == LARGE, np.ones(2000, dtype=bool))
    ),
}
SORTED, COMPARED = "all rows in the order of their scores", "A cascade supports MaxLoss"
#: A precision that more rows have anyhow says nothing, and is refused.
ABOVE = {
    "MinPrecision": lambda: mc.MinPrecision(0.95),
    "TwoSided": lambda: mc.TwoSided(mc.MinPrecision(0.95), mc.MinRecall(0.9)),
}
#: The cells that are empty, and what is said there.
REASONS = {
    **{
        ("counts", name): SORTED
        for name in PROMISES
        if not name.startswith(("MinAccuracy", "MaxMiscov", "MaxReview"))
    },
    **{("pair", name): COMPARED for name in PROMISES if name not in ("MinAccuracy", "MaxLoss")},
    ("pair", "MinAccuracy, in expectation"): "cascade requires a promise with a delta",
    **{
        (kind, name): "the rows have no cases"
        for kind in ("rows", "answers")
        for name in ("MaxCaseErrors", "MinCaseRecall", "MaxErrorsPerCase")
    },
    ("rows", "MaxLoss"): "compares two models",
    ("answers", "MaxLoss"): "compares two models",
}


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("kind", EVIDENCE)
def test_each_cell_works_or_says_why_not(kind, promise):
    score = (
        -SCORE if promise == "MinPrecision" else SCORE
    )  # whose class is called from the upper end
    asked, evidence = {**PROMISES, **ABOVE}[promise](), EVIDENCE[kind](score)
    if (kind, promise) in REASONS:
        with pytest.raises(mc.InputError, match=REASONS[kind, promise]):
            asked.certify(evidence)
        return
    found = asked.certify(evidence)
    assert found.n_accepted > 0
    assert (
        asked.contradiction(found) is None or found.guarantee == "none"
    )  # the paper's split is smaller
    if kind != "pair":
        assert found.threshold == asked.certify(score, RIGHT).threshold


@pytest.mark.parametrize("kind", EVIDENCE)
def test_parts_need_rows_whose_part_is_known(kind):
    promise = mc.PerClass(mc.MinAccuracy(0.85))
    if kind == "rows":
        assert {part.name for part in promise.certify(EVIDENCE[kind]()).subgroups.items} == {
            "north",
            "south",
        }
        return
    reason = {"counts": SORTED, "answers": r"the class of each row\.", "pair": COMPARED}[kind]
    with pytest.raises(mc.InputError, match=reason):
        promise.certify(EVIDENCE[kind]())
