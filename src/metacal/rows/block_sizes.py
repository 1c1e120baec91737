"""Numbers of rows in a block, the unit of work of an executor.

No result depends on them. Blocks of a table in memory are large enough to be worth a thread. Blocks
for other processes are few, because scheduling each one takes a millisecond.
"""

from __future__ import annotations

import math
from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np

from metacal import kernels
from metacal.rows.executors import count_threads, is_remote
from metacal.rows.stored import StoredTable
from metacal.rows.strips import READ_ELEMENTS, RowSubset, Strips, get_rows_per_run

#: Number of blocks per thread for a table in memory, so that no thread waits long at the end.
_BLOCKS_PER_THREAD = 4
#: Smallest number of elements of a block that is worth a thread.
_MIN_THREAD_BLOCK_ELEMENTS = 1 << 19
#: Factor by which blocks are enlarged for the C kernels if there are no threads.
#: Large blocks amortise the time of calling a kernel from Python.
_C_KERNEL_BLOCK_FACTOR = 16
#: Largest number of blocks of a table for other processes, unless the table is very large.
_N_REMOTE_BLOCKS = 256
#: Largest factor by which blocks for other processes are enlarged.
_MAX_REMOTE_BLOCK_FACTOR = 64
#: Number of elements of the table that one accumulator processes.
_ELEMENTS_PER_ACCUMULATOR = 1 << 26


def choose_strips_per_block(
    strips: Strips, executor: Executor | None, default_strips_per_block: int
) -> int:
    """Choose the size of the blocks that suits the table and the executor.

    Threads get fewer and larger blocks of a table in memory.

    Parameters
    ----------
    strips : Strips
        Table to process.

    executor : Executor or None
        Executor of the work.

    default_strips_per_block : int
        Number for a block of the default size.

    Returns
    -------
    int
        Number of strips per block.
    """
    if is_remote(executor):
        return _choose_strips_per_remote_block(strips.n_strips, default_strips_per_block)
    source_table = strips.table.table if isinstance(strips.table, RowSubset) else strips.table
    if isinstance(source_table, StoredTable):
        elements_per_strip = strips.rows_per_strip * strips.n_classes
        return max(1, READ_ELEMENTS // elements_per_strip)
    if not isinstance(source_table, np.ndarray):
        return default_strips_per_block
    if executor is not None:
        n_blocks = _choose_n_thread_blocks(
            n_elements=len(strips) * strips.n_classes, n_threads=count_threads(executor)
        )
        return max(1, math.ceil(strips.n_strips / n_blocks))
    if kernels.uses_c_kernels:
        return default_strips_per_block * _C_KERNEL_BLOCK_FACTOR
    return default_strips_per_block


def _choose_strips_per_remote_block(n_strips: int, default_strips_per_block: int) -> int:
    """Enlarge the blocks for other processes if there would be too many of them."""
    enlargement_factor = n_strips // (default_strips_per_block * _N_REMOTE_BLOCKS)
    return default_strips_per_block * max(1, min(_MAX_REMOTE_BLOCK_FACTOR, enlargement_factor))


def _choose_n_thread_blocks(n_elements: int, n_threads: int) -> int:
    """Choose the number of blocks into which threads divide a table in memory."""
    n_worthwhile_blocks = round(n_elements / _MIN_THREAD_BLOCK_ELEMENTS)
    n_blocks = _BLOCKS_PER_THREAD * n_threads
    if n_worthwhile_blocks >= n_blocks:
        return n_blocks
    return min(max(1, n_worthwhile_blocks), n_threads)


def choose_rows_per_accumulator(
    n_table_rows: int, n_classes: int, executor: Executor | None
) -> int:
    """Choose the number of rows that one accumulator processes.

    Parameters
    ----------
    n_table_rows : int
        Number of rows of the table.

    n_classes : int
        Number of classes.

    executor : Executor or None
        Executor of the work.

    Returns
    -------
    int
    """
    rows_per_run = get_rows_per_run(n_classes)
    elements_per_run = rows_per_run * n_classes
    runs_per_accumulator = max(1, _ELEMENTS_PER_ACCUMULATOR // elements_per_run)
    if isinstance(executor, ThreadPoolExecutor):
        # A short table is divided further, so that every thread has work.
        n_accumulators = _BLOCKS_PER_THREAD * count_threads(executor)
        rows_per_accumulator = math.ceil(n_table_rows / n_accumulators)
        max_runs_per_accumulator = max(1, math.ceil(rows_per_accumulator / rows_per_run))
        runs_per_accumulator = min(runs_per_accumulator, max_runs_per_accumulator)
    return runs_per_accumulator * rows_per_run
