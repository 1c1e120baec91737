"""Arrow files: Feather (version 2), the Arrow file format and the Arrow stream format, whichever
the suffix.

A file in the file format is the stream format with a frame around it, so that there is one road:
the messages are gone through once to see what they claim, then read one after the other, and every
batch is checked to the last offset before anything is decoded from it. Nothing is mapped: a file
that shrinks is told, not a crash.

A stream is a row of messages: a mark, the length of the header, the header (a flatbuffer), the
body. The header of a batch has its number of rows, where in the body each buffer lies, and whether
the buffers are compressed; a compressed buffer begins with its length before compression. Nothing
else here is needed to know what decoding would take. See
https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.io.columns import Columns
from metacal.io.formats.arrow import ArrowColumnsWriter, Batches, pyarrow_for, read_batches
from metacal.io.formats.raw import RawFile
from metacal.io.opening import check_unpacked
from metacal.io.request import Request

#: What a file in the file format begins with, and ends with.
_MAGIC = b"ARROW1"
_CONTINUES = 0xFFFFFFFF
#: Kinds of messages, as the format numbers them.
_DICTIONARY, _BATCH = 2, 3


def read(request: Request) -> Columns:
    """Read table, or scores, and what is beside it."""
    return read_batches(request, ArrowFile(request))


class ArrowFile(Batches):
    """A file as `read_batches` wants it, once what it claims was checked."""

    kind = "an Arrow file"

    def __init__(self, request: Request) -> None:
        self.pa, self.file = pyarrow_for(request.path), RawFile(request.source, request.path)
        framed = self.file.bytes(0, len(_MAGIC)) == _MAGIC
        self.begin = 8 if framed else 0
        n_rows, n_batches, unpacked = _claims_of(self.file, self.begin)
        if framed:  # the frame must be whole, and speak of as many batches as there are
            if self.file.bytes(self.file.size - len(_MAGIC), len(_MAGIC)) != _MAGIC:
                raise EOFError("its end is missing")
            counted = self.pa.ipc.open_file(
                self.pa.PythonFile(_Reader(self.file, 0), "r")
            ).num_record_batches
            if counted != n_batches:
                raise ValueError(f"its footer lists {counted} batches but {n_batches} are there")
        check_unpacked(request.path, unpacked, self.file.size)
        super().__init__(self._stream().schema, n_rows, self.file.size)

    def batches(self, names: Sequence[str], rows: int) -> Iterator[Any]:
        """These columns, in the batches of the file."""
        place = {name: k for k, name in enumerate(self.schema.names)}
        for batch in self._stream(sorted({place[name] for name in names})):
            # Offsets, indices of dictionaries and the bytes of strings: all that points somewhere.
            batch.validate(full=True)
            yield batch

    def _stream(self, fields: list[int] | None = None) -> Any:
        options = self.pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        return self.pa.ipc.open_stream(
            self.pa.PythonFile(_Reader(self.file, self.begin), "r"), options=options
        )


class _Reader(io.RawIOBase):
    """A file as Arrow wants it: read, seek, tell. Never more bytes than there are, whatever a
    header claims.
    """

    def __init__(self, file: RawFile, place: int) -> None:
        self.file, self.place = file, place

    def read(self, count: int = -1) -> bytes:
        content = self.file.bytes(self.place, self.file.size if count < 0 else count)
        self.place += len(content)
        return content

    def seek(self, offset: int, whence: int = 0) -> int:
        self.place = max(0, offset + {0: 0, 1: self.place, 2: self.file.size}[whence])
        return self.place

    def seekable(self) -> bool:
        return True

    readable = seekable


def _claims_of(file: RawFile, begin: int) -> tuple[int, int, int]:
    """The rows and batches that the messages from `begin` on claim, and the bytes of all buffers
    once unpacked.

    Raises where they claim more than the file holds.
    """
    rows = batches = unpacked = 0
    for header, body, length in _messages(file, begin):
        kind = header.number(1, "B")
        table = header.table(2)
        batch = table.table(1) if kind == _DICTIONARY and table is not None else table
        if kind not in (_DICTIONARY, _BATCH) or batch is None:
            continue
        count = batch.number(0, "q")
        if count < 0:
            raise ValueError(f"a batch of {count} rows")
        unpacked += _unpacked(file, batch, body, length)
        if kind == _BATCH:
            rows, batches = rows + count, batches + 1
    return rows, batches, unpacked


def _messages(file: RawFile, place: int) -> Iterator[tuple[_Table, int, int]]:
    """The header of each message, and where its body begins and how long it is."""
    while file.size - place >= 4:
        (size,) = struct.unpack("<I", file.bytes(place, 4))
        place += 4
        if size == _CONTINUES:
            (size,) = struct.unpack("<I", file.bytes(place, 4))
            place += 4
        if size == 0:
            return
        if size > file.size - place:
            raise ValueError(f"a header of {size:,} bytes where {file.size - place:,} are left")
        data = file.bytes(place, size)
        header = _Table(data, *struct.unpack_from("<I", data))
        place += size
        length = header.number(3, "q")
        if not 0 <= length <= file.size - place:
            raise ValueError(f"a body of {length:,} bytes where {file.size - place:,} are left")
        yield header, place, length
        place += length


def _unpacked(file: RawFile, batch: _Table, body: int, length: int) -> int:
    """Bytes of a batch's buffers; a compressed one says so in front of it, -1 where it is not
    compressed after all.
    """
    packed = batch.table(3) is not None
    total = 0
    for offset, size in batch.pairs(2):
        if not (offset >= 0 and size >= 0 and offset + size <= length):
            raise ValueError(f"a buffer of {size:,} bytes at {offset:,} of {length:,}")
        if packed and size >= 8:
            (claimed,) = struct.unpack("<q", file.bytes(body + offset, 8))
            if claimed < -1:
                raise ValueError(f"a buffer of {claimed:,} bytes")
            size = size - 8 if claimed == -1 else claimed
        total += size
    return total


class _Table:
    """A table of a flatbuffer: fields by number, found through the table of offsets that it points
    back to.

    struct and NumPy raise where something points outside.
    """

    def __init__(self, data: bytes, place: int) -> None:
        self.data, self.place = data, place
        (back,) = struct.unpack_from("<i", data, place)
        self.offsets = place - back
        if self.offsets < 0:
            raise ValueError("a header that points outside")
        (self.size,) = struct.unpack_from("<H", data, self.offsets)

    def _field(self, number: int) -> int | None:
        at = 4 + 2 * number
        if at + 2 > self.size:
            return None
        (offset,) = struct.unpack_from("<H", self.data, self.offsets + at)
        return self.place + offset if offset else None

    def number(self, field: int, kind: str) -> int:
        place = self._field(field)
        return 0 if place is None else int(struct.unpack_from(f"<{kind}", self.data, place)[0])

    def table(self, field: int) -> _Table | None:
        place = self._field(field)
        return (
            None
            if place is None
            else _Table(self.data, place + struct.unpack_from("<I", self.data, place)[0])
        )

    def pairs(self, field: int) -> Iterator[Sequence[int]]:
        """A vector of structures of two 64-bit numbers."""
        place = self._field(field)
        if place is None:
            return
        place += struct.unpack_from("<I", self.data, place)[0]
        (count,) = struct.unpack_from("<I", self.data, place)
        yield from np.frombuffer(self.data, "<i8", 2 * count, place + 4).reshape(-1, 2).tolist()


class ArrowWriter(ArrowColumnsWriter):
    """The Arrow file format, which Feather version 2 is; not compressed, so that it can be
    memory-mapped.
    """

    def opened(self, schema: Any, columns: dict[str, NDArray[Any]]) -> Any:
        """The library's own writer."""
        return self.pa.ipc.new_file(str(self.path), schema)
