r"""Estimates of how many rows would certify a target that the present rows do not support.

An *error curve* describes how errors accumulate along a ranking. It is the binormal model of ROC curves:
correct rows have a latent score z ~ N(0, 1), and errors have z ~ N(d, s²), except for a share ρ of the
errors, which look like correct rows (wrong labels, for example). With the error rate e, the numbers d,
s and ρ determine the share of errors among the rows with the lowest scores. On the eight sets of
logits that come with the package, d is 1.4 to 1.8 and s is 0.6 to 0.8. The prior is chosen around
these values, because few rows show how often the most certain rows err. Many curves (log e evenly
spaced, d normal, three values of s and of ρ) are weighted by the likelihood of the rows, divided by
the probability that so many rows certify nothing, because only such rows are asked about.

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

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import bdtr, ndtr

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


# Function that returns the starting tests for a number of rows.
StartingTestPlanner = Callable[[int], Sequence[StartingTest]]

# The rows needed certify the target with this probability, averaged over the error curves.
TARGET_CHANCE = 0.8

# Largest estimate that is reported, as a multiple of the present rows.
_MAX_ROW_FACTOR = 50

# An estimate of at most this many rows is reported, however few the present rows are.
_MAX_ROWS = 20_000

# Number of sample sizes that the search can try between a size and its double.
_STEPS_PER_DOUBLING = 8

# Number of samples that are drawn for each sample size if rows are resampled.
_N_RESAMPLES = 20

# Number of sample sizes that are tried if rows are resampled, each larger by a factor of sqrt(2).
_N_SAMPLE_SIZES = 10

# Shares of the rows at which an error curve is evaluated. They are closer among the most certain rows.
ROW_SHARE_GRID = np.concatenate(
    [[0.0], np.geomspace(0.004, 0.05, 8)[:-1], np.linspace(0.05, 1.0, 39)]
)

# Error rates e of the error curves.
_ERROR_RATES = np.geomspace(2e-4, 0.9, 72)

# Values of the parameters d, s and ρ of the binormal model, each with its prior weight.
_DISTANCES = tuple(
    (distance, math.exp(-0.5 * ((distance - 1.6) / 0.8) ** 2))
    for distance in np.arange(0.0, 3.3, 0.2)
)
_ERROR_STDS = ((0.58, 1 / 6), (0.72, 2 / 3), (0.9, 1 / 6))
_HIDDEN_ERROR_SHARES = ((0.0, 0.85), (0.03, 0.1), (0.12, 0.05))

# Latent scores at which the distribution functions of the binormal model are evaluated.
_LATENT_SCORES = np.linspace(-7.0, 9.0, 800)

# Gauss-Hermite nodes and weights: three values with the mean and variance of a standard normal.
_NODES = np.array([-(3.0**0.5), 0.0, 3.0**0.5])
_NODE_WEIGHTS = np.array([1 / 6, 2 / 3, 1 / 6])

# Lower limit on the assumed probability that the present rows certify nothing.
_MIN_FAILURE_CHANCE = 0.1

# Smallest probability of an error or of a correct row, so that its logarithm is finite.
_MIN_PROBABILITY = 1e-9

# Smallest weight of an error curve that is used, as a fraction of the largest weight.
_MIN_RELATIVE_WEIGHT = 0.005

# Number of error rates at which the probability of passing a test is tabulated.
_N_TABULATED_RATES = 101


def estimate_rows_needed_by_resampling(
    n_rows: int, certifies: Callable[[Codes], bool]
) -> int | None:
    """Estimate how many rows would certify a target by drawing rows with replacement.

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
    for n_half_doublings in range(1, _N_SAMPLE_SIZES + 1):
        sample_size = round(n_rows * 2.0 ** (n_half_doublings / 2))
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


@dataclass(frozen=True, eq=False)
class ErrorCurves:
    """Candidate curves of the errors along a ranking.

    Attributes
    ----------
    cumulative_error_shares : array of float of shape (n_error_rates, n_shapes, n_shares)
        Errors up to each of `ROW_SHARE_GRID`, as a fraction of all rows.

    log_odds : array of float of shape (n_error_rates, n_shapes, n_shares - 1)
        Log-odds of an error between consecutive shares.

    mean_log_correct : array of float of shape (n_error_rates, n_shapes)
        Mean logarithm of the probability that a row is correct.

    prior_weights : array of float of shape (n_shapes,)
        Prior weight of each shape.
    """

    cumulative_error_shares: Float
    log_odds: Float
    mean_log_correct: Float
    prior_weights: Float


@dataclass(frozen=True, eq=False)
class WeightedErrorCurves:
    """Error curves that explain some rows, with their posterior weights.

    Attributes
    ----------
    cumulative_error_shares : array of float of shape (n_shares, n_curves)
        Errors up to each of `ROW_SHARE_GRID`, as a fraction of all rows.

    weights : array of float of shape (n_curves,)
        Weight of each curve, not normalised.
    """

    cumulative_error_shares: Float
    weights: Float


