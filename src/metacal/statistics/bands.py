"""Simultaneous bands: bounds that hold at every threshold at once, for whoever picks one after
looking.

Bands on a distribution function rest on one fact about n independent draws. If U_(1) <= … <= U_(n)
are uniform order statistics, then U_(i) ~ Beta(i, n+1-i); with L_i its quantile at a *local level*
η, the same for every rank, P(U_(i) < L_i for some i) = δ for exactly one η. The resulting band is
as tight in the tails as in the middle (equal local levels: Gontscharuk & Finner 2017; Bates,
Candès, Lei, Romano & Sesia, "Testing for outliers with conformal p-values", 2021). Ties only make
it safer, and neither continuity nor a ranking assumption is needed.

Bands on the selective accuracy rest on a martingale (`selective_accuracy`, with its proof). They
assume no more: the rows are independent draws from one source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from metacal.errors import InputError
from metacal.formulas import Codes, Flags, Float
from metacal.rows.arrays import check_fraction
from metacal.statistics.levels import local_level, order_statistic_quantiles
from metacal.statistics.selective_accuracy import selective_accuracy_bound, supports_accuracy


@dataclass(frozen=True, eq=False)
class Band:
    """A curve over thresholds with bounds that hold at all of them at once.

    Attributes
    ----------
    threshold : array
        Accept iff score <= threshold.
    estimate, lower, upper : arrays
        What these rows show (NaN where it is undefined) and what the truth lies between.
    delta : float
        The truth leaves the band anywhere with at most this probability.
    """

    threshold: Float
    lower: Float
    estimate: Float
    upper: Float
    delta: float


@dataclass(frozen=True, eq=False)
class DistributionBand:
    """One-sided bands on P(X <= s), at every s at once, from n draws of X; `values` are these,
    sorted.

    >>> band = DistributionBand.from_draws(np.arange(100.0))
    >>> band.lower(np.array([-1.0, 49.0, 99.0]), 0.05).round(3), band.upper(np.array([-1.0, 49.0, 99.0]), 0.05).round(3)
    (array([0. , 0.358, 0.942]), array([0.058, 0.642, 1. ]))
    """

    sorted_draws: Float

    @classmethod
    def from_draws(cls, values: ArrayLike) -> DistributionBand:
        """The band of these draws."""
        return cls(np.sort(np.asarray(values, dtype=np.float64)))

    @property
    def n_draws(self) -> int:
        """How many draws there are."""
        return len(self.sorted_draws)

    def count_at_most(self, thresholds: Float) -> Codes:
        """How many draws are at most each threshold."""
        return np.searchsorted(self.sorted_draws, thresholds, side="right")

    def lower(self, thresholds: Float, delta: float) -> Float:
        """P(X <= s) >= this for all s at once, with probability 1 - delta.

        With i draws at or below s, F(s) >= F(X_(i)) >= U_(i) >= L_i, taking X_(i) as the quantile
        of U_(i).
        """
        return self._bounds(self.count_at_most(thresholds), delta)

    def upper(self, thresholds: Float, delta: float) -> Float:
        """P(X <= s) <= this for all s at once, with probability 1 - delta: F(s) <= F(X_(i+1)-) <=
        U_(i+1).
        """
        return 1.0 - self._bounds(self.n_draws - self.count_at_most(thresholds), delta)

    def _bounds(self, ranks: Codes, delta: float) -> Float:
        if self.n_draws == 0:
            return np.zeros(len(ranks))
        return order_statistic_quantiles(ranks, self.n_draws, local_level(self.n_draws, delta))


def miscoverage_band(
    right_scores: ArrayLike, delta: float = 0.1, thresholds: ArrayLike | None = None
) -> Band:
    """F0(s) = P(h > s | right) at every threshold at once, from the scores of the right rows.

    Two one-sided bands on the distribution of these scores, at delta/2 each.

    Examples
    --------
    >>> band = miscoverage_band(np.arange(1000.0), thresholds=[899.0, 949.0])
    >>> band.lower.round(4), band.estimate, band.upper.round(4)
    (array([0.0734, 0.0315]), array([0.1 , 0.05]), array([0.1319, 0.0745]))
    """
    check_fraction("delta", delta)
    return _share_above(
        DistributionBand.from_draws(_scores(right_scores)), thresholds, delta, delta / 2, delta / 2
    )


def _share_above(
    band: DistributionBand, thresholds: ArrayLike | None, delta: float, low: float, high: float
) -> Band:
    """P(X > s), its lower side at the level `low` and its upper one at `high`."""
    at = _thresholds(thresholds, band.sorted_draws)
    estimate = (
        1.0 - band.count_at_most(at) / band.n_draws if band.n_draws else np.full(len(at), np.nan)
    )
    return Band(at, 1.0 - band.upper(at, low), estimate, 1.0 - band.lower(at, high), delta)


def accuracy_band(
    scores: ArrayLike, correct: ArrayLike, delta: float = 0.1, thresholds: ArrayLike | None = None
) -> Band:
    """Compute a band on the selective accuracy P(correct | score <= t) at every threshold t at
    once.

    Both sides are proved (`selective_accuracy`) for independent rows from one source. The accuracy
    may rise and fall with the score in any way, and scores may tie. Each side has delta/2.

    Examples
    --------
    >>> band = accuracy_band(np.arange(1000.0), np.arange(1000) % 50 != 49, thresholds=[499.0, 999.0])
    >>> band.lower.round(3), band.estimate, band.upper.round(3)
    (array([0.956, 0.964]), array([0.98, 0.98]), array([0.993, 0.99 ]))
    """
    check_fraction("delta", delta)
    return _accuracy(
        scores, correct, _thresholds(thresholds, _scores(scores)), delta, delta / 2, delta / 2
    )


def _accuracy(
    scores: ArrayLike, correct: ArrayLike, at: Float, delta: float, low: float, high: float
) -> Band:
    """Compute the band whose lower side may fail with probability `low` and its upper with `high`.

    The upper side is a lower bound on the share of incorrect rows.
    """
    n_correct, n_incorrect, n_rows = _accepted(scores, correct, at)
    n_accepted = n_correct + n_incorrect
    estimate = np.where(n_accepted > 0, n_correct / np.maximum(n_accepted, 1), np.nan)
    lower = selective_accuracy_bound(n_correct, n_incorrect, n_rows, low)
    upper = 1.0 - selective_accuracy_bound(n_incorrect, n_correct, n_rows, high)
    return Band(at, lower, estimate, upper, delta)


def coverage_band(
    scores: ArrayLike, delta: float = 0.1, thresholds: ArrayLike | None = None
) -> Band:
    """P(h <= s) at every threshold at once: two one-sided bands at delta/2 each.

    Examples
    --------
    >>> band = coverage_band(np.arange(1000.0), thresholds=[499.0])
    >>> band.lower.round(3), band.estimate, band.upper.round(3)
    (array([0.452]), array([0.5]), array([0.548]))
    """
    check_fraction("delta", delta)
    band = DistributionBand.from_draws(_scores(scores))
    at = _thresholds(thresholds, band.sorted_draws)
    return Band(
        at,
        band.lower(at, delta / 2),
        band.count_at_most(at) / band.n_draws,
        band.upper(at, delta / 2),
        delta,
    )


def certified_miscoverage(
    right_scores: ArrayLike, thresholds: ArrayLike, delta: float = 0.1
) -> Float:
    """Upper bounds on F0 at every threshold at once: one side of `miscoverage_band`, at all of
    delta.
    """
    check_fraction("delta", delta)
    at = np.asarray(thresholds, dtype=np.float64)
    return np.asarray(1.0 - DistributionBand.from_draws(_scores(right_scores)).lower(at, delta))


def certified_accuracy(
    scores: ArrayLike, correct: ArrayLike, thresholds: ArrayLike, delta: float = 0.1
) -> Float:
    """Compute the lower side of `accuracy_band`, at all of delta."""
    check_fraction("delta", delta)
    return selective_accuracy_bound(*_accepted(scores, correct, thresholds), delta)


def largest_supporting_threshold(
    scores: ArrayLike, correct: ArrayLike, accuracy: float, delta: float
) -> float | None:
    """Find the largest sample score at which `certified_accuracy` is at least `accuracy`.

    Returns None if there is no such score.

    Examples
    --------
    >>> correct = np.arange(1000) < 900
    >>> largest_supporting_threshold(np.arange(1000.0), correct, 0.97, 0.1)
    914.0
    """
    check_fraction("delta", delta)
    column, flags = _scores(scores), _flags(correct)
    thresholds = candidate_thresholds(column, flags)
    n_correct, n_incorrect, n_rows = _accepted(column, flags, thresholds)
    supported = supports_accuracy(n_correct, n_incorrect, n_rows, accuracy, delta)
    if not supported.any():
        return None
    return float(thresholds[supported][-1])


def certified_miscoverage_from_counts(kept: int, n_correct: int, delta: float) -> float:
    """`certified_miscoverage` at a threshold that `kept` of `n_correct` right rows reach: counts
    are all it needs.

    >>> round(certified_miscoverage_from_counts(950, 1000, 0.1), 4)
    0.0721
    """
    return 1.0 - float(
        order_statistic_quantiles(np.array([kept]), n_correct, local_level(n_correct, delta))[0]
    )


def certified_accuracy_from_counts(
    n_correct: int, n_incorrect: int, n_rows: int, delta: float
) -> float:
    """Compute `certified_accuracy` from the numbers of accepted rows of each kind.

    >>> round(certified_accuracy_from_counts(980, 20, 1000, 0.1), 4)
    0.9662
    """
    return float(
        selective_accuracy_bound(np.array([n_correct]), np.array([n_incorrect]), n_rows, delta)[0]
    )


@dataclass(frozen=True, eq=False)
class OperatingBands:
    """The three bands of a report, together at every threshold with probability 1 - delta."""

    miscoverage: Band
    accuracy: Band
    coverage: Band
    delta: float


def operating_bands(
    scores: ArrayLike, correct: ArrayLike, delta: float, thresholds: ArrayLike
) -> OperatingBands:
    """Miscoverage, accuracy of accepted and coverage at every threshold at once, all of them
    together.

    Half of delta goes to the sides that make a promise (F0 from above, F1 from below), half to the
    others.

    >>> bands = operating_bands(np.arange(1000.0), np.arange(1000) % 50 != 49, 0.1, [899.0])
    >>> bands.accuracy.lower.round(3), bands.miscoverage.upper.round(3), bands.coverage.lower.round(3)
    (array([0.962]), array([0.135]), array([0.863]))
    """
    check_fraction("delta", delta)
    scores, correct = _scores(scores), _flags(correct)
    at = np.asarray(thresholds, dtype=np.float64)
    accuracy = _accuracy(scores, correct, at, delta, delta / 4, delta / 8)
    miscoverage = _share_above(
        DistributionBand.from_draws(scores[correct]), at, delta, delta / 8, delta / 4
    )
    return OperatingBands(miscoverage, accuracy, coverage_band(scores, delta / 4, at), delta)


@dataclass(frozen=True, eq=False)
class CertifiedFrontier:
    """Both promises together: for each accuracy the smallest miscoverage certified along with it.

    Attributes
    ----------
    beta : rising; accuracy of accepted at least this
    alpha : rising; miscoverage at most this, at the same threshold
    threshold : falling; the threshold that carries both
    delta : float
        All pairs hold at once with probability 1 - delta.
    """

    beta: Float
    alpha: Float
    threshold: Float
    delta: float

    def best_accuracy(self, alpha: float) -> float:
        """The largest beta that is certified together with this alpha; 0 when there is none."""
        at = int(np.searchsorted(self.alpha, alpha, side="right"))
        return float(self.beta[at - 1]) if at else 0.0


def certified_frontier(
    scores: ArrayLike,
    correct: ArrayLike,
    delta: float = 0.1,
    thresholds: ArrayLike | None = None,
    share: float = 0.5,
) -> CertifiedFrontier:
    """For each beta the smallest alpha that can be promised with it, all pairs valid at once.

    F0 is bounded from above and F1 from below at every threshold at once, delta/2 each; by the
    union bound all the points (F1 bound, F0 bound) hold together, and the frontier is made of those
    that no other point beats in both. All thresholds are looked at unless some are given. With a
    `share` of one, all F0 or all F1 hold, not both.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.random(5000)
    >>> frontier = certified_frontier(scores, rng.random(5000) > scores**3 / 2)
    >>> round(float(frontier.alpha[np.searchsorted(frontier.beta, 0.95)]), 2), round(frontier.best_accuracy(0.3), 2)
    (0.28, 0.95)
    """
    check_fraction("delta", delta)
    scores, correct = _scores(scores), _flags(correct)
    at = (
        candidate_thresholds(scores, correct)
        if thresholds is None
        else np.unique(np.asarray(thresholds, dtype=np.float64))
    )
    alpha = certified_miscoverage(scores[correct], at, share * delta)
    beta = certified_accuracy(scores, correct, at, share * delta)
    # From the highest threshold down alpha rises; keep what raises beta.
    alpha, beta, at = alpha[::-1], beta[::-1], at[::-1]
    better = beta > np.append(0.0, np.maximum.accumulate(beta)[:-1])
    return CertifiedFrontier(beta[better], alpha[better], at[better], delta)


def candidate_thresholds(scores: Float, correct: Flags) -> Float:
    """The thresholds worth looking at: each score with no right-only score next above it, and the
    largest.

    Accepting further right rows without a wrong one raises both bounds, so no other threshold is
    ever better.
    """
    values, codes = np.unique(scores, return_inverse=True)
    wrong = np.bincount(codes.reshape(-1), ~correct) > 0
    return np.asarray(values[np.append(wrong[1:], True)])


def _accepted(
    scores: ArrayLike, correct: ArrayLike, thresholds: ArrayLike
) -> tuple[Codes, Codes, int]:
    """Right and wrong rows that each threshold accepts, and of how many rows."""
    column, flags = _scores(scores), _flags(correct)
    if column.shape != flags.shape:
        raise InputError(
            f"one score and one flag per row are needed; got {column.shape} and {flags.shape}."
        )
    right, wrong = (
        np.searchsorted(np.sort(column[own]), thresholds, side="right") for own in (flags, ~flags)
    )
    return right, wrong, len(column)


def _scores(values: Any) -> Float:
    column = np.asarray(values, dtype=np.float64)
    if column.ndim != 1 or np.isnan(column).any():
        raise InputError(
            f"scores must be one number per row, without NaN; got shape {column.shape}."
        )
    return column


def _flags(values: Any) -> Flags:
    flags = np.asarray(values)
    if flags.ndim != 1 or flags.dtype != bool:
        raise InputError(
            f"correct must be one boolean per row; got {flags.dtype} of shape {flags.shape}."
        )
    return flags


def _thresholds(given: ArrayLike | None, scores: Float) -> Float:
    return np.unique(scores) if given is None else np.asarray(given, dtype=np.float64)
