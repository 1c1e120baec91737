"""Temperature scaling and its variants."""

from __future__ import annotations

from numpy.typing import ArrayLike

from metacal.estimators.base import Calibrator, MapAttribute
from metacal.formulas import Float
from metacal.maps.ensemble import EnsembleTemperatureMap
from metacal.maps.local import LocalTemperatureMap
from metacal.maps.temperature import TemperatureMap
from metacal.maps.uniform import UniformTemperatureMap
from metacal.rows import Rows


class TemperatureScaling(Calibrator[TemperatureMap]):
    """Temperature scaling: softmax(x / T) with one temperature T.

    T is fitted by maximum likelihood. The method keeps every prediction.

    Parameters
    ----------
    input : {"logits", "probabilities"}, default="logits"
        Content of X. Probabilities are converted to logits by the logarithm. The content is never
        guessed from the values.
    classes : sequence or None, default=None
        Labels in column order. If None, they are the two values of the labels if there are two
        classes, and 0 ... K-1 otherwise.
    positive : label or None, default=None
        The positive one of two classes, which a higher score favours, if X has one score per row,
        in the shape (n_rows,) or (n_rows, 1).
    n_jobs : int or None, default=None
        Number of threads; -1 for one per core. It never changes the result.

    Attributes
    ----------
    temperature_ : float
        Temperature T. It is above 1 if the classifier is overconfident.
    map_ : TemperatureMap
        Fitted map, a frozen value. Every calibrator has one.

    See Also
    --------
    UniformTemperatureScaling : Temperature scaling with a uniform part.
    VectorScaling : One slope and one offset per class.
    ComposedCalibration : One calibrator after another.

    References
    ----------
    Guo, Pleiss, Sun & Weinberger, "On Calibration of Modern Neural Networks", ICML 2017.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> round(mc.TemperatureScaling().fit(data.logits, data.labels).temperature_, 2)
    2.78
    """

    _supports_device_tables = True

    temperature_ = MapAttribute[float]()


class UniformTemperatureScaling(Calibrator[UniformTemperatureMap]):
    """Temperature scaling mixed with a uniform part: (1 - ε)·softmax(x/T) + ε/K.

    T and ε are fitted together by maximum likelihood. If the logits are logarithms of floored
    probabilities, or some labels are wrong, a few rows have an almost impossible true class.
    Without ε these rows would raise T for all the others. Otherwise ε is close to zero, and the
    method is temperature scaling. It keeps every prediction.

    Parameters
    ----------
    input, classes, positive, n_jobs
        See `TemperatureScaling`.

    Attributes
    ----------
    temperature_ : float
        Temperature T. It is above 1 if the classifier is overconfident.
    uniform_ : float
        Weight ε of the uniform part.

    See Also
    --------
    TemperatureScaling : One temperature for all logits.
    EnsembleTemperatureScaling : Mixture of tempered, raw and uniform probabilities.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar100-resnet110")
    >>> calibrator = mc.UniformTemperatureScaling().fit(data.logits, data.labels)
    >>> round(calibrator.temperature_, 2), round(calibrator.uniform_, 4)
    (2.42, 0.0)
    """

    _supports_device_tables = True

    temperature_ = MapAttribute[float]()
    uniform_ = MapAttribute[float]()


class EnsembleTemperatureScaling(Calibrator[EnsembleTemperatureMap]):
    """Ensemble temperature scaling: w1·softmax(x/T) + w2·softmax(x) + w3/K.

    The weights sum to one. T is that of `UniformTemperatureScaling`. The weights are then the exact
    solution of a convex problem with three numbers per row. The method keeps every prediction.

    Parameters
    ----------
    loss : {"nll", "mse", "sequential"}, default="nll"
        Loss that T and the weights minimise. "nll" is the cross-entropy. "mse" is the mean squared
        error (Brier score), with T fitted alone first. "sequential" is the cross-entropy with T
        fitted alone first, as in the paper.
    input, classes, positive, n_jobs
        See `TemperatureScaling`.

    Attributes
    ----------
    temperature_ : float
        Temperature T. It is above 1 if the classifier is overconfident.
    weights_ : tuple of three floats
        Weights of the tempered, the plain and the uniform member.

    See Also
    --------
    TemperatureScaling : One temperature for all logits.
    UniformTemperatureScaling : Temperature scaling with a uniform part.

    References
    ----------
    Zhang, Kailkhura & Han, "Mix-n-Match: Ensemble and Compositional Methods for Uncertainty
    Calibration in Deep Learning", ICML 2020.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar100-resnet110")
    >>> calibrator = EnsembleTemperatureScaling().fit(data.logits, data.labels)
    >>> round(calibrator.temperature_, 2), [round(weight, 3) for weight in calibrator.weights_]
    (2.42, [1.0, 0.0, 0.0])
    """

    loss: str = "nll"

    temperature_ = MapAttribute[float]()
    weights_ = MapAttribute[tuple[float, float, float]]()


class LocalTemperatureScaling(Calibrator[LocalTemperatureMap]):
    """Temperature scaling with a temperature T(x) for each row: softmax(x / T(x)).

    log T(x) is linear in the entropy, margin and norm of the row. The coefficients are shrunk
    towards plain temperature scaling, which results if all kinds of rows need the same temperature.
    The method keeps every prediction. It is not the method of the same name by Ding et al. 2021 for
    segmented images, which fits a temperature for each pixel: see `metacal.maps.local`.

    Parameters
    ----------
    penalty : float, default=100.0
        Strength of the shrinkage, in rows. The summed loss is increased by half of it times the sum
        of squared coefficients.
    input, classes, positive, n_jobs
        See `TemperatureScaling`.

    See Also
    --------
    TemperatureScaling : One temperature for all logits.

    References
    ----------
    Balanya, Maroñas & Ramos, "Adaptive Temperature Scaling for Robust Calibration of Deep Neural
    Networks", 2022.
    Joy, Pinto, Lim, Torr & Dokania, "Sample-dependent Adaptive Temperature Scaling for Improved
    Calibration", AAAI 2023.

    Examples
    --------
    >>> import metacal as mc
    >>> from metacal.estimators.temperature import LocalTemperatureScaling
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> calibrator = LocalTemperatureScaling().fit(data.logits, data.labels)
    >>> temperatures = calibrator.temperatures(data.logits)
    >>> bool(1.0 < temperatures.min() < 2.78 < temperatures.max())
    True
    """

    penalty: float = 100.0

    def temperatures(self, X: ArrayLike) -> Float:
        """Return the temperature T(x) of each row."""
        return self.map_.temperatures(Rows(self._read_table(X, reset=False)))
