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
from metacal.rows.arrays import to_numpy
from metacal.rows.stored import StoredTable

#: Elements of a strip. Half a megabyte in float64 fits into the cache of a core.
STRIP_ELEMENTS = 1 << 16
#: Elements of a stored table that are read at once. Each worker holds one block in memory.
READ_ELEMENTS = 1 << 17
#: Elements of a block of `Rows.gather`. The cache holds a few tables of probabilities of this size.
_GATHER_BLOCK_ELEMENTS = 1 << 18
#: Elements of a strip of a table on a device. Long strips need few kernel launches.
DEVICE_STRIP_ELEMENTS = 1 << 30
#: Elements of a strip on a device if a mask selects rows, because each strip is then copied.
DEVICE_COPY_ELEMENTS = 1 << 26
#: Smallest number of rows of a run. A run is longer only if a single strip is longer.
_MIN_RUN_ROWS = 4096

Columns = tuple[Any, ...]
Span = tuple[int, int]


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
    """Table on a device whose slices are arrays on the host, copied when they are read."""

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

    keep : array of bool of shape (n_rows,), default=None
        Mask of the kept rows. None keeps all rows.
    """

    def __init__(self, table: Any, row_mask: Flags | None = None) -> None:
        self.is_on_device = kernels.is_device_tensor(table)
        self.table: Any = table.detach() if self.is_on_device else table
        self.row_mask = row_mask
        self.n_classes = int(table.shape[1])
        n_rows = len(table)
        self._strip_rows = max(1, self._strip_elements() // self.n_classes)
        strip_starts = np.arange(0, n_rows, self._strip_rows)
        #: Number of kept rows before each strip. The last entry is the number of all kept rows.
        self._offsets = np.minimum(np.append(strip_starts, n_rows), n_rows)
        if row_mask is not None:
            kept_per_strip = np.add.reduceat(row_mask.astype(np.intp), strip_starts)
            self._offsets = np.append(0, np.cumsum(kept_per_strip))

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
        """Run a task, which is the name of one of the methods below, on all strips."""
        run_task = getattr(self, task)
        all_strips = (0, self._n_strips)
        return run_task(work, columns, all_strips)

    @property
    def _copies_rows(self) -> bool:
        """Whether rows are copied before they are passed to a function."""
        return self.row_mask is not None or isinstance(self.table, RowSubset)

    def _find_slices(self, span: Span) -> tuple[slice, slice]:
        """Return the slices of the table and of the kept rows that a span of strips covers."""
        first_strip, end_strip = span
        table_start = first_strip * self._strip_rows
        table_stop = min(end_strip * self._strip_rows, len(self.table))
        kept_start = int(self._offsets[first_strip])
        kept_stop = int(self._offsets[end_strip])
        return slice(table_start, table_stop), slice(kept_start, kept_stop)

    def _extract_piece(self, columns: Columns, span: Span) -> tuple[Strips, Columns]:
        """Extract the rows and columns of a span, to send them to another process.

        A span starts with a strip, so its strips are those of the whole table. A stored table is
        sent as its description.
        """
        table_slice, kept_slice = self._find_slices(span)
        if isinstance(self.table, StoredTable):
            piece_table: Any = self.table.lazy_slice(table_slice.start, table_slice.stop)
        else:
            piece_table = self.table[table_slice]
        piece_keep = None if self.row_mask is None else self.row_mask[table_slice]
        return Strips(piece_table, piece_keep), _slice_columns(columns, kept_slice)

    def _iterate_strips(self, span: Span) -> Iterator[tuple[NDArray[Any], slice]]:
        """Yield the kept rows of each strip, and their slice of a column; skip empty strips."""
        for strip in range(*span):
            table_slice, kept_slice = self._find_slices((strip, strip + 1))
            n_kept = kept_slice.stop - kept_slice.start
            if n_kept == 0:
                continue
            block = self.table[table_slice]
            if self.row_mask is not None and n_kept < len(block):
                indices = np.flatnonzero(self.row_mask[table_slice])
                if self.is_on_device:
                    block = kernels.device_kernels().copy_rows(block, indices)
                else:
                    block = _copy_rows(block, indices)
            yield block, kept_slice

    def _apply_to_strips(
        self, fn: Callable[..., Any], columns: Columns, span: Span
    ) -> list[NDArray[Any]]:
        """Apply fn to each strip and its part of the columns, and return the list of results."""
        results = []
        for block, kept_slice in self._iterate_strips(span):
            result = fn(block, *_slice_columns(columns, kept_slice))
            results.append(_copy_if_buffered(result))
        return results

    def _compute_strip_sums(
        self, fn: Callable[..., Any], columns: Columns, span: Span
    ) -> Iterable[NDArray[Any]]:
        """Compute the sums of each strip, in one call if fn takes whole blocks."""
        if not kernels.can_pass_whole_blocks(fn, self.table):
            return self._apply_to_strips(fn, columns, span)
        block, row_indices, block_columns = self._select_block(columns, span)
        first_strip, end_strip = span
        strip_ends = self._offsets[first_strip : end_strip + 1] - self._offsets[first_strip]
        return fn(block, *block_columns, rows=row_indices, ends=strip_ends)

    def _compute_column_pieces(
        self, fn: Callable[..., Any], columns: Columns, span: Span
    ) -> list[NDArray[Any]]:
        """Compute the column of fn, in one piece per strip or in one piece for all strips."""
        if not kernels.can_pass_whole_blocks(fn, self.table):
            return self._apply_to_strips(fn, columns, span)
        block, row_indices, block_columns = self._select_block(columns, span)
        return [fn(block, *block_columns, rows=row_indices)]

    def _accumulate_blocks(self, work: tuple[Any, Any, bool], columns: Columns, span: Span) -> Any:
        """Apply fn to consecutive blocks, and accumulate the results.

        Parameters
        ----------
        work : tuple of (callable, callable, bool)
            The function fn, a function that creates an accumulator, and whether fn gets whole
            blocks as arrays.

        columns : tuple of arrays
            Columns of the kept rows.

        span : tuple of two ints
            First strip, and last strip + 1.

        Returns
        -------
        object
            Result of the accumulator.
        """
        fn, make_accumulator, gets_blocks = work
        accumulator = make_accumulator()
        block_elements = _GATHER_BLOCK_ELEMENTS if gets_blocks else READ_ELEMENTS
        block_strips = max(1, block_elements // (self._strip_rows * self.n_classes))
        first_strip, end_strip = span
        for block_start in range(first_strip, end_strip, block_strips):
            block_span = (block_start, min(block_start + block_strips, end_strip))
            if gets_blocks:
                block, _, block_columns = self._select_block(columns, block_span)
                accumulator.add(fn(np.asarray(block), *block_columns))
            else:
                for result in self._compute_column_pieces(fn, columns, block_span):
                    accumulator.add(result)
        return accumulator.result()

    def _select_block(self, columns: Columns, span: Span) -> tuple[Any, Any, Columns]:
        """Select the rows of a span as a block without copying them.

        Returns
        -------
        block : array
            Block that contains the rows.

        row_indices : array of int or None
            Indices of the rows in the block. None if all rows of the block are kept.

        block_columns : tuple of arrays
            Columns of the rows.
        """
        table_slice, kept_slice = self._find_slices(span)
        block_columns = _slice_columns(columns, kept_slice)
        if self.row_mask is not None:
            return (
                self.table[table_slice],
                np.flatnonzero(self.row_mask[table_slice]),
                block_columns,
            )
        if isinstance(self.table, RowSubset) and self.table.is_readable_without_copy:
            return self.table.table, self.table.row_indices[table_slice], block_columns
        return self.table[table_slice], None, block_columns

    def _fill_columns(
        self, work: tuple[Callable[..., None], bool], columns: Columns, span: Span
    ) -> None:
        """Call fn to write into the columns, once per strip or once for the whole span.

        `work` consists of the function fn, and whether it takes whole blocks.
        """
        fn, takes_whole_blocks = work
        if takes_whole_blocks:
            block, _, block_columns = self._select_block(columns, span)
            fn(block, *block_columns)
            return
        for block, kept_slice in self._iterate_strips(span):
            fn(block, *_slice_columns(columns, kept_slice))

    def _fill_column_copies(
        self, work: tuple[Callable[..., None], bool, Any], columns: Columns, span: Span
    ) -> Columns:
        """Call fn to write into copies of the columns, and return the copies.

        `work` consists of the function fn, whether it takes whole blocks, and for each column the
        shape and the type of an entry. A column that is None is a table of results, for which a
        buffer is allocated.
        """
        fn, takes_whole_blocks, entry_types = work
        piece, piece_columns = self._extract_piece(columns, span)
        buffers = []
        for column, (entry_shape, dtype) in zip(piece_columns, entry_types, strict=True):
            if column is None:
                buffers.append(np.empty((len(piece), *entry_shape), dtype=dtype))
            else:
                buffers.append(np.array(column))
        piece.run_on_all_strips(tuple(buffers), "_fill_columns", (fn, takes_whole_blocks))
        return tuple(buffers)


def _slice_columns(columns: Columns, kept_slice: slice) -> Columns:
    """Slice each column; a column that is None stays None."""
    return tuple(None if column is None else column[kept_slice] for column in columns)
