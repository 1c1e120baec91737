"""Calibrators that fit smooth curves.

*One-vs-rest* and *top-label* are defined in `metacal.estimators.binning`. σ is the logistic
function.
"""

from __future__ import annotations

from metacal.estimators.base import Calibrator, MapAttribute
from metacal.maps.gp import Centre, GaussianProcessMap
from metacal.maps.logistic import BetaMap, PlattMap
from metacal.maps.monotone import MonotoneMap
from metacal.maps.spline import SplineMap


class PlattScaling(Calibrator[PlattMap]):
    """Platt scaling, one-vs-rest: σ(slope · log-odds + intercept) for each class.

    The fit uses the targets of Lin et al., which keep it finite for rare and for perfectly
    separated classes. Slopes are never negative. For two classes there is one curve. The method may
    change predictions.

    Parameters
    ----------
    input, classes, positive, n_jobs
        See `TemperatureScaling`.

    See Also
    --------
    BetaCalibration : Beta curve for each class.
    IsotonicCalibration : Isotonic curve for each class.

    References
    ----------
    Platt, "Probabilistic outputs for support vector machines and comparisons to regularized
    likelihood methods", 1999.
    Lin, Lin & Weng, "A note on Platt's probabilistic outputs for support vector machines", Machine
    Learning 2007.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> calibrator = PlattScaling().fit(data.logits[:5000], data.labels[:5000])
    >>> probabilities = calibrator.predict_proba(data.logits[5000:])
    >>> round(mc.metrics.nll(probabilities, data.labels[5000:]), 3)
    0.225
    """


class BetaCalibration(Calibrator[BetaMap]):
    """Beta calibration, one-vs-rest: σ(a·log p - b·log(1 - p) + c) with a, b >= 0.

    a = b = 1 and c = 0 is the identity. The method may change predictions.

    Parameters
    ----------
    variant : {"abm", "am", "ab"}, default="abm"
        Free parameters: all three; a = b; or the midpoint fixed at 1/2.
    input, classes, positive, n_jobs
        See `TemperatureScaling`.

    See Also
    --------
    PlattScaling : Logistic curve for each class.
    IsotonicCalibration : Isotonic curve for each class.

    References
    ----------
    Kull, Silva Filho & Flach, "Beta calibration", AISTATS 2017.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> calibrator = BetaCalibration().fit(data.logits[:5000], data.labels[:5000])
    >>> probabilities = calibrator.predict_proba(data.logits[5000:])
    >>> round(mc.metrics.nll(probabilities, data.labels[5000:]), 3)
    0.224
    """

    variant: str = "abm"


class MonotoneCalibration(Calibrator[MonotoneMap]):
    """Calibration by an increasing curve of the log-odds, the default for two classes.

    The probability of the second class is σ(h(s)). The curve h is a line near the identity plus a
    Brownian bend, and 18 such curves are averaged by their evidence (`metacal.maps.monotone`). The
    method fits an offset, which no temperature can, and a bend if the rows show one. Its
    probabilities are never 0 or 1 and are no more extreme than the number of rows supports. A
    prediction changes if the probability crosses 1/2 at another score than even odds.

    For more than two classes the curve applies to the confidence of the predicted class, after a
    temperature. Every prediction then stays.

    Parameters
    ----------
    input, classes, positive, n_jobs
        See `TemperatureScaling`.

    Attributes
    ----------
    map_ : MonotoneMap
        Fitted map, a frozen value: knots, the increments of each curve between them, and the
        weights of the curves.
    temperature_ : float
        Temperature that is fitted first for more than two classes. For two classes it is 1.

    See Also
    --------
    PlattScaling : Logistic curve for each class.
    IsotonicCalibration : Isotonic curve for each class.

    Examples
    --------
    >>> import numpy as np
    >>> import metacal as mc
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.normal(size=5000)
    >>> is_fraud = rng.random(5000) < 1 / (1 + np.exp(3 - 2 * scores))  # true log-odds: 2s - 3
    >>> calibrator = mc.MonotoneCalibration().fit(scores, is_fraud)
    >>> calibrator.predict_proba([0.0, 1.5])[:, 1].round(2)
    array([0.05, 0.52])
    """

    temperature_ = MapAttribute[float]()


class SplineCalibration(Calibrator[SplineMap]):
    """Calibration by a monotone spline of the confidence of the predicted class.

    The calibrated confidence is σ(s(log-odds of the confidence)), with a non-decreasing quadratic
    spline s that is fitted by penalised likelihood. The method keeps every prediction. It follows
    an idea of Gupta et al.

    Parameters
    ----------
    n_knots : int, default=7
        Maximal number of knots. Because of the smoothing it has little effect.
    tempered : bool, default=True
        Whether to fit a temperature first. Otherwise the proportions of the other classes stay as
        they are, which is often too uneven.
    input, classes, positive, n_jobs
        See `TemperatureScaling`.

    See Also
    --------
    ComposedCalibration : One calibrator after another.
    TopLabelIsotonic : Isotonic curve of the confidence in the predicted class.

    References
    ----------
    Gupta, Rahimi, Ajanthan, Mensink, Sminchisescu & Hartley, "Calibration of Neural Networks using
    Splines", ICLR 2021.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> calibrator = SplineCalibration().fit(data.logits[:5000], data.labels[:5000])
    >>> probabilities = calibrator.predict_proba(data.logits[5000:])
    >>> round(mc.metrics.nll(probabilities, data.labels[5000:]), 3)
    0.224
    """

    n_knots: int = 7
    tempered: bool = True


class GaussianProcessCalibration(Calibrator[GaussianProcessMap]):
    """Gaussian process calibration, softmax(f(x)), centred on temperature scaling.

    One smooth latent function f is applied to every logit, and the prediction uses its posterior
    mean. A deterministic, concave bound on the evidence makes the fit feasible for a thousand
    classes; `metacal.maps.gp` lists the differences from the paper.

    The method keeps every prediction if the fitted f increases, as it does on real logits. The
    attribute `map_.preserves_accuracy` is then True.

    Parameters
    ----------
    n_inducing : int, default=10
        Number of inducing points, at which f is free. Between them it is smooth.
    centre : {"mean", "log_softmax"}, default="mean"
        Value that is subtracted from each row first, so that a constant added to a row has no
        effect. "mean" is better for the logits of a network, and "log_softmax" for logarithms of
        probabilities.
    input, classes, positive, n_jobs
        See `TemperatureScaling`.

    See Also
    --------
    LocalTemperatureScaling : Temperature that depends on the logits.

    References
    ----------
    Wenger, Kjellström & Triebel, "Non-Parametric Calibration for Classification", AISTATS 2020.

    Examples
    --------
    >>> import metacal as mc
    >>> from metacal.estimators.curves import GaussianProcessCalibration
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> (fit_x, fit_y), (new_x, new_y) = data.split(5000, random_state=0)
    >>> calibrator = GaussianProcessCalibration().fit(fit_x, fit_y)
    >>> round(mc.metrics.ece(calibrator.predict_proba(new_x), new_y), 2)
    0.01
    >>> calibrator.map_.preserves_accuracy
    True
    """

    n_inducing: int = 10
    centre: Centre = "mean"
