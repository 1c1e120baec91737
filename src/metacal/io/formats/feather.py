"""Read Arrow files: Feather (version 2), the Arrow file format and the Arrow stream format, whichever the suffix.

A file in the file format is the stream format with a frame around it, so that there is one road: the messages are gone
through once to see what they claim (`messages`), then read one after the other, and every batch is checked
to the last offset before anything is decoded from it. Nothing is mapped: a file that shrinks is told, not a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from metacal.errors import InputError
from metacal.io.columns import Found, Request, check_class_order
from metacal.io.formats.arrow import column_of, layout, needed, pick, pyarrow_for, refuse_nulls, table_of
from metacal.io.formats.messages import Claims, claims_of
from metacal.io.formats.raw import RawFile
from metacal.io.limits import check_unpacked
from metacal.io.opening import NoRowsError, damaged, decoding

#: What a file in the file format begins with, and ends with.
_MAGIC = b"ARROW1"


def read_arrow(request: Request) -> Found:
    """Read table, labels and ids."""
    pa = pyarrow_for(request.path)
    with decoding(request.path):
        return _read(pa, request, RawFile(request.source, request.path))


def _read(pa: Any, request: Request, file: RawFile) -> Found:
    framed = file.bytes(0, len(_MAGIC)) == _MAGIC
    begin = 8 if framed else 0
    claims = claims_of(request.path, file, begin)
    if framed:
        _check_footer(pa, request, file, claims)
    check_unpacked(request.path, claims.unpacked, file.size)
    if claims.rows == 0:
        raise NoRowsError(f"{request.path}: it holds no rows; give at least one.")
    schema = _stream(pa, file, begin).schema
    width = _first_width(pa, request, file, begin, schema)
    found = layout(request, schema, width)
    check_unpacked(request.path, claims.rows * found.n_classes * found.dtype.itemsize, file.size)
    columns = [*found.columns, *needed(found)]
    table, start, beside = np.empty((claims.rows, found.n_classes), dtype=found.dtype), 0, []
    for batch in _stream(pa, file, begin, _places(schema, columns)):
        # Offsets, indices of dictionaries and the bytes of strings: all that points somewhere.
        batch.validate(full=True)
        if start + batch.num_rows > len(table):
            raise ValueError("it holds more rows than its messages say")
        table[start : start + batch.num_rows] = table_of(batch, found, request.path, start)
        beside.append(batch.select(needed(found)))
        start += batch.num_rows
    if start != len(table):
        raise ValueError(f"it ends at row {start} of {len(table)}")
    check_class_order(request, found.names if found.width is not None else None)
    labels, ids, groups = (
        None if name is None else _column(pa, beside, name, request, file)
        for name in (found.label, found.ids, found.groups)
    )
    return Found(table, labels, ids, groups, found.names, found.unused, found.places)


def arrow_columns(request: Request, wanted: Callable[[Sequence[str]], Sequence[str]]) -> tuple[dict[str, Any], int]:
    """The columns that `wanted` names of those there are, as Arrow arrays, and the bytes of the file."""
    pa = pyarrow_for(request.path)
    with decoding(request.path):
        file = RawFile(request.source, request.path)
        framed = file.bytes(0, len(_MAGIC)) == _MAGIC
        begin = 8 if framed else 0
        claims = claims_of(request.path, file, begin)
        if framed:
            _check_footer(pa, request, file, claims)
        check_unpacked(request.path, claims.unpacked, file.size)
        schema = _stream(pa, file, begin).schema
        names = list(wanted(schema.names))
        batches = list(_stream(pa, file, begin, _places(schema, names)))
        for batch in batches:
            batch.validate(full=True)
        kinds = {name: schema.field(name).type for name in names}
        return {n: pa.chunked_array([b.column(n) for b in batches], type=kind) for n, kind in kinds.items()}, file.size


def _column(pa: Any, beside: list[Any], name: str, request: Request, file: RawFile) -> Any:
    if not beside:
        return np.empty(0, dtype=np.int64)
    return column_of(pa.chunked_array([batch.column(name) for batch in beside]), name, request.path, file.size)


def _check_footer(pa: Any, request: Request, file: RawFile, claims: Claims) -> None:
    """Raise unless the frame is whole and speaks of as many batches as there are."""
    if file.bytes(file.size - len(_MAGIC), len(_MAGIC)) != _MAGIC:
        raise InputError(damaged(request.path, EOFError("its end is missing")))
    counted = pa.ipc.open_file(pa.PythonFile(_Reader(file, 0), "r")).num_record_batches
    if counted != claims.batches:
        what = f"its footer lists {counted} batches but {claims.batches} are there"
        raise InputError(damaged(request.path, ValueError(what)))


def _stream(pa: Any, file: RawFile, begin: int, fields: list[int] | None = None) -> Any:
    options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
    return pa.ipc.open_stream(pa.PythonFile(_Reader(file, begin), "r"), options=options)


def _places(schema: Any, names: list[str]) -> list[int]:
    place = {name: k for k, name in enumerate(schema.names)}
    return sorted({place[name] for name in names})


def _first_width(pa: Any, request: Request, file: RawFile, begin: int, schema: Any) -> int:
    picked, shown = pick(request, schema)
    if picked.names is not None:
        return 0
    name = shown[picked.columns[0]]
    if getattr(schema.field(name).type, "list_size", -1) >= 0:
        return 0  # the type says it
    for batch in _stream(pa, file, begin, _places(schema, [name])):
        batch.validate(full=True)
        if batch.num_rows:
            first = batch.column(name).slice(0, 1)
            refuse_nulls(first, name, request.path, 0)
            return len(first[0])
    return 0


class _Reader:
    """A file as Arrow wants it: read, seek, tell. Never more bytes than there are, whatever a header claims."""

    closed = False

    def __init__(self, file: RawFile, place: int) -> None:
        self.file, self.place = file, place

    def read(self, count: int = -1) -> bytes:
        found = self.file.bytes(self.place, self.file.size if count < 0 else count)
        self.place += len(found)
        return found

    def seek(self, offset: int, whence: int = 0) -> int:
        self.place = max(0, offset + {0: 0, 1: self.place, 2: self.file.size}[whence])
        return self.place

    def tell(self) -> int:
        return self.place

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def flush(self) -> None:
        """Nothing is written."""

    def close(self) -> None:
        """The file is closed with whoever holds it."""
