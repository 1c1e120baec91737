"""Scores as integers in the same order: what sorting and counting by bits go by.

Read as an integer, a float64 keeps its order among numbers of its sign. Negative ones count down,
so that key(-h) = -key(h), a zero of either sign has key 0, and bits that are zero at the end of
every score are zero at the end of every key: on the grid (`kernels.grid`) the last 22.

Right and wrong rows are counted by them in cells. A `Cut` names stretches of keys and cuts each
into cells of 2^shift keys; a `Counter` goes through rows once and counts the right and the wrong
ones of each cell. Counts of different rows are added (`CellCounts.together`), in any order:
addition of whole numbers knows no rounding. So blocks may be counted anywhere, by anyone, and again
if an answer was lost; what is added up is one answer for each block.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.formulas import Codes, Flags, Float

Keys = NDArray[np.int64]

#: Cells of one pass, at most: two counts of eight bytes each, 64 MiB, of which only what is used is
#: ever touched.
CELLS = 1 << 22
#: The highest key; the lowest is one below its negative.
_LAST = int(np.iinfo(np.int64).max)
_SIGN = np.int64(np.iinfo(np.int64).min)
_ONE = np.int64(1)
#: Where each bit of a negative number counts down instead of the number: the order is the same.
_FLIPPED = 0x7FFFFFFFFFFFFFFF


def keys_of(scores: Any) -> Keys:
    """An integer for each score; a < b iff key(a) < key(b). NaN has none: its key means nothing."""
    bits = np.asarray(scores, dtype=np.float64).view(np.int64)
    return np.where(bits < 0, _SIGN - bits, bits)


def scores_of(keys: Any) -> Float:
    """The score of each key: the other way round."""
    given = np.asarray(keys, dtype=np.int64)
    return np.where(given < 0, _SIGN - given, given).view(np.float64)


def ranked(scores: Any, flags: Any) -> tuple[Float, Codes, Codes, Codes]:
    """Scores in order, each once; how many rows have it or a lower one, and how many of those have
    no flag.

    Last the ranks of the rows without a flag, which come first among rows of one score. The last
    bit of a score on the grid is free: with the flag in it one sort of integers does, several times
    faster than finding the order first. Scores on a grid that lie on a device are sorted there.

    Examples
    --------
    >>> ranked(np.array([2.0, 1.0, 2.0]), np.array([True, True, False]))
    (array([1., 2.]), array([1, 3]), array([0, 1]), array([2]))
    """
    fast = (
        kernels.active
        if len(scores) <= np.iinfo(np.uint32).max and hasattr(kernels.active, "ranked")
        else None
    )
    if kernels.on_device(scores):
        keys = packed(kernels.device_kernels().torch, scores, flags).sort().values.cpu().numpy()
        return _blocks(*_unpacked(keys)) if fast is None else fast.blocks(keys, in_order=True)
    found: tuple[Float, Codes, Codes, Codes] | None = (
        None if fast is None else fast.ranked(scores, flags)
    )
    return _blocks(*_in_order(scores, flags)) if found is None else found


def _blocks(ordered: Float, marked: Flags) -> tuple[Float, Codes, Codes, Codes]:
    # The last row of each score, and the last of all where there is any.
    ranks = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], len(ordered) > 0)) + 1
    errors = np.cumsum(~marked, dtype=np.intp)
    return ordered[ranks - 1], ranks, errors[ranks - 1], np.flatnonzero(~marked) + 1


def _in_order(scores: Float, flags: Flags) -> tuple[Float, Flags]:
    """Scores in order, of equal ones those without a flag first, and the flag of each."""
    if (scores.view(np.int64) & _ONE).any():
        order = np.lexsort((flags, scores))
        return scores[order] + 0.0, flags[order]
    keys = packed(np, scores, flags)
    keys.sort()
    return _unpacked(keys)


def packed(library: Any, scores: Any, flags: Any) -> Any:
    """The keys of scores on a grid, a flag in the last bit of each, where they lie; in the order of
    the scores.
    """
    bits = (scores + 0.0).view(library.int64)
    return library.where(bits < 0, bits ^ _FLIPPED, bits) & -2 | flags


def _unpacked(keys: Keys) -> tuple[Float, Flags]:
    """The score and the flag of each key, which is overwritten."""
    marked = (keys & _ONE).astype(bool)
    keys &= ~_ONE
    return np.where(keys < 0, keys ^ (_FLIPPED - 1), keys).view(np.float64), marked


@dataclass(frozen=True)
class Cut:
    """Stretches of keys, rising and apart, each in cells of 2^shift keys.

    Attributes
    ----------
    low, high : int64 arrays
        The first and the last key of each stretch.
    shift : int64 array
    """

    low: Keys
    high: Keys
    shift: Keys

    @classmethod
    def whole(cls, cells: int = CELLS) -> Cut:
        """All keys there are, by their top bits.

        Examples
        --------
        >>> cut = Cut.whole(1 << 22)
        >>> cut.size, int(cut.shift[0])
        (4194304, 42)
        """
        shift = 64 - (cells.bit_length() - 1)
        return cls(np.array([-_LAST - 1]), np.array([_LAST]), np.array([shift]))

    @classmethod
    def of(cls, low: Keys, high: Keys, unit: int, cells: int = CELLS) -> Cut:
        """Stretches cut as finely as the number of cells allows, or until a cell has one multiple
        of 2^unit.
        """
        each = (cells // len(low)).bit_length() - 1
        width = np.array([(int(b) - int(a)).bit_length() for a, b in zip(low, high)])
        return cls(low, high, np.maximum(width - each, np.minimum(unit, width)))

    @property
    def first(self) -> Keys:
        """The cell that each stretch begins with."""
        return np.concatenate(([0], np.cumsum(self._lengths)[:-1]))

    @property
    def size(self) -> int:
        """All cells."""
        return int(self._lengths.sum())

    @property
    def _lengths(self) -> Keys:
        return (
            ((self.high - self.low).view(np.uint64) >> self.shift.view(np.uint64)) + np.uint64(1)
        ).astype(np.int64)

    def cells_of(self, keys: Keys) -> Keys:
        """The cell of each key; -1 for a key in no stretch."""
        stretch = np.searchsorted(self.low, keys, side="right") - 1
        inside = (stretch >= 0) & (keys <= self.high[stretch])
        steps = (keys - self.low[stretch]).view(np.uint64) >> self.shift[stretch].view(np.uint64)
        return np.where(inside, self.first[stretch] + steps.view(np.int64), -1)

    def bounds_of(self, cells: Keys) -> tuple[Keys, Keys]:
        """The lowest and the highest key of each cell."""
        stretch = np.searchsorted(self.first, cells, side="right") - 1
        shift = self.shift[stretch]
        low = self.low[stretch] + ((cells - self.first[stretch]) << shift)
        return low, np.minimum(low + ((np.int64(1) << shift) - 1), self.high[stretch])


class CellCounts(NamedTuple):
    """How many right and wrong rows lie in each cell that has any.

    `cells` rise. `bits` has every bit that the key of some row has, inside the stretches or not;
    `missing` counts rows without a score, which are in no cell that means anything.
    """

    cells: Keys
    wrong: Keys
    right: Keys
    bits: int
    missing: int

    @classmethod
    def together(cls, cut: Cut, parts: Iterable[CellCounts]) -> CellCounts:
        """The counts of all rows from those of each part of them.

        Examples
        --------
        >>> cut = Cut.whole()
        >>> counter = Counter(cut)
        >>> counter.add(np.array([0.5, 0.5]), np.array([True, False]))
        >>> found = CellCounts.together(cut, [counter.result()] * 2)
        >>> len(found.cells), found.right.tolist(), found.wrong.tolist()
        (1, [2], [2])
        """
        counts = np.zeros((cut.size, 2), dtype=np.int64)
        lowest, highest, bits, missing = cut.size, -1, 0, 0
        for part in parts:
            if len(part.cells):
                counts[part.cells] += np.column_stack(
                    (part.wrong, part.right)
                )  # each cell stands once in a part
                lowest, highest = min(lowest, int(part.cells[0])), max(highest, int(part.cells[-1]))
            bits, missing = bits | part.bits, missing + part.missing
        return cls(*_used(counts, lowest, highest), bits, missing)


class Counter:
    """Counts the rows of one part, a block at a time, in C where it is built."""

    def __init__(self, cut: Cut) -> None:
        self.cut = cut
        self._counts = np.zeros(2 * cut.size, dtype=np.int64)
        self._seen = np.array([_LAST, -1, 0, 0])
        self._stretches = np.concatenate([cut.low, cut.high, cut.shift, cut.first])

    def add(self, scores: Float, correct: Flags) -> None:
        """Count these rows."""
        count = getattr(kernels.active, "count_in_cells", None)
        if count is not None:
            count(scores, correct, self._stretches, self._counts, self._seen)
            return
        keys = keys_of(scores)
        cells = self.cut.cells_of(keys)
        inside = cells >= 0
        places, counts = np.unique(2 * cells[inside] + correct[inside], return_counts=True)
        self._counts[places] += counts
        if len(places):
            self._seen[0] = min(self._seen[0], places[0] // 2)
            self._seen[1] = max(self._seen[1], places[-1] // 2)
        self._seen[2] |= np.bitwise_or.reduce(keys, initial=0)
        self._seen[3] += np.count_nonzero(np.isnan(scores))

    def result(self) -> CellCounts:
        """What has been counted."""
        lowest, highest, bits, missing = self._seen.tolist()
        return CellCounts(*_used(self._counts.reshape(-1, 2), lowest, highest), bits, missing)


def _used(counts: Keys, lowest: int, highest: int) -> tuple[Keys, Keys, Keys]:
    """The cells with any rows, all of which lie between two, and their counts: memory that is zero
    is not touched.
    """
    between = counts[min(lowest, highest + 1) : highest + 1]
    used = np.flatnonzero(between[:, 0] | between[:, 1])
    return lowest + used, between[used, 0], between[used, 1]
