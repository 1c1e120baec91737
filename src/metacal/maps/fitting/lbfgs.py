"""Preconditioned L-BFGS for smooth convex functions whose value and gradient are sums over rows.

One pass over the table per step. Liu & Nocedal, "On the limited memory BFGS method for large scale
optimization", Mathematical Programming 1989; the inverse Hessian of the start is the caller's,
which a calibration map knows well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from metacal.errors import ConvergenceWarning, warn_caller
from metacal.formulas import Float

Objective = Callable[[Float], tuple[float, Float]]

#: Pairs of steps and gradient changes that are remembered.
_MEMORY = 10
_SUFFICIENT_DECREASE = 1e-4
_MAX_HALVINGS = 40


@dataclass(frozen=True)
class Minimum:
    """Where an optimisation ended: the point, the value, what was still to gain, and the gradient's
    norm there.
    """

    point: Float
    value: float
    to_gain: float
    gradient_norm: float
    steps: int
    converged: bool

    def warn_unless_converged(self, what: str) -> None:
        """Warn with the gradient norm when the tolerance was not reached."""
        if not self.converged:
            warn_caller(
                f"{what} did not converge: gradient norm {self.gradient_norm:.3g} after"
                f" {self.steps} steps, the mean loss could fall by about another"
                f" {self.to_gain:.3g}. More regularisation makes the problem easier.",
                ConvergenceWarning,
            )


def minimise(
    objective: Objective,
    start: Float,
    precondition: Callable[[Float], Float] = lambda gradient: gradient,
    *,
    tolerance: float = 1e-10,
    max_steps: int = 500,
) -> Minimum:
    """Minimise a convex function until it can fall by no more than about `tolerance`.

    What is still to gain is estimated by half of g·H⁻¹g, with H⁻¹ both L-BFGS's and the caller's
    inverse Hessian, the larger of the two. `precondition` multiplies by the caller's.

    Examples
    --------
    >>> def bowl(x):
    ...     return float(((x - 3.0) ** 2).sum()), 2.0 * (x - 3.0)
    >>> minimise(bowl, np.zeros(2)).point.round(6)
    array([3., 3.])
    """
    point, pairs = start, list[tuple[Float, Float]]()
    value, gradient = objective(point)
    for step in range(max_steps + 1):
        direction = -_inverse_hessian(gradient, pairs, precondition)
        slope = float(np.vdot(gradient, direction))
        to_gain = 0.5 * max(-slope, float(np.vdot(gradient, precondition(gradient))))
        if to_gain <= tolerance:
            break
        if slope >= 0.0 and pairs:  # rounding has spoilt the memory
            pairs.clear()
            continue
        found = (
            _line_search(objective, point, value, direction, slope) if step < max_steps else None
        )
        if found is None:
            break
        nearer, value, steeper = found
        pairs.append((nearer - point, steeper - gradient))
        if float(np.vdot(*pairs[-1])) <= 0.0:
            pairs.pop()
        del pairs[:-_MEMORY]
        point, gradient = nearer, steeper
    norm = float(np.linalg.norm(gradient))
    # Nothing below the rounding of the value itself can be gained.
    rounding = 1e-13 * max(1.0, abs(value))
    return Minimum(point, value, to_gain, norm, step, bool(to_gain <= max(tolerance, rounding)))


def _inverse_hessian(
    gradient: Float, pairs: list[tuple[Float, Float]], precondition: Callable[[Float], Float]
) -> Float:
    """The two-loop recursion: the remembered curvature, around the caller's inverse Hessian."""
    vector = gradient.copy()
    factors = []
    for move, change in reversed(pairs):
        factor = float(np.vdot(move, vector)) / float(np.vdot(move, change))
        vector -= factor * change
        factors.append(factor)
    vector = precondition(vector)
    if pairs:  # the caller's inverse Hessian, rescaled to agree with the last step
        move, change = pairs[-1]
        vector *= float(np.vdot(move, change)) / float(np.vdot(change, precondition(change)))
    for (move, change), factor in zip(pairs, reversed(factors)):
        vector = (
            vector + (factor - float(np.vdot(change, vector)) / float(np.vdot(move, change))) * move
        )
    return vector


def _line_search(
    objective: Objective, point: Float, value: float, direction: Float, slope: float
) -> tuple[Float, float, Float] | None:
    """A step along a descent direction that lowers the value enough, the whole one first; None when
    there is none.
    """
    length = 1.0
    for _ in range(_MAX_HALVINGS):
        nearer = point + length * direction
        lower, gradient = objective(nearer)
        if lower <= value + _SUFFICIENT_DECREASE * length * slope:
            return nearer, lower, gradient
        # The lowest point of the parabola through what is known, kept between a tenth and a half of
        # the step.
        bend = lower - value - length * slope
        best = -0.5 * slope * length**2 / bend if np.isfinite(bend) and bend > 0.0 else 0.0
        length = float(np.clip(best, 0.1 * length, 0.5 * length))
        if -length * slope < 1e-16 * abs(value):
            return None
    return None
