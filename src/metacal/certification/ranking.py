"""Calibration rows in increasing order of score, with their cumulative errors.

Terms used in this module:

- *error*: a row whose prediction is incorrect.
- *rank*: number of rows, counted from the lowest score. Rank m stands for the first m rows.
- *tie block*: rows with equal scores. Within a tie block errors come first.
- *cell*: block of rows that were only counted (`metacal.certification.passes`). If a cell contains
  several scores, the order of its rows is unknown.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from metacal.errors import OneOutcomeError
from metacal.formulas import Codes, Flags, Float
from metacal.kernels.keys import rank_scores

if TYPE_CHECKING:
    from metacal.certificates.certificate import Certificate


class Evidence(ABC):
    """Base class of evidence for promises, such as calibration rows or row counts.

    Examples are counts of rows, labels that arrive one by one, and the predictions of two models.
    """

    @abstractmethod
    def certify(self, promise: Any) -> Certificate:
        """Certify a promise."""


def require_some_correct(correct: Flags | Codes, n_rows: int | None = None) -> None:
    """Raise an error if no calibration row is classified correctly.

    Parameters
    ----------
    correct : array of bool or of int
        Whether each row is correct, or numbers of correct rows.

    n_rows : int, optional
        Number of rows. Required if `correct` contains numbers of rows.
    """
    if correct.any():
        return
    if n_rows is None:
        n_rows = len(correct)
    raise OneOutcomeError(
        f"No calibration row is classified correctly (n_samples={n_rows}), so no promise can be"
        " certified. Check that the labels and the columns use the same order of classes."
    )


class ThresholdOutcome(NamedTuple):
    """Counts of accepted and correct rows at a threshold.

    The fields have the same names as those of a certificate.
    """

    n_rows: int
    n_correct: int
    n_accepted: int
    n_correct_accepted: int
    highest_accepted: float | None
    lowest_rejected: float | None

    @classmethod
    def from_masks(cls, is_accepted: Flags, is_correct: Flags) -> ThresholdOutcome:
        """Count accepted and correct rows from boolean masks of the rows.

        Several thresholds decide the rows, so `highest_accepted` and `lowest_rejected` are None.
        """
        return cls(
            n_rows=len(is_accepted),
            n_correct=int(is_correct.sum()),
            n_accepted=int(is_accepted.sum()),
            n_correct_accepted=int((is_accepted & is_correct).sum()),
            highest_accepted=None,
            lowest_rejected=None,
        )


# Entry of `ErrorRuns.unordered_blocks` for a run whose rows have a known order.
_NO_UNORDERED_BLOCK = -1


class ErrorRuns(NamedTuple):
    """Runs of consecutive errors in a ranking, each with the correct rows after it.

    The first run contains no errors, only the correct rows before the first error.

    Attributes
    ----------
    n_rows_before : array of int of shape (n_runs,)
        Number of rows before each run.

    n_leading_errors : array of int of shape (n_runs,)
        Number of errors of each run. They come before its correct rows.

    cumulative_errors : array of int of shape (n_runs,)
        Number of errors up to the end of each run.

    unordered_blocks : array of int of shape (n_runs,), optional
        Cell at the beginning of each run if the order of its rows is unknown, and -1 otherwise.
        None if the order of all rows is known.
    """

    n_rows_before: Codes
    n_leading_errors: Codes
    cumulative_errors: Codes
    unordered_blocks: Codes | None = None

    @classmethod
    def of_single_errors(cls, error_ranks: Codes) -> ErrorRuns:
        """Build one run for each error, given the ranks of all errors."""
        n_runs = len(error_ranks) + 1
        # The first run has no errors and no rows before it.
        n_rows_before = np.zeros(n_runs, dtype=np.intp)
        np.subtract(error_ranks, 1, out=n_rows_before[1:])
        n_leading_errors = np.ones(n_runs, dtype=np.intp)
        n_leading_errors[0] = 0
        return cls(
            n_rows_before=n_rows_before,
            n_leading_errors=n_leading_errors,
            cumulative_errors=np.arange(n_runs),
        )

    def get_unordered_block(self, run_index: int) -> int | None:
        """Return the cell with unknown order at the beginning of a run, or None."""
        if self.unordered_blocks is None or self.unordered_blocks[run_index] == _NO_UNORDERED_BLOCK:
            return None
        return int(self.unordered_blocks[run_index])


def _prepend_first_run(entry_of_first_run: int, entries_of_later_runs: Codes) -> Codes:
    """Prepend the entry of the first run, which has no errors and no rows before it."""
    return np.append(entry_of_first_run, entries_of_later_runs)


@dataclass(frozen=True)
class Ranking:
    """Calibration rows in increasing order of score, with one entry per tie block.

    Attributes
    ----------
    tie_block_end_ranks : array of int of shape (n_blocks,)
        Number of rows up to the end of each block.

    cumulative_errors : array of int of shape (n_blocks,)
        Number of errors up to the end of each block.

    tie_block_scores : array of float of shape (n_blocks,)
        Score of each block, in increasing order.

    is_unordered_block : array of bool of shape (n_blocks,), optional
        Whether each block contains rows with several scores, whose order is unknown. Only rows that
        were counted in cells have such blocks (`metacal.certification.passes`).

    known_error_ranks : array of int of shape (n_errors,), optional
        Rank of each error, in increasing order. Only rankings of sorted rows have it.
    """

    tie_block_end_ranks: Codes
    cumulative_errors: Codes
    tie_block_scores: Float
    is_unordered_block: Flags | None = None
    known_error_ranks: Codes | None = None

    @classmethod
    def from_scores(cls, scores: Float, correct: Flags) -> Ranking:
        """Rank rows by their scores."""
        tie_block_scores, tie_block_end_ranks, cumulative_errors, error_ranks = rank_scores(
            scores, correct
        )
        return cls(
            tie_block_end_ranks,
            cumulative_errors,
            tie_block_scores,
            known_error_ranks=error_ranks,
        )

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        if len(self.tie_block_end_ranks) == 0:
            return 0
        return int(self.tie_block_end_ranks[-1])

    @property
    def n_tie_blocks(self) -> int:
        """Number of blocks of rows with equal scores."""
        return len(self.tie_block_end_ranks)

    @property
    def has_known_order(self) -> bool:
        """Whether the order of all rows is known, and not only their counts."""
        return self.is_unordered_block is None

    @property
    def n_errors(self) -> int:
        """Number of errors."""
        if len(self.cumulative_errors) == 0:
            return 0
        return int(self.cumulative_errors[-1])

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 digest of the scores, the ranks and the errors, which seeds draws of ranks."""
        digest = hashlib.sha256(np.ascontiguousarray(self.tie_block_scores).data)
        for counts in (self.tie_block_end_ranks, self.cumulative_errors):
            digest.update(np.ascontiguousarray(counts, dtype=np.int64).data)
        return digest.digest()

    @cached_property
    def error_ranks(self) -> Codes:
        """Rank of each error, if every run of errors contains a single error."""
        if self.known_error_ranks is not None:
            return self.known_error_ranks
        return self.error_runs.n_rows_before[1:] + 1

    @cached_property
    def error_runs(self) -> ErrorRuns:
        """Runs of consecutive errors, with the correct rows after them."""
        if self.known_error_ranks is not None:
            return ErrorRuns.of_single_errors(self.known_error_ranks)
        n_errors_per_block = np.diff(self.cumulative_errors, prepend=0)
        n_rows_per_block = np.diff(self.tie_block_end_ranks, prepend=0)
        n_rows_before_block = self.tie_block_end_ranks - n_rows_per_block
        has_unknown_error_ranks = np.zeros(len(n_errors_per_block), dtype=bool)
        if self.is_unordered_block is not None:
            # If every row of a block is an error, the order of its rows makes no difference.
            has_correct_rows = n_errors_per_block != n_rows_per_block
            has_unknown_error_ranks = self.is_unordered_block & has_correct_rows
        # A run begins with the errors of a tie block and ends before the next block with errors.
        blocks_with_errors = np.flatnonzero(n_errors_per_block)
        unordered_blocks = np.where(
            has_unknown_error_ranks[blocks_with_errors], blocks_with_errors, _NO_UNORDERED_BLOCK
        )
        return ErrorRuns(
            n_rows_before=_prepend_first_run(0, n_rows_before_block[blocks_with_errors]),
            n_leading_errors=_prepend_first_run(0, n_errors_per_block[blocks_with_errors]),
            cumulative_errors=_prepend_first_run(0, self.cumulative_errors[blocks_with_errors]),
            unordered_blocks=_prepend_first_run(_NO_UNORDERED_BLOCK, unordered_blocks),
        )

    def require_known_order_in_blocks(self, tie_blocks: Sequence[int]) -> None:
        """Raise FinerCountsNeeded if the row order in a given tie block is unknown.

        Indices of tie blocks that do not exist, such as -1, are ignored.
        """
        if self.is_unordered_block is None:
            return
        n_blocks = len(self.tie_block_end_ranks)
        existing_blocks = [block for block in tie_blocks if 0 <= block < n_blocks]
        if any(self.is_unordered_block[block] for block in existing_blocks):
            raise self.build_finer_counts_error(tie_blocks)

    def build_finer_counts_error(self, blocks: Iterable[int]) -> FinerCountsNeeded:
        """Build the exception that requests finer counts of blocks with unknown order.

        The blocks next to the given ones are included, because a threshold in a block depends on the
        next score.
        """
        assert self.is_unordered_block is not None
        n_blocks = len(self.tie_block_end_ranks)
        blocks_and_neighbours: set[int] = set()
        for block in blocks:
            blocks_and_neighbours.update([block - 1, block, block + 1])
        unordered_blocks = [
            block
            for block in blocks_and_neighbours
            if 0 <= block < n_blocks and self.is_unordered_block[block]
        ]
        return FinerCountsNeeded(cells_to_recount=unordered_blocks)

    def find_tie_block_ends_from(self, first_score: float) -> Codes:
        """Return the end ranks of the tie blocks from a score upward.

        If no row has this score, the first block is the last one below it, or the lowest block.
        """
        n_blocks_up_to_score = int(
            np.searchsorted(self.tie_block_scores, first_score, side="right")
        )
        first_block = max(0, n_blocks_up_to_score - 1)
        return self.tie_block_end_ranks[first_block:]

    def largest_threshold_accepting_exactly(self, n_accepted: int) -> float:
        """Return the largest threshold that accepts exactly the first `n_accepted` rows.

        `n_accepted` is the end of a tie block. The threshold is +inf if all rows are accepted.
        """
        if n_accepted == self.n_rows:
            return math.inf
        first_rejected_block = np.searchsorted(self.tie_block_end_ranks, n_accepted, side="right")
        lowest_rejected_score = self.tie_block_scores[first_rejected_block]
        return float(np.nextafter(lowest_rejected_score, -np.inf))

    def largest_threshold_accepting_at_most(self, max_accepted: int) -> float:
        """Return the largest threshold that accepts at most `max_accepted` rows.

        Rows of a tie block are accepted together. The threshold is -inf, which rejects all rows, if
        the first tie block has more than `max_accepted` rows.
        """
        n_accepted_blocks = int(
            np.searchsorted(self.tie_block_end_ranks, max_accepted, side="right")
        )
        if n_accepted_blocks == 0:
            return -math.inf
        last_accepted_block = n_accepted_blocks - 1
        n_accepted = int(self.tie_block_end_ranks[last_accepted_block])
        return self.largest_threshold_accepting_exactly(n_accepted)

    def count_rows_below(self, score: float) -> int:
        """Count the rows whose score is less than the given score."""
        n_blocks_below = int(np.searchsorted(self.tie_block_scores, score))
        if n_blocks_below == 0:
            return 0
        return int(self.tie_block_end_ranks[n_blocks_below - 1])

    def summarize_threshold(self, threshold: float) -> ThresholdOutcome:
        """Count the accepted and the correct rows at a threshold."""
        n_accepted_blocks = int(np.searchsorted(self.tie_block_scores, threshold, side="right"))
        n_accepted = 0
        n_accepted_errors = 0
        highest_accepted = None
        if n_accepted_blocks > 0:
            last_accepted_block = n_accepted_blocks - 1
            n_accepted = int(self.tie_block_end_ranks[last_accepted_block])
            n_accepted_errors = int(self.cumulative_errors[last_accepted_block])
            highest_accepted = float(self.tie_block_scores[last_accepted_block])

        lowest_rejected = None
        if n_accepted_blocks < len(self.tie_block_scores):
            lowest_rejected = float(self.tie_block_scores[n_accepted_blocks])
        return ThresholdOutcome(
            n_rows=self.n_rows,
            n_correct=self.n_rows - self.n_errors,
            n_accepted=n_accepted,
            n_correct_accepted=n_accepted - n_accepted_errors,
            highest_accepted=highest_accepted,
            lowest_rejected=lowest_rejected,
        )

    def count_accepted_after_passing_rank(self, rank: int) -> int:
        """Count the rows that may be accepted after the test at a rank has passed.

        A tie block is accepted as a whole if all of its errors are among the first `rank` rows, and
        rejected as a whole otherwise. The proof is in
        `metacal.certification.rules.fixed_sequence`.

        Examples
        --------
        >>> scores = np.array([0.0, 1.0, 1.0, 1.0])
        >>> ranking = Ranking.from_scores(scores, np.array([True, False, True, True]))
        >>> [ranking.count_accepted_after_passing_rank(rank) for rank in (1, 2, 3, 4)]
        [1, 4, 4, 4]
        """
        tie_block = self.find_tie_block(rank)
        block_end_rank = int(self.tie_block_end_ranks[tie_block])
        n_rows_before_block = 0
        n_errors_before_block = 0
        if tie_block > 0:
            n_rows_before_block = int(self.tie_block_end_ranks[tie_block - 1])
            n_errors_before_block = int(self.cumulative_errors[tie_block - 1])
        n_block_errors = int(self.cumulative_errors[tie_block]) - n_errors_before_block
        # Errors come first among tied rows, so all later rows of the block are correct.
        last_error_rank_of_block = n_rows_before_block + n_block_errors
        test_counted_all_errors_of_block = rank >= last_error_rank_of_block
        if test_counted_all_errors_of_block:
            return block_end_rank
        return n_rows_before_block

    def largest_threshold_after_passing_rank(self, rank: int) -> float:
        """Return the largest allowed threshold after the test at a rank has passed."""
        n_accepted = self.count_accepted_after_passing_rank(rank)
        accepts_rows_above_rank = n_accepted > rank
        if accepts_rows_above_rank and n_accepted < self.n_rows:
            return float(self.tie_block_scores[self.find_tie_block(rank)])
        return self.largest_threshold_accepting_exactly(n_accepted)

    def is_error_at(self, rank: int) -> bool:
        """Check whether the row at a rank is an error. Errors come first in a tie block."""
        return bool(self.are_errors_at(np.array([rank]))[0])

    def are_errors_at(self, ranks: Codes) -> Flags:
        """Check for each rank whether its row is an error."""
        n_errors_below = np.searchsorted(self.error_ranks, ranks, side="left")
        n_errors_up_to_rank = np.searchsorted(self.error_ranks, ranks, side="right")
        return n_errors_up_to_rank > n_errors_below

    def without_ranks(self, removed_ranks: Codes) -> Ranking:
        """Return the ranking without the rows at the given ranks.

        Parameters
        ----------
        removed_ranks : array of int
            Distinct ranks, from 1, in increasing order. Each run of errors of the ranking must
            contain a single error, as in rankings of `from_scores`.

        Examples
        --------
        >>> scores, correct = np.array([0.0, 1.0, 1.0, 2.0]), np.array([True, False, True, True])
        >>> Ranking.from_scores(scores, correct).without_ranks(np.array([2, 4])).tie_block_scores
        array([0., 1.])
        """
        is_error = self.are_errors_at(removed_ranks)
        removed_error_ranks = removed_ranks[is_error]
        # Few ranks are removed, so only the blocks of these ranks are searched for. The entries
        # between these blocks are copied and changed as slices.
        removed_blocks = np.searchsorted(self.tie_block_end_ranks, removed_ranks)
        emptied_blocks = self._find_emptied_blocks(removed_blocks)
        # After the removal, the next block has the index of an emptied block.
        new_indices_of_removed_blocks = removed_blocks - np.searchsorted(
            emptied_blocks, removed_blocks
        )
        removed_error_indices = np.searchsorted(self.error_ranks, removed_error_ranks)
        kept_error_ranks = _drop_entries(self.error_ranks, removed_error_indices)
        # The rank of a kept error decreases by the number of removed rows below it.
        first_kept_errors_above = np.searchsorted(kept_error_ranks, removed_ranks)
        return Ranking(
            tie_block_end_ranks=_subtract_one_from_each_index_on(
                new_indices_of_removed_blocks,
                counts=_drop_entries(self.tie_block_end_ranks, emptied_blocks),
            ),
            cumulative_errors=_subtract_one_from_each_index_on(
                new_indices_of_removed_blocks[is_error],
                counts=_drop_entries(self.cumulative_errors, emptied_blocks),
            ),
            tie_block_scores=_drop_entries(self.tie_block_scores, emptied_blocks),
            known_error_ranks=_subtract_one_from_each_index_on(
                first_kept_errors_above, counts=kept_error_ranks
            ),
        )

    def _find_emptied_blocks(self, removed_blocks: Codes) -> Codes:
        """Return the indices of the tie blocks that lose all rows.

        `removed_blocks` contains the block of each removed row.
        """
        blocks, n_removed = np.unique(removed_blocks, return_counts=True)
        end_ranks = self.tie_block_end_ranks
        n_rows_before = np.where(blocks > 0, end_ranks[blocks - 1], 0)
        return np.asarray(blocks[end_ranks[blocks] - n_rows_before == n_removed])

    def find_tie_block(self, rank: int) -> int:
        """Return the index of the tie block that contains a rank.

        The index is the number of blocks if the rank exceeds the number of rows.
        """
        return int(np.searchsorted(self.tie_block_end_ranks, rank))


