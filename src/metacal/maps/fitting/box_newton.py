"""Newton's method for a function of two parameters within a box.

The function need not be convex. It returns six numbers at a point (a, e): the value, the
gradient (f_a, f_e) and the Hessian (f_aa, f_ae, f_ee). A *box* is an array of shape (2, 2)
that holds the smallest and the largest allowed point.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from metacal.formulas import Float
from metacal.maps.fitting.lbfgs import Minimum

#: Function that returns value, gradient and Hessian at a point as six numbers.
Function = Callable[[Float], Float]

#: Expected decrease at which the iteration stops, after one more step.
TOLERANCE = 1e-9
#: Expected decrease below which a step is taken without comparing function values.
#: Near the minimum, rounding errors of float32 logits dominate the values.
_MAX_UNCHECKED_DECREASE = 1e-6
#: Expected decrease that rounding errors can leave at the minimum.
_ROUNDING = 1e-8
#: Largest change of the first parameter, a logarithm, in one step.
_MAX_FIRST_STEP = 1.0
_MAX_STEPS = 100
_MAX_HALVINGS = 30
#: Fraction of the predicted linear decrease that a step must achieve.
_SUFFICIENT_DECREASE = 1e-4
#: Smallest curvature, relative to the largest.
_MIN_CURVATURE = 1e-12


@dataclass(frozen=True)
class _Quadratic:
    """Quadratic model of the function around the current point.

    The attributes are the gradient (slope_a, slope_e) and the Hessian.
    """

    slope_a: float
    slope_e: float
    hessian_aa: float
    hessian_ae: float
    hessian_ee: float

    def compute_decrease(self, step_a: float, step_e: float) -> float:
        """Compute how much the model decreases along a step."""
        linear_term = self.slope_a * step_a + self.slope_e * step_e
        quadratic_term = (
            self.hessian_aa * step_a * step_a
            + 2.0 * self.hessian_ae * step_a * step_e
            + self.hessian_ee * step_e * step_e
        )
        return -(linear_term + 0.5 * quadratic_term)


def minimise_in_box(
    function: Function,
    point: Float,
    box: Float,
    tolerance: float = TOLERANCE,
    value_at_point: Float | None = None,
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

    value_at_point : array of shape (6,), optional
        The function at `point`, if it is known.

    Returns
    -------
    Minimum
    """
    current = value_at_point
    if current is None:
        current = function(point)
    last_decrease = math.inf
    final_decrease = 0.0
    for n_steps in range(1, _MAX_STEPS + 1):  # noqa: B007 used after the loop
        step, expected_decrease = _compute_newton_step(current, step_bounds=box - point)
        is_stagnating = (
            last_decrease <= _MAX_UNCHECKED_DECREASE and expected_decrease > 0.25 * last_decrease
        )
        if expected_decrease <= tolerance or is_stagnating:
            point = np.clip(point + step, *box)
            final_decrease = max(expected_decrease, 0.0)
            break
        if expected_decrease > _MAX_UNCHECKED_DECREASE:
            checked_step = _backtrack(function, point, current, step)
            if checked_step is None:
                break
            step, current = checked_step
        else:
            current = function(point + step)
        point = point + step
        last_decrease = expected_decrease
    return Minimum(
        point=point,
        value=float(current[0]) - final_decrease,
        remaining_decrease=expected_decrease,
        gradient_norm=math.hypot(current[1], current[2]),
        n_steps=n_steps,
        converged=expected_decrease <= _ROUNDING,
    )


def _compute_newton_step(current: Float, step_bounds: Float) -> tuple[Float, float]:
    """Compute the step to the minimum of the quadratic model within bounds.

    Parameters
    ----------
    current : array of shape (6,)
        Value, gradient and Hessian at the current point.

    step_bounds : array of shape (2, 2)
        Smallest and largest allowed step.

    Returns
    -------
    step : array of shape (2,)
        Zero if a derivative is not finite.

    expected_decrease : float
        Decrease of the model, infinite if a derivative is not finite.
    """
    _, slope_a, slope_e, aa, ae, ee = current.tolist()
    if not math.isfinite(slope_a + slope_e + aa + ae + ee):
        return np.zeros(2), math.inf
    aa, ae, ee = _make_positive_definite(aa, ae, ee)
    model = _Quadratic(slope_a, slope_e, hessian_aa=aa, hessian_ae=ae, hessian_ee=ee)
    (min_step_a, min_step_e), (max_step_a, max_step_e) = step_bounds.tolist()

    determinant = aa * ee - ae * ae
    step_a = (ae * slope_e - ee * slope_a) / determinant
    step_e = (ae * slope_a - aa * slope_e) / determinant
    # A parameter that leaves the box is set to its bound, and the other one is minimised.
    if not min_step_e <= step_e <= max_step_e:
        step_e = min(max(step_e, min_step_e), max_step_e)
        step_a = -(slope_a + ae * step_e) / aa
    if not min_step_a <= step_a <= max_step_a:
        step_a = min(max(step_a, min_step_a), max_step_a)
        step_e = -(slope_e + ae * step_a) / ee
    step_a = min(max(step_a, min_step_a, -_MAX_FIRST_STEP), max_step_a, _MAX_FIRST_STEP)
    step_e = min(max(step_e, min_step_e), max_step_e)
    return np.array([step_a, step_e]), model.compute_decrease(step_a, step_e)


def _make_positive_definite(aa: float, ae: float, ee: float) -> tuple[float, float, float]:
    """Replace the eigenvalues of a symmetric 2 × 2 matrix by their absolute values.

    With the mean m and half the difference r of the eigenvalues, and m', r' of their
    absolute values, the matrix H = m + (H - m) becomes m' + (H - m) r' / r. A positive
    definite matrix is not changed.
    """
    mean = 0.5 * (aa + ee)
    half_difference = math.hypot(0.5 * (aa - ee), ae)
    low_size = abs(mean - half_difference)
    high_size = abs(mean + half_difference)
    min_size = _MIN_CURVATURE * max(1.0, low_size, high_size)
    if mean - half_difference >= min_size:
        return aa, ae, ee
    low_size = max(low_size, min_size)
    high_size = max(high_size, min_size)
    ratio = 0.0
    if half_difference > 0.0:
        ratio = 0.5 * (high_size - low_size) / half_difference
    new_mean = 0.5 * (low_size + high_size)
    return new_mean + ratio * (aa - mean), ratio * ae, new_mean + ratio * (ee - mean)


def _backtrack(
    function: Function, point: Float, current: Float, step: Float
) -> tuple[Float, Float] | None:
    """Halve the step until the function decreases sufficiently.

    Parameters
    ----------
    function : function
        Returns value, gradient and Hessian at a point.

    point : array of shape (2,)
        Current point.

    current : array of shape (6,)
        The function at the current point.

    step : array of shape (2,)
        Newton step.

    Returns
    -------
    tuple of arrays or None
        Shortened step and the function after it. None if no step decreases it sufficiently.
    """
    for _ in range(_MAX_HALVINGS):
        trial = function(point + step)
        linear_change = float(current[1:3] @ step)
        if trial[0] <= current[0] + _SUFFICIENT_DECREASE * linear_change:
            return step, trial
        step = 0.5 * step
    return None
