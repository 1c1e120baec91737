"""Ensemble temperature scaling: the weights are the best there are, and no prediction is ever
lost.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict

import numpy as np
import pytest
from scipy.optimize import minimize

from metacal import datasets
from metacal.errors import InputError, MetacalWarning
from metacal.estimators.temperature import EnsembleTemperatureScaling
from metacal.maps.ensemble import (
    EnsembleTemperatureMap,
    fit_ensemble_temperature,
    minimise_on_simplex,
)
from metacal.maps.fitting.mixture import fit_mixture_weights
from metacal.maps.temperature import fit_temperature
from metacal.maps.uniform import fit_uniform_temperature
from metacal.rows import Rows


def overconfident(n=2000, k=5, seed=0, scale=2.5):
    """Rows of which one in ten is pure noise: all three members have something to add."""
    random = np.random.default_rng(seed)
    logits = 2.0 * random.standard_normal((n, k))
    labels = (logits + random.gumbel(size=(n, k))).argmax(axis=1)
    noise = random.random(n) < 0.1
    labels[noise] = random.integers(0, k, noise.sum())
    return scale * logits, labels


@pytest.fixture(scope="module")
def cifar100():
    data = datasets.load("cifar100-resnet110")
    return data.logits[:2000], data.labels[:2000]


def test_the_weights_solve_the_likelihood_on_the_simplex():
    random = np.random.default_rng(0)
    for seed in range(10):
        members = np.random.default_rng(seed).dirichlet(np.ones(4), 300)[:, :3]
        members[:, 2] = 0.1
        weights = random.random(300)
        ours = fit_mixture_weights(members, weights)
        peer = minimize(
            lambda w, members=members, weights=weights: (
                -(weights * np.log(members @ w)).sum() / weights.sum()
            ),
            np.full(3, 1 / 3),
            bounds=[(1e-9, 1)] * 3,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
            method="SLSQP",
            options={"ftol": 1e-14},
        )
        assert -(weights * np.log(members @ ours)).sum() / weights.sum() <= peer.fun + 1e-9
        assert ours.sum() == pytest.approx(1.0, abs=1e-12)
        assert ours.min() >= 0.0


def test_the_weights_are_the_likeliest_where_a_row_is_nearly_impossible():
    # What only the uniform member allows for makes its curvature 1e36 where its weight is near
    # zero.
    for seed in range(10):
        random = np.random.default_rng(seed)
        sure = random.beta(8.0, 1.0, 2000)
        members = np.column_stack((sure, sure**0.5, np.full(2000, 0.01)))
        members[: seed % 3 + 1] = [1e-20, 1e-28, 0.01]
        found = fit_mixture_weights(members)
        ratios = (members / (members @ found)[:, None]).mean(axis=0)
        assert ratios.max() <= 1.0 + 1e-8  # no other mixture has a loss that is lower by more
        assert found[2] > 2e-4


@pytest.mark.parametrize(
    ("loss", "part"), [("sequential", fit_temperature), ("nll", fit_uniform_temperature)]
)
def test_more_members_never_fit_worse(cifar100, loss, part):
    for factor in (0.5, 1.0, 3.0):
        logits, labels = factor * cifar100[0].astype(np.float64), cifar100[1].copy()
        labels[:3] = logits[:3].argmin(axis=1)  # nearly impossible
        own = np.arange(len(labels)), labels
        whole, alone = (
            fit_ensemble_temperature(Rows(logits), labels, loss=loss),
            part(Rows(logits), labels),
        )
        assert -np.log(whole(logits)[own]).mean() <= -np.log(alone(logits)[own]).mean() + 1e-12


def test_the_quadratic_programme_is_at_least_as_good_as_a_fine_grid():
    grid = np.array(
        [
            (a, b, 1 - a - b)
            for a in np.linspace(0, 1, 41)
            for b in np.linspace(0, 1, 41)
            if a + b <= 1
        ]
    )
    for seed in range(50):
        random = np.random.default_rng(seed)
        root = random.standard_normal((3, int(random.integers(1, 4))))
        hessian, gradient = root @ root.T, random.standard_normal(3)
        ours = minimise_on_simplex(hessian, gradient)
        values = 0.5 * np.einsum("ni,ij,nj->n", grid, hessian, grid) + grid @ gradient
        assert 0.5 * ours @ hessian @ ours + gradient @ ours <= values.min() + 1e-9


@pytest.mark.parametrize("loss", ["nll", "mse"])
def test_no_other_weights_do_better_at_the_same_temperature(loss):
    logits, labels = overconfident()
    fit = fit_ensemble_temperature(Rows(logits), labels, loss=loss)
    rivals = [np.array(w) for w in ((1.0, 0.0, 0.0), (0.9, 0.0, 0.1), (0.5, 0.5, 0.0))]
    rivals += [0.99 * np.array(fit.weights) + 0.01 * corner for corner in np.eye(3)]
    ours = _loss(loss, fit(logits), labels)
    for rival in rivals:
        other = EnsembleTemperatureMap(fit.inverse_temperature, tuple(rival / rival.sum()))
        assert ours <= _loss(loss, other(logits), labels) + 1e-12


def test_the_squared_error_temperature_minimises_the_brier_score():
    logits, labels = overconfident()
    b = fit_ensemble_temperature(Rows(logits), labels, loss="mse").inverse_temperature
    plain = [
        _loss("mse", EnsembleTemperatureMap(f * b, (1.0, 0.0, 0.0))(logits), labels)
        for f in (0.98, 1.0, 1.02)
    ]
    assert plain[1] < min(plain[0], plain[2])


def test_noise_rows_give_the_uniform_member_weight():
    logits, labels = overconfident(20_000)
    weights = fit_ensemble_temperature(Rows(logits), labels).weights
    assert weights[2] > 0.01


@pytest.mark.parametrize("loss", ["nll", "mse"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_prediction_survives_even_near_ties(loss, dtype):
    logits, labels = overconfident()
    fit = fit_ensemble_temperature(Rows(logits), labels, loss=loss)
    tied = np.zeros((500, 8), dtype=dtype)
    winner = np.random.default_rng(1).integers(0, 8, 500)
    tied[np.arange(500), winner] = np.finfo(dtype).eps
    for table in (logits.astype(dtype), tied):
        proba = fit(table)
        assert proba.dtype == dtype
        assert (proba.argmax(axis=1) == table.argmax(axis=1)).all()
        np.testing.assert_allclose(proba.sum(axis=1), 1.0, atol=1e-6)


def test_labels_that_the_logits_say_nothing_about_keep_the_predictions_too():
    random = np.random.default_rng(0)
    logits, labels = 3.0 * random.standard_normal((1000, 4)), random.integers(0, 4, 1000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetacalWarning)
        fit = fit_ensemble_temperature(Rows(logits), labels)
    assert (fit(logits).argmax(axis=1) == logits.argmax(axis=1)).all()


def test_near_identity_on_calibrated_logits():
    random = np.random.default_rng(3)
    logits = 2.0 * random.standard_normal((50_000, 4))
    labels = (logits + random.gumbel(size=logits.shape)).argmax(axis=1)
    proba = EnsembleTemperatureMap(1.0, (1.0, 0.0, 0.0))(logits)
    for loss in ("nll", "mse"):
        assert (
            np.abs(fit_ensemble_temperature(Rows(logits), labels, loss=loss)(logits) - proba).max()
            < 0.01
        )


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["nll", "mse"])
def test_laws(loss, cifar100):
    logits, labels = cifar100
    fit = fit_ensemble_temperature(Rows(logits), labels, loss=loss)
    proba = fit(logits)

    order = np.random.default_rng(0).permutation(100)
    renamed = fit_ensemble_temperature(Rows(logits[:, order]), np.argsort(order)[labels], loss=loss)
    np.testing.assert_allclose(renamed(logits[:, order]), proba[:, order], atol=1e-6)

    weights = np.random.default_rng(1).integers(0, 3, len(labels)).astype(float)
    weighted = fit_ensemble_temperature(Rows(logits), labels, weights, loss=loss)
    repeated = np.repeat(np.arange(len(labels)), weights.astype(int))
    copied = fit_ensemble_temperature(Rows(logits[repeated]), labels[repeated], loss=loss)
    np.testing.assert_allclose(weighted(logits), copied(logits), atol=1e-6)
    absent = fit_ensemble_temperature(
        Rows(logits[weights > 0]), labels[weights > 0], weights[weights > 0], loss=loss
    )
    np.testing.assert_allclose(weighted(logits), absent(logits), atol=1e-7)

    assert fit_ensemble_temperature(Rows(logits, block_rows=1), labels, loss=loss) == fit
    assert EnsembleTemperatureMap(**_through_json(fit)) == fit


def test_masked_classes_stay_impossible_and_share_nothing():
    logits, labels = overconfident()
    masked = logits.copy()
    masked[np.arange(len(labels)), (labels + 1) % 5] = -np.inf
    fit = fit_ensemble_temperature(Rows(masked), labels)
    proba = EnsembleTemperatureMap(fit.inverse_temperature, (0.5, 0.2, 0.3))(masked)
    assert (proba[np.isneginf(masked)] == 0.0).all()
    np.testing.assert_allclose(proba.sum(axis=1), 1.0, atol=1e-12)


def test_all_rows_right_warns_and_gives_probabilities():
    logits, labels = np.eye(3) * 5.0, np.arange(3)
    with pytest.warns(MetacalWarning, match="Every row is correct"):
        fit = fit_ensemble_temperature(Rows(logits), labels)
    assert np.isfinite(fit(logits)).all()


def test_the_estimator_shows_temperature_and_weights(cifar100):
    cal = EnsembleTemperatureScaling(n_jobs=2).fit(*cifar100)
    assert cal.temperature_ == cal.map_.temperature > 1.0
    assert sum(cal.weights_) == pytest.approx(1.0, abs=1e-12)
    assert cal.map_ == EnsembleTemperatureScaling().fit(*cifar100).map_
    assert cal.map_.preserves_accuracy
    with pytest.raises(InputError, match="loss must be 'nll', 'mse' or 'sequential'"):
        EnsembleTemperatureScaling(loss="brier").fit(*cifar100)


def test_a_map_that_loses_every_prediction_is_refused():
    with pytest.raises(InputError, match="less than 1, because otherwise"):
        EnsembleTemperatureMap(1.0, (0.0, 0.0, 1.0))
    with pytest.raises(InputError, match="sum to one"):
        EnsembleTemperatureMap(1.0, (0.5, 0.4, 0.2))


def _loss(loss, proba, labels):
    if loss == "nll":
        return -np.log(proba[np.arange(len(labels)), labels]).mean()
    return ((proba - np.eye(proba.shape[1])[labels]) ** 2).sum(axis=1).mean()


def _through_json(fit):
    fields = json.loads(json.dumps(asdict(fit)))
    return {**fields, "weights": tuple(fields["weights"])}
