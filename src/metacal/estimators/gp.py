"""The scikit-learn face of Gaussian-process calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metacal.estimators.base import Calibrator
from metacal.maps.gp import Centre, GaussianProcessMap


class GaussianProcessCalibration(Calibrator):
    """softmax(f(x)): one smooth latent function f of every logit, a sparse Gaussian process around temperature scaling.

    Wenger, Kjellström & Triebel, "Non-Parametric Calibration for Classification", AISTATS 2020, with a deterministic,
    concave bound on the evidence that also works on a thousand classes; `metacal.maps.gp` lists what differs from the
    paper. The prediction is softmax of the posterior mean of f.

    Keeps every prediction when the fitted f increases, which `map_.preserves_accuracy` answers; on real logits it does.

    Parameters
    ----------
    n_inducing : int
        Points at which f is free; between them it is smooth.
    centre : "mean" or "log_softmax"
        What is subtracted from each row first, so that a constant added to a row changes nothing. The mean is better
        on a network's logits, "log_softmax" on logarithms of probabilities.
    input, classes, n_jobs
        As in `TemperatureScaling`.

    Attributes
    ----------
    map_ : GaussianProcessMap
        The fitted map, a frozen value.

    Examples
    --------
    >>> import metacal as mc
    >>> from metacal.estimators.gp import GaussianProcessCalibration
    >>> (fit_x, fit_y), (new_x, new_y) = mc.datasets.load("cifar10-resnet110").split(5000, random_state=0)
    >>> cal = GaussianProcessCalibration().fit(fit_x, fit_y)
    >>> round(mc.metrics.ece(cal.predict_proba(new_x), new_y), 2), cal.map_.preserves_accuracy
    (0.01, True)
    """

    map_: GaussianProcessMap

    def __init__(
        self,
        *,
        n_inducing: int = 10,
        centre: Centre = "mean",
        input: str = "logits",
        classes: Sequence[Any] | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_inducing = n_inducing
        self.centre = centre
        super().__init__(input=input, classes=classes, n_jobs=n_jobs)
