r"""Certification of more rows than memory holds, from counts of their scores.

Sorting holds every score in memory. A rule reads few of them: an order statistic for a miscoverage,
and for an accuracy the ranks at which a test comes close to failing. So correct and incorrect rows are
counted by the top bits of their scores (`metacal.kernels.keys`). If the counts do not determine the
certificate, the rule names cells (`FinerCountsNeeded`), and only these are counted again by their next bits.
Scores on the grid have 42 bits. The first pass uses 22 of them and the second up to 20 more, so that
two or three passes over the rows suffice.

**The certificate is the one that sorting gives, bit for bit.**

1. *Counts determine ranks.* Cells are intervals of scores, in order. If m rows, e of them errors, lie
   in the cells below a cell with r correct rows and w errors, its rows have the ranks m + 1, ..., m + r
   + w, and there are e + w errors up to its end, whatever the order inside the cell.
2. *The order inside a cell is used only if it is known.* A question is answered from counts only if
   every order inside the cells gives the same answer. The order statistic of a rank lies in the cell
   that contains the rank. No test inside a cell can fail if it passes with all errors first (see
   below). Otherwise `FinerCountsNeeded` names the cells.
3. *A cell with one score has no inside.* Rows with one score are tied, and tied rows have one order,
   errors first. A cell that contains only one multiple of 2^unit is such a cell, where `unit` is the
   number of trailing bits that are zero in every key. Every refinement divides each named cell, so the
   passes come to an end.
4. Rank, score and neighbours of the threshold are then computed by the same functions (`Ranking`) from
   the same numbers. ∎

**The test sequence of an accuracy** (`rules.fixed_sequence`) from counts. p(e, m) = P(Bin(m, q) <= e)
increases with e and decreases with m. In a cell of w errors and r correct rows behind m rows with e
errors, the test at rank m + k has at most e + min(w, k) errors, which is the number with the errors
first. The largest of these p-values is p(e + w, m + w), because one more error increases p and one more
correct row decreases it. If it passes, every test inside the cell does. If all rows of a cell are
correct, all are errors, or all have one score, the errors at each rank are known, and the first rank
that fails is found.

Counts are integers that may be added in any order. The counts of each block are added once, even if a
worker was lost and the block was counted again. A process holds only the counts of nonempty cells, so
its memory does not depend on the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from metacal.certificates.certificate import Certificate
from metacal.certification.certify import CertifiablePromise
from metacal.certification.one_threshold import OneThresholdProcedure
from metacal.certification.ranking import Evidence, FinerCountsNeeded, Ranking, require_some_correct
from metacal.certification.rows import check_scores
from metacal.certification.unsuitable_rows import build_sorting_required_error
from metacal.errors import FileReadError, NumberError
from metacal.kernels.keys import MAX_CELLS, CellCounter, CellCounts, KeyPartition, keys_to_scores
from metacal.rows.executors import ExecutorLike, resolve_executor
from metacal.rows.tasks import run_in_order

Ints = NDArray[np.int64]

# Type of a function that counts the correct and incorrect rows of each cell in one pass.
CountRows = Callable[[KeyPartition], CellCounts]

# Type of a function that reads a block of rows, with a score and a boolean for each row.
ReadBlock = Callable[[Any], tuple[Any, Any]]

# Number of blocks that are counted at the same time.
_N_CONCURRENT_BLOCKS = 64

# Number of rows that are rounded and counted at a time, so that they fit into the cache of a core.
_CHUNK_SIZE = 1 << 15

# Smallest number of new cells into which a cell is divided.
_MIN_NEW_CELLS = 4

# Number of trailing zero bits of the int64 key 0, without the sign bit.
_N_ZERO_BITS_IF_ALL_ZERO = 63


@dataclass(frozen=True)
class CellTally:
    """Numbers of correct rows and of errors in each nonempty cell of the scores.

    Attributes
    ----------
    first_keys, last_keys : arrays of int64 of shape (n_cells,)
        Lowest and highest key of each cell, in increasing order. A key is an integer that stands for
        a score, and keys have the order of the scores (`metacal.kernels.keys`).

    n_correct_by_cell, n_errors_by_cell : arrays of int64 of shape (n_cells,)
        Number of correct rows and of errors in each cell.

    n_trailing_zero_bits : int
        Number of trailing bits that are zero in every key.

    Examples
    --------
    >>> scores, correct = np.array([0.5, 0.25, 0.5]), np.array([True, True, False])
    >>> tally = CellTally.from_first_pass(partial(_count_arrays, scores, correct))
    >>> tally.ranking.tie_block_scores, tally.ranking.tie_block_end_ranks
    (array([0.25, 0.5 ]), array([1, 3]))
    >>> tally.ranking.cumulative_errors, tally.ranking.is_unordered_block
    (array([0, 1]), array([False, False]))
    """

    first_keys: Ints
    last_keys: Ints
    n_correct_by_cell: Ints
    n_errors_by_cell: Ints
    n_trailing_zero_bits: int

    @classmethod
    def from_first_pass(cls, count_rows: CountRows, max_cells: int = MAX_CELLS) -> CellTally:
        """Count all rows by the top bits of their scores."""
        key_partition = KeyPartition.of_all_keys(max_cells)
        cell_counts = count_rows(key_partition)
        if cell_counts.n_missing_scores:
            raise NumberError(
                "Some scores are NaN, but certify requires a score for every row. Leave out the"
                " rows without a score."
            )
        n_correct_by_cell = cell_counts.n_correct
        n_errors_by_cell = cell_counts.n_incorrect
        # If no row is correct, every row is an error, so the errors give the number of rows.
        require_some_correct(n_correct_by_cell, n_rows=int(n_errors_by_cell.sum()))
        first_keys, last_keys = key_partition.get_key_ranges(cell_counts.cells)
        return cls(
            first_keys=first_keys,
            last_keys=last_keys,
            n_correct_by_cell=n_correct_by_cell,
            n_errors_by_cell=n_errors_by_cell,
            n_trailing_zero_bits=_count_trailing_zero_bits(cell_counts.bitwise_or_of_keys),
        )

    def recount_cells(
        self, cells: Iterable[int], count_rows: CountRows, max_cells: int = MAX_CELLS
    ) -> CellTally:
        """Count the rows of some cells again, by the next bits of their scores.

        Parameters
        ----------
        cells : iterable of int
            Indices of the cells to divide.

        count_rows : callable
            Function that counts all rows in the cells of a partition.

        max_cells : int
            Largest number of new cells. If it is too small, only the first cells are divided.

        Returns
        -------
        CellTally

        Raises
        ------
        InputError
            If the number of rows in the cells has changed.
        """
        requested_cells = np.unique(np.array(list(cells), dtype=np.int64))
        max_divided_cells = max(1, max_cells // _MIN_NEW_CELLS)
        divided_cells = requested_cells[:max_divided_cells]
        key_partition = KeyPartition.of_key_ranges(
            self.first_keys[divided_cells],
            self.last_keys[divided_cells],
            n_trailing_zero_bits=self.n_trailing_zero_bits,
            max_cells=max_cells,
        )
        cell_counts = count_rows(key_partition)
        n_rows_in_earlier_pass = int(
            (self.n_correct_by_cell + self.n_errors_by_cell)[divided_cells].sum()
        )
        n_rows_in_this_pass = int((cell_counts.n_correct + cell_counts.n_incorrect).sum())
        if n_rows_in_this_pass != n_rows_in_earlier_pass:
            raise FileReadError(
                "The rows changed while they were read a second time. Pass a source that returns"
                " the same rows on every pass."
            )

        new_first_keys, new_last_keys = key_partition.get_key_ranges(cell_counts.cells)
        undivided_first_keys = np.delete(self.first_keys, divided_cells)
        key_order = np.argsort(np.concatenate((undivided_first_keys, new_first_keys)))

        def replace_divided_cells(old_column: Ints, new_column: Ints) -> Ints:
            undivided_entries = np.delete(old_column, divided_cells)
            return np.concatenate((undivided_entries, new_column))[key_order]

        return CellTally(
            first_keys=replace_divided_cells(self.first_keys, new_first_keys),
            last_keys=replace_divided_cells(self.last_keys, new_last_keys),
            n_correct_by_cell=replace_divided_cells(self.n_correct_by_cell, cell_counts.n_correct),
            n_errors_by_cell=replace_divided_cells(self.n_errors_by_cell, cell_counts.n_incorrect),
            n_trailing_zero_bits=self.n_trailing_zero_bits,
        )

    @cached_property
    def ranking(self) -> Ranking:
        """Ranking with one block of rows per cell.

        The order of the rows in a cell with several scores is unknown.
        """
        # The last bits of all keys are zero, so the keys of two scores differ by at least this number.
        min_key_difference = 1 << self.n_trailing_zero_bits
        lowest_score_keys = _round_up_to_multiples(
            self.first_keys, n_trailing_zero_bits=self.n_trailing_zero_bits
        )
        # The difference of two int64 keys may exceed int64, so it is read as an unsigned integer.
        distance_to_last_key = (self.last_keys - lowest_score_keys).view(np.uint64)
        may_contain_several_scores = distance_to_last_key >= np.uint64(min_key_difference)
        return Ranking(
            tie_block_end_ranks=np.cumsum(self.n_correct_by_cell + self.n_errors_by_cell),
            cumulative_errors=np.cumsum(self.n_errors_by_cell),
            tie_block_scores=keys_to_scores(lowest_score_keys),
            is_unordered_block=may_contain_several_scores,
        )

    def find_unordered_cells(self, ranks: Sequence[int]) -> list[int]:
        """Find the cells at the given ranks whose rows have several scores."""
        ranking = self.ranking
        if ranking.is_unordered_block is None:
            return []
        rank_array = np.array(ranks, dtype=np.int64)
        cells_with_ranks = np.unique(np.searchsorted(ranking.tie_block_end_ranks, rank_array))
        is_unordered = ranking.is_unordered_block[cells_with_ranks]
        return [int(cell) for cell in cells_with_ranks[is_unordered]]


def _round_up_to_multiples(keys: Ints, *, n_trailing_zero_bits: int) -> Ints:
    """Round keys up to integers whose last bits are zero."""
    last_bits = np.int64((1 << n_trailing_zero_bits) - 1)
    return (keys + last_bits) & ~last_bits


def _count_trailing_zero_bits(bits: int) -> int:
    """Count the trailing zero bits of an integer."""
    if bits == 0:
        return _N_ZERO_BITS_IF_ALL_ZERO
    lowest_set_bit = bits & -bits
    return lowest_set_bit.bit_length() - 1


class Passes(Evidence):
    """Rows that are counted in two or three passes, and are never held in memory.

    The certificate is the one of all rows at once.

    Parameters
    ----------
    count : callable
        Function that counts all rows in the cells of a partition. `Passes.over` builds it from blocks
        that workers read.
    cells : int
        Number of cells that one pass counts.
    ranks : sequence of int
        Ranks whose blocks of equal scores must be known in the final `ranking`.

    Attributes
    ----------
    ranking : Ranking
        Ranking as far as it is known, once a promise was certified.
    """

    ranking: Ranking

    def __init__(self, count: CountRows, cells: int = MAX_CELLS, ranks: Sequence[int] = ()) -> None:
        self._count_rows = count
        self._max_cells = cells
        self._ranks_to_order = ranks

    @classmethod
    def over(
        cls,
        read: ReadBlock,
        blocks: Iterable[Any],
        *,
        executor: ExecutorLike | None = None,
    ) -> Self:
        """Build passes over blocks of rows that workers read and count.

        Parameters
        ----------
        read : callable
            Function that reads a block and returns a score and a boolean for each row. It must
            return the same rows each time. It is sent to the workers.

        blocks : iterable
            Names of the blocks, for example paths, seeds or numbers.

        executor : concurrent.futures.Executor or distributed.Client, optional
            Threads, processes, or a Dask client. By default, blocks are counted in this thread.

        Returns
        -------
        Passes

        Examples
        --------
        >>> from metacal.promises import MinAccuracy
        >>> def rows(seed):
        ...     rng = np.random.default_rng(seed)
        ...     scores = rng.random(5000)
        ...     return scores, rng.random(5000) > 0.2 * scores
        >>> certificate = MinAccuracy(0.93).certify(Passes.over(rows, range(20)))
        >>> scores, correct = (np.concatenate(column) for column in zip(*map(rows, range(20))))
        >>> certificate == MinAccuracy(0.93).certify(scores, correct), certificate.n_rows
        (True, 100000)
        """
        return cls(partial(_count_all_blocks, read, list(blocks), resolve_executor(executor)))

    def certify(self, promise: CertifiablePromise) -> Certificate:
        """Count the rows in smaller cells until the counts determine the certificate."""
        procedure = promise.procedure()
        if not isinstance(procedure, OneThresholdProcedure) or promise.scope is not None:
            raise build_sorting_required_error(promise)
        cell_tally = CellTally.from_first_pass(self._count_rows, max_cells=self._max_cells)
        while True:
            unordered_cells = cell_tally.find_unordered_cells(self._ranks_to_order)
            try:
                certificate = procedure.certify_ranking(cell_tally.ranking, promise.delta)
            except FinerCountsNeeded as finer_counts_needed:
                cells_to_recount = [*finer_counts_needed.cells_to_recount, *unordered_cells]
            else:
                if not unordered_cells:
                    self.ranking = cell_tally.ranking
                    return certificate
                cells_to_recount = unordered_cells
            cell_tally = cell_tally.recount_cells(
                cells_to_recount, self._count_rows, max_cells=self._max_cells
            )


def _count_all_blocks(
    read: ReadBlock, blocks: list[Any], executor: Executor | None, partition: KeyPartition
) -> CellCounts:
    """Count the rows of all blocks in the cells of a partition.

    Parameters
    ----------
    read : callable
        Function that reads a block.

    blocks : list
        Names of the blocks.

    executor : Executor or None
        Workers. Without them, blocks are counted in this thread.

    partition : KeyPartition
        Cells in which rows are counted.

    Returns
    -------
    CellCounts
        Sum of the counts of all blocks.
    """
    count_block = partial(_count_block, read, partition)
    if executor is None:
        block_counts: Iterator[CellCounts] = map(count_block, blocks)
    else:
        task_arguments = ((block,) for block in blocks)
        block_counts = run_in_order(executor, count_block, task_arguments, _N_CONCURRENT_BLOCKS)
    return CellCounts.add_up(partition, block_counts)


def _count_block(read: ReadBlock, partition: KeyPartition, block: Any) -> CellCounts:
    """Read a block and count its rows in the cells of a partition."""
    scores, correct = map(np.asarray, read(block))
    if scores.shape != correct.shape:
        # `check_scores` raises the error for columns of different lengths.
        check_scores(scores, correct)
    return _count_arrays(scores, correct, partition)


def _count_arrays(scores: Any, correct: Any, partition: KeyPartition) -> CellCounts:
    """Count the rows whose scores lie in each cell of a partition, chunk by chunk."""
    cell_counter = CellCounter(partition)
    # There is at least one chunk, so that the shape of an empty array is checked too.
    stop_of_last_chunk = max(1, len(scores))
    for start in range(0, stop_of_last_chunk, _CHUNK_SIZE):
        chunk_rows = slice(start, start + _CHUNK_SIZE)
        correct_chunk = np.asarray(correct[chunk_rows])
        score_chunk = check_scores(scores[chunk_rows], correct_chunk)
        cell_counter.add(score_chunk, correct_chunk)
    return cell_counter.result()
