"""Ensemble temperature scaling: w1 softmax(x / T) + w2 softmax(x) + w3 / K.

Zhang, Kailkhura & Han, "Mix-n-Match: Ensemble and Compositional Methods for Uncertainty
Calibration in Deep Learning", ICML 2020.

The three *members* are the tempered softmax, the plain softmax and the uniform distribution.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import InputError
from metacal.formulas import Codes, Float
from metacal.formulas.operations import NUMPY
from metacal.formulas.rowwise import uniform_probabilities
from metacal.formulas.temperature import ensemble
from metacal.maps.curves import softmax
from metacal.maps.fitting.mixture import fit_mixture_weights
from metacal.maps.labelled import LabelledRows, Weights
from metacal.maps.map import TemperedMap
from metacal.maps.temperature import fit_temperature
from metacal.maps.uniform import MAX_UNIFORM, fit_uniform_temperature
from metacal.rows import Rows

#: Number of members of the ensemble: tempered softmax, softmax and uniform distribution.
_N_MEMBERS = 3
#: Ridge on the weights, relative to the trace of the Hessian, which may be singular.
_RELATIVE_RIDGE = 1e-13
#: Largest size of a negative weight that is attributed to rounding.
_MAX_NEGATIVE_WEIGHT = 1e-12
#: Largest distance of a sum of weights from one that is attributed to rounding.
_MAX_SUM_ERROR = 1e-9
#: Relative decrease of the objective that is attributed to rounding.
_RELATIVE_ROUNDING_ERROR = 1e-15
#: Absolute error of log b at which the root finder stops.
_LOG_B_TOLERANCE = 1e-9
_LOSSES = ("nll", "mse", "sequential")
#: Distances in log b from the starting point at which a bracket of the minimum may end.
_BRACKET_DISTANCES = (0.25, 0.5, 1.0, 2.0)
#: Lower limit of a scaled gap d in the product d e^d, because 0 * (-inf) is NaN.
_MIN_SCALED_GAP = -800.0


@dataclass(frozen=True)
class EnsembleTemperatureMap(TemperedMap):
    """Ensemble w1 softmax(b x) + w2 softmax(x) + w3 / K with b = 1/T > 0.

    The weights sum to one. Masked classes have no share of the uniform member; the unmasked
    classes share w3.

    Examples
    --------
    >>> EnsembleTemperatureMap(0.5, (0.5, 0.25, 0.25))(np.array([[2.0, 0.0]])).round(3)
    array([[0.711, 0.289]])
    """

    inverse_temperature: float
    weights: tuple[float, float, float]

    preserves_accuracy = True
    supports_single_precision = True
    ends_in_softmax = True
    formula = staticmethod(ensemble)

    def check(self) -> None:
        """Raise InputError unless the weights are valid."""
        super().check()
        weights = self.weights
        are_fractions = len(weights) == _N_MEMBERS and all(
            0.0 <= weight <= 1.0 for weight in weights
        )
        if not are_fractions or abs(sum(weights) - 1.0) > _MAX_SUM_ERROR:
            raise InputError(
                f"weights must be three nonnegative numbers that sum to one, but got {weights!r}."
            )
        if weights[2] == 1.0:
            raise InputError(
                "The weight of the uniform member must be less than 1, because otherwise every"
                " prediction is uniform."
            )

    def write_probabilities(self, block: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the probabilities of a block of logits into `out`."""
        tempered_weight, softmax_weight, uniform_weight = self.weights
        weighted_softmax = np.empty(block.shape, dtype=out.dtype)
        kernels.softmax(block, 1.0, weighted_softmax)
        weighted_softmax *= out.dtype.type(softmax_weight)
        kernels.write_mixture(
            block, self.inverse_temperature, tempered_weight, uniform_weight, out, weighted_softmax
        )


def fit_ensemble_temperature(
    rows: Rows, labels: Codes, weights: Weights = None, *, loss: str = "nll"
) -> EnsembleTemperatureMap:
    """Fit the temperature, then the weights of the members.

    Given T, the cross-entropy depends on three numbers per row, the probabilities that the
    members give the true class (`metacal.maps.fitting.mixture`). The squared error is a
    quadratic programme on a triangle, which is solved exactly on each of its seven faces. The
    weight of the uniform member is kept below 1 - 2⁻¹⁰, so that every prediction is preserved.

    Parameters
    ----------
    rows : Rows
        Rows of logits.

    labels : array of int of shape (n_rows,)
        Column index of the true class of each row.

    weights : array of shape (n_rows,), optional
        Weight of each row.

    loss : {"nll", "mse", "sequential"}, default="nll"
        Loss that is minimised:

        - "nll": cross-entropy, with the T of uniform temperature scaling. A T that is fitted
          alone already compensates for the rows that need the uniform member;
        - "mse": squared error (Brier score), for both T and the weights;
        - "sequential": cross-entropy, with T fitted alone first, as in the paper.

    Returns
    -------
    EnsembleTemperatureMap
    """
    if loss not in _LOSSES:
        raise InputError(f"loss must be 'nll', 'mse' or 'sequential', but got {loss!r}.")
    sample = LabelledRows(rows, labels, weights).drop_unusable_rows()
    fit_temperature_map = fit_uniform_temperature if loss == "nll" else fit_temperature
    temperature_map = fit_temperature_map(sample.rows, sample.labels, sample.weights)
    inverse_temperature = temperature_map.inverse_temperature
    if loss == "mse":
        inverse_temperature = _fit_brier_inverse_temperature(sample, start=inverse_temperature)
        member_weights = _fit_brier_member_weights(sample, inverse_temperature)
    else:
        member_weights = _fit_cross_entropy_member_weights(sample, inverse_temperature)
    return EnsembleTemperatureMap(inverse_temperature, _limit_uniform_weight(member_weights))


