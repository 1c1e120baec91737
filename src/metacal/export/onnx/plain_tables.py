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
#: fitted map, the logits, and a flag per row or None. A row whose flag is false gets 1/K in every
#: class instead of its probabilities.
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
    """Append a boolean that is true if a table is plain and the flags of all its rows are true.

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
    all_flags_true = xp.all_true(row_flags)
    has_no_masks = smallest_logit > LARGEST_FINITE_MASK
    is_plain = all_flags_true & has_no_masks
    inverse_temperature = _inverse_temperature(fitted)
    # The inverse temperature of a damaged file may be NaN. No table is plain then, and the nodes for
    # other tables reject every row.
    is_plain = is_plain & (xp.constant(inverse_temperature) < np.inf)
    if row_scores.is_finite_for_huge_logits and inverse_temperature > 1.0:
        largest_safe_logit = np.finfo(xp.dtype).max / inverse_temperature
        can_scale_all_rows = xp.all_true(xp.squeeze(xp.max(logits)) < largest_safe_logit)
        is_plain = is_plain & can_scale_all_rows
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
    two_largest = _find_two_largest(xp, logits)
    return TopLogit(prediction=two_largest.prediction, value=two_largest.largest)


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
    two_largest = _find_two_largest(xp, table)
    prediction = two_largest.prediction
    scaled_second = xp.unsqueeze(two_largest.second_largest * inverse_temperature)
    scaled_logits = xp.replace_class_entry(table * inverse_temperature, prediction, scaled_second)
    softmax_of_others = xp.softmax(scaled_logits)
    reference_prob = xp.append_node("GatherElements", softmax_of_others, prediction, axis=1)
    inverse_reference = 1.0 / double_xp.cast(xp.squeeze(reference_prob))
    gap = double_xp.cast(two_largest.second_largest) - double_xp.cast(two_largest.largest)
    adjustment = _append_curve_adjustment(
        double_xp,
        fitted,
        second_over_largest=double_xp.exp(gap * inverse_temperature),
        others_over_second=inverse_reference - 1.0,
    )
    min_prob, max_prob = probability_limits(np.finfo(xp.dtype))
    max_rounded_twice = max_prob - 0.5 * float(np.finfo(xp.dtype).eps)
    factor = adjustment.scale * inverse_reference
    shift = double_xp.maximum(adjustment.shift, min_prob)
    prediction_term = double_xp.minimum(adjustment.predicted_prob, max_rounded_twice) - shift
    if keeps_probs is not None:
        keeps_row = double_xp.graph_value(keeps_probs)
        factor = double_xp.where(keeps_row, factor, 0.0)
        shift = double_xp.where(keeps_row, shift, 1.0 / xp.n_classes)
        prediction_term = double_xp.where(keeps_row, prediction_term, 0.0)
    # onnxruntime runs these nodes in place on the softmax, except for the last addition.
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

    predicted_prob : GraphValue of shape (n,)
        Probability of the prediction.
    """

    scale: GraphValue
    shift: GraphValue
    predicted_prob: GraphValue


def _append_curve_adjustment(
    double_xp: OnnxOperations,
    fitted: Any,
    second_over_largest: GraphValue,
    others_over_second: GraphValue,
) -> _CurveAdjustment:
    """Append the numbers with which a spline changes the probabilities of each row.

    They are those of `metacal.kernels.columns.compute_curve_factors`, with fewer nodes. Names with
    `relative` denote probabilities divided by that of the prediction under the softmax, which is
    1 / (1 + g S). Only ratios of them matter. All numbers of a row have the shape (n,).

    Parameters
    ----------
    double_xp : OnnxOperations
        Operations in double precision.

    fitted : Map
        Map with a spline that follows a temperature map.

    second_over_largest : GraphValue of shape (n,)
        The number g of each row: e^{b(m' - m)}.

    others_over_second : GraphValue of shape (n,)
        The number S of each row: Σ e^{b(x - m')} over all classes but the prediction.
    """
    temperature_map, spline = fitted.temperature_and_spline_maps
    uniform_weight = temperature_map.uniform
    softmax_weight = 1.0 - uniform_weight
    uniform_prob = uniform_weight / double_xp.n_classes
    uniform_prob_of_others = uniform_weight - uniform_prob
    others_over_largest = second_over_largest * others_over_second
    relative_uniform = others_over_largest * uniform_prob + uniform_prob
    relative_prediction = relative_uniform + softmax_weight
    relative_others = (
        others_over_largest * (softmax_weight + uniform_prob_of_others) + uniform_prob_of_others
    )
    if uniform_weight == 0.0:
        # If the sum of all other classes underflows, the prediction gets probability 1.
        others_underflow = relative_others == 0.0
        relative_others = double_xp.where(others_underflow, 1.0, relative_others)
    log_odds = double_xp.log(relative_prediction) - double_xp.log(relative_others)
    new_log_odds = _append_spline_value(double_xp, spline, log_odds)
    second_softmax_share = second_over_largest * softmax_weight / relative_others
    uniform_share = relative_uniform / relative_others
    # The prediction must be more probable than the second largest class.
    min_odds = (second_softmax_share + uniform_share) * MIN_PREDICTION_RATIO
    new_odds = double_xp.exp(double_xp.minimum(new_log_odds, MAX_EXPONENT))
    new_odds = double_xp.maximum(new_odds, min_odds)
    new_others_prob = 1.0 / (new_odds + 1.0)
    predicted_prob = new_odds * new_others_prob
    if uniform_weight == 0.0:
        predicted_prob = double_xp.where(others_underflow, 1.0, predicted_prob)
    return _CurveAdjustment(
        scale=second_softmax_share * new_others_prob,
        shift=uniform_share * new_others_prob,
        predicted_prob=predicted_prob,
    )


