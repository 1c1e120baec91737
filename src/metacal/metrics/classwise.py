"""Calibration of the probabilities of every class, from sums per class and bin.

With many classes, nearly all entries of a probability table lie in the first bin. Only the entries
above the first bin are listed. The sums of the first bin are the column totals minus the sums of
the listed entries. A table of 1,000 classes then costs little more than reading it.

The metric itself is computed from sums of integers (`ClassGaps`), which do not depend on the order
of the rows or on the number of machines. Resamples are products of row weights and the table.

A *cell* is a pair of a class and a bin, with the index ``class * n_bins + bin``. The *gap* of a cell
is the sum of 1(y_i = k) - p_ik over its entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from metacal.formulas import Codes, Flags, Float
from metacal.kernels import active, exact
from metacal.metrics.binning import (
    CodeSums,
    NearlyNormalStatistic,
    Statistic,
    Weights,
    bin_codes,
    check_n_bins,
    equal_width,
)
from metacal.metrics.replicates import split_into_float_batches
from metacal.metrics.toplabel import CheckedTable

#: Rows per block of a matrix product in single precision. Sums of so few rows are exact enough.
_SINGLE_PRECISION_ROWS = 256
#: Elements per block of a matrix product in double precision, which copies a float32 table.
_PRODUCT_ELEMENTS = 1 << 17
#: Number of classes from which on resamples use single precision and few draws.
_MANY_CLASSES = 128
#: Number of rows from which on such a table has few resamples.
_MANY_ROWS = 1 << 14
#: Number of rows whose sums in integer units a float64 represents exactly.
_MAX_EXACT_ROWS = 1 << 21
#: A correct label in coarse units.
_UNITS_OF_ONE = round(1.0 / exact.UNITS[0])
_class_units = getattr(active, "add_class_units", exact.add_class_units)


@dataclass(frozen=True, eq=False)
class UpperEntries:
    """Entries of a probability table that lie above the first bin.

    Attributes
    ----------
    row : array of int of shape (n_entries,)
        Row of each entry.

    cell : array of int of shape (n_entries,)
        Cell of each entry, ``class * n_bins + bin``.

    probability : array of float64 of shape (n_entries,)
        Value of each entry.

    is_label : array of float64 of shape (n_entries,)
        1 if the class of the entry is the true class of the row, else 0.
    """

    row: Codes
    cell: Codes
    probability: Float
    is_label: Float


def find_upper_entries(checked: CheckedTable, n_bins: int) -> UpperEntries:
    """List the entries of a table above the first of `n_bins` bins of equal width."""
    n_classes = checked.n_classes
    edges = equal_width(np.empty(0), n_bins)
    index_blocks = []
    value_blocks = []
    for start, block in checked.blocks():
        flat_indices, values = exact.find_entries_above(block, edges)
        index_blocks.append(start * n_classes + flat_indices)
        value_blocks.append(values)
    probability = np.concatenate(value_blocks)
    row, column = np.divmod(np.concatenate(index_blocks), n_classes)
    return UpperEntries(
        row=row,
        cell=column * n_bins + bin_codes(probability, edges),
        probability=probability,
        is_label=(column == checked.codes[row]).astype(np.float64),
    )


class ClassGaps:
    """Gaps of every class and bin, accumulated exactly in integers.

    Rows may be added in any order and on several machines (see `metacal.kernels.exact`). For 1,000
    classes and 15 bins the sums take 256 kB. A pickle contains only the cells that have a row.

    Parameters
    ----------
    n_classes : int
        Number of classes.

    n_bins : int, default=15
        Number of bins of equal width.

    Attributes
    ----------
    n_rows : array of int of shape (2,)
        Number of rejected and of accepted rows.

    Examples
    --------
    >>> from metacal.metrics.toplabel import checked_table
    >>> one, two = ClassGaps(2, n_bins=5), ClassGaps(2, n_bins=5)
    >>> one.add(checked_table([[0.9, 0.1], [0.9, 0.1]], [0, 1]))
    >>> two.add(checked_table([[0.4, 0.6]], [1]))
    >>> one += two
    >>> round(one.value(), 6)
    0.4
    """

    def __init__(self, n_classes: int, n_bins: int = 15) -> None:
        self.n_bins = check_n_bins(n_bins)
        self.n_rows = np.zeros(2, dtype=np.int64)
        self._edges = equal_width(np.empty(0), self.n_bins)
        # The first axis separates coarse and fine units, the second rejected and accepted rows.
        # The cells of the first bin in `_above` are not used.
        self._total = np.zeros((2, 2, n_classes), dtype=np.int64)
        self._above = np.zeros((2, 2, n_classes * self.n_bins), dtype=np.int64)
        # Column sums of recent rows as floats. They are moved into the integers of `_total` before
        # they are too large for a float64.
        self._pending = np.zeros((2, 2, n_classes))
        self._n_pending_rows = 0

    def add(self, checked: CheckedTable, accept: Flags | None = None) -> None:
        """Add rows; `accept` marks the accepted ones, None stands for all of them."""
        is_accepted = np.ones(len(checked), dtype=bool) if accept is None else accept
        for start, block in checked.blocks():
            self._reserve_pending_rows(len(block))
            block_accepted = is_accepted[start : start + len(block)]
            _class_units(block, block_accepted, self._edges, self._pending, self._above)
        decision_codes = is_accepted.astype(np.intp)
        label_bins = bin_codes(checked.true_probability, self._edges)
        label_cells = checked.codes * self.n_bins + label_bins
        np.add.at(self._total[0], (decision_codes, checked.codes), _UNITS_OF_ONE)
        np.add.at(self._above[0], (decision_codes, label_cells), _UNITS_OF_ONE)
        self.n_rows += np.bincount(decision_codes, minlength=2)

    def _reserve_pending_rows(self, n_rows: int) -> None:
        """Make sure that the pending float sums stay exact if `n_rows` more rows are added."""
        if self._n_pending_rows + n_rows > _MAX_EXACT_ROWS:
            self._flush()
        self._n_pending_rows += n_rows

    def _flush(self) -> None:
        """Move the pending float sums into the integers."""
        for total, pending, unit in zip(self._total, self._pending, exact.UNITS):
            total -= exact.units_to_integers(pending, unit)
        self._pending[...] = 0.0
        self._n_pending_rows = 0

    def __iadd__(self, other: ClassGaps) -> ClassGaps:
        self._flush()
        other._flush()
        self._total += other._total
        self._above += other._above
        self.n_rows += other.n_rows
        return self

    def value(self, accepted: bool = False) -> float:
        """Return (1/K) Σ_k (1/n) Σ_b |gap_kb|.

        Parameters
        ----------
        accepted : bool, default=False
            Whether to use only the accepted rows.

        Returns
        -------
        float
            NaN if there are no rows, or more rows than the integers can represent.
        """
        n_rows = self._count_rows(accepted)
        if not 0 < n_rows <= exact.MAX_ENTRIES:
            return float("nan")
        n_classes = self._total.shape[2]
        return float(self._absolute_gaps(accepted).sum() / (n_rows * n_classes))

    def by_class(self, accepted: bool = False) -> Float:
        """Return (1/n) Σ_b |gap_kb| of each class, 0 if there are no rows."""
        n_rows = self._count_rows(accepted)
        return np.asarray(self._absolute_gaps(accepted).sum(axis=1) / max(n_rows, 1))

    def _count_rows(self, accepted: bool) -> int:
        """Return the number of all rows, or of the accepted rows."""
        return int(self.n_rows[int(accepted) :].sum())

    def _absolute_gaps(self, accepted: bool) -> Float:
        """Return the absolute gaps of all classes and bins, shape (n_classes, n_bins)."""
        self._flush()
        first_decision = int(accepted)
        total = self._total[:, first_decision:].sum(axis=1)
        gaps = self._above[:, first_decision:].sum(axis=1).reshape(2, -1, self.n_bins)
        gaps[:, :, 0] = total - gaps[:, :, 1:].sum(axis=2)
        return np.abs(exact.units_to_floats(gaps))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with only the cells that are not 0."""
        self._flush()
        used_cells = np.flatnonzero(self._above.any(axis=(0, 1)))
        sparse_above = (self._above.shape, used_cells, self._above[..., used_cells])
        return {**vars(self), "_above": sparse_above}

    def __setstate__(self, state: dict[str, Any]) -> None:
        shape, used_cells, values = state["_above"]
        vars(self).update(state, _above=np.zeros(shape, dtype=np.int64))
        self._above[..., used_cells] = values


