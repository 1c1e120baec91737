"""Bins of the confidence, sums per bin, and statistics of row weights.

Bins are right-closed, ``(edge[b], edge[b + 1]]``. The first bin also contains confidence 0.

Terms used in `metacal.metrics`:

- *statistic*: a metric as a function of row weights. It maps an array of shape
  (n_resamples, n_rows) to one value per resample. If all weights are 1, the value is the metric
  itself. A bootstrap resample is a row of integer weights, so no table is ever resampled. Random
  weights of +1 and -1 show which calibration error chance alone produces, because the residuals
  keep their size and lose their mean.
- *code*: integer from 0 that identifies the bin, class or other group of a row.
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


#: Row weights of shape (n_resamples, n_rows), all whole numbers. They are int8 for statistics of a
#: whole table, and otherwise floats with the weights of each row next to each other in memory.
Weights = Array

#: Function from row weights of shape (n_resamples, n_rows) to one value per resample.
Statistic = Callable[[Weights], Float]

#: Function from (confidence, n_bins) to bin edges from 0 to 1, or the edges themselves.
Binning = Callable[[Float, int], Float] | Sequence[float] | NDArray[np.floating[Any]]


def equal_width(confidence: Float, n_bins: int) -> Float:
    """Return the edges of bins of equal width: 0, 1/B, ..., 1.

    Each edge is the float64 nearest to b/B. A confidence that was computed as b/B is therefore
    equal to its edge.

    Examples
    --------
    >>> equal_width(np.array([0.3]), 4)
    array([0.  , 0.25, 0.5 , 0.75, 1.  ])
    """
    return np.arange(n_bins + 1) / n_bins


def equal_mass(confidence: Float, n_bins: int) -> Float:
    """Return the edges of bins with nearly equal numbers of rows.

    The inner edges are the confidences of rank ceil(n b / B). Rows of equal confidence are always
    in the same bin. If a tied value spans several edges, there are fewer than `n_bins` bins.

    Examples
    --------
    >>> equal_mass(np.array([0.2, 0.6, 0.6, 0.6, 0.7, 0.9]), 3)
    array([0. , 0.6, 1. ])
    """
    sorted_confidence = np.sort(confidence)
    n_rows = len(sorted_confidence)
    edge_ranks = -(-n_rows * np.arange(1, n_bins) // n_bins)
    inner_edges = np.unique(sorted_confidence[edge_ranks - 1])
    # An edge at the largest confidence would leave the last bin empty.
    inner_edges = inner_edges[inner_edges < sorted_confidence[-1]]
    return np.concatenate(([0.0], inner_edges, [1.0]))


def bin_edges(binning: Binning, confidence: Float, n_bins: object = 15) -> Float:
    """Compute or validate the bin edges.

    Parameters
    ----------
    binning : callable or array-like
        Function of (confidence, n_bins) that returns the edges, or the edges themselves.

    confidence : array of shape (n_rows,)
        Confidence of each row.

    n_bins : int, default=15
        Number of bins. It is not used if `binning` contains the edges.

    Returns
    -------
    array of float64
        Edges that increase from 0 to 1.

    Raises
    ------
    InputError
        If `binning` is of another type, or the edges do not increase from 0 to 1.

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
    if callable(binning):
        edges = np.asarray(binning(confidence, check_n_bins(n_bins)))
    else:
        edges = np.asarray(binning)
    if not _rises_from_0_to_1(edges):
        raise InputError(f"bin edges must rise from 0 to 1; got {edges}.")
    return edges.astype(np.float64, copy=False)


def _rises_from_0_to_1(edges: Array) -> bool:
    """Check whether an array is one-dimensional, numeric and increases from 0 to 1."""
    if edges.ndim != 1 or edges.dtype.kind not in "iuf" or len(edges) < 2:
        return False
    if edges[0] != 0 or edges[-1] != 1:
        return False
    return bool((np.diff(edges) >= 0).all())


def bin_codes(confidence: Float, edges: Float) -> Codes:
    """Return the index of the bin of each confidence.

    Examples
    --------
    >>> bin_codes(np.array([0.0, 0.25, 0.26, 1.0]), equal_width(np.empty(0), 4))
    array([0, 0, 1, 3])
    """
    return np.searchsorted(edges[1:-1], confidence, side="left")


def distinct_codes(values: Float) -> Codes:
    """Return the rank of each value among the distinct values, from 0; ties share a rank."""
    _, ranks = np.unique(values, return_inverse=True)
    return ranks.reshape(-1)


def sums_per_code(codes: Codes, values: Array, n_codes: int = 0) -> Float:
    """Return the sum of the values of each code in float64."""
    return np.asarray(np.bincount(codes, values, n_codes), dtype=np.float64)


