"""Structured scaling: vector scaling of tempered log-probabilities, drawn towards temperature scaling.

Berta, Holzmüller, Jordan & Bach, "Structured Matrix Scaling for Multi-Class Calibration", 2025: their SVS with the
ridge penalty, whose strength is 1. Here cross-validation chooses it, and the temperature is the plain one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from metacal.formulas.affine import structured
from metacal.kernels import affine as kernels
from metacal.maps.affine import AffineMap, Float, check_affine
from metacal.maps.fitting.penalised import Problem
from metacal.maps.map import positive
from metacal.maps.temperature import fit_temperature, usable_rows
from metacal.rows import Rows


@dataclass(frozen=True, eq=False)
class StructuredMap(AffineMap):
    """softmax(scale · log softmax(b·x) + bias) with the inverse temperature b = 1/T > 0.

    Scales of one and biases of zero are temperature scaling.

    Examples
    --------
    >>> fit = StructuredMap(inverse_temperature=0.5, scale=np.ones(2), bias=np.zeros(2))
    >>> fit(np.array([[2.0, 0.0]])).round(3)
    array([[0.731, 0.269]])
    """

    inverse_temperature: float
    scale: NDArray[np.float64]
    bias: NDArray[np.float64]
    regularisation: float = 0.0

    formula = staticmethod(structured)

    def check(self) -> None:
        """Raise unless the fields make a map."""
        positive("inverse_temperature", self.inverse_temperature)
        check_affine(self, scale=(len(self.bias),), bias=(len(self.bias),))

    @property
    def temperature(self) -> float:
        """T = 1/b."""
        return 1.0 / self.inverse_temperature


def fit_structured(
    rows: Rows,
    labels: NDArray[np.intp],
    weights: NDArray[np.float64] | None = None,
    *,
    regularisation: float | None = None,
    n_folds: int = 3,
    random_state: int | np.random.Generator = 0,
) -> StructuredMap:
    """Fit T; then minimise Σ NLL of softmax(a · log softmax(x/T) + c), plus λK Σ ((a_j - 1)² + c_j²).

    A strong penalty λ gives temperature scaling, none gives vector scaling. With `regularisation=None` cross-validation
    chooses λ: classes get what their rows can support.

    Examples
    --------
    >>> logits = np.log([[0.8, 0.2]] * 10) * 2.0
    >>> fit = fit_structured(Rows(logits), np.array([0] * 8 + [1] * 2), regularisation=1000.0)
    >>> round(fit.temperature, 3), fit.scale.round(3), fit.bias.round(3)
    (2.0, array([1., 1.]), array([0., 0.]))
    """
    rows, labels, weights = usable_rows(rows, labels, weights)
    problem, b = _problem(rows, labels, weights)
    theta, strength = problem.solve(rows, labels, weights, regularisation, n_folds, random_state)
    return StructuredMap(b, scale=theta[0], bias=theta[1], regularisation=strength)


def structured_path(
    rows: Rows, labels: NDArray[np.intp], weights: Float | None, strengths: Sequence[float], tolerance: float
) -> dict[float, StructuredMap]:
    """Structured scaling at each of these strengths, for less than the price of single fits."""
    rows, labels, weights = usable_rows(rows, labels, weights)
    problem, b = _problem(rows, labels, weights)
    found = problem.path(rows, labels, weights, strengths, tolerance)
    return {at: StructuredMap(b, scale=theta[0], bias=theta[1], regularisation=at) for at, theta in found.items()}


def _problem(rows: Rows, labels: NDArray[np.intp], weights: Float | None) -> tuple[Problem, float]:
    """The regression on tempered log-probabilities, and the inverse temperature."""
    b = fit_temperature(rows, labels, weights).inverse_temperature
    features = partial(kernels.log_probabilities, inverse_temperature=b)
    return Problem(features, full=False, penalty="structured", unit=1.0), b
