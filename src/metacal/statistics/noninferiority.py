"""An exact test that one classifier errs at most `margin` more often than another, from rows that
both have answered.

Of n rows `worse` are wrong by the first and right by the second, `better` the other way round; on
all others the two are right or wrong together. The counts are multinomial with probabilities p₊, p₋
and the rest; p₊ - p₋ is the difference of the two error rates. `certifies_noninferiority` tests "p₊ - p₋ >=
margin": a small p-value shows the first to be no more than `margin` worse; with no row on which
they differ it is (1 - margin)^n, and γ. `noninferiority_p_value` is that of the opposite, "p₊ - p₋ <=
margin".

**The test.** T(a, b) = (a - b - n·margin) / √(n·margin + 2b): the difference less what is allowed,
over its standard deviation where p₊ = p₋ + margin and p₋ = b/n. The p-value is the largest chance,
over the unknown q = p₋ on the border p₊ = q + margin, of a T as small as the one observed. As q is
unknown it is searched below its upper confidence limit U (Clopper & Pearson) at level γ, and γ is
added (Berger & Boos 1994).

*Proof.* (1) T rises with a, and does not rise with b: where T < 0 its derivative in b has the sign
of -(a + b), and for T >= 0 its numerator falls while its denominator rises. So {T <= t} grows when
a row turns from "worse" into "neither", or from "neither" into "better". (2) Draw each row from one
uniform number: "better" below p₋, "worse" above 1 - p₊. By
(1) P(T <= t) falls as p₊ rises with p₋ fixed, hence over p₊ >= p₋ + margin it is largest on the border; and for q in a
cell [u, v] it is at most its value at p₋ = v, p₊ = u + margin. The largest of these over cells that
cover [0, U] is therefore at least the supremum: what is computed is an upper bound, and finer cells
only sharpen it. (3) q <= U but for a chance of γ; otherwise the supremum over [0, U] is at least
the chance that belongs to the true q, and P(supremum + γ <= l) is at most γ + (l - γ) = l. For T >=
t all is mirrored.

Betting on the differences in random order (Waudby-Smith & Ramdas 2024) is valid too, at any
stopping time and for any bounded loss; from a fixed number of 0/1 errors the exact test certifies
more (figures: `docs/cascade-measured.md`).

References
----------
Hsueh, Liu & Chen, "Unconditional exact tests for equivalence or noninferiority for paired binary
endpoints", Biometrics
2001. Berger & Boos, "P values maximized over a confidence set for the nuisance parameter", JASA 1994.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.special import bdtr, bdtrc, gammaln, xlog1py, xlogy

from metacal.statistics import bounds

#: Cells that the unknown q is searched in, at most: what is still open then is taken at its bound.
_MOST_CELLS = 200
#: Of a level, what the exact test of a difference spends on the limit of its nuisance parameter.
NUISANCE_LEVEL_FRACTION = 0.05
#: Margins are told apart to this, and a difference is told from 0 where one of this size is.
_FINEST, _LEAST = 1e-4, 1e-3
#: Counts farther from their mean than 9 standard deviations and 25 have a chance below this
#: (Bernstein).
_DROPPED = 1e-15
#: Rounding of T must not shut the observed counts out of the region that they define.
_SLACK = 1e-9


def certifies_noninferiority(
    worse: int, better: int, n: int, margin: float, level: float, gamma: float
) -> bool:
    """Whether the counts show, at this level, that the first classifier errs at most `margin` more
    often.

    P(T <= observed) at the worst q is at most the level; stopped as soon as that is known.

    >>> certifies_noninferiority(0, 0, 300, 0.01, level=0.1, gamma=0.005), certifies_noninferiority(0, 0, 200, 0.01, level=0.1, gamma=0.005)
    (True, False)
    """
    return (
        _p_value(int(worse), int(better), int(n), float(margin), float(gamma), False, float(level))
        <= level
    )


def noninferiority_p_value(worse: int, better: int, n: int, margin: float, gamma: float) -> float:
    """The p-value of "the first errs at most `margin` more often than the second": P(T >=
    observed), at the worst q.

    >>> round(noninferiority_p_value(40, 10, 1000, 0.01, gamma=0.001), 3)
    0.003
    """
    return _p_value(int(worse), int(better), int(n), float(margin), float(gamma), True, None)


def difference_interval(worse: int, better: int, n: int, level: float) -> tuple[float, float]:
    """An interval for the difference of the two error rates: the margins that neither of the exact
    tests excludes.

    Each end has half of 1 - level. The upper end is never below 0, where the margins of the tests
    begin.

    >>> [round(end, 3) for end in difference_interval(40, 10, 1000, 0.95)]
    [0.016, 0.045]
    >>> [round(end, 3) for end in difference_interval(3, 2, 1000, 0.95)]
    [-0.005, 0.007]
    """
    each = (1.0 - level) / 2.0
    gamma = NUISANCE_LEVEL_FRACTION * each

    def upper(one: int, other: int) -> float:
        return _border(lambda margin: certifies_noninferiority(one, other, n, margin, each, gamma))

    def kept(margin: float) -> bool:
        return noninferiority_p_value(worse, better, n, margin, gamma) > each

    # Nearer to 0 the bound of `noninferiority_p_value` is loose, and a margin there would pass that a larger
    # one does not.
    low = -upper(better, worse) if kept(_LEAST) else _border(kept, _LEAST) - _FINEST
    value = (worse - better) / n
    return min(low, value), max(upper(worse, better), value)


def _border(passes: Callable[[float], bool], least: float = 0.0) -> float:
    """The smallest margin above `least` that passes, to the finest step."""
    low, high = round(least / _FINEST), round(1.0 / _FINEST)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle * _FINEST) else (middle, high)
    return high * _FINEST


@lru_cache(maxsize=4096)
def _p_value(
    worse: int, better: int, n: int, margin: float, gamma: float, upper: bool, level: float | None
) -> float:
    """The p-value, from above to one percent and 1e-4; where only its side of `level` matters, any
    number on that side.

    Branch and bound: the cell with the largest bound is halved until no cell's bound is beyond what
    is known of points.
    """
    observed = (worse - better - n * margin) / math.sqrt(n * margin + 2.0 * better)
    if (observed <= 0.0) if upper else (observed >= 0.0):
        return 1.0

    def chance(minus: float, plus: float) -> float:
        return _chance(n, margin, observed, minus, plus, upper) + gamma

    def bound(low: float, high: float) -> tuple[float, float, float]:
        return -(chance(low, high) if upper else chance(high, low)), low, high

    limit = min(bounds.clopper_pearson_upper(better, n, gamma), (1.0 - margin) / 2.0)
    known, cells = max(chance(limit, limit), chance(0.0, 0.0)), [(-1.0, 0.0, limit)]
    for _ in range(_MOST_CELLS):
        largest, low, high = cells[0]
        if -largest <= 1.01 * known + 1e-4 if level is None else known > level or -largest <= level:
            break
        middle = (
            (math.sqrt(low) + math.sqrt(high)) / 2.0
        ) ** 2  # in √q the spread of a count is even
        known = max(known, chance(middle, middle))
        heapq.heapreplace(cells, bound(low, middle))
        heapq.heappush(cells, bound(middle, high))
    return min(1.0, -cells[0][0])


def _chance(
    n: int, margin: float, observed: float, minus: float, plus: float, upper: bool
) -> float:
    """P(T <= observed), or of T >= observed, at p₋ = minus and p₊ = plus + margin: summed over the
    "better" rows b.
    """
    spread = 9.0 * math.sqrt(n * minus) + 25.0
    b = np.arange(
        max(0.0, math.floor(n * minus - spread)), min(n, math.ceil(n * minus + spread)) + 1
    )
    log_law = (
        gammaln(n + 1)
        - gammaln(b + 1)
        - gammaln(n - b + 1)
        + xlogy(b, minus)
        + xlog1py(n - b, -minus)
    )
    edge = b + n * margin + observed * np.sqrt(n * margin + 2.0 * b)
    rate, rest = min((plus + margin) / (1.0 - minus), 1.0), (n - b).astype(np.int64)
    if upper:
        least = np.ceil(edge - _SLACK)
        tail = np.where(
            least <= 0,
            1.0,
            np.where(least > rest, 0.0, bdtrc(np.clip(least - 1, 0, rest), rest, rate)),
        )
    else:
        most = np.floor(edge + _SLACK)
        tail = np.where(most < 0, 0.0, bdtr(np.clip(most, 0, rest), rest, rate))
    return float(np.exp(log_law) @ tail) + _DROPPED
