"""Spline calibration: a monotone spline of the log-odds of the confidence.

The idea is that of Gupta, Rahimi, Ajanthan, Mensink, Sminchisescu & Hartley, "Calibration
of Neural Networks using Splines", ICLR 2021: recalibrate the predicted class by a smooth
curve, without bins. They differentiate a spline through the cumulative accuracy, which
need not be monotone. Here the curve is monotone by construction and fitted by penalised
likelihood.

There are two fits. `fit_spline` fits one spline under one prior to a table of logits.
`fit_averaged` fits a spline to log-odds that are almost calibrated already, and averages
over several priors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import InputError
from metacal.formulas import Codes, Float
from metacal.formulas import curves as formulas
from metacal.formulas.curves import spline
from metacal.formulas.logits import scaled
from metacal.formulas.operations import NUMPY
from metacal.kernels.columns import Curve
from metacal.maps.fitting.newton import Derivatives, add_normal_prior, minimise_by_newton
from metacal.maps.fitting.spline import fit_spline_slopes, spline_design, weighted_quantiles
from metacal.maps.labelled import LabelledRows, Weights
from metacal.maps.map import Map, check_count, positive
from metacal.maps.temperature import fit_temperature
from metacal.rows import Rows

#: Priors of the averaged spline: precision of its deviation from the identity in the
#: middle, of the deviation of its mean slope, and of each change of slope. On real tables,
#: temperature scaling leaves deviations of about 0.3 in the first two (a precision of 10),
#: with very different smoothness, which gives three priors. One looser prior covers
#: unusual tables. One is nearly the identity, which suits most tables.
_PRIORS = (
    (1.0, 1.0, 1.0),
    (10.0, 10.0, 1.0),
    (10.0, 10.0, 30.0),
    (10.0, 10.0, 1e3),
    (1e3, 1e3, 1e3),
)
#: Precision added in every direction, so that each prior is proper.
_MIN_PRECISION = 1e-4
#: Expected decrease per row at which the fit stops. The last step is taken, so that about
#: the square of this remains.
_TOLERANCE = 1e-9
#: Largest number of rows that are used one by one. The log-odds of more rows are
#: distributed over a grid.
_MAX_UNGROUPED_ROWS = 1 << 8
#: Default spacing of that grid.
GRID = 1.0 / 32.0
#: Limit on the size of the log-odds.
_MAX_LOG_ODDS = 50.0


@dataclass(frozen=True, eq=False)
class SplineMap(Map):
    """Top-label map that replaces the log-odds z of the confidence by a spline s(z).

    The predicted class gets σ(s(z)), and the other classes share the rest in proportion.
    Confidence and proportions are those of the tempered softmax(b x). The slope of s is
    linear between neighbouring knots and constant beyond the outer knots, and s(first
    knot) is the intercept. Because the slopes are non-negative, s never decreases. The
    predicted class stays the most probable one (see `TopLabelMap`), so every prediction is
    preserved.

    Examples
    --------
    >>> halved = SplineMap(np.array([0.0]), np.array([0.5]), 0.0)
    >>> halved(np.array([[3.0, 0.0]])).round(3)  # softmax(x / 2)
    array([[0.818, 0.182]])
    """

    knots: Float
    slopes: Float
    intercept: float
    inverse_temperature: float = 1.0

    preserves_accuracy = True
    derived = ("n_knots",)
    formula = staticmethod(spline)

    def check(self) -> None:
        """Raise InputError unless the knots increase and the slopes are valid."""
        is_flat = self.knots.ndim == 1 and len(self.knots) > 0
        has_valid_knots = (
            is_flat
            and self.slopes.shape == self.knots.shape
            and np.isfinite(self.knots).all()
            and (np.diff(self.knots) > 0.0).all()
        )
        if not has_valid_knots:
            raise InputError("a spline needs knots that rise strictly, and a slope at each.")
        if not (np.isfinite(self.slopes) & (self.slopes >= 0.0)).all():
            raise InputError("the slopes of a spline must be finite and not negative.")
        if not (isinstance(self.intercept, int | float) and np.isfinite(self.intercept)):
            raise InputError(f"the intercept must be a finite number, got {self.intercept!r}.")
        positive("inverse_temperature", self.inverse_temperature)

    @property
    def n_knots(self) -> int:
        """Number of knots."""
        return len(self.knots)

    @cached_property
    def curve(self) -> Curve:
        """The spline s, in the form that the kernels use."""
        return Curve(self.knots, self.slopes, float(self.intercept))


# The curve sums over the knots in the order of the kernels that compute spline and softmax
# in one pass, so that both give the same bits.
NUMPY.fast[formulas.spline_value] = lambda xp, fitted, z: fitted.curve.value(z)


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


def fit_spline(
    rows: Rows, labels: Codes, weights: Weights = None, *, n_knots: int = 7, tempered: bool = True
) -> SplineMap:
    """Fit a monotone spline of the log-odds to the correctness of the predictions.

    The knots are quantiles of the log-odds z. With slopes g_1, ..., g_m >= 0 at the knots
    and c = s(first knot), the fit minimises::

        Σ w (log(1 + e^s(z)) - correct s(z))  +  ½ Σ (g_{i+1} - g_i)²
            +  ½ 0.01 (Σ (g_i - 1)² + (c - first knot)²)

    This is a convex problem in m + 1 parameters, solved by projected Newton steps. It takes
    O(n K) time once, O(n m²) time per step and O(n) memory.

    Parameters
    ----------
    rows : Rows
        Rows of logits.

    labels : array of int of shape (n_rows,)
        Column index of the true class of each row.

    weights : array of shape (n_rows,), optional
        Weight of each row.

    n_knots : int, default=7
        Number of knots.

    tempered : bool, default=True
        Whether to fit a temperature first. It determines how the other classes share the
        rest of the probability.

    Returns
    -------
    SplineMap
    """
    n_knots = check_count("n_knots", n_knots, usual=7)
    inverse_temperature = 1.0
    if tempered:
        inverse_temperature = fit_temperature(rows, labels, weights).inverse_temperature
    sample = LabelledRows(rows, labels, weights).drop_zero_weights()
    z = sample.rows.collect(partial(tempered_log_odds, inverse_temperature))
    row_weights = sample.weight_column
    knots = weighted_quantiles(z, row_weights, n_knots)
    identity = np.append(np.ones(len(knots)), knots[0])
    theta = fit_spline_slopes(
        z, sample.find_correct(), row_weights, knots, identity, "spline calibration"
    )
    return SplineMap(
        knots=knots,
        slopes=theta[:-1],
        intercept=float(theta[-1]),
        inverse_temperature=inverse_temperature,
    )


def fit_averaged(z: Float, correct: Float, weights: Weights, *, n_knots: int = 7) -> SplineMap:
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
    z : array of shape (n_rows,)
        Log-odds of the confidence.

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
    >>> fit = fit_averaged(2.0 * z, correct, None)
    >>> fit.curve.value(np.array([-2.0, 2.0, 4.0])).round(0)
    array([-1.,  1.,  2.])
    """
    return fit_averaged_each([BinaryRows(z, correct, weights)], n_knots=n_knots)[0]


