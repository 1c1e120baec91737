"""Put a gate behind a model: find the logits of a classifier, append the nodes, keep everything else as it is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from metacal.errors import ArtifactError, InputError
from metacal.export.fitted import exportable, gate_of
from metacal.export.onnx.gate import GROUP, answers, working_type
from metacal.export.onnx.graph import ELEMENT_TYPES, OLDEST_OPSET, Graph, described, onnx_library
from metacal.export.onnx.metadata import PREFIX, metadata_of, write_metadata
from metacal.export.onnx.probe import GUARD
from metacal.export.onnx.reading import all_names
from metacal.gate import Gate

_FLOATS = {ELEMENT_TYPES[name]: name for name in ("float32", "float16", "float64", "bfloat16")}
#: Operators whose output is probabilities, and those that only pass values on.
_TO_PROBABILITIES = {"Softmax", "Sigmoid", "Normalizer"}
_PASSES_ON = {"Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Dropout"}
#: Operators whose output is of the type of their first input.
_KEEPS_TYPE = {"Softmax", "LogSoftmax", "Sigmoid", *_PASSES_ON} - {"Cast"}
#: Classifiers of ai.onnx.ml whose scores are probabilities when this attribute says so.
_POST_TRANSFORMS = {b"SOFTMAX", b"LOGISTIC", b"PROBIT", b"SOFTMAX_ZERO"}
#: What the input of groups holds.
_GROUP_SAYS = "the place of each row's group in the list metacal.groups; any other number is rejected"
#: Output -> its type; that of `probs` depends on the logits'.
_TYPES = {"score": "float64", "accept": "bool", "confidence": "float64", "answered_by": "int64"}
#: The operator set for a model that imports none of the default domain.
_USUAL_OPSET = 17


@dataclass(frozen=True)
class Logits:
    """The value that the gate reads."""

    name: str
    dtype: str
    #: The number of its columns, where the model says so, and how it names (or fixes) the number of rows.
    width: int | None = None
    batch: int | str = "metacal_batch"


@dataclass(frozen=True)
class Attached:
    """A model with its gate: what the gate reads, the names of its outputs, and of the input that takes groups."""

    model: Any
    gate: Gate
    logits: Logits
    outputs: dict[str, str]
    group: str | None

    def showing_logits(self) -> Any:
        """The model with the value that the gate reads among its outputs, where it is inside: what is checked."""
        if self.logits.name in [output.name for output in self.model.graph.output]:
            return self.model
        shown = type(self.model)()
        shown.CopyFrom(self.model)
        shown.graph.output.append(described(self.logits.name, self.logits.dtype, [None, None]))
        return shown


def graft(model: Any, cal: Any, *, logits: str | None = None, input: str | None = None) -> Attached:
    """Append `probs`, `score` and `accept` behind the logits of a model; its own outputs stay."""
    if any(entry.key.startswith(PREFIX) for entry in model.metadata_props):
        raise InputError("this model already has a metacal gate; attach to the original model.")
    _check_opset(model)
    read = find_logits(model, logits)
    fitted = gate_of(cal, on_tables=True)
    gate = exportable(fitted, input)
    if read.width is not None and read.width != gate.n_classes:
        raise InputError(
            f"output {read.name!r} has {read.width} columns, but the calibration has {gate.n_classes} classes; "
            "attach the one that was fitted on this model's logits."
        )
    if gate.source.input == "logits":
        _refuse_probabilities(model, read.name)
    names, group = append_gate(model, fitted, gate, (read.name,), read.dtype, read.batch, guarded=True)
    write_metadata(model, {f"{PREFIX}logits": read.name})
    return Attached(model, gate, read, names, group)


def append_gate(
    model: Any,
    fitted: Gate,
    gate: Gate,
    given: tuple[str, ...],
    dtype: str,
    batch: int | str,
    *,
    guarded: bool = False,
) -> tuple[dict[str, str], str | None]:
    """Append a gate to a model that has what its stages read as `given`; the names of its outputs and of `group`.

    `fitted` is the gate as it was fitted, `gate` as it is exported. Where `guarded`, a node fails at run time where a
    table does not have one column per class: a model that says nothing about its width, or says it wrongly, would
    otherwise give answers of some kind.
    """
    taken = all_names(model)
    graph = Graph(opset_of(model), taken=taken, constants_as_nodes=model.ir_version < 4)
    if guarded:
        given = tuple(graph.op("Reshape", name, graph.integers(0, gate.n_classes)) for name in given)
        graph.nodes[-1].name = GUARD
    group = _free(GROUP, taken) if gate.by_group else None
    written = answers(graph, gate, given, dtype, group)
    names = {name: _free(name, taken) for name in written}
    for name, value in written.items():
        graph.rename(value, names[name])
    model.graph.node.extend(graph.nodes)
    model.graph.initializer.extend(graph.initializers)
    model.graph.input.extend([] if group is None else [described(group, "int64", [batch], _GROUP_SAYS)])
    types, shapes = _TYPES | {"probs": working_type(dtype)}, {"probs": [batch, gate.n_classes]}
    for name, public in names.items():
        model.graph.output.append(described(public, types[name], shapes.get(name, [batch])))
    write_metadata(model, metadata_of(fitted, gate, names, group))
    return names, group


def find_logits(model: Any, wanted: str | None) -> Logits:
    """The value to read: the one that was named, or the only floating-point table among the outputs."""
    outputs = {output.name: output for output in model.graph.output}
    if len(outputs) < len(model.graph.output):
        raise ArtifactError("two outputs of the model bear the same name; export it again.")
    if wanted is not None:
        return _table(outputs[wanted]) if wanted in outputs else _inner_value(model, wanted, outputs)
    tables = list(_tables(outputs.values()))
    if len(tables) == 1:
        return tables[0]
    _explain_maps(*outputs.values())
    what = "no output of this model is a floating-point table" if not tables else "which output holds the logits?"
    raise InputError(f"{what} It has {_listed(outputs)}. Name one with logits=... (--logits NAME).")


def _table(output: Any) -> Logits:
    """An output as logits, or what is wrong with it."""
    _explain_maps(output)
    tensor = output.type.tensor_type
    if not output.type.HasField("tensor_type") or tensor.elem_type not in _FLOATS:
        raise InputError(
            f"output {output.name!r} is {_described(output)}, not a floating-point table; logits have one row per item "
            "and one column per class."
        )
    if not tensor.HasField("shape"):
        return Logits(output.name, _FLOATS[tensor.elem_type])
    dims = [_size(dim) for dim in tensor.shape.dim]
    if len(dims) != 2:
        raise InputError(
            f"output {output.name!r} has {len(dims)} dimensions; logits need 2, one row per item and one column per "
            "class."
        )
    width = dims[1] if isinstance(dims[1], int) else None
    return Logits(output.name, _FLOATS[tensor.elem_type], width, dims[0] or "metacal_batch")


def _tables(outputs: Iterable[Any]) -> Iterator[Logits]:
    """Those that could be logits."""
    for output in outputs:
        with contextlib.suppress(InputError):
            yield _table(output)


def _size(dim: Any) -> int | str:
    """A dimension: its size, its name, or an empty one."""
    return int(dim.dim_value) if dim.HasField("dim_value") and dim.dim_value > 0 else str(dim.dim_param)


def _inner_value(model: Any, wanted: str, outputs: dict[str, Any]) -> Logits:
    """A value inside the graph, such as what goes into the last softmax."""
    if not any(wanted in node.output for node in model.graph.node):
        raise InputError(f"there is no value {wanted!r} in this model; its outputs are {_listed(outputs)}.")
    for entry in model.graph.value_info:
        if entry.name == wanted:
            return _table(entry)
    reached = {wanted}
    for node in model.graph.node:
        if node.op_type in _KEEPS_TYPE and len(node.input) and node.input[0] in reached:
            reached.update(node.output[:1])
    for like in _tables(output for output in outputs.values() if output.name in reached):
        return Logits(wanted, like.dtype)
    raise InputError(
        f"the model does not say what type {wanted!r} has; run onnx.shape_inference.infer_shapes on it first, or make "
        "it an output."
    )


def _refuse_probabilities(model: Any, name: str) -> None:
    """Raise if the value plainly comes out of a softmax: a gate fitted on logits would be wrong without a word."""
    makers = {output: node for node in model.graph.node for output in node.output}
    value = name
    for _ in range(len(makers)):
        node = makers.get(value)
        if node is None or not node.input:
            return
        transform = next((a.s for a in node.attribute if a.name == "post_transform"), b"NONE")
        if node.op_type in _TO_PROBABILITIES or transform in _POST_TRANSFORMS:
            inside = f" (what goes into it, {node.input[0]!r}, may be the logits)" if node.op_type == "Softmax" else ""
            raise InputError(
                f"{name!r} holds probabilities: it comes out of a {node.op_type} node{inside}. Name the logits with "
                "logits=... (--logits NAME), export the model with its raw scores (skl2onnx: "
                "options={'raw_scores': True}), or say input='probabilities' (--input probabilities)."
            )
        if node.op_type not in _PASSES_ON:
            return
        value = node.input[0]


def _explain_maps(*outputs: Any) -> None:
    for output in outputs:
        if output.type.HasField("sequence_type") or output.type.HasField("map_type"):
            raise InputError(
                f"output {output.name!r} is a list of dictionaries (skl2onnx's ZipMap), not a table; export the model "
                "with options={'zipmap': False, 'raw_scores': True}, then attach again."
            )


def opset_of(model: Any) -> int:
    """The model's operator set."""
    return next(int(entry.version) for entry in model.opset_import if entry.domain in ("", "ai.onnx"))


