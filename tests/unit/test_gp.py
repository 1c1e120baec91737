"""Gaussian-process calibration: its gradient, its laws, and the inputs that could break it."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from metacal import metrics
from metacal.errors import ConvergenceWarning, InputError, MetacalWarning
from metacal.estimators.curves import GaussianProcessCalibration
from metacal.kernels import gp as kernels
from metacal.maps import gp
from metacal.maps.fitting import variational
from metacal.maps.gp import GaussianProcessMap, fit_gaussian_process
from metacal.maps.labelled import LabelledRows
from metacal.maps.temperature import fit_temperature
from metacal.rows import Rows

CENTRES = ("mean", "log_softmax")


def drawn(rng, n, k, *, sureness=1.0, scale=2.0):
    """Logits that are `sureness` times too large for their labels."""
    logits = rng.normal(0.0, scale, (n, k))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return sureness * logits, labels


@pytest.mark.parametrize("centre", CENTRES)
def test_gradient_of_the_bound_matches_differences(centre):
    logits, labels = drawn(np.random.default_rng(0), 60, 4)
    weights = np.random.default_rng(1).uniform(0.5, 2.0, 60)
    rows = Rows(logits)
    sample = LabelledRows(rows, labels, weights)
    data = variational.EvidenceData(sample, sample, 0.8, centre)
    basis = variational.build_basis(np.linspace(-4.0, 4.0, 6), 2.0, 0.7)
    size = len(basis.projection)
    mean = 0.3 * np.random.default_rng(2).normal(size=size)
    precision = np.eye(size) * 3.0 + 0.2
    here = variational.compute_bound(data, basis, mean, precision)
    step = 1e-5
    for k in range(size):
        move = step * np.eye(size)[k]
        up, down = (
            variational.compute_bound(data, basis, mean + s * move, precision) for s in (1, -1)
        )
        assert (up.value - down.value) / (2 * step) == pytest.approx(
            here.gradient_in_mean[k], rel=1e-5, abs=1e-6
        )
        slope = -(up.gradient_in_mean - down.gradient_in_mean) / (2 * step)
        # Newton's curvature takes the features at the grid point below: a step of ℓ/200 away at
        # most.
        assert slope == pytest.approx(here.curvature_in_mean[k], rel=0.02, abs=0.05)
    # The stationary precision: the bound is flat there in every direction of the covariance.
    posterior = variational.maximise_bound(
        partial(variational.compute_bound, data, basis),
        variational.make_prior_posterior(basis),
        1e-12,
    )
    best = variational.compute_bound(data, basis, posterior.mean, posterior.precision).value
    rng = np.random.default_rng(3)
    for _ in range(5):
        bump = rng.normal(size=(size, size))
        other = posterior.precision + 0.01 * (bump + bump.T)
        assert variational.compute_bound(data, basis, posterior.mean, other).value <= best + 1e-9


def test_interpolated_bound_is_the_bound():
    """On the grid or exactly: the same sum of m_y - log Σ exp(m + σ²/2)."""
    logits, labels = drawn(np.random.default_rng(0), 200, 5)
    basis = variational.build_basis(np.linspace(-4.0, 4.0, 10), 1.6, 0.5)
    size = len(basis.projection)
    mean, covariance = 0.5 * np.ones(size), 0.1 * np.eye(size)
    sums = Rows(logits).sum(
        partial(
            kernels.bound_sums,
            process=variational.tabulate_latent(basis, mean, covariance),
            centre="mean",
            inverse_temperature=1.0,
            requested_sums=("evidence",),
        ),
        labels,
        None,
    )
    t = logits - logits.mean(axis=1, keepdims=True)
    a = basis.projection @ kernels.basis_functions(t.ravel(), np.linspace(-4.0, 4.0, 10), 1.6)
    m = t + (mean @ a).reshape(t.shape)
    variance = (0.5 - (a * a).sum(axis=0) + (a * (covariance @ a)).sum(axis=0)).reshape(t.shape)
    exact = (m[np.arange(200), labels] - np.log(np.exp(m + variance / 2).sum(axis=1))).sum()
    assert sums[0] == pytest.approx(exact, abs=1e-3)


def test_deterministic_bound_lies_below_sampled_evidence():
    rng = np.random.default_rng(0)
    mean, deviation = rng.normal(size=5), 0.7
    sampled = np.log(np.exp(mean + deviation * rng.normal(size=(200_000, 5))).sum(axis=1)).mean()
    assert sampled < np.log(np.exp(mean + deviation**2 / 2).sum())


@pytest.mark.parametrize("centre", CENTRES)
def test_calibrated_logits_stay_nearly_as_they_are(centre):
    logits, labels = drawn(np.random.default_rng(0), 5000, 6)
    fitted = fit_gaussian_process(Rows(logits), labels, centre=centre)
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert np.abs(fitted(logits) - expected).mean() < 0.01
    assert fitted.preserves_accuracy


def test_learns_a_bend_that_no_temperature_can():
    rng = np.random.default_rng(0)
    logits = rng.normal(0.0, 2.5, (6000, 5))
    logits -= logits.mean(axis=1, keepdims=True)
    bent = np.where(logits > 1.0, 1.0 + 0.3 * (logits - 1.0), logits)
    labels = (bent + rng.gumbel(size=bent.shape)).argmax(axis=1)
    fit, rest = Rows(logits[:3000]), logits[3000:]
    plain, smooth = (f(fit, labels[:3000])(rest) for f in (fit_temperature, fit_gaussian_process))
    assert metrics.nll(smooth, labels[3000:]) < metrics.nll(plain, labels[3000:]) - 0.01


@pytest.mark.slow
@pytest.mark.parametrize("centre", CENTRES)
def test_laws(centre):
    rng = np.random.default_rng(4)
    logits, labels = drawn(rng, 400, 5, sureness=2.0)
    fit = partial(fit_gaussian_process, centre=centre)
    expected = fit(Rows(logits), labels)(logits)
    # Relabelling classes commutes.
    order = rng.permutation(5)
    relabelled = fit(Rows(logits[:, order]), np.argsort(order)[labels])(logits[:, order])
    assert relabelled == pytest.approx(expected[:, order], abs=1e-6)
    # A constant added to a row changes nothing.
    shifted = logits + rng.normal(0.0, 30.0, (400, 1))
    assert fit(Rows(shifted), labels)(shifted) == pytest.approx(expected, abs=1e-6)
    # Rows of weight zero change nothing; a duplicated row is weight two.
    junk = np.vstack([logits, rng.normal(0, 50, (30, 5))])
    weights = np.r_[np.ones(400), np.zeros(30)]
    assert fit(Rows(junk), np.r_[labels, np.zeros(30, int)], weights)(logits) == pytest.approx(
        expected, abs=1e-6
    )
    twice = fit(Rows(np.vstack([logits, logits[:50]])), np.r_[labels, labels[:50]])
    double = fit(Rows(logits), labels, np.where(np.arange(400) < 50, 2.0, 1.0))
    assert twice(logits) == pytest.approx(double(logits), abs=1e-6)


@pytest.mark.parametrize("centre", CENTRES)
def test_masked_classes_keep_zero(centre):
    rng = np.random.default_rng(0)
    logits, labels = drawn(rng, 300, 5)
    masked = rng.random(logits.shape) < 0.2
    masked[np.arange(300), labels] = False
    logits[masked] = -np.inf
    proba = fit_gaussian_process(Rows(logits), labels, centre=centre)(logits)
    assert (proba[masked] == 0.0).all()
    assert proba.sum(axis=1) == pytest.approx(1.0)
    one_left = np.full((1, 5), -np.inf)
    one_left[0, 3] = 2.0
    assert fit_gaussian_process(Rows(logits), labels, centre=centre)(one_left)[0, 3] == 1.0


def degenerate(name):
    rng = np.random.default_rng(0)
    if name == "class never seen":
        logits, labels = drawn(rng, 200, 5)
        return logits, np.where(labels == 4, 0, labels)
    if name == "two classes":
        return drawn(rng, 200, 2)
    if name == "all rows correct":
        logits, _ = drawn(rng, 200, 5)
        return logits, logits.argmax(axis=1)
    if name == "one row per class":
        logits = rng.normal(size=(6, 6))
        return logits, np.arange(6)
    if name == "2,000 classes":
        logits, labels = drawn(rng, 50, 2000)
        return logits.astype(np.float32), labels
    if name == "constant logits":
        return np.full((20, 3), 7.0), np.arange(20) % 3
    if name == "duplicated columns":
        logits, labels = drawn(rng, 200, 3)
        return np.hstack([logits, logits]), labels
    if name == "one row":
        return np.array([[1.0, 0.0]]), np.array([1])
    assert name == "huge logits"
    logits, labels = drawn(rng, 200, 4)
    return 1e12 * logits, labels


DEGENERATE = (
    "class never seen",
    "two classes",
    "all rows correct",
    "one row per class",
    "2,000 classes",
    "constant logits",
    "duplicated columns",
    "one row",
    "huge logits",
)


@pytest.mark.filterwarnings("ignore::metacal.errors.MetacalWarning")
@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_inputs_give_probabilities(name):
    logits, labels = degenerate(name)
    with np.errstate(invalid="raise", divide="raise", over="raise"):
        fitted = fit_gaussian_process(Rows(logits), labels)
        proba = fitted(logits)
    assert np.isfinite(proba).all()
    assert proba.sum(axis=1, dtype=np.float64) == pytest.approx(1.0, abs=1e-5)
    if fitted.preserves_accuracy:
        top = logits.argmax(axis=1)
        assert (proba[np.arange(len(proba)), top] == proba.max(axis=1)).all()
    if name == "duplicated columns":
        assert proba[:, :3] == pytest.approx(proba[:, 3:])


@pytest.mark.parametrize("name", ["all rows correct", "constant logits"])
def test_what_cannot_be_learned_is_said(name):
    with pytest.warns(MetacalWarning):
        fit_gaussian_process(Rows(degenerate(name)[0]), degenerate(name)[1])


def test_stopping_early_warns(monkeypatch):
    monkeypatch.setattr(variational, "MAX_PASSES", 0)
    logits, labels = drawn(np.random.default_rng(0), 500, 4, sureness=3.0)
    with pytest.warns(ConvergenceWarning, match="did not converge"):
        fit_gaussian_process(Rows(logits), labels)


def test_a_turning_curve_does_not_claim_to_keep_predictions():
    inducing = np.array([-1.0, 0.0, 1.0])
    dip = GaussianProcessMap(1.0, 0.5, inducing, np.array([0.0, 0.0, -3.0]))
    assert not dip.preserves_accuracy
    logits = np.array([[1.0, 0.4, -1.4]])
    assert dip(logits).argmax() != logits.argmax()
    assert GaussianProcessMap(1.0, 0.5, inducing, np.array([0.0, 0.05, 0.0])).preserves_accuracy


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_dtype_is_kept_and_blocks_do_not_matter(dtype):
    logits, labels = drawn(np.random.default_rng(0), 400, 200)
    table = logits.astype(dtype)
    fitted = fit_gaussian_process(Rows(table), labels)
    again = fit_gaussian_process(Rows(table, block_rows=327), labels)
    assert np.array_equal(fitted.weights, again.weights)
    proba = fitted(table)
    assert proba.dtype == (np.float64 if dtype is np.float64 else np.float32)
    assert np.array_equal(proba, fitted(table, rows=Rows(table, block_rows=327)))


@pytest.mark.slow
def test_thinned_rows_only_choose_the_kernel(monkeypatch):
    logits, labels = drawn(np.random.default_rng(0), 4000, 5, sureness=2.0)
    whole = fit_gaussian_process(Rows(logits), labels)
    monkeypatch.setattr(gp, "_MAX_SAMPLE_ENTRIES", 4000)
    thinned = fit_gaussian_process(Rows(logits), labels)
    assert thinned(logits) == pytest.approx(whole(logits), abs=0.01)


@pytest.mark.parametrize(
    "options", [{"n_inducing": 1}, {"n_inducing": 2.5}, {"n_inducing": True}, {"centre": "median"}]
)
def test_options_are_checked(options):
    with pytest.raises(InputError, match=next(iter(options))):
        GaussianProcessCalibration(**options).fit([[1.0, 0.0]] * 4, [0, 1, 0, 1])


@pytest.mark.parametrize(
    "fields",
    [
        (0.0, 1.0, np.zeros(1), np.zeros(1)),
        (1.0, -1.0, np.zeros(1), np.zeros(1)),
        (1.0, 1.0, np.zeros(2), np.zeros(2)),
        (1.0, 1.0, np.zeros(1), np.zeros(2)),
        (1.0, 1.0, np.zeros(1), np.array([np.nan])),
        (1.0, 1.0, np.zeros(1), np.zeros(1), "median"),
    ],
)
def test_a_damaged_map_is_refused(fields):
    with pytest.raises(InputError):
        GaussianProcessMap(*fields)


def test_estimator_reads_strings_and_probabilities():
    logits, labels = drawn(np.random.default_rng(0), 300, 3)
    names = np.array(["a", "b", "c"])
    proba = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    fitted = GaussianProcessCalibration(input="probabilities", classes=names, n_jobs=2).fit(
        proba, names[labels]
    )
    assert set(fitted.predict(proba)) <= set(names)
    assert fitted.predict_proba(proba).sum(axis=1) == pytest.approx(1.0)
