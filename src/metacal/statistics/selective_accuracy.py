"""Lower bounds on the selective accuracy that hold at every threshold at once, with a proof.

Setting. The n rows (X_i, Y_i) are independent draws from one source. X is the score, and Y = 1 if
the prediction is incorrect. A threshold t accepts the rows with X <= t. Let

    W(t) = P(X <= t, Y = 1),   C(t) = P(X <= t, Y = 0),   F(t) = W(t) + C(t),   R(t) = W(t) / F(t),

and let E(t) and K(t) be the numbers of incorrect and of correct rows that t accepts. R is the error
rate among accepted rows. It may rise and fall with t in any way, and scores may tie.

Statement. With probability at least 1 - delta, the selective accuracy 1 - R(t) is at least
`bound_selective_accuracy(K(t), E(t), n, delta)` for every real t at once, including thresholds
strictly between two scores of the sample.

Proof.

1. *Thinning.* Let t < t'. Given E(u) and K(u) for all u >= t', the rows that t' accepts are
   independent draws from the source restricted to X <= t'. So E(t) and K(t) are independent,
   E(t) ~ Bin(E(t'), W(t) / W(t')) and K(t) ~ Bin(K(t'), C(t) / C(t')).
2. *A supermartingale from the highest threshold down.* Fix s > 0. While W(t) >= s, let

       V_s(t) = (1 - s / W(t))^E(t) * (1 + s / C(t))^K(t)  >= 0,

   where a power with exponent 0 is 1. The mean of z^Bin(m, p) is (1 - p + p z)^m. With step 1 the
   mean of V_s(t), given everything from t' up, is V_s(t') (less if C(t) = 0). For the threshold
   that accepts everything the mean of V_s is at most (W - s + C + s)^n = 1.
3. *A mixture.* Let Z(t) be the mean of V_s(t) over a distribution of s, with 0 in place of V_s(t)
   for s > W(t). As t falls, more of the s are replaced by 0. So Z is a nonnegative supermartingale
   as t falls, with mean at most 1.
4. *Every threshold.* By Ville's inequality, Z reaches 1 / d at some t of a finite set with
   probability at most d. Z is continuous from the right in t, so this holds for all t at once.
5. *In terms of the error rate.* Write s = F(t) x. Then V_s(t) is a likelihood ratio, that of the
   error rate R - x to the error rate R:

       g(x) = (1 - x / R)^E * (1 + x / (1 - R))^K   for 0 < x <= R.

   For a fixed x it does not fall as R rises, and a larger R admits more x. So Z does not fall as R
   rises with F fixed.
6. *The unknown coverage.* Let log s be uniform on an interval. Then Z is the integral of g over a
   window of log x, which has a fixed length and moves with log F. The logarithm of g is concave in
   x, so g rises and then falls. The integral over a moving window then rises and falls as well: on
   an interval of F, Z is smallest at one of the two ends.
7. *Together.* Let d = (1 - c) delta, where c is `COVERAGE_SHARE`. With probability 1 - c delta, the
   two bands of `levels.local_level` give an interval around F(t) for all t at once. With
   probability 1 - d, Z(t) < 1 / d for all t at once. If both hold, the smaller value of Z at the
   two ends of the interval is below 1 / d at the rate R(t). By step 5 it crosses 1 / d once as the
   rate rises, so R(t) is at most the rate of the crossing, which `bound_selective_accuracy` finds.
   QED.

The tempting shortcut that is not valid. Given the (m+1)-th score x of the sample, the errors among
the m rows below x are binomial with the error rate below x. It is tempting to bound R by Clopper &
Pearson at each sample score, and to choose their level for sources that have one error rate at all
scores. But a threshold also accepts the row at the threshold, and the true R can be larger there
than just below the next score. If the surest rows are incorrect and the next ones correct, such
bounds jump at each correct row, before R has moved: with delta = 0.1 they failed in 16% of the
draws of 20 rows, and in 12% of the draws of 100. `benchmarks/joint_band.py` keeps these sources.

The interval of log s decides where the bound is tight, never whether it holds. With E incorrect
rows accepted, the best s is about sqrt(2 E log(1 / d)) / n, and log(1 / d) / n for E = 0.

References
----------
Ville, "Étude critique de la notion de collectif", 1939.
Robbins, "Statistical methods related to the law of the iterated logarithm", 1970.
Chandrupatla, "A new hybrid quadratic/bisection algorithm for finding the zero of a nonlinear
function without using derivatives", 1997.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.special import betaincinv

from metacal.formulas import Codes, Flags, Float
from metacal.statistics.levels import local_level, order_statistic_quantiles

#: Share of delta for the interval around the coverage (step 7).
COVERAGE_SHARE = 0.02
#: The smallest s is this factor times the scale log(1 / d) / n.
MIN_S_FACTOR = 0.7
#: The largest s is the square root of this factor times the scale log(1 / d) / n.
MAX_S_FACTOR = 0.4
#: Number of thresholds per chunk, so that the buffers fit into the cache.
_CHUNK_SIZE = 2048
#: A first bracket ends at Clopper & Pearson's bound for d times exp(-_BRACKET_LOG_FACTOR).
_BRACKET_LOG_FACTOR = 6.0
#: Width of a bracket that needs no further steps. The bound is its safe end.
_TOLERANCE = 1e-12
#: A mixture that misses its limit by this relative amount reaches it: rounding costs as much.
_ROUNDING = 1e-9
#: Finite number in place of an infinite logarithm.
_MAX_LOG_EXCESS = 1e6


def bound_selective_accuracy(
    n_correct: Codes, n_incorrect: Codes, n_rows: int, delta: float
) -> Float:
    """Compute lower bounds on the selective accuracy, valid at every threshold at once.

    The proof is in the docstring of this module. If a threshold accepts too few rows, its bound
    is 0.

    Parameters
    ----------
    n_correct, n_incorrect : arrays of int
        Numbers of correct and incorrect rows that each threshold accepts.
    n_rows : int
        Number of rows of the sample, accepted or not.
    delta : float
        Probability with which any of the bounds may fail.

    Returns
    -------
    array of float
        One bound per threshold.

    Examples
    --------
    >>> bound_selective_accuracy(np.array([0, 500, 980]), np.array([0, 0, 20]), 1000, 0.1).round(4)
    array([0.    , 0.9905, 0.9662])
    """
    count_pairs = np.stack([n_correct, n_incorrect]).astype(np.int64)
    (distinct_correct, distinct_incorrect), pair_index = np.unique(
        count_pairs, axis=1, return_inverse=True
    )
    distinct_bounds = np.zeros(len(distinct_correct))
    pairs_with_correct_rows = np.flatnonzero(distinct_correct > 0)
    for start in range(0, len(pairs_with_correct_rows), _CHUNK_SIZE):
        chunk = pairs_with_correct_rows[start : start + _CHUNK_SIZE]
        mixture = _Mixture.of_counts(
            distinct_correct[chunk], distinct_incorrect[chunk], n_rows, delta
        )
        distinct_bounds[chunk] = 1.0 - _largest_error_rate(mixture)
    return distinct_bounds[pair_index.reshape(-1)]


def supports_accuracy(
    n_correct: Codes, n_incorrect: Codes, n_rows: int, accuracy: float, delta: float
) -> Flags:
    """Check whether `bound_selective_accuracy` is at least `accuracy`, without computing it.

    Examples
    --------
    >>> supports_accuracy(np.array([500, 980]), np.array([0, 20]), 1000, 0.98, 0.1)
    array([ True, False])
    """
    is_supported = np.zeros(len(n_correct), dtype=bool)
    # No bound exceeds the share of correct rows among the accepted ones.
    candidates = np.flatnonzero(n_correct > accuracy * (n_correct + n_incorrect))
    for start in range(0, len(candidates), _CHUNK_SIZE):
        chunk = candidates[start : start + _CHUNK_SIZE]
        mixture = _Mixture.of_counts(n_correct[chunk], n_incorrect[chunk], n_rows, delta)
        error_rates = np.full(len(chunk), 1.0 - accuracy)
        is_supported[chunk] = mixture.smallest_log_excess(error_rates) >= -_ROUNDING
    return is_supported


@dataclass(frozen=True, eq=False)
class _Mixture:
    """The mixture Z of the proof at some thresholds, as a function of the error rate.

    Attributes
    ----------
    n_correct, n_incorrect : arrays of shape (m, 1)
        Accepted rows of each kind. At least one row is correct.
    log_coverage : array of shape (2, m)
        Logarithms of both ends of the interval around the coverage.
    log_smallest, log_largest : float
        The interval of log s.
    log_limit : float
        Logarithm of 1 / d. An error rate is ruled out if log Z reaches it.
    """

    n_correct: Float
    n_incorrect: Float
    log_coverage: Float
    log_smallest: float
    log_largest: float
    log_limit: float

    @classmethod
    def of_counts(cls, n_correct: Codes, n_incorrect: Codes, n_rows: int, delta: float) -> _Mixture:
        """Build the mixture from the numbers of accepted rows."""
        n_accepted = n_correct + n_incorrect
        level = local_level(n_rows, COVERAGE_SHARE * delta / 2.0)
        lowest_coverage = order_statistic_quantiles(n_accepted, n_rows, level)
        highest_coverage = 1.0 - order_statistic_quantiles(n_rows - n_accepted, n_rows, level)
        log_limit = -math.log((1.0 - COVERAGE_SHARE) * delta)
        scale = max(log_limit, 1.0) / n_rows
        smallest = MIN_S_FACTOR * scale
        return cls(
            n_correct=n_correct[:, None].astype(np.float64),
            n_incorrect=n_incorrect[:, None].astype(np.float64),
            log_coverage=np.log([lowest_coverage, highest_coverage]),
            log_smallest=math.log(smallest),
            log_largest=math.log(max(math.sqrt(MAX_S_FACTOR * scale), 2.0 * smallest)),
            log_limit=log_limit,
        )

    def select_thresholds(self, index: Codes) -> _Mixture:
        """Return the mixture at some of its thresholds."""
        return replace(
            self,
            n_correct=self.n_correct[index],
            n_incorrect=self.n_incorrect[index],
            log_coverage=self.log_coverage[:, index],
        )

    def with_coverage_end(self, end: Codes) -> _Mixture:
        """Return the mixture with one end of the coverage at each threshold, 0 or 1."""
        return replace(self, log_coverage=self.log_coverage[end, np.arange(len(end))][None, :])

    def log_values(self, error_rate: Float) -> Float:
        """Compute log Z at one error rate per threshold, for each end of the coverage."""
        nodes, weights = self._quadrature()
        rate = error_rate[:, None]
        log_start = self.log_smallest - self.log_coverage
        log_stop = np.minimum(self.log_largest - self.log_coverage, np.log(error_rate))
        length = np.maximum(log_stop - log_start, 0.0)
        # The nodes of an empty window have weight 0, but their ratios must be finite.
        log_start = np.minimum(log_start, log_stop)
        difference = np.exp(log_start[..., None] + length[..., None] * nodes)
        difference = np.minimum(difference, rate * (1.0 - 1e-12))
        log_ratio = self.n_incorrect * np.log1p(-difference / rate)
        log_ratio += self.n_correct * np.log1p(difference / (1.0 - rate))
        peak = log_ratio.max(axis=-1)
        # A sum, unlike a matrix product, has the same bits for any number of thresholds.
        integral = length * (np.exp(log_ratio - peak[..., None]) * weights).sum(axis=-1)
        with np.errstate(divide="ignore"):
            log_integral = peak + np.log(integral)
        return np.asarray(log_integral - math.log(self.log_largest - self.log_smallest))

    def log_excesses(self, error_rate: Float) -> Float:
        """Compute log Z less its limit for each end of the coverage, kept finite."""
        return np.clip(
            self.log_values(error_rate) - self.log_limit, -_MAX_LOG_EXCESS, _MAX_LOG_EXCESS
        )

    def smallest_log_excess(self, error_rate: Float) -> Float:
        """Compute log Z less its limit, for the end of the coverage at which it is smaller."""
        return np.asarray(self.log_excesses(error_rate).min(axis=0))

    def _quadrature(self) -> tuple[Float, Float]:
        """Return nodes and weights that are dense enough.

        The integrand has a peak whose width in log s is about 1 / sqrt(2 log_limit). For up to a
        million rows, more nodes change no bound by more than 1e-8
        (tests/unit/test_selective_accuracy.py).
        """
        length = self.log_largest - self.log_smallest
        return _gauss_legendre(
            8 * math.ceil(2.0 + (1.0 + length) * math.sqrt(max(self.log_limit, 1.0)) / 3.0)
        )


@lru_cache(maxsize=64)
def _gauss_legendre(n_nodes: int) -> tuple[Float, Float]:
    """Return Gauss-Legendre nodes and weights on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(n_nodes)
    return (1.0 + nodes) / 2.0, weights / 2.0


