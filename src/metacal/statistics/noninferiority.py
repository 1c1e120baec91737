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
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from scipy.special import bdtr, bdtrc, gammaln, xlog1py, xlogy

from metacal.formulas import Codes, Float
from metacal.statistics import bounds

#: Tail of the distribution of the statistic T.
Tail: TypeAlias = Literal["lower", "upper"]

#: Largest number of times that an interval of the nuisance parameter q is split.
_MAX_SPLITS = 200
#: Fraction of the significance level for the upper confidence limit of the nuisance parameter.
NUISANCE_LEVEL_FRACTION = 0.05
#: Step of the grid of margins that `difference_interval` searches.
_MARGIN_STEP = 1e-4
#: Smallest margin at which `difference_interval` uses `p_value_of_noninferiority`, which is loose
#: at smaller margins.
_MIN_MARGIN_OF_P_VALUE = 1e-3
#: Factor for the largest relative error of the computed p-value.
_MAX_RELATIVE_ERROR_FACTOR = 1.01
#: Largest absolute error of the computed p-value.
_MAX_ABSOLUTE_ERROR = 1e-4
#: Largest deviation of a summed count from its mean, in standard deviations of a Poisson count.
_MAX_DEVIATION_IN_STDS = 9.0
#: Constant that is added to the largest deviation of a count from its mean.
_ADDED_MAX_DEVIATION = 25.0
#: Bound on the probability of the counts that a sum omits, by Bernstein's inequality.
_OMITTED_PROBABILITY = 1e-15
#: Rounding tolerance with which the observed counts satisfy T <= observed.
_ROUNDING_TOLERANCE = 1e-9


def certifies_noninferiority(
    n_only_first_incorrect: int,
    n_only_second_incorrect: int,
    n: int,
    margin: float,
    level: float,
    nuisance_level: float,
) -> bool:
    """Test whether one classifier errs at most `margin` more often than another.

    The p-value is the largest P(T <= observed) over q. The search stops as soon as it is known
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
    nuisance_level : float
        Part of the level that is spent on the confidence limit of q.

    Returns
    -------
    bool
        True if the counts certify the statement at the level.

    Examples
    --------
    >>> certifies_noninferiority(0, 0, 300, 0.01, level=0.1, nuisance_level=0.005)
    True
    >>> certifies_noninferiority(0, 0, 200, 0.01, level=0.1, nuisance_level=0.005)
    False
    """
    p_value = _bound_p_value(
        int(n_only_first_incorrect),
        int(n_only_second_incorrect),
        int(n),
        float(margin),
        float(nuisance_level),
        tail="lower",
        stop_when_decided_at=float(level),
    )
    return p_value <= level


