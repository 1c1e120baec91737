"""Vector, matrix, Dirichlet and structured scaling: laws, gradients, penalties, and inputs at the
edge.
"""

from __future__ import annotations

import json
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from metacal import (
    DirichletCalibration,
    MatrixScaling,
    StructuredScaling,
    TemperatureScaling,
    VectorScaling,
    datasets,
)
from metacal.errors import ConvergenceWarning, InputError, MetacalWarning
from metacal.io.artifact import encoding
from metacal.kernels import affine as kernels
from metacal.maps.affine import (
    fit_dirichlet_calibration,
    fit_matrix_scaling,
    fit_structured_scaling,
    fit_vector_scaling,
)
from metacal.maps.fitting.crossvalidation import draw_random_folds
from metacal.maps.fitting.lbfgs import minimise_by_lbfgs
from metacal.maps.map import Map
from metacal.metrics import nll
from metacal.rows import Rows

FITS = {
    "vector": fit_vector_scaling,
    "vector-l2": partial(fit_vector_scaling, penalty="l2"),
    "matrix": fit_matrix_scaling,
    "matrix-l2": partial(fit_matrix_scaling, penalty="l2"),
    "matrix-odir": partial(fit_matrix_scaling, penalty="odir"),
    "dirichlet": fit_dirichlet_calibration,
    "dirichlet-odir": partial(fit_dirichlet_calibration, penalty="odir"),
    "structured": fit_structured_scaling,
}
every_fit = pytest.mark.parametrize("fit", FITS.values(), ids=FITS.keys())


def skewed(n=600, k=4, seed=0):
    """Logits whose classes need scales and intercepts of their own."""
    random = np.random.default_rng(seed)
    logits = 2.0 * random.standard_normal((n, k))
    true = np.linspace(0.5, 1.2, k) * logits + np.linspace(-1.0, 1.0, k)
    return 1.7 * logits, (true + random.gumbel(size=(n, k))).argmax(axis=1)


def calibrated(n, k, seed=0):
    random = np.random.default_rng(seed)
    logits = 2.0 * random.standard_normal((n, k))
    return logits, (logits + random.gumbel(size=(n, k))).argmax(axis=1)


def softmax(logits):
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def quietly(fit, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetacalWarning)
        return fit(*args, **kwargs)


# --- laws -------------------------------------------------------------------------------------------------------------


@every_fit
def test_renaming_the_classes_commutes_with_the_fit(fit):
    logits, labels = skewed()
    order = np.array([2, 0, 3, 1])
    plain = fit(Rows(logits), labels)
    renamed = fit(Rows(logits[:, order]), np.argsort(order)[labels])
    assert renamed.regularisation == plain.regularisation
    np.testing.assert_allclose(renamed(logits[:, order]), plain(logits)[:, order], atol=2e-5)


@every_fit
def test_integer_weights_are_repetition_and_zero_weights_absence(fit):
    logits, labels = skewed()
    weights = np.random.default_rng(1).integers(0, 3, len(labels)).astype(float)
    weighted = fit(Rows(logits), labels, weights, regularisation=0.1)
    repeated = np.repeat(np.arange(len(labels)), weights.astype(int))
    copied = fit(Rows(logits[repeated]), labels[repeated], regularisation=0.1)
    np.testing.assert_allclose(weighted(logits), copied(logits), atol=2e-5)

    used = weights > 0
    junk = logits.copy()
    junk[~used] = 50.0 * np.random.default_rng(2).standard_normal(junk[~used].shape)
    chosen = fit(Rows(junk), labels, weights)
    absent = fit(Rows(logits[used]), labels[used], weights[used])
    assert chosen.regularisation == absent.regularisation
    np.testing.assert_allclose(chosen(logits), absent(logits), atol=2e-5)


@pytest.mark.slow
@every_fit
def test_a_shift_of_a_row_and_the_scale_of_all_change_nothing(fit):
    logits, labels = skewed()
    shift = np.random.default_rng(0).normal(0.0, 20.0, (len(labels), 1))
    plain = fit(Rows(logits), labels)(logits)
    shifted = fit(Rows(logits + shift), labels)(logits + shift)
    np.testing.assert_allclose(shifted, plain, atol=2e-5)
    if fit_dirichlet_calibration in (fit, getattr(fit, "func", None)):
        return  # the logsumexp of ten times the logits is not ten times their logsumexp
    scaled = fit(Rows(100.0 * logits), labels)(100.0 * logits)
    np.testing.assert_allclose(scaled, plain, atol=2e-5)


