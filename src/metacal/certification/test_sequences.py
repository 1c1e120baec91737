"""Fixed sequences of ranks at which an accuracy is tested.

The number of rows, the accuracy and delta alone determine which ranks are tested, in which order and
at which significance level. `metacal.certification.rules.fixed_sequence` runs the tests and contains
the proof.

Terms used in this module:

- *error*: a row whose prediction is incorrect.
- *rank*: number of rows, counted from the lowest score. The test at rank m reads the first m rows.
- *the test at rank m passes*: P(Bin(m, error_rate) <= number of errors) <= significance level.
- *segment*: consecutive ranks that are tested until one fails.
- *start*: first rank of a segment, given by the number of errors that its test tolerates.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr

from metacal.certification.ranking import ErrorRuns, Ranking
from metacal.formulas import Codes, Flags, Float
from metacal.statistics import bounds

Candidate = TypeVar("Candidate")

# A rank is tested only if its exact test can use this fraction of the significance level.
_MIN_LEVEL_USE = 0.75

# With fewer errors allowed among all rows, there is one start, at the whole significance level.
_MIN_ERRORS_FOR_FALLBACKS = 20

# From this number of allowed errors on, a single start tolerates at least one error.
_MIN_ERRORS_TO_TOLERATE_ONE = 8

# The first start tolerates min(0.18, 0.03 + 2 (1 - accuracy)) of the errors that all rows may have.
_FIRST_START_BASE = Fraction("0.03")
_FIRST_START_SLOPE = 2
_FIRST_START_MAX = Fraction("0.18")

# Fraction of delta that the first of several starts receives.
_FIRST_DELTA_FRACTION = Fraction("0.95")

# Fractions of the allowed errors that later starts tolerate, and the fractions of delta they add.
# The last start serves scores with few values, because an early start fails within a large tie block.
_FALLBACK_STARTS = (
    (Fraction("0.3"), Fraction("0.03")),
    (Fraction("0.65"), Fraction("0.02")),
)

# The starts were tuned for this delta. For another delta, starts at similar ranks are used.
_TUNED_DELTA = 0.1

# Number of runs of errors that are tested in one vectorised step.
_CHUNK_SIZE = 4096

# Largest number of blocks for which finer counts are requested at once.
MAX_REFINED_BLOCKS = 1024

# A computed p-value below this fraction of the level certainly passes, despite rounding errors.
_CLEAR_PASS_FACTOR = 1.0 - 1e-6


@dataclass(frozen=True)
class BinomialRankTests:
    """Exact binomial tests at the ranks 1, ..., n_rows that the error rate is below a limit.

    Let c(m) be the largest number of errors with which the test at rank m passes. Rank m is tested
    if m = n_rows, or if P(Bin(m, error_rate) <= c(m)) is at least 3/4 of the significance level. The
    tests at other ranks would be needlessly strict.

    Parameters
    ----------
    n_rows : int
        Number of rows.

    error_rate : float
        Error rate under the null hypothesis.

    significance_level : float
        Significance level of each test.

    Examples
    --------
    >>> tests = BinomialRankTests(200, 0.05, 0.1)
    >>> [rank for rank in range(1, 201) if tests.first_tested_rank_from(rank) == rank][:12]
    [45, 46, 47, 48, 49, 50, 77, 78, 79, 80, 81, 82]
    """

    n_rows: int
    error_rate: float
    significance_level: float

    def p_value(self, n_errors: int, rank: int) -> float:
        """Compute the probability of at most `n_errors` errors among the first `rank` rows."""
        if n_errors < 0:
            return 0.0
        return float(bdtr(float(n_errors), rank, self.error_rate))

    def max_passing_errors(self, rank: int) -> int:
        """Return the largest number of errors with which a rank passes.

        It is -1 if the rank does not pass even without an error.
        """
        n_passing_counts = bisect_right(
            range(rank),
            self.significance_level,
            key=lambda n_errors: self.p_value(n_errors, rank),
        )
        return n_passing_counts - 1

    def first_passing_rank(self, n_errors: int) -> int:
        """Return the lowest rank that passes with `n_errors` errors, or n_rows + 1 if none does."""
        lowest_rank = n_errors + 1
        n_failing_ranks = bisect_left(
            range(lowest_rank, self.n_rows + 1),
            True,
            key=lambda rank: self.p_value(n_errors, rank) <= self.significance_level,
        )
        return lowest_rank + n_failing_ranks

    def first_tested_rank_from(self, rank: int) -> int:
        """Return the lowest tested rank that is at least `rank`, or n_rows + 1 if there is none."""
        if rank > self.n_rows:
            return self.n_rows + 1
        while rank < self.n_rows:
            n_errors = self.max_passing_errors(rank)
            if n_errors >= 0 and not self._wastes_level(n_errors, rank):
                return rank
            rank = self.first_passing_rank(n_errors + 1)
        return self.n_rows

    def last_tested_rank_below(self, rank: int) -> int:
        """Return the highest tested rank that is less than `rank`, or 0 if there is none."""
        if rank > self.n_rows:
            return self.n_rows
        rank -= 1
        while rank >= 1:
            n_errors = self.max_passing_errors(rank)
            if n_errors < 0:
                return 0
            # The p-value of `n_errors` decreases with the rank, so the tested ranks come first.
            first_rank = self.first_passing_rank(n_errors)
            n_tested_ranks = bisect_left(
                range(first_rank, rank + 1),
                True,
                key=lambda later_rank: self._wastes_level(n_errors, later_rank),
            )
            if n_tested_ranks > 0:
                return first_rank + n_tested_ranks - 1
            rank = first_rank - 1
        return 0

    def _wastes_level(self, n_errors: int, rank: int) -> bool:
        """Check whether the p-value is below 3/4 of the significance level."""
        return self.p_value(n_errors, rank) < _MIN_LEVEL_USE * self.significance_level


@dataclass(frozen=True)
class RankSegment:
    """Tested ranks from `start_rank` up to, but not including, `stop_rank`.

    Attributes
    ----------
    rank_tests : BinomialRankTests
        Tests that determine which ranks of the segment are tested.

    start_rank, stop_rank : int
        First rank of the segment and of the next one.

    delta_fraction : Fraction
        Fraction of delta that the segment adds to the level of its tests.
    """

    rank_tests: BinomialRankTests
    start_rank: int
    stop_rank: int
    delta_fraction: Fraction


# For each start, the number of errors that it tolerates and the fraction of delta that it adds.
SegmentStarts = tuple[tuple[int, Fraction], ...]


@lru_cache(maxsize=512)
def choose_usual_starts(n_rows: int, accuracy: float, delta: float) -> SegmentStarts:
    """Choose the starts for predictions that are mostly correct.

    Parameters
    ----------
    n_rows : int
        Number of rows.

    accuracy : float
        Accuracy to certify.

    delta : float
        Significance level of all tests together.

    Returns
    -------
    tuple of (int, Fraction)
        For each start, the number of errors that it tolerates and its fraction of delta. The ranks
        of the starts are close to those for delta = 0.1.

    Examples
    --------
    >>> choose_usual_starts(300, 0.97, 0.1), choose_usual_starts(300, 0.97, 0.001)
    (((1, Fraction(1, 1)),), ((0, Fraction(1, 1)),))
    """
    spent_fraction = Fraction(0)
    starts = []
    for n_tuned_errors, delta_fraction in _choose_tuned_starts(n_rows, accuracy):
        spent_fraction += delta_fraction
        n_errors = _adapt_start_to_delta(
            n_rows, accuracy, n_tuned_errors, float(spent_fraction), delta
        )
        starts.append((n_errors, delta_fraction))
    return tuple(starts)


def _choose_tuned_starts(n_rows: int, accuracy: float) -> SegmentStarts:
    """Choose the starts for delta = 0.1."""
    error_rate = 1 - bounds.to_exact_fraction(accuracy)
    n_allowed_errors = n_rows * error_rate
    # The stricter the accuracy, the smaller the fraction of the rows that usually reaches it.
    first_fraction = min(_FIRST_START_MAX, _FIRST_START_BASE + _FIRST_START_SLOPE * error_rate)
    first_start = first_fraction * n_allowed_errors
    if n_allowed_errors < _MIN_ERRORS_FOR_FALLBACKS:
        min_tolerated_errors = int(n_allowed_errors >= _MIN_ERRORS_TO_TOLERATE_ONE)
        return ((max(int(first_start), min_tolerated_errors), Fraction(1)),)
    nearest_integer = int(first_start + Fraction(1, 2))
    fallback_starts = (
        (int(error_fraction * n_allowed_errors), delta_fraction)
        for error_fraction, delta_fraction in _FALLBACK_STARTS
    )
    return ((nearest_integer, _FIRST_DELTA_FRACTION), *fallback_starts)


def _adapt_start_to_delta(
    n_rows: int, accuracy: float, n_tuned_errors: int, level_fraction: float, delta: float
) -> int:
    """Convert a start for delta = 0.1 to a start at a similar rank for another delta.

    Parameters
    ----------
    n_rows : int
        Number of rows.

    accuracy : float
        Accuracy to certify.

    n_tuned_errors : int
        Number of errors that the start tolerates for delta = 0.1.

    level_fraction : float
        Fraction of delta at which the start is tested.

    delta : float
        Significance level of all tests together.

    Returns
    -------
    int
        Number of errors that the start tolerates for `delta`.
    """
    tuned_tests = BinomialRankTests(n_rows, 1.0 - accuracy, level_fraction * _TUNED_DELTA)
    tests = BinomialRankTests(n_rows, 1.0 - accuracy, level_fraction * delta)
    tuned_rank = min(n_rows, tuned_tests.first_passing_rank(n_tuned_errors))
    n_errors = max(0, tests.max_passing_errors(tuned_rank))
    lower_rank = tests.first_passing_rank(n_errors)
    higher_rank = tests.first_passing_rank(n_errors + 1)
    # Choose the rank that is closer to the tuned rank on a logarithmic scale.
    if tuned_rank * tuned_rank >= lower_rank * higher_rank:
        return n_errors + 1
    return n_errors


@lru_cache(maxsize=512)
def plan_segments(
    n_rows: int, accuracy: float, delta: float, starts: SegmentStarts | None = None
) -> tuple[RankSegment, ...]:
    """Plan the segments of ranks at which an accuracy is tested.

    Parameters
    ----------
    n_rows : int
        Number of rows.

    accuracy : float
        Accuracy to certify.

    delta : float
        Significance level of all tests together.

    starts : tuple of (int, Fraction), optional
        Number of errors that each start tolerates, and its fraction of delta. The usual starts by
        default. A start that is not above the preceding one is skipped.

    Returns
    -------
    tuple of RankSegment

    Examples
    --------
    >>> for segment in plan_segments(1000, 0.95, 0.1):
    ...     print(segment.start_rank, segment.stop_rank, segment.delta_fraction)
    236 424 19/20
    424 807 3/100
    807 1001 1/50
    """
    if starts is None:
        starts = choose_usual_starts(n_rows, accuracy, delta)
    rank_tests = []
    start_ranks: list[int] = []
    delta_fractions = []
    spent_fraction = Fraction(0)
    for n_tolerated_errors, delta_fraction in starts:
        spent_fraction += delta_fraction
        tests = BinomialRankTests(n_rows, 1.0 - accuracy, float(spent_fraction) * delta)
        n_errors = min(n_tolerated_errors, tests.max_passing_errors(n_rows))
        if n_errors < 0:
            continue
        start_rank = tests.first_passing_rank(n_errors)
        is_above_preceding_start = not start_ranks or start_rank > start_ranks[-1]
        if start_rank <= n_rows and is_above_preceding_start:
            rank_tests.append(tests)
            start_ranks.append(start_rank)
            delta_fractions.append(delta_fraction)
    stop_ranks = [*start_ranks[1:], n_rows + 1]
    return tuple(map(RankSegment, rank_tests, start_ranks, stop_ranks, delta_fractions))


def passes_in_expectation(n_errors: Codes, ranks: Codes, accuracy: float) -> Flags:
    """Check whether E + 1 <= (1 - accuracy)(m + 1) in exact arithmetic.

    Parameters
    ----------
    n_errors : array of int
        Number of errors E among the first m rows, for each rank m.

    ranks : array of int
        Ranks m.

    accuracy : float
        Accuracy that holds in expectation.

    Returns
    -------
    array of bool
    """
    error_rate = 1 - bounds.to_exact_fraction(accuracy)
    integer_type: type = np.int64
    if error_rate.denominator * (int(ranks.max()) + 1) >= 2**62:
        # The products could overflow, but Python integers cannot.
        integer_type = object
    scaled_errors: NDArray[Any] = (n_errors.astype(integer_type) + 1) * error_rate.denominator
    scaled_limits: NDArray[Any] = (ranks.astype(integer_type) + 1) * error_rate.numerator
    return np.asarray(scaled_errors <= scaled_limits, dtype=bool)


def choose_first_value(
    sorted_pilot_scores: Float,
    n_rows: int,
    accuracy: float,
    delta: float,
    starts: SegmentStarts | None = None,
) -> float:
    """Choose the score value at which tests of values begin.

    It is the quantile of the pilot scores at the rank of the start with the largest fraction of
    delta.

    Parameters
    ----------
    sorted_pilot_scores : array of float of shape (n_pilot,)
        Scores of the pilot rows in increasing order.

    n_rows : int
        Number of rows that are tested.

    accuracy : float
        Accuracy to certify.

    delta : float
        Significance level.

    starts : tuple of (int, Fraction), optional
        Number of errors that each start tolerates, and its fraction of delta. The usual starts by
        default.

    Returns
    -------
    float

    Examples
    --------
    >>> choose_first_value(np.repeat([1.0, 2.0, 3.0], [1, 3, 6]), 1000, 0.95, 0.1)
    2.0
    """
    if not starts:
        starts = choose_usual_starts(n_rows, accuracy, delta)
    n_tolerated_errors, _ = max(starts, key=lambda start: start[1])
    tests = BinomialRankTests(n_rows, 1.0 - accuracy, delta)
    n_errors = min(n_tolerated_errors, tests.max_passing_errors(n_rows))
    start_rank = n_rows
    if n_errors >= 0:
        start_rank = tests.first_passing_rank(n_errors)
    n_pilot = len(sorted_pilot_scores)
    pilot_rank = math.ceil(n_pilot * start_rank / max(n_rows, 1))
    pilot_rank = min(n_pilot, max(1, pilot_rank))
    return float(sorted_pilot_scores[pilot_rank - 1])


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
    unordered_blocks: list[int]


def find_first_failure(
    ranking: Ranking, segment: RankSegment, significance_level: float
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
            has_enough_blocks = len(unordered_blocks) >= MAX_REFINED_BLOCKS
            if failed_rank < segment.stop_rank or has_enough_blocks:
                return FirstFailure(failed_rank, unordered_blocks)
    return FirstFailure(segment.stop_rank, unordered_blocks)


def _unordered_block_of_run(runs: ErrorRuns, run: int) -> int | None:
    """Return the block with unknown order at the beginning of a run, or None."""
    if runs.unordered_blocks is None or runs.unordered_blocks[run] < 0:
        return None
    return int(runs.unordered_blocks[run])


@dataclass
class _RunTester:
    """Tests of single ranks within runs of errors, which must be visited in increasing order.

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
    segment: RankSegment
    significance_level: float
    next_tested_rank: int = 0

    def find_failure(self, run: int) -> int:
        """Find the first tested rank of a run that fails, or return the end of the segment."""
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
        """Find the first tested rank that fails from the end of the first block of a run on."""
        block_end = int(self.ranking.block_end_ranks[block])
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


