"""CalibratedClassifier's promises over repeated draws: exact when rows are held out, measured when
cross-fitted.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.special import bdtr
from sklearn.naive_bayes import GaussianNB

import metacal as mc

CENTRES = np.random.default_rng(1).normal(size=(4, 8)) * 0.9
DELTA, DRAWS = 0.1, 120


def draw(rng, n):
    y = rng.integers(4, size=n)
    return CENTRES[y] + rng.standard_t(5, size=(n, 8)), y  # heavier tails than GaussianNB believes


NEW_X, NEW_Y = draw(np.random.default_rng(99), 5000)
PROMISES = {"miscoverage": mc.MaxMiscoverage(0.1, DELTA), "accuracy": mc.MinAccuracy(0.85, DELTA)}


def broken(promise, cv, calibrator=None):
    """The share of draws in which the fitted gate breaks its promise on new rows (nothing accepted:
    kept).
    """
    rng, count = np.random.default_rng(7), 0
    for _ in range(DRAWS):
        X, y = draw(rng, 600)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                gate = mc.CalibratedClassifier(
                    GaussianNB(), promise, calibrator=calibrator, holdout=0.5, cv=cv
                )
                gate.fit(X, y)
            except mc.InfeasibleTargetError:
                continue
        logits = gate.logits(NEW_X)
        accept, right = gate.calibrator_.accepts(logits), logits.argmax(axis=1) == NEW_Y
        if isinstance(promise, mc.MaxMiscoverage):
            count += (~accept & right).sum() > promise.alpha * right.sum()
        else:
            count += (accept & ~right).sum() > (1 - promise.beta) * accept.sum()
    return count / DRAWS


@pytest.mark.slow
@pytest.mark.parametrize("name", PROMISES)
def test_held_out_rows_keep_the_promise(name):
    most = next(
        k for k in range(DRAWS) if bdtr(k, DRAWS, DELTA) >= 0.999
    )  # binomial noise of DRAWS draws
    # The promise rests on the ranking of held-out rows, not on the map: the quickest one.
    assert broken(PROMISES[name], None, "temperature") <= most / DRAWS


@pytest.mark.long
@pytest.mark.parametrize("name", PROMISES)
def test_cross_fitting_is_approximate_and_not_far_off(name):
    """Nothing is promised; measured at most .13 of draws (docs/sklearn.md). Twice delta would be
    worth knowing.
    """
    assert broken(PROMISES[name], 5) <= 2 * DELTA


@pytest.mark.slow
def test_labels_that_the_fit_never_saw_count_as_wrong():
    """A tenth of the labels occur once. Sent to the fit, they would be missing from the calibration
    rows alone.
    """
    centres = 2.4 * CENTRES

    def with_rare_labels(rng, n):
        y = rng.integers(4, size=n)
        X = centres[y] + rng.normal(size=(n, 8))
        return X, np.where(rng.random(n) < 0.1, rng.integers(1000, 10**9, size=n), y)

    new_x, new_y = with_rare_labels(np.random.default_rng(5), 5000)
    rng, false = np.random.default_rng(0), 0
    for _ in range(20):
        try:
            gate = mc.CalibratedClassifier(GaussianNB(), mc.MinAccuracy(0.95)).fit(
                *with_rare_labels(rng, 800)
            )
        except mc.InfeasibleTargetError:
            continue
        accept = gate.accepts(new_x)
        false += (gate.predict(new_x) == new_y)[accept].mean() < 0.95
    assert false <= 20 * (DELTA + 3 * np.sqrt(DELTA * (1 - DELTA) / 20))
