"""Tables cut into strips, and the tasks that run on a span of strips.

A *strip* is a fixed number of consecutive rows that depends only on the number of classes. Kernels
always get the same strips, whatever block the strips come in and wherever they run, so that results
are equal to the bit.

Terms used in this module:

- *kept rows*: the rows where the mask `keep` is true; all rows without a mask.
- *span*: a range of strips, as (first, last + 1).
- *columns*: arrays with one entry per kept row, which a function gets next to the rows.

A `Strips` object is everything that is sent to another process. A task is a method of `Strips`,
called by its name, with the arguments (work, columns, span).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.formulas import Codes, Flags
from metacal.kernels.buffers import thread_buffers
from metacal.rows.arrays import on_host
from metacal.rows.stored import StoredTable

#: Elements of a strip. Half a megabyte in float64 fits into the cache of a core.
STRIP_ELEMENTS = 1 << 16
#: Elements of a stored table that are read at once. Each worker holds one block in memory.
READ_ELEMENTS = 1 << 17
#: Elements of a block of `Rows.gather`. A few tables of probabilities of its size fit into the
#: cache.
_GATHER_BLOCK_ELEMENTS = 1 << 18
#: Elements of a strip of a table on a device, so that there are few kernel launches. If only some
#: rows are kept, a strip of them is copied, so it is smaller.
DEVICE_STRIP_ELEMENTS = 1 << 30
DEVICE_COPY_ELEMENTS = 1 << 26
#: Smallest number of rows of a run, unless one strip is longer.
_MIN_RUN_ROWS = 4096

Columns = tuple[Any, ...]
Span = tuple[int, int]


def get_run_length(n_classes: int) -> int:
    """Return the number of rows of a run: whole strips with about 4,096 rows or more.

    It depends only on the number of classes.
    """
    strip_rows = max(1, STRIP_ELEMENTS // n_classes)
    return strip_rows * max(1, _MIN_RUN_ROWS // strip_rows)


class PickedRows(StoredTable):
    """Selected rows of a table, copied one strip at a time.

    A few full strips are faster than many strips with one or two rows each.

    Parameters
    ----------
    table : array or StoredTable
        The table.

    chosen : array of int
        Indices of the rows.
    """

    def __init__(self, table: Any, chosen: Codes) -> None:
        super().__init__((len(chosen), table.shape[1]), table.dtype)
        self.table = table
        self.chosen = np.ascontiguousarray(chosen)
        #: Whether a kernel can read the rows from the table without a copy.
        self.is_readable_without_copy = (
            kernels.takes_whole_blocks
            and isinstance(table, np.ndarray)
            and kernels.active.is_readable_without_copy(table)
        )

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the selected rows `start` to `stop`."""
        return np.asarray(self.table[self.chosen[start:stop]])


