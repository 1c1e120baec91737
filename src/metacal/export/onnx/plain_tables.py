"""Probabilities of plain tables as ONNX nodes, for the most frequent maps.

A table is *plain* if the scores of all its rows are finite (see `metacal.export.onnx.scores`) and no
logit is low enough to be a mask. All its logits are finite then. Its probabilities need fewer
passes over the table than those of a general table: nothing is NaN, no class is masked, and a
number per row replaces most operations on the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from metacal.export.onnx.operations import GraphValue, OnnxOperations
from metacal.export.onnx.scores import DoublePrecisionScores, SinglePrecisionScores, TopLogit
from metacal.formulas import parts, temperature
from metacal.formulas.logits import LARGEST_FINITE_MASK
from metacal.formulas.probabilities import probability_limits
from metacal.kernels.columns import MAX_EXPONENT, MIN_PREDICTION_RATIO
from metacal.maps.map import Map

#: Function that appends the probabilities of a plain table. Its parameters are the operations, the
#: fitted map, the logits, and the rows that keep their probabilities, or None for all rows. The
#: other rows get 1/K in every class.
PlainWriter = Callable[[OnnxOperations, Map, GraphValue, GraphValue | None], GraphValue]

# First operator set in which GatherND selects a block from each row.
_BATCHED_GATHER_OPSET = 12


def append_plain_check(
    xp: OnnxOperations,
    row_scores: SinglePrecisionScores | DoublePrecisionScores,
    row_flags: GraphValue,
    fitted: Map,
    logits: GraphValue,
) -> GraphValue:
    """Append a single boolean that is true only for a plain table, all of whose flags are true.

    It is also false if a logit could overflow when it is multiplied by the inverse temperature.

    Parameters
    ----------
    xp : OnnxOperations
        Operations in the precision of the table.

    row_scores : SinglePrecisionScores or DoublePrecisionScores
        Scores of the rows.

    row_flags : GraphValue of shape (n,)
        Flags of `row_scores`, which are true only for finite scores.

    fitted : Map
        Fitted map that `append_plain_probabilities` supports.

    logits : GraphValue of shape (n, K)
        Logits.

    Returns
    -------
    GraphValue
    """
    smallest_logit = xp.append_node("ReduceMin", logits, keepdims=0)
    is_plain = xp.all_true(row_flags) & (smallest_logit > LARGEST_FINITE_MASK)
    inverse_temperature = _inverse_temperature(fitted)
    # In a damaged file this number may be NaN. The general nodes then reject every row.
    is_plain = is_plain & (xp.constant(inverse_temperature) < np.inf)
    if row_scores.allows_huge_logits and inverse_temperature > 1.0:
        largest_safe_logit = np.finfo(xp.dtype).max / inverse_temperature
        is_plain = is_plain & xp.all_true(xp.squeeze(xp.max(logits)) < largest_safe_logit)
    return is_plain


def find_plain_writer(fitted: Map) -> PlainWriter | None:
    """Return the function that appends the probabilities of plain tables, or None if none does."""
    return _WRITERS_BY_FORMULA.get(fitted.formula)


def find_top_logit_search(fitted: Map) -> Callable[[OnnxOperations, GraphValue], TopLogit] | None:
    """Return the function that finds the largest logits for a map, or None if it needs none.

    The writer of the map finds them in the same way, which results in the same nodes.
    """
    if fitted.formula is not parts.spline_after_uniform:
        return None
    return _find_top_logit


def _find_top_logit(xp: OnnxOperations, logits: GraphValue) -> TopLogit:
    """Append the nodes that find the largest logit of each row."""
    prediction, largest, _ = _find_two_largest(xp, logits)
    return TopLogit(prediction=prediction, value=largest)


def _inverse_temperature(fitted: Map) -> float:
    """Return the factor of the logits of a supported map."""
    base_map: Any = fitted
    if fitted.formula is parts.spline_after_uniform:
        base_map, _ = base_map.temperature_and_spline_maps
    return float(base_map.inverse_temperature)


def _append_temperature(
    xp: OnnxOperations, fitted: Any, logits: GraphValue, keeps_probs: GraphValue | None
) -> GraphValue:
    """Append the nodes of a `TemperatureMap`, with a single softmax.

    An inverse temperature of zero results in a uniform row. This would not be valid for infinite
    logits, because 0 · (-inf) is NaN.
    """
    logit_factor: Any = fitted.inverse_temperature
    if keeps_probs is not None:
        logit_factor = xp.where(xp.unsqueeze(keeps_probs), logit_factor, 0.0)
    probs = xp.softmax(xp.graph_value(logits) * logit_factor)
    return xp.append_node("Clip", probs, *probability_limits(np.finfo(xp.dtype)))


def _append_spline_on_temperature(
    xp: OnnxOperations, fitted: Any, logits: GraphValue, keeps_probs: GraphValue | None
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

    The limits of a probability need no pass. The shift is at least the lower limit. No other class
    can reach the upper limit, because the prediction is always more probable. The entry of the
    prediction is set to p - shift before the shift is added. This rounds twice, so p is at most one
    number below the upper limit.
    """
    double_xp = xp.with_dtype("float64")
    temperature_map, _ = fitted.temperature_and_spline_maps
    inverse_temperature = temperature_map.inverse_temperature
    table = xp.graph_value(logits)
    prediction, largest, second_largest = _find_two_largest(xp, table)
    scaled_second = xp.unsqueeze(second_largest * inverse_temperature)
    scaled_logits = xp.replace_class_entry(table * inverse_temperature, prediction, scaled_second)
    softmax_of_others = xp.softmax(scaled_logits)
    reference_prob = xp.append_node("GatherElements", softmax_of_others, prediction, axis=1)
    inverse_reference = 1.0 / double_xp.cast(xp.squeeze(reference_prob))
    gap = double_xp.cast(second_largest) - double_xp.cast(largest)
    adjustment = _append_curve_adjustment(
        double_xp,
        fitted,
        gap_factor=double_xp.exp(gap * inverse_temperature),
        sum_in_units=inverse_reference - 1.0,
    )
    min_prob, max_prob = probability_limits(np.finfo(xp.dtype))
    max_rounded_twice = max_prob - 0.5 * float(np.finfo(xp.dtype).eps)
    factor = adjustment.scale * inverse_reference
    shift = double_xp.maximum(adjustment.shift, min_prob)
    prediction_term = double_xp.minimum(adjustment.top_prob, max_rounded_twice) - shift
    if keeps_probs is not None:
        keeps_row = double_xp.graph_value(keeps_probs)
        factor = double_xp.where(keeps_row, factor, 0.0)
        shift = double_xp.where(keeps_row, shift, 1.0 / xp.n_classes)
        prediction_term = double_xp.where(keeps_row, prediction_term, 0.0)
    # The table is changed in place by all nodes but the last.
    scaled_probs = softmax_of_others * xp.unsqueeze(xp.cast(factor))
    prediction_column = xp.unsqueeze(xp.cast(prediction_term))
    scaled_probs = xp.replace_class_entry(scaled_probs, prediction, prediction_column)
    return scaled_probs + xp.unsqueeze(xp.cast(shift))


