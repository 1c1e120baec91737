"""Ensemble temperature scaling: w1·softmax(x/T) + w2·softmax(x) + w3/K.

Zhang, Kailkhura & Han, "Mix-n-Match: Ensemble and Compositional Methods for Uncertainty Calibration
in Deep Learning", ICML 2020.
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
from metacal.formulas.rowwise import even
from metacal.formulas.temperature import ensemble
from metacal.maps.curves import softmax
from metacal.maps.fitting.mixture import likeliest_mixture
from metacal.maps.labelled import Labelled, Weights
from metacal.maps.map import TemperedMap
from metacal.maps.temperature import fit_temperature
from metacal.maps.uniform import MOST_UNIFORM, fit_uniform
from metacal.rows import Rows

#: The faces of the simplex of three weights: its corners, its edges, itself.
_FACES = [list(face) for size in (1, 2, 3) for face in combinations(range(3), size)]


@dataclass(frozen=True)
class EnsembleTemperatureMap(TemperedMap):
    """w1·softmax(b·x) + w2·softmax(x) + w3/K with b = 1/T > 0 and weights that sum to one.

    Over masked classes (-inf) the uniform member has no weight: w3 is shared by the others.

    Examples
    --------
    >>> EnsembleTemperatureMap(0.5, (0.5, 0.25, 0.25))(np.array([[2.0, 0.0]])).round(3)
    array([[0.711, 0.289]])
    """

    inverse_temperature: float
    weights: tuple[float, float, float]

    preserves_accuracy = in_table_precision = ends_in_softmax = True
    formula = staticmethod(ensemble)

    def check(self) -> None:
        """Raise unless the fields make a map."""
        super().check()
        weights = self.weights
        if (
            len(weights) != 3
            or not all(0.0 <= w <= 1.0 for w in weights)
            or abs(sum(weights) - 1.0) > 1e-9
        ):
            raise InputError(
                f"weights must be three numbers of at least 0 that sum to one, got {weights!r}."
            )
        if weights[2] == 1.0:
            raise InputError(
                "the uniform member's weight must be below 1, or every prediction is lost."
            )

    def write(self, block: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the probabilities of a block of logits into `out`."""
        own, plain, uniform = self.weights
        other = np.empty(block.shape, dtype=out.dtype)
        kernels.softmax(block, 1.0, other)
        other *= out.dtype.type(plain)
        kernels.write_mixed(block, self.inverse_temperature, own, uniform, out, other)


def fit_ensemble(
    rows: Rows, labels: Codes, weights: Weights = None, *, loss: str = "nll"
) -> EnsembleTemperatureMap:
    """Fit T, then the weights given T, both by the same loss: "nll" (cross-entropy) or "mse"
    (Brier).

    By cross-entropy T is that of temperature scaling with a uniform part, fitted together with it:
    a T that was fitted alone already makes up for the rows that the uniform member is there for.
    "sequential" is cross-entropy with T alone first, as Zhang et al. have it.

    Given T, cross-entropy sees each row as three numbers, the members' probabilities of the true
    class (`fitting.mixture`). The mean-squared error is a quadratic programme on a triangle, solved
    exactly on each of its seven faces.

    The uniform member's weight is kept below 1 - 2⁻¹⁰, so that no prediction is lost.
    """
    if loss not in ("nll", "mse", "sequential"):
        raise InputError(f"loss must be 'nll', 'mse' or 'sequential', got {loss!r}.")
    sample = Labelled(rows, labels, weights).usable()
    start = fit_uniform if loss == "nll" else fit_temperature
    b = start(*sample).inverse_temperature
    if loss == "mse":
        b = _least_squares_inverse_temperature(sample, b)
        sums = sample.rows.sum(partial(_squared_error, b), sample.labels, sample.weights)
        mixture = _on_simplex(2.0 * sums[:3], -2.0 * sums[3])
    else:
        members = sample.rows.collect(
            partial(kernels.members, inverse_temperature=b), sample.labels
        )
        mixture = likeliest_mixture(members, sample.weights)
    uniform = min(float(mixture[2]), MOST_UNIFORM)
    rest = mixture[:2] / mixture[:2].sum() if mixture[:2].sum() > 0.0 else np.array([1.0, 0.0])
    return EnsembleTemperatureMap(b, (*(rest * (1.0 - uniform)).tolist(), uniform))


