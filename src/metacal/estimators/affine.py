"""The scikit-learn faces of the affine maps: vector, matrix, Dirichlet and structured scaling."""

from __future__ import annotations

from dataclasses import field

import numpy as np

from metacal.estimators.base import Calibrator, Fitted, M
from metacal.formulas import Float
from metacal.maps.affine import DirichletMap, MatrixMap, StructuredMap, VectorMap


class Penalised(Calibrator[M]):
    """What the calibrators with a penalty share: its strength, given or chosen by cross-validation,
    and intercepts.
    """

    regularisation: float | None = None
    n_folds: int = 3
    random_state: int | np.random.Generator = 0

    regularisation_ = Fitted[float]()
    bias_ = Fitted[Float]()


class VectorScaling(Penalised[VectorMap]):
    """softmax(a·u + c): a scale a_j and an intercept c_j for each class; u are the logits less
    their mean.

    Guo, Pleiss, Sun & Weinberger, "On Calibration of Modern Neural Networks", ICML 2017. May change
    predictions. The logits are centred in each row, so that a constant added to a row changes
    nothing.

    Parameters
    ----------
    penalty : "structured", "odir", "l2" or "offsets"
        Added to the summed negative log-likelihood, on the coefficients of tempered logits u/T:
        `structured` draws all to temperature scaling, λK Σ ((a - 1)² + c²); `odir` draws the
        intercepts to zero and leaves the scales free, λK Σ c²; `l2` draws all to zero, λ(Σ a² + Σ
        c²). `offsets` has one scale for all classes and c ~ N(0, σ²), σ by evidence: for class
        weights, resampled training sets, a share of classes that has changed. The strengths below
        do not count for it.
    regularisation : float, optional
        The strength λ of the penalty, in rows; 0 is Guo et al.'s method. When None, the best of
        1000, 100, …, 0.0001 by cross-validated likelihood, tried from the strongest until the
        held-out loss rises.
    intercept_regularisation : float, optional
        A strength of its own for the intercepts; the same as λ when None.
    n_folds : int
        Folds of the cross-validation, drawn at random (not stratified: see `random_folds`).
    random_state : int or numpy.random.Generator
        The seed of the folds.
    input, classes, positive, n_jobs
        As in `TemperatureScaling`.

    Attributes
    ----------
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

    penalty: str = "structured"
    intercept_regularisation: float | None = None

    scale_ = Fitted[Float]()


class MatrixScaling(Penalised[MatrixMap]):
    """softmax(A u + c): a full matrix and an intercept for each class; u are the logits less their
    mean.

    Guo, Pleiss, Sun & Weinberger, "On Calibration of Modern Neural Networks", ICML 2017, with a
    penalty: K² + K coefficients overfit easily. May change predictions. The logits are centred in
    each row, so that a constant added to a row changes nothing.

    Parameters
    ----------
    penalty : "structured", "odir" or "l2"
        Added to the summed negative log-likelihood, on the coefficients of tempered logits u/T.
        `structured` (Berta et al. 2025): λK Σ (A_jj - 1)² + λK(K-1) Σ_{i≠j} A_ij² + λK Σ c_j²,
        towards temperature scaling; `odir` (Kull et al.: off-diagonal and intercept) leaves the
        diagonal free; `l2`, scikit-learn's λ(Σ A² + Σ c²), draws to zero.
    regularisation, intercept_regularisation, n_folds, random_state
        As in `VectorScaling`; 0 is (almost) no penalty.
    input, classes, positive, n_jobs
        As in `TemperatureScaling`.

    Attributes
    ----------
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

    penalty: str = "structured"
    intercept_regularisation: float | None = None

    matrix_ = Fitted[Float]()


class DirichletCalibration(MatrixScaling):
    """softmax(A log p + c), with p = softmax(x): matrix scaling of log-probabilities.

    Kull, Perello-Nieto, Kängsepp, Silva Filho, Song & Flach, "Beyond temperature scaling: Obtaining
    well-calibrated multiclass probabilities with Dirichlet calibration", NeurIPS 2019. May change
    predictions.

    Parameters
    ----------
    penalty : "structured", "odir" or "l2"
        As for MatrixScaling; `odir` is Kull et al.'s. Their strengths, which go with the mean
        likelihood of n rows and with untempered logits, are λT²K²(K-1)²/n off the diagonal and
        λK²/n for the intercept.
    regularisation, intercept_regularisation, n_folds, random_state
        As in `VectorScaling`; 0 is (almost) no penalty.
    input, classes, positive, n_jobs
        As in `TemperatureScaling`.

    Attributes
    ----------
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

    map_: DirichletMap = field(init=False)


class StructuredScaling(Penalised[StructuredMap]):
    """softmax(a · log softmax(x/T) + c): vector scaling drawn towards temperature scaling, a = 1
    and c = 0.

    Fits T, then minimises the summed negative log-likelihood + λK Σ ((a_j - 1)² + c_j²). A strong
    penalty gives temperature scaling, none vector scaling. Berta, Holzmüller, Jordan & Bach,
    "Structured Matrix Scaling for Multi-Class Calibration", 2025 (their SVS with the ridge penalty,
    where λ = 1). May change predictions.

    Parameters
    ----------
    regularisation : float, optional
        The strength λ of the penalty, in rows. When None, the best of 1000, 100, …, 0.0001 by
        cross-validated likelihood, tried from the strongest until the held-out loss rises.
    n_folds, random_state, input, classes, positive, n_jobs
        As in `VectorScaling`.

    Attributes
    ----------
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

    temperature_ = Fitted[float]()
    scale_ = Fitted[Float]()
