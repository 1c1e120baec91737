"""False alarms of a watch on cases, whose share of broken cases is exactly the promised limit."""

from __future__ import annotations

import numpy as np
import pytest

import metacal as mc
from metacal.gate.watch import Watch

FIELDS = ("date", "name", "total")
LIMIT = 0.2
DELTA = 0.1
N_RUNS = 300
N_CASES = 250


@pytest.fixture(scope="module")
def gate():
    rng = np.random.default_rng(0)
    correct = rng.random((600, 3)) < [0.9, 0.97, 0.7]
    score = 2.0 * correct + rng.normal(size=correct.shape)
    return mc.ScoreGate(mc.MaxCaseErrors(LIMIT)).fit(
        score.ravel(),
        correct.ravel(),
        cases=np.repeat(np.arange(600), 3),
        groups=np.tile(FIELDS, 600),
    )


def watch_stream(gate, broken_share, rng, *, late):
    """Watch cases of which this share is broken. Half of the cases have no accepted item."""
    is_automated = rng.random(N_CASES) < 0.5
    is_broken = is_automated & (rng.random(N_CASES) < 2.0 * broken_share)
    # In a broken case all items are incorrect, so that items of a case depend on each other.
    score = np.repeat(np.where(is_automated, 99.0, -99.0), 3)
    correct = np.repeat(~is_broken, 3)
    groups, cases = np.tile(FIELDS, N_CASES), np.repeat(np.arange(N_CASES), 3)
    watch = Watch.of(gate, DELTA)
    if not late:
        return watch.update(score, correct, groups=groups, cases=cases)
    watch.update(score, groups=groups, cases=cases, ids=range(len(score)))
    order = rng.permutation(len(score))
    return watch.label(order.tolist(), correct[order])


@pytest.mark.parametrize("late", [False, True])
def test_false_alarms_are_as_rare_as_promised(gate, late):
    rng = np.random.default_rng(1)
    n_alarms = sum(
        "promise" in watch_stream(gate, LIMIT, rng, late=late).raised for _ in range(N_RUNS)
    )
    assert n_alarms <= N_RUNS * DELTA + 3.0 * np.sqrt(N_RUNS * DELTA * (1.0 - DELTA))


def test_a_larger_share_raises_the_alarm(gate):
    rng = np.random.default_rng(2)
    n_alarms = sum(
        "promise" in watch_stream(gate, 1.75 * LIMIT, rng, late=True).raised for _ in range(50)
    )
    assert n_alarms >= 45