def run_fallback_tests(
    sequences: Iterable[tuple[Fraction, Iterable[Candidate]]],
    passes: Callable[[Candidate, Fraction], bool],
) -> Candidate | None:
    """Test sequences of candidates by the fallback procedure (Wiens 2003).

    A sequence is tested at its own fraction of delta plus those of the preceding sequences whose
    every test passed. A sequence ends at its first failure, and its fractions are lost.

    Parameters
    ----------
    sequences : iterable of (Fraction, iterable)
        For each sequence, the fraction of delta that it adds and its candidates.

    passes : callable
        Function that tests a candidate at a fraction of delta.

    Returns
    -------
    object or None
        Last candidate that passed, or None if none did.

    Examples
    --------
    >>> half = Fraction(1, 2)
    >>> run_fallback_tests(
    ...     [(half, [1, 2, 3]), (half, [4, 5])],
    ...     lambda candidate, delta_fraction: candidate < 5 and delta_fraction >= half,
    ... )
    4
    """
    last_passed: Candidate | None = None
    delta_fraction = Fraction(0)
    for added_fraction, candidates in sequences:
        delta_fraction += added_fraction
        for candidate in candidates:
            if not passes(candidate, delta_fraction):
                delta_fraction = Fraction(0)
                break
            last_passed = candidate
    return last_passed


