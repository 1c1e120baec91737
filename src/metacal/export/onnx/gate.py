"""Gates as ONNX nodes.

If a gate has several stages, the first stage that accepts a row determines its outputs, and the
output `answered_by` is the index of that stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from metacal.export.onnx.graph import Graph, tensor_info
from metacal.export.onnx.operations import OnnxOperations
from metacal.export.onnx.probe import GUARD
from metacal.export.onnx.reading import all_names, model_opset
from metacal.export.onnx.stages import (
    Outputs,
    append_score_stage,
    append_table_stage,
    working_dtype,
)
from metacal.gate import Gate

_GROUP_DESCRIPTION = (
    "the place of each row's group in the list metacal.groups; any other number is rejected"
)

# Dtypes of the outputs, except `probs`, whose dtype depends on that of the logits.
_OUTPUT_DTYPES = {
    "score": "float64",
    "accept": "bool",
    "confidence": "float64",
    "answered_by": "int64",
}


def input_names(gate: Gate) -> tuple[str, ...]:
    """Return the names of the inputs of a gate's graph, one per stage.

    Examples
    --------
    >>> from metacal.gate import ScoreSource, Stage
    >>> input_names(Gate.from_source(ScoreSource()))
    ('scores',)
    >>> input_names(Gate((Stage(ScoreSource(), name="judge"), Stage(ScoreSource(), name="panel"))))
    ('scores_judge', 'scores_panel')
    """
    if not gate.is_cascade:
        return (gate.source.input_name,)
    return tuple(f"{stage.source.input_name}_{stage.name}" for stage in gate.stages)


@dataclass(frozen=True)
class AttachedGate:
    """Model with a gate appended to it.

    Attributes
    ----------
    model : onnx.ModelProto
        The model with the gate.

    gate : Gate
        The gate.

    given : tuple of str
        Names of the values that the stages read.

    outputs : dict of str to str
        Names of the gate's outputs in the model, by their usual name.

    group : str or None
        Name of the input with the group of each row. None if there is no threshold by group.
    """

    model: Any
    gate: Gate
    given: tuple[str, ...]
    outputs: dict[str, str]
    group: str | None = None


def append_gate(
    model: Any,
    gate: Gate,
    given: tuple[str, ...],
    dtype: str,
    batch: int | str,
    *,
    guarded: bool = False,
) -> AttachedGate:
    """Append the nodes of a gate to a model. The model keeps its own outputs.

    Parameters
    ----------
    model : onnx.ModelProto
        Model to change.

    gate : Gate
        Gate to append.

    given : tuple of str
        Names of the values that the stages read.

    dtype : str
        Dtype of these values.

    batch : int or str
        Size or name of the batch dimension.

    guarded : bool, default=False
        Whether to add a node that fails at run time if a table does not have one column per class.
        Otherwise the gate of a model with an unknown or wrong number of columns could return
        meaningless results.

    Returns
    -------
    AttachedGate
    """
    taken_names = all_names(model)
    graph = Graph(model_opset(model), taken=taken_names, constants_as_nodes=model.ir_version < 4)
    group_input = _unused_name("group", taken_names) if gate.has_group_thresholds else None
    table_names = given
    if guarded:
        table_names = _guard_columns(graph, given, gate.n_classes)

    append_stage = append_table_stage if gate.has_classes else append_score_stage
    stage_outputs = []
    for index, table_name in enumerate(table_names):
        stage_outputs.append(append_stage(graph, gate.stage(index), table_name, dtype, group_input))
    outputs = _combine_stages(OnnxOperations(graph, "int64"), stage_outputs)

    output_names = {name: _unused_name(name, taken_names) for name in outputs}
    for name, value in outputs.items():
        graph.rename(value.name, output_names[name])
    model.graph.node.extend(graph.nodes)
    model.graph.initializer.extend(graph.initializers)
    if group_input is not None:
        model.graph.input.append(tensor_info(group_input, "int64", [batch], _GROUP_DESCRIPTION))
    for name, output_name in output_names.items():
        if name == "probs":
            info = tensor_info(output_name, working_dtype(dtype), [batch, gate.n_classes])
        else:
            info = tensor_info(output_name, _OUTPUT_DTYPES[name], [batch])
        model.graph.output.append(info)
    return AttachedGate(
        model=model, gate=gate, given=given, outputs=output_names, group=group_input
    )


def _guard_columns(graph: Graph, table_names: Sequence[str], n_classes: int) -> tuple[str, ...]:
    """Append nodes that fail unless each table has one column per class."""
    shape = graph.integers(0, n_classes)
    guarded_names = tuple(graph.op("Reshape", name, shape) for name in table_names)
    graph.nodes[-1].name = GUARD
    return guarded_names


def _unused_name(name: str, taken_names: set[str]) -> str:
    """Return a name, or a similar one if the model uses it already."""
    if name in taken_names:
        name = f"metacal_{name}"
    while name in taken_names:
        name += "_"
    return name


def _combine_stages(xp: OnnxOperations, stage_outputs: list[Outputs]) -> Outputs:
    """Append the nodes that select the outputs of the first stage that accepts a row.

    The outputs of a row that no stage accepts are those of the last stage.
    """
    *earlier_stages, outputs = stage_outputs
    if not earlier_stages:
        return outputs
    answered_by = xp.where(outputs["accept"], len(earlier_stages), len(stage_outputs))
    for index in reversed(range(len(earlier_stages))):
        earlier = earlier_stages[index]
        accept = earlier["accept"]
        answered_by = xp.where(accept, index, answered_by)
        accept_column = xp.unsqueeze(accept)
        combined = {}
        if "probs" in earlier and "probs" in outputs:
            combined["probs"] = xp.where(accept_column, earlier["probs"], outputs["probs"])
        if "confidence" in earlier and "confidence" in outputs:
            combined["confidence"] = xp.where(accept, earlier["confidence"], outputs["confidence"])
        combined["answered_by"] = answered_by
        combined["accept"] = accept | outputs["accept"]
        if "score" in earlier:
            combined["score"] = earlier["score"]
        outputs = combined
    return outputs
