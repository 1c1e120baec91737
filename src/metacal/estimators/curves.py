"""The scikit-learn faces of smooth curves: Platt, beta, monotone, spline, Gaussian process."""

from __future__ import annotations

from metacal.estimators.base import Calibrator, Fitted
from metacal.maps.gp import Centre, GaussianProcessMap
from metacal.maps.logistic import BetaMap, PlattMap
from metacal.maps.monotone import MonotoneMap
from metacal.maps.spline import SplineMap


class PlattScaling(Calibrator[PlattMap]):
    """σ(slope · log-odds + intercept) for each class, one-vs-rest, normalised.

    Platt 1999, with the targets of Lin, Lin & Weng 2007, which keep the fit finite for rare and for
    perfectly separated classes. Slopes are never negative. Two classes are one problem. May change
    predictions.

    Parameters
    ----------
    input, classes, positive, n_jobs
        As in `TemperatureScaling`.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = PlattScaling().fit(data.logits[:5000], data.labels[:5000])
    >>> round(mc.metrics.nll(cal.predict_proba(data.logits[5000:]), data.labels[5000:]), 3)
    0.225
    """


class BetaCalibration(Calibrator[BetaMap]):
    """σ(a·log p - b·log(1 - p) + c) for each class with a, b >= 0, one-vs-rest, normalised.

    Kull, Silva Filho & Flach, "Beta calibration", AISTATS 2017. a = b = 1, c = 0 is the identity.
    May change predictions.

    Parameters
    ----------
    variant : "abm", "am" or "ab"
        All three parameters; a = b; or the midpoint at 1/2.
    input, classes, positive, n_jobs
        As in `TemperatureScaling`.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = BetaCalibration().fit(data.logits[:5000], data.labels[:5000])
    >>> round(mc.metrics.nll(cal.predict_proba(data.logits[5000:]), data.labels[5000:]), 3)
    0.224
    """

    variant: str = "abm"


class MonotoneCalibration(Calibrator[MonotoneMap]):
    """Of two classes an increasing curve of the log-odds with an offset, never 0 or 1: what
    `MetaCal` has by default.

    σ(h(s)), h a straight line near the identity with a Brownian bend: 18 such curves, averaged by
    their evidence (`metacal.maps.monotone`). It learns offsets that no temperature can, bends where
    rows show one, and answers no surer than n rows allow. Predictions change where P(second) = ½ is
    not where the scores are even.

    Of more than two classes the curve is that of the predicted class's confidence, after a
    temperature; predictions then stay.

    Parameters
    ----------
    input, classes, positive, n_jobs
        As in `TemperatureScaling`.

    Attributes
    ----------
    map_ : MonotoneMap
        The fitted map, a frozen value: knots, the rises of each curve between them, their weights.
    temperature_ : float
        Of more than two classes, fitted first; 1 of two.

    Examples
    --------
    >>> import numpy as np
    >>> import metacal as mc
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.normal(size=5000)
    >>> fraud = rng.random(5000) < 1 / (1 + np.exp(3 - 2 * scores))      # the true log-odds are 2s - 3
    >>> cal = mc.MonotoneCalibration().fit(scores, fraud)
    >>> cal.predict_proba([0.0, 1.5])[:, 1].round(2)
    array([0.05, 0.52])
    """

    temperature_ = Fitted[float]()


class SplineCalibration(Calibrator[SplineMap]):
    """A smooth monotone curve of the predicted class's confidence. Keeps every prediction.

    σ(s(log-odds of the confidence)) with a quadratic spline s of slopes >= 0, fitted by penalised
    likelihood; the other classes share the rest in proportion. After the idea of Gupta et al.,
    "Calibration of Neural Networks using Splines", ICLR 2021.

    Parameters
    ----------
    n_knots : int
        How many knots at most; the smoothing makes it matter little.
    tempered : bool
        Whether a temperature is fitted first; without it the other classes keep their raw, often
        too uneven shares.
    input, classes, positive, n_jobs
        As in `TemperatureScaling`.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = SplineCalibration().fit(data.logits[:5000], data.labels[:5000])
    >>> round(mc.metrics.nll(cal.predict_proba(data.logits[5000:]), data.labels[5000:]), 3)
    0.224
    """

    n_knots: int = 7
    tempered: bool = True


class GaussianProcessCalibration(Calibrator[GaussianProcessMap]):
    """softmax(f(x)): one smooth latent function f of every logit, a sparse Gaussian process around
    temperature scaling.

    Wenger, Kjellström & Triebel, "Non-Parametric Calibration for Classification", AISTATS 2020,
    with a deterministic, concave bound on the evidence that also works on a thousand classes;
    `metacal.maps.gp` lists what differs from the paper. The prediction is softmax of the posterior
    mean of f.

    Keeps every prediction when the fitted f increases, which `map_.preserves_accuracy` answers; on
    real logits it does.

    Parameters
    ----------
    n_inducing : int
        Points at which f is free; between them it is smooth.
    centre : "mean" or "log_softmax"
        What is subtracted from each row first, so that a constant added to a row changes nothing.
        The mean is better on a network's logits, "log_softmax" on logarithms of probabilities.
    input, classes, positive, n_jobs
        As in `TemperatureScaling`.

    Examples
    --------
    >>> import metacal as mc
    >>> from metacal.estimators.curves import GaussianProcessCalibration
    >>> (fit_x, fit_y), (new_x, new_y) = mc.datasets.load("cifar10-resnet110").split(5000, random_state=0)
    >>> cal = GaussianProcessCalibration().fit(fit_x, fit_y)
    >>> round(mc.metrics.ece(cal.predict_proba(new_x), new_y), 2), cal.map_.preserves_accuracy
    (0.01, True)
    """

    n_inducing: int = 10
    centre: Centre = "mean"
