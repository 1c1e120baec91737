"""Fixed sequences of ranks at which an accuracy is tested.

The number of rows, the accuracy and delta alone determine which ranks are tested, in which order and
at which significance level. `metacal.certification.rules.fixed_sequence` runs the tests and contains
the proof.

Terms used in this module:

- *error*: a row whose prediction is incorrect.
- *rank*: number of rows, counted from the lowest score. The test at rank m reads the first m rows.
- *segment*: consecutive ranks that are tested until one fails.
- *start*: first rank of a segment, given by the number of errors that its test tolerates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TypeVar

from metacal.certification.rank_tests import BinomialRankTests
from metacal.formulas import Float
from metacal.statistics import bounds

Candidate = TypeVar("Candidate")

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


@dataclass(frozen=True)
class RankRange:
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
    tuned_rank = min(n_rows, tuned_tests.first_rank_passing_with(n_tuned_errors))
    n_errors = max(0, tests.max_passing_errors(tuned_rank))
    lower_rank = tests.first_rank_passing_with(n_errors)
    higher_rank = tests.first_rank_passing_with(n_errors + 1)
    # Choose the rank that is closer to the tuned rank on a logarithmic scale.
    if tuned_rank * tuned_rank >= lower_rank * higher_rank:
        return n_errors + 1
    return n_errors


@lru_cache(maxsize=512)
def plan_rank_ranges(
    n_rows: int, accuracy: float, delta: float, starts: SegmentStarts | None = None
) -> tuple[RankRange, ...]:
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
    >>> for segment in plan_rank_ranges(1000, 0.95, 0.1):
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
        start_rank = tests.first_rank_passing_with(n_errors)
        is_above_preceding_start = not start_ranks or start_rank > start_ranks[-1]
        if start_rank <= n_rows and is_above_preceding_start:
            rank_tests.append(tests)
            start_ranks.append(start_rank)
            delta_fractions.append(delta_fraction)
    stop_ranks = [*start_ranks[1:], n_rows + 1]
    return tuple(map(RankRange, rank_tests, start_ranks, stop_ranks, delta_fractions))


def choose_first_tested_score(
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
    >>> import numpy as np
    >>> choose_first_tested_score(np.repeat([1.0, 2.0, 3.0], [1, 3, 6]), 1000, 0.95, 0.1)
    2.0
    """
    if not starts:
        starts = choose_usual_starts(n_rows, accuracy, delta)
    n_tolerated_errors, _ = max(starts, key=lambda start: start[1])
    tests = BinomialRankTests(n_rows, 1.0 - accuracy, delta)
    n_errors = min(n_tolerated_errors, tests.max_passing_errors(n_rows))
    start_rank = n_rows
    if n_errors >= 0:
        start_rank = tests.first_rank_passing_with(n_errors)
    n_pilot = len(sorted_pilot_scores)
    pilot_rank = math.ceil(n_pilot * start_rank / max(n_rows, 1))
    pilot_rank = min(n_pilot, max(1, pilot_rank))
    return float(sorted_pilot_scores[pilot_rank - 1])


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
