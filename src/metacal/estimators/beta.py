"""The scikit-learn face of beta calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metacal.estimators.base import Calibrator
from metacal.maps.beta import BetaMap


class BetaCalibration(Calibrator):
    """σ(a·log p - b·log(1 - p) + c) for each class with a, b >= 0, one-vs-rest, normalised.

    Kull, Silva Filho & Flach, "Beta calibration", AISTATS 2017. a = b = 1, c = 0 is the identity. May change
    predictions.

    Parameters
    ----------
    variant : "abm", "am" or "ab"
        All three parameters; a = b; or the midpoint at 1/2.
    input, classes, n_jobs
        As in `TemperatureScaling`.

    Attributes
    ----------
    map_ : BetaMap
        The fitted map, a frozen value: a, b and the intercept c of each class.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = BetaCalibration().fit(data.logits[:5000], data.labels[:5000])
    >>> round(mc.metrics.nll(cal.predict_proba(data.logits[5000:]), data.labels[5000:]), 3)
    0.224
    """

    map_: BetaMap

    def __init__(
        self,
        *,
        variant: str = "abm",
        input: str = "logits",
        classes: Sequence[Any] | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.variant = variant
        super().__init__(input=input, classes=classes, n_jobs=n_jobs)