def p_value_of_noninferiority(
    n_only_first_incorrect: int,
    n_only_second_incorrect: int,
    n: int,
    margin: float,
    nuisance_level: float,
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
    nuisance_level : float
        Significance level of the confidence limit of q.

    Returns
    -------
    float

    Examples
    --------
    >>> round(p_value_of_noninferiority(40, 10, 1000, 0.01, nuisance_level=0.001), 3)
    0.003
    """
    return _bound_p_value(
        int(n_only_first_incorrect),
        int(n_only_second_incorrect),
        int(n),
        float(margin),
        float(nuisance_level),
        tail="upper",
        stop_when_decided_at=None,
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
    lower_bound = _bound_difference_from_below(
        n_only_first_incorrect, n_only_second_incorrect, n, one_sided_level
    )
    upper_bound = _bound_difference_from_above(
        n_only_first_incorrect, n_only_second_incorrect, n, one_sided_level
    )
    observed_difference = (n_only_first_incorrect - n_only_second_incorrect) / n
    return min(lower_bound, observed_difference), max(upper_bound, observed_difference)


def _bound_difference_from_above(
    n_only_first_incorrect: int, n_only_second_incorrect: int, n: int, level: float
) -> float:
    """Find the smallest margin at which noninferiority is certified."""
    nuisance_level = NUISANCE_LEVEL_FRACTION * level

    def certifies_margin(margin: float) -> bool:
        return certifies_noninferiority(
            n_only_first_incorrect,
            n_only_second_incorrect,
            n,
            margin,
            level=level,
            nuisance_level=nuisance_level,
        )

    return _find_smallest_margin(certifies_margin)


def _bound_difference_from_below(
    n_only_first_incorrect: int, n_only_second_incorrect: int, n: int, level: float
) -> float:
    """Compute a lower confidence bound on the difference of two error rates.

    The bound is positive if the p-value of noninferiority at a small positive margin is at most the
    level. Otherwise it is an upper bound on the opposite difference, with a negative sign.
    """
    nuisance_level = NUISANCE_LEVEL_FRACTION * level

    def is_possible_difference(margin: float) -> bool:
        p_value = p_value_of_noninferiority(
            n_only_first_incorrect, n_only_second_incorrect, n, margin, nuisance_level
        )
        return p_value > level

    if is_possible_difference(_MIN_MARGIN_OF_P_VALUE):
        return -_bound_difference_from_above(
            n_only_first_incorrect=n_only_second_incorrect,
            n_only_second_incorrect=n_only_first_incorrect,
            n=n,
            level=level,
        )
    smallest_possible_difference = _find_smallest_margin(
        is_possible_difference, min_margin=_MIN_MARGIN_OF_P_VALUE
    )
    return smallest_possible_difference - _MARGIN_STEP


def _find_smallest_margin(is_satisfied: Callable[[float], bool], min_margin: float = 0.0) -> float:
    """Find the smallest margin that satisfies a monotone condition.

    The condition is taken to be false at the minimum and true at a margin of 1.
    """
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
    """Interval of the nuisance parameter, with an upper bound on the p-values in it.

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
    nuisance_level: float,
    tail: Tail,
    stop_when_decided_at: float | None,
) -> float:
    """Compute an upper bound on the p-value by branch and bound.

    The interval with the largest bound is halved, until this bound is close to the largest
    probability at a single q.

    Parameters
    ----------
    n_worse, n_better : int
        Number of rows on which only the first, and on which only the second classifier is incorrect.
    n, margin, nuisance_level
        As in `p_value_of_noninferiority`.
    tail : "lower" or "upper"
        Tail of T whose probability is the p-value: P(T <= observed) or P(T >= observed).
    stop_when_decided_at : float or None
        Significance level. If given, the search stops as soon as it is known whether the p-value
        exceeds it.

    Returns
    -------
    float
    """
    observed_t = (n_worse - n_better - n * margin) / math.sqrt(n * margin + 2.0 * n_better)
    observed_t_agrees_with_hypothesis = observed_t <= 0.0 if tail == "upper" else observed_t >= 0.0
    if observed_t_agrees_with_hypothesis:
        return 1.0

    def compute_p_value(p_better: float, p_worse: float) -> float:
        tail_probability = _compute_tail_probability(
            n, margin, observed_t, p_better=p_better, p_worse=p_worse, tail=tail
        )
        return tail_probability + nuisance_level

    def compute_p_value_at(q: float) -> float:
        return compute_p_value(p_better=q, p_worse=q + margin)

    def bound_p_value_between(low_q: float, high_q: float) -> _QInterval:
        # The tail probability rises with one rate and falls with the other (step 2 of the proof),
        # so it is largest with one rate at its lower end and the other at its upper end.
        if tail == "upper":
            p_value_bound = compute_p_value(p_better=low_q, p_worse=high_q + margin)
        else:
            p_value_bound = compute_p_value(p_better=high_q, p_worse=low_q + margin)
        return _QInterval(-p_value_bound, low_q, high_q)

    max_q = min(bounds.clopper_pearson_upper(n_better, n, nuisance_level), (1.0 - margin) / 2.0)
    largest_p_value = max(compute_p_value_at(max_q), compute_p_value_at(0.0))
    interval_heap = [_QInterval(negative_bound=-1.0, low_q=0.0, high_q=max_q)]
    for _ in range(_MAX_SPLITS):
        # The largest bound of all intervals is an upper bound on the p-value.
        interval_with_largest_bound = interval_heap[0]
        largest_bound = -interval_with_largest_bound.negative_bound
        if stop_when_decided_at is None:
            max_bound = _MAX_RELATIVE_ERROR_FACTOR * largest_p_value + _MAX_ABSOLUTE_ERROR
            can_stop = largest_bound <= max_bound
        else:
            can_stop = (
                largest_p_value > stop_when_decided_at or largest_bound <= stop_when_decided_at
            )
        if can_stop:
            break
        low_q, high_q = interval_with_largest_bound.low_q, interval_with_largest_bound.high_q
        # Intervals are split on a square-root scale, where the variance of a count is constant.
        middle_q = ((math.sqrt(low_q) + math.sqrt(high_q)) / 2.0) ** 2
        largest_p_value = max(largest_p_value, compute_p_value_at(middle_q))
        heapq.heapreplace(interval_heap, bound_p_value_between(low_q, middle_q))
        heapq.heappush(interval_heap, bound_p_value_between(middle_q, high_q))
    return min(1.0, -interval_heap[0].negative_bound)


