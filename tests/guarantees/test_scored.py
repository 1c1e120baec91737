"""Promises on scores of few values: a judge's ten marks, missing ones among them. The population is
known exactly.

200 draws tell delta from 3 delta: certified at 0.3, a fifth of those of two populations break it,
and 16% are allowed.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import metacal as mc
from metacal.gate import ScoreData
from metacal.gate.calibrate import calibrate

DRAWS = 200
DELTA = 0.1
LIMIT = DELTA + 3 * np.sqrt(DELTA * (1 - DELTA) / DRAWS)

MARKS = np.arange(1.0, 11.0)
#: How often each mark is given, and how often the answer is then right. The last is not in order: 7
#: is worse than 6.
POPULATIONS = {
    "rising": (np.full(10, 0.1), 1.0 - 0.5 * (1.0 - MARKS / 10) ** 1.5),
    "most at the top": (
        np.array([1, 1, 1, 2, 2, 3, 5, 10, 25, 50]) / 100,
        np.linspace(0.4, 0.97, 10),
    ),
    "not in order": (
        np.full(10, 0.1),
        np.array([0.3, 0.4, 0.5, 0.6, 0.7, 0.93, 0.8, 0.95, 0.99, 0.97]),
    ),
}


def truth(share, accuracy, accept):
    """Miscoverage and accuracy of a set of marks, and the share of rows that bear them."""
    right = share * accuracy
    return (
        1 - right[accept].sum() / right.sum(),
        right[accept].sum() / max(share[accept].sum(), 1e-12),
        share[accept].sum(),
    )


def gates(share, accuracy, promise, n, missing=0.0):
    rng = np.random.default_rng(n)
    for _ in range(DRAWS):
        place = rng.choice(10, n, p=share)
        right = rng.random(n) < accuracy[place]
        score = np.where(rng.random(n) < missing, np.nan, MARKS[place])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mc.MetacalWarning)
            try:
                yield calibrate(ScoreData(score, right), promise).accepts(MARKS)
            except mc.InfeasibleTargetError:
                yield np.zeros(10, dtype=bool)


@pytest.mark.slow
@pytest.mark.parametrize("name", POPULATIONS)
@pytest.mark.parametrize("n", [300, pytest.param(2000, marks=pytest.mark.long)])
def test_accuracy_of_coarse_scores_is_kept(name, n):
    share, accuracy = POPULATIONS[name]
    beta = 0.92
    found = [
        truth(share, accuracy, accept) for accept in gates(share, accuracy, mc.MinAccuracy(beta), n)
    ]
    _, f1, coverage = np.array(found).T
    assert np.mean((coverage > 0) & (f1 < beta)) <= LIMIT
    if n == 2000:  # and it accepts something: a gate that is always shut keeps every promise
        assert np.mean(coverage > 0) > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("name", POPULATIONS)
def test_miscoverage_of_coarse_scores_is_kept_with_rows_that_have_no_score(name):
    share, accuracy = POPULATIONS[name]
    found = [
        truth(share, accuracy, a)
        for a in gates(share, accuracy, mc.MaxMiscoverage(0.1), 500, missing=0.2)
    ]
    f0 = np.array(found)[:, 0]
    assert np.mean(f0 > 0.1) <= LIMIT


@pytest.mark.slow
def test_accuracy_is_kept_where_every_mark_is_just_below_the_target():
    """The least favourable: nothing is good enough, and the score says nothing."""
    share, beta = np.full(10, 0.1), 0.9
    opened = [
        accept.any()
        for accept in gates(share, np.full(10, beta - 0.005), mc.MinAccuracy(beta), 500)
    ]
    assert np.mean(opened) <= LIMIT
