"""Statistics of accuracy and calibration errors, computed from confidence and correctness.

A statistic maps row weights to one value per resample (see `metacal.metrics.binning`). It is
prepared once from a `TopLabel` and evaluated for any number of resamples. The formulas and
references are with the public functions in `metacal.metrics.calibration`. Correctness may be a
fraction (1/m for a tie among m classes).
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
    CodeSums,
    Statistic,
    Weights,
    bin_codes,
    bin_edges,
    distinct_codes,
    equal_width,
    mean_statistic,
)
from metacal.metrics.toplabel import TopLabel

#: Function from the row counts, mean gaps and standard errors of the bins to their contributions.
BinContribution = Callable[[Float, Float, Float], Float]


def accuracy_statistic(top: TopLabel) -> Statistic:
    """Prepare the accuracy."""
    return mean_statistic(top.correct)


def accuracy_counts(top: TopLabel) -> tuple[int, int] | None:
    """Count the correct rows and all rows; return None if a tie makes a row partly correct."""
    if not np.isin(top.correct, (0.0, 1.0)).all():
        return None
    return int(top.correct.sum()), len(top)


def ece_statistic(
    top: TopLabel, n_bins: int = 15, binning: Binning = equal_width, norm: object = 1
) -> Statistic:
    """Prepare the expected calibration error in a norm p.

        ( Σ_b (n_b/n) |g_b|^p )^(1/p)

    For p = 1 this is (1/n) Σ_b |Σ_{i in b} (c_i - conf_i)|, for p = ∞ it is max_b |g_b|.

    Parameters
    ----------
    top : TopLabel
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
            "norm must be p >= 1 (1: mean gap, 2: root mean square, np.inf: largest gap); got"
            f" {norm!r}."
        )
    power = float(norm)
    residuals = top.correct - top.confidence
    residual_sums, row_counts = _prepare_sums_per_bin(
        top, n_bins, binning, [residuals, np.ones(len(top))]
    )

    def mean_absolute_gap(batch: Weights) -> Float:
        return np.asarray(np.abs(residual_sums(batch)).sum(axis=1) / batch.shape[1])

    def gap_in_norm(batch: Weights) -> Float:
        counts = row_counts(_absolute_weights(batch))
        bin_gaps = np.abs(residual_sums(batch)) / np.maximum(counts, 1.0)
        largest_gap = bin_gaps.max(axis=1)
        if np.isinf(power):
            return np.asarray(largest_gap)
        # A high power of small gaps would underflow, so all gaps are divided by the largest one
        # first. A subnormal gap counts as 0.
        smallest_normal = np.finfo(np.float64).tiny
        divisor = np.where(largest_gap >= smallest_normal, largest_gap, 1.0)
        relative_gaps = bin_gaps / divisor[:, None]
        mean_power = (counts * relative_gaps**power).sum(axis=1) / batch.shape[1]
        return np.asarray(largest_gap * mean_power ** (1.0 / power))

    if power == 1.0:
        return mean_absolute_gap
    return gap_in_norm


def debiased_ece_statistic(
    top: TopLabel, n_bins: int = 15, binning: Binning = equal_width
) -> Statistic:
    """Prepare the debiased ECE, max(0, Σ_b (n_b/n) (2|g_b| - E|N(g_b, s_b²)|))."""

    def debiased_gap(counts: Float, mean_gaps: Float, standard_errors: Float) -> Float:
        return 2.0 * np.abs(mean_gaps) - _folded_normal_mean(mean_gaps, standard_errors)

    return _prepare_debiased(top, n_bins, binning, debiased_gap)


def debiased_rms_statistic(
    top: TopLabel, n_bins: int = 15, binning: Binning = equal_width
) -> Statistic:
    """Prepare the debiased RMS error, sqrt(max(0, Σ_b (n_b/n) (g_b² - v_b/(n_b - 1)))).

    A bin with one row contributes 0.
    """

    def debiased_squared_gap(counts: Float, mean_gaps: Float, standard_errors: Float) -> Float:
        bessel_factor = counts / np.maximum(counts - 1.0, 1.0)
        return np.where(counts > 1, mean_gaps**2 - standard_errors**2 * bessel_factor, 0.0)

    mean_square = _prepare_debiased(top, n_bins, binning, debiased_squared_gap)
    return lambda batch: np.sqrt(mean_square(batch))


