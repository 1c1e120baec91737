"""Bins of the confidence, sums per bin, and statistics of row weights.

Bins are right-closed, ``(edge[b], edge[b + 1]]``. The first bin also contains confidence 0.

Terms used in `metacal.metrics`:

- *statistic*: a metric as a function of row weights. It maps an array of shape
  (n_resamples, n_rows) to one value per resample. If all weights are 1, the value is the metric
  itself. A bootstrap resample is a row of integer weights, so no table is ever resampled. Random
  weights of +1 and -1 show which calibration error chance alone produces, because the residuals
  keep their size and lose their mean.
- *group*: bin, class or other set of rows, identified by an integer from 0.
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
    pass


#: Whole-number weights of shape (n_resamples, n_rows): int8, or floats contiguous for each row.
Weights = Array

#: Function from row weights of shape (n_resamples, n_rows) to one value per resample.
Statistic = Callable[[Weights], Float]

#: Function from (confidence, n_bins) to bin edges from 0 to 1, or the edges themselves.
Binning = Callable[[Float, int], Float] | Sequence[float] | NDArray[np.floating[Any]]


def equal_width(confidence: Float, n_bins: int) -> Float:
    """Compute the edges of bins of equal width: 0, 1/B, ..., 1.

    Each edge is the float64 nearest to b/B. A confidence that was computed as b/B is therefore
    equal to its edge.

    Examples
    --------
    >>> equal_width(np.array([0.3]), 4)
    array([0.  , 0.25, 0.5 , 0.75, 1.  ])
    """
    return np.arange(n_bins + 1) / n_bins


def equal_mass(confidence: Float, n_bins: int) -> Float:
    """Compute the edges of bins with nearly equal numbers of rows.

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


def compute_bin_edges(binning: Binning, confidence: Float, n_bins: object = 15) -> Float:
    """Compute the bin edges, or validate edges passed by the caller.

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
    >>> compute_bin_edges([0, 0.5, 0.9, 1], np.array([0.7]))
    array([0. , 0.5, 0.9, 1. ])
    >>> compute_bin_edges([0.5, 0.9], np.array([0.7]))
    Traceback (most recent call last):
    metacal.errors.InputError: Bin edges must increase from 0 to 1, but got [0.5 0.9].
    """
    if isinstance(binning, str) or not (callable(binning) or np.ndim(binning) == 1):
        raise InputError(
            "binning must be metacal.metrics.equal_width, metacal.metrics.equal_mass, a function"
            " (confidence, n_bins) -> edges, or a list of edges such as [0, 0.5, 0.9, 1], but"
            f" got {binning!r}."
        )
    if callable(binning):
        bin_edges = np.asarray(binning(confidence, check_n_bins(n_bins)))
    else:
        bin_edges = np.asarray(binning)
    if not _increases_from_0_to_1(bin_edges):
        raise InputError(f"Bin edges must increase from 0 to 1, but got {bin_edges}.")
    return bin_edges.astype(np.float64, copy=False)


def _increases_from_0_to_1(edges: Array) -> bool:
    """Check whether an array is one-dimensional, numeric and increases from 0 to 1."""
    if edges.ndim != 1 or edges.dtype.kind not in "iuf" or len(edges) < 2:
        return False
    if edges[0] != 0 or edges[-1] != 1:
        return False
    return bool((np.diff(edges) >= 0).all())


def assign_bins(confidence: Float, edges: Float) -> Codes:
    """Return the index of the bin that contains each confidence.

    Examples
    --------
    >>> assign_bins(np.array([0.0, 0.25, 0.26, 1.0]), equal_width(np.empty(0), 4))
    array([0, 0, 1, 3])
    """
    return np.searchsorted(edges[1:-1], confidence, side="left")


def rank_distinct_values(values: Float) -> Codes:
    """Rank each value among the distinct values. Ranks start at 0."""
    _, ranks = np.unique(values, return_inverse=True)
    return ranks.reshape(-1)


def sum_by_group(groups: Codes, values: Array, n_groups: int = 0) -> Float:
    """Compute the sum of the values of each group in float64."""
    return np.asarray(np.bincount(groups, values, n_groups), dtype=np.float64)


