"""Read an ONNX model that somebody else made: as data, with every reference out of the file checked
first; its logits.

The parent process only parses protocol buffers, in memory-safe code. Whatever runs the graph or
walks it in C++ (the checker, onnxruntime) does so later, in a process of its own with limits: see
`checking`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metacal.errors import ArtifactError, InputError, option
from metacal.export.onnx.graph import (
    ELEMENT_TYPES,
    OLDEST_OPSET,
    messages,
    messages_of,
    onnx_library,
)
from metacal.io.opening import kind_of, plain_read_errors

#: A protocol buffer cannot be larger.
_MAX_BYTES = 2**31 - 1
_EXTERNAL = 1
_FLOATS = {ELEMENT_TYPES[name]: name for name in ("float32", "float16", "float64", "bfloat16")}
#: Operators whose output is probabilities, and those that only pass values on.
_TO_PROBABILITIES = {"Softmax", "Sigmoid", "Normalizer"}
_PASSES_ON = {"Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Dropout"}
#: Operators whose output is of the type of their first input.
_KEEPS_TYPE = {"Softmax", "LogSoftmax", "Sigmoid", *_PASSES_ON} - {"Cast"}
#: Classifiers of ai.onnx.ml whose scores are probabilities when this attribute says so.
_POST_TRANSFORMS = {b"SOFTMAX", b"LOGISTIC", b"PROBIT", b"SOFTMAX_ZERO"}
#: The operator set for a model that imports none of the default domain.
_USUAL_OPSET = 17


@dataclass(frozen=True)
class Source:
    """A parsed model, where files of its weights lie (None: there are none), and the size of all it
    consists of.
    """

    model: Any
    folder: Path | None
    n_bytes: int


@dataclass(frozen=True)
class Logits:
    """The value that the gate reads."""

    name: str
    dtype: str
    #: The number of its columns, where the model says so, and how it names (or fixes) the number of
    #: rows.
    width: int | None = None
    batch: int | str = "metacal_batch"


def read_model(model: Any) -> Source:
    """Parse a model from a path, or take a ModelProto; weights in files beside it stay there.

    Examples
    --------
    >>> read_model("model.onnx")
    Traceback (most recent call last):
    metacal.errors.InputError: model.onnx: there is no such file; check the name and the folder.
    """
    onnx = onnx_library("reading an ONNX model")
    if isinstance(model, onnx.ModelProto):
        _check_shape(model)
        return Source(deepcopy(model), None, model.ByteSize())
    if not isinstance(model, str | os.PathLike):
        raise InputError(f"model must be a path or an onnx.ModelProto, got {type(model).__name__}.")
    name = os.fspath(model)
    if os.path.isdir(name):
        raise InputError(f"{name}: this is a folder; give the .onnx file in it.")
    with plain_read_errors(name), open(name, "rb") as file:
        raw = file.read(_MAX_BYTES + 1)
    try:
        parsed = _parsed(raw, onnx)
        folder = Path(os.path.realpath(name)).parent
        beside = _external_files(parsed, str(folder))
        return Source(parsed, folder if beside else None, len(raw) + sum(beside.values()))
    except (ArtifactError, InputError) as error:
        raise type(error)(f"{name}: {error}") from None


def _parsed(raw: bytes, onnx: Any) -> Any:
    if len(raw) > _MAX_BYTES:
        raise ArtifactError("it is larger than 2 GB; keep its weights as external data.")
    if not raw:
        raise ArtifactError("the file is empty (0 bytes); export it again.")
    kind = kind_of(raw[:8])
    if kind is not None:
        raise ArtifactError(f"this is {kind}, not an ONNX model.")
    try:
        model = onnx.ModelProto.FromString(raw)
    except Exception:  # protobuf's DecodeError, whatever it says
        raise ArtifactError(
            "this is no ONNX model, or it is damaged or cut short; export it again."
        ) from None
    _check_shape(model)
    return model


def _check_shape(model: Any) -> None:
    """Raise unless there is a graph with nodes and outputs, nested and sized like one."""
    if not model.HasField("graph"):
        raise ArtifactError("there is no graph in it, so it is no ONNX model; export it again.")
    _check_text(model)
    if not model.graph.output:
        raise ArtifactError("the graph has no outputs; export the model with its logits as output.")
    if not model.graph.node:
        raise ArtifactError("the graph has no nodes, so it computes nothing; export it again.")
    if not 3 <= model.ir_version <= 1000:
        raise ArtifactError(
            f"IR version {model.ir_version} is none of ONNX's; export the model again."
        )


def _check_text(model: Any) -> None:
    """Raise unless every name is text: protobuf hands out bytes, or fails, where a damaged file has
    something else.
    """
    try:
        fields = (pair for message in messages(model) for pair in message.ListFields())
        named = (
            value
            for field, value in fields
            if field.type == field.TYPE_STRING and field.name != "doc_string"
        )
        texts = (
            text
            for value in named
            for text in ([value] if isinstance(value, str | bytes) else value)
        )
        sound = all(isinstance(text, str) for text in texts)
    except UnicodeDecodeError:
        sound = False
    if not sound:
        raise ArtifactError(
            "a name in the model is not UTF-8 text: it is damaged; export it again."
        )


def _external_files(model: Any, root: str) -> dict[str, int]:
    """The files beside the model, and their bytes; raise if one is missing, too short, or lies
    outside the folder.
    """
    sizes = dict[str, int]()
    for tensor in messages_of("TensorProto", model):
        if tensor.data_location != _EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        if not _is_inside(root, location):
            raise ArtifactError(
                f"its weights point to {location[:200]!r}, outside the model's folder; that is"
                " never followed. Save the model with its external data beside it."
            )
        path = os.path.realpath(os.path.join(root, location))
        if not os.path.isfile(path):
            raise InputError(
                f"its external data file {location!r} is not beside it; copy it there."
            )
        sizes[path] = os.path.getsize(path)
        try:
            start, length = int(entries.get("offset") or 0), int(entries.get("length") or 0)
        except ValueError:
            start = length = -1
        if start < 0 or length < 0 or start + length > sizes[path]:
            raise ArtifactError(
                f"its external data {location!r} is shorter than the model says; copy both again."
            )
    return sizes


def _is_inside(root: str, location: str) -> bool:
    """Whether a relative path leads to a place below `root`, links followed."""
    if not location or "\0" in location or os.path.isabs(location) or ".." in Path(location).parts:
        return False
    return os.path.commonpath([root, os.path.realpath(os.path.join(root, location))]) == root


def all_names(model: Any) -> set[str]:
    """Every name that a value or node of the model bears."""
    names: set[str] = set()
    for graph in messages_of("GraphProto", model):
        names.update(
            entry.name
            for entry in (*graph.input, *graph.output, *graph.value_info, *graph.initializer)
        )
    for node in messages_of("NodeProto", model):
        names.update((node.name, *node.input, *node.output))
    return names


def opset_of(model: Any) -> int:
    """The model's operator set."""
    return next(
        int(entry.version) for entry in model.opset_import if entry.domain in ("", "ai.onnx")
    )


