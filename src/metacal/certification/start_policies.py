"""Policies that choose the ranks at which the tests of an accuracy start.

A start is given by the number of errors that its test tolerates, and by its fraction of the
significance level. Both follow from the number of rows, the accuracy and the significance level alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from metacal.certification.test_sequences import (
    WHOLE_LEVEL,
    RangeStart,
    RangeStarts,
    RelativeStart,
    choose_usual_range_starts,
)
from metacal.statistics import bounds

# Share of the unread rows that is assumed to be correct if correct rows are rare.
_ASSUMED_CORRECT_SHARE = Fraction("0.25")

# Largest fraction of the expected errors that the first start of `RareCorrectStarts` tolerates.
_MAX_FIRST_ERROR_FRACTION = Fraction("0.12")

# Fraction of the expected errors that the first start of `RareCorrectStarts` tolerates at accuracy 1.
_FIRST_ERROR_FRACTION_AT_ACCURACY_1 = Fraction("0.03")

# Fraction of the expected errors that the first test tolerates if tie blocks are tested.
_TIE_BLOCK_ERROR_FRACTION = Fraction("0.25")

# Later starts of `RareCorrectStarts`, relative to the expected errors.
_LATER_STARTS = (
    RelativeStart(error_fraction=Fraction("0.3"), level_fraction=Fraction("0.05")),
    RelativeStart(error_fraction=Fraction("0.65"), level_fraction=Fraction("0.05")),
)

# Fraction of the significance level for the first of several starts of `RareCorrectStarts`.
_FIRST_LEVEL_FRACTION = Fraction("0.9")

# Smallest number of expected errors at which `RareCorrectStarts` has several starts.
_MIN_EXPECTED_ERRORS_FOR_LATER_STARTS = 20

# Smallest number of expected errors at which `RareCorrectStarts` does not test every rank.
_MIN_EXPECTED_ERRORS_FOR_RANK_RANGES = 5

# Fractions of the allowed errors that the two starts of `EarlyStarts` tolerate.
_FIRST_EARLY_ERROR_FRACTION = Fraction("0.05")
_SECOND_EARLY_ERROR_FRACTION = Fraction("0.2")

# Fraction of the significance level for the second start of `EarlyStarts`.
_SECOND_EARLY_LEVEL_FRACTION = Fraction("0.2")

# Smallest number of allowed errors at which `EarlyStarts` has two starts.
_MIN_ALLOWED_ERRORS_FOR_TWO_EARLY_STARTS = 15


class StartPolicy(Protocol):
    """Interface for choosing the ranks at which the tests of a sequence start."""

    def choose_range_starts(
        self, n_rows: int, min_accuracy: float, significance_level: float
    ) -> RangeStarts:
        """Choose the tolerated errors and the fraction of the level for each start."""

    def tests_every_rank(self, n_rows: int, min_accuracy: float) -> bool:
        """Check whether every rank is tested, because few errors are expected."""


@dataclass(frozen=True)
class UsualStarts:
    """Policy for the tests of predictions that are mostly correct."""

    def choose_range_starts(
        self, n_rows: int, min_accuracy: float, significance_level: float
    ) -> RangeStarts:
        """Choose the tolerated errors and the fraction of the level for each start."""
        return choose_usual_range_starts(n_rows, min_accuracy, significance_level)

    def tests_every_rank(self, n_rows: int, min_accuracy: float) -> bool:
        """Check whether every rank is tested, because few errors are expected."""
        return False


@dataclass(frozen=True)
class EarlyStarts:
    """Starts for many subgroups under the false-coverage rate.

    The more subgroups certify something, the higher the significance level of all of them. Tests
    therefore start at low ranks.

    Examples
    --------
    >>> EarlyStarts().choose_range_starts(100, 0.9, 0.1)
    (RangeStart(n_tolerated_errors=0, level_fraction=Fraction(1, 1)),)
    >>> [start.n_tolerated_errors for start in EarlyStarts().choose_range_starts(500, 0.9, 0.1)]
    [2, 10]
    """

    def choose_range_starts(
        self, n_rows: int, min_accuracy: float, significance_level: float
    ) -> RangeStarts:
        """Choose the tolerated errors and the fraction of the level for each start."""
        n_allowed_errors = n_rows * (1 - bounds.to_exact_fraction(min_accuracy))
        n_errors_tolerated_by_first = int(_FIRST_EARLY_ERROR_FRACTION * n_allowed_errors)
        if n_allowed_errors < _MIN_ALLOWED_ERRORS_FOR_TWO_EARLY_STARTS:
            return (RangeStart(n_errors_tolerated_by_first, level_fraction=WHOLE_LEVEL),)
        n_errors_tolerated_by_second = int(_SECOND_EARLY_ERROR_FRACTION * n_allowed_errors)
        return (
            RangeStart(
                n_errors_tolerated_by_first, level_fraction=1 - _SECOND_EARLY_LEVEL_FRACTION
            ),
            RangeStart(n_errors_tolerated_by_second, level_fraction=_SECOND_EARLY_LEVEL_FRACTION),
        )

    def tests_every_rank(self, n_rows: int, min_accuracy: float) -> bool:
        """Check whether every rank is tested, because few errors are expected."""
        return False


@dataclass(frozen=True)
class RareCorrectStarts:
    r"""Starts for the unread rows if fewer than half of the rows are unread.

    The usual starts are fractions of the n (1 - a) errors that n rows with the accuracy a may have.
    Of M unread rows, a ranking accepts about M / 4 correct ones, so λ = M · min(1, 0.25 / a) · (1 - a)
    errors are expected. The starts tolerate f λ, 0.3 λ and 0.65 λ of them, where f = min(0.12,
    0.03 + 1 - a), at 0.9, 0.05 and 0.05 of the significance level. If λ < 20, the first start
    receives the whole level. If λ < 5, every rank from the first start on is tested.

    Examples
    --------
    >>> [errors for errors, _ in RareCorrectStarts().choose_range_starts(2000, 0.9, 0.1)]
    [6, 16, 36]
    >>> len(RareCorrectStarts().choose_range_starts(300, 0.9, 0.1))
    1
    """

    def choose_range_starts(
        self, n_rows: int, min_accuracy: float, significance_level: float
    ) -> RangeStarts:
        """Choose the tolerated errors and the fraction of the level for each start."""
        n_expected_errors = self.compute_expected_errors(n_rows, min_accuracy)
        first_error_fraction = min(
            _MAX_FIRST_ERROR_FRACTION,
            _FIRST_ERROR_FRACTION_AT_ACCURACY_1 + 1 - bounds.to_exact_fraction(min_accuracy),
        )
        n_errors_tolerated_by_first = int(first_error_fraction * n_expected_errors)
        if n_expected_errors < _MIN_EXPECTED_ERRORS_FOR_LATER_STARTS:
            return (RangeStart(n_errors_tolerated_by_first, level_fraction=WHOLE_LEVEL),)
        first_start = RangeStart(n_errors_tolerated_by_first, level_fraction=_FIRST_LEVEL_FRACTION)
        later_starts = [
            later_start.convert_to_range_start(n_expected_errors) for later_start in _LATER_STARTS
        ]
        return (first_start, *later_starts)

    def choose_range_starts_for_tie_blocks(self, n_rows: int, min_accuracy: float) -> RangeStarts:
        """Choose the start if the ends of tie blocks are tested.

        It is later than for ranks. Rows of a tie block are all alike, so that the first of them
        contain no fewer errors than the others.
        """
        n_expected_errors = self.compute_expected_errors(n_rows, min_accuracy)
        n_tolerated_errors = int(_TIE_BLOCK_ERROR_FRACTION * n_expected_errors)
        return (RangeStart(n_tolerated_errors, level_fraction=WHOLE_LEVEL),)

    def tests_every_rank(self, n_rows: int, min_accuracy: float) -> bool:
        """Check whether every rank is tested, because few errors are expected."""
        return (
            self.compute_expected_errors(n_rows, min_accuracy)
            < _MIN_EXPECTED_ERRORS_FOR_RANK_RANGES
        )

    def compute_expected_errors(self, n_rows: int, min_accuracy: float) -> Fraction:
        """Compute the number of accepted errors if all correct rows are accepted."""
        accuracy = bounds.to_exact_fraction(min_accuracy)
        accepted_share = min(Fraction(1), _ASSUMED_CORRECT_SHARE / accuracy)
        return n_rows * accepted_share * (1 - accuracy)


# Policy for the tests of predictions that are mostly correct.
USUAL_STARTS = UsualStarts()

# Policy for the tests of the unread rows if correct rows are rare.
RARE_CORRECT_STARTS = RareCorrectStarts()
