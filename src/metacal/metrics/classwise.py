"""Every class's own reliability at once: sums per (class, bin) of a whole probability table.

With many classes nearly all entries lie in the first bin. Only the entries above it are listed; the first bin is the
column total less those, so a table of 1,000 classes costs little more than reading it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.metrics.binning import Statistic, Weights, bin_codes, bin_count, equal_width, sums_per_code
from metacal.metrics.toplabel import CheckedTable, FloatColumn

_BLOCK_ELEMENTS = 1 << 17


@dataclass(frozen=True, eq=False)
class UpperEntries:
    """The entries of the table that lie above the first bin.

    Attributes
    ----------
    row, cell : integer arrays
        The entry's row, and its place ``class * n_bins + bin`` in a flat (class, bin) table.
    probability, hit : float64 arrays
        Its value, and 1 where its class is the true one.
    """

    row: NDArray[np.intp]
    cell: NDArray[np.intp]
    probability: FloatColumn
    hit: FloatColumn

    def sums(self, values: FloatColumn, n_classes: int, n_bins: int) -> FloatColumn:
        """Σ values per (class, bin); the first bin holds 0."""
        return sums_per_code(self.cell, values, n_classes * n_bins).reshape(n_classes, n_bins)


def upper_entries(checked: CheckedTable, n_bins: int) -> UpperEntries:
    """List the entries above the first of `n_bins` equal-width bins."""
    table, n_classes = checked.table, checked.table.shape[1]
    edges = equal_width(np.empty(0), n_bins)
    threshold = _largest_at_most(edges[1], table.dtype)
    places: list[NDArray[np.intp]] = []
    values: list[NDArray[Any]] = []
    for start, block in row_blocks(table):
        flat = np.ascontiguousarray(block).reshape(-1)
        above = np.flatnonzero(flat > threshold)
        places.append(above + start * n_classes)
        values.append(flat[above])
    row, column = np.divmod(np.concatenate(places), n_classes)
    probability = np.concatenate(values).astype(np.float64)
    cell = column * n_bins + bin_codes(probability, edges)
    return UpperEntries(row, cell, probability, (column == checked.codes[row]).astype(np.float64))


def row_blocks(table: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Blocks of rows with the number of their first row."""
    step = max(1, _BLOCK_ELEMENTS // table.shape[1])
    for start in range(0, len(table), step):
        yield start, table[start : start + step]


def classwise_ece_statistic(checked: CheckedTable, n_bins: int = 15) -> Statistic:
    """(1/K) Σ_k (1/n) Σ_b |Σ_{p_ik in b} (1(y_i = k) - p_ik)| as a function of row weights."""
    n_classes, n_bins = checked.table.shape[1], bin_count(n_bins)
    upper = upper_entries(checked, n_bins)
    gaps = upper.hit - upper.probability

    def statistic(batch: Weights) -> FloatColumn:
        totals = weighted_column_sums(checked.table, batch)
        values = np.empty(len(batch))
        for place, weights in enumerate(batch):
            above = upper.sums(weights[upper.row] * gaps, n_classes, n_bins)
            whole = np.bincount(checked.codes, weights, n_classes) - totals[place]
            first = whole - above.sum(axis=1)
            values[place] = (np.abs(above).sum() + np.abs(first).sum()) / (len(weights) * n_classes)
        return values

    return statistic


def weighted_column_sums(table: NDArray[Any], batch: Weights) -> FloatColumn:
    """Σ_i w_i p_ik for each weight vector w of the batch and each class k, summed in float64."""
    weights = batch.astype(np.float64)
    totals = np.zeros((len(batch), table.shape[1]))
    for start, block in row_blocks(table):
        totals += weights[:, start : start + len(block)] @ block.astype(np.float64)
    return totals


def _largest_at_most(edge: float, dtype: np.dtype[Any]) -> Any:
    """Return the largest `dtype` number not above `edge`; comparing with it is comparing with `edge` exactly."""
    rounded = dtype.type(edge)
    return rounded if float(rounded) <= edge else np.nextafter(rounded, dtype.type(0))
