"""Local temperature scaling: its gradient, its laws, and the inputs that could break it."""

from __future__ import annotations

import numpy as np
import pytest

from metacal import metrics
from metacal.errors import InputError, MetacalWarning
from metacal.estimators.temperature import LocalTemperatureScaling
from metacal.maps import local
from metacal.maps.local import LocalTemperatureMap, fit_local_temperature
from metacal.maps.temperature import fit_temperature
from metacal.rows import Rows


def drawn(rng, n, k, *, sureness=1.0, scale=2.0):
    """Logits that are `sureness` times too large for their labels."""
    logits = rng.normal(0.0, scale, (n, k))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return sureness * logits, labels


def two_kinds(rng, n):
    """Rows with a wide spread of logits are three times too sure, the others are right."""
    logits = rng.normal(0.0, 1.0, (n, 5)) * np.where(rng.random((n, 1)) < 0.5, 1.0, 4.0)
    wide = logits.std(axis=1, keepdims=True) > 2.2
    labels = (np.where(wide, logits / 3.0, logits) + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return logits, labels


def test_gradient_and_information():
    rng = np.random.default_rng(0)
    logits, labels = drawn(rng, 50, 4)
    logits[0, (labels[0] + 1) % 4] = -np.inf
    weights = rng.uniform(0.5, 2.0, 50)
    design = local.build_design_matrix(
        local.compute_features_of_rows(logits, 1.0), np.zeros(3), np.ones(3)
    )
    c = np.array([0.1, -0.2, 0.3, 0.05])
    found = local.sum_loss_derivatives(logits, labels, weights, design, c)
    for k in range(4):
        move = 1e-6 * np.eye(4)[k]
        up, down = (
            local.sum_loss_derivatives(logits, labels, weights, design, c + s * move)[0]
            for s in (1, -1)
        )
        assert (up - down) / 2e-6 == pytest.approx(found[1 + k], rel=1e-6)
    information = found[5:].reshape(4, 4)
    assert np.linalg.eigvalsh(information).min() > -1e-9


def test_calibrated_logits_stay_nearly_as_they_are():
    logits, labels = drawn(np.random.default_rng(0), 5000, 6)
    fitted = fit_local_temperature(Rows(logits), labels)
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert np.abs(fitted(logits) - expected).mean() < 0.01


def test_learns_two_kinds_of_rows():
    rng = np.random.default_rng(0)
    logits, labels = two_kinds(rng, 3000)
    new, new_labels = two_kinds(rng, 3000)
    one, local_ = (f(Rows(logits), labels)(new) for f in (fit_temperature, fit_local_temperature))
    assert metrics.nll(local_, new_labels) < metrics.nll(one, new_labels) - 0.02


def test_a_strong_penalty_is_plain_temperature_scaling():
    logits, labels = two_kinds(np.random.default_rng(0), 500)
    fitted = fit_local_temperature(Rows(logits), labels, penalty=1e12)
    assert fitted(logits) == pytest.approx(fit_temperature(Rows(logits), labels)(logits), abs=1e-6)


def test_laws():
    rng = np.random.default_rng(4)
    logits, labels = drawn(rng, 400, 5, sureness=2.0)
    expected = fit_local_temperature(Rows(logits), labels)(logits)
    order = rng.permutation(5)
    relabelled = fit_local_temperature(Rows(logits[:, order]), np.argsort(order)[labels])(
        logits[:, order]
    )
    assert relabelled == pytest.approx(expected[:, order], abs=1e-6)
    shifted = logits + rng.normal(0.0, 30.0, (400, 1))
    assert fit_local_temperature(Rows(shifted), labels)(shifted) == pytest.approx(
        expected, abs=1e-6
    )
    junk = np.vstack([logits, rng.normal(0, 50, (30, 5))])
    weights = np.r_[np.ones(400), np.zeros(30)]
    ignored = fit_local_temperature(Rows(junk), np.r_[labels, np.zeros(30, int)], weights)
    assert ignored(logits) == pytest.approx(expected, abs=1e-6)
    twice = fit_local_temperature(
        Rows(np.vstack([logits, logits[:50]])), np.r_[labels, labels[:50]]
    )
    double = fit_local_temperature(Rows(logits), labels, np.where(np.arange(400) < 50, 2.0, 1.0))
    assert twice(logits) == pytest.approx(double(logits), abs=1e-6)


def test_masked_classes_keep_zero():
    rng = np.random.default_rng(0)
    logits, labels = drawn(rng, 300, 5)
    masked = rng.random(logits.shape) < 0.2
    masked[np.arange(300), labels] = False
    logits[masked] = -np.inf
    fitted = fit_local_temperature(Rows(logits), labels)
    proba = fitted(logits)
    assert (proba[masked] == 0.0).all()
    assert proba.sum(axis=1) == pytest.approx(1.0)
    one_left = np.array([[-np.inf, 2.0, -np.inf, -np.inf, -np.inf]])
    assert fitted(one_left)[0, 1] == 1.0


RNG = np.random.default_rng(0)
DEGENERATE = {
    "class never seen": (RNG.normal(size=(200, 5)), np.arange(200) % 4),
    "two classes": drawn(RNG, 200, 2),
    "all rows correct": (
        RNG.normal(size=(100, 3)) + 9.0 * np.eye(3)[np.arange(100) % 3],
        np.arange(100) % 3,
    ),
    "one row per class": (RNG.normal(size=(6, 6)), np.arange(6)),
    "2,000 classes": (RNG.normal(size=(50, 2000)).astype(np.float32), np.arange(50)),
    "constant logits": (np.full((20, 3), 7.0), np.arange(20) % 3),
    "duplicated columns": (np.tile(RNG.normal(size=(200, 3)), 2), np.arange(200) % 3),
    "one row": (np.array([[1.0, 0.0]]), np.array([1])),
    "huge logits": (1e12 * RNG.normal(size=(100, 4)), np.arange(100) % 4),
}


@pytest.mark.filterwarnings("ignore::metacal.errors.MetacalWarning")
@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_inputs_give_probabilities(name):
    logits, labels = DEGENERATE[name]
    with np.errstate(invalid="raise", divide="raise", over="raise"):
        proba = fit_local_temperature(Rows(logits), labels)(logits)
    assert np.isfinite(proba).all()
    assert proba.sum(axis=1, dtype=np.float64) == pytest.approx(1.0, abs=1e-5)
    top = logits.argmax(axis=1)
    assert (proba[np.arange(len(proba)), top] == proba.max(axis=1)).all()


@pytest.mark.parametrize("name", ["all rows correct", "constant logits"])
def test_what_cannot_be_learned_is_said(name):
    with pytest.warns(MetacalWarning):
        fit_local_temperature(Rows(DEGENERATE[name][0]), DEGENERATE[name][1])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_dtype_is_kept_and_blocks_do_not_matter(dtype):
    logits, labels = drawn(np.random.default_rng(0), 400, 200)
    table = logits.astype(dtype)
    fitted = fit_local_temperature(Rows(table), labels)
    assert np.array_equal(
        fitted.coefficients, fit_local_temperature(Rows(table, block_rows=327), labels).coefficients
    )
    assert fitted(table).dtype == (np.float64 if dtype is np.float64 else np.float32)


@pytest.mark.parametrize("penalty", [0.0, -1.0, np.inf, "strong", True])
def test_penalty_is_checked(penalty):
    with pytest.raises(InputError, match="penalty"):
        LocalTemperatureScaling(penalty=penalty).fit([[1.0, 0.0]] * 4, [0, 1, 0, 1])


def test_a_damaged_map_is_refused():
    good = {"coefficients": np.zeros(4), "means": np.zeros(3), "scales": np.ones(3)}
    LocalTemperatureMap(1.0, **good)
    for name, bad in (
        ("coefficients", np.zeros(3)),
        ("means", np.full(3, np.nan)),
        ("scales", np.zeros(3)),
    ):
        with pytest.raises(InputError, match=name):
            LocalTemperatureMap(1.0, **{**good, name: bad})
    with pytest.raises(InputError, match="inverse_temperature"):
        LocalTemperatureMap(0.0, **good)


def test_every_prediction_is_kept(embedded_set):
    fitted = LocalTemperatureScaling().fit(embedded_set.logits[:5000], embedded_set.labels[:5000])
    assert (fitted.predict(embedded_set.logits) == embedded_set.logits.argmax(axis=1)).all()
