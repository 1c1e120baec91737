r"""Betting: how surely the mean of numbers in [0, 1] lies below (or above) a limit, told by a
gambler's capital.

Somebody who believes that the mean is below m stakes a share of their capital on each number in
turn: K_t = K_{t-1} · (1 + λ_t (m - x_t)), λ_t chosen before x_t is seen. If the numbers seen so far
say that the next one is at least m on average, the game is unfair to them: K is a nonnegative
supermartingale, and P(K ever reaches 1/δ) <= δ (Ville 1939). Nothing else is assumed: no variance,
no shape, and the numbers need not have the same law.

The stakes are predictable plug-ins, λ_t = √(2 log(1/δ) / (n σ̂²_{t-1})), the best for a mean that n
numbers just tell from m, with the variance of the numbers before; at most 0.9 of what could ruin
them, 0.9/(1 - m). A first guess of the mean counts as five numbers. Of losses that are rarely
anything but 0 the first numbers say little about the variance: there the guess is that of zeros and
ones, and counts as thirty.

References
----------
Waudby-Smith & Ramdas, "Estimating means of bounded random variables by betting", JRSS-B 2024.
Ville, "Étude critique de la notion de collectif", 1939.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from metacal.formulas import Float

#: The most that is staked, of what a single number could take.
_MOST = 0.9
#: The first guess has the weight of so many numbers, and a variance of so much of m(1 - m); of rare
#: losses.
_GUESS, _RARE = (5.0, 0.5), (30.0, 1.0)
#: Halvings of [0, 1]: far below what anybody reads.
_HALVINGS = 40


def stakes(values: Float, level: float, guess: float, *, rare: bool = False) -> Float:
    """λ_t for each of the values, from those before it alone; `guess` is the mean that was thought
    of beforehand.

    >>> stakes(np.array([0.0, 0.0, 1.0, 0.0]), 0.1, 0.2).round(2)
    array([3.79, 3.96, 4.15, 2.77])
    """
    weight, spread = _RARE if rare else _GUESS
    seen = np.arange(len(values)) + weight
    mean = (np.cumsum(values) - values + weight * guess) / seen
    squares = (values - mean) ** 2
    variance = (np.cumsum(squares) - squares + weight * spread * guess * (1.0 - guess)) / seen
    return np.asarray(np.sqrt(-2.0 * math.log(level) / (len(values) * variance)))


def log_capital_below(values: Float, limit: float, stake: Float) -> float:
    """The logarithm of the highest capital of whoever bets that the mean is below the limit. It
    rises with the limit.

    Stake and cap: (m - x)·min(λ, .9/(1 - m)) rises with m for every x in [0, 1], so that limits can
    be bisected.
    """
    capped = np.minimum(stake, _MOST / max(1.0 - limit, 1e-300))
    return float(np.cumsum(np.log1p(capped * (limit - values))).max(initial=0.0))


def log_capital_above(values: Float, limit: float, stake: Float) -> float:
    """The same for whoever bets that the mean is above; it falls as the limit rises."""
    capped = np.minimum(stake, _MOST / max(limit, 1e-300))
    return float(np.cumsum(np.log1p(capped * (values - limit))).max(initial=0.0))


def is_below(values: Float, limit: float, level: float, *, rare: bool = False) -> bool:
    """Whether the mean is certified to be below the limit: wrongly with probability at most
    `level`.

    >>> is_below(np.full(200, 0.02), 0.05, 0.1), is_below(np.full(200, 0.045), 0.05, 0.1)
    (True, False)
    """
    return log_capital_below(values, limit, stakes(values, level, limit, rare=rare)) >= -math.log(
        level
    )


def p_value_above(values: Float, limit: float, level: float) -> float:
    """P-value of "the mean is at most the limit", by stakes that suit a test at `level`; 1 without
    any value.

    >>> p_value_above(np.full(200, 0.2), 0.05, 0.05) < 1e-6, p_value_above(np.full(200, 0.04), 0.05, 0.05)
    (True, 1.0)
    """
    if not len(values):
        return 1.0
    return math.exp(-log_capital_above(values, limit, stakes(values, level, limit)))


def upper_mean(values: Float, level: float, guess: float) -> float:
    """The mean is at most this, with probability 1 - level: the smallest limit at which the capital
    reaches 1/level.

    >>> round(upper_mean(np.tile([0.0, 0.0, 0.0, 0.2], 250), 0.05, 0.05), 4)
    0.0569
    """
    stake, enough = stakes(values, level, guess), -math.log(level)
    return halved(lambda limit: log_capital_below(values, limit, stake) >= enough)[1]


def lower_mean(values: Float, level: float, guess: float) -> float:
    """The mean is at least this, with probability 1 - level.

    >>> round(lower_mean(np.tile([0.0, 0.0, 0.0, 0.2], 250), 0.05, 0.05), 4)
    0.0436
    """
    stake, enough = stakes(values, level, guess), -math.log(level)
    return halved(lambda limit: log_capital_above(values, limit, stake) < enough)[0]


def halved(
    beyond: Callable[[float], bool], low: float = 0.0, halvings: int = _HALVINGS
) -> tuple[float, float]:
    """The two sides of where `beyond` begins to hold, between a number and 1."""
    high = 1.0
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (low, middle) if beyond(middle) else (middle, high)
    return low, high
