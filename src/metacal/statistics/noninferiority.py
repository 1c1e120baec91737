"""Exact noninferiority tests of the error rates of two classifiers.

A test certifies that the first classifier errs at most `margin` more often than the second one.

Of n rows, the first classifier alone is incorrect on a rows ("worse" rows), and the second one alone
on b rows ("better" rows). On all other rows both are correct or both are incorrect. The counts a and
b are multinomial with probabilities p₊ and p₋, so p₊ - p₋ is the difference of the two error rates.
`certifies_noninferiority` tests the hypothesis "p₊ - p₋ >= margin". A small p-value shows that
the first classifier errs at most `margin` more often. If the classifiers differ on no row, the
p-value is (1 - margin)^n + γ. `p_value_of_noninferiority` tests the opposite, "p₊ - p₋ <= margin".

**The test.** The statistic is T(a, b) = (a - b - n·margin) / √(n·margin + 2b): the difference minus
the margin, divided by its standard deviation if p₊ = p₋ + margin and p₋ = b/n. The p-value is the
largest probability, over the unknown q = p₋ on the border p₊ = q + margin, of a T that is as small
as the observed one. The search for q is restricted to values below its upper confidence limit U
(Clopper & Pearson) at level γ, and γ is added (Berger & Boos 1994).

*Proof.*

1. T rises with a, and does not rise with b. If T < 0, its derivative in b has the sign of -(a + b).
   If T >= 0, its numerator falls while its denominator rises. So the region {T <= t} grows if a row
   changes from "worse" to "neither", or from "neither" to "better".
2. Draw each row from one uniform number: "better" below p₋, "worse" above 1 - p₊. By step 1,
   P(T <= t) falls as p₊ rises with p₋ fixed. Hence over p₊ >= p₋ + margin it is largest on the
   border. For q in a cell [u, v] it is at most its value at p₋ = v and p₊ = u + margin. The largest
   of these values over cells that cover [0, U] is therefore at least the supremum. The computed
   number is an upper bound, and smaller cells only make it sharper.
3. q <= U with probability 1 - γ. In this case the supremum over [0, U] is at least the probability
   at the true q, so P(supremum + γ <= l) is at most γ + (l - γ) = l. For T >= t everything is
   mirrored. ∎

Bets on the differences in random order (Waudby-Smith & Ramdas 2024) are valid too, at any stopping
time and for any bounded loss. For a fixed number of 0/1 errors the exact test certifies more (figures
in `docs/cascade-measured.md`).

References
----------
Hsueh, Liu & Chen, "Unconditional exact tests for equivalence or noninferiority for paired binary
endpoints", Biometrics 2001. Berger & Boos, "P values maximized over a confidence set for the
nuisance parameter", JASA 1994.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import bdtr, bdtrc, gammaln, xlog1py, xlogy

from metacal.formulas import Codes, Float
from metacal.statistics import bounds

#: Largest number of times that an interval of q is halved.
_MAX_SPLITS = 200
#: Fraction of a significance level that is spent on the confidence limit of q.
NUISANCE_LEVEL_FRACTION = 0.05
#: Step between the margins that `difference_interval` distinguishes.
_MARGIN_STEP = 1e-4
#: Smallest margin at which `p_value_of_noninferiority` is used, because it is loose below.
_MIN_MARGIN_OF_P_VALUE = 1e-3
#: Largest ratio of the computed p-value to the exact one, apart from the absolute error.
_MAX_RELATIVE_ERROR_FACTOR = 1.01
#: Largest absolute error of the computed p-value.
_MAX_ABSOLUTE_ERROR = 1e-4
#: Largest deviation of a count from its mean in a sum, in standard deviations of a Poisson count.
_MAX_DEVIATION_IN_STDS = 9.0
#: Number that is added to the largest deviation of a count from its mean.
_ADDED_MAX_DEVIATION = 25.0
#: Upper bound on the probability of the counts that are left out of a sum (Bernstein).
_OMITTED_PROBABILITY = 1e-15
#: Tolerance that keeps the observed counts inside the region {T <= observed} despite rounding.
_ROUNDING_TOLERANCE = 1e-9


def certifies_noninferiority(
    n_only_first_incorrect: int,
    n_only_second_incorrect: int,
    n: int,
    margin: float,
    level: float,
    gamma: float,
) -> bool:
    """Test whether one classifier errs at most `margin` more often than another.

    The p-value is the largest P(T <= observed) over q. The search ends as soon as it is known
    whether the p-value exceeds the level.

    Parameters
    ----------
    n_only_first_incorrect, n_only_second_incorrect : int
        Number of rows on which only one classifier is incorrect, the first or the second.
    n : int
        Number of rows.
    margin : float
        Tolerated difference of the error rates.
    level : float
        Significance level of the test.
    gamma : float
        Part of the level that is spent on the confidence limit of q.

    Returns
    -------
    bool
        True if the counts certify the statement at the level.

    Examples
    --------
    >>> certifies_noninferiority(0, 0, 300, 0.01, level=0.1, gamma=0.005)
    True
    >>> certifies_noninferiority(0, 0, 200, 0.01, level=0.1, gamma=0.005)
    False
    """
    p_value = _bound_p_value(
        int(n_only_first_incorrect),
        int(n_only_second_incorrect),
        int(n),
        float(margin),
        float(gamma),
        uses_upper_tail=False,
        decisive_level=float(level),
    )
    return p_value <= level


def p_value_of_noninferiority(
    n_only_first_incorrect: int, n_only_second_incorrect: int, n: int, margin: float, gamma: float
) -> float:
    """Compute the p-value of "the first classifier errs at most `margin` more often".

    The p-value is the largest P(T >= observed) over q.

    Parameters
    ----------
    n_only_first_incorrect, n_only_second_incorrect : int
        Number of rows on which only one classifier is incorrect, the first or the second.
    n : int
        Number of rows.
    margin : float
        Tolerated difference of the error rates.
    gamma : float
        Significance level of the confidence limit of q.

    Returns
    -------
    float

    Examples
    --------
    >>> round(p_value_of_noninferiority(40, 10, 1000, 0.01, gamma=0.001), 3)
    0.003
    """
    return _bound_p_value(
        int(n_only_first_incorrect),
        int(n_only_second_incorrect),
        int(n),
        float(margin),
        float(gamma),
        uses_upper_tail=True,
        decisive_level=None,
    )


def difference_interval(
    n_only_first_incorrect: int, n_only_second_incorrect: int, n: int, confidence_level: float
) -> tuple[float, float]:
    """Compute a confidence interval of the difference of two error rates.

    The interval contains the margins that none of the two exact tests excludes. Each end has half
    of the error probability 1 - confidence_level. The upper end is never below 0, because margins
    are positive.

    Parameters
    ----------
    n_only_first_incorrect, n_only_second_incorrect : int
        Number of rows on which only one classifier is incorrect, the first or the second.
    n : int
        Number of rows.
    confidence_level : float
        Confidence level of the interval.

    Returns
    -------
    low, high : float

    Examples
    --------
    >>> [round(end, 3) for end in difference_interval(40, 10, 1000, 0.95)]
    [0.016, 0.045]
    >>> [round(end, 3) for end in difference_interval(3, 2, 1000, 0.95)]
    [-0.005, 0.007]
    """
    one_sided_level = (1.0 - confidence_level) / 2.0
    gamma = NUISANCE_LEVEL_FRACTION * one_sided_level

    def bound_difference_from_above(n_only_minuend: int, n_only_subtrahend: int) -> float:
        def certifies_margin(margin: float) -> bool:
            return certifies_noninferiority(
                n_only_minuend, n_only_subtrahend, n, margin, one_sided_level, gamma
            )

        return _find_smallest_margin(certifies_margin)

    def is_possible_difference(margin: float) -> bool:
        p_value = p_value_of_noninferiority(
            n_only_first_incorrect, n_only_second_incorrect, n, margin, gamma
        )
        return p_value > one_sided_level

    if is_possible_difference(_MIN_MARGIN_OF_P_VALUE):
        # Exchanging the classifiers changes the sign of the difference.
        lower_bound = -bound_difference_from_above(n_only_second_incorrect, n_only_first_incorrect)
    else:
        smallest_possible_margin = _find_smallest_margin(
            is_possible_difference, min_margin=_MIN_MARGIN_OF_P_VALUE
        )
        lower_bound = smallest_possible_margin - _MARGIN_STEP
    upper_bound = bound_difference_from_above(n_only_first_incorrect, n_only_second_incorrect)
    observed_difference = (n_only_first_incorrect - n_only_second_incorrect) / n
    return min(lower_bound, observed_difference), max(upper_bound, observed_difference)


def _find_smallest_margin(is_satisfied: Callable[[float], bool], min_margin: float = 0.0) -> float:
    """Find the smallest margin above a minimum that satisfies a monotone condition."""
    unsatisfied_step = round(min_margin / _MARGIN_STEP)
    satisfied_step = round(1.0 / _MARGIN_STEP)
    while satisfied_step - unsatisfied_step > 1:
        middle_step = (unsatisfied_step + satisfied_step) // 2
        if is_satisfied(middle_step * _MARGIN_STEP):
            satisfied_step = middle_step
        else:
            unsatisfied_step = middle_step
    return satisfied_step * _MARGIN_STEP


class _QInterval(NamedTuple):
    """Interval of the nuisance parameter q, with a bound on its p-values.

    A heap of these intervals returns the one with the largest bound first, because bounds are stored
    with a negative sign.

    Attributes
    ----------
    negative_bound : float
        Upper bound on the p-value at every q in the interval, with a negative sign.
    low_q, high_q : float
        Ends of the interval.
    """

    negative_bound: float
    low_q: float
    high_q: float


@lru_cache(maxsize=4096)
def _bound_p_value(
    n_worse: int,
    n_better: int,
    n: int,
    margin: float,
    gamma: float,
    uses_upper_tail: bool,
    decisive_level: float | None,
) -> float:
    """Compute an upper bound on the p-value by branch and bound over intervals of q.

    The interval with the largest bound is halved, until this bound is close to the largest
    probability at a single q.

    Parameters
    ----------
    n_worse, n_better : int
        Number of rows on which only the first, and on which only the second classifier is incorrect.
    n, margin, gamma
        As in `p_value_of_noninferiority`.
    uses_upper_tail : bool
        True for P(T >= observed), False for P(T <= observed).
    decisive_level : float or None
        If given, the search ends as soon as the p-value is known to be above or below this level.

    Returns
    -------
    float
    """
    observed_t = (n_worse - n_better - n * margin) / math.sqrt(n * margin + 2.0 * n_better)
    agrees_with_hypothesis = observed_t >= 0.0
    if uses_upper_tail:
        agrees_with_hypothesis = observed_t <= 0.0
    if agrees_with_hypothesis:
        return 1.0

    def compute_p_value(better_rate: float, worse_rate: float) -> float:
        tail_probability = _compute_tail_probability(
            n, margin, observed_t, better_rate, worse_rate, uses_upper_tail
        )
        return tail_probability + gamma

    def compute_p_value_at(q: float) -> float:
        return compute_p_value(better_rate=q, worse_rate=q + margin)

    def bound_p_value_between(low_q: float, high_q: float) -> _QInterval:
        # By step 2 of the proof, the tail in an interval is at most its value at opposite ends.
        if uses_upper_tail:
            p_value_bound = compute_p_value(better_rate=low_q, worse_rate=high_q + margin)
        else:
            p_value_bound = compute_p_value(better_rate=high_q, worse_rate=low_q + margin)
        return _QInterval(-p_value_bound, low_q, high_q)

    max_q = min(bounds.clopper_pearson_upper(n_better, n, gamma), (1.0 - margin) / 2.0)
    largest_p_value = max(compute_p_value_at(max_q), compute_p_value_at(0.0))
    interval_heap = [_QInterval(negative_bound=-1.0, low_q=0.0, high_q=max_q)]
    for _ in range(_MAX_SPLITS):
        # The interval with the largest bound decides about the p-value.
        decisive_interval = interval_heap[0]
        largest_bound = -decisive_interval.negative_bound
        if decisive_level is None:
            max_bound = _MAX_RELATIVE_ERROR_FACTOR * largest_p_value + _MAX_ABSOLUTE_ERROR
            is_decided = largest_bound <= max_bound
        else:
            is_decided = largest_p_value > decisive_level or largest_bound <= decisive_level
        if is_decided:
            break
        low_q, high_q = decisive_interval.low_q, decisive_interval.high_q
        # On a square-root scale of q, the standard deviation of a count is constant.
        middle_q = ((math.sqrt(low_q) + math.sqrt(high_q)) / 2.0) ** 2
        largest_p_value = max(largest_p_value, compute_p_value_at(middle_q))
        heapq.heapreplace(interval_heap, bound_p_value_between(low_q, middle_q))
        heapq.heappush(interval_heap, bound_p_value_between(middle_q, high_q))
    return min(1.0, -interval_heap[0].negative_bound)


def _compute_tail_probability(
    n: int,
    margin: float,
    observed_t: float,
    better_rate: float,
    worse_rate: float,
    uses_upper_tail: bool,
) -> float:
    """Compute P(T <= observed) or P(T >= observed).

    It is a sum over the possible counts of "better" rows.

    Parameters
    ----------
    n : int
        Number of rows.
    margin : float
        Tolerated difference of the error rates.
    observed_t : float
        Observed value of T.
    better_rate, worse_rate : float
        Probabilities p₋ and p₊ of a "better" and of a "worse" row.
    uses_upper_tail : bool
        Whether to compute P(T >= observed).

    Returns
    -------
    float
    """
    expected_better = n * better_rate
    # Counts farther from their mean have a negligible probability.
    max_deviation = _MAX_DEVIATION_IN_STDS * math.sqrt(expected_better) + _ADDED_MAX_DEVIATION
    lowest_count = max(0.0, math.floor(expected_better - max_deviation))
    highest_count = min(n, math.ceil(expected_better + max_deviation))
    n_better = np.arange(lowest_count, highest_count + 1)
    log_binomial_probabilities = (
        gammaln(n + 1)
        - gammaln(n_better + 1)
        - gammaln(n - n_better + 1)
        + xlogy(n_better, better_rate)
        + xlog1py(n - n_better, -better_rate)
    )
    # Given the "better" rows, T equals the observed value at this number of "worse" rows.
    n_worse_at_observed_t = (
        n_better + n * margin + observed_t * np.sqrt(n * margin + 2.0 * n_better)
    )
    # Given the "better" rows, the number of "worse" rows is binomial among the other rows.
    n_other_rows = (n - n_better).astype(np.int64)
    conditional_worse_rate = min(worse_rate / (1.0 - better_rate), 1.0)
    if uses_upper_tail:
        tail_given_better = _compute_upper_binomial_tails(
            n_worse_at_observed_t, n_other_rows, conditional_worse_rate
        )
    else:
        tail_given_better = _compute_lower_binomial_tails(
            n_worse_at_observed_t, n_other_rows, conditional_worse_rate
        )
    return float(np.exp(log_binomial_probabilities) @ tail_given_better) + _OMITTED_PROBABILITY


def _compute_upper_binomial_tails(limits: Float, n_rows: Codes, rate: float) -> Float:
    """Compute P(Bin(n, rate) >= limit) for each limit and number of rows."""
    smallest_counts = np.ceil(limits - _ROUNDING_TOLERANCE)
    tail_probabilities = bdtrc(np.clip(smallest_counts - 1, 0, n_rows), n_rows, rate)
    tail_probabilities = np.where(smallest_counts > n_rows, 0.0, tail_probabilities)
    return np.where(smallest_counts <= 0, 1.0, tail_probabilities)


def _compute_lower_binomial_tails(limits: Float, n_rows: Codes, rate: float) -> Float:
    """Compute P(Bin(n, rate) <= limit) for each limit and number of rows."""
    largest_counts = np.floor(limits + _ROUNDING_TOLERANCE)
    tail_probabilities = bdtr(np.clip(largest_counts, 0, n_rows), n_rows, rate)
    return np.where(largest_counts < 0, 0.0, tail_probabilities)
