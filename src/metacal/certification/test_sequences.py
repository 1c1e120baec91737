"""Fixed sequences of ranks at which an accuracy is tested.

The number of rows, the accuracy and delta alone determine which ranks are tested, in which order and
at which significance level. `metacal.certification.rules.fixed_sequence` runs the tests and contains
the proof.

Terms used in this module:

- *error*: a row whose prediction is incorrect.
- *rank*: number of rows, counted from the lowest score. The test at rank m reads the first m rows.
- *rank range*: consecutive ranks that are tested until one fails.
- *start*: first rank of a rank range. It is given by the number of errors that its test tolerates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple, TypeVar

from metacal.certification.rank_tests import BinomialRankTests
from metacal.formulas import Float
from metacal.statistics import bounds

Candidate = TypeVar("Candidate")

# Smallest number of allowed errors at which a test sequence has more than one start.
_MIN_ALLOWED_ERRORS_FOR_LATER_STARTS = 20

# Smallest number of allowed errors at which a single start tolerates at least one error.
_MIN_ALLOWED_ERRORS_TO_TOLERATE_ONE = 8

# The first start tolerates min(0.18, 0.03 + 2 (1 - accuracy)) of the errors that all rows may have.
_FIRST_ERROR_FRACTION_INTERCEPT = Fraction("0.03")
_FIRST_ERROR_FRACTION_SLOPE = 2
_MAX_FIRST_ERROR_FRACTION = Fraction("0.18")

# Fraction of delta that the first of several starts receives.
_FIRST_LEVEL_FRACTION = Fraction("0.95")

# Fraction of delta of a single start.
WHOLE_LEVEL = Fraction(1)

# Delta for which the starts were tuned. Starts for another delta lie at similar ranks.
_TUNED_DELTA = 0.1


@dataclass(frozen=True)
class RankRange:
    """Tested ranks from `start_rank` up to, but not including, `stop_rank`.

    Attributes
    ----------
    rank_tests : BinomialRankTests
        Tests that determine which ranks of the range are tested.

    start_rank, stop_rank : int
        First rank of this range, and first rank after it.

    level_fraction : Fraction
        Fraction of delta that the range adds to the level of its tests.
    """

    rank_tests: BinomialRankTests
    start_rank: int
    stop_rank: int
    level_fraction: Fraction


class RangeStart(NamedTuple):
    """Start of a rank range, given by the errors that its first test tolerates.

    Attributes
    ----------
    n_tolerated_errors : int
        Largest number of errors with which the first test of the range passes.

    level_fraction : Fraction
        Fraction of delta that the range adds to the level of its tests.
    """

    n_tolerated_errors: int
    level_fraction: Fraction


RangeStarts = tuple[RangeStart, ...]


class RelativeStart(NamedTuple):
    """Start of a rank range, given by a fraction of the errors that all rows may have.

    Attributes
    ----------
    error_fraction : Fraction
        Fraction of the errors with which the first test of the range passes.

    level_fraction : Fraction
        Fraction of delta that the range adds to the level of its tests.
    """

    error_fraction: Fraction
    level_fraction: Fraction

    def convert_to_range_start(self, n_errors: Fraction) -> RangeStart:
        """Convert to a start that tolerates a number of errors."""
        return RangeStart(int(self.error_fraction * n_errors), self.level_fraction)


# Later starts of the rank ranges, relative to the allowed errors.
_LATER_STARTS = (
    RelativeStart(error_fraction=Fraction("0.3"), level_fraction=Fraction("0.03")),
    # The last start is for scores with many ties, because a start within a large tie block fails.
    RelativeStart(error_fraction=Fraction("0.65"), level_fraction=Fraction("0.02")),
)


@lru_cache(maxsize=512)
def choose_usual_range_starts(n_rows: int, accuracy: float, delta: float) -> RangeStarts:
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
    tuple of RangeStart
        The ranks of the starts are close to those for delta = 0.1.

    Examples
    --------
    >>> choose_usual_range_starts(300, 0.97, delta=0.1)
    (RangeStart(n_tolerated_errors=1, level_fraction=Fraction(1, 1)),)
    >>> choose_usual_range_starts(300, 0.97, delta=0.001)
    (RangeStart(n_tolerated_errors=0, level_fraction=Fraction(1, 1)),)
    """
    cumulative_level_fraction = Fraction(0)
    range_starts = []
    for tuned_start in _choose_tuned_range_starts(n_rows, accuracy):
        cumulative_level_fraction += tuned_start.level_fraction
        n_tolerated_errors = _convert_tolerated_errors_to_delta(
            n_rows,
            accuracy,
            n_errors_at_tuned_delta=tuned_start.n_tolerated_errors,
            level_fraction=float(cumulative_level_fraction),
            delta=delta,
        )
        range_starts.append(RangeStart(n_tolerated_errors, tuned_start.level_fraction))
    return tuple(range_starts)


