"""Counts of rows and incorrect rows along a ranking.

A *ranking score* orders the rows. Higher scores are less confident. Rows of equal score form a
*block*: no threshold separates them. Every area under a curve of a ranking is a sum over the
incorrect rows of a term that depends on the number of rows, and of incorrect rows, that rank before
them. `Ranking` counts both for any row weights, once for all metrics of a batch of resamples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike

from metacal.formulas import Codes, Flags, Float
from metacal.metrics.binning import CodeSums, Statistic, Weights, distinct_codes
from metacal.metrics.toplabel import (
    bool_column,
    check_same_length,
    number_column,
    raise_if_correct_comes_first,
)


class Ranking:
    """Validated ranking score with the correctness of each row.

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
        score_codes = distinct_codes(score)
        is_incorrect = ~correct
        # Only blocks with an incorrect row are counted one by one.
        error_blocks = np.unique(score_codes[is_incorrect])
        n_blocks = len(error_blocks)
        block_index = np.searchsorted(error_blocks, score_codes)
        # Segments in ranking order: the rows before the first such block, this block, the rows
        # between it and the second block, the second block, and so on.
        is_in_block = _is_in_block(score_codes, error_blocks, block_index)
        self._row_sums = CodeSums(2 * block_index + is_in_block, 2 * n_blocks + 1)
        self._error_sums = CodeSums(
            codes=block_index[is_incorrect], n_codes=n_blocks, row=np.flatnonzero(is_incorrect)
        )
        self._last_batch: Weights | None = None
        self._last_errors: RankedErrors | None = None

    def __len__(self) -> int:
        return len(self.score)

    def errors(self, batch: Weights) -> RankedErrors:
        """Count rows and incorrect rows; repeated calls with one batch return the same object."""
        if self._last_errors is None or self._last_batch is not batch:
            self._last_errors = self._count_errors(batch)
            self._last_batch = batch
        return self._last_errors

    def statistic(self, function: Callable[[RankedErrors], Float]) -> Statistic:
        """Build a statistic from a function of `RankedErrors`.

        Its interval is that of the plain bootstrap.
        """
        return lambda batch: function(self.errors(batch))

    def _count_errors(self, batch: Weights) -> RankedErrors:
        """Count rows and incorrect rows."""
        # A cumulative sum of integers is faster than one of floats.
        segment_sizes = np.ascontiguousarray(self._row_sums(batch), np.int64)
        segment_ends = np.cumsum(segment_sizes, axis=1).astype(np.float64)
        return RankedErrors(
            n_rows=segment_ends[:, -1:],
            start=segment_ends[:, 0:-1:2],
            stop=segment_ends[:, 1::2],
            wrong=np.ascontiguousarray(self._error_sums(batch)),
        )


def _is_in_block(score_codes: Codes, error_blocks: Codes, block_index: Codes) -> Flags:
    """Return a mask of the rows whose score is that of a block with an incorrect row."""
    n_blocks = len(error_blocks)
    if not n_blocks:
        return np.zeros(len(score_codes), np.bool_)
    return np.asarray(error_blocks[np.minimum(block_index, n_blocks - 1)] == score_codes)


@dataclass(frozen=True, eq=False)
class RankedErrors:
    """Blocks with an incorrect row, in ranking order, of several resamples.

    Attributes
    ----------
    n_rows : array of shape (n_resamples, 1)
        Number of rows.

    start : array of shape (n_resamples, n_blocks)
        Number of rows that rank before each block.

    stop : array of shape (n_resamples, n_blocks)
        Number of rows that rank before each block or in it.

    wrong : array of shape (n_resamples, n_blocks)
        Number of incorrect rows in each block.
    """

    n_rows: Float
    start: Float
    stop: Float
    wrong: Float

    @property
    def wrong_before(self) -> Float:
        """Number of incorrect rows that rank before each block."""
        # A cumulative sum of integers is faster than one of floats.
        return np.cumsum(self.wrong.astype(np.int64), axis=1) - self.wrong

    @cached_property
    def aurc(self) -> Float:
        """Area under the risk-coverage curve of each resample.

        The area is (1/n) Σ_m E_m/m, where E_m is the number of errors among the m first rows. It is
        computed as a sum over errors instead of ranks. An error at rank r is in E_m for all m >= r
        and adds H_n - H_(r-1), where H are the harmonic numbers. If a block of ranks a + 1 … b has
        w errors, (m - a) w / (b - a) of them are among the first m on average over the orders of
        the tied rows.
        """
        n_rows = self.n_rows[:, 0].astype(np.intp)
        harmonic = _harmonic_numbers(int(n_rows.max(initial=0)))
        harmonic_at_stop = harmonic[self.stop.astype(np.intp)]
        harmonic_at_start = harmonic[self.start.astype(np.intp)]
        error_rate = self.wrong / np.maximum(self.stop - self.start, 1.0)
        terms = self.wrong * (harmonic[n_rows][:, None] - harmonic_at_stop + 1.0)
        corrections = error_rate * self.start * (harmonic_at_stop - harmonic_at_start)
        return np.asarray((terms - corrections).sum(axis=1) / n_rows)


def read_ranking(score: ArrayLike, correct: ArrayLike) -> Ranking:
    """Validate a score and the correctness of its rows."""
    scores, is_correct = read_ranking_columns(score, correct)
    return Ranking(scores, is_correct)


def read_ranking_columns(score: ArrayLike, correct: ArrayLike) -> tuple[Float, Flags]:
    """Return the score as float64 and the correctness as bool; raise InputError if invalid."""
    scores = number_column(score, "score")
    raise_if_correct_comes_first(np.asarray(score), np.asarray(correct), "score")
    is_correct = bool_column(correct, "correct")
    check_same_length(score=scores, correct=is_correct)
    return scores, is_correct


# All resamples of a sample have the same number of rows, so the cache is hit often.
@lru_cache(maxsize=2)
def _harmonic_numbers(n: int) -> Float:
    """Return the harmonic numbers H_0 to H_n."""
    harmonic: Float = np.concatenate(([0.0], np.cumsum(1.0 / np.arange(1, n + 1))))
    harmonic.setflags(write=False)
    return harmonic
