"""The scikit-learn faces of isotonic calibration: one-vs-rest, after a temperature, shared,
top-label.
"""

from __future__ import annotations

from metacal.estimators.base import Calibrator
from metacal.maps.curves import PiecewiseMap, TopLabelMap
from metacal.maps.isotonic import SharedMap


class IsotonicCalibration(Calibrator[PiecewiseMap]):
    """A non-decreasing curve for each class, one-vs-rest, normalised; straight between the blocks.

    Zadrozny & Elkan, KDD 2002. Flexible: wants a few hundred rows of each class. May change
    predictions. Consider IROvATS, which tempers first, or TopLabelIsotonic and IRM, which keep
    every prediction.

    Parameters
    ----------
    prior_rows : float
        How many rows' worth of the uncalibrated model are blended in, so that nothing is held
        impossible; 0 for none.
    input, classes, positive, n_jobs
        As in `TemperatureScaling`.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = IsotonicCalibration().fit(data.logits[:5000], data.labels[:5000])
    >>> round(mc.metrics.nll(cal.predict_proba(data.logits[5000:]), data.labels[5000:]), 3)
    0.258
    """

    prior_rows: float = 1.0


class IROvATS(Calibrator[PiecewiseMap]):
    """Temperature scaling, then isotonic regression one-vs-all, normalised.

    IROvA-TS of Zhang, Kailkhura & Han, "Mix-n-Match", ICML 2020. May change predictions.

    Parameters
    ----------
    prior_rows, input, classes, positive, n_jobs
        As in `IsotonicCalibration`.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = IROvATS().fit(data.logits[:5000], data.labels[:5000])
    >>> round(mc.metrics.nll(cal.predict_proba(data.logits[5000:]), data.labels[5000:]), 3)
    0.239
    """

    prior_rows: float = 1.0


class IRM(Calibrator[SharedMap]):
    """One strictly increasing isotonic curve shared by all classes, normalised. Keeps every
    prediction.

    IRM of Zhang, Kailkhura & Han, "Mix-n-Match", ICML 2020: the pairs (probability, is it so?) of
    all classes are pooled.

    Parameters
    ----------
    tempered : bool
        Whether a temperature is fitted first (IRM-TS); False is the paper's IRM.
    prior_rows, input, classes, positive, n_jobs
        As in `IsotonicCalibration`.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = IRM().fit(data.logits[:5000], data.labels[:5000])
    >>> round(mc.metrics.nll(cal.predict_proba(data.logits[5000:]), data.labels[5000:]), 3)
    0.227
    """

    tempered: bool = True
    prior_rows: float = 1.0


class TopLabelIsotonic(Calibrator[TopLabelMap]):
    """A non-decreasing curve of the predicted class's confidence. Keeps every prediction.

    The other classes share the rest in proportion.

    Parameters
    ----------
    tempered : bool
        Whether a temperature is fitted first; without it the other classes keep their raw, often
        too uneven shares.
    prior_rows, input, classes, positive, n_jobs
        As in `IsotonicCalibration`.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = TopLabelIsotonic().fit(data.logits[:5000], data.labels[:5000])
    >>> round(mc.metrics.nll(cal.predict_proba(data.logits[5000:]), data.labels[5000:]), 3)
    0.226
    """

    tempered: bool = True
    prior_rows: float = 1.0