def find_smallest_sample_size(
    n_rows: int, error_curves: WeightedErrorCurves, plan_tests: StartingTestPlanner
) -> int | None:
    """Find the number of rows that certify a target with the target chance.

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
        Number of rows to two digits, or None if too many rows would be needed.
    """
    present_pass_chances = _compute_best_pass_chances(error_curves, plan_tests(n_rows), n_rows)
    failure_chances = 1.0 - present_pass_chances
    # An estimate is only made for rows that certify nothing, so the weights are conditional on it.
    weights = error_curves.weights / np.maximum(failure_chances, _MIN_FAILURE_CHANCE)

    def compute_chance_of_certifying(size_step: int) -> float:
        sample_size = _convert_step_to_sample_size(size_step)
        pass_chances = _compute_best_pass_chances(
            error_curves, plan_tests(sample_size), sample_size
        )
        return float(pass_chances @ weights / weights.sum())

    low_step = math.floor(_STEPS_PER_DOUBLING * math.log2(n_rows))
    low_chance = 0.0
    max_sample_size = max(_MAX_ROW_FACTOR * n_rows, _MAX_ROWS)
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
    """Return the sample size at a step of the search, on a logarithmic scale.

    All searches try the same sample sizes, so that cached test plans can be used again.
    """
    return math.ceil(2.0 ** (size_step / _STEPS_PER_DOUBLING))


@cache
def build_binormal_error_curves() -> ErrorCurves:
    """Build the error curves of the binormal model for all combinations of its parameters."""
    curves_by_shape = []
    prior_weights = []
    for distance_and_weight, std_and_weight, hidden_share_and_weight in itertools.product(
        _DISTANCES, _ERROR_STDS, _HIDDEN_ERROR_SHARES
    ):
        distance, distance_weight = distance_and_weight
        error_std, std_weight = std_and_weight
        hidden_share, hidden_share_weight = hidden_share_and_weight
        curves_by_shape.append(_compute_binormal_curves(distance, error_std, hidden_share))
        prior_weights.append(distance_weight * std_weight * hidden_share_weight)
    curves_by_error_rate = np.swapaxes(np.array(curves_by_shape), 0, 1)
    return build_error_curves(curves_by_error_rate, np.array(prior_weights))


def _compute_binormal_curves(distance: float, error_std: float, hidden_share: float) -> list[Float]:
    """Compute the curve of the binormal model for each of `_ERROR_RATES`.

    Parameters
    ----------
    distance, error_std : float
        Mean and standard deviation of the latent scores of visible errors.

    hidden_share : float
        Share of the errors that have the same scores as correct rows.

    Returns
    -------
    list of array of float of shape (n_shares,)
        For each error rate, the errors up to each of `ROW_SHARE_GRID`, as a fraction of all rows.
    """
    error_rates = _ERROR_RATES[:, None]
    correct_cdf = ndtr(_LATENT_SCORES)
    visible_error_cdf = ndtr((_LATENT_SCORES - distance) / error_std)
    error_cdf = (1.0 - hidden_share) * visible_error_cdf + hidden_share * correct_cdf
    row_shares_by_rate = (1.0 - error_rates) * correct_cdf + error_rates * error_cdf
    error_shares_by_rate = error_rates * error_cdf
    return [
        np.interp(ROW_SHARE_GRID, row_shares, error_shares)
        for row_shares, error_shares in zip(row_shares_by_rate, error_shares_by_rate)
    ]


def build_error_curves(cumulative_error_shares: Float, prior_weights: Float) -> ErrorCurves:
    """Build error curves from the errors up to each of `ROW_SHARE_GRID`.

    Parameters
    ----------
    cumulative_error_shares : array of float of shape (n_error_rates, n_shapes, n_shares)
        Errors up to each share of the rows, as a fraction of all rows.

    prior_weights : array of float of shape (n_shapes,)
        Prior weight of each shape.
    """
    grid_steps = np.diff(ROW_SHARE_GRID)
    local_error_rates = np.clip(
        np.diff(cumulative_error_shares) / grid_steps, _MIN_PROBABILITY, 1.0 - _MIN_PROBABILITY
    )
    log_correct = np.log1p(-local_error_rates)
    return ErrorCurves(
        cumulative_error_shares=cumulative_error_shares,
        log_odds=np.log(local_error_rates) - log_correct,
        mean_log_correct=log_correct @ grid_steps,
        prior_weights=prior_weights,
    )


def weight_error_curves(ranking: Ranking, error_curves: ErrorCurves) -> WeightedErrorCurves:
    """Weight error curves by the likelihood of the rows, and drop unlikely curves."""
    n_rows = ranking.n_rows
    n_errors_up_to_share = np.interp(
        ROW_SHARE_GRID * n_rows,
        np.append(0, ranking.tie_block_end_ranks),
        np.append(0, ranking.cumulative_errors),
    )
    plausible_rates = slice(None)
    n_error_rates = len(error_curves.cumulative_error_shares)
    if n_error_rates > 1:
        n_errors = n_errors_up_to_share[-1]
        plausible_rates = _select_plausible_error_rates(n_errors, n_rows)

    n_errors_between_shares = np.diff(n_errors_up_to_share)
    log_likelihoods = (
        error_curves.log_odds[plausible_rates] @ n_errors_between_shares
        + n_rows * error_curves.mean_log_correct[plausible_rates]
    )
    relative_likelihoods = np.exp(log_likelihoods - log_likelihoods.max())
    posterior_weights = relative_likelihoods * error_curves.prior_weights
    is_likely = posterior_weights > _MIN_RELATIVE_WEIGHT * posterior_weights.max()
    plausible_curves = error_curves.cumulative_error_shares[plausible_rates]
    return WeightedErrorCurves(
        cumulative_error_shares=np.ascontiguousarray(plausible_curves[is_likely].T),
        weights=posterior_weights[is_likely],
    )


