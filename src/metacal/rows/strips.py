"""Tables cut into strips, and the tasks that run on a span of strips.

A *strip* is a fixed number of consecutive rows that depends only on the number of classes. Kernels
always get the same strips, whatever block the strips come in and wherever they run, so that results
are equal to the bit.

Terms used in this module:

- *selected rows*: the rows where the row mask is true; all rows without a mask.
- *span*: a range of strips.
- *columns*: arrays with one entry per selected row, which a function gets next to the rows.

A `Strips` object is everything that is sent to another process. A *task* is a method of `Strips` that
takes the columns and a span, and whose other arguments are bound by `functools.partial`.
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

#: Number of elements of a strip, which takes half a megabyte in float64 and fits into the cache.
STRIP_ELEMENTS = 1 << 16
#: Number of elements of a stored table that each worker reads at once.
READ_ELEMENTS = 1 << 17
#: Number of elements of an undivided block. A few tables of this size fit into the cache.
_WHOLE_BLOCK_ELEMENTS = 1 << 18
#: Elements of a strip of a table on a device. Long strips need few kernel launches.
DEVICE_STRIP_ELEMENTS = 1 << 30
#: Number of elements of a strip on a device if a row mask requires a copy of each strip.
DEVICE_COPY_ELEMENTS = 1 << 26
#: Number of rows of a run, rounded down to whole strips. A run has at least one strip.
_MIN_RUN_ROWS = 4096

Columns = tuple[Any, ...]


class Span(NamedTuple):
    """Range of strips, from `start` up to but excluding `stop`."""

    start: int
    stop: int


class EntryType(NamedTuple):
    """Shape and type of the entry that a column has for each row."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class _SelectedBlock(NamedTuple):
    """Selected rows of a span, which have not been copied.

    Attributes
    ----------
    table : array
        Block that contains the rows.

    row_indices : array of int or None
        Indices of the selected rows in the block. None if all its rows are selected.

    columns : tuple of arrays
        Columns of the selected rows.
    """

    table: Any
    row_indices: Codes | None
    columns: Columns


