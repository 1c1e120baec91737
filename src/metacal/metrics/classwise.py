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
from metacal.kernels import exact, host_kernels
from metacal.kernels.exact import find_entries_above_first_bin
from metacal.metrics.binning import (
    GroupSums,
    NearlyNormalStatistic,
    Statistic,
    Weights,
    assign_bins,
    check_n_bins,
    equal_width,
)
from metacal.metrics.replicates import split_into_float_batches
from metacal.metrics.toplabel import CheckedTable

#: Number of rows per block of a product in single precision, few enough for precise sums.
_SINGLE_PRECISION_BLOCK_ROWS = 256
#: Number of elements per block of a product in double precision, which copies a float32 table.
_DOUBLE_PRECISION_BLOCK_ELEMENTS = 1 << 17
#: Smallest number of classes at which resamples use single precision.
_MANY_CLASSES = 128
#: Smallest number of rows at which a table with many classes gets fewer resamples.
_MANY_ROWS = 1 << 14
#: Largest number of rows whose sums of integer units are exact in float64.
_MAX_EXACT_ROWS = 1 << 21
#: Number of coarse integer units in a probability of 1. A true label counts as such a probability.
_COARSE_UNITS_PER_ONE = round(1.0 / exact.UNITS[0])
#: Index of the coarse units in the first axis of the sums.
_COARSE_UNITS = 0
#: Kernel that adds a block of rows to the sums of each class and cell.
_add_probabilities_in_units = getattr(
    host_kernels, "add_probabilities_in_units", exact.add_probabilities_in_units
)


@dataclass(frozen=True, eq=False)
class EntriesAboveFirstBin:
    """Entries of a probability table that lie above the first bin.

    Attributes
    ----------
    row_index : array of int of shape (n_entries,)
        Row of each entry.

    cell_index : array of int of shape (n_entries,)
        Cell of each entry, ``class * n_bins + bin``.

    probability : array of float64 of shape (n_entries,)
        Value of each entry.

    is_label : array of float64 of shape (n_entries,)
        1 if the class of the entry is the true class of the row, else 0.
    """

    row_index: Codes
    cell_index: Codes
    probability: Float
    is_label: Float


