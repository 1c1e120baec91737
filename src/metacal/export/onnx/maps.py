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

from metacal.errors import ExportError
from metacal.export.onnx.operations import (
    GraphValue,
    OnnxOperations,
    branch_on_masks,
    replace_finite_masks,
)
from metacal.formulas import curves, parts, temperature
from metacal.formulas.logits import limit_logits_formula
from metacal.formulas.probabilities import limit_probabilities, probability_limits
from metacal.kernels.columns import compute_curve_factors
from metacal.maps.map import Map
from metacal.maps.methods import METHODS

# Bound on a sum of probabilities, far above all rounding errors. NaN does not satisfy it, because
# every comparison with NaN is false.
_PROBABILITY_SUM_BOUND = 2.0


def append_map(xp: OnnxOperations, fitted_map: Map, logits: GraphValue) -> GraphValue:
    """Append the nodes that compute the probabilities of a fitted map.

    Smooth maps are computed in the precision of the table. The others are computed in double
    precision, because steps and steep curves amplify rounding errors.

    Parameters
    ----------
    xp : OnnxOperations
        Operations in the precision of the table.

    fitted_map : Map
        Fitted map.

    logits : GraphValue of shape (n, K)
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
    if fitted_map.formula is None:
        map_names = set()
        for method in METHODS.values():
            _module, _, class_name = method.map.partition(":")
            map_names.add(class_name)
        raise ExportError(
            f"ONNX export does not support {type(fitted_map).__name__}. The supported maps are"
            f" {', '.join(sorted(map_names))}."
        )
    if fitted_map.supports_single_precision:
        probs = replace(xp, kernels=FAST_FORMULAS).apply_map(fitted_map, logits)
    else:
        double_xp = replace(xp, dtype="float64", all_masks_are_infinite=True, kernels=FAST_FORMULAS)
        double_logits = double_xp.graph_value(_append_limited_double_logits(xp, logits))
        probs = double_xp.apply_map(fitted_map, double_logits)
        if xp.dtype != "float64":
            probs = xp.cast(probs)
    return _exclude_zero_and_one(xp, logits, probs)


def _exclude_zero_and_one(xp: OnnxOperations, logits: GraphValue, probs: GraphValue) -> GraphValue:
    """Append nodes that clip the probabilities of unmasked classes to (0, 1)."""

    def clip_without_masks(branch_xp: OnnxOperations) -> GraphValue:
        min_prob, max_prob = probability_limits(np.finfo(xp.dtype))
        clipped_probs = branch_xp.graph_value(probs)
        clipped_probs = branch_xp.where(clipped_probs < min_prob, min_prob, clipped_probs)
        return branch_xp.where(clipped_probs > max_prob, max_prob, clipped_probs)

    def clip_with_masks(branch_xp: OnnxOperations) -> GraphValue:
        # The probability of a masked class stays 0. Its logit is -inf, or a very low finite number.
        masked_logits = _logits_with_infinite_masks(branch_xp, logits)
        return limit_probabilities(branch_xp, masked_logits, branch_xp.graph_value(probs))

    return branch_on_masks(
        xp, logits, write_unmasked=clip_without_masks, write_masked=clip_with_masks
    )


def _append_limited_double_logits(xp: OnnxOperations, logits: GraphValue) -> GraphValue:
    """Append logits in double precision, with -inf for masks and limited magnitude."""

    def cast_without_masks(branch_xp: OnnxOperations) -> GraphValue:
        return branch_xp.cast(logits)

    def cast_with_masks(branch_xp: OnnxOperations) -> GraphValue:
        # A number counts as a mask in the precision of the table.
        table_xp = branch_xp.with_dtype(xp.dtype)
        return branch_xp.cast(replace_finite_masks(table_xp, logits))

    double_logits = branch_on_masks(
        xp,
        logits,
        write_unmasked=cast_without_masks,
        write_masked=cast_with_masks,
        dtype="float64",
    )
    can_exceed_limit = xp.dtype == "float64"
    if can_exceed_limit:
        return limit_logits_formula(xp, double_logits)
    # The limit is larger than every float32 number.
    return double_logits


def has_no_nan(xp: OnnxOperations, fitted_map: Map, probs: GraphValue) -> GraphValue:
    """Append the nodes that check whether each row of probabilities contains no NaN.

    Parameters
    ----------
    xp : OnnxOperations
        Operations in the precision of the probabilities.

    fitted_map : Map
        Map that computed the probabilities.

    probs : GraphValue of shape (n, K)
        Probabilities.

    Returns
    -------
    GraphValue of shape (n,)
        Boolean of each row.
    """
    if fitted_map.ends_in_softmax:
        # The first class shows it, because a NaN in a softmax makes all entries of the row NaN.
        first_class_index = xp.with_dtype("int64").constant(0)
        first_column = xp.append_node("Gather", probs, first_class_index, axis=1)
        return first_column <= _PROBABILITY_SUM_BOUND
    row_sums = xp.squeeze(xp.sum(probs))
    return row_sums <= _PROBABILITY_SUM_BOUND


def append_tempered_softmax(
    xp: OnnxOperations, logits: GraphValue, inverse_temperature: float
) -> GraphValue:
    """Append the nodes that compute softmax(b·x) in the precision of the table.

    b·x may overflow although x does not, and ∞ - ∞ is NaN. This requires b > 1 and a largest logit
    so large that all different logits are more than 1e20 below it. Every b ≥ 1 results in the same
    softmax for such a row, so b = 1 is used for it. (The operator Softmax subtracts the largest
    logit itself.)

    Parameters
    ----------
    xp : OnnxOperations
        Operations in the precision of the table.

    logits : GraphValue of shape (n, K)
        Logits.

    inverse_temperature : float
        The factor b.

    Returns
    -------
    GraphValue of shape (n, K)
    """
    if inverse_temperature == 1.0:
        return xp.softmax(logits)
    logit_factor: GraphValue | float = inverse_temperature
    # Together with the replacement of finite masks, the logits have been limited.
    can_overflow = inverse_temperature > 1.0 and not xp.all_masks_are_infinite
    if can_overflow:
        largest_safe_logit = np.finfo(xp.dtype).max / inverse_temperature
        is_safe_row = xp.absolute(xp.max(logits)) < largest_safe_logit
        logit_factor = xp.where(is_safe_row, inverse_temperature, 1.0)
    return xp.softmax(logits * logit_factor)


def _append_uniform_temperature(
    xp: OnnxOperations, fitted_map: Any, logits: GraphValue
) -> GraphValue:
    """Append the nodes of a `UniformTemperatureMap`."""
    tempered_probs = append_tempered_softmax(xp, logits, fitted_map.inverse_temperature)
    uniform_weight = fitted_map.uniform
    if uniform_weight == 0.0:
        return tempered_probs
    weighted_probs = tempered_probs * (1.0 - uniform_weight)
    return _add_uniform(xp, weighted_probs, logits, uniform_weight=uniform_weight)


def _append_ensemble(xp: OnnxOperations, fitted_map: Any, logits: GraphValue) -> GraphValue:
    """Append the nodes of an `EnsembleTemperatureMap`."""
    tempered_weight, softmax_weight, uniform_weight = fitted_map.weights
    tempered_probs = append_tempered_softmax(xp, logits, fitted_map.inverse_temperature)
    mixture = tempered_probs * tempered_weight + xp.softmax(logits) * softmax_weight
    if uniform_weight <= 0.0:
        return mixture
    return _add_uniform(xp, mixture, logits, uniform_weight=uniform_weight)


def _add_uniform(
    xp: OnnxOperations, probs: GraphValue, logits: GraphValue, *, uniform_weight: float
) -> GraphValue:
    """Append the nodes that add a weighted uniform distribution over the unmasked classes."""

    def add_without_masks(branch_xp: OnnxOperations) -> GraphValue:
        return branch_xp.graph_value(probs) + uniform_weight / xp.n_classes

    def add_with_masks(branch_xp: OnnxOperations) -> GraphValue:
        is_unmasked = _unmasked_indicator(branch_xp, logits)
        n_unmasked = branch_xp.sum(is_unmasked)
        return branch_xp.graph_value(probs) + is_unmasked / (n_unmasked / uniform_weight)

    return branch_on_masks(
        xp, logits, write_unmasked=add_without_masks, write_masked=add_with_masks
    )


def _append_spline_on_temperature(
    xp: OnnxOperations, fitted_map: Any, logits: GraphValue
) -> GraphValue:
    """Append the nodes of temperature scaling followed by a spline.

    The softmax is computed in the precision of the table. The scale and shift of each row are
    computed in double precision, see `metacal.kernels.columns`.
    """
    double_xp = xp.with_dtype("float64")
    temperature_map, spline = fitted_map.temperature_and_spline_maps
    prediction = xp.argmax(logits)
    tempered_probs = append_tempered_softmax(xp, logits, temperature_map.inverse_temperature)
    other_probs = xp.replace_class_entry(tempered_probs, prediction, 0.0)
    sum_of_others = xp.sum(other_probs)
    largest_other = xp.max(other_probs)
    scale, shift, predicted_prob = compute_curve_factors(
        double_xp,
        others_p=double_xp.cast(sum_of_others),
        second_p=double_xp.cast(largest_other),
        uniform_probability=_inverse_class_count(xp, logits),
        uniform_weight=temperature_map.uniform,
        curve_value=partial(curves.spline_value, double_xp, spline),
    )
    scale = xp.cast(scale)
    shift = xp.cast(shift)
    predicted_prob = xp.cast(predicted_prob)
    adjusted_probs = other_probs * scale + shift

    def adjust_without_masks(branch_xp: OnnxOperations) -> GraphValue:
        return branch_xp.append_node("Identity", adjusted_probs)

    def adjust_with_masks(branch_xp: OnnxOperations) -> GraphValue:
        return branch_xp.graph_value(adjusted_probs) * _unmasked_indicator(branch_xp, logits)

    unmasked_probs = branch_on_masks(
        xp, logits, write_unmasked=adjust_without_masks, write_masked=adjust_with_masks
    )
    return xp.replace_class_entry(unmasked_probs, prediction, predicted_prob)


def _inverse_class_count(xp: OnnxOperations, logits: GraphValue) -> GraphValue:
    """Append one over the number of unmasked classes of each row (n × 1), in double precision."""

    def invert_without_masks(branch_xp: OnnxOperations) -> GraphValue:
        return branch_xp.constant([[1.0 / xp.n_classes]])

    def invert_with_masks(branch_xp: OnnxOperations) -> GraphValue:
        table_xp = branch_xp.with_dtype(xp.dtype)
        n_unmasked = table_xp.sum(_unmasked_indicator(table_xp, logits))
        return 1.0 / branch_xp.cast(n_unmasked)

    return branch_on_masks(
        xp,
        logits,
        write_unmasked=invert_without_masks,
        write_masked=invert_with_masks,
        dtype="float64",
    )


def _unmasked_indicator(xp: OnnxOperations, logits: GraphValue) -> GraphValue:
    """Append a table with 1 for each unmasked class and 0 for each masked class."""
    is_unmasked = xp.find_unmasked(_logits_with_infinite_masks(xp, logits))
    return xp.to_float(is_unmasked)


def _logits_with_infinite_masks(xp: OnnxOperations, logits: GraphValue) -> GraphValue:
    """Append the logits with -inf for masked classes, unless they have been replaced."""
    if xp.all_masks_are_infinite:
        return xp.graph_value(logits)
    return replace_finite_masks(xp, logits)


#: Functions that append fewer or faster nodes than the formula that is their key.
FAST_FORMULAS: dict[Callable[..., Any], Callable[..., Any]] = {
    temperature.tempered_softmax: append_tempered_softmax,
    temperature.uniform_temperature: _append_uniform_temperature,
    temperature.ensemble: _append_ensemble,
    parts.spline_after_uniform: _append_spline_on_temperature,
}
