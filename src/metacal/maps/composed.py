"""Composed calibration: one map after another, then(log first(x)).

The first map prepares the table. Temperature scaling with a uniform component leaves no class
with a probability below e / K, so a few rows with an almost impossible true class do not
dominate the second map. Zhang, Kailkhura & Han, "Mix-n-Match", ICML 2020, compose temperature
scaling and isotonic regression in this way.

The *default pair* is a monotone spline after temperature scaling with a uniform component,
both fitted on all rows. It is the default base map of a gate for more than two classes. A
temperature fitted on the accepted rows would be worse: accepted rows have few errors, and a
few of them with an almost impossible true class would determine T. The uniform component
absorbs those rows, and the spline corrects the confidence, which the gate reports. Both maps
preserve every prediction, so a promise about the largest logit is one about the largest
probability. `docs/quality.md` has the measurements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import ClassMismatchError, InputError
from metacal.formulas import Codes, Float
from metacal.formulas.parts import composed, spline_after_uniform
from metacal.kernels.columns import RowMap
from metacal.maps.averaged_spline import fit_averaged_spline
from metacal.maps.labelled import LabelledRows, Weights
from metacal.maps.map import CombinedMap, Map
from metacal.maps.methods import METHODS
from metacal.maps.spline import SplineMap
from metacal.maps.uniform import UniformTemperatureMap, fit_uniform_temperature_with_statistics
from metacal.rows import Rows
from metacal.rows.arrays import to_numpy
from metacal.rows.stored import ConvertedTable

_Map = TypeVar("_Map", bound=Map)

#: Largest number of entries of an in-memory table whose log-probabilities are also kept in memory.
_MAX_ENTRIES_FROM_MEMORY = 1 << 25
#: Largest number of entries of a table on disk whose log-probabilities are kept in memory.
_MAX_ENTRIES_FROM_DISK = 1 << 22
#: Methods of the default pair, which are fitted and applied together.
DEFAULT_PAIR = ("uniform-temperature", "spline")
#: Logarithm used for a probability of an unmasked class that was rounded to zero.
_MIN_LOG_PROBABILITY = float(np.log(np.finfo(np.float64).tiny))


@dataclass(frozen=True, eq=False)
class ComposedMap(CombinedMap):
    """Composition of two maps: then(log first(x)).

    One kernel computes the default pair, without a table of logarithms.

    Examples
    --------
    >>> from metacal.maps.temperature import TemperatureMap
    >>> quarter = ComposedMap(TemperatureMap(0.5), TemperatureMap(0.5))
    >>> quarter(np.array([[4.0, 0.0]])).round(3)
    array([[0.731, 0.269]])
    """

    first: Map
    then: Map

    @property
    def formula(self) -> Callable[..., Any]:  # type: ignore[override]
        """Formula of the composition, a special one for the default pair."""
        return composed if self.temperature_and_spline_maps is None else spline_after_uniform

    @property
    def supports_single_precision(self) -> bool:  # type: ignore[override]
        """Whether float32 tables are computed in single precision (the default pair)."""
        return self.temperature_and_spline_maps is not None

    on_device = supports_single_precision
    allows_any_block_size = supports_single_precision

    @property
    def temperature_and_spline_maps(self) -> tuple[UniformTemperatureMap, SplineMap] | None:
        """Maps of the default pair, or None for a composition of other maps."""
        first = self.first
        then = self.then
        if not isinstance(first, UniformTemperatureMap) or not isinstance(then, SplineMap):
            return None
        if then.inverse_temperature != 1.0:
            return None
        return first, then

    @property
    def single_pass_map(self) -> RowMap | None:
        """Default pair as a single-pass map for a device, or None for other maps."""
        if self.temperature_and_spline_maps is None:
            return None
        temperature_map, spline = self.temperature_and_spline_maps
        return RowMap(temperature_map.inverse_temperature, temperature_map.uniform, spline.curve)

    def check(self) -> None:
        """Raise InputError unless both maps have the same number of classes."""
        if not (isinstance(self.first, Map) and isinstance(self.then, Map)):
            raise InputError(
                f"first and then must be fitted maps, but got {self.first!r} and {self.then!r}."
            )
        n_first = self.first.n_classes
        n_then = self.then.n_classes
        if n_first is not None and n_then is not None and n_first != n_then:
            raise ClassMismatchError(
                f"The two maps must be fitted on the same classes, but got {n_first} and {n_then}"
                " classes."
            )

    def write_probabilities(self, block: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the probabilities of a block of logits into `out`."""
        if self.temperature_and_spline_maps is None:
            self.then.write_probabilities(compute_log_probabilities(self.first, block), out)
            return
        temperature_map, spline = self.temperature_and_spline_maps
        kernels.softmax_with_curve(
            block, temperature_map.inverse_temperature, temperature_map.uniform, spline.curve, out
        )

    def try_writing_clipped_probabilities(self, block: NDArray[Any], out: NDArray[Any]) -> bool:
        """Write clipped probabilities in one pass if a kernel supports the map."""
        if self.temperature_and_spline_maps is None:
            return False
        temperature_map, spline = self.temperature_and_spline_maps
        return kernels.try_writing_clipped_probabilities(
            block,
            temperature_map.inverse_temperature,
            out,
            uniform_weight=temperature_map.uniform,
            curve=spline.curve,
        )

    def try_computing_confidences(
        self, block: NDArray[Any], rows: Codes | None = None
    ) -> Float | None:
        """Compute the clipped probability of the predicted class of each row."""
        if self.temperature_and_spline_maps is None:
            return None
        temperature_map, spline = self.temperature_and_spline_maps
        return kernels.try_computing_confidences(
            block,
            temperature_map.inverse_temperature,
            uniform_weight=temperature_map.uniform,
            curve=spline.curve,
            rows=rows,
        )