class GroupSums:
    """Weighted sums of values per group, computed for many resamples at once.

    An *entry* is one value to sum. A row may have several entries, in the same or in different
    groups, and its weight multiplies all of them.

    For one resample the sums come from `np.bincount`. For several resamples they are the product
    of a sparse matrix with the weights.

    Parameters
    ----------
    groups : array of int of shape (n_entries,)
        Group of each entry, from 0 to `n_groups` - 1.

    n_groups : int
        Number of groups.

    values : array of float64 of shape (n_entries,), default=None
        Value of each entry. None stands for ones.

    entry_rows : array of int of shape (n_entries,), default=None
        Row of each entry. None means that entry i belongs to row i.
    """

    def __init__(
        self,
        groups: Codes,
        n_groups: int,
        values: Float | None = None,
        entry_rows: Codes | None = None,
    ) -> None:
        self._groups = groups
        self._n_groups = n_groups
        self._entry_rows = entry_rows
        self._values = np.ones(len(groups)) if values is None else values
        self._sparse_matrix: Any = None

    def __call__(self, row_weights: Weights) -> Float:
        """Compute the weighted sum of each group for each resample.

        Parameters
        ----------
        row_weights : array of shape (n_resamples, n_rows)
            Weight of each row in each resample.

        Returns
        -------
        array of float64 of shape (n_resamples, n_groups)

        Examples
        --------
        >>> sums = GroupSums(np.array([0, 1, 1]), 2, np.array([1.0, 2.0, 3.0]))
        >>> sums(np.array([[1, 1, 1], [0, 2, 1]]))
        array([[1., 5.],
               [0., 7.]])
        """
        if len(row_weights) == 1:
            entry_weights = row_weights[0]
            if self._entry_rows is not None:
                entry_weights = entry_weights[self._entry_rows]
            group_sums = sum_by_group(self._groups, entry_weights * self._values, self._n_groups)
            return group_sums[None]
        n_rows = row_weights.shape[1]
        weights_by_row = np.ascontiguousarray(row_weights.T, dtype=np.float64)
        return (self._get_sparse_matrix(n_rows) @ weights_by_row).T

    def _get_sparse_matrix(self, n_rows: int) -> Any:
        """Return the sparse matrix of shape (n_groups, n_rows), built at the first call."""
        if self._sparse_matrix is None:
            # SciPy's sparse module is imported here because most calls never resample.
            from scipy.sparse import csr_array

            entry_rows = self._entry_rows
            if entry_rows is None:
                entry_rows = np.arange(len(self._groups))
            self._sparse_matrix = csr_array(
                (self._values, (self._groups, entry_rows)), shape=(self._n_groups, n_rows)
            )
        return self._sparse_matrix


def check_n_bins(n_bins: object) -> int:
    """Validate the number of bins and return it as an int.

    Raise InputError unless it is a whole number of at least 1.

    Examples
    --------
    >>> check_n_bins(0)
    Traceback (most recent call last):
    metacal.errors.InputError: n_bins must be a positive integer, but got 0. A usual value is 15.
    """
    if isinstance(n_bins, bool) or not isinstance(n_bins, Integral) or n_bins < 1:
        raise InputError(
            f"n_bins must be a positive integer, but got {n_bins!r}. A usual value is 15."
        )
    return int(n_bins)


@dataclass(frozen=True, eq=False)
class NearlyNormalStatistic:
    """Expensive statistic with nearly normal replicates, for few resamples.

    It is a sum over thousands of cells of a large table. The mean and the standard deviation of
    320 replicates locate the tails about as precisely as the order statistics of 1,000: the
    standard error of an interval's width is 4.0% of the width, against 3.1%. On 16,384 rows of 100
    classes, the ends differed by 0.3% of the width on average (three shapes of tables, 6,000
    resamples each).

    Attributes
    ----------
    statistic : Statistic
        Function that computes the values.

    n_resamples : int
        Number of resamples that suffice for an interval.
    """

    statistic: Statistic
    n_resamples: int = 320

    def __call__(self, row_weights: Weights) -> Float:
        """Compute one value per resample."""
        return self.statistic(row_weights)


def vectorize_statistic(function: Callable[[Weights], float]) -> Statistic:
    """Build a statistic of many resamples from a function of one weight vector.

    The function gets the weights as integers.
    """

    def evaluate_each_resample(row_weights: Weights) -> Float:
        resample_values = [function(resample.astype(np.intp)) for resample in row_weights]
        return np.array(resample_values, dtype=np.float64)

    return evaluate_each_resample


def build_mean_statistic(column: Float) -> Statistic:
    """Build the statistic of the weighted mean of a column.

    A row with an infinite value and weight 0 does not change the mean.
    """
    if not np.isfinite(column).all():

        def compute_mean_of_drawn_rows(weights: Weights) -> float:
            is_drawn = weights > 0
            return float(np.dot(weights[is_drawn], column[is_drawn]) / weights.sum())

        return vectorize_statistic(compute_mean_of_drawn_rows)

    # A matrix product with ones is five times as fast as a sum over contiguous rows.
    ones = np.ones(len(column))

    def compute_weighted_mean(row_weights: Weights) -> Float:
        float_weights = np.asarray(row_weights, dtype=np.float64)
        return np.asarray(float_weights @ column / (float_weights @ ones))

    return compute_weighted_mean


def evaluate_on_sample(statistic: Statistic, n_rows: int) -> float:
    """Compute the value of a statistic on the sample itself, with every row weight 1."""
    unit_weights = np.ones((1, n_rows), dtype=np.intp)
    return float(statistic(unit_weights)[0])