def _append_spline_value(double_xp: OnnxOperations, spline: Any, z: GraphValue) -> GraphValue:
    """Append the value of a spline at each point of a vector z of shape (n,).

    It equals `metacal.formulas.curves.spline_value`. With d the distance that z has covered in a
    piece, the piece adds d·(slope + d·curvature/2), and these rises are added up. The linear parts
    beyond the outer knots are two more pieces of unlimited width. There is one row per piece,
    because onnxruntime is fast on long rows only.
    """
    knots = spline.knots
    slopes = spline.slopes
    widths = np.diff(knots)
    half_curvatures = 0.5 * np.diff(slopes) / widths
    piece_knots = np.concatenate([knots[:1], knots[:-1], knots[-1:]])
    piece_slopes = np.concatenate([slopes[:1], slopes[:-1], slopes[-1:]])
    min_distances = np.concatenate([[-np.inf], np.zeros(len(knots))])
    max_distances = np.concatenate([[0.0], widths, [np.inf]])
    piece_half_curvatures = np.concatenate([[0.0], half_curvatures, [0.0]])
    distances = double_xp.maximum(z - piece_knots[:, None], min_distances[:, None])
    distances = double_xp.minimum(distances, max_distances[:, None])
    mean_slopes = distances * piece_half_curvatures[:, None] + piece_slopes[:, None]
    rises = distances * mean_slopes
    return double_xp.constant(np.ones(len(piece_knots))) @ rises + spline.intercept


@dataclass(frozen=True)
class _TwoLargestLogits:
    """Largest and second largest logit of each row.

    Attributes
    ----------
    prediction : GraphValue of shape (n, 1)
        Column of the largest logit.

    largest, second_largest : GraphValue of shape (n,)
        They are equal if the largest logit occurs twice.
    """

    prediction: GraphValue
    largest: GraphValue
    second_largest: GraphValue


def _find_two_largest(xp: OnnxOperations, logits: GraphValue) -> _TwoLargestLogits:
    """Append the nodes that find the largest and second largest logit of each row.

    onnxruntime finds the index of a maximum ten times slower than the maximum. So the row is cut
    into blocks: the index is only searched among the maxima of the blocks, and in the block of the
    largest one. The first of equal logits is found, as in Python.
    """
    n_blocks = _choose_number_of_blocks(xp.n_classes)
    if n_blocks > 1 and xp.graph.opset >= _BATCHED_GATHER_OPSET:
        return _find_two_largest_in_blocks(xp, logits, n_blocks)
    prediction = xp.argmax(logits)
    other_logits = xp.replace_class_entry(logits, prediction, -np.inf)
    return _TwoLargestLogits(
        prediction=prediction,
        largest=xp.squeeze(xp.max(logits)),
        second_largest=xp.squeeze(xp.max(other_logits)),
    )


def _find_two_largest_in_blocks(
    xp: OnnxOperations, logits: GraphValue, n_blocks: int
) -> _TwoLargestLogits:
    """Append the nodes that find the two largest logits of rows that are cut into blocks."""
    block_width = xp.n_classes // n_blocks
    # In a shape, 0 denotes the unchanged number of rows. onnxruntime changes a table in place only
    # where it can infer that the number of rows is the same.
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
    minus_infinity = xp.append_node("Expand", -np.inf, xp.append_node("Shape", block_index))
    maxima_of_other_blocks = xp.replace_class_entry(block_maxima, block_index, minus_infinity)
    other_logits_in_block = xp.replace_class_entry(best_block, index_in_block, minus_infinity)
    second_largest = xp.maximum(xp.max(maxima_of_other_blocks), xp.max(other_logits_in_block))
    return _TwoLargestLogits(
        prediction=xp.graph_value(prediction),
        largest=xp.squeeze(xp.max(block_maxima)),
        second_largest=xp.squeeze(second_largest),
    )


def _choose_number_of_blocks(n_classes: int) -> int:
    """Return the divisor of the number of classes that is closest to its square root.

    It is 1 if the blocks would be much longer or shorter than that.
    """
    root = math.sqrt(n_classes)
    divisors = [d for d in range(1, n_classes + 1) if n_classes % d == 0]
    closest = min(divisors, key=lambda divisor: abs(math.log(divisor / root)))
    return closest if root / 4.0 <= closest <= 4.0 * root else 1


#: Functions that append the probabilities of plain tables. The key is the formula of the map.
_WRITERS_BY_FORMULA: dict[Callable[..., Any] | None, PlainWriter] = {
    temperature.temperature: _append_temperature,
    parts.spline_after_uniform: _append_spline_on_temperature,
}
