"""Local levels: significance levels of simultaneous order-statistic bounds.

The i-th smallest of n uniform draws has the distribution Beta(i, n+1-i). Bound each order statistic
from below by its η-quantile, with the same *local level* η for all i. The probability p(n, η) that at
least one of these bounds fails is the *exit probability*, which `benchmarks/bands.py` computes
exactly. `local_level(n, δ)` inverts it: it returns the η with p(n, η) = δ. The inversion uses the
*hazard* -log(1 - p), which is nearly proportional to η. The bands of `metacal.statistics.bands` are
built from these bounds.

References
----------
Gontscharuk & Finner, "Asymptotics of goodness-of-fit tests based on minimum p-value statistics",
2017. Moscovich, Nadler & Spiegelman, "On the exact Berk-Jones statistics and their p-value
calculation", 2016.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

import numpy as np
from scipy.special import betaincinv

from metacal.formulas import Codes, Float
from metacal.rows.arrays import check_fraction

_TABLE = np.genfromtxt(Path(__file__).with_suffix(".csv"), delimiter=",")[:, 1:]
#: Local level of each column of the table, in increasing order.
TABLE_LEVELS: Float = _TABLE[0]
#: Hazard -log(1 - p(n, η)) divided by η. Row k is for n = 2**k draws, from 1 to 65,536, and each
#: column is for one of `TABLE_LEVELS`. `benchmarks/bands.py` computes the table.
#: For n >= 4,096, hazards at a fixed level grow linearly in log n.
HAZARD_PER_LEVEL_BY_LOG2_N: Float = _TABLE[1:]
#: Safety factor of interpolated hazards, which exceeds the interpolation error.
_INTERPOLATION_MARGIN = 1.006
#: Safety factor of extrapolated hazards, whose slope in log n still grows slightly.
_EXTRAPOLATION_MARGIN = 1.002
#: Number of grid points at which the interpolated function is inverted.
_N_GRID_POINTS = 4001


@lru_cache(maxsize=1024)
def local_level(n: int, delta: float) -> float:
    """Compute the level per bound at which any of n bounds fails with probability delta.

    The level is the same for each bound, and delta is the probability that any of them fails.

    The level is interpolated in log n and log η from a table of exit probabilities, with a margin
    of 0.6% to the safe side. It is of order delta / (log n · log log n). Therefore a band that
    holds everywhere is at most about twice as wide as a bound at a single point: at delta = 0.05
    its width is 2.8, 3.0, 3.2 and 3.3 standard errors for n = 100, 1,000, 10,000 and 1,000,000,
    compared with 1.6 for a single point.

    >>> round(local_level(1000, 0.05), 5)
    0.00121
    """
    check_fraction("delta", delta)
    hazard_per_level = _interpolate_hazard_per_level(n)
    # The hazard increases with the level, so it can be inverted on a grid of levels.
    log10_table_levels = np.log10(TABLE_LEVELS)
    log10_levels = np.linspace(log10_table_levels[0], log10_table_levels[-1], _N_GRID_POINTS)
    hazards = (
        10.0**log10_levels
        * np.interp(log10_levels, log10_table_levels, hazard_per_level)
        * _INTERPOLATION_MARGIN
    )
    allowed_hazard = -math.log1p(-delta)
    # The union bound is valid even if delta is smaller than every entry of the table.
    union_bound_level = delta / max(n, 1)
    if allowed_hazard < hazards[0]:
        return union_bound_level
    log10_level = np.interp(math.log(allowed_hazard), np.log(hazards), log10_levels)
    return max(union_bound_level, float(10.0**log10_level))


def _interpolate_hazard_per_level(n: int) -> Float:
    """Interpolate the table of hazards for n draws, linearly in log n.

    Returns
    -------
    array of float of shape (n_levels,)
        Hazard divided by the level, for each of `TABLE_LEVELS`.
    """
    log2_n = math.log2(max(n, 1))
    max_log2_n = len(HAZARD_PER_LEVEL_BY_LOG2_N) - 1
    log2_n_below = min(int(log2_n), max_log2_n - 1)
    entries_below = HAZARD_PER_LEVEL_BY_LOG2_N[log2_n_below]
    entries_above = HAZARD_PER_LEVEL_BY_LOG2_N[log2_n_below + 1]
    entries = entries_below + (log2_n - log2_n_below) * (entries_above - entries_below)
    if log2_n > max_log2_n:
        entries = entries * _EXTRAPOLATION_MARGIN
    return np.asarray(entries)


def uniform_order_statistic_quantiles(ranks: Codes, n: int, level: float) -> Float:
    """Compute the `level` quantiles of the order statistics of n uniform draws.

    The quantile at rank i is that of Beta(i, n+1-i). At rank 0 the function returns 0.
    """
    positive_ranks = np.maximum(ranks, 1)
    quantiles = betaincinv(positive_ranks, n + 1 - positive_ranks, level)
    return np.where(ranks > 0, quantiles, 0.0)
