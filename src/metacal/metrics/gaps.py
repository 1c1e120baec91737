"""Statistics of accuracy and calibration, from confidence and correctness.

A statistic maps row weights to one value per resample (see `metacal.metrics.binning`). It is
prepared once from a `TopLabel` and evaluated for any number of resamples. The formulas and
references are with the public functions in `metacal.metrics.calibration`. Correctness may be a
fraction (1/m for a tie among m classes).

Row weights may be random signs, 1 or -1 (a wild bootstrap, see `metacal.metrics.resampling`). The
signs apply to the residuals, correctness minus confidence. Rows are counted without the signs.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real

import numpy as np
from scipy.special import erf

from metacal.errors import InputError
from metacal.formulas import Float
from metacal.metrics.binning import (
    Binning,
    GroupSums,
    Statistic,
    Weights,
    assign_bins,
    build_mean_statistic,
    compute_bin_edges,
    equal_width,
    rank_distinct_values,
)
from metacal.metrics.toplabel import TopLabel

#: Type of functions that compute the contribution of each bin to a debiased calibration error.
#: The arguments are row counts, mean gaps and standard errors of the bins.
BinContributions = Callable[[Float, Float, Float], Float]


def build_accuracy_statistic(top_labels: TopLabel) -> Statistic:
    """Build the statistic of the accuracy, the mean correctness of the rows."""
    return build_mean_statistic(top_labels.correct)


def count_correct_rows(top_labels: TopLabel) -> tuple[int, int] | None:
    """Count the correct rows and all rows. Return None if a row is partly correct."""
    if not np.isin(top_labels.correct, (0.0, 1.0)).all():
        return None
    return int(top_labels.correct.sum()), len(top_labels)


def build_ece_statistic(
    top_labels: TopLabel, n_bins: int = 15, binning: Binning = equal_width, norm: object = 1
) -> Statistic:
    """Build the statistic of the expected calibration error (ECE) in a norm p.

        ( Σ_b (n_b/n) |g_b|^p )^(1/p)

    For p = 1 this is (1/n) Σ_b |Σ_{i in b} (c_i - conf_i)|, for p = ∞ it is max_b |g_b|.

    Parameters
    ----------
    top_labels : TopLabel
        Confidence and correctness.

    n_bins, binning, norm
        As in `metacal.metrics.ece`.

    Returns
    -------
    Statistic

    Raises
    ------
    InputError
        If `norm` is not a number of at least 1.
    """
    if not isinstance(norm, Real) or not float(norm) >= 1.0:
        raise InputError(
            "norm must be at least 1 (1: mean gap, 2: root mean square, np.inf: largest gap),"
            f" but got {norm!r}."
        )
    power = float(norm)
    residuals = top_labels.correct - top_labels.confidence
    compute_residual_sums, compute_row_counts = _make_bin_sum_functions(
        top_labels, n_bins, binning, [residuals, np.ones(len(top_labels))]
    )

    def compute_mean_absolute_gap(row_weights: Weights) -> Float:
        n_rows = row_weights.shape[1]
        return np.asarray(np.abs(compute_residual_sums(row_weights)).sum(axis=1) / n_rows)

    def compute_gap_in_norm(row_weights: Weights) -> Float:
        n_rows = row_weights.shape[1]
        unsigned_weights = _remove_random_signs(row_weights)
        row_counts = compute_row_counts(unsigned_weights)
        bin_gaps = np.abs(compute_residual_sums(row_weights)) / np.maximum(row_counts, 1.0)
        largest_gap = bin_gaps.max(axis=1)
        if np.isinf(power):
            return np.asarray(largest_gap)
        # Gaps are divided by the largest gap, because a high power of small gaps would underflow.
        smallest_normal = np.finfo(np.float64).tiny
        divisor = np.where(largest_gap >= smallest_normal, largest_gap, 1.0)
        relative_gaps = bin_gaps / divisor[:, None]
        mean_power = (row_counts * relative_gaps**power).sum(axis=1) / n_rows
        return np.asarray(largest_gap * mean_power ** (1.0 / power))

    if power == 1.0:
        return compute_mean_absolute_gap
    return compute_gap_in_norm


def build_debiased_ece_statistic(
    top_labels: TopLabel, n_bins: int = 15, binning: Binning = equal_width
) -> Statistic:
    """Build the statistic of the debiased ECE.

    max(0, Σ_b (n_b/n) (2|g_b| - E|N(g_b, s_b²)|))
    """

    def compute_debiased_gaps(row_counts: Float, mean_gaps: Float, standard_errors: Float) -> Float:
        return 2.0 * np.abs(mean_gaps) - _compute_folded_normal_mean(mean_gaps, standard_errors)

    return _build_debiased_statistic(top_labels, n_bins, binning, compute_debiased_gaps)


def build_debiased_rms_statistic(
    top_labels: TopLabel, n_bins: int = 15, binning: Binning = equal_width
) -> Statistic:
    """Build the statistic of the debiased root-mean-square calibration error.

        sqrt(max(0, Σ_b (n_b/n) (g_b² - v_b/(n_b - 1))))

    A bin with one row contributes 0.
    """

    def compute_debiased_squares(
        row_counts: Float, mean_gaps: Float, standard_errors: Float
    ) -> Float:
        bessel_factor = row_counts / np.maximum(row_counts - 1.0, 1.0)
        debiased_squares = mean_gaps**2 - standard_errors**2 * bessel_factor
        return np.where(row_counts > 1, debiased_squares, 0.0)

    mean_square_statistic = _build_debiased_statistic(
        top_labels, n_bins, binning, compute_debiased_squares
    )
    return lambda row_weights: np.sqrt(mean_square_statistic(row_weights))


def build_sup_ece_statistic(top_labels: TopLabel) -> Statistic:
    """Build the statistic of the supremum of the ECE over all binnings.

    (1/n) Σ_z |Σ_{conf_i = z} (c_i - z)|
    """
    confidence_ranks = rank_distinct_values(top_labels.confidence)
    residuals = top_labels.correct - top_labels.confidence
    # A row with a unique confidence forms its own bin, whose gap is the residual of the row.
    n_rows_of_rank = np.bincount(confidence_ranks)
    is_unique = n_rows_of_rank[confidence_ranks] == 1
    absolute_residuals_of_unique_rows = np.where(is_unique, np.abs(residuals), 0.0)
    tied_rows = np.flatnonzero(~is_unique)
    bin_of_tied_row = rank_distinct_values(top_labels.confidence[tied_rows])
    compute_residual_sums_of_bins = GroupSums(
        groups=bin_of_tied_row,
        n_groups=int(bin_of_tied_row.max(initial=-1)) + 1,
        values=residuals[tied_rows],
        entry_rows=tied_rows,
    )

    def compute_sup_ece(row_weights: Weights) -> Float:
        n_rows = row_weights.shape[1]
        unsigned_weights = _remove_random_signs(row_weights)
        sum_of_unique_gaps = unsigned_weights @ absolute_residuals_of_unique_rows
        sum_of_tied_gaps = np.abs(compute_residual_sums_of_bins(row_weights)).sum(axis=1)
        return np.asarray((sum_of_unique_gaps + sum_of_tied_gaps) / n_rows)

    return compute_sup_ece


def build_ks_statistic(top_labels: TopLabel) -> Statistic:
    """Build the statistic of the Kolmogorov-Smirnov calibration error.

    max_z (1/n) |Σ_{conf_i <= z} (c_i - conf_i)|
    """
    confidence_ranks = rank_distinct_values(top_labels.confidence)
    n_ranks = int(confidence_ranks.max(initial=0)) + 1
    compute_residual_sums = GroupSums(
        confidence_ranks, n_ranks, top_labels.correct - top_labels.confidence
    )

    def compute_largest_cumulative_gap(row_weights: Weights) -> Float:
        n_rows = row_weights.shape[1]
        residual_sums = np.ascontiguousarray(compute_residual_sums(row_weights))
        cumulative_gaps = np.cumsum(residual_sums, axis=1)
        return np.abs(cumulative_gaps).max(axis=1) / n_rows

    return compute_largest_cumulative_gap


def _make_bin_sum_functions(
    top_labels: TopLabel, n_bins: int, binning: Binning, columns: list[Float]
) -> list[GroupSums]:
    """Prepare weighted sums of several columns over the bins of the confidence.

    The bins are computed once from the sample. Resamples use the same bins.

    Parameters
    ----------
    top_labels : TopLabel
        Confidence and correctness.

    n_bins, binning
        As in `metacal.metrics.ece`.

    columns : list of arrays of shape (n_rows,)
        Values to sum.

    Returns
    -------
    list of GroupSums
        One entry per column.
    """
    bin_edges = compute_bin_edges(binning, top_labels.confidence, n_bins)
    bin_indices = assign_bins(top_labels.confidence, bin_edges)
    n_edge_bins = len(bin_edges) - 1
    return [GroupSums(bin_indices, n_edge_bins, column) for column in columns]


def _remove_random_signs(row_weights: Weights) -> Float:
    """Return the absolute weights as float64, without a copy if no weight is negative.

    The weights of a wild bootstrap are random signs, which apply to residuals but not to counts.
    """
    weights = np.asarray(row_weights, dtype=np.float64)
    if weights.min(initial=0.0) >= 0.0:
        return weights
    return np.abs(weights)


def _build_debiased_statistic(
    top_labels: TopLabel, n_bins: int, binning: Binning, compute_contributions: BinContributions
) -> Statistic:
    """Build the statistic of a debiased error, max(0, Σ_b (n_b/n) contribution_b).

    The standard error of a bin comes from the variance of the correctness. For 0/1 values this
    variance is accuracy (1 - accuracy). For uniform rows, whose correctness is the constant 1/K, it
    is 0. Only the mean gap depends on the sign of a weight.

    Parameters
    ----------
    top_labels : TopLabel
        Confidence and correctness.

    n_bins, binning
        As in `metacal.metrics.ece`.

    compute_contributions : callable
        Function from the row counts, mean gaps and standard errors of the accuracy of the bins to
        their contributions. All three are 0 in an empty bin.

    Returns
    -------
    Statistic
    """
    residuals = top_labels.correct - top_labels.confidence
    summed_columns = [
        np.ones(len(top_labels)),
        residuals,
        top_labels.correct,
        top_labels.correct**2,
    ]
    compute_row_counts, compute_residual_sums, compute_correct_sums, compute_square_sums = (
        _make_bin_sum_functions(top_labels, n_bins, binning, summed_columns)
    )

    # Arrays in this function have the shape (n_resamples, n_bins).
    def compute_debiased_error(row_weights: Weights) -> Float:
        unsigned_weights = _remove_random_signs(row_weights)
        row_counts = compute_row_counts(unsigned_weights)
        divisors = np.maximum(row_counts, 1.0)
        accuracy = compute_correct_sums(unsigned_weights) / divisors
        variances = compute_square_sums(unsigned_weights) / divisors - accuracy**2
        standard_errors = np.sqrt(np.maximum(variances, 0.0) / divisors)
        mean_gaps = compute_residual_sums(row_weights) / divisors
        contributions = compute_contributions(row_counts, mean_gaps, standard_errors)
        mean_contribution = (row_counts * contributions).sum(axis=1) / row_counts.sum(axis=1)
        return np.asarray(np.maximum(0.0, mean_contribution))

    return compute_debiased_error


def _compute_folded_normal_mean(mean: Float, deviation: Float) -> Float:
    """Compute the mean of a folded normal distribution, E|N(mean, deviation²)|."""
    divisor = np.where(deviation > 0, deviation, 1.0)
    ratio = mean / divisor
    density_term = divisor * np.sqrt(2 / np.pi) * np.exp(-0.5 * ratio**2)
    folded_mean = density_term + mean * erf(ratio / np.sqrt(2))
    return np.where(deviation > 0, folded_mean, np.abs(mean))
