"""The scikit-learn face of Platt scaling."""

from __future__ import annotations

from metacal.estimators.base import Calibrator
from metacal.maps.platt import PlattMap


class PlattScaling(Calibrator):
    """σ(slope · log-odds + intercept) for each class, one-vs-rest, normalised.

    Platt 1999, with the targets of Lin, Lin & Weng 2007, which keep the fit finite for rare and for perfectly separated
    classes. Slopes are never negative. Two classes are one problem. May change predictions.

    Parameters
    ----------
    input, classes, n_jobs
        As in `TemperatureScaling`.

    Attributes
    ----------
    map_ : PlattMap
        The fitted map, a frozen value: slopes and intercepts.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = PlattScaling().fit(data.logits[:5000], data.labels[:5000])
    >>> round(mc.metrics.nll(cal.predict_proba(data.logits[5000:]), data.labels[5000:]), 3)
    0.225
    """

    map_: PlattMap