def fit_averaged_each(
    samples: Sequence[BinaryRows], *, n_knots: int = 7, grid: float = GRID
) -> list[SplineMap]:
    """Fit an averaged spline to each of several samples, at little more cost than one.

    Parameters
    ----------
    samples : sequence of BinaryRows
        Samples, for example the training rows of cross-validation folds.

    n_knots : int, default=7
        Number of knots.

    grid : float
        Spacing of the grid on which the log-odds of many rows are grouped.

    Returns
    -------
    list of SplineMap
        One spline per sample, see `fit_averaged`.
    """
    grouped_samples = [_group_on_grid(sample, grid) for sample in samples]
    knots_of_each = [
        weighted_quantiles(sample.log_odds, sample.row_weights, n_knots)
        for sample in grouped_samples
    ]
    n_knots_of_each = {len(knots) for knots in knots_of_each}
    if len(n_knots_of_each) > 1:
        # Ties have merged knots of some samples, so the problems differ in size.
        return [fit_averaged_each([one], n_knots=n_knots, grid=grid)[0] for one in samples]

    design, correct, row_weights = _stack_samples(grouped_samples, knots_of_each)
    n_samples = len(samples)
    n_priors = len(_PRIORS)
    identities = [np.append(np.ones(len(knots)), knots[0]) for knots in knots_of_each]
    identity = np.array(identities).repeat(n_priors, axis=0)
    precisions = np.concatenate(
        [
            _prior_precisions(knots, sample)
            for knots, sample in zip(knots_of_each, grouped_samples, strict=True)
        ]
    )
    likelihood = partial(
        _stacked_derivatives, design, _outer_products(design), correct, row_weights
    )
    problems = partial(add_normal_prior, likelihood, identity, precisions)
    bounded = np.append(np.ones(len(knots_of_each[0]), dtype=bool), False)
    total = row_weights.sum(axis=1).repeat(n_priors)
    theta_of_priors, derivatives = minimise_by_newton(
        problems, identity, bounded, total, "spline calibration", _TOLERANCE
    )
    prior_weights = _prior_weights(derivatives, precisions, n_samples)
    theta_by_sample = theta_of_priors.reshape(n_samples, n_priors, -1)
    theta = (prior_weights[:, None] @ theta_by_sample)[:, 0]
    np.maximum(theta[:, :-1], 0.0, out=theta[:, :-1])
    return [
        SplineMap(knots=knots, slopes=own_theta[:-1], intercept=float(own_theta[-1]))
        for knots, own_theta in zip(knots_of_each, theta, strict=True)
    ]


