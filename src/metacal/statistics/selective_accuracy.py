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
from typing import NamedTuple

import numpy as np
from scipy.special import betaincinv

from metacal.formulas import Codes, Flags, Float
from metacal.statistics.levels import local_level, order_statistic_quantiles

#: Share of delta for the interval around the coverage (step 7 of the proof).
COVERAGE_SHARE = 0.02
#: Smallest s, as a multiple of the scale log(1 / d) / n.
MIN_S_FACTOR = 0.7
#: Square of the largest s, as a multiple of the scale log(1 / d) / n.
MAX_S_FACTOR = 0.4
#: Number of thresholds per chunk, so that the buffers fit into the cache.
_CHUNK_SIZE = 2048
#: The upper end of a bracket is a bound at a level that is smaller by exp(-_BRACKET_LOG_FACTOR).
_BRACKET_LOG_FACTOR = 6.0
#: Width of a bracket around an error rate at which the search stops.
_MAX_BRACKET_WIDTH = 1e-12
#: Largest amount by which log Z may miss its limit because of rounding errors.
_LOG_EVIDENCE_TOLERANCE = 1e-9
#: Factor that keeps x below the error rate R, because the likelihood ratio at x = R is 0.
_ONE_MINUS_ROUNDING_ERROR = 1.0 - 1e-12
#: Error rate at which the evidence is evaluated in place of 1, where it is infinite.
_LARGEST_RATE_BELOW_1 = 1.0 - 1e-15
#: Number of quadrature nodes for each panel of the window of log s.
_NODES_PER_PANEL = 8
#: Number of panels in addition to those that the width of the peak requires.
_MIN_PANELS = 2.0
#: Width of a panel, in widths of the peak of the integrand.
_PEAK_WIDTHS_PER_PANEL = 3.0
#: Step to the middle of a bracket, as a fraction of its width.
_BISECTION_STEP = 0.5
#: Largest absolute value of log Z less its limit, in place of infinity.
_MAX_LOG_EXCESS = 1e6


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
    # Many thresholds accept the same numbers of rows, and their bound is computed once.
    count_pairs = np.stack([n_correct, n_incorrect]).astype(np.int64)
    distinct_pairs, pair_index = np.unique(count_pairs, axis=1, return_inverse=True)
    distinct_correct, distinct_incorrect = distinct_pairs
    distinct_bounds = np.zeros(len(distinct_correct))
    pairs_with_correct_rows = np.flatnonzero(distinct_correct > 0)
    for start in range(0, len(pairs_with_correct_rows), _CHUNK_SIZE):
        chunk_pairs = pairs_with_correct_rows[start : start + _CHUNK_SIZE]
        chunk_evidence = _MixtureEvidence.from_counts(
            distinct_correct[chunk_pairs],
            distinct_incorrect[chunk_pairs],
            n_rows=n_rows,
            delta=delta,
        )
        distinct_bounds[chunk_pairs] = 1.0 - _find_largest_possible_error_rate(chunk_evidence)
    return distinct_bounds[pair_index.reshape(-1)]


def certifies_selective_accuracy(
    n_correct: Codes, n_incorrect: Codes, n_rows: int, accuracy: float, delta: float
) -> Flags:
    """Check which thresholds are certified to have at least this selective accuracy.

    The result is that of `bound_selective_accuracy(...) >= accuracy`. No root is searched, so this
    function is faster.

    Examples
    --------
    >>> certifies_selective_accuracy(np.array([500, 980]), np.array([0, 20]), 1000, 0.98, 0.1)
    array([ True, False])
    """
    is_certified = np.zeros(len(n_correct), dtype=bool)
    # Other thresholds are not certified, because no bound exceeds the observed accuracy.
    exceeds_accuracy = n_correct > accuracy * (n_correct + n_incorrect)
    threshold_indices = np.flatnonzero(exceeds_accuracy)
    for start in range(0, len(threshold_indices), _CHUNK_SIZE):
        chunk_indices = threshold_indices[start : start + _CHUNK_SIZE]
        chunk_evidence = _MixtureEvidence.from_counts(
            n_correct[chunk_indices], n_incorrect[chunk_indices], n_rows=n_rows, delta=delta
        )
        error_rates = np.full(len(chunk_indices), 1.0 - accuracy)
        log_excess = chunk_evidence.compute_smallest_log_excess(error_rates)
        rules_out_error_rate = log_excess >= -_LOG_EVIDENCE_TOLERANCE
        is_certified[chunk_indices] = rules_out_error_rate
    return is_certified


