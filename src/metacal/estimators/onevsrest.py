"""The scikit-learn faces of the logistic, isotonic and spline maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.estimators.base import Calibrator
from metacal.maps.binary import BetaMap, PlattMap, fit_beta, fit_platt
from metacal.maps.curves.onevsrest import PiecewiseMap
from metacal.maps.isotonic import SharedMap, fit_irm, fit_irova_ts, fit_isotonic
from metacal.maps.spline import SplineMap, fit_spline
from metacal.rows import Rows


class PlattScaling(Calibrator):
    """σ(slope · log-odds + intercept) for each class, one-vs-rest, normalised.

    Platt 1999, with the targets of Lin, Lin & Weng 2007, which keep the fit finite for rare and for perfectly separated
    classes. Slopes are never negative. Two classes are one problem. May change predictions.

    Parameters
    ----------
    input : "logits" or "probabilities"
        What the columns of X are; probabilities are taken to logits by the logarithm. Nothing is guessed from values.
    classes : sequence, optional
        The labels in column order; 0 … K-1 when None.
    n_jobs : int, optional
        Threads; -1 for one per core. It never changes the result.

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

    def __init__(
        self,
        *,
        input: str = "logits",
        classes: Sequence[Any] | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.input = input
        self.classes = classes
        self.n_jobs = n_jobs

    def _fit_map(self, rows: Rows, codes: NDArray[np.intp], weights: NDArray[np.float64] | None) -> PlattMap:
        return fit_platt(rows, codes, weights)


class BetaCalibration(Calibrator):
    """σ(a·log p - b·log(1 - p) + c) for each class with a, b >= 0, one-vs-rest, normalised.

    Kull, Silva Filho & Flach, "Beta calibration", AISTATS 2017. a = b = 1, c = 0 is the identity. May change
    predictions.

    Parameters
    ----------
    variant : "abm", "am" or "ab"
        All three parameters; a = b; or the midpoint at 1/2.
    input : "logits" or "probabilities"
        What the columns of X are; probabilities are taken to logits by the logarithm. Nothing is guessed from values.
    classes : sequence, optional
        The labels in column order; 0 … K-1 when None.
    n_jobs : int, optional
        Threads; -1 for one per core. It never changes the result.

    Attributes
    ----------
    map_ : BetaMap
        The fitted map, a frozen value: a, b and the intercept c of each class.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = BetaCalibration().fit(data.logits[:5000], data.labels[:5000])
    >>> round(mc.metrics.nll(cal.predict_proba(data.logits[5000:]), data.labels[5000:]), 3)
    0.224
    """

    map_: BetaMap

    def __init__(
        self,
        *,
        variant: str = "abm",
        input: str = "logits",
        classes: Sequence[Any] | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.variant = variant
        self.input = input
        self.classes = classes
        self.n_jobs = n_jobs

    def _fit_map(self, rows: Rows, codes: NDArray[np.intp], weights: NDArray[np.float64] | None) -> BetaMap:
        return fit_beta(rows, codes, weights, variant=self.variant)


class IsotonicCalibration(Calibrator):
    """A non-decreasing curve for each class, one-vs-rest, normalised; straight between the blocks.

    Zadrozny & Elkan, KDD 2002. Flexible: wants a few hundred rows of each class. May change predictions. Consider
    IROvATS, which tempers first, or TopLabelIsotonic and IRM, which keep every prediction.

    Parameters
    ----------
    prior_rows : float
        How many rows' worth of the uncalibrated model are blended in, so that nothing is held impossible; 0 for none.
    input : "logits" or "probabilities"
        What the columns of X are; probabilities are taken to logits by the logarithm. Nothing is guessed from values.
    classes : sequence, optional
        The labels in column order; 0 … K-1 when None.
    n_jobs : int, optional
        Threads; -1 for one per core. It never changes the result.

    Attributes
    ----------
    map_ : PiecewiseMap
        The fitted map, a frozen value: a piecewise linear curve for each class.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = IsotonicCalibration().fit(data.logits[:5000], data.labels[:5000])
    >>> round(mc.metrics.nll(cal.predict_proba(data.logits[5000:]), data.labels[5000:]), 3)
    0.258
    """

    map_: PiecewiseMap

    def __init__(
        self,
        *,
        prior_rows: float = 1.0,
        input: str = "logits",
        classes: Sequence[Any] | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.prior_rows = prior_rows
        self.input = input
        self.classes = classes
        self.n_jobs = n_jobs

    def _fit_map(self, rows: Rows, codes: NDArray[np.intp], weights: NDArray[np.float64] | None) -> PiecewiseMap:
        return fit_isotonic(rows, codes, weights, prior_rows=self.prior_rows)


class IROvATS(Calibrator):
    """Temperature scaling, then isotonic regression one-vs-all, normalised.

    IROvA-TS of Zhang, Kailkhura & Han, "Mix-n-Match", ICML 2020. May change predictions.

    Parameters
    ----------
    prior_rows : float
        How many rows' worth of the uncalibrated model are blended in, so that nothing is held impossible; 0 for none.
    input : "logits" or "probabilities"
        What the columns of X are; probabilities are taken to logits by the logarithm. Nothing is guessed from values.
    classes : sequence, optional
        The labels in column order; 0 … K-1 when None.
    n_jobs : int, optional
        Threads; -1 for one per core. It never changes the result.

    Attributes
    ----------
    map_ : PiecewiseMap
        The fitted map, a frozen value: the inverse temperature and a piecewise linear curve for each class.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = IROvATS().fit(data.logits[:5000], data.labels[:5000])
    >>> round(mc.metrics.nll(cal.predict_proba(data.logits[5000:]), data.labels[5000:]), 3)
    0.239
    """

    map_: PiecewiseMap

    def __init__(
        self,
        *,
        prior_rows: float = 1.0,
        input: str = "logits",
        classes: Sequence[Any] | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.prior_rows = prior_rows
        self.input = input
        self.classes = classes
        self.n_jobs = n_jobs

    def _fit_map(self, rows: Rows, codes: NDArray[np.intp], weights: NDArray[np.float64] | None) -> PiecewiseMap:
        return fit_irova_ts(rows, codes, weights, prior_rows=self.prior_rows)


class IRM(Calibrator):
    """One strictly increasing isotonic curve shared by all classes, normalised. Keeps every prediction.

    IRM of Zhang, Kailkhura & Han, "Mix-n-Match", ICML 2020: the pairs (probability, is it so?) of all classes are
    pooled.

    Parameters
    ----------
    tempered : bool
        Whether a temperature is fitted first (IRM-TS); False is the paper's IRM.
    prior_rows : float
        How many rows' worth of the uncalibrated model are blended in, so that nothing is held impossible; 0 for none.
    input : "logits" or "probabilities"
        What the columns of X are; probabilities are taken to logits by the logarithm. Nothing is guessed from values.
    classes : sequence, optional
        The labels in column order; 0 … K-1 when None.
    n_jobs : int, optional
        Threads; -1 for one per core. It never changes the result.

    Attributes
    ----------
    map_ : SharedMap
        The fitted map, a frozen value: the inverse temperature and one piecewise linear curve.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = IRM().fit(data.logits[:5000], data.labels[:5000])
    >>> round(mc.metrics.nll(cal.predict_proba(data.logits[5000:]), data.labels[5000:]), 3)
    0.227
    """

    map_: SharedMap

    def __init__(
        self,
        *,
        tempered: bool = True,
        prior_rows: float = 1.0,
        input: str = "logits",
        classes: Sequence[Any] | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.tempered = tempered
        self.prior_rows = prior_rows
        self.input = input
        self.classes = classes
        self.n_jobs = n_jobs

    def _fit_map(self, rows: Rows, codes: NDArray[np.intp], weights: NDArray[np.float64] | None) -> SharedMap:
        return fit_irm(rows, codes, weights, tempered=self.tempered, prior_rows=self.prior_rows)


class SplineCalibration(Calibrator):
    """A smooth monotone curve of the predicted class's confidence. Keeps every prediction.

    σ(s(log-odds of the confidence)) with a quadratic spline s of slopes >= 0, fitted by penalised likelihood; the other
    classes share the rest in proportion. After the idea of Gupta et al., "Calibration of Neural Networks using
    Splines", ICLR 2021.

    Parameters
    ----------
    n_knots : int
        How many knots at most; the smoothing makes it matter little.
    tempered : bool
        Whether a temperature is fitted first; without it the other classes keep their raw, often too uneven shares.
    input : "logits" or "probabilities"
        What the columns of X are; probabilities are taken to logits by the logarithm. Nothing is guessed from values.
    classes : sequence, optional
        The labels in column order; 0 … K-1 when None.
    n_jobs : int, optional
        Threads; -1 for one per core. It never changes the result.

    Attributes
    ----------
    map_ : SplineMap
        The fitted map, a frozen value: knots, the slope at each, the intercept.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = SplineCalibration().fit(data.logits[:5000], data.labels[:5000])
    >>> round(mc.metrics.nll(cal.predict_proba(data.logits[5000:]), data.labels[5000:]), 3)
    0.224
    """

    map_: SplineMap

    def __init__(
        self,
        *,
        n_knots: int = 7,
        tempered: bool = True,
        input: str = "logits",
        classes: Sequence[Any] | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_knots = n_knots
        self.tempered = tempered
        self.input = input
        self.classes = classes
        self.n_jobs = n_jobs

    def _fit_map(self, rows: Rows, codes: NDArray[np.intp], weights: NDArray[np.float64] | None) -> SplineMap:
        return fit_spline(rows, codes, weights, n_knots=self.n_knots, tempered=self.tempered)