def _fit_cross_entropy_member_weights(sample: LabelledRows, inverse_temperature: float) -> Float:
    """Fit the weights of the members that minimise the cross-entropy."""
    compute_label_probabilities = partial(
        kernels.ensemble_label_probabilities, inverse_temperature=inverse_temperature
    )
    label_p_by_member = sample.rows.compute_column(compute_label_probabilities, sample.labels)
    return fit_mixture_weights(label_p_by_member, sample.weights)


def _limit_uniform_weight(member_weights: Float) -> tuple[float, float, float]:
    """Limit the weight of the uniform member, and keep the ratio of the others."""
    tempered_weight, untempered_weight, uniform_weight = member_weights.tolist()
    tempered_share = 1.0
    untempered_share = 0.0
    softmax_total = tempered_weight + untempered_weight
    if softmax_total > 0.0:
        tempered_share = tempered_weight / softmax_total
        untempered_share = untempered_weight / softmax_total
    limited_uniform_weight = min(uniform_weight, MAX_UNIFORM)
    weight_of_both_softmaxes = 1.0 - limited_uniform_weight
    return (
        tempered_share * weight_of_both_softmaxes,
        untempered_share * weight_of_both_softmaxes,
        limited_uniform_weight,
    )


def _fit_brier_member_weights(sample: LabelledRows, inverse_temperature: float) -> Float:
    """Fit the weights of the members that minimise the Brier score."""
    sum_terms = partial(_sum_squared_error_terms, inverse_temperature)
    *member_products, true_class_sums = sample.rows.sum(sum_terms, sample.labels, sample.weights)
    return minimise_on_simplex(
        hessian=2.0 * np.array(member_products), gradient=-2.0 * true_class_sums
    )


def _sum_squared_error_terms(
    inverse_temperature: float, block: NDArray[Any], labels: Codes, weights: Weights
) -> Float:
    """Sum the coefficients of the squared error, which is quadratic in the weights.

    The error is Σ over rows and classes of (Σ_k w_k m_k - e_y)², where m_k are the members.

    Parameters
    ----------
    inverse_temperature : float
        Inverse temperature of the first member.

    block : array of shape (n_rows, n_classes)
        Logits.

    labels : array of int of shape (n_rows,)
        Column index of the true class of each row.

    weights : array of shape (n_rows,) or None
        Weight of each row.

    Returns
    -------
    array of shape (4, 3)
        Sums of the products of two members, and in the last row the sums of the probabilities
        of the true class.
    """
    tempered_softmax = softmax(block, inverse_temperature)
    uniform_distribution = _compute_uniform_distribution(block)
    member_probabilities = (tempered_softmax, softmax(block), uniform_distribution)
    row_weights = np.ones(len(block)) if weights is None else weights
    row_indices = np.arange(len(block))
    member_products = np.empty((_N_MEMBERS, _N_MEMBERS))
    true_class_sums = np.empty(_N_MEMBERS)
    for i, member in enumerate(member_probabilities):
        for j, other_member in enumerate(member_probabilities):
            member_products[i, j] = np.einsum("ij,ij,i->", member, other_member, row_weights)
        true_class_sums[i] = (member[row_indices, labels] * row_weights).sum()
    return np.vstack([member_products, true_class_sums])


def _compute_uniform_distribution(block: NDArray[Any]) -> Float:
    """Return probabilities of 1 / K for the K unmasked classes of each row, else 0."""
    return np.broadcast_to(NUMPY.evaluate(uniform_probabilities, block), block.shape)


