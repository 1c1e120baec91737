"""The one binning core: edges, which bin a confidence falls in, and sums per bin.

Bins are right-closed, ``(edge[b], edge[b + 1]]``; the first also holds confidence 0 and the last
confidence 1. A *statistic* maps a batch of whole row weights, one row of weights per resample, to
one number per resample. Weights of one give the metric itself, so each metric is written once and
its bootstrap needs no resampled table. Weights of ±1 at random give what a calibration error would
be by chance alone: the residuals lose their mean and keep their size.

Whatever is a sum over groups of rows goes through `CodeSums`: for one vector of weights a
`np.bincount`, for a batch one product with a sparse matrix, which reads the weights of all
resamples of a row side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.formulas import Array, Codes, Float

if TYPE_CHECKING:
    from metacal.metrics.toplabel import TopLabel


#: Whole numbers: floats that lie in memory with the resamples of a row side by side, or bytes for
#: what is `wide`.
Weights = Array

#: Batch of row weights, shape (resamples, rows) -> one value per resample.
Statistic = Callable[[Weights], Float]

#: A way to place bin edges: a function (confidence, n_bins) -> edges from 0 to 1, or the edges
#: themselves.
Binning = Callable[[Float, int], Float] | Sequence[float] | NDArray[np.floating[Any]]


def equal_width(confidence: Float, n_bins: int) -> Float:
    """Edges 0, 1/B, …, 1; each the float64 nearest to b/B, so a confidence written as b/B falls on
    its edge.

    Examples
    --------
    >>> equal_width(np.array([0.3]), 4)
    array([0.  , 0.25, 0.5 , 0.75, 1.  ])
    """
    return np.arange(n_bins + 1) / n_bins


def equal_mass(confidence: Float, n_bins: int) -> Float:
    """Edges at the confidences of rank ceil(n b / B): bins of nearly equal counts.

    Rows of equal confidence always share a bin, so the order of the rows cannot matter; where a
    tied value spans several cuts those bins merge, and fewer than `n_bins` come back.

    Examples
    --------
    >>> equal_mass(np.array([0.2, 0.6, 0.6, 0.6, 0.7, 0.9]), 3)
    array([0. , 0.6, 1. ])
    """
    ordered = np.sort(confidence)
    ranks = -(-len(ordered) * np.arange(1, n_bins) // n_bins)
    cuts = np.unique(ordered[ranks - 1])
    # A cut at the largest confidence would leave an empty last bin.
    return np.concatenate(([0.0], cuts[cuts < ordered[-1]], [1.0]))


def bin_edges(binning: Binning, confidence: Float, n_bins: object = 15) -> Float:
    """Return the edges that `binning` places: what a function gives, or the given ones (`n_bins` is
    then not used).

    Examples
    --------
    >>> bin_edges([0, 0.5, 0.9, 1], np.array([0.7]))
    array([0. , 0.5, 0.9, 1. ])
    >>> bin_edges([0.5, 0.9], np.array([0.7]))
    Traceback (most recent call last):
    metacal.errors.InputError: bin edges must rise from 0 to 1; got [0.5 0.9].
    """
    if isinstance(binning, str) or not (callable(binning) or np.ndim(binning) == 1):
        raise InputError(
            "binning must be metacal.metrics.equal_width, metacal.metrics.equal_mass, a function"
            " (confidence, n_bins) -> edges, or the edges themselves, as [0, 0.5, 0.9, 1]; got"
            f" {binning!r}."
        )
    edges = np.asarray(binning(confidence, bin_count(n_bins)) if callable(binning) else binning)
    plain = edges.ndim == 1 and edges.dtype.kind in "iuf" and len(edges) > 1
    if not plain or edges[0] != 0 or edges[-1] != 1 or not (np.diff(edges) >= 0).all():
        raise InputError(f"bin edges must rise from 0 to 1; got {edges}.")
    return edges.astype(np.float64, copy=False)


def bin_codes(confidence: Float, edges: Float) -> Codes:
    """Return the bin of each confidence.

    Examples
    --------
    >>> bin_codes(np.array([0.0, 0.25, 0.26, 1.0]), equal_width(np.empty(0), 4))
    array([0, 0, 1, 3])
    """
    return np.searchsorted(edges[1:-1], confidence, side="left")


def distinct_codes(values: Float) -> Codes:
    """Return the rank of each value among the distinct values: every block of ties is a bin of its
    own.
    """
    return np.unique(values, return_inverse=True)[1].reshape(-1)


def sums_per_code(codes: Codes, values: Array, n_codes: int = 0) -> Float:
    """Return the sum of the values of each code, in float64."""
    return np.asarray(np.bincount(codes, values, n_codes), dtype=np.float64)


class CodeSums:
    """Σ values of the rows of each code, under a batch of row weights.

    Parameters
    ----------
    codes : integer array
        The group of each entry, from 0 to `n_codes` - 1.
    n_codes : int
    values : float64 array, optional
        The value of each entry; ones when None.
    row : integer array, optional
        The row of each entry, where entries are not just the rows in order.
    """

    def __init__(
        self, codes: Codes, n_codes: int, values: Float | None = None, row: Codes | None = None
    ) -> None:
        self._codes, self._n_codes, self._row = codes, n_codes, row
        self._values = np.ones(len(codes)) if values is None else values
        self._sparse: Any = None

    def __call__(self, batch: Weights) -> Float:
        """Return the sums, shape (resamples, codes).

        Examples
        --------
        >>> CodeSums(np.array([0, 1, 1]), 2, np.array([1.0, 2.0, 3.0]))(np.array([[1, 1, 1], [0, 2, 1]]))
        array([[1., 5.],
               [0., 7.]])
        """
        if len(batch) == 1:
            weights = batch[0] if self._row is None else batch[0][self._row]
            return sums_per_code(self._codes, weights * self._values, self._n_codes)[None]
        return (self._matrix(batch.shape[1]) @ np.ascontiguousarray(batch.T, dtype=np.float64)).T

    def _matrix(self, n_rows: int) -> Any:
        """The same sums as a matrix of shape (codes, rows), made when first needed."""
        if self._sparse is None:
            from scipy.sparse import csr_array  # only where there is something to resample

            row = np.arange(len(self._codes)) if self._row is None else self._row
            self._sparse = csr_array(
                (self._values, (self._codes, row)), shape=(self._n_codes, n_rows)
            )
        return self._sparse


def bin_count(n_bins: object) -> int:
    """Return `n_bins` as an int of at least one, or raise.

    Examples
    --------
    >>> bin_count(0)
    Traceback (most recent call last):
    metacal.errors.InputError: n_bins must be a whole number of at least 1, got 0; 15 is the usual choice.
    """
    if isinstance(n_bins, bool) or not isinstance(n_bins, Integral) or n_bins < 1:
        raise InputError(
            f"n_bins must be a whole number of at least 1, got {n_bins!r}; 15 is the usual choice."
        )
    return int(n_bins)


@dataclass(frozen=True, eq=False)
class NearlyNormal:
    """A statistic whose replicates are nearly normal, and dear: a sum over thousands of cells of a
    large table.

    Mean and standard deviation of 320 replicates say where their tails end about as exactly as the
    order statistics of 1,000: the standard error of an interval's width is 4.0% of it, against
    3.1%. On 16,384 rows of 100 classes the ends so found were 0.3% of the width off on average
    (three shapes of tables, 6,000 draws each).
    """

    statistic: Statistic
    draws: int = 320

    def __call__(self, batch: Weights) -> Float:
        """Return one value per resample."""
        return self.statistic(batch)


def per_resample(one: Callable[[Weights], float]) -> Statistic:
    """Make a statistic from a function of one vector of integer weights."""
    return lambda batch: np.array(
        [one(weights.astype(np.intp)) for weights in batch], dtype=np.float64
    )


def mean_statistic(column: Float) -> Statistic:
    """Make the statistic mean of a column; a row of infinite value that is not drawn does not
    count.
    """
    if np.isfinite(column).all():
        once = np.ones(
            len(column)
        )  # a product: five times as fast as a sum where resamples lie side by side

        def mean(batch: Weights) -> Float:
            weights = np.asarray(batch, dtype=np.float64)
            return np.asarray(weights @ column / (weights @ once))

        return mean
    return per_resample(
        lambda weights: float(np.dot(weights[weights > 0], column[weights > 0]) / weights.sum())
    )


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

    edges: Float
    counts: Codes
    mean_confidence: Float
    accuracy: Float


def reliability_table(top: TopLabel, edges: Float) -> ReliabilityCurve:
    """Count rows and average both columns per bin."""
    codes, n_bins = bin_codes(top.confidence, edges), len(edges) - 1
    counts = np.bincount(codes, minlength=n_bins)
    safe = np.where(counts > 0, counts, np.nan)
    confidence = np.bincount(codes, top.confidence, n_bins) / safe
    return ReliabilityCurve(
        edges, counts, confidence, np.bincount(codes, top.correct, n_bins) / safe
    )
