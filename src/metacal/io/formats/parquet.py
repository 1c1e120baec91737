"""Parquet: a small table whole, a large one row group by row group each time its rows are asked
for.

A row group is decoded in batches, so that memory stays bounded even where the whole file is one row
group. The rows come in the strips that `Rows` asks for, whatever the row groups are, and results
are the same to the last bit as on an array.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError, MetacalError
from metacal.io.columns import Columns
from metacal.io.formats.arrow import (
    ArrowColumnsWriter,
    Batches,
    Layout,
    pyarrow_for,
    read_batches,
    table_of,
)
from metacal.io.opening import damaged, decoding
from metacal.io.request import Request
from metacal.rows.stored import StoredTable

#: Bytes of a decoded batch; decoding needs a few times as much.
_BATCH_BYTES = 1 << 20
#: Bytes of a column chunk that are read at a time.
_BUFFER_BYTES = 1 << 18
#: What pyarrow before 26 says where a null stands among lists of a fixed size.
_EMPTY_LIST = re.compile(r"lists to be of size=[0-9]+ but index ([0-9]+) had size=0\b")
#: Files (or passes over one) that a thread keeps open.
_OPEN_CURSORS = 4


class ParquetTable(StoredTable):
    """The table of a Parquet file, decoded as its rows are asked for.

    Every thread opens the file for itself. A pickle of it is the path and the columns, so that a
    process pool or a cluster that sees the same files gets descriptions, not numbers.
    """

    def __init__(self, path: str, layout: Layout, n_rows: int, shown: str) -> None:
        super().__init__((n_rows, layout.n_classes), layout.dtype)
        self.path, self.shown, self.layout = path, shown, layout
        status = os.stat(path)
        #: Tells a file from another that took its place.
        self.key = (path, layout.columns, status.st_mtime_ns, status.st_size, status.st_ino)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start … stop - 1; cheap where they follow those read last by this thread."""
        with decoding(self.shown):
            self.check_unchanged()
            try:
                return _cursor(self).read(start, stop)
            except BaseException:
                # A batch was taken but its rows were not counted: whoever asks next begins anew.
                _local.cursors.pop(self.key, None)
                raise

    def check_unchanged(self) -> None:
        """Raise where the file is no longer the one that was opened."""
        status = os.stat(self.path)
        if (status.st_mtime_ns, status.st_size, status.st_ino) != self.key[2:]:
            raise InputError(
                f"{self.shown}: the file has changed since it was opened; read it again."
            )


