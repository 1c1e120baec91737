"""The scikit-learn faces of temperature scaling: plain, with a uniform part, as an ensemble,
local.
"""

from __future__ import annotations

from numpy.typing import ArrayLike

from metacal.estimators.base import Calibrator, Fitted
from metacal.formulas import Float
from metacal.maps.ensemble import EnsembleTemperatureMap
from metacal.maps.local import LocalTemperatureMap
from metacal.maps.temperature import TemperatureMap
from metacal.maps.uniform import UniformTemperatureMap
from metacal.rows import Rows


class TemperatureScaling(Calibrator[TemperatureMap]):
    """softmax(x / T): one positive temperature, fitted by maximum likelihood.

    Guo, Pleiss, Sun & Weinberger, "On Calibration of Modern Neural Networks", ICML 2017. Keeps
    every prediction.

    Parameters
    ----------
    input : "logits" or "probabilities"
        What the columns of X are; probabilities are taken to logits by the logarithm. Nothing is
        guessed from values.
    classes : sequence, optional
        The labels in column order; when None 0 … K-1, or the two values that labels of two classes
        have.
    positive : label, optional
        Of two classes the one that a single score per row speaks for, where X has the shape (n,) or
        (n, 1).
    n_jobs : int, optional
        Threads; -1 for one per core. It never changes the result.

    Attributes
    ----------
    temperature_ : float
        T; above 1 when the classifier was over-confident.
    map_ : TemperatureMap
        The fitted map, a frozen value; every calibrator has one.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> round(mc.TemperatureScaling().fit(data.logits, data.labels).temperature_, 2)
    2.78
    """

    _stays_on_device = True

    temperature_ = Fitted[float]()


class UniformTemperatureScaling(Calibrator[UniformTemperatureMap]):
    """(1 - ε)·softmax(x/T) + ε/K, T and ε fitted together by maximum likelihood. Keeps every
    prediction.

    Where nothing is wrong ε is zero or nearly so, and this is temperature scaling. Where the logits
    are logarithms of floored probabilities, or some labels are wrong, a few rows with an almost
    impossible true class would otherwise drive T up for all the others.

    Parameters
    ----------
    input, classes, positive, n_jobs
        As in `TemperatureScaling`.

    Attributes
    ----------
    temperature_ : float
        T; above 1 when the classifier was over-confident.
    uniform_ : float
        ε, what every row gives to all classes alike.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar100-resnet110")
    >>> cal = mc.UniformTemperatureScaling().fit(data.logits, data.labels)
    >>> round(cal.temperature_, 2), round(cal.uniform_, 4)
    (2.42, 0.0)
    """

    _stays_on_device = True

    temperature_ = Fitted[float]()
    uniform_ = Fitted[float]()


class EnsembleTemperatureScaling(Calibrator[EnsembleTemperatureMap]):
    """w1·softmax(x/T) + w2·softmax(x) + w3/K, with weights that sum to one.

    Zhang, Kailkhura & Han, "Mix-n-Match", ICML 2020. Keeps every prediction. T is that of
    `UniformTemperatureScaling`, fitted together with a uniform part; the weights then solve a
    convex problem of three numbers per row exactly.

    Parameters
    ----------
    loss : "nll", "mse" or "sequential"
        What T and the weights minimise: cross-entropy, or the mean squared error (Brier score) with
        T alone first. "sequential" is cross-entropy with T alone first, as in the paper.
    input, classes, positive, n_jobs
        As in `TemperatureScaling`.

    Attributes
    ----------
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

    loss: str = "nll"

    temperature_ = Fitted[float]()
    weights_ = Fitted[tuple[float, float, float]]()


class LocalTemperatureScaling(Calibrator[LocalTemperatureMap]):
    """softmax(x / T(x)): a temperature for each row, log-linear in its entropy, margin and norm.

    Keeps every prediction. Shrunk towards plain temperature scaling, which it equals where rows of
    every kind need the same temperature. After Balanya, Maroñas & Ramos 2022 and Joy et al., AAAI
    2023; not the method of the same name for segmented images of Ding et al. 2021, which gives each
    pixel a temperature: see `metacal.maps.local`.

    Parameters
    ----------
    penalty : float
        Strength of the shrinkage, in rows: half of it times the squared coefficients is added to
        the summed loss.
    input, classes, positive, n_jobs
        As in `TemperatureScaling`.

    Examples
    --------
    >>> import metacal as mc
    >>> from metacal.estimators.temperature import LocalTemperatureScaling
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = LocalTemperatureScaling().fit(data.logits, data.labels)
    >>> temperatures = cal.temperatures(data.logits)
    >>> bool(1.0 < temperatures.min() < 2.78 < temperatures.max())
    True
    """

    penalty: float = 100.0

    def temperatures(self, X: ArrayLike) -> Float:
        """T(x) of each row."""
        return self.map_.temperatures(Rows(self._read_table(X, reset=False)))
