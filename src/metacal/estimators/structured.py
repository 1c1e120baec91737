"""The scikit-learn face of structured scaling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from metacal.estimators.penalised import Penalised
from metacal.maps.structured import StructuredMap


class StructuredScaling(Penalised):
    """softmax(a · log softmax(x/T) + c): vector scaling drawn towards temperature scaling, a = 1 and c = 0.

    Fits T, then minimises the summed negative log-likelihood + λK Σ ((a_j - 1)² + c_j²). A strong penalty gives
    temperature scaling, none vector scaling. Berta, Holzmüller, Jordan & Bach, "Structured Matrix Scaling for
    Multi-Class Calibration", 2025 (their SVS with the ridge penalty, where λ = 1). May change predictions.

    Parameters
    ----------
    regularisation : float, optional
        The strength λ of the penalty, in rows. When None, the best of 1000, 100, …, 0.0001 by cross-validated
        likelihood, tried from the strongest until the held-out loss rises.
    n_folds, random_state, input, classes, n_jobs
        As in `VectorScaling`.

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
        super().__init__(input=input, classes=classes, n_jobs=n_jobs)

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
