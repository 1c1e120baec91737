"""The lower target that `metacal start` chooses from some rows and certifies on others."""

from __future__ import annotations

import numpy as np

import metacal as mc
from metacal.cli.start_plan import HELD_OUT_ROW_RANGE, PILOT_FIT_ROW_RANGES, choose_target_below

N_DRAWS = 300
N_ROWS = 800
DELTA = 0.1


def accuracy_at_confidence(confidence):
    """Return the probability that a prediction is correct, below its confidence at the top."""
    return 0.5 + 0.44 * confidence**2


def selective_accuracy(lowest_confidence):
    """Return the exact accuracy of accepted predictions, for uniform confidences."""
    grid = np.linspace(lowest_confidence, 1.0, 20_001)
    return accuracy_at_confidence(grid).mean()


def best_target(confidence, correct):
    """Return the best accuracy that rows support, none of which reach 0.99."""
    try:
        mc.MinAccuracy(0.99, delta=DELTA).certify(1.0 - confidence, correct)
    except mc.InfeasibleTargetError as error:
        return error.best
    return 0.99


def test_the_certified_target_is_missed_no_more_often_than_delta():
    n_certified = n_missed = 0
    for seed in range(N_DRAWS):
        random = np.random.default_rng(seed)
        confidence = random.random(N_ROWS)
        correct = random.random(N_ROWS) < accuracy_at_confidence(confidence)
        best_targets = []
        for start, stop in PILOT_FIT_ROW_RANGES:
            part = slice(round(start * N_ROWS), round(stop * N_ROWS))
            best_targets.append(best_target(confidence[part], correct[part]))
        target = choose_target_below(best_targets)
        held_out = slice(round(HELD_OUT_ROW_RANGE[0] * N_ROWS), N_ROWS)
        try:
            certificate = mc.MinAccuracy(target, delta=DELTA).certify(
                1.0 - confidence[held_out], correct[held_out]
            )
        except mc.InfeasibleTargetError:
            continue
        n_certified += 1
        lowest_confidence = 1.0 - certificate.threshold
        n_missed += selective_accuracy(max(lowest_confidence, 0.0)) < target
    assert n_missed / N_DRAWS <= DELTA + 3.0 * np.sqrt(DELTA * (1.0 - DELTA) / N_DRAWS)
    # The choice is useful: most held-out rows certify it.
    assert n_certified / N_DRAWS >= 0.8
