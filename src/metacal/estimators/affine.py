"""Vector scaling, matrix scaling, Dirichlet calibration and structured scaling."""

from __future__ import annotations

from dataclasses import field

import numpy as np

from metacal.estimators.base import Calibrator, M, MapAttribute
from metacal.formulas import Float
from metacal.maps.affine import DirichletMap, MatrixMap, StructuredMap, VectorMap


class PenalisedCalibrator(Calibrator[M]):
    """Base class of calibrators with a penalised likelihood and intercepts.

    Parameters
    ----------
    regularisation : float or None, default=None
        Strength of the penalty. None chooses it by cross-validation.
    n_folds : int, default=3
        Number of folds of the cross-validation.
    random_state : int or numpy.random.Generator, default=0
        Seed of the folds.
    """

    regularisation: float | None = None
    n_folds: int = 3
    random_state: int | np.random.Generator = 0

    regularisation_ = MapAttribute[float]()
    bias_ = MapAttribute[Float]()


class VectorScaling(PenalisedCalibrator[VectorMap]):
    """Vector scaling: a scale and an intercept for each class.

    The probabilities are softmax(a·u + c), with a scale a_j and an intercept c_j for each class.
    Here u are the logits minus their mean in each row, so that a constant added to a row has no
    effect. The method may change predictions.

    Parameters
    ----------
    penalty : {"structured", "odir", "l2", "offsets"}, default="structured"
        Penalty that is added to the summed negative log-likelihood. It applies to the coefficients
        of tempered logits u/T.

        - "structured" shrinks all coefficients towards temperature scaling: λK Σ ((a - 1)² + c²).
        - "odir" shrinks the intercepts towards zero and leaves the scales free: λK Σ c².
        - "l2" shrinks all coefficients towards zero: λ(Σ a² + Σ c²).
        - "offsets" uses one scale for all classes and c ~ N(0, σ²), with σ chosen by evidence. It
          suits class weights, resampled training sets, and changed class frequencies. It ignores
          the strengths below.

    regularisation : float or None, default=None
        Strength λ of the penalty, in rows. 0 gives the method of Guo et al. If None, the best of
        1000, 100, ..., 0.0001 by cross-validated likelihood is used. The strengths are tried from
        the strongest on, until the held-out loss rises.
    intercept_regularisation : float or None, default=None
        Strength for the intercepts. If None, it is λ.
    n_folds : int, default=3
        Number of folds of the cross-validation, which are random and not stratified (see
        `draw_random_folds`).
    random_state : int or numpy.random.Generator, default=0
        Seed of the folds.
    input, classes, positive, n_jobs
        See `TemperatureScaling`.

    Attributes
    ----------
    scale_, bias_ : arrays of shape (n_classes,)
        Coefficients a and c, for untempered logits.
    regularisation_ : float
        Strength that was used.

    See Also
    --------
    MatrixScaling : Affine map of the logits.
    TemperatureScaling : One temperature for all logits.
    StructuredScaling : Affine map with a penalty on its structure.

    References
    ----------
    Guo, Pleiss, Sun & Weinberger, "On Calibration of Modern Neural Networks", ICML 2017.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> (fit_x, fit_y), (new_x, new_y) = data.split(5000, random_state=0)
    >>> calibrator = VectorScaling().fit(fit_x, fit_y)
    >>> temperature = mc.TemperatureScaling().fit(fit_x, fit_y)
    >>> vector_nll = mc.metrics.nll(calibrator.predict_proba(new_x), new_y)
    >>> vector_nll < mc.metrics.nll(temperature.predict_proba(new_x), new_y)
    True
    """

    penalty: str = "structured"
    intercept_regularisation: float | None = None

    scale_ = MapAttribute[Float]()


class MatrixScaling(PenalisedCalibrator[MatrixMap]):
    """Matrix scaling: a full matrix and an intercept for each class.

    The probabilities are softmax(A u + c). Here u are the logits minus their mean in each row, so
    that a constant added to a row has no effect. The K² + K coefficients overfit easily, so they
    are penalised. The method may change predictions.

    Parameters
    ----------
    penalty : {"structured", "odir", "l2"}, default="structured"
        Penalty that is added to the summed negative log-likelihood. It applies to the coefficients
        of tempered logits u/T.

        - "structured" (Berta et al. 2025) shrinks towards temperature scaling:
          λK Σ (A_jj - 1)² + λK(K-1) Σ_{i≠j} A_ij² + λK Σ c_j².
        - "odir" (Kull et al. 2019) penalises the off-diagonal entries and the intercept, and leaves
          the diagonal free.
        - "l2" shrinks towards zero, as in scikit-learn: λ(Σ A² + Σ c²).

    regularisation, intercept_regularisation, n_folds, random_state
        See `VectorScaling`. A strength of 0 is almost no penalty.
    input, classes, positive, n_jobs
        See `TemperatureScaling`.

    Attributes
    ----------
    matrix_ : array of shape (n_classes, n_classes)
        Matrix A, for untempered logits.
    bias_ : array of shape (n_classes,)
        Intercept c.
    regularisation_ : float
        Strength that was used.

    See Also
    --------
    VectorScaling : One slope and one offset per class.
    DirichletCalibration : Affine map of the log-probabilities.
    StructuredScaling : Affine map with a penalty on its structure.

    References
    ----------
    Guo, Pleiss, Sun & Weinberger, "On Calibration of Modern Neural Networks", ICML 2017.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> (fit_x, fit_y), (new_x, new_y) = data.split(5000, random_state=0)
    >>> calibrator = MatrixScaling(regularisation=1.0).fit(fit_x, fit_y)
    >>> temperature = mc.TemperatureScaling().fit(fit_x, fit_y)
    >>> matrix_nll = mc.metrics.nll(calibrator.predict_proba(new_x), new_y)
    >>> matrix_nll < mc.metrics.nll(temperature.predict_proba(new_x), new_y)
    True
    """

    penalty: str = "structured"
    intercept_regularisation: float | None = None

    matrix_ = MapAttribute[Float]()


