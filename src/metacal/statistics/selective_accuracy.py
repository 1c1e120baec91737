"""Simultaneous lower confidence bounds on the selective accuracy.

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
7. *Together.* Let d = (1 - c) delta, where c is `COVERAGE_DELTA_FRACTION`. With probability 1 - c delta, the
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
from typing import NamedTuple

import numpy as np
from scipy.special import betaincinv

from metacal.formulas import Codes, Flags, Float
from metacal.statistics.levels import local_level, uniform_order_statistic_quantiles
from metacal.statistics.root_brackets import (
    BISECTION_STEP,
    MAX_BRACKET_WIDTH,
    RatesWithSurplus,
    choose_chandrupatla_step,
    choose_ends,
)

#: Fraction c of delta for the confidence interval of the coverage F(t) (step 7).
COVERAGE_DELTA_FRACTION = 0.02
#: Smallest s of the mixture (step 3), as a multiple of log(1 / d) / n.
MIN_S_FACTOR = 0.7
#: Square of the largest s of the mixture (step 3), as a multiple of log(1 / d) / n.
MAX_S_FACTOR = 0.4
#: Number of thresholds per chunk, so that the buffers fit into the cache.
_CHUNK_SIZE = 2048
#: Logarithm of the factor between the significance levels of the two ends of a bracket.
_BRACKET_LOG_FACTOR = 6.0
#: Largest rounding error of log Z, which is allowed when log Z is compared with log(1 / d).
_SURPLUS_TOLERANCE = 1e-9
#: Factor that keeps x below the error rate R, because the likelihood ratio at x = R is 0.
_ONE_MINUS_ROUNDING_ERROR = 1.0 - 1e-12
#: Error rate that replaces 1, because the evidence against an error rate of 1 is infinite.
_LARGEST_RATE_BELOW_1 = 1.0 - 1e-15
#: Number of quadrature nodes for each panel of the window of log s.
_NODES_PER_PANEL = 8
#: Number of panels in addition to those that the peak of the integrand requires.
_MIN_PANELS = 2.0
#: Width of a panel, as a multiple of the width of the peak of the integrand.
_PEAK_WIDTHS_PER_PANEL = 3.0
#: Largest absolute value of the surplus of log Z over log(1 / d), in place of infinity.
_MAX_SURPLUS = 1e6


def bound_selective_accuracy(
    n_correct: Codes, n_incorrect: Codes, n_rows: int, delta: float
) -> Float:
    """Compute simultaneous lower bounds on the selective accuracy at all thresholds.

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
    # Each bound is computed once, because many thresholds accept the same numbers of rows.
    count_pairs = np.stack([n_correct, n_incorrect]).astype(np.int64)
    distinct_pairs, pair_of_threshold = np.unique(count_pairs, axis=1, return_inverse=True)
    distinct_correct, distinct_incorrect = distinct_pairs
    bounds_of_pairs = np.zeros(len(distinct_correct))
    pairs_with_correct_rows = np.flatnonzero(distinct_correct > 0)
    for start in range(0, len(pairs_with_correct_rows), _CHUNK_SIZE):
        chunk_pairs = pairs_with_correct_rows[start : start + _CHUNK_SIZE]
        chunk_evidence = _EvidenceAgainstErrorRates.from_counts(
            distinct_correct[chunk_pairs],
            distinct_incorrect[chunk_pairs],
            n_rows=n_rows,
            delta=delta,
        )
        bounds_of_pairs[chunk_pairs] = 1.0 - _find_largest_possible_error_rate(chunk_evidence)
    return bounds_of_pairs[pair_of_threshold.reshape(-1)]


def certifies_selective_accuracy(
    n_correct: Codes, n_incorrect: Codes, n_rows: int, accuracy: float, delta: float
) -> Flags:
    """Check which thresholds are certified to have a selective accuracy.

    The result is that of `bound_selective_accuracy(...) >= accuracy`. No root is searched, so this
    function is faster.

    Examples
    --------
    >>> certifies_selective_accuracy(np.array([500, 980]), np.array([0, 20]), 1000, 0.98, 0.1)
    array([ True, False])
    """
    is_certified = np.zeros(len(n_correct), dtype=bool)
    # Lower bounds never exceed the observed accuracy, so thresholds of low accuracy are skipped.
    exceeds_accuracy = n_correct > accuracy * (n_correct + n_incorrect)
    threshold_indices = np.flatnonzero(exceeds_accuracy)
    for start in range(0, len(threshold_indices), _CHUNK_SIZE):
        chunk_indices = threshold_indices[start : start + _CHUNK_SIZE]
        chunk_evidence = _EvidenceAgainstErrorRates.from_counts(
            n_correct[chunk_indices], n_incorrect[chunk_indices], n_rows=n_rows, delta=delta
        )
        error_rates = np.full(len(chunk_indices), 1.0 - accuracy)
        is_certified[chunk_indices] = chunk_evidence.rules_out(error_rates)
    return is_certified