def _compute_tail_probability(
    n: int,
    margin: float,
    observed_t: float,
    *,
    p_better: float,
    p_worse: float,
    tail: Tail,
) -> float:
    """Compute the probability that T is at most, or at least, its observed value.

    It is a sum over the possible numbers b of "better" rows. Given b, the number a of "worse" rows is
    binomial among the other rows, and T <= t if a <= b + n·margin + t √(n·margin + 2b).

    Parameters
    ----------
    n : int
        Number of rows.
    margin : float
        Tolerated difference of the error rates.
    observed_t : float
        Observed value of T.
    p_better, p_worse : float
        Probabilities p₋ and p₊ of a "better" and of a "worse" row.
    tail : "lower" or "upper"
        Whether to compute P(T <= observed) or P(T >= observed).

    Returns
    -------
    float
    """
    n_better, probabilities_of_n_better = _compute_likely_binomial_counts(n, p_better)
    # The equation T = observed is solved for the number of "worse" rows.
    n_worse_with_observed_t = (
        n_better + n * margin + observed_t * np.sqrt(n * margin + 2.0 * n_better)
    )
    n_not_better = (n - n_better).astype(np.int64)
    p_worse_if_not_better = min(p_worse / (1.0 - p_better), 1.0)
    compute_binomial_tails = (
        _compute_upper_binomial_tails if tail == "upper" else _compute_lower_binomial_tails
    )
    tails_given_n_better = compute_binomial_tails(
        n_worse_with_observed_t, n_not_better, p_worse_if_not_better
    )
    return float(probabilities_of_n_better @ tails_given_n_better) + _OMITTED_PROBABILITY


def _compute_likely_binomial_counts(n: int, p: float) -> tuple[Float, Float]:
    """Return the counts near the mean of a binomial distribution, with probabilities.

    The probability of all other counts is at most `_OMITTED_PROBABILITY`.
    """
    mean = n * p
    max_deviation = _MAX_DEVIATION_IN_STDS * math.sqrt(mean) + _ADDED_MAX_DEVIATION
    lowest_count = max(0.0, math.floor(mean - max_deviation))
    highest_count = min(n, math.ceil(mean + max_deviation))
    counts = np.arange(lowest_count, highest_count + 1)
    log_probabilities = (
        gammaln(n + 1)
        - gammaln(counts + 1)
        - gammaln(n - counts + 1)
        + xlogy(counts, p)
        + xlog1py(n - counts, -p)
    )
    return counts, np.exp(log_probabilities)


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
