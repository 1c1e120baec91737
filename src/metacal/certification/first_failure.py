"""Search for the first rank of a range at which a binomial test fails.

Terms used in this module:

- *error run*: consecutive errors of a ranking, and the correct rows up to the next error.
- *tested ranks*: the ranks of a range at which a test is made (`BinomialRankTests`).
- *unordered cell*: rows that were only counted (`metacal.certification.passes`), so that their order
  is unknown.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from metacal.certification.rank_tests import find_certain_passes
from metacal.certification.ranking import ErrorRuns, Ranking
from metacal.certification.test_sequences import RankRange

# Number of error runs per vectorised step.
_N_RUNS_PER_CHUNK = 4096

# Maximum number of unordered blocks per search, so that few blocks are counted again.
MAX_BLOCKS_PER_RECOUNT = 1024


class FirstFailure(NamedTuple):
    """First rank of a range at which a test is known to fail.

    Attributes
    ----------
    rank : int
        Rank, or `stop_rank` of the range if no test is known to fail. It may then be unknown whether
        a test in an unordered block fails.

    unordered_blocks : list of int
        Cells before the rank in which a test may fail, depending on the unknown order of rows.
    """

    rank: int
    unordered_blocks: list[int]


def find_first_failure(
    ranking: Ranking, rank_range: RankRange, significance_level: float
) -> FirstFailure:
    """Find the lowest rank of a range at which a test fails.

    After m rows with e errors, let a run of w errors and then correct rows follow. The p-value
    p(errors, rank) rises up to p(e + w, m + w) and falls from there on. If p(e + w, m + w) passes,
    all ranks of the run pass, in whatever order its rows are. Only the other runs are examined rank
    by rank.

    Parameters
    ----------
    ranking : Ranking
        Calibration rows in increasing order of score.

    rank_range : RankRange
        Ranks to test.

    significance_level : float
        Significance level of each test.

    Returns
    -------
    FirstFailure
    """
    failure_finder = _FailureFinder(ranking, rank_range, significance_level)
    unordered_blocks: list[int] = []
    for run_index in _iterate_runs_that_may_fail(
        ranking.error_runs, rank_range, significance_level
    ):
        unordered_block = ranking.error_runs.get_unordered_block(run_index)
        if unordered_block is None:
            failed_rank = failure_finder.find_first_failed_rank(run_index)
        else:
            unordered_blocks.append(unordered_block)
            failed_rank = failure_finder.find_first_failed_rank_after_block(
                run_index, unordered_block
            )
        if failed_rank is not None:
            return FirstFailure(failed_rank, unordered_blocks)
        if len(unordered_blocks) >= MAX_BLOCKS_PER_RECOUNT:
            # The caller recounts the unordered blocks and repeats the search.
            break
    # No test is known to fail, but a test inside an unordered block may fail.
    return FirstFailure(rank_range.stop_rank, unordered_blocks)


def _iterate_runs_that_may_fail(
    error_runs: ErrorRuns, rank_range: RankRange, significance_level: float
) -> Iterator[int]:
    """Yield the indices of the error runs that may contain a failed test."""
    first_run = int(np.searchsorted(error_runs.n_rows_before, rank_range.start_rank)) - 1
    stop_run = int(np.searchsorted(error_runs.n_rows_before, rank_range.stop_rank - 1))
    for chunk_start in range(first_run, stop_run, _N_RUNS_PER_CHUNK):
        chunk_stop = min(chunk_start + _N_RUNS_PER_CHUNK, stop_run)
        run_indices = np.arange(chunk_start, chunk_stop)
        # The p-value of a run is largest at its last error, so one test covers the whole run.
        last_error_ranks = (
            error_runs.n_rows_before[run_indices] + error_runs.n_leading_errors[run_indices]
        )
        n_errors_up_to_last_error = error_runs.cumulative_errors[run_indices]
        every_rank_passes = find_certain_passes(
            n_errors=n_errors_up_to_last_error,
            ranks=np.maximum(last_error_ranks, rank_range.start_rank),
            error_rate=rank_range.rank_tests.error_rate,
            significance_level=significance_level,
        )
        yield from run_indices[~every_rank_passes].tolist()


@dataclass
class _FailureFinder:
    """Search for the first rank of an error run at which a test fails.

    The runs must be searched in increasing order.

    Attributes
    ----------
    ranking : Ranking
        Calibration rows in increasing order of score.

    rank_range : RankRange
        Ranks to test. Ranks outside of the range are not tested.

    significance_level : float
        Significance level of each test.

    cached_tested_rank : int
        Tested rank that was found last. Many error runs have the same next tested rank.
    """

    ranking: Ranking
    rank_range: RankRange
    significance_level: float
    cached_tested_rank: int = 0

    def find_first_failed_rank(self, run_index: int) -> int | None:
        """Find the lowest rank of a run at which a test fails, or return None."""
        failed_rank = self._find_failed_rank_among_errors(run_index)
        if failed_rank is not None:
            return failed_rank
        error_runs = self.ranking.error_runs
        n_rows_before_run = int(error_runs.n_rows_before[run_index])
        n_errors_of_run = int(error_runs.n_leading_errors[run_index])
        if n_errors_of_run == 0:
            # Only the first run of a ranking can have no errors, so it starts at a correct row.
            first_rank = n_rows_before_run + 1
        else:
            first_rank = n_rows_before_run + n_errors_of_run
        return self._find_failed_rank_after_errors(run_index, first_rank=first_rank)

    def find_first_failed_rank_after_block(
        self, run_index: int, unordered_block: int
    ) -> int | None:
        """Find the lowest rank after an unordered block at which a test fails."""
        cell_end_rank = int(self.ranking.tie_block_end_ranks[unordered_block])
        return self._find_failed_rank_after_errors(run_index, first_rank=cell_end_rank)

    def _find_failed_rank_among_errors(self, run_index: int) -> int | None:
        """Find the lowest rank among the errors of a run at which a test fails."""
        error_runs = self.ranking.error_runs
        n_rows_before_run = int(error_runs.n_rows_before[run_index])
        n_errors_of_run = int(error_runs.n_leading_errors[run_index])
        n_errors_before_run = int(error_runs.cumulative_errors[run_index]) - n_errors_of_run
        first_error_rank = n_rows_before_run + 1
        last_error_rank = n_rows_before_run + n_errors_of_run
        error_ranks_in_range = range(
            max(first_error_rank, self.rank_range.start_rank),
            min(last_error_rank + 1, self.rank_range.stop_rank),
        )
        rank_tests = self.rank_range.rank_tests

        def compute_p_value(rank: int) -> float:
            n_errors_in_run = rank - n_rows_before_run
            return rank_tests.p_value(n_errors_before_run + n_errors_in_run, rank)

        # Each additional error raises the p-value, so bisection finds the first failed rank.
        n_passing_ranks = bisect_right(
            error_ranks_in_range, self.significance_level, key=compute_p_value
        )
        if n_passing_ranks == len(error_ranks_in_range):
            return None
        first_failing_rank = error_ranks_in_range[n_passing_ranks]
        tested_rank = self._find_next_tested_rank(first_failing_rank)
        if tested_rank in error_ranks_in_range:
            return tested_rank
        return None

    def _find_failed_rank_after_errors(self, run_index: int, *, first_rank: int) -> int | None:
        """Find the lowest rank of a run from `first_rank` on at which a test fails.

        From `first_rank` on, the rows contain all errors of the run. Each correct row lowers the
        p-value, so only the lowest tested rank can fail.
        """
        error_runs = self.ranking.error_runs
        n_runs = len(error_runs.n_rows_before)
        is_last_run = run_index == n_runs - 1
        if is_last_run:
            last_rank_of_run = self.ranking.n_rows
        else:
            last_rank_of_run = int(error_runs.n_rows_before[run_index + 1])
        first_rank_in_range = max(first_rank, self.rank_range.start_rank)
        last_rank = min(last_rank_of_run, self.rank_range.stop_rank - 1)
        tested_rank = self._find_next_tested_rank(first_rank_in_range)
        if tested_rank > last_rank:
            return None
        n_errors_up_to_run_end = int(error_runs.cumulative_errors[run_index])
        p_value = self.rank_range.rank_tests.p_value(n_errors_up_to_run_end, tested_rank)
        if p_value > self.significance_level:
            return tested_rank
        return None

    def _find_next_tested_rank(self, min_rank: int) -> int:
        """Find the lowest tested rank that is at least `min_rank`."""
        if self.cached_tested_rank < min_rank:
            rank_tests = self.rank_range.rank_tests
            self.cached_tested_rank = rank_tests.lowest_tested_rank_at_least(min_rank)
        return self.cached_tested_rank