@dataclass(frozen=True, eq=False)
class _EvidenceAgainstErrorRates:
    """Evidence Z against error rates at several thresholds.

    Attributes
    ----------
    n_correct, n_incorrect : arrays of shape (m, 1)
        Accepted rows of each kind. At least one row is correct.
    log_coverage : array of shape (2, m)
        Logarithms of the lower and the upper end of the interval around the coverage F(t).
    log_min_s, log_max_s : float
        Interval on which log s is uniform in the mixture (step 6).
    required_log_evidence : float
        Logarithm of 1 / d. An error rate is ruled out if log Z reaches it.
    """

    n_correct: Float
    n_incorrect: Float
    log_coverage: Float
    log_min_s: float
    log_max_s: float
    required_log_evidence: float

    @classmethod
    def from_counts(
        cls, n_correct: Codes, n_incorrect: Codes, n_rows: int, delta: float
    ) -> _EvidenceAgainstErrorRates:
        """Build the evidence from the numbers of rows that each threshold accepts."""
        coverage_delta = COVERAGE_DELTA_FRACTION * delta
        evidence_delta = (1.0 - COVERAGE_DELTA_FRACTION) * delta
        # The lower and upper confidence limits of the coverage each use half of `coverage_delta`.
        delta_per_end = coverage_delta / 2.0
        level_per_threshold = local_level(n_rows, delta_per_end)
        n_accepted = n_correct + n_incorrect
        min_coverage = uniform_order_statistic_quantiles(n_accepted, n_rows, level_per_threshold)
        min_rejected_share = uniform_order_statistic_quantiles(
            n_rows - n_accepted, n_rows, level_per_threshold
        )
        max_coverage = 1.0 - min_rejected_share
        required_log_evidence = -math.log(evidence_delta)
        log_evidence_per_row = max(required_log_evidence, 1.0) / n_rows
        min_s = MIN_S_FACTOR * log_evidence_per_row
        max_s = max(math.sqrt(MAX_S_FACTOR * log_evidence_per_row), 2.0 * min_s)
        return cls(
            n_correct=n_correct[:, None].astype(np.float64),
            n_incorrect=n_incorrect[:, None].astype(np.float64),
            log_coverage=np.log([min_coverage, max_coverage]),
            log_min_s=math.log(min_s),
            log_max_s=math.log(max_s),
            required_log_evidence=required_log_evidence,
        )

    def rules_out(self, error_rate: Float) -> Flags:
        """Check whether an error rate is ruled out at each threshold."""
        return self.compute_surplus(error_rate) >= -_SURPLUS_TOLERANCE

    def select_thresholds(self, index: Codes) -> _EvidenceAgainstErrorRates:
        """Return the evidence at the selected thresholds."""
        return replace(
            self,
            n_correct=self.n_correct[index],
            n_incorrect=self.n_incorrect[index],
            log_coverage=self.log_coverage[:, index],
        )

    def at_coverage_end(self, end_index: Codes) -> _EvidenceAgainstErrorRates:
        """Return the evidence at one end of the coverage interval of each threshold.

        Index 0 is the lower end, and 1 the upper end.
        """
        thresholds = np.arange(len(end_index))
        return replace(self, log_coverage=self.log_coverage[end_index, thresholds][None, :])

    def compute_log_evidence(self, error_rate: Float) -> Float:
        """Compute log Z at each threshold, for both ends of the coverage interval.

        Z is the mean of the likelihood ratio g(x) over log s, with x = s / F (steps 5 and 6). So it
        is the integral of g over a window of log x, divided by the length of the interval of log s.

        Returns
        -------
        array of float of shape (2, m)
        """
        nodes, weights = self._choose_quadrature_rule()
        log_min_x = self.log_min_s - self.log_coverage
        log_max_x = np.minimum(self.log_max_s - self.log_coverage, np.log(error_rate))
        window_length = np.maximum(log_max_x - log_min_x, 0.0)
        # The likelihood ratios must be finite even at the nodes of an empty window of length 0.
        log_min_x = np.minimum(log_min_x, log_max_x)
        x = np.exp(log_min_x[..., None] + window_length[..., None] * nodes)
        log_ratio = self._compute_log_likelihood_ratio(x, error_rate[:, None])
        # The largest ratio is factored out of the integral, so that no exponential overflows.
        max_log_ratio = log_ratio.max(axis=-1)
        weighted_ratios = np.exp(log_ratio - max_log_ratio[..., None]) * weights
        # A sum is used because a matrix product rounds differently for other numbers of thresholds.
        scaled_integral = window_length * weighted_ratios.sum(axis=-1)
        with np.errstate(divide="ignore"):
            log_integral = max_log_ratio + np.log(scaled_integral)
        return np.asarray(log_integral - math.log(self.log_max_s - self.log_min_s))

    def _compute_log_likelihood_ratio(self, x: Float, error_rate: Float) -> Float:
        """Compute log g(x), the log likelihood ratio of the error rate R - x to R."""
        x = np.minimum(x, error_rate * _ONE_MINUS_ROUNDING_ERROR)
        log_ratio = self.n_incorrect * np.log1p(-x / error_rate)
        log_ratio += self.n_correct * np.log1p(x / (1.0 - error_rate))
        return log_ratio

    def compute_surplus_by_coverage_end(self, error_rate: Float) -> Float:
        """Compute log Z - log(1 / d) for both ends of the coverage interval.

        The result has shape (2, m), and is clipped to a finite range.
        """
        return np.clip(
            self.compute_log_evidence(error_rate) - self.required_log_evidence,
            -_MAX_SURPLUS,
            _MAX_SURPLUS,
        )

    def compute_surplus(self, error_rate: Float) -> Float:
        """Compute log Z - log(1 / d) at the end of the coverage interval with less evidence.

        An error rate is ruled out if its surplus is at least 0.
        """
        return np.asarray(self.compute_surplus_by_coverage_end(error_rate).min(axis=0))

    def _choose_quadrature_rule(self) -> tuple[Float, Float]:
        """Choose Gauss-Legendre nodes and weights on [0, 1].

        The integrand has a peak whose width in log s is about 1 / sqrt(2 required_log_evidence). For up to a
        million rows, more nodes change no bound by more than 1e-8
        (tests/unit/test_selective_accuracy.py).
        """
        window_length = self.log_max_s - self.log_min_s
        n_peak_widths = (1.0 + window_length) * math.sqrt(max(self.required_log_evidence, 1.0))
        n_panels = math.ceil(_MIN_PANELS + n_peak_widths / _PEAK_WIDTHS_PER_PANEL)
        return _gauss_legendre(_NODES_PER_PANEL * n_panels)