class DirichletCalibration(MatrixScaling):
    """Dirichlet calibration: matrix scaling of log-probabilities.

    The probabilities are softmax(A log p + c), with p = softmax(x). The method may change
    predictions.

    Parameters
    ----------
    penalty : {"structured", "odir", "l2"}, default="structured"
        See `MatrixScaling`. "odir" is the penalty of Kull et al. Their strengths belong to the mean
        likelihood of n rows and to untempered logits. They equal λT²K²(K-1)²/n off the diagonal and
        λK²/n for the intercept.
    regularisation, intercept_regularisation, n_folds, random_state
        See `VectorScaling`. A strength of 0 is almost no penalty.
    input, classes, positive, n_jobs
        See `TemperatureScaling`.

    Attributes
    ----------
    matrix_ : array of shape (n_classes, n_classes)
        Matrix A.
    bias_ : array of shape (n_classes,)
        Intercept c.
    regularisation_ : float
        Strength that was used.

    See Also
    --------
    MatrixScaling : Affine map of the logits.
    VectorScaling : One slope and one offset per class.

    References
    ----------
    Kull, Perello-Nieto, Kängsepp, Silva Filho, Song & Flach, "Beyond temperature scaling: Obtaining
    well-calibrated multiclass probabilities with Dirichlet calibration", NeurIPS 2019.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> (fit_x, fit_y), (new_x, new_y) = data.split(5000, random_state=0)
    >>> calibrator = DirichletCalibration(regularisation=1.0).fit(fit_x, fit_y)
    >>> temperature = mc.TemperatureScaling().fit(fit_x, fit_y)
    >>> dirichlet_nll = mc.metrics.nll(calibrator.predict_proba(new_x), new_y)
    >>> dirichlet_nll < mc.metrics.nll(temperature.predict_proba(new_x), new_y)
    True
    """

    map_: DirichletMap = field(init=False)


class StructuredScaling(PenalisedCalibrator[StructuredMap]):
    """Structured scaling: vector scaling that is shrunk towards temperature scaling.

    The probabilities are softmax(a · log softmax(x/T) + c). The fit determines T first. It then
    minimises the summed negative log-likelihood plus λK Σ ((a_j - 1)² + c_j²). A strong penalty
    gives temperature scaling, and no penalty gives vector scaling. This is the SVS of Berta et al.
    with the ridge penalty; they use λ = 1. The method may change predictions.

    Parameters
    ----------
    regularisation : float or None, default=None
        Strength λ of the penalty, in rows. If None, the best of 1000, 100, ..., 0.0001 by
        cross-validated likelihood is used. The strengths are tried from the strongest on, until the
        held-out loss rises.
    n_folds, random_state
        See `VectorScaling`.
    input, classes, positive, n_jobs
        See `TemperatureScaling`.

    Attributes
    ----------
    scale_, bias_ : arrays of shape (n_classes,)
        Coefficients a and c, for tempered log-probabilities.
    temperature_ : float
        Temperature T.
    regularisation_ : float
        Strength that was used.

    See Also
    --------
    VectorScaling : One slope and one offset per class.
    MatrixScaling : Affine map of the logits.

    References
    ----------
    Berta, Holzmüller, Jordan & Bach, "Structured Matrix Scaling for Multi-Class Calibration", 2025.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> (fit_x, fit_y), (new_x, new_y) = data.split(5000, random_state=0)
    >>> calibrator = StructuredScaling().fit(fit_x, fit_y)
    >>> temperature = mc.TemperatureScaling().fit(fit_x, fit_y)
    >>> structured_nll = mc.metrics.nll(calibrator.predict_proba(new_x), new_y)
    >>> structured_nll < mc.metrics.nll(temperature.predict_proba(new_x), new_y)
    True
    """

    temperature_ = MapAttribute[float]()
    scale_ = MapAttribute[Float]()
