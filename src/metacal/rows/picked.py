"""Some rows of a table, and strips of them: gathered, and kept where the next strip would write over them."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.rows.arrays import on_host
from metacal.rows.stored import StoredTable

#: Bytes up to which the kept rows of a strip are gathered in memory that is there already.
_LARGEST_GATHERED = 1 << 21


class PickedRows(StoredTable):
    """Some rows of a table, gathered a strip at a time: few full strips instead of many with a row or two."""

    def __init__(self, table: Any, chosen: NDArray[np.intp]) -> None:
        super().__init__((len(chosen), table.shape[1]), table.dtype)
        self.table = table
        self.chosen = np.ascontiguousarray(chosen)
        #: Whether a kernel that picks rows itself can do so where they lie.
        self.walkable = kernels.takes_whole_blocks and isinstance(table, np.ndarray) and kernels.active.walkable(table)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """The picked rows from `start` up to `stop`."""
        return np.asarray(self.table[self.chosen[start:stop]])


class HostStrips:
    """A table on a device whose slices come as arrays, one small strip at a time."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self.shape = table.shape

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return np.asarray(on_host(self.table[rows]))


class _Gathering(threading.local):
    """Where a thread gathers the kept rows of a strip: fresh memory for each strip costs more than the copy."""

    room = np.empty(0, dtype=np.uint8)

    def rows(self, block: NDArray[Any], keep: NDArray[np.bool_]) -> NDArray[Any]:
        """The rows where `keep` is true, until the next ones are gathered."""
        chosen = np.flatnonzero(keep)
        size = len(chosen) * block.shape[1] * block.itemsize
        if size > _LARGEST_GATHERED:
            return block[chosen]
        if self.room.nbytes < size:
            self.room = np.empty(size, dtype=np.uint8)
        found = self.room[:size].view(block.dtype).reshape(len(chosen), block.shape[1])
        return np.take(block, chosen, axis=0, out=found, mode="clip")


strip_room = _Gathering()


def own_result(result: Any) -> Any:
    """The result of a strip, copied where it is a view of rows that the next strip writes over."""
    overwritten = isinstance(result, np.ndarray) and np.may_share_memory(result, strip_room.room)
    return result.copy() if overwritten else result
