"""JoinedTable: tables that lie in several places, one below the other, read as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.rows.stored import StoredTable


class JoinedTable(StoredTable):
    """Tables with the same columns, one below the other: arrays, or tables that stay where they are stored.

    Rows are numbered through, so that strips, and with them every bit of a result, are those of one table.

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
        self.starts = np.concatenate(([0], np.cumsum([len(table) for table in tables])))
        super().__init__((int(self.starts[-1]), tables[0].shape[1]), dtype)
        self.tables = tuple(tables)
        self.names = tuple(names)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start … stop - 1, from one table or several."""
        pieces = [self.tables[i][first:last] for i, first, last in self._spans(start, stop)]
        if len(pieces) == 1:
            return np.asarray(pieces[0], dtype=self.dtype)
        found = np.empty((max(0, stop - start), self.shape[1]), dtype=self.dtype)
        at = 0
        for piece in pieces:
            found[at : at + len(piece)] = piece
            at += len(piece)
        return found

    def part(self, start: int, stop: int) -> StoredTable:
        """Some rows by themselves: only the tables that they come from travel to another process."""
        tables, names = [], []
        for i, first, last in self._spans(start, stop):
            table = self.tables[i]
            tables.append(table.part(first, last) if isinstance(table, StoredTable) else table[first:last])
            names.append(self.names[i])
        return JoinedTable(tables, names)

    def place(self, row: int) -> str:
        """Where a row is to be found, in words."""
        i = int(np.searchsorted(self.starts, row, side="right")) - 1
        return f"row {row - int(self.starts[i])} of {self.names[i]}"

    def _spans(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Each table that has some of these rows, and its own numbers of the first and behind the last."""
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        spans = []
        for i in range(max(0, first), len(self.tables)):
            begin = int(self.starts[i])
            if begin >= stop:
                break
            low, high = max(start, begin) - begin, min(stop, int(self.starts[i + 1])) - begin
            if low < high:
                spans.append((i, low, high))
        return spans or [(0, 0, 0)]
