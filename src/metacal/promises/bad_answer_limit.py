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


@dataclass(frozen=True)
class BadAnswerLimit:
    """Exact test that at most a share `epsilon` of the answers is bad.

    Parameters
    ----------
    epsilon : float
        Largest share of bad answers.
    delta : float
        Level of the test.
    n_drawn_from : int, optional
        Number of rows that the tested rows were drawn from. None if the promise is about the
        source of the rows, so that counts are binomial.
    n_pool : int, optional
        Number of rows of the pool, pilot rows included. At most `epsilon * n_pool` may be bad.

    Examples
    --------
    >>> limit = BadAnswerLimit(0.01, 0.1)
    >>> limit.max_bad_rows(1000, has_one_threshold=True)
    5
    >>> limit.min_tested_rows(1000, 5, has_one_threshold=True)
    926
    >>> BadAnswerLimit(0.01, 0.1, 5000, 5000).max_bad_rows(1000, has_one_threshold=True)
    7
    """

    epsilon: float
    delta: float
    n_drawn_from: int | None = None
    n_pool: int | None = None

    def compute_p_value(self, n_bad: int, n_rows: int, *, has_one_threshold: bool) -> float:
        """Compute P(at most `n_bad` of `n_rows` are bad) if the limit is just exceeded.

        Parameters
        ----------
        n_bad, n_rows : int
            Number of bad rows and of tested rows.
        has_one_threshold : bool
            Whether the cascade has one threshold, which may depend on the tested rows.

        Returns
        -------
        float
        """
        if self.n_drawn_from is None or self.n_pool is None:
            return float(bdtr(n_bad, n_rows, self.epsilon))
        n_bad_in_pool = math.floor(self.epsilon * self.n_pool) + 1
        if has_one_threshold:
            n_bad_in_pool += n_bad
        return _hypergeometric_cdf(
            n_bad,
            population_size=self.n_drawn_from,
            n_marked=min(n_bad_in_pool, self.n_drawn_from),
            n_draws=min(n_rows, self.n_drawn_from),
        )

    def max_bad_rows(self, n_rows: int, *, has_one_threshold: bool) -> int:
        """Return the largest number of bad rows that passes the test, or -1 if none does."""
        n_bad = -1
        while (
            n_bad < n_rows
            and self.compute_p_value(n_bad + 1, n_rows, has_one_threshold=has_one_threshold)
            <= self.delta
        ):
            n_bad += 1
        return n_bad

    def min_tested_rows(self, n_rows: int, n_bad: int, *, has_one_threshold: bool) -> int:
        """Return the smallest number of tested rows of which `n_bad` bad rows pass the test."""

        def passes(n_tested: int) -> bool:
            return (
                self.compute_p_value(n_bad, n_tested, has_one_threshold=has_one_threshold)
                <= self.delta
            )

        # The p-value falls as the number of tested rows grows, so bisection finds the smallest.
        candidate_sizes = range(n_bad + 1, n_rows)
        return n_bad + 1 + bisect_left(candidate_sizes, True, key=passes)


def suggest_label_count(promise: MaxLoss, n_rows: int) -> int:
    """Suggest how many of the rows to label, where each label is a call of the large model.

    The suggestion is 0.7 n^(2/3), but at least 6/epsilon. It is then lowered to the smallest number
    that allows as many bad rows. With n labels, the error of the threshold is worth about n^(-1/2)
    of them; `benchmarks.answers` measures the trade-off.

    Examples
    --------
    >>> from metacal.promises.cascade import MaxLoss
    >>> [suggest_label_count(MaxLoss(0.02), n) for n in (1000, 5000, 20_000, 100_000)]
    [265, 265, 462, 1463]
    """
    limit = BadAnswerLimit(promise.epsilon, promise.delta)
    n_labels = min(n_rows, math.ceil(max(0.7 * n_rows ** (2 / 3), 6 / promise.epsilon)))
    n_bad = limit.max_bad_rows(n_labels, has_one_threshold=True)
    return limit.min_tested_rows(n_labels, n_bad, has_one_threshold=True)


def _hypergeometric_cdf(k: int, *, population_size: int, n_marked: int, n_draws: int) -> float:
    """Compute P(at most k of the drawn rows are marked), for draws without replacement.

    Examples
    --------
    >>> round(_hypergeometric_cdf(1, population_size=10, n_marked=4, n_draws=3), 4)
    0.6667
    """
    n_unmarked = population_size - n_marked
    marked_draws = np.arange(max(0, n_draws - n_unmarked), min(k, n_draws, n_marked) + 1)
    log_probabilities = (
        _log_binomial_coefficient(n_marked, marked_draws)
        + _log_binomial_coefficient(n_unmarked, n_draws - marked_draws)
        - _log_binomial_coefficient(population_size, n_draws)
    )
    return float(np.exp(log_probabilities).sum())


def _log_binomial_coefficient(n: int, k: int | Codes) -> Float:
    """Compute the logarithm of the number of ways to choose k of n rows."""
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))
