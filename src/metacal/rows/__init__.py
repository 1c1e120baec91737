"""Tables of logits that are validated once and processed strip by strip.

Nearly all fitting needs only sums over rows and one-dimensional columns. `Rows` has the methods
`sum(fn)`, `compute_column(fn)`, and `fill_columns(fn, out)` to write a table of the same shape.
Kernels always get the same *strips* (a number of rows that depends only on the number of classes), and the sums of
strips are added in row order. Results are therefore equal to the bit for every block size and every
executor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.formulas import Codes, Flags
from metacal.rows.block_sizes import choose_rows_per_accumulator, choose_strips_per_block
from metacal.rows.executors import (
    ExecutorLike,
    is_remote,
    resolve_executor,
    yield_and_report_progress,
)
from metacal.rows.executors import open_executor as open_executor
from metacal.rows.executors import report_finished_rows as report_finished_rows
from metacal.rows.executors import report_progress_to as report_progress_to
from metacal.rows.stored import StoredTable
from metacal.rows.strip_sums import add_in_order
from metacal.rows.strips import (
    Columns,
    EntryType,
    HostCopies,
    RowSubset,
    Span,
    Strips,
    Task,
)
from metacal.rows.strips import get_rows_per_run as get_rows_per_run
from metacal.rows.tasks import describe_table_of_piece, run_in_order
from metacal.rows.validate import check_logits, to_numpy

#: Type of functions of a block of rows and of columns with one entry per row.
BlockFunction = Callable[..., NDArray[Any]]
#: Default number of elements of a block, the unit of work of an executor.
BLOCK_ELEMENTS = 1 << 20
#: Largest number of blocks that are submitted to other processes at a time.
_MAX_BLOCKS_AT_WORK = 256
#: Largest number of blocks that are at work or wait for an earlier block, as a multiple of the blocks
#: at work.
_MAX_PENDING_PER_BLOCK_AT_WORK = 4
#: Largest size in bytes of a sample of rows that other processes read for this process.
_MAX_SAMPLE_BYTES_FROM_WORKERS = 1 << 28
#: Largest number of accumulators that run in other processes at a time.
_MAX_ACCUMULATORS_AT_WORK = 32


class Rows(Strips):
    """Table of logits, or its rows where a mask is true, processed strip by strip.

    Parameters
    ----------
    table : array of shape (n, K)
        Object with `shape` whose slices of rows are arrays: an array, a memory map, or a stored
        table (Parquet row groups); or a torch tensor on a GPU. Kernels read a tensor on the device,
        in longer strips, and only sums and columns are copied to the host. A function that is not a
        kernel (a user's score) gets strips of a tensor as arrays.

    row_mask : array of bool of shape (n,), default=None
        Mask of the rows to use. None uses all rows. The table is not copied.

    block_rows : int, default=None
        Number of rows per block for an executor, rounded up to strips. No result depends on it.

    executor : concurrent.futures.Executor or distributed.Client, default=None
        Executor of the work on blocks. None works in this thread.

    is_unvalidated : bool, default=False
        Whether the values have not been validated yet. `as_validated` validates them, and so does a
        kernel that is called with `is_unvalidated=True`.

    See Also
    --------
    read_predictions : Read predictions from a file.

    Examples
    --------
    >>> rows = Rows(np.arange(6.0).reshape(3, 2))
    >>> rows.sum(lambda block: block.sum(axis=0))
    array([6., 9.])
    >>> rows.compute_column(lambda block: block.max(axis=1))
    array([1., 3., 5.])
    """

    def __init__(
        self,
        table: NDArray[Any] | StoredTable,
        *,
        row_mask: Flags | None = None,
        block_rows: int | None = None,
        executor: ExecutorLike | None = None,
        is_unvalidated: bool = False,
    ) -> None:
        super().__init__(table, row_mask)
        self.is_unvalidated = is_unvalidated
        self.executor = None if self.is_on_device else resolve_executor(executor)
        self._requested_block_rows = block_rows
        if block_rows is None:
            block_rows = BLOCK_ELEMENTS // self.n_classes
        strips_per_block = max(1, math.ceil(block_rows / self.rows_per_strip))
        self.block_rows = self.rows_per_strip * strips_per_block

    def copy_with(self, **changes: Any) -> Rows:
        """Return a copy with some of the arguments of the constructor replaced."""
        arguments = {
            "table": self.table,
            "row_mask": self.row_mask,
            "block_rows": self._requested_block_rows,
            "executor": self.executor,
        }
        return Rows(**{**arguments, **changes})

    def as_validated(self) -> Rows:
        """Validate the rows if they have not been validated yet.

        Returns
        -------
        Rows
            Validated rows, with masked classes as -inf.

        Raises
        ------
        InputError
            If the values are not logits.
        """
        if not self.is_unvalidated:
            return self
        return self.copy_with(table=check_logits(self.table, executor=self.executor))

    def mark_as_validated(self) -> Rows:
        """Return a copy of these rows that is marked as validated."""
        return self.copy_with() if self.is_unvalidated else self

    def select(self, mask: Flags) -> Rows:
        """Select some of these rows by a mask, without a copy."""
        table_mask = mask
        if self.row_mask is not None:
            table_mask = self.row_mask.copy()
            table_mask[self.row_mask] = mask
        return self.copy_with(row_mask=table_mask)

    def take_every(self, step: int) -> Rows:
        """Select every `step`-th of these rows, without a copy."""
        if self.row_mask is None and not isinstance(self.table, StoredTable):
            return Rows(self.table[::step], executor=self.executor)
        return self.take(np.arange(0, len(self), step))

    def take(self, positions: Codes) -> Rows:
        """Select a few of these rows by their indices.

        The result has fewer strips than a selection by a mask, and is processed faster.
        """
        if self._can_be_sampled_by_workers(n_sampled_rows=len(positions)):
            is_taken = np.zeros(len(self), dtype=bool)
            is_taken[positions] = True
            return Rows(self.select(is_taken).to_array())
        table_indices = positions
        if self.row_mask is not None:
            table_indices = np.flatnonzero(self.row_mask)[positions]
        if self.is_on_device:
            return Rows(kernels.device_kernels().copy_rows(self.table, table_indices))
        if isinstance(self.table, RowSubset):
            indices_in_whole_table = self.table.row_indices[table_indices]
            return Rows(RowSubset(self.table.table, indices_in_whole_table), executor=self.executor)
        if isinstance(self.table, StoredTable) and self.table.fits_in_memory(len(table_indices)):
            sample: Any = self.table[table_indices]
        else:
            sample = RowSubset(self.table, table_indices)
        return Rows(sample, executor=self.executor)

    def _can_be_sampled_by_workers(self, n_sampled_rows: int) -> bool:
        """Check whether other processes read the table, and a sample is small enough."""
        if not isinstance(self.table, StoredTable) or not is_remote(self.executor):
            return False
        n_sample_bytes = n_sampled_rows * self.n_classes * self.table.dtype.itemsize
        return bool(n_sample_bytes <= _MAX_SAMPLE_BYTES_FROM_WORKERS)

    def sum(self, fn: BlockFunction, *columns: NDArray[Any] | None) -> NDArray[Any]:
        """Sum the results of a function over all strips of the rows.

        Parameters
        ----------
        fn : callable
            Function of the rows of a strip and of the columns of these rows.

        *columns : array of shape (n_selected_rows, ...) or None
            Columns of the selected rows. None is passed on as None.

        Returns
        -------
        array
        """
        if self.is_on_device and not kernels.reads_tensors(fn):
            columns_on_host = map(to_numpy, columns)
            return self._with_strips_on_host().sum(fn, *columns_on_host)
        if self.is_on_device:
            return to_numpy(reduce(add, self._compute_strip_results_on_device(fn, columns)))
        total: NDArray[Any] | None = None
        compute_strip_sums = partial(Strips._compute_strip_sums, fn=fn)
        for strip_sums in self._run_on_blocks(compute_strip_sums, columns):
            total = add_in_order(total, strip_sums)
        return np.asarray(total)

    def compute_column(
        self, fn: BlockFunction, *columns: NDArray[Any] | None, keep_on_device: bool = False
    ) -> NDArray[Any]:
        """Compute a column with one value per row by applying fn to each strip.

        Parameters
        ----------
        fn : callable
            Function that returns one value per row.

        *columns : array of shape (n_selected_rows, ...) or None
            Columns of the selected rows.

        keep_on_device : bool, default=False
            Whether the column of a table on a device stays on the device.

        Returns
        -------
        array of shape (n_selected_rows,)
        """
        if self.is_on_device and not kernels.reads_tensors(fn):
            columns_on_host = map(to_numpy, columns)
            return self._with_strips_on_host().compute_column(fn, *columns_on_host)
        if self.is_on_device:
            strip_columns = self._compute_strip_results_on_device(fn, columns)
            column = kernels.device_kernels().concatenate(strip_columns)
            return column if keep_on_device else to_numpy(column)
        compute_column_pieces = partial(Strips._compute_column_pieces, fn=fn)
        pieces: list[NDArray[Any]] = []
        for pieces_of_block in self._run_on_blocks(compute_column_pieces, columns):
            pieces.extend(pieces_of_block)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def accumulate_blocks(
        self, fn: BlockFunction, make_accumulator: Callable[[], Any], *columns: NDArray[Any] | None
    ) -> Iterator[Any]:
        """Accumulate the results of a function of blocks, and yield each accumulated result.

        An accumulator processes a few million logits or more, and starts with a run
        (`get_rows_per_run`). It works in the process that reads the rows, and only its result is
        sent back.

        Parameters
        ----------
        fn : callable
            Function of the rows of a block and of their columns.

        make_accumulator : callable
            Function that creates an accumulator with the methods `add`, which gets every block in
            order, and `result`.

        *columns : array of shape (n_selected_rows, ...) or None
            Columns of the selected rows.

        Yields
        ------
        object
        """
        rows_per_accumulator = choose_rows_per_accumulator(
            len(self.table), self.n_classes, self.executor
        )
        return self._run_on_blocks(
            partial(Strips._accumulate_strips, fn=fn, make_accumulator=make_accumulator),
            columns,
            strips_per_block=rows_per_accumulator // self.rows_per_strip,
            max_running=_MAX_ACCUMULATORS_AT_WORK,
        )

    @property
    def gives_kernels_whole_blocks(self) -> bool:
        """Whether kernels read whole blocks of the table in this process, without a copy.

        They may then write their results directly into the final array.
        """
        is_local = self.executor is None or isinstance(self.executor, ThreadPoolExecutor)
        if not is_local or self.row_mask is not None or not isinstance(self.table, np.ndarray):
            return False
        return kernels.uses_c_kernels and bool(
            kernels.host_kernels.is_readable_without_copy(self.table)
        )

    def accumulate_blocks_on_host(
        self,
        fn: Callable[..., Any],
        make_accumulator: Callable[[], Any],
        *columns: NDArray[Any] | None,
    ) -> Iterator[Any]:
        """Accumulate fn over blocks on the host, and yield one result per block.

        Parameters
        ----------
        fn, make_accumulator, *columns
            As in `accumulate_blocks`.

        Yields
        ------
        object
        """
        host_rows = self._with_strips_on_host()
        accumulate = Strips._accumulate_whole_blocks
        if host_rows._must_copy_rows:
            accumulate = Strips._accumulate_strips
        task = partial(accumulate, fn=fn, make_accumulator=make_accumulator)
        return host_rows._run_on_blocks(task, columns)

    def fill_columns(
        self,
        fn: Callable[..., None],
        out: NDArray[Any],
        *other_columns: NDArray[Any],
        allows_any_block_size: bool = False,
    ) -> NDArray[Any]:
        """Apply a function that writes its results for each strip into columns.

        Parameters
        ----------
        fn : callable
            Function that writes its result into its second and later arguments.

        out : array of shape (n_selected_rows, ...)
            Table or column to write.

        *other_columns : array of shape (n_selected_rows, ...)
            Other columns of the selected rows, for fn to write or read.

        allows_any_block_size : bool, default=False
            Whether fn writes the same bits for any division into blocks. It then gets whole blocks
            unless rows have to be copied.

        Returns
        -------
        array
            The column `out`.
        """
        columns = (out, *other_columns)
        can_pass_whole_blocks = kernels.uses_c_kernels and not self._must_copy_rows
        fill_task = partial(
            Strips._fill_columns,
            fn=fn,
            passes_whole_blocks=allows_any_block_size and can_pass_whole_blocks,
        )
        if is_remote(self.executor) and isinstance(self.table, StoredTable):
            self._fill_columns_in_other_processes(fill_task, columns)
            return out
        local_rows = self
        if not isinstance(self.executor, ThreadPoolExecutor):
            # Other processes cannot write into `out`, because they would get a copy.
            local_rows = self.copy_with(executor=None)
        for _ in local_rows._run_on_blocks(fill_task, columns):
            pass
        return out

    def _fill_columns_in_other_processes(self, fill_task: Task, columns: Columns) -> None:
        """Fill columns in other processes, and copy the results back.

        One-dimensional columns are sent with their values, which the task may read. The workers
        allocate the others.
        """
        fill_copies = partial(
            Strips._fill_copies_of_columns,
            fill_columns=fill_task,
            entry_types=tuple(EntryType(column.shape[1:], column.dtype) for column in columns),
        )
        sent_columns = tuple(column if column.ndim == 1 else None for column in columns)
        start = 0
        for filled_copies in self._run_on_blocks(fill_copies, sent_columns):
            stop = start + len(filled_copies[0])
            for column, filled_copy in zip(columns, filled_copies, strict=True):
                column[start:stop] = filled_copy
            start = stop

    def to_array(self) -> NDArray[Any]:
        """Copy the selected rows to one array."""
        table: NDArray[Any] = np.empty((len(self), self.n_classes), dtype=self.table.dtype)
        return self.fill_columns(_copy_block, table)

    def move_column_to_device(self, values: Any) -> Any:
        """Move a column to the device of the table."""
        if values is None or not self.is_on_device:
            return values
        return kernels.device_kernels().move_to_device_of(values, self.table)

    def to_host(self) -> Rows:
        """Return rows whose table is an array in memory."""
        if not self.is_on_device:
            return self
        return Rows(to_numpy(self.table), row_mask=self.row_mask)

    def _with_strips_on_host(self) -> Rows:
        """Return rows whose strips are copied to the host if the table is on a device."""
        if not self.is_on_device:
            return self
        strips: Any = HostCopies(self.table)
        return Rows(strips, row_mask=self.row_mask)

    def _compute_strip_results_on_device(
        self, fn: Callable[..., Any], columns: Columns
    ) -> list[Any]:
        """Apply fn to each strip on the device, and return one tensor per strip."""
        device_columns = tuple(self.move_column_to_device(column) for column in columns)
        apply_to_strips = partial(Strips._apply_to_strips, fn=fn)
        results: list[Any] = []
        for block_results in self._run_on_blocks(apply_to_strips, device_columns):
            results.extend(block_results)
        return results

    def _run_on_blocks(
        self,
        task: Task,
        columns: Columns,
        *,
        strips_per_block: int | None = None,
        max_running: int = _MAX_BLOCKS_AT_WORK,
    ) -> Iterator[Any]:
        """Run a task on each block, with the executor, and yield the results in row order.

        Parameters
        ----------
        task : callable
            Function of these rows, the columns and the span of strips of a block.

        columns : tuple of arrays
            Columns of the selected rows.

        strips_per_block : int or None, default=None
            Number of strips per block. None chooses it by the executor.

        max_running : int
            Largest number of blocks that other processes work on at a time.

        Yields
        ------
        object
        """
        if strips_per_block is None:
            strips_per_block = self._choose_strips_per_block()
        spans = self._divide_into_spans(strips_per_block)
        n_rows_of_spans = [self._count_selected_rows(span) for span in spans]
        run_task_on_span = partial(task, self, columns)
        results: Iterator[Any]
        if self.executor is None or len(spans) == 1:
            results = map(run_task_on_span, spans)
        elif isinstance(self.executor, ThreadPoolExecutor):
            results = iter(self.executor.map(run_task_on_span, spans))
        else:
            results = self._run_in_other_processes(self.executor, task, columns, spans, max_running)
        return yield_and_report_progress(results, n_rows_of_spans)

    def _choose_strips_per_block(self) -> int:
        """Return the requested number of strips per block, or one that suits the executor."""
        strips_per_block = self.block_rows // self.rows_per_strip
        if self._requested_block_rows:
            return strips_per_block
        return choose_strips_per_block(self, self.executor, strips_per_block)

    def _run_in_other_processes(
        self,
        executor: Executor,
        task: Task,
        columns: Columns,
        spans: list[Span],
        max_running: int,
    ) -> Iterator[Any]:
        """Process each span of rows in a worker, and yield the results in order."""
        return run_in_order(
            executor,
            partial(Strips.run_on_all_strips, task=task),
            (self._extract_piece(columns, span) for span in spans),
            max_running,
            max_pending=_MAX_PENDING_PER_BLOCK_AT_WORK * max_running,
            describe_piece=describe_table_of_piece,
        )


def _copy_block(block: NDArray[Any], out: NDArray[Any]) -> None:
    """Copy a block of rows."""
    out[...] = block
