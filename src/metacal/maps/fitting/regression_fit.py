"""Result of a penalised softmax regression."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metacal.formulas import Float


@dataclass(frozen=True)
class RegressionFit:
    """Fitted coefficients of a softmax regression.

    Attributes
    ----------
    theta : array of shape (2, n_classes) or (n_classes + 1, n_classes)
        Coefficients of the unscaled features; the intercepts are in the last row.

    strength : float
        Strength of the penalty.
    """

    theta: Float
    strength: float

    @property
    def scale(self) -> Float:
        """Diagonal of a diagonal coefficient matrix."""
        return np.asarray(self.theta[0])

    @property
    def matrix(self) -> Float:
        """Full coefficient matrix, one row per class."""
        return np.asarray(self.theta[:-1].T)

    @property
    def intercepts(self) -> Float:
        """Intercept of each class."""
        return np.asarray(self.theta[-1])