class _Cursor:
    """One pass over a file: the batch decoded last, and the iterator that gives the next."""

    def __init__(self, table: ParquetTable) -> None:
        self.table = table
        self.file = _open(table.path)
        rows = [
            self.file.metadata.row_group(k).num_rows
            for k in range(self.file.metadata.num_row_groups)
        ]
        #: Where each row group begins.
        self.starts = np.cumsum([0, *rows])
        self.batch_rows = max(1, _BATCH_BYTES // max(1, table.layout.row_bytes))
        self.block = np.empty((0, table.shape[1]), table.dtype)
        self._seek(0)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        parts, end = [], self.begin + len(self.block)
        # It lies behind, or so far ahead that jumping to its row group is better.
        if start < self.begin or (start >= end and self._group(start) > self._group(end)):
            self._seek(start)
        while start < stop:
            while start >= self.begin + len(self.block):
                self.begin += len(self.block)
                batch = next(self.batches, None)
                if batch is None:
                    raise EOFError(f"it ends at row {self.begin}")
                self.block = table_of(batch, self.table.layout, self.table.shown, self.begin)
            parts.append(self.block[start - self.begin : stop - self.begin])
            start += len(parts[-1])
        return parts[0] if len(parts) == 1 else np.concatenate([self.block[:0], *parts])

    def _group(self, row: int) -> int:
        return int(np.searchsorted(self.starts, row, side="right")) - 1

    def _seek(self, row: int) -> None:
        group = min(self._group(row), len(self.starts) - 2)
        self.begin, self.block = int(self.starts[group]), self.block[:0]
        self.batches = _batches(
            self.file, self.table.layout.columns, self.table.shown, self.batch_rows, group
        )


_local = threading.local()


def _cursor(table: ParquetTable) -> _Cursor:
    """Return this thread's cursor for the table."""
    cursors: OrderedDict[Any, _Cursor] = _local.__dict__.setdefault("cursors", OrderedDict())
    cursor = cursors.pop(table.key, None)
    if cursor is None:
        cursor = _Cursor(table)
        while len(cursors) >= _OPEN_CURSORS:
            cursors.popitem(last=False)
    cursors[table.key] = cursor
    return cursor


def read(request: Request) -> Columns:
    """Read table, or scores, and what is beside it."""
    return read_batches(request, ParquetFile(request))


class ParquetFile(Batches):
    """A file as `read_batches` wants it, its footer read.

    In batches: before pyarrow 26, `ParquetFile.read` reserves memory for the columns that were not
    asked for as well.
    """

    kind = "a Parquet file"

    def __init__(self, request: Request) -> None:
        pyarrow_for(request.path)
        self.path, self.source, self.file = request.path, request.source, _open(request.source)
        super().__init__(
            self.file.schema_arrow, int(self.file.metadata.num_rows), os.path.getsize(self.source)
        )

    def batches(self, names: Sequence[str], rows: int) -> Iterator[Any]:
        """These columns, in batches of at most so many rows."""
        return _batches(self.file, tuple(names), self.path, rows)

    def stored(self, layout: Layout) -> ParquetTable:
        """The table, decoded as its rows are asked for."""
        return ParquetTable(self.source, layout, self.n_rows, self.path)


def _batches(
    file: Any, columns: tuple[str, ...], path: str, batch_rows: int, group: int = 0
) -> Iterator[Any]:
    """Record batches in order, from a row group on, each validated."""
    start = sum(file.metadata.row_group(before).num_rows for before in range(group))
    groups = range(group, file.metadata.num_row_groups)
    try:
        for batch in file.iter_batches(
            batch_rows, row_groups=groups, columns=list(columns), use_threads=False
        ):
            batch.validate(full=True)
            yield batch
            start += batch.num_rows
    except (MetacalError, MemoryError):
        raise
    except Exception as error:  # whatever a decoder says of the bytes
        if isinstance(
            error, ValueError
        ):  # ArrowInvalid is one, by a name that is there when the interpreter ends
            _refuse_null_list(error, file, columns[0], path, start)
        broken = _broken_group(file, columns, batch_rows, start)
        raise InputError(damaged(f"{path}, row group {broken}", error)) from error


def _broken_group(file: Any, columns: tuple[str, ...], batch_rows: int, start: int) -> int:
    """The first row group, of those from row `start` on, that cannot be decoded: a batch may reach
    over several.
    """
    metadata, first = file.metadata, 0
    for group in range(metadata.num_row_groups):
        first += metadata.row_group(group).num_rows
        if first <= start:
            continue
        try:
            for batch in file.iter_batches(
                batch_rows, row_groups=[group], columns=list(columns), use_threads=False
            ):
                batch.validate(full=True)
        except Exception:
            return group
    return int(metadata.num_row_groups) - 1


def _refuse_null_list(error: Exception, file: Any, name: str, path: str, start: int) -> None:
    """Raise the sentence about nulls where that is what `error` means, of the batch that begins at
    row `start`.

    Before pyarrow 26, a null among lists of a fixed size is read as a list of size 0, which the
    decoder then refuses; the index that it names is that of the list's end. The footer's statistics
    count the nulls, where they are kept.
    """
    place = _EMPTY_LIST.search(str(error))
    if place is None:
        return
    metadata, n_nulls = file.metadata, 0
    leaf = next(
        k
        for k in range(metadata.num_columns)
        if metadata.schema.column(k).path.split(".")[0] == name
    )
    for group in range(metadata.num_row_groups):
        kept = metadata.row_group(group).column(leaf).statistics
        if kept is not None and kept.has_null_count:
            n_nulls += kept.null_count
    raise InputError(
        f"{path}: row {start + int(place[1]) - 1} of column {name!r} is null, as are"
        f" {max(1, n_nulls):,} in all ({metadata.num_rows:,} rows); fill them in or drop the rows;"
        " metacal drops none."
    )


def _open(path: str) -> Any:
    """Open a Parquet file so that every page with a checksum is verified when it is read."""
    import pyarrow.parquet as parquet

    # A memory map would end the process when the file is shortened. Buffered reading avoids loading
    # a whole row group before its first page is decoded.
    return parquet.ParquetFile(
        path,
        memory_map=False,
        pre_buffer=False,
        buffer_size=_BUFFER_BYTES,
        page_checksum_verification=True,
    )


class ParquetWriter(ArrowColumnsWriter):
    """Writer of Parquet files with a checksum for every page.

    Lists have a fixed size. The bytes of floats are split by significance, which zstd compresses
    well.
    """

    def opened(self, schema: Any, columns: dict[str, NDArray[Any]]) -> Any:
        """Open pyarrow's writer for these columns."""
        import pyarrow.parquet as parquet

        leaves = [
            name if array.ndim == 1 else f"{name}.list.element" for name, array in columns.items()
        ]
        kinds = [array.dtype.kind for array in columns.values()]
        floats = [leaf for leaf, kind in zip(leaves, kinds) if kind == "f"]
        texts = [leaf for leaf, kind in zip(leaves, kinds) if kind == "U"]
        return parquet.ParquetWriter(
            self.path,
            schema,
            compression="zstd",
            use_dictionary=texts,
            use_byte_stream_split=floats,
            write_page_checksum=True,
        )