def get_rows_per_run(n_classes: int) -> int:
    """Return the number of rows in a run of whole strips, about 4,096 or more.

    It depends only on the number of classes.
    """
    rows_per_strip = max(1, STRIP_ELEMENTS // n_classes)
    strips_per_run = max(1, _MIN_RUN_ROWS // rows_per_strip)
    return rows_per_strip * strips_per_run


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
            kernels.uses_c_kernels
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


def copy_rows_to_buffer(block: NDArray[Any], indices: Codes) -> NDArray[Any]:
    """Copy rows of a block into a buffer of this thread, which the next copy overwrites.

    Allocating memory for every copy would take longer than the copy.
    """
    buffer = thread_buffers.get_array("strip", (len(indices), block.shape[1]), block.dtype)
    return np.take(block, indices, axis=0, out=buffer, mode="clip")


def _copy_if_buffered(result: Any) -> Any:
    """Copy the result of a strip if it is a view of the strip buffer."""
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

    Attributes
    ----------
    rows_per_strip : int
        Number of rows of the table in each strip. The last strip may be shorter.
    """

    def __init__(self, table: Any, row_mask: Flags | None = None) -> None:
        self.is_on_device = kernels.is_device_tensor(table)
        self.table: Any = table.detach() if self.is_on_device else table
        self.row_mask = row_mask
        self.n_classes = int(table.shape[1])
        n_rows = len(table)
        self.rows_per_strip = max(1, self._elements_per_strip() // self.n_classes)
        strip_starts = np.arange(0, n_rows, self.rows_per_strip)
        #: Number of selected rows before each strip. The last entry counts all selected rows.
        self._n_selected_before = np.minimum(np.append(strip_starts, n_rows), n_rows)
        if row_mask is not None:
            n_selected_per_strip = np.add.reduceat(row_mask.astype(np.intp), strip_starts)
            self._n_selected_before = np.append(0, np.cumsum(n_selected_per_strip))

    def _elements_per_strip(self) -> int:
        """Return the number of elements of a strip."""
        if not self.is_on_device:
            return STRIP_ELEMENTS
        if self.row_mask is None:
            return DEVICE_STRIP_ELEMENTS
        return DEVICE_COPY_ELEMENTS

    def __len__(self) -> int:
        return int(self._n_selected_before[-1])

    @property
    def n_strips(self) -> int:
        """Number of strips."""
        return len(self._n_selected_before) - 1

    def run_on_all_strips(self, columns: Columns, task: Task) -> Any:
        """Run a task on all strips."""
        all_strips = Span(0, self.n_strips)
        return task(self, columns, all_strips)

    @property
    def _must_copy_rows(self) -> bool:
        """Whether rows are copied before they are passed to a function."""
        return self.row_mask is not None or isinstance(self.table, RowSubset)

    def _find_table_and_column_slices(self, span: Span) -> tuple[slice, slice]:
        """Return the rows of the table, and the entries of a column, that belong to a span."""
        table_start = span.start * self.rows_per_strip
        table_stop = min(span.stop * self.rows_per_strip, len(self.table))
        selected_start = int(self._n_selected_before[span.start])
        selected_stop = int(self._n_selected_before[span.stop])
        return slice(table_start, table_stop), slice(selected_start, selected_stop)

    def _divide_into_spans(self, strips_per_span: int) -> list[Span]:
        """Divide all strips into consecutive spans. The last span may be shorter."""
        spans = []
        for first_strip in range(0, self.n_strips, strips_per_span):
            stop_strip = min(first_strip + strips_per_span, self.n_strips)
            spans.append(Span(first_strip, stop_strip))
        return spans

    def _count_selected_rows(self, span: Span) -> int:
        """Return the number of selected rows in a span of strips."""
        n_before_start = self._n_selected_before[span.start]
        n_before_stop = self._n_selected_before[span.stop]
        return int(n_before_stop - n_before_start)

    def _extract_piece(self, columns: Columns, span: Span) -> tuple[Strips, Columns]:
        """Extract the rows and columns of a span, to send them to another process.

        A span starts with a strip, so its strips are those of the whole table. A stored table is
        sent as its description.
        """
        table_slice, column_slice = self._find_table_and_column_slices(span)
        if isinstance(self.table, StoredTable):
            piece_table: Any = self.table.lazy_slice(table_slice.start, table_slice.stop)
        else:
            piece_table = self.table[table_slice]
        piece_mask = None if self.row_mask is None else self.row_mask[table_slice]
        return Strips(piece_table, piece_mask), _slice_columns(columns, column_slice)

    def _iterate_strips(self, span: Span) -> Iterator[tuple[NDArray[Any], slice]]:
        """Yield the selected rows of each nonempty strip, and their slice of a column.

        Copied rows are in a buffer, which the next strip overwrites.
        """
        for strip in range(span.start, span.stop):
            strip_span = Span(strip, strip + 1)
            n_selected = self._count_selected_rows(strip_span)
            if n_selected == 0:
                continue
            table_slice, column_slice = self._find_table_and_column_slices(strip_span)
            strip_rows = self.table[table_slice]
            if self.row_mask is not None and n_selected < len(strip_rows):
                selected_indices = np.flatnonzero(self.row_mask[table_slice])
                if self.is_on_device:
                    strip_rows = kernels.device_kernels().copy_rows(strip_rows, selected_indices)
                else:
                    strip_rows = copy_rows_to_buffer(strip_rows, selected_indices)
            yield strip_rows, column_slice

    def _apply_to_strips(
        self, columns: Columns, span: Span, *, fn: Callable[..., Any]
    ) -> list[NDArray[Any]]:
        """Apply fn to each strip and its slices of the columns."""
        results = []
        for strip_rows, column_slice in self._iterate_strips(span):
            result = fn(strip_rows, *_slice_columns(columns, column_slice))
            results.append(_copy_if_buffered(result))
        return results

    def _compute_strip_sums(
        self, columns: Columns, span: Span, *, fn: Callable[..., Any]
    ) -> Iterable[NDArray[Any]]:
        """Compute the sums of each strip, in one call if fn takes whole blocks."""
        if not kernels.can_pass_whole_blocks(fn, self.table):
            return self._apply_to_strips(columns, span, fn=fn)
        block = self._select_block(columns, span)
        n_selected_before = self._n_selected_before[span.start : span.stop + 1]
        strip_ends = n_selected_before - n_selected_before[0]
        return fn(block.table, *block.columns, rows=block.row_indices, strip_ends=strip_ends)

    def _compute_column_pieces(
        self, columns: Columns, span: Span, *, fn: Callable[..., Any]
    ) -> list[NDArray[Any]]:
        """Compute the column of fn, in one piece per strip or in one piece for all strips."""
        if not kernels.can_pass_whole_blocks(fn, self.table):
            return self._apply_to_strips(columns, span, fn=fn)
        block = self._select_block(columns, span)
        return [fn(block.table, *block.columns, rows=block.row_indices)]

    def _accumulate_strips(
        self,
        columns: Columns,
        span: Span,
        *,
        fn: Callable[..., Any],
        make_accumulator: Callable[[], Any],
    ) -> Any:
        """Apply fn to strips or blocks of strips, and return the accumulated result.

        Parameters
        ----------
        columns : tuple of arrays
            Columns of the selected rows.

        span : Span
            Strips to process.

        fn : callable
            Function of the rows of a strip and of their columns.

        make_accumulator : callable
            Function that creates an accumulator with the methods `add` and `result`.

        Returns
        -------
        object
        """
        accumulator = make_accumulator()
        for block_span in self._divide_span(span, elements_per_block=READ_ELEMENTS):
            for result in self._compute_column_pieces(columns, block_span, fn=fn):
                accumulator.add(result)
        return accumulator.result()

    def _accumulate_whole_blocks(
        self,
        columns: Columns,
        span: Span,
        *,
        fn: Callable[..., Any],
        make_accumulator: Callable[[], Any],
    ) -> Any:
        """Apply fn to undivided blocks as arrays, and return the accumulated result.

        All rows must be selected. The arguments are those of `_accumulate_strips`.
        """
        accumulator = make_accumulator()
        for block_span in self._divide_span(span, elements_per_block=_WHOLE_BLOCK_ELEMENTS):
            block = self._select_block(columns, block_span)
            accumulator.add(fn(np.asarray(block.table), *block.columns))
        return accumulator.result()

    def _divide_span(self, span: Span, *, elements_per_block: int) -> Iterator[Span]:
        """Divide a span into spans of about this many elements of the table."""
        elements_per_strip = self.rows_per_strip * self.n_classes
        strips_per_block = max(1, elements_per_block // elements_per_strip)
        for first_strip in range(span.start, span.stop, strips_per_block):
            yield Span(first_strip, min(first_strip + strips_per_block, span.stop))

    def _select_block(self, columns: Columns, span: Span) -> _SelectedBlock:
        """Select the rows of a span as a block without copying them.

        The block of a `RowSubset` that a kernel can read is the whole table of the subset.
        """
        table_slice, column_slice = self._find_table_and_column_slices(span)
        row_indices = None
        if self.row_mask is not None:
            block_table = self.table[table_slice]
            row_indices = np.flatnonzero(self.row_mask[table_slice])
        elif isinstance(self.table, RowSubset) and self.table.is_readable_without_copy:
            block_table = self.table.table
            row_indices = self.table.row_indices[table_slice]
        else:
            block_table = self.table[table_slice]
        return _SelectedBlock(block_table, row_indices, _slice_columns(columns, column_slice))

    def _fill_columns(
        self,
        columns: Columns,
        span: Span,
        *,
        fn: Callable[..., None],
        passes_whole_blocks: bool,
    ) -> None:
        """Apply fn, which writes into the columns, to each strip or to the span."""
        if passes_whole_blocks:
            block = self._select_block(columns, span)
            fn(block.table, *block.columns)
            return
        for strip_rows, column_slice in self._iterate_strips(span):
            fn(strip_rows, *_slice_columns(columns, column_slice))

    def _fill_copies_of_columns(
        self,
        columns: Columns,
        span: Span,
        *,
        fill_columns: Task,
        entry_types: tuple[EntryType, ...],
    ) -> Columns:
        """Run a task that writes into copies of columns, and return the copies.

        Parameters
        ----------
        columns : tuple of arrays or None
            Columns of the selected rows. None for a column without values yet, for which an array
            is allocated.

        span : Span
            Strips to process.

        fill_columns : callable
            Task that writes into its columns.

        entry_types : tuple of EntryType
            Shape and type of the entries of each column.

        Returns
        -------
        tuple of arrays
        """
        piece, piece_columns = self._extract_piece(columns, span)
        copies = []
        for column, entry_type in zip(piece_columns, entry_types, strict=True):
            if column is None:
                copies.append(np.empty((len(piece), *entry_type.shape), dtype=entry_type.dtype))
            else:
                copies.append(np.array(column))
        piece.run_on_all_strips(tuple(copies), fill_columns)
        return tuple(copies)


#: Method of `Strips` whose arguments except the columns and the span are bound by `partial`.
Task = Callable[[Strips, Columns, Span], Any]


def _slice_columns(columns: Columns, column_slice: slice) -> Columns:
    """Slice each column, and keep None for a missing column."""
    return tuple(None if column is None else column[column_slice] for column in columns)
