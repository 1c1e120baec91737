"""Readers of named tensors: safetensors files, and .pt files of torch.

A safetensors file consists of the length of its header, the header as JSON, and raw numbers. It is
read here without the safetensors library, whose NumPy reader supports neither bfloat16 nor tables
that stay in their file. A .pt file is read with `torch.load(..., weights_only=True)`.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import zipfile
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import FileContentError, needs_extra
from metacal.io.column_selection import select_arrays
from metacal.io.columns import Columns
from metacal.io.formats.raw import ArrayLocation, Conversion, RawFile, load_array
from metacal.io.opening import check_unpacked_size
from metacal.io.request import Request
from metacal.rows.validate import to_numpy

# NumPy dtypes of the safetensors types. A bfloat16 is read as a 16-bit integer.
_DTYPES = {
    "BF16": "<u2",
    "BOOL": "?",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    "I8": "<i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "U8": "<u1",
    "U16": "<u2",
    "U32": "<u4",
    "U64": "<u8",
}

# Size of the header length at the beginning of a safetensors file.
_LENGTH_BYTES = 8

_MAX_HEADER_BYTES = 100_000_000

# Exclusive upper bound on lengths and offsets in a safetensors header.
_MAX_LENGTH = 1 << 62

# Number of bytes of an archive record to read at a time.
_CHUNK_BYTES = 1 << 20

# Maximum number of dimensions that all versions of NumPy support.
_MAX_DIMENSIONS = 32

# First version of torch in which weights_only=True is safe.
_MIN_TORCH_VERSION = (2, 6)

_SAVE_TENSORS = (
    "save tensors alone: torch.save({'logits': logits, 'labels': labels}, 'predictions.pt')"
)


@dataclass(frozen=True)
class _TensorEntry:
    """Entry of a tensor in the header of a safetensors file.

    Attributes
    ----------
    type_name : str
        Safetensors type, such as "F32".

    shape : tuple of int
        Shape of the tensor.

    start : int
        Position of the first element behind the header.
    """

    type_name: str
    shape: tuple[int, ...]
    start: int


def from_bfloat16(bits: NDArray[Any]) -> NDArray[np.float32]:
    """Convert the bits of bfloat16 numbers to float32, without loss.

    Examples
    --------
    >>> from_bfloat16(np.array([0x3F80, 0xC040], dtype=np.uint16))
    array([ 1., -3.], dtype=float32)
    """
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def read_safetensors(request: Request) -> Columns:
    """Read the requested tensors of a safetensors file.

    Parameters
    ----------
    request : Request
        Tensors to read. A large table stays in its file; bfloat16 is converted to float32 when
        its rows are read.

    Returns
    -------
    Columns

    Raises
    ------
    ValueError
        If the header is damaged.
    """
    file = RawFile(request.path_to_open, request.path)
    header_bytes = int.from_bytes(file.read_bytes(0, _LENGTH_BYTES), "little")
    if not 2 <= header_bytes <= min(_MAX_HEADER_BYTES, file.size - _LENGTH_BYTES):
        raise ValueError(f"the header claims to have {header_bytes:,} bytes")
    data_offset = _LENGTH_BYTES + header_bytes
    header = file.read_bytes(_LENGTH_BYTES, header_bytes)
    tensor_entries = _parse_header(header, n_data_bytes=file.size - data_offset)
    description_of_tensor = {
        name: f"{entry.shape} {entry.type_name}" for name, entry in tensor_entries.items()
    }
    selection = select_arrays(request, description_of_tensor)

    def read_tensor(name: str, *, may_stay_in_file: bool = False) -> Any:
        entry = tensor_entries[name]
        conversion = None
        if entry.type_name == "BF16":
            conversion = Conversion(from_bfloat16, np.float32)
        location = ArrayLocation(
            shape=entry.shape,
            dtype=np.dtype(_DTYPES[entry.type_name]),
            offset=data_offset + entry.start,
        )
        return load_array(
            request, file, location, may_stay_in_file=may_stay_in_file, conversion=conversion
        )

    table = read_tensor(selection.table_name, may_stay_in_file=not request.table_is_score_column)
    return selection.build_columns(table=table, read_array=read_tensor)


def _parse_header(header: bytes, *, n_data_bytes: int) -> dict[str, _TensorEntry]:
    """Parse the header of a safetensors file.

    Parameters
    ----------
    header : bytes
        Header as JSON.

    n_data_bytes : int
        Number of bytes behind the header.

    Returns
    -------
    dict of str to _TensorEntry
        Entries by tensor name, without tensors of unsupported types.

    Raises
    ------
    ValueError
        If a tensor lies outside the file.
    """
    json_entries = json.loads(header)
    json_entries.pop("__metadata__", None)
    tensor_entries = {}
    for name, json_entry in json_entries.items():
        type_name = str(json_entry["dtype"])
        shape = tuple(map(_check_length, json_entry["shape"]))
        start, stop = map(_check_length, json_entry["data_offsets"])
        if type_name not in _DTYPES:
            continue
        n_tensor_bytes = np.dtype(_DTYPES[type_name]).itemsize * math.prod(shape)
        has_valid_range = stop - start == n_tensor_bytes and stop <= n_data_bytes
        if not has_valid_range or len(shape) > _MAX_DIMENSIONS:
            raise ValueError(f"the tensor {name[:80]!r} does not fit into the file")
        tensor_entries[name] = _TensorEntry(type_name=type_name, shape=shape, start=start)
    return tensor_entries


def _check_length(value: Any) -> int:
    """Return a length or offset of a header. Raise ValueError if it is not valid."""
    if type(value) is not int or not 0 <= value < _MAX_LENGTH:
        raise ValueError(f"a length must be an integer, but it is {str(value)[:40]}")
    return value


def read_torch(request: Request) -> Columns:
    """Read a .pt file with a dictionary of tensors, or with one tensor.

    Parameters
    ----------
    request : Request
        Tensors to read.

    Returns
    -------
    Columns

    Raises
    ------
    InputError
        If the file contains anything but tensors, or torch is too old to read it safely.
    """
    content = _load_torch_file(request)
    if isinstance(content, list | tuple) and any(map(_is_tensor, content)):
        raise FileContentError(
            f"{request.path}: the file holds {len(content)} tensors without names. Save them"
            f" with names: torch.save({{'logits': logits, 'labels': labels}}, path)."
        )
    if not isinstance(content, dict):
        return Columns(request.path, _tensor_to_array(request, "the object in it", content))

    value_by_name = {str(name): value for name, value in content.items()}
    description_of_value = {name: _describe(value) for name, value in value_by_name.items()}
    selection = select_arrays(request, description_of_value)

    def read_value(name: str) -> Any:
        if name == selection.class_list_name:
            return value_by_name[name]
        return _tensor_to_array(request, repr(name), value_by_name[name])

    return selection.build_columns(table=read_value(selection.table_name), read_array=read_value)


def _load_torch_file(request: Request) -> Any:
    """Load a .pt file with weights_only=True after checking its size and checksums."""
    with needs_extra(f"reading {request.path}", "torch"):
        import torch
    torch_version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if torch_version < _MIN_TORCH_VERSION:
        raise FileContentError(
            f"{request.path}: torch {torch.__version__} can run code from a file even with"
            " weights_only=True. Update torch to 2.6 or later, or save the tensors as"
            " .safetensors."
        )
    with zipfile.ZipFile(request.path_to_open) as archive:
        unpacked_bytes = sum(record.file_size for record in archive.infolist())
        check_unpacked_size(request.path, unpacked_bytes, os.path.getsize(request.path_to_open))
        _verify_record_checksums(archive)
    try:
        return torch.load(request.path_to_open, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise FileContentError(
            f"{request.path}: the file holds more than tensors (for example NumPy arrays or a"
            f" model). Such content can run code when it is read; {_SAVE_TENSORS}."
        ) from None


def _verify_record_checksums(archive: zipfile.ZipFile) -> None:
    """Verify the CRC-32 of every record, which `torch.load` does not do.

    A checksum of 0 denotes that there is none. Files written after
    `torch.serialization.set_crc32_options(False)` have no checksums.
    """
    for record in archive.infolist():
        if record.CRC == 0:
            continue
        with archive.open(record) as record_file:
            # zipfile verifies the checksum when the end of the record is reached.
            while record_file.read(_CHUNK_BYTES):
                pass


def _tensor_to_array(request: Request, value_text: str, value: Any) -> NDArray[Any]:
    """Convert a tensor, or a list of numbers, to an array.

    Parameters
    ----------
    request : Request
        File that contains the value.

    value_text : str
        Description of the value used in error messages.

    value : torch.Tensor or array-like
        Value to convert.

    Returns
    -------
    array

    Raises
    ------
    InputError
        If the value is sparse, too large, or neither a tensor nor numbers.
    """
    if not _is_tensor(value):
        array = np.asarray(value)
        if array.dtype.kind not in "iubfU":
            raise FileContentError(
                f"{request.path}: {value_text} must be a tensor, but it is"
                f" {type(value).__name__}; {_SAVE_TENSORS}."
            )
        return array

    if str(value.layout) != "torch.strided":
        # torch does not check the indices of a sparse tensor and crashes if they are wrong.
        raise FileContentError(
            f"{request.path}: {value_text} is a sparse tensor, but a dense one is required. Save"
            " tensor.to_dense()."
        )
    # A tensor with stride 0 can have many elements without taking space in the file.
    n_bytes = value.numel() * value.element_size()
    check_unpacked_size(request.path, n_bytes, os.path.getsize(request.path_to_open))
    return np.ascontiguousarray(to_numpy(value))


def _is_tensor(value: Any) -> bool:
    """Check whether a value is a torch tensor, without importing torch."""
    return hasattr(value, "detach")


def _describe(value: Any) -> str:
    """Describe a value by its shape and dtype, or by its type if it has no shape."""
    if not hasattr(value, "shape"):
        return type(value).__name__
    return f"{tuple(value.shape)} {getattr(value, 'dtype', '')}"
