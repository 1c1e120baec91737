"""What comes in: a table of logits as `Rows`, read strip by strip wherever it lies, checked once.

Nearly all fitting needs sums over rows and 1-D columns, and that is all `Rows` offers: `sum(fn)`,
`collect(fn)`, and `fill(fn, out)` to write a table of the same shape. The kernels always see the
same *strips* (a number of rows that depends on the number of classes alone) and strip sums are
added in row order, so results are the same to the last bit for every block size and on every
executor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.formulas import Codes, Flags
from metacal.rows.executors import ExecutorLike, executor_of, is_remote, telling, threads_of
from metacal.rows.executors import advance as advance
from metacal.rows.executors import told as told
from metacal.rows.executors import workers as workers
from metacal.rows.stored import StoredTable
from metacal.rows.strips import READ_AT_ONCE, Columns, HostStrips, PickedRows, Strips
from metacal.rows.strips import run_rows as run_rows
from metacal.rows.tasks import in_order, sources_of
from metacal.rows.validate import logits_table, on_host

#: What is made of the rows of a block, and of what of the columns beside them.
BlockFunction = Callable[..., NDArray[Any]]
#: Elements of a block, the unit of work handed to an executor.
BLOCK_ELEMENTS = 1 << 20
#: Threads share a table in memory by blocks: several each, so that none waits long for the last
#: one. Where that would make blocks of fewer elements than this, which are not worth waking a
#: thread for, fewer threads get one each.
_BLOCKS_A_THREAD, _WORTH_A_THREAD = 4, 1 << 19
#: Blocks that are under way on other machines, or in other processes, at a time.
_WINDOW = 256
#: So many times more where answers wait for an earlier one that is slow.
_HELD = 4
#: A large table goes to other processes in about so many blocks, each at most so many times as
#: large as usual: a cluster's scheduler takes a millisecond for each, whatever is in it.
_REMOTE_BLOCKS, _REMOTE_LARGER = 256, 64
#: Bytes of a sample that is brought here from other machines; a larger one is read there.
_SAMPLE_BYTES = 1 << 28
#: Elements of a share of the rows that something is gathered from, and shares whose results are
#: waited for at a time.
_SHARE_ELEMENTS, _SHARES = 1 << 26, 32


class Rows(Strips):
    """A table of logits, optionally only the rows where `keep` is true, read strip by strip.

    Parameters
    ----------
    table : array of shape (n, K)
        Anything with `shape` and slicing by rows that yields arrays: an array, a memory map, a
        stored table (Parquet row groups); or a torch tensor on a GPU. The kernels read a tensor
        where it lies, in longer strips, and only sums and columns come to the host; a function that
        is no kernel (a caller's own score) gets its strips as arrays.
    keep : boolean array of shape (n,), optional
        The rows that count; all of them when None. The others are skipped without copying the
        table.
    block_rows : int, optional
        Rows handed to an executor at a time, rounded up to whole strips. It never changes a result.
    executor : concurrent.futures.Executor or distributed.Client, optional
        Where the blocks are worked on; in this thread when None.
    unseen : bool
        Whether nobody has looked yet if these are logits at all: a careful walk, or `looked_over`,
        does.

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
        keep: Flags | None = None,
        block_rows: int | None = None,
        executor: ExecutorLike | None = None,
        unseen: bool = False,
    ) -> None:
        super().__init__(table, keep)
        self.unseen = unseen
        self.executor = None if self.on_device else executor_of(executor)
        self._asked = block_rows
        wanted = block_rows if block_rows is not None else BLOCK_ELEMENTS // self.n_classes
        self.block_rows = self._strip * max(1, -(-wanted // self._strip))

    def replaced(self, **changes: Any) -> Rows:
        """The same but for these arguments."""
        own = {
            "table": self.table,
            "keep": self.keep,
            "block_rows": self._asked,
            "executor": self.executor,
        }
        return Rows(**{**own, **changes})

    def looked_over(self, *, found_fine: bool = False) -> Rows:
        """The same rows once they are known to be logits: raises if they are not; masks are then
        -inf.

        With `found_fine` a careful walk has found them to be.
        """
        if not self.unseen:
            return self
        return self.replaced(
            table=self.table if found_fine else logits_table(self.table, executor=self.executor)
        )

    def where(self, keep: Flags) -> Rows:
        """The rows of these where `keep` (one flag per kept row) is true, without a copy."""
        if self.keep is not None:
            whole = self.keep.copy()
            whole[self.keep] = keep
            keep = whole
        return self.replaced(keep=keep)

    def every(self, step: int) -> Rows:
        """Every `step`-th of the kept rows, without a copy."""
        if self.keep is None and not isinstance(self.table, StoredTable):
            return Rows(self.table[::step], executor=self.executor)
        return self.picked(np.arange(0, len(self), step))

    def picked(self, positions: Codes) -> Rows:
        """Some of the kept rows, few against all: full strips of them, not many strips with a row
        or two.
        """
        stored, size = isinstance(self.table, StoredTable), len(positions) * self.n_classes
        if (
            stored
            and is_remote(self.executor)
            and size * self.table.dtype.itemsize <= _SAMPLE_BYTES
        ):
            # A small sample: whoever reads the rows picks them; what comes here is gone through
            # here.
            flags = np.zeros(len(self), dtype=bool)
            flags[positions] = True
            return Rows(self.where(flags).gathered())
        chosen = positions if self.keep is None else np.flatnonzero(self.keep)[positions]
        if self.on_device:
            return Rows(kernels.device_kernels().chosen_rows(self.table, chosen))
        held = stored and self.table.may_hold(len(chosen))
        sample: Any = self.table[chosen] if held else PickedRows(self.table, chosen)
        return Rows(sample, executor=self.executor)

    def sum(self, fn: BlockFunction, *columns: NDArray[Any] | None) -> NDArray[Any]:
        """Σ over strips of fn(block, *columns of these rows); columns run along the kept rows, None
        passes as None.
        """
        if self.on_device and not kernels.reads_tensors(fn):
            return self._in_arrays().sum(fn, *map(on_host, columns))
        if self.on_device:
            return on_host(reduce(add, self._device_parts(fn, columns)))
        total: Any = None
        for block in self._map("_strip_sums", fn, columns):
            if isinstance(block, np.ndarray):  # strip after strip, as the loop below
                total = np.add.accumulate(
                    block if total is None else np.concatenate((total[None], block))
                )[-1]
                continue
            for part in block:
                total = part.copy() if total is None else total + part
        return np.asarray(total)

    def collect(
        self, fn: BlockFunction, *columns: NDArray[Any] | None, there: bool = False
    ) -> NDArray[Any]:
        """The 1-D column of fn(block, *columns) over all kept rows, in row order; with `there`
        where the table lies.
        """
        if self.on_device and not kernels.reads_tensors(fn):
            return self._in_arrays().collect(fn, *map(on_host, columns))
        if self.on_device:
            laid = kernels.device_kernels().laid(self._device_parts(fn, columns))
            return laid if there else on_host(laid)
        parts = [part for block in self._map("_columns", fn, columns) for part in block]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def fold(
        self, fn: BlockFunction, make: Callable[[], Any], *columns: NDArray[Any] | None
    ) -> Iterator[Any]:
        """Let what `make()` makes go through fn(block, *columns) of one share of the rows after
        another; their results.

        Of each share, a few million logits or more, `add` gets every block in order, and only
        `result()` comes back: what is gathered is gathered where the rows are. A share begins with
        a run (`run_rows`).
        """
        run = run_rows(self.n_classes)
        share = run * max(1, _SHARE_ELEMENTS // (run * self.n_classes))
        if isinstance(self.executor, ThreadPoolExecutor):
            each = -(-len(self.table) // (_BLOCKS_A_THREAD * threads_of(self.executor)))
            share = min(share, run * max(1, -(-each // run)))
        return self._map("_folded", (fn, make, False), columns, share // self._strip, _SHARES)

    @property
    def in_place(self) -> bool:
        """Whether kernels get whole blocks here, as they lie, and may write straight to where their
        answers belong.
        """
        here = self.executor is None or isinstance(self.executor, ThreadPoolExecutor)
        lies = here and self.keep is None and isinstance(self.table, np.ndarray)
        return lies and kernels.takes_whole_blocks and bool(kernels.active.walkable(self.table))

    def gather(
        self, fn: Callable[..., Any], make: Callable[[], Any], *columns: NDArray[Any] | None
    ) -> Iterator[Any]:
        """The same by blocks of some strips: many results, each small. fn always gets arrays."""
        here = self._in_arrays()
        return here._map("_folded", (fn, make, not here._picked), columns)

    def fill(
        self, fn: Callable[..., None], out: NDArray[Any], *more: NDArray[Any], whole: bool = False
    ) -> NDArray[Any]:
        """Let fn(block, out block, ...) write every strip of `out` and of further columns; return
        `out`.

        Tables and columns that are written to run along the kept rows. With `whole` fn gives the
        same bits whatever block its rows come in, and gets whole blocks where it need not wait for
        rows to be gathered.
        """
        columns = (out, *more)
        whole = whole and not self._picked and kernels.takes_whole_blocks
        if is_remote(self.executor) and isinstance(self.table, StoredTable):
            self._fill_remotely(fn, whole, columns)
            return out
        # Another process would fill a copy of its own.
        here = (
            self if isinstance(self.executor, ThreadPoolExecutor) else self.replaced(executor=None)
        )
        for _ in here._map("_filled", (fn, whole), columns):
            pass
        return out

    def _fill_remotely(self, fn: Callable[..., None], whole: bool, columns: Columns) -> None:
        """The same by other processes: what they have written comes back, a block at a time.

        Columns travel with their values, which fn may read; of a table only room for it is made.
        """
        flat = tuple(column if column.ndim == 1 else None for column in columns)
        room = tuple((column.shape[1:], column.dtype) for column in columns)
        at = 0
        for written in self._map("_written", (fn, whole, room), flat):
            n = len(written[0])
            for column, block in zip(columns, written, strict=True):
                column[at : at + n] = block
            at += n

    def gathered(self) -> NDArray[Any]:
        """The kept rows as an array of their own, for whoever goes through a few of them many
        times.
        """
        table: NDArray[Any] = np.empty((len(self), self.n_classes), dtype=self.table.dtype)
        return self.fill(_copy, table)

    def column(self, values: Any) -> Any:
        """A column (or None) where the table lies, so that it is brought there once and not once a
        pass.
        """
        return (
            kernels.device_kernels().beside(values, self.table)
            if self.on_device and values is not None
            else values
        )

    def on_host(self) -> Rows:
        """The same rows with the whole table as an array."""
        return Rows(on_host(self.table), keep=self.keep) if self.on_device else self

    def _in_arrays(self) -> Rows:
        """The same rows, whose strips come as arrays wherever the table lies."""
        strips: Any = HostStrips(self.table) if self.on_device else None
        return self if strips is None else Rows(strips, keep=self.keep)

    def _device_parts(self, fn: Callable[..., Any], columns: Columns) -> list[Any]:
        """Strip results on the device, to be put together there."""
        beside = tuple(self.column(column) for column in columns)
        return [part for block in self._map("_strip_results", fn, beside) for part in block]

    def _map(
        self, task: str, fn: Any, columns: Columns, strips: int = 0, window: int = _WINDOW
    ) -> Iterator[Any]:
        n_strips = len(self._offsets) - 1
        strips_per_block = strips or self._strips_a_block(n_strips)
        spans = [
            (s, min(s + strips_per_block, n_strips)) for s in range(0, n_strips, strips_per_block)
        ]
        kept = [int(self._offsets[stop] - self._offsets[start]) for start, stop in spans]
        work = partial(getattr(self, task), fn, columns)
        if self.executor is None or len(spans) == 1:
            results: Iterator[Any] = map(work, spans)
        elif isinstance(self.executor, ThreadPoolExecutor):
            results = iter(self.executor.map(work, spans))
        else:
            pieces = (self._piece(columns, span) for span in spans)
            run = partial(Strips.run, task=task, fn=fn)
            results = in_order(
                self.executor, run, pieces, window, held=_HELD * window, place=_place
            )
        return telling(results, kept)

    def _strips_a_block(self, n_strips: int) -> int:
        """How many strips are worked on at one go. Threads get fewer and larger blocks of a table
        in memory.
        """
        usual = self.block_rows // self._strip
        if self._asked:
            return usual
        pool = self.executor
        if is_remote(pool):
            return usual * max(1, min(_REMOTE_LARGER, n_strips // (usual * _REMOTE_BLOCKS)))
        source = self.table.table if isinstance(self.table, PickedRows) else self.table
        if isinstance(source, StoredTable):
            return max(1, READ_AT_ONCE // (self._strip * self.n_classes))
        if pool is None or not isinstance(source, np.ndarray):
            return usual
        worth, threads = round(len(self) * self.n_classes / _WORTH_A_THREAD), threads_of(pool)
        blocks = (
            _BLOCKS_A_THREAD * threads
            if worth >= _BLOCKS_A_THREAD * threads
            else min(max(1, worth), threads)
        )
        return max(1, -(-n_strips // blocks))


def _copy(block: NDArray[Any], out: NDArray[Any]) -> None:
    out[...] = block


def _place(piece: tuple[Any, ...]) -> str:
    """The files of the rows of a piece."""
    return sources_of(piece[0].table) or "rows in memory"
