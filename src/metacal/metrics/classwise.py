"""Every class's own reliability at once: sums per (class, bin) of a whole probability table.

With many classes nearly all entries lie in the first bin. Only the entries above it are listed; the
first bin is the column total less those, so a table of 1,000 classes costs little more than reading
it.

The metric itself comes from sums in whole numbers (`ClassGaps`): they are the same in whatever
order, and on however many machines, rows are added up. Resamples are products of row weights and
table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from metacal.formulas import Codes, Flags, Float
from metacal.kernels import active, exact
from metacal.metrics.binning import (
    CodeSums,
    NearlyNormal,
    Statistic,
    Weights,
    bin_codes,
    bin_count,
    equal_width,
)
from metacal.metrics.resampling import few_as_floats
from metacal.metrics.toplabel import CheckedTable

#: Rows of a block of the matrix product: wide enough for it, and few enough to sum up single
#: precision within.
_PRODUCT_ROWS = 256
#: Elements of such a block in double precision, which is a copy where the table is in single.
_PRODUCT_ELEMENTS = 1 << 17
#: From so many classes on the product of resamples and table is worth single precision.
_WIDE = 128
#: Rows of such a table from which on few resamples are drawn.
_MANY = 1 << 14
#: Rows whose sums in whole units float64 holds.
_EXACT_ROWS = 1 << 21
#: A right answer in coarse units.
_ONE = round(1.0 / exact.UNITS[0])
_class_units = getattr(active, "class_units", exact.class_units)


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

    row: Codes
    cell: Codes
    probability: Float
    hit: Float


def upper_entries(checked: CheckedTable, n_bins: int) -> UpperEntries:
    """List the entries above the first of `n_bins` equal-width bins."""
    n_classes = checked.n_classes
    edges = equal_width(np.empty(0), n_bins)
    found = [
        (start * n_classes, *exact.entries_above(block, edges)) for start, block in checked.blocks()
    ]
    places = np.concatenate([first + own for first, own, _ in found])
    probability = np.concatenate([values for *_, values in found])
    row, column = np.divmod(places, n_classes)
    cell = column * n_bins + bin_codes(probability, edges)
    return UpperEntries(row, cell, probability, (column == checked.codes[row]).astype(np.float64))


class ClassGaps:
    """Σ (1(y_i = k) - p_ik) of every class and bin, in whole numbers: rows may be added in any
    order, anywhere.

    See `metacal.kernels.exact`. Of 1,000 classes and 15 bins that is 256 kB; what travels has the
    bins alone that hold a row.

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
        self.n_bins, self.n_rows = bin_count(n_bins), np.zeros(2, dtype=np.int64)
        self._edges = equal_width(np.empty(0), self.n_bins)
        # Coarse and fine units of the rejected and of the accepted rows; nobody looks at the first
        # bin of a class.
        self._total = np.zeros((2, 2, n_classes), dtype=np.int64)
        self._above = np.zeros((2, 2, n_classes * self.n_bins), dtype=np.int64)
        # Column sums in whole units as floats, which hold those of so many rows; before there are
        # more, as integers.
        self._pending, self._pending_rows = np.zeros((2, 2, n_classes)), 0

    def add(self, checked: CheckedTable, accept: Flags | None = None) -> None:
        """Add some rows, all of them accepted or those of `accept`."""
        accepted = np.ones(len(checked), dtype=bool) if accept is None else accept
        for start, block in checked.blocks():
            self._make_room(len(block))
            _class_units(
                block, accepted[start : start + len(block)], self._edges, self._pending, self._above
            )
        part, own = accepted.astype(np.intp), bin_codes(checked.true_probability, self._edges)
        np.add.at(self._total[0], (part, checked.codes), _ONE)
        np.add.at(self._above[0], (part, checked.codes * self.n_bins + own), _ONE)
        self.n_rows += np.bincount(part, minlength=2)

    def _make_room(self, n_rows: int) -> None:
        """Turn what is pending into integers before floats would round it."""
        if self._pending_rows + n_rows > _EXACT_ROWS:
            for total, pending, unit in zip(self._total, self._pending, exact.UNITS):
                total -= exact.counted(pending, unit)
            self._pending[...], self._pending_rows = 0.0, 0
        self._pending_rows += n_rows

    def __iadd__(self, other: ClassGaps) -> ClassGaps:
        self._make_room(_EXACT_ROWS)
        other._make_room(_EXACT_ROWS)
        self._total += other._total
        self._above += other._above
        self.n_rows += other.n_rows
        return self

    def value(self, accepted: bool = False) -> float:
        """(1/K) Σ_k (1/n) Σ_b |gap| of all rows, or the accepted; NaN of none, and of more than
        whole numbers hold.
        """
        n_rows = int(self.n_rows[int(accepted) :].sum())
        if not 0 < n_rows <= exact.MOST:
            return float("nan")
        return float(self._gaps(accepted).sum() / (n_rows * self._total.shape[2]))

    def by_class(self, accepted: bool = False) -> Float:
        """(1/n) Σ_b |gap| of each class; 0 without rows."""
        return np.asarray(
            self._gaps(accepted).sum(axis=1) / max(self.n_rows[int(accepted) :].sum(), 1)
        )

    def _gaps(self, accepted: bool) -> Float:
        """|gap| of every class and bin."""
        self._make_room(_EXACT_ROWS)
        total, above = (sums[:, int(accepted) :].sum(axis=1) for sums in (self._total, self._above))
        gaps = above.reshape(2, -1, self.n_bins)
        gaps[:, :, 0] = total - gaps[:, :, 1:].sum(axis=2)
        return np.abs(exact.value(gaps))

    def __getstate__(self) -> dict[str, Any]:
        """With the cells alone that hold something."""
        self._make_room(_EXACT_ROWS)
        held = np.flatnonzero(self._above.any(axis=(0, 1)))
        return {**vars(self), "_above": (self._above.shape, held, self._above[..., held])}

    def __setstate__(self, state: dict[str, Any]) -> None:
        shape, held, values = state["_above"]
        vars(self).update(state, _above=np.zeros(shape, dtype=np.int64))
        self._above[..., held] = values


