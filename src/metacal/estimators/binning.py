"""The scikit-learn faces of binning: histogram, BBQ, I-Max."""

from __future__ import annotations

from metacal.estimators.base import Calibrator
from metacal.maps.curves import PiecewiseMap, TopLabelMap


class HistogramBinning(Calibrator[PiecewiseMap]):
    """The frequency of each class in the bin of its probability, one-vs-rest, normalised.

    Zadrozny & Elkan, ICML 2001. May change predictions; TopLabelHistogramBinning keeps them.

    Parameters
    ----------
    n_bins : int
        How many bins.
    bins : "equal_width" or "equal_mass"
        Of width 1/n_bins, or of nearly equal weight. With many classes nearly all rows have a small
        probability of any one of them, so bins of equal mass have no room for the large ones.
    prior_rows, input, classes, positive, n_jobs
        As in `IsotonicCalibration`.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = HistogramBinning().fit(data.logits[:5000], data.labels[:5000])
    >>> round(mc.metrics.nll(cal.predict_proba(data.logits[5000:]), data.labels[5000:]), 3)
    0.337
    """

    n_bins: int = 15
    bins: str = "equal_width"
    prior_rows: float = 1.0


class TopLabelHistogramBinning(Calibrator[TopLabelMap]):
    """The accuracy in the bin of the predicted class's confidence. Keeps every prediction.

    Gupta & Ramdas, ICLR 2022, one histogram for all classes; the other classes share the rest in
    proportion.

    Parameters
    ----------
    n_bins : int
        How many bins.
    bins : "equal_mass" or "equal_width"
        Of nearly equal weight, or of width 1/n_bins.
    tempered : bool
        Whether a temperature is fitted first; without it the other classes keep their raw, often
        too uneven shares.
    prior_rows, input, classes, positive, n_jobs
        As in `IsotonicCalibration`.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = TopLabelHistogramBinning().fit(data.logits[:5000], data.labels[:5000])
    >>> round(mc.metrics.nll(cal.predict_proba(data.logits[5000:]), data.labels[5000:]), 3)
    0.226
    """

    n_bins: int = 15
    bins: str = "equal_mass"
    tempered: bool = True
    prior_rows: float = 1.0


class BBQ(Calibrator[PiecewiseMap]):
    """Bayesian binning into quantiles: many histograms for each class, averaged by their evidence.

    Naeini, Cooper & Hauskrecht, AAAI 2015; one-vs-rest, normalised. Made for two classes: quantiles
    have no room for the large probabilities of a rare class. May change predictions; TopLabelBBQ
    keeps them.

    Parameters
    ----------
    input, classes, positive, n_jobs
        As in `TemperatureScaling`.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = BBQ().fit(data.logits[:5000], data.labels[:5000])
    >>> round(mc.metrics.nll(cal.predict_proba(data.logits[5000:]), data.labels[5000:]), 3)
    0.279
    """


class TopLabelBBQ(Calibrator[TopLabelMap]):
    """BBQ on the predicted class's confidence. Keeps every prediction.

    Naeini, Cooper & Hauskrecht, AAAI 2015; the other classes share the rest in proportion.

    Parameters
    ----------
    tempered : bool
        Whether a temperature is fitted first; without it the other classes keep their raw, often
        too uneven shares.
    input, classes, positive, n_jobs
        As in `TemperatureScaling`.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = TopLabelBBQ().fit(data.logits[:5000], data.labels[:5000])
    >>> round(mc.metrics.nll(cal.predict_proba(data.logits[5000:]), data.labels[5000:]), 3)
    0.228
    """

    tempered: bool = True


class IMaxBinning(Calibrator[PiecewiseMap]):
    """Histogram binning with the edges that keep most information about the label.

    Patel et al., ICLR 2021; one-vs-rest, normalised. May change predictions.

    Parameters
    ----------
    n_bins : int
        At most so many bins.
    shared : bool
        One set of bins for all classes, fitted on all of them together; else one for each.
    prior_rows, input, classes, positive, n_jobs
        As in `IsotonicCalibration`.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = IMaxBinning().fit(data.logits[:5000], data.labels[:5000])
    >>> round(mc.metrics.nll(cal.predict_proba(data.logits[5000:]), data.labels[5000:]), 3)
    0.231
    """

    n_bins: int = 15
    shared: bool = True
    prior_rows: float = 1.0
