"""How far confidence is from correctness, as functions of row weights: what the calibration errors
are made from.

Each is prepared once from the two columns of a `TopLabel` and then asked for as many resamples as
one likes. Formulas and references are with the public functions in `metacal.metrics.calibration`.
``correct`` may hold fractions (1/m for a tie among m classes).
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


def accuracy_statistic(top: TopLabel) -> Statistic:
    """Accuracy as a function of row weights."""
    return mean_statistic(top.correct)


def accuracy_counts(top: TopLabel) -> tuple[int, int] | None:
    """Right rows and rows; None when a tie counts in part."""
    if not np.isin(top.correct, (0.0, 1.0)).all():
        return None
    return int(top.correct.sum()), len(top)


def ece_statistic(
    top: TopLabel, n_bins: int = 15, binning: Binning = equal_width, norm: object = 1
) -> Statistic:
    """(Σ_b (n_b/n) |g_b|^p)^(1/p); for p = 1 that is (1/n) Σ_b |Σ_{i in b} (c_i - conf_i)|, for p =
    ∞ max |g_b|.
    """
    if not isinstance(norm, Real) or not float(norm) >= 1.0:
        raise InputError(
            "norm must be p >= 1 (1: mean gap, 2: root mean square, np.inf: largest gap); got"
            f" {norm!r}."
        )
    power = float(norm)
    gaps, counts = _sums_per_bin(
        top, n_bins, binning, top.correct - top.confidence, np.ones(len(top))
    )

    def statistic(batch: Weights) -> Float:
        if power == 1.0:
            return np.asarray(np.abs(gaps(batch)).sum(axis=1) / batch.shape[1])
        count = counts(_sizes(batch))
        gap = np.abs(gaps(batch)) / np.maximum(count, 1.0)
        largest = gap.max(axis=1)
        if np.isinf(power):
            return np.asarray(largest)
        # Divided by the largest first: a high power of small gaps would underflow. One below 2e-308
        # is none.
        relative = gap / np.where(largest >= np.finfo(np.float64).tiny, largest, 1.0)[:, None]
        return np.asarray(
            largest * ((count * relative**power).sum(axis=1) / batch.shape[1]) ** (1.0 / power)
        )

    return statistic


def debiased_ece_statistic(
    top: TopLabel, n_bins: int = 15, binning: Binning = equal_width
) -> Statistic:
    """max(0, Σ_b (n_b/n) (2|g_b| - E|N(g_b, s_b²)|)), g_b the gap and s_b the standard error of the
    accuracy.
    """
    return _debiased(
        top, n_bins, binning, lambda count, gap, error: 2.0 * np.abs(gap) - _folded_mean(gap, error)
    )


def debiased_rms_statistic(
    top: TopLabel, n_bins: int = 15, binning: Binning = equal_width
) -> Statistic:
    """sqrt(max(0, Σ_b (n_b/n) (g_b² - v_b/(n_b - 1)))); a bin of one row contributes nothing."""

    def unbiased(count: Float, gap: Float, error: Float) -> Float:
        return np.where(count > 1, gap**2 - error**2 * (count / np.maximum(count - 1.0, 1.0)), 0.0)

    squared = _debiased(top, n_bins, binning, unbiased)
    return lambda batch: np.sqrt(squared(batch))


def sup_ece_statistic(top: TopLabel) -> Statistic:
    """(1/n) Σ_z |Σ_{conf_i = z} (c_i - z)|."""
    codes, residual = distinct_codes(top.confidence), top.correct - top.confidence
    alone = (np.bincount(codes) == 1)[codes]
    size = np.where(
        alone, np.abs(residual), 0.0
    )  # a row alone with its confidence is a bin of its own
    tied = np.flatnonzero(~alone)
    blocks = distinct_codes(top.confidence[tied])
    sums = CodeSums(blocks, int(blocks.max(initial=-1)) + 1, residual[tied], tied)

    def statistic(batch: Weights) -> Float:
        return np.asarray((_sizes(batch) @ size + np.abs(sums(batch)).sum(axis=1)) / batch.shape[1])

    return statistic


def ks_statistic(top: TopLabel) -> Statistic:
    """max_z (1/n) |Σ_{conf_i <= z} (c_i - conf_i)|."""
    codes, residual = distinct_codes(top.confidence), top.correct - top.confidence
    sums = CodeSums(codes, int(codes.max(initial=0)) + 1, residual)
    return lambda batch: (
        np.abs(np.cumsum(np.ascontiguousarray(sums(batch)), axis=1)).max(axis=1) / batch.shape[1]
    )


def _sums_per_bin(top: TopLabel, n_bins: int, binning: Binning, *columns: Float) -> list[CodeSums]:
    """The sums of each column per bin; the bins stay those of the whole sample in every
    resample.
    """
    edges = bin_edges(binning, top.confidence, n_bins)
    codes = bin_codes(top.confidence, edges)
    return [CodeSums(codes, len(edges) - 1, column) for column in columns]


def _sizes(batch: Weights) -> Float:
    """|weights| as float64; counts of rows, which have no sign to lose, are not copied."""
    sizes = np.asarray(batch, dtype=np.float64)
    return sizes if sizes.min(initial=0.0) >= 0.0 else np.abs(sizes)


def _debiased(
    top: TopLabel, n_bins: int, binning: Binning, of_bin: Callable[..., Float]
) -> Statistic:
    """max(0, Σ_b (n_b/n) of_bin_b) of rows, mean gap and standard error of the accuracy; all 0 in a
    bin without rows.

    The variance is that of the values of `correct`; for 0/1 values it is accuracy (1 - accuracy),
    for the constant 1/K of uniform rows it is 0, as it should be. Only the gap feels the sign of a
    weight.
    """
    columns = (np.ones(len(top)), top.correct - top.confidence, top.correct, top.correct**2)
    counts, gaps, right, right_squared = _sums_per_bin(top, n_bins, binning, *columns)

    def statistic(batch: Weights) -> Float:
        sizes = _sizes(batch)
        count = counts(sizes)
        rows = np.maximum(count, 1.0)
        variance = right_squared(sizes) / rows - (right(sizes) / rows) ** 2
        values = of_bin(count, gaps(batch) / rows, np.sqrt(np.maximum(variance, 0.0) / rows))
        return np.asarray(np.maximum(0.0, (count * values).sum(axis=1) / count.sum(axis=1)))

    return statistic


def _folded_mean(mean: Float, deviation: Float) -> Float:
    """E|N(mean, deviation²)|."""
    safe = np.where(deviation > 0, deviation, 1.0)
    ratio = mean / safe
    folded = safe * np.sqrt(2 / np.pi) * np.exp(-0.5 * ratio**2) + mean * erf(ratio / np.sqrt(2))
    return np.where(deviation > 0, folded, np.abs(mean))
