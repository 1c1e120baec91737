"""Exact tests that one classifier errs at most `margin` more often than another, on the same rows.

Of n rows, `worse` are incorrect by the first classifier and correct by the second, and `better` the
other way round. On all other rows both are correct or both are incorrect. The counts are multinomial
with probabilities p₊ and p₋ for `worse` and `better`, so p₊ - p₋ is the difference of the two error
rates. `certifies_noninferiority` tests the hypothesis "p₊ - p₋ >= margin". A small p-value shows that
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

import numpy as np
from scipy.special import bdtr, bdtrc, gammaln, xlog1py, xlogy

from metacal.formulas import Codes, Float
from metacal.statistics import bounds

#: Largest number of times that a cell of q is halved. Open cells then keep their upper bound.
_MAX_SPLITS = 200
#: Fraction of a significance level that is spent on the confidence limit of q.
NUISANCE_LEVEL_FRACTION = 0.05
#: Step between the margins that `difference_interval` distinguishes.
_MARGIN_STEP = 1e-4
#: Smallest margin of the test that the difference is above a margin. Its bound is loose below.
_MIN_LOWER_MARGIN = 1e-3
#: Factor and summand by which a computed p-value may exceed the largest value at a point.
_PRECISION_FACTOR = 1.01
_ABSOLUTE_PRECISION = 1e-4
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
    """Test whether the first classifier errs at most `margin` more often than the second.

    The p-value is the largest P(T <= observed) over q. The search ends as soon as it is known
    whether the p-value exceeds the level.

    Parameters
    ----------
    worse, better : int
        Rows on which only the second, and on which only the first classifier is correct.
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
    p_value = _p_value(
        int(n_only_first_incorrect),
        int(n_only_second_incorrect),
        int(n),
        float(margin),
        float(gamma),
        upper=False,
        level=float(level),
    )
    return p_value <= level


def p_value_of_noninferiority(
    n_only_first_incorrect: int, n_only_second_incorrect: int, n: int, margin: float, gamma: float
) -> float:
    """Compute the p-value of "the first classifier errs at most `margin` more often".

    The p-value is the largest P(T >= observed) over q.

    Parameters
    ----------
    worse, better : int
        Rows on which only the second, and on which only the first classifier is correct.
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
    return _p_value(
        int(n_only_first_incorrect),
        int(n_only_second_incorrect),
        int(n),
        float(margin),
        float(gamma),
        upper=True,
        level=None,
    )


def difference_interval(
    n_only_first_incorrect: int, n_only_second_incorrect: int, n: int, confidence_level: float
) -> tuple[float, float]:
    """Compute a confidence interval of the difference of two error rates.

    The interval contains the margins that none of the two exact tests excludes. Each end has half
    of the error probability 1 - level. The upper end is never below 0, because margins are positive.

    Parameters
    ----------
    worse, better : int
        Rows on which only the second, and on which only the first classifier is correct.
    n : int
        Number of rows.
    level : float
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

    def upper_bound(n_worse: int, n_better: int) -> float:
        return _smallest_margin(
            lambda margin: certifies_noninferiority(
                n_worse, n_better, n, margin, one_sided_level, gamma
            )
        )

    def is_possible_upper_bound(margin: float) -> bool:
        return (
            p_value_of_noninferiority(
                n_only_first_incorrect, n_only_second_incorrect, n, margin, gamma
            )
            > one_sided_level
        )

    if is_possible_upper_bound(_MIN_LOWER_MARGIN):
        # With the classifiers exchanged, an upper bound is the negative of a lower bound.
        low = -upper_bound(n_only_second_incorrect, n_only_first_incorrect)
    else:
        low = _smallest_margin(is_possible_upper_bound, _MIN_LOWER_MARGIN) - _MARGIN_STEP
    high = upper_bound(n_only_first_incorrect, n_only_second_incorrect)
    estimate = (n_only_first_incorrect - n_only_second_incorrect) / n
    return min(low, estimate), max(high, estimate)


def _smallest_margin(condition: Callable[[float], bool], min_margin: float = 0.0) -> float:
    """Find the smallest margin above a minimum that satisfies a condition, by bisection."""
    low_step = round(min_margin / _MARGIN_STEP)
    high_step = round(1.0 / _MARGIN_STEP)
    while high_step - low_step > 1:
        middle_step = (low_step + high_step) // 2
        if condition(middle_step * _MARGIN_STEP):
            high_step = middle_step
        else:
            low_step = middle_step
    return high_step * _MARGIN_STEP


