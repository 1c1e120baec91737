"""Simultaneous confidence bands on a distribution function.

The bands rest on a property of n independent draws. The uniform order
statistics U_(1) <= … <= U_(n) have the distributions Beta(i, n+1-i). Let L_i be the quantile of
U_(i) at a *local level* η, the same for every i. Then P(U_(i) < L_i for some i) = δ for exactly one
η. The resulting band is as tight in the tails as in the middle (equal local levels: Gontscharuk &
Finner 2017; Bates, Candès, Lei, Romano & Sesia, "Testing for outliers with conformal p-values",
2021). Ties only make it more conservative. Neither continuity nor an assumption on the ranking is
needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from metacal.formulas import Codes, Float
from metacal.statistics.levels import local_level, uniform_order_statistic_quantiles


@dataclass(frozen=True, eq=False)
class DistributionBand:
    """One-sided simultaneous bands on a distribution function P(X <= s).

    Attributes
    ----------
    sorted_draws : array
        Independent draws of X, sorted.

    Examples
    --------
    >>> band = DistributionBand.from_draws(np.arange(100.0))
    >>> thresholds = np.array([-1.0, 49.0, 99.0])
    >>> band.lower_bound_on_cdf(thresholds, 0.05).round(3), band.upper_bound_on_cdf(thresholds, 0.05).round(3)
    (array([0. , 0.358, 0.942]), array([0.058, 0.642, 1. ]))
    """

    sorted_draws: Float

    @classmethod
    def from_draws(cls, draws: ArrayLike) -> DistributionBand:
        """Build the band from independent draws in any order."""
        return cls(np.sort(np.asarray(draws, dtype=np.float64)))

    @property
    def n_draws(self) -> int:
        """Number of draws."""
        return len(self.sorted_draws)

    def count_draws_at_most(self, thresholds: Float) -> Codes:
        """Count the draws that are less than or equal to each threshold."""
        return np.searchsorted(self.sorted_draws, thresholds, side="right")

    def lower_bound_on_cdf(self, thresholds: Float, delta: float) -> Float:
        """Compute lower bounds on P(X <= s) for all thresholds s at once.

        All bounds hold together with probability 1 - delta. If i draws are at most s, then
        F(s) >= F(X_(i)) >= U_(i) >= L_i, where X_(i) is the quantile of U_(i).
        """
        return self._compute_order_statistic_bounds(self.count_draws_at_most(thresholds), delta)

    def upper_bound_on_cdf(self, thresholds: Float, delta: float) -> Float:
        """Compute upper bounds on P(X <= s) for all thresholds s at once.

        All bounds hold together with probability 1 - delta, because F(s) <= F(X_(i+1)-) <= U_(i+1).
        """
        n_draws_above = self.n_draws - self.count_draws_at_most(thresholds)
        return 1.0 - self._compute_order_statistic_bounds(n_draws_above, delta)

    def _compute_order_statistic_bounds(self, ranks: Codes, delta: float) -> Float:
        """Compute quantiles of uniform order statistics at the given ranks."""
        if self.n_draws == 0:
            return np.zeros(len(ranks))
        level_per_rank = local_level(self.n_draws, delta)
        return uniform_order_statistic_quantiles(ranks, self.n_draws, level_per_rank)