@pytest.mark.parametrize("fit", [fit_vector_scaling, fit_matrix_scaling], ids=["vector", "matrix"])
def test_bit_identical_for_every_block_size_and_executor(fit):
    logits, labels = skewed(3000, 64)  # three strips
    logits = logits.astype(np.float32)
    plain = fit(Rows(logits), labels, regularisation=1.0)
    with ThreadPoolExecutor(3) as pool:
        for rows in (Rows(logits, block_rows=1), Rows(logits, executor=pool, block_rows=2000)):
            other = fit(rows, labels, regularisation=1.0)
            assert (other.bias == plain.bias).all()
            assert (other(logits[:100]) == plain(logits[:100])).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fit", "tolerance"),
    [
        (fit_vector_scaling, 0.02),
        (fit_structured_scaling, 0.02),
        (fit_matrix_scaling, 0.03),
        (fit_dirichlet_calibration, 0.03),
    ],
)
def test_near_identity_on_calibrated_logits(fit, tolerance):
    logits, labels = calibrated(50_000, 3)
    assert np.abs(fit(Rows(logits), labels)(logits) - softmax(logits)).max() < tolerance


@every_fit
def test_the_penalised_loss_falls_and_cross_validation_does_no_harm(fit):
    logits, labels = skewed(2000)
    new_logits, new_labels = skewed(4000, seed=1)
    temperature = TemperatureScaling().fit(logits, labels)
    before, after = temperature.predict_proba(new_logits), fit(Rows(logits), labels)(new_logits)
    assert nll(after, new_labels) < nll(before, new_labels) - 0.01


def test_strong_penalties_give_temperature_scaling():
    logits, labels = skewed()
    temperature = TemperatureScaling().fit(logits, labels).predict_proba(logits)
    for fit in (fit_structured_scaling, fit_matrix_scaling, fit_dirichlet_calibration):
        np.testing.assert_allclose(
            fit(Rows(logits), labels, regularisation=1e8)(logits), temperature, atol=1e-5
        )
    without = fit_vector_scaling(Rows(logits), labels, regularisation=1e8)
    np.testing.assert_allclose(without.bias, 0.0, atol=1e-5)
    diagonal = fit_matrix_scaling(Rows(logits), labels, penalty="odir", regularisation=1e8).matrix
    np.testing.assert_allclose(diagonal - np.diag(np.diag(diagonal)), 0.0, atol=1e-5)


@pytest.mark.slow
def test_known_scales_and_intercepts_come_back():
    random = np.random.default_rng(5)
    logits = 2.0 * random.standard_normal((50_000, 4))
    logits -= logits.mean(axis=1, keepdims=True)
    true = np.linspace(0.5, 1.2, 4) * logits + np.linspace(-1.0, 1.0, 4)
    labels = (true + random.gumbel(size=true.shape)).argmax(axis=1)
    fit = fit_vector_scaling(Rows(logits), labels, regularisation=0.0)
    assert np.abs(fit(logits) - softmax(true)).max() < 0.03


# --- the mathematics --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("features", [kernels.compute_centred_logits, kernels.compute_log_softmax])
@pytest.mark.parametrize("full", [False, True])
def test_the_gradient_is_the_derivative_of_the_loss(features, full):
    random = np.random.default_rng(0)
    block = random.standard_normal((7, 3))
    block[0, 2] = -np.inf
    labels, weights = np.array([0, 1, 2, 0, 1, 2, 0]), random.random(7)
    theta = random.standard_normal((4 if full else 2, 3))
    at = {"compute_features": features, "feature_scale": 0.7}
    sums = kernels.sum_loss_and_gradient(block, labels, weights, theta=theta, **at)
    assert sums[0] == pytest.approx(
        kernels.sum_loss(block, labels, weights, theta=theta, **at)[0], rel=1e-14
    )
    for index, slope in zip(np.ndindex(theta.shape), sums[1:]):
        step = np.zeros_like(theta)
        step[index] = 1e-6
        up, down = (
            kernels.sum_loss(block, labels, weights, theta=theta + s, **at)[0]
            for s in (step, -step)
        )
        assert slope == pytest.approx((up - down) / 2e-6, abs=1e-7)


def test_minimise_finds_a_minimum_or_warns():
    scales = np.logspace(0, 3, 30)

    def bowl(x):
        return float((scales * (x - 1.0) ** 2).sum() + np.logaddexp(0, x).sum()), (
            2.0 * scales * (x - 1.0) + 1.0 / (1.0 + np.exp(-x))
        )

    found = minimise_by_lbfgs(bowl, np.zeros(30), lambda g: g / scales, tolerance=1e-12)
    assert found.converged
    assert np.abs(bowl(found.point)[1]).max() < 1e-3
    stopped = minimise_by_lbfgs(bowl, np.zeros(30), max_steps=2)
    assert not stopped.converged
    with pytest.warns(ConvergenceWarning, match=r"After 2 steps, the gradient norm"):
        stopped.warn_unless_converged("a test")


