"""Vector and matrix scaling: softmax(A u + c) of the centred logits u, with a diagonal or a full matrix A.

Guo, Pleiss, Sun & Weinberger, "On Calibration of Modern Neural Networks", ICML 2017; the penalties are those of Kull et
al., "Beyond temperature scaling", NeurIPS 2019 (`odir`, `l2`) and of Berta, Holzmüller, Jordan & Bach, "Structured
Matrix Scaling for Multi-Class Calibration", 2025 (`structured`).

Three deviations, all deliberate. The logits are centred in each row, so that a constant added to a row, or logits
given as log-probabilities, change nothing. Penalties are measured on tempered logits and in rows (`penalties` of
`fitting.penalised`, where the fit is), so that a strength means the same on logits of any scale and on any number of
rows. And every coefficient carries at least a penalty of 1/1000 of a row, so that the fit has one finite answer even
where the likelihood has none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.formulas import affine as formulas
from metacal.kernels import affine as kernels
from metacal.maps.fitting.penalised import Problem, checked_penalty
from metacal.maps.map import Map
from metacal.rows import Rows

Float = NDArray[np.float64]


class AffineMap(Map):
    """softmax of an affine function of features of a row."""

    bias: NDArray[np.float64]
    regularisation: float

    preserves_accuracy = False
    ends_in_softmax = True

    @property
    def n_classes(self) -> int:
        """The number of classes the map was fitted for."""
        return len(self.bias)


@dataclass(frozen=True, eq=False)
class VectorMap(AffineMap):
    """softmax(scale · u + bias), a scale and a bias for each class; u are the logits less their mean.

    Examples
    --------
    >>> VectorMap(scale=np.array([0.5, 0.5]), bias=np.array([0.0, 1.0]))(np.array([[2.0, 0.0]])).round(3)
    array([[0.5, 0.5]])
    """

    scale: NDArray[np.float64]
    bias: NDArray[np.float64]
    regularisation: float = 0.0

    formula = staticmethod(formulas.vector)

    def check(self) -> None:
        """Raise unless the fields make a map."""
        check_affine(self, scale=(len(self.bias),), bias=(len(self.bias),))


@dataclass(frozen=True, eq=False)
class MatrixMap(AffineMap):
    """softmax(matrix @ u + bias); u are the logits less their mean.

    Examples
    --------
    >>> swap = np.array([[0.0, 1.0], [1.0, 0.0]])
    >>> MatrixMap(matrix=swap, bias=np.zeros(2))(np.array([[1.0, 0.0]])).round(3)
    array([[0.269, 0.731]])
    """

    matrix: NDArray[np.float64]
    bias: NDArray[np.float64]
    regularisation: float = 0.0

    formula = staticmethod(formulas.matrix)

    def check(self) -> None:
        """Raise unless the fields make a map."""
        check_affine(self, matrix=(len(self.bias), len(self.bias)), bias=(len(self.bias),))


def fit_vector(
    rows: Rows,
    labels: NDArray[np.intp],
    weights: Float | None = None,
    *,
    penalty: str = "structured",
    regularisation: float | None = None,
    intercept_regularisation: float | None = None,
    n_folds: int = 3,
    random_state: int | np.random.Generator = 0,
) -> VectorMap:
    """Minimise the negative log-likelihood of softmax(scale · u + bias) plus a penalty (see `penalties`).

    With `regularisation=None` its strength is chosen by cross-validation; 0 is Guo et al.'s own vector scaling. With
    `odir` a diagonal matrix has only its intercept penalised. `structured` draws towards temperature scaling.

    Examples
    --------
    >>> logits = np.log([[0.8, 0.2]] * 10) + [0.0, 1.0]                   # biased towards the second class
    >>> fit = fit_vector(Rows(logits), np.array([0] * 8 + [1] * 2), regularisation=0.0)
    >>> fit(logits[:1]).round(3)
    array([[0.8, 0.2]])
    """
    problem = Problem(kernels.centred, False, checked_penalty(penalty), intercept_regularisation)
    theta, strength = problem.solve(rows, labels, weights, regularisation, n_folds, random_state)
    return VectorMap(scale=theta[0], bias=theta[1], regularisation=strength)


def fit_matrix(
    rows: Rows,
    labels: NDArray[np.intp],
    weights: Float | None = None,
    *,
    penalty: str = "structured",
    regularisation: float | None = None,
    intercept_regularisation: float | None = None,
    n_folds: int = 3,
    random_state: int | np.random.Generator = 0,
) -> MatrixMap:
    """Minimise the negative log-likelihood of softmax(matrix @ u + bias) plus a penalty (see `penalties`).

    With `regularisation=None` its strength is chosen by cross-validation. K² + K coefficients overfit easily: with
    fewer than about 50 rows per class expect little beyond temperature scaling.

    Examples
    --------
    >>> logits = np.array([[2.0, 0.0], [0.0, 2.0]] * 10)                  # the classes are swapped
    >>> fit = fit_matrix(Rows(logits), np.array([1, 0] * 9 + [0, 1]), regularisation=0.0)
    >>> fit(logits[:2]).round(3)
    array([[0.1, 0.9], [0.9, 0.1]])
    """
    problem = Problem(kernels.centred, True, checked_penalty(penalty), intercept_regularisation)
    theta, strength = problem.solve(rows, labels, weights, regularisation, n_folds, random_state)
    return MatrixMap(matrix=theta[:-1].T, bias=theta[-1], regularisation=strength)


def check_affine(fitted: AffineMap, **shapes: tuple[int, ...]) -> None:
    """Raise unless the named arrays of a map are finite and of these shapes, and its strength is a number."""
    for name, shape in shapes.items():
        array = getattr(fitted, name)
        if array.shape != shape or len(array) < 2 or not np.isfinite(array).all():
            raise InputError(f"{name} must be {' × '.join(map(str, shape))} finite numbers, at least 2 in a row.")
    strength = fitted.regularisation
    if not (isinstance(strength, int | float) and 0.0 <= strength < np.inf):
        raise InputError(f"regularisation must be a finite number of at least 0, got {strength!r}.")
