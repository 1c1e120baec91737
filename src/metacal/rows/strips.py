"""A table cut into strips, and what is done with a span of them: all that travels to whoever works
on it.

The kernels always see the same *strips*, a number of rows that depends on the number of classes
alone, whatever block they come in and wherever they are worked on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.formulas import Codes, Flags
from metacal.kernels.numpy import workplace
from metacal.rows.arrays import on_host
from metacal.rows.stored import StoredTable

#: Elements of a strip: half a megabyte in float64, which stays in a core's cache.
STRIP_ELEMENTS = 1 << 16
#: Elements of a stored table that are read at once: whoever walks blocks holds one, and memory may
#: be short.
READ_AT_ONCE = 1 << 17
#: Logits of a block of `gather`: what is made of it, a few tables of probabilities, stays in the
#: cache.
_GATHERED_AT_ONCE = 1 << 18
#: Elements of a strip of a table on a device: few launches. Where only some rows are kept a strip
#: of them is copied.
DEVICE_STRIP_ELEMENTS, DEVICE_COPY_ELEMENTS = 1 << 30, 1 << 26

Columns = tuple[Any, ...]
Span = tuple[int, int]


def run_rows(n_classes: int) -> int:
    """Rows of a run: whole strips, some four thousand rows where a strip has fewer. It depends on
    the classes alone.
    """
    strip = max(1, STRIP_ELEMENTS // n_classes)
    return strip * max(1, 4096 // strip)


class PickedRows(StoredTable):
    """Some rows of a table, gathered a strip at a time: few full strips instead of many with a row
    or two.
    """

    def __init__(self, table: Any, chosen: Codes) -> None:
        super().__init__((len(chosen), table.shape[1]), table.dtype)
        self.table = table
        self.chosen = np.ascontiguousarray(chosen)
        #: Whether a kernel that picks rows itself can do so where they lie.
        self.walkable = (
            kernels.takes_whole_blocks
            and isinstance(table, np.ndarray)
            and kernels.active.walkable(table)
        )

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


def _gathered(block: NDArray[Any], chosen: Codes) -> NDArray[Any]:
    """Some rows, in memory that the next strip writes over: fresh memory for each costs more than
    the copy.
    """
    room = workplace.array("strip", (len(chosen), block.shape[1]), block.dtype)
    return np.take(block, chosen, axis=0, out=room, mode="clip")


def own_result(result: Any) -> Any:
    """The result of a strip, copied where it is a view of rows that the next strip writes over."""
    room = workplace.kept.get("strip")
    overwritten = (
        room is not None and isinstance(result, np.ndarray) and np.may_share_memory(result, room)
    )
    return result.copy() if overwritten else result


class Strips:
    """A table, or those of its rows where `keep` is true, and its strips."""

    def __init__(self, table: Any, keep: Flags | None = None) -> None:
        self.on_device = kernels.on_device(table)
        self.table: Any = table.detach() if self.on_device else table
        self.keep = keep
        self.n_classes = int(table.shape[1])
        elements = STRIP_ELEMENTS
        if self.on_device:
            elements = DEVICE_STRIP_ELEMENTS if keep is None else DEVICE_COPY_ELEMENTS
        self._strip = max(1, elements // self.n_classes)
        starts = np.arange(0, len(table), self._strip)
        #: Where each strip's kept rows begin among all kept rows.
        self._offsets = np.minimum(np.append(starts, len(table)), len(table))
        if keep is not None:
            self._offsets = np.append(0, np.cumsum(np.add.reduceat(keep.astype(np.intp), starts)))

    def __len__(self) -> int:
        return int(self._offsets[-1])

    def run(self, columns: Columns, task: str, fn: Any) -> Any:
        """One of the tasks below, on all strips."""
        return getattr(self, task)(fn, columns, (0, len(self._offsets) - 1))

    @property
    def _picked(self) -> bool:
        """Whether rows are gathered before anybody sees them."""
        return self.keep is not None or isinstance(self.table, PickedRows)

    def _slices(self, span: Span) -> tuple[slice, slice]:
        """The rows of some strips in the table, and among all kept rows."""
        rows = slice(span[0] * self._strip, min(span[1] * self._strip, len(self.table)))
        return rows, slice(int(self._offsets[span[0]]), int(self._offsets[span[1]]))

    def _piece(self, columns: Columns, span: Span) -> tuple[Strips, Columns]:
        """The rows of a span of strips and their columns, by themselves: all that travels to
        another process.

        A span begins with a strip, so its strips are the same ones. A stored table goes as its
        description.
        """
        rows, kept = self._slices(span)
        table = (
            self.table.part(rows.start, rows.stop)
            if isinstance(self.table, StoredTable)
            else self.table[rows]
        )
        return Strips(table, None if self.keep is None else self.keep[rows]), _inside(columns, kept)

    def _strips(self, span: Span) -> Iterator[tuple[NDArray[Any], slice]]:
        """The kept rows of each strip with any, and their slice among all kept rows."""
        for strip in range(*span):
            rows, kept = self._slices((strip, strip + 1))
            if kept.start == kept.stop:
                continue
            block = self.table[rows]
            if self.keep is not None and kept.stop - kept.start < len(block):
                chosen = np.flatnonzero(self.keep[rows])
                gather = kernels.device_kernels().chosen_rows if self.on_device else _gathered
                block = gather(block, chosen)
            yield block, kept

    def _strip_results(
        self, fn: Callable[..., Any], columns: Columns, span: Span
    ) -> list[NDArray[Any]]:
        return [
            own_result(fn(block, *_inside(columns, kept))) for block, kept in self._strips(span)
        ]

    def _strip_sums(
        self, fn: Callable[..., Any], columns: Columns, span: Span
    ) -> Iterable[NDArray[Any]]:
        """fn of each strip, or, where fn walks blocks, its sums over each strip from one call."""
        if not kernels.walks_blocks(fn, self.table):
            return self._strip_results(fn, columns, span)
        block, chosen, inside = self._block(columns, span)
        ends = self._offsets[span[0] : span[1] + 1] - self._offsets[span[0]]
        return fn(block, *inside, rows=chosen, ends=ends)

    def _columns(self, fn: Callable[..., Any], columns: Columns, span: Span) -> list[NDArray[Any]]:
        if not kernels.walks_blocks(fn, self.table):
            return self._strip_results(fn, columns, span)
        block, chosen, inside = self._block(columns, span)
        return [fn(block, *inside, rows=chosen)]

    def _folded(self, work: Any, columns: Columns, span: Span) -> Any:
        """What `make()` has gathered of fn of some strips after others, or of blocks of several at
        once.
        """
        fn, make, by_blocks = work
        at_once = _GATHERED_AT_ONCE if by_blocks else READ_AT_ONCE
        gathered, step = make(), max(1, at_once // (self._strip * self.n_classes))
        for start in range(*span, step):
            part = (start, min(start + step, span[1]))
            if by_blocks:
                block, _, inside = self._block(columns, part)
                gathered.add(fn(np.asarray(block), *inside))
            else:
                for found in self._columns(fn, columns, part):
                    gathered.add(found)
        return gathered.result()

    def _block(self, columns: Columns, span: Span) -> tuple[Any, Any, Columns]:
        """All rows of some strips, the positions of those that are kept (None: all), and their part
        of the columns.
        """
        rows, kept = self._slices(span)
        inside = _inside(columns, kept)
        if self.keep is not None:
            return self.table[rows], np.flatnonzero(self.keep[rows]), inside
        if isinstance(self.table, PickedRows) and self.table.walkable:
            return self.table.table, self.table.chosen[rows], inside
        return self.table[rows], None, inside

    def _filled(self, work: tuple[Callable[..., None], bool], columns: Columns, span: Span) -> None:
        fn, whole = work
        if whole:
            block, _, inside = self._block(columns, span)
            fn(block, *inside)
            return
        for block, kept in self._strips(span):
            fn(block, *_inside(columns, kept))

    def _written(
        self, work: tuple[Callable[..., None], bool, Any], columns: Columns, span: Span
    ) -> Columns:
        """The columns as they were filled, tables among them in room of their own."""
        fn, whole, room = work
        piece, own = self._piece(columns, span)
        filled = tuple(
            np.empty((len(piece), *shape), dtype=dtype) if column is None else np.array(column)
            for column, (shape, dtype) in zip(own, room, strict=True)
        )
        piece.run(filled, "_filled", (fn, whole))
        return filled


def _inside(columns: Columns, kept: slice) -> Columns:
    """The part of each column; None stays None."""
    return tuple(None if column is None else column[kept] for column in columns)