def fit_composed(
    rows: Rows,
    labels: Codes,
    weights: Weights = None,
    *,
    first: str = "uniform-temperature",
    then: str = "spline",
) -> ComposedMap:
    """Fit one method, then a second one on the log-probabilities of the first.

    Both are fitted on all rows. The spline of the default pair is fitted to the row
    statistics of the last pass of the first fit, so it needs no pass over the table. If the
    table is on a device, only two columns are copied to the host.

    Parameters
    ----------
    rows : Rows
        Rows of logits.

    labels : array of int of shape (n_rows,)
        Column index of the true class of each row.

    weights : array of shape (n_rows,), optional
        Weight of each row.

    first, then : str
        Names of the methods.

    Returns
    -------
    ComposedMap
    """
    for name in (first, then):
        if name not in METHODS:
            raise InputError(
                f"Unknown calibrator {name!r}. The available calibrators are {', '.join(METHODS)}."
            )
    if (first, then) == DEFAULT_PAIR:
        return _fit_default_pair(LabelledRows(rows, labels, weights))
    fit_first = METHODS[first].get_fit_function()
    fit_then = METHODS[then].get_fit_function()
    first_map = ensure_min_uniform_component(fit_first(rows, labels, weights), len(rows), weights)
    rows_of_log_probabilities = compute_log_probability_rows(first_map, rows)
    then_map = fit_then(rows_of_log_probabilities, labels, weights)
    return ComposedMap(first_map, then_map)


def _fit_default_pair(sample: LabelledRows) -> ComposedMap:
    """Fit uniform temperature scaling and a spline on top of it."""
    uniform_fit = fit_uniform_temperature_with_statistics(sample)
    row_statistics = uniform_fit.statistics
    weights = row_statistics.weights
    if weights is not None:
        weights = np.asarray(to_numpy(weights))
    first_map = ensure_min_uniform_component(uniform_fit.fitted, len(row_statistics), weights)
    log_odds = row_statistics.compute_log_odds(first_map)
    spline = fit_averaged_spline(log_odds, row_statistics.correct, weights)
    return ComposedMap(first_map, spline)


