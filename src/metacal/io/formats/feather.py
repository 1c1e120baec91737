"""Reader and writer of Arrow files (Feather version 2) and Arrow streams.

A file in the Arrow file format is a stream between two markers, with a footer. Both formats are
therefore read as streams:

1. The messages of the stream are scanned without decoding them. Their headers contain the number of
   rows and the sizes of all buffers. If the sizes exceed the unpacking limit or the size of the
   file, reading stops with an error.
2. The messages are decoded one after the other. Every batch is validated, including all offsets,
   before values are taken from it.

Files are not memory-mapped, because the process would crash if another program shortened the file.

An Arrow *stream* is a sequence of messages. A *message* consists of a continuation marker, the
length of its header, the header (a FlatBuffers table) and the body. The header of a record batch
contains its number of rows, the position of each buffer in the body, and whether the buffers are
compressed. A compressed buffer begins with its uncompressed length. See
https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.io.columns import Columns
from metacal.io.formats.arrow import BatchSource, read_batches
from metacal.io.formats.arrow_columns import import_pyarrow
from metacal.io.formats.arrow_writer import ArrowColumnsWriter
from metacal.io.formats.first_rows import FirstRows, read_first_record_batch
from metacal.io.formats.raw import RawFile
from metacal.io.opening import check_unpacked_size
from metacal.io.request import Request

# Magic bytes at the beginning and end of an Arrow file.
_FILE_MAGIC = b"ARROW1"

# Offset of the first message in an Arrow file, whose magic bytes are padded to 8 bytes.
_FIRST_MESSAGE_OFFSET = 8

_CONTINUATION_MARKER = 0xFFFFFFFF

# Message types and field numbers, as defined in Message.fbs of the Arrow format.
_DICTIONARY_BATCH = 2
_RECORD_BATCH = 3

_MESSAGE_TYPE_FIELD = 1
_MESSAGE_HEADER_FIELD = 2
_MESSAGE_BODY_LENGTH_FIELD = 3

_DICTIONARY_DATA_FIELD = 1

_BATCH_LENGTH_FIELD = 0
_BATCH_BUFFERS_FIELD = 2
_BATCH_COMPRESSION_FIELD = 3

# A compressed buffer begins with its uncompressed length, or with -1 if it is not compressed.
_LENGTH_PREFIX_BYTES = 8
_NOT_COMPRESSED = -1


def read(request: Request) -> Columns:
    """Read the requested columns of an Arrow file."""
    return read_batches(request, ArrowFile(request))


def read_first_rows(request: Request, max_rows: int) -> FirstRows:
    """Read the first rows of an Arrow or Feather file."""
    return read_first_record_batch(ArrowFile(request), max_rows)


class ArrowFile(BatchSource):
    """Source of record batches for an Arrow file.

    Parameters
    ----------
    request : Request
        File to read.

    Raises
    ------
    InputError
        If the file unpacks to more bytes than allowed.

    ValueError, EOFError
        If the file is damaged.
    """

    kind = "an Arrow file"

    def __init__(self, request: Request) -> None:
        self.pa = import_pyarrow(request.path)
        self.file = RawFile(request.path_to_open, request.path)
        is_file_format = self.file.read_bytes(0, len(_FILE_MAGIC)) == _FILE_MAGIC
        self.first_message_offset = _FIRST_MESSAGE_OFFSET if is_file_format else 0
        totals = _scan_messages(self.file, self.first_message_offset)
        if is_file_format:
            self._check_footer(totals.n_batches)
        check_unpacked_size(request.path, totals.unpacked_bytes, self.file.size)
        super().__init__(self._open_stream().schema, totals.n_rows, self.file.size)

    def iterate_batches(self, names: Sequence[str], rows: int) -> Iterator[Any]:
        """Iterate over the record batches as stored in the file; `rows` is ignored."""
        field_numbers = {name: number for number, name in enumerate(self.schema.names)}
        included_fields = sorted({field_numbers[name] for name in names})
        for record_batch in self._open_stream(included_fields):
            # Only a full validation checks offsets, dictionary indices and UTF-8.
            record_batch.validate(full=True)
            yield record_batch

    def _check_footer(self, n_batches: int) -> None:
        """Raise an error if the footer is missing or does not match the batches."""
        end_marker = self.file.read_bytes(self.file.size - len(_FILE_MAGIC), len(_FILE_MAGIC))
        if end_marker != _FILE_MAGIC:
            raise EOFError("the end of the file is missing")
        reader = self.pa.ipc.open_file(self.pa.PythonFile(_FileReader(self.file, 0), "r"))
        if reader.num_record_batches != n_batches:
            raise ValueError(
                f"the footer lists {reader.num_record_batches} batches, but the file has"
                f" {n_batches}"
            )

    def _open_stream(self, included_fields: list[int] | None = None) -> Any:
        """Open pyarrow's stream reader at the first message."""
        options = self.pa.ipc.IpcReadOptions(included_fields=included_fields, use_threads=False)
        file_reader = _FileReader(self.file, self.first_message_offset)
        return self.pa.ipc.open_stream(self.pa.PythonFile(file_reader, "r"), options=options)


