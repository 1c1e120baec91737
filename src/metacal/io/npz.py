"""Read NumPy's own files: .npz archives of arrays, and single arrays as .npy, which stay on disk as memory maps."""

from __future__ import annotations

import zipfile
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.io.opening import SAVE_AS_NPZ, damaged
from metacal.io.request import Found, Request, as_class_names, check_class_order, listed, pick_keys

_READ_ERRORS = (ValueError, OSError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error, MemoryError)


def read_npz(request: Request) -> Found:
    """Read the arrays that are asked for; np.load never maps what lies in a zip archive, so they come whole."""
    path, source = request.path, request.source
    try:
        with zipfile.ZipFile(source) as archive:
            members = [name for name in archive.namelist() if name.endswith(".npy")]
            headers = {name.removesuffix(".npy"): _npy_header(archive, name) for name in members}
            foreign = [name for name in archive.namelist() if not name.endswith(".npy")]
        if foreign and not members:
            raise InputError(f"{path}: this zip archive is not an npz (it holds {listed(foreign)}); {SAVE_AS_NPZ}.")
        keys = pick_keys(request, {name: f"{shape} {dtype}" for name, (shape, dtype) in headers.items()})
        for key in keys:
            if key is not None and headers[key][1].hasobject:
                raise InputError(_objects(path, f"array {key!r}"))
        with np.load(source, allow_pickle=False) as arrays:
            table = arrays[keys[0]]
            labels, ids, classes = (None if key is None else arrays[key] for key in keys[1:])
    except InputError:
        raise
    except _READ_ERRORS as error:
        raise InputError(damaged(path, error)) from error
    names = None if classes is None else as_class_names(classes)
    check_class_order(request, names)
    return Found(table, labels, ids, names, tuple(name for name in headers if name not in keys))


def _npy_header(archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    with archive.open(name) as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
    return shape, dtype


def read_npy(request: Request) -> Found:
    """Map a table; or, of a structured array, the fields that are asked for."""
    array = mapped_npy(request.path, request.source)
    fields = array.dtype.fields
    if fields is None:
        return Found(array)
    keys = pick_keys(request, {name: str(kind[0]) for name, kind in fields.items()})
    table, labels, ids = (None if key is None else array[key] for key in keys[:3])
    assert table is not None
    return Found(table, labels, ids, None, tuple(name for name in fields if name not in keys))


def mapped_npy(path: str, source: str | None = None) -> NDArray[Any]:
    """Map the array of an .npy file: nothing is read before it is used."""
    try:
        array: NDArray[Any] = np.load(source or path, mmap_mode="r", allow_pickle=False)
    except _READ_ERRORS as error:
        if "object" in str(error).lower():
            raise InputError(_objects(path, "it")) from None
        raise InputError(damaged(path, error)) from error
    return array


def _objects(path: str, what: str) -> str:
    return (
        f"{path}: {what} holds Python objects, a pickle inside, which is never read; "
        "save plain numbers: np.savez('predictions.npz', logits=np.stack(list(logits)).astype('f4'), labels=labels)."
    )