@dataclass(frozen=True, eq=False)
class _MixtureEvidence:
    """Evidence Z of the proof against an error rate, at each of several thresholds.

    Attributes
    ----------
    n_correct, n_incorrect : arrays of shape (m, 1)
        Accepted rows of each kind. At least one row is correct.
    log_coverage : array of shape (2, m)
        Logarithms of both ends of the interval around the coverage.
    log_min_s, log_max_s : float
        The interval of log s.
    log_limit : float
        Logarithm of 1 / d. An error rate is ruled out if log Z reaches it.
    """

    n_correct: Float
    n_incorrect: Float
    log_coverage: Float
    log_min_s: float
    log_max_s: float
    log_limit: float

    @classmethod
    def from_counts(
        cls, n_correct: Codes, n_incorrect: Codes, n_rows: int, delta: float
    ) -> _MixtureEvidence:
        """Build the evidence from the numbers of rows that each threshold accepts."""
        coverage_delta = COVERAGE_SHARE * delta
        evidence_delta = (1.0 - COVERAGE_SHARE) * delta
        n_accepted = n_correct + n_incorrect
        # The lower and the upper ends of the interval around the coverage get half each.
        quantile_level = local_level(n_rows, coverage_delta / 2.0)
        lowest_coverage = order_statistic_quantiles(n_accepted, n_rows, quantile_level)
        lowest_rejected_share = order_statistic_quantiles(
            n_rows - n_accepted, n_rows, quantile_level
        )
        highest_coverage = 1.0 - lowest_rejected_share
        log_limit = -math.log(evidence_delta)
        scale_of_s = max(log_limit, 1.0) / n_rows
        min_s = MIN_S_FACTOR * scale_of_s
        max_s = max(math.sqrt(MAX_S_FACTOR * scale_of_s), 2.0 * min_s)
        return cls(
            n_correct=n_correct[:, None].astype(np.float64),
            n_incorrect=n_incorrect[:, None].astype(np.float64),
            log_coverage=np.log([lowest_coverage, highest_coverage]),
            log_min_s=math.log(min_s),
            log_max_s=math.log(max_s),
            log_limit=log_limit,
        )

    def select_thresholds(self, index: Codes) -> _MixtureEvidence:
        """Return the evidence at the selected thresholds."""
        return replace(
            self,
            n_correct=self.n_correct[index],
            n_incorrect=self.n_incorrect[index],
            log_coverage=self.log_coverage[:, index],
        )

    def with_coverage_end(self, end_index: Codes) -> _MixtureEvidence:
        """Return the evidence at only the lower (0) or upper (1) coverage per threshold."""
        thresholds = np.arange(len(end_index))
        return replace(self, log_coverage=self.log_coverage[end_index, thresholds][None, :])

    def compute_log_evidence(self, error_rate: Float) -> Float:
        """Compute log Z at one error rate per threshold, for each end of the coverage."""
        quadrature_nodes, quadrature_weights = self._choose_quadrature()
        rate_column = error_rate[:, None]
        # Z integrates the likelihood ratio g over a window of log x (step 6 of the module's proof).
        log_x_start = self.log_min_s - self.log_coverage
        log_x_stop = np.minimum(self.log_max_s - self.log_coverage, np.log(error_rate))
        window_length = np.maximum(log_x_stop - log_x_start, 0.0)
        # An empty window has length 0, but the ratios at its nodes must be finite.
        log_x_start = np.minimum(log_x_start, log_x_stop)
        x = np.exp(log_x_start[..., None] + window_length[..., None] * quadrature_nodes)
        x = np.minimum(x, rate_column * _ONE_MINUS_ROUNDING_ERROR)
        log_ratio = self.n_incorrect * np.log1p(-x / rate_column)
        log_ratio += self.n_correct * np.log1p(x / (1.0 - rate_column))
        max_log_ratio = log_ratio.max(axis=-1)
        # A sum is used because a matrix product rounds differently for other numbers of thresholds.
        weighted_ratios = np.exp(log_ratio - max_log_ratio[..., None]) * quadrature_weights
        scaled_integral = window_length * weighted_ratios.sum(axis=-1)
        with np.errstate(divide="ignore"):
            log_integral = max_log_ratio + np.log(scaled_integral)
        return np.asarray(log_integral - math.log(self.log_max_s - self.log_min_s))

    def compute_log_excess(self, error_rate: Float) -> Float:
        """Compute log Z less its limit, clipped to a finite range, for each coverage."""
        return np.clip(
            self.compute_log_evidence(error_rate) - self.log_limit,
            -_MAX_LOG_EXCESS,
            _MAX_LOG_EXCESS,
        )

    def compute_smallest_log_excess(self, error_rate: Float) -> Float:
        """Compute log Z less its limit, and take the smaller of both coverage ends."""
        return np.asarray(self.compute_log_excess(error_rate).min(axis=0))

    def _choose_quadrature(self) -> tuple[Float, Float]:
        """Choose Gauss-Legendre nodes and weights on [0, 1].

        The integrand has a peak whose width in log s is about 1 / sqrt(2 log_limit). For up to a
        million rows, more nodes change no bound by more than 1e-8
        (tests/unit/test_selective_accuracy.py).
        """
        window_length = self.log_max_s - self.log_min_s
        n_peak_widths = (1.0 + window_length) * math.sqrt(max(self.log_limit, 1.0))
        n_panels = math.ceil(_MIN_PANELS + n_peak_widths / _PEAK_WIDTHS_PER_PANEL)
        return _gauss_legendre(_NODES_PER_PANEL * n_panels)