def sup_ece_statistic(top: TopLabel) -> Statistic:
    """Prepare the supremum of the ECE, (1/n) Σ_z |Σ_{conf_i = z} (c_i - z)|."""
    codes = distinct_codes(top.confidence)
    residuals = top.correct - top.confidence
    # A row with a unique confidence is a bin of its own, so its gap needs no sum over rows.
    is_unique = (np.bincount(codes) == 1)[codes]
    unique_gaps = np.where(is_unique, np.abs(residuals), 0.0)
    tied_rows = np.flatnonzero(~is_unique)
    tied_codes = distinct_codes(top.confidence[tied_rows])
    n_tied_codes = int(tied_codes.max(initial=-1)) + 1
    tied_sums = CodeSums(tied_codes, n_tied_codes, residuals[tied_rows], tied_rows)

    def statistic(batch: Weights) -> Float:
        sum_of_unique = _absolute_weights(batch) @ unique_gaps
        sum_of_tied = np.abs(tied_sums(batch)).sum(axis=1)
        return np.asarray((sum_of_unique + sum_of_tied) / batch.shape[1])

    return statistic


def ks_statistic(top: TopLabel) -> Statistic:
    """Prepare the Kolmogorov-Smirnov error, max_z (1/n) |Σ_{conf_i <= z} (c_i - conf_i)|."""
    codes = distinct_codes(top.confidence)
    n_codes = int(codes.max(initial=0)) + 1
    residual_sums = CodeSums(codes, n_codes, top.correct - top.confidence)

    def statistic(batch: Weights) -> Float:
        cumulative_gaps = np.cumsum(np.ascontiguousarray(residual_sums(batch)), axis=1)
        return np.abs(cumulative_gaps).max(axis=1) / batch.shape[1]

    return statistic


def _prepare_sums_per_bin(
    top: TopLabel, n_bins: int, binning: Binning, columns: list[Float]
) -> list[CodeSums]:
    """Prepare the sums of several columns per bin.

    The bins are those of the whole sample, also in resamples.

    Parameters
    ----------
    top : TopLabel
        Confidence and correctness.

    n_bins, binning
        As in `metacal.metrics.ece`.

    columns : list of arrays of shape (n_rows,)
        Values to sum.

    Returns
    -------
    list of CodeSums
        One entry per column.
    """
    edges = bin_edges(binning, top.confidence, n_bins)
    codes = bin_codes(top.confidence, edges)
    return [CodeSums(codes, len(edges) - 1, column) for column in columns]


def _absolute_weights(batch: Weights) -> Float:
    """Return the absolute weights as float64, without a copy if no weight is negative."""
    weights = np.asarray(batch, dtype=np.float64)
    if weights.min(initial=0.0) >= 0.0:
        return weights
    return np.abs(weights)


def _prepare_debiased(
    top: TopLabel, n_bins: int, binning: Binning, contribution: BinContribution
) -> Statistic:
    """Prepare max(0, Σ_b (n_b/n) contribution_b).

    The standard error of a bin comes from the variance of the correctness. For 0/1 values this
    variance is accuracy (1 - accuracy). For uniform rows, whose correctness is the constant 1/K, it
    is 0. Only the mean gap depends on the sign of a weight.

    Parameters
    ----------
    top : TopLabel
        Confidence and correctness.

    n_bins, binning
        As in `metacal.metrics.ece`.

    contribution : callable
        Function from the row counts, mean gaps and standard errors of the accuracy of the bins to
        their contributions. All three are 0 in an empty bin.

    Returns
    -------
    Statistic
    """
    columns = [np.ones(len(top)), top.correct - top.confidence, top.correct, top.correct**2]
    row_counts, residual_sums, correct_sums, squared_sums = _prepare_sums_per_bin(
        top, n_bins, binning, columns
    )

    def statistic(batch: Weights) -> Float:
        weights = _absolute_weights(batch)
        counts = row_counts(weights)
        divisors = np.maximum(counts, 1.0)
        variances = squared_sums(weights) / divisors - (correct_sums(weights) / divisors) ** 2
        standard_errors = np.sqrt(np.maximum(variances, 0.0) / divisors)
        contributions = contribution(counts, residual_sums(batch) / divisors, standard_errors)
        mean_contribution = (counts * contributions).sum(axis=1) / counts.sum(axis=1)
        return np.asarray(np.maximum(0.0, mean_contribution))

    return statistic


def _folded_normal_mean(mean: Float, deviation: Float) -> Float:
    """Compute E|N(mean, deviation²)|."""
    divisor = np.where(deviation > 0, deviation, 1.0)
    ratio = mean / divisor
    density_term = divisor * np.sqrt(2 / np.pi) * np.exp(-0.5 * ratio**2)
    folded_mean = density_term + mean * erf(ratio / np.sqrt(2))
    return np.where(deviation > 0, folded_mean, np.abs(mean))
