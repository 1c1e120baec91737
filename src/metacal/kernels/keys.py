"""Integer keys of scores, and counts of rows in cells of keys.

Read as an integer, a float64 keeps its order among numbers of its sign. The keys of negative numbers
are reversed, so that key(-h) = -key(h), and a zero of either sign has key 0. Bits that are 0 at the
end of every score are 0 at the end of every key: on the grid (`kernels.grid`) the last 22.

A `KeyPartition` selects ranges of keys and divides each into *cells* of 2^shift keys. A `CellCounter` goes
through rows once and counts the correct and incorrect rows of each cell. Counts of different rows
can be added in any order (`CellCounts.add_up`), because integers are not rounded. Blocks may
therefore be counted anywhere, and again if a result was lost.
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
#: Result of `rank_scores`: distinct scores, ranks of their last rows,
#: numbers of errors up to these ranks, and ranks of the errors.
RankedScores = tuple[Float, Codes, Codes, Codes]

#: Largest number of cells of one pass, whose counts take 64 MiB.
#: The operating system allocates only the pages of cells that are used.
MAX_CELLS = 1 << 22
#: Largest key, which is the largest int64.
_MAX_KEY = int(np.iinfo(np.int64).max)
_SIGN_BIT = np.int64(np.iinfo(np.int64).min)
_LAST_BIT = np.int64(1)
#: Inverting all bits but the sign reverses the order of negative numbers.
_ALL_BUT_SIGN = 0x7FFFFFFFFFFFFFFF
#: Number of counts of a cell: its incorrect and its correct rows.
_COUNTS_PER_CELL = 2
#: Indices of the summary of all rows in a `CellCounter`.
_LOWEST_CELL, _HIGHEST_CELL, _BITWISE_OR_OF_KEYS, _N_MISSING_SCORES = range(4)


def scores_to_keys(scores: Any) -> Keys:
    """Convert scores to integers in the same order. The key of NaN is arbitrary."""
    bits = np.asarray(scores, dtype=np.float64).view(np.int64)
    return np.where(bits < 0, _SIGN_BIT - bits, bits)


def keys_to_scores(keys: Any) -> Float:
    """Return the score of each key, the inverse of `scores_to_keys`."""
    key_array = np.asarray(keys, dtype=np.int64)
    return np.where(key_array < 0, _SIGN_BIT - key_array, key_array).view(np.float64)


def rank_scores(scores: Any, is_correct: Any) -> RankedScores:
    """Rank rows by their scores; among equal scores, incorrect rows come first.

    The last bit of a score on the grid is unused. With the correctness in this bit, one sort of
    integers is enough, which is several times faster than an argsort. Scores on a device are sorted
    there.

    Parameters
    ----------
    scores : array or tensor of shape (n_rows,)
        Scores.

    is_correct : array or tensor of bool of shape (n_rows,)
        Whether each row is correct.

    Returns
    -------
    distinct_scores : array of shape (n_distinct,)
        Distinct scores in increasing order.

    last_ranks : array of int of shape (n_distinct,)
        Number of rows with this score or a lower one.

    cumulative_errors : array of int of shape (n_distinct,)
        Number of incorrect rows among them.

    error_ranks : array of int of shape (n_errors,)
        Ranks, from 1, of the incorrect rows.

    Examples
    --------
    >>> rank_scores(np.array([2.0, 1.0, 2.0]), np.array([True, True, False]))
    (array([1., 2.]), array([1, 3]), array([0, 1]), array([2]))
    """
    # The C kernel counts rows with 32 bits.
    has_c_kernel = hasattr(kernels.host_kernels, "try_to_rank_scores")
    can_use_c_kernel = has_c_kernel and len(scores) <= np.iinfo(np.uint32).max
    ranking: RankedScores | None = None
    if kernels.is_device_tensor(scores):
        torch = kernels.device_kernels().torch
        sorted_keys = pack_keys(torch, scores, is_correct).sort().values.cpu().numpy()
        if can_use_c_kernel:
            ranking = kernels.host_kernels.rank_keys(sorted_keys, are_sorted=True)
        else:
            ranking = _rank_sorted_scores(*_unpack_keys(sorted_keys))
    elif can_use_c_kernel:
        # The result is None if a score is not on the grid.
        ranking = kernels.host_kernels.try_to_rank_scores(scores, is_correct)
    if ranking is None:
        ranking = _rank_sorted_scores(*_sort_scores(scores, is_correct))
    return ranking


def _rank_sorted_scores(sorted_scores: Float, is_correct: Flags) -> RankedScores:
    """Return the result of `rank_scores` for sorted scores."""
    is_last_of_score = np.append(sorted_scores[1:] != sorted_scores[:-1], len(sorted_scores) > 0)
    last_ranks = np.flatnonzero(is_last_of_score) + 1
    cumulative_errors = np.cumsum(~is_correct, dtype=np.intp)
    error_ranks = np.flatnonzero(~is_correct) + 1
    return sorted_scores[last_ranks - 1], last_ranks, cumulative_errors[last_ranks - 1], error_ranks


def _sort_scores(scores: Float, is_correct: Flags) -> tuple[Float, Flags]:
    """Sort rows by score, with incorrect rows first among equal scores."""
    uses_last_bit = (scores.view(np.int64) & _LAST_BIT).any()
    if uses_last_bit:
        order = np.lexsort((is_correct, scores))
        return scores[order] + 0.0, is_correct[order]
    keys = pack_keys(np, scores, is_correct)
    keys.sort()
    return _unpack_keys(keys)


def pack_keys(library: Any, scores: Any, is_correct: Any) -> Any:
    """Pack scores and correctness into integers that sort by score.

    Parameters
    ----------
    library : module
        `numpy` or `torch`.

    scores : array or tensor of shape (n_rows,)
        Scores whose last bit is 0.

    is_correct : array or tensor of bool of shape (n_rows,)
        Whether each row is correct.

    Returns
    -------
    array or tensor of int64 of shape (n_rows,)
    """
    # Adding 0.0 turns -0.0 into 0.0, so that both zeros have the same key.
    bits = (scores + 0.0).view(library.int64)
    return library.where(bits < 0, bits ^ _ALL_BUT_SIGN, bits) & -2 | is_correct


def _unpack_keys(keys: Keys) -> tuple[Float, Flags]:
    """Unpack keys into scores and correctness, and overwrite the keys."""
    is_correct = (keys & _LAST_BIT).astype(bool)
    keys &= ~_LAST_BIT
    bits = np.where(keys < 0, keys ^ (_ALL_BUT_SIGN - 1), keys)
    return bits.view(np.float64), is_correct


@dataclass(frozen=True)
class KeyPartition:
    """Disjoint ranges of keys, each divided into cells of 2^shift keys.

    Attributes
    ----------
    first_keys, last_keys : array of int64 of shape (n_ranges,)
        First and last key of each range.

    cell_shifts : array of int64 of shape (n_ranges,)
        Binary logarithm of the number of keys per cell, for each range.
    """

    first_keys: Keys
    last_keys: Keys
    cell_shifts: Keys

    @classmethod
    def of_all_keys(cls, max_cells: int = MAX_CELLS) -> KeyPartition:
        """Divide all keys into cells by their top bits.

        Examples
        --------
        >>> partition = KeyPartition.of_all_keys(1 << 22)
        >>> partition.n_cells, int(partition.cell_shifts[0])
        (4194304, 42)
        """
        n_cell_bits = max_cells.bit_length() - 1
        cell_shift = 64 - n_cell_bits
        return cls(np.array([-_MAX_KEY - 1]), np.array([_MAX_KEY]), np.array([cell_shift]))

    @classmethod
    def of_key_ranges(
        cls,
        first_keys: Keys,
        last_keys: Keys,
        n_trailing_zero_bits: int,
        max_cells: int = MAX_CELLS,
    ) -> KeyPartition:
        """Divide ranges of keys into the smallest cells that the number of cells allows.

        Parameters
        ----------
        first_keys, last_keys : array of int64 of shape (n_ranges,)
            First and last key of each range.

        n_trailing_zero_bits : int
            Number of low bits that are 0 in every key. Cells of fewer than 2^n_trailing_zero_bits keys would
            be of no use.

        max_cells : int
            Largest number of cells of all ranges together.

        Returns
        -------
        KeyPartition
        """
        max_cells_per_range = max_cells // len(first_keys)
        # A range of 2^n keys with cells of 2^shift keys has 2^(n - shift) cells.
        max_cell_index_bits = max_cells_per_range.bit_length() - 1
        # Python integers are used, because the difference of two keys may exceed int64.
        n_range_bits = np.array(
            [(int(last) - int(first)).bit_length() for first, last in zip(first_keys, last_keys)]
        )
        min_useful_shifts = np.minimum(n_trailing_zero_bits, n_range_bits)
        cell_shifts = np.maximum(n_range_bits - max_cell_index_bits, min_useful_shifts)
        return cls(first_keys, last_keys, cell_shifts)

    @property
    def first_cells(self) -> Keys:
        """Index of the first cell of each range."""
        return np.concatenate(([0], np.cumsum(self._n_cells_per_range)[:-1]))

    @property
    def n_cells(self) -> int:
        """Number of cells."""
        return int(self._n_cells_per_range.sum())

    @property
    def _n_cells_per_range(self) -> Keys:
        """Number of cells of each range."""
        # The difference of two keys may exceed int64, but fits into uint64.
        last_offsets = (self.last_keys - self.first_keys).view(np.uint64)
        last_cells = last_offsets >> self.cell_shifts.view(np.uint64)
        return (last_cells + np.uint64(1)).astype(np.int64)

    def find_cells(self, keys: Keys) -> Keys:
        """Return the cell index of each key, or -1 for a key outside all ranges."""
        range_index = np.searchsorted(self.first_keys, keys, side="right") - 1
        is_inside = (range_index >= 0) & (keys <= self.last_keys[range_index])
        offsets = (keys - self.first_keys[range_index]).view(np.uint64)
        cell_in_range = (offsets >> self.cell_shifts[range_index].view(np.uint64)).view(np.int64)
        return np.where(is_inside, self.first_cells[range_index] + cell_in_range, -1)

    def get_key_ranges(self, cells: Keys) -> tuple[Keys, Keys]:
        """Return the first and the last key of each cell."""
        range_index = np.searchsorted(self.first_cells, cells, side="right") - 1
        cell_shift = self.cell_shifts[range_index]
        cell_in_range = cells - self.first_cells[range_index]
        first_keys = self.first_keys[range_index] + (cell_in_range << cell_shift)
        last_offset = (np.int64(1) << cell_shift) - 1
        last_keys = np.minimum(first_keys + last_offset, self.last_keys[range_index])
        return first_keys, last_keys


class CellCounts(NamedTuple):
    """Numbers of correct and incorrect rows in each cell that has a row.

    Attributes
    ----------
    cells : array of int64 of shape (n_cells,)
        Cells in increasing order.

    n_incorrect, n_correct : array of int64 of shape (n_cells,)
        Numbers of incorrect and correct rows in each cell.

    bitwise_or_of_keys : int
        Bitwise or of the keys of all rows, inside and outside of the ranges.

    n_missing_scores : int
        Number of rows without a score, which are counted in arbitrary cells.
    """

    cells: Keys
    n_incorrect: Keys
    n_correct: Keys
    bitwise_or_of_keys: int
    n_missing_scores: int

    @classmethod
    def add_up(cls, partition: KeyPartition, parts: Iterable[CellCounts]) -> CellCounts:
        """Add the counts of disjoint sets of rows.

        Examples
        --------
        >>> partition = KeyPartition.of_all_keys()
        >>> counter = CellCounter(partition)
        >>> counter.add(np.array([0.5, 0.5]), np.array([True, False]))
        >>> counts = CellCounts.add_up(partition, [counter.result()] * 2)
        >>> len(counts.cells), counts.n_correct.tolist(), counts.n_incorrect.tolist()
        (1, [2], [2])
        """
        sum_of_counts = CellCountSum(partition)
        for part in parts:
            sum_of_counts.add(part)
        return sum_of_counts.result()


class CellCountSum:
    """Sum of the counts of disjoint sets of rows.

    Parameters
    ----------
    partition : KeyPartition
        Cells of the counts.
    """

    def __init__(self, partition: KeyPartition) -> None:
        self._counts = np.zeros((partition.n_cells, _COUNTS_PER_CELL), dtype=np.int64)
        self._lowest_cell = partition.n_cells
        self._highest_cell = -1
        self._bitwise_or_of_keys = 0
        self._n_missing_scores = 0

    def add(self, part: CellCounts) -> None:
        """Add the counts of further rows."""
        if len(part.cells):
            # Each cell occurs once in a part, so indexed addition loses no count.
            self._counts[part.cells] += np.column_stack((part.n_incorrect, part.n_correct))
            self._lowest_cell = min(self._lowest_cell, int(part.cells[0]))
            self._highest_cell = max(self._highest_cell, int(part.cells[-1]))
        self._bitwise_or_of_keys |= part.bitwise_or_of_keys
        self._n_missing_scores += part.n_missing_scores

    def result(self) -> CellCounts:
        """Return the counts of all rows so far."""
        cells, n_incorrect, n_correct = _select_used_cells(
            self._counts, self._lowest_cell, self._highest_cell
        )
        return CellCounts(
            cells=cells,
            n_incorrect=n_incorrect,
            n_correct=n_correct,
            bitwise_or_of_keys=self._bitwise_or_of_keys,
            n_missing_scores=self._n_missing_scores,
        )


class CellCounter:
    """Counter of correct and incorrect rows in each cell of the scores.

    Parameters
    ----------
    partition : KeyPartition
        Cells to count.
    """

    def __init__(self, partition: KeyPartition) -> None:
        self._partition = partition
        # The incorrect rows of a cell are counted in entry 2·cell, its correct rows in 2·cell + 1.
        self._counts = np.zeros(_COUNTS_PER_CELL * partition.n_cells, dtype=np.int64)
        # The C code updates these numbers, at the indices `_LOWEST_CELL` and so on.
        self._summary = np.array([_MAX_KEY, -1, 0, 0])
        self._packed_ranges = np.concatenate(
            [
                partition.first_keys,
                partition.last_keys,
                partition.cell_shifts,
                partition.first_cells,
            ]
        )

    def add(self, scores: Float, correct: Flags) -> None:
        """Count the correct and incorrect rows of a block in their cells."""
        count_in_cells = getattr(kernels.host_kernels, "count_in_cells", None)
        if count_in_cells is not None:
            count_in_cells(scores, correct, self._packed_ranges, self._counts, self._summary)
        else:
            self._add_with_numpy(scores, correct)

    def _add_with_numpy(self, scores: Float, correct: Flags) -> None:
        """Count the rows of a block with NumPy."""
        keys = scores_to_keys(scores)
        cells = self._partition.find_cells(keys)
        is_inside = cells >= 0
        count_indices = _COUNTS_PER_CELL * cells[is_inside] + correct[is_inside]
        used_indices, block_counts = np.unique(count_indices, return_counts=True)
        self._counts[used_indices] += block_counts
        summary = self._summary
        if len(used_indices):
            summary[_LOWEST_CELL] = min(summary[_LOWEST_CELL], used_indices[0] // _COUNTS_PER_CELL)
            summary[_HIGHEST_CELL] = max(
                summary[_HIGHEST_CELL], used_indices[-1] // _COUNTS_PER_CELL
            )
        summary[_BITWISE_OR_OF_KEYS] |= np.bitwise_or.reduce(keys, initial=0)
        summary[_N_MISSING_SCORES] += np.count_nonzero(np.isnan(scores))

    def result(self) -> CellCounts:
        """Return the counts of all rows so far."""
        lowest_cell, highest_cell, bitwise_or_of_keys, n_missing_scores = self._summary.tolist()
        counts = self._counts.reshape(-1, _COUNTS_PER_CELL)
        cells, n_incorrect, n_correct = _select_used_cells(counts, lowest_cell, highest_cell)
        return CellCounts(cells, n_incorrect, n_correct, bitwise_or_of_keys, n_missing_scores)


def _select_used_cells(
    counts: Keys, lowest_cell: int, highest_cell: int
) -> tuple[Keys, Keys, Keys]:
    """Return the cells that have a row, and their counts of incorrect and correct rows.

    Only the memory between the lowest and the highest used cell is read.
    """
    counts_in_range = counts[min(lowest_cell, highest_cell + 1) : highest_cell + 1]
    used_offsets = np.flatnonzero(counts_in_range[:, 0] | counts_in_range[:, 1])
    return (
        lowest_cell + used_offsets,
        counts_in_range[used_offsets, 0],
        counts_in_range[used_offsets, 1],
    )
