"""Preconditioner of softmax regression with a full matrix or many classes."""

from __future__ import annotations

import numpy as np

from metacal.formulas import Float
from metacal.maps.fitting.penalties import get_diagonal_index

#: Smallest eigenvalue that the preconditioner uses, relative to the mean eigenvalue.
_MIN_RELATIVE_EIGENVALUE = 0.1
#: Smallest divisor, which avoids a division by zero.
_SMALLEST_DIVISOR = 1e-300
#: Factor on two curvatures that keeps the determinant of their block positive despite rounding.
_ENLARGEMENT = 1.0 + 1e-6


class BlockPreconditioner:
    """Approximate inverse Hessian with two blocks per class.

    The first block holds the diagonal coefficient and the intercept of a class. They are
    strongly correlated, because in the rows in which a class competes its feature is near one
    value, not near zero. The second block holds the other coefficients of the class. It is
    approximated by a multiple of one matrix of feature products, so that one
    eigendecomposition inverts the blocks of all classes at every strength.

    Parameters
    ----------
    curvature_of_classes : array of shape (3, n_classes) or (4, n_classes)
        Mean curvature of each class at temperature scaling: of the diagonal coefficient, of the
        diagonal coefficient with the intercept, and of the intercept. For a full matrix, the
        total curvature of all coefficients follows.

    eigenvalues_and_vectors : tuple of arrays or None
        Eigenvalues and eigenvectors of the feature products. None for a diagonal matrix.

    ridge : array
        Second derivatives of the penalty.
    """

    def __init__(
        self,
        curvature_of_classes: Float,
        eigenvalues_and_vectors: tuple[Float, Float] | None,
        ridge: Float,
    ) -> None:
        slope_curvature, cross_curvature, intercept_curvature, *other_curvatures = (
            curvature_of_classes
        )
        self._diagonal_index = get_diagonal_index(ridge.shape)
        intercept_ridge = ridge[-1]
        self._slope_curvature = (slope_curvature + ridge[self._diagonal_index]) * _ENLARGEMENT
        self._cross_curvature = cross_curvature
        self._intercept_curvature = (intercept_curvature + intercept_ridge) * _ENLARGEMENT
        self._determinant = (
            self._slope_curvature * self._intercept_curvature - self._cross_curvature**2
        )
        self._has_full_matrix = eigenvalues_and_vectors is not None
        if eigenvalues_and_vectors is not None:
            eigenvalues, self._eigenvectors = eigenvalues_and_vectors
            # Centred features have no curvature along (1, ..., 1), so eigenvalues are bounded.
            min_eigenvalue = _MIN_RELATIVE_EIGENVALUE * eigenvalues.mean()
            eigenvalues = np.maximum(eigenvalues, min_eigenvalue)
            (total_curvature,) = other_curvatures
            factor_by_class = total_curvature / max(eigenvalues.sum(), _SMALLEST_DIVISOR)
            off_diagonal_ridge = ridge[0, 1]
            self._other_curvature = eigenvalues[:, None] * factor_by_class + off_diagonal_ridge

    def __call__(self, gradient: Float) -> Float:
        """Multiply a gradient by the approximate inverse Hessian."""
        slope_gradient = gradient[self._diagonal_index]
        intercept_gradient = gradient[-1]
        step = np.empty_like(gradient)
        if self._has_full_matrix:
            other_gradient = gradient[:-1].copy()
            other_gradient[self._diagonal_index] = 0.0
            step_along_eigenvectors = (
                self._eigenvectors.T @ other_gradient
            ) / self._other_curvature
            step[:-1] = self._eigenvectors @ step_along_eigenvectors
        step[self._diagonal_index] = (
            self._intercept_curvature * slope_gradient - self._cross_curvature * intercept_gradient
        ) / self._determinant
        step[-1] = (
            self._slope_curvature * intercept_gradient - self._cross_curvature * slope_gradient
        ) / self._determinant
        return step
