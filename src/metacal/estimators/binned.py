"""The scikit-learn faces of the binning maps, and of the maps that recalibrate the predicted class alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.estimators.base import Calibrator
from metacal.maps.bbq import fit_bbq, fit_top_label_bbq
from metacal.maps.curves.onevsrest import PiecewiseMap
from metacal.maps.curves.toplabel import TopLabelMap
from metacal.maps.histogram import fit_histogram, fit_top_label_histogram
from metacal.maps.isotonic import fit_top_label_isotonic
from metacal.rows import Rows


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
        self.input = input
        self.classes = classes
        self.n_jobs = n_jobs

    def _fit_map(self, rows: Rows, codes: NDArray[np.intp], weights: NDArray[np.float64] | None) -> PiecewiseMap:
        return fit_histogram(rows, codes, weights, n_bins=self.n_bins, bins=self.bins, prior_rows=self.prior_rows)


class BBQ(Calibrator):
    """Bayesian binning into quantiles: many histograms for each class, averaged by their evidence.

    Naeini, Cooper & Hauskrecht, AAAI 2015; one-vs-rest, normalised. Made for two classes: quantiles have no room for
    the large probabilities of a rare class. May change predictions; TopLabelBBQ keeps them.

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

    def _fit_map(self, rows: Rows, codes: NDArray[np.intp], weights: NDArray[np.float64] | None) -> PiecewiseMap:
        return fit_bbq(rows, codes, weights)


class TopLabelIsotonic(Calibrator):
    """A non-decreasing curve of the predicted class's confidence. Keeps every prediction.

    The other classes share the rest in proportion.

    Parameters
    ----------
    tempered : bool
        Whether a temperature is fitted first; without it the other classes keep their raw, often too uneven shares.
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
    map_ : TopLabelMap
        The fitted map, a frozen value: a piecewise linear curve.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = TopLabelIsotonic().fit(data.logits[:5000], data.labels[:5000])
    >>> round(mc.metrics.nll(cal.predict_proba(data.logits[5000:]), data.labels[5000:]), 3)
    0.226
    """

    map_: TopLabelMap

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

    def _fit_map(self, rows: Rows, codes: NDArray[np.intp], weights: NDArray[np.float64] | None) -> TopLabelMap:
        return fit_top_label_isotonic(rows, codes, weights, tempered=self.tempered, prior_rows=self.prior_rows)


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
        self.input = input
        self.classes = classes
        self.n_jobs = n_jobs

    def _fit_map(self, rows: Rows, codes: NDArray[np.intp], weights: NDArray[np.float64] | None) -> TopLabelMap:
        return fit_top_label_histogram(
            rows, codes, weights, n_bins=self.n_bins, bins=self.bins, tempered=self.tempered, prior_rows=self.prior_rows
        )


class TopLabelBBQ(Calibrator):
    """BBQ on the predicted class's confidence. Keeps every prediction.

    Naeini, Cooper & Hauskrecht, AAAI 2015; the other classes share the rest in proportion.

    Parameters
    ----------
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
        self.input = input
        self.classes = classes
        self.n_jobs = n_jobs

    def _fit_map(self, rows: Rows, codes: NDArray[np.intp], weights: NDArray[np.float64] | None) -> TopLabelMap:
        return fit_top_label_bbq(rows, codes, weights, tempered=self.tempered)