@lru_cache(maxsize=64)
def _gauss_legendre(n_nodes: int) -> tuple[Float, Float]:
    """Compute Gauss-Legendre nodes and weights on [0, 1]."""
    # NumPy returns nodes and weights for the interval [-1, 1].
    nodes, weights = np.polynomial.legendre.leggauss(n_nodes)
    return (1.0 + nodes) / 2.0, weights / 2.0


class _RootBrackets(NamedTuple):
    """Brackets around the largest error rates that are not ruled out.

    Attributes
    ----------
    low_ends, high_ends : RatesWithSurplus
        Ends of the brackets, with negative and with nonnegative surplus.
    coverage_end_with_smaller_surplus : array of int
        Index of the end of the coverage interval (0 or 1) with the smaller surplus at the upper
        of the two Clopper-Pearson bounds.
    """

    low_ends: RatesWithSurplus
    high_ends: RatesWithSurplus
    coverage_end_with_smaller_surplus: Codes


def _find_largest_possible_error_rate(evidence: _EvidenceAgainstErrorRates) -> Float:
    """Find the largest error rate that is not ruled out at each threshold.

    The rates are rounded up, to the safe side.
    """
    brackets = _bracket_largest_possible_error_rate(evidence)
    # At the root, usually the same end of the coverage interval decides as at the high error rate.
    error_rate = _find_root_by_chandrupatla(
        evidence.at_coverage_end(brackets.coverage_end_with_smaller_surplus),
        low_ends=brackets.low_ends,
        high_ends=brackets.high_ends,
    )
    surplus = evidence.compute_surplus(np.minimum(error_rate, _LARGEST_RATE_BELOW_1))
    # An error rate of 1 cannot be raised further.
    surplus = np.where(error_rate < 1.0, surplus, 0.0)
    # The search continues where the other end of the coverage interval has less evidence.
    thresholds_to_continue = np.flatnonzero(surplus < -_SURPLUS_TOLERANCE)
    if len(thresholds_to_continue) > 0:
        error_rate[thresholds_to_continue] = _find_root_by_chandrupatla(
            evidence.select_thresholds(thresholds_to_continue),
            low_ends=RatesWithSurplus(error_rate, surplus).select(thresholds_to_continue),
            high_ends=brackets.high_ends.select(thresholds_to_continue),
        )
    return error_rate


