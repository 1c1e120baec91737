"""Tables cut into strips, and the tasks that run on a span of strips.

A *strip* is a fixed number of consecutive rows that depends only on the number of classes. Kernels
always get the same strips, whatever block the strips come in and wherever they run, so that results
are equal to the bit.

Terms used in this module:

- *selected rows*: the rows where the row mask is true; all rows without a mask.
- *span*: a range of strips, as (first, last + 1).
- *columns*: arrays with one entry per selected row, which a function gets next to the rows.

A `Strips` object is everything that is sent to another process. A task is a method of `Strips`,
called by its name, with the arguments (work, columns, span).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.formulas import Codes, Flags
from metacal.kernels.buffers import thread_buffers
from metacal.rows.arrays import to_numpy
from metacal.rows.stored import StoredTable

#: Elements of a strip. Half a megabyte in float64 fits into the cache of a core.
STRIP_ELEMENTS = 1 << 16
#: Elements of a stored table that are read at once. Each worker holds one block in memory.
READ_ELEMENTS = 1 << 17
#: Elements of a block that is passed as a whole. The cache holds a few tables of this size.
_WHOLE_BLOCK_ELEMENTS = 1 << 18
#: Elements of a strip of a table on a device. Long strips need few kernel launches.
DEVICE_STRIP_ELEMENTS = 1 << 30
#: Elements of a strip on a device if a mask selects rows, because each strip is then copied.
DEVICE_COPY_ELEMENTS = 1 << 26
#: Smallest number of rows of a run. A run is longer only if a single strip is longer.
_MIN_RUN_ROWS = 4096

Columns = tuple[Any, ...]
Span = tuple[int, int]
#: Shape and type of the entries of each column.
EntryTypes = tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]


class Accumulation(NamedTuple):
    """Work of a task that accumulates a function of blocks.

    Attributes
    ----------
    fn : callable
        Function of the rows of a block and of their columns.

    make_accumulator : callable
        Function that creates an accumulator with the methods `add` and `result`.

    takes_whole_blocks : bool
        Whether fn gets whole blocks as arrays instead of strips.
    """

    fn: Callable[..., Any]
    make_accumulator: Callable[[], Any]
    takes_whole_blocks: bool


class ColumnWriting(NamedTuple):
    """Work of a task that writes columns.

    Attributes
    ----------
    fn : callable
        Function of the rows of a block that writes into the columns of these rows.

    takes_whole_blocks : bool
        Whether fn gets whole blocks instead of strips.
    """

    fn: Callable[..., None]
    takes_whole_blocks: bool


def get_rows_per_run(n_classes: int) -> int:
    """Return the number of rows in a run of whole strips, about 4,096 or more.

    It depends only on the number of classes.
    """
    strip_rows = max(1, STRIP_ELEMENTS // n_classes)
    strips_per_run = max(1, _MIN_RUN_ROWS // strip_rows)
    return strip_rows * strips_per_run


class RowSubset(StoredTable):
    """Table of selected rows of another table, which are copied one strip at a time.

    A few full strips are faster than many strips with one or two rows each.

    Parameters
    ----------
    table : array or StoredTable
        Table that contains the rows.

    row_indices : array of int
        Indices of the selected rows in the table.
    """

    def __init__(self, table: Any, row_indices: Codes) -> None:
        super().__init__((len(row_indices), table.shape[1]), table.dtype)
        self.table = table
        self.row_indices = np.ascontiguousarray(row_indices)
        #: Whether a kernel can read the selected rows directly from the table, without a copy.
        self.is_readable_without_copy = (
            kernels.takes_whole_blocks
            and isinstance(table, np.ndarray)
            and kernels.host_kernels.is_readable_without_copy(table)
        )

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the selected rows `start` to `stop`."""
        return np.asarray(self.table[self.row_indices[start:stop]])


