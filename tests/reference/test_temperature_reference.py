"""The temperature against solvers that we did not write."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

import metacal as mc


@pytest.mark.slow
def test_against_a_scalar_minimiser_in_float64(real_set):
    logits = real_set.logits.astype(np.float64)
    own = logits[np.arange(len(logits)), real_set.labels]
    found = minimize_scalar(
        lambda b: (logsumexp(b * logits, axis=1) - b * own).mean(), bracket=(0.2, 1.0), tol=1e-12
    )
    fitted = mc.TemperatureScaling().fit(real_set.logits, real_set.labels).temperature_
    assert fitted == pytest.approx(1 / found.x, rel=1e-6)


def test_against_scikit_learn(embedded_set):
    """sklearn.calibration._TemperatureScaling, live; its own tolerance is about 1e-4."""
    import sklearn.calibration as calibration

    if not hasattr(calibration, "_TemperatureScaling"):
        pytest.skip("this scikit-learn has no temperature scaling; 1.8 has")
    from sklearn.calibration import _TemperatureScaling

    logits, labels = embedded_set.logits[:5000].astype(np.float64), embedded_set.labels[:5000]
    theirs = 1 / _TemperatureScaling().fit(logits, labels).beta_
    ours = mc.TemperatureScaling().fit(logits, labels).temperature_
    assert ours == pytest.approx(theirs, rel=1e-3)
    np.testing.assert_allclose(
        mc.TemperatureScaling().fit(logits, labels).predict_proba(logits),
        _TemperatureScaling().fit(logits, labels).predict(logits),
        atol=2e-4,
    )


#: The data card's best temperatures, computed apart from this package (shared with the logits).
CARD = {"cifar10-resnet110": 2.783, "cifar100-resnet110": 2.416}


def test_against_the_data_card(embedded_set):
    fitted = mc.TemperatureScaling().fit(embedded_set.logits, embedded_set.labels).temperature_
    assert fitted == pytest.approx(CARD[embedded_set.name], abs=6e-4)
