"""Proper scores against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from metacal import metrics


@pytest.fixture
def table():
    random = np.random.default_rng(8)
    return random.dirichlet([0.5] * 4, size=500), random.integers(4, size=500)


def test_nll_is_infinite_on_a_certain_mistake_and_only_there():
    assert metrics.nll([[0.0, 1.0], [0.5, 0.5]], [0, 0]) == np.inf
    assert metrics.nll([[0.0, 1.0]], [1]) == 0.0


def test_brier_by_hand():
    assert metrics.brier([[1.0, 0.0], [0.0, 1.0]], [0, 0]) == 1.0
    assert metrics.brier(np.full((4, 4), 0.25), [0, 1, 2, 3]) == pytest.approx(0.75)


@pytest.mark.parametrize("n_bins", [1, 2, 10, 15])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_brier_decomposition_adds_up_and_each_part_is_its_definition(table, n_bins, dtype):
    proba, labels = table[0].astype(dtype), table[1]
    parts = metrics.brier_decomposition(proba, labels, n_bins)
    assert parts.brier == pytest.approx(metrics.brier(proba, labels), abs=1e-12)
    wide = proba.astype(np.float64)
    reliability = resolution = uncertainty = remainder = 0.0
    for k in range(4):
        p, y = wide[:, k], (labels == k).astype(float)
        codes = np.clip(np.searchsorted(np.arange(n_bins + 1) / n_bins, p) - 1, 0, n_bins - 1)
        uncertainty += y.mean() * (1 - y.mean())
        for b in np.unique(codes):
            inside = codes == b
            share, p_bin, y_bin = inside.mean(), p[inside], y[inside]
            reliability += share * (p_bin.mean() - y_bin.mean()) ** 2
            resolution += share * (y_bin.mean() - y.mean()) ** 2
            remainder += share * (
                p_bin.var() - 2 * np.mean((p_bin - p_bin.mean()) * (y_bin - y_bin.mean()))
            )
    assert parts.reliability == pytest.approx(reliability, abs=1e-12)
    assert parts.resolution == pytest.approx(resolution, abs=1e-12)
    assert parts.uncertainty == pytest.approx(uncertainty, abs=1e-12)
    assert parts.remainder == pytest.approx(remainder, abs=1e-12)


def test_one_forecast_value_leaves_no_remainder():
    parts = metrics.brier_decomposition([[0.7, 0.3]] * 10, [0] * 6 + [1] * 4)
    assert parts.remainder == pytest.approx(0.0, abs=1e-14)
    assert parts.resolution == pytest.approx(0.0, abs=1e-14)
    assert parts.reliability == pytest.approx(0.02)
