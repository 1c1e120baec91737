"""The scikit-learn faces of histogram binning: one-vs-rest, and of the predicted class alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metacal.estimators.base import Calibrator
from metacal.maps.curves.onevsrest import PiecewiseMap
from metacal.maps.curves.toplabel import TopLabelMap


class HistogramBinning(Calibrator):
    """The frequency of each class in the bin of its probability, one-vs-rest, normalised.

    Zadrozny & Elkan, ICML 2001. May change predictions; TopLabelHistogramBinning keeps them.

    Parameters
    ----------
    n_bins : int
        How many bins.
    bins : "equal_width" or "equal_mass"
        Of width 1/n_bins, or of nearly equal weight. With many classes nearly all rows have a small probability of any
        one of them, so bins of equal mass have no room for the large ones.
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
    >>> cal = HistogramBinning().fit(data.logits[:5000], data.labels[:5000])
    >>> round(mc.metrics.nll(cal.predict_proba(data.logits[5000:]), data.labels[5000:]), 3)
    0.337
    """

    map_: PiecewiseMap

    def __init__(
        self,
        *,
        n_bins: int = 15,
        bins: str = "equal_width",
        prior_rows: float = 1.0,
        input: str = "logits",
        classes: Sequence[Any] | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_bins = n_bins
        self.bins = bins
        self.prior_rows = prior_rows
        super().__init__(input=input, classes=classes, n_jobs=n_jobs)


class TopLabelHistogramBinning(Calibrator):
    """The accuracy in the bin of the predicted class's confidence. Keeps every prediction.

    Gupta & Ramdas, ICLR 2022, one histogram for all classes; the other classes share the rest in proportion.

    Parameters
    ----------
    n_bins : int
        How many bins.
    bins : "equal_mass" or "equal_width"
        Of nearly equal weight, or of width 1/n_bins.
    tempered : bool
        Whether a temperature is fitted first; without it the other classes keep their raw, often too uneven shares.
    prior_rows, input, classes, n_jobs
        As in `IsotonicCalibration`.

    Attributes
    ----------
    map_ : TopLabelMap
        The fitted map, a frozen value: a step function.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = TopLabelHistogramBinning().fit(data.logits[:5000], data.labels[:5000])
    >>> round(mc.metrics.nll(cal.predict_proba(data.logits[5000:]), data.labels[5000:]), 3)
    0.226
    """

    map_: TopLabelMap

    def __init__(
        self,
        *,
        n_bins: int = 15,
        bins: str = "equal_mass",
        tempered: bool = True,
        prior_rows: float = 1.0,
        input: str = "logits",
        classes: Sequence[Any] | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_bins = n_bins
        self.bins = bins
        self.tempered = tempered
        self.prior_rows = prior_rows
        super().__init__(input=input, classes=classes, n_jobs=n_jobs)
