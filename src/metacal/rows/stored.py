"""Tables that are read from a file slice by slice.

`Rows`, `validate` and the estimators accept a `StoredTable` in place of an array. They only slice it
by rows, so they need memory for one block, whatever the size of the table.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal.formulas import Codes

#: Elements per block of a pass over a whole table.
BLOCK_ELEMENTS = 1 << 18
#: Size in bytes up to which a sample of rows is always held in memory.
SAMPLE_BYTES = 1 << 23
#: Fraction of a table up to which a sample of its rows is held in memory.
SAMPLE_SHARE = 1 / 32


class StoredTable:
    """Base class of two-dimensional tables that are read by slices of rows.

    `table[a:b]`, `table[::step]` and `table[mask]` are arrays. `np.asarray(table)` reads the whole
    table. There is no arithmetic.

    Parameters
    ----------
    shape : tuple of two ints
        Numbers of rows and columns.

    dtype : dtype
        Type of the arrays.
    """

    ndim = 2

    def __init__(self, shape: tuple[int, int], dtype: Any) -> None:
        self.shape = (int(shape[0]), int(shape[1]))
        self.dtype = np.dtype(dtype)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows `start` to `stop` as an array that later reads do not overwrite."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Size of the whole table as an array, in bytes."""
        return self.shape[0] * self.shape[1] * int(self.dtype.itemsize)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype.name})"

    def __getitem__(self, index: Any) -> NDArray[Any]:
        has_column_index = isinstance(index, tuple)
        if has_column_index:
            return self._read_cells(*index)
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                return self.read(start, max(start, stop))
            return self._read_rows(np.arange(start, stop, step))
        row_indices = np.asarray(index)
        if row_indices.dtype == bool:
            row_indices = np.flatnonzero(row_indices)
        nonnegative_indices = np.where(row_indices < 0, row_indices + len(self), row_indices)
        row_values = self._read_rows(nonnegative_indices.ravel())
        return row_values.reshape(*row_indices.shape, self.shape[1])

    def _read_cells(self, rows: Any, columns: Any = np.s_[:]) -> NDArray[Any]:
        """Return the values at rows and columns, indexed as in NumPy."""
        values = self[rows]
        if isinstance(rows, slice) or isinstance(columns, slice):
            return values[..., columns]
        if values.ndim == 1:
            return values[columns]
        # NumPy would pair the row indices with the column indices one by one.
        return values[np.arange(len(values)), columns]

    def select_columns(self, columns: Sequence[int]) -> StoredTable:
        """Return a table with some of the columns, in the given order."""
        select_columns = partial(np.take, indices=list(columns), axis=1)
        return ConvertedTable(self, select_columns, self.dtype, len(columns))

    def _read_rows(self, rows: Codes) -> NDArray[Any]:
        """Return rows by their indices, reading the table once from front to back."""
        requested_rows = np.empty((len(rows), self.shape[1]), dtype=self.dtype)
        if not len(rows):
            return requested_rows
        if rows.min() < 0 or rows.max() >= len(self):
            raise IndexError(
                f"Row {int(rows.max())} does not exist, because the table has {len(self)} rows"
            )
        sorting_order = np.argsort(rows, kind="stable")
        sorted_rows = rows[sorting_order]
        rows_per_block = max(1, BLOCK_ELEMENTS // max(1, self.shape[1]))
        for block_start in range(int(sorted_rows[0]), int(sorted_rows[-1]) + 1, rows_per_block):
            block_stop = block_start + rows_per_block
            # The requested rows of this block are sorted_rows[first_index], ..., [stop_index - 1].
            first_index, stop_index = np.searchsorted(sorted_rows, (block_start, block_stop))
            if first_index == stop_index:
                continue
            # Rows after the last requested one are not read, because a stream cannot go back.
            read_start = int(sorted_rows[first_index])
            read_stop = int(sorted_rows[stop_index - 1]) + 1
            block = self.read(read_start, read_stop)
            requests_in_block = slice(first_index, stop_index)
            rows_in_block = sorted_rows[requests_in_block] - read_start
            requested_rows[sorting_order[requests_in_block]] = block[rows_in_block]
        return requested_rows

    def fits_in_memory(self, n_rows: int) -> bool:
        """Check whether a sample of this many rows is small enough to be held in memory."""
        n_bytes = n_rows * self.shape[1] * self.dtype.itemsize
        return bool(n_bytes <= max(SAMPLE_BYTES, SAMPLE_SHARE * self.nbytes))

    def lazy_slice(self, start: int, stop: int) -> StoredTable:
        """Return rows `start` to `stop` as a table, without reading them yet."""
        return LazySlice(self, start, stop)

    def read_unconverted(self, start: int, stop: int) -> NDArray[Any] | StoredTable:
        """Read rows `start` to `stop` from the file without converting them yet."""
        return self.read(start, stop)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError(
                "A stored table must be copied to become an array, but copy=False was passed"
            )
        values = np.empty(self.shape, dtype=self.dtype if dtype is None else dtype)
        for start, block in iterate_blocks(self, BLOCK_ELEMENTS):
            values[start : start + len(block)] = block
        return values


def iterate_blocks(table: Any, block_elements: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield consecutive blocks of rows, each with the index of its first row.

    Parameters
    ----------
    table : array or StoredTable
        The table.

    block_elements : int
        Number of elements per block.

    Yields
    ------
    start, block : int, array
    """
    block_rows = max(1, block_elements // max(1, table.shape[1]))
    for start in range(0, len(table), block_rows):
        yield start, table[start : start + block_rows]


class ConvertedTable(StoredTable):
    """Table whose blocks are converted when they are read.

    Parameters
    ----------
    source : array or StoredTable
        The table.

    convert : callable
        Function from rows to rows.

    dtype : dtype
        Type of the converted rows.

    n_columns : int, default=None
        Number of columns after the conversion. None stands for that of the source.

    Examples
    --------
    >>> table = ConvertedTable(np.array([[1, 2], [3, 4]]), np.sqrt, np.float64)
    >>> table[1:]
    array([[1.73205081, 2.        ]])
    """

    def __init__(
        self,
        source: Any,
        convert: Callable[[NDArray[Any]], NDArray[Any]],
        dtype: Any,
        n_columns: int | None = None,
    ) -> None:
        if n_columns is None:
            n_columns = source.shape[1]
        super().__init__((len(source), n_columns), dtype)
        self.source = source
        self.convert = convert

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows `start` to `stop`, converted."""
        return self.convert(np.asarray(self.source[start:stop]))

    def read_unconverted(self, start: int, stop: int) -> StoredTable:
        """Read rows `start` to `stop` from the file without converting them yet."""
        if isinstance(self.source, StoredTable):
            source_rows: Any = self.source.read_unconverted(start, stop)
        else:
            source_rows = self.source[start:stop]
        return ConvertedTable(source_rows, self.convert, self.dtype, self.shape[1])


class SelectedRows(StoredTable):
    """Some rows of another table, in ascending order.

    Parameters
    ----------
    source : StoredTable
        The table.

    indices : array of int
        Rows of the table, in ascending order.

    Examples
    --------
    >>> table = SelectedRows(ConvertedTable(np.eye(5), np.negative, float), np.array([1, 4]))
    >>> table[:].argmin(axis=1)
    array([1, 4])
    """

    def __init__(self, source: StoredTable, indices: NDArray[np.intp]) -> None:
        super().__init__((len(indices), source.shape[1]), source.dtype)
        self.source = source
        self.indices = indices

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the selected rows `start` to `stop`."""
        return self.source[self.indices[start:stop]]


class LazySlice(StoredTable):
    """Consecutive rows of another table.

    Parameters
    ----------
    source : StoredTable
        The table.

    start, stop : int
        Rows of the table.

    Examples
    --------
    >>> LazySlice(ConvertedTable(np.eye(5), np.negative, float), 2, 4)[1:].argmin().item()
    3
    """

    def __init__(self, source: StoredTable, start: int, stop: int) -> None:
        super().__init__((max(0, stop - start), source.shape[1]), source.dtype)
        self.source = source
        self.start = start

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows `start` to `stop` of this slice."""
        return self.source.read(self.start + start, self.start + stop)


class _RowsOfTable(NamedTuple):
    """Range of rows in one of several tables.

    Attributes
    ----------
    table_index : int
        Index of the table.

    first_row, stop_row : int
        First row of the range in this table, and the row after its last one.
    """

    table_index: int
    first_row: int
    stop_row: int


class JoinedTable(StoredTable):
    """Vertical concatenation of tables with the same columns.

    The rows are numbered consecutively, so strips, and with them every bit of a result, are those of
    one table.

    Parameters
    ----------
    tables : sequence of arrays or StoredTable
        The tables.

    names : sequence of str
        Names of the tables in messages: their files.

    Examples
    --------
    >>> joined = JoinedTable([np.zeros((2, 3)), np.ones((4, 3))], ["a.npy", "b.npy"])
    >>> joined.shape, joined[1:3, 0].tolist(), joined.describe_row(5)
    ((6, 3), [0.0, 1.0], 'row 3 of b.npy')
    """

    def __init__(self, tables: Sequence[Any], names: Sequence[str]) -> None:
        dtype = np.result_type(*(table.dtype for table in tables))
        self._table_starts = [0, *accumulate(len(table) for table in tables)]
        super().__init__((self._table_starts[-1], tables[0].shape[1]), dtype)
        self.tables = tuple(tables)
        self.names = tuple(names)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows `start` to `stop`, from one or several tables."""
        pieces = [
            self.tables[rows.table_index][rows.first_row : rows.stop_row]
            for rows in self._locate_rows(start, stop)
        ]
        if len(pieces) == 1:
            return np.asarray(pieces[0], dtype=self.dtype)
        return np.concatenate(pieces, dtype=self.dtype)

    def lazy_slice(self, start: int, stop: int) -> StoredTable:
        """Return rows `start` to `stop` as a table, without reading them yet."""
        tables = []
        names = []
        for rows in self._locate_rows(start, stop):
            table = self.tables[rows.table_index]
            if isinstance(table, StoredTable):
                tables.append(table.lazy_slice(rows.first_row, rows.stop_row))
            else:
                tables.append(table[rows.first_row : rows.stop_row])
            names.append(self.names[rows.table_index])
        return JoinedTable(tables, names)

    def describe_row(self, row: int) -> str:
        """Return the number of a row in its file, and the name of the file, as text."""
        table_index = bisect_right(self._table_starts, row) - 1
        return f"row {row - self._table_starts[table_index]} of {self.names[table_index]}"

    def _locate_rows(self, start: int, stop: int) -> list[_RowsOfTable]:
        """Return the range of the rows `start` to `stop` within each table."""
        first_table = bisect_right(self._table_starts, start) - 1
        stop_table = bisect_left(self._table_starts, stop)
        row_ranges = []
        for table_index in range(first_table, stop_table):
            table_start = self._table_starts[table_index]
            first_row = max(start - table_start, 0)
            stop_row = min(stop, self._table_starts[table_index + 1]) - table_start
            row_ranges.append(_RowsOfTable(table_index, first_row, stop_row))
        # An empty range is read from the first table, so that the result has its type and columns.
        if not row_ranges:
            return [_RowsOfTable(table_index=0, first_row=0, stop_row=0)]
        return row_ranges
