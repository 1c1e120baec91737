"""NumPy's own files: .npz archives of arrays, and single arrays as .npy; a large .npy stays in its
file.

What a header claims is compared with the bytes that are there before memory is taken for it.
"""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from metacal.display import listed
from metacal.errors import InputError
from metacal.io.column_selection import pick_arrays
from metacal.io.columns import Columns
from metacal.io.formats.raw import Placed, RawFile, array_in, bytes_of
from metacal.io.opening import SAVE_AS_NPZ, check_unpacked
from metacal.io.request import Request

#: Bytes read for the header of an .npy, which NumPy bounds at 10,000.
_HEADER_BYTES = 1 << 16
#: Bytes unpacked at a time: they stay in the processor's cache until they are copied.
_CHUNK_BYTES = 1 << 18
#: Dimensions of an array that every NumPy can hold.
_MOST_SIDES = 32
#: Bytes of a column of an npz that are held in memory; more go to a temporary file beside it.
_SPOOL_BYTES = 1 << 25


def _check_claim(path: str, what: str, place: Placed, held: int) -> None:
    """Raise where a header claims more than `held` bytes, or objects, which are a pickle inside."""
    if place.dtype.hasobject:
        raise InputError(
            f"{path}: {what} holds Python objects, a pickle inside, which is never read; save plain"
            " numbers: np.savez('predictions.npz', logits=np.stack(list(logits)).astype('f4'),"
            " labels=labels)."
        )
    if place.begin + place.n_bytes > held:
        claims = f"{what} claims shape {place.shape} of {place.dtype}, {place.n_bytes:,} bytes"
        raise ValueError(f"{claims}, and holds {held:,}")


def read_npz(request: Request) -> Columns:
    """Read the arrays that are asked for; what lies in a zip archive comes whole."""
    path = request.path
    with zipfile.ZipFile(request.source) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        members = {
            name.removesuffix(".npy"): entry
            for name, entry in entries.items()
            if name.endswith(".npy")
        }
        if entries and not members:
            raise InputError(
                f"{path}: this zip archive is not an npz (it holds {listed(entries)});"
                f" {SAVE_AS_NPZ}."
            )
        headers = {}
        for name, entry in members.items():
            with archive.open(entry) as member:
                headers[name] = npy_header(member)
        picked = pick_arrays(
            request, {name: f"{head.shape} {head.dtype}" for name, head in headers.items()}
        )
        used = [*picked.names, *([] if picked.classes is None else [picked.classes])]
        for name in used:
            _check_claim(path, f"array {name!r}", headers[name], members[name].file_size)
        check_unpacked(
            path, sum(headers[name].n_bytes for name in used), os.path.getsize(request.source)
        )
        arrays = {name: _member_array(archive, members[name], headers[name]) for name in used}
    return picked.columns(arrays[picked.table[0]], arrays.__getitem__)


def _member_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, place: Placed) -> NDArray[Any]:
    """The array of a member; reading to its end checks the archive's sum over it."""

    def fill(room: NDArray[Any]) -> None:
        view, done = bytes_of(room), 0
        member: Any
        with archive.open(entry) as member:
            member.read(place.begin)
            while done < len(view):
                got = member.readinto(view[done : done + _CHUNK_BYTES])
                if not got:
                    raise EOFError(f"{entry.filename} ends after {done:,} of {len(view):,} bytes")
                done += got
            member.read(1)

    return place.whole(fill)


def npy_header(file: IO[bytes]) -> Placed:
    r"""Read what an .npy says of itself, and where its numbers begin.

    Examples
    --------
    >>> text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (10, 2)}".ljust(63) + b"\n"
    >>> npy_header(io.BytesIO(b"\x93NUMPY\x01\x00" + bytes([64, 0]) + text))[:3]
    ((10, 2), dtype('float32'), 74)
    """
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"an .npy of version {version[0]}.{version[1]}")
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, fortran, dtype = read(file)
    if any(isinstance(side, bool) or side < 0 for side in shape):
        raise ValueError(f"a shape of {shape}")
    if len(shape) > _MOST_SIDES:
        raise ValueError(f"{len(shape)} dimensions")
    if version == (3, 0) and dtype.names is not None:
        # NumPy's public reader takes the names for latin-1; version 3 is what it writes where they
        # are UTF-8.
        dtype.names = tuple(name.encode("latin-1").decode("utf-8") for name in dtype.names)
    return Placed(tuple(shape), dtype, file.tell(), bool(fortran))


