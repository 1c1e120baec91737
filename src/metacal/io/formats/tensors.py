"""Tensors by name: safetensors, and .pt files through torch's weights_only loader.

safetensors is a length, a JSON header and raw numbers; it is read here without a library, because
that gives what its NumPy reader does not: bfloat16, and a large table that stays in its file.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import zipfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError, needs_extra
from metacal.io.column_selection import pick_arrays
from metacal.io.columns import Columns
from metacal.io.formats.raw import Placed, RawFile, Widen, array_in
from metacal.io.opening import check_unpacked
from metacal.io.request import Request
from metacal.rows.validate import on_host

#: What safetensors calls a type, and NumPy; bfloat16 as its bits.
_DTYPES = {"BF16": "<u2", "BOOL": "?"} | {
    f"{kind}{8 * size}": f"<{kind.lower()}{size}"
    for kind in "FIU"
    for size in (1, 2, 4, 8)
    if (kind, size) != ("F", 1)
}
_LARGEST_HEADER = 100_000_000
#: Bytes of a record that are read at a time.
_CHUNK_BYTES = 1 << 20
#: Dimensions of an array that NumPy can hold.
_MOST_SIDES = 32
_SAVE_TENSORS = (
    "save tensors alone: torch.save({'logits': logits, 'labels': labels}, 'predictions.pt')"
)


def from_bfloat16(bits: NDArray[Any]) -> NDArray[np.float32]:
    """The numbers whose upper 16 bits these are, exactly.

    Examples
    --------
    >>> from_bfloat16(np.array([0x3F80, 0xC040], dtype=np.uint16))
    array([ 1., -3.], dtype=float32)
    """
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def read_safetensors(request: Request) -> Columns:
    """Read the tensors that are asked for; a table in bfloat16 is widened to float32 as its rows
    are read.
    """
    path = request.path
    file = RawFile(request.source, path)
    size = int.from_bytes(file.bytes(0, 8), "little")
    if not 2 <= size <= min(_LARGEST_HEADER, file.size - 8):
        raise ValueError(f"its header claims {size:,} bytes")
    tensors = _header(file.bytes(8, size), file.size - 8 - size)
    picked = pick_arrays(
        request, {name: f"{shape} {kind}" for name, (kind, shape, _) in tensors.items()}
    )

    def tensor(name: str, may_stay: bool = False) -> Any:
        kind, shape, start = tensors[name]
        widen: Widen | None = (from_bfloat16, np.float32) if kind == "BF16" else None
        place = Placed(shape, np.dtype(_DTYPES[kind]), 8 + size + start)
        return array_in(request, file, place, may_stay=may_stay, widen=widen)

    return picked.columns(tensor(picked.table[0], not request.scores), tensor)


def _header(text: bytes, held: int) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """Each tensor's type, shape and offset, checked against the bytes that are there."""
    tensors: dict[str, tuple[str, tuple[int, ...], int]] = {}
    entries = json.loads(text)
    entries.pop("__metadata__", None)
    for name, entry in entries.items():
        kind, shape = str(entry["dtype"]), tuple(map(_whole_number, entry["shape"]))
        start, stop = map(_whole_number, entry["data_offsets"])
        if kind not in _DTYPES:
            continue
        fits = stop - start == np.dtype(_DTYPES[kind]).itemsize * math.prod(shape)
        if not (fits and stop <= held and len(shape) <= _MOST_SIDES):
            raise ValueError(f"tensor {name[:80]!r} does not fit into the file")
        tensors[name] = (kind, shape, start)
    return tensors


def _whole_number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"{str(value)[:40]} where a length was expected")
    return value


def read_torch(request: Request) -> Columns:
    """Read a dictionary of tensors, or one tensor, with weights_only=True: nothing else is ever
    unpickled.
    """
    content = _loaded(request)
    if isinstance(content, list | tuple) and any(hasattr(part, "detach") for part in content):
        raise InputError(
            f"{request.path}: it holds {len(content)} tensors without names; give them names: "
            "torch.save({'logits': logits, 'labels': labels}, path)."
        )
    if not isinstance(content, dict):
        return Columns(request.path, _array(request, "the object in it", content))
    named = {str(name): value for name, value in content.items()}
    picked = pick_arrays(request, {name: _shown(value) for name, value in named.items()})

    def array(name: str) -> Any:
        return named[name] if name == picked.classes else _array(request, repr(name), named[name])

    return picked.columns(array(picked.table[0]), array)


def _loaded(request: Request) -> Any:
    with needs_extra(f"reading {request.path}", "torch"):
        import torch
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
        raise InputError(
            f"{request.path}: torch {torch.__version__} can be made to run code even with"
            " weights_only=True; update it to 2.6 or later, or save the tensors as .safetensors."
        )
    with zipfile.ZipFile(request.source) as archive:
        check_unpacked(
            request.path,
            sum(one.file_size for one in archive.infolist()),
            os.path.getsize(request.source),
        )
        _check_records(archive)
    try:
        return torch.load(request.source, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise InputError(
            f"{request.path}: it holds more than tensors (NumPy arrays, a whole model), which would"
            f" run code when read, so it is not; {_SAVE_TENSORS}."
        ) from None


def _check_records(archive: zipfile.ZipFile) -> None:
    """Verify the CRC-32 of every record; `torch.load` does not.

    A checksum of 0 means that there is none: `torch.serialization.set_crc32_options(False)` writes
    such files.
    """
    for entry in archive.infolist():
        if entry.CRC == 0:
            continue
        with archive.open(entry) as record:
            while record.read(_CHUNK_BYTES):
                pass  # zipfile compares the checksum when the end of the record is reached


def _array(request: Request, name: str, value: Any) -> NDArray[Any]:
    if hasattr(value, "detach"):
        if (
            str(value.layout) != "torch.strided"
        ):  # torch takes its places on trust, and dies of wrong ones
            raise InputError(f"{request.path}: {name} is a sparse tensor; save tensor.to_dense().")
        # A tensor whose strides are zero may stand for any number of numbers.
        check_unpacked(
            request.path, value.numel() * value.element_size(), os.path.getsize(request.source)
        )
        return np.ascontiguousarray(on_host(value))
    array = np.asarray(value)
    if array.dtype.kind not in "iubfU":
        raise InputError(
            f"{request.path}: {name} is {type(value).__name__}, not a tensor; {_SAVE_TENSORS}."
        )
    return array


def _shown(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return (
        type(value).__name__ if shape is None else f"{tuple(shape)} {getattr(value, 'dtype', '')}"
    )
