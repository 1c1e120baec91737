"""The calibration metrics from two columns, confidence and correct, when these are already at hand.

``metacal.metrics.ece(proba, labels)`` is ``columns.ece(*top_label(proba, labels))``, and so on: reduce a table once
with `top_label`, then ask for as many metrics as you like. The columns may also be a binary classifier's probability of
the positive class and its 0/1 outcome; the metrics are then those of binary calibration. Formulas and references are
with the functions of the same names in `metacal.metrics`.

``correct`` may hold fractions (1/m for a tie among m classes).
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erf

from metacal.errors import InputError
from metacal.metrics.binning import (
    Binning,
    BinSums,
    CodeSums,
    ReliabilityCurve,
    Statistic,
    Weights,
    bin_edges,
    binned_statistic,
    distinct_codes,
    equal_mass,
    equal_width,
    estimate,
    mean_statistic,
    reliability_table,
)
from metacal.metrics.smooth import smooth_ece_statistic
from metacal.metrics.toplabel import FloatColumn, TopLabel, probability_columns

__all__ = [
    "accuracy",
    "debiased_ece",
    "debiased_rms_calibration_error",
    "ece",
    "ece_equal_mass",
    "ks_error",
    "max_calibration_error",
    "reliability_curve",
    "rms_calibration_error",
    "smooth_ece",
    "sup_ece",
]


def accuracy(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Mean of `correct`.

    Examples
    --------
    >>> accuracy([0.9, 0.5], [1, 0.5])
    0.75
    """
    return _value(accuracy_statistic, confidence, correct)


def ece(
    confidence: ArrayLike, correct: ArrayLike, n_bins: int = 15, binning: Binning = equal_width, norm: float = 1
) -> float:
    """ECE over any bins, in any L_p norm; see `metacal.metrics.ece`.

    Examples
    --------
    >>> round(ece([0.9, 0.9, 0.6], [1, 0, 1], n_bins=5), 6)
    0.4
    >>> round(ece([0.9, 0.9, 0.6], [1, 0, 0], binning=[0, 0.8, 1], norm=2), 6)
    0.476095
    """
    return _value(ece_statistic, confidence, correct, n_bins, binning, norm)


def ece_equal_mass(confidence: ArrayLike, correct: ArrayLike, n_bins: int = 15) -> float:
    """ECE over bins of equal counts; see `metacal.metrics.ece_equal_mass`.

    Examples
    --------
    >>> round(ece_equal_mass([0.9, 0.8, 0.6, 0.5], [1, 0, 1, 1], n_bins=2), 6)
    0.4
    """
    return _value(ece_equal_mass_statistic, confidence, correct, n_bins)


def debiased_ece(confidence: ArrayLike, correct: ArrayLike, n_bins: int = 15, binning: Binning = equal_width) -> float:
    """ECE less its expected excess; see `metacal.metrics.debiased_ece`.

    Examples
    --------
    >>> round(debiased_ece([0.75] * 4, [1, 1, 1, 0]), 6)
    0.0
    """
    return _value(debiased_ece_statistic, confidence, correct, n_bins, binning)


def rms_calibration_error(
    confidence: ArrayLike, correct: ArrayLike, n_bins: int = 15, binning: Binning = equal_width
) -> float:
    """Root of the mean squared gap; see `metacal.metrics.rms_calibration_error`.

    Examples
    --------
    >>> round(rms_calibration_error([0.9, 0.9, 0.6], [1, 0, 1], n_bins=5), 6)
    0.4
    """
    return _value(rms_statistic, confidence, correct, n_bins, binning)


def debiased_rms_calibration_error(
    confidence: ArrayLike, correct: ArrayLike, n_bins: int = 15, binning: Binning = equal_width
) -> float:
    """Root of the unbiased mean squared gap; see `metacal.metrics.debiased_rms_calibration_error`.

    Examples
    --------
    >>> round(debiased_rms_calibration_error([0.9, 0.9, 0.9], [1, 0, 0], n_bins=5), 6)
    0.458258
    """
    return _value(debiased_rms_statistic, confidence, correct, n_bins, binning)


def max_calibration_error(
    confidence: ArrayLike, correct: ArrayLike, n_bins: int = 15, binning: Binning = equal_width
) -> float:
    """Largest gap of any bin; see `metacal.metrics.max_calibration_error`.

    Examples
    --------
    >>> round(max_calibration_error([0.9, 0.9, 0.6], [1, 0, 0], n_bins=5), 6)
    0.6
    """
    return _value(max_statistic, confidence, correct, n_bins, binning)


