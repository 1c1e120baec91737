"""Local levels: how far into the tail each order statistic's own bound must lie for all of them to
hold at once.

Of n uniform draws the i-th smallest is Beta(i, n+1-i). Bounding each from below by its quantile at
the same *local level* η, the chance that any bound fails is the exit probability of (n, η), which
`benchmarks/bands.py` computes exactly; `local_level(n, δ)` inverts it. `bands` builds its bands
from these.

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
#: Local levels of the table.
LEVELS: Float = _TABLE[0]
#: For n = 1, 2, 4, ..., 65,536 (rows) and each local level: -log(1 - exit probability(n, level)) /
#: level, computed by benchmarks/bands.py. From n = 4,096 on it grows linearly in log n.
EXITS_PER_LEVEL: Float = _TABLE[1:]
#: Interpolating the table errs by less than this.
_MARGIN = 1.006


@lru_cache(maxsize=1024)
def local_level(n: int, delta: float) -> float:
    """The local level η at which the order statistics of n draws leave a one-sided band with
    probability delta.

    From a table of exit probabilities, interpolated in log n and log η with 0.6% to the safe side;
    of order delta / (log n · log log n), so that "everywhere" costs no more than twice the width of
    a bound at one point: at delta = 0.05 it takes 2.8, 3.0, 3.2 and 3.3 standard errors for n =
    100, 1,000, 10,000 and 1,000,000, not 1.6.

    >>> round(local_level(1000, 0.05), 5)
    0.00121
    """
    check_fraction("delta", delta)
    at = math.log2(max(n, 1))
    row = min(int(at), len(EXITS_PER_LEVEL) - 2)
    exits = EXITS_PER_LEVEL[row] + (at - row) * (EXITS_PER_LEVEL[row + 1] - EXITS_PER_LEVEL[row])
    if at > row + 1:  # beyond the table the slope still grows by a trace
        exits = exits * 1.002
    wanted = -math.log1p(-delta)
    # log η + log(exits per level) rises with log η: interpolate its inverse.
    known = np.log10(LEVELS)
    grid = np.linspace(known[0], known[-1], 4001)
    spent = 10.0**grid * np.interp(grid, known, exits) * _MARGIN
    # The union bound is always valid: it is exact for one draw, and serves where delta is tinier
    # than the table.
    union = delta / max(n, 1)
    return (
        union
        if wanted < spent[0]
        else max(union, float(10.0 ** np.interp(math.log(wanted), np.log(spent), grid)))
    )


def quantiles_at(ranks: Codes, n: int, level: float) -> Float:
    """The `level` quantiles L_i of the order statistics of n uniforms, at some ranks; L_0 = 0."""
    at = np.maximum(ranks, 1)
    return np.where(ranks > 0, betaincinv(at, n + 1 - at, level), 0.0)
