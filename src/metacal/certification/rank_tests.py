"""Exact binomial tests of an accuracy at ranks of a ranking.

Terms used in this module:

- *error*: a row whose prediction is incorrect.
- *rank*: number of rows, counted from the lowest score. The test at rank m reads the first m rows.
- *the test at rank m passes*: P(Bin(m, error_rate) <= number of errors) <= significance level.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr

from metacal.formulas import Codes, Flags
from metacal.statistics import bounds

# A rank is tested only if its largest p-value that passes is at least this fraction of the level.
_MIN_LEVEL_FRACTION_OF_TESTED_RANKS = 0.75

# A computed p-value up to this fraction of the level certainly passes, despite rounding errors.
_ONE_MINUS_ROUNDING_ERROR = 1.0 - 1e-6

# Products from this size on are computed with Python integers, because an int64 may overflow.
_MIN_PRODUCT_OF_PYTHON_INTEGERS = 2**62


@dataclass(frozen=True)
class BinomialRankTests:
    """Exact binomial tests that the error rate up to a rank is below a limit.

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
    >>> [rank for rank in range(1, 201) if tests.lowest_tested_rank_at_least(rank) == rank][:12]
    [45, 46, 47, 48, 49, 50, 77, 78, 79, 80, 81, 82]
    """

    n_rows: int
    error_rate: float
    significance_level: float

    def p_value(self, n_errors: int, rank: int) -> float:
        """Compute the binomial p-value of `n_errors` errors among the first `rank` rows."""
        if n_errors < 0:
            return 0.0
        return float(bdtr(float(n_errors), rank, self.error_rate))

    def max_passing_errors(self, rank: int) -> int:
        """Return the largest number of errors with which the test at a rank passes.

        It is -1 if the rank does not pass even without an error.
        """
        # The p-value rises with the number of errors, so the counts that pass come first.
        n_passing_error_counts = bisect_right(
            range(rank),
            self.significance_level,
            key=lambda n_errors: self.p_value(n_errors, rank),
        )
        return n_passing_error_counts - 1

    def lowest_rank_passing_with(self, n_errors: int) -> int:
        """Return the lowest rank at which a test passes with `n_errors` errors.

        It is n_rows + 1 if no rank passes.
        """
        # The p-value falls as the rank rises, so the ranks that fail come first.
        lowest_rank = n_errors + 1
        n_failing_ranks = bisect_left(
            range(lowest_rank, self.n_rows + 1),
            True,
            key=lambda rank: self.p_value(n_errors, rank) <= self.significance_level,
        )
        return lowest_rank + n_failing_ranks

    def lowest_rank_passing_with_at_most(self, n_tolerated_errors: int) -> int | None:
        """Return the lowest rank at which a test passes with at most so many errors.

        If no rank passes with so many errors, the number of errors is the largest with which all
        rows pass. The result is None if all rows would not pass even without an error.
        """
        n_errors = min(n_tolerated_errors, self.max_passing_errors(self.n_rows))
        if n_errors < 0:
            return None
        return self.lowest_rank_passing_with(n_errors)

    def lowest_tested_rank_at_least(self, min_rank: int) -> int:
        """Return the lowest tested rank that is at least `min_rank`.

        It is n_rows + 1 if there is none.
        """
        if min_rank > self.n_rows:
            return self.n_rows + 1
        rank = min_rank
        while rank < self.n_rows:
            max_errors = self.max_passing_errors(rank)
            if self._nearly_exhausts_level(rank, max_passing_errors=max_errors):
                return rank
            # The next ranks pass with at most `max_errors` errors too. Their largest passing p-values
            # are even smaller, so they are not tested either.
            rank = self.lowest_rank_passing_with(max_errors + 1)
        # The last rank is always tested.
        return self.n_rows

    def highest_tested_rank_below(self, stop_rank: int) -> int:
        """Return the highest tested rank below `stop_rank`, or 0 if there is none."""
        last_rank_is_below_stop = self.n_rows < stop_rank
        if last_rank_is_below_stop:
            # The last rank is always tested.
            return self.n_rows
        highest_rank = stop_rank - 1
        while highest_rank >= 1:
            max_errors = self.max_passing_errors(highest_rank)
            no_lower_rank_passes = max_errors < 0
            if no_lower_rank_passes:
                return 0
            lowest_rank = self.lowest_rank_passing_with(max_errors)
            ranks_with_same_max_errors = range(lowest_rank, highest_rank + 1)
            n_tested_ranks = self._count_tested_ranks(ranks_with_same_max_errors, max_errors)
            if n_tested_ranks > 0:
                # The tested ranks come first among these ranks.
                return ranks_with_same_max_errors[n_tested_ranks - 1]
            highest_rank = lowest_rank - 1
        return 0

    def _count_tested_ranks(self, ranks: range, max_passing_errors: int) -> int:
        """Count the tested ranks among ranks that pass with equally many errors.

        The p-value of these errors falls as the rank rises, so the tested ranks come first.
        """

        def is_untested_rank(rank: int) -> bool:
            return not self._nearly_exhausts_level(rank, max_passing_errors=max_passing_errors)

        return bisect_left(ranks, True, key=is_untested_rank)

    def _nearly_exhausts_level(self, rank: int, *, max_passing_errors: int) -> bool:
        """Check whether the largest p-value with which a rank passes is near the level."""
        if max_passing_errors < 0:
            return False
        largest_passing_p_value = self.p_value(max_passing_errors, rank)
        return (
            largest_passing_p_value >= _MIN_LEVEL_FRACTION_OF_TESTED_RANKS * self.significance_level
        )


def find_certain_passes(
    n_errors: Codes, ranks: Codes, error_rate: float, significance_level: float
) -> Flags:
    """Find the binomial tests that pass despite any rounding error.

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
    >>> find_certain_passes(np.array([0, 1, 30]), np.array([100, 100, 1000]), 0.05, 0.1)
    array([ True,  True,  True])
    """
    expected_errors = ranks * error_rate
    expected_minus_observed_errors = expected_errors - n_errors
    level_less_rounding_error = significance_level * _ONE_MINUS_ROUNDING_ERROR
    squared_deviations = expected_minus_observed_errors * expected_minus_observed_errors
    has_fewer_errors_than_expected = expected_minus_observed_errors > 0.0
    # A Chernoff bound exp(-t² / 2μ) of at most the level is the condition t² >= -2 log(level) μ.
    is_certain_pass = has_fewer_errors_than_expected & (
        squared_deviations * _ONE_MINUS_ROUNDING_ERROR
        >= -2.0 * math.log(level_less_rounding_error) * expected_errors
    )
    needs_p_value = has_fewer_errors_than_expected & ~is_certain_pass
    p_values = bounds.binomial_p_value(n_errors[needs_p_value], ranks[needs_p_value], error_rate)
    is_certain_pass[needs_p_value] = p_values <= level_less_rounding_error
    return is_certain_pass


def passes_in_expectation(n_errors: Codes, ranks: Codes, accuracy: float) -> Flags:
    """Check at each rank whether the accuracy holds in expectation.

    The condition is E + 1 <= (1 - accuracy)(m + 1), in exact arithmetic.

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
    allowed_error_rate = 1 - bounds.to_exact_fraction(accuracy)
    largest_product = allowed_error_rate.denominator * (int(ranks.max()) + 1)
    integer_type: type = np.int64
    if largest_product >= _MIN_PRODUCT_OF_PYTHON_INTEGERS:
        # Arrays of objects compute with Python integers, which cannot overflow.
        integer_type = object
    errors_plus_one: NDArray[Any] = n_errors.astype(integer_type) + 1
    ranks_plus_one: NDArray[Any] = ranks.astype(integer_type) + 1
    # Both sides of the condition are multiplied by the denominator, so that they are integers.
    has_few_enough_errors = (
        errors_plus_one * allowed_error_rate.denominator
        <= ranks_plus_one * allowed_error_rate.numerator
    )
    return np.asarray(has_few_enough_errors, dtype=bool)