@lru_cache(maxsize=4096)
def _p_value(
    worse: int,
    better: int,
    n: int,
    margin: float,
    gamma: float,
    upper: bool,
    level: float | None,
) -> float:
    """Compute an upper bound on the p-value by branch and bound over cells of q.

    The cell with the largest bound is halved, until no bound exceeds the largest value at a point
    by more than the precision.

    Parameters
    ----------
    worse, better, n, margin, gamma
        As in `p_value_of_noninferiority`.
    upper : bool
        True for P(T >= observed), False for P(T <= observed).
    level : float or None
        If it is given, the result is only on the correct side of this level.

    Returns
    -------
    float
    """
    observed = (worse - better - n * margin) / math.sqrt(n * margin + 2.0 * better)
    is_on_wrong_side = observed <= 0.0 if upper else observed >= 0.0
    if is_on_wrong_side:
        return 1.0

    def tail_probability(p_minus: float, border_q: float) -> float:
        p_plus = border_q + margin
        return _tail_probability(n, margin, observed, p_minus, p_plus, upper) + gamma

    def cell_bound(low_q: float, high_q: float) -> float:
        if upper:
            return tail_probability(low_q, high_q)
        return tail_probability(high_q, low_q)

    largest_q = min(bounds.clopper_pearson_upper(better, n, gamma), (1.0 - margin) / 2.0)
    largest_point_value = max(tail_probability(largest_q, largest_q), tail_probability(0.0, 0.0))
    # The heap returns its smallest entry first, so bounds are stored with a negative sign.
    cells = [(-1.0, 0.0, largest_q)]
    for _ in range(_MAX_SPLITS):
        negative_bound, low_q, high_q = cells[0]
        largest_bound = -negative_bound
        if level is None:
            precise_value = _PRECISION_FACTOR * largest_point_value + _ABSOLUTE_PRECISION
            is_decided = largest_bound <= precise_value
        else:
            is_decided = largest_point_value > level or largest_bound <= level
        if is_decided:
            break
        # The standard deviation of a count is constant on the scale of the square root of q.
        middle_q = ((math.sqrt(low_q) + math.sqrt(high_q)) / 2.0) ** 2
        largest_point_value = max(largest_point_value, tail_probability(middle_q, middle_q))
        heapq.heapreplace(cells, (-cell_bound(low_q, middle_q), low_q, middle_q))
        heapq.heappush(cells, (-cell_bound(middle_q, high_q), middle_q, high_q))
    return min(1.0, -cells[0][0])


def _tail_probability(
    n: int, margin: float, observed: float, p_minus: float, p_plus: float, upper: bool
) -> float:
    """Compute P(T <= observed), or P(T >= observed) if `upper`, as a sum over the `better` rows.

    Parameters
    ----------
    n : int
        Number of rows.
    margin : float
        Tolerated difference of the error rates.
    observed : float
        Observed value of T.
    p_minus, p_plus : float
        Probabilities p₋ and p₊ of a `better` and of a `worse` row.
    upper : bool
        Whether to compute the upper tail.

    Returns
    -------
    float
    """
    # Counts farther from their mean than 9 standard deviations and 25 are left out.
    spread = 9.0 * math.sqrt(n * p_minus) + 25.0
    lowest_count = max(0.0, math.floor(n * p_minus - spread))
    highest_count = min(n, math.ceil(n * p_minus + spread))
    b = np.arange(lowest_count, highest_count + 1)
    log_probabilities = (
        gammaln(n + 1)
        - gammaln(b + 1)
        - gammaln(n - b + 1)
        + xlogy(b, p_minus)
        + xlog1py(n - b, -p_minus)
    )
    # Given b, T(a, b) <= observed if a is at most this number.
    largest_a = b + n * margin + observed * np.sqrt(n * margin + 2.0 * b)
    # Given b, the number a of `worse` rows is binomial among the n - b other rows.
    n_other_rows = (n - b).astype(np.int64)
    worse_rate = min(p_plus / (1.0 - p_minus), 1.0)
    if upper:
        tails = _upper_binomial_tails(largest_a, n_other_rows, worse_rate)
    else:
        tails = _lower_binomial_tails(largest_a, n_other_rows, worse_rate)
    return float(np.exp(log_probabilities) @ tails) + _OMITTED_PROBABILITY


def _upper_binomial_tails(limits: Float, n_rows: Codes, rate: float) -> Float:
    """Compute P(Bin(n, rate) >= limit) for each limit and number of rows."""
    smallest_counts = np.ceil(limits - _ROUNDING_TOLERANCE)
    tails = bdtrc(np.clip(smallest_counts - 1, 0, n_rows), n_rows, rate)
    tails = np.where(smallest_counts > n_rows, 0.0, tails)
    return np.where(smallest_counts <= 0, 1.0, tails)


def _lower_binomial_tails(limits: Float, n_rows: Codes, rate: float) -> Float:
    """Compute P(Bin(n, rate) <= limit) for each limit and number of rows."""
    largest_counts = np.floor(limits + _ROUNDING_TOLERANCE)
    tails = bdtr(np.clip(largest_counts, 0, n_rows), n_rows, rate)
    return np.where(largest_counts < 0, 0.0, tails)
