"""Local levels: how far into the tail each order statistic's own bound must lie for all of them to hold at once.

Of n uniform draws the i-th smallest is Beta(i, n+1-i). Bounding each from below by its quantile at the same *local
level* η, the chance that any bound fails is the exit probability of (n, η), which `benchmarks/bands.py` computes
exactly; `local_level(n, δ)` inverts it. `bands` builds its bands from these.

A second table is for error rates of the first m rows, m = 1 … n, each bounded from above by Clopper & Pearson at one
local level. Where every row errs with the same chance r, the errors E_m are a random walk, and the chance that any
bound fails, P(Bin(m, r) <= E_m) < η for some m, is computed exactly; it is largest for r = 1/2. `joint_level` inverts
it. Where the chance changes along the ranking nothing is proved: what the bounds see, the difference of the shares of
wrong and right rows below a score, is a martingale from the last row down, a Brownian motion whose clock is longest for
the flat r = 1/2; small counts can do worse, so that η is taken times 0.8. `benchmarks/joint_band.py` measures it on
some fifty populations, and certificates say that this level is calibrated.

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
#: The same of the errors among the first m of n rows, m = 1 … n, each row wrong with probability 1/2.
JOINT_EXITS_PER_LEVEL = np.array(
    [
        [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1.5253],
        [1, 1, 1, 1, 1, 1.4245, 1.5882, 1.3863, 1.4323, 1.5875, 1.8176, 2.2681],
        [1.3737, 1.0431, 2.0899, 2.7321, 2.7382, 3.2253, 3.0234, 2.7297, 2.8278, 2.6822, 2.6485, 3.0015],
        [5.522, 4.7297, 5.7927, 5.2595, 5.2683, 5.2672, 5.1763, 4.5245, 4.3258, 3.9161, 3.5748, 3.6375],
        [10.326, 9.4194, 9.8521, 9.0259, 8.3158, 7.9811, 7.4756, 6.5291, 5.8944, 5.0864, 4.4952, 4.363],
        [16.753, 15.239, 14.833, 13.26, 11.708, 11.004, 9.9669, 8.5921, 7.5335, 6.3758, 5.4274, 5.0732],
        [24.16, 21.822, 20.52, 18.01, 15.474, 14.225, 12.683, 10.819, 9.2608, 7.683, 6.3782, 5.8049],
        [32.438, 29.106, 26.737, 23.113, 19.456, 17.675, 15.533, 13.131, 11.023, 9.0101, 7.3237, 6.5337],
        [41.381, 36.889, 33.353, 28.523, 23.618, 21.252, 18.461, 15.5, 12.817, 10.353, 8.28, 7.2628],
        [50.85, 45.085, 40.266, 34.141, 27.929, 24.933, 21.464, 17.911, 14.636, 11.705, 9.2378, 7.9938],
        [60.681, 53.581, 47.412, 39.92, 32.333, 28.687, 24.515, 20.351, 16.465, 13.063, 10.198, 8.7259],
        [70.803, 62.303, 54.728, 45.819, 36.812, 32.492, 27.6, 22.811, 18.304, 14.424, 11.159, 9.4583],
        [81.131, 71.19, 62.166, 51.803, 41.341, 36.336, 30.709, 25.285, 20.15, 15.788, 12.122, 10.191],
        [91.61, 80.195, 69.693, 57.849, 45.909, 40.206, 33.835, 27.769, 22.001, 17.154, 13.084, 10.923],
    ]
)  # fmt: skip
#: What is left of the level of a flat population, for those that are not.
_NOT_FLAT = 0.8
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
def joint_level(n: int, delta: float) -> float:
    """The local level of bounds on the error rates of the first m of n rows, m = 1 … n, that all hold with 1 - delta.

    >>> [round(joint_level(n, 0.1), 4) for n in (300, 1000, 5000)]
    [0.0111, 0.0076, 0.0051]
    """
    return _NOT_FLAT * _inverted(JOINT_EXITS_PER_LEVEL, n, delta)


def _inverted(table: Column, n: int, delta: float) -> float:
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