def test_folds_are_even_and_seeded():
    folds = draw_random_folds(44, 3, 0)
    assert sorted(np.bincount(folds)) == [14, 15, 15]
    assert (folds == draw_random_folds(44, 3, 0)).all()
    assert (folds != draw_random_folds(44, 3, 1)).any()


# --- inputs at the edge -----------------------------------------------------------------------------------------------


def edge(name):
    random = np.random.default_rng(0)
    logits, labels = skewed(100)
    if name == "a class never seen":
        return logits[labels != 2], labels[labels != 2]
    if name == "one class only":
        return logits[labels == 1], labels[labels == 1]
    if name == "two classes":
        return logits[:, :2], (logits[:, 1] > logits[:, 0] + random.standard_normal(100)).astype(
            int
        )
    if name == "all rows correct":
        return logits, logits.argmax(axis=1)
    if name == "one row per class":
        return logits[:4], np.arange(4)
    if name == "one row":
        return logits[:1], labels[:1]
    if name == "constant logits":
        return np.ones((100, 4)), labels
    if name == "duplicated columns":
        return logits[:, [0, 1, 2, 3, 3]], labels
    if name == "huge logits":
        return 1e6 * logits, labels
    if name == "the classes are swapped":
        return logits[:, ::-1].copy(), labels
    masked = logits.copy()
    masked[np.arange(100), (labels + 1 + random.integers(0, 2, 100)) % 4] = -np.inf
    return masked, labels