def classwise_ece_statistic(checked: CheckedTable, n_bins: int = 15) -> Statistic:
    """Prepare (1/K) Σ_k (1/n) Σ_b |Σ_{p_ik in b} (1(y_i = k) - p_ik)|."""
    n_bins = check_n_bins(n_bins)
    resampled_gaps = _ResampledGaps(checked, n_bins)

    def statistic(batch: Weights) -> Float:
        is_sample_itself = len(batch) == 1 and (batch == 1).all()
        if not is_sample_itself:
            return resampled_gaps(batch)
        class_gaps = ClassGaps(checked.n_classes, n_bins)
        class_gaps.add(checked)
        return np.array([class_gaps.value()])

    if checked.n_classes >= _MANY_CLASSES and len(checked) >= _MANY_ROWS:
        return NearlyNormalStatistic(statistic)
    return statistic


class _ResampledGaps:
    """Class-wise ECE of resamples.

    Parameters
    ----------
    checked : CheckedTable
        Probability table with labels.

    n_bins : int
        Number of bins of equal width.
    """

    def __init__(self, checked: CheckedTable, n_bins: int) -> None:
        self._checked = checked
        upper = find_upper_entries(checked, n_bins)
        cells, entry_cells = np.unique(upper.cell, return_inverse=True)
        self._n_cells = len(cells)
        self._upper_gaps = CodeSums(
            codes=entry_cells.reshape(-1),
            n_codes=len(cells),
            values=upper.is_label - upper.probability,
            row=upper.row,
        )
        self._label_counts = CodeSums(checked.codes, checked.n_classes)
        # Cells are ordered by class, so the cells of a class are consecutive.
        self._classes, self._first_cells = np.unique(cells // n_bins, return_index=True)

    def __call__(self, batch: Weights) -> Float:
        """Return the class-wise ECE of each resample."""
        first_bin_gaps = -weighted_column_sums(self._checked, batch)
        absolute_sums = np.empty(len(batch))
        start = 0
        for weights in split_into_float_batches(batch):
            resamples = slice(start, start + len(weights))
            start += len(weights)
            upper_gaps = self._upper_gaps(weights)
            first_bin_gaps[resamples] += self._label_counts(weights)
            if self._n_cells:
                class_sums = np.add.reduceat(upper_gaps, self._first_cells, axis=1)
                first_bin_gaps[resamples, self._classes] -= class_sums
            upper_sums = np.abs(upper_gaps).sum(axis=1)
            absolute_sums[resamples] = upper_sums + np.abs(first_bin_gaps[resamples]).sum(axis=1)
        return np.asarray(absolute_sums / (batch.shape[1] * self._checked.n_classes))


def weighted_column_sums(checked: CheckedTable, batch: Weights) -> Float:
    """Compute Σ_i w_i p_ik for each row w of weights and each class k.

    The sums are in float64, with one exception. For resamples of a float32 table with many classes,
    this product is most of the work, so sums over 256 rows at a time are in single precision. With
    1,000 classes this changes an interval by less than 1e-9. The estimate itself is never computed
    in this way.
    """
    n_classes = checked.n_classes
    is_single_precision = checked.whole.dtype.itemsize <= 4
    dtype: Any = np.float64
    block_rows = max(1, _PRODUCT_ELEMENTS // max(n_classes, len(batch)))
    if len(batch) > 1 and is_single_precision and n_classes >= _MANY_CLASSES:
        dtype = np.float32
        block_rows = _SINGLE_PRECISION_ROWS
    totals = np.zeros((len(batch), n_classes))
    for start in range(0, len(checked), block_rows):
        block = checked.rows(start, start + block_rows).astype(dtype, copy=False)
        block_weights = batch[:, start : start + len(block)].astype(dtype, copy=False)
        totals += block_weights @ block
    return totals
