"""The largest probability of a row through a curve of its log-odds, the others in proportion: a few numbers a row.

q = (1 - ε)·softmax(b·x) + ε/K. The predicted class gets σ(s(z)), z the log-odds of q's largest entry, and the others
share the rest as q has them: each is q's entry times one number of the row. Arrays and tensors have these operations
under the same names.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: The predicted class's probability is at least this times that of any other: a tie would be no prediction.
AHEAD = 1.0 + 1e-6


@dataclass(frozen=True, eq=False)
class Curve:
    """A spline s: its slope runs straight from knot to knot and is level beyond the outer ones; `intercept` is s at the
    first.

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
            found = found + along * (slopes[i] + (0.5 * (slopes[i + 1] - slopes[i]) / width) * along)
        return found + slopes[-1] * (z - knots[-1]).clip(0.0, None)


def lifted(library: Any, rest: Any, second: Any, possible: Any, uniform: float, curve: Curve) -> tuple[Any, Any, Any]:
    """What becomes of p = softmax(b·x) of each row: p·scale + shift, and `top` for the predicted class.

    `rest` and `second` are the sum and the largest of the others' p, `possible` how many classes are not masked. The
    predicted class is never pushed below another.
    """
    even = 1.0 / possible
    others = (1.0 - uniform) * rest + uniform * (1.0 - even)
    z = library.log((1.0 - uniform) * (1.0 - rest) + uniform * even) - library.log(others)
    s = curve.value(z)
    share = AHEAD * ((1.0 - uniform) * second + uniform * even) / others
    alone = others == 0.0
    most = 1.0 / (1.0 + share)
    below = 1.0 / (1.0 + library.exp(s.clip(-700.0, 700.0)))
    top = 1.0 / (1.0 + library.exp((-s).clip(-700.0, 700.0)))
    kept, top = library.where(below > most, most, below), library.where(below > most, share * most, top)
    each = library.where(alone, 0.0 * rest, kept / library.where(alone, 1.0 + rest, others))
    return (1.0 - uniform) * each, uniform * even * each, library.where(alone, 1.0 + rest, top)