def sup_ece(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Supremum of the ECE over all binnings; see `metacal.metrics.sup_ece`.

    Examples
    --------
    >>> round(sup_ece([0.9, 0.9, 0.6], [1, 0, 1]), 6)
    0.4
    """
    return _value(sup_ece_statistic, confidence, correct)


def smooth_ece(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Smooth ECE; see `metacal.metrics.smooth_ece`.

    Examples
    --------
    >>> round(smooth_ece([0.75, 0.75, 0.75, 0.75], [1, 1, 0, 0]), 4)
    0.25
    """
    return _value(smooth_ece_statistic, confidence, correct)


def ks_error(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Kolmogorov-Smirnov calibration error; see `metacal.metrics.ks_error`.

    Examples
    --------
    >>> round(ks_error([0.6, 0.9, 0.9], [1, 1, 0]), 6)
    0.133333
    """
    return _value(ks_statistic, confidence, correct)


def reliability_curve(
    confidence: ArrayLike, correct: ArrayLike, n_bins: int = 15, binning: Binning = equal_width
) -> ReliabilityCurve:
    """Table of counts, mean confidence and accuracy per bin; see `metacal.metrics.reliability_curve`.

    Examples
    --------
    >>> reliability_curve([0.2, 0.9, 0.7], [0, 1, 0], n_bins=2).counts
    array([1, 2])
    """
    top = probability_columns(confidence, correct)
    return reliability_table(top, bin_edges(binning, top.confidence, n_bins))


def accuracy_statistic(top: TopLabel) -> Statistic:
    """Accuracy as a function of row weights."""
    return mean_statistic(top.correct)


def accuracy_counts(top: TopLabel) -> tuple[int, int] | None:
    """Right rows and rows; None when a tie counts in part."""
    if not np.isin(top.correct, (0.0, 1.0)).all():
        return None
    return int(top.correct.sum()), len(top)


def ece_statistic(top: TopLabel, n_bins: int = 15, binning: Binning = equal_width, norm: float = 1) -> Statistic:
    """(Σ_b (n_b/n) |g_b|^p)^(1/p); for p = 1 that is (1/n) Σ_b |Σ_{i in b} (c_i - conf_i)|, for p = ∞ max |g_b|."""
    power = _norm(norm)

    def finish(sums: BinSums) -> FloatColumn:
        if power == 1.0:
            return np.asarray(np.abs(sums.gap).sum(axis=1) / sums.n_rows)
        count = sums.count
        gap = np.abs(sums.gap) / np.maximum(count, 1.0)
        largest = gap.max(axis=1)
        if np.isinf(power):
            return np.asarray(largest)
        # Divided by the largest first: a high power of small gaps would underflow. One below 2e-308 is none.
        relative = gap / np.where(largest >= np.finfo(np.float64).tiny, largest, 1.0)[:, None]
        return np.asarray(largest * ((count * relative**power).sum(axis=1) / sums.n_rows) ** (1.0 / power))

    return _binned(top, n_bins, binning, finish)


def ece_equal_mass_statistic(top: TopLabel, n_bins: int = 15) -> Statistic:
    """Make the same over bins of equal counts."""
    return ece_statistic(top, n_bins, equal_mass)


def debiased_ece_statistic(top: TopLabel, n_bins: int = 15, binning: Binning = equal_width) -> Statistic:
    """max(0, Σ_b (n_b/n) (2|g_b| - E|N(g_b, s_b²)|)), g_b the gap and s_b the standard error of the accuracy."""

    def finish(sums: BinSums) -> FloatColumn:
        count, gap, error = _gap_and_error(sums)
        return np.maximum(0.0, _mean_over_rows(2.0 * np.abs(gap) - _folded_mean(gap, error), count))

    return _binned(top, n_bins, binning, finish)


def rms_statistic(top: TopLabel, n_bins: int = 15, binning: Binning = equal_width) -> Statistic:
    """sqrt(Σ_b (n_b/n) g_b²): the L2 norm of the ECE."""
    return ece_statistic(top, n_bins, binning, 2)


def debiased_rms_statistic(top: TopLabel, n_bins: int = 15, binning: Binning = equal_width) -> Statistic:
    """sqrt(max(0, Σ_b (n_b/n) (g_b² - v_b/(n_b - 1)))); a bin of one row contributes nothing."""

    def finish(sums: BinSums) -> FloatColumn:
        count, gap, error = _gap_and_error(sums)
        unbiased = gap**2 - error**2 * (count / np.maximum(count - 1.0, 1.0))
        return np.sqrt(np.maximum(0.0, _mean_over_rows(np.where(count > 1, unbiased, 0.0), count)))

    return _binned(top, n_bins, binning, finish)


def max_statistic(top: TopLabel, n_bins: int = 15, binning: Binning = equal_width) -> Statistic:
    """max_b |g_b| over the bins that hold a row: the L∞ norm of the ECE."""
    return ece_statistic(top, n_bins, binning, np.inf)


def sup_ece_statistic(top: TopLabel) -> Statistic:
    """(1/n) Σ_z |Σ_{conf_i = z} (c_i - z)|."""
    codes, residual = distinct_codes(top.confidence), top.correct - top.confidence
    alone = (np.bincount(codes) == 1)[codes]
    size = np.where(alone, np.abs(residual), 0.0)  # a row alone with its confidence is a bin of its own
    tied = np.flatnonzero(~alone)
    if not len(tied):
        return lambda batch: np.asarray(_sizes(batch) @ size / batch.shape[1])
    blocks = distinct_codes(top.confidence[tied])
    sums = CodeSums(blocks, int(blocks.max()) + 1, residual[tied], tied)

    def statistic(batch: Weights) -> FloatColumn:
        return np.asarray((_sizes(batch) @ size + np.abs(sums(batch)).sum(axis=1)) / batch.shape[1])

    return statistic


def ks_statistic(top: TopLabel) -> Statistic:
    """max_z (1/n) |Σ_{conf_i <= z} (c_i - conf_i)|."""
    codes, residual = distinct_codes(top.confidence), top.correct - top.confidence
    sums = CodeSums(codes, int(codes.max(initial=0)) + 1, residual)
    return lambda batch: np.asarray(
        np.abs(np.cumsum(np.ascontiguousarray(sums(batch)), axis=1)).max(axis=1) / batch.shape[1]
    )


def _value(statistic: Callable[..., Statistic], confidence: ArrayLike, correct: ArrayLike, *options: object) -> float:
    top = probability_columns(confidence, correct)
    return estimate(statistic(top, *options), len(top))


def _binned(top: TopLabel, n_bins: int, binning: Binning, finish: Callable[[BinSums], FloatColumn]) -> Statistic:
    return binned_statistic(top, bin_edges(binning, top.confidence, n_bins), finish)


def _norm(norm: object) -> float:
    if not isinstance(norm, Real) or not float(norm) >= 1.0:
        raise InputError(
            f"norm must be a number p >= 1 (1: mean gap, 2: root mean square, np.inf: largest gap); got {norm!r}."
        )
    return float(norm)


def _sizes(batch: Weights) -> FloatColumn:
    """|weights| as float64; counts of rows, which have no sign to lose, are not copied."""
    sizes = np.asarray(batch, dtype=np.float64)
    return sizes if sizes.min(initial=0.0) >= 0.0 else np.abs(sizes)


def _gap_and_error(sums: BinSums) -> tuple[FloatColumn, FloatColumn, FloatColumn]:
    """Rows, mean gap and standard error of the accuracy of every bin; all 0 in a bin that holds no row.

    The variance is that of the values of `correct`; for 0/1 values it is accuracy (1 - accuracy), for the constant 1/K
    of uniform rows it is 0, as it should be.
    """
    count = sums.count
    rows = np.maximum(count, 1.0)
    variance = sums.correct_squared / rows - (sums.correct / rows) ** 2
    return count, sums.gap / rows, np.sqrt(np.maximum(variance, 0.0) / rows)


def _mean_over_rows(values: FloatColumn, count: FloatColumn) -> FloatColumn:
    """Σ_b (n_b/n) values_b of each resample."""
    mean: FloatColumn = (count * values).sum(axis=1) / count.sum(axis=1)
    return mean


def _folded_mean(mean: FloatColumn, deviation: FloatColumn) -> FloatColumn:
    """E|N(mean, deviation²)|."""
    safe = np.where(deviation > 0, deviation, 1.0)
    ratio = mean / safe
    folded = safe * np.sqrt(2 / np.pi) * np.exp(-0.5 * ratio**2) + mean * erf(ratio / np.sqrt(2))
    exact: FloatColumn = np.where(deviation > 0, folded, np.abs(mean))
    return exact
