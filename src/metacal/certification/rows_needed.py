r"""Estimation of the number of rows that would certify a target.

`metacal.certification.error_curves` describes how errors accumulate along a ranking. Many error curves
are weighted by the likelihood of the rows, divided by the probability that so many rows certify
nothing, because only such rows need an estimate.

A rule certifies N rows if, at one of a few ranks m that N determines, at most c errors are found.
Given the curve, the score at rank m lies at a share U ~ Beta(m, N - m + 1) of the population, and
E_m ~ Bin(m, mean error rate up to U). Three values of U represent its distribution, and the best of
the ranks counts. The estimate is the N at which the probability of certifying, averaged over the
curves, is `TARGET_CHANCE`.

**The estimate is rough, and `TARGET_CHANCE` is not the probability that it is enough.** It would be on
average over populations from the prior. A sample that certifies nothing contains too few errors to
tell populations apart. `python -m benchmarks.rows_needed_unseen` measures the deviation on real sets
that played no part in the choice of the constants. On most of them the estimated number of rows is
enough less often than `TARGET_CHANCE`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import bdtr

from metacal.certification.error_curves import (
    ROW_SHARE_GRID,
    WeightedErrorCurves,
    build_binormal_error_curves,
    weight_error_curves,
)
from metacal.certification.ranking import Ranking
from metacal.formulas import Codes, Float
from metacal.rows.draws import make_generator
from metacal.statistics import bounds


class StartingTest(NamedTuple):
    """First test of a range of ranks.

    Attributes
    ----------
    rank : int
        Tested rank.

    max_errors : int
        Largest number of errors with which the test passes, or -1 if it never passes.
    """

    rank: int
    max_errors: int


# Type of a function that returns the starting tests for a number of rows.
StartingTestPlanner = Callable[[int], Sequence[StartingTest]]

# Probability of certification for the estimated number of rows, averaged over the error curves.
TARGET_CHANCE = 0.8

# Largest number of rows for which certification is simulated, as a multiple of the present rows.
MAX_SIMULATED_ROW_FACTOR = 50

# Smallest upper limit of the simulated numbers of rows, even if the present rows are few.
_MIN_LARGEST_SIMULATED_SIZE = 20_000

# Number of sample sizes that the search can try between a size and its double.
_STEPS_PER_DOUBLING = 8

# Number of samples that are drawn for each sample size if rows are resampled.
_N_RESAMPLES = 20

# Number of sample sizes that are tried if rows are resampled, each larger by a factor of sqrt(2).
_N_SAMPLE_SIZES = 10

# Gauss-Hermite nodes and weights: three values with the mean and variance of a standard normal.
_NORMAL_NODES = np.array([-(3.0**0.5), 0.0, 3.0**0.5])
_NODE_WEIGHTS = np.array([1 / 6, 2 / 3, 1 / 6])

# Smallest population share at a quadrature node, as a fraction of the mean share.
_MIN_NODE_FRACTION = 0.2

# Lower bound on the estimated probability that the present rows certify nothing.
_MIN_FAILURE_CHANCE = 0.1

# A test that tolerates c errors is assumed to fail if c + 9 + 6 sqrt(c + 1) errors are expected. In
# this formula, 6 is the number of standard deviations, and 9 is the number of additional errors.
_N_STDS_TO_CERTAIN_FAILURE = 6.0
_N_ADDED_ERRORS_TO_CERTAIN_FAILURE = 9.0

# Number of error rates at which the probability of passing a test is tabulated.
_N_TABULATED_RATES = 101


def estimate_rows_needed_by_resampling(
    n_rows: int, certifies: Callable[[Codes], bool]
) -> int | None:
    """Estimate by bootstrap resampling how many rows would certify a target.

    The estimate works for any rule. It is slower and noisier than `estimate_rows_needed`.

    Parameters
    ----------
    n_rows : int
        Number of present rows.

    certifies : callable
        Function that returns whether drawn rows, given by their ranks in increasing order, certify
        the target.

    Returns
    -------
    int or None
        Number of rows to two digits, or None if even the largest samples rarely certify.
    """
    random_generator = make_generator(0)
    for size_step in range(1, _N_SAMPLE_SIZES + 1):
        growth_factor = 2.0 ** (size_step / 2)
        sample_size = round(n_rows * growth_factor)
        n_certifying_samples = 0
        for _ in range(_N_RESAMPLES):
            drawn_ranks = np.sort(random_generator.integers(n_rows, size=sample_size))
            if certifies(drawn_ranks):
                n_certifying_samples += 1
        if n_certifying_samples >= TARGET_CHANCE * _N_RESAMPLES:
            return bounds.round_up_to_two_digits(sample_size)
    return None


def estimate_rows_needed(ranking: Ranking, plan_tests: StartingTestPlanner) -> int | None:
    """Estimate how many rows would certify a target that these rows do not support.

    The estimate is rough. It assumes that new rows resemble these, and may be off by a factor of
    three or more.

    Parameters
    ----------
    ranking : Ranking
        Calibration rows that do not certify the target.

    plan_tests : callable
        Function that returns, for a number of rows, the ranks at which tests start and the number
        of errors that each tolerates.

    Returns
    -------
    int or None
        Number of rows to two digits, or None if the rows support no estimate.

    Examples
    --------
    >>> from metacal.certification.rules.accuracy_shortfall import plan_starting_tests
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.random(200)
    >>> ranking = Ranking.from_scores(scores, rng.random(200) > 0.2 * scores)
    >>> estimate_rows_needed(ranking, lambda n_rows: plan_starting_tests(n_rows, 0.95, 0.1))
    900
    """
    error_curves = weight_error_curves(ranking, build_binormal_error_curves())
    return find_smallest_sample_size(ranking.n_rows, error_curves, plan_tests)


def find_smallest_sample_size(
    n_rows: int, error_curves: WeightedErrorCurves, plan_tests: StartingTestPlanner
) -> int | None:
    """Find the smallest number of rows that is likely to certify a target.

    Parameters
    ----------
    n_rows : int
        Number of present rows, which certify nothing.

    error_curves : WeightedErrorCurves
        Error curves that explain the present rows.

    plan_tests : callable
        Function that returns, for a number of rows, the tested ranks and the errors that each
        tolerates.

    Returns
    -------
    int or None
        Number of rows to two digits that certifies the target with probability `TARGET_CHANCE`, or
        None if too many rows would be needed.
    """
    pass_chances_of_present_rows = _compute_best_pass_chances(
        error_curves.cumulative_error_shares, plan_tests(n_rows), n_rows
    )
    failure_chances = 1.0 - pass_chances_of_present_rows
    # Each curve is weighted by its probability given that the present rows certify nothing.
    conditional_weights = error_curves.weights / np.maximum(failure_chances, _MIN_FAILURE_CHANCE)

    def compute_chance_of_certifying(size_step: int) -> float:
        sample_size = _convert_step_to_sample_size(size_step)
        pass_chances = _compute_best_pass_chances(
            error_curves.cumulative_error_shares, plan_tests(sample_size), sample_size
        )
        return float(pass_chances @ conditional_weights / conditional_weights.sum())

    low_step = math.floor(_STEPS_PER_DOUBLING * math.log2(n_rows))
    low_chance = 0.0
    max_sample_size = max(MAX_SIMULATED_ROW_FACTOR * n_rows, _MIN_LARGEST_SIMULATED_SIZE)
    high_step = math.floor(_STEPS_PER_DOUBLING * math.log2(max_sample_size))
    high_chance = compute_chance_of_certifying(high_step)
    if high_chance < TARGET_CHANCE:
        return None
    while high_step - low_step > 1:
        middle_step = (low_step + high_step) // 2
        middle_chance = compute_chance_of_certifying(middle_step)
        if middle_chance >= TARGET_CHANCE:
            high_step = middle_step
            high_chance = middle_chance
        else:
            low_step = middle_step
            low_chance = middle_chance
    interpolated_step = low_step + (TARGET_CHANCE - low_chance) / (high_chance - low_chance)
    sample_size = _convert_step_to_sample_size(interpolated_step)
    return bounds.round_up_to_two_digits(max(n_rows + 1, sample_size))


def _convert_step_to_sample_size(size_step: float) -> int:
    """Convert a step on the logarithmic scale of the search to a sample size.

    All searches try the same sample sizes, so that cached test plans can be used again.
    """
    return math.ceil(2.0 ** (size_step / _STEPS_PER_DOUBLING))


def _compute_best_pass_chances(
    cumulative_error_shares: Float, tests: Sequence[StartingTest], n_rows: int
) -> Float:
    """Compute the probability of passing the best test, for each error curve.

    Parameters
    ----------
    cumulative_error_shares : array of float of shape (n_shares, n_curves)
        Errors up to each of `ROW_SHARE_GRID`, as a fraction of all rows.

    tests : sequence of StartingTest
        Tests of which at least one must pass.

    n_rows : int
        Number of rows.

    Returns
    -------
    array of float of shape (n_curves,)
    """
    n_curves = cumulative_error_shares.shape[1]
    best_pass_chances = np.zeros(n_curves)
    for test in tests:
        share_nodes = _build_share_nodes(test.rank, n_rows)
        mean_error_rates_at_nodes = share_nodes.interpolate_mean_error_rates(
            cumulative_error_shares
        )
        tabulated_pass_chances = _tabulate_pass_chances(test.rank, test.max_errors)
        pass_chances_at_nodes = np.interp(
            mean_error_rates_at_nodes,
            tabulated_pass_chances.error_rates,
            tabulated_pass_chances.pass_chances,
        )
        pass_chances = _NODE_WEIGHTS @ pass_chances_at_nodes
        best_pass_chances = np.maximum(best_pass_chances, pass_chances)
    return best_pass_chances


@dataclass(frozen=True, eq=False)
class _ShareNodes:
    """Nodes that represent the random share of the population up to a rank.

    Each of the three nodes u lies between two neighbours in `ROW_SHARE_GRID`.

    Attributes
    ----------
    lower_grid_indices : array of int of shape (3,)
        Index in `ROW_SHARE_GRID` of the lower neighbour of each node.

    rates_per_lower_error_share : array of float of shape (3, 1)
        (1 - f) / u, where f is the position of the node u between its neighbours, from 0 to 1.

    rates_per_upper_error_share : array of float of shape (3, 1)
        f / u.
    """

    lower_grid_indices: Codes
    rates_per_lower_error_share: Float
    rates_per_upper_error_share: Float

    def interpolate_mean_error_rates(self, cumulative_error_shares: Float) -> Float:
        """Compute the mean error rate of the population up to each node.

        It is E(u) / u, where the share of errors E(u) is interpolated between the neighbours of u.

        Parameters
        ----------
        cumulative_error_shares : array of float of shape (n_shares, n_curves)
            Errors up to each of `ROW_SHARE_GRID`, as a fraction of all rows.

        Returns
        -------
        array of float of shape (3, n_curves)
        """
        lower_error_shares = cumulative_error_shares[self.lower_grid_indices]
        upper_error_shares = cumulative_error_shares[self.lower_grid_indices + 1]
        return (
            lower_error_shares * self.rates_per_lower_error_share
            + upper_error_shares * self.rates_per_upper_error_share
        )


@lru_cache(maxsize=1000)
def _build_share_nodes(rank: int, n_rows: int) -> _ShareNodes:
    """Build the nodes of the share of the population up to a rank.

    The share U ~ Beta(rank, n_rows - rank + 1) is represented by three nodes, which have its mean and
    its variance as long as none of them is clipped.
    """
    mean_share = rank / (n_rows + 1.0)
    share_std = math.sqrt(mean_share * (1.0 - mean_share) / (n_rows + 2.0))
    min_node_share = _MIN_NODE_FRACTION * mean_share
    node_shares = np.clip(mean_share + share_std * _NORMAL_NODES, min_node_share, 1.0)
    # The grid begins with 0 and ends with 1, so every node has two neighbours.
    lower_grid_indices = np.searchsorted(ROW_SHARE_GRID, node_shares) - 1
    lower_shares = ROW_SHARE_GRID[lower_grid_indices]
    distances_between_neighbours = np.diff(ROW_SHARE_GRID)[lower_grid_indices]
    positions_between_neighbours = (node_shares - lower_shares) / distances_between_neighbours
    rates_per_lower_error_share = (1.0 - positions_between_neighbours) / node_shares
    rates_per_upper_error_share = positions_between_neighbours / node_shares
    return _ShareNodes(
        lower_grid_indices=lower_grid_indices,
        rates_per_lower_error_share=rates_per_lower_error_share[:, None],
        rates_per_upper_error_share=rates_per_upper_error_share[:, None],
    )


class _TabulatedPassChances(NamedTuple):
    """Probability that a test passes, at a range of mean error rates.

    Attributes
    ----------
    error_rates : array of float of shape (n_tabulated_rates,)
        Mean error rates in increasing order.

    pass_chances : array of float of shape (n_tabulated_rates,)
        Probability that the test passes at each mean error rate.
    """

    error_rates: Float
    pass_chances: Float


@lru_cache(maxsize=1000)
def _tabulate_pass_chances(rank: int, max_errors: int) -> _TabulatedPassChances:
    """Tabulate the probability that a test at a rank passes.

    Parameters
    ----------
    rank : int
        Rank of the test.

    max_errors : int
        Largest number of errors with which the test passes, or -1 if it never passes.
    """
    # The table ends at an error rate at which the test practically never passes.
    std_of_errors = math.sqrt(max(max_errors, 0) + 1.0)
    n_errors_of_certain_failure = (
        max_errors + _N_ADDED_ERRORS_TO_CERTAIN_FAILURE + _N_STDS_TO_CERTAIN_FAILURE * std_of_errors
    )
    max_error_rate = min(1.0, n_errors_of_certain_failure / rank)
    error_rates = np.linspace(0.0, max_error_rate, _N_TABULATED_RATES)
    pass_chances = np.zeros(_N_TABULATED_RATES)
    if max_errors >= 0:
        pass_chances = bdtr(max_errors, rank, error_rates)
    return _TabulatedPassChances(error_rates=error_rates, pass_chances=pass_chances)
