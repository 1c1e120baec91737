"""Maximum-likelihood weights of a mixture of probability models.

A *member* of the mixture gives each row the probability of its observed outcome.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import nnls

from metacal.formulas import Float
from metacal.maps.fitting.lbfgs import Minimum

#: Expected decrease of the mean loss at which the iteration stops.
_TOLERANCE = 1e-14
#: Largest possible decrease of the mean loss that counts as converged.
_MAX_REMAINING_DECREASE = 1e-6
#: Ridge added to the unit diagonal of a scaled Hessian, because it may be singular.
_RIDGE = 1e-10
_MAX_STEPS = 200
_MAX_HALVINGS = 40
#: Fraction of the predicted linear decrease that a step must achieve.
_SUFFICIENT_DECREASE = 1e-4


def fit_mixture_weights(member_probabilities: Float, weights: Float | None = None) -> Float:
    """Compute the mixture weights that maximise the likelihood.

    The problem is convex and solved by sequential quadratic programming (Kim, Carbonetto,
    Stephens & Anitescu, "A fast algorithm for maximum likelihood estimation of mixture
    proportions", 2020): minimise -mean log(P w) + Σ w over w >= 0, whose solution sums to
    one. With R = P / (P w), each step is a non-negative least-squares problem with the
    Hessian RᵀR / n and the gradient 1 - Rᵀ1 / n.

    If all members but one give a row a tiny probability, the Hessian of that member is huge
    while its weight is near zero, and Newton steps are tiny. Therefore the weights are
    scaled by their own curvature, and each step is followed by a step of expectation
    maximisation, w (Rᵀ1 / n), which never increases the loss.

    No mixture has a loss lower by more than -min(gradient): every other w' sums to one, and
    the loss is convex.

    Parameters
    ----------
    member_probabilities : array of shape (n_rows, n_members)
        Probability that each member gives the observed outcome of each row.

    weights : array of shape (n_rows,), optional
        Weight of each row.

    Returns
    -------
    array of shape (n_members,)
        Mixture weights, which sum to one.

    Examples
    --------
    >>> heads, tails = [0.9, 0.2], [0.1, 0.8]  # the probabilities of two coins
    >>> fit_mixture_weights(np.array([heads, heads, tails])).round(3)
    array([0.667, 0.333])
    """
    n_rows, n_members = member_probabilities.shape
    row_weights = np.ones(n_rows)
    if weights is not None:
        row_weights = np.asarray(weights, dtype=np.float64)
    row_shares = row_weights / row_weights.sum()

    mixture_weights = np.full(n_members, 1.0 / n_members)
    loss = _compute_loss(member_probabilities, row_shares, mixture_weights)
    for n_steps in range(1, _MAX_STEPS + 1):  # noqa: B007 used after the loop
        quadratic_minimum, gradient = _minimise_quadratic_model(
            member_probabilities, row_shares, mixture_weights
        )
        direction = quadratic_minimum - mixture_weights
        expected_decrease = -float(gradient @ direction)
        if expected_decrease <= _TOLERANCE:
            # A last step improves weights that no longer change the loss.
            if abs(expected_decrease) <= _TOLERANCE:
                mixture_weights = np.maximum(quadratic_minimum, 0.0) / quadratic_minimum.sum()
            break
        step_length = _find_sufficient_step_length(
            member_probabilities,
            row_shares,
            mixture_weights,
            direction=direction,
            loss=loss,
            expected_decrease=expected_decrease,
        )
        if step_length is None:
            break
        mixture_weights = _take_expectation_maximisation_step(
            member_probabilities, row_shares, mixture_weights + step_length * direction
        )
        loss = _compute_loss(member_probabilities, row_shares, mixture_weights)

    gradient = _compute_gradient(member_probabilities, row_shares, mixture_weights)
    remaining_decrease = max(0.0, -float(gradient.min()))
    minimum = Minimum(
        point=mixture_weights,
        value=loss,
        remaining_decrease=remaining_decrease,
        gradient_norm=float(np.linalg.norm(np.where(mixture_weights > 0.0, gradient, 0.0))),
        n_steps=n_steps,
        converged=remaining_decrease <= _MAX_REMAINING_DECREASE,
    )
    minimum.warn_unless_converged("a mixture's weights")
    return mixture_weights


def _take_expectation_maximisation_step(
    member_probabilities: Float, row_shares: Float, mixture_weights: Float
) -> Float:
    """Improve mixture weights by one expectation-maximisation step."""
    gradient = _compute_gradient(member_probabilities, row_shares, mixture_weights)
    new_weights = mixture_weights * (1.0 - gradient)
    return np.asarray(new_weights / new_weights.sum())


def _compute_loss(member_probabilities: Float, row_shares: Float, mixture_weights: Float) -> float:
    """Compute -mean log(P w) + Σ w, infinite if a row has probability zero."""
    probabilities = member_probabilities @ mixture_weights
    if not probabilities.min() > 0.0:
        return np.inf
    return -float(row_shares @ np.log(probabilities)) + float(mixture_weights.sum())


def _compute_gradient(
    member_probabilities: Float, row_shares: Float, mixture_weights: Float
) -> Float:
    """Compute the gradient of the loss, 1 - Rᵀ1 / n."""
    row_probabilities = member_probabilities @ mixture_weights
    return np.asarray(1.0 - (row_shares / row_probabilities) @ member_probabilities)


def _minimise_quadratic_model(
    member_probabilities: Float, row_shares: Float, mixture_weights: Float
) -> tuple[Float, Float]:
    """Minimise the quadratic approximation of the loss over non-negative weights.

    Parameters
    ----------
    member_probabilities : array of shape (n_rows, n_members)
        Probability of the observed outcome by row and member.

    row_shares : array of shape (n_rows,)
        Weight of each row; the weights sum to one.

    mixture_weights : array of shape (n_members,)
        Weights at which the loss is approximated.

    Returns
    -------
    minimum : array of shape (n_members,)
        Minimiser of the approximation.

    gradient : array of shape (n_members,)
        Gradient of the loss at `mixture_weights`.
    """
    row_probabilities = member_probabilities @ mixture_weights
    ratios = member_probabilities / row_probabilities[:, None]
    # The loss is Σ w - Σ row_share log(P w), with member probabilities P.
    gradient = 1.0 - row_shares @ ratios
    hessian = (row_shares[:, None] * ratios).T @ ratios
    # The weights are scaled so that the Hessian has a unit diagonal.
    member_scale = np.maximum(np.sqrt(np.diag(hessian)), np.finfo(np.float64).tiny)
    scaled_hessian = hessian / np.outer(member_scale, member_scale)
    scaled_linear_term = (hessian @ mixture_weights - gradient) / member_scale
    # With H = L Lᵀ, the quadratic ½ v·Hv - c·v is ½ |Lᵀv - L⁻¹c|² up to a constant.
    cholesky_factor = np.linalg.cholesky(scaled_hessian + _RIDGE * np.eye(len(member_scale)))
    target = np.linalg.solve(cholesky_factor, scaled_linear_term)
    scaled_minimum, _ = nnls(cholesky_factor.T, target)
    minimum = scaled_minimum / member_scale
    return minimum, gradient


def _find_sufficient_step_length(
    member_probabilities: Float,
    row_shares: Float,
    mixture_weights: Float,
    direction: Float,
    loss: float,
    expected_decrease: float,
) -> float | None:
    """Find the longest step 1, ½, ¼, ... with sufficient decrease of the loss.

    Parameters
    ----------
    member_probabilities, row_shares, mixture_weights
        See `_minimise_quadratic_model`.

    direction : array of shape (n_members,)
        Direction of descent.

    loss : float
        Loss at `mixture_weights`.

    expected_decrease : float
        Decrease of the loss to first order for a step of one.

    Returns
    -------
    float or None
        Length of the step, or None if no step decreases the loss sufficiently.
    """
    for step_length in 0.5 ** np.arange(_MAX_HALVINGS):
        trial_weights = mixture_weights + step_length * direction
        trial_loss = _compute_loss(member_probabilities, row_shares, trial_weights)
        required_decrease = _SUFFICIENT_DECREASE * step_length * expected_decrease
        if trial_loss <= loss - required_decrease:
            return float(step_length)
    return None
