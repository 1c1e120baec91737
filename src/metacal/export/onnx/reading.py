"""Read an ONNX model that somebody else made: as data, with every reference out of the file checked first.

The parent process only parses protocol buffers, in memory-safe code. Whatever runs the graph or walks it in C++ (the
checker, onnxruntime) does so later, in a process of its own with limits: see `checking`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metacal.errors import ArtifactError, InputError
from metacal.export.onnx.graph import messages, messages_of, onnx_library
from metacal.io.opening import kind_of, plain_read_errors

#: A protocol buffer cannot be larger.
_MAX_BYTES = 2**31 - 1
_EXTERNAL = 1


@dataclass(frozen=True)
class Source:
    """A parsed model, where it lies (None: in memory only), and the size of all it consists of."""

    model: Any
    folder: Path | None
    n_bytes: int

    @property
    def external(self) -> bool:
        """Whether some of its weights lie in files of their own."""
        return any(tensor.data_location == _EXTERNAL for tensor in messages_of("TensorProto", self.model))


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
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        _check_shape(copy)
        return Source(copy, None, copy.ByteSize())
    if not isinstance(model, str | os.PathLike):
        raise InputError(f"model must be a path or an onnx.ModelProto, got {type(model).__name__}.")
    name = os.fspath(model)
    if os.path.isdir(name):
        raise InputError(f"{name}: this is a folder; give the .onnx file in it.")
    with plain_read_errors(name), open(name, "rb") as file:
        raw = file.read(_MAX_BYTES + 1)
    with _damage(name):
        parsed = _parsed(raw, onnx)
        folder = Path(os.path.realpath(name)).parent
        return Source(parsed, folder, len(raw) + _external_bytes(parsed, folder))


@contextlib.contextmanager
def _damage(name: str) -> Iterator[None]:
    """Name the file in what is wrong with it."""
    try:
        yield
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
        raise ArtifactError("this is no ONNX model, or it is damaged or cut short; export it again.") from None
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
        raise ArtifactError(f"IR version {model.ir_version} is none of ONNX's; export the model again.")


def _check_text(model: Any) -> None:
    """Raise unless every name is text: protobuf hands out bytes, or fails, where a damaged file has something else."""
    try:
        fields = (pair for message in messages(model) for pair in message.ListFields())
        named = (value for field, value in fields if field.type == field.TYPE_STRING and field.name != "doc_string")
        texts = (text for value in named for text in ([value] if isinstance(value, str | bytes) else value))
        sound = all(isinstance(text, str) for text in texts)
    except UnicodeDecodeError:
        sound = False
    if not sound:
        raise ArtifactError("a name in the model is not UTF-8 text: it is damaged; export it again.")


def _external_bytes(model: Any, folder: Path) -> int:
    """Bytes in the files beside the model; raise if one is missing, too short, or lies outside the folder."""
    root, sizes = os.path.realpath(folder), {}
    for tensor in messages_of("TensorProto", model):
        if tensor.data_location != _EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        if not _is_inside(root, location):
            raise ArtifactError(
                f"its weights point to {location[:200]!r}, outside the model's folder; that is never followed. "
                "Save the model with its external data beside it."
            )
        path = os.path.realpath(os.path.join(root, location))
        if not os.path.isfile(path):
            raise InputError(f"its external data file {location!r} is not beside it; copy it there.")
        sizes[path] = os.path.getsize(path)
        _check_span(entries, sizes[path], location)
    return sum(sizes.values())


def _is_inside(root: str, location: str) -> bool:
    """Whether a relative path leads to a place below `root`, links followed."""
    if not location or "\0" in location or os.path.isabs(location) or ".." in Path(location).parts:
        return False
    return os.path.commonpath([root, os.path.realpath(os.path.join(root, location))]) == root


def _check_span(entries: dict[str, str], size: int, location: str) -> None:
    try:
        start, length = int(entries.get("offset") or 0), int(entries.get("length") or 0)
    except ValueError:
        start = length = -1
    if start < 0 or length < 0 or start + length > size:
        raise ArtifactError(f"its external data {location!r} is shorter than the model says; copy both files again.")


def all_names(model: Any) -> set[str]:
    """Every name that a value or node of the model bears."""
    names: set[str] = set()
    for graph in messages_of("GraphProto", model):
        names.update(entry.name for entry in (*graph.input, *graph.output, *graph.value_info, *graph.initializer))
    for node in messages_of("NodeProto", model):
        names.update((node.name, *node.input, *node.output))
    return names
