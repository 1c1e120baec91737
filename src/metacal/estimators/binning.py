"""Calibrators that bin probabilities: histogram binning, BBQ and I-Max.

A *one-vs-rest* method calibrates the probability of each class separately, and then normalises each
row. A *top-label* method calibrates only the confidence of the predicted class. The other classes
share the remaining probability in proportion, so that every prediction stays.
"""

from __future__ import annotations

from metacal.estimators.base import Calibrator
from metacal.maps.curves import PiecewiseMap, TopLabelMap


class HistogramBinning(Calibrator[PiecewiseMap]):
    """Histogram binning of the probability of each class, one-vs-rest.

    The calibrated probability of a class is its frequency in the bin of its probability. The method
    may change predictions; `TopLabelHistogramBinning` keeps them.

    Parameters
    ----------
    n_bins : int, default=15
        Number of bins.
    bins : {"equal_width", "equal_mass"}, default="equal_width"
        Whether each bin has the width 1 / n_bins, or about the same weight of rows. If there are
        many classes, nearly all rows have a small probability of any one class, so bins of equal
        mass do not resolve the large probabilities.
    prior_rows, input, classes, positive, n_jobs
        See `IsotonicCalibration`.

    See Also
    --------
    BBQ : Average over histograms for each class.
    IMaxBinning : Histogram with bins of maximal information.
    TopLabelHistogramBinning : Histogram of the confidence in the predicted class.

    References
    ----------
    Zadrozny & Elkan, "Obtaining calibrated probability estimates from decision trees and naive
    Bayesian classifiers", ICML 2001.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> calibrator = HistogramBinning().fit(data.logits[:5000], data.labels[:5000])
    >>> probabilities = calibrator.predict_proba(data.logits[5000:])
    >>> round(mc.metrics.nll(probabilities, data.labels[5000:]), 3)
    0.337
    """

    n_bins: int = 15
    bins: str = "equal_width"
    prior_rows: float = 1.0


class TopLabelHistogramBinning(Calibrator[TopLabelMap]):
    """Histogram binning of the confidence of the predicted class.

    The calibrated confidence is the accuracy in the bin of the confidence, with one histogram for
    all classes. The method keeps every prediction.

    Parameters
    ----------
    n_bins : int, default=15
        Number of bins.
    bins : {"equal_mass", "equal_width"}, default="equal_mass"
        Whether each bin has about the same weight of rows, or the width 1 / n_bins.
    tempered : bool, default=True
        Whether to fit a temperature first. Otherwise the proportions of the other classes stay as
        they are, which is often too uneven.
    prior_rows, input, classes, positive, n_jobs
        See `IsotonicCalibration`.

    See Also
    --------
    HistogramBinning : Histogram for each class.
    TopLabelIsotonic : Isotonic curve of the confidence in the predicted class.

    References
    ----------
    Gupta & Ramdas, "Top-label calibration and multiclass-to-binary reductions", ICLR 2022.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> calibrator = TopLabelHistogramBinning().fit(data.logits[:5000], data.labels[:5000])
    >>> probabilities = calibrator.predict_proba(data.logits[5000:])
    >>> round(mc.metrics.nll(probabilities, data.labels[5000:]), 3)
    0.226
    """

    n_bins: int = 15
    bins: str = "equal_mass"
    tempered: bool = True
    prior_rows: float = 1.0


class BBQ(Calibrator[PiecewiseMap]):
    """Bayesian binning into quantiles (BBQ) of each class, one-vs-rest.

    Many histograms of each class are averaged, weighted by their evidence. The method was designed
    for two classes: quantiles do not resolve the large probabilities of a rare class. It may change
    predictions; `TopLabelBBQ` keeps them.

    Parameters
    ----------
    input, classes, positive, n_jobs
        See `TemperatureScaling`.

    See Also
    --------
    HistogramBinning : Histogram for each class.
    TopLabelBBQ : Average over histograms of the confidence.

    References
    ----------
    Naeini, Cooper & Hauskrecht, "Obtaining Well Calibrated Probabilities Using Bayesian Binning",
    AAAI 2015.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> calibrator = BBQ().fit(data.logits[:5000], data.labels[:5000])
    >>> probabilities = calibrator.predict_proba(data.logits[5000:])
    >>> round(mc.metrics.nll(probabilities, data.labels[5000:]), 3)
    0.279
    """


class TopLabelBBQ(Calibrator[TopLabelMap]):
    """Bayesian binning into quantiles of the confidence of the predicted class.

    The method keeps every prediction.

    Parameters
    ----------
    tempered : bool, default=True
        Whether to fit a temperature first. Otherwise the proportions of the other classes stay as
        they are, which is often too uneven.
    input, classes, positive, n_jobs
        See `TemperatureScaling`.

    See Also
    --------
    BBQ : Average over histograms for each class.
    TopLabelHistogramBinning : Histogram of the confidence in the predicted class.

    References
    ----------
    Naeini, Cooper & Hauskrecht, "Obtaining Well Calibrated Probabilities Using Bayesian Binning",
    AAAI 2015.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> calibrator = TopLabelBBQ().fit(data.logits[:5000], data.labels[:5000])
    >>> probabilities = calibrator.predict_proba(data.logits[5000:])
    >>> round(mc.metrics.nll(probabilities, data.labels[5000:]), 3)
    0.228
    """

    tempered: bool = True


class IMaxBinning(Calibrator[PiecewiseMap]):
    """I-Max binning, one-vs-rest: bins with maximal mutual information with the label.

    The method may change predictions.

    Parameters
    ----------
    n_bins : int, default=15
        Maximal number of bins.
    shared : bool, default=True
        Whether all classes share one set of bins, fitted on all of them together. Otherwise each
        class has its own bins.
    prior_rows, input, classes, positive, n_jobs
        See `IsotonicCalibration`.

    See Also
    --------
    HistogramBinning : Histogram for each class.

    References
    ----------
    Patel, Beluch, Yang, Pfeiffer & Zhang, "Multi-Class Uncertainty Calibration via Mutual
    Information Maximization-based Binning", ICLR 2021.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> calibrator = IMaxBinning().fit(data.logits[:5000], data.labels[:5000])
    >>> probabilities = calibrator.predict_proba(data.logits[5000:])
    >>> round(mc.metrics.nll(probabilities, data.labels[5000:]), 3)
    0.231
    """

    n_bins: int = 15
    shared: bool = True
    prior_rows: float = 1.0
