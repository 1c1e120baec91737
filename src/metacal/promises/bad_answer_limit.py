r"""Exact test of a limit on the rate of bad answers.

An answer is *bad* if it differs from the answer of the last model of a cascade (or is wrong, if
people answer the remaining rows). `metacal.promises.staged_cascade` has the proofs.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import bdtr, gammaln

from metacal.formulas import Codes, Float

if TYPE_CHECKING:
    from metacal.promises.cascade import MaxLoss

# About c N^(2/3) labels for N rows cost least in total. This constant is the coefficient c.
# `benchmarks.answers` measures the coefficient.
_CHEAPEST_LABEL_COUNT_COEFFICIENT = 0.7
# At least this many bad answers are expected among labelled rows if their share is the limit.
_MIN_EXPECTED_BAD_ANSWERS = 6


@dataclass(frozen=True)
class BadAnswerTest:
    """Exact test that at most a given share of the answers is bad.

    Parameters
    ----------
    max_bad_share : float
        Largest share of bad answers that the promise allows.
    significance_level : float
        Significance level of the test.
    pool_size : int, optional
        Number of rows of the pool, pilot rows included. At most `max_bad_share * pool_size` of their
        answers may be bad. None if the promise is about the source of the rows, so that the number
        of bad answers is binomial.
    n_pilot_rows : int, default=0
        Number of rows of the pool that are never tested, because they chose the thresholds. The
        tested rows are drawn from the others, without replacement.

    Examples
    --------
    >>> test = BadAnswerTest(0.01, 0.1)
    >>> test.find_max_passing_bad_count(1000)
    5
    >>> test.find_min_tested_rows(n_bad=5, n_available=1000)
    926
    >>> pool_test = BadAnswerTest(0.01, 0.1, pool_size=5000)
    >>> pool_test.find_max_passing_bad_count(1000, corrects_tested_rows=True)
    7
    """

    max_bad_share: float
    significance_level: float
    pool_size: int | None = None
    n_pilot_rows: int = 0

    def compute_p_value(
        self, n_bad: int, n_tested: int, *, corrects_tested_rows: bool = False
    ) -> float:
        """Compute the p-value of the null hypothesis that too many answers are bad.

        It is the probability of at most `n_bad` bad answers among the tested rows. Over the
        hypothesis, this probability is largest just above the limit.

        Parameters
        ----------
        n_bad, n_tested : int
            Number of bad rows and of tested rows.
        corrects_tested_rows : bool, default=False
            Whether the answers of the tested rows of a pool are replaced by those of the last model,
            so that they do not count against the limit. Without a pool it has no effect.

        Returns
        -------
        float
        """
        if self.pool_size is None:
            # Without a pool, the number of bad answers among the tested rows is binomial.
            return float(bdtr(n_bad, n_tested, self.max_bad_share))
        n_testable_rows = self.pool_size - self.n_pilot_rows
        allowed_bad_count = math.floor(self.max_bad_share * self.pool_size)
        min_violating_bad_count = allowed_bad_count + 1
        if corrects_tested_rows:
            # Bad answers to tested rows are corrected, so only the bad answers to untested rows
            # count against the limit.
            n_corrected_answers = n_bad
            min_violating_bad_count += n_corrected_answers
        return _compute_hypergeometric_cdf(
            n_bad,
            population_size=n_testable_rows,
            n_marked=min(min_violating_bad_count, n_testable_rows),
            n_draws=min(n_tested, n_testable_rows),
        )

    def passes(self, n_bad: int, n_tested: int, *, corrects_tested_rows: bool = False) -> bool:
        """Check whether the p-value is at most the significance level."""
        p_value = self.compute_p_value(
            n_bad=n_bad, n_tested=n_tested, corrects_tested_rows=corrects_tested_rows
        )
        return p_value <= self.significance_level

    def find_max_passing_bad_count(
        self, n_tested: int, *, corrects_tested_rows: bool = False
    ) -> int | None:
        """Find the largest number of bad rows with which the test passes, or None."""
        max_passing_count = None
        for n_bad in range(n_tested + 1):
            if not self.passes(
                n_bad=n_bad, n_tested=n_tested, corrects_tested_rows=corrects_tested_rows
            ):
                break
            max_passing_count = n_bad
        return max_passing_count

    def find_min_tested_rows(
        self, n_bad: int, n_available: int, *, corrects_tested_rows: bool = False
    ) -> int:
        """Find the smallest number of tested rows with which `n_bad` bad rows pass.

        Parameters
        ----------
        n_bad : int
            Number of bad rows, which pass the test if all available rows are tested.
        n_available : int
            Number of rows that can be tested.
        corrects_tested_rows : bool, default=False
            As in `compute_p_value`.

        Returns
        -------
        int
        """
        min_sample_size = n_bad + 1
        sample_sizes = range(min_sample_size, n_available)
        # The p-value falls as the sample grows, so the failing sample sizes come first.
        n_failing_sample_sizes = bisect_left(
            sample_sizes,
            True,
            key=lambda n_tested: self.passes(
                n_bad=n_bad, n_tested=n_tested, corrects_tested_rows=corrects_tested_rows
            ),
        )
        return min_sample_size + n_failing_sample_sizes


def suggest_label_count(promise: MaxLoss, n_rows: int) -> int:
    """Suggest how many rows to label, if each label costs a call of the large model.

    Each of n labels costs one call, and the error of a threshold from n labels costs a number of
    calls in proportion to N/√n for N rows. The sum of both is smallest at n = c N^(2/3), where
    `benchmarks.answers` found c = 0.7. The suggestion is this number, but at least 6/epsilon. It is
    then lowered to the smallest number of labels that allows as many bad rows.

    Examples
    --------
    >>> from metacal.promises.cascade import MaxLoss
    >>> [suggest_label_count(MaxLoss(0.02), n) for n in (1000, 5000, 20_000, 100_000)]
    [265, 265, 462, 1463]
    """
    max_bad_share = promise.epsilon
    test = BadAnswerTest(max_bad_share, significance_level=promise.delta)
    # About c N^(2/3) labels minimize the cost of labels plus that of an inaccurate threshold.
    cost_minimizing_label_count = _CHEAPEST_LABEL_COUNT_COEFFICIENT * n_rows ** (2 / 3)
    min_label_count = _MIN_EXPECTED_BAD_ANSWERS / max_bad_share
    n_labels = min(n_rows, math.ceil(max(cost_minimizing_label_count, min_label_count)))
    max_passing_bad_count = test.find_max_passing_bad_count(n_labels)
    if max_passing_bad_count is None:
        return n_labels
    # If a test of fewer rows allows as many bad answers, the remaining labels are not needed.
    return test.find_min_tested_rows(n_bad=max_passing_bad_count, n_available=n_labels)


def compute_rows_needed_without_bad_answer(max_bad_share: float, significance_level: float) -> int:
    """Compute the number of rows that pass the binomial test if no answer is bad.

    The p-value of n rows without a bad answer is (1 - max_bad_share) ** n.

    Examples
    --------
    >>> compute_rows_needed_without_bad_answer(0.01, 0.1)
    230
    """
    return math.ceil(math.log(significance_level) / math.log1p(-max_bad_share))


def _compute_hypergeometric_cdf(
    k: int, *, population_size: int, n_marked: int, n_draws: int
) -> float:
    """Compute the hypergeometric probability of drawing at most k marked rows.

    Examples
    --------
    >>> round(_compute_hypergeometric_cdf(1, population_size=10, n_marked=4, n_draws=3), 4)
    0.6667
    """
    n_unmarked = population_size - n_marked
    min_marked_draws = max(0, n_draws - n_unmarked)
    max_marked_draws = min(k, n_draws, n_marked)
    n_marked_draws = np.arange(min_marked_draws, max_marked_draws + 1)
    log_probabilities = (
        _compute_log_binomial_coefficient(n_marked, n_marked_draws)
        + _compute_log_binomial_coefficient(n_unmarked, n_draws - n_marked_draws)
        - _compute_log_binomial_coefficient(population_size, n_draws)
    )
    return float(np.exp(log_probabilities).sum())


def _compute_log_binomial_coefficient(n: int, k: int | Codes) -> Float:
    """Compute the logarithm of the number of ways to choose k of n rows."""
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))