def _check_opset(model: Any) -> None:
    if not any(entry.domain in ("", "ai.onnx") for entry in model.opset_import):
        model.opset_import.add(domain="", version=_USUAL_OPSET)
    if not OLDEST_OPSET <= opset_of(model) <= 1000:
        raise InputError(
            f"the model is at operator set {opset_of(model)}; the gate needs at least {OLDEST_OPSET}. Convert it with "
            f"onnx.version_converter.convert_version(model, {_USUAL_OPSET}), or export it again."
        )


def _free(name: str, taken: set[str]) -> str:
    """The name, or one like it that the model has not."""
    if name in taken:
        name = f"metacal_{name}"
    while name in taken:
        name += "_"
    return name


def _listed(outputs: dict[str, Any]) -> str:
    return ", ".join(f"{name!r} ({_described(output)})" for name, output in list(outputs.items())[:20])


def _described(output: Any) -> str:
    onnx = onnx_library("attaching a gate")
    if not output.type.HasField("tensor_type"):
        return "no tensor"
    tensor = output.type.tensor_type
    kinds = onnx.TensorProto.DataType
    kind = kinds.Name(tensor.elem_type).lower() if tensor.elem_type in kinds.values() else "unknown"
    if not tensor.HasField("shape"):
        return kind
    return f"{kind} {' × '.join(str(_size(dim) or '?') for dim in tensor.shape.dim)}".rstrip()