def _squared_error(
    inverse_temperature: float, block: NDArray[Any], labels: Codes, weights: Weights
) -> Float:
    """Σ over rows and classes of (Σ_k w_k m_k - e_y)², as a quadratic in w: the 3 × 3 products m·m,
    and below m_y.
    """
    uniform = np.broadcast_to(NUMPY.run(even, block), block.shape)
    members = softmax(block, inverse_temperature), softmax(block), uniform
    scale = np.ones(len(block)) if weights is None else weights
    products = [[np.einsum("ij,ij,i->", a, b, scale) for b in members] for a in members]
    at = np.arange(len(block))
    return np.array([*products, [float((member[at, labels] * scale).sum()) for member in members]])


def _on_simplex(hessian: Float, gradient: Float) -> Float:
    """The exact minimiser of ½ w·Hw + g·w over weights that sum to one: the best of the seven
    faces' own minimisers.
    """
    ridge = 1e-13 * np.trace(hessian) * np.eye(3)
    best, lowest = np.array([1.0, 0.0, 0.0]), np.inf
    for face in _FACES:
        size = len(face)
        system = np.ones((size + 1, size + 1))
        system[:size, :size] = (hessian + ridge)[np.ix_(face, face)]
        system[size, size] = 0.0
        solution = np.linalg.lstsq(system, np.append(-gradient[face], 1.0), rcond=None)[0]
        candidate = np.zeros(3)
        candidate[face] = solution[:size]
        if candidate.min() < -1e-12 or abs(candidate.sum() - 1.0) > 1e-9:
            continue
        candidate = np.maximum(candidate, 0.0)
        value = float(0.5 * candidate @ hessian @ candidate + gradient @ candidate)
        if value < lowest - 1e-15 * abs(lowest if np.isfinite(lowest) else 0.0):
            best, lowest = candidate / candidate.sum(), value
    return best


def _least_squares_inverse_temperature(sample: Labelled, start: float) -> float:
    """The root of the Brier score's slope nearest to the likelihood's b, within a factor of 8; b
    itself if none.
    """
    from scipy.optimize import brentq

    def slope(log_b: float) -> float:
        return float(
            sample.rows.sum(
                partial(_brier_slope, float(np.exp(log_b))), sample.labels, sample.weights
            )[0]
        )

    near = middle = float(np.log(start))
    first = slope(middle)
    for width in (0.25, 0.5, 1.0, 2.0):  # from the middle to where the loss falls
        far = middle - float(np.sign(first)) * width
        if slope(far) * first < 0.0:
            return float(np.exp(brentq(slope, min(near, far), max(near, far), xtol=1e-9)))
        near = far
    return start


def _brier_slope(
    inverse_temperature: float, block: NDArray[Any], labels: Codes, weights: Weights
) -> Float:
    """Σ d/db of |softmax(bx) - e_y|² = 2 Σ_j (p_j - e_yj) p_j (d_j - m), with m = Σ p d."""
    gaps = np.array(block, dtype=np.float64, order="C")
    gaps -= gaps.max(axis=1, keepdims=True)
    np.maximum(gaps, -800.0 / inverse_temperature, out=gaps)
    chances = np.exp(inverse_temperature * gaps)
    chances /= chances.sum(axis=1, keepdims=True)
    gaps -= np.einsum("ij,ij->i", chances, gaps)[:, None]
    gaps *= chances
    own = gaps[np.arange(len(gaps)), labels]
    slopes = 2.0 * (np.einsum("ij,ij->i", chances, gaps) - own)
    return np.asarray((slopes if weights is None else slopes * weights).sum(keepdims=True))