def find_clear_passes(
    n_errors: Codes, ranks: Codes, error_rate: float, significance_level: float
) -> Flags:
    """Find the tests that pass even if their p-value is computed with rounding errors.

    Chernoff's bound on the lower tail, P(Bin <= μ - t) <= exp(-t² / 2μ) with μ = rank · error_rate,
    settles most tests without a special function.

    Parameters
    ----------
    n_errors : array of int of shape (n_tests,)
        Number of errors up to each rank.

    ranks : array of int of shape (n_tests,)
        Tested ranks.

    error_rate : float
        Error rate under the null hypothesis.

    significance_level : float
        Significance level of each test.

    Returns
    -------
    array of bool of shape (n_tests,)

    Examples
    --------
    >>> find_clear_passes(np.array([0, 1, 30]), np.array([100, 100, 1000]), 0.05, 0.1)
    array([ True,  True,  True])
    """
    means = ranks * error_rate
    deviations = means - n_errors
    strict_level = significance_level * _CLEAR_PASS_FACTOR
    passes = (deviations > 0.0) & (
        deviations * deviations * _CLEAR_PASS_FACTOR >= -2.0 * math.log(strict_level) * means
    )
    unsettled = np.flatnonzero(~passes & (deviations > 0.0))
    p_values = bounds.binomial_p_value(n_errors[unsettled], ranks[unsettled], error_rate)
    passes[unsettled] = p_values <= strict_level
    return passes
