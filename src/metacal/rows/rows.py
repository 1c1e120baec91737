"""Rows: a table of logits read strip by strip.

Nearly all fitting needs sums over rows and 1-D columns, and that is all `Rows` offers: `sum(fn)`, `collect(fn)`, and
`fill(fn, out)` to write a table of the same shape. The kernels always see the same *strips* (a number of rows that
depends on the number of classes alone) and strip sums are added in row order, so results are the same to the last bit
for every block size and on every executor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.rows.picked import HostStrips, PickedRows, own_result, strip_room
from metacal.rows.pieces import in_order, sources_of
from metacal.rows.progress import telling
from metacal.rows.stored import StoredTable
from metacal.rows.validate import logits_table, on_host
from metacal.rows.workers import ExecutorLike, executor_of, is_remote, threads_of

#: Elements of a strip: half a megabyte in float64, which stays in a core's cache.
STRIP_ELEMENTS = 1 << 16
#: Elements of a block, the unit of work handed to an executor.
BLOCK_ELEMENTS = 1 << 20
#: Threads share a table in memory by blocks: several each, so that none waits long for the last one. Where that would
#: make blocks of fewer elements than this, which are not worth waking a thread for, fewer threads get one each.
_BLOCKS_A_THREAD, _WORTH_A_THREAD = 4, 1 << 19
#: Blocks that are under way on other machines, or in other processes, at a time.
_WINDOW = 256
#: So many times more where answers wait for an earlier one that is slow.
_HELD = 4
#: A large table goes to other processes in about so many blocks, each at most so many times as large as usual: a
#: cluster's scheduler takes a millisecond for each, whatever is in it.
_REMOTE_BLOCKS, _REMOTE_LARGER = 256, 64
#: Bytes of a sample that is brought here from other machines; a larger one is read there.
_SAMPLE_BYTES = 1 << 28
#: Elements of a share of the rows that something is gathered from, and shares whose results are waited for at a time.
_SHARE_ELEMENTS, _SHARES = 1 << 26, 32
#: Elements of a stored table that are read at once: whoever walks blocks holds one, and memory may be short.
_READ_AT_ONCE = 1 << 17
#: Logits of a block of `gather`: what is made of it, a few tables of probabilities, stays in the cache.
_GATHERED_AT_ONCE = 1 << 18
#: Elements of a strip of a table on a device: few launches. Where only some rows are kept a strip of them is copied.
DEVICE_STRIP_ELEMENTS, DEVICE_COPY_ELEMENTS = 1 << 30, 1 << 26

Columns = tuple[NDArray[Any], ...]


def run_rows(n_classes: int) -> int:
    """Rows of a run: whole strips, some four thousand rows where a strip has fewer. It depends on the classes alone.

    Examples
    --------
    >>> run_rows(10), run_rows(1000)
    (6553, 4095)
    """
    strip = max(1, STRIP_ELEMENTS // n_classes)
    return strip * max(1, 4096 // strip)


class Rows:
    """A table of logits, optionally only the rows where `keep` is true, read strip by strip.

    Parameters
    ----------
    table : array of shape (n, K)
        Anything with `shape` and slicing by rows that yields arrays: an array, a memory map, a stored table (Parquet
        row groups); or a torch tensor on a GPU. The kernels read a tensor where it lies, in longer strips, and only
        sums and columns come to the host; a function that is no kernel (a caller's own score) gets its strips as
        arrays.
    keep : boolean array of shape (n,), optional
        The rows that count; all of them when None. The others are skipped without copying the table.
    block_rows : int, optional
        Rows handed to an executor at a time, rounded up to whole strips. It never changes a result.
    executor : concurrent.futures.Executor or distributed.Client, optional
        Where the blocks are worked on; in this thread when None.
    unseen : bool
        Whether nobody has looked yet if these are logits at all: a careful walk, or `looked_over`, does.

    Examples
    --------
    >>> rows = Rows(np.arange(6.0).reshape(3, 2))
    >>> rows.sum(lambda block: block.sum(axis=0))
    array([6., 9.])
    >>> rows.collect(lambda block: block.max(axis=1))
    array([1., 3., 5.])
    """

    def __init__(
        self,
        table: NDArray[Any] | StoredTable,
        *,
        keep: NDArray[np.bool_] | None = None,
        block_rows: int | None = None,
        executor: ExecutorLike | None = None,
        unseen: bool = False,
    ) -> None:
        self.unseen = unseen
        self.on_device = kernels.on_device(table)
        self.table: Any = table.detach() if self.on_device else table  # type: ignore[union-attr]
        self.keep = keep
        self.executor = None if self.on_device else executor_of(executor)
        self.n_classes = int(table.shape[1])
        elements = STRIP_ELEMENTS
        if self.on_device:
            elements = DEVICE_STRIP_ELEMENTS if keep is None else DEVICE_COPY_ELEMENTS
        self._strip = max(1, elements // self.n_classes)
        self._asked = block_rows
        wanted = block_rows if block_rows is not None else BLOCK_ELEMENTS // self.n_classes
        self.block_rows = self._strip * max(1, -(-wanted // self._strip))
        starts = np.arange(0, len(table), self._strip)
        #: Where each strip's kept rows begin among all kept rows.
        self._offsets = np.minimum(np.append(starts, len(table)), len(table))
        if keep is not None:
            self._offsets = np.append(0, np.cumsum(np.add.reduceat(keep.astype(np.intp), starts)))

    def __len__(self) -> int:
        return int(self._offsets[-1])

    def looked_over(self, *, found_fine: bool = False) -> Rows:
        """The same rows once they are known to be logits: raises if they are not; masks are then -inf.

        With `found_fine` a careful walk has found them to be.
        """
        if not self.unseen:
            return self
        table = self.table if found_fine else logits_table(self.table, executor=self.executor)
        return Rows(table, keep=self.keep, block_rows=self._asked, executor=self.executor)

    def where(self, keep: NDArray[np.bool_]) -> Rows:
        """The rows of these where `keep` (one flag per kept row) is true, without a copy."""
        if self.keep is not None:
            whole = self.keep.copy()
            whole[self.keep] = keep
            keep = whole
        return Rows(self.table, keep=keep, block_rows=self._asked, executor=self.executor)

    def every(self, step: int) -> tuple[Rows, NDArray[np.intp]]:
        """Every `step`-th of the kept rows, without a copy, and their positions among the kept rows."""
        positions = np.arange(0, len(self), step)
        if self.keep is None and not self._read_remotely(len(positions)):
            table = self.table.every(step) if isinstance(self.table, StoredTable) else self.table[::step]
            return Rows(table, executor=self.executor), positions
        return self.picked(positions), positions

    def picked(self, positions: NDArray[np.intp]) -> Rows:
        """Some of the kept rows, few against all: full strips of them, not many strips with a row or two."""
        if self._read_remotely(len(positions)):
            # Whoever reads the rows picks them; what comes here is gone through here.
            flags = np.zeros(len(self), dtype=bool)
            flags[positions] = True
            return Rows(self.where(flags).gathered())
        chosen = positions if self.keep is None else np.flatnonzero(self.keep)[positions]
        if self.on_device:
            return Rows(kernels.device_kernels().chosen_rows(self.table, chosen))
        held = isinstance(self.table, StoredTable) and self.table.may_hold(len(chosen))
        sample: Any = self.table[chosen] if held else PickedRows(self.table, chosen)
        return Rows(sample, executor=self.executor)

    def _read_remotely(self, n_rows: int) -> bool:
        """Whether a sample of so many rows is read by other processes, and is small enough to come here."""
        stored = isinstance(self.table, StoredTable) and is_remote(self.executor)
        return stored and n_rows * self.n_classes * self.table.dtype.itemsize <= _SAMPLE_BYTES

    def sum(self, fn: Callable[..., NDArray[Any]], *columns: NDArray[Any] | None) -> NDArray[Any]:
        """Σ over strips of fn(block, *columns of these rows); columns run along the kept rows, None passes as None."""
        if self.on_device:
            return self._from_device(fn, columns, "added")
        total: Any = None
        for block in self._map("_strip_sums", fn, columns):
            if isinstance(block, np.ndarray):  # strip after strip, as the loop below
                total = np.add.accumulate(block if total is None else np.concatenate((total[None], block)))[-1]
                continue
            for part in block:
                total = part.copy() if total is None else total + part
        return np.asarray(total)

    def collect(
        self, fn: Callable[..., NDArray[Any]], *columns: NDArray[Any] | None, there: bool = False
    ) -> NDArray[Any]:
        """The 1-D column of fn(block, *columns) over all kept rows, in row order; with `there` where the table lies."""
        if self.on_device:
            return self._from_device(fn, columns, "laid" if there else "joined")
        parts = [part for block in self._map("_columns", fn, columns) for part in block]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def fold(
        self, fn: Callable[..., NDArray[Any]], make: Callable[[], Any], *columns: NDArray[Any] | None
    ) -> Iterator[Any]:
        """Let what `make()` makes go through fn(block, *columns) of one share of the rows after another; their results.

        Of each share, a few million logits or more, `add` gets every block in order, and only `result()` comes back:
        what is gathered is gathered where the rows are. A share begins with a run (`run_rows`).
        """
        run = run_rows(self.n_classes)
        share = run * max(1, _SHARE_ELEMENTS // (run * self.n_classes))
        if isinstance(self.executor, ThreadPoolExecutor):
            each = -(-len(self.table) // (_BLOCKS_A_THREAD * threads_of(self.executor)))
            share = min(share, run * max(1, -(-each // run)))
        return self._map("_folded", (fn, make), columns, share // self._strip, _SHARES)

    @property
    def in_place(self) -> bool:
        """Whether kernels get whole blocks here, as they lie, and may write straight to where their answers belong."""
        here = self.executor is None or isinstance(self.executor, ThreadPoolExecutor)
        lies = here and self.keep is None and isinstance(self.table, np.ndarray)
        return lies and kernels.takes_whole_blocks and bool(kernels.active.walkable(self.table))

    def gather(self, fn: Callable[..., Any], make: Callable[[], Any], *columns: NDArray[Any] | None) -> Iterator[Any]:
        """The same by blocks of some strips: many results, each small. fn always gets arrays."""
        strips: Any = HostStrips(self.table) if self.on_device else None
        here = self if strips is None else Rows(strips, keep=self.keep)
        picked = here.keep is not None or isinstance(here.table, PickedRows)
        return here._map("_folded" if picked else "_folded_blocks", (fn, make), columns)

    def fill(
        self, fn: Callable[..., None], out: NDArray[Any], *more: NDArray[Any], whole: bool = False
    ) -> NDArray[Any]:
        """Let fn(block, out block, ...) write every strip of `out` and of further columns; return `out`.

        Tables and columns that are written to run along the kept rows. With `whole` fn gives the same bits whatever
        block its rows come in, and gets whole blocks where it need not wait for rows to be gathered.
        """
        gathered = self.keep is not None or isinstance(self.table, PickedRows)
        whole = whole and not gathered and kernels.takes_whole_blocks
        task = "_fill_whole" if whole else "_fill_block"
        if is_remote(self.executor) and isinstance(self.table, StoredTable):
            return self._fill_remotely(task, fn, (out, *more))
        # Another process would fill a copy of its own.
        here = self if isinstance(self.executor, ThreadPoolExecutor) else self._with_executor(None)
        for _ in here._map(task, fn, (out, *more)):
            pass
        return out

    def _fill_remotely(self, task: str, fn: Callable[..., None], columns: Columns) -> NDArray[Any]:
        """The same by other processes: what they have written comes back, a block at a time.

        Columns travel with their values, which fn may read; of a table only room for it is made.
        """
        flat = tuple(column if column.ndim == 1 else None for column in columns)
        room = tuple((column.shape[1:], column.dtype) for column in columns)
        at = 0
        for written in self._map("_written", (task, fn, room), flat):
            n = len(written[0])
            for column, block in zip(columns, written, strict=True):
                column[at : at + n] = block
            at += n
        return columns[0]

    def _with_executor(self, executor: Executor | None) -> Rows:
        if self.executor is executor:
            return self
        return Rows(self.table, keep=self.keep, block_rows=self._asked, executor=executor)

    def gathered(self) -> NDArray[Any]:
        """The kept rows as an array of their own, for whoever goes through a few of them many times."""
        table: NDArray[Any] = np.empty((len(self), self.n_classes), dtype=self.table.dtype)
        return self.fill(_copy, table)

    def column(self, values: Any) -> Any:
        """A column (or None) where the table lies, so that it is brought there once and not once a pass."""
        return kernels.device_kernels().beside(values, self.table) if self.on_device and values is not None else values

    def on_host(self) -> Rows:
        """The same rows with the whole table as an array."""
        return Rows(on_host(self.table), keep=self.keep) if self.on_device else self

    def _from_device(self, fn: Callable[..., Any], columns: tuple[Any, ...], finish: str) -> NDArray[Any]:
        """Strip results put together on the device, so that one small array crosses to the host."""
        if not kernels.reads_tensors(fn):
            strips: Any = HostStrips(self.table)
            host = Rows(strips, keep=self.keep)
            arrays = [on_host(column) for column in columns]
            return host.sum(fn, *arrays) if finish == "added" else host.collect(fn, *arrays)
        beside = tuple(self.column(column) for column in columns)
        parts = [part for block in self._map("_strip_results", fn, beside) for part in block]
        found: NDArray[Any] = getattr(kernels.device_kernels(), finish)(parts)
        return found

    def _map(
        self, task: str, fn: Any, columns: tuple[Any, ...], strips: int | None = None, window: int = _WINDOW
    ) -> Iterator[Any]:
        n_strips = len(self._offsets) - 1
        strips_per_block = strips or self._strips_a_block(n_strips)
        spans = [(s, min(s + strips_per_block, n_strips)) for s in range(0, n_strips, strips_per_block)]
        kept = [int(self._offsets[stop] - self._offsets[start]) for start, stop in spans]
        if self.executor is None or len(spans) == 1:
            results: Iterator[Any] = (getattr(self, task)(fn, columns, span) for span in spans)
        elif isinstance(self.executor, ThreadPoolExecutor):
            results = iter(self.executor.map(partial(getattr(self, task), fn, columns), spans))
        else:
            pieces = (self._piece(columns, span) for span in spans)
            results = in_order(
                self.executor, partial(_run, task, fn), pieces, window, held=_HELD * window, place=_place
            )
        return telling(results, kept)

    def _strips_a_block(self, n_strips: int) -> int:
        """How many strips are worked on at one go. Threads get fewer and larger blocks of a table in memory."""
        usual = self.block_rows // self._strip
        pool = self.executor
        here = pool is None or isinstance(pool, ThreadPoolExecutor)
        source = self.table.table if isinstance(self.table, PickedRows) else self.table
        if here and not self._asked and isinstance(source, StoredTable):
            return max(1, _READ_AT_ONCE // (self._strip * self.n_classes))
        if is_remote(pool) and not self._asked:
            return usual * max(1, min(_REMOTE_LARGER, n_strips // (usual * _REMOTE_BLOCKS)))
        if not isinstance(pool, ThreadPoolExecutor) or self._asked or not isinstance(source, np.ndarray):
            return usual
        worth, threads = round(len(self) * self.n_classes / _WORTH_A_THREAD), threads_of(pool)
        blocks = _BLOCKS_A_THREAD * threads if worth >= _BLOCKS_A_THREAD * threads else min(max(1, worth), threads)
        return max(1, -(-n_strips // blocks))

    def _piece(self, columns: tuple[Any, ...], span: tuple[int, int]) -> tuple[Rows, tuple[Any, ...]]:
        """The rows of a span of strips and their columns, by themselves: all that travels to another process.

        A span begins with a strip, so its strips are the same ones. A stored table goes as its description.
        """
        rows = slice(span[0] * self._strip, min(span[1] * self._strip, len(self.table)))
        kept = slice(int(self._offsets[span[0]]), int(self._offsets[span[1]]))
        table = self.table.part(rows.start, rows.stop) if isinstance(self.table, StoredTable) else self.table[rows]
        piece = Rows(table, keep=None if self.keep is None else self.keep[rows])
        return piece, tuple(None if column is None else column[kept] for column in columns)

    def _strips(self, span: tuple[int, int]) -> Iterator[tuple[NDArray[Any], slice]]:
        """The kept rows of each strip with any, and their slice among all kept rows."""
        for strip in range(*span):
            rows = slice(strip * self._strip, (strip + 1) * self._strip)
            kept = slice(int(self._offsets[strip]), int(self._offsets[strip + 1]))
            if kept.start == kept.stop:
                continue
            block = self.table[rows]
            if self.keep is not None:
                keep = self.keep[rows]
                if self.on_device:
                    block = kernels.device_kernels().kept_rows(block, keep)
                elif kept.stop - kept.start < len(block):
                    block = strip_room.rows(block, keep)
            yield block, kept

    def _strip_results(
        self, fn: Callable[..., NDArray[Any]], columns: tuple[Any, ...], span: tuple[int, int]
    ) -> list[NDArray[Any]]:
        return [
            own_result(fn(block, *(None if column is None else column[kept] for column in columns)))
            for block, kept in self._strips(span)
        ]

    def _strip_sums(
        self, fn: Callable[..., NDArray[Any]], columns: tuple[Any, ...], span: tuple[int, int]
    ) -> Iterable[NDArray[Any]]:
        """fn of each strip, or, where fn walks blocks, its sums over each strip from one call."""
        if not kernels.walks_blocks(fn, self.table):
            return self._strip_results(fn, columns, span)
        block, chosen, inside = self._block(columns, span)
        ends = self._offsets[span[0] : span[1] + 1] - self._offsets[span[0]]
        return fn(block, *inside, rows=chosen, ends=ends)

    def _columns(
        self, fn: Callable[..., NDArray[Any]], columns: tuple[Any, ...], span: tuple[int, int]
    ) -> list[NDArray[Any]]:
        if not kernels.walks_blocks(fn, self.table):
            return self._strip_results(fn, columns, span)
        block, chosen, inside = self._block(columns, span)
        return [fn(block, *inside, rows=chosen)]

    def _folded(self, work: Any, columns: tuple[Any, ...], span: tuple[int, int]) -> Any:
        fn, make = work
        gathered, step = make(), max(1, _READ_AT_ONCE // (self._strip * self.n_classes))
        for start in range(*span, step):
            for part in self._columns(fn, columns, (start, min(start + step, span[1]))):
                gathered.add(part)
        return gathered.result()

    def _folded_blocks(self, work: Any, columns: tuple[Any, ...], span: tuple[int, int]) -> Any:
        fn, make = work
        gathered, step = make(), max(1, _GATHERED_AT_ONCE // (self._strip * self.n_classes))
        for start in range(*span, step):
            block, _, inside = self._block(columns, (start, min(start + step, span[1])))
            gathered.add(fn(np.asarray(block), *inside))
        return gathered.result()

    def _block(self, columns: tuple[Any, ...], span: tuple[int, int]) -> tuple[Any, Any, list[Any]]:
        """All rows of some strips, the positions of those that are kept (None: all), and their part of the columns."""
        rows = slice(span[0] * self._strip, min(span[1] * self._strip, len(self.table)))
        kept = slice(int(self._offsets[span[0]]), int(self._offsets[span[1]]))
        inside = [None if column is None else column[kept] for column in columns]
        if self.keep is not None:
            return self.table[rows], np.flatnonzero(self.keep[rows]), inside
        if isinstance(self.table, PickedRows) and self.table.walkable:
            return self.table.table, self.table.chosen[rows], inside
        return self.table[rows], None, inside

    def _fill_whole(self, fn: Callable[..., None], columns: Columns, span: tuple[int, int]) -> None:
        block, _, inside = self._block(columns, span)
        fn(block, *inside)

    def _fill_block(self, fn: Callable[..., None], columns: Columns, span: tuple[int, int]) -> None:
        for block, kept in self._strips(span):
            fn(block, *(column[kept] for column in columns))

    def _written(
        self, how: tuple[str, Callable[..., None], Any], columns: tuple[Any, ...], span: tuple[int, int]
    ) -> Columns:
        """The columns as they were filled, tables among them in room of their own."""
        task, fn, room = how
        piece, given = self._piece(columns, span)
        filled = tuple(
            np.empty((len(piece), *shape), dtype=dtype) if column is None else np.array(column)
            for column, (shape, dtype) in zip(given, room, strict=True)
        )
        getattr(piece, task)(fn, filled, (0, len(piece._offsets) - 1))
        return filled


def _copy(block: NDArray[Any], out: NDArray[Any]) -> None:
    out[...] = block


def _place(piece: tuple[Any, ...]) -> str:
    """The files of the rows of a piece."""
    return sources_of(piece[0].table) or "rows in memory"


def _run(task: str, fn: Any, piece: Rows, columns: tuple[Any, ...]) -> Any:
    return getattr(piece, task)(fn, columns, (0, len(piece._offsets) - 1))