def check_opset(model: Any) -> None:
    """Raise unless the operator set has every operator of a gate; a model that names none gets the
    usual one.
    """
    if not any(entry.domain in ("", "ai.onnx") for entry in model.opset_import):
        model.opset_import.add(domain="", version=_USUAL_OPSET)
    if not OLDEST_OPSET <= opset_of(model) <= 1000:
        raise InputError(
            f"the model is at operator set {opset_of(model)}; the gate needs at least"
            f" {OLDEST_OPSET}. Convert it with onnx.version_converter.convert_version(model,"
            f" {_USUAL_OPSET}), or export it again."
        )


def find_logits(model: Any, wanted: str | None) -> Logits:
    """The value to read: the one that was named, or the only floating-point table among the
    outputs.
    """
    outputs = {output.name: output for output in model.graph.output}
    if len(outputs) < len(model.graph.output):
        raise ArtifactError("two outputs of the model bear the same name; export it again.")
    if wanted is not None:
        return (
            _table(outputs[wanted]) if wanted in outputs else _inner_value(model, wanted, outputs)
        )
    tables = list(_tables(outputs.values()))
    if len(tables) == 1:
        return tables[0]
    _explain_maps(*outputs.values())
    what = (
        "no output of this model is a floating-point table"
        if not tables
        else "which output holds the logits?"
    )
    raise InputError(f"{what} It has {_listed(outputs)}. Name one with {option('logits')}.")


