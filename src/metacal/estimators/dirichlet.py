"""The scikit-learn face of Dirichlet calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from metacal.estimators.base import Penalised
from metacal.maps.dirichlet import DirichletMap


class DirichletCalibration(Penalised):
    """softmax(A log p + c), with p = softmax(x): matrix scaling of log-probabilities.

    Kull, Perello-Nieto, Kängsepp, Silva Filho, Song & Flach, "Beyond temperature scaling: Obtaining well-calibrated
    multiclass probabilities with Dirichlet calibration", NeurIPS 2019. May change predictions.

    Parameters
    ----------
    penalty : "structured", "odir" or "l2"
        As for MatrixScaling; `odir` is Kull et al.'s. Their strengths, which go with the mean likelihood of n rows and
        with untempered logits, are λT²K²(K-1)²/n off the diagonal and λK²/n for the intercept.
    regularisation : float, optional
        The strength λ of the penalty, in rows; 0 for (almost) none. When None, the best of 1000, 100, …, 0.0001 by
        cross-validated likelihood, tried from the strongest until the held-out loss rises.
    intercept_regularisation : float, optional
        A strength of its own for the intercepts; the same as λ when None.
    n_folds : int
        Folds of the cross-validation, drawn at random (not stratified: see `random_folds`).
    random_state : int or numpy.random.Generator
        The seed of the folds.
    input, classes, n_jobs
        As in `TemperatureScaling`.

    Attributes
    ----------
    map_ : DirichletMap
        The fitted map, a frozen value.
    matrix_ : array of shape (K, K)
        A.
    bias_ : array of shape (K,)
        c.
    regularisation_ : float
        The strength that was used.

    Examples
    --------
    >>> import metacal as mc
    >>> (fit_x, fit_y), (new_x, new_y) = mc.datasets.load("cifar10-resnet110").split(5000, random_state=0)
    >>> cal = DirichletCalibration(regularisation=1.0).fit(fit_x, fit_y)
    >>> temperature = mc.TemperatureScaling().fit(fit_x, fit_y)
    >>> mc.metrics.nll(cal.predict_proba(new_x), new_y) < mc.metrics.nll(temperature.predict_proba(new_x), new_y)
    True
    """

    map_: DirichletMap

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
        return np.asarray(self.map_.matrix)
