"""Counts of rows and errors along a ranking of the rows by a score.

A *ranking score* orders the rows. Higher scores are less confident. Rows of equal score form a
*block*: no threshold separates them. Every area under a curve of a ranking is a sum over the
incorrect rows of a term that depends on the number of rows, and of incorrect rows, that rank before
them. `Ranking` counts both for any row weights, once for all metrics of the same resamples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike

from metacal.formulas import Codes, Flags, Float
from metacal.metrics.binning import GroupSums, Statistic, Weights, rank_distinct_values
from metacal.metrics.toplabel import (
    check_same_length,
    raise_if_correct_comes_first,
    read_bool_column,
    read_number_column,
)


class Ranking:
    """Ranking score with the correctness of each row, both already validated.

    Parameters
    ----------
    score : array of float64 of shape (n_rows,)
        Ranking score. Higher scores are less confident.

    correct : array of bool of shape (n_rows,)
        Whether each prediction is correct.
    """

    def __init__(self, score: Float, correct: Flags) -> None:
        self.score = score
        self.correct = correct
        score_ranks = rank_distinct_values(score)
        is_incorrect = ~correct
        # Only blocks that contain an incorrect row are counted separately.
        error_block_ranks = np.unique(score_ranks[is_incorrect])
        n_blocks = len(error_block_ranks)
        next_block = np.searchsorted(error_block_ranks, score_ranks)
        is_in_block = _find_rows_in_blocks(score_ranks, error_block_ranks, next_block)
        # Groups alternate: gap 0, block 0, gap 1, block 1, …, last gap. A gap holds correct rows.
        group_of_row = 2 * next_block + is_in_block
        n_gaps_and_blocks = 2 * n_blocks + 1
        self._count_rows_in_gaps_and_blocks = GroupSums(
            groups=group_of_row, n_groups=n_gaps_and_blocks
        )
        self._count_errors_in_blocks = GroupSums(
            groups=next_block[is_incorrect],
            n_groups=n_blocks,
            entry_rows=np.flatnonzero(is_incorrect),
        )
        self._last_weights: Weights | None = None
        self._last_blocks: ErrorBlocks | None = None

    def __len__(self) -> int:
        return len(self.score)

    def get_error_blocks(self, row_weights: Weights) -> ErrorBlocks:
        """Count rows and errors per block, with a cache for the last weights."""
        if self._last_blocks is None or self._last_weights is not row_weights:
            self._last_blocks = self._count_error_blocks(row_weights)
            self._last_weights = row_weights
        return self._last_blocks

    def build_statistic(self, function: Callable[[ErrorBlocks], Float]) -> Statistic:
        """Build a statistic from a function of `ErrorBlocks`.

        Its interval is that of the plain bootstrap.
        """
        return lambda row_weights: function(self.get_error_blocks(row_weights))

    def _count_error_blocks(self, row_weights: Weights) -> ErrorBlocks:
        """Count the errors in each error block, and the rows before and through it."""
        n_rows_of_groups = np.ascontiguousarray(
            self._count_rows_in_gaps_and_blocks(row_weights), np.int64
        )
        # A cumulative sum of integers is faster than one of floats.
        cumulative_rows = np.cumsum(n_rows_of_groups, axis=1).astype(np.float64)
        # Columns alternate: gap 0, block 0, gap 1, block 1, …, last gap.
        rows_through_preceding_gap = cumulative_rows[:, 0:-1:2]
        rows_through_block = cumulative_rows[:, 1::2]
        return ErrorBlocks(
            total_rows=cumulative_rows[:, -1:],
            rows_before_block=rows_through_preceding_gap,
            rows_through_block=rows_through_block,
            n_errors=np.ascontiguousarray(self._count_errors_in_blocks(row_weights)),
        )


def _find_rows_in_blocks(score_ranks: Codes, error_block_ranks: Codes, next_block: Codes) -> Flags:
    """Return a mask of the rows whose score equals that of an incorrect row.

    `next_block` is the index of the first block with an error that does not rank before the row.
    """
    n_blocks = len(error_block_ranks)
    if not n_blocks:
        return np.zeros(len(score_ranks), np.bool_)
    next_block_ranks = error_block_ranks[np.minimum(next_block, n_blocks - 1)]
    return np.asarray(next_block_ranks == score_ranks)


@dataclass(frozen=True, eq=False)
class ErrorBlocks:
    """Numbers of rows and errors in the blocks with an error, in ranking order.

    An error is an incorrect row.

    Attributes
    ----------
    total_rows : array of shape (n_resamples, 1)
        Number of rows of each resample.

    rows_before_block : array of shape (n_resamples, n_blocks)
        Number of rows that rank before each block.

    rows_through_block : array of shape (n_resamples, n_blocks)
        Number of rows that rank before each block or in it.

    n_errors : array of shape (n_resamples, n_blocks)
        Number of errors in each block.
    """

    total_rows: Float
    rows_before_block: Float
    rows_through_block: Float
    n_errors: Float

    @property
    def errors_before_block(self) -> Float:
        """Number of errors that rank before each block."""
        # A cumulative sum of integers is faster than one of floats.
        return np.cumsum(self.n_errors.astype(np.int64), axis=1) - self.n_errors

    @cached_property
    def aurc(self) -> Float:
        """Area under the risk-coverage curve of each resample.

        The area is (1/n) Σ_m E_m/m, where E_m is the number of errors among the m first rows. It is
        computed as a sum over blocks of tied rows. If a block has the ranks a + 1 … b and w errors,
        all w errors are among the first m rows for each m > b. For a rank m in the block,
        (m - a) w / (b - a) of them are, on average over the orders of the tied rows. With the
        harmonic numbers H_m = Σ_{r <= m} 1/r, the sums over both kinds of ranks are

            Σ_{b < m <= n} w/m = w (H_n - H_b)
            Σ_{a < m <= b} (m - a) w / (b - a) / m = w - w / (b - a) a (H_b - H_a).
        """
        a = self.rows_before_block
        b = self.rows_through_block
        n = self.total_rows[:, 0].astype(np.intp)
        harmonic_numbers = _compute_harmonic_numbers(int(n.max(initial=0)))
        harmonic_n = harmonic_numbers[n][:, None]
        harmonic_a = harmonic_numbers[a.astype(np.intp)]
        harmonic_b = harmonic_numbers[b.astype(np.intp)]
        error_rates = self.n_errors / np.maximum(b - a, 1.0)
        sums_if_errors_come_first = self.n_errors * (harmonic_n - harmonic_b + 1.0)
        sums_of_blocks = sums_if_errors_come_first - error_rates * a * (harmonic_b - harmonic_a)
        return np.asarray(sums_of_blocks.sum(axis=1) / n)


def read_ranking(score: ArrayLike, correct: ArrayLike) -> Ranking:
    """Validate a score and a correctness column, and build a ranking from them."""
    scores, is_correct = read_ranking_columns(score, correct)
    return Ranking(scores, is_correct)


def read_ranking_columns(score: ArrayLike, correct: ArrayLike) -> tuple[Float, Flags]:
    """Validate a score and a correctness column, and convert them to arrays."""
    scores = read_number_column(score, "score")
    raise_if_correct_comes_first(np.asarray(score), np.asarray(correct), "score")
    is_correct = read_bool_column(correct, "correct")
    check_same_length(score=scores, correct=is_correct)
    return scores, is_correct


# The result is cached, because all resamples of a sample have the same number of rows.
@lru_cache(maxsize=2)
def _compute_harmonic_numbers(n: int) -> Float:
    """Return the harmonic numbers H_0 to H_n."""
    harmonic_numbers: Float = np.concatenate(([0.0], np.cumsum(1.0 / np.arange(1, n + 1))))
    harmonic_numbers.setflags(write=False)
    return harmonic_numbers