def get_default_calibrator_name(n_classes: int | None) -> str:
    """Return the name of the default method for the base map of a gate.

    For two classes it is a monotone curve, which can correct an offset, unlike a temperature.

    Examples
    --------
    >>> get_default_calibrator_name(2), get_default_calibrator_name(10)
    ('monotone', 'composed')
    """
    return "monotone" if n_classes == 2 else "composed"


def make_softmax_map(n_classes: int) -> Map:
    """Return a map of the default method that equals the plain softmax.

    Examples
    --------
    >>> make_softmax_map(2)(np.array([[2.0, 0.0]])).round(3)
    array([[0.881, 0.119]])
    >>> make_softmax_map(3)(np.array([[2.0, 0.0, 0.0]])).round(3)
    array([[0.787, 0.107, 0.107]])
    """
    if n_classes == 2:
        # The monotone map is needed for two classes only.
        from metacal.maps.monotone import make_identity_monotone_map

        return make_identity_monotone_map()
    return ComposedMap(UniformTemperatureMap(1.0, 0.0), SplineMap(np.zeros(1), np.ones(1), 0.0))


def ensure_min_uniform_component(fitted: _Map, n_rows: int, weights: Weights) -> _Map:
    """Increase the uniform component of a map to at least 1 / (n + 1).

    Other maps are returned unchanged.

    Parameters
    ----------
    fitted : Map
        Map that another map will follow.

    n_rows : int
        Number of rows on which it was fitted.

    weights : array of shape (n_rows,) or None
        Weight of each row. With weights, n is their sum or, if they are fractions, the
        effective sample size (Σw)² / Σw².

    Returns
    -------
    Map

    Examples
    --------
    >>> ensure_min_uniform_component(UniformTemperatureMap(1.0, 0.0), 99, None)
    UniformTemperatureMap(inverse_temperature=1.0, uniform=0.01)
    """
    if not isinstance(fitted, UniformTemperatureMap):
        return fitted
    n_effective_rows = float(n_rows)
    if weights is not None:
        total_weight = float(weights.sum())
        n_effective_rows = max(total_weight, total_weight**2 / float(weights @ weights))
    return replace(fitted, uniform=max(fitted.uniform, 1.0 / (n_effective_rows + 1.0)))


def compute_log_probability_rows(first_map: Map, rows: Rows) -> Rows:
    """Replace the logits of each row by the log-probabilities of a first map.

    A small table is computed once and held in memory. A large one is computed again each
    time it is read.
    """
    rows = rows.to_host()
    is_in_memory = isinstance(rows.table, np.ndarray) and not isinstance(rows.table, np.memmap)
    max_entries = _MAX_ENTRIES_FROM_MEMORY if is_in_memory else _MAX_ENTRIES_FROM_DISK
    n_entries = len(rows) * rows.n_classes
    if n_entries > max_entries:
        convert_block = partial(compute_log_probabilities, first_map)
        return rows.copy_with(table=ConvertedTable(rows.table, convert_block, np.float64))
    log_probability_table = np.empty((len(rows), rows.n_classes))
    write_block = partial(_write_log_probabilities, first_map)
    rows.fill_columns(write_block, log_probability_table)
    return Rows(log_probability_table, executor=rows.executor)


def compute_log_probabilities(fitted: Map, block: NDArray[Any]) -> Float:
    """Compute log-probabilities in float64, with -inf only for masked classes."""
    log_probabilities = np.empty(block.shape)
    _write_log_probabilities(fitted, block, log_probabilities)
    return log_probabilities


def _write_log_probabilities(fitted: Map, block: NDArray[Any], out: NDArray[Any]) -> None:
    """Write the log-probabilities of a block of logits into `out`."""
    logits = np.asarray(block, dtype=np.float64)
    is_masked = None
    if logits.min(initial=0.0) == -np.inf:
        is_masked = np.isneginf(logits)
    fitted.write_probabilities(logits, out)
    with np.errstate(divide="ignore"):
        np.log(out, out=out)
    np.maximum(out, _MIN_LOG_PROBABILITY, out=out)
    if is_masked is not None:
        out[is_masked] = -np.inf
