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

# At least this factor times n^(2/3) of n rows are labelled (`benchmarks.answers` measures it).
_LABELS_PER_TWO_THIRDS_POWER = 0.7
# Enough rows are labelled to expect this many bad answers if the limit is just kept.
_MIN_EXPECTED_BAD_ANSWERS = 6


@dataclass(frozen=True)
class BadAnswerLimit:
    """Exact test that at most a given share of the answers is bad.

    Parameters
    ----------
    max_bad_share : float
        Largest share of bad answers that the promise allows.
    significance_level : float
        Significance level of the test.
    population_size : int, optional
        Number of rows that the tested rows were drawn from without replacement. None if the promise
        is about the source of the rows, so that the number of bad answers is binomial.
    pool_size : int, optional
        Number of rows of the pool, pilot rows included. At most `max_bad_share * pool_size` of their
        answers may be bad.

    Examples
    --------
    >>> limit = BadAnswerLimit(0.01, 0.1)
    >>> limit.find_max_bad_rows(1000, has_one_threshold=True)
    5
    >>> limit.find_min_tested_rows(n_bad=5, n_available=1000, has_one_threshold=True)
    926
    >>> BadAnswerLimit(0.01, 0.1, 5000, 5000).find_max_bad_rows(1000, has_one_threshold=True)
    7
    """

    max_bad_share: float
    significance_level: float
    population_size: int | None = None
    pool_size: int | None = None

    def compute_p_value(self, n_bad: int, n_tested: int, *, has_one_threshold: bool) -> float:
        """Compute P(at most `n_bad` tested rows are bad) if the limit is just broken.

        Parameters
        ----------
        n_bad, n_tested : int
            Number of bad rows and of tested rows.
        has_one_threshold : bool
            Whether the cascade has one threshold, which may depend on the tested rows.

        Returns
        -------
        float
        """
        if self.population_size is None or self.pool_size is None:
            # Without a pool, the number of bad answers among the tested rows is binomial.
            return float(bdtr(n_bad, n_tested, self.max_bad_share))
        max_bad_in_pool = math.floor(self.max_bad_share * self.pool_size)
        # With one threshold, tested rows finally get the answer of the last model, which is never bad.
        n_bad_that_do_not_count = n_bad if has_one_threshold else 0
        n_bad_if_just_broken = max_bad_in_pool + 1 + n_bad_that_do_not_count
        return _compute_hypergeometric_cdf(
            n_bad,
            population_size=self.population_size,
            n_marked=min(n_bad_if_just_broken, self.population_size),
            n_draws=min(n_tested, self.population_size),
        )

    def passes(self, n_bad: int, n_tested: int, *, has_one_threshold: bool) -> bool:
        """Check whether the p-value is at most the significance level."""
        p_value = self.compute_p_value(
            n_bad=n_bad, n_tested=n_tested, has_one_threshold=has_one_threshold
        )
        return p_value <= self.significance_level

    def find_max_bad_rows(self, n_tested: int, *, has_one_threshold: bool) -> int | None:
        """Find the largest number of bad rows that passes the test, None if none does."""
        max_bad_rows = None
        for n_bad in range(n_tested + 1):
            if not self.passes(n_bad=n_bad, n_tested=n_tested, has_one_threshold=has_one_threshold):
                break
            max_bad_rows = n_bad
        return max_bad_rows

    def find_min_tested_rows(self, n_bad: int, n_available: int, *, has_one_threshold: bool) -> int:
        """Find how many rows must be tested so that `n_bad` bad rows pass the test.

        Parameters
        ----------
        n_bad : int
            Number of bad rows, which pass the test if all available rows are tested.
        n_available : int
            Number of rows that can be tested.
        has_one_threshold : bool
            Whether the cascade has one threshold, which may depend on the tested rows.

        Returns
        -------
        int
        """
        smallest_size = n_bad + 1
        candidate_sizes = range(smallest_size, n_available)
        # The p-value falls as more rows are tested, so the sizes that fail come first.
        n_failing_sizes = bisect_left(
            candidate_sizes,
            True,
            key=lambda n_tested: self.passes(
                n_bad=n_bad, n_tested=n_tested, has_one_threshold=has_one_threshold
            ),
        )
        return smallest_size + n_failing_sizes


def suggest_label_count(promise: MaxLoss, n_rows: int) -> int:
    """Suggest how many rows to label, if each label costs a call of the large model.

    The suggestion is 0.7 n^(2/3), but at least 6/epsilon. It is then lowered to the smallest number
    that allows as many bad rows. With n labels, the error of the threshold is worth about n^(-1/2)
    of them; `benchmarks.answers` measures the trade-off.

    Examples
    --------
    >>> from metacal.promises.cascade import MaxLoss
    >>> [suggest_label_count(MaxLoss(0.02), n) for n in (1000, 5000, 20_000, 100_000)]
    [265, 265, 462, 1463]
    """
    limit = BadAnswerLimit(max_bad_share=promise.epsilon, significance_level=promise.delta)
    n_labels_for_threshold = _LABELS_PER_TWO_THIRDS_POWER * n_rows ** (2 / 3)
    n_labels_for_limit = _MIN_EXPECTED_BAD_ANSWERS / promise.epsilon
    n_desired_labels = math.ceil(max(n_labels_for_threshold, n_labels_for_limit))
    n_labels = min(n_rows, n_desired_labels)
    max_bad_rows = limit.find_max_bad_rows(n_labels, has_one_threshold=True)
    if max_bad_rows is None:
        return n_labels
    return limit.find_min_tested_rows(
        n_bad=max_bad_rows, n_available=n_labels, has_one_threshold=True
    )


def compute_rows_needed_without_bad_answer(max_bad_share: float, significance_level: float) -> int:
    """Compute how many tested rows pass the binomial test if no answer is bad.

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
    """Compute the hypergeometric probability of at most k marked rows among the draws.

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
