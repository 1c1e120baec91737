r"""Tests and bounds for the mean of numbers in [0, 1], by betting.

A bettor claims that the mean is below a limit m, and stakes a fraction of their capital on each
number in turn: K_t = K_{t-1} · (1 + λ_t (m - x_t)), where the stake λ_t is chosen before x_t is
observed. If each number, given the numbers before it, has a mean of at least m, then the game is
unfavourable to the bettor. In that case K is a nonnegative supermartingale, and
P(K ever reaches 1/δ) <= δ (Ville 1939). So a capital of 1/δ certifies that the mean is below m at
confidence level 1 - δ. There is no assumption on the variance or the shape of the distribution, and
the numbers need not be identically distributed.

The stakes are predictable plug-ins, λ_t = √(2 log(1/δ) / (n σ̂²_{t-1})), where σ̂²_{t-1} is the
variance of the numbers before x_t. They are optimal if n numbers just suffice to distinguish the
mean from m. They are capped at 0.9/(1 - m), which is 0.9 of the stake that could lose the whole
capital. A prior guess of the mean counts as five numbers.

The stakes do not depend on m, so the capital is monotone in m, and limits can be found by bisection.
If m is fixed, the bets of `statistics.replicating_bets` certify more.

References
----------
Waudby-Smith & Ramdas, "Estimating means of bounded random variables by betting", JRSS-B 2024.
Ville, "Étude critique de la notion de collectif", 1939.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from metacal.formulas import Float


class VariancePrior(NamedTuple):
    """Prior guess of a variance.

    Attributes
    ----------
    n_pseudo_values : float
        Number of observed values that the guess counts as.
    variance_fraction : float
        Guessed variance as a fraction of m(1 - m), the largest variance at mean m.
    """

    n_pseudo_values: float
    variance_fraction: float

    def guess_variance(self, mean: float) -> float:
        """Guess the variance of values in [0, 1] from their mean."""
        return self.variance_fraction * mean * (1.0 - mean)


#: Largest stake, as a fraction of the stake at which a single value could cost all the capital.
MAX_STAKE_FRACTION = 0.9
#: Prior guess of the variance for values of any kind.
DEFAULT_VARIANCE_PRIOR = VariancePrior(n_pseudo_values=5.0, variance_fraction=0.5)
#: Number of bisection steps on [0, 1], so that more digits are found than are reported.
_N_BISECTION_STEPS = 40
#: Smallest divisor of the largest stake, to avoid a division by zero.
_SMALLEST_DIVISOR = 1e-300


def compute_stakes(values: Float, significance_level: float, guessed_mean: float) -> Float:
    """Compute the stake on each value from the preceding values.

    The stake is λ_t = √(2 log(1/δ) / (n σ̂²_{t-1})), where σ̂²_{t-1} is the variance of the values
    before x_t, together with pseudo values that have the guessed mean and the prior variance.

    Parameters
    ----------
    values : array
        Numbers in [0, 1], in the order of the bets.
    significance_level : float
        Significance level δ of the test that the stakes suit best.
    guessed_mean : float
        Mean that is expected before any value is observed.

    Returns
    -------
    array
        One stake per value, before the cap.

    Examples
    --------
    >>> compute_stakes(np.array([0.0, 0.0, 1.0, 0.0]), 0.1, 0.2).round(2)
    array([3.79, 3.96, 4.15, 2.77])
    """
    prior = DEFAULT_VARIANCE_PRIOR
    # The stake on a value may depend only on earlier values, so each sum leaves out its last value.
    n_values_with_prior = np.arange(len(values)) + prior.n_pseudo_values
    sums_before = np.cumsum(values) - values
    means_before = (sums_before + prior.n_pseudo_values * guessed_mean) / n_values_with_prior
    squared_deviations = (values - means_before) ** 2
    sums_of_squares_before = np.cumsum(squared_deviations) - squared_deviations
    prior_sum_of_squares = prior.n_pseudo_values * prior.guess_variance(guessed_mean)
    variances_before = (sums_of_squares_before + prior_sum_of_squares) / n_values_with_prior
    squared_stakes = -2.0 * math.log(significance_level) / (len(values) * variances_before)
    return np.asarray(np.sqrt(squared_stakes))


def max_log_capital_betting_below(values: Float, limit: float, stakes: Float) -> float:
    """Compute the largest log capital of a bettor on "the mean is below `limit`".

    The result rises with the limit, because (m - x)·min(λ, .9/(1 - m)) rises with m for every x in
    [0, 1]. Therefore limits can be found by bisection.
    """
    largest_stake = MAX_STAKE_FRACTION / max(1.0 - limit, _SMALLEST_DIVISOR)
    capped_stakes = np.minimum(stakes, largest_stake)
    log_capital_after_bets = np.cumsum(np.log1p(capped_stakes * (limit - values)))
    return float(log_capital_after_bets.max(initial=0.0))


def max_log_capital_betting_above(values: Float, limit: float, stakes: Float) -> float:
    """Compute the largest log capital of a bettor on "the mean is above `limit`".

    The result falls as the limit rises.
    """
    largest_stake = MAX_STAKE_FRACTION / max(limit, _SMALLEST_DIVISOR)
    capped_stakes = np.minimum(stakes, largest_stake)
    log_capital_after_bets = np.cumsum(np.log1p(capped_stakes * (values - limit)))
    return float(log_capital_after_bets.max(initial=0.0))


def certifies_mean_above(values: Float, limit: float, significance_level: float) -> bool:
    """Test whether the values certify that their mean is above `limit`.

    >>> certifies_mean_above(np.full(200, 0.2), 0.05, 0.1)
    True
    >>> certifies_mean_above(np.full(200, 0.04), 0.05, 0.1)
    False
    """
    stakes = compute_stakes(values, significance_level, guessed_mean=limit)
    required_log_capital = -math.log(significance_level)
    return max_log_capital_betting_above(values, limit, stakes) >= required_log_capital


def p_value_of_mean_above(values: Float, limit: float, significance_level: float) -> float:
    """Compute the p-value of the hypothesis "the mean is at most `limit`".

    The stakes suit a test at `significance_level`. The p-value is 1 if there are no values.

    >>> p_value_of_mean_above(np.full(200, 0.2), 0.05, 0.05) < 1e-6
    True
    >>> p_value_of_mean_above(np.full(200, 0.04), 0.05, 0.05)
    1.0
    """
    if len(values) == 0:
        return 1.0
    stakes = compute_stakes(values, significance_level, limit)
    return math.exp(-max_log_capital_betting_above(values, limit, stakes))


def mean_upper_bound(values: Float, significance_level: float, guessed_mean: float) -> float:
    """Compute an upper bound on the mean that holds with probability 1 - level.

    The bound is the smallest limit at which the capital of a bettor on "the mean is below the
    limit" reaches 1/level.

    >>> round(mean_upper_bound(np.tile([0.0, 0.0, 0.0, 0.2], 250), 0.05, 0.05), 4)
    0.0569
    """
    stakes = compute_stakes(values, significance_level, guessed_mean)
    required_log_capital = -math.log(significance_level)

    def is_certified_upper_bound(limit: float) -> bool:
        return max_log_capital_betting_below(values, limit, stakes) >= required_log_capital

    return bracket_first_true(is_certified_upper_bound).smallest_true


def mean_lower_bound(values: Float, significance_level: float, guessed_mean: float) -> float:
    """Compute a lower bound on the mean that holds with probability 1 - level.

    >>> round(mean_lower_bound(np.tile([0.0, 0.0, 0.0, 0.2], 250), 0.05, 0.05), 4)
    0.0436
    """
    stakes = compute_stakes(values, significance_level, guessed_mean)
    required_log_capital = -math.log(significance_level)

    def is_possible_mean(limit: float) -> bool:
        return max_log_capital_betting_above(values, limit, stakes) < required_log_capital

    return bracket_first_true(is_possible_mean).largest_false


class Bracket(NamedTuple):
    """Interval in which a monotone condition changes from false to true.

    Attributes
    ----------
    largest_false : float
        Largest evaluated number at which the condition is false.
    smallest_true : float
        Smallest evaluated number at which the condition is true.
    """

    largest_false: float
    smallest_true: float


def bracket_first_true(
    condition: Callable[[float], bool],
    lower_end: float = 0.0,
    upper_end: float = 1.0,
    n_steps: int = _N_BISECTION_STEPS,
) -> Bracket:
    """Bracket the smallest number at which a monotone condition is true.

    Parameters
    ----------
    condition : callable
        Function of a number that is false up to some number and true above it. It is taken to be
        false at `lower_end` and true at `upper_end`.
    lower_end, upper_end : float
        Ends of the searched interval.
    n_steps : int
        Number of times that the interval is halved.

    Returns
    -------
    Bracket

    Examples
    --------
    >>> bracket_first_true(lambda number: number >= 0.7, n_steps=3)
    Bracket(largest_false=0.625, smallest_true=0.75)
    """
    largest_false = lower_end
    smallest_true = upper_end
    for _ in range(n_steps):
        midpoint = (largest_false + smallest_true) / 2
        if condition(midpoint):
            smallest_true = midpoint
        else:
            largest_false = midpoint
    return Bracket(largest_false, smallest_true)
