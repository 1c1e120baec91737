"""score="auto" over repeated draws: the best of several scores is taken after looking, and delta
still holds.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import metacal as mc
from metacal.gate import LogitsData
from metacal.gate.calibrate import calibrate
from metacal.maps.temperature import TemperatureMap
from metacal.rows import Rows
from metacal.scores import score_rows
from metacal.scores.registry import get_delta_fractions_of_auto_scores

DELTA = 0.1


def limit(draws):
    return DELTA + 3 * np.sqrt(DELTA * (1 - DELTA) / draws)


def same_map(rows, codes, weights):
    return TemperatureMap(1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "draws"),
    [
        (300, 120),
        pytest.param(1000, 120, marks=pytest.mark.long),
        pytest.param(5000, 60, marks=pytest.mark.long),
    ],
)
def test_kept_on_real_logits(embedded_set, n, draws):
    logits, labels, correct = embedded_set.logits, embedded_set.labels, embedded_set.correct
    scores = {
        name: score_rows(Rows(logits), name)
        for name in get_delta_fractions_of_auto_scores(logits.shape[1])
    }
    rng, broken = np.random.default_rng(n), np.zeros(2)
    for _ in range(draws):
        chosen = rng.integers(0, len(labels), n)
        for i, promise in enumerate((mc.MinAccuracy(embedded_set.beta), mc.MaxMiscoverage(0.1))):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    data = LogitsData(Rows(logits[chosen]), labels[chosen], "auto", same_map)
                    gate = calibrate(data, promise)
                except mc.InfeasibleTargetError:
                    continue
            accept = scores[gate.source.score] <= gate.threshold
            bad = (
                correct[accept].mean() < promise.beta
                if i == 0
                else (~accept)[correct].mean() > promise.alpha
            )
            broken[i] += bad
    assert (broken / draws).max() <= limit(draws)


@pytest.mark.long
def test_worthless_scores_just_below_the_target():
    """Whatever is accepted breaks the promise, and each score is another chance to accept
    something.
    """
    rng, broken, draws = np.random.default_rng(0), 0, 200
    for _ in range(draws):
        logits = rng.normal(size=(250, 4))
        top = logits.argmax(axis=1)
        labels = np.where(rng.random(250) < 0.9 - 1e-9, top, (top + 1) % 4)
        try:
            calibrate(LogitsData(Rows(logits), labels, "auto", same_map), mc.MinAccuracy(0.9))
        except mc.InfeasibleTargetError:
            continue
        broken += 1
    assert broken / draws <= limit(draws)
