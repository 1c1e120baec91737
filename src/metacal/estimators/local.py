"""The scikit-learn face of local temperature scaling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal.estimators.base import Calibrator
from metacal.maps.local import LocalTemperatureMap
from metacal.rows import Rows


class LocalTemperatureScaling(Calibrator):
    """softmax(x / T(x)): a temperature for each row, log-linear in its entropy, margin and norm.

    Keeps every prediction. Shrunk towards plain temperature scaling, which it equals where rows of every kind need the
    same temperature. After Balanya, Maroñas & Ramos 2022 and Joy et al., AAAI 2023; not the method of the same name for
    segmented images of Ding et al. 2021, which gives each pixel a temperature: see `metacal.maps.local`.

    Parameters
    ----------
    penalty : float
        Strength of the shrinkage, in rows: half of it times the squared coefficients is added to the summed loss.
    input, classes, n_jobs
        As in `TemperatureScaling`.

    Attributes
    ----------
    map_ : LocalTemperatureMap
        The fitted map, a frozen value.

    Examples
    --------
    >>> import metacal as mc
    >>> from metacal.estimators.local import LocalTemperatureScaling
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = LocalTemperatureScaling().fit(data.logits, data.labels)
    >>> temperatures = cal.temperatures(data.logits)
    >>> bool(1.0 < temperatures.min() < 2.78 < temperatures.max())
    True
    """

    map_: LocalTemperatureMap

    def __init__(
        self,
        *,
        penalty: float = 100.0,
        input: str = "logits",
        classes: Sequence[Any] | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.penalty = penalty
        super().__init__(input=input, classes=classes, n_jobs=n_jobs)

    def temperatures(self, X: ArrayLike) -> NDArray[np.float64]:
        """T(x) of each row."""
        return self.map_.temperatures(Rows(self._read_table(X, reset=False)))