def _largest_error_rate(mixture: _Mixture) -> Float:
    """Find the largest error rate that each mixture does not rule out, to the safe side.

    By Chernoff's bound, Z is at most 1 / P(Bin(M, R) <= E) with M = E + K. So the crossing is not
    below Clopper & Pearson's bound at level d. Their bound at a much smaller level usually lies
    above it. If it does not, the bracket ends at 1.
    """
    n_correct = mixture.n_correct[:, 0]
    n_incorrect = mixture.n_incorrect[:, 0]
    level = math.exp(-mixture.log_limit)
    low_rate = 1.0 - betaincinv(n_correct, n_incorrect + 1.0, level)
    high_rate = 1.0 - betaincinv(
        n_correct, n_incorrect + 1.0, level * math.exp(-_BRACKET_LOG_FACTOR)
    )
    low_excess = mixture.smallest_log_excess(low_rate)
    high_excess_by_end = mixture.log_excesses(high_rate)
    high_excess = high_excess_by_end.min(axis=0)
    extends_to_one = high_excess < 0.0
    low_rate = np.where(extends_to_one, high_rate, low_rate)
    low_excess = np.where(extends_to_one, high_excess, low_excess)
    high_rate = np.where(extends_to_one, 1.0, high_rate)
    high_excess = np.where(extends_to_one, _MAX_LOG_EXCESS, high_excess)
    # One end of the coverage usually decides in the whole bracket, so it is evaluated alone first.
    deciding_mixture = mixture.with_coverage_end(high_excess_by_end.argmin(axis=0))
    error_rate = _find_crossing(deciding_mixture, low_rate, low_excess, high_rate, high_excess)
    excess = np.where(
        error_rate < 1.0, mixture.smallest_log_excess(np.minimum(error_rate, 1.0 - 1e-15)), 0.0
    )
    undecided = np.flatnonzero(excess < -_ROUNDING)
    if len(undecided):
        error_rate[undecided] = _find_crossing(
            mixture.select_thresholds(undecided),
            error_rate[undecided],
            excess[undecided],
            high_rate[undecided],
            high_excess[undecided],
        )
    return error_rate