def minimise_on_simplex(hessian: Float, gradient: Float) -> Float:
    """Minimise ½ w·Hw + g·w exactly over three non-negative weights that sum to one.

    The minimum over each of the seven faces of the simplex (corners, edges, and the interior)
    is a linear problem. The best feasible one is the solution.

    Parameters
    ----------
    hessian : array of shape (3, 3)
        Positive semidefinite matrix H.

    gradient : array of shape (3,)
        Vector g.

    Returns
    -------
    array of shape (3,)
    """
    ridge = _RELATIVE_RIDGE * np.trace(hessian) * np.eye(_N_MEMBERS)
    tempered_softmax_alone = np.array([1.0, 0.0, 0.0])
    best_weights = tempered_softmax_alone
    lowest_value = np.inf
    for n_nonzero in range(1, _N_MEMBERS + 1):
        for nonzero_members in combinations(range(_N_MEMBERS), n_nonzero):
            weights = _minimise_over_nonzero_members(
                hessian + ridge, gradient, nonzero_members=list(nonzero_members)
            )
            is_nonnegative = weights.min() >= -_MAX_NEGATIVE_WEIGHT
            sums_to_one = abs(weights.sum() - 1.0) <= _MAX_SUM_ERROR
            if not (is_nonnegative and sums_to_one):
                continue
            weights = np.maximum(weights, 0.0)
            objective_value = float(0.5 * weights @ hessian @ weights + gradient @ weights)
            rounding_error = 0.0
            if np.isfinite(lowest_value):
                rounding_error = _RELATIVE_ROUNDING_ERROR * abs(lowest_value)
            if objective_value < lowest_value - rounding_error:
                best_weights = weights / weights.sum()
                lowest_value = objective_value
    return best_weights


def _minimise_over_nonzero_members(
    hessian: Float, gradient: Float, nonzero_members: list[int]
) -> Float:
    """Minimise over the weights of some members, which sum to one but may be negative."""
    n_nonzero = len(nonzero_members)
    # The last equation is Σ w = 1, and the last unknown is its Lagrange multiplier.
    lagrange_matrix = np.ones((n_nonzero + 1, n_nonzero + 1))
    lagrange_matrix[:n_nonzero, :n_nonzero] = hessian[np.ix_(nonzero_members, nonzero_members)]
    lagrange_matrix[n_nonzero, n_nonzero] = 0.0
    right_side = np.append(-gradient[nonzero_members], 1.0)
    solution, *_ = np.linalg.lstsq(lagrange_matrix, right_side, rcond=None)
    weights = np.zeros(_N_MEMBERS)
    weights[nonzero_members] = solution[:n_nonzero]
    return weights


def _fit_brier_inverse_temperature(sample: LabelledRows, start: float) -> float:
    """Find the minimum of the Brier score in the inverse temperature, near `start`.

    If there is none within a factor of about 8, the starting point is returned.
    """
    from scipy.optimize import brentq

    def compute_slope(log_b: float) -> float:
        sum_slopes = partial(_sum_brier_slopes, float(np.exp(log_b)))
        (total_slope,) = sample.rows.sum(sum_slopes, sample.labels, sample.weights)
        return float(total_slope)

    start_log_b = float(np.log(start))
    start_slope = compute_slope(start_log_b)
    near_log_b = start_log_b
    # The bracket is extended downhill from the starting point until the slope changes sign.
    for distance in _BRACKET_DISTANCES:
        far_log_b = start_log_b - float(np.sign(start_slope)) * distance
        slope_changes_sign = compute_slope(far_log_b) * start_slope < 0.0
        if slope_changes_sign:
            lower_log_b = min(near_log_b, far_log_b)
            upper_log_b = max(near_log_b, far_log_b)
            minimum_log_b = brentq(compute_slope, lower_log_b, upper_log_b, xtol=_LOG_B_TOLERANCE)
            return float(np.exp(minimum_log_b))
        near_log_b = far_log_b
    return start


def _sum_brier_slopes(
    inverse_temperature: float, block: NDArray[Any], labels: Codes, weights: Weights
) -> Float:
    """Sum the derivative of |softmax(b x) - e_y|² in b over a block of rows.

    It is 2 Σ_j (p_j - e_yj) p_j (d_j - m) with the gaps d = x - max x and m = Σ p d.

    Parameters
    ----------
    inverse_temperature : float
        Inverse temperature b.

    block, labels, weights
        See `_sum_squared_error_terms`.

    Returns
    -------
    array of shape (1,)
    """
    gaps = np.array(block, dtype=np.float64, order="C")
    gaps -= gaps.max(axis=1, keepdims=True)
    np.maximum(gaps, _MIN_SCALED_GAP / inverse_temperature, out=gaps)
    p = np.exp(inverse_temperature * gaps)
    p /= p.sum(axis=1, keepdims=True)
    mean_gap = np.einsum("ij,ij->i", p, gaps)
    # The array of gaps is reused for the derivative p_j (d_j - m), to save memory.
    p_slope = gaps
    p_slope -= mean_gap[:, None]
    p_slope *= p
    true_class_slope = p_slope[np.arange(len(block)), labels]
    slopes = 2.0 * (np.einsum("ij,ij->i", p, p_slope) - true_class_slope)
    if weights is not None:
        slopes = slopes * weights
    return np.asarray(slopes.sum(keepdims=True))
