"""What becomes of a few numbers of each row, which one walk over the table gives: no further walk
is needed.

**A temperature with a uniform part.** A row has q = (1 - ε)·p + ε·u with p = softmax(b·x)_y, and u
one over the number of classes that are not masked. What `mixed_rows` says of it at one inverse
temperature says it at others nearby, too: ε and small steps of b cost no walk.

**A curve on top.** q = (1 - ε)·softmax(b·x) + ε/K. The predicted class gets σ(s(z)), z the log-odds
of q's largest entry, and the others share the rest as q has them: each is q's entry times one
number of the row.

Arrays and tensors have these operations under the same names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: The columns of `mixed_rows`: first Σ e^{bd} - 1, then four cumulants of d under softmax(b·x).
TAIL, MEAN, VARIANCE, THIRD, FOURTH, OWN, POSSIBLE, RIGHT = range(8)
#: The predicted class's probability is at least this times that of any other: a tie would be no
#: prediction.
AHEAD = 1.0 + 1e-6


def cumulants(m1: Any, m2: Any, m3: Any, m4: Any) -> tuple[Any, Any, Any, Any]:
    """The first four cumulants from the first four moments: mean, variance, third central moment,
    and the fourth.

    Examples
    --------
    >>> cumulants(0.5, 0.5, 0.5, 0.5)                              # a fair coin
    (0.5, 0.25, 0.0, -0.125)
    """
    square = m1 * m1
    third = m3 - m1 * (3.0 * m2 - 2.0 * square)
    return (
        m1,
        m2 - square,
        third,
        m4 - 4.0 * m3 * m1 - 3.0 * m2 * m2 + 6.0 * square * (2.0 * m2 - square),
    )


def log_partition(library: Any, columns: Any, step: Any) -> tuple[Any, Any, Any]:
    """log Σ e^{bd} and its first two derivatives in b, a `step` (one, or one for each row) from
    where rows were walked.

    Cumulants are its derivatives: these are the first terms of its series, with an error of fifth
    order in the step. What must be positive is: far below the top the series may not be.
    """
    value, mean, variance = library.log1p(columns[TAIL]), columns[MEAN], columns[VARIANCE]
    if isinstance(step, float) and step == 0.0:
        return value, mean, variance
    third, fourth = columns[THIRD], columns[FOURTH]
    value = value + step * (
        mean + step * (0.5 * variance + step * (third / 6.0 + (step / 24.0) * fourth))
    )
    slope = mean + step * (variance + step * (0.5 * third + (step / 6.0) * fourth))
    return value.clip(0.0), slope, (variance + step * (third + (0.5 * step) * fourth)).clip(0.0)


def mixed_sums(
    library: Any, columns: Any, weights: Any, walked: float, b: float, uniform: float
) -> Any:
    """Σ of -log q, its gradient in (log b, ε), and its curvature: six numbers (L, L_a, L_e, L_aa,
    L_ae, L_ee).

    `columns` are those of `mixed_rows`, one after another, walked at an inverse temperature near b.
    With a = log b, g = d log p / da, h = d²log p / da² and r = (1 - ε) p / q::

        L_a = -r g,   L_aa = -r h - r (1 - r) g²,   L_e = (p - u) / q,   L_ee = L_e²,   L_ae = p u g
        / q²
    """
    own, even = columns[OWN], 1.0 / columns[POSSIBLE]
    value, first, second = log_partition(library, columns, b - walked)
    chance = library.exp(b * own - value)
    mixed = (1.0 - uniform) * chance + uniform * even
    each = 1.0 / mixed
    slope = b * (own - first)
    share = (1.0 - uniform) * chance * each
    away = (chance - even) * each
    part = share * slope
    terms = (
        -library.log(mixed),
        -part,
        away,
        (b * b) * share * second - part - (part - share * part) * slope,
        chance * even * slope * each * each,
        away * away,
    )
    return library.stack(
        [term.sum() if weights is None else (term * weights).sum() for term in terms]
    )


def mixed_log_odds(library: Any, columns: Any, walked: float, b: float, uniform: float) -> Any:
    """log(max q / (1 - max q)) of each row, without cancellation; q has a uniform part above 0."""
    even = 1.0 / columns[POSSIBLE]
    value = log_partition(library, columns, b - walked)[0]
    ahead = (1.0 - uniform) * library.exp(-value) + uniform * even
    rest = -(1.0 - uniform) * library.expm1(-value) + uniform * (1.0 - even)
    return library.log(ahead) - library.log(rest)


@dataclass(frozen=True, eq=False)
class Curve:
    """A spline s: its slope runs straight from knot to knot and is level beyond the outer ones;
    `intercept` is s at the first.

    Examples
    --------
    >>> curve = Curve(np.array([0.0, 2.0]), np.array([1.0, 0.0]), 0.5)
    >>> curve.value(np.array([-1.0, 1.0, 3.0]))
    array([-0.5 ,  1.25,  1.5 ])
    """

    knots: NDArray[np.float64]
    slopes: NDArray[np.float64]
    intercept: float

    @cached_property
    def heights(self) -> NDArray[np.float64]:
        """s at each knot."""
        rises = 0.5 * (self.slopes[1:] + self.slopes[:-1]) * np.diff(self.knots)
        return self.intercept + np.append(0.0, np.cumsum(rises))

    @cached_property
    def packed(self) -> NDArray[np.float64]:
        """Knots, slopes and heights one after another."""
        return np.concatenate([self.knots, self.slopes, self.heights])

    def value(self, z: Any) -> Any:
        """s(z), NaN where z is."""
        knots, slopes, heights = self.knots, self.slopes, self.heights
        found = heights[0] + slopes[0] * (z - knots[0]).clip(None, 0.0)
        for i in range(len(knots) - 1):
            width = knots[i + 1] - knots[i]
            along = (z - knots[i]).clip(0.0, width)
            found = found + along * (
                slopes[i] + (0.5 * (slopes[i + 1] - slopes[i]) / width) * along
            )
        return found + slopes[-1] * (z - knots[-1]).clip(0.0, None)


def lifted(
    library: Any, rest: Any, second: Any, even: Any, uniform: float, value: Callable[[Any], Any]
) -> tuple[Any, Any, Any]:
    """What becomes of p = softmax(b·x) of each row: p·scale + shift, and `top` for the predicted
    class.

    `rest` and `second` are the sum and the largest of the others' p, `even` one over the number of
    classes that are not masked, `value` the curve. The predicted class is never pushed below
    another.
    """
    others = (1.0 - uniform) * rest + uniform * (1.0 - even)
    z = library.log((1.0 - uniform) * (1.0 - rest) + uniform * even) - library.log(others)
    s = value(z)
    share = AHEAD * ((1.0 - uniform) * second + uniform * even) / others
    alone = others == 0.0
    most = 1.0 / (1.0 + share)
    below = 1.0 / (1.0 + library.exp(library.clip(s, -700.0, 700.0)))
    top = 1.0 / (1.0 + library.exp(library.clip(-s, -700.0, 700.0)))
    kept, top = (
        library.where(below > most, most, below),
        library.where(below > most, share * most, top),
    )
    each = library.where(alone, 0.0 * rest, kept / library.where(alone, 1.0 + rest, others))
    return (1.0 - uniform) * each, uniform * even * each, library.where(alone, 1.0 + rest, top)
