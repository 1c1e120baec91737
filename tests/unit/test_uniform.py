"""Temperature with a uniform part: the lowest loss, neutral where nothing is wrong, a cure for
floored rows.
"""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import softmax

import metacal as mc
from metacal import datasets, kernels
from metacal.kernels.columns import (
    GAP_VARIANCE,
    IS_CORRECT,
    LABEL_GAP,
    MEAN_GAP,
    OTHERS_SUM,
    THIRD_CUMULANT,
    confidence_log_odds,
    mixture_loss_and_derivatives,
)
from metacal.maps.composed import ComposedMap, compute_log_probability_rows, fit_composed
from metacal.maps.temperature import fit_temperature
from metacal.maps.uniform import UniformTemperatureMap, fit_uniform_temperature
from metacal.rows import Rows


def floored(logits, share=0.02, floor=1e-12, seed=0):
    """Logarithms of probabilities; in some rows every class but the first one has nothing but the
    floor.
    """
    random = np.random.default_rng(seed)
    chances = softmax(0.5 * logits.astype(np.float64), axis=1)
    rows = random.random(len(logits)) < share
    losers = chances < chances.max(axis=1, keepdims=True)
    chances[rows[:, None] & losers] = floor
    return np.log(chances)


def loss(fitted, logits, labels):
    return float(
        -np.log(fitted(np.asarray(logits, dtype=np.float64))[np.arange(len(labels)), labels]).mean()
    )


@pytest.fixture(scope="module", params=["cifar10-resnet110", "cifar100-resnet110"])
def split(request):
    return datasets.load(request.param).split(1000, random_state=0)


def test_neutral_where_nothing_is_wrong(split):
    (logits, labels), (new, truth) = split
    difference = loss(fit_uniform_temperature(Rows(logits), labels), new, truth) - loss(
        fit_temperature(Rows(logits), labels), new, truth
    )
    assert abs(difference) < 5e-4


def test_floored_rows_are_cured(split):
    (logits, labels), (new, truth) = split
    table, fresh = floored(logits), floored(new, seed=1)
    plain, mixed = (
        fit_temperature(Rows(table), labels),
        fit_uniform_temperature(Rows(table), labels),
    )
    assert mixed.uniform > 0.001
    assert mixed.temperature < plain.temperature
    assert loss(mixed, fresh, truth) < loss(plain, fresh, truth) - 0.01
    assert mc.metrics.ece(mixed(fresh), truth) < mc.metrics.ece(plain(fresh), truth)


@pytest.mark.parametrize("seed", range(4))
def test_no_other_pair_does_better(seed):
    random = np.random.default_rng(seed)
    logits = random.normal(0.0, 3.0, (400, 4))
    labels = (logits + random.gumbel(size=logits.shape)).argmax(axis=1)
    labels[: 40 * seed] = random.integers(4, size=40 * seed)
    weights = random.random(400)
    fit = fit_uniform_temperature(Rows(2.0 * logits), labels, weights)
    own = np.arange(400), labels

    def objective(point):
        chances = softmax(np.exp(point[0]) * 2.0 * logits, axis=1)[own]
        return (
            -(weights * np.log((1.0 - point[1]) * chances + point[1] / 4.0)).sum() / weights.sum()
        )

    peers = [
        minimize(objective, start, bounds=[(-5.0, 5.0), (0.0, 0.999)], method="L-BFGS-B", tol=1e-12)
        for start in ((-1.0, 0.01), (0.0, 0.2), (1.0, 0.05), (-0.7, 0.0))
    ]
    assert (
        objective([np.log(fit.inverse_temperature), fit.uniform])
        <= min(peer.fun for peer in peers) + 1e-8
    )


