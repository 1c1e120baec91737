"""Stages of a gate as ONNX nodes.

A stage on logits has the outputs `probs`, `score` and `accept`. A stage on given scores has
`accept` and `confidence`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from metacal.export.fitted import SUM_TOLERANCE
from metacal.export.onnx.decisions import (
    append_predicted_class,
    compare_with_thresholds,
    shift_second_logit,
)
from metacal.export.onnx.graph import Graph
from metacal.export.onnx.maps import append_map, has_no_nan
from metacal.export.onnx.operations import GraphValue, OnnxOperations
from metacal.export.onnx.plain_tables import (
    PlainWriter,
    append_plain_check,
    find_plain_writer,
    find_top_logit_search,
)
from metacal.export.onnx.scores import (
    DoublePrecisionScores,
    SinglePrecisionScores,
    append_double_precision_scores,
    append_single_precision_scores,
    is_valid_row,
)
from metacal.formulas.logits import replace_zero_probabilities
from metacal.gate import Gate, Rejected, ScoreSource
from metacal.gate.thresholds import SingleThreshold, Thresholds
from metacal.maps.confidence import ConfidenceCurve

#: Outputs of a stage or gate, keyed by their default names such as "accept".
Outputs = dict[str, GraphValue]


def working_dtype(dtype: str) -> str:
    """Return the precision in which a table is processed: at least float32, as in Python."""
    return "float64" if dtype == "float64" else "float32"


# ── stages on given scores ────────────────────────────────────────────────────────────────────────


def append_score_stage(
    graph: Graph, gate: Gate, input_name: str, dtype: str, group_input_name: str | None
) -> Outputs:
    """Append the nodes of a stage that reads scores, in double precision.

    Parameters
    ----------
    graph : Graph
        Graph under construction.

    gate : Gate
        Gate with a single stage.

    input_name : str
        Name of the tensor with the scores.

    dtype : str
        Dtype of the scores. The threshold lies halfway between two scores of this dtype, so that
        unrounded scores lead to the same decisions.

    group_input_name : str or None
        Name of the input with the group index of each row.

    Returns
    -------
    dict of str to GraphValue
        The output `accept` and, if there is a confidence curve, `confidence`. A score that is not
        finite is rejected, and its confidence is NaN.
    """
    xp = OnnxOperations(graph, "float64")
    source = gate.score_source
    thresholds = _thresholds_for_dtype(gate.thresholds, source, dtype)
    uncertainty = xp.cast(input_name) * source.uncertainty_sign
    is_finite = xp.absolute(uncertainty) < np.inf
    is_certain = compare_with_thresholds(thresholds, uncertainty, group_input_name=group_input_name)
    outputs = {"accept": is_certain & is_finite}
    if source.curve is not None:
        finite_uncertainty = xp.where(is_finite, uncertainty, 0.0)
        confidence = _interpolate(xp, source.curve, finite_uncertainty)
        outputs["confidence"] = xp.where(is_finite, confidence, np.nan)
    return outputs


def _thresholds_for_dtype(thresholds: Thresholds, source: ScoreSource, dtype: str) -> Thresholds:
    """Return thresholds that lie halfway between two adjacent scores of a dtype."""
    if isinstance(thresholds, SingleThreshold):
        return SingleThreshold(source.adapt_threshold_to_dtype(dtype, thresholds.threshold))
    # The last threshold is that of unknown groups. It is infinite, so it fits every dtype.
    *group_thresholds, _threshold_of_unknown_groups = (
        thresholds.thresholds_with_unknown_last.tolist()
    )
    adapted_thresholds = tuple(
        source.adapt_threshold_to_dtype(dtype, threshold) for threshold in group_thresholds
    )
    return replace(thresholds, subgroup_thresholds=adapted_thresholds)


def _interpolate(xp: OnnxOperations, curve: ConfidenceCurve, uncertainty: GraphValue) -> GraphValue:
    """Append the nodes that evaluate a piecewise linear confidence curve.

    The confidence is the first value of the curve, plus the change along each segment up to the
    uncertainty.
    """
    first_confidence = float(curve.values[0])
    if len(curve.knots) == 1:
        return uncertainty * 0.0 + first_confidence
    segment_starts = curve.knots[:-1]
    segment_widths = np.diff(curve.knots)
    segment_slopes = np.diff(curve.values) / segment_widths
    distance_to_start = xp.unsqueeze(uncertainty) - segment_starts[None, :]
    distance_in_segment = xp.clip(distance_to_start, 0.0, segment_widths[None, :])
    changes = distance_in_segment * segment_slopes[None, :]
    return xp.squeeze(xp.sum(changes)) + first_confidence


# ── stages on logits ──────────────────────────────────────────────────────────────────────────────


def append_table_stage(
    graph: Graph,
    gate: Gate,
    input_name: str,
    dtype: str,
    group_input_name: str | None,
    rejected: Rejected,
    *,
    outputs_prediction: bool = False,
) -> Outputs:
    """Append the nodes of a stage that reads logits or probabilities.

    Parameters
    ----------
    graph : Graph
        Graph under construction.

    gate : Gate
        Gate with a single stage.

    input_name : str
        Name of the tensor with the table.

    dtype : str
        Dtype of the table.

    group_input_name : str or None
        Name of the input with the group index of each row.

    rejected : {"calibrated", "uniform"}
        Probabilities of rejected rows.

    outputs_prediction : bool, default=False
        Whether to output the prediction of each row also if it is the class of the largest logit.

    Returns
    -------
    dict of str to GraphValue
        The outputs `probs`, `score` and `accept`. A calibrator without a promise has only `probs`.
        If the prediction is not always the class of the largest logit, there is the output
        `prediction`, the column of the predicted class.
    """
    xp = OnnxOperations(graph, working_dtype(dtype), gate.n_classes)
    table = xp.graph_value(input_name)
    if dtype != xp.dtype:
        table = _cast_to_float32(xp, input_name)
    logits = table
    if gate.logits_source.input == "probabilities":
        logits = _logits_of_probabilities(xp, table, SUM_TOLERANCE[dtype])
    if gate.certificate is None:
        return {"probs": _probabilities_of_valid_rows(xp, gate, logits)}

    score_name = gate.logits_source.registered_score
    score_xp = xp
    score_logits = logits
    has_decision_offset = bool(
        gate.thresholds.group_decision_offsets or gate.logits_source.decision_at
    )
    has_single_threshold = gate.subgroup_thresholds is None
    if has_decision_offset:
        # The score is computed from shifted logits, but the probabilities are not.
        score_xp = xp.with_dtype("float64")
        score_logits = shift_second_logit(score_xp, gate, logits, group_input_name)
    elif has_single_threshold:
        single_scores = append_single_precision_scores(
            xp, logits, score_name, gate.threshold, find_top_logit_search(gate.logits_source.map)
        )
        if single_scores is not None:
            outputs = _append_single_precision_outputs(xp, gate, single_scores, logits, rejected)
            if outputs_prediction:
                outputs["prediction"] = append_predicted_class(xp, logits)
            return outputs
    score = append_double_precision_scores(score_xp, score_logits, score_name)
    if has_single_threshold and not has_decision_offset and not outputs_prediction:
        plain_outputs = _append_outputs_of_double_scores(xp, gate, score, logits, rejected)
        if plain_outputs is not None:
            return plain_outputs
    is_accepted = compare_with_thresholds(gate.thresholds, score, score_logits, group_input_name)
    probs, accept = _append_gated_probabilities(xp, gate, logits, score, is_accepted, rejected)
    outputs = {"probs": probs, "score": score, "accept": accept}
    if has_decision_offset or outputs_prediction:
        outputs["prediction"] = append_predicted_class(score_xp, score_logits)
    return outputs


def _append_single_precision_outputs(
    xp: OnnxOperations,
    gate: Gate,
    single_scores: SinglePrecisionScores,
    logits: GraphValue,
    rejected: Rejected,
) -> Outputs:
    """Append the outputs of a stage that rescores only rows near the threshold as doubles.

    Parameters
    ----------
    xp : OnnxOperations
        Operations in the precision of the table.

    gate : Gate
        Gate with a single stage and threshold.

    single_scores : SinglePrecisionScores
        Scores in single precision.

    logits : GraphValue of shape (n, K)
        Logits.

    rejected : {"calibrated", "uniform"}
        Probabilities of rejected rows.

    Returns
    -------
    dict of str to GraphValue
        The outputs `probs`, `score` and `accept`.
    """
    write_plain_probs = find_plain_writer(gate.logits_source.map)
    if write_plain_probs is not None:
        return _append_plain_or_general_outputs(
            xp, gate, write_plain_probs, single_scores, logits, rejected
        )

    def write_estimates(branch_xp: OnnxOperations) -> list[GraphValue]:
        score = single_scores.estimates_in_double(branch_xp)
        return [score, compare_with_thresholds(gate.thresholds, score)]

    def write_rescored(branch_xp: OnnxOperations) -> list[GraphValue]:
        score_name = gate.logits_source.registered_score
        score = single_scores.rescore_rows_near_threshold(branch_xp, logits, score_name)
        return [score, compare_with_thresholds(gate.thresholds, score)]

    all_decisions_exact = xp.all_true(single_scores.is_decision_exact)
    dtypes = ["float64", "bool"]
    score, is_accepted = xp.if_else(all_decisions_exact, write_estimates, write_rescored, dtypes)
    probs, accept = _append_gated_probabilities(xp, gate, logits, score, is_accepted, rejected)
    return {"probs": probs, "score": score, "accept": accept}


def _append_outputs_of_double_scores(
    xp: OnnxOperations, gate: Gate, score: GraphValue, logits: GraphValue, rejected: Rejected
) -> Outputs | None:
    """Append the outputs of a float32 stage whose scores (n,) are in double precision.

    Return None if the map has no shorter nodes for plain tables.
    """
    write_plain_probs = find_plain_writer(gate.logits_source.map)
    if write_plain_probs is None or xp.dtype != "float32":
        return None
    is_finite = score.xp.absolute(score) < np.inf
    row_scores = DoublePrecisionScores(
        score=score, is_finite=is_finite, is_decision_exact=is_finite
    )
    return _append_plain_or_general_outputs(
        xp, gate, write_plain_probs, row_scores, logits, rejected
    )


def _append_plain_or_general_outputs(
    xp: OnnxOperations,
    gate: Gate,
    write_plain_probs: PlainWriter,
    row_scores: SinglePrecisionScores | DoublePrecisionScores,
    logits: GraphValue,
    rejected: Rejected,
) -> Outputs:
    """Append the outputs of a stage, with a branch of fewer nodes for plain tables.

    There are three branches: plain tables without a row near the threshold, which are most; plain
    tables, after such rows were scored again; and all other tables.

    Parameters
    ----------
    xp : OnnxOperations
        Operations in the precision of the table.

    gate : Gate
        Gate with a single stage and threshold.

    write_plain_probs : callable
        Function that appends the probabilities of a plain table.

    row_scores : SinglePrecisionScores or DoublePrecisionScores
        Scores of the rows.

    logits : GraphValue of shape (n, K)
        Logits.

    rejected : {"calibrated", "uniform"}
        Probabilities of rejected rows.

    Returns
    -------
    dict of str to GraphValue
        The outputs `probs`, `score` and `accept`.
    """
    fitted_map = gate.logits_source.map

    def write_probs(branch_xp: OnnxOperations, is_accepted: GraphValue) -> GraphValue:
        keeps_probs = is_accepted if rejected == "uniform" else None
        return write_plain_probs(branch_xp, fitted_map, logits, keeps_probs)

    def write_plain(branch_xp: OnnxOperations) -> list[GraphValue]:
        score = row_scores.estimates_in_double(branch_xp)
        accept = compare_with_thresholds(gate.thresholds, score)
        return [score, accept, write_probs(branch_xp, accept)]

    def write_rescored(branch_xp: OnnxOperations) -> list[GraphValue]:
        score_name = gate.logits_source.registered_score
        score = row_scores.rescore_rows_near_threshold(branch_xp, logits, score_name)
        is_accepted = compare_with_thresholds(gate.thresholds, score)

        def write_rescored_plain(inner_xp: OnnxOperations) -> list[GraphValue]:
            accept = inner_xp.append_node("Identity", is_accepted)
            return [accept, write_probs(inner_xp, is_accepted)]

        def write_general(inner_xp: OnnxOperations) -> list[GraphValue]:
            probs, accept = _append_gated_probabilities(
                inner_xp,
                gate,
                inner_xp.graph_value(logits),
                score,
                inner_xp.graph_value(is_accepted),
                rejected,
            )
            return [accept, probs]

        is_plain = append_plain_check(
            branch_xp, row_scores, row_scores.is_finite, fitted_map, logits
        )
        accept, probs = branch_xp.if_else(
            is_plain, write_rescored_plain, write_general, ["bool", xp.dtype]
        )
        return [score, accept, probs]

    is_plain = append_plain_check(xp, row_scores, row_scores.is_decision_exact, fitted_map, logits)
    dtypes = ["float64", "bool", xp.dtype]
    score, accept, probs = xp.if_else(is_plain, write_plain, write_rescored, dtypes)
    return {"probs": probs, "score": score, "accept": accept}


def _cast_to_float32(xp: OnnxOperations, input_name: str) -> GraphValue:
    """Convert float16 or bfloat16 logits to float32, exactly as the model outputs them.

    If onnxruntime has no kernel for the narrow dtype, it computes in float32 and rounds. A cast
    directly after that would make it skip the rounding. A change of shape in between prevents this
    optimization.
    """
    reshaped_table = xp.cast(xp.unsqueeze(xp.graph_value(input_name)))
    original_shape = xp.append_node("Shape", input_name)
    return xp.append_node("Reshape", reshaped_table, original_shape)


def _logits_of_probabilities(xp: OnnxOperations, table: GraphValue, tolerance: float) -> GraphValue:
    """Append the logarithms of probabilities. Rows that do not sum to one get NaN.

    The logarithms are computed in double precision and rounded to the precision of the table.
    """
    double_xp = xp.with_dtype("float64")
    double_table = double_xp.cast(table)
    is_nonnegative = xp.min(table) >= 0.0
    sums_to_one = double_xp.absolute(double_xp.sum(double_table) - 1.0) <= tolerance
    is_distribution = is_nonnegative & sums_to_one
    positive_probs = double_xp.cast(replace_zero_probabilities(xp, table))
    logits = xp.cast(double_xp.log(positive_probs))
    return xp.where(is_distribution, logits, np.nan)


def _append_gated_probabilities(
    xp: OnnxOperations,
    gate: Gate,
    logits: GraphValue,
    score: GraphValue,
    is_accepted: GraphValue,
    rejected: Rejected,
) -> tuple[GraphValue, GraphValue]:
    """Append the probabilities and decisions of a stage. Invalid rows get the probabilities 1/K.

    If `rejected` is "uniform", rejected rows get 1/K too.

    Parameters
    ----------
    xp : OnnxOperations
        Operations in the precision of the table.

    gate : Gate
        Gate with a single stage.

    logits : GraphValue of shape (n, K)
        Logits.

    score : GraphValue of shape (n,)
        Score of each row, NaN if the row is invalid.

    is_accepted : GraphValue of shape (n,)
        Whether the score is at most the threshold.

    rejected : {"calibrated", "uniform"}
        Probabilities of rejected rows.

    Returns
    -------
    probs : GraphValue of shape (n, K)

    accept : GraphValue of shape (n,)
        False for rows whose probabilities are NaN, whatever their score.
    """
    fitted_map = gate.logits_source.map
    probs = append_map(xp, fitted_map, logits)
    has_probabilities = has_no_nan(xp, fitted_map, probs)
    accept = is_accepted & has_probabilities
    keeps_probs = accept
    if rejected == "calibrated":
        # The score of an invalid row is NaN, and a comparison with NaN is false.
        has_score = xp.with_dtype("float64").graph_value(score) <= np.inf
        keeps_probs = has_score & has_probabilities
    return _replace_rows_by_uniform(xp, probs, is_replaced=~keeps_probs), accept


def _replace_rows_by_uniform(
    xp: OnnxOperations, probs: GraphValue, is_replaced: GraphValue
) -> GraphValue:
    """Append the nodes that overwrite rows of probabilities (n, K) by 1/K, given flags (n,).

    ScatterND writes these rows only. The operator Where would also compute a choice for every
    element of the other rows.
    """
    _row_indices, scatter_indices = xp.find_true_rows(is_replaced)
    scatter_shape = xp.append_node("Shape", scatter_indices)
    n_replaced = xp.take(scatter_shape, xp.graph_value(xp.graph.add_integers(0)))
    n_classes = xp.graph.add_integers(xp.n_classes)
    uniform_shape = xp.append_node("Concat", n_replaced, n_classes, axis=0)
    uniform_rows = xp.append_node("Expand", 1.0 / xp.n_classes, uniform_shape)
    return xp.append_node("ScatterND", probs, scatter_indices, uniform_rows)


def _probabilities_of_valid_rows(xp: OnnxOperations, gate: Gate, logits: GraphValue) -> GraphValue:
    """Append the probabilities of a calibrator without a promise. Invalid rows get NaN.

    Rows are checked one by one only if a row sum shows that a logit is not finite.
    """
    probs = append_map(xp, gate.logits_source.map, logits)
    all_finite = xp.all_true(xp.absolute(xp.sum(logits)) < np.inf)

    def keep_all_rows(branch_xp: OnnxOperations) -> list[GraphValue]:
        return [branch_xp.append_node("Identity", probs)]

    def keep_valid_rows(branch_xp: OnnxOperations) -> list[GraphValue]:
        return [branch_xp.where(is_valid_row(branch_xp, logits), probs, np.nan)]

    (valid_probs,) = xp.if_else(all_finite, keep_all_rows, keep_valid_rows)
    return valid_probs
