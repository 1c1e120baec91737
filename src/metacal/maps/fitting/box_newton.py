"""Newton's method for a function of two parameters within a box.

The function need not be convex. It returns its value, gradient (two numbers) and Hessian (the
entries 00, 01 and 11) at a point as one array of six numbers. A *box* is an array of shape
(2, 2) that holds the smallest and the largest allowed point.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from metacal.formulas import Float
from metacal.maps.fitting.lbfgs import Minimum

#: Function that returns value, gradient and Hessian at a point as six numbers.
FunctionOfTwo = Callable[[Float], Float]
#: Indices of the value and of the gradient among the six numbers.
VALUE_INDEX = 0
_GRADIENT_INDICES = slice(1, 3)

#: Expected decrease at which the iteration stops, after one more step.
TOLERANCE = 1e-9
#: Expected decrease below which values are not compared, because rounding dominates them.
_MAX_UNCHECKED_DECREASE = 1e-6
#: Near the minimum, the expected decrease must fall by at least this factor in each step.
_STAGNATION_RATIO = 0.25
#: Expected decrease that rounding errors can leave at the minimum.
_MAX_ROUNDING_DECREASE = 1e-8
#: Largest change of the first parameter, the logarithm of a temperature, in one step.
_MAX_LOG_STEP = 1.0
_MAX_STEPS = 100
_MAX_HALVINGS = 30
#: Fraction of the predicted linear decrease that a step must achieve.
_SUFFICIENT_DECREASE = 1e-4
#: Smallest eigenvalue of the Hessian, relative to the largest one.
_MIN_CURVATURE = 1e-12


@dataclass(frozen=True)
class _QuadraticModel:
    """Quadratic model g·s + ½ s·Hs of the change of the function along a step s.

    Attributes
    ----------
    gradient_0, gradient_1 : float
        Gradient g.

    hessian_00, hessian_01, hessian_11 : float
        Entries of the symmetric 2 × 2 matrix H.
    """

    gradient_0: float
    gradient_1: float
    hessian_00: float
    hessian_01: float
    hessian_11: float

    @classmethod
    def from_derivatives(cls, derivatives: Float) -> _QuadraticModel:
        """Build the model from the six numbers of a `FunctionOfTwo`."""
        _, gradient_0, gradient_1, hessian_00, hessian_01, hessian_11 = derivatives.tolist()
        return cls(
            gradient_0=gradient_0,
            gradient_1=gradient_1,
            hessian_00=hessian_00,
            hessian_01=hessian_01,
            hessian_11=hessian_11,
        )

    def is_finite(self) -> bool:
        """Check whether no derivative is infinite or NaN."""
        gradient_sum = self.gradient_0 + self.gradient_1
        return math.isfinite(gradient_sum + self.hessian_00 + self.hessian_01 + self.hessian_11)

    def compute_decrease(self, step_0: float, step_1: float) -> float:
        """Compute how much the model decreases along a step."""
        linear_term = self.gradient_0 * step_0 + self.gradient_1 * step_1
        quadratic_term = (
            self.hessian_00 * step_0 * step_0
            + 2.0 * self.hessian_01 * step_0 * step_1
            + self.hessian_11 * step_1 * step_1
        )
        return -(linear_term + 0.5 * quadratic_term)

    def find_unbounded_step(self) -> tuple[float, float]:
        """Find the step to the minimum of a model with a positive definite Hessian."""
        determinant = self.hessian_00 * self.hessian_11 - self.hessian_01 * self.hessian_01
        step_0 = self.hessian_01 * self.gradient_1 - self.hessian_11 * self.gradient_0
        step_1 = self.hessian_01 * self.gradient_0 - self.hessian_00 * self.gradient_1
        return step_0 / determinant, step_1 / determinant

    def find_best_step_0(self, step_1: float) -> float:
        """Find the best step of the first parameter for a given step of the second."""
        return -(self.gradient_0 + self.hessian_01 * step_1) / self.hessian_00

    def find_best_step_1(self, step_0: float) -> float:
        """Find the best step of the second parameter for a given step of the first."""
        return -(self.gradient_1 + self.hessian_01 * step_0) / self.hessian_11

    def with_positive_definite_hessian(self) -> _QuadraticModel:
        """Replace the eigenvalues of the Hessian by their absolute values.

        With the mean m and half the difference r of the eigenvalues, and m', r' of their
        absolute values, the matrix H = m + (H - m) becomes m' + (H - m) r' / r. A positive
        definite matrix is not changed.
        """
        mean_eigenvalue = 0.5 * (self.hessian_00 + self.hessian_11)
        half_difference = math.hypot(0.5 * (self.hessian_00 - self.hessian_11), self.hessian_01)
        low_eigenvalue = mean_eigenvalue - half_difference
        high_eigenvalue = mean_eigenvalue + half_difference
        min_eigenvalue = _MIN_CURVATURE * max(1.0, abs(low_eigenvalue), abs(high_eigenvalue))
        if low_eigenvalue >= min_eigenvalue:
            return self
        new_low_eigenvalue = max(abs(low_eigenvalue), min_eigenvalue)
        new_high_eigenvalue = max(abs(high_eigenvalue), min_eigenvalue)
        new_mean = 0.5 * (new_low_eigenvalue + new_high_eigenvalue)
        half_difference_ratio = 0.0
        if half_difference > 0.0:
            half_difference_ratio = (
                0.5 * (new_high_eigenvalue - new_low_eigenvalue) / half_difference
            )
        return replace(
            self,
            hessian_00=new_mean + half_difference_ratio * (self.hessian_00 - mean_eigenvalue),
            hessian_01=half_difference_ratio * self.hessian_01,
            hessian_11=new_mean + half_difference_ratio * (self.hessian_11 - mean_eigenvalue),
        )


def minimise_in_box(
    function: FunctionOfTwo,
    point: Float,
    box: Float,
    tolerance: float = TOLERANCE,
    derivatives_at_point: Float | None = None,
) -> Minimum:
    """Minimise a function of two parameters by Newton steps within a box.

    Parameters
    ----------
    function : function
        Returns value, gradient and Hessian at a point as six numbers.

    point : array of shape (2,)
        Point to start from.

    box : array of shape (2, 2)
        Smallest and largest allowed point.

    tolerance : float
        Expected decrease at which to stop.

    derivatives_at_point : array of shape (6,), optional
        Value, gradient and Hessian at `point`, if they are known.

    Returns
    -------
    Minimum
    """
    derivatives = derivatives_at_point
    if derivatives is None:
        derivatives = function(point)
    min_point, max_point = box
    previous_decrease = math.inf
    final_decrease = 0.0
    for n_steps in range(1, _MAX_STEPS + 1):  # noqa: B007 used after the loop
        step, expected_decrease = _compute_newton_step(
            derivatives, min_step=min_point - point, max_step=max_point - point
        )
        was_near_minimum = previous_decrease <= _MAX_UNCHECKED_DECREASE
        improves_slowly = expected_decrease > _STAGNATION_RATIO * previous_decrease
        is_stagnating = was_near_minimum and improves_slowly
        if expected_decrease <= tolerance or is_stagnating:
            point = np.clip(point + step, min_point, max_point)
            final_decrease = max(expected_decrease, 0.0)
            break
        if expected_decrease > _MAX_UNCHECKED_DECREASE:
            shortened_step = _halve_until_sufficient_decrease(function, point, derivatives, step)
            if shortened_step is None:
                break
            step, derivatives = shortened_step
        else:
            derivatives = function(point + step)
        point = point + step
        previous_decrease = expected_decrease
    return Minimum(
        point=point,
        value=float(derivatives[VALUE_INDEX]) - final_decrease,
        remaining_decrease=expected_decrease,
        gradient_norm=math.hypot(*derivatives[_GRADIENT_INDICES]),
        n_steps=n_steps,
        converged=expected_decrease <= _MAX_ROUNDING_DECREASE,
    )


def _compute_newton_step(
    derivatives: Float, min_step: Float, max_step: Float
) -> tuple[Float, float]:
    """Compute the step to the minimum of the quadratic model within bounds.

    Parameters
    ----------
    derivatives : array of shape (6,)
        Value, gradient and Hessian at the current point.

    min_step, max_step : array of shape (2,)
        Smallest and largest allowed step.

    Returns
    -------
    step : array of shape (2,)
        Zero if a derivative is not finite.

    expected_decrease : float
        Decrease of the model, infinite if a derivative is not finite.
    """
    model = _QuadraticModel.from_derivatives(derivatives)
    if not model.is_finite():
        no_step = np.zeros(2)
        unknown_decrease = math.inf
        return no_step, unknown_decrease
    model = model.with_positive_definite_hessian()
    min_step_0, min_step_1 = min_step.tolist()
    max_step_0, max_step_1 = max_step.tolist()
    step_0, step_1 = model.find_unbounded_step()
    # A parameter outside of the box is set to its bound, and the other one is optimised again.
    if not min_step_1 <= step_1 <= max_step_1:
        step_1 = min(max(step_1, min_step_1), max_step_1)
        step_0 = model.find_best_step_0(step_1)
    if not min_step_0 <= step_0 <= max_step_0:
        step_0 = min(max(step_0, min_step_0), max_step_0)
        step_1 = model.find_best_step_1(step_0)
    # The first parameter is the logarithm of a temperature, whose changes are limited.
    step_0 = min(max(step_0, min_step_0, -_MAX_LOG_STEP), max_step_0, _MAX_LOG_STEP)
    step_1 = min(max(step_1, min_step_1), max_step_1)
    return np.array([step_0, step_1]), model.compute_decrease(step_0, step_1)


def _halve_until_sufficient_decrease(
    function: FunctionOfTwo, point: Float, derivatives: Float, step: Float
) -> tuple[Float, Float] | None:
    """Halve the step until the function decreases sufficiently.

    Parameters
    ----------
    function : function
        Returns value, gradient and Hessian at a point.

    point : array of shape (2,)
        Current point.

    derivatives : array of shape (6,)
        Value, gradient and Hessian at the current point.

    step : array of shape (2,)
        Newton step.

    Returns
    -------
    tuple of arrays or None
        Shortened step, and value, gradient and Hessian after it. None if no step is found.
    """
    value = derivatives[VALUE_INDEX]
    gradient = derivatives[_GRADIENT_INDICES]
    for _ in range(_MAX_HALVINGS):
        trial_derivatives = function(point + step)
        linear_change = float(gradient @ step)
        if trial_derivatives[VALUE_INDEX] <= value + _SUFFICIENT_DECREASE * linear_change:
            return step, trial_derivatives
        step = 0.5 * step
    return None