@lru_cache(maxsize=64)
def _gauss_legendre(n_nodes: int) -> tuple[Float, Float]:
    """Compute Gauss-Legendre nodes and weights on [0, 1]."""
    # NumPy returns them for the interval [-1, 1].
    nodes, weights = np.polynomial.legendre.leggauss(n_nodes)
    return (1.0 + nodes) / 2.0, weights / 2.0


class _BracketEnds(NamedTuple):
    """Error rates at one end of each bracket around a root, with their evidence.

    Attributes
    ----------
    rate : array of float of shape (n_brackets,)
        Error rate at the end of each bracket.
    log_excess : array of float of shape (n_brackets,)
        Logarithm of Z less its limit at this error rate. It is 0 at a root, and at least 0 if the
        error rate is ruled out.
    """

    rate: Float
    log_excess: Float

    def copy(self) -> _BracketEnds:
        """Return a copy that can be changed in place."""
        return _BracketEnds(self.rate.copy(), self.log_excess.copy())

    def select(self, brackets: Codes) -> _BracketEnds:
        """Return the ends of the selected brackets."""
        return _BracketEnds(self.rate[brackets], self.log_excess[brackets])

    def update(self, brackets: Codes, new_ends: _BracketEnds) -> None:
        """Replace the ends of the selected brackets in place."""
        self.rate[brackets] = new_ends.rate
        self.log_excess[brackets] = new_ends.log_excess