EDGES = (
    "a class never seen",
    "one class only",
    "two classes",
    "all rows correct",
    "one row per class",
    "one row",
    "constant logits",
    "duplicated columns",
    "huge logits",
    "the classes are swapped",
    "masked classes",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", EDGES)
@pytest.mark.parametrize(
    "fit", [fit_vector_scaling, fit_matrix_scaling, fit_structured_scaling, FITS["dirichlet-odir"]]
)
def test_inputs_at_the_edge_give_probabilities(fit, name):
    logits, labels = edge(name)
    for strength in (None, 0.0):
        proba = quietly(fit, Rows(logits), labels, regularisation=strength)(logits)
        assert np.isfinite(proba).all()
        np.testing.assert_allclose(proba.sum(axis=1), 1.0, atol=1e-12)
        possible = np.isfinite(logits)
        assert (proba[~possible] == 0.0).all()
        if name == "a class never seen":
            assert (proba[possible] > 0.0).all()


@pytest.mark.slow
def test_two_thousand_classes():
    logits, labels = calibrated(100, 2000)
    logits = logits.astype(np.float32)
    proba = fit_structured_scaling(Rows(logits), labels)(logits)
    assert proba.dtype == np.float32
    assert (proba > 0.0).all()
    np.testing.assert_allclose(proba.sum(axis=1), 1.0, atol=1e-5)


def test_a_true_class_that_is_masked_is_left_out_with_a_warning():
    logits, labels = skewed(200)
    logits[0, labels[0]] = -np.inf
    with pytest.warns(MetacalWarning, match="1 of 200 rows") as caught:
        fit_vector_scaling(Rows(logits), labels, regularisation=1.0)
    assert len(caught) == 1


def test_matrix_scaling_undoes_a_permutation():
    logits, labels = calibrated(5000, 4)
    wrong = logits[:, [1, 2, 3, 0]]
    fit = quietly(fit_matrix_scaling, Rows(wrong), labels)
    assert nll(fit(wrong), labels) < nll(softmax(logits), labels) + 0.02


# --- the faces --------------------------------------------------------------------------------------------------------

FACES = (VectorScaling, MatrixScaling, DirichletCalibration, StructuredScaling)


@pytest.mark.parametrize("face", FACES)
def test_the_face_fits_logits_and_probabilities_alike(face):
    logits, labels = skewed(500)
    names = np.array(["a", "b", "c", "d"])
    cal = face(classes=names).fit(logits.astype(np.float32), names[labels])
    assert cal.predict_proba(logits.astype(np.float32)).dtype == np.float32
    assert set(cal.predict(logits)) <= set(names)
    assert not cal.map_.preserves_accuracy
    assert cal.regularisation_ > 0.0
    assert cal.bias_.shape == (4,)
    same = face(input="probabilities").fit(softmax(logits), labels)
    np.testing.assert_allclose(
        same.predict_proba(softmax(logits)), cal.predict_proba(logits), atol=1e-4
    )


def test_wrong_parameters_say_what_is_needed():
    logits, labels = skewed(50)
    with pytest.raises(InputError, match="penalty must be one of 'odir', 'l2'"):
        MatrixScaling(penalty="lasso").fit(logits, labels)
    with pytest.raises(InputError, match="regularisation must be a finite nonnegative number"):
        VectorScaling(regularisation=-1.0).fit(logits, labels)
    with pytest.raises(InputError, match="n_folds must be at least 2"):
        StructuredScaling(n_folds=1).fit(logits, labels)
    with pytest.raises(InputError, match="fitted on 4 classes, but the table has 3"):
        fit_vector_scaling(Rows(logits), labels, regularisation=1.0)(logits[:, :3])


@pytest.mark.parametrize(
    "fit",
    [fit_vector_scaling, fit_matrix_scaling, fit_dirichlet_calibration, fit_structured_scaling],
)
def test_a_map_survives_json_bit_for_bit_and_cannot_be_changed(fit):
    logits, labels = skewed(300, 9)
    fitted = fit(Rows(logits), labels, regularisation=1.0)
    back = encoding.decode(Map, json.loads(json.dumps(encoding.encode(fitted, "map"))), "map")
    assert (back(logits) == fitted(logits)).all()
    with pytest.raises(ValueError, match="read-only"):
        fitted.bias[0] = 1.0
    with pytest.raises(InputError, match="finite"):
        replace(fitted, bias=np.full(9, np.nan))


@pytest.mark.slow
def test_better_than_temperature_scaling_on_real_logits():
    (logits, labels), (new_logits, new_labels) = datasets.load("cifar10-resnet110").split(
        5000, random_state=1
    )
    before = nll(TemperatureScaling().fit(logits, labels).predict_proba(new_logits), new_labels)
    for face in (MatrixScaling, StructuredScaling):
        assert nll(face().fit(logits, labels).predict_proba(new_logits), new_labels) < before


@pytest.mark.parametrize("fit", [fit_matrix_scaling, fit_dirichlet_calibration])
def test_features_that_are_held_are_those_of_every_pass(fit, monkeypatch):
    random = np.random.default_rng(0)
    logits = random.normal(0.0, 2.0, (300, 5))
    labels = (logits + random.gumbel(size=logits.shape)).argmax(axis=1)
    logits[np.arange(300) % 7 == 0, 4] = -np.inf  # a masked class stays masked
    labels[labels == 4] = 0
    held = fit(Rows(logits), labels, regularisation=0.1)
    monkeypatch.setattr("metacal.maps.fitting.penalised._MAX_HELD_ENTRIES", 0)
    plain = fit(Rows(logits), labels, regularisation=0.1)
    np.testing.assert_allclose(held.matrix, plain.matrix, atol=1e-8)
    np.testing.assert_allclose(held.bias, plain.bias, atol=1e-8)


def test_offsets_are_learned_where_rows_carry_them():
    rng = np.random.default_rng(0)
    x, offsets = 2.5 * rng.normal(size=(3000, 6)), np.array([1.5, -1.0, 0.5, 0.0, 0.0, -1.0])
    labels = np.array([rng.choice(6, p=p) for p in softmax(1.4 * x + offsets)])
    moved = VectorScaling(penalty="offsets").fit(x[:1000], labels[:1000])
    plain = VectorScaling().fit(x[:1000], labels[:1000])
    found, usual = (nll(cal.predict_proba(x[1000:]), labels[1000:]) for cal in (moved, plain))
    assert found < usual
    np.testing.assert_allclose(moved.scale_, np.full(6, moved.scale_[0]))
    np.testing.assert_allclose(moved.bias_ - moved.bias_.mean(), offsets - offsets.mean(), atol=0.4)
    # A weight of two is two rows, and a class that is masked stays impossible.
    twice = VectorScaling(penalty="offsets").fit(
        np.repeat(x[:300], 2, axis=0), np.repeat(labels[:300], 2)
    )
    weighed = VectorScaling(penalty="offsets").fit(
        x[:300], labels[:300], sample_weight=np.full(300, 2.0)
    )
    np.testing.assert_allclose(weighed.bias_, twice.bias_, atol=1e-6)
    x[labels != 5, 5] = -np.inf
    assert VectorScaling(penalty="offsets").fit(x[:300], labels[:300]).predict_proba(x[:1])[
        0, 5
    ] == (labels[0] == 5)