@dataclass(frozen=True)
class _GroupedRows:
    """Log-odds, fraction correct and weight of single rows or of groups of rows."""

    log_odds: Float
    correct: Float
    row_weights: Float


def _group_on_grid(sample: BinaryRows, grid: float) -> _GroupedRows:
    """Group many rows on an even grid of log-odds; keep few rows as they are.

    A row between two grid points is divided between both, so that its mean log-odds are
    preserved.
    """
    z = sample.log_odds
    weights = _scale_to_effective_rows(sample.weights)
    if len(z) <= _MAX_UNGROUPED_ROWS:
        row_weights = np.ones(len(z)) if weights is None else weights
        return _GroupedRows(
            log_odds=np.clip(z, -_MAX_LOG_ODDS, _MAX_LOG_ODDS),
            correct=sample.correct,
            row_weights=row_weights,
        )
    first_point = math.floor(-_MAX_LOG_ODDS / grid)
    n_points = math.floor(_MAX_LOG_ODDS / grid) - first_point + 2
    point_weight, correct_weight = kernels.active.on_grid(
        z, sample.correct, weights, grid, _MAX_LOG_ODDS, first_point, n_points
    )
    is_used = point_weight > 0.0
    row_weights = point_weight[is_used]
    return _GroupedRows(
        log_odds=np.asarray((first_point + np.flatnonzero(is_used)) * grid),
        correct=np.clip(correct_weight[is_used] / row_weights, 0.0, 1.0),
        row_weights=row_weights,
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


def _stack_samples(
    samples: Sequence[_GroupedRows], knots_of_each: Sequence[Float]
) -> tuple[Float, Float, Float]:
    """Stack samples into arrays of equal length, padded with rows of weight zero.

    Parameters
    ----------
    samples : sequence of _GroupedRows
        Samples.

    knots_of_each : sequence of arrays of shape (n_knots,)
        Knots of each sample.

    Returns
    -------
    design : array of shape (n_samples, n_rows, n_knots + 1)
        Design matrices; the last column is one.

    correct, row_weights : arrays of shape (n_samples, n_rows)
    """
    n_rows = max(len(sample.log_odds) for sample in samples)
    design = np.ones((len(samples), n_rows, len(knots_of_each[0]) + 1))
    correct = np.zeros((len(samples), n_rows))
    row_weights = np.zeros((len(samples), n_rows))
    for i, (sample, knots) in enumerate(zip(samples, knots_of_each, strict=True)):
        n_own_rows = len(sample.log_odds)
        design[i, :n_own_rows, :-1] = spline_design(knots, sample.log_odds)
        correct[i, :n_own_rows] = sample.correct
        row_weights[i, :n_own_rows] = sample.row_weights
    return design, correct, row_weights


def _outer_products(design: Float) -> Float:
    """Compute the flattened outer product of each row of the design with itself."""
    products = design[:, :, :, None] * design[:, :, None]
    return products.reshape(*design.shape[:2], -1)


def _stacked_derivatives(
    design: Float, products: Float, correct: Float, row_weights: Float, theta: Float
) -> Derivatives:
    """Compute the log loss and its derivatives for all samples and priors.

    Parameters
    ----------
    design : array of shape (n_samples, n_rows, n_parameters)
        Design matrices.

    products : array of shape (n_samples, n_rows, n_parameters**2)
        Outer products of the rows of the design matrices.

    correct, row_weights : arrays of shape (n_samples, n_rows)
        Outcome and weight of each row.

    theta : array of shape (n_samples * n_priors, n_parameters)
        Parameters.

    Returns
    -------
    Derivatives
        Derivatives of n_samples * n_priors problems.
    """
    correct = correct[:, None]
    row_weights = row_weights[:, None]
    theta_by_sample = theta.reshape(len(design), -1, theta.shape[1])
    z = theta_by_sample @ design.transpose(0, 2, 1)
    exp_minus_abs_z = np.exp(-np.abs(z))
    denominator = 1.0 + exp_minus_abs_z
    probability = np.where(z >= 0.0, 1.0, exp_minus_abs_z) / denominator
    loss = np.maximum(z, 0.0) + np.log(denominator) - correct * z
    hessian = (row_weights * probability * (1.0 - probability)) @ products
    gradient = (row_weights * (probability - correct)) @ design
    total_loss = (loss @ row_weights.transpose(0, 2, 1)).reshape(-1)
    return Derivatives(
        loss=total_loss,
        gradient=gradient.reshape(theta.shape),
        hessian=hessian.reshape(*theta.shape, -1),
    )


def _prior_precisions(knots: Float, sample: _GroupedRows) -> Float:
    """Compute the precision matrix of slopes and intercept for each of `_PRIORS`."""
    n_knots = len(knots)
    median = weighted_quantiles(sample.log_odds, sample.row_weights, 1)
    value_at_median = np.append(spline_design(knots, median)[0], 1.0)
    mean_slope = np.append(np.full(n_knots, 1.0 / n_knots), 0.0)
    slope_changes = np.diff(np.eye(n_knots, n_knots + 1), axis=0)
    terms = np.array(
        [
            np.outer(mean_slope, mean_slope),
            slope_changes.T @ slope_changes,
            np.eye(n_knots + 1),
        ]
    )
    term_precisions = np.array([(*prior, _MIN_PRECISION) for prior in _PRIORS])
    without_value = term_precisions[:, 1:] @ terms.reshape(3, -1)
    without_value = without_value.reshape(-1, n_knots + 1, n_knots + 1)
    value_precision = term_precisions[:, 0, None, None]
    value_term = np.outer(value_at_median, value_at_median)
    return np.asarray(without_value + value_precision * value_term)


def _prior_weights(derivatives: Derivatives, precisions: Float, n_samples: int) -> Float:
    """Compute the posterior weights of the priors of each sample from their evidence."""
    log_determinants = np.linalg.slogdet(precisions)[1] - np.linalg.slogdet(derivatives.hessian)[1]
    log_evidence = -derivatives.loss + 0.5 * log_determinants
    log_evidence = log_evidence.reshape(n_samples, -1)
    weights = np.exp(log_evidence - log_evidence.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


def confidence_log_odds(block: NDArray[Any]) -> Float:
    """Compute log(max p / (1 - max p)) of each row accurately, at most 700 in size."""
    return np.asarray(NUMPY.run(formulas.confidence_log_odds, block)[:, 0])


def tempered_log_odds(inverse_temperature: float, block: NDArray[Any]) -> Float:
    """Compute the log-odds of the confidence of the tempered softmax(b x)."""
    return confidence_log_odds(scaled(block, inverse_temperature))