def list_entries_above_first_bin(table: CheckedTable, n_bins: int) -> EntriesAboveFirstBin:
    """List the entries of a table above the first of `n_bins` bins of equal width."""
    n_classes = table.n_classes
    bin_edges = equal_width(confidence=np.empty(0), n_bins=n_bins)
    flat_indices_of_blocks = []
    probabilities_of_blocks = []
    for first_row, block in table.blocks():
        flat_indices_in_block, probabilities = find_entries_above_first_bin(block, bin_edges)
        flat_indices_of_blocks.append(first_row * n_classes + flat_indices_in_block)
        probabilities_of_blocks.append(probabilities)
    probability = np.concatenate(probabilities_of_blocks)
    flat_index = np.concatenate(flat_indices_of_blocks)
    row_index, class_index = np.divmod(flat_index, n_classes)
    bin_index = assign_bins(probability, bin_edges)
    is_label = class_index == table.label_codes[row_index]
    return EntriesAboveFirstBin(
        row_index=row_index,
        cell_index=class_index * n_bins + bin_index,
        probability=probability,
        is_label=is_label.astype(np.float64),
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
        self._edges = equal_width(confidence=np.empty(0), n_bins=self.n_bins)
        # Gaps are counted in integer units, with axes (coarse or fine, rejected or accepted, class).
        self._class_gap_units = np.zeros((2, 2, n_classes), dtype=np.int64)

        # The cells of the first bin are ignored, because their gaps follow from the class totals.
        self._cell_gap_units = np.zeros((2, 2, n_classes * self.n_bins), dtype=np.int64)

        # Float sums of recent rows are subtracted from `_class_gap_units` before they are inexact.
        self._pending_probability_sums = np.zeros((2, 2, n_classes))
        self._n_pending_rows = 0

    def add(self, table: CheckedTable, accept: Flags | None = None) -> None:
        """Add the rows of a table. `accept` is the mask of accepted rows (default: all)."""
        is_accepted = np.ones(len(table), dtype=bool) if accept is None else accept
        for start, block in table.blocks():
            self._flush_before_adding(len(block))
            is_block_row_accepted = is_accepted[start : start + len(block)]
            _add_probabilities_in_units(
                block,
                is_block_row_accepted,
                self._edges,
                self._pending_probability_sums,
                self._cell_gap_units,
            )
        self._add_labels(table, is_accepted)
        decision_codes = is_accepted.astype(np.intp)
        self.n_rows += np.bincount(decision_codes, minlength=2)

    def _add_labels(self, table: CheckedTable, is_accepted: Flags) -> None:
        """Add 1 for each row to the gap of its true class and to that of its cell."""
        decision_codes = is_accepted.astype(np.intp)
        label_bins = assign_bins(table.true_probability, self._edges)
        label_cells = table.label_codes * self.n_bins + label_bins
        class_gaps = self._class_gap_units[_COARSE_UNITS]
        cell_gaps = self._cell_gap_units[_COARSE_UNITS]
        np.add.at(class_gaps, (decision_codes, table.label_codes), _COARSE_UNITS_PER_ONE)
        np.add.at(cell_gaps, (decision_codes, label_cells), _COARSE_UNITS_PER_ONE)

    def _flush_before_adding(self, n_rows: int) -> None:
        """Flush pending float sums that `n_rows` more rows would make inexact."""
        if self._n_pending_rows + n_rows > _MAX_EXACT_ROWS:
            self._flush_probability_sums()
        self._n_pending_rows += n_rows

    def _flush_probability_sums(self) -> None:
        """Subtract the pending float sums of probabilities from the integer totals."""
        for class_totals, pending_sums, unit in zip(
            self._class_gap_units, self._pending_probability_sums, exact.UNITS
        ):
            class_totals -= exact.units_to_integers(pending_sums, unit)
        self._pending_probability_sums[...] = 0.0
        self._n_pending_rows = 0

    def __iadd__(self, other: ClassGaps) -> ClassGaps:
        self._flush_probability_sums()
        other._flush_probability_sums()
        self._class_gap_units += other._class_gap_units
        self._cell_gap_units += other._cell_gap_units
        self.n_rows += other.n_rows
        return self

    def value(self, accepted: bool = False) -> float:
        """Compute the class-wise ECE, (1/K) Σ_k (1/n) Σ_b |gap_kb|.

        Parameters
        ----------
        accepted : bool, default=False
            Whether to use only the accepted rows.

        Returns
        -------
        float
            NaN if there are no rows, or more rows than the integers can represent.
        """
        n_rows = self._count_rows(accepted=accepted)
        if not 0 < n_rows <= exact.MAX_SUMMANDS:
            return float("nan")
        n_classes = self._class_gap_units.shape[2]
        return float(self._compute_absolute_gaps(accepted=accepted).sum() / (n_rows * n_classes))

    def compute_class_errors(self, accepted: bool = False) -> Float:
        """Compute (1/n) Σ_b |gap_kb| of each class, 0 if there are no rows."""
        n_rows = self._count_rows(accepted=accepted)
        absolute_gaps = self._compute_absolute_gaps(accepted=accepted)
        return np.asarray(absolute_gaps.sum(axis=1) / max(n_rows, 1))

    def _count_rows(self, *, accepted: bool) -> int:
        """Return the number of all rows, or of the accepted rows."""
        first_decision = int(accepted)
        return int(self.n_rows[first_decision:].sum())

    def _compute_absolute_gaps(self, *, accepted: bool) -> Float:
        """Compute the absolute gaps of all classes and bins, shape (n_classes, n_bins)."""
        self._flush_probability_sums()
        # Decision 0 is a rejection and decision 1 an acceptance.
        first_decision = int(accepted)
        class_totals = self._class_gap_units[:, first_decision:].sum(axis=1)
        gaps = self._cell_gap_units[:, first_decision:].sum(axis=1).reshape(2, -1, self.n_bins)
        gaps[:, :, 0] = class_totals - gaps[:, :, 1:].sum(axis=2)
        return np.abs(exact.units_to_floats(gaps))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a pickle, with only the cells that are not 0."""
        self._flush_probability_sums()
        used_cells = np.flatnonzero(self._cell_gap_units.any(axis=(0, 1)))
        sparse_units = (
            self._cell_gap_units.shape,
            used_cells,
            self._cell_gap_units[..., used_cells],
        )
        return {**vars(self), "_cell_gap_units": sparse_units}

    def __setstate__(self, state: dict[str, Any]) -> None:
        shape, used_cells, values = state["_cell_gap_units"]
        vars(self).update(state, _cell_gap_units=np.zeros(shape, dtype=np.int64))
        self._cell_gap_units[..., used_cells] = values


def build_classwise_ece_statistic(table: CheckedTable, n_bins: int = 15) -> Statistic:
    """Build the statistic of the class-wise ECE.

    (1/K) Σ_k (1/n) Σ_b |Σ_{p_ik in b} (1(y_i = k) - p_ik)|
    """
    n_bins = check_n_bins(n_bins)
    compute_ece_of_resamples = _ResampledClasswiseEce(table, n_bins)

    def compute_classwise_ece(row_weights: Weights) -> Float:
        has_unit_weights = len(row_weights) == 1 and (row_weights == 1).all()
        if not has_unit_weights:
            return compute_ece_of_resamples(row_weights)
        # The estimate is computed from integer sums, so the order of the rows has no effect.
        class_gaps = ClassGaps(table.n_classes, n_bins)
        class_gaps.add(table)
        return np.array([class_gaps.value()])

    is_large_table = table.n_classes >= _MANY_CLASSES and len(table) >= _MANY_ROWS
    if is_large_table:
        return NearlyNormalStatistic(compute_classwise_ece)
    return compute_classwise_ece


class _ResampledClasswiseEce:
    """Class-wise ECE as a function of row weights.

    Parameters
    ----------
    table : CheckedTable
        Probability table with labels.

    n_bins : int
        Number of bins of equal width.
    """

    def __init__(self, table: CheckedTable, n_bins: int) -> None:
        self._table = table
        entries = list_entries_above_first_bin(table, n_bins)
        used_cells, cell_of_entry = np.unique(entries.cell_index, return_inverse=True)
        self._n_cells = len(used_cells)
        self._compute_gaps_above_first_bin = GroupSums(
            groups=cell_of_entry.reshape(-1),
            n_groups=len(used_cells),
            values=entries.is_label - entries.probability,
            entry_rows=entries.row_index,
        )
        self._compute_label_counts = GroupSums(table.label_codes, table.n_classes)
        # The cells of a class are consecutive, because cells are ordered by class.
        class_of_cell = used_cells // n_bins
        self._classes_above_first_bin, self._first_cells_of_classes = np.unique(
            class_of_cell, return_index=True
        )

    def __call__(self, row_weights: Weights) -> Float:
        """Compute the class-wise ECE of each resample."""
        n_resamples, n_rows = row_weights.shape
        class_probability_sums = compute_weighted_column_sums(self._table, row_weights)
        # The gap of the first bin is the gap of the class minus the gaps of the other bins.
        first_bin_gaps = -class_probability_sums
        absolute_sums = np.empty(n_resamples)
        start = 0
        for float_weights in split_into_float_batches(row_weights):
            resamples = slice(start, start + len(float_weights))
            start += len(float_weights)
            gaps_above_first_bin = self._compute_gaps_above_first_bin(float_weights)
            first_bin_gaps[resamples] += self._compute_label_counts(float_weights)
            if self._n_cells:
                gaps_above_by_class = np.add.reduceat(
                    gaps_above_first_bin, self._first_cells_of_classes, axis=1
                )
                first_bin_gaps[resamples, self._classes_above_first_bin] -= gaps_above_by_class
            sums_above_first_bin = np.abs(gaps_above_first_bin).sum(axis=1)
            sums_in_first_bin = np.abs(first_bin_gaps[resamples]).sum(axis=1)
            absolute_sums[resamples] = sums_above_first_bin + sums_in_first_bin
        return np.asarray(absolute_sums / (n_rows * self._table.n_classes))


def compute_weighted_column_sums(table: CheckedTable, row_weights: Weights) -> Float:
    """Compute Σ_i w_i p_ik for each resample w and each class k.

    The sums are in float64, with one exception. For resamples of a float32 table with many classes,
    this product is most of the work, so sums over 256 rows at a time are in single precision. With
    1,000 classes this changes an interval by less than 1e-9. The estimate itself is never computed
    in this way.
    """
    n_classes = table.n_classes
    n_resamples = len(row_weights)
    is_single_precision_table = table.full_table.dtype.itemsize <= np.dtype(np.float32).itemsize
    product_type: Any = np.float64
    n_block_rows = max(1, _DOUBLE_PRECISION_BLOCK_ELEMENTS // max(n_classes, n_resamples))
    if n_resamples > 1 and is_single_precision_table and n_classes >= _MANY_CLASSES:
        product_type = np.float32
        n_block_rows = _SINGLE_PRECISION_BLOCK_ROWS
    column_sums = np.zeros((n_resamples, n_classes))
    for start in range(0, len(table), n_block_rows):
        block = table.rows(start, start + n_block_rows).astype(product_type, copy=False)
        block_weights = row_weights[:, start : start + len(block)]
        column_sums += block_weights.astype(product_type, copy=False) @ block
    return column_sums
