"""What the calibrators with a penalty share: its parameters, the strength that was used, the coefficients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from metacal.estimators.base import Calibrator


class Penalised(Calibrator):
    """What the calibrators with a penalty share: the strength used, the intercept, the options of a fit."""

    regularisation: float | None
    n_folds: int
    random_state: int | np.random.Generator

    @property
    def regularisation_(self) -> float:
        """The strength of the penalty: the one given, or the one that cross-validation chose."""
        check_is_fitted(self)
        return float(self.map_.regularisation)  # type: ignore[attr-defined]

    @property
    def bias_(self) -> NDArray[np.float64]:
        """The intercept of each class."""
        check_is_fitted(self)
        return np.asarray(self.map_.bias)  # type: ignore[attr-defined]


class MatrixFace(Penalised):
    """A full matrix and an intercept for each class, with a penalty on their coefficients."""

    def __init__(
        self,
        *,
        penalty: str = "structured",
        regularisation: float | None = None,
        intercept_regularisation: float | None = None,
        n_folds: int = 3,
        random_state: int | np.random.Generator = 0,
        input: str = "logits",
        classes: Sequence[Any] | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.penalty = penalty
        self.regularisation = regularisation
        self.intercept_regularisation = intercept_regularisation
        self.n_folds = n_folds
        self.random_state = random_state
        super().__init__(input=input, classes=classes, n_jobs=n_jobs)

    @property
    def matrix_(self) -> NDArray[np.float64]:
        """The matrix A."""
        check_is_fitted(self)
        return np.asarray(self.map_.matrix)  # type: ignore[attr-defined]
