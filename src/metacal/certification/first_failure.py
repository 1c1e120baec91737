"""Search for the first rank of a segment at which a test fails.

Terms used in this module:

- *run*: some errors of a ranking, and the correct rows up to the next error.
- *tested ranks*: the ranks of a segment at which a test is made (`BinomialRankTests`).
- *unordered block*: rows that were only counted (`metacal.certification.passes`), so that their order
  is unknown.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from metacal.certification.rank_tests import find_clear_passes
from metacal.certification.ranking import ErrorRuns, Ranking
from metacal.certification.test_sequences import RankRange

# Number of runs of errors that are tested in one vectorised step.
_CHUNK_SIZE = 4096

# Largest number of blocks for which finer counts are requested at once.
MAX_REFINED_CELLS = 1024


class FirstFailure(NamedTuple):
    """First rank of a segment at which a test is known to fail.

    Attributes
    ----------
    rank : int
        Rank, or the end of the segment if no test is known to fail.

    unordered_blocks : list of int
        Blocks before the rank in which a test may fail, depending on the unknown order of rows.
    """

    rank: int
    unordered_cells: list[int]


def find_first_failure(
    ranking: Ranking, segment: RankRange, significance_level: float
) -> FirstFailure:
    """Find the first tested rank of a segment that fails.

    After m rows with e errors, let a run of w errors and then correct rows follow. The p-value
    p(errors, rank) rises up to p(e + w, m + w) and falls from there on. If p(e + w, m + w) passes,
    all ranks of the run pass, in whatever order its rows are. Only the other runs are examined rank
    by rank.

    Parameters
    ----------
    ranking : Ranking
        Calibration rows in increasing order of score.

    segment : RankSegment
        Ranks to test.

    significance_level : float
        Significance level of each test.

    Returns
    -------
    FirstFailure
    """
    runs = ranking.error_runs
    first_run = int(np.searchsorted(runs.n_rows_before, segment.start_rank)) - 1
    end_run = int(np.searchsorted(runs.n_rows_before, segment.stop_rank - 1))
    unordered_blocks: list[int] = []
    run_tester = _RunTester(ranking, segment, significance_level)
    for chunk_start in range(first_run, end_run, _CHUNK_SIZE):
        chunk = np.arange(chunk_start, min(chunk_start + _CHUNK_SIZE, end_run))
        last_error_ranks = runs.n_rows_before[chunk] + runs.n_errors[chunk]
        peak_ranks = np.maximum(last_error_ranks, segment.start_rank)
        passes_clearly = find_clear_passes(
            runs.cumulative_errors[chunk],
            peak_ranks,
            segment.rank_tests.error_rate,
            significance_level,
        )
        for run in chunk[~passes_clearly].tolist():
            unordered_block = _unordered_block_of_run(runs, run)
            if unordered_block is None:
                failed_rank = run_tester.find_failure(run)
            else:
                unordered_blocks.append(unordered_block)
                failed_rank = run_tester.find_failure_after_block(run, unordered_block)
            has_enough_blocks = len(unordered_blocks) >= MAX_REFINED_CELLS
            if failed_rank < segment.stop_rank or has_enough_blocks:
                return FirstFailure(failed_rank, unordered_blocks)
    return FirstFailure(segment.stop_rank, unordered_blocks)


def _unordered_block_of_run(runs: ErrorRuns, run: int) -> int | None:
    """Return the block with unknown order at the beginning of a run, or None."""
    if runs.unordered_cells is None or runs.unordered_cells[run] < 0:
        return None
    return int(runs.unordered_cells[run])


@dataclass
class _RunTester:
    """Search for ranks that fail within runs of errors.

    The runs must be visited in increasing order.

    Attributes
    ----------
    ranking : Ranking
        Calibration rows in increasing order of score.

    segment : RankSegment
        Ranks to test. Ranks outside of the segment are not tested.

    significance_level : float
        Significance level of each test.

    next_tested_rank : int
        Tested rank that was found last.
    """

    ranking: Ranking
    segment: RankRange
    significance_level: float
    next_tested_rank: int = 0

    def find_failure(self, run: int) -> int:
        """Find the first tested rank of a run that fails, or the end of the segment."""
        runs = self.ranking.error_runs
        segment = self.segment
        n_rows_before = int(runs.n_rows_before[run])
        n_run_errors = int(runs.n_errors[run])
        cumulative_errors = int(runs.cumulative_errors[run])
        n_errors_before = cumulative_errors - n_run_errors

        # Among the errors at the beginning of the run, the p-value rises from rank to rank.
        last_error_rank = n_rows_before + n_run_errors
        error_ranks = range(
            max(n_rows_before + 1, segment.start_rank),
            min(last_error_rank + 1, segment.stop_rank),
        )
        n_passing_ranks = bisect_right(
            error_ranks,
            self.significance_level,
            key=lambda rank: segment.rank_tests.p_value(
                n_errors_before + rank - n_rows_before, rank
            ),
        )
        if n_passing_ranks < len(error_ranks):
            failed_rank = self._find_tested_rank_from(error_ranks[n_passing_ranks])
            if failed_rank < error_ranks.stop:
                return failed_rank
        first_rank = max(last_error_rank, n_rows_before + 1)
        return self._find_failure_before_errors(first_rank, run)

    def find_failure_after_block(self, run: int, block: int) -> int:
        """Find the first tested rank that fails after the first block of a run."""
        block_end = int(self.ranking.tie_block_end_ranks[block])
        return self._find_failure_before_errors(block_end, run)

    def _find_failure_before_errors(self, first_rank: int, run: int) -> int:
        """Find a rank that fails among the correct rows at the end of a run.

        Each correct row lowers the p-value, so only the first tested rank can fail.
        """
        runs = self.ranking.error_runs
        segment = self.segment
        run_end = self.ranking.n_rows
        if run + 1 < len(runs.n_rows_before):
            run_end = int(runs.n_rows_before[run + 1])
        tested_rank = self._find_tested_rank_from(max(first_rank, segment.start_rank))
        if tested_rank >= min(run_end + 1, segment.stop_rank):
            return segment.stop_rank
        n_errors = int(runs.cumulative_errors[run])
        if segment.rank_tests.p_value(n_errors, tested_rank) > self.significance_level:
            return tested_rank
        return segment.stop_rank

    def _find_tested_rank_from(self, rank: int) -> int:
        """Find the lowest tested rank that is at least `rank`."""
        # If nearly every row is an error, the same distant rank is the answer for many runs.
        if self.next_tested_rank < rank:
            self.next_tested_rank = self.segment.rank_tests.first_tested_rank_from(rank)
        return self.next_tested_rank
