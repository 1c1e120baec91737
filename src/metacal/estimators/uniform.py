"""The scikit-learn face of temperature scaling with a uniform part."""

from __future__ import annotations

from sklearn.utils.validation import check_is_fitted

from metacal.estimators.base import Calibrator
from metacal.maps.uniform import UniformTemperatureMap


class UniformTemperatureScaling(Calibrator):
    """(1 - ε)·softmax(x/T) + ε/K, T and ε fitted together by maximum likelihood. Keeps every prediction.

    Where nothing is wrong ε is zero or nearly so, and this is temperature scaling. Where the logits are logarithms of
    floored probabilities, or some labels are wrong, a few rows with an almost impossible true class would otherwise
    drive T up for all the others.

    Parameters
    ----------
    input, classes, n_jobs
        As in `TemperatureScaling`.

    Attributes
    ----------
    map_ : UniformTemperatureMap
        The fitted map, a frozen value.
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

    map_: UniformTemperatureMap

    _stays_on_device = True

    @property
    def temperature_(self) -> float:
        """The fitted temperature T."""
        check_is_fitted(self)
        return self.map_.temperature

    @property
    def uniform_(self) -> float:
        """The weight ε of the uniform part."""
        check_is_fitted(self)
        return self.map_.uniform