def test_the_kernel_is_the_derivative_of_its_own_loss():
    random = np.random.default_rng(0)
    logits = random.normal(0.0, 3.0, (60, 7))
    logits[5, 2] = -np.inf
    labels, weights = random.integers(3, 7, 60), random.random(60)

    def sums(log_b, uniform):
        walked = float(np.exp(log_b))
        columns = kernels.temperature_statistics(logits, labels, walked).T
        return mixture_loss_and_derivatives(np, columns, weights, walked, walked, uniform)

    here, step = sums(-0.3, 0.05), 1e-5
    along = (sums(-0.3 + step, 0.05) - sums(-0.3 - step, 0.05)) / (2.0 * step)
    across = (sums(-0.3, 0.05 + step) - sums(-0.3, 0.05 - step)) / (2.0 * step)
    np.testing.assert_allclose(along[:3], here[[1, 3, 4]], rtol=1e-6)
    np.testing.assert_allclose(across[:3], here[[2, 4, 5]], rtol=1e-6)
    chances = softmax(np.exp(-0.3) * logits, axis=1)[np.arange(60), labels]
    even = 1.0 / (logits > -np.inf).sum(axis=1)
    assert here[0] == pytest.approx(-(weights * np.log(0.95 * chances + 0.05 * even)).sum())


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("k", [3, 40, 300])
def test_the_c_kernel_says_the_same_row_by_row(dtype, k):
    fused = pytest.importorskip("metacal.kernels.fused")
    from metacal.kernels import numpy as definition

    random = np.random.default_rng(k)
    table = random.normal(0.0, 3.0, (50, k)).astype(dtype)
    table[3, 0] = -np.inf
    labels = random.integers(1, k, 50)
    tolerance = 1e-12 if dtype == np.float64 else 1e-5
    table[7:9] = np.round(table[7:9])  # ties
    labels[7:9] = table[7:9].argmax(axis=1)
    ours, other = (
        fused.temperature_statistics(table, labels, 0.7),
        definition.temperature_statistics(table, labels, 0.7),
    )
    scale = np.abs(other).max(axis=0)
    np.testing.assert_allclose(ours / scale, other / scale, rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(ours[:, IS_CORRECT], table.argmax(axis=1) == labels)
    loss = np.log1p(ours[:, OTHERS_SUM]) - 0.7 * ours[:, LABEL_GAP]
    sums = [
        loss.sum(),
        (ours[:, MEAN_GAP] - ours[:, LABEL_GAP]).sum(),
        ours[:, GAP_VARIANCE].sum(),
        ours[:, THIRD_CUMULANT].sum(),
    ]
    np.testing.assert_allclose(
        sums, fused.tempered_loss_and_derivatives(table, labels, None, 0.7), rtol=1e-6
    )


def test_what_a_walk_sees_holds_at_temperatures_nearby():
    random = np.random.default_rng(0)
    logits = random.normal(0.0, 3.0, (200, 6))
    labels = random.integers(6, size=200)
    columns, there = (kernels.temperature_statistics(logits, labels, b).T for b in (0.7, 0.71))
    near = mixture_loss_and_derivatives(np, columns, None, 0.7, 0.71, 0.05)
    np.testing.assert_allclose(
        near, mixture_loss_and_derivatives(np, there, None, 0.71, 0.71, 0.05), rtol=1e-4
    )
    odds = [
        confidence_log_odds(np, seen, walked, 0.71, 0.05)
        for seen, walked in ((columns, 0.7), (there, 0.71))
    ]
    np.testing.assert_allclose(*odds, rtol=1e-6, atol=1e-6)
    top = UniformTemperatureMap(0.71, 0.05)(logits).max(axis=1)
    np.testing.assert_allclose(odds[1], np.log(top / (1.0 - top)), rtol=1e-9, atol=1e-9)


def test_blocks_threads_and_storage_change_nothing(tmp_path):
    data = datasets.load("cifar10-resnet110")
    table = floored(data.logits)
    whole = fit_uniform_temperature(Rows(table), data.labels)
    np.save(tmp_path / "table.npy", table)
    stored = np.load(tmp_path / "table.npy", mmap_mode="r")
    with mc.rows.open_executor(2) as executor:
        assert (
            fit_uniform_temperature(Rows(stored, block_rows=1000, executor=executor), data.labels)
            == whole
        )


def test_a_large_table_takes_few_passes(monkeypatch):
    random = np.random.default_rng(0)
    logits = random.normal(0.0, 2.0, (60_000, 5))
    labels = (0.5 * logits + random.gumbel(size=logits.shape)).argmax(axis=1)
    plain, seen = kernels.temperature_statistics, []
    counting = partial(
        lambda block, *columns, **point: seen.append(len(block)) or plain(block, *columns, **point)
    )
    monkeypatch.setattr(kernels, "temperature_statistics", counting)
    assert fit_uniform_temperature(Rows(logits), labels).temperature == pytest.approx(2.0, rel=0.05)
    assert sum(seen) < 2 * len(logits)


def test_every_prediction_survives_near_ties():
    tied = np.zeros((500, 8), dtype=np.float32)
    winner = np.random.default_rng(1).integers(0, 8, 500)
    tied[np.arange(500), winner] = np.finfo(np.float32).eps
    found = UniformTemperatureMap(1.0, 0.5)(tied)
    np.testing.assert_array_equal(found.argmax(axis=1), winner)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-6)


def test_a_front_leaves_no_class_without_a_chance(split):
    (logits, labels), _ = split
    fit = fit_composed(Rows(logits), labels)
    assert isinstance(fit, ComposedMap)
    assert fit.first.uniform >= 1.0 / 1001.0
    seen = compute_log_probability_rows(fit.first, Rows(logits))
    assert seen.table.min() >= np.log(fit.first.uniform / logits.shape[1])
    np.testing.assert_allclose(fit(logits), fit.then(seen.table), atol=1e-6)
    np.testing.assert_allclose(fit(logits.astype(np.float64)), fit.then(seen.table), atol=1e-14)
    np.testing.assert_array_equal(fit(logits).argmax(axis=1), logits.argmax(axis=1))


def test_a_front_before_a_table_on_disk_is_made_anew_as_it_is_read(monkeypatch):
    data = datasets.load("cifar10-resnet110")
    held = fit_composed(Rows(data.logits[:3000]), data.labels[:3000])
    monkeypatch.setattr("metacal.maps.composed._MAX_ENTRIES_FROM_MEMORY", 0)
    made = fit_composed(Rows(data.logits[:3000]), data.labels[:3000])
    np.testing.assert_allclose(
        made(data.logits[3000:4000]), held(data.logits[3000:4000]), atol=1e-12
    )


def test_parts_with_options_of_their_own_and_by_name():
    data = datasets.load("cifar10-resnet110")
    logits, labels = data.logits[:1000], data.labels[:1000]
    strict = mc.ComposedCalibration(then=mc.StructuredScaling(regularisation=1000.0)).fit(
        logits, labels
    )
    assert strict.map_.then.regularisation == 1000.0
    assert strict.gate_.source.recipe.parameters["then"] == "structured"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        named = mc.ComposedCalibration(first="temperature", then="platt").fit(logits, labels)
    assert type(named.map_.then).__name__ == "PlattMap"
