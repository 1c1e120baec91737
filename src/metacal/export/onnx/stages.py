"""Stages of a gate as ONNX nodes.

A stage on logits has the outputs `probs`, `score` and `accept`. A stage on given scores has
`accept` and `confidence`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from metacal.export.fitted import SUM_TOLERANCE
from metacal.export.onnx.graph import Graph
from metacal.export.onnx.maps import has_probabilities, probabilities
from metacal.export.onnx.operations import GraphValue, OnnxOperations
from metacal.export.onnx.scores import QuickScores, exact_scores, is_valid_row, quick_scores
from metacal.formulas.logits import replace_zero_probabilities
from metacal.gate import Gate
from metacal.gate.thresholds import SingleThreshold, SubgroupThresholds, Thresholds
from metacal.maps.confidence import ConfidenceCurve
from metacal.maps.temperature import TemperatureMap

#: Values of the outputs, by output name.
Outputs = dict[str, GraphValue]


def working_dtype(dtype: str) -> str:
    """Return the precision in which a table is processed: at least float32, as in Python."""
    return "float64" if dtype == "float64" else "float32"


# ── stages on given scores ────────────────────────────────────────────────────────────────────────


def append_score_stage(
    graph: Graph, gate: Gate, given: str, dtype: str, group: str | None
) -> Outputs:
    """Append a stage on given scores, in double precision.

    Parameters
    ----------
    graph : Graph
        Graph under construction.

    gate : Gate
        Gate with a single stage.

    given : str
        Name of the value with the scores.

    dtype : str
        Dtype of the scores. The threshold lies halfway between two scores of this dtype, so that
        unrounded scores lead to the same decisions.

    group : str or None
        Name of the input with the group of each row.

    Returns
    -------
    dict of str to GraphValue
        The output `accept` and, if there is a confidence curve, `confidence`. A score that is not
        finite is rejected, and its confidence is NaN.
    """
    xp = OnnxOperations(graph, "float64")
    source = gate.score_source
    policy = gate.thresholds
    if isinstance(policy, SingleThreshold):
        policy = SingleThreshold(source.threshold_for_dtype(dtype, policy.threshold))
    else:
        # The last row of the table is for unknown groups.
        known_thresholds = policy.threshold_table[:-1, 0].tolist()
        thresholds = tuple(source.threshold_for_dtype(dtype, value) for value in known_thresholds)
        policy = replace(policy, values=thresholds)
    uncertainty = xp.cast(given) * source.uncertainty_sign
    is_finite = xp.absolute(uncertainty) < np.inf
    outputs = {"accept": _is_accepted(policy, uncertainty, group=group) & is_finite}
    if source.curve is not None:
        finite_uncertainty = xp.where(is_finite, uncertainty, 0.0)
        confidence = _interpolate(xp, source.curve, finite_uncertainty)
        outputs["confidence"] = xp.where(is_finite, confidence, np.nan)
    return outputs


def _interpolate(xp: OnnxOperations, curve: ConfidenceCurve, uncertainty: GraphValue) -> GraphValue:
    """Append the nodes that evaluate a piecewise linear curve.

    The value is the first value of the curve, plus the change along each segment up to the
    uncertainty.
    """
    first_value = float(curve.values[0])
    if len(curve.knots) == 1:
        return uncertainty * 0.0 + first_value
    segment_widths = np.diff(curve.knots)
    slopes = np.diff(curve.values) / segment_widths
    distances = xp.clip(
        xp.unsqueeze(uncertainty) - curve.knots[:-1][None, :], 0.0, segment_widths[None, :]
    )
    changes = distances * slopes[None, :]
    return xp.squeeze(xp.sum(changes)) + first_value


# ── stages on logits ──────────────────────────────────────────────────────────────────────────────


def append_table_stage(
    graph: Graph, gate: Gate, given: str, dtype: str, group: str | None
) -> Outputs:
    """Append a stage on logits or probabilities.

    Parameters
    ----------
    graph : Graph
        Graph under construction.

    gate : Gate
        Gate with a single stage.

    given : str
        Name of the value with the table.

    dtype : str
        Dtype of the table.

    group : str or None
        Name of the input with the group of each row.

    Returns
    -------
    dict of str to GraphValue
        The outputs `probs`, `score` and `accept`. A calibrator without a promise has only `probs`.
    """
    xp = OnnxOperations(graph, working_dtype(dtype), gate.n_classes)
    table = xp.value(given) if dtype == xp.dtype else _widen(xp, given)
    x = table
    if gate.logits_source.input == "probabilities":
        x = _logits_of_probabilities(xp, table, SUM_TOLERANCE[dtype])
    if gate.certificate is None:
        return {"probs": _probabilities_of_valid_rows(xp, gate, x)}

    has_decision_offset = bool(gate.thresholds.decision_offsets or gate.logits_source.decision_at)
    if has_decision_offset:
        # The score is computed from shifted logits in double precision, the map from the logits.
        double = xp.to("float64")
        shifted_x = _shift_decision(double, gate, x, group)
        score = exact_scores(double, shifted_x, gate.logits_source.registered_score)
        is_accepted = _is_accepted(gate.thresholds, score, shifted_x, group)
        probs, accept = _reset_rejected_rows(xp, gate, x, is_accepted)
        return {"probs": probs, "score": score, "accept": accept}

    has_single_threshold = gate.subgroup_thresholds is None
    if has_single_threshold:
        quick = quick_scores(xp, x, gate.logits_source.registered_score, gate.threshold)
        if quick is not None:
            return _append_quick_outputs(xp, gate, quick, x)
    score = exact_scores(xp, x, gate.logits_source.registered_score)
    is_accepted = _is_accepted(gate.thresholds, score, x, group)
    probs, accept = _reset_rejected_rows(xp, gate, x, is_accepted)
    return {"probs": probs, "score": score, "accept": accept}


def _shift_decision(
    double: OnnxOperations, gate: Gate, x: GraphValue, group: str | None
) -> GraphValue:
    """Subtract the decision offset from the logits of the second of two classes."""
    decision_offset: Any = gate.logits_source.decision_at
    policy = gate.thresholds
    if isinstance(policy, SubgroupThresholds) and policy.decision_offsets:
        offset_of_unknown_group = 0.0
        group_offsets = double.name([*policy.decision_offsets, offset_of_unknown_group])
        group_index = _group_index(double, policy, group)
        decision_offset = double.unsqueeze(double.take(group_offsets, group_index))
    double_logits = double.value(x) if x.xp.dtype == "float64" else double.cast(x)
    return double_logits - decision_offset * np.array([[0.0, 1.0]])


def _append_quick_outputs(
    xp: OnnxOperations, gate: Gate, quick: QuickScores, x: GraphValue
) -> Outputs:
    """Append two branches: all scores are settled, which is the rule, or some are not.

    If all scores are settled, all logits are finite. Temperature scaling can then compute the
    probabilities of accepted and rejected rows with one softmax: an inverse temperature of zero
    results in a uniform row. This is not valid for infinite logits, because 0 · (-inf) is NaN.

    Parameters
    ----------
    xp : OnnxOperations
        Operations in the precision of the table.

    gate : Gate
        Gate with a single stage and threshold.

    quick : QuickScores
        Scores in single precision.

    x : GraphValue of shape (n, K)
        Logits.

    Returns
    -------
    dict of str to GraphValue
        The outputs `probs`, `score` and `accept`.
    """
    fitted_map = gate.logits_source.map
    is_temperature = isinstance(fitted_map, TemperatureMap)
    inverse_temperature = 1.0
    if isinstance(fitted_map, TemperatureMap):
        inverse_temperature = fitted_map.inverse_temperature

    def write_settled(inner: OnnxOperations) -> list[GraphValue]:
        score = quick.estimates_in_double(inner)
        accept = _is_accepted(gate.thresholds, score)
        if not is_temperature:
            return [score, accept]
        factor = inner.where(inner.unsqueeze(accept), inverse_temperature, 0.0)
        return [score, accept, inner.softmax(inner.value(x) * factor)]

    def write_unsettled(inner: OnnxOperations) -> list[GraphValue]:
        score = quick.with_exact_unsettled(inner, x, gate.logits_source.registered_score)
        accept = _is_accepted(gate.thresholds, score)
        if not is_temperature:
            return [score, accept]
        probs, accept = _reset_rejected_rows(inner, gate, inner.value(x), accept)
        return [score, accept, probs]

    all_settled = xp.all(quick.settled)
    if is_temperature and quick.unbounded and inverse_temperature > 1.0:
        largest_safe_logit = np.finfo(xp.dtype).max / inverse_temperature
        all_settled = all_settled & xp.all(xp.max(x) < largest_safe_logit)
    if is_temperature:
        dtypes = ["float64", "bool", xp.dtype]
        score, accept, probs = xp.choose(all_settled, write_settled, write_unsettled, dtypes)
    else:
        dtypes = ["float64", "bool"]
        score, accept = xp.choose(all_settled, write_settled, write_unsettled, dtypes)
        probs, accept = _reset_rejected_rows(xp, gate, x, accept)
    return {"probs": probs, "score": score, "accept": accept}


def _widen(xp: OnnxOperations, given: str) -> GraphValue:
    """Convert narrow logits to float32, exactly as the model outputs them.

    If onnxruntime has no kernel for the narrow dtype, it computes in float32 and rounds. A cast
    directly after that would make it skip the rounding. A change of shape in between prevents this
    optimization.
    """
    return xp.op("Reshape", xp.cast(xp.unsqueeze(xp.value(given))), xp.op("Shape", given))


def _is_accepted(
    policy: Thresholds, score: GraphValue, x: GraphValue | None = None, group: str | None = None
) -> GraphValue:
    """Append the nodes that compare each score with its threshold.

    Parameters
    ----------
    policy : Thresholds
        Single threshold, or thresholds by predicted class, by group, or by both.

    score : GraphValue of shape (n,)
        Score of each row.

    x : GraphValue of shape (n, K) or None, default=None
        Logits, for thresholds by predicted class.

    group : str or None, default=None
        Name of the input with the group of each row.

    Returns
    -------
    GraphValue of shape (n,)
    """
    if isinstance(policy, SingleThreshold):
        return score <= policy.threshold
    xp = score.xp

    def predicted_class() -> GraphValue:
        return xp.to("int64").op("ArgMax", x, axis=1, keepdims=0)

    has_threshold_per_group_and_class = bool(policy.decision_offsets)
    if policy.subgroup_kind == "class":
        threshold_index = predicted_class()
    elif has_threshold_per_group_and_class:
        threshold_index = _group_index(xp, policy, group) * 2 + predicted_class()
    else:
        threshold_index = _group_index(xp, policy, group)
    thresholds = xp.name(policy.threshold_table.ravel().tolist())
    return score <= xp.take(thresholds, threshold_index)


def _group_index(xp: OnnxOperations, policy: SubgroupThresholds, group: str | None) -> GraphValue:
    """Append the nodes that replace the index of an unknown group by the last index."""
    integers = xp.to("int64")
    n_groups = len(policy.names)
    index = integers.value(str(group))
    is_known = (index < n_groups) & (index > -1)
    return integers.where(is_known, index, n_groups)


def _logits_of_probabilities(xp: OnnxOperations, table: GraphValue, tolerance: float) -> GraphValue:
    """Append the logarithms of probabilities, computed in double precision and rounded.

    A row that is not a probability distribution results in NaN.
    """
    double = xp.to("float64")
    double_table = double.cast(table)
    is_nonnegative = xp.min(table) >= 0.0
    is_distribution = is_nonnegative & (
        double.absolute(double.sum(double_table) - 1.0) <= tolerance
    )
    logits = xp.cast(double.log(double.cast(replace_zero_probabilities(xp, table))))
    return xp.where(is_distribution, logits, np.nan)


def _reset_rejected_rows(
    xp: OnnxOperations, gate: Gate, x: GraphValue, accept: GraphValue
) -> tuple[GraphValue, GraphValue]:
    """Append the map, and replace the probabilities of rejected rows by 1/K.

    The rows are overwritten, which is faster than a choice for every element and leaves no NaN.

    Returns
    -------
    probs : GraphValue of shape (n, K)

    accept : GraphValue of shape (n,)
        False for rows whose probabilities are NaN, whatever their score.
    """
    probs = probabilities(xp, gate.logits_source.map, x)
    accept = accept & has_probabilities(xp, gate.logits_source.map, probs)
    _, rejected_indices = xp.rows_where(~accept)
    n_rejected = xp.take(xp.op("Shape", rejected_indices), xp.value(xp.graph.integers(0)))
    shape = xp.op("Concat", n_rejected, xp.graph.integers(gate.n_classes), axis=0)
    uniform_rows = xp.op("Expand", 1.0 / gate.n_classes, shape)
    return xp.op("ScatterND", probs, rejected_indices, uniform_rows), accept


def _probabilities_of_valid_rows(xp: OnnxOperations, gate: Gate, x: GraphValue) -> GraphValue:
    """Append the map of a calibrator without a promise, with NaN for invalid rows.

    The row sums show whether all logits are finite. Only if one is not, each row is checked.
    """
    probs = probabilities(xp, gate.logits_source.map, x)
    all_finite = xp.all(xp.absolute(xp.sum(x)) < np.inf)

    def keep_all(inner: OnnxOperations) -> list[GraphValue]:
        return [inner.op("Identity", probs)]

    def keep_valid(inner: OnnxOperations) -> list[GraphValue]:
        return [inner.where(is_valid_row(inner, x), probs, np.nan)]

    (valid_probs,) = xp.choose(all_finite, keep_all, keep_valid)
    return valid_probs
