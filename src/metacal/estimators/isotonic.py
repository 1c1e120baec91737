"""Calibrators that use isotonic regression.

*One-vs-rest* and *top-label* are defined in `metacal.estimators.binning`.
"""

from __future__ import annotations

from metacal.estimators.base import Calibrator
from metacal.maps.curves import PiecewiseMap, TopLabelMap
from metacal.maps.isotonic import SharedMap


class IsotonicCalibration(Calibrator[PiecewiseMap]):
    """Isotonic regression, one-vs-rest, with linear interpolation between the blocks.

    Each class has a non-decreasing curve. The method is flexible and needs a few hundred rows of
    each class. It may change predictions. Alternatives are `IROvATS`, which fits a temperature
    first, and `TopLabelIsotonic` and `IRM`, which keep every prediction.

    Parameters
    ----------
    prior_rows : float, default=1.0
        Weight of the uncalibrated probabilities, in rows. It keeps every probability above zero. 0
        uses no prior.
    input, classes, positive, n_jobs
        See `TemperatureScaling`.

    See Also
    --------
    IROvATS : Isotonic curve shared by all classes.
    TopLabelIsotonic : Isotonic curve of the confidence in the predicted class.
    HistogramBinning : Histogram for each class.

    References
    ----------
    Zadrozny & Elkan, "Transforming classifier scores into accurate multiclass probability
    estimates", KDD 2002.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> calibrator = IsotonicCalibration().fit(data.logits[:5000], data.labels[:5000])
    >>> probabilities = calibrator.predict_proba(data.logits[5000:])
    >>> round(mc.metrics.nll(probabilities, data.labels[5000:]), 3)
    0.258
    """

    prior_rows: float = 1.0


class IROvATS(Calibrator[PiecewiseMap]):
    """Temperature scaling followed by isotonic regression, one-vs-rest.

    This is the IROvA-TS of Zhang et al. The method may change predictions.

    Parameters
    ----------
    prior_rows, input, classes, positive, n_jobs
        See `IsotonicCalibration`.

    See Also
    --------
    IRM : Isotonic curve of the confidence, strictly increasing.
    IsotonicCalibration : Isotonic curve for each class.

    References
    ----------
    Zhang, Kailkhura & Han, "Mix-n-Match: Ensemble and Compositional Methods for Uncertainty
    Calibration in Deep Learning", ICML 2020.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> calibrator = IROvATS().fit(data.logits[:5000], data.labels[:5000])
    >>> probabilities = calibrator.predict_proba(data.logits[5000:])
    >>> round(mc.metrics.nll(probabilities, data.labels[5000:]), 3)
    0.239
    """

    prior_rows: float = 1.0


class IRM(Calibrator[SharedMap]):
    """Isotonic regression with one strictly increasing curve shared by all classes.

    The curve is fitted on the pairs of probability and outcome of all classes together. The method
    keeps every prediction.

    Parameters
    ----------
    tempered : bool, default=True
        Whether to fit a temperature first (IRM-TS). False gives the IRM of the paper.
    prior_rows, input, classes, positive, n_jobs
        See `IsotonicCalibration`.

    See Also
    --------
    IROvATS : Isotonic curve shared by all classes.
    TopLabelIsotonic : Isotonic curve of the confidence in the predicted class.

    References
    ----------
    Zhang, Kailkhura & Han, "Mix-n-Match: Ensemble and Compositional Methods for Uncertainty
    Calibration in Deep Learning", ICML 2020.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> calibrator = IRM().fit(data.logits[:5000], data.labels[:5000])
    >>> probabilities = calibrator.predict_proba(data.logits[5000:])
    >>> round(mc.metrics.nll(probabilities, data.labels[5000:]), 3)
    0.227
    """

    tempered: bool = True
    prior_rows: float = 1.0


class TopLabelIsotonic(Calibrator[TopLabelMap]):
    """Isotonic regression of the confidence of the predicted class.

    The method keeps every prediction.

    Parameters
    ----------
    tempered : bool, default=True
        Whether to fit a temperature first. Otherwise the proportions of the other classes stay as
        they are, which is often too uneven.
    prior_rows, input, classes, positive, n_jobs
        See `IsotonicCalibration`.

    See Also
    --------
    IsotonicCalibration : Isotonic curve for each class.
    TopLabelHistogramBinning : Histogram of the confidence in the predicted class.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> calibrator = TopLabelIsotonic().fit(data.logits[:5000], data.labels[:5000])
    >>> probabilities = calibrator.predict_proba(data.logits[5000:])
    >>> round(mc.metrics.nll(probabilities, data.labels[5000:]), 3)
    0.226
    """

    tempered: bool = True
    prior_rows: float = 1.0
