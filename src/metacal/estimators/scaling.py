"""The scikit-learn faces of ensemble temperature, vector, matrix, Dirichlet and structured scaling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from metacal.estimators.base import Calibrator
from metacal.maps.affine import MatrixMap, VectorMap, fit_matrix, fit_vector
from metacal.maps.dirichlet import DirichletMap, fit_dirichlet
from metacal.maps.ensemble import EnsembleTemperatureMap, fit_ensemble
from metacal.maps.structured import StructuredMap, fit_structured
from metacal.rows import Rows


class EnsembleTemperatureScaling(Calibrator):
    """w1·softmax(x/T) + w2·softmax(x) + w3/K, with weights that sum to one.

    Zhang, Kailkhura & Han, "Mix-n-Match", ICML 2020. Keeps every prediction. T is fitted first, alone; the weights
    then solve a convex problem of three numbers per row exactly.

    Parameters
    ----------
    loss : "nll" or "mse"
        What T and the weights minimise: cross-entropy, or the mean squared error (Brier score).
    input : "logits" or "probabilities"
        What the columns of X are; probabilities are taken to logits by the logarithm. Nothing is guessed from values.
    classes : sequence, optional
        The labels in column order; 0 … K-1 when None.
    n_jobs : int, optional
        Threads; -1 for one per core. It never changes the result.

    Attributes
    ----------
    map_ : EnsembleTemperatureMap
        The fitted map, a frozen value.
    temperature_ : float
        T; above 1 when the classifier was over-confident.
    weights_ : tuple of three floats
        The weights of the tempered, the plain and the uniform member.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar100-resnet110")
    >>> cal = EnsembleTemperatureScaling().fit(data.logits, data.labels)
    >>> round(cal.temperature_, 2), [round(w, 3) for w in cal.weights_]
    (2.42, [1.0, 0.0, 0.0])
    """

    map_: EnsembleTemperatureMap

    def __init__(
        self,
        *,
        loss: str = "nll",
        input: str = "logits",
        classes: Sequence[Any] | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.loss = loss
        self.input = input
        self.classes = classes
        self.n_jobs = n_jobs

    @property
    def temperature_(self) -> float:
        """The fitted temperature T."""
        check_is_fitted(self)
        return self.map_.temperature

    @property
    def weights_(self) -> tuple[float, float, float]:
        """The weights of the tempered, the plain and the uniform member."""
        check_is_fitted(self)
        return self.map_.weights

    def _fit_map(
        self, rows: Rows, codes: NDArray[np.intp], weights: NDArray[np.float64] | None
    ) -> EnsembleTemperatureMap:
        return fit_ensemble(rows, codes, weights, loss=self.loss)


class _Penalised(Calibrator):
    """What the calibrators with a penalty share: the strength used, the intercept, the options of a fit."""

    penalty: str
    regularisation: float | None
    intercept_regularisation: float | None
    n_folds: int
    random_state: int | np.random.Generator

    @property
    def regularisation_(self) -> float:
        """The strength of the penalty: the one given, or the one that cross-validation chose."""
        check_is_fitted(self)
        return float(self.map_.regularisation)

    @property
    def bias_(self) -> NDArray[np.float64]:
        """The intercept of each class."""
        check_is_fitted(self)
        return np.asarray(self.map_.bias)

    def _options(self) -> dict[str, Any]:
        return {
            "penalty": self.penalty,
            "regularisation": self.regularisation,
            "intercept_regularisation": self.intercept_regularisation,
            "n_folds": self.n_folds,
            "random_state": self.random_state,
        }


class VectorScaling(_Penalised):
    """softmax(a·u + c): a scale a_j and an intercept c_j for each class; u are the logits less their mean.

    Guo, Pleiss, Sun & Weinberger, "On Calibration of Modern Neural Networks", ICML 2017. May change predictions. The
    logits are centred in each row, so that a constant added to a row changes nothing.

    Parameters
    ----------
    penalty : "odir", "l2" or "structured"
        Added to the summed negative log-likelihood, on the coefficients of tempered logits u/T: `odir` draws the
        intercepts to zero and leaves the scales free, λK Σ c²; `l2` draws all to zero, λ(Σ a² + Σ c²);
        `structured` draws all to temperature scaling, λK Σ ((a - 1)² + c²).
    regularisation : float, optional
        The strength λ of the penalty, in rows; 0 is Guo et al.'s method. When None, the best of 1000, 100, …, 0.0001
        by cross-validated likelihood, tried from the strongest until the held-out loss rises.
    intercept_regularisation : float, optional
        A strength of its own for the intercepts; the same as λ when None.
    n_folds : int
        Folds of the cross-validation, drawn at random (not stratified: see `random_folds`).
    random_state : int or numpy.random.Generator
        The seed of the folds.
    input : "logits" or "probabilities"
        What the columns of X are; probabilities are taken to logits by the logarithm. Nothing is guessed from values.
    classes : sequence, optional
        The labels in column order; 0 … K-1 when None.
    n_jobs : int, optional
        Threads; -1 for one per core. It never changes the result.

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
        penalty: str = "odir",
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
        self.input = input
        self.classes = classes
        self.n_jobs = n_jobs

    @property
    def scale_(self) -> NDArray[np.float64]:
        """The scale of each class."""
        check_is_fitted(self)
        return self.map_.scale

    def _fit_map(self, rows: Rows, codes: NDArray[np.intp], weights: NDArray[np.float64] | None) -> VectorMap:
        return fit_vector(rows, codes, weights, **self._options())


