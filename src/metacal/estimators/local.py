"""The scikit-learn face of local temperature scaling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal.errors import InputError
from metacal.estimators.base import Calibrator
from metacal.maps.local import LocalTemperatureMap, fit_local_temperature
from metacal.rows import Rows


class LocalTemperatureScaling(Calibrator):
    """softmax(x / T(x)): a temperature for each row, log-linear in its entropy, margin and norm.

    Keeps every prediction. Shrunk towards plain temperature scaling, which it equals where rows of every kind need the
    same temperature. After Balanya, Maroñas & Ramos 2022 and Joy et al., AAAI 2023; see `metacal.maps.local`.

    Parameters
    ----------
    penalty : float
        Strength of the shrinkage, in rows: half of it times the squared coefficients is added to the summed loss.
    input : "logits" or "probabilities"
        What the columns of X are; probabilities are taken to logits by the logarithm. Nothing is guessed from values.
    classes : sequence, optional
        The labels in column order; 0 … K-1 when None.
    n_jobs : int, optional
        Threads; -1 for one per core. It never changes the result.

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
        self.input = input
        self.classes = classes
        self.n_jobs = n_jobs

    def temperatures(self, X: ArrayLike) -> NDArray[np.float64]:
        """T(x) of each row."""
        return self.map_.temperatures(Rows(self._read_table(X, reset=False)))

    def _fit_map(self, rows: Rows, codes: NDArray[np.intp], weights: NDArray[np.float64] | None) -> LocalTemperatureMap:
        number = isinstance(self.penalty, int | float | np.integer | np.floating)
        if isinstance(self.penalty, bool) or not number or not 0.0 < self.penalty < np.inf:
            raise InputError(f"penalty must be a positive finite number, got {self.penalty!r}.")
        return fit_local_temperature(rows, codes, weights, penalty=float(self.penalty))