def _select_plausible_error_rates(n_errors: float, n_rows: int) -> slice:
    """Select about 16 error rates within four standard errors of the observed one."""
    observed_rate = (n_errors + 0.5) / (n_rows + 1.0)
    relative_error = math.sqrt((1.0 - observed_rate) / (n_rows * observed_rate))
    factor = math.exp(4.0 * relative_error + 0.1)
    lowest_rate = min(observed_rate / factor, 0.5)
    first, last = np.searchsorted(_ERROR_RATES, [lowest_rate, observed_rate * factor])
    return slice(first, last, 1 + (last - first) // 16)


def _compute_best_pass_chances(
    error_curves: WeightedErrorCurves, tests: Sequence[StartingTest], n_rows: int
) -> Float:
    """Compute for each error curve the probability of passing the most promising test."""
    error_shares = error_curves.cumulative_error_shares
    n_curves = error_shares.shape[1]
    best_pass_chances = np.zeros(n_curves)
    for rank, max_errors in tests:
        table = _tabulate_pass_chances(rank, max_errors, n_rows)
        mean_error_rates_at_nodes = (
            error_shares[table.lower_share_indices] * table.lower_weights
            + error_shares[table.lower_share_indices + 1] * table.upper_weights
        )
        pass_chances_at_nodes = np.interp(
            mean_error_rates_at_nodes, table.error_rates, table.pass_chances
        )
        pass_chances = _NODE_WEIGHTS @ pass_chances_at_nodes
        best_pass_chances = np.maximum(best_pass_chances, pass_chances)
    return best_pass_chances


@dataclass(frozen=True, eq=False)
class _PassChanceTable:
    """Table to look up the probability that a test at a rank passes, given an error curve.

    The share of the population below the rank is random. Each of its three nodes lies between two
    neighbours in `ROW_SHARE_GRID`.

    Attributes
    ----------
    lower_share_indices : array of int of shape (3,)
        Index in `ROW_SHARE_GRID` of the lower neighbour of each node.

    lower_weights, upper_weights : arrays of float of shape (3, 1)
        Weights of the cumulative errors at both neighbours. The weighted sum is the mean error rate
        up to the node.

    error_rates : array of float of shape (n_tabulated_rates,)
        Mean error rates.

    pass_chances : array of float of shape (n_tabulated_rates,)
        Probability that the test passes at each mean error rate.
    """

    lower_share_indices: Codes
    lower_weights: Float
    upper_weights: Float
    error_rates: Float
    pass_chances: Float


@lru_cache(maxsize=1000)
def _tabulate_pass_chances(rank: int, max_errors: int, n_rows: int) -> _PassChanceTable:
    """Tabulate the probability that a test at a rank passes.

    Parameters
    ----------
    rank : int
        Rank of the test.

    max_errors : int
        Largest number of errors with which the test passes, or -1 if it never passes.

    n_rows : int
        Number of rows.
    """
    # The share of the population below the rank has a Beta distribution, represented by its nodes.
    mean_share = rank / (n_rows + 1.0)
    share_std = math.sqrt(mean_share * (1.0 - mean_share) / (n_rows + 2.0))
    min_node_share = 0.2 * mean_share
    node_shares = np.clip(mean_share + share_std * _NODES, min_node_share, 1.0)
    lower_share_indices = np.searchsorted(ROW_SHARE_GRID, node_shares) - 1
    node_column = node_shares[:, None]
    distances_from_lower = node_column - ROW_SHARE_GRID[lower_share_indices, None]
    grid_steps = np.diff(ROW_SHARE_GRID)[lower_share_indices, None]
    upper_fractions = distances_from_lower / grid_steps

    # At the highest tabulated error rate, the test practically never passes.
    max_expected_errors = max_errors + 9.0 + 6.0 * math.sqrt(max(max_errors, 0) + 1.0)
    error_rates = np.linspace(0.0, min(1.0, max_expected_errors / rank), _N_TABULATED_RATES)
    if max_errors >= 0:
        pass_chances = bdtr(max_errors, rank, error_rates)
    else:
        pass_chances = np.zeros(_N_TABULATED_RATES)
    return _PassChanceTable(
        lower_share_indices=lower_share_indices,
        lower_weights=(1.0 - upper_fractions) / node_column,
        upper_weights=upper_fractions / node_column,
        error_rates=error_rates,
        pass_chances=pass_chances,
    )
