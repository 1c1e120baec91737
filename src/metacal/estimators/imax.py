"""The scikit-learn face of I-Max binning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metacal.estimators.base import Calibrator
from metacal.maps.curves.onevsrest import PiecewiseMap


class IMaxBinning(Calibrator):
    """Histogram binning with the edges that keep most information about the label.

    Patel et al., ICLR 2021; one-vs-rest, normalised. May change predictions.

    Parameters
    ----------
    n_bins : int
        At most so many bins.
    shared : bool
        One set of bins for all classes, fitted on all of them together; else one for each.
    prior_rows, input, classes, n_jobs
        As in `IsotonicCalibration`.

    Attributes
    ----------
    map_ : PiecewiseMap
        The fitted map, a frozen value: a step function for each class.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = IMaxBinning().fit(data.logits[:5000], data.labels[:5000])
    >>> round(mc.metrics.nll(cal.predict_proba(data.logits[5000:]), data.labels[5000:]), 3)
    0.231
    """

    map_: PiecewiseMap

    def __init__(
        self,
        *,
        n_bins: int = 15,
        shared: bool = True,
        prior_rows: float = 1.0,
        input: str = "logits",
        classes: Sequence[Any] | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_bins = n_bins
        self.shared = shared
        self.prior_rows = prior_rows
        super().__init__(input=input, classes=classes, n_jobs=n_jobs)
