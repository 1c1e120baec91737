"""Read tensors by name: safetensors, and .pt files through torch's weights_only loader.

safetensors is a length, a JSON header and raw numbers; it is read here without a library, because that gives what its
NumPy reader does not: bfloat16, and a memory map instead of a copy.
"""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError, MissingExtraError
from metacal.io.opening import damaged, plain_read_errors
from metacal.io.request import Found, Request, as_class_names, check_class_order, pick_keys
from metacal.stored import ConvertedTable, StoredTable
from metacal.validate import on_host

_DTYPES = {
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    "BF16": "<u2",
    "I8": "<i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "U8": "<u1",
    "U16": "<u2",
    "U32": "<u4",
    "U64": "<u8",
    "BOOL": "?",
}
_LARGEST_HEADER = 100_000_000
_SAVE_TENSORS = "save tensors alone: torch.save({'logits': logits, 'labels': labels}, 'predictions.pt')"


def from_bfloat16(bits: NDArray[Any]) -> NDArray[np.float32]:
    """The numbers whose upper 16 bits these are, exactly.

    Examples
    --------
    >>> from_bfloat16(np.array([0x3F80, 0xC040], dtype=np.uint16))
    array([ 1., -3.], dtype=float32)
    """
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def read_safetensors(request: Request) -> Found:
    """Map the tensors that are asked for; a table in bfloat16 is widened to float32 as its rows are read."""
    path, source = request.path, request.source
    with plain_read_errors(path), open(source, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if not 2 <= size <= _LARGEST_HEADER:
            raise InputError(damaged(path, ValueError(f"its header claims {size} bytes")))
        text = file.read(size)
        held = file.seek(0, 2) - 8 - size
    tensors = _header(path, text, held)
    keys = pick_keys(request, {name: f"{shape} {kind}" for name, (kind, shape, _) in tensors.items()})
    table: NDArray[Any] | StoredTable = _mapped(source, 8 + size, *tensors[keys[0]])
    labels, ids = (None if key is None else _mapped(source, 8 + size, *tensors[key]) for key in keys[1:3])
    if tensors[keys[0]][0] == "BF16":
        lazy = table.ndim == 2 and request.stays(2 * table.nbytes)
        table = ConvertedTable(table, from_bfloat16, np.float32) if lazy else from_bfloat16(np.asarray(table))
    return Found(table, labels, ids, None, tuple(name for name in tensors if name not in keys))


def _header(path: str, text: bytes, held: int) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """Each tensor's type, shape and offset, checked against the bytes that are there."""
    try:
        entries = json.loads(text)
        entries.pop("__metadata__", None)
        found = {
            name: (entry["dtype"], tuple(map(int, entry["shape"])), *map(int, entry["data_offsets"]))
            for name, entry in entries.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(damaged(path, error)) from error
    for name, (kind, shape, start, stop) in found.items():
        if kind not in _DTYPES:
            continue
        bytes_needed = int(np.dtype(_DTYPES[kind]).itemsize * np.prod([float(n) for n in shape]))
        if min(shape, default=0) < 0 or not 0 <= start <= stop <= held or stop - start != bytes_needed:
            raise InputError(damaged(path, ValueError(f"tensor {name!r} does not fit into the file")))
    return {name: (kind, shape, start) for name, (kind, shape, start, _) in found.items() if kind in _DTYPES}


def _mapped(source: str, begin: int, kind: str, shape: tuple[int, ...], start: int) -> NDArray[Any]:
    if 0 in shape:
        return np.empty(shape, _DTYPES[kind])
    return np.memmap(source, _DTYPES[kind], "r", begin + start, shape)


def read_torch(request: Request) -> Found:
    """Read a dictionary of tensors, or one tensor, with weights_only=True: nothing else is ever unpickled."""
    found = _loaded(request)
    if not isinstance(found, dict):
        return Found(_array(request, "the object in it", found))
    named = {str(name): value for name, value in found.items()}
    keys = pick_keys(request, {name: _shown(value) for name, value in named.items()})
    table, labels, ids = (None if key is None else _array(request, repr(key), named[key]) for key in keys[:3])
    assert table is not None
    names = None if keys[3] is None else as_class_names(named[keys[3]])
    check_class_order(request, names)
    return Found(table, labels, ids, names, tuple(name for name in named if name not in keys))


def _loaded(request: Request) -> Any:
    try:
        import torch
    except ImportError:
        raise MissingExtraError(f"reading {request.path}", "torch") from None
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
        raise InputError(
            f"{request.path}: torch {torch.__version__} can be made to run code even with weights_only=True; update it "
            "to 2.6 or later, or save the tensors as .safetensors."
        )
    try:
        return torch.load(request.source, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise InputError(
            f"{request.path}: it holds more than tensors (NumPy arrays, a whole model), which would run code when "
            f"read, so it is not; {_SAVE_TENSORS}."
        ) from None
    except (RuntimeError, OSError, EOFError, KeyError, ValueError) as error:
        raise InputError(damaged(request.path, error)) from error


def _array(request: Request, name: str, value: Any) -> NDArray[Any]:
    if hasattr(value, "detach"):
        if value.layout != _strided():
            value = value.to_dense()
        return np.asarray(on_host(value))
    array = np.asarray(value)
    if array.dtype.kind not in "iubfU":
        raise InputError(f"{request.path}: {name} is {type(value).__name__}, not a tensor; {_SAVE_TENSORS}.")
    return array


def _strided() -> Any:
    import torch

    return torch.strided


def _shown(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"{tuple(shape)} {value.dtype}"