def classwise_ece_statistic(checked: CheckedTable, n_bins: int = 15) -> Statistic:
    """(1/K) Σ_k (1/n) Σ_b |Σ_{p_ik in b} (1(y_i = k) - p_ik)| as a function of row weights."""
    n_classes, n_bins = checked.n_classes, bin_count(n_bins)
    upper = upper_entries(checked, n_bins)
    cells, place = np.unique(upper.cell, return_inverse=True)
    above_of = CodeSums(place.reshape(-1), len(cells), upper.hit - upper.probability, upper.row)
    labels_of = CodeSums(checked.codes, n_classes)
    # Cells are in order of their class: its part of them begins here.
    classes, begins = np.unique(cells // n_bins, return_index=True)

    def statistic(batch: Weights) -> Float:
        if len(batch) == 1 and (batch == 1).all():
            gaps = ClassGaps(n_classes, n_bins)
            gaps.add(checked)
            return np.array([gaps.value()])
        first, total, start = -weighted_column_sums(checked, batch), np.empty(len(batch)), 0
        for floats in few_as_floats(batch):
            some = slice(start, start := start + len(floats))
            above = above_of(floats)
            first[some] += labels_of(floats)
            if len(cells):
                first[some, classes] -= np.add.reduceat(above, begins, axis=1)
            total[some] = np.abs(above).sum(axis=1) + np.abs(first[some]).sum(axis=1)
        return np.asarray(total / (batch.shape[1] * n_classes))

    return NearlyNormal(statistic) if n_classes >= _WIDE and len(checked) >= _MANY else statistic


def weighted_column_sums(checked: CheckedTable, batch: Weights) -> Float:
    """Σ_i w_i p_ik for each weight vector w of the batch and each class k.

    Summed in float64, but for the resamples of a wide table of single precision, where this product
    is most of the work: there the sums of 256 rows at a time are in single precision, too. With
    1,000 classes that moves an interval by less than 1e-9; the estimate is never computed so.
    """
    single = len(batch) > 1 and checked.whole.dtype.itemsize <= 4 and checked.n_classes >= _WIDE
    kind: Any = np.float32 if single else np.float64
    step = (
        _PRODUCT_ROWS if single else max(1, _PRODUCT_ELEMENTS // max(checked.n_classes, len(batch)))
    )
    totals = np.zeros((len(batch), checked.n_classes))
    for start in range(0, len(checked), step):
        block = checked.rows(start, start + step).astype(kind, copy=False)
        totals += batch[:, start : start + len(block)].astype(kind, copy=False) @ block
    return totals
