"""Reader and writer of Parquet files.

A small table is read as a whole. A large table stays in its file: its rows are decoded every time
they are requested. A row group is decoded in batches, so that memory is bounded even if the whole
file is one row group. The blocks of rows that the caller receives do not depend on the row groups,
so results are bitwise equal to those of an array.
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

from metacal.errors import FileContentError, MetacalError
from metacal.io.columns import Columns
from metacal.io.formats.arrow import BatchSource, read_batches
from metacal.io.formats.arrow_columns import TableLayout, import_pyarrow, table_to_array
from metacal.io.formats.arrow_writer import ArrowColumnsWriter
from metacal.io.formats.first_rows import FirstRows, read_first_record_batch
from metacal.io.opening import describe_damaged_file, input_error_if_decoding_fails
from metacal.io.request import Request
from metacal.rows.stored import StoredTable

# Size of a decoded batch in bytes. Decoding takes a few times as much memory.
_BATCH_BYTES = 1 << 20

# Number of bytes of a column chunk to read at a time.
_BUFFER_BYTES = 1 << 18

# Error message of pyarrow before version 26 for a null in a column of fixed-size lists.
_NULL_LIST_ERROR = re.compile(
    r"lists to be of size=[0-9]+ but index (?P<list_end>[0-9]+) had size=0\b"
)

# Maximum number of cursors that a thread keeps open.
_MAX_CURSORS = 4


class ParquetTable(StoredTable):
    """Table of a Parquet file whose rows are decoded on demand.

    Every thread opens the file separately. A pickle contains the path and the column names but no
    numbers, so that workers with access to the same file receive little data.

    Parameters
    ----------
    path : str
        File to open.

    layout : Layout
        Columns of the table.

    n_rows : int
        Number of rows.

    display_path : str
        File name used in error messages.
    """

    def __init__(self, path: str, layout: TableLayout, n_rows: int, display_path: str) -> None:
        super().__init__((n_rows, layout.n_classes), layout.dtype)
        self.path = path
        self.display_path = display_path
        self.layout = layout
        self.file_status = _file_status(path)

    @property
    def cursor_key(self) -> tuple[Any, ...]:
        """Key under which each thread stores its cursor of the table."""
        return self.path, self.layout.columns, self.file_status

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Decode the rows from `start` up to but excluding `stop`.

        Reading is fast if the rows follow those that the same thread read last.
        """
        with input_error_if_decoding_fails(self.display_path):
            self.check_unchanged()
            try:
                return _get_thread_cursor(self).read(start, stop)
            except BaseException:
                # The cursor may have lost track of its position, so the next read starts anew.
                _thread_local.cursors.pop(self.cursor_key, None)
                raise

    def check_unchanged(self) -> None:
        """Raise InputError if the file was modified or replaced since it was opened."""
        if _file_status(self.path) != self.file_status:
            raise FileContentError(
                f"{self.display_path}: the file changed after it was opened. Read it again."
            )


def _file_status(path: str) -> tuple[int, int, int]:
    """Return the modification time, size and inode of a file."""
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size, status.st_ino


