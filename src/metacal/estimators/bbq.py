"""The scikit-learn faces of Bayesian binning into quantiles: one-vs-rest, and of the predicted class alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metacal.estimators.base import Calibrator
from metacal.maps.curves.onevsrest import PiecewiseMap
from metacal.maps.curves.toplabel import TopLabelMap


class BBQ(Calibrator):
    """Bayesian binning into quantiles: many histograms for each class, averaged by their evidence.

    Naeini, Cooper & Hauskrecht, AAAI 2015; one-vs-rest, normalised. Made for two classes: quantiles have no room for
    the large probabilities of a rare class. May change predictions; TopLabelBBQ keeps them.

    Parameters
    ----------
    input, classes, n_jobs
        As in `TemperatureScaling`.

    Attributes
    ----------
    map_ : PiecewiseMap
        The fitted map, a frozen value: a step function for each class.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = BBQ().fit(data.logits[:5000], data.labels[:5000])
    >>> round(mc.metrics.nll(cal.predict_proba(data.logits[5000:]), data.labels[5000:]), 3)
    0.279
    """

    map_: PiecewiseMap


class TopLabelBBQ(Calibrator):
    """BBQ on the predicted class's confidence. Keeps every prediction.

    Naeini, Cooper & Hauskrecht, AAAI 2015; the other classes share the rest in proportion.

    Parameters
    ----------
    tempered : bool
        Whether a temperature is fitted first; without it the other classes keep their raw, often too uneven shares.
    input, classes, n_jobs
        As in `TemperatureScaling`.

    Attributes
    ----------
    map_ : TopLabelMap
        The fitted map, a frozen value: a step function.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = TopLabelBBQ().fit(data.logits[:5000], data.labels[:5000])
    >>> round(mc.metrics.nll(cal.predict_proba(data.logits[5000:]), data.labels[5000:]), 3)
    0.228
    """

    map_: TopLabelMap

    def __init__(
        self,
        *,
        tempered: bool = True,
        input: str = "logits",
        classes: Sequence[Any] | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.tempered = tempered
        super().__init__(input=input, classes=classes, n_jobs=n_jobs)