def _choose_tuned_range_starts(n_rows: int, accuracy: float) -> RangeStarts:
    """Choose the starts that were tuned for delta = 0.1."""
    allowed_error_rate = 1 - bounds.to_exact_fraction(accuracy)
    n_allowed_errors = n_rows * allowed_error_rate
    # A stricter accuracy is usually reached by a smaller fraction of the rows, so tests start earlier.
    first_error_fraction = min(
        _MAX_FIRST_ERROR_FRACTION,
        _FIRST_ERROR_FRACTION_INTERCEPT + _FIRST_ERROR_FRACTION_SLOPE * allowed_error_rate,
    )
    exact_first_errors = first_error_fraction * n_allowed_errors
    if n_allowed_errors < _MIN_ALLOWED_ERRORS_FOR_LATER_STARTS:
        n_tolerated_errors = int(exact_first_errors)
        if n_allowed_errors >= _MIN_ALLOWED_ERRORS_TO_TOLERATE_ONE:
            n_tolerated_errors = max(n_tolerated_errors, 1)
        return (RangeStart(n_tolerated_errors, level_fraction=WHOLE_LEVEL),)

    rounded_first_errors = int(exact_first_errors + Fraction(1, 2))
    first_start = RangeStart(rounded_first_errors, _FIRST_LEVEL_FRACTION)
    later_starts = [
        later_start.convert_to_range_start(n_allowed_errors) for later_start in _LATER_STARTS
    ]
    return (first_start, *later_starts)