def _find_crossing(
    mixture: _Mixture, low: Float, low_excess: Float, high: Float, high_excess: Float
) -> Float:
    """Shrink brackets by Chandrupatla's method, and return their upper ends.

    The names are those of the method: x1 is the newest end of a bracket, x2 the other end, and x3
    the end that was replaced last; f1, f2 and f3 are the values of log Z there, less the limit.
    """
    x1, f1 = high.copy(), high_excess.copy()
    x2, f2 = low.copy(), low_excess.copy()
    x3, f3 = low.copy(), low_excess.copy()
    fraction = np.full(len(x1), 0.5)
    wide = np.flatnonzero(np.abs(x2 - x1) > _TOLERANCE)
    while len(wide):
        x = x1[wide] + fraction[wide] * (x2[wide] - x1[wide])
        f = mixture.select_thresholds(wide).smallest_log_excess(x)
        replaces_x1 = (f >= 0.0) == (f1[wide] >= 0.0)
        x3[wide] = np.where(replaces_x1, x1[wide], x2[wide])
        f3[wide] = np.where(replaces_x1, f1[wide], f2[wide])
        x2[wide] = np.where(replaces_x1, x2[wide], x1[wide])
        f2[wide] = np.where(replaces_x1, f2[wide], f1[wide])
        x1[wide] = x
        f1[wide] = f
        fraction[wide] = _next_fraction(*(array[wide] for array in (x1, f1, x2, f2, x3, f3)))
        wide = wide[np.abs(x2[wide] - x1[wide]) > _TOLERANCE]
    return np.where(f1 >= 0.0, x1, x2)


def _next_fraction(x1: Float, f1: Float, x2: Float, f2: Float, x3: Float, f3: Float) -> Float:
    """Return where to evaluate next, as a fraction of the way from x1 to x2."""
    with np.errstate(divide="ignore", invalid="ignore"):
        xi = (x1 - x2) / (x3 - x2)
        phi = (f1 - f2) / (f3 - f2)
        interpolates = (phi**2 < xi) & ((1.0 - phi) ** 2 < 1.0 - xi)
        fraction = f1 / (f2 - f1) * f3 / (f2 - f3)
        fraction += (x3 - x1) / (x2 - x1) * f1 / (f3 - f1) * f2 / (f3 - f2)
    # A point half a tolerance inside an end lets the bracket close from the other end.
    margin = np.minimum(0.5, 0.5 * _TOLERANCE / np.maximum(np.abs(x2 - x1), _TOLERANCE))
    return np.where(interpolates, np.clip(fraction, margin, 1.0 - margin), 0.5)