class _Cursor:
    """Sequential reader of a table that keeps the last decoded batch.

    Parameters
    ----------
    table : ParquetTable
        Table to read.
    """

    def __init__(self, table: ParquetTable) -> None:
        self.table = table
        self.file = _open_parquet(table.path)
        metadata = self.file.metadata
        group_lengths = [
            metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)
        ]
        self.n_row_groups = len(group_lengths)
        # First row of each row group, followed by the total number of rows.
        self.group_starts = np.cumsum([0, *group_lengths])
        self.batch_rows = max(1, _BATCH_BYTES // max(1, table.layout.row_bytes))
        # Rows of the batch that was decoded last, and the number of its first row.
        self.block = np.empty((0, table.shape[1]), table.dtype)
        self.block_start = 0
        self._move_to_group_of_row(0)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the rows from `start` up to but excluding `stop`."""
        if self._is_before_block_or_in_later_group(start):
            self._move_to_group_of_row(start)
        if start >= stop:
            return self.block[:0].copy()

        pieces = []
        next_row = start
        while next_row < stop:
            while next_row >= self.block_stop:
                self._decode_next_batch()
            piece = self.block[next_row - self.block_start : stop - self.block_start]
            pieces.append(piece)
            next_row += len(piece)
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces)

    @property
    def block_stop(self) -> int:
        """Number of the row after the current block."""
        return self.block_start + len(self.block)

    def _is_before_block_or_in_later_group(self, row: int) -> bool:
        """Check whether a row precedes the current block or is in a later row group."""
        if row < self.block_start:
            return True
        if row < self.block_stop:
            return False
        return self._find_row_group(row) > self._find_row_group(self.block_stop)

    def _decode_next_batch(self) -> None:
        """Decode the next batch into the current block."""
        self.block_start += len(self.block)
        batch = next(self.batches, None)
        if batch is None:
            raise EOFError(f"the file ends at row {self.block_start}")
        self.block = table_to_array(
            batch, self.table.layout, self.table.display_path, self.block_start
        )

    def _find_row_group(self, row: int) -> int:
        """Return the number of the row group that contains a row."""
        return int(np.searchsorted(self.group_starts, row, side="right")) - 1

    def _move_to_group_of_row(self, row: int) -> None:
        """Move to the beginning of the row group that contains a row."""
        last_group = self.n_row_groups - 1
        group = min(self._find_row_group(row), last_group)
        self.block_start = int(self.group_starts[group])
        self.block = self.block[:0]
        self.batches = _iterate_batches(
            self.file,
            self.table.layout.columns,
            path=self.table.display_path,
            batch_rows=self.batch_rows,
            first_group=group,
        )


_thread_local = threading.local()


def _get_thread_cursor(table: ParquetTable) -> _Cursor:
    """Return the cursor of a table in this thread.

    The thread closes the cursor that was not used for the longest time if it has too many.
    """
    cursors: OrderedDict[Any, _Cursor] = _thread_local.__dict__.setdefault("cursors", OrderedDict())
    cursor = cursors.pop(table.cursor_key, None)
    if cursor is None:
        cursor = _Cursor(table)
        while len(cursors) >= _MAX_CURSORS:
            cursors.popitem(last=False)
    cursors[table.cursor_key] = cursor
    return cursor


def read(request: Request) -> Columns:
    """Read the requested columns of a Parquet file."""
    return read_batches(request, ParquetFile(request))


def read_first_rows(request: Request, max_rows: int) -> FirstRows:
    """Read the first rows of a Parquet file."""
    return read_first_record_batch(ParquetFile(request), max_rows)


class ParquetFile(BatchSource):
    """Source of record batches for a Parquet file.

    The file is read in batches, because `pyarrow.parquet.ParquetFile.read` before pyarrow 26 also
    allocates memory for columns that are not requested.

    Parameters
    ----------
    request : Request
        File to read.
    """

    kind = "a Parquet file"

    def __init__(self, request: Request) -> None:
        import_pyarrow(request.path)
        self.path = request.path
        self.source = request.path_to_open
        self.file = _open_parquet(request.path_to_open)
        n_rows = int(self.file.metadata.num_rows)
        super().__init__(self.file.schema_arrow, n_rows, os.path.getsize(self.source))

    def iterate_batches(self, names: Sequence[str], rows: int) -> Iterator[Any]:
        """Iterate over validated record batches of the named columns."""
        return _iterate_batches(self.file, tuple(names), path=self.path, batch_rows=rows)

    def open_stored_table(self, layout: TableLayout) -> ParquetTable:
        """Return a table that decodes its rows on demand."""
        return ParquetTable(self.source, layout, self.n_rows, self.path)


def _iterate_batches(
    file: Any, columns: tuple[str, ...], *, path: str, batch_rows: int, first_group: int = 0
) -> Iterator[Any]:
    """Iterate over validated record batches, starting with a row group.

    Parameters
    ----------
    file : pyarrow.parquet.ParquetFile
        File to read.

    columns : tuple of str
        Columns to read.

    path : str
        File name used in error messages.

    batch_rows : int
        Largest number of rows per batch.

    first_group : int, default=0
        Number of the first row group to read.

    Yields
    ------
    pyarrow.RecordBatch

    Raises
    ------
    InputError
        If the file is damaged, or contains a null list that pyarrow cannot decode.
    """
    metadata = file.metadata
    next_row = 0
    for earlier_group in range(first_group):
        next_row += metadata.row_group(earlier_group).num_rows
    groups = range(first_group, metadata.num_row_groups)
    try:
        for batch in _decode_groups(file, columns, batch_rows, groups):
            yield batch
            next_row += batch.num_rows
    except (MetacalError, MemoryError):
        raise
    except Exception as error:
        # pyarrow raises exceptions of many types for a damaged file.
        # ArrowInvalid is caught as its base class ValueError, because the import would fail if
        # pyarrow is unloaded before the interpreter exits.
        if isinstance(error, ValueError):
            _raise_for_null_list(error, file, columns[0], path=path, first_row_of_batch=next_row)
        group = _find_damaged_group(file, columns, batch_rows, next_row)
        raise FileContentError(
            describe_damaged_file(f"{path}, row group {group}", error)
        ) from error


def _decode_groups(
    file: Any, columns: tuple[str, ...], batch_rows: int, groups: Sequence[int]
) -> Iterator[Any]:
    """Decode and validate the record batches of some row groups."""
    for batch in file.iter_batches(
        batch_rows, row_groups=groups, columns=list(columns), use_threads=False
    ):
        batch.validate(full=True)
        yield batch


def _find_damaged_group(
    file: Any, columns: tuple[str, ...], batch_rows: int, first_row: int
) -> int:
    """Return the first row group that cannot be decoded.

    A batch can span several row groups, so each group is decoded separately.

    Parameters
    ----------
    file : pyarrow.parquet.ParquetFile
        File to read.

    columns : tuple of str
        Columns to read.

    batch_rows : int
        Largest number of rows per batch.

    first_row : int
        First row of the batch that failed. Groups that end before this row are skipped.

    Returns
    -------
    int
        Number of the row group. The last one if all can be decoded separately.
    """
    metadata = file.metadata
    group_stop = 0
    for group in range(metadata.num_row_groups):
        group_stop += metadata.row_group(group).num_rows
        if group_stop <= first_row:
            continue
        try:
            for _ in _decode_groups(file, columns, batch_rows, [group]):
                pass
        except Exception:
            return group
    return int(metadata.num_row_groups) - 1


def _raise_for_null_list(
    error: Exception, file: Any, name: str, *, path: str, first_row_of_batch: int
) -> None:
    """Raise InputError if a decoding error was caused by a null in a list column.

    Before pyarrow 26, a null in a column of fixed-size lists is decoded as a list of length 0,
    which the decoder then rejects. The index in its message is that of the end of the list.

    Parameters
    ----------
    error : Exception
        Error of the decoder.

    file : pyarrow.parquet.ParquetFile
        File that was read.

    name : str
        Name of the list column.

    path : str
        File name used in the error message.

    first_row_of_batch : int
        First row of the batch that failed.
    """
    null_list_match = _NULL_LIST_ERROR.search(str(error))
    if null_list_match is None:
        return
    row_in_batch = int(null_list_match["list_end"]) - 1
    row = first_row_of_batch + row_in_batch
    # The statistics may lack the number of nulls, but there is at least one.
    n_nulls = max(1, _count_nulls(file.metadata, name))
    raise FileContentError(
        f"{path}: row {row} of the column {name!r} is null, and {n_nulls:,} of"
        f" {file.metadata.num_rows:,} rows are null in all. Fill in the values, or drop these"
        " rows."
    )


def _count_nulls(metadata: Any, name: str) -> int:
    """Count the nulls of a column, as far as the row group statistics list them."""
    column_index = next(
        index
        for index in range(metadata.num_columns)
        if metadata.schema.column(index).path.split(".")[0] == name
    )
    n_nulls = 0
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(column_index).statistics
        if statistics is not None and statistics.has_null_count:
            n_nulls += statistics.null_count
    return n_nulls


def _open_parquet(path: str) -> Any:
    """Open a Parquet file so that the checksum of every page is verified."""
    import pyarrow.parquet as parquet

    # A memory map would crash the process if the file is truncated while it is read.
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

    def open_file(self, schema: Any, columns: dict[str, NDArray[Any]]) -> Any:
        """Create pyarrow's writer for the file."""
        import pyarrow.parquet as parquet

        float_columns = []
        text_columns = []
        for name, array in columns.items():
            # The elements of a list column are stored in a nested column.
            stored_name = name if array.ndim == 1 else f"{name}.list.element"
            if array.dtype.kind == "f":
                float_columns.append(stored_name)
            elif array.dtype.kind == "U":
                text_columns.append(stored_name)
        return parquet.ParquetWriter(
            self.path,
            schema,
            compression="zstd",
            use_dictionary=text_columns,
            use_byte_stream_split=float_columns,
            write_page_checksum=True,
        )