def _bracket_largest_possible_error_rate(
    evidence: _EvidenceAgainstErrorRates,
) -> _RootBrackets:
    """Bracket the largest error rate that is not ruled out at each threshold.

    By Chernoff's bound, Z is at most 1 / P(Bin(M, R) <= E) with M = E + K. So the root is not
    below Clopper & Pearson's bound at level d. Their bound at a much smaller level usually lies
    above it. If it does not, the bracket ends at 1.

    Returns
    -------
    _RootBrackets
    """
    level = math.exp(-evidence.required_log_evidence)
    low_rate = _compute_clopper_pearson_bounds(evidence, level)
    high_rate = _compute_clopper_pearson_bounds(evidence, level * math.exp(-_BRACKET_LOG_FACTOR))
    surplus_by_coverage_end = evidence.compute_surplus_by_coverage_end(high_rate)
    low_ends = RatesWithSurplus(low_rate, evidence.compute_surplus(low_rate))
    high_ends = RatesWithSurplus(high_rate, surplus_by_coverage_end.min(axis=0))
    ends_at_rate_1 = RatesWithSurplus(
        rate=np.ones(len(high_rate)), surplus=np.full(len(high_rate), _MAX_SURPLUS)
    )
    root_is_above_high_rate = high_ends.surplus < 0.0
    return _RootBrackets(
        low_ends=choose_ends(root_is_above_high_rate, if_true=high_ends, if_false=low_ends),
        high_ends=choose_ends(root_is_above_high_rate, if_true=ends_at_rate_1, if_false=high_ends),
        coverage_end_with_smaller_surplus=surplus_by_coverage_end.argmin(axis=0),
    )


def _compute_clopper_pearson_bounds(evidence: _EvidenceAgainstErrorRates, level: float) -> Float:
    """Compute Clopper & Pearson's upper bound on the error rate at each threshold."""
    n_correct = evidence.n_correct[:, 0]
    n_incorrect = evidence.n_incorrect[:, 0]
    return np.asarray(1.0 - betaincinv(n_correct, n_incorrect + 1.0, level))


def _find_root_by_chandrupatla(
    evidence: _EvidenceAgainstErrorRates, low_ends: RatesWithSurplus, high_ends: RatesWithSurplus
) -> Float:
    """Find the error rate with a surplus of 0 in each bracket, rounded up.

    The surplus is negative at `low_ends` and nonnegative at `high_ends`.
    """
    newest_ends = high_ends.copy()
    opposite_ends = low_ends.copy()
    replaced_ends = low_ends.copy()
    step_to_opposite = np.full(len(newest_ends.rate), BISECTION_STEP)
    bracket_widths = np.abs(opposite_ends.rate - newest_ends.rate)
    open_brackets = np.flatnonzero(bracket_widths > MAX_BRACKET_WIDTH)
    while len(open_brackets) > 0:
        newest_point = newest_ends.select(open_brackets)
        opposite_point = opposite_ends.select(open_brackets)
        inner_rate = newest_point.rate + step_to_opposite[open_brackets] * (
            opposite_point.rate - newest_point.rate
        )
        open_evidence = evidence.select_thresholds(open_brackets)
        inner_points = RatesWithSurplus(inner_rate, open_evidence.compute_surplus(inner_rate))

        # The root lies between the inner point and the end with the other sign of the surplus.
        has_sign_of_newest = (inner_points.surplus >= 0.0) == (newest_point.surplus >= 0.0)
        replaced_point = choose_ends(
            has_sign_of_newest, if_true=newest_point, if_false=opposite_point
        )
        opposite_point = choose_ends(
            has_sign_of_newest, if_true=opposite_point, if_false=newest_point
        )
        newest_ends.update(open_brackets, inner_points)
        opposite_ends.update(open_brackets, opposite_point)
        replaced_ends.update(open_brackets, replaced_point)

        step_to_opposite[open_brackets] = choose_chandrupatla_step(
            newest=inner_points, opposite=opposite_point, replaced=replaced_point
        )
        bracket_widths = np.abs(opposite_point.rate - inner_points.rate)
        open_brackets = open_brackets[bracket_widths > MAX_BRACKET_WIDTH]
    return np.where(newest_ends.surplus >= 0.0, newest_ends.rate, opposite_ends.rate)