def _convert_tolerated_errors_to_delta(
    n_rows: int,
    accuracy: float,
    n_errors_at_tuned_delta: int,
    level_fraction: float,
    delta: float,
) -> int:
    """Convert the errors that a start tolerates for delta = 0.1 to another delta.

    The start for the other delta has nearly the same rank.

    Parameters
    ----------
    n_rows : int
        Number of rows.

    accuracy : float
        Accuracy to certify.

    n_errors_at_tuned_delta : int
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
    allowed_error_rate = 1.0 - accuracy
    tests_at_tuned_delta = BinomialRankTests(
        n_rows, allowed_error_rate, significance_level=level_fraction * _TUNED_DELTA
    )
    tests_at_delta = BinomialRankTests(
        n_rows, allowed_error_rate, significance_level=level_fraction * delta
    )
    tuned_rank = min(n_rows, tests_at_tuned_delta.lowest_rank_passing_with(n_errors_at_tuned_delta))
    lower_error_count = max(0, tests_at_delta.max_passing_errors(tuned_rank))
    higher_error_count = lower_error_count + 1
    rank_with_fewer_errors = tests_at_delta.lowest_rank_passing_with(lower_error_count)
    rank_with_more_errors = tests_at_delta.lowest_rank_passing_with(higher_error_count)
    # The distances of the ranks from the tuned rank are compared on a logarithmic scale.
    is_nearer_to_more_errors = (
        tuned_rank * tuned_rank >= rank_with_fewer_errors * rank_with_more_errors
    )
    if is_nearer_to_more_errors:
        return higher_error_count
    return lower_error_count


@lru_cache(maxsize=512)
def plan_rank_ranges(
    n_rows: int, accuracy: float, delta: float, range_starts: RangeStarts | None = None
) -> tuple[RankRange, ...]:
    """Plan the rank ranges in which an accuracy is tested.

    Parameters
    ----------
    n_rows : int
        Number of rows.

    accuracy : float
        Accuracy to certify.

    delta : float
        Significance level of all tests together.

    range_starts : tuple of RangeStart, optional
        Starts of the rank ranges. The usual starts by default. A start whose rank is not above that
        of the preceding start is skipped.

    Returns
    -------
    tuple of RankRange

    Examples
    --------
    >>> for rank_range in plan_rank_ranges(1000, 0.95, 0.1):
    ...     print(rank_range.start_rank, rank_range.stop_rank, rank_range.level_fraction)
    236 424 19/20
    424 807 3/100
    807 1001 1/50
    """
    if range_starts is None:
        range_starts = choose_usual_range_starts(n_rows, accuracy, delta)
    # A range ends at the last row until the start of the next range is known.
    rank_ranges: list[RankRange] = []
    cumulative_level_fraction = Fraction(0)
    for n_tolerated_errors, level_fraction in range_starts:
        cumulative_level_fraction += level_fraction
        rank_tests = BinomialRankTests(
            n_rows,
            error_rate=1.0 - accuracy,
            significance_level=float(cumulative_level_fraction) * delta,
        )
        start_rank = rank_tests.lowest_rank_passing_with_at_most(n_tolerated_errors)
        if start_rank is None:
            continue
        if rank_ranges:
            preceding_range = rank_ranges[-1]
            if start_rank <= preceding_range.start_rank:
                continue
            rank_ranges[-1] = replace(preceding_range, stop_rank=start_rank)
        rank_ranges.append(
            RankRange(
                rank_tests=rank_tests,
                start_rank=start_rank,
                stop_rank=n_rows + 1,
                level_fraction=level_fraction,
            )
        )
    return tuple(rank_ranges)


def choose_main_start_rank(
    n_rows: int, accuracy: float, delta: float, range_starts: RangeStarts
) -> int:
    """Return the rank of the start with the largest fraction of delta.

    The rank is the one at which the test of this start passes at the whole of delta.
    """
    main_start = max(range_starts, key=lambda start: start.level_fraction)
    rank_tests = BinomialRankTests(n_rows, error_rate=1.0 - accuracy, significance_level=delta)
    start_rank = rank_tests.lowest_rank_passing_with_at_most(main_start.n_tolerated_errors)
    if start_rank is None:
        return n_rows
    return start_rank


def choose_first_tested_score(
    sorted_pilot_scores: Float,
    n_rows: int,
    accuracy: float,
    delta: float,
    range_starts: RangeStarts | None = None,
) -> float:
    """Choose the lowest score at which an accuracy is tested, from pilot scores.

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

    range_starts : tuple of RangeStart, optional
        Starts of the rank ranges. The usual starts by default.

    Returns
    -------
    float

    Examples
    --------
    >>> import numpy as np
    >>> choose_first_tested_score(np.repeat([1.0, 2.0, 3.0], [1, 3, 6]), 1000, 0.95, 0.1)
    2.0
    """
    if not range_starts:
        range_starts = choose_usual_range_starts(n_rows, accuracy, delta)
    start_rank = choose_main_start_rank(n_rows, accuracy, delta, range_starts)
    n_pilot_rows = len(sorted_pilot_scores)
    # The pilot row at the same quantile as the start has the first tested score.
    pilot_rank_of_start = math.ceil(n_pilot_rows * start_rank / max(n_rows, 1))
    pilot_rank = min(n_pilot_rows, max(1, pilot_rank_of_start))
    return float(sorted_pilot_scores[pilot_rank - 1])


def run_fallback_tests(
    sequences: Iterable[tuple[Fraction, Iterable[Candidate]]],
    passes: Callable[[Candidate, Fraction], bool],
) -> Candidate | None:
    """Return the last candidate that passes a fallback procedure (Wiens, 2003).

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
    ...     lambda candidate, level_fraction: candidate < 5 and level_fraction >= half,
    ... )
    4
    """
    last_passed_candidate: Candidate | None = None
    available_level_fraction = Fraction(0)
    for added_level_fraction, candidates in sequences:
        available_level_fraction += added_level_fraction
        for candidate in candidates:
            if not passes(candidate, available_level_fraction):
                # A failed sequence passes no part of delta on to the next sequence.
                available_level_fraction = Fraction(0)
                break
            last_passed_candidate = candidate
    return last_passed_candidate
