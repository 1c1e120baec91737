"""Running of planned tests on a ranking.

`metacal.certification.plans` plans the tests of an accuracy. This module makes them: it finds the
highest rank that passes. `metacal.certification.rules.fixed_sequence` has the proofs.

Terms used in this module:

- *error*: a row that is not correct.
- *tie block*: rows with equal scores. Errors come first within a tie block, unless stated otherwise.
- *last read rank*: rank of the last row whose label was read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from metacal.certification.first_failure import find_first_failure
from metacal.certification.rank_plan import FirstTieBlock, RankPlan
from metacal.certification.rank_tests import BinomialRankTests, find_certain_passes
from metacal.certification.ranking import Ranking
from metacal.certification.rules.rule import SequenceTrace, get_last_or_zero
from metacal.certification.test_sequences import RankRange
from metacal.formulas import Codes, Float
from metacal.statistics import bounds


class SequenceOutcome(NamedTuple):
    """Outcome of a test sequence.

    Attributes
    ----------
    trace : SequenceTrace
        End of the sequence.

    every_test_passed : bool
        Whether all planned tests passed.
    """

    trace: SequenceTrace
    every_test_passed: bool


def run_planned_tests(
    ranking: Ranking, plan: RankPlan, significance_level: float, max_tested_rank: int | None = None
) -> SequenceOutcome:
    """Run the tests of a plan, and find the highest rank that passes.

    Parameters
    ----------
    ranking : Ranking
        Calibration rows in increasing order of score.

    plan : RankPlan
        Ranks, tie blocks or values to test.

    significance_level : float
        Significance level of all tests together.

    max_tested_rank : int, optional
        If given, only ranks up to this one are tested. It must be the end of a tie block.

    Returns
    -------
    SequenceOutcome
    """
    if plan.first_tested_score is not None:
        return _test_every_score_value(
            ranking,
            plan.first_tested_score,
            accuracy=plan.limit,
            significance_level=significance_level,
            max_tested_rank=max_tested_rank,
        )
    if plan.first_tested_tie_block is not None:
        return _test_tie_blocks_from_rank(
            ranking,
            plan.first_tested_tie_block,
            accuracy=plan.limit,
            significance_level=significance_level,
            max_tested_rank=max_tested_rank,
        )
    if plan.tests_every_rank_from is not None:
        sequence_trace = _test_every_rank(
            ranking,
            plan.tests_every_rank_from,
            accuracy=plan.limit,
            significance_level=significance_level,
            max_tested_rank=max_tested_rank,
        )
        # A plan that tests every rank passes no significance level on to other subgroups.
        return SequenceOutcome(sequence_trace, every_test_passed=False)
    return _test_rank_ranges(ranking, plan.rank_ranges, significance_level, max_tested_rank)


def _test_rank_ranges(
    ranking: Ranking,
    rank_ranges: tuple[RankRange, ...],
    significance_level: float,
    max_tested_rank: int | None,
) -> SequenceOutcome:
    """Test the ranks of each range until a test fails.

    If the ranking contains only counts, it may be open whether a range fails, and then also which
    level the next range has. Both possibilities are followed, so that one `FinerCountsNeeded` names
    all cells that must be counted again.

    Returns
    -------
    SequenceOutcome
    """
    highest_passed_rank = 0
    every_test_passed = len(rank_ranges) > 0
    # Fractions of the significance level that the preceding range may pass on to the next range. The set
    # has both outcomes as long as it is open whether the preceding range fails.
    zero_fraction = Fraction(0)
    possible_carried_fractions = {zero_fraction}
    failures: list[_Failure] = []
    unordered_blocks: set[int] = set()
    for rank_range in rank_ranges:
        next_carried_fractions: set[Fraction] = set()
        for carried_fraction in possible_carried_fractions:
            level_fraction = carried_fraction + rank_range.level_fraction
            range_level = float(level_fraction) * significance_level
            first_failure = find_first_failure(ranking, rank_range, range_level)
            first_rank_not_passed = first_failure.rank
            unordered_blocks.update(first_failure.unordered_blocks)
            if max_tested_rank is not None and first_failure.rank > max_tested_rank:
                first_rank_not_passed = max_tested_rank + 1
                every_test_passed = False
                next_carried_fractions.add(level_fraction)
            elif first_failure.rank < rank_range.stop_rank:
                every_test_passed = False
                rank_tests = replace(rank_range.rank_tests, significance_level=range_level)
                failures.append(_Failure(first_failure.rank, rank_tests))
                next_carried_fractions.add(zero_fraction)
            else:
                next_carried_fractions.add(level_fraction)
                if first_failure.unordered_blocks:
                    # A range passes no fraction on if a test in an unordered block fails.
                    next_carried_fractions.add(zero_fraction)
            last_passed_rank = rank_range.rank_tests.highest_tested_rank_below(
                first_rank_not_passed
            )
            if last_passed_rank >= rank_range.start_rank:
                highest_passed_rank = last_passed_rank
        possible_carried_fractions = next_carried_fractions

    if unordered_blocks:
        raise ranking.build_finer_counts_error(unordered_blocks)
    if 0 < highest_passed_rank < ranking.n_rows:
        ranking.require_known_order_in_blocks([ranking.find_tie_block(highest_passed_rank)])
    sequence_trace = _trace_end_of_sequence(ranking, highest_passed_rank, failures)
    return SequenceOutcome(sequence_trace, every_test_passed)


@dataclass(frozen=True)
class _Failure:
    """Failed rank, with the tests at its significance level."""

    rank: int
    rank_tests: BinomialRankTests


def _trace_end_of_sequence(
    ranking: Ranking, highest_passed_rank: int, failures: list[_Failure]
) -> SequenceTrace:
    """Record the highest passed rank of a test sequence and the last rank read.

    Labels are read upward, in whole tie blocks, until a test above the highest passed rank is certain
    to fail. If no such test fails, or if the order of rows is unknown, all labels count as read.
    """
    later_failures = [failure for failure in failures if failure.rank > highest_passed_rank]
    may_have_read_all_labels = not later_failures or not ranking.has_known_order
    if may_have_read_all_labels:
        last_read_rank = ranking.n_rows
    else:
        first_intolerable_error_rank = _find_first_intolerable_error(ranking, later_failures[0])
        last_needed_rank = max(highest_passed_rank, first_intolerable_error_rank)
        last_read_block = ranking.find_tie_block(last_needed_rank)
        last_read_rank = int(ranking.tie_block_end_ranks[last_read_block])
    n_earlier_failures = len(failures) - len(later_failures)
    return SequenceTrace(
        highest_passed_rank, last_read_rank=last_read_rank, n_failures=n_earlier_failures
    )


def _find_first_intolerable_error(ranking: Ranking, failure: _Failure) -> int:
    """Find the rank of the first error beyond those that a failed test tolerates."""
    n_tolerated_errors = max(failure.rank_tests.max_passing_errors(failure.rank), 0)
    # Indices start at 0, so the first error beyond n tolerated errors has index n.
    return int(ranking.error_ranks[n_tolerated_errors])


def _test_every_score_value(
    ranking: Ranking,
    first_tested_score: float,
    accuracy: float,
    significance_level: float,
    max_tested_rank: int | None,
) -> SequenceOutcome:
    """Test distinct scores upward from the first tested score until a test fails.

    A value that no row has stands for the next lower value that some row has.
    """
    n_blocks_up_to_first_score = int(
        np.searchsorted(ranking.tie_block_scores, first_tested_score, side="right")
    )
    first_test_has_no_rows = n_blocks_up_to_first_score == 0
    if first_test_has_no_rows:
        last_read_rank = _find_end_of_next_tie_block(ranking, rank=0)
        sequence_trace = SequenceTrace(highest_passed_rank=0, last_read_rank=last_read_rank)
        return SequenceOutcome(sequence_trace, every_test_passed=False)

    return _test_tie_blocks(
        ranking,
        first_block=n_blocks_up_to_first_score - 1,
        accuracy=accuracy,
        significance_level=significance_level,
        max_tested_rank=max_tested_rank,
    )


def _test_tie_blocks_from_rank(
    ranking: Ranking,
    first_tie_block: FirstTieBlock,
    accuracy: float,
    significance_level: float,
    max_tested_rank: int | None,
) -> SequenceOutcome:
    """Test a rank and then the ends of higher tie blocks until a test fails.

    At the rank itself, rows with equal scores are in random order.
    """
    first_rank = first_tie_block.rank
    n_errors_up_to_first_rank = _draw_number_of_errors_up_to_rank(
        ranking, first_rank, first_tie_block.tie_break_number
    )
    p_value_at_first_rank = bounds.binomial_p_value(
        np.array(n_errors_up_to_first_rank), first_rank, error_rate=1.0 - accuracy
    )
    if p_value_at_first_rank > significance_level:
        sequence_trace = SequenceTrace(highest_passed_rank=0, last_read_rank=ranking.n_rows)
        return SequenceOutcome(sequence_trace, every_test_passed=False)
    return _test_tie_blocks(
        ranking,
        first_block=ranking.find_tie_block(first_rank),
        accuracy=accuracy,
        significance_level=significance_level,
        max_tested_rank=max_tested_rank,
    )


def _draw_number_of_errors_up_to_rank(ranking: Ranking, rank: int, tie_break_number: float) -> int:
    """Draw the number of errors up to a rank, with ties in random order.

    Parameters
    ----------
    ranking : Ranking
        Calibration rows in increasing order of score.

    rank : int
        Rank.

    tie_break_number : float
        Random number in [0, 1).

    Returns
    -------
    int
        Errors of the lower tie blocks, plus a hypergeometric number of those in the block of the rank.
    """
    tie_block = ranking.find_tie_block(rank)
    # Entry i of an array is the number of rows or errors in the first i tie blocks.
    n_rows_in_first_blocks = np.append(0, ranking.tie_block_end_ranks)
    n_errors_in_first_blocks = np.append(0, ranking.cumulative_errors)
    n_rows_below_block = int(n_rows_in_first_blocks[tie_block])
    n_errors_below_block = int(n_errors_in_first_blocks[tie_block])
    n_block_rows = int(n_rows_in_first_blocks[tie_block + 1]) - n_rows_below_block
    n_block_errors = int(n_errors_in_first_blocks[tie_block + 1]) - n_errors_below_block
    n_drawn_errors = _draw_hypergeometric_number(
        n_rows=n_block_rows,
        n_errors=n_block_errors,
        n_drawn_rows=rank - n_rows_below_block,
        uniform_number=tie_break_number,
    )
    return n_errors_below_block + n_drawn_errors


def _draw_hypergeometric_number(
    n_rows: int, n_errors: int, n_drawn_rows: int, uniform_number: float
) -> int:
    """Convert a uniform number in [0, 1) to the number of errors among rows drawn at random.

    The rows are drawn without replacement, so the number has a hypergeometric distribution.
    """
    n_correct = n_rows - n_errors
    min_drawn_errors = max(0, n_drawn_rows - n_correct)
    max_drawn_errors = min(n_drawn_rows, n_errors)
    possible_error_counts = np.arange(min_drawn_errors, max_drawn_errors + 1)
    log_probabilities = (
        _log_binomial_coefficient(n_errors, possible_error_counts)
        + _log_binomial_coefficient(n_correct, n_drawn_rows - possible_error_counts)
        - _log_binomial_coefficient(n_rows, np.array(n_drawn_rows))
    )
    cumulative_probabilities = np.cumsum(np.exp(log_probabilities))
    drawn_index = int(np.searchsorted(cumulative_probabilities, uniform_number, side="right"))
    # The uniform number 1 puts errors first, so it gives the largest possible error count.
    last_index = len(possible_error_counts) - 1
    return int(possible_error_counts[min(drawn_index, last_index)])


def _log_binomial_coefficient(n: int, k: Codes) -> Float:
    """Compute the logarithm of the binomial coefficient n over k."""
    log_factorial_ratio: Float = gammaln(n + 1.0) - gammaln(k + 1.0)
    return log_factorial_ratio - gammaln(n - k + 1.0)


def _test_tie_blocks(
    ranking: Ranking,
    first_block: int,
    accuracy: float,
    significance_level: float,
    max_tested_rank: int | None,
) -> SequenceOutcome:
    """Test the ends of tie blocks upward until a test fails."""
    n_tie_blocks = len(ranking.tie_block_end_ranks)
    stop_block = n_tie_blocks
    if max_tested_rank is not None:
        stop_block = int(
            np.searchsorted(ranking.tie_block_end_ranks, max_tested_rank, side="right")
        )
    tested_ranks = ranking.tie_block_end_ranks[first_block:stop_block]
    n_errors = ranking.cumulative_errors[first_block:stop_block]

    # A test that certainly passes keeps the p-value 0, because an exact p-value is slow to compute.
    error_rate = 1.0 - accuracy
    certainly_passes = find_certain_passes(n_errors, tested_ranks, error_rate, significance_level)
    needs_p_value = ~certainly_passes
    p_values = np.zeros(len(tested_ranks))
    p_values[needs_p_value] = bounds.binomial_p_value(
        n_errors[needs_p_value], tested_ranks[needs_p_value], error_rate
    )

    n_passed = _count_passes_before_first_failure(p_values, significance_level)
    highest_passed_rank = get_last_or_zero(tested_ranks[:n_passed])
    passed_last_block = first_block + n_passed == n_tie_blocks
    every_test_passed = n_passed > 0 and passed_last_block
    last_read_rank = _find_end_of_next_tie_block(ranking, highest_passed_rank)
    sequence_trace = SequenceTrace(highest_passed_rank, last_read_rank=last_read_rank)
    return SequenceOutcome(sequence_trace, every_test_passed)


def _test_every_rank(
    ranking: Ranking,
    first_tested_rank: int,
    accuracy: float,
    significance_level: float,
    max_tested_rank: int | None,
) -> SequenceTrace:
    """Test every rank upward from the first tested rank until a test fails."""
    if max_tested_rank is None:
        max_tested_rank = ranking.n_rows
    tested_ranks = np.arange(first_tested_rank, max_tested_rank + 1)
    n_errors = np.searchsorted(ranking.error_ranks, tested_ranks, side="right")
    p_values = bounds.binomial_p_value(n_errors, tested_ranks, error_rate=1.0 - accuracy)
    n_passed = _count_passes_before_first_failure(p_values, significance_level)
    highest_passed_rank = get_last_or_zero(tested_ranks[:n_passed])
    last_read_rank = _find_end_of_next_tie_block(ranking, highest_passed_rank)
    return SequenceTrace(highest_passed_rank, last_read_rank=last_read_rank)


def _find_end_of_next_tie_block(ranking: Ranking, rank: int) -> int:
    """Return the last rank of the tie block that follows a rank."""
    next_block = int(np.searchsorted(ranking.tie_block_end_ranks, rank, side="right"))
    return get_last_or_zero(ranking.tie_block_end_ranks[: next_block + 1])


def _count_passes_before_first_failure(p_values: Float, significance_level: float) -> int:
    """Count the tests that pass before the first failure."""
    failed_tests = np.flatnonzero(p_values > significance_level)
    if len(failed_tests) == 0:
        return len(p_values)
    first_failed_test = failed_tests[0]
    return int(first_failed_test)