class _FileReader(io.RawIOBase):
    """File object for pyarrow that never returns more bytes than the file holds.

    Parameters
    ----------
    file : RawFile
        File to read.

    position : int
        Initial position.
    """

    def __init__(self, file: RawFile, position: int) -> None:
        self.file = file
        self.position = position

    def read(self, count: int = -1) -> bytes:
        if count < 0:
            count = self.file.size
        content = self.file.read_bytes(self.position, count)
        self.position += len(content)
        return content

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        reference_positions = {
            io.SEEK_SET: 0,
            io.SEEK_CUR: self.position,
            io.SEEK_END: self.file.size,
        }
        self.position = max(0, reference_positions[whence] + offset)
        return self.position

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True


@dataclass(frozen=True)
class _StreamTotals:
    """Sizes that the message headers of a stream claim.

    Attributes
    ----------
    n_rows : int
        Number of rows in all record batches.

    n_batches : int
        Number of record batches.

    unpacked_bytes : int
        Size of all buffers after decompression.
    """

    n_rows: int
    n_batches: int
    unpacked_bytes: int


@dataclass(frozen=True)
class _Message:
    """Message of an Arrow stream.

    Attributes
    ----------
    metadata : _FlatbuffersTable
        The `Message` table, which describes the body.

    body_offset : int
        Position of the body in the file.

    body_length : int
        Size of the body in bytes.
    """

    metadata: _FlatbuffersTable
    body_offset: int
    body_length: int


def _scan_messages(file: RawFile, offset: int) -> _StreamTotals:
    """Sum the sizes that the message headers of a stream claim.

    Raise ValueError if a header claims more bytes than the file holds.
    """
    n_rows = 0
    n_batches = 0
    unpacked_bytes = 0
    for message in _iterate_messages(file, offset):
        message_type = message.metadata.read_integer(_MESSAGE_TYPE_FIELD, struct_format="B")
        batch_header = _find_batch_header(message, message_type)
        if batch_header is None:
            continue
        n_batch_rows = batch_header.read_integer(_BATCH_LENGTH_FIELD, struct_format="q")
        if n_batch_rows < 0:
            raise ValueError(f"a batch claims to have {n_batch_rows} rows")
        unpacked_bytes += _compute_unpacked_bytes(file, batch_header, message)
        if message_type == _RECORD_BATCH:
            n_rows += n_batch_rows
            n_batches += 1
    return _StreamTotals(n_rows=n_rows, n_batches=n_batches, unpacked_bytes=unpacked_bytes)


def _find_batch_header(message: _Message, message_type: int) -> _FlatbuffersTable | None:
    """Return the `RecordBatch` table of a message, or None if there is no batch.

    A dictionary batch contains a record batch with the entries of the dictionary.
    """
    if message_type not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return None
    message_header = message.metadata.read_table(_MESSAGE_HEADER_FIELD)
    if message_type == _DICTIONARY_BATCH and message_header is not None:
        return message_header.read_table(_DICTIONARY_DATA_FIELD)
    return message_header


def _iterate_messages(file: RawFile, offset: int) -> Iterator[_Message]:
    """Yield the messages of an Arrow stream that starts at an offset of the file."""
    while file.size - offset >= 4:
        header_length = _read_uint32(file, offset)
        offset += 4
        if header_length == _CONTINUATION_MARKER:
            header_length = _read_uint32(file, offset)
            offset += 4
        is_end_of_stream = header_length == 0
        if is_end_of_stream:
            return
        remaining_bytes = file.size - offset
        if header_length > remaining_bytes:
            raise ValueError(
                f"a header claims to have {header_length:,} bytes, but only {remaining_bytes:,}"
                " bytes remain"
            )
        header_bytes = file.read_bytes(offset, header_length)
        (root_offset,) = struct.unpack_from("<I", header_bytes)
        metadata = _FlatbuffersTable(header_bytes, root_offset)
        offset += header_length

        body_length = metadata.read_integer(_MESSAGE_BODY_LENGTH_FIELD, struct_format="q")
        remaining_bytes = file.size - offset
        if not 0 <= body_length <= remaining_bytes:
            raise ValueError(
                f"a body claims to have {body_length:,} bytes, but only {remaining_bytes:,}"
                " bytes remain"
            )
        yield _Message(metadata=metadata, body_offset=offset, body_length=body_length)
        offset += body_length