@dataclass(frozen=True)
class _CurveAdjustment:
    """Numbers of each row that turn e^{b(x - m')} of the other classes into probabilities.

    Attributes
    ----------
    scale, shift : GraphValue of shape (n,)
        The probability of another class is e^{b(x - m')}·scale + shift.

    top_prob : GraphValue of shape (n,)
        Probability of the prediction.
    """

    scale: GraphValue
    shift: GraphValue
    top_prob: GraphValue


def _append_curve_adjustment(
    double_xp: OnnxOperations, fitted: Any, gap_factor: GraphValue, sum_in_units: GraphValue
) -> _CurveAdjustment:
    """Append `metacal.kernels.columns.compute_curve_factors` with fewer nodes.

    There, the mixed probabilities are multiples of 1 / (1 + g S). Only their ratios matter, so this
    factor is left out here. All numbers of a row have the shape (n,).

    Parameters
    ----------
    double_xp : OnnxOperations
        Operations in double precision.

    fitted : Map
        Map with a spline that follows a temperature map.

    gap_factor : GraphValue of shape (n,)
        The number g of each row.

    sum_in_units : GraphValue of shape (n,)
        The number S of each row.
    """
    temperature_map, spline = fitted.temperature_and_spline_maps
    uniform_weight = temperature_map.uniform
    softmax_weight = 1.0 - uniform_weight
    uniform_prob = uniform_weight / double_xp.n_classes
    uniform_of_others = uniform_weight - uniform_prob
    others_sum = gap_factor * sum_in_units
    uniform_part = others_sum * uniform_prob + uniform_prob
    mixed_prediction = uniform_part + softmax_weight
    mixed_others = others_sum * (softmax_weight + uniform_of_others) + uniform_of_others
    if uniform_weight == 0.0:
        # The other classes underflow together, and the prediction gets probability 1.
        is_only_class = mixed_others == 0.0
        mixed_others = double_xp.where(is_only_class, 1.0, mixed_others)
    log_odds = double_xp.log(mixed_prediction) - double_xp.log(mixed_others)
    new_log_odds = _append_spline_value(double_xp, spline, log_odds)
    softmax_ratio = gap_factor * softmax_weight / mixed_others
    uniform_ratio = uniform_part / mixed_others
    # The prediction must be more probable than the second largest class.
    min_odds = (softmax_ratio + uniform_ratio) * MIN_PREDICTION_RATIO
    new_odds = double_xp.exp(double_xp.minimum(new_log_odds, MAX_EXPONENT))
    new_odds = double_xp.maximum(new_odds, min_odds)
    new_others = 1.0 / (new_odds + 1.0)
    top_prob = new_odds * new_others
    if uniform_weight == 0.0:
        top_prob = double_xp.where(is_only_class, 1.0, top_prob)
    return _CurveAdjustment(
        scale=softmax_ratio * new_others,
        shift=uniform_ratio * new_others,
        top_prob=top_prob,
    )


