"""Kernels of Gaussian-process calibration.

All computations are in float64. A latent function of one variable is applied to every entry of the
table, so a block of n × K logits is treated as n·K numbers. A masked class (-inf) keeps probability
exactly 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from metacal.formulas import Array, Codes, Float
from metacal.formulas.gp import BUMP_RADIUS, center_rows, latent
from metacal.formulas.logits import limit_logits
from metacal.formulas.operations import NUMPY, Operations

#: Ways to centre the logits of a row, which does not change their softmax.
CENTRES = ("mean", "log_softmax")
#: Distance from the end of the grid at which positions are clipped, below the last grid point.
_POSITION_MARGIN = 1.000001


def tempered_logits(block: Array, centre: str, inverse_temperature: float) -> Float:
    """Compute t = b·(x - centre of the row), in a new array."""
    table = np.asarray(limit_logits(block), dtype=np.float64)
    return np.asarray(NUMPY.evaluate(center_rows, table, centre) * inverse_temperature)


def basis_functions(values: Float, inducing: Float, lengthscale: float) -> Float:
    """Compute exp(-½ ((t - z_m) / ℓ)²) for each inducing input z_m and each t."""
    distances = (values - inducing[:, None]) / lengthscale
    return np.asarray(np.exp(-0.5 * distances * distances))


def add_latent_in_place(xp: Operations, fitted: Any, t: Float) -> Float:
    """Compute t + Σ_m w_m exp(-½ ((t - z_m) / ℓ)²) in the memory of t."""
    bump_radius = BUMP_RADIUS * fitted.lengthscale
    lowest_t = fitted.inducing[0] - bump_radius
    highest_t = fitted.inducing[-1] + bump_radius
    scaled_t = np.clip(t, lowest_t, highest_t)
    scaled_t /= fitted.lengthscale
    scaled_inducing = fitted.inducing / fitted.lengthscale
    bump = np.empty_like(t)
    for z, weight in zip(scaled_inducing, fitted.weights):
        np.subtract(scaled_t, z, out=bump)
        bump *= bump
        bump *= -0.5
        np.exp(bump, out=bump)
        bump *= weight
        t += bump
    return t


NUMPY.kernels[latent] = add_latent_in_place


@dataclass(frozen=True, eq=False)
class TabulatedProcess:
    """Sparse Gaussian process, tabulated on an even grid.

    The variational distribution is q(v) = N(mean, covariance).

    Between grid points the features a(t), and everything that depends on them, are interpolated
    linearly. The probability mass at each grid point is then all that is needed of a table.

    Attributes
    ----------
    first_point, step : float
        First grid point, and distance between grid points.

    features : array of shape (n_points, n_features)
        a(t), one row per grid point.

    mean : array of shape (n_points,)
        E f(t) - t.

    mean_plus_half_variance : array of shape (n_points,)
        E f(t) - t + ½ Var f(t).
    """

    first_point: float
    step: float
    features: Float
    mean: Float
    mean_plus_half_variance: Float

    def locate(self, values: Float) -> tuple[Codes, Float]:
        """Return the grid index below each value, and the fraction of a step above it."""
        positions = (values.ravel() - self.first_point) / self.step
        np.clip(positions, 0.0, len(self.features) - _POSITION_MARGIN, out=positions)
        lower_index = positions.astype(np.intp)
        positions -= lower_index
        return lower_index, positions


@dataclass(frozen=True, eq=False)
class _Prediction:
    """Tempered logits of a block, with their grid positions and probabilities.

    Attributes
    ----------
    values : array of shape (n_rows, n_classes)
        Tempered logits t.

    lower_index, fraction : array of shape (n_rows * n_classes,)
        Index of the grid point below each value, and fraction of a step above it.

    probabilities : array of shape (n_rows, n_classes)
        π = softmax(E f + ½ Var f).

    log_sums : array of shape (n_rows,)
        Log-sum-exp of the rows.
    """

    values: Float
    lower_index: Codes
    fraction: Float
    probabilities: Float
    log_sums: Float


def _predict(
    block: Array, process: TabulatedProcess, centre: str, inverse_temperature: float
) -> _Prediction:
    """Compute the probabilities of a block under a Gaussian process.

    Parameters
    ----------
    block : array of shape (n_rows, n_classes)
        Logits.

    process : TabulatedProcess
        The Gaussian process.

    centre : {"mean", "log_softmax"}
        Constant to remove from each row.

    inverse_temperature : float
        Inverse temperature.

    Returns
    -------
    _Prediction
    """
    values = tempered_logits(block, centre, inverse_temperature)
    lower_index, fraction = process.locate(values)
    values_on_grid = process.mean_plus_half_variance
    rises_to_next_point = np.diff(values_on_grid, append=values_on_grid[-1])
    interpolated_values = rises_to_next_point[lower_index]
    interpolated_values *= fraction
    interpolated_values += values_on_grid[lower_index]
    # The softmax of E f + ½ Var f is computed in place.
    scores = interpolated_values.reshape(values.shape)
    scores += values
    largest = scores.max(axis=1, keepdims=True)
    scores -= largest
    exponentials = np.exp(scores, out=scores)
    totals = exponentials.sum(axis=1, keepdims=True)
    probabilities = np.divide(exponentials, totals, out=exponentials)
    log_sums = np.asarray((largest + np.log(totals))[:, 0])
    return _Prediction(values, lower_index, fraction, probabilities, log_sums)


def bound_sums(
    block: Array,
    labels: Codes,
    weights: Float | None,
    process: TabulatedProcess,
    centre: str,
    inverse_temperature: float,
    requested_sums: tuple[str, ...],
) -> Float:
    """Compute sums over rows for the bound on the evidence and its derivatives.

    **Evidence**: the bound m_y - log Σ_j exp(m_j + σ_j²/2), the mass of the true classes at each
    grid point, and the mass of π, the softmax of m + σ²/2. The gradient of the bound in the mean is
    a·(true - π), and minus twice the gradient in the covariance is Σ π a aᵀ.

    **Covariances**: two parts of Σ_rows Cov_π(a), Newton's curvature of the bound in the mean. The
    first part is Σ_rows (Σ_j π_j a_j)(Σ_j π_j a_j)ᵀ. The second is the mass of π at each grid point,
    which determines Σ π a aᵀ. Both use a at the grid point below, so that their difference is never
    negative.

    Parameters
    ----------
    block : array of shape (n_rows, n_classes)
        Logits.

    labels : array of int of shape (n_rows,)
        True classes.

    weights : array of shape (n_rows,) or None
        Row weights.

    process : TabulatedProcess
        The Gaussian process.

    centre : {"mean", "log_softmax"}
        Constant to remove from each row.

    inverse_temperature : float
        Inverse temperature.

    requested_sums : tuple of {"evidence", "covariances"}
        Sums to compute.

    Returns
    -------
    array
        The requested sums in one vector, the evidence first.
    """
    prediction = _predict(block, process, centre, inverse_temperature)
    weighted_probabilities = prediction.probabilities
    if weights is not None:
        weighted_probabilities = weighted_probabilities * weights[:, None]
    parts: list[Any] = []
    if "evidence" in requested_sums:
        parts += _evidence_sums(prediction, labels, weights, weighted_probabilities, process)
    if "covariances" in requested_sums:
        parts += _covariance_sums(prediction, weights, weighted_probabilities, process)
    return np.concatenate(parts)


def _evidence_sums(
    prediction: _Prediction,
    labels: Codes,
    weights: Float | None,
    weighted_probabilities: Float,
    process: TabulatedProcess,
) -> list[Any]:
    """Sum the bound, the weights of true classes and the probabilities π over rows.

    The last two are sums at each grid point.

    Parameters
    ----------
    prediction : _Prediction
        Probabilities of the block.

    labels : array of int of shape (n_rows,)
        True classes.

    weights : array of shape (n_rows,) or None
        Row weights.

    weighted_probabilities : array of shape (n_rows, n_classes)
        Probabilities times row weights.

    process : TabulatedProcess
        The Gaussian process.

    Returns
    -------
    list of three arrays
    """
    n_rows, n_classes = prediction.values.shape
    n_points = len(process.mean)
    flat_label_indices = np.arange(n_rows) * n_classes + labels
    label_lower_index = prediction.lower_index[flat_label_indices]
    label_fraction = prediction.fraction[flat_label_indices]
    label_position = label_lower_index + label_fraction
    label_mean = np.interp(label_position, np.arange(n_points), process.mean)
    label_values = prediction.values.ravel()[flat_label_indices]
    row_bounds = label_values + label_mean - prediction.log_sums
    row_weights = np.ones(n_rows) if weights is None else weights
    total_bound = row_bounds @ row_weights
    label_weights_on_grid = _distribute_over_grid(
        label_lower_index, label_fraction, row_weights, n_points
    )
    probabilities_on_grid = _distribute_over_grid(
        prediction.lower_index, prediction.fraction, weighted_probabilities.ravel(), n_points
    )
    return [[total_bound], label_weights_on_grid, probabilities_on_grid]


def _covariance_sums(
    prediction: _Prediction,
    weights: Float | None,
    weighted_probabilities: Float,
    process: TabulatedProcess,
) -> list[Any]:
    """Sum the outer products of mean features over rows, and π at each grid point.

    Parameters
    ----------
    prediction, weights, weighted_probabilities, process
        As in `_evidence_sums`.

    Returns
    -------
    list of two arrays
    """
    probabilities = prediction.probabilities
    n_points = len(process.mean)
    features_by_entry = np.take(process.features, prediction.lower_index, axis=0)
    features_by_row_and_class = features_by_entry.reshape(*probabilities.shape, -1)
    mean_features = np.matmul(probabilities[:, None, :], features_by_row_and_class)[:, 0, :]
    weighted_means = mean_features if weights is None else mean_features * weights[:, None]
    outer_products = weighted_means.T @ mean_features
    probabilities_at_lower_points = np.bincount(
        prediction.lower_index, weighted_probabilities.ravel(), minlength=n_points
    )
    return [outer_products.ravel(), probabilities_at_lower_points]


def _distribute_over_grid(lower_index: Codes, fraction: Float, mass: Float, n_points: int) -> Float:
    """Distribute each mass linearly over the two neighbouring grid points."""
    upper_mass = mass * fraction
    mass_on_grid = np.bincount(lower_index, mass - upper_mass, minlength=n_points)
    mass_on_grid[1:] += np.bincount(lower_index, upper_mass, minlength=n_points)[:-1]
    return np.asarray(mass_on_grid)


def probability_mass(
    block: Array, labels: Codes, weights: Float | None, centre: str, inverse_temperature: float
) -> Float:
    """Compute the mass of every entry on the axis of tempered logits.

    Parameters
    ----------
    block, labels, weights, centre, inverse_temperature
        As in `bound_sums`.

    Returns
    -------
    array of shape (n_rows * n_classes, 2)
        The tempered logit t, and weight · softmax(t), plus the weight for the true class.
    """
    values = tempered_logits(block, centre, inverse_temperature)
    mass = np.exp(values - values.max(axis=1, keepdims=True))
    mass /= mass.sum(axis=1, keepdims=True)
    mass[np.arange(len(mass)), labels] += 1.0
    if weights is not None:
        mass *= weights[:, None]
    return np.column_stack([values.ravel(), mass.ravel()])
