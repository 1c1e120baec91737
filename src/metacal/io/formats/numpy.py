"""Read NumPy's own files: .npz archives of arrays, and single arrays as .npy; a large .npy stays in its file.

What a header claims is compared with the bytes that are there before memory is taken for it.
"""

from __future__ import annotations

import io
import math
import os
import zipfile
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.io.columns import Found, Request, as_class_names, check_class_order, listed, pick_keys
from metacal.io.formats.raw import RawFile, RawTable, array_at, bytes_of
from metacal.io.limits import check_unpacked
from metacal.io.opening import SAVE_AS_NPZ, damaged, decoding
from metacal.rows.stored import ConvertedTable, StoredTable

#: Bytes read for the header of an .npy, which NumPy bounds at 10,000.
_HEADER_BYTES = 1 << 16
#: Bytes unpacked at a time: they stay in the processor's cache until they are copied.
_CHUNK_BYTES = 1 << 18
#: Dimensions of an array that every NumPy can hold.
_MOST_SIDES = 32


class _Header(NamedTuple):
    """What an .npy says of itself, and where its numbers begin."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    begin: int

    @property
    def n_bytes(self) -> int:
        """Bytes of the numbers; Python's integers do not overflow."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_npz(request: Request) -> Found:
    """Read the arrays that are asked for; what lies in a zip archive comes whole."""
    path, source = request.path, request.source
    with decoding(path), zipfile.ZipFile(source) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        members = {name.removesuffix(".npy"): entry for name, entry in entries.items() if name.endswith(".npy")}
        foreign = [name for name in entries if not name.endswith(".npy")]
        if foreign and not members:
            raise InputError(f"{path}: this zip archive is not an npz (it holds {listed(foreign)}); {SAVE_AS_NPZ}.")
        headers = {name: _member_header(archive, entry) for name, entry in members.items()}
        keys = pick_keys(request, {name: f"{head.shape} {head.dtype}" for name, head in headers.items()})
        used = [key for key in keys if key is not None]
        for key in used:
            if headers[key].dtype.hasobject:
                raise InputError(_objects(path, f"array {key!r}"))
            _check_size(path, f"array {key!r}", headers[key], members[key].file_size)
        check_unpacked(path, sum(headers[key].n_bytes for key in used), os.path.getsize(source))
        table, labels, ids, groups, classes = (
            None if key is None else _member_array(archive, members[key], headers[key]) for key in keys
        )
    assert table is not None
    names = None if classes is None else as_class_names(classes)
    check_class_order(request, names)
    return Found(table, labels, ids, groups, names, tuple(name for name in headers if name not in keys))


def _member_header(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> _Header:
    with archive.open(entry) as member:
        return npy_header(member)


def _member_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, head: _Header) -> NDArray[Any]:
    """The array of a member; reading to its end checks the archive's sum over it."""
    whole = np.empty(head.shape[::-1] if head.fortran else head.shape, head.dtype)
    view = bytes_of(whole)
    member: Any
    with archive.open(entry) as member:
        member.read(head.begin)
        done = 0
        while done < len(view):
            got = member.readinto(view[done : done + _CHUNK_BYTES])
            if not got:
                raise EOFError(f"{entry.filename} ends after {done:,} of {len(view):,} bytes")
            done += got
        member.read(1)
    whole = whole.T if head.fortran else whole
    return whole if whole.dtype.isnative else whole.astype(whole.dtype.newbyteorder("="))


def npy_header(file: IO[bytes]) -> _Header:
    r"""Read what an .npy says of itself.

    Examples
    --------
    >>> text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (10, 2)}".ljust(63) + b"\n"
    >>> npy_header(io.BytesIO(b"\x93NUMPY\x01\x00" + bytes([64, 0]) + text))
    _Header(shape=(10, 2), fortran=False, dtype=dtype('float32'), begin=74)
    """
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"an .npy of version {version[0]}.{version[1]}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if any(isinstance(side, bool) or side < 0 for side in shape):
        raise ValueError(f"a shape of {shape}")
    if len(shape) > _MOST_SIDES:
        raise ValueError(f"{len(shape)} dimensions")
    if version == (3, 0) and dtype.names is not None:
        # NumPy's public reader takes the names for latin-1; version 3 is what it writes where they are UTF-8.
        names = [name.encode("latin-1").decode("utf-8") for name in dtype.names]
        kinds = [dtype.fields[name] for name in dtype.names]  # type: ignore[index]
        plan = {"names": names, "formats": [k[0] for k in kinds], "offsets": [k[1] for k in kinds]}
        dtype = np.dtype({**plan, "itemsize": dtype.itemsize})  # type: ignore[call-overload]
    return _Header(tuple(shape), bool(fortran), dtype, file.tell())