def _table(output: Any) -> Logits:
    """An output as logits, or what is wrong with it."""
    _explain_maps(output)
    tensor = output.type.tensor_type
    if not output.type.HasField("tensor_type") or tensor.elem_type not in _FLOATS:
        raise InputError(
            f"output {output.name!r} is {_described(output)}, not a floating-point table; logits"
            " have one row per item and one column per class."
        )
    dims = [_size(dim) for dim in tensor.shape.dim] if tensor.HasField("shape") else ["", ""]
    if len(dims) != 2:
        raise InputError(
            f"output {output.name!r} has {len(dims)} dimensions; logits need 2, one row per item"
            " and one column per class."
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
    return (
        int(dim.dim_value)
        if dim.HasField("dim_value") and dim.dim_value > 0
        else str(dim.dim_param)
    )


def _inner_value(model: Any, wanted: str, outputs: dict[str, Any]) -> Logits:
    """A value inside the graph, such as what goes into the last softmax."""
    if not any(wanted in node.output for node in model.graph.node):
        raise InputError(
            f"there is no value {wanted!r} in this model; its outputs are {_listed(outputs)}."
        )
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
        f"the model does not say what type {wanted!r} has; run onnx.shape_inference.infer_shapes on"
        " it first, or make it an output."
    )


def refuse_probabilities(model: Any, name: str) -> None:
    """Raise if the value plainly comes out of a softmax: a gate fitted on logits would be wrong
    without a word.
    """
    makers = {output: node for node in model.graph.node for output in node.output}
    value = name
    while (
        node := makers.pop(value, None)
    ) is not None and node.input:  # each but once: a damaged graph may go round
        transform = next((a.s for a in node.attribute if a.name == "post_transform"), b"NONE")
        if node.op_type in _TO_PROBABILITIES or transform in _POST_TRANSFORMS:
            inside = (
                f" (what goes into it, {node.input[0]!r}, may be the logits)"
                if node.op_type == "Softmax"
                else ""
            )
            raise InputError(
                f"{name!r} holds probabilities: it comes out of a {node.op_type} node{inside}. Name"
                f" the logits with {option('logits')}, export the model with its raw scores"
                " (skl2onnx: options={'raw_scores': True}), or say"
                f" {option('input', 'probabilities')}."
            )
        if node.op_type not in _PASSES_ON:
            return
        value = node.input[0]


def _explain_maps(*outputs: Any) -> None:
    for output in outputs:
        if output.type.HasField("sequence_type") or output.type.HasField("map_type"):
            raise InputError(
                f"output {output.name!r} is a list of dictionaries (skl2onnx's ZipMap), not a"
                " table; export the model with options={'zipmap': False, 'raw_scores': True},"
                " then attach again."
            )


def _listed(outputs: dict[str, Any]) -> str:
    return ", ".join(
        f"{name!r} ({_described(output)})" for name, output in list(outputs.items())[:20]
    )


def _described(output: Any) -> str:
    if not output.type.HasField("tensor_type"):
        return "no tensor"
    tensor, kinds = output.type.tensor_type, onnx_library("attaching a gate").TensorProto.DataType
    kind = kinds.Name(tensor.elem_type).lower() if tensor.elem_type in kinds.values() else "unknown"
    return f"{kind} {' × '.join(str(_size(dim) or '?') for dim in tensor.shape.dim)}".rstrip()
