"""The one binning core: edges, which bin a confidence falls in, and sums per bin.

Bins are right-closed, ``(edge[b], edge[b + 1]]``; the first also holds confidence 0 and the last confidence 1.
A *statistic* maps a batch of integer row weights, one row of weights per resample, to one number per resample. Weights
of one give the metric itself, so each metric is written once and its bootstrap needs no resampled table. Weights of ±1
at random give what a calibration error would be by chance alone: the residuals lose their mean and keep their size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.metrics.toplabel import FloatColumn, TopLabel

Weights = NDArray[np.intp]

#: Batch of row weights, shape (resamples, rows) -> one value per resample.
Statistic = Callable[[Weights], FloatColumn]

#: A way to place bin edges: (confidence, n_bins) -> edges from 0 to 1.
Binning = Callable[[FloatColumn, int], FloatColumn]


def equal_width(confidence: FloatColumn, n_bins: int) -> FloatColumn:
    """Edges 0, 1/B, …, 1; each the float64 nearest to b/B, so a confidence written as b/B falls on its edge.

    Examples
    --------
    >>> equal_width(np.array([0.3]), 4)
    array([0.  , 0.25, 0.5 , 0.75, 1.  ])
    """
    return np.arange(n_bins + 1) / n_bins


def equal_mass(confidence: FloatColumn, n_bins: int) -> FloatColumn:
    """Edges at the confidences of rank ceil(n b / B): bins of nearly equal counts.

    Rows of equal confidence always share a bin, so the order of the rows cannot matter; where a tied value spans
    several cuts those bins merge, and fewer than `n_bins` come back.

    Examples
    --------
    >>> equal_mass(np.array([0.2, 0.6, 0.6, 0.6, 0.7, 0.9]), 3)
    array([0. , 0.6, 1. ])
    """
    ordered = np.sort(confidence)
    count = len(ordered)
    ranks = -(-count * np.arange(1, n_bins) // n_bins)
    cuts = np.unique(ordered[ranks - 1])
    # A cut at the largest confidence would leave an empty last bin.
    return np.concatenate(([0.0], cuts[cuts < ordered[-1]], [1.0]))


def bin_codes(confidence: FloatColumn, edges: FloatColumn) -> NDArray[np.intp]:
    """Return the bin of each confidence.

    Examples
    --------
    >>> bin_codes(np.array([0.0, 0.25, 0.26, 1.0]), equal_width(np.empty(0), 4))
    array([0, 0, 1, 3])
    """
    return np.searchsorted(edges[1:-1], confidence, side="left")


def distinct_codes(values: FloatColumn) -> NDArray[np.intp]:
    """Return the rank of each value among the distinct values: every block of ties is a bin of its own."""
    codes: NDArray[np.intp] = np.unique(values, return_inverse=True)[1].reshape(-1)
    return codes


def sums_per_code(codes: NDArray[np.intp], values: NDArray[Any], n_codes: int = 0) -> FloatColumn:
    """Return the sum of the values of each code, in float64."""
    sums: FloatColumn = np.asarray(np.bincount(codes, values, n_codes), dtype=np.float64)
    return sums


def bin_count(n_bins: object) -> int:
    """Return `n_bins` as an int of at least one, or raise.

    Examples
    --------
    >>> bin_count(0)
    Traceback (most recent call last):
    metacal.errors.InputError: n_bins must be a whole number of at least 1, got 0; 15 is the usual choice.
    """
    if isinstance(n_bins, bool) or not isinstance(n_bins, Integral) or n_bins < 1:
        raise InputError(f"n_bins must be a whole number of at least 1, got {n_bins!r}; 15 is the usual choice.")
    return int(n_bins)


@dataclass(frozen=True, eq=False)
class BinSums:
    """Weighted sums per bin, computed when asked for; only the gap feels the sign of a weight."""

    codes: NDArray[np.intp]
    n_bins: int
    top: TopLabel
    residual: FloatColumn
    weights: Weights

    @property
    def count(self) -> FloatColumn:
        """Rows."""
        return self._sum(np.abs(self.weights))

    @property
    def gap(self) -> FloatColumn:
        """Σ (correct - confidence)."""
        return self._sum(self.weights * self.residual)

    @property
    def correct(self) -> FloatColumn:
        """Σ correct."""
        return self._sum(np.abs(self.weights) * self.top.correct)

    @property
    def correct_squared(self) -> FloatColumn:
        """Σ correct²."""
        return self._sum(np.abs(self.weights) * self.top.correct**2)

    def _sum(self, values: NDArray[Any]) -> FloatColumn:
        return sums_per_code(self.codes, values, self.n_bins)


def per_resample(one: Callable[[Weights], float]) -> Statistic:
    """Make a statistic from a function of one weight vector."""
    return lambda batch: np.array([one(weights) for weights in batch], dtype=np.float64)


def binned_statistic(top: TopLabel, edges: FloatColumn, finish: Callable[[BinSums], float]) -> Statistic:
    """Make the statistic `finish` of the sums per bin; the bins stay those of the whole sample in every resample."""
    codes, n_bins, residual = bin_codes(top.confidence, edges), len(edges) - 1, top.correct - top.confidence
    return per_resample(lambda weights: finish(BinSums(codes, n_bins, top, residual, weights)))


def mean_statistic(column: FloatColumn) -> Statistic:
    """Make the statistic mean of a column; a row of infinite value that is not drawn does not count."""
    if np.isfinite(column).all():
        return lambda batch: np.asarray(batch.astype(np.float64) @ column / batch.sum(axis=1))
    return per_resample(lambda weights: float(np.dot(weights[weights > 0], column[weights > 0]) / weights.sum()))


def estimate(statistic: Statistic, n_rows: int) -> float:
    """Return the metric itself: the statistic with every row counted once."""
    return float(statistic(np.ones((1, n_rows), dtype=np.intp))[0])


@dataclass(frozen=True, eq=False)
class ReliabilityCurve:
    """The table behind a reliability diagram, one entry per bin; empty bins hold NaN means.

    Attributes
    ----------
    edges : float64 array of B + 1 edges from 0 to 1; bin b is ``(edges[b], edges[b + 1]]``
    counts : integer array, rows per bin
    mean_confidence, accuracy : float64 arrays, means per bin
    """

    edges: FloatColumn
    counts: NDArray[np.intp]
    mean_confidence: FloatColumn
    accuracy: FloatColumn


def reliability_table(top: TopLabel, edges: FloatColumn) -> ReliabilityCurve:
    """Count rows and average both columns per bin."""
    codes, n_bins = bin_codes(top.confidence, edges), len(edges) - 1
    counts = np.bincount(codes, minlength=n_bins)
    safe = np.where(counts > 0, counts, np.nan)
    confidence = np.bincount(codes, top.confidence, n_bins) / safe
    return ReliabilityCurve(edges, counts, confidence, np.bincount(codes, top.correct, n_bins) / safe)