def read_npy(request: Request) -> Found:
    """Read a table, or of a structured array the fields that are asked for; a large table stays in its file."""
    file, head = _opened(request.path, request.source)
    fields = head.dtype.fields
    if fields is None:
        return Found(_table(request, file, head))
    if len(head.shape) != 1:
        raise InputError(f"{request.path}: records must be a flat array, one per row; got shape {head.shape}.")
    keys = pick_keys(request, {name: str(kind[0]) for name, kind in fields.items()})
    table = _field(request, file, head, keys[0], may_stay=True)
    labels, ids, groups = (None if key is None else _field(request, file, head, key) for key in keys[1:4])
    return Found(table, labels, ids, groups, None, tuple(name for name in fields if name not in keys))


def whole_npy(path: str, source: str | None = None) -> NDArray[Any]:
    """Read the array of an .npy file."""
    file, head = _opened(path, source or path)
    return array_at(file, head.begin, head.shape, head.dtype, fortran=head.fortran)


def _opened(path: str, source: str) -> tuple[RawFile, _Header]:
    file = RawFile(source, path)
    with decoding(path):
        head = npy_header(io.BytesIO(file.bytes(0, _HEADER_BYTES)))
    if head.dtype.hasobject:
        raise InputError(_objects(path, "it"))
    _check_size(path, "it", head, file.size)
    return file, head


def _check_size(path: str, what: str, head: _Header, held: int) -> None:
    if head.begin + head.n_bytes > held:
        claim = f"{what} claims shape {head.shape} of {head.dtype}, {head.n_bytes:,} bytes, and holds {held:,}"
        raise InputError(damaged(path, ValueError(claim)))


def _table(request: Request, file: RawFile, head: _Header) -> Any:
    """The table, in its file if it is large; of one that will be refused only shape and type."""
    if len(head.shape) != 2 or head.dtype.kind not in "fiub":
        return _outline(head.dtype, head.shape)
    if request.stays(head.n_bytes, copied=True):
        return _double(RawTable(file, head.begin, (head.shape[0], head.shape[1]), head.dtype, fortran=head.fortran))
    return array_at(file, head.begin, head.shape, head.dtype, fortran=head.fortran)


def _field(request: Request, file: RawFile, head: _Header, key: str, *, may_stay: bool = False) -> Any:
    assert head.dtype.fields is not None
    kind, offset = head.dtype.fields[key][:2]
    item, inner = kind.base, kind.shape
    shape = (head.shape[0], *inner)
    if item.kind not in "fiubU" or len(shape) > 2:
        return _outline(item, shape)
    flat = (head.shape[0], math.prod(inner))
    table = RawTable(file, head.begin + offset, flat, item, row_bytes=head.dtype.itemsize)
    if may_stay and len(shape) == 2 and request.stays(table.nbytes, copied=True):
        return _double(table)
    return np.asarray(table).reshape(shape)


def _outline(dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """An array of this shape and type that takes no memory: enough to say why it is refused."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def _double(table: RawTable) -> StoredTable:
    """The table; in float64 where it holds the wider floats that some processors have."""
    wide = table.dtype.kind == "f" and table.dtype.itemsize > 8
    return ConvertedTable(table, _as_double, np.float64) if wide else table


def _as_double(block: NDArray[Any]) -> NDArray[np.float64]:
    return block.astype(np.float64)


def _objects(path: str, what: str) -> str:
    return (
        f"{path}: {what} holds Python objects, a pickle inside, which is never read; "
        "save plain numbers: np.savez('predictions.npz', logits=np.stack(list(logits)).astype('f4'), labels=labels)."
    )
