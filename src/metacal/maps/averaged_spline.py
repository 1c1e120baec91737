"""Splines for almost calibrated log-odds, averaged over several priors.

The prior of a spline expresses how far it deviates from the identity and how smooth it is.
Several priors are fitted, and their splines averaged with the evidence as weights. The spline
itself is that of `metacal.maps.spline`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from metacal import kernels
from metacal.formulas import Float
from metacal.maps.fitting.newton import Derivatives, add_normal_prior, minimise_by_newton
from metacal.maps.fitting.spline import build_spline_design, compute_weighted_quantiles
from metacal.maps.labelled import Weights
from metacal.maps.spline import SplineMap


@dataclass(frozen=True)
class _SplinePrior:
    """Precisions of a normal prior on the deviation of a spline from the identity.

    Attributes
    ----------
    median_value_precision : float
        Precision of the deviation at the median of the log-odds.

    mean_slope_precision : float
        Precision of the deviation of the mean slope.

    slope_change_precision : float
        Precision of each change of slope between neighbouring knots.
    """

    median_value_precision: float
    mean_slope_precision: float
    slope_change_precision: float


#: Priors from weak to strong. At a precision of 10, the spline deviates by about 0.3 from the identity.
_PRIORS = (
    _SplinePrior(median_value_precision=1.0, mean_slope_precision=1.0, slope_change_precision=1.0),
    _SplinePrior(
        median_value_precision=10.0, mean_slope_precision=10.0, slope_change_precision=1.0
    ),
    _SplinePrior(
        median_value_precision=10.0, mean_slope_precision=10.0, slope_change_precision=30.0
    ),
    _SplinePrior(
        median_value_precision=10.0, mean_slope_precision=10.0, slope_change_precision=1e3
    ),
    _SplinePrior(median_value_precision=1e3, mean_slope_precision=1e3, slope_change_precision=1e3),
)
#: Precision added in every direction, so that each prior is proper.
_MIN_PRECISION = 1e-4
#: Expected decrease of the loss per row at which the fit takes its last step.
_TOLERANCE = 1e-9
#: Largest number of rows that are not grouped on a grid of log-odds.
_MAX_UNGROUPED_ROWS = 1 << 8
#: Default spacing of the grid of log-odds.
_DEFAULT_GRID_SPACING = 1.0 / 32.0
#: Largest absolute value of the log-odds; larger ones are clipped.
_MAX_LOG_ODDS = 50.0


@dataclass(frozen=True)
class BinaryRows:
    """Log-odds of the confidence of rows, and whether their predictions are correct.

    Attributes
    ----------
    log_odds : array of shape (n_rows,)
        Log-odds z of the confidence.

    correct : array of shape (n_rows,)
        1 if the prediction is correct, else 0. For grouped rows, the fraction correct.

    weights : array of shape (n_rows,) or None
        Weight of each row.
    """

    log_odds: Float
    correct: Float
    weights: Weights


def fit_averaged_spline(
    log_odds: Float, correct: Float, weights: Weights, *, n_knots: int = 7
) -> SplineMap:
    """Fit a spline to almost calibrated log-odds, averaged over several priors.

    Each prior makes the deviation from the identity, s(z) - z, normal with its own
    precisions: of the value at the median, of the mean slope, and of each change of slope.
    The maximum a posteriori splines are weighted by the evidence of their priors, with
    Laplace's approximation::

        log P(rows | prior) = -loss - ½ dᵀPd + ½ log|P| - ½ log|H + P|

    Here d is the deviation of the parameters, P the prior precision and H the Hessian of
    the loss. If z is calibrated, the result is close to the identity and has little of the
    noise of an unconstrained spline. If not, the rows outweigh the prior.

    Parameters
    ----------
    log_odds : array of shape (n_rows,)
        Log-odds z of the confidence.

    correct : array of shape (n_rows,)
        1 if the prediction is correct, else 0.

    weights : array of shape (n_rows,) or None
        Weight of each row. A row of weight 2 counts as two rows. Weights that are
        fractions are rescaled to the effective number of rows.

    n_knots : int, default=7
        Number of knots.

    Returns
    -------
    SplineMap

    Examples
    --------
    >>> from scipy.special import expit
    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(1.0, 2.0, 5000)
    >>> correct = np.asarray(rng.random(5000) < expit(z), dtype=float)
    >>> fit = fit_averaged_spline(2.0 * z, correct, None)
    >>> fit.curve.value(np.array([-2.0, 2.0, 4.0])).round(0)
    array([-1.,  1.,  2.])
    """
    return fit_averaged_splines([BinaryRows(log_odds, correct, weights)], n_knots=n_knots)[0]


def fit_averaged_splines(
    samples: Sequence[BinaryRows], *, n_knots: int = 7, grid_spacing: float = _DEFAULT_GRID_SPACING
) -> list[SplineMap]:
    """Fit an averaged spline to each of several samples at the same time.

    Parameters
    ----------
    samples : sequence of BinaryRows
        Samples, for example the training rows of cross-validation folds.

    n_knots : int, default=7
        Number of knots.

    grid_spacing : float
        Spacing of the grid on which the log-odds of many rows are grouped.

    Returns
    -------
    list of SplineMap
        One spline per sample, see `fit_averaged_spline`.
    """
    grouped_samples = [_group_rows_on_grid(sample, grid_spacing) for sample in samples]
    knots_of_samples = [
        compute_weighted_quantiles(sample.log_odds, sample.row_weights, n_knots)
        for sample in grouped_samples
    ]
    knot_counts = {len(knots) for knots in knots_of_samples}
    if len(knot_counts) > 1:
        # Samples with ties can have fewer knots, and problems of different size cannot be stacked.
        return [
            fit_averaged_splines([sample], n_knots=n_knots, grid_spacing=grid_spacing)[0]
            for sample in samples
        ]

    slopes_and_intercepts = _fit_averaged_parameters(grouped_samples, knots_of_samples)
    return [
        SplineMap(knots=knots, slopes=theta[:-1], intercept=float(theta[-1]))
        for knots, theta in zip(knots_of_samples, slopes_and_intercepts, strict=True)
    ]


@dataclass(frozen=True)
class _GroupedRows:
    """Log-odds, fraction correct and weight of rows or of groups of rows."""

    log_odds: Float
    correct: Float
    row_weights: Float


def _fit_averaged_parameters(
    samples: Sequence[_GroupedRows], knots_of_samples: Sequence[Float]
) -> Float:
    """Fit slopes and intercept of each sample under every prior, and average them.

    Parameters
    ----------
    samples : sequence of _GroupedRows
        Samples.

    knots_of_samples : sequence of arrays of shape (n_knots,)
        Knots of each sample.

    Returns
    -------
    array of shape (n_samples, n_knots + 1)
        Non-negative slopes, then the intercept.
    """
    # There is one problem per pair of a sample and a prior. Problems of the same sample are adjacent.
    n_samples = len(samples)
    n_priors = len(_PRIORS)
    n_knots = len(knots_of_samples[0])
    identity_theta_of_samples = []
    precisions_of_samples = []
    for knots, sample in zip(knots_of_samples, samples, strict=True):
        identity_theta_of_samples.append(np.append(np.ones(n_knots), knots[0]))
        precisions_of_samples.append(_compute_prior_precisions(knots, sample))
    prior_mean_of_problems = np.array(identity_theta_of_samples).repeat(n_priors, axis=0)
    precision_of_problems = np.concatenate(precisions_of_samples)
    padded_samples = _pad_samples_to_equal_length(samples, knots_of_samples)
    negative_log_likelihood = partial(
        _compute_stacked_derivatives,
        padded_samples,
        _compute_outer_products(padded_samples.design),
    )
    negative_log_posterior = partial(
        add_normal_prior,
        negative_log_likelihood,
        prior_mean=prior_mean_of_problems,
        precision=precision_of_problems,
    )
    slopes_are_nonnegative = np.append(np.ones(n_knots, dtype=bool), False)
    theta_of_problems, derivatives = minimise_by_newton(
        negative_log_posterior,
        start=prior_mean_of_problems,
        is_nonnegative=slopes_are_nonnegative,
        total_weights=padded_samples.row_weights.sum(axis=1).repeat(n_priors),
        method_name="spline calibration",
        tolerance=_TOLERANCE,
    )
    weights_by_sample_and_prior = _compute_prior_weights(
        derivatives, precision_of_problems, n_samples
    )
    theta_by_sample_and_prior = theta_of_problems.reshape(n_samples, n_priors, -1)
    theta_of_samples = (weights_by_sample_and_prior[:, None] @ theta_by_sample_and_prior)[:, 0]
    slopes = theta_of_samples[:, :-1]
    np.maximum(slopes, 0.0, out=slopes)
    return theta_of_samples


def _group_rows_on_grid(sample: BinaryRows, grid_spacing: float) -> _GroupedRows:
    """Group rows on an even grid of log-odds, unless there are only a few rows.

    A row between two grid points is divided between both, so that its mean log-odds are
    preserved.
    """
    n_rows = len(sample.log_odds)
    weights = _scale_to_effective_rows(sample.weights)
    if n_rows <= _MAX_UNGROUPED_ROWS:
        row_weights = np.ones(n_rows) if weights is None else weights
        return _GroupedRows(
            log_odds=np.clip(sample.log_odds, -_MAX_LOG_ODDS, _MAX_LOG_ODDS),
            correct=sample.correct,
            row_weights=row_weights,
        )
    first_point_index = math.floor(-_MAX_LOG_ODDS / grid_spacing)
    # The grid has one more point than intervals, because the last interval needs a right end.
    last_point_index = math.floor(_MAX_LOG_ODDS / grid_spacing) + 1
    weight_of_point, correct_weight_of_point = kernels.host_kernels.bin_linearly(
        sample.log_odds,
        sample.correct,
        weights,
        grid_spacing=grid_spacing,
        max_abs_value=_MAX_LOG_ODDS,
        first_index=first_point_index,
        n_points=last_point_index - first_point_index + 1,
    )
    used_points = np.flatnonzero(weight_of_point > 0.0)
    group_weight = weight_of_point[used_points]
    fraction_correct = correct_weight_of_point[used_points] / group_weight
    return _GroupedRows(
        log_odds=np.asarray((first_point_index + used_points) * grid_spacing),
        correct=np.clip(fraction_correct, 0.0, 1.0),
        row_weights=group_weight,
    )


def _scale_to_effective_rows(weights: Weights) -> Weights:
    """Scale weights that are fractions to the effective number of rows, (Σw)² / Σw².

    Examples
    --------
    >>> _scale_to_effective_rows(np.array([0.25, 0.25, 0.25, 0.25]))
    array([1., 1., 1., 1.])
    >>> _scale_to_effective_rows(np.array([2.0, 1.0]))
    array([2., 1.])
    """
    if weights is None:
        return None
    return weights * max(1.0, float(weights.sum()) / float(weights @ weights))


class _PaddedSamples(NamedTuple):
    """Samples of equal length, padded with rows of weight zero.

    Attributes
    ----------
    design : array of shape (n_samples, n_rows, n_parameters)
        Design matrix of each sample, whose last column is one.

    correct, row_weights : array of shape (n_samples, n_rows)
        Fraction correct and weight of each row.
    """

    design: Float
    correct: Float
    row_weights: Float


def _pad_samples_to_equal_length(
    samples: Sequence[_GroupedRows], knots_of_samples: Sequence[Float]
) -> _PaddedSamples:
    """Stack samples into arrays of equal length, padded with rows of weight zero.

    Parameters
    ----------
    samples : sequence of _GroupedRows
        Samples.

    knots_of_samples : sequence of arrays of shape (n_knots,)
        Knots of each sample.

    Returns
    -------
    _PaddedSamples
    """
    n_rows = max(len(sample.log_odds) for sample in samples)
    design = np.ones((len(samples), n_rows, len(knots_of_samples[0]) + 1))
    correct = np.zeros((len(samples), n_rows))
    row_weights = np.zeros((len(samples), n_rows))
    for sample_index, sample in enumerate(samples):
        knots = knots_of_samples[sample_index]
        n_sample_rows = len(sample.log_odds)
        design[sample_index, :n_sample_rows, :-1] = build_spline_design(knots, sample.log_odds)
        correct[sample_index, :n_sample_rows] = sample.correct
        row_weights[sample_index, :n_sample_rows] = sample.row_weights
    return _PaddedSamples(design=design, correct=correct, row_weights=row_weights)


def _compute_outer_products(design: Float) -> Float:
    """Compute the flattened outer product of each row of the design with itself."""
    products = design[:, :, :, None] * design[:, :, None]
    return products.reshape(*design.shape[:2], -1)


def _compute_stacked_derivatives(
    samples: _PaddedSamples, design_outer_products: Float, theta: Float
) -> Derivatives:
    """Compute the log loss and its derivatives for all samples and priors.

    Parameters
    ----------
    samples : _PaddedSamples
        Samples.

    design_outer_products : array of shape (n_samples, n_rows, n_parameters**2)
        Outer products of the rows of the design matrices.

    theta : array of shape (n_samples * n_priors, n_parameters)
        Parameters.

    Returns
    -------
    Derivatives
        Derivatives of n_samples * n_priors problems.
    """
    # The arrays have the axes (sample, prior, row), because all priors of a sample share its rows.
    correct = samples.correct[:, None, :]
    row_weights = samples.row_weights[:, None, :]
    n_samples = len(samples.design)
    theta_by_sample_and_prior = theta.reshape(n_samples, -1, theta.shape[1])
    log_odds = theta_by_sample_and_prior @ samples.design.transpose(0, 2, 1)
    exp_minus_abs_log_odds = np.exp(-np.abs(log_odds))
    denominator = 1.0 + exp_minus_abs_log_odds
    probability = np.where(log_odds >= 0.0, 1.0, exp_minus_abs_log_odds) / denominator
    row_losses = np.maximum(log_odds, 0.0) + np.log(denominator) - correct * log_odds
    hessian = (row_weights * probability * (1.0 - probability)) @ design_outer_products
    gradient = (row_weights * (probability - correct)) @ samples.design
    total_loss = row_losses @ row_weights.transpose(0, 2, 1)
    return Derivatives(
        loss=total_loss.reshape(-1),
        gradient=gradient.reshape(theta.shape),
        hessian=hessian.reshape(*theta.shape, -1),
    )


def _compute_prior_precisions(knots: Float, sample: _GroupedRows) -> Float:
    """Compute the precision matrix of slopes and intercept for each of `_PRIORS`.

    A prior with precision k on a linear function c·θ of the parameters adds k c cᵀ.
    """
    # The prior is on three linear functions: value at the median, mean slope, and changes of slope.
    n_knots = len(knots)
    n_parameters = n_knots + 1
    median_log_odds = compute_weighted_quantiles(sample.log_odds, sample.row_weights, 1)
    median_value_coefficients = np.append(build_spline_design(knots, median_log_odds)[0], 1.0)
    mean_slope_coefficients = np.append(np.full(n_knots, 1.0 / n_knots), 0.0)
    slope_change_coefficients = np.diff(np.eye(n_knots, n_parameters), axis=0)
    # Each unit matrix is c cᵀ. A prior of precision k has the precision matrix k c cᵀ.
    unit_median_value_matrix = np.outer(median_value_coefficients, median_value_coefficients)
    unit_mean_slope_matrix = np.outer(mean_slope_coefficients, mean_slope_coefficients)
    unit_slope_change_matrix = slope_change_coefficients.T @ slope_change_coefficients
    unit_matrices = np.array(
        [unit_mean_slope_matrix, unit_slope_change_matrix, np.eye(n_parameters)]
    )
    precision_factors = []
    for prior in _PRIORS:
        precision_factors.append(
            (prior.mean_slope_precision, prior.slope_change_precision, _MIN_PRECISION)
        )
    precision_matrices = np.array(precision_factors) @ unit_matrices.reshape(len(unit_matrices), -1)
    precision_matrices = precision_matrices.reshape(-1, n_parameters, n_parameters)
    median_value_factors = np.array([prior.median_value_precision for prior in _PRIORS])
    return np.asarray(
        precision_matrices + median_value_factors[:, None, None] * unit_median_value_matrix
    )


def _compute_prior_weights(
    derivatives_at_mode: Derivatives, precision_of_problems: Float, n_samples: int
) -> Float:
    """Compute the posterior weights of the priors of each sample from their evidence."""
    _, precision_log_determinant = np.linalg.slogdet(precision_of_problems)
    _, hessian_log_determinant = np.linalg.slogdet(derivatives_at_mode.hessian)
    log_determinant_ratio = precision_log_determinant - hessian_log_determinant
    log_evidence = -derivatives_at_mode.loss + 0.5 * log_determinant_ratio
    log_evidence_by_sample = log_evidence.reshape(n_samples, -1)
    highest_log_evidence = log_evidence_by_sample.max(axis=1, keepdims=True)
    weights_by_sample_and_prior = np.exp(log_evidence_by_sample - highest_log_evidence)
    weights_by_sample_and_prior /= weights_by_sample_and_prior.sum(axis=1, keepdims=True)
    return weights_by_sample_and_prior
