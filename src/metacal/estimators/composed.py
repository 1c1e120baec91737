"""The scikit-learn face of composed calibration."""

from __future__ import annotations

from typing import Any

from sklearn.utils.validation import check_is_fitted

from metacal.estimators.base import Calibrator, calibrator_from, name_of
from metacal.formulas import Codes, Float
from metacal.gate import Recipe
from metacal.maps.composed import USUAL, ComposedMap, as_front, fit_composed, seen_through
from metacal.maps.temperature import TemperatureMap
from metacal.maps.uniform import UniformTemperatureMap
from metacal.rows import Rows


class ComposedCalibration(Calibrator[ComposedMap]):
    """One calibrator after another: the second sees the logarithms of the first one's
    probabilities.

    By default a monotone spline on temperature scaling with a uniform part: the front takes care of
    rows with an almost impossible true class, the spline of the confidence. It keeps every
    prediction if both of its parts do.

    Parameters
    ----------
    first, then : str or calibrator
        By name, as on the command line, or with options of their own:
        `then=mc.StructuredScaling(regularisation=1.0)`. A saved file keeps what was fitted and, of
        the parts, their names.
    input, classes, positive, n_jobs
        As in `TemperatureScaling`.

    Attributes
    ----------
    map_ : ComposedMap
        The fitted map, a frozen value: `first` and `then` are maps themselves.
    temperature_ : float
        T of the first part, where it has one.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> cal = mc.ComposedCalibration().fit(data.logits[:5000], data.labels[:5000])
    >>> round(mc.metrics.nll(cal.predict_proba(data.logits[5000:]), data.labels[5000:]), 3)
    0.225
    """

    first: Any = "uniform-temperature"
    then: Any = "spline"

    @property
    def temperature_(self) -> float:
        """T of the first part; it must have one."""
        check_is_fitted(self)
        if not isinstance(self.map_.first, TemperatureMap | UniformTemperatureMap):
            raise AttributeError(f"{name_of(self.first)} has no temperature.")
        return self.map_.first.temperature

    @property
    def _stays_on_device(self) -> bool:
        return (self.first, self.then) == USUAL

    def recipe(self) -> Recipe:
        """How it is fitted, the parts by their names."""
        plain = super().recipe()
        return Recipe(
            plain.estimator,
            {**plain.parameters, "first": name_of(self.first), "then": name_of(self.then)},
        )

    def _fit_map(self, rows: Rows, codes: Codes, weights: Float | None) -> ComposedMap:
        if (self.first, self.then) == USUAL:
            return fit_composed(rows, codes, weights)
        front = as_front(
            calibrator_from(self.first).fit_rows(rows, codes, weights).map_, rows, weights
        )
        then = calibrator_from(self.then).fit_rows(seen_through(front, rows), codes, weights).map_
        return ComposedMap(front, then)
