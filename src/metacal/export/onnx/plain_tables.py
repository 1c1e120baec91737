"""Probabilities of plain tables as ONNX nodes, for the most frequent maps.

A table is *plain* if the decisions on all its rows are exact (see `metacal.export.onnx.scores`) and
no logit is low enough to be a mask. All its logits are finite then. Its probabilities need fewer
passes over the table than those of a general table: nothing is NaN, no class is masked, and a
number per row replaces most operations on the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from metacal.export.onnx.operations import GraphValue, OnnxOperations
from metacal.export.onnx.scores import SinglePrecisionScores
from metacal.formulas import curves, parts, temperature
from metacal.formulas.logits import LARGEST_FINITE_MASK
from metacal.formulas.probabilities import probability_limits
from metacal.kernels.columns import curve_adjustment
from metacal.maps.map import Map

#: Function that appends the probabilities of a plain table.
#: Its parameters are the operations, the fitted map, the logits, and a flag for each row.
#: A row whose flag is false gets 1/K in every class. Without flags, no row does.
FastPathWriter = Callable[[OnnxOperations, Map, GraphValue, GraphValue | None], GraphValue]

# First operator set in which GatherND selects a block from each row.
_BATCHED_GATHER_OPSET = 12


def append_fast_path_check(
    xp: OnnxOperations, single_scores: SinglePrecisionScores, fitted_map: Map, logits: GraphValue
) -> GraphValue:
    """Append a boolean that is true if no class is masked and all decisions are exact.

    It is also false if a logit could overflow when it is multiplied by the inverse temperature.

    Parameters
    ----------
    xp : OnnxOperations
        Operations in the precision of the table.

    single_scores : SinglePrecisionScores
        Scores in single precision.

    fitted_map : Map
        Fitted map that `find_fast_path_writer` supports.

    logits : GraphValue of shape (n, K)
        Logits.

    Returns
    -------
    GraphValue
    """
    smallest_logit = xp.append_node("ReduceMin", logits, keepdims=0)
    can_use_fast_path = xp.all_true(single_scores.is_decision_exact) & (
        smallest_logit > LARGEST_FINITE_MASK
    )
    inverse_temperature = _inverse_temperature(fitted_map)
    if single_scores.allows_huge_logits and inverse_temperature > 1.0:
        largest_safe_logit = np.finfo(xp.dtype).max / inverse_temperature
        can_use_fast_path = can_use_fast_path & xp.all_true(xp.max(logits) < largest_safe_logit)
    return can_use_fast_path


def find_fast_path_writer(fitted_map: Map) -> FastPathWriter | None:
    """Return the function that appends fewer nodes for a map, or None if there is none."""
    return _FAST_PATH_WRITERS_BY_FORMULA.get(fitted_map.formula)


def _inverse_temperature(fitted_map: Map) -> float:
    """Return the factor of the logits of a supported map."""
    base_map: Any = fitted_map
    if fitted_map.formula is parts.spline_after_uniform:
        base_map, _ = base_map.default_pair
    return float(base_map.inverse_temperature)


def _append_temperature(
    xp: OnnxOperations, fitted_map: Any, logits: GraphValue, keeps_probs: GraphValue | None
) -> GraphValue:
    """Append the nodes of a `TemperatureMap`, with a single softmax.

    An inverse temperature of zero results in a uniform row. This would not be valid for infinite
    logits, because 0 · (-inf) is NaN.
    """
    logit_factor: Any = fitted_map.inverse_temperature
    if keeps_probs is not None:
        logit_factor = xp.where(xp.unsqueeze(keeps_probs), logit_factor, 0.0)
    probs = xp.softmax(xp.graph_value(logits) * logit_factor)
    return xp.append_node("Clip", probs, *probability_limits(np.finfo(xp.dtype)))


def _append_spline_on_temperature(
    xp: OnnxOperations, fitted_map: Any, logits: GraphValue, keeps_probs: GraphValue | None
) -> GraphValue:
    """Append the nodes of a spline that follows a temperature map.

    With m the largest and m' the second largest logit of a row, and all sums over the classes
    other than the prediction:

    1. The logit of the prediction is replaced by m'. The softmax of the result has the entry
       1 / (1 + S) there, with S = Σ e^{b(x - m')} ≥ 1. So S = 1/entry - 1 loses no digits, whereas
       one minus the probability of the prediction would lose all of them in a confident row.
    2. The probability of another class is p = e^{b(x - m')} g / (1 + g S), with g = e^{b(m' - m)}.
    3. The map is p·scale + shift for the other classes, so it multiplies the entries of the softmax
       in step 1 by a number of the row and adds another.

    The last step needs no bounds unless the smallest probability that a logit could have is too
    small. No other class can reach the upper bound, because the prediction is always more probable.
    """
    double_xp = xp.with_dtype("float64")
    temperature_map, spline = fitted_map.default_pair
    inverse_temperature = temperature_map.inverse_temperature
    table = xp.graph_value(logits)
    prediction, largest, second_largest = _find_two_largest(xp, table)
    scaled_logits = xp.replace_class_entry(
        table * inverse_temperature, prediction, second_largest * inverse_temperature
    )
    softmax_of_others = xp.softmax(scaled_logits)
    reference_prob = double_xp.cast(
        xp.append_node("GatherElements", softmax_of_others, prediction, axis=1)
    )
    double_second = double_xp.cast(second_largest)
    gap_factor = double_xp.exp((double_second - double_xp.cast(largest)) * inverse_temperature)
    # In units of e^{bm'}, the largest other entry is 1.
    sum_in_units = 1.0 / reference_prob - 1.0
    unit = gap_factor / (gap_factor * sum_in_units + 1.0)
    scale, shift, top_prob = curve_adjustment(
        double_xp,
        sum_in_units * unit,
        unit,
        double_xp.constant([[1.0 / xp.n_classes]]),
        temperature_map.uniform,
        partial(curves.spline_value, double_xp, spline),
    )
    factor = scale * unit
    if keeps_probs is not None:
        keeps_column = double_xp.graph_value(xp.unsqueeze(keeps_probs))
        factor = double_xp.where(keeps_column, factor, 0.0)
        shift = double_xp.where(keeps_column, shift, 1.0 / xp.n_classes)
        top_prob = double_xp.where(keeps_column, top_prob, 1.0 / xp.n_classes)
    smallest_logit = double_xp.cast(xp.append_node("ReduceMin", logits, keepdims=0))
    smallest_in_units = double_xp.exp((smallest_logit - double_second) * inverse_temperature)
    min_prob, max_prob = probability_limits(np.finfo(xp.dtype))
    needs_no_floor = double_xp.all_true(smallest_in_units * factor + shift > 2.0 * min_prob)
    softmax_factor = xp.cast(factor / reference_prob)
    table_shift = xp.cast(shift)

    clipped_top_prob = xp.append_node("Clip", xp.cast(top_prob), min_prob, max_prob)

    def adjust(branch_xp: OnnxOperations) -> list[GraphValue]:
        probs = branch_xp.graph_value(softmax_of_others) * softmax_factor + table_shift
        return [branch_xp.replace_class_entry(probs, prediction, clipped_top_prob)]

    def adjust_with_floor(branch_xp: OnnxOperations) -> list[GraphValue]:
        probs = branch_xp.graph_value(softmax_of_others) * softmax_factor + table_shift
        probs = branch_xp.maximum(probs, min_prob)
        return [branch_xp.replace_class_entry(probs, prediction, clipped_top_prob)]

    (probs,) = xp.if_else(needs_no_floor, adjust, adjust_with_floor)
    return probs


def _find_two_largest(
    xp: OnnxOperations, logits: GraphValue
) -> tuple[GraphValue, GraphValue, GraphValue]:
    """Append the nodes that find the largest and second largest logit of each row.

    onnxruntime finds the index of a maximum ten times slower than the maximum. So the row is cut
    into blocks: the index is only searched among the maxima of the blocks, and in the block of the
    largest one. The first of equal logits is found, as in Python.

    Returns
    -------
    prediction : GraphValue of shape (n, 1)
        Column of the largest logit.

    largest, second_largest : GraphValue of shape (n, 1)
        They are equal if the largest logit occurs twice.
    """
    n_blocks = _choose_number_of_blocks(xp.n_classes)
    if n_blocks == 1 or xp.graph.opset < _BATCHED_GATHER_OPSET:
        prediction = xp.argmax(logits)
        other_logits = xp.replace_class_entry(logits, prediction, -np.inf)
        return prediction, xp.max(logits), xp.max(other_logits)
    block_width = xp.n_classes // n_blocks
    block_rows = xp.append_node("Reshape", logits, xp.graph.add_integers(-1, block_width))
    block_maxima = xp.append_node(
        "Reshape", xp.max(block_rows), xp.graph.add_integers(-1, n_blocks)
    )
    block_index = xp.argmax(block_maxima)
    blocks = xp.append_node("Reshape", logits, xp.graph.add_integers(-1, n_blocks, block_width))
    best_block = xp.append_node("GatherND", blocks, block_index, batch_dims=1)
    index_in_block = xp.argmax(best_block)
    prediction = xp.with_dtype("int64").graph_value(block_index) * block_width + index_in_block
    other_maxima = xp.replace_class_entry(block_maxima, block_index, -np.inf)
    others_in_block = xp.replace_class_entry(best_block, index_in_block, -np.inf)
    second_largest = xp.maximum(xp.max(other_maxima), xp.max(others_in_block))
    return xp.graph_value(prediction), xp.max(block_maxima), second_largest


def _choose_number_of_blocks(n_classes: int) -> int:
    """Return the divisor of the number of classes that is closest to its square root.

    It is 1 if the blocks would be much longer or shorter than that.
    """
    root = math.sqrt(n_classes)
    divisors = [number for number in range(1, n_classes + 1) if n_classes % number == 0]
    closest_divisor = min(divisors, key=lambda divisor: abs(math.log(divisor / root)))
    is_near_root = root / 4.0 <= closest_divisor <= 4.0 * root
    return closest_divisor if is_near_root else 1


#: Functions that append the probabilities of plain tables, keyed by the formula of the map.
_FAST_PATH_WRITERS_BY_FORMULA: dict[Callable[..., Any] | None, FastPathWriter] = {
    temperature.temperature: _append_temperature,
    parts.spline_after_uniform: _append_spline_on_temperature,
}
