"""Preconditioned L-BFGS for smooth convex functions that are sums over rows.

Each step takes one pass over the table. The method is that of Liu & Nocedal, "On the
limited recent_steps BFGS method for large scale optimization", Mathematical Programming, 1989.
The caller supplies the initial inverse Hessian, which is well known for calibration maps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from metacal.errors import ConvergenceWarning, warn_caller
from metacal.formulas import Float

#: Function that returns value and gradient at a point.
Objective = Callable[[Float], tuple[float, Float]]
#: Function that multiplies a vector by an approximate inverse Hessian.
Preconditioner = Callable[[Float], Float]

#: Number of remembered pairs of steps and gradient changes.
_MAX_RECENT_STEPS = 10
#: Fraction of the predicted linear decrease that a step must achieve.
_SUFFICIENT_DECREASE = 1e-4
#: Bounds on the ratio of a step length to the previous one, which was too long.
_MIN_SHORTENING = 0.1
_MAX_SHORTENING = 0.5
#: Largest number of step lengths that are tried in one direction.
_MAX_SHORTENINGS = 40
#: Rounding error of the value, relative to its size.
_VALUE_ROUNDING_ERROR = 1e-13
#: Relative decrease of the objective below which rounding errors hide any progress.
_RELATIVE_ROUNDING_ERROR = 1e-16


@dataclass(frozen=True)
class Minimum:
    """Result of a minimisation.

    Attributes
    ----------
    point : array
        Point found.

    value : float
        Value at the point.

    remaining_decrease : float
        Estimate of how much the value could still decrease.

    gradient_norm : float
        Norm of the gradient at the point.

    n_steps : int
        Number of steps taken.

    converged : bool
        Whether the tolerance was reached.
    """

    point: Float
    value: float
    remaining_decrease: float
    gradient_norm: float
    n_steps: int
    converged: bool

    def warn_unless_converged(self, method_name: str) -> None:
        """Issue a ConvergenceWarning if the tolerance was not reached."""
        if self.converged:
            return
        warn_caller(
            f"{method_name} did not converge. After {self.n_steps} steps, the gradient norm is"
            f" {self.gradient_norm:.3g}, and the mean loss could decrease by about"
            f" {self.remaining_decrease:.3g}. Use more regularisation.",
            ConvergenceWarning,
        )


@dataclass(frozen=True)
class _Step:
    """A step and the change of the gradient along it."""

    displacement: Float
    gradient_change: Float

    @property
    def curvature(self) -> float:
        """Inner product of the step and the gradient change."""
        return float(np.vdot(self.displacement, self.gradient_change))


@dataclass(frozen=True)
class _Evaluation:
    """Value and gradient of the objective at a point."""

    point: Float
    value: float
    gradient: Float


def _no_preconditioner(gradient: Float) -> Float:
    """Return a gradient unchanged, as the identity preconditioner."""
    return gradient


def minimise_by_lbfgs(
    objective: Objective,
    start: Float,
    precondition: Preconditioner = _no_preconditioner,
    *,
    tolerance: float = 1e-10,
    max_steps: int = 500,
) -> Minimum:
    """Minimise a convex function until it can decrease by no more than `tolerance`.

    The remaining decrease is estimated as ½ gᵀH⁻¹g. H⁻¹ is the inverse Hessian of L-BFGS or
    of the caller, whichever gives the larger estimate.

    Parameters
    ----------
    objective : function
        Returns value and gradient at a point.

    start : array
        Point to start from.

    precondition : function
        Multiplies a vector by the caller's inverse Hessian.

    tolerance : float, default=1e-10
        Remaining decrease at which to stop.

    max_steps : int, default=500
        Largest number of steps.

    Returns
    -------
    Minimum

    Examples
    --------
    >>> def bowl(x):
    ...     return float(((x - 3.0) ** 2).sum()), 2.0 * (x - 3.0)
    >>> minimise_by_lbfgs(bowl, np.zeros(2)).point.round(6)
    array([3., 3.])
    """
    recent_steps: list[_Step] = []
    start_value, start_gradient = objective(start)
    current = _Evaluation(point=start, value=start_value, gradient=start_gradient)
    for n_steps in range(max_steps + 1):
        gradient = current.gradient
        direction = -_apply_inverse_hessian(gradient, recent_steps, precondition)
        slope = float(np.vdot(gradient, direction))
        preconditioned_decrease = float(np.vdot(gradient, precondition(gradient)))
        remaining_decrease = 0.5 * max(-slope, preconditioned_decrease)
        if remaining_decrease <= tolerance:
            break
        if slope >= 0.0 and recent_steps:
            # The direction does not descend because of rounding errors, so start afresh.
            recent_steps.clear()
            continue
        if n_steps == max_steps:
            break
        next_evaluation = _find_sufficient_step(objective, current, direction, slope)
        if next_evaluation is None:
            break
        step = _Step(
            displacement=next_evaluation.point - current.point,
            gradient_change=next_evaluation.gradient - current.gradient,
        )
        if step.curvature > 0.0:
            recent_steps.append(step)
        del recent_steps[:-_MAX_RECENT_STEPS]
        current = next_evaluation

    # A decrease below the rounding error of the value cannot be detected.
    rounding_error = _VALUE_ROUNDING_ERROR * max(1.0, abs(current.value))
    return Minimum(
        point=current.point,
        value=current.value,
        remaining_decrease=remaining_decrease,
        gradient_norm=float(np.linalg.norm(current.gradient)),
        n_steps=n_steps,
        converged=bool(remaining_decrease <= max(tolerance, rounding_error)),
    )


def _apply_inverse_hessian(
    gradient: Float, recent_steps: list[_Step], precondition: Preconditioner
) -> Float:
    """Multiply the gradient by the approximate inverse Hessian of L-BFGS."""
    # Symbols as in Nocedal & Wright, "Numerical optimization", algorithm 7.4.
    product = gradient.copy()
    alphas = []
    for step in reversed(recent_steps):
        alpha = float(np.vdot(step.displacement, product)) / step.curvature
        product -= alpha * step.gradient_change
        alphas.append(alpha)
    product = precondition(product)
    if recent_steps:
        # The caller's inverse Hessian is rescaled to agree with the last step.
        last_step = recent_steps[-1]
        gradient_change = last_step.gradient_change
        preconditioned_change = precondition(gradient_change)
        product *= last_step.curvature / float(np.vdot(gradient_change, preconditioned_change))
    for step, alpha in zip(recent_steps, reversed(alphas), strict=True):
        beta = float(np.vdot(step.gradient_change, product)) / step.curvature
        product = product + (alpha - beta) * step.displacement
    return product


def _find_sufficient_step(
    objective: Objective, current: _Evaluation, direction: Float, slope: float
) -> _Evaluation | None:
    """Find a step along a descent direction with sufficient decrease.

    Parameters
    ----------
    objective : function
        Returns value and gradient at a point.

    current : _Evaluation
        Point to start from.

    direction : array
        Descent direction. The full step is tried first.

    slope : float
        Inner product of gradient and direction.

    Returns
    -------
    _Evaluation or None
        New point, or None if no step decreases the value sufficiently.
    """
    step_length = 1.0
    for _ in range(_MAX_SHORTENINGS):
        trial_point = current.point + step_length * direction
        trial_value, trial_gradient = objective(trial_point)
        max_value = current.value + _SUFFICIENT_DECREASE * step_length * slope
        if trial_value <= max_value:
            return _Evaluation(point=trial_point, value=trial_value, gradient=trial_gradient)
        # The next step minimises the parabola with the same slope and the same two values.
        quadratic_term = trial_value - current.value - step_length * slope
        parabola_minimum = 0.0
        if np.isfinite(quadratic_term) and quadratic_term > 0.0:
            parabola_minimum = -0.5 * slope * step_length**2 / quadratic_term
        shortest_length = _MIN_SHORTENING * step_length
        longest_length = _MAX_SHORTENING * step_length
        step_length = float(np.clip(parabola_minimum, shortest_length, longest_length))
        linear_decrease = -step_length * slope
        if linear_decrease < _RELATIVE_ROUNDING_ERROR * abs(current.value):
            return None
    return None
