"""Decisions of a stage as ONNX nodes: predicted class, decision offset and thresholds."""

from __future__ import annotations

import numpy as np

from metacal.export.onnx.graph import ELEMENT_TYPES, Graph
from metacal.export.onnx.operations import GraphValue, OnnxOperations
from metacal.gate import Gate
from metacal.gate.thresholds import SingleThreshold, SubgroupThresholds, Thresholds


def append_second_column(graph: Graph, score_name: str, dtype: str, input_type: str) -> str:
    """Append the nodes that convert one score per row to a table of two classes.

    Parameters
    ----------
    graph : Graph
        Graph under construction.

    score_name : str
        Name of the column of scores, of shape (n, 1).

    dtype : str
        Dtype of the scores.

    input_type : {"logits", "probabilities"}
        Content of the column.

    Returns
    -------
    str
        Name of the table: [0, s] for log-odds and [1 - p, p] for probabilities, as in Python.
    """
    if input_type == "logits":
        # Pad puts a zero of the same dtype before each score. A score of -inf stays a masked class.
        return graph.append_node("Pad", score_name, graph.add_integers(0, 1, 0, 0))
    one = graph.append_node("Cast", graph.add_integers(1), to=ELEMENT_TYPES[dtype])
    complement = graph.append_node("Sub", one, score_name)
    return graph.append_node("Concat", complement, score_name, axis=1)


def append_predicted_class(xp: OnnxOperations, logits: GraphValue) -> GraphValue:
    """Append the node that returns the column of the largest logit of each row."""
    return xp.with_dtype("int64").append_node("ArgMax", logits, axis=1, keepdims=0)


def shift_second_logit(
    double_xp: OnnxOperations, gate: Gate, logits: GraphValue, group_input_name: str | None
) -> GraphValue:
    """Append the logits of two classes, with the decision offset subtracted from the second one.

    The larger of the resulting logits is that of the predicted class.
    """
    decision_offset: GraphValue | float = gate.logits_source.decision_at
    thresholds = gate.thresholds
    if isinstance(thresholds, SubgroupThresholds) and thresholds.has_two_thresholds_per_group:
        offset_of_unknown_group = 0.0
        group_offsets = double_xp.constant(
            [*thresholds.group_decision_offsets, offset_of_unknown_group]
        )
        group_index = _append_group_index(double_xp, thresholds, group_input_name)
        decision_offset = double_xp.unsqueeze(double_xp.take(group_offsets, group_index))
    second_class_indicator = np.array([[0.0, 1.0]])
    return double_xp.cast_if_needed(logits) - decision_offset * second_class_indicator


def compare_with_thresholds(
    thresholds: Thresholds,
    score: GraphValue,
    logits: GraphValue | None = None,
    group_input_name: str | None = None,
) -> GraphValue:
    """Append the nodes that compare each score with its threshold.

    Parameters
    ----------
    thresholds : Thresholds
        Single threshold, or thresholds by predicted class, by group, or by both.

    score : GraphValue of shape (n,)
        Score of each row.

    logits : GraphValue of shape (n, K) or None, default=None
        Logits, for thresholds by predicted class.

    group_input_name : str or None, default=None
        Name of the input with the group index of each row.

    Returns
    -------
    GraphValue of shape (n,)
    """
    if isinstance(thresholds, SingleThreshold):
        return score <= thresholds.threshold
    xp = score.xp
    # This table has one row per class or group and, for two thresholds per group, two columns.
    threshold_table = thresholds.thresholds_by_code_and_prediction
    if thresholds.subgroup_kind == "class":
        assert logits is not None
        threshold_index = append_predicted_class(xp, logits)
    elif thresholds.has_two_thresholds_per_group:
        assert logits is not None
        n_classes = 2
        group_index = _append_group_index(xp, thresholds, group_input_name)
        threshold_index = group_index * n_classes + append_predicted_class(xp, logits)
    else:
        threshold_index = _append_group_index(xp, thresholds, group_input_name)
    thresholds_row_after_row = xp.constant(threshold_table.ravel().tolist())
    return score <= xp.take(thresholds_row_after_row, threshold_index)


def _append_group_index(
    xp: OnnxOperations, thresholds: SubgroupThresholds, group_input_name: str | None
) -> GraphValue:
    """Append the group index of each row, with n_groups for every unknown group."""
    integer_xp = xp.with_dtype("int64")
    n_groups = len(thresholds.subgroup_names)
    input_index = integer_xp.graph_value(str(group_input_name))
    is_known_group = (input_index < n_groups) & (input_index > -1)
    return integer_xp.where(is_known_group, input_index, n_groups)
