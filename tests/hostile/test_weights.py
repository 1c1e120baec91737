"""Sample weights of any size: rescaled where sums of them would not be numbers, refused where they
are no weights.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.base import clone

import metacal as mc
from metacal.rows.validate import check_row_weights

N, K = 240, 4
RNG = np.random.default_rng(0)
LABELS = RNG.integers(K, size=N)
LOGITS = RNG.normal(size=(N, K)) + 2.0 * np.eye(K)[LABELS]
ORDINARY = RNG.integers(1, 5, size=N).astype(np.float64)

CALIBRATORS = [
    mc.TemperatureScaling(),
    mc.EnsembleTemperatureScaling(),
    mc.VectorScaling(regularisation=0.0),
    mc.GaussianProcessCalibration(),
    mc.PlattScaling(),
    mc.IsotonicCalibration(),
    mc.HistogramBinning(),
    mc.BBQ(),
    mc.LocalTemperatureScaling(),
    mc.SplineCalibration(),
]
REFUSED = {
    "words": (["a"] * N, "sample_weight must have one number per row"),
    "digits as strings": (["1"] * N, "sample_weight must have one number per row"),
    "complex": (np.ones(N) + 0j, "sample_weight must have one number per row"),
    "dates": (np.zeros(N, dtype="datetime64[s]"), "sample_weight must have one number per row"),
    "None inside": ([None] * N, "finite and nonnegative"),
    "beyond all floats": ([10**400] * N, "sample_weight must have one number per row"),
    "nan": (np.where(np.arange(N) == 3, np.nan, 1.0), "row 3 has nan"),
    "infinite": (np.where(np.arange(N) == 4, np.inf, 1.0), "row 4 has inf"),
    "negative": (np.where(np.arange(N) == 5, -1e-300, 1.0), "row 5 has -1e-300"),
    "all zero": (np.zeros(N), "zero for every"),
    "too few": (np.ones(N - 1), "one weight for each of the 240 rows"),
    "a column": (np.ones((N, 1)), "one weight for each of the 240 rows"),
    "masked": (np.ma.array(np.ones(N), mask=LABELS == 2), "masked"),
    "a generator": ((1.0 for _ in range(N)), "Pass list"),
    "ragged": ([[1.0], [1.0, 2.0]], "different lengths"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_a_sentence(case):
    weights, message = REFUSED[case]
    with pytest.raises(mc.InputError, match=message):
        check_row_weights(weights, N)


@pytest.mark.parametrize("estimator", [mc.TemperatureScaling(), mc.MetaCal(mc.MaxMiscoverage(0.1))])
def test_estimators_refuse_them_too(estimator):
    with pytest.raises(mc.InputError, match="sample_weight must have one number per row"):
        clone(estimator).fit(LOGITS, LABELS, sample_weight=["a"] * N)


@pytest.mark.parametrize("scale", [2.0**-60, 1.0, 1e-9, 1e9, 2.0**60])
def test_ordinary_weights_are_left_to_the_last_bit(scale):
    assert np.array_equal(check_row_weights(ORDINARY * scale, N), ORDINARY * scale)


@pytest.mark.parametrize("power", [-1060, -300, 300, 1020])
def test_beyond_them_ratios_are_kept_to_the_last_bit(power):
    found = check_row_weights(np.ldexp(ORDINARY, power), N)
    assert np.array_equal(found / found[0], ORDINARY / ORDINARY[0])
    assert 2.0**-65 <= found.max() <= 2.0**64


@pytest.mark.parametrize("value", [1e308, 5e-324])
def test_equal_weights_of_any_size_are_no_weights(value):
    plain = mc.TemperatureScaling().fit(LOGITS, LABELS).temperature_
    found = (
        mc.TemperatureScaling().fit(LOGITS, LABELS, sample_weight=np.full(N, value)).temperature_
    )
    assert found == pytest.approx(plain, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("calibrator", CALIBRATORS, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("value", [1e308, 5e-324])
def test_every_calibrator_survives(calibrator, value):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = clone(calibrator).fit(LOGITS, LABELS, sample_weight=np.full(N, value))
        proba = fitted.predict_proba(LOGITS)
    assert np.isfinite(proba).all()
    assert np.allclose(proba.sum(axis=1), 1.0)


def test_a_huge_weight_beside_tiny_ones_is_the_only_row_that_counts():
    weights = np.where(np.arange(N) < 60, 1e308, 5e-324)
    found = mc.TemperatureScaling().fit(LOGITS, LABELS, sample_weight=weights)
    assert found.temperature_ == pytest.approx(
        mc.TemperatureScaling().fit(LOGITS[:60], LABELS[:60]).temperature_
    )


@pytest.mark.parametrize("calibrator", CALIBRATORS, ids=lambda c: type(c).__name__)
def test_a_weight_of_two_is_the_row_twice(calibrator):
    weights = np.where(np.arange(N) < 100, 2.0, 1.0)
    rows = np.append(np.arange(N), np.arange(100))
    weighted = clone(calibrator).fit(LOGITS, LABELS, sample_weight=weights).predict_proba(LOGITS)
    repeated = clone(calibrator).fit(LOGITS[rows], LABELS[rows]).predict_proba(LOGITS)
    assert np.allclose(weighted, repeated, atol=2e-5)
