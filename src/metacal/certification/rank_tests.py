"""Tests of an accuracy at ranks of a ranking.

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

# Smallest fraction of the significance level that the exact test at a tested rank uses.
_MIN_USED_LEVEL_FRACTION = 0.75

# A computed p-value up to this fraction of the level certainly passes, despite rounding errors.
_ONE_MINUS_ROUNDING_ERROR = 1.0 - 1e-6


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
    >>> [rank for rank in range(1, 201) if tests.first_tested_rank_from(rank) == rank][:12]
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
        """Return the largest number of errors with which a rank passes.

        It is -1 if the rank does not pass even without an error.
        """
        # The p-value rises with the number of errors, so the counts that pass come first.
        n_passing_error_counts = bisect_right(
            range(rank),
            self.significance_level,
            key=lambda n_errors: self.p_value(n_errors, rank),
        )
        return n_passing_error_counts - 1

    def first_rank_passing_with(self, n_errors: int) -> int:
        """Return the lowest rank that passes with `n_errors` errors.

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

    def find_start_rank(self, n_tolerated_errors: int) -> int | None:
        """Return the lowest rank that passes with some errors, or with as many as possible.

        It is None if not even all rows without an error would pass.
        """
        n_errors = min(n_tolerated_errors, self.max_passing_errors(self.n_rows))
        if n_errors < 0:
            return None
        return self.first_rank_passing_with(n_errors)

    def first_tested_rank_from(self, rank: int) -> int:
        """Return the lowest tested rank that is at least `rank`.

        It is n_rows + 1 if there is none.
        """
        if rank > self.n_rows:
            return self.n_rows + 1
        while rank < self.n_rows:
            max_errors = self.max_passing_errors(rank)
            passes_without_errors = max_errors >= 0
            if passes_without_errors and self._uses_enough_of_level(max_errors, rank):
                return rank
            # Up to the next rank that tolerates one more error, the tests use even less of the level.
            rank = self.first_rank_passing_with(max_errors + 1)
        return self.n_rows

    def last_tested_rank_below(self, rank: int) -> int:
        """Return the highest tested rank that is less than `rank`, or 0 if there is none."""
        if rank > self.n_rows:
            return self.n_rows
        highest_rank = rank - 1
        while highest_rank >= 1:
            max_errors = self.max_passing_errors(highest_rank)
            if max_errors < 0:
                return 0
            # The p-value of `max_errors` falls as the rank rises, so the tested ranks come first.
            first_rank = self.first_rank_passing_with(max_errors)
            n_tested_ranks = bisect_left(
                range(first_rank, highest_rank + 1),
                True,
                key=lambda later_rank: not self._uses_enough_of_level(max_errors, later_rank),
            )
            if n_tested_ranks > 0:
                return first_rank + n_tested_ranks - 1
            highest_rank = first_rank - 1
        return 0

    def _uses_enough_of_level(self, n_errors: int, rank: int) -> bool:
        """Check whether the p-value is at least 3/4 of the significance level."""
        p_value = self.p_value(n_errors, rank)
        return p_value >= _MIN_USED_LEVEL_FRACTION * self.significance_level


def find_clear_passes(
    n_errors: Codes, ranks: Codes, error_rate: float, significance_level: float
) -> Flags:
    """Find the binomial tests that pass with a margin for rounding errors.

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
    expected_errors = ranks * error_rate
    n_fewer_than_expected = expected_errors - n_errors
    strict_level = significance_level * _ONE_MINUS_ROUNDING_ERROR
    squared_deviations = n_fewer_than_expected * n_fewer_than_expected
    passes_by_chernoff_bound = (n_fewer_than_expected > 0.0) & (
        squared_deviations * _ONE_MINUS_ROUNDING_ERROR
        >= -2.0 * math.log(strict_level) * expected_errors
    )
    passes = passes_by_chernoff_bound
    undecided = np.flatnonzero(~passes_by_chernoff_bound & (n_fewer_than_expected > 0.0))
    p_values = bounds.binomial_p_value(n_errors[undecided], ranks[undecided], error_rate)
    passes[undecided] = p_values <= strict_level
    return passes


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
    integer_type: type = np.int64
    if allowed_error_rate.denominator * (int(ranks.max()) + 1) >= 2**62:
        # The products below could overflow an int64, but not a Python integer.
        integer_type = object
    errors_plus_one: NDArray[Any] = n_errors.astype(integer_type) + 1
    ranks_plus_one: NDArray[Any] = ranks.astype(integer_type) + 1
    # Both sides of the condition are multiplied by the denominator, so that they are integers.
    is_kept = (
        errors_plus_one * allowed_error_rate.denominator
        <= ranks_plus_one * allowed_error_rate.numerator
    )
    return np.asarray(is_kept, dtype=bool)
