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

_N_MEMBERS = 3
_LOSSES = ("nll", "mse", "sequential")
#: Distances in log b at which the root of the slope of the Brier score is bracketed.
_BRACKET_WIDTHS = (0.25, 0.5, 1.0, 2.0)
#: e^-800 is zero. Smaller gaps are raised to avoid 0 * (-inf) = NaN.
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
    in_table_precision = True
    ends_in_softmax = True
    formula = staticmethod(ensemble)

    def check(self) -> None:
        """Raise InputError unless the weights are valid."""
        super().check()
        weights = self.weights
        are_fractions = len(weights) == _N_MEMBERS and all(0.0 <= w <= 1.0 for w in weights)
        if not are_fractions or abs(sum(weights) - 1.0) > 1e-9:
            raise InputError(
                f"weights must be three numbers of at least 0 that sum to one, got {weights!r}."
            )
        if weights[2] == 1.0:
            raise InputError(
                "the uniform member's weight must be below 1, or every prediction is lost."
            )

    def write(self, block: NDArray[Any], out: NDArray[Any]) -> None:
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
        raise InputError(f"loss must be 'nll', 'mse' or 'sequential', got {loss!r}.")
    sample = LabelledRows(rows, labels, weights).drop_unusable_rows()
    fit_first = fit_uniform_temperature if loss == "nll" else fit_temperature
    first_map = fit_first(sample.rows, sample.labels, sample.weights)
    b = first_map.inverse_temperature
    if loss == "mse":
        b = _least_squares_inverse_temperature(sample, start=b)
        mixture = _least_squares_mixture(sample, b)
    else:
        member_kernel = partial(kernels.ensemble_label_probabilities, inverse_temperature=b)
        members = sample.rows.collect(member_kernel, sample.labels)
        mixture = fit_mixture_weights(members, sample.weights)

    uniform_weight = min(float(mixture[2]), MAX_UNIFORM)
    softmax_total = mixture[:2].sum()
    softmax_shares = np.array([1.0, 0.0])
    if softmax_total > 0.0:
        softmax_shares = mixture[:2] / softmax_total
    tempered_weight, softmax_weight = (softmax_shares * (1.0 - uniform_weight)).tolist()
    return EnsembleTemperatureMap(b, (tempered_weight, softmax_weight, uniform_weight))


def _least_squares_mixture(sample: LabelledRows, b: float) -> Float:
    """Compute the weights of the members that minimise the squared error."""
    sums = sample.rows.sum(partial(_squared_error_terms, b), sample.labels, sample.weights)
    products = sums[:_N_MEMBERS]
    true_class_sums = sums[_N_MEMBERS]
    return minimise_on_simplex(2.0 * products, -2.0 * true_class_sums)


def _squared_error_terms(
    inverse_temperature: float, block: NDArray[Any], labels: Codes, weights: Weights
) -> Float:
    """Compute the terms of the squared error as a quadratic function of the weights.

    The error is Σ over rows and classes of (Σ_k w_k m_k - e_y)², with m_k the members.

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
    uniform = np.broadcast_to(NUMPY.evaluate(uniform_probabilities, block), block.shape)
    members = (softmax(block, inverse_temperature), softmax(block), uniform)
    row_weights = np.ones(len(block)) if weights is None else weights
    row_indices = np.arange(len(block))
    terms = np.empty((_N_MEMBERS + 1, _N_MEMBERS))
    for i, member in enumerate(members):
        for j, other in enumerate(members):
            terms[i, j] = np.einsum("ij,ij,i->", member, other, row_weights)
        terms[_N_MEMBERS, i] = (member[row_indices, labels] * row_weights).sum()
    return terms


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
    ridge = 1e-13 * np.trace(hessian) * np.eye(_N_MEMBERS)
    best = np.array([1.0, 0.0, 0.0])
    lowest_value = np.inf
    for n_nonzero in range(1, _N_MEMBERS + 1):
        for face in combinations(range(_N_MEMBERS), n_nonzero):
            candidate = _minimise_on_face(hessian + ridge, gradient, list(face))
            is_feasible = candidate.min() >= -1e-12 and abs(candidate.sum() - 1.0) <= 1e-9
            if not is_feasible:
                continue
            candidate = np.maximum(candidate, 0.0)
            value = float(0.5 * candidate @ hessian @ candidate + gradient @ candidate)
            rounding = 1e-15 * abs(lowest_value) if np.isfinite(lowest_value) else 0.0
            if value < lowest_value - rounding:
                best = candidate / candidate.sum()
                lowest_value = value
    return best


def _minimise_on_face(hessian: Float, gradient: Float, face: list[int]) -> Float:
    """Minimise over the weights of a face, which sum to one but may be negative."""
    n_nonzero = len(face)
    # The last row and column belong to the Lagrange multiplier of the sum.
    system = np.ones((n_nonzero + 1, n_nonzero + 1))
    system[:n_nonzero, :n_nonzero] = hessian[np.ix_(face, face)]
    system[n_nonzero, n_nonzero] = 0.0
    right_side = np.append(-gradient[face], 1.0)
    solution = np.linalg.lstsq(system, right_side, rcond=None)[0]
    weights = np.zeros(_N_MEMBERS)
    weights[face] = solution[:n_nonzero]
    return weights


def _least_squares_inverse_temperature(sample: LabelledRows, start: float) -> float:
    """Find the root of the slope of the Brier score nearest to the starting point.

    If there is none within a factor of about 8, the starting point is returned.
    """
    from scipy.optimize import brentq

    def slope(log_b: float) -> float:
        slope_kernel = partial(_brier_slope, float(np.exp(log_b)))
        return float(sample.rows.sum(slope_kernel, sample.labels, sample.weights)[0])

    start_log_b = float(np.log(start))
    start_slope = slope(start_log_b)
    near = start_log_b
    # The bracket moves downhill from the starting point.
    for width in _BRACKET_WIDTHS:
        far = start_log_b - float(np.sign(start_slope)) * width
        if slope(far) * start_slope < 0.0:
            root = brentq(slope, min(near, far), max(near, far), xtol=1e-9)
            return float(np.exp(root))
        near = far
    return start


def _brier_slope(
    inverse_temperature: float, block: NDArray[Any], labels: Codes, weights: Weights
) -> Float:
    """Sum the derivative of |softmax(b x) - e_y|² in b over a block of rows.

    It is 2 Σ_j (p_j - e_yj) p_j (d_j - m) with the gaps d = x - max x and m = Σ p d.

    Parameters
    ----------
    inverse_temperature : float
        Inverse temperature b.

    block, labels, weights
        See `_squared_error_terms`.

    Returns
    -------
    array of shape (1,)
    """
    gaps = np.array(block, dtype=np.float64, order="C")
    gaps -= gaps.max(axis=1, keepdims=True)
    np.maximum(gaps, _MIN_SCALED_GAP / inverse_temperature, out=gaps)
    p = np.exp(inverse_temperature * gaps)
    p /= p.sum(axis=1, keepdims=True)
    # From here on the array holds p_j (d_j - m).
    gaps -= np.einsum("ij,ij->i", p, gaps)[:, None]
    gaps *= p
    true_class_terms = gaps[np.arange(len(gaps)), labels]
    slopes = 2.0 * (np.einsum("ij,ij->i", p, gaps) - true_class_terms)
    if weights is not None:
        slopes = slopes * weights
    return np.asarray(slopes.sum(keepdims=True))
