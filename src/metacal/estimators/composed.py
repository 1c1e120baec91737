"""Estimator that applies one calibrator after another."""

from __future__ import annotations

from typing import Any

from sklearn.utils.validation import check_is_fitted

from metacal.estimators.base import Calibrator
from metacal.estimators.calibrator_factory import get_calibrator_name, make_calibrator
from metacal.formulas import Codes, Float
from metacal.gate import Recipe
from metacal.maps.composed import (
    DEFAULT_PAIR,
    ComposedMap,
    compute_log_probability_rows,
    ensure_min_uniform_component,
    fit_composed,
)
from metacal.maps.temperature import TemperatureMap
from metacal.maps.uniform import UniformTemperatureMap
from metacal.rows import Rows


class ComposedCalibration(Calibrator[ComposedMap]):
    """Composition of two calibrators, applied one after the other.

    The second calibrator reads the log-probabilities of the first. By default, the first is temperature scaling with a uniform part, which handles rows with an
    almost impossible true class. The second is a monotone spline of the confidence. The composition
    keeps every prediction if both calibrators do.

    Parameters
    ----------
    first, then : str or calibrator, default="uniform-temperature" and "spline"
        Calibrators, by their name on the command line or as estimators, such as
        `then=mc.StructuredScaling(regularisation=1.0)`. A saved file contains the fitted maps and
        the names of the calibrators, but not their parameters.
    input, classes, positive, n_jobs
        See `TemperatureScaling`.

    Attributes
    ----------
    map_ : ComposedMap
        Fitted map, a frozen value. Its attributes `first` and `then` are maps.
    temperature_ : float
        Temperature of the first calibrator, if it has one.

    See Also
    --------
    SplineCalibration : Monotone spline of the confidence.
    UniformTemperatureScaling : Temperature scaling with a uniform part.
    AutoCalibrator : Weighted average of several calibrators.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> calibrator = mc.ComposedCalibration().fit(data.logits[:5000], data.labels[:5000])
    >>> probabilities = calibrator.predict_proba(data.logits[5000:])
    >>> round(mc.metrics.nll(probabilities, data.labels[5000:]), 3)
    0.225
    """

    first: Any = "uniform-temperature"
    then: Any = "spline"

    @property
    def temperature_(self) -> float:
        """Temperature of the first calibrator. Raises AttributeError if it has none."""
        check_is_fitted(self)
        if not isinstance(self.map_.first, TemperatureMap | UniformTemperatureMap):
            raise AttributeError(f"{get_calibrator_name(self.first)} has no temperature_.")
        return self.map_.first.temperature

    @property
    def _supports_device_tables(self) -> bool:
        return self._is_default

    @property
    def _is_default(self) -> bool:
        """Whether both calibrators are the default ones, which have a faster joint fit."""
        return (self.first, self.then) == DEFAULT_PAIR

    def recipe(self) -> Recipe:
        """Return the class name and the parameters, with both calibrators as names."""
        recipe = super().recipe()
        calibrator_names = {
            "first": get_calibrator_name(self.first),
            "then": get_calibrator_name(self.then),
        }
        return Recipe(recipe.estimator, {**recipe.parameters, **calibrator_names})

    def _fit_map(self, rows: Rows, codes: Codes, weights: Float | None) -> ComposedMap:
        """Fit the first map, and then the second map on its log-probabilities."""
        if self._is_default:
            return fit_composed(rows, codes, weights)
        first_calibrator = make_calibrator(self.first).fit_rows(rows, codes, weights)
        first_map = ensure_min_uniform_component(first_calibrator.map_, len(rows), weights)
        transformed_rows = compute_log_probability_rows(first_map, rows)
        second_calibrator = make_calibrator(self.then).fit_rows(transformed_rows, codes, weights)
        return ComposedMap(first_map, second_calibrator.map_)
