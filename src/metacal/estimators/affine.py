"""The scikit-learn faces of vector and matrix scaling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from metacal.estimators.penalised import MatrixFace, Penalised
from metacal.maps.affine import MatrixMap, VectorMap


class VectorScaling(Penalised):
    """softmax(a·u + c): a scale a_j and an intercept c_j for each class; u are the logits less their mean.

    Guo, Pleiss, Sun & Weinberger, "On Calibration of Modern Neural Networks", ICML 2017. May change predictions. The
    logits are centred in each row, so that a constant added to a row changes nothing.

    Parameters
    ----------
    penalty : "structured", "odir" or "l2"
        Added to the summed negative log-likelihood, on the coefficients of tempered logits u/T: `structured` draws all
        to temperature scaling, λK Σ ((a - 1)² + c²); `odir` draws the intercepts to zero and leaves the scales free,
        λK Σ c²; `l2` draws all to zero, λ(Σ a² + Σ c²).
    regularisation : float, optional
        The strength λ of the penalty, in rows; 0 is Guo et al.'s method. When None, the best of 1000, 100, …, 0.0001
        by cross-validated likelihood, tried from the strongest until the held-out loss rises.
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
    map_ : VectorMap
        The fitted map, a frozen value.
    scale_, bias_ : arrays of shape (K,)
        a and c, for untempered logits.
    regularisation_ : float
        The strength that was used.

    Examples
    --------
    >>> import metacal as mc
    >>> (fit_x, fit_y), (new_x, new_y) = mc.datasets.load("cifar10-resnet110").split(5000, random_state=0)
    >>> cal = VectorScaling().fit(fit_x, fit_y)
    >>> temperature = mc.TemperatureScaling().fit(fit_x, fit_y)
    >>> mc.metrics.nll(cal.predict_proba(new_x), new_y) < mc.metrics.nll(temperature.predict_proba(new_x), new_y)
    True
    """

    map_: VectorMap

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
        self.penalty, self.regularisation = penalty, regularisation
        self.intercept_regularisation = intercept_regularisation
        self.n_folds, self.random_state = n_folds, random_state
        super().__init__(input=input, classes=classes, n_jobs=n_jobs)

    @property
    def scale_(self) -> NDArray[np.float64]:
        """The scale of each class."""
        check_is_fitted(self)
        return self.map_.scale


class MatrixScaling(MatrixFace):
    """softmax(A u + c): a full matrix and an intercept for each class; u are the logits less their mean.

    Guo, Pleiss, Sun & Weinberger, "On Calibration of Modern Neural Networks", ICML 2017, with a penalty: K² + K
    coefficients overfit easily. May change predictions. The logits are centred in each row, so that a constant added to
    a row changes nothing.

    Parameters
    ----------
    penalty : "structured", "odir" or "l2"
        Added to the summed negative log-likelihood, on the coefficients of tempered logits u/T. `structured` (Berta et
        al. 2025): λK Σ (A_jj - 1)² + λK(K-1) Σ_{i≠j} A_ij² + λK Σ c_j², towards temperature scaling; `odir` (Kull et
        al.: off-diagonal and intercept) leaves the diagonal free; `l2`, scikit-learn's λ(Σ A² + Σ c²), draws to zero.
    regularisation, intercept_regularisation, n_folds, random_state
        As in `VectorScaling`; 0 is (almost) no penalty.
    input, classes, n_jobs
        As in `TemperatureScaling`.

    Attributes
    ----------
    map_ : MatrixMap
        The fitted map, a frozen value.
    matrix_ : array of shape (K, K)
        A, for untempered logits.
    bias_ : array of shape (K,)
        c.
    regularisation_ : float
        The strength that was used.

    Examples
    --------
    >>> import metacal as mc
    >>> (fit_x, fit_y), (new_x, new_y) = mc.datasets.load("cifar10-resnet110").split(5000, random_state=0)
    >>> cal = MatrixScaling(regularisation=1.0).fit(fit_x, fit_y)
    >>> temperature = mc.TemperatureScaling().fit(fit_x, fit_y)
    >>> mc.metrics.nll(cal.predict_proba(new_x), new_y) < mc.metrics.nll(temperature.predict_proba(new_x), new_y)
    True
    """

    map_: MatrixMap