class HostStrips:
    """Table on a device whose slices are copied to the host, one small strip at a time."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self.shape = table.shape

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return np.asarray(on_host(self.table[rows]))


def _copy_rows(block: NDArray[Any], indices: Codes) -> NDArray[Any]:
    """Copy rows into a buffer that the next strip overwrites.

    Allocating memory for every strip would take longer than the copy.
    """
    buffer = thread_buffers.array("strip", (len(indices), block.shape[1]), block.dtype)
    return np.take(block, indices, axis=0, out=buffer, mode="clip")


def _copy_if_buffered(result: Any) -> Any:
    """Copy the result of a strip if it is a view of the buffer that the next strip overwrites."""
    buffer = thread_buffers.kept.get("strip")
    if buffer is None or not isinstance(result, np.ndarray):
        return result
    return result.copy() if np.may_share_memory(result, buffer) else result


class Strips:
    """Table, or its rows where `keep` is true, divided into strips.

    Parameters
    ----------
    table : array, StoredTable or tensor of shape (n_rows, n_classes)
        The table.

    keep : array of bool of shape (n_rows,), default=None
        Mask of the kept rows. None keeps all rows.
    """

    def __init__(self, table: Any, keep: Flags | None = None) -> None:
        self.on_device = kernels.on_device(table)
        self.table: Any = table.detach() if self.on_device else table
        self.keep = keep
        self.n_classes = int(table.shape[1])
        n_rows = len(table)
        self._strip_rows = max(1, self._strip_elements() // self.n_classes)
        strip_starts = np.arange(0, n_rows, self._strip_rows)
        #: Number of kept rows before each strip, and in total.
        self._offsets = np.minimum(np.append(strip_starts, n_rows), n_rows)
        if keep is not None:
            kept_per_strip = np.add.reduceat(keep.astype(np.intp), strip_starts)
            self._offsets = np.append(0, np.cumsum(kept_per_strip))

    def _strip_elements(self) -> int:
        """Return the number of elements of a strip."""
        if not self.on_device:
            return STRIP_ELEMENTS
        return DEVICE_STRIP_ELEMENTS if self.keep is None else DEVICE_COPY_ELEMENTS

    def __len__(self) -> int:
        return int(self._offsets[-1])

    @property
    def _n_strips(self) -> int:
        """Number of strips."""
        return len(self._offsets) - 1

    def run(self, columns: Columns, task: str, work: Any) -> Any:
        """Run a task, one of the methods below, on all strips."""
        return getattr(self, task)(work, columns, (0, self._n_strips))

    @property
    def _copies_rows(self) -> bool:
        """Whether rows are copied before a function gets them."""
        return self.keep is not None or isinstance(self.table, PickedRows)

    def _slices(self, span: Span) -> tuple[slice, slice]:
        """Return the rows of a span, as a slice of the table and as a slice of the kept rows."""
        first, last = span
        start = first * self._strip_rows
        stop = min(last * self._strip_rows, len(self.table))
        return slice(start, stop), slice(int(self._offsets[first]), int(self._offsets[last]))

    def _piece(self, columns: Columns, span: Span) -> tuple[Strips, Columns]:
        """Return the rows and columns of a span on their own, to send them to another process.

        A span starts with a strip, so its strips are those of the whole table. A stored table is
        sent as its description.
        """
        table_slice, kept_slice = self._slices(span)
        if isinstance(self.table, StoredTable):
            piece_table: Any = self.table.part(table_slice.start, table_slice.stop)
        else:
            piece_table = self.table[table_slice]
        piece_keep = None if self.keep is None else self.keep[table_slice]
        return Strips(piece_table, piece_keep), _slice_columns(columns, kept_slice)

    def _strips(self, span: Span) -> Iterator[tuple[NDArray[Any], slice]]:
        """Yield the kept rows of each strip that has any, and their slice of the kept rows."""
        for strip in range(*span):
            table_slice, kept_slice = self._slices((strip, strip + 1))
            n_kept = kept_slice.stop - kept_slice.start
            if n_kept == 0:
                continue
            block = self.table[table_slice]
            if self.keep is not None and n_kept < len(block):
                indices = np.flatnonzero(self.keep[table_slice])
                if self.on_device:
                    block = kernels.device_kernels().copy_rows(block, indices)
                else:
                    block = _copy_rows(block, indices)
            yield block, kept_slice

    def _strip_results(
        self, fn: Callable[..., Any], columns: Columns, span: Span
    ) -> list[NDArray[Any]]:
        """Return fn(strip, *columns) of each strip."""
        results = []
        for block, kept_slice in self._strips(span):
            result = fn(block, *_slice_columns(columns, kept_slice))
            results.append(_copy_if_buffered(result))
        return results

    def _strip_sums(
        self, fn: Callable[..., Any], columns: Columns, span: Span
    ) -> Iterable[NDArray[Any]]:
        """Return fn of each strip, from one call if fn computes the sums of many strips."""
        if not kernels.can_pass_whole_blocks(fn, self.table):
            return self._strip_results(fn, columns, span)
        block, indices, block_columns = self._block(columns, span)
        first, last = span
        strip_ends = self._offsets[first : last + 1] - self._offsets[first]
        return fn(block, *block_columns, rows=indices, ends=strip_ends)

    def _columns(self, fn: Callable[..., Any], columns: Columns, span: Span) -> list[NDArray[Any]]:
        """Return fn of each strip, or of all strips at once if fn takes whole blocks."""
        if not kernels.can_pass_whole_blocks(fn, self.table):
            return self._strip_results(fn, columns, span)
        block, indices, block_columns = self._block(columns, span)
        return [fn(block, *block_columns, rows=indices)]

    def _folded(self, work: tuple[Any, Any, bool], columns: Columns, span: Span) -> Any:
        """Accumulate fn of consecutive blocks, and return the result of the accumulator.

        Parameters
        ----------
        work : tuple of (callable, callable, bool)
            The function, the function that creates an accumulator, and whether the function gets
            whole blocks as arrays.

        columns : tuple of arrays
            Columns of the kept rows.

        span : tuple of two ints
            Strips.

        Returns
        -------
        object
        """
        fn, make_accumulator, gets_blocks = work
        accumulator = make_accumulator()
        block_elements = _GATHER_BLOCK_ELEMENTS if gets_blocks else READ_ELEMENTS
        block_strips = max(1, block_elements // (self._strip_rows * self.n_classes))
        for start in range(*span, block_strips):
            block_span = (start, min(start + block_strips, span[1]))
            if gets_blocks:
                block, _, block_columns = self._block(columns, block_span)
                accumulator.add(fn(np.asarray(block), *block_columns))
            else:
                for result in self._columns(fn, columns, block_span):
                    accumulator.add(result)
        return accumulator.result()

    def _block(self, columns: Columns, span: Span) -> tuple[Any, Any, Columns]:
        """Return a block that contains the rows of a span, their indices in it, and their columns.

        The indices are None if all rows of the block are kept.
        """
        table_slice, kept_slice = self._slices(span)
        block_columns = _slice_columns(columns, kept_slice)
        if self.keep is not None:
            return self.table[table_slice], np.flatnonzero(self.keep[table_slice]), block_columns
        if isinstance(self.table, PickedRows) and self.table.is_readable_without_copy:
            return self.table.table, self.table.chosen[table_slice], block_columns
        return self.table[table_slice], None, block_columns

    def _filled(self, work: tuple[Callable[..., None], bool], columns: Columns, span: Span) -> None:
        """Let fn write into the columns, strip by strip or in one call.

        `work` is the function, and whether it takes whole blocks.
        """
        fn, takes_whole_blocks = work
        if takes_whole_blocks:
            block, _, block_columns = self._block(columns, span)
            fn(block, *block_columns)
            return
        for block, kept_slice in self._strips(span):
            fn(block, *_slice_columns(columns, kept_slice))

    def _written(
        self, work: tuple[Callable[..., None], bool, Any], columns: Columns, span: Span
    ) -> Columns:
        """Let fn write into copies of the columns, and return the copies.

        `work` is the function, whether it takes whole blocks, and for each column the shape of an
        entry and the type. A column that is None is a table, for which a buffer is allocated.
        """
        fn, takes_whole_blocks, entry_types = work
        piece, piece_columns = self._piece(columns, span)
        buffers = []
        for column, (entry_shape, dtype) in zip(piece_columns, entry_types, strict=True):
            if column is None:
                buffers.append(np.empty((len(piece), *entry_shape), dtype=dtype))
            else:
                buffers.append(np.array(column))
        piece.run(tuple(buffers), "_filled", (fn, takes_whole_blocks))
        return tuple(buffers)


def _slice_columns(columns: Columns, kept_slice: slice) -> Columns:
    """Return a slice of each column; None stays None."""
    return tuple(None if column is None else column[kept_slice] for column in columns)
