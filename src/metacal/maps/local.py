"""Local temperature scaling: softmax(b(x) x) with an inverse temperature per row.

Adaptive temperatures were proposed by Mozafari et al., 2018, by Balanya, Maroñas & Ramos,
"Adaptive temperature scaling for robust calibration of deep neural networks", 2022 (with the
entropy as the only feature), and by Joy et al., "Sample-dependent adaptive temperature scaling
for improved calibration", AAAI 2023. Here log b is linear in three standardised features of the
row. The fit has four parameters and is shrunk towards one temperature for all rows.

**Another method has the same name**: Ding, Han, Liu & Niethammer, "Local temperature scaling
for probability calibration", ICCV 2021, which the Meta-Cal paper cites. It is a method for image
segmentation. A convolutional network reads the image and its map of logits, and gives each
*pixel* a temperature. A table of logits has neither pixels nor neighbours, so that network has
no input here. Without it, a temperature per row as a function of the logits of that row
remains, which is the method of this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.formulas import Codes, Float
from metacal.formulas.logits import limit_logits
from metacal.formulas.operations import NUMPY
from metacal.formulas.rowwise import compute_gaps
from metacal.formulas.temperature import (
    MAX_LOG_INVERSE_TEMPERATURE,
    MAX_STANDARDISED_FEATURE,
    compute_local_features,
    compute_local_inverse_temperature,
    local_temperature,
)
from metacal.maps.fitting.lbfgs import minimise_by_lbfgs
from metacal.maps.labelled import LabelledRows, Weights
from metacal.maps.map import Map, check_positive
from metacal.maps.temperature import fit_temperature
from metacal.rows import Rows

#: Features of the tempered logits of a row, in the order of the coefficients.
FEATURES = ("entropy", "log(1 + margin)", "log(1 + norm)")
#: Smallest scaled gap d. It replaces -inf, for which the product d e^d would be NaN.
_MIN_SCALED_GAP = -800.0
#: Ridge on the unpenalised intercept per unit of weight, so that the Hessian can be inverted.
_RIDGE_PER_ROW = 1e-12
#: Possible decrease of the mean loss at which the fit stops.
_TOLERANCE = 1e-12
#: Standard deviation below which a feature counts as constant.
_MIN_DEVIATION = 1e-6


@dataclass(frozen=True, eq=False)
class LocalTemperatureMap(Map):
    """Local temperature scaling: softmax(b(x) x) with log b(x) = c_0 + Σ_k c_k z_k(x).

    The z_k are standardised features of the tempered logits t = b₀ x: the entropy of
    softmax(t), log(1 + margin of t), and log(1 + norm of t), where the norm is the root mean
    square about the mean. All classes of a row have the same b(x) > 0, so no prediction changes.

    Attributes
    ----------
    inverse_temperature : float
        Inverse temperature b₀ of plain temperature scaling.
    coefficients : array of shape (4,)
        Coefficients c. The first is log b of a row with average features.
    means, scales : arrays of shape (3,)
        z = (feature - mean) / scale, clipped at ±3.

    Examples
    --------
    >>> coefficients = np.array([np.log(0.5), 0.0, 0.0, 0.0])
    >>> plain = LocalTemperatureMap(0.5, coefficients, np.zeros(3), np.ones(3))
    >>> plain(np.array([[2.0, 0.0]])).round(3)
    array([[0.731, 0.269]])
    """

    inverse_temperature: float
    coefficients: Float
    means: Float
    scales: Float

    preserves_accuracy = True
    ends_in_softmax = True
    formula = staticmethod(local_temperature)

    def check(self) -> None:
        """Raise InputError unless the fields are valid."""
        check_positive("inverse_temperature", self.inverse_temperature)
        n_features = len(FEATURES)
        sizes = {"coefficients": n_features + 1, "means": n_features, "scales": n_features}
        for name, size in sizes.items():
            array = getattr(self, name)
            if array.shape != (size,) or not np.isfinite(array).all():
                raise InputError(f"{name} must be {size} finite numbers, but got {array!r}.")
        if not (self.scales > 0.0).all():
            raise InputError(f"scales must contain only positive numbers, but got {self.scales!r}.")

    def temperatures(self, rows: Rows) -> Float:
        """Compute the temperature T(x) = 1 / b(x) of every row."""
        return 1.0 / rows.compute_column(self._inverse_temperatures)

    def _inverse_temperatures(self, block: NDArray[Any]) -> Float:
        """Compute b(x) of each row of a block."""
        return np.asarray(
            NUMPY.evaluate(compute_local_inverse_temperature, self, _compute_gaps(block))[:, 0]
        )


def fit_local_temperature(
    rows: Rows, labels: Codes, weights: Weights = None, *, penalty: float = 100.0
) -> LocalTemperatureMap:
    """Fit the coefficients of log b(x) by penalised maximum likelihood.

    The fit minimises Σ_rows -log softmax(b(x) x)_y + (penalty / 2) Σ_{k>0} c_k². It starts from
    plain temperature scaling, with the Fisher information there as curvature. The loss is
    convex in b but not quite in log b. The result is a local minimum that is never worse on
    these rows than one temperature.

    Parameters
    ----------
    rows : Rows
        Rows of logits.

    labels : array of int of shape (n_rows,)
        Column index of the true class of each row.

    weights : array of shape (n_rows,), optional
        Weight of each row.

    penalty : float, default=100.0
        Strength of the penalty.

    Returns
    -------
    LocalTemperatureMap
    """
    check_positive("penalty", penalty)
    sample = LabelledRows(rows, labels, weights).drop_unusable_rows()
    temperature_map = fit_temperature(sample.rows, sample.labels, sample.weights)
    inverse_temperature = temperature_map.inverse_temperature
    features = sample.rows.compute_column(
        partial(compute_features_of_rows, inverse_temperature=inverse_temperature)
    )
    means = np.average(features, axis=0, weights=sample.weights)
    variances = np.average((features - means) ** 2, axis=0, weights=sample.weights)
    deviations = np.sqrt(variances)
    scales = np.where(deviations > _MIN_DEVIATION, deviations, 1.0)
    design = build_design_matrix(features, means, scales)
    coefficients = _fit_coefficients(
        sample, design, start_log_b=np.log(inverse_temperature), penalty=penalty
    )
    return LocalTemperatureMap(inverse_temperature, coefficients, means, scales)


def _fit_coefficients(
    sample: LabelledRows, design: Float, start_log_b: float, penalty: float
) -> Float:
    """Fit the coefficients, starting from one temperature for all rows.

    Parameters
    ----------
    sample : LabelledRows
        Rows with labels.

    design : array of shape (n_rows, n_coefficients)
        Design matrix.

    start_log_b : float
        Logarithm of the inverse temperature of plain temperature scaling.

    penalty : float
        Strength of the penalty.

    Returns
    -------
    array of shape (n_coefficients,)
    """
    total_weight = sample.total_weight
    penalty_matrix = penalty * np.diag([0.0, *np.ones(len(FEATURES))])
    start_coefficients = np.array([start_log_b, *np.zeros(len(FEATURES))])

    def compute_mean_objective(coefficients: Float) -> tuple[float, Float]:
        loss_sums = _sum_over_rows(sample, design, coefficients)
        penalty_gradient = penalty_matrix @ coefficients
        penalised_loss = loss_sums.loss + 0.5 * coefficients @ penalty_gradient
        gradient = loss_sums.gradient + penalty_gradient
        return float(penalised_loss / total_weight), np.asarray(gradient / total_weight)

    start_sums = _sum_over_rows(sample, design, start_coefficients)
    hessian = start_sums.information + penalty_matrix
    hessian[0, 0] += _RIDGE_PER_ROW * total_weight + np.finfo(np.float64).tiny
    inverse_hessian = np.linalg.pinv(hessian / total_weight, hermitian=True)

    def precondition(gradient: Float) -> Float:
        return np.asarray(inverse_hessian @ gradient)

    minimum = minimise_by_lbfgs(
        compute_mean_objective, start_coefficients, precondition, tolerance=_TOLERANCE
    )
    minimum.warn_unless_converged("local temperature scaling")
    return minimum.point


class _LossSums(NamedTuple):
    """Loss with its gradient and its Fisher information, summed over rows."""

    loss: float
    gradient: Float
    information: Float


def _sum_over_rows(sample: LabelledRows, design: Float, coefficients: Float) -> _LossSums:
    """Sum loss, gradient and Fisher information over all rows, in one pass."""
    n_coefficients = len(coefficients)
    sum_over_block = partial(sum_loss_derivatives, coefficients=coefficients)
    packed_sums = sample.rows.sum(sum_over_block, sample.labels, sample.weights, design)
    loss, gradient, information = np.split(packed_sums, [1, 1 + n_coefficients])
    return _LossSums(
        loss=float(loss[0]),
        gradient=gradient,
        information=information.reshape(n_coefficients, n_coefficients),
    )


def compute_features_of_rows(block: NDArray[Any], inverse_temperature: float) -> Float:
    """Compute the shift-invariant features of each row."""
    tempered_gaps = _compute_gaps(block) * inverse_temperature
    return np.concatenate(NUMPY.evaluate(compute_local_features, tempered_gaps), axis=1)


def _compute_gaps(block: NDArray[Any]) -> Float:
    """Compute x - max x of each row in float64."""
    return np.asarray(compute_gaps(NUMPY, np.asarray(limit_logits(block), dtype=np.float64)))


def build_design_matrix(features: Float, means: Float, scales: Float) -> Float:
    """Return a column of ones and the standardised features."""
    standardised_features = np.clip(
        (features - means) / scales, -MAX_STANDARDISED_FEATURE, MAX_STANDARDISED_FEATURE
    )
    return np.column_stack([np.ones(len(features)), standardised_features])


def sum_loss_derivatives(
    block: NDArray[Any], labels: Codes, weights: Float | None, design: Float, coefficients: Float
) -> Float:
    """Sum loss, gradient and Fisher information over the rows of a block.

    The loss of a row is log Σ e^{b d} - b d_y with the gaps d = x - max x, its gradient is
    b (E d - d_y) φ, and its information is b² Var(d) φ φᵀ, where φ is a row of the design.

    Parameters
    ----------
    block : array of shape (n_rows, n_classes)
        Logits.

    labels : array of int of shape (n_rows,)
        Column index of the true class of each row.

    weights : array of shape (n_rows,) or None
        Weight of each row.

    design : array of shape (n_rows, n_coefficients)
        Design matrix.

    coefficients : array of shape (n_coefficients,)
        Coefficients of log b.

    Returns
    -------
    array of shape (1 + n_coefficients + n_coefficients**2,)
    """
    log_b = np.clip(
        design @ coefficients, -MAX_LOG_INVERSE_TEMPERATURE, MAX_LOG_INVERSE_TEMPERATURE
    )
    b = np.exp(log_b)
    gaps = block.astype(np.float64)
    gaps -= gaps.max(axis=1, keepdims=True)
    label_gap = gaps[np.arange(len(gaps)), labels]
    np.maximum(gaps, (_MIN_SCALED_GAP / b)[:, None], out=gaps)
    # The array of exponentials is multiplied by the gaps in place, once for each moment.
    moment_terms = np.exp(gaps * b[:, None])
    exp_sum = moment_terms.sum(axis=1)
    moment_terms *= gaps
    mean_gap = moment_terms.sum(axis=1) / exp_sum
    moment_terms *= gaps
    mean_squared_gap = moment_terms.sum(axis=1) / exp_sum
    gap_variance = np.maximum(mean_squared_gap - mean_gap * mean_gap, 0.0)

    row_weights = np.ones(len(gaps)) if weights is None else weights
    total_loss = row_weights @ (np.log(exp_sum) - b * label_gap)
    slope_in_log_b = row_weights * b * (mean_gap - label_gap)
    gradient = slope_in_log_b @ design
    information_in_log_b = row_weights * b * b * gap_variance
    information = (design * information_in_log_b[:, None]).T @ design
    return np.concatenate([[total_loss], gradient, information.ravel()])