class HostCopies:
    """Table on a device whose slices are copied to the host when they are read."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self.shape = table.shape

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return np.asarray(to_numpy(self.table[rows]))


def _copy_rows(block: NDArray[Any], indices: Codes) -> NDArray[Any]:
    """Copy rows of a block into a buffer that the next strip overwrites.

    Allocating memory for every strip would take longer than the copy.
    """
    buffer = thread_buffers.get_array("strip", (len(indices), block.shape[1]), block.dtype)
    return np.take(block, indices, axis=0, out=buffer, mode="clip")


def _copy_if_buffered(result: Any) -> Any:
    """Copy the result of a strip if it is a view of the buffer that the next strip overwrites."""
    buffer = thread_buffers.memory_by_name.get("strip")
    if buffer is None or not isinstance(result, np.ndarray):
        return result
    if np.may_share_memory(result, buffer):
        return result.copy()
    return result


class Strips:
    """Rows of a table, optionally selected by a mask, divided into strips.

    Parameters
    ----------
    table : array, StoredTable or tensor of shape (n_rows, n_classes)
        Table of logits.

    row_mask : array of bool of shape (n_rows,), default=None
        Mask of the selected rows. None selects all rows.
    """

    def __init__(self, table: Any, row_mask: Flags | None = None) -> None:
        self.is_on_device = kernels.is_device_tensor(table)
        self.table: Any = table.detach() if self.is_on_device else table
        self.row_mask = row_mask
        self.n_classes = int(table.shape[1])
        n_rows = len(table)
        self._strip_rows = max(1, self._strip_elements() // self.n_classes)
        strip_starts = np.arange(0, n_rows, self._strip_rows)
        #: Number of selected rows before each strip. The last entry is the number of all selected rows.
        self._offsets = np.minimum(np.append(strip_starts, n_rows), n_rows)
        if row_mask is not None:
            n_selected_per_strip = np.add.reduceat(row_mask.astype(np.intp), strip_starts)
            self._offsets = np.append(0, np.cumsum(n_selected_per_strip))

    def _strip_elements(self) -> int:
        """Return the number of elements of a strip."""
        if not self.is_on_device:
            return STRIP_ELEMENTS
        if self.row_mask is None:
            return DEVICE_STRIP_ELEMENTS
        return DEVICE_COPY_ELEMENTS

    def __len__(self) -> int:
        return int(self._offsets[-1])

    @property
    def _n_strips(self) -> int:
        """Number of strips."""
        return len(self._offsets) - 1

    def run_on_all_strips(self, columns: Columns, task: str, work: Any) -> Any:
        """Run the method with the name `task` on all strips."""
        run_task = getattr(self, task)
        all_strips = (0, self._n_strips)
        return run_task(work, columns, all_strips)

    @property
    def _copies_rows(self) -> bool:
        """Whether rows are copied before they are passed to a function."""
        return self.row_mask is not None or isinstance(self.table, RowSubset)

    def _find_slices(self, span: Span) -> tuple[slice, slice]:
        """Return the slices of the table and of the selected rows that a span of strips covers."""
        first_strip, stop_strip = span
        table_start = first_strip * self._strip_rows
        table_stop = min(stop_strip * self._strip_rows, len(self.table))
        selected_start = int(self._offsets[first_strip])
        selected_stop = int(self._offsets[stop_strip])
        return slice(table_start, table_stop), slice(selected_start, selected_stop)

    def _extract_piece(self, columns: Columns, span: Span) -> tuple[Strips, Columns]:
        """Extract the rows and columns of a span, to send them to another process.

        A span starts with a strip, so its strips are those of the whole table. A stored table is
        sent as its description.
        """
        table_slice, selected_slice = self._find_slices(span)
        if isinstance(self.table, StoredTable):
            piece_table: Any = self.table.lazy_slice(table_slice.start, table_slice.stop)
        else:
            piece_table = self.table[table_slice]
        piece_mask = None if self.row_mask is None else self.row_mask[table_slice]
        return Strips(piece_table, piece_mask), _slice_columns(columns, selected_slice)

    def _iterate_strips(self, span: Span) -> Iterator[tuple[NDArray[Any], slice]]:
        """Yield the selected rows of each strip, and their slice of a column; skip empty strips."""
        for strip in range(*span):
            table_slice, selected_slice = self._find_slices((strip, strip + 1))
            n_selected = selected_slice.stop - selected_slice.start
            if n_selected == 0:
                continue
            block = self.table[table_slice]
            if self.row_mask is not None and n_selected < len(block):
                indices = np.flatnonzero(self.row_mask[table_slice])
                if self.is_on_device:
                    block = kernels.device_kernels().copy_rows(block, indices)
                else:
                    block = _copy_rows(block, indices)
            yield block, selected_slice

    def _apply_to_strips(
        self, fn: Callable[..., Any], columns: Columns, span: Span
    ) -> list[NDArray[Any]]:
        """Apply fn to each strip and its part of the columns, and return the list of results."""
        results = []
        for block, selected_slice in self._iterate_strips(span):
            result = fn(block, *_slice_columns(columns, selected_slice))
            results.append(_copy_if_buffered(result))
        return results

    def _compute_strip_sums(
        self, fn: Callable[..., Any], columns: Columns, span: Span
    ) -> Iterable[NDArray[Any]]:
        """Compute the sums of each strip, in one call if fn takes whole blocks."""
        if not kernels.can_pass_whole_blocks(fn, self.table):
            return self._apply_to_strips(fn, columns, span)
        block, row_indices, block_columns = self._select_block(columns, span)
        first_strip, stop_strip = span
        strip_ends = self._offsets[first_strip : stop_strip + 1] - self._offsets[first_strip]
        return fn(block, *block_columns, rows=row_indices, ends=strip_ends)

    def _compute_column_pieces(
        self, fn: Callable[..., Any], columns: Columns, span: Span
    ) -> list[NDArray[Any]]:
        """Compute the column of fn, in one piece per strip or in one piece for all strips."""
        if not kernels.can_pass_whole_blocks(fn, self.table):
            return self._apply_to_strips(fn, columns, span)
        block, row_indices, block_columns = self._select_block(columns, span)
        return [fn(block, *block_columns, rows=row_indices)]

    def _accumulate_blocks(self, work: Accumulation, columns: Columns, span: Span) -> Any:
        """Apply a function to consecutive blocks, and return the accumulated result."""
        accumulator = work.make_accumulator()
        block_elements = READ_ELEMENTS
        if work.takes_whole_blocks:
            block_elements = _WHOLE_BLOCK_ELEMENTS
        block_strips = max(1, block_elements // (self._strip_rows * self.n_classes))
        first_strip, stop_strip = span
        for block_start in range(first_strip, stop_strip, block_strips):
            block_span = (block_start, min(block_start + block_strips, stop_strip))
            if work.takes_whole_blocks:
                block, _, block_columns = self._select_block(columns, block_span)
                accumulator.add(work.fn(np.asarray(block), *block_columns))
            else:
                for result in self._compute_column_pieces(work.fn, columns, block_span):
                    accumulator.add(result)
        return accumulator.result()

    def _select_block(self, columns: Columns, span: Span) -> tuple[Any, Any, Columns]:
        """Select the rows of a span as a block without copying them.

        Returns
        -------
        block : array
            Block that contains the rows.

        row_indices : array of int or None
            Indices of the rows in the block. None if all rows of the block are selected.

        block_columns : tuple of arrays
            Columns of the rows.
        """
        table_slice, selected_slice = self._find_slices(span)
        block_columns = _slice_columns(columns, selected_slice)
        if self.row_mask is not None:
            return (
                self.table[table_slice],
                np.flatnonzero(self.row_mask[table_slice]),
                block_columns,
            )
        if isinstance(self.table, RowSubset) and self.table.is_readable_without_copy:
            return self.table.table, self.table.row_indices[table_slice], block_columns
        return self.table[table_slice], None, block_columns

    def _fill_columns(self, work: ColumnWriting, columns: Columns, span: Span) -> None:
        """Write into the columns, with one call per strip or one call for the span."""
        if work.takes_whole_blocks:
            block, _, block_columns = self._select_block(columns, span)
            work.fn(block, *block_columns)
            return
        for block, selected_slice in self._iterate_strips(span):
            work.fn(block, *_slice_columns(columns, selected_slice))

    def _fill_column_copies(
        self, work: tuple[ColumnWriting, EntryTypes], columns: Columns, span: Span
    ) -> Columns:
        """Write into copies of the columns, and return the copies.

        A column that is None is a table of results, for which a buffer is allocated.
        """
        column_writing, entry_types = work
        piece, piece_columns = self._extract_piece(columns, span)
        buffers = []
        for column, (entry_shape, dtype) in zip(piece_columns, entry_types, strict=True):
            if column is None:
                buffers.append(np.empty((len(piece), *entry_shape), dtype=dtype))
            else:
                buffers.append(np.array(column))
        piece.run_on_all_strips(tuple(buffers), "_fill_columns", column_writing)
        return tuple(buffers)


def _slice_columns(columns: Columns, selected_slice: slice) -> Columns:
    """Slice each column; a column that is None stays None."""
    return tuple(None if column is None else column[selected_slice] for column in columns)