def _read_uint32(file: RawFile, offset: int) -> int:
    """Read a little-endian unsigned 32-bit integer."""
    (integer,) = struct.unpack("<I", file.read_bytes(offset, 4))
    return int(integer)


def _compute_unpacked_bytes(
    file: RawFile, batch_header: _FlatbuffersTable, message: _Message
) -> int:
    """Return the decompressed size in bytes of the buffers of a batch.

    Parameters
    ----------
    file : RawFile
        File that contains the batch.

    batch : _FlatbuffersTable
        Header of the record batch.

    message : _Message
        Message that contains the batch.

    Returns
    -------
    int

    Raises
    ------
    ValueError
        If a buffer lies outside the body of the message.
    """
    is_compressed = batch_header.read_table(_BATCH_COMPRESSION_FIELD) is not None
    total_bytes = 0
    for offset, length in batch_header.read_int64_pairs(_BATCH_BUFFERS_FIELD):
        is_inside_body = offset >= 0 and length >= 0 and offset + length <= message.body_length
        if not is_inside_body:
            raise ValueError(
                f"a buffer of {length:,} bytes at offset {offset:,} does not fit into a body of"
                f" {message.body_length:,} bytes"
            )
        if is_compressed and length >= _LENGTH_PREFIX_BYTES:
            prefix = file.read_bytes(message.body_offset + offset, _LENGTH_PREFIX_BYTES)
            (uncompressed_length,) = struct.unpack("<q", prefix)
            if uncompressed_length < _NOT_COMPRESSED:
                raise ValueError(f"a buffer claims to unpack to {uncompressed_length:,} bytes")
            if uncompressed_length == _NOT_COMPRESSED:
                length -= _LENGTH_PREFIX_BYTES
            else:
                length = uncompressed_length
        total_bytes += length
    return total_bytes


class _FlatbuffersTable:
    """Table in a FlatBuffers message, with fields identified by number.

    struct and NumPy raise an error if a field lies outside the data.

    Parameters
    ----------
    data : bytes
        FlatBuffers message.

    offset : int
        Position of the table in the message.
    """

    def __init__(self, data: bytes, offset: int) -> None:
        self.data = data
        self.offset = offset
        (vtable_distance,) = struct.unpack_from("<i", data, offset)
        self.vtable_offset = offset - vtable_distance
        if self.vtable_offset < 0:
            raise ValueError("a header contains an offset outside of the file")
        (self.vtable_size,) = struct.unpack_from("<H", data, self.vtable_offset)

    def read_integer(self, field_number: int, struct_format: str) -> int:
        """Return an integer field, or its default value 0 if the field is absent."""
        field_offset = self._find_field(field_number)
        if field_offset is None:
            return 0
        (value,) = struct.unpack_from(f"<{struct_format}", self.data, field_offset)
        return int(value)

    def read_table(self, field_number: int) -> _FlatbuffersTable | None:
        """Return a nested table, or None if the field is absent."""
        field_offset = self._find_field(field_number)
        if field_offset is None:
            return None
        return _FlatbuffersTable(self.data, self._follow_reference(field_offset))

    def read_int64_pairs(self, field_number: int) -> Iterator[Sequence[int]]:
        """Iterate over a vector of structs of two signed 64-bit integers."""
        field_offset = self._find_field(field_number)
        if field_offset is None:
            return
        vector_offset = self._follow_reference(field_offset)
        (n_pairs,) = struct.unpack_from("<I", self.data, vector_offset)
        integers = np.frombuffer(self.data, "<i8", 2 * n_pairs, vector_offset + 4)
        yield from integers.reshape(-1, 2).tolist()

    def _find_field(self, field_number: int) -> int | None:
        """Return the position of a field in the message, or None if the field is absent."""
        # The vtable begins with two 16-bit sizes. A 16-bit offset per field follows.
        entry_offset = 4 + 2 * field_number
        if entry_offset + 2 > self.vtable_size:
            return None
        (offset_in_table,) = struct.unpack_from("<H", self.data, self.vtable_offset + entry_offset)
        if offset_in_table == 0:
            return None
        return self.offset + int(offset_in_table)

    def _follow_reference(self, field_offset: int) -> int:
        """Return the position that a relative reference points to."""
        (distance,) = struct.unpack_from("<I", self.data, field_offset)
        return field_offset + int(distance)


class ArrowWriter(ArrowColumnsWriter):
    """Writer of the Arrow file format, which is also Feather version 2.

    The file is not compressed, so that it can be memory-mapped.
    """

    def open_file(self, schema: Any, columns: dict[str, NDArray[Any]]) -> Any:
        """Create pyarrow's writer for the file."""
        return self.pa.ipc.new_file(str(self.path), schema)