class CodeSums:
    """Weighted sums of values per code, computed for many resamples at once.

    For one resample the sums come from `np.bincount`. For several resamples they are the product
    of a sparse matrix with the weights.

    Parameters
    ----------
    codes : array of int of shape (n_entries,)
        Code of each entry, from 0 to `n_codes` - 1.

    n_codes : int
        Number of codes.

    values : array of float64 of shape (n_entries,), default=None
        Value of each entry. None stands for ones.

    row : array of int of shape (n_entries,), default=None
        Row of each entry. None means that entry i belongs to row i.
    """

    def __init__(
        self, codes: Codes, n_codes: int, values: Float | None = None, row: Codes | None = None
    ) -> None:
        self._codes = codes
        self._n_codes = n_codes
        self._entry_rows = row
        self._values = np.ones(len(codes)) if values is None else values
        self._sparse_matrix: Any = None

    def __call__(self, batch: Weights) -> Float:
        """Return the weighted sums.

        Parameters
        ----------
        batch : array of shape (n_resamples, n_rows)
            Row weights.

        Returns
        -------
        array of float64 of shape (n_resamples, n_codes)

        Examples
        --------
        >>> sums = CodeSums(np.array([0, 1, 1]), 2, np.array([1.0, 2.0, 3.0]))
        >>> sums(np.array([[1, 1, 1], [0, 2, 1]]))
        array([[1., 5.],
               [0., 7.]])
        """
        if len(batch) == 1:
            entry_weights = batch[0]
            if self._entry_rows is not None:
                entry_weights = entry_weights[self._entry_rows]
            sums = sums_per_code(self._codes, entry_weights * self._values, self._n_codes)
            return sums[None]
        weights_by_row = np.ascontiguousarray(batch.T, dtype=np.float64)
        return (self._matrix(batch.shape[1]) @ weights_by_row).T

    def _matrix(self, n_rows: int) -> Any:
        """Return the sparse matrix of shape (n_codes, n_rows), built at the first call."""
        if self._sparse_matrix is None:
            # Imported here because most calls never resample.
            from scipy.sparse import csr_array

            entry_rows = self._entry_rows
            if entry_rows is None:
                entry_rows = np.arange(len(self._codes))
            self._sparse_matrix = csr_array(
                (self._values, (self._codes, entry_rows)), shape=(self._n_codes, n_rows)
            )
        return self._sparse_matrix


def check_n_bins(n_bins: object) -> int:
    """Return `n_bins` as an int; raise InputError unless it is a whole number of at least 1.

    Examples
    --------
    >>> check_n_bins(0)
    Traceback (most recent call last):
    metacal.errors.InputError: n_bins must be a whole number of at least 1, got 0; 15 is the ...
    """
    if isinstance(n_bins, bool) or not isinstance(n_bins, Integral) or n_bins < 1:
        raise InputError(
            f"n_bins must be a whole number of at least 1, got {n_bins!r}; 15 is the usual choice."
        )
    return int(n_bins)


@dataclass(frozen=True, eq=False)
class NearlyNormalStatistic:
    """Expensive statistic whose replicates are nearly normal, so that few of them are enough.

    It is a sum over thousands of cells of a large table. The mean and the standard deviation of
    320 replicates locate the tails about as precisely as the order statistics of 1,000: the
    standard error of an interval's width is 4.0% of the width, against 3.1%. On 16,384 rows of 100
    classes, the ends differed by 0.3% of the width on average (three shapes of tables, 6,000
    resamples each).

    Attributes
    ----------
    statistic : Statistic
        The statistic.

    n_resamples : int
        Number of resamples that are enough.
    """

    statistic: Statistic
    n_resamples: int = 320

    def __call__(self, batch: Weights) -> Float:
        """Return one value per resample."""
        return self.statistic(batch)


def statistic_from_function(function: Callable[[Weights], float]) -> Statistic:
    """Build a statistic from a function of one vector of integer row weights."""

    def statistic(batch: Weights) -> Float:
        values = [function(weights.astype(np.intp)) for weights in batch]
        return np.array(values, dtype=np.float64)

    return statistic


def mean_statistic(column: Float) -> Statistic:
    """Build the statistic of the weighted mean of a column.

    A row with an infinite value and weight 0 does not change the mean.
    """
    if not np.isfinite(column).all():

        def mean_of_drawn_rows(weights: Weights) -> float:
            is_drawn = weights > 0
            return float(np.dot(weights[is_drawn], column[is_drawn]) / weights.sum())

        return statistic_from_function(mean_of_drawn_rows)

    # If the weights of a row are next to each other in memory, a matrix product is five times as
    # fast as a sum over rows.
    ones = np.ones(len(column))

    def mean(batch: Weights) -> Float:
        weights = np.asarray(batch, dtype=np.float64)
        return np.asarray(weights @ column / (weights @ ones))

    return mean


def estimate(statistic: Statistic, n_rows: int) -> float:
    """Return the value of a statistic if every row has weight 1."""
    unit_weights = np.ones((1, n_rows), dtype=np.intp)
    return float(statistic(unit_weights)[0])


@dataclass(frozen=True, eq=False)
class ReliabilityCurve:
    """Data of a reliability diagram, one entry per bin.

    Attributes
    ----------
    edges : array of float64 of shape (n_bins + 1,)
        Bin edges from 0 to 1. Bin b is ``(edges[b], edges[b + 1]]``.

    counts : array of int of shape (n_bins,)
        Number of rows in each bin.

    mean_confidence, accuracy : array of float64 of shape (n_bins,)
        Means of the rows in each bin, NaN for empty bins.
    """

    edges: Float
    counts: Codes
    mean_confidence: Float
    accuracy: Float


def reliability_table(top: TopLabel, edges: Float) -> ReliabilityCurve:
    """Count the rows in each bin and average their confidence and correctness."""
    codes = bin_codes(top.confidence, edges)
    n_bins = len(edges) - 1
    counts = np.bincount(codes, minlength=n_bins)
    divisors = np.where(counts > 0, counts, np.nan)
    return ReliabilityCurve(
        edges=edges,
        counts=counts,
        mean_confidence=np.bincount(codes, top.confidence, n_bins) / divisors,
        accuracy=np.bincount(codes, top.correct, n_bins) / divisors,
    )
