"""Read Parquet: a small table whole, a large one row group by row group each time its rows are asked for.

A row group is decoded in batches, so that memory stays bounded even where the whole file is one row group. The rows
come in the strips that `Rows` asks for, whatever the row groups are, and results are the same to the last bit as on an
array.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError, MetacalError
from metacal.io.columns import Found, Request, check_class_order
from metacal.io.formats.arrow import Layout, column_of, layout, needed, pick, pyarrow_for, refuse_nulls, table_of
from metacal.io.limits import check_unpacked
from metacal.io.opening import NoRowsError, damaged, decoding
from metacal.rows.stored import StoredTable

#: Bytes of a decoded batch; decoding needs a few times as much.
_BATCH_BYTES = 1 << 20
#: The same where the whole table is read anyway: fewer batches are quicker where there is a column per class.
_WHOLE_BATCH_BYTES = 1 << 22
#: Rows of a batch of labels and ids, which are read whole.
_BESIDE_ROWS = 1 << 16
#: Bytes of a column chunk that are read at a time.
_BUFFER_BYTES = 1 << 18
#: What pyarrow before 26 says where a null stands among lists of a fixed size.
_EMPTY_LIST = re.compile(r"lists to be of size=[0-9]+ but index ([0-9]+) had size=0\b")
#: Files (or passes over one) that a thread keeps open.
_OPEN_CURSORS = 4


class ParquetTable(StoredTable):
    """The table of a Parquet file, decoded as its rows are asked for.

    Every thread opens the file for itself. A pickle of it is the path and the columns, so that a process pool or a
    cluster that sees the same files gets descriptions, not numbers.
    """

    def __init__(self, path: str, found: Layout, n_rows: int, shown: str | None = None) -> None:
        super().__init__((n_rows, found.n_classes), found.dtype)
        self.path, self.shown = path, path if shown is None else shown
        self.layout = found
        status = os.stat(path)
        #: Tells a file from another that took its place.
        self.key = (path, found.columns, status.st_mtime_ns, status.st_size, status.st_ino)

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
            raise InputError(f"{self.shown}: the file has changed since it was opened; read it again.")


class _Cursor:
    """One pass over a file: the batch decoded last, and the iterator that gives the next."""

    def __init__(self, table: ParquetTable) -> None:
        self.table = table
        self.file = _open(table.path)
        rows = [self.file.metadata.row_group(k).num_rows for k in range(self.file.metadata.num_row_groups)]
        #: Where each row group begins.
        self.starts = np.cumsum([0, *rows])
        width = table.shape[1] * table.dtype.itemsize
        self.batch_rows = max(1, _BATCH_BYTES // max(1, width))
        self.batches: Iterator[Any] = iter(())
        self.begin, self.block = 0, np.empty((0, table.shape[1]), table.dtype)
        self._seek(0)

    def reaches(self, row: int) -> bool:
        """Whether `row` lies ahead, and not so far that jumping to its row group were better."""
        end = self.begin + len(self.block)
        return self.begin <= row and (row < end or self._group(row) <= self._group(end))

    def read(self, start: int, stop: int) -> NDArray[Any]:
        if not self.reaches(start):
            self._seek(start)
        parts = []
        while start < stop:
            end = self.begin + len(self.block)
            if start >= end:
                self._next()
                continue
            part = self.block[start - self.begin : stop - self.begin]
            parts.append(part)
            start += len(part)
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else self.block[:0]

    def _group(self, row: int) -> int:
        return int(np.searchsorted(self.starts, row, side="right")) - 1

    def _seek(self, row: int) -> None:
        group = min(max(0, self._group(row)), len(self.starts) - 2)
        self.begin, self.block = int(self.starts[group]), self.block[:0]
        self.batches = _batches(
            self.file, self.table.layout.columns, self.table.shown, self.batch_rows,
            start=self.begin, row_groups=list(range(group, len(self.starts) - 1)),
        )  # fmt: skip

    def _next(self) -> None:
        self.begin += len(self.block)
        self.block = self.block[:0]
        batch = next(self.batches, None)
        if batch is None:
            raise InputError(damaged(self.table.shown, EOFError(f"it ends at row {self.begin}")))
        self.block = table_of(batch, self.table.layout, self.table.shown, self.begin)


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


def read_parquet(request: Request) -> Found:
    """Read table, labels and ids; a table over 256 MiB stays in the file unless `request.stream` says otherwise."""
    pyarrow_for(request.path)
    with decoding(request.path):
        file = _open(request.source)
        if file.metadata.num_rows == 0:
            raise NoRowsError(f"{request.path}: it holds no rows; give at least one.")
        found = layout(request, file.schema_arrow, _first_width(request, file))
        n_rows = file.metadata.num_rows
        held = os.path.getsize(request.source)
        _check_claims(request, found, n_rows, held)
        beside = _beside(file, tuple(needed(found)), request.path)
        labels, ids, groups = (
            None if name is None else column_of(beside[name], name, request.path, held)
            for name in (found.label, found.ids, found.groups)
        )
        check_class_order(request, found.names if found.width is not None else None)
        table: NDArray[Any] | StoredTable = _whole(request, file, found, n_rows)
    return Found(table, labels, ids, groups, found.names, found.unused, found.places)


def parquet_columns(request: Request, wanted: Callable[[Sequence[str]], Sequence[str]]) -> tuple[dict[str, Any], int]:
    """The columns that `wanted` names of those there are, as Arrow arrays, and the bytes of the file."""
    pyarrow_for(request.path)
    with decoding(request.path):
        file = _open(request.source)
        names = tuple(wanted(file.schema_arrow.names))
        held = os.path.getsize(request.source)
        check_unpacked(request.path, 8 * len(names) * file.metadata.num_rows, held)
        return _beside(file, names, request.path), held


def _beside(file: Any, names: tuple[str, ...], path: str) -> dict[str, Any]:
    """The columns of labels and ids, whole.

    In batches: before pyarrow 26, `ParquetFile.read` reserves memory for the columns that were not asked for as well.
    """
    import pyarrow as pa

    batches = list(_batches(file, names, path, _BESIDE_ROWS)) if names else []
    kinds = {name: file.schema_arrow.field(name).type for name in names}
    return {name: pa.chunked_array([b.column(name) for b in batches], type=kind) for name, kind in kinds.items()}


def _check_claims(request: Request, found: Layout, n_rows: int, held: int) -> None:
    """Compare the rows that the footer claims with the limit: runs of one value pack to next to nothing."""
    row = found.n_classes * found.dtype.itemsize
    beside = 8 * len(needed(found))
    check_unpacked(request.path, n_rows * (beside if request.stays(n_rows * row) else row + beside), held)


def _whole(request: Request, file: Any, found: Layout, n_rows: int) -> NDArray[Any] | StoredTable:
    if request.stays(n_rows * found.n_classes * found.dtype.itemsize):
        return ParquetTable(request.source, found, n_rows, request.path)
    rows = np.empty((n_rows, found.n_classes), dtype=found.dtype)
    start = 0
    step = max(1, _WHOLE_BATCH_BYTES // max(1, found.n_classes * found.dtype.itemsize))
    for batch in _batches(file, found.columns, request.path, step):
        rows[start : start + batch.num_rows] = table_of(batch, found, request.path, start)
        start += batch.num_rows
    if start != n_rows:
        raise EOFError(f"it ends at row {start} of {n_rows}")
    return rows


def _first_width(request: Request, file: Any) -> int:
    """The length of the first list; lists of a fixed size are read back as such, by the schema that Arrow keeps."""
    picked, shown = pick(request, file.schema_arrow)
    if picked.names is not None:
        return 0
    name = shown[picked.columns[0]]
    for batch in _batches(file, (name,), request.path, 1):
        if batch.num_rows:
            refuse_nulls(batch.column(0), name, request.path, 0)
            return len(batch.column(0)[0])
    return 0


def _batches(
    file: Any, columns: tuple[str, ...], path: str, batch_rows: int, start: int = 0, row_groups: Any = None
) -> Iterator[Any]:
    """Record batches in order, each validated; `start` is the number of the first row."""
    options = {} if row_groups is None else {"row_groups": row_groups}
    try:
        for batch in file.iter_batches(batch_size=batch_rows, columns=list(columns), use_threads=False, **options):
            batch.validate(full=True)
            yield batch
            start += batch.num_rows
    except (MetacalError, MemoryError):
        raise
    except Exception as error:  # whatever a decoder says of the bytes
        if isinstance(error, ValueError):  # ArrowInvalid is one, by a name that is there when the interpreter ends
            _refuse_null_list(error, file, columns[0], path, start)
        group = _broken_group(file, columns, batch_rows, start)
        raise InputError(damaged(f"{path}, row group {group}", error)) from error


def _broken_group(file: Any, columns: tuple[str, ...], batch_rows: int, start: int) -> int:
    """The first row group, of those from row `start` on, that cannot be decoded: a batch may reach over several."""
    metadata, first = file.metadata, 0
    for group in range(metadata.num_row_groups):
        first += metadata.row_group(group).num_rows
        if first <= start:
            continue
        try:
            for batch in file.iter_batches(batch_rows, row_groups=[group], columns=list(columns), use_threads=False):
                batch.validate(full=True)
        except Exception:
            return group
    return int(metadata.num_row_groups) - 1


def _refuse_null_list(error: Exception, file: Any, name: str, path: str, start: int) -> None:
    """Raise the sentence about nulls where that is what `error` means, of the batch that begins at row `start`.

    Before pyarrow 26, a null among lists of a fixed size is read as a list of size 0, which the decoder then refuses;
    the index that it names is that of the list's end. The footer's statistics count the nulls, where they are kept.
    """
    place = _EMPTY_LIST.search(str(error))
    if place is None:
        return
    metadata, n_nulls = file.metadata, 0
    leaf = next(k for k in range(metadata.num_columns) if metadata.schema.column(k).path.split(".")[0] == name)
    for group in range(metadata.num_row_groups):
        kept = metadata.row_group(group).column(leaf).statistics
        if kept is not None and kept.has_null_count:
            n_nulls += kept.null_count
    raise InputError(
        f"{path}: row {start + int(place[1]) - 1} of column {name!r} is null, as are {max(1, n_nulls):,} in all "
        f"({metadata.num_rows:,} rows); fill them in or drop the rows; metacal drops none."
    )


def _open(path: str) -> Any:
    import pyarrow.parquet as parquet

    # Not a memory map, which ends the process when the file is shortened; buffered, so that one large row group is not
    # read whole before its first page is decoded.
    return parquet.ParquetFile(path, memory_map=False, pre_buffer=False, buffer_size=_BUFFER_BYTES)
