"""Local levels: significance levels of simultaneous order-statistic bounds.

The i-th smallest of n uniform draws has the distribution Beta(i, n+1-i). Bound each order statistic
from below by its η-quantile, with the same *local level* η for all i. The probability that at least
one of these bounds fails is the *exit probability* of (n, η), which `benchmarks/bands.py` computes
exactly. `local_level(n, δ)` inverts it: it returns the η whose exit probability is δ. The bands of
`metacal.statistics.bands` are built from these bounds.

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
LEVELS: Float = _TABLE[0]
#: Table of the exit hazard, -log(1 - exit probability(n, level)), divided by the level.
#: It has a row for each of n = 1, 2, 4, ..., 65,536 and a column for each local level.
#: `benchmarks/bands.py` computes it. From n = 4,096 on the entries grow linearly in log n.
EXIT_HAZARD_PER_LEVEL: Float = _TABLE[1:]
#: Factor by which interpolated entries are raised. The interpolation error is smaller.
_INTERPOLATION_MARGIN = 1.006
#: Factor by which extrapolated entries are raised, because the slope still grows slightly.
_EXTRAPOLATION_MARGIN = 1.002
#: Number of grid points at which the interpolated function is inverted.
_N_GRID_POINTS = 4001


@lru_cache(maxsize=1024)
def local_level(n: int, delta: float) -> float:
    """Compute the local level at which n order statistics have exit probability delta.

    The level is interpolated in log n and log η from a table of exit probabilities, with a margin
    of 0.6% to the safe side. It is of order delta / (log n · log log n). Therefore a band that
    holds everywhere is at most about twice as wide as a bound at a single point: at delta = 0.05
    its width is 2.8, 3.0, 3.2 and 3.3 standard errors for n = 100, 1,000, 10,000 and 1,000,000,
    compared with 1.6 for a single point.

    >>> round(local_level(1000, 0.05), 5)
    0.00121
    """
    check_fraction("delta", delta)
    exit_hazard_per_level = _interpolate_exit_hazard_per_level(n)
    log_levels = np.log10(LEVELS)
    # The hazard -log(1 - exit probability) rises with the level, so it can be inverted on a grid.
    log_level_grid = np.linspace(log_levels[0], log_levels[-1], _N_GRID_POINTS)
    hazard_per_level_on_grid = np.interp(log_level_grid, log_levels, exit_hazard_per_level)
    hazard_on_grid = 10.0**log_level_grid * hazard_per_level_on_grid * _INTERPOLATION_MARGIN
    allowed_hazard = -math.log1p(-delta)
    # The union bound is always valid, also if delta is smaller than every entry of the table.
    union_bound_level = delta / max(n, 1)
    if allowed_hazard < hazard_on_grid[0]:
        return union_bound_level
    log_level = np.interp(math.log(allowed_hazard), np.log(hazard_on_grid), log_level_grid)
    return max(union_bound_level, float(10.0**log_level))


def _interpolate_exit_hazard_per_level(n: int) -> Float:
    """Interpolate the row of `EXIT_HAZARD_PER_LEVEL` for n draws, linearly in log n."""
    # Row k of the table is for n = 2**k draws.
    fractional_row = math.log2(max(n, 1))
    row_below = min(int(fractional_row), len(EXIT_HAZARD_PER_LEVEL) - 2)
    row_above = row_below + 1
    row_difference = EXIT_HAZARD_PER_LEVEL[row_above] - EXIT_HAZARD_PER_LEVEL[row_below]
    exit_hazard_per_level = (
        EXIT_HAZARD_PER_LEVEL[row_below] + (fractional_row - row_below) * row_difference
    )
    is_beyond_table = fractional_row > row_above
    if is_beyond_table:
        exit_hazard_per_level = exit_hazard_per_level * _EXTRAPOLATION_MARGIN
    return np.asarray(exit_hazard_per_level)


def order_statistic_quantiles(ranks: Codes, n: int, level: float) -> Float:
    """Compute the `level` quantiles of the order statistics of n uniform draws.

    The quantile at rank i is that of Beta(i, n+1-i). At rank 0 the function returns 0.
    """
    positive_ranks = np.maximum(ranks, 1)
    quantiles = betaincinv(positive_ranks, n + 1 - positive_ranks, level)
    return np.where(ranks > 0, quantiles, 0.0)
