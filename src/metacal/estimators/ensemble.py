"""The scikit-learn face of ensemble temperature scaling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sklearn.utils.validation import check_is_fitted

from metacal.estimators.base import Calibrator
from metacal.maps.ensemble import EnsembleTemperatureMap


class EnsembleTemperatureScaling(Calibrator):
    """w1·softmax(x/T) + w2·softmax(x) + w3/K, with weights that sum to one.

    Zhang, Kailkhura & Han, "Mix-n-Match", ICML 2020. Keeps every prediction. T is that of `UniformTemperatureScaling`,
    fitted together with a uniform part; the weights then solve a convex problem of three numbers per row exactly.

    Parameters
    ----------
    loss : "nll", "mse" or "sequential"
        What T and the weights minimise: cross-entropy, or the mean squared error (Brier score) with T alone first.
        "sequential" is cross-entropy with T alone first, as in the paper.
    input, classes, n_jobs
        As in `TemperatureScaling`.

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
        super().__init__(input=input, classes=classes, n_jobs=n_jobs)

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
