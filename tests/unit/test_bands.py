"""Bands, the certified frontier, and the promises read off them: shapes, edges, degenerate
inputs.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import betaincinv

from benchmarks.bands import exit_probability
from metacal.errors import InputError
from metacal.statistics.accepted_counts import find_candidate_thresholds
from metacal.statistics.bands import (
    accuracy_band,
    certified_accuracy,
    certified_frontier,
    certified_miscoverage,
    coverage_band,
    miscoverage_band,
    operating_bands,
)
from metacal.statistics.distribution_band import DistributionBand
from metacal.statistics.levels import HAZARD_PER_LEVEL_BY_LOG2_N, TABLE_LEVELS, local_level


def test_one_draw_is_the_binomial_bound():
    assert local_level(1, 0.1) == pytest.approx(0.1, rel=1e-9)
    assert exit_probability(1, 0.1) == pytest.approx(0.1)
    assert DistributionBand.from_draws([3.0]).lower_bound_on_cdf(np.array([3.0]), 0.1)[
        0
    ] == pytest.approx(0.1, rel=1e-9)


def test_two_draws_by_hand():
    """U_(1) ~ Beta(1, 2), U_(2) ~ Beta(2, 1): the exit is 1 - P(both above L_1, the larger above
    L_2).
    """
    first, second = 1 - np.sqrt(1 - 0.1), np.sqrt(0.1)
    inside = (1 - first) ** 2 - (second - first) ** 2
    assert exit_probability(2, 0.1) == pytest.approx(1 - inside)


@pytest.mark.parametrize("n", [1, 2, 5, 100, 4096, 65_536, 10**6, 10**8])
def test_the_local_level_falls_with_rows_and_rises_with_delta(n):
    levels = [local_level(n, delta) for delta in (1e-9, 1e-6, 1e-3, 0.01, 0.1, 0.5, 0.99)]
    assert all(0 < low <= high for low, high in pairwise(levels))
    assert local_level(n, 0.05) >= local_level(2 * n, 0.05)
    assert local_level(n, 0.05) >= 0.05 / n * 0.99  # never worse than the union bound


@pytest.mark.parametrize("power", [0, 3, 6, 9])
def test_the_table_is_what_the_recursion_gives(power):
    exact = [-np.log1p(-exit_probability(2**power, level)) / level for level in TABLE_LEVELS]
    assert HAZARD_PER_LEVEL_BY_LOG2_N[power] == pytest.approx(exact, rel=1e-4)


def test_beyond_the_table_the_level_stays_safe():
    """Computed once by `exit_probability`: 262,144 rows at local level 1e-3 leave with probability
    0.0898195.
    """
    assert local_level(262_144, 0.0898194742) < 1e-3
    assert local_level(262_144, 0.0898194742) > 0.99e-3


def test_bands_hold_their_estimate_and_are_monotone():
    rng = np.random.default_rng(0)
    scores = rng.random(700)
    correct = rng.random(700) > scores**2
    bands = operating_bands(scores, correct, 0.1, np.linspace(-0.1, 1.1, 500))
    for band in (bands.miscoverage, bands.coverage):
        assert (
            band.lower <= band.estimate + 1e-12
        ).all()  # where all or nothing is accepted they are equal
        assert (band.estimate <= band.upper + 1e-12).all()
    known = ~np.isnan(bands.accuracy.estimate)
    assert (bands.accuracy.lower[known] <= bands.accuracy.estimate[known] + 1e-12).all()
    assert (bands.accuracy.estimate[known] <= bands.accuracy.upper[known] + 1e-12).all()
    assert (np.diff(bands.coverage.lower) >= 0).all()
    assert (np.diff(bands.miscoverage.upper) <= 0).all()


def test_the_joint_bands_contain_the_single_ones_at_their_share():
    rng = np.random.default_rng(1)
    scores = rng.random(400)
    correct = rng.random(400) > scores / 2
    at = np.sort(scores)
    joint = operating_bands(scores, correct, 0.1, at)
    assert (joint.accuracy.lower <= certified_accuracy(scores, correct, at, 0.05) + 1e-12).all()
    assert (
        joint.miscoverage.upper >= certified_miscoverage(scores[correct], at, 0.05) - 1e-12
    ).all()
    assert np.array_equal(joint.coverage.lower, coverage_band(scores, 0.025, at).lower)


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("n", [1, 3, 50])
def test_all_right_and_all_wrong(n, right):
    scores, correct = np.arange(float(n)), np.full(n, right)
    bands = operating_bands(scores, correct, 0.1, scores)
    for band in (bands.accuracy, bands.coverage, bands.miscoverage):
        assert (band.lower >= 0).all()
        assert (band.upper <= 1).all()
    assert (bands.accuracy.estimate == float(right)).all()
    assert np.isnan(bands.miscoverage.estimate).all() == (not right)
    if not right:
        assert bands.miscoverage.lower.tolist() == [0.0] * n
        assert bands.miscoverage.upper.tolist() == [1.0] * n
        assert not len(certified_frontier(scores, correct).beta)


def test_ties_share_one_bound():
    scores = np.array([0.1] * 30 + [0.5] * 20)
    band = coverage_band(scores, 0.1)
    assert band.threshold.tolist() == [0.1, 0.5]
    assert band.estimate.tolist() == [0.6, 1.0]
    assert band.lower[0] == pytest.approx(betaincinv(30, 21, local_level(50, 0.05)))


def test_many_thresholds_and_few_give_the_same_bounds():
    scores = np.random.default_rng(2).random(300)
    all_at_once = miscoverage_band(scores, 0.1)
    few = miscoverage_band(scores, 0.1, all_at_once.threshold[::50])
    assert np.array_equal(few.upper, all_at_once.upper[::50])
    assert np.array_equal(few.lower, all_at_once.lower[::50])


@pytest.mark.slow
@given(st.integers(0, 10**6))
def test_the_frontier_is_made_of_pairs_no_other_threshold_beats(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 300))
    scores = np.round(rng.random(n), int(rng.integers(1, 4)))
    correct = rng.random(n) > scores / 2
    correct[0] = True
    frontier = certified_frontier(scores, correct, 0.1)
    at = np.unique(scores)
    alpha = certified_miscoverage(scores[correct], at, 0.05)
    beta = certified_accuracy(scores, correct, at, 0.05)
    assert (np.diff(frontier.beta) > 0).all()
    assert (np.diff(frontier.alpha) >= 0).all()
    promised = beta > 0  # the frontier holds no pair that promises nothing
    for a, b in zip(alpha[promised], beta[promised]):
        assert np.append(frontier.alpha, 1.0)[np.searchsorted(frontier.beta, b)] <= a
        assert frontier.best_accuracy(a) >= b - 1e-15
    assert frontier.best_accuracy(0.0) == 0.0


def test_run_ends_are_where_a_wrong_row_follows():
    scores = np.array([1.0, 2.0, 3.0, 3.0, 4.0, 5.0])
    correct = np.array([True, True, True, False, True, True])
    assert find_candidate_thresholds(scores, correct).tolist() == [2.0, 5.0]


@pytest.mark.parametrize(
    ("scores", "correct", "says"),
    [
        ([[1.0]], [True], "a one-dimensional array"),
        ([np.nan], [True], "without NaN"),
        ([1.0], [1], "one boolean per row"),
        ([1.0, 2.0], [True], "score and one flag for each row"),
    ],
)
def test_bad_columns_are_refused(scores, correct, says):
    with pytest.raises(InputError, match=says):
        accuracy_band(np.array(scores), np.array(correct))


def test_delta_must_be_a_probability():
    with pytest.raises(InputError, match="delta"):
        coverage_band([1.0, 2.0], 1.5)
