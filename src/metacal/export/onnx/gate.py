"""Gates as ONNX nodes.

If a gate has several stages, the first stage that accepts a row determines its outputs, and the
output `answered_by` is the index of that stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from metacal.export.onnx.decisions import append_second_column
from metacal.export.onnx.graph import Graph, make_tensor_info
from metacal.export.onnx.operations import OnnxOperations
from metacal.export.onnx.probe import COLUMN_CHECK_NODE_NAME
from metacal.export.onnx.reading import collect_tensor_and_node_names, get_opset
from metacal.export.onnx.stages import (
    Outputs,
    append_score_stage,
    append_table_stage,
    working_dtype,
)
from metacal.gate import Gate, Rejected

_GROUP_DESCRIPTION = (
    "the place of each row's group in the list metacal.groups; any other number is rejected"
)

# Older IR versions require that every initializer is also an input of the graph.
_FIRST_IR_VERSION_WITH_PLAIN_INITIALIZERS = 4

# Dtypes of the outputs. The dtype of `probs` is missing because it depends on the logits.
_OUTPUT_DTYPES = {
    "score": "float64",
    "accept": "bool",
    "confidence": "float64",
    "answered_by": "int64",
    "prediction": "int64",
}


def default_input_names(gate: Gate) -> tuple[str, ...]:
    """Return the input names of a graph that contains only a gate, one per stage.

    Examples
    --------
    >>> from metacal.gate import ScoreSource, Stage
    >>> default_input_names(Gate.from_source(ScoreSource()))
    ('scores',)
    >>> judge, panel = Stage(ScoreSource(), name="judge"), Stage(ScoreSource(), name="panel")
    >>> default_input_names(Gate((judge, panel)))
    ('scores_judge', 'scores_panel')
    """
    if not gate.is_cascade:
        return (gate.source.input_name,)
    return tuple(f"{stage.source.input_name}_{stage.name}" for stage in gate.stages)


@dataclass(frozen=True)
class AttachedGate:
    """ONNX model with a gate appended to it.

    Attributes
    ----------
    model : onnx.ModelProto
        Model that includes the nodes of the gate.

    gate : Gate
        Gate that was appended.

    stage_input_names : tuple of str
        Names of the tensors that the stages read.

    output_names : dict of str to str
        Names of the gate's outputs in the model, keyed by their default names.

    rejected : {"calibrated", "uniform"}
        Probabilities of rejected rows.

    group_input_name : str or None
        Name of the input with the group index of each row. None without thresholds by group.

    has_one_score : bool
        Whether the gate reads one score per row, for the second of two classes.
    """

    model: Any
    gate: Gate
    stage_input_names: tuple[str, ...]
    output_names: dict[str, str]
    rejected: Rejected
    group_input_name: str | None = None
    has_one_score: bool = False


def append_gate(
    model: Any,
    gate: Gate,
    stage_input_names: tuple[str, ...],
    *,
    dtype: str,
    batch_dimension: int | str,
    rejected: Rejected,
    checks_columns: bool = False,
    has_one_score: bool = False,
) -> AttachedGate:
    """Append the nodes of a gate to a model, which keeps its own outputs.

    Parameters
    ----------
    model : onnx.ModelProto
        Model to change.

    gate : Gate
        Gate to append.

    stage_input_names : tuple of str
        Names of the tensors that the stages read.

    dtype : str
        Dtype of these tensors.

    batch_dimension : int or str
        Size or name of the batch dimension.

    rejected : {"calibrated", "uniform"}
        Probabilities of rejected rows.

    checks_columns : bool, default=False
        Whether to add a node that fails at run time if a table does not have one column per class.
        Otherwise the gate of a model with an unknown or wrong number of columns could return
        meaningless results.

    has_one_score : bool, default=False
        Whether the only tensor has one score per row, of shape (n,) or (n, 1), for the second of
        two classes.

    Returns
    -------
    AttachedGate
    """
    names_in_model = collect_tensor_and_node_names(model)
    graph = Graph(
        get_opset(model),
        reserved_names=names_in_model,
        constants_as_nodes=model.ir_version < _FIRST_IR_VERSION_WITH_PLAIN_INITIALIZERS,
    )
    group_input_name = None
    if gate.has_group_thresholds:
        group_input_name = _unused_name("group", names_in_model)
    checked_input_names = stage_input_names
    if checks_columns:
        n_columns = 1 if has_one_score else gate.n_classes
        checked_input_names = _append_column_checks(graph, stage_input_names, n_columns)
    if has_one_score:
        (score_name,) = checked_input_names
        checked_input_names = (
            append_second_column(graph, score_name, dtype, gate.logits_source.input),
        )

    append_stage = append_score_stage
    if gate.has_classes:
        append_stage = partial(
            append_table_stage, rejected=rejected, outputs_prediction=has_one_score
        )
    stage_outputs = []
    for stage_index, input_name in enumerate(checked_input_names):
        single_stage_gate = gate.stage(stage_index)
        stage_outputs.append(
            append_stage(graph, single_stage_gate, input_name, dtype, group_input_name)
        )
    gate_outputs = _combine_stages(OnnxOperations(graph, "int64"), stage_outputs)

    output_names = {name: _unused_name(name, names_in_model) for name in gate_outputs}
    for default_name, output in gate_outputs.items():
        graph.rename_value(output.name, output_names[default_name])
    model.graph.node.extend(graph.nodes)
    model.graph.initializer.extend(graph.initializers)
    if group_input_name is not None:
        model.graph.input.append(
            make_tensor_info(group_input_name, "int64", [batch_dimension], _GROUP_DESCRIPTION)
        )
    for default_name, output_name in output_names.items():
        if default_name == "probs":
            shape = [batch_dimension, gate.n_classes]
            output_info = make_tensor_info(output_name, working_dtype(dtype), shape)
        else:
            output_dtype = _OUTPUT_DTYPES[default_name]
            output_info = make_tensor_info(output_name, output_dtype, [batch_dimension])
        model.graph.output.append(output_info)
    return AttachedGate(
        model=model,
        gate=gate,
        stage_input_names=stage_input_names,
        output_names=output_names,
        rejected=rejected,
        group_input_name=group_input_name,
        has_one_score=has_one_score,
    )


def _append_column_checks(
    graph: Graph, table_names: Sequence[str], n_columns: int
) -> tuple[str, ...]:
    """Append Reshape nodes that fail unless each table has this number of columns.

    A tensor with one dimension becomes a single column.
    """
    # In the operator Reshape, a size of 0 keeps the size of the dimension.
    target_shape = graph.add_integers(0, n_columns)
    checked_names = tuple(graph.append_node("Reshape", name, target_shape) for name in table_names)
    # The name of the failing node identifies this check in the error of onnxruntime.
    graph.nodes[-1].name = COLUMN_CHECK_NODE_NAME
    return checked_names


def _unused_name(name: str, names_in_model: set[str]) -> str:
    """Return a name, or a variant of it if the model uses the name already."""
    if name in names_in_model:
        name = f"metacal_{name}"
    while name in names_in_model:
        name += "_"
    return name


def _combine_stages(xp: OnnxOperations, stage_outputs: list[Outputs]) -> Outputs:
    """Append the nodes that select the outputs of the first stage that accepts a row.

    The outputs of a row that no stage accepts are those of the last stage.
    """
    *earlier_stages, last_stage = stage_outputs
    if not earlier_stages:
        return last_stage
    last_stage_index = len(earlier_stages)
    human_review_index = len(stage_outputs)
    answered_by = xp.where(last_stage["accept"], last_stage_index, human_review_index)
    combined_outputs = last_stage
    for stage_index in reversed(range(len(earlier_stages))):
        later_outputs = combined_outputs
        stage = earlier_stages[stage_index]
        accept = stage["accept"]
        answered_by = xp.where(accept, stage_index, answered_by)
        accept_column = xp.unsqueeze(accept)
        combined_outputs = {}
        if "probs" in stage and "probs" in later_outputs:
            combined_outputs["probs"] = xp.where(
                accept_column, stage["probs"], later_outputs["probs"]
            )
        if "confidence" in stage and "confidence" in later_outputs:
            combined_outputs["confidence"] = xp.where(
                accept, stage["confidence"], later_outputs["confidence"]
            )
        combined_outputs["answered_by"] = answered_by
        combined_outputs["accept"] = accept | later_outputs["accept"]
        if "score" in stage:
            combined_outputs["score"] = stage["score"]
    return combined_outputs
