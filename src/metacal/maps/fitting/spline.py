"""Penalised-likelihood fit of a monotone spline of one variable.

The model is P(correct | z) = σ(s(z)). The slope of the spline s is linear between
neighbouring knots, constant beyond the outer knots, and never negative. The parameters
are the slopes at the knots and the intercept s(first knot).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from metacal.formulas import Float
from metacal.maps.fitting.newton import (
    Derivatives,
    add_normal_prior,
    minimise_by_newton,
    sum_logistic_derivatives,
    unpack_derivatives,
)

#: Prior precision of slopes and intercept (a deviation of ten). It keeps the maximum finite.
_PRIOR_PRECISION = 0.01
#: Prior precision of each change of slope between neighbouring knots. It smooths the spline.
_SMOOTHING_PRECISION = 1.0
#: Number of rows processed at a time.
_CHUNK_ROWS = 1 << 15


def fit_spline_slopes(
    z: Float, correct: Float, weights: Float, knots: Float, prior_mean: Float, method_name: str
) -> Float:
    """Fit the non-negative slopes at the knots and the intercept of a spline.

    Parameters
    ----------
    z : array of shape (n_rows,)
        Variable of the spline.

    correct : array of shape (n_rows,)
        1 if the prediction of the row is correct, else 0.

    weights : array of shape (n_rows,)
        Weight of each row.

    knots : array of shape (n_knots,)
        Increasing knots.

    prior_mean : array of shape (n_knots + 1,)
        Prior means of the slopes and the intercept.

    method_name : str
        Name of the method in a convergence warning.

    Returns
    -------
    array of shape (n_knots + 1,)
        Slopes, then the intercept.
    """
    n_knots = len(knots)
    slope_differences = np.diff(np.eye(n_knots), axis=0)
    precision = _PRIOR_PRECISION * np.eye(n_knots + 1)
    precision[:-1, :-1] += _SMOOTHING_PRECISION * slope_differences.T @ slope_differences

    correct_weight = float(weights @ correct)
    total_weight = float(weights.sum())
    start_intercept = np.log((correct_weight + 1.0) / (total_weight - correct_weight + 1.0))
    start_theta = np.append(np.zeros(n_knots), start_intercept)[None, :]
    is_nonnegative = np.append(np.ones(n_knots, dtype=bool), False)

    design = build_spline_design(knots, z)
    likelihood = partial(_compute_spline_derivatives, design, correct, weights)
    compute_derivatives = partial(
        add_normal_prior, likelihood, prior_mean=prior_mean[None, :], precision=precision
    )
    theta, _ = minimise_by_newton(
        compute_derivatives,
        start_theta,
        is_nonnegative,
        total_weights=np.array([total_weight]),
        method_name=method_name,
    )
    return theta[0]


def build_spline_design(knots: Float, z: Float) -> Float:
    """Compute the design matrix of a spline that is linear in its slopes at the knots.

    Entry (i, j) is s(z_i) - s(first knot) of the spline with slope one at knot j and
    slope zero at the other knots. After the fraction u of a piece of width Δ, the slope is
    (1 - u) slope_left + u slope_right. So the spline has risen by
    Δ (u (1 - u/2) slope_left + u²/2 slope_right) since the left knot of the piece.

    Examples
    --------
    >>> build_spline_design(np.array([0.0, 2.0]), np.array([-1.0, 1.0, 3.0]))
    array([[-1.  , 0.  ], [ 0.75, 0.25], [ 1.  , 2.  ]])
    """
    design = np.zeros((len(z), len(knots)))
    piece_width = knots[1:] - knots[:-1]
    u = np.minimum(np.maximum((z[:, None] - knots[:-1]) / piece_width, 0.0), 1.0)
    rise_per_left_slope = piece_width * u * (1.0 - 0.5 * u)
    rise_per_right_slope = piece_width * 0.5 * u**2
    design[:, :-1] = rise_per_left_slope
    design[:, 1:] += rise_per_right_slope
    distance_below_first_knot = np.minimum(z - knots[0], 0.0)
    distance_above_last_knot = np.maximum(z - knots[-1], 0.0)
    design[:, 0] += distance_below_first_knot
    design[:, -1] += distance_above_last_knot
    return design


def compute_weighted_quantiles(z: Float, weights: Float, n_levels: int) -> Float:
    """Return the distinct weighted quantiles of z at the levels (i + ½) / n_levels."""
    rising_order = np.argsort(z, kind="stable")
    cumulative_weight = np.cumsum(weights[rising_order])
    cumulative_levels = cumulative_weight[-1] * (np.arange(n_levels) + 0.5) / n_levels
    positions = np.searchsorted(cumulative_weight, cumulative_levels, side="left")
    quantiles = z[rising_order][positions]
    # The quantiles are sorted, so the first of each run of equal numbers is kept. `np.unique` would
    # import `numpy.ma`.
    is_new = np.append(True, quantiles[1:] != quantiles[:-1])
    distinct_quantiles: Float = quantiles[is_new]
    return distinct_quantiles


def _compute_spline_derivatives(
    design: Float, correct: Float, weights: Float, theta: Float
) -> Derivatives:
    """Compute the log loss of σ(design @ slopes + intercept) and its derivatives.

    Parameters
    ----------
    design : array of shape (n_rows, n_knots)
        Design matrix of `build_spline_design`.

    correct, weights : arrays of shape (n_rows,)
        Outcome and weight of each row.

    theta : array of shape (1, n_knots + 1)
        Slopes, then the intercept.

    Returns
    -------
    Derivatives
        Derivatives of one problem.
    """
    packed_sums = np.zeros((1, 1))
    for first_row in range(0, len(design), _CHUNK_ROWS):
        chunk = slice(first_row, first_row + _CHUNK_ROWS)
        features = [*design[chunk].T[:, :, None], np.ones((1, 1))]
        packed_sums = packed_sums + sum_logistic_derivatives(
            features, correct[chunk, None], weights[chunk, None], theta
        )
    return unpack_derivatives(packed_sums)
