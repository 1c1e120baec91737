"""Scores as integers: order, the way back, one sort with flags, repeats; NumPy and C alike."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metacal import kernels
from metacal.kernels import numpy as definition
from metacal.kernels.grid import RELATIVE_GRID
from metacal.kernels.keys import keys_to_scores, rank_scores, scores_to_keys

SPECIAL = [
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    1.0,
    -1.0,
    5e-324,
    -5e-324,
    np.finfo(float).max,
    -np.finfo(float).max,
    1e-290,
]


@pytest.fixture(params=["numpy", "active"])
def kernel(request, monkeypatch):
    """What is there, and NumPy alone."""
    if request.param == "numpy":
        monkeypatch.setattr(kernels, "host_kernels", definition)


@given(st.lists(st.floats(allow_nan=False) | st.sampled_from(SPECIAL), min_size=2, max_size=30))
def test_keys_keep_order_and_lead_back(values):
    scores = np.array(values)
    keys = scores_to_keys(scores)
    assert np.array_equal(scores[:, None] < scores, keys[:, None] < keys)
    assert np.array_equal(keys_to_scores(keys), scores)
    assert np.array_equal(scores_to_keys(-scores), -keys)
    grid = scores_to_keys(RELATIVE_GRID.round(scores))
    assert (grid[np.abs(grid) < scores_to_keys([np.finfo(float).max])] % 2**22 == 0).all()


def scores_of_a_kind(kind, rng, n):
    """Scores that sorting by bits finds easy, hard and hardest: spread, skewed, of either sign,
    tied, in order.
    """
    return {
        "spread": lambda: rng.random(n),
        "skewed": lambda: rng.exponential(size=n) ** 40,
        "signs": lambda: rng.normal(size=n) ** 3,
        "few": lambda: rng.integers(-3, 4, n) / 2,
        "narrow": lambda: 1.0 + rng.integers(0, 5 * n, n) * 2.0**-30,
        "one far": lambda: np.append(1.0 + rng.random(n - 1) * 1e-6, 1e300),
        "rising": lambda: np.arange(n, dtype=float),
        "falling": lambda: -np.arange(n, dtype=float),
        "infinite": lambda: rng.choice(SPECIAL, n),
    }[kind]()


@pytest.mark.parametrize(
    "kind",
    ["spread", "skewed", "signs", "few", "narrow", "one far", "rising", "falling", "infinite"],
)
@pytest.mark.parametrize("n", [1, 2, 25, 20_000])
def test_one_sort_orders_scores_and_their_flags(kernel, kind, n):
    rng = np.random.default_rng(n)
    scores = RELATIVE_GRID.round(scores_of_a_kind(kind, rng, n))
    flags = rng.random(n) < 0.7
    ordered, ranks, errors, wrong_first = rank_scores(scores, flags)
    order = np.lexsort((flags, scores))
    last = np.append(scores[order][1:] != scores[order][:-1], True)
    assert np.array_equal(ordered, scores[order][last])
    assert np.array_equal(ranks, np.flatnonzero(last) + 1)
    assert np.array_equal(errors, np.cumsum(~flags[order])[last])
    assert np.array_equal(wrong_first, np.flatnonzero(~flags[order]) + 1)
