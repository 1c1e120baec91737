"""Every class's own reliability at once: sums per (class, bin) of a whole probability table.

With many classes nearly all entries lie in the first bin. Only the entries above it are listed; the first bin is the
column total less those, so a table of 1,000 classes costs little more than reading it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.metrics.binning import CodeSums, Statistic, Weights, bin_codes, bin_count, equal_width, sums_per_code
from metacal.metrics.toplabel import CheckedTable, FloatColumn

#: Rows of a block of the matrix product: wide enough for it, and few enough to sum up single precision within.
_PRODUCT_ROWS = 1024
#: From so many classes on the product of resamples and table is worth single precision.
_WIDE = 128


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
    n_classes = checked.n_classes
    edges = equal_width(np.empty(0), n_bins)
    threshold = _largest_at_most(edges[1], checked.whole.dtype)
    places: list[NDArray[np.intp]] = []
    values: list[NDArray[Any]] = []
    for start, block in checked.blocks():
        flat = np.ascontiguousarray(block).reshape(-1)
        above = np.flatnonzero(flat > threshold)
        places.append(above + start * n_classes)
        values.append(flat[above])
    row, column = np.divmod(np.concatenate(places), n_classes)
    probability = np.concatenate(values).astype(np.float64)
    cell = column * n_bins + bin_codes(probability, edges)
    return UpperEntries(row, cell, probability, (column == checked.codes[row]).astype(np.float64))


def classwise_ece_statistic(checked: CheckedTable, n_bins: int = 15) -> Statistic:
    """(1/K) Σ_k (1/n) Σ_b |Σ_{p_ik in b} (1(y_i = k) - p_ik)| as a function of row weights."""
    n_classes, n_bins = checked.n_classes, bin_count(n_bins)
    upper = upper_entries(checked, n_bins)
    cells, place = np.unique(upper.cell, return_inverse=True)
    above_of = CodeSums(place.reshape(-1), len(cells), upper.hit - upper.probability, upper.row)
    labels_of = CodeSums(checked.codes, n_classes)
    # Cells are in order of their class: its part of them begins here.
    classes, begins = np.unique(cells // n_bins, return_index=True)

    def statistic(batch: Weights) -> FloatColumn:
        above = above_of(batch)
        first = labels_of(batch) - weighted_column_sums(checked, batch)
        if len(cells):
            first[:, classes] -= np.add.reduceat(above, begins, axis=1)
        total = np.abs(above).sum(axis=1) + np.abs(first).sum(axis=1)
        return np.asarray(total / (batch.shape[1] * n_classes))

    return statistic


def weighted_column_sums(checked: CheckedTable, batch: Weights) -> FloatColumn:
    """Σ_i w_i p_ik for each weight vector w of the batch and each class k.

    Summed in float64, but for the resamples of a wide table of single precision, where this product is most of the
    work: there the sums of 1,024 rows at a time are in single precision, too. With 1,000 classes that moves an interval
    by less than 1e-9; the estimate is never computed so.
    """
    single = len(batch) > 1 and checked.whole.dtype.itemsize <= 4 and checked.n_classes >= _WIDE
    kind: Any = np.float32 if single else np.float64
    weights = batch.astype(kind, copy=False)
    totals = np.zeros((len(batch), checked.n_classes))
    for start in range(0, len(checked), _PRODUCT_ROWS):
        block = checked.rows(start, start + _PRODUCT_ROWS).astype(kind, copy=False)
        totals += weights[:, start : start + len(block)] @ block
    return totals


def _largest_at_most(edge: float, dtype: np.dtype[Any]) -> Any:
    """Return the largest `dtype` number not above `edge`; comparing with it is comparing with `edge` exactly."""
    rounded = dtype.type(edge)
    return rounded if float(rounded) <= edge else np.nextafter(rounded, dtype.type(0))