class _RootBrackets(NamedTuple):
    """Brackets around the largest error rates that are not ruled out.

    Attributes
    ----------
    low_ends, high_ends : _BracketEnds
        Ends of the brackets, with negative and with nonnegative log excess.
    deciding_coverage_end : array of int
        End of the coverage interval with the smaller evidence at Clopper & Pearson's high bound.
    """

    low_ends: _BracketEnds
    high_ends: _BracketEnds
    deciding_coverage_end: Codes


def _choose_ends(condition: Flags, if_true: _BracketEnds, if_false: _BracketEnds) -> _BracketEnds:
    """Choose between two ends of each bracket."""
    return _BracketEnds(
        rate=np.where(condition, if_true.rate, if_false.rate),
        log_excess=np.where(condition, if_true.log_excess, if_false.log_excess),
    )


def _find_largest_possible_error_rate(evidence: _MixtureEvidence) -> Float:
    """Find the largest error rate that is not ruled out at each threshold.

    The rates are rounded up, to the safe side.
    """
    brackets = _bracket_largest_possible_error_rate(evidence)
    # The coverage that decides at the high rate usually decides at the root as well.
    error_rate = _find_root_by_chandrupatla(
        evidence.with_coverage_end(brackets.deciding_coverage_end),
        low_ends=brackets.low_ends,
        high_ends=brackets.high_ends,
    )
    log_excess_below_1 = evidence.compute_smallest_log_excess(
        np.minimum(error_rate, _LARGEST_RATE_BELOW_1)
    )
    # An error rate of 1 cannot be raised further.
    log_excess_at_rate = np.where(error_rate < 1.0, log_excess_below_1, 0.0)
    is_below_root = log_excess_at_rate < -_LOG_EVIDENCE_TOLERANCE
    unfinished_thresholds = np.flatnonzero(is_below_root)
    if len(unfinished_thresholds) > 0:
        error_rate[unfinished_thresholds] = _find_root_by_chandrupatla(
            evidence.select_thresholds(unfinished_thresholds),
            low_ends=_BracketEnds(
                error_rate[unfinished_thresholds], log_excess_at_rate[unfinished_thresholds]
            ),
            high_ends=brackets.high_ends.select(unfinished_thresholds),
        )
    return error_rate


def _bracket_largest_possible_error_rate(
    evidence: _MixtureEvidence,
) -> _RootBrackets:
    """Bracket the largest error rate that is not ruled out at each threshold.

    By Chernoff's bound, Z is at most 1 / P(Bin(M, R) <= E) with M = E + K. So the root is not
    below Clopper & Pearson's bound at level d. Their bound at a much smaller level usually lies
    above it. If it does not, the bracket ends at 1.

    Returns
    -------
    _RootBrackets
    """
    n_correct = evidence.n_correct[:, 0]
    n_incorrect = evidence.n_incorrect[:, 0]
    evidence_level = math.exp(-evidence.log_limit)
    low_rate = 1.0 - betaincinv(n_correct, n_incorrect + 1.0, evidence_level)
    smaller_level = evidence_level * math.exp(-_BRACKET_LOG_FACTOR)
    high_rate = 1.0 - betaincinv(n_correct, n_incorrect + 1.0, smaller_level)
    low_log_excess = evidence.compute_smallest_log_excess(low_rate)
    log_excess_by_coverage_end = evidence.compute_log_excess(high_rate)
    high_log_excess = log_excess_by_coverage_end.min(axis=0)

    low_ends = _BracketEnds(low_rate, low_log_excess)
    high_ends = _BracketEnds(high_rate, high_log_excess)
    ends_at_rate_1 = _BracketEnds(
        rate=np.ones(len(high_rate)),
        log_excess=np.full(len(high_rate), _MAX_LOG_EXCESS),
    )
    root_is_above_high_rate = high_log_excess < 0.0
    return _RootBrackets(
        low_ends=_choose_ends(root_is_above_high_rate, if_true=high_ends, if_false=low_ends),
        high_ends=_choose_ends(root_is_above_high_rate, if_true=ends_at_rate_1, if_false=high_ends),
        deciding_coverage_end=log_excess_by_coverage_end.argmin(axis=0),
    )


