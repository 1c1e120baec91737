"""The likeliest mixture: weights w on the simplex that minimise -Σ log(P w), P the members' chances
of what was so.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import nnls

from metacal.formulas import Float
from metacal.maps.fitting.lbfgs import Minimum

#: Steps end when they promise less per row; what may be left to gain at the end.
_TOLERANCE, _LEFT = 1e-14, 1e-6
_MAX_STEPS, _MAX_HALVINGS = 200, 40


def likeliest_mixture(members: Float, weights: Float | None = None) -> Float:
    """The weights of the members, one column of probabilities each, given how much each row counts.

    A convex problem, by sequential quadratic programming (Kim, Carbonetto, Stephens & Anitescu, "A
    fast algorithm for maximum likelihood estimation of mixture proportions", 2020): minimise -mean
    log(P w) + Σ w over w >= 0, whose solution sums to one by itself. With R = P / (P w) each step
    is a least squares problem in w' >= 0: the curvature is RᵀR/n, the slope 1 - Rᵀ1/n.

    A row that all members but one call nearly impossible makes the curvature of that one enormous
    where its weight is near zero, and Newton's steps tiny. So weights are scaled by their own
    curvature, and each step is followed by one of expectation and maximisation, w·(Rᵀ1/n), which
    never raises the loss and leads away from there at once.

    No mixture is better by more than -min(slope): Σ w' = 1 for every other w', and the loss is
    convex.

    Examples
    --------
    >>> heads, tails = [0.9, 0.2], [0.1, 0.8]                      # the chances of two coins
    >>> likeliest_mixture(np.array([heads, heads, tails])).round(3)
    array([0.667, 0.333])
    """
    scale = np.ones(len(members)) if weights is None else np.asarray(weights, dtype=np.float64)
    scale = scale / scale.sum()
    mixture = np.full(members.shape[1], 1.0 / members.shape[1])
    value = _loss(members, scale, mixture)
    for step in range(1, _MAX_STEPS + 1):  # noqa: B007 the minimum says how many
        target, slope = _target(members, scale, mixture)
        direction = target - mixture
        decrement = -float(slope @ direction)
        if (
            decrement <= _TOLERANCE
        ):  # too little to be seen in the loss, but the last digits of the weights
            mixture = (
                np.maximum(target, 0.0) / target.sum() if abs(decrement) <= _TOLERANCE else mixture
            )
            break
        for length in 0.5 ** np.arange(_MAX_HALVINGS):
            if (
                _loss(members, scale, mixture + length * direction)
                <= value - 1e-4 * length * decrement
            ):
                break
        else:
            break
        mixture = mixture + length * direction
        mixture = mixture * (1.0 - _slope(members, scale, mixture))
        mixture /= mixture.sum()
        value = _loss(members, scale, mixture)
    slope = _slope(members, scale, mixture)
    left, norm = (
        max(0.0, -float(slope.min())),
        float(np.linalg.norm(np.where(mixture > 0.0, slope, 0.0))),
    )
    Minimum(mixture, value, left, norm, step, left <= _LEFT).warn_unless_converged(
        "a mixture's weights"
    )
    return mixture


def _loss(members: Float, scale: Float, mixture: Float) -> float:
    chances = members @ mixture
    return -float(scale @ np.log(chances)) + float(mixture.sum()) if chances.min() > 0.0 else np.inf


def _slope(members: Float, scale: Float, mixture: Float) -> Float:
    return np.asarray(1.0 - (scale / (members @ mixture)) @ members)


def _target(members: Float, scale: Float, mixture: Float) -> tuple[Float, Float]:
    """The lowest point over w >= 0 of the parabola that touches the loss at the mixture, and the
    slope there.
    """
    ratios = members / (members @ mixture)[:, None]
    slope = 1.0 - scale @ ratios
    hessian = (scale[:, None] * ratios).T @ ratios
    own = np.maximum(np.sqrt(np.diag(hessian)), np.finfo(np.float64).tiny)
    root = np.linalg.cholesky(hessian / np.outer(own, own) + 1e-10 * np.eye(len(own)))
    return nnls(root.T, np.linalg.solve(root, (hessian @ mixture - slope) / own))[0] / own, slope