class MatrixScaling(_Penalised):
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
    regularisation : float, optional
        The strength λ of the penalty, in rows; 0 for (almost) none. When None, the best of 1000, 100, …, 0.0001 by
        cross-validated likelihood, tried from the strongest until the held-out loss rises.
    intercept_regularisation : float, optional
        A strength of its own for the intercepts; the same as λ when None.
    n_folds : int
        Folds of the cross-validation, drawn at random (not stratified: see `random_folds`).
    random_state : int or numpy.random.Generator
        The seed of the folds.
    input : "logits" or "probabilities"
        What the columns of X are; probabilities are taken to logits by the logarithm. Nothing is guessed from values.
    classes : sequence, optional
        The labels in column order; 0 … K-1 when None.
    n_jobs : int, optional
        Threads; -1 for one per core. It never changes the result.

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
        self.input = input
        self.classes = classes
        self.n_jobs = n_jobs

    @property
    def matrix_(self) -> NDArray[np.float64]:
        """The matrix A."""
        check_is_fitted(self)
        return np.asarray(self.map_.matrix)

    def _fit_map(self, rows: Rows, codes: NDArray[np.intp], weights: NDArray[np.float64] | None) -> MatrixMap:
        return fit_matrix(rows, codes, weights, **self._options())


class DirichletCalibration(_Penalised):
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
    input : "logits" or "probabilities"
        What the columns of X are; probabilities are taken to logits by the logarithm. Nothing is guessed from values.
    classes : sequence, optional
        The labels in column order; 0 … K-1 when None.
    n_jobs : int, optional
        Threads; -1 for one per core. It never changes the result.

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
        self.input = input
        self.classes = classes
        self.n_jobs = n_jobs

    @property
    def matrix_(self) -> NDArray[np.float64]:
        """The matrix A."""
        check_is_fitted(self)
        return np.asarray(self.map_.matrix)

    def _fit_map(self, rows: Rows, codes: NDArray[np.intp], weights: NDArray[np.float64] | None) -> DirichletMap:
        return fit_dirichlet(rows, codes, weights, **self._options())


class StructuredScaling(_Penalised):
    """softmax(a · log softmax(x/T) + c): vector scaling drawn towards temperature scaling, a = 1 and c = 0.

    Fits T, then minimises the summed negative log-likelihood + λK Σ ((a_j - 1)² + c_j²). A strong penalty gives
    temperature scaling, none vector scaling. Berta, Holzmüller, Jordan & Bach, "Structured Matrix Scaling for
    Multi-Class Calibration", 2025 (their SVS with the ridge penalty, where λ = 1). May change predictions.

    Parameters
    ----------
    regularisation : float, optional
        The strength λ of the penalty, in rows. When None, the best of 1000, 100, …, 0.0001 by cross-validated
        likelihood, tried from the strongest until the held-out loss rises.
    n_folds : int
        Folds of the cross-validation, drawn at random (not stratified: see `random_folds`).
    random_state : int or numpy.random.Generator
        The seed of the folds.
    input : "logits" or "probabilities"
        What the columns of X are; probabilities are taken to logits by the logarithm. Nothing is guessed from values.
    classes : sequence, optional
        The labels in column order; 0 … K-1 when None.
    n_jobs : int, optional
        Threads; -1 for one per core. It never changes the result.

    Attributes
    ----------
    map_ : StructuredMap
        The fitted map, a frozen value.
    scale_, bias_ : arrays of shape (K,)
        a and c, for tempered log-probabilities.
    temperature_ : float
        T.
    regularisation_ : float
        The strength that was used.

    Examples
    --------
    >>> import metacal as mc
    >>> (fit_x, fit_y), (new_x, new_y) = mc.datasets.load("cifar10-resnet110").split(5000, random_state=0)
    >>> cal = StructuredScaling().fit(fit_x, fit_y)
    >>> temperature = mc.TemperatureScaling().fit(fit_x, fit_y)
    >>> mc.metrics.nll(cal.predict_proba(new_x), new_y) < mc.metrics.nll(temperature.predict_proba(new_x), new_y)
    True
    """

    map_: StructuredMap

    def __init__(
        self,
        *,
        regularisation: float | None = None,
        n_folds: int = 3,
        random_state: int | np.random.Generator = 0,
        input: str = "logits",
        classes: Sequence[Any] | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.regularisation = regularisation
        self.n_folds = n_folds
        self.random_state = random_state
        self.input = input
        self.classes = classes
        self.n_jobs = n_jobs

    @property
    def temperature_(self) -> float:
        """The temperature T."""
        check_is_fitted(self)
        return self.map_.temperature

    @property
    def scale_(self) -> NDArray[np.float64]:
        """The scale of each class."""
        check_is_fitted(self)
        return self.map_.scale

    def _fit_map(self, rows: Rows, codes: NDArray[np.intp], weights: NDArray[np.float64] | None) -> StructuredMap:
        return fit_structured(
            rows,
            codes,
            weights,
            regularisation=self.regularisation,
            n_folds=self.n_folds,
            random_state=self.random_state,
        )
