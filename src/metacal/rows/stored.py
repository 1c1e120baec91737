"""Tables that stay where they are stored: their rows come as arrays, a block at a time.

`Rows`, `validate` and the estimators take a `StoredTable` wherever they take an array. They only
ever slice it by rows, so memory stays bounded by the block, however large the table is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.formulas import Codes

#: Elements read in one go where a table is gone through from end to end.
BLOCK_ELEMENTS = 1 << 18
#: A sample of a table's rows, which is gone through several times, is held in memory up to this
#: size, or up to this share of the table where that is more: a memory that holds a tenth of the
#: table has room for it.
SAMPLE_BYTES, SAMPLE_SHARE = 1 << 23, 1 / 32


class StoredTable:
    """A 2-D table that is read by slices of rows; a subclass says how, in `read`.

    `table[a:b]` and `table[::step]` are arrays, as is `table[mask]`; `np.asarray(table)` reads all
    of it. There is no arithmetic on it: what needs that needs an array.

    Parameters
    ----------
    shape : tuple of int
        Rows and columns.
    dtype : dtype
        Of the arrays that slices give.
    """

    ndim = 2

    def __init__(self, shape: tuple[int, int], dtype: Any) -> None:
        self.shape = (int(shape[0]), int(shape[1]))
        self.dtype = np.dtype(dtype)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start … stop - 1 as an array that nothing else writes to."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole table, were it an array."""
        return self.shape[0] * self.shape[1] * int(self.dtype.itemsize)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype.name})"

    def __getitem__(self, index: Any) -> NDArray[Any]:
        if isinstance(index, tuple):
            return self._cells(*index)
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return (
                self.read(start, max(start, stop))
                if step == 1
                else self._chosen(np.arange(start, stop, step))
            )
        rows = np.asarray(index)
        if rows.dtype == bool:
            rows = np.flatnonzero(rows)
        chosen = self._chosen(np.where(rows < 0, rows + len(self), rows).ravel())
        return chosen.reshape(*rows.shape, self.shape[1])

    def _cells(self, rows: Any, columns: Any = np.s_[:]) -> NDArray[Any]:
        found = self[rows]
        if isinstance(rows, slice) or isinstance(columns, slice):
            return found[..., columns]
        # An array of rows and one of columns go together, entry by entry.
        return found[columns] if found.ndim == 1 else found[np.arange(len(found)), columns]

    def in_order(self, columns: Sequence[int]) -> StoredTable:
        """The same rows with these columns, in this order."""
        return ConvertedTable(
            self, partial(np.take, indices=list(columns), axis=1), self.dtype, len(columns)
        )

    def _chosen(self, rows: Codes) -> NDArray[Any]:
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise IndexError(f"row {int(rows.max())} of a table with {len(self)} rows")
        found = np.empty((len(rows), self.shape[1]), dtype=self.dtype)
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        step = max(1, BLOCK_ELEMENTS // max(1, self.shape[1]))
        for start in range(int(ordered[0]), int(ordered[-1]) + 1, step) if len(rows) else ():
            first, last = np.searchsorted(ordered, (start, start + step))
            if first < last:
                # No row beyond the last that is needed: whoever asks for the next ones does not
                # make us go back.
                begin = int(ordered[first])
                block = self.read(begin, int(ordered[last - 1]) + 1)
                found[order[first:last]] = block[ordered[first:last] - begin]
        return found

    def may_hold(self, n_rows: int) -> bool:
        """Whether so many of the rows may be held in memory."""
        n_bytes = n_rows * self.shape[1] * self.dtype.itemsize
        return bool(n_bytes <= max(SAMPLE_BYTES, SAMPLE_SHARE * self.nbytes))

    def part(self, start: int, stop: int) -> StoredTable:
        """Rows start … stop - 1 as a table of their own, which pickles as a description and not as
        its numbers.
        """
        return Part(self, start, stop)

    def fetched(self, start: int, stop: int) -> NDArray[Any] | StoredTable:
        """Rows start … stop - 1, read from where they are stored; whoever goes through them
        converts them.
        """
        return self.read(start, stop)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("a stored table is read, and so copied, into an array")
        whole = np.empty(self.shape, dtype=self.dtype if dtype is None else dtype)
        for start, block in blocks_of(self, BLOCK_ELEMENTS):
            whole[start : start + len(block)] = block
        return whole


def blocks_of(table: Any, elements: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """Every row of a table once, in order: the first row's number and the rows of each block of so
    many elements.
    """
    step = max(1, elements // max(1, table.shape[1]))
    for start in range(0, len(table), step):
        yield start, table[start : start + step]


class ConvertedTable(StoredTable):
    """A table with `convert` (rows -> rows) applied to every block as it is read.

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
        super().__init__((len(source), source.shape[1] if n_columns is None else n_columns), dtype)
        self.source = source
        self.convert = convert

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start … stop - 1, converted."""
        return self.convert(np.asarray(self.source[start:stop]))

    def fetched(self, start: int, stop: int) -> StoredTable:
        """Rows start … stop - 1, read and not converted yet."""
        inner = isinstance(self.source, StoredTable)
        rows = self.source.fetched(start, stop) if inner else self.source[start:stop]
        return ConvertedTable(rows, self.convert, self.dtype, self.shape[1])


class Part(StoredTable):
    """Some successive rows of another table.

    Examples
    --------
    >>> Part(ConvertedTable(np.eye(5), np.negative, float), 2, 4)[1:].argmin().item()
    3
    """

    def __init__(self, source: StoredTable, start: int, stop: int) -> None:
        super().__init__((max(0, stop - start), source.shape[1]), source.dtype)
        self.source = source
        self.start = start

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start … stop - 1 of these."""
        return self.source.read(self.start + start, self.start + stop)


class JoinedTable(StoredTable):
    """Tables with the same columns, one below the other: arrays, or tables that stay where they are
    stored.

    Rows are numbered through, so that strips, and with them every bit of a result, are those of one
    table.

    Parameters
    ----------
    tables : sequence of arrays or stored tables
    names : sequence of str
        What each is called in messages: its file.

    Examples
    --------
    >>> joined = JoinedTable([np.zeros((2, 3)), np.ones((4, 3))], ["a.npy", "b.npy"])
    >>> joined.shape, joined[1:3, 0].tolist(), joined.place(5)
    ((6, 3), [0.0, 1.0], 'row 3 of b.npy')
    """

    def __init__(self, tables: Sequence[Any], names: Sequence[str]) -> None:
        dtype = np.result_type(*(table.dtype for table in tables))
        self.starts = [0, *accumulate(len(table) for table in tables)]
        super().__init__((self.starts[-1], tables[0].shape[1]), dtype)
        self.tables = tuple(tables)
        self.names = tuple(names)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start … stop - 1, from one table or several."""
        pieces = [self.tables[i][first:last] for i, first, last in self._spans(start, stop)]
        if len(pieces) == 1:
            return np.asarray(pieces[0], dtype=self.dtype)
        return np.concatenate(pieces, dtype=self.dtype)

    def part(self, start: int, stop: int) -> StoredTable:
        """Some rows by themselves: only the tables that they come from travel to another
        process.
        """
        tables, names = [], []
        for i, first, last in self._spans(start, stop):
            table = self.tables[i]
            tables.append(
                table.part(first, last) if isinstance(table, StoredTable) else table[first:last]
            )
            names.append(self.names[i])
        return JoinedTable(tables, names)

    def place(self, row: int) -> str:
        """Where a row is to be found, in words."""
        i = bisect_right(self.starts, row) - 1
        return f"row {row - self.starts[i]} of {self.names[i]}"

    def _spans(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Each table that has some of these rows, and its own numbers of the first and behind the
        last.
        """
        starts = self.starts
        near = range(bisect_right(starts, start) - 1, bisect_left(starts, stop))
        return [
            (i, max(start - starts[i], 0), min(stop, starts[i + 1]) - starts[i]) for i in near
        ] or [(0, 0, 0)]