def _append_spline_value(double_xp: OnnxOperations, spline: Any, z: GraphValue) -> GraphValue:
    """Append `metacal.formulas.curves.spline_value` for a vector z of shape (n,).

    The linear parts beyond the outer knots are two more pieces of unlimited width. There is one row
    per piece, because onnxruntime is fast on long rows only.
    """
    knots = spline.knots
    slopes = spline.slopes
    widths = np.diff(knots)
    half_slope_changes = 0.5 * np.diff(slopes) / widths
    piece_knots = np.concatenate([knots[:1], knots[:-1], knots[-1:]])
    piece_slopes = np.concatenate([slopes[:1], slopes[:-1], slopes[-1:]])
    min_distances = np.concatenate([[-np.inf], np.zeros(len(knots))])
    max_distances = np.concatenate([[0.0], widths, [np.inf]])
    piece_half_changes = np.concatenate([[0.0], half_slope_changes, [0.0]])
    distances = double_xp.maximum(z - piece_knots[:, None], min_distances[:, None])
    distances = double_xp.minimum(distances, max_distances[:, None])
    mean_slopes = distances * piece_half_changes[:, None] + piece_slopes[:, None]
    rises = distances * mean_slopes
    return double_xp.constant(np.ones(len(piece_knots))) @ rises + spline.intercept


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

    largest, second_largest : GraphValue of shape (n,)
        They are equal if the largest logit occurs twice.
    """
    n_blocks = _choose_number_of_blocks(xp.n_classes)
    if n_blocks == 1 or xp.graph.opset < _BATCHED_GATHER_OPSET:
        prediction = xp.argmax(logits)
        other_logits = xp.replace_class_entry(logits, prediction, -np.inf)
        return prediction, xp.squeeze(xp.max(logits)), xp.squeeze(xp.max(other_logits))
    block_width = xp.n_classes // n_blocks
    # A size of 0 keeps the size of the batch. onnxruntime changes a table in place only where it
    # can infer that this size is the same.
    blocks = xp.append_node("Reshape", logits, xp.graph.add_integers(0, n_blocks, block_width))
    block_maxima = xp.graph_value(
        xp.graph.append_axis_node("ReduceMax", blocks.name, 2, keepdims=0)
    )
    block_index = xp.argmax(block_maxima)
    best_block = xp.append_node("GatherND", blocks, block_index, batch_dims=1)
    index_in_block = xp.argmax(best_block)
    integer_xp = xp.with_dtype("int64")
    first_in_block = integer_xp.squeeze(block_index) * block_width
    prediction = integer_xp.unsqueeze(first_in_block + integer_xp.squeeze(index_in_block))
    removed_entry = xp.append_node("Expand", -np.inf, xp.append_node("Shape", block_index))
    other_maxima = xp.replace_class_entry(block_maxima, block_index, removed_entry)
    others_in_block = xp.replace_class_entry(best_block, index_in_block, removed_entry)
    second_largest = xp.maximum(xp.max(other_maxima), xp.max(others_in_block))
    return (
        xp.graph_value(prediction),
        xp.squeeze(xp.max(block_maxima)),
        xp.squeeze(second_largest),
    )


def _choose_number_of_blocks(n_classes: int) -> int:
    """Return the divisor of the number of classes that is closest to its square root.

    It is 1 if the blocks would be much longer or shorter than that.
    """
    root = math.sqrt(n_classes)
    divisors = [d for d in range(1, n_classes + 1) if n_classes % d == 0]
    closest = min(divisors, key=lambda divisor: abs(math.log(divisor / root)))
    return closest if root / 4.0 <= closest <= 4.0 * root else 1


#: Functions that append the probabilities of plain tables, keyed by the formula of the map.
_WRITERS_BY_FORMULA: dict[Callable[..., Any] | None, PlainWriter] = {
    temperature.temperature: _append_temperature,
    parts.spline_after_uniform: _append_spline_on_temperature,
}
