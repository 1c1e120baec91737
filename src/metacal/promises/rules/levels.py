"""Local levels: how far into the tail each order statistic's own bound must lie for all of them to hold at once.

Of n uniform draws the i-th smallest is Beta(i, n+1-i). Bounding each from below by its quantile at the same *local
level* η, the chance that any bound fails is the exit probability of (n, η), which `benchmarks/bands.py` computes
exactly; `local_level(n, δ)` inverts it. `bands` builds its bands from these.

References
----------
Gontscharuk & Finner, "Asymptotics of goodness-of-fit tests based on minimum p-value statistics", 2017.
Moscovich, Nadler & Spiegelman, "On the exact Berk-Jones statistics and their p-value calculation", 2016.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from metacal.rows.arrays import fraction

Column = NDArray[np.float64]

#: The local levels of the table below.
LEVELS = np.array([1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1])
#: -log(1 - exit probability(n, η)) / η for n = 1, 2, 4, …, 65,536 (rows) and the levels above (columns), computed by
#: benchmarks/bands.py. From n = 4,096 on it grows linearly in log n.
EXITS_PER_LEVEL = np.array(
    [
        [1, 1, 1, 1, 1.0001, 1.0002, 1.0005, 1.0015, 1.005, 1.0153, 1.0536, 1.1889],
        [1.9999, 1.9997, 1.999, 1.9969, 1.9902, 1.9833, 1.9706, 1.9516, 1.9206, 1.8854, 1.8654, 1.9792],
        [3.9881, 3.9781, 3.959, 3.9219, 3.8484, 3.7903, 3.6996, 3.5838, 3.4124, 3.2197, 3.0154, 3.0116],
        [7.771, 7.6729, 7.5272, 7.3055, 6.958, 6.7246, 6.3992, 6.025, 5.5236, 5.0024, 4.4514, 4.2233],
        [14.23, 13.804, 13.249, 12.511, 11.501, 10.887, 10.09, 9.2366, 8.1736, 7.1395, 6.0891, 5.5483],
        [23.879, 22.713, 21.306, 19.575, 17.402, 16.163, 14.63, 13.071, 11.226, 9.5207, 7.8533, 6.9385],
        [36.696, 34.281, 31.505, 28.266, 24.42, 22.323, 19.814, 17.351, 14.548, 12.055, 9.6913, 8.3643],
        [52.241, 48.076, 43.442, 38.223, 32.265, 29.117, 25.441, 21.927, 18.039, 14.68, 11.57, 9.809],
        [69.897, 63.552, 56.656, 49.083, 40.676, 36.335, 31.355, 26.686, 21.63, 17.357, 13.472, 11.264],
        [89.053, 80.204, 70.744, 60.544, 49.452, 43.821, 37.444, 31.554, 25.279, 20.061, 15.385, 12.723],
        [109.21, 97.628, 85.397, 72.388, 58.453, 51.469, 43.638, 36.486, 28.959, 22.781, 17.304, 14.185],
        [130, 115.54, 100.4, 84.464, 67.589, 59.213, 49.893, 41.453, 32.657, 25.509, 19.227, 15.649],
        [151.18, 133.74, 115.61, 96.679, 76.804, 67.012, 56.181, 46.44, 36.365, 28.242, 21.152, 17.113],
        [172.6, 152.12, 130.95, 108.97, 86.063, 74.842, 62.488, 51.437, 40.077, 30.976, 23.077, 18.578],
        [194.14, 170.59, 146.36, 121.31, 95.348, 82.689, 68.806, 56.441, 43.792, 33.712, 25.003, 20.043],
        [215.75, 189.12, 161.81, 133.68, 104.65, 90.546, 75.129, 61.447, 47.509, 36.449, 26.929, 21.508],
        [237.41, 207.69, 177.28, 146.06, 113.95, 98.408, 81.456, 66.455, 51.226, 39.185, 28.855, 22.973],
    ]
)  # fmt: skip
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
    fraction("delta", delta)
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
    # The union bound is always valid: it is exact for one draw, and serves where delta is tinier than the table.
    union = delta / max(n, 1)
    return union if wanted < spent[0] else max(union, float(10.0 ** np.interp(math.log(wanted), np.log(spent), grid)))


@lru_cache(maxsize=512)
def quantiles(n: int, level: float) -> Column:
    """L_0 = 0 and the `level` quantiles L_1 … L_n of the order statistics of n uniforms."""
    bounds = quantiles_at(np.arange(n + 1), n, level)
    bounds.setflags(write=False)
    return bounds


def quantiles_at(ranks: NDArray[np.intp], n: int, level: float) -> Column:
    """The same at some ranks; 0 at rank 0."""
    at = np.maximum(ranks, 1)
    return np.where(ranks > 0, betaincinv(at, n + 1 - at, level), 0.0)