def _drop_entries(entries: Codes | Float, dropped_indices: Codes) -> Any:
    """Return a copy of an array without the entries at increasing indices."""
    starts = [0, *(dropped_indices + 1).tolist()]
    stops = [*dropped_indices.tolist(), len(entries)]
    return np.concatenate([entries[start:stop] for start, stop in zip(starts, stops)])


def _subtract_one_from_each_index_on(increasing_indices: Codes, *, counts: Codes) -> Codes:
    """Subtract 1 in place from all counts at or after each of the given indices."""
    # A count decreases by the number of indices that are not above its own index.
    boundaries = [*increasing_indices.tolist(), len(counts)]
    for n_indices_passed, (start, stop) in enumerate(pairwise(boundaries), start=1):
        counts[start:stop] -= n_indices_passed
    return counts


class FinerCountsNeeded(Exception):
    """Exception that requests finer counts of the rows in some cells.

    It is raised if rows were only counted (`metacal.certification.passes`), and a certificate
    depends on the order of the rows within these cells.

    Attributes
    ----------
    cells_to_recount : list of int
        Distinct indices of the cells, in increasing order.
    """

    def __init__(self, cells_to_recount: Iterable[int]) -> None:
        super().__init__()
        self.cells_to_recount = sorted(set(cells_to_recount))