def _find_root_by_chandrupatla(
    evidence: _MixtureEvidence, low_ends: _BracketEnds, high_ends: _BracketEnds
) -> Float:
    """Find the error rate with a log excess of 0 in each bracket, rounded up.

    The log excess is negative at `low_ends` and nonnegative at `high_ends`.
    """
    newest_ends = high_ends.copy()
    opposite_ends = low_ends.copy()
    replaced_ends = low_ends.copy()
    step_to_opposite = np.full(len(newest_ends.rate), _BISECTION_STEP)
    bracket_widths = np.abs(opposite_ends.rate - newest_ends.rate)
    open_brackets = np.flatnonzero(bracket_widths > _MAX_BRACKET_WIDTH)
    while len(open_brackets) > 0:
        newest_point = newest_ends.select(open_brackets)
        opposite_point = opposite_ends.select(open_brackets)
        inner_rate = newest_point.rate + step_to_opposite[open_brackets] * (
            opposite_point.rate - newest_point.rate
        )
        open_evidence = evidence.select_thresholds(open_brackets)
        inner_points = _BracketEnds(
            inner_rate, open_evidence.compute_smallest_log_excess(inner_rate)
        )

        # The root lies between the inner point and the end with the other sign of the log excess.
        has_sign_of_newest = (inner_points.log_excess >= 0.0) == (newest_point.log_excess >= 0.0)
        replaced_point = _choose_ends(
            has_sign_of_newest, if_true=newest_point, if_false=opposite_point
        )
        opposite_point = _choose_ends(
            has_sign_of_newest, if_true=opposite_point, if_false=newest_point
        )
        newest_ends.update(open_brackets, inner_points)
        opposite_ends.update(open_brackets, opposite_point)
        replaced_ends.update(open_brackets, replaced_point)

        step_to_opposite[open_brackets] = _choose_chandrupatla_step(
            newest=inner_points, opposite=opposite_point, replaced=replaced_point
        )
        bracket_widths = np.abs(opposite_point.rate - inner_points.rate)
        open_brackets = open_brackets[bracket_widths > _MAX_BRACKET_WIDTH]
    return np.where(newest_ends.log_excess >= 0.0, newest_ends.rate, opposite_ends.rate)


def _choose_chandrupatla_step(
    newest: _BracketEnds, opposite: _BracketEnds, replaced: _BracketEnds
) -> Float:
    """Choose the next step, as a fraction of the way to the opposite end.

    The symbols are those of the paper. The step is that of inverse quadratic interpolation through
    the three points if the paper's criterion holds, and a bisection otherwise.
    """
    x1, f1 = newest
    x2, f2 = opposite
    x3, f3 = replaced
    with np.errstate(divide="ignore", invalid="ignore"):
        xi = (x1 - x2) / (x3 - x2)
        phi = (f1 - f2) / (f3 - f2)
        inverse_interpolation_is_safe = (phi**2 < xi) & ((1.0 - phi) ** 2 < 1.0 - xi)
        interpolated_step = f1 / (f2 - f1) * f3 / (f2 - f3)
        interpolated_step += (x3 - x1) / (x2 - x1) * f1 / (f3 - f1) * f2 / (f3 - f2)
    # A step stays half a tolerance away from both ends, so that a bracket can close from either end.
    bracket_width = np.maximum(np.abs(x2 - x1), _MAX_BRACKET_WIDTH)
    min_step = np.minimum(0.5, 0.5 * _MAX_BRACKET_WIDTH / bracket_width)
    clipped_step = np.clip(interpolated_step, min_step, 1.0 - min_step)
    return np.where(inverse_interpolation_is_safe, clipped_step, _BISECTION_STEP)
