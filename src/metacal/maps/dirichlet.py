"""Dirichlet calibration: softmax(A log p + c) with a full matrix A.

Kull, Perello-Nieto, Kängsepp, Silva Filho, Song & Flach, "Beyond temperature scaling: Obtaining well-calibrated
multiclass probabilities with Dirichlet calibration", NeurIPS 2019. The logarithms are taken of the softmax itself, in
float64: nothing is clipped. The penalties are those of `metacal.maps.affine`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metacal.formulas.affine import dirichlet
from metacal.kernels import affine as kernels
from metacal.maps.affine import AffineMap, Float, check_affine
from metacal.maps.fitting.penalised import Problem, checked_penalty
from metacal.rows import Rows


@dataclass(frozen=True, eq=False)
class DirichletMap(AffineMap):
    """softmax(matrix @ log p + bias), where p = softmax(logits).

    Examples
    --------
    >>> DirichletMap(matrix=0.5 * np.eye(2), bias=np.zeros(2))(np.log([[0.8, 0.2]])).round(3)
    array([[0.667, 0.333]])
    """

    matrix: NDArray[np.float64]
    bias: NDArray[np.float64]
    regularisation: float = 0.0

    formula = staticmethod(dirichlet)

    def check(self) -> None:
        """Raise unless the fields make a map."""
        check_affine(self, matrix=(len(self.bias), len(self.bias)), bias=(len(self.bias),))


def fit_dirichlet(
    rows: Rows,
    labels: NDArray[np.intp],
    weights: NDArray[np.float64] | None = None,
    *,
    penalty: str = "structured",
    regularisation: float | None = None,
    intercept_regularisation: float | None = None,
    n_folds: int = 3,
    random_state: int | np.random.Generator = 0,
) -> DirichletMap:
    """Minimise the negative log-likelihood of softmax(matrix @ log p + bias) plus a penalty.

    The penalties are those of `metacal.maps.fitting.penalised`. `odir` (off-diagonal and intercept) is Kull et al.'s;
    the default, `structured`, holds the diagonal too: log p is never positive, so a slope left free has no end for a
    class that was never seen. With `regularisation=None` the strength is chosen by cross-validation.

    Examples
    --------
    >>> logits = np.log([[0.9, 0.1], [0.1, 0.9]] * 10)
    >>> fit = fit_dirichlet(Rows(logits), np.array([0, 1] * 8 + [1, 0] * 2), regularisation=0.0)
    >>> fit(logits[:2]).round(3)
    array([[0.8, 0.2], [0.2, 0.8]])
    """
    problem = Problem(kernels.log_probabilities, True, checked_penalty(penalty), intercept_regularisation)
    theta, strength = problem.solve(rows, labels, weights, regularisation, n_folds, random_state)
    return DirichletMap(matrix=theta[:-1].T, bias=theta[-1], regularisation=strength)


def dirichlet_path(
    rows: Rows, labels: NDArray[np.intp], weights: Float | None, strengths: Sequence[float], tolerance: float
) -> dict[float, DirichletMap]:
    """Dirichlet calibration with the structured penalty at each of these strengths, each fit starting from the last."""
    problem = Problem(kernels.log_probabilities, True, "structured")
    found = problem.path(rows, labels, weights, strengths, tolerance)
    return {at: DirichletMap(matrix=theta[:-1].T, bias=theta[-1], regularisation=at) for at, theta in found.items()}
