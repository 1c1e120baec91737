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

# A rank is tested only if its exact test can use this fraction of the significance level.
_MIN_LEVEL_USE = 0.75

# A computed p-value below this fraction of the level certainly passes, despite rounding errors.
_CLEAR_PASS_FACTOR = 1.0 - 1e-6


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
        n_passing_counts = bisect_right(
            range(rank),
            self.significance_level,
            key=lambda n_errors: self.p_value(n_errors, rank),
        )
        return n_passing_counts - 1

    def first_rank_passing_with(self, n_errors: int) -> int:
        """Return the lowest rank that passes with `n_errors` errors.

        It is n_rows + 1 if no rank passes.
        """
        lowest_rank = n_errors + 1
        n_failing_ranks = bisect_left(
            range(lowest_rank, self.n_rows + 1),
            True,
            key=lambda rank: self.p_value(n_errors, rank) <= self.significance_level,
        )
        return lowest_rank + n_failing_ranks

    def first_tested_rank_from(self, rank: int) -> int:
        """Return the lowest tested rank that is at least `rank`.

        It is n_rows + 1 if there is none.
        """
        if rank > self.n_rows:
            return self.n_rows + 1
        while rank < self.n_rows:
            n_errors = self.max_passing_errors(rank)
            if n_errors >= 0 and not self._wastes_level(n_errors, rank):
                return rank
            rank = self.first_rank_passing_with(n_errors + 1)
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
            first_rank = self.first_rank_passing_with(n_errors)
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
