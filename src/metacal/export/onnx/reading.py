"""Reader of ONNX models.

A model from elsewhere is read as data: this process only parses protocol buffers, in memory-safe
code, and checks all references to other files. The checker and onnxruntime, which interpret the
graph in C++, run later in a separate process with limits, see `checking`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metacal.errors import ArtifactError, ExportError, FileReadError, InputError, OnnxModelError
from metacal.export.onnx.graph import (
    OLDEST_OPSET,
    import_onnx,
    iterate_messages,
    iterate_messages_of_type,
)
from metacal.io.opening import detect_file_kind, input_error_if_read_fails

# Largest size of a protocol buffer message in bytes.
_MAX_BYTES = 2**31 - 1

# Value of TensorProto.data_location for a tensor in another file.
_EXTERNAL_LOCATION = 1

# Versions outside these bounds occur only in damaged files.
_MIN_IR_VERSION = 3
_MAX_VERSION = 1000

# Operator set that is added to a model without the default operator domain.
_DEFAULT_OPSET = 17

# Equivalent names of the default operator domain.
_DEFAULT_DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True)
class ParsedModel:
    """ONNX model that was read from a file, and the size of its data.

    Attributes
    ----------
    model : onnx.ModelProto
        The model.

    folder : Path or None
        Folder of external data files. None if there are none.

    n_bytes : int
        Size of the model, including external data.
    """

    model: Any
    folder: Path | None
    n_bytes: int


def read_model(model: Any) -> ParsedModel:
    """Parse a model and check its references to external data.

    Parameters
    ----------
    model : str, path or onnx.ModelProto
        Model file, or a parsed model, which is copied. External data are not read.

    Returns
    -------
    ParsedModel

    Raises
    ------
    InputError
        If the file does not exist, or an external data file is missing.

    ArtifactError
        If the file is not a valid model.

    Examples
    --------
    >>> read_model("model.onnx")
    Traceback (most recent call last):
    metacal.errors.FileReadError: model.onnx: the file does not exist. Check the name and the folder.
    """
    onnx = import_onnx("reading an ONNX model")
    if isinstance(model, onnx.ModelProto):
        _check_model(model)
        return ParsedModel(model=deepcopy(model), folder=None, n_bytes=model.ByteSize())
    if not isinstance(model, str | os.PathLike):
        raise InputError(
            f"model must be a path or an onnx.ModelProto, but got {type(model).__name__}."
        )
    path = os.fspath(model)
    if os.path.isdir(path):
        raise FileReadError(
            f"{path} is a folder, but a file is required. Pass the .onnx file in this folder."
        )
    with input_error_if_read_fails(path), open(path, "rb") as file:
        raw = file.read(_MAX_BYTES + 1)
    try:
        parsed_model = _parse_model(raw, onnx)
        folder = Path(os.path.realpath(path)).parent
        file_sizes = _external_file_sizes(parsed_model, str(folder))
    except (ArtifactError, InputError) as error:
        raise type(error)(f"{path}: {error}") from None
    return ParsedModel(
        model=parsed_model,
        folder=folder if file_sizes else None,
        n_bytes=len(raw) + sum(file_sizes.values()),
    )


def _parse_model(raw: bytes, onnx: Any) -> Any:
    """Parse the bytes of a model. Raise ArtifactError if they are not a valid model."""
    if len(raw) > _MAX_BYTES:
        raise OnnxModelError("the model is larger than 2 GB. Save its weights as external data.")
    if not raw:
        raise OnnxModelError("the file is empty (0 bytes). Export the model again.")
    other_file_kind = detect_file_kind(raw[:8])
    if other_file_kind is not None:
        raise OnnxModelError(
            f"the file is {other_file_kind}, not an ONNX model. Export the model to ONNX."
        )
    try:
        model = onnx.ModelProto.FromString(raw)
    except Exception:  # protobuf does not export the class of its parsing errors
        raise OnnxModelError(
            "the file is not an ONNX model, or it is damaged or incomplete. Export the model again."
        ) from None
    _check_model(model)
    return model


def _check_model(model: Any) -> None:
    """Raise ArtifactError unless a model has a graph with nodes and outputs."""
    if not model.HasField("graph"):
        raise OnnxModelError("the model has no graph. Export the model again.")
    _check_names_are_text(model)
    if not model.graph.output:
        raise OnnxModelError(
            "the graph has no outputs. Export the model with its logits as an output."
        )
    if not model.graph.node:
        raise OnnxModelError("the graph has no nodes. Export the model again.")
    if not _MIN_IR_VERSION <= model.ir_version <= _MAX_VERSION:
        raise OnnxModelError(
            f"{model.ir_version} is not an IR version of ONNX. Export the model again."
        )


def _check_names_are_text(model: Any) -> None:
    """Raise ArtifactError unless all names are text.

    If a name in a damaged file is not UTF-8, protobuf returns bytes or raises an error.
    """
    try:
        is_text = all(isinstance(name, str) for name in _iterate_string_fields(model))
    except UnicodeDecodeError:
        is_text = False
    if not is_text:
        raise OnnxModelError(
            "the model is damaged, because one of its names is not UTF-8 text. Export the model"
            " again."
        )


def _iterate_string_fields(model: Any) -> Iterator[str | bytes]:
    """Iterate over all string fields of a model except the documentation."""
    for message in iterate_messages(model):
        for field, value in message.ListFields():
            if field.type != field.TYPE_STRING or field.name == "doc_string":
                continue
            if isinstance(value, str | bytes):
                yield value
            else:
                yield from value


def _external_file_sizes(model: Any, folder: str) -> dict[str, int]:
    """Return the sizes of the external data files by path.

    Parameters
    ----------
    model : onnx.ModelProto
        Model to check.

    folder : str
        Folder of the model.

    Returns
    -------
    dict of str to int

    Raises
    ------
    ArtifactError
        If a file lies outside the folder, or is too short.

    InputError
        If a file is missing.
    """
    file_sizes: dict[str, int] = {}
    for tensor in iterate_messages_of_type("TensorProto", model):
        if tensor.data_location != _EXTERNAL_LOCATION:
            continue
        reference_fields = {entry.key: entry.value for entry in tensor.external_data}
        location = reference_fields.get("location", "")
        if not _is_inside_folder(folder, location):
            raise OnnxModelError(
                f"the weights refer to {location[:200]!r}, a file outside the folder of the"
                " model, which metacal does not read. Save the model together with its external"
                " data."
            )
        data_path = os.path.realpath(os.path.join(folder, location))
        if not os.path.isfile(data_path):
            raise FileReadError(
                f"the folder of the model does not contain the external data file {location!r}."
                " Copy the file into this folder."
            )
        file_sizes[data_path] = os.path.getsize(data_path)
        if not _is_inside_file(reference_fields, file_sizes[data_path]):
            raise OnnxModelError(
                f"the external data file {location!r} is shorter than the model requires. Copy"
                " both files again."
            )
    return file_sizes


def _is_inside_folder(folder: str, location: str) -> bool:
    """Check whether a relative path is inside a folder after following links."""
    if not location or "\0" in location or os.path.isabs(location) or ".." in Path(location).parts:
        return False
    real_path = os.path.realpath(os.path.join(folder, location))
    return os.path.commonpath([folder, real_path]) == folder


def _is_inside_file(entries: dict[str, str], file_size: int) -> bool:
    """Check whether offset and length of an external tensor are inside its file."""
    try:
        offset = int(entries.get("offset") or 0)
        length = int(entries.get("length") or 0)
    except ValueError:
        return False
    return offset >= 0 and length >= 0 and offset + length <= file_size


def collect_tensor_and_node_names(model: Any) -> set[str]:
    """Return the names of all tensors and nodes of a model."""
    used_names: set[str] = set()
    for graph in iterate_messages_of_type("GraphProto", model):
        for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
            used_names.add(value.name)
    for node in iterate_messages_of_type("NodeProto", model):
        used_names.update((node.name, *node.input, *node.output))
    return used_names


def get_opset(model: Any) -> int:
    """Return the operator set of a model that imports the default domain."""
    return next(
        int(entry.version) for entry in model.opset_import if entry.domain in _DEFAULT_DOMAINS
    )


def ensure_supported_opset(model: Any) -> None:
    """Raise InputError if the operator set of a model is too old for a gate.

    A model that does not import the default operator domain gets a default operator set.
    """
    if not any(entry.domain in _DEFAULT_DOMAINS for entry in model.opset_import):
        model.opset_import.add(domain="", version=_DEFAULT_OPSET)
    opset = get_opset(model)
    if not OLDEST_OPSET <= opset <= _MAX_VERSION:
        raise ExportError(
            f"The gate requires operator set {OLDEST_OPSET} or newer, but the model has operator"
            f" set {opset}. Convert the model with onnx.version_converter.convert_version(model,"
            f" {_DEFAULT_OPSET}), or export it again."
        )
