"""Fitted maps as ONNX nodes.

Smooth maps with one exponential are written in single precision for a float32 table, like the
kernels in Python. Two cases then need care:

- b·x may overflow although x does not;
- masked classes may be finite numbers. A branch that counts the classes that are not masked runs
  only for tables in which a class may be masked. Other tables only pay for finding that out.

All other maps are written in double precision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from metacal.errors import InputError
from metacal.export.onnx.operations import (
    GraphValue,
    OnnxOperations,
    branch_on_masks,
    replace_finite_masks,
)
from metacal.formulas import curves, parts, temperature
from metacal.formulas.logits import limit_logits_formula
from metacal.formulas.probabilities import limit_probabilities, probability_limits
from metacal.kernels.columns import curve_adjustment
from metacal.maps.map import Map
from metacal.maps.methods import METHODS

# Probabilities, and their sums up to rounding, are below this bound. NaN is not.
_PROBABILITY_BOUND = 2.0


def probabilities(xp: OnnxOperations, fitted: Map, x: GraphValue) -> GraphValue:
    """Append the nodes that compute the probabilities of a map.

    Smooth maps are computed in the precision of the table. The others are computed in double
    precision, because steps and steep curves amplify rounding errors.

    Parameters
    ----------
    xp : OnnxOperations
        Operations in the precision of the table.

    fitted : Map
        Fitted map.

    x : GraphValue of shape (n, K)
        Logits in float32 or float64.

    Returns
    -------
    GraphValue of shape (n, K)
        Probabilities in the precision of the table.

    Raises
    ------
    InputError
        If the map has no formula.
    """
    if fitted.formula is None:
        map_names = sorted({method.map.partition(":")[2] for method in METHODS.values()})
        raise InputError(
            f"a {type(fitted).__name__} cannot be exported to ONNX; what can is"
            f" {', '.join(map_names)}."
        )
    if fitted.in_table_precision:
        probs = replace(xp, kernels=SHORTCUTS).apply_map(fitted, x)
        return _exclude_zero_and_one(xp, x, probs)
    double = replace(xp, dtype="float64", masks_read=True, kernels=SHORTCUTS)
    probs = double.apply_map(fitted, double.value(_double_logits(xp, x)))
    if xp.dtype != "float64":
        probs = xp.cast(probs)
    return _exclude_zero_and_one(xp, x, probs)


def _exclude_zero_and_one(xp: OnnxOperations, x: GraphValue, probs: GraphValue) -> GraphValue:
    """Clip probabilities to the open interval (0, 1), except those of masked classes."""

    def clip_all(inner: OnnxOperations) -> GraphValue:
        smallest, largest = probability_limits(np.finfo(xp.dtype))
        clipped = inner.value(probs)
        clipped = inner.where(clipped < smallest, smallest, clipped)
        return inner.where(clipped > largest, largest, clipped)

    def clip_unmasked(inner: OnnxOperations) -> GraphValue:
        logits = inner.value(x) if inner.masks_read else replace_finite_masks(inner, x)
        return limit_probabilities(inner, logits, inner.value(probs))

    return branch_on_masks(xp, x, clip_all, clip_unmasked)


def _double_logits(xp: OnnxOperations, x: GraphValue) -> GraphValue:
    """Convert logits to double precision, with -inf for masks and limited magnitude."""

    def cast_unmasked(inner: OnnxOperations) -> GraphValue:
        return inner.cast(x)

    def cast_masked(inner: OnnxOperations) -> GraphValue:
        return inner.cast(replace_finite_masks(inner.to(xp.dtype), x))

    logits = branch_on_masks(xp, x, cast_unmasked, cast_masked, "float64")
    if xp.dtype == "float64":
        return limit_logits_formula(xp, logits)
    # All float32 numbers are small enough in double precision.
    return logits


def has_probabilities(xp: OnnxOperations, fitted: Map, probs: GraphValue) -> GraphValue:
    """Append the nodes that check whether the probabilities of each row are not NaN.

    Parameters
    ----------
    xp : OnnxOperations
        Operations in the precision of the probabilities.

    fitted : Map
        Map that computed the probabilities.

    probs : GraphValue of shape (n, K)
        Probabilities.

    Returns
    -------
    GraphValue of shape (n,)
        Boolean of each row.
    """
    if fitted.ends_in_softmax:
        # A NaN in the input makes the whole row of a softmax NaN, so one column is sufficient.
        first_column = xp.op("Gather", probs, xp.to("int64").name(0), axis=1)
        return first_column <= _PROBABILITY_BOUND
    return xp.squeeze(xp.sum(probs)) <= _PROBABILITY_BOUND


def tempered(xp: OnnxOperations, x: GraphValue, inverse_temperature: float) -> GraphValue:
    """Append the nodes of softmax(b·x) in the precision of the table.

    b·x may overflow although x does not, and ∞ - ∞ is NaN. This requires b > 1 and a largest logit
    so large that all different logits are more than 1e20 below it. Every b ≥ 1 results in the same
    softmax for such a row, so b = 1 is used for it. (The operator Softmax subtracts the largest
    logit itself.)

    Parameters
    ----------
    xp : OnnxOperations
        Operations in the precision of the table.

    x : GraphValue of shape (n, K)
        Logits.

    inverse_temperature : float
        The factor b.

    Returns
    -------
    GraphValue of shape (n, K)
    """
    if inverse_temperature == 1.0:
        return xp.softmax(x)
    factor: GraphValue | float = inverse_temperature
    # If masks have been read, the magnitude of the logits has been limited as well.
    if inverse_temperature > 1.0 and not xp.masks_read:
        largest_safe_logit = np.finfo(xp.dtype).max / inverse_temperature
        is_safe = xp.absolute(xp.max(x)) < largest_safe_logit
        factor = xp.where(is_safe, inverse_temperature, 1.0)
    return xp.softmax(x * factor)


def _uniform_temperature(xp: OnnxOperations, fitted: Any, x: GraphValue) -> GraphValue:
    """Append the nodes of a `UniformTemperatureMap`."""
    probs = tempered(xp, x, fitted.inverse_temperature)
    if fitted.uniform == 0.0:
        return probs
    return _add_uniform(xp, probs * (1.0 - fitted.uniform), fitted.uniform, x)


def _ensemble(xp: OnnxOperations, fitted: Any, x: GraphValue) -> GraphValue:
    """Append the nodes of an `EnsembleTemperatureMap`."""
    tempered_weight, softmax_weight, uniform_weight = fitted.weights
    tempered_part = tempered(xp, x, fitted.inverse_temperature) * tempered_weight
    mixture = tempered_part + xp.softmax(x) * softmax_weight
    if uniform_weight <= 0.0:
        return mixture
    return _add_uniform(xp, mixture, uniform_weight, x)


def _add_uniform(
    xp: OnnxOperations, mixture: GraphValue, weight: float, x: GraphValue
) -> GraphValue:
    """Add a uniform distribution over the classes that are not masked, times a weight."""

    def add_to_all(inner: OnnxOperations) -> GraphValue:
        return inner.value(mixture) + weight / xp.n_classes

    def add_to_unmasked(inner: OnnxOperations) -> GraphValue:
        is_unmasked = _unmasked_indicator(inner, x)
        return inner.value(mixture) + is_unmasked / (inner.sum(is_unmasked) / weight)

    return branch_on_masks(xp, x, add_to_all, add_to_unmasked)


def _lifted(xp: OnnxOperations, fitted: Any, x: GraphValue) -> GraphValue:
    """Append the nodes of a spline on a temperature map, see `metacal.kernels.columns`.

    The softmax is computed in the precision of the table. The few numbers per row that it is
    multiplied with, and that are added to it, are computed in double precision.
    """
    double = xp.to("float64")
    temperature_map, spline = fitted.default_pair
    prediction = xp.argmax(x)
    other_probs = xp.replace_class_entry(
        tempered(xp, x, temperature_map.inverse_temperature), prediction, 0.0
    )
    other_sum = xp.sum(other_probs)
    largest_other = xp.max(other_probs)
    scale, shift, top_prob = curve_adjustment(
        double,
        double.cast(other_sum),
        double.cast(largest_other),
        _inverse_class_count(xp, x),
        temperature_map.uniform,
        partial(curves.spline_value, double, spline),
    )
    scale = xp.cast(scale)
    shift = xp.cast(shift)
    top_prob = xp.cast(top_prob)
    scaled_probs = other_probs * scale + shift

    def keep_all(inner: OnnxOperations) -> GraphValue:
        return inner.op("Identity", scaled_probs)

    def keep_unmasked(inner: OnnxOperations) -> GraphValue:
        return inner.value(scaled_probs) * _unmasked_indicator(inner, x)

    unmasked_probs = branch_on_masks(xp, x, keep_all, keep_unmasked)
    return xp.replace_class_entry(unmasked_probs, prediction, top_prob)


def _inverse_class_count(xp: OnnxOperations, x: GraphValue) -> GraphValue:
    """Compute one over the number of unmasked classes (n × 1) in double precision."""

    def count_all(inner: OnnxOperations) -> GraphValue:
        return inner.value(inner.name([[1.0 / xp.n_classes]]))

    def count_unmasked(inner: OnnxOperations) -> GraphValue:
        in_table_precision = inner.to(xp.dtype)
        n_unmasked = in_table_precision.sum(_unmasked_indicator(in_table_precision, x))
        return 1.0 / inner.cast(n_unmasked)

    return branch_on_masks(xp, x, count_all, count_unmasked, "float64")


def _unmasked_indicator(xp: OnnxOperations, x: GraphValue) -> GraphValue:
    """Compute a table with 1 for each class that is not masked, and 0 otherwise."""
    logits = xp.value(x) if xp.masks_read else replace_finite_masks(xp, x)
    return xp.to_float(xp.find_unmasked(logits))


#: Functions that append fewer or faster nodes than a formula, by the formula.
SHORTCUTS: dict[Callable[..., Any], Callable[..., Any]] = {
    temperature.tempered_softmax: tempered,
    temperature.uniform_temperature: _uniform_temperature,
    temperature.ensemble: _ensemble,
    parts.spline_after_uniform: _lifted,
}
