"""Local levels: how far into the tail each order statistic's own bound must lie for all of them to hold at once.

Of n uniform draws the i-th smallest is Beta(i, n+1-i). Bounding each from below by its quantile at the same *local
level* η, the chance that any bound fails is the exit probability of (n, η), which `benchmarks/bands.py` computes
exactly; `local_level(n, δ)` inverts it. `bands` builds its bands from these.

A second table is for error rates of the first m rows, m = 1 … n, each bounded from above by Clopper & Pearson at one
local level. Where every row errs with the same chance r, the errors E_m are a random walk, and the chance that any
bound fails, P(Bin(m, r) <= E_m) < η for some m, is computed exactly; it is largest for r = 1/2. `joint_level` inverts
it. Where the chance changes along the ranking nothing is proved: what the bounds see, the difference of the shares of
wrong and right rows below a score, is a martingale from the last row down, a Brownian motion whose clock is longest for
the flat r = 1/2; small counts can do worse, so that η is taken times 0.8. The rarer the errors, the shorter the clock:
bounds on an error rate of at most u have the level of n·(4u(1-u))^(2/3) rows. (With the power 1 flat populations keep
to delta, as computed exactly, but those whose errors grow rarer towards the top do not.) `benchmarks/joint_band.py`
measures it on some fifty populations, and certificates say that these levels are calibrated.

References
----------
Gontscharuk & Finner, "Asymptotics of goodness-of-fit tests based on minimum p-value statistics", 2017.
Moscovich, Nadler & Spiegelman, "On the exact Berk-Jones statistics and their p-value calculation", 2016.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

import numpy as np
from scipy.special import betaincinv

from metacal.formulas import Codes, Float
from metacal.rows.arrays import fraction

#: Local levels, and for each of them -log(1 - exit probability(n, η)) / η for n = 1, 2, 4, …, 65,536 (rows): of order
#: statistics, computed by benchmarks/bands.py (from n = 4,096 on it grows linearly in log n), and of the errors among
#: the first m of n rows, m = 1 … n, each row wrong with probability 1/2.
_TABLES = np.genfromtxt(Path(__file__).with_suffix(".csv"), delimiter=",")[:, 1:]
LEVELS, (EXITS_PER_LEVEL, JOINT_EXITS_PER_LEVEL) = _TABLES[0], np.split(_TABLES[1:], 2)
#: What is left of the level of a flat population, for those that are not.
_NOT_FLAT = 0.8
#: Error rates that have levels of their own.
_RATES: Float = 0.5 * np.power(0.8, np.arange(24.0))
#: Interpolating the table errs by less than this.
_MARGIN = 1.006


@lru_cache(maxsize=1024)
def local_level(n: int, delta: float) -> float:
    """The local level η at which the order statistics of n draws leave a one-sided band with probability delta.

    From a table of exit probabilities, interpolated in log n and log η with 0.6% to the safe side; of order
    delta / (log n · log log n), so that "everywhere" costs no more than twice the width of a bound at one point: at
    delta = 0.05 it takes 2.8, 3.0, 3.2 and 3.3 standard errors for n = 100, 1,000, 10,000 and 1,000,000, not 1.6.

    >>> round(local_level(1000, 0.05), 5)
    0.00121
    """
    return _inverted(EXITS_PER_LEVEL, n, delta)


@lru_cache(maxsize=1024)
def joint_levels(n: int, delta: float) -> tuple[Float, Float]:
    """Local levels of bounds on the error rates of the first m of n rows, m = 1 … n, that all hold with 1 - delta.

    Rates, falling, and the level of bounds at most as large as each; the first is for all bounds.

    >>> [joint_levels(n, 0.1)[1][[0, 10]].round(4).tolist() for n in (300, 1000, 5000)]
    [[0.0111, 0.0169], [0.0076, 0.0105], [0.0051, 0.0065]]
    """
    clocks = n * (4.0 * _RATES * (1.0 - _RATES)) ** (2.0 / 3.0)
    levels = [_inverted(JOINT_EXITS_PER_LEVEL, math.ceil(clock), delta) for clock in clocks.tolist()]
    return _RATES, _NOT_FLAT * np.array(levels)


def _inverted(table: Float, n: int, delta: float) -> float:
    """The level at which a table, interpolated, has delta."""
    fraction("delta", delta)
    at = math.log2(max(n, 1))
    row = min(int(at), len(table) - 2)
    exits = table[row] + (at - row) * (table[row + 1] - table[row])
    if at > row + 1:  # beyond the table the slope still grows by a trace
        exits = exits * 1.002
    wanted = -math.log1p(-delta)
    # log η + log(exits per level) rises with log η: interpolate its inverse.
    known = np.log10(LEVELS)
    grid = np.linspace(known[0], known[-1], 4001)
    spent = 10.0**grid * np.interp(grid, known, exits) * _MARGIN
    # The union bound is always valid: it is exact for one draw, and serves where delta is tinier than the table.
    union = delta / max(n, 1)
    return union if wanted < spent[0] else max(union, float(10.0 ** np.interp(math.log(wanted), np.log(spent), grid)))


def quantiles_at(ranks: Codes, n: int, level: float) -> Float:
    """The `level` quantiles L_i of the order statistics of n uniforms, at some ranks; L_0 = 0."""
    at = np.maximum(ranks, 1)
    return np.where(ranks > 0, betaincinv(at, n + 1 - at, level), 0.0)
