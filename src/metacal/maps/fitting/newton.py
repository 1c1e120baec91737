"""Projected Newton method for many small convex problems, solved side by side.

One-vs-rest calibration fits one logistic curve per class. Each curve is an independent
convex problem in a few parameters. All problems are advanced together: one pass over the
rows returns the loss, gradient and Hessian of every problem.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from metacal.errors import ConvergenceWarning, warn_caller
from metacal.formulas import Flags, Float

#: Expected decrease per unit of weight below which a problem counts as solved.
_TOLERANCE = 1e-13
#: Expected decrease per unit of weight that rounding errors can leave.
_MAX_ROUNDING_DECREASE = 1e-10
#: Rounding error of the loss per unit of weight.
_RELATIVE_LOSS_ERROR = _MAX_ROUNDING_DECREASE * 1e-4
#: Ridge added to the unit diagonal of a scaled Hessian, because it may be singular.
_RIDGE = 1e-12
_MAX_STEPS = 100
_MAX_HALVINGS = 40
#: Fraction of the predicted linear decrease that a step must achieve.
_SUFFICIENT_DECREASE = 1e-4


@dataclass(frozen=True)
class Derivatives:
    """Loss, gradient and Hessian of independent problems.

    Attributes
    ----------
    loss : array of shape (n_problems,)

    gradient : array of shape (n_problems, n_parameters)

    hessian : array of shape (n_problems, n_parameters, n_parameters)
    """

    loss: Float
    gradient: Float
    hessian: Float


#: Function that returns the derivatives of all problems at given parameters.
ComputeDerivatives = Callable[[Float], Derivatives]


def sum_logistic_derivatives(
    parameter_features: list[Float], target_table: Float, weight_table: Float, theta: Float
) -> Float:
    """Sum the logistic loss over rows, with its gradient and Hessian, in one array.

    The loss of a row is w (log(1 + e^z) - t z), where z = sum_i theta_i f_i. The result
    is a single array so that the sums of several blocks of rows can be added.

    Parameters
    ----------
    parameter_features : list of arrays of shape (n_rows, n_problems)
        One array per parameter. The shapes (n_rows, 1) and (1, 1) are also allowed.

    target_table : array of shape (n_rows, n_problems)
        Target probabilities t.

    weight_table : array of shape (n_rows, n_problems)
        Weights w.

    theta : array of shape (n_problems, n_parameters)
        Parameters.

    Returns
    -------
    array of shape (n_problems, 1 + n_parameters + n_parameters**2)
        Use `unpack_derivatives` to split it.
    """
    log_odds = sum(theta[:, i] * feature for i, feature in enumerate(parameter_features))
    exp_minus_abs_log_odds = np.exp(-np.abs(log_odds))
    probability = np.where(log_odds >= 0.0, 1.0, exp_minus_abs_log_odds) / (
        1.0 + exp_minus_abs_log_odds
    )
    row_losses = (
        np.maximum(log_odds, 0.0) + np.log1p(exp_minus_abs_log_odds) - target_table * log_odds
    )
    residual = weight_table * (probability - target_table)
    curvature = weight_table * (exp_minus_abs_log_odds / (1.0 + exp_minus_abs_log_odds) ** 2)

    n_problems, n_parameters = theta.shape
    loss_sums = np.empty((n_problems, 1))
    loss_sums[:, 0] = (weight_table * row_losses).sum(axis=0)
    gradient = np.empty((n_problems, n_parameters))
    hessian = np.empty((n_problems, n_parameters, n_parameters))
    for i, feature in enumerate(parameter_features):
        gradient[:, i] = (residual * feature).sum(axis=0)
        curved_feature = curvature * feature
        for j in range(i + 1):
            hessian[:, i, j] = (curved_feature * parameter_features[j]).sum(axis=0)
            hessian[:, j, i] = hessian[:, i, j]
    return np.concatenate([loss_sums, gradient, hessian.reshape(n_problems, -1)], axis=1)


def unpack_derivatives(packed: Float) -> Derivatives:
    """Split an array of `sum_logistic_derivatives` into loss, gradient and Hessian."""
    n_problems, n_columns = packed.shape
    # The number n of parameters solves n_columns = 1 + n + n².
    n_parameters = int((np.sqrt(4 * n_columns - 3) - 1) / 2)
    hessian = packed[:, 1 + n_parameters :]
    return Derivatives(
        loss=packed[:, 0],
        gradient=packed[:, 1 : 1 + n_parameters],
        hessian=hessian.reshape(n_problems, n_parameters, n_parameters),
    )


def add_normal_prior(
    compute_derivatives: ComputeDerivatives, theta: Float, *, prior_mean: Float, precision: Float
) -> Derivatives:
    """Add the penalty ½ (θ - prior mean)ᵀ precision (θ - prior mean) to each problem.

    Parameters
    ----------
    compute_derivatives : function
        Returns the derivatives of the problems without the penalty.

    theta : array of shape (n_problems, n_parameters)
        Parameters θ.

    prior_mean : array of shape (n_problems, n_parameters)
        Prior means.

    precision : array of shape (n_parameters, n_parameters) or with a leading n_problems
        Prior precision matrix, shared by all problems or one for each.

    Returns
    -------
    Derivatives
    """
    unpenalised = compute_derivatives(theta)
    deviation = theta - prior_mean
    penalty_gradient = (deviation[:, None, :] @ precision)[:, 0]
    penalty = 0.5 * (deviation * penalty_gradient).sum(axis=1)
    return Derivatives(
        loss=unpenalised.loss + penalty,
        gradient=unpenalised.gradient + penalty_gradient,
        hessian=unpenalised.hessian + precision,
    )


def minimise_by_newton(
    compute_derivatives: ComputeDerivatives,
    start: Float,
    is_nonnegative: Flags,
    total_weights: Float,
    method_name: str,
    tolerance: float = _TOLERANCE,
) -> tuple[Float, Derivatives]:
    """Minimise convex problems by projected Newton steps with backtracking.

    A problem is solved when a Newton step is expected to decrease its loss by less than
    `tolerance` times its total weight. If a problem is not solved, a ConvergenceWarning
    with the gradient norm is issued.

    Parameters
    ----------
    compute_derivatives : function
        Returns the derivatives of all problems at given parameters.

    start : array of shape (n_problems, n_parameters)
        Parameters to start from.

    is_nonnegative : array of bool of shape (n_parameters,)
        Mask of the parameters that must be non-negative.

    total_weights : array of shape (n_problems,)
        Total weight of the rows of each problem.

    method_name : str
        Name of the method in the warning.

    tolerance : float
        Expected decrease per unit of weight at which to stop. If it is larger than the
        default, the last step is taken without evaluating the derivatives again.

    Returns
    -------
    theta : array of shape (n_problems, n_parameters)
        Parameters found.

    derivatives : Derivatives
        Derivatives at `theta`; with a larger tolerance, those before the last step.
    """
    theta = start
    derivatives = compute_derivatives(start)
    loss_scale = np.maximum(total_weights, 1.0)
    has_failed = np.zeros(len(theta), dtype=bool)
    rounding_error = _RELATIVE_LOSS_ERROR * loss_scale
    for _ in range(_MAX_STEPS):
        is_at_bound = is_nonnegative & (theta <= 0.0) & (derivatives.gradient > 0.0)
        step, expected_decrease = _compute_newton_step(derivatives, is_at_bound)
        is_finished = (expected_decrease <= tolerance * loss_scale) | has_failed
        if is_finished.all():
            is_rough_fit = tolerance > _TOLERANCE
            if is_rough_fit:
                # The last step is already computed. It improves a fit that stops early.
                theta = theta + np.where(has_failed[:, None], 0.0, step)
                theta[:, is_nonnegative] = np.maximum(theta[:, is_nonnegative], 0.0)
            break
        step[is_finished] = 0.0
        theta, derivatives, has_decreased = _halve_until_sufficient_decrease(
            compute_derivatives,
            theta,
            derivatives=derivatives,
            step=step,
            is_nonnegative=is_nonnegative,
            rounding_error=rounding_error,
        )
        has_failed |= ~has_decreased

    is_unsolved = expected_decrease > max(_MAX_ROUNDING_DECREASE, tolerance) * loss_scale
    if is_unsolved.any():
        free_gradient = np.where(is_at_bound, 0.0, derivatives.gradient)
        gradient_norm = np.abs(free_gradient).max(axis=1) / loss_scale
        warn_caller(
            f"{method_name} did not converge for {int(is_unsolved.sum())} of {len(theta)}"
            f" classes. After at most {_MAX_STEPS} Newton steps, the gradient norm per row is up"
            f" to {gradient_norm[is_unsolved].max():.3g}. Use more rows.",
            ConvergenceWarning,
        )
    return theta, derivatives


def _compute_newton_step(derivatives: Derivatives, is_at_bound: Flags) -> tuple[Float, Float]:
    """Compute the Newton step of every problem and its expected decrease ½ gᵀH⁻¹g.

    Parameters for which `is_at_bound` is true stay at their bound of zero.
    """
    gradient = derivatives.gradient
    hessian = derivatives.hessian
    if is_at_bound.any():
        gradient = np.where(is_at_bound, 0.0, gradient)
        is_row_or_column_at_bound = is_at_bound[:, :, None] | is_at_bound[:, None, :]
        hessian = np.where(is_row_or_column_at_bound, 0.0, hessian)
    diagonal = np.arange(is_at_bound.shape[1])
    parameter_scale = np.sqrt(hessian[:, diagonal, diagonal])
    parameter_scale[parameter_scale <= 0.0] = 1.0
    scaled_hessian = hessian / (parameter_scale[:, :, None] * parameter_scale[:, None, :])
    scaled_hessian[:, diagonal, diagonal] = 1.0 + _RIDGE
    scaled_gradient = (gradient / parameter_scale)[:, :, None]
    step = -np.linalg.solve(scaled_hessian, scaled_gradient)[:, :, 0] / parameter_scale
    expected_decrease = np.asarray(-0.5 * (gradient * step).sum(axis=1))
    return step, expected_decrease


def _halve_until_sufficient_decrease(
    compute_derivatives: ComputeDerivatives,
    theta: Float,
    derivatives: Derivatives,
    step: Float,
    is_nonnegative: Flags,
    rounding_error: Float,
) -> tuple[Float, Derivatives, Flags]:
    """Halve the step of each problem until its loss decreases sufficiently.

    Parameters
    ----------
    compute_derivatives : function
        Returns the derivatives of all problems at given parameters.

    theta : array of shape (n_problems, n_parameters)
        Current parameters.

    derivatives : Derivatives
        Derivatives at `theta`.

    step : array of shape (n_problems, n_parameters)
        Newton steps.

    is_nonnegative : array of bool of shape (n_parameters,)
        Mask of the parameters that must be non-negative.

    rounding_error : array of shape (n_problems,)
        Increase of the loss that is attributed to rounding.

    Returns
    -------
    theta : array of shape (n_problems, n_parameters)
        New parameters; those of a problem without sufficient decrease are unchanged.

    derivatives : Derivatives
        Derivatives at the new parameters.

    has_decreased : array of bool of shape (n_problems,)
        Mask of the problems whose loss decreased sufficiently.
    """
    step_fraction = np.ones(len(theta))
    for _ in range(_MAX_HALVINGS):
        trial_theta = theta + step_fraction[:, None] * step
        trial_theta[:, is_nonnegative] = np.maximum(trial_theta[:, is_nonnegative], 0.0)
        trial_derivatives = compute_derivatives(trial_theta)
        linear_change = (derivatives.gradient * (trial_theta - theta)).sum(axis=1)
        required_change = np.minimum(_SUFFICIENT_DECREASE * linear_change, 0.0)
        max_loss = derivatives.loss + required_change + rounding_error
        has_decreased = trial_derivatives.loss <= max_loss
        if has_decreased.all():
            return trial_theta, trial_derivatives, has_decreased
        step_fraction[~has_decreased] *= 0.5
    new_theta = np.where(has_decreased[:, None], trial_theta, theta)
    return new_theta, compute_derivatives(new_theta), has_decreased
