"""Plans of the ranks or score values that are tested.

A plan is fixed before any label of the tested rows is read. Every guarantee of this package rests
on this condition: the labels that are tested must not influence which tests are made. A `RankPlan`
is built from the number of rows, the limit, the significance level and pilot rows. None of them
contains a label of a tested row, so the condition holds by construction. Only
`ThresholdRule.certify`, which runs a plan, receives the ranking.

Terms used in this module:

- *error*: a row whose prediction is incorrect.
- *rank*: number of rows, counted from the most certain one. A test at rank m is about the first m
  rows.
- *start*: first rank of a range of tested ranks. It is given by the number of errors that its test
  tolerates.
- *significance level*: largest allowed probability that a test passes although the promise is
  violated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np

from metacal.certification.rank_tests import BinomialRankTests
from metacal.certification.test_sequences import (
    RangeStart,
    RangeStarts,
    RankRange,
    choose_first_tested_score,
    choose_usual_starts,
    plan_rank_ranges,
)
from metacal.formulas import Codes, Float
from metacal.statistics import bounds

# Largest fraction of the expected errors that the first start of `ShareStarts` tolerates.
_MAX_FIRST_ERROR_FRACTION = Fraction("0.12")

# Fraction of the expected errors that the first start of `ShareStarts` tolerates at limit 1.
_FIRST_ERROR_FRACTION_AT_LIMIT_1 = Fraction("0.03")

# Fraction of the expected errors and of the level, for each later start of `ShareStarts`.
_LATER_ERROR_AND_LEVEL_FRACTIONS = (
    (Fraction("0.3"), Fraction("0.05")),
    (Fraction("0.65"), Fraction("0.05")),
)

# Fraction of the significance level for the first of several starts of `ShareStarts`.
_FIRST_LEVEL_FRACTION = Fraction("0.9")

# Smallest number of expected errors at which `ShareStarts` has several starts.
_MIN_EXPECTED_ERRORS_FOR_LATER_STARTS = 20

# Smallest number of expected errors at which `ShareStarts` does not test every rank.
_MIN_EXPECTED_ERRORS_FOR_RANK_RANGES = 10

# Fractions of the allowed errors that the two starts of `EarlyStarts` tolerate.
_FIRST_EARLY_ERROR_FRACTION = Fraction("0.05")
_SECOND_EARLY_ERROR_FRACTION = Fraction("0.2")

# Fraction of the significance level for the second start of `EarlyStarts`.
_SECOND_EARLY_LEVEL_FRACTION = Fraction("0.2")

# Smallest number of allowed errors at which `EarlyStarts` has two starts.
_MIN_ALLOWED_ERRORS_FOR_TWO_EARLY_STARTS = 15


@dataclass(frozen=True, eq=False)
class PilotRows:
    """Rows that determine where the tests begin, and that are not tested themselves.

    Attributes
    ----------
    scores : array of float of shape (n_pilot,)
        Score of each pilot row.

    tests_score_values : bool
        Whether to test values of the score instead of ranks, because many scores are equal.

    relative_losses : array of float of shape (n_pilot,), optional
        Loss of each pilot row if it is accepted, as a fraction of the largest loss.

    class_codes : array of int of shape (n_pilot,), optional
        True class of each pilot row, if the labels of pilot rows are read.

    subgroup_codes : array of int of shape (n_pilot,), optional
        Subgroup of each pilot row. None if all subgroups share the pilot rows.

    n_withheld : int
        Number of calibration rows among the pilot rows, which are therefore not tested. 0 if the
        pilot rows come from elsewhere.
    """

    scores: Float
    tests_score_values: bool = False
    relative_losses: Float | None = None
    class_codes: Codes | None = None
    subgroup_codes: Codes | None = None
    n_withheld: int = 0

    def select_subgroups(self, selected_codes: Sequence[int]) -> PilotRows:
        """Return the pilot rows of some subgroups, or all if the codes are unknown."""
        if self.subgroup_codes is None:
            return self
        is_selected = np.isin(self.subgroup_codes, selected_codes)
        class_codes = None
        if self.class_codes is not None:
            class_codes = self.class_codes[is_selected]
        return PilotRows(
            scores=self.scores[is_selected],
            tests_score_values=self.tests_score_values,
            class_codes=class_codes,
            n_withheld=self.n_withheld,
        )

    def estimate_class_share(self, class_code: int) -> float | None:
        """Estimate the share of one class, or return None if no pilot row has a label."""
        if self.class_codes is None or len(self.class_codes) == 0:
            return None
        n_rows_of_class = float((self.class_codes == class_code).sum())
        # Half a row is added to each of both counts, so that the estimate is never 0 or 1.
        return (n_rows_of_class + 0.5) / (len(self.class_codes) + 1.0)


@dataclass(frozen=True)
class RankPlan:
    """Tests of one ranking, fixed before its labels are read.

    A plan of `FixedSequenceRule` has rank ranges, a first tested rank or a first tested score. The
    plans of other rules contain only the limit.

    Attributes
    ----------
    limit : float
        Limit that each test is about.

    rank_ranges : tuple of RankRange
        Ranks to test, with the fraction of the significance level that each range adds.

    first_tested_rank : int or None
        If given, every rank from this one upward is tested at the whole significance level.

    first_tested_score : float or None
        If given, every score value from this one upward is tested at the whole significance level.
    """

    limit: float
    rank_ranges: tuple[RankRange, ...] = ()
    first_tested_rank: int | None = None
    first_tested_score: float | None = None


class StartPolicy(Protocol):
    """Interface for choosing the ranks at which the tests of a sequence start."""

    def choose_starts(self, n_rows: int, limit: float, significance_level: float) -> RangeStarts:
        """Choose how many errors each start tolerates, and its fraction of the level."""

    def choose_starts_for_score_values(
        self, n_rows: int, limit: float, significance_level: float
    ) -> RangeStarts:
        """Choose the starts that determine the first tested score value."""

    def tests_every_rank(self, n_rows: int, limit: float) -> bool:
        """Check whether every rank is tested, because few errors are expected."""


@dataclass(frozen=True)
class UsualStarts:
    """Starts for predictions that are mostly correct."""

    def choose_starts(self, n_rows: int, limit: float, significance_level: float) -> RangeStarts:
        """Choose how many errors each start tolerates, and its fraction of the level."""
        return choose_usual_starts(n_rows, limit, significance_level)

    def choose_starts_for_score_values(
        self, n_rows: int, limit: float, significance_level: float
    ) -> RangeStarts:
        """Choose the starts that determine the first tested score value."""
        return choose_usual_starts(n_rows, limit, significance_level)

    def tests_every_rank(self, n_rows: int, limit: float) -> bool:
        """Check whether every rank is tested, because few errors are expected."""
        return False


@dataclass(frozen=True)
class EarlyStarts:
    """Starts for many subgroups under the false-coverage rate.

    The more subgroups certify something, the higher the significance level of all of them. Tests
    therefore start at low ranks.

    Examples
    --------
    >>> EarlyStarts().choose_starts(100, 0.9, 0.1)
    (RangeStart(n_tolerated_errors=0, delta_fraction=Fraction(1, 1)),)
    >>> [start.n_tolerated_errors for start in EarlyStarts().choose_starts(500, 0.9, 0.1)]
    [2, 10]
    """

    def choose_starts(self, n_rows: int, limit: float, significance_level: float) -> RangeStarts:
        """Choose how many errors each start tolerates, and its fraction of the level."""
        n_allowed_errors = n_rows * (1 - bounds.to_exact_fraction(limit))
        n_tolerated_by_first = int(_FIRST_EARLY_ERROR_FRACTION * n_allowed_errors)
        if n_allowed_errors < _MIN_ALLOWED_ERRORS_FOR_TWO_EARLY_STARTS:
            return (RangeStart(n_tolerated_by_first, delta_fraction=Fraction(1)),)
        n_tolerated_by_second = int(_SECOND_EARLY_ERROR_FRACTION * n_allowed_errors)
        return (
            RangeStart(n_tolerated_by_first, delta_fraction=1 - _SECOND_EARLY_LEVEL_FRACTION),
            RangeStart(n_tolerated_by_second, delta_fraction=_SECOND_EARLY_LEVEL_FRACTION),
        )

    def choose_starts_for_score_values(
        self, n_rows: int, limit: float, significance_level: float
    ) -> RangeStarts:
        """Choose the starts that determine the first tested score value."""
        return self.choose_starts(n_rows, limit, significance_level)

    def tests_every_rank(self, n_rows: int, limit: float) -> bool:
        """Check whether every rank is tested, because few errors are expected."""
        return False


@dataclass(frozen=True)
class ShareStarts:
    r"""Starts for a known or estimated share of correct rows, which may be small.

    The starts of an accuracy are fractions of the n (1 - limit) errors that all rows may have. If
    the correct rows are rare, no ranking comes near so many rows. For a share π of correct rows, at
    most λ = n · min(1, π / limit) · (1 - limit) errors are expected. The starts tolerate f λ, 0.3 λ
    and 0.65 λ of them, where f = min(0.12, 0.03 + 1 - limit), at 0.9, 0.05 and 0.05 of the
    significance level. If λ < 20, the first start receives the whole level. If λ < 10, every rank
    from the first start on is tested. If values are tested, the first value is chosen for half of
    the errors of the first start.

    All of this follows from n, limit and π. The share π is declared by the user or estimated on
    pilot rows, never on the rows that are tested.

    Parameters
    ----------
    correct_share : float, default=0.5
        Share of correct rows.

    Examples
    --------
    >>> [errors for errors, _ in ShareStarts(0.05).choose_starts(5000, 0.9, 0.1)]
    [3, 8, 18]
    >>> len(ShareStarts().choose_starts(300, 0.9, 0.1))
    1
    """

    correct_share: float = 0.5

    def choose_starts(self, n_rows: int, limit: float, significance_level: float) -> RangeStarts:
        """Choose how many errors each start tolerates, and its fraction of the level."""
        n_expected_errors = self.compute_expected_errors(n_rows, limit)
        first_error_fraction = min(
            _MAX_FIRST_ERROR_FRACTION,
            _FIRST_ERROR_FRACTION_AT_LIMIT_1 + 1 - bounds.to_exact_fraction(limit),
        )
        n_tolerated_by_first = int(first_error_fraction * n_expected_errors)
        if n_expected_errors < _MIN_EXPECTED_ERRORS_FOR_LATER_STARTS:
            return (RangeStart(n_tolerated_by_first, delta_fraction=Fraction(1)),)
        first_start = RangeStart(n_tolerated_by_first, delta_fraction=_FIRST_LEVEL_FRACTION)
        later_starts = tuple(
            RangeStart(int(error_fraction * n_expected_errors), delta_fraction=level_fraction)
            for error_fraction, level_fraction in _LATER_ERROR_AND_LEVEL_FRACTIONS
        )
        return (first_start, *later_starts)

    def choose_starts_for_score_values(
        self, n_rows: int, limit: float, significance_level: float
    ) -> RangeStarts:
        """Choose the starts that determine the first tested score value."""
        first_start = self.choose_starts(n_rows, limit, significance_level)[0]
        half_of_errors = first_start.n_tolerated_errors // 2
        return (RangeStart(half_of_errors, delta_fraction=Fraction(1)),)

    def tests_every_rank(self, n_rows: int, limit: float) -> bool:
        """Check whether every rank is tested, because few errors are expected."""
        return self.compute_expected_errors(n_rows, limit) < _MIN_EXPECTED_ERRORS_FOR_RANK_RANGES

    def compute_expected_errors(self, n_rows: int, limit: float) -> Fraction:
        """Compute the accepted errors if all correct rows are accepted at accuracy `limit`."""
        accuracy = bounds.to_exact_fraction(limit)
        accepted_share = bounds.to_exact_fraction(self.correct_share) / accuracy
        return n_rows * min(Fraction(1), accepted_share) * (1 - accuracy)


def plan_test_sequence(
    policy: StartPolicy,
    n_rows: int,
    limit: float,
    significance_level: float,
    pilot: PilotRows | None = None,
) -> RankPlan:
    """Plan the tests of "at least `limit` of the accepted rows are correct".

    Parameters
    ----------
    policy : StartPolicy
        Choice of the ranks at which the tests start.

    n_rows : int
        Number of rows that are tested.

    limit : float
        Accuracy that is tested.

    significance_level : float
        Significance level that the tests are planned for.

    pilot : PilotRows, optional
        Pilot rows. If many of their scores are equal, values are tested instead of ranks. Only
        their scores are read.

    Returns
    -------
    RankPlan
    """
    if pilot is not None and pilot.tests_score_values and len(pilot.scores) > 0:
        first_tested_score = choose_first_tested_score(
            np.sort(pilot.scores),
            n_rows,
            accuracy=limit,
            delta=significance_level,
            starts=policy.choose_starts_for_score_values(n_rows, limit, significance_level),
        )
        return RankPlan(limit=limit, first_tested_score=first_tested_score)

    starts = policy.choose_starts(n_rows, limit, significance_level)
    if policy.tests_every_rank(n_rows, limit):
        rank_tests = BinomialRankTests(
            n_rows, error_rate=1.0 - limit, significance_level=significance_level
        )
        first_tested_rank = rank_tests.lowest_rank_passing_with(starts[0].n_tolerated_errors)
        return RankPlan(limit=limit, first_tested_rank=first_tested_rank)
    rank_ranges = plan_rank_ranges(n_rows, limit, significance_level, starts)
    return RankPlan(limit=limit, rank_ranges=rank_ranges)
