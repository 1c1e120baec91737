"""The scikit-learn face of spline calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metacal.estimators.base import Calibrator
from metacal.maps.spline import SplineMap


class SplineCalibration(Calibrator):
    """A smooth monotone curve of the predicted class's confidence. Keeps every prediction.

    σ(s(log-odds of the confidence)) with a quadratic spline s of slopes >= 0, fitted by penalised likelihood; the other
    classes share the rest in proportion. After the idea of Gupta et al., "Calibration of Neural Networks using
    Splines", ICLR 2021.

    Parameters
    ----------
    n_knots : int
        How many knots at most; the smoothing makes it matter little.
    tempered : bool
        Whether a temperature is fitted first; without it the other classes keep their raw, often too uneven shares.
    input, classes, n_jobs
        As in `TemperatureScaling`.

    Attributes
    ----------
    map_ : SplineMap
        The fitted map, a frozen value: knots, the slope at each, the intercept.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = SplineCalibration().fit(data.logits[:5000], data.labels[:5000])
    >>> round(mc.metrics.nll(cal.predict_proba(data.logits[5000:]), data.labels[5000:]), 3)
    0.224
    """

    map_: SplineMap

    def __init__(
        self,
        *,
        n_knots: int = 7,
        tempered: bool = True,
        input: str = "logits",
        classes: Sequence[Any] | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_knots = n_knots
        self.tempered = tempered
        super().__init__(input=input, classes=classes, n_jobs=n_jobs)