def read_npy(request: Request) -> Columns:
    """Read a table, which stays in its file if it is large, or of records the fields that are asked
    for.
    """
    file = RawFile(request.source, request.path)
    head = npy_header(io.BytesIO(file.bytes(0, _HEADER_BYTES)))
    _check_claim(request.path, "it", head, file.size)
    fields = head.dtype.fields
    if fields is None and request.scores:
        raise InputError(
            f"{request.path}: a single array has no names; save np.savez('scores.npz', score=score,"
            " correct=correct)."
        )
    if fields is None:
        return Columns(request.path, array_in(request, file, head, may_stay=True))
    if len(head.shape) != 1:
        raise InputError(
            f"{request.path}: records must be a flat array, one per row; got shape {head.shape}."
        )
    picked = pick_arrays(request, {name: str(kind[0]) for name, kind in fields.items()})
    picked = replace(picked, classes=None)
    records = head.whole(partial(file.fill, offset=head.begin))

    def field(name: str) -> NDArray[Any]:
        column = np.ascontiguousarray(records[name])  # aligned, as a field among others need not be
        return (
            column.astype(np.float64)
            if column.dtype.kind == "f" and column.itemsize > 8
            else column
        )

    return picked.columns(field(picked.table[0]), field)


class NpzWriter:
    """One array per column, and the class names as `classes`. The same columns give the same bytes.

    An archive holds its arrays one after the other, so that blocks are set aside, in temporary
    files beside the archive where they are large, and put together in the end.
    """

    def __init__(
        self, path: Path, class_names: Sequence[str | int] | None, n_rows: int, compress: bool
    ) -> None:
        self.path, self.class_names, self.n_rows, self.written = path, class_names, n_rows, 0
        self.method = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
        #: Whole columns, and what was set aside of others with an array of their type.
        self.whole: dict[str, NDArray[Any]] = {}
        self.spools: dict[str, tuple[IO[bytes], NDArray[Any]]] = {}

    def write(self, columns: dict[str, NDArray[Any]]) -> None:
        """Add rows."""
        if self.class_names is not None and "classes" in columns:
            raise InputError(
                "npz keeps class_names under 'classes'; give that column another name."
            )
        for name, array in of_one_width(columns).items():
            if len(array) == self.n_rows:
                self.whole[name] = array
                continue
            if name not in self.spools:
                spool: Any = tempfile.SpooledTemporaryFile(_SPOOL_BYTES, dir=str(self.path.parent))  # noqa: SIM115
                self.spools[name] = (spool, array[:0])
            self.spools[name][0].write(np.ascontiguousarray(array).tobytes())
        self.written += len(next(iter(columns.values())))

    def abandon(self) -> None:
        """Let go of what was set aside, without putting the archive together."""
        for spool, _ in self.spools.values():
            spool.close()

    def close(self) -> None:
        """Put the archive together."""
        if self.written != self.n_rows:
            raise InputError(f"{self.n_rows} rows were announced but {self.written} written.")
        extra = {} if self.class_names is None else {"classes": np.asarray(self.class_names)}
        with zipfile.ZipFile(self.path, "w", self.method) as archive:
            for name, (spool, like) in self.spools.items():
                spool.seek(0)
                with self._member(archive, name) as member, spool:
                    shape, kind = (
                        (self.n_rows, *like.shape[1:]),
                        np.lib.format.dtype_to_descr(like.dtype),
                    )
                    head = {"descr": kind, "fortran_order": False, "shape": shape}
                    np.lib.format.write_array_header_1_0(member, head)
                    shutil.copyfileobj(spool, member, 1 << 20)
            for name, array in {**self.whole, **extra}.items():
                with self._member(archive, name) as member:
                    np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)

    def _member(self, archive: zipfile.ZipFile, name: str) -> IO[bytes]:
        # A ZipInfo of its own carries the year 1980, not the clock: same columns, same bytes.
        entry = zipfile.ZipInfo(f"{name}.npy")
        entry.compress_type = self.method
        return archive.open(entry, "w", force_zip64=True)


def of_one_width(columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The columns as NumPy's files can hold them: texts that are objects become texts of one
    width.
    """
    return {
        name: array.astype(np.str_) if array.dtype == object else array
        for name, array in columns.items()
    }
