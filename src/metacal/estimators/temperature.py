"""The scikit-learn face of temperature scaling."""

from __future__ import annotations

from sklearn.utils.validation import check_is_fitted

from metacal.estimators.base import Calibrator
from metacal.maps.temperature import TemperatureMap


class TemperatureScaling(Calibrator):
    """softmax(x / T): one positive temperature, fitted by maximum likelihood.

    Guo, Pleiss, Sun & Weinberger, "On Calibration of Modern Neural Networks", ICML 2017. Keeps every prediction.

    Parameters
    ----------
    input : "logits" or "probabilities"
        What the columns of X are; probabilities are taken to logits by the logarithm. Nothing is guessed from values.
    classes : sequence, optional
        The labels in column order; 0 … K-1 when None.
    n_jobs : int, optional
        Threads; -1 for one per core. It never changes the result.

    Attributes
    ----------
    map_ : TemperatureMap
        The fitted map, a frozen value.
    temperature_ : float
        T; above 1 when the classifier was over-confident.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> round(mc.TemperatureScaling().fit(data.logits, data.labels).temperature_, 2)
    2.78
    """

    map_: TemperatureMap

    _stays_on_device = True

    @property
    def temperature_(self) -> float:
        """The fitted temperature T."""
        check_is_fitted(self)
        return self.map_.temperature
