"""Fit of increasing piecewise-linear curves under several priors.

`metacal.maps.monotone` explains the model and its priors. This module fits one curve per
prior to grouped rows and computes the evidence of each prior.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from metacal.formulas import Float
from metacal.maps.fitting.newton import Derivatives, add_normal_prior, minimise_by_newton


@dataclass(frozen=True)
class _BrownianPrior:
    """Scales of a prior: a straight line plus a Brownian motion."""

    intercept_deviation: float
    slope_deviation: float
    step_variance: float


#: Priors in the units of x.
_PRIORS_IN_UNITS_OF_X = (
    _BrownianPrior(0.3, 0.2, 0.05),
    _BrownianPrior(1.5, 0.7, 0.05),
    _BrownianPrior(1.5, 0.7, 0.5),
    _BrownianPrior(1.5, 0.7, 4.0),
    _BrownianPrior(6.0, 4.0, 0.05),
    _BrownianPrior(6.0, 4.0, 4.0),
)
#: Priors in the units of standardised x.
_PRIORS_IN_STANDARD_UNITS = (
    _BrownianPrior(4.0, 4.0, 0.05),
    _BrownianPrior(4.0, 4.0, 0.5),
    _BrownianPrior(4.0, 4.0, 4.0),
)
#: Smallest standard deviation used to standardise x.
_MIN_DEVIATION = 1e-3
#: Width of a piece above which the variance of the Brownian motion no longer grows.
_MAX_STEP_WIDTH = 4.0
#: Smallest distance of two knots, relative to the range of x or to one if that is larger.
_MIN_RELATIVE_KNOT_DISTANCE = 1e-3
#: Reduction of the quantile levels, so that a rounding error cannot skip a cell.
_LEVEL_SHIFT = 1e-9
_MIN_PIECES = 4
_MAX_PIECES = 16
#: Expected decrease of the loss per row at which the fit of a curve stops.
_TOLERANCE = 1e-8
#: Smallest denominator of a division by a total weight.
TINY = 1e-300


@dataclass(frozen=True)
class OutcomeCells:
    """Rows grouped by their log-odds: mean, positive and negative weight of each cell."""

    log_odds: Float
    positive_weight: Float
    negative_weight: Float

    @property
    def weight(self) -> Float:
        """Weight of all rows in each cell."""
        return self.positive_weight + self.negative_weight


@dataclass(frozen=True)
class CurveFamily:
    """Curves over the same knots, one for each prior.

    Attributes
    ----------
    knots : array of shape (n_knots,)
        Increasing knots.

    theta : array of shape (n_priors, n_knots)
        Value at the first knot and the rise over each piece.

    log_evidence : array of shape (n_priors,)
        Logarithm of the evidence of each prior, up to a constant.
    """

    knots: Float
    theta: Float
    log_evidence: Float


def fit_curves(x: Float, cells: OutcomeCells) -> CurveFamily:
    """Fit one increasing curve for each prior and compute the evidence of the priors.

    Parameters
    ----------
    x : array of shape (n_cells,)
        Variable of the curves.

    cells : OutcomeCells
        Weights of positive and negative rows in each cell.

    Returns
    -------
    CurveFamily
    """
    # The parameters are the value at the first knot and the rise over each piece.
    knots = _choose_knots(x, cells)
    identity_theta = np.append(knots[0], np.diff(knots))
    rises_are_nonnegative = np.arange(len(identity_theta)) > 0
    prior_covariances = _compute_prior_covariances(x, cells, knots)
    prior_precisions: Float = np.asarray(np.linalg.inv(prior_covariances), dtype=np.float64)
    n_priors = len(prior_covariances)
    prior_means = np.tile(identity_theta, (n_priors, 1))
    total_cell_weight = float(cells.positive_weight.sum() + cells.negative_weight.sum())

    design = _build_curve_design(x, knots)
    negative_log_likelihood = partial(_compute_curve_derivatives, design, cells)
    negative_log_posterior = partial(
        add_normal_prior,
        negative_log_likelihood,
        prior_mean=prior_means,
        precision=prior_precisions,
    )
    theta_by_prior, derivatives_before_last_step = minimise_by_newton(
        negative_log_posterior,
        start=prior_means,
        is_nonnegative=rises_are_nonnegative,
        total_weights=np.full(n_priors, max(1.0, total_cell_weight)),
        method_name="monotone calibration",
        tolerance=_TOLERANCE,
    )
    _, log_determinant = np.linalg.slogdet(derivatives_before_last_step.hessian @ prior_covariances)
    # Laplace's approximation of the evidence, up to a constant.
    log_evidence = -negative_log_posterior(theta_by_prior).loss - 0.5 * log_determinant
    return CurveFamily(knots=knots, theta=theta_by_prior, log_evidence=log_evidence)


def _build_curve_design(x: Float, knots: Float) -> Float:
    """Compute the design matrix: a column of ones, then one column per curve piece."""
    piece_fractions = np.clip((x[:, None] - knots[:-1]) / np.diff(knots), 0.0, 1.0)
    design = np.column_stack([np.ones(len(x)), piece_fractions])
    distance_outside = np.minimum(x - knots[0], 0.0) + np.maximum(x - knots[-1], 0.0)
    design[:, 1:] += distance_outside[:, None] / (knots[-1] - knots[0])
    return design


def _compute_prior_covariances(x: Float, cells: OutcomeCells, knots: Float) -> Float:
    """Compute the prior covariance matrix of the curve parameters for each prior."""
    piece_widths = np.diff(knots)
    cell_weight = cells.weight
    total_weight = float(cells.positive_weight.sum() + cells.negative_weight.sum())
    cell_share = cell_weight / max(total_weight, TINY)
    mean_x = float(cell_share @ x)
    variance = float(cell_share @ (x - mean_x) ** 2)
    deviation = max(variance**0.5, _MIN_DEVIATION)
    identity_theta = np.append(knots[0], piece_widths)
    standardised_theta = np.append(knots[0] - mean_x, piece_widths) / deviation
    covariances = []
    for prior in _PRIORS_IN_UNITS_OF_X:
        covariances.append(_compute_prior_covariance(prior, identity_theta))
    for prior in _PRIORS_IN_STANDARD_UNITS:
        covariances.append(_compute_prior_covariance(prior, standardised_theta))
    return np.stack(covariances)


def _compute_prior_covariance(prior: _BrownianPrior, line: Float) -> Float:
    """Compute the prior covariance of a random line plus a Brownian motion.

    Parameters
    ----------
    prior : _BrownianPrior
        Scales of the prior.

    line : array of shape (n_knots,)
        Parameters of the curve h(x) = x: the first knot and the widths of the pieces.

    Returns
    -------
    array of shape (n_knots, n_knots)
    """
    step_variances = prior.step_variance * np.minimum(line[1:], _MAX_STEP_WIDTH)
    slope_covariance = prior.slope_deviation**2 * np.outer(line, line)
    diagonal = np.append(prior.intercept_deviation**2, step_variances)
    return np.asarray(slope_covariance + np.diag(diagonal))


def _choose_knots(x: Float, cells: OutcomeCells) -> Float:
    """Choose knots at quantiles of ½ F₁ + ½ F₀, the mean distribution of both classes."""
    positive_total = float(cells.positive_weight.sum())
    negative_total = float(cells.negative_weight.sum())
    positive_share = cells.positive_weight / max(positive_total, TINY)
    negative_share = cells.negative_weight / max(negative_total, TINY)
    rarer_class_weight = min(positive_total, negative_total)
    n_pieces = int(np.clip(2.0 * np.sqrt(rarer_class_weight), _MIN_PIECES, _MAX_PIECES))

    rising_order = np.argsort(x, kind="stable")
    cumulative_share = np.cumsum((positive_share + negative_share)[rising_order])
    # Quantiles are not interpolated, so that a row of weight two is equivalent to two rows.
    quantile_levels = np.linspace(0.0, cumulative_share[-1], n_pieces + 1) - _LEVEL_SHIFT
    quantile_ranks = np.searchsorted(cumulative_share, quantile_levels)
    last_rank = len(x) - 1
    quantiles = x[rising_order][np.minimum(quantile_ranks, last_rank)]

    # Only the first of several quantiles within the smallest distance becomes a knot.
    min_distance = _MIN_RELATIVE_KNOT_DISTANCE * max(1.0, float(x.max() - x.min()))
    n_distances_from_first = np.floor((quantiles - quantiles[0]) / min_distance)
    _, first_index_of_each = np.unique(n_distances_from_first, return_index=True)
    knots = quantiles[first_index_of_each]
    if len(knots) == 1:
        return knots[0] + np.array([-0.5, 0.5])
    return knots


def _compute_curve_derivatives(design: Float, cells: OutcomeCells, theta: Float) -> Derivatives:
    """Compute the log loss of each curve with its gradient and Hessian.

    The loss is the sum of positive log(1 + e^-h) + negative log(1 + e^h) over the cells.
    """
    log_odds = design @ theta.T
    exp_minus_abs_log_odds = np.exp(-np.abs(log_odds))
    log1p_exp = np.log1p(exp_minus_abs_log_odds)
    probability = np.where(log_odds >= 0.0, 1.0, exp_minus_abs_log_odds) / (
        1.0 + exp_minus_abs_log_odds
    )
    positive_weight = cells.positive_weight
    negative_weight = cells.negative_weight

    positive_loss = positive_weight @ (log1p_exp + np.maximum(-log_odds, 0.0))
    negative_loss = negative_weight @ (log1p_exp + np.maximum(log_odds, 0.0))
    residual = cells.weight[:, None] * probability - positive_weight[:, None]
    curvature = cells.weight[:, None] * (
        exp_minus_abs_log_odds / (1.0 + exp_minus_abs_log_odds) ** 2
    )
    hessians = [
        (design * curvature_of_cells[:, None]).T @ design for curvature_of_cells in curvature.T
    ]
    return Derivatives(
        loss=positive_loss + negative_loss,
        gradient=residual.T @ design,
        hessian=np.stack(hessians),
    )
