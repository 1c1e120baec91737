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
#: Factor by which blocks are enlarged for the C kernels in this thread, which work row by row.
#: The call of a kernel from Python takes as long as thousands of elements within the kernel.
_KERNEL_BLOCK_FACTOR = 16
#: Number of blocks of a large table for other processes.
_N_REMOTE_BLOCKS = 256
#: Largest factor by which blocks for other processes are enlarged.
_MAX_REMOTE_BLOCK_FACTOR = 64
#: Number of elements of a share of the rows that has one accumulator.
_SHARE_ELEMENTS = 1 << 26


def choose_strips_per_block(
    strips: Strips, executor: Executor | None, default_strips_per_block: int
) -> int:
    """Return the number of strips per block.

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
    """
    n_strips = strips.n_strips
    if is_remote(executor):
        enlargement = n_strips // (default_strips_per_block * _N_REMOTE_BLOCKS)
        return default_strips_per_block * max(1, min(_MAX_REMOTE_BLOCK_FACTOR, enlargement))

    source_table = strips.table.table if isinstance(strips.table, RowSubset) else strips.table
    if isinstance(source_table, StoredTable):
        return max(1, READ_ELEMENTS // (strips.rows_per_strip * strips.n_classes))
    if executor is None or not isinstance(source_table, np.ndarray):
        if isinstance(source_table, np.ndarray) and kernels.uses_c_kernels:
            return default_strips_per_block * _KERNEL_BLOCK_FACTOR
        return default_strips_per_block

    n_threads = count_threads(executor)
    n_worthwhile_blocks = round(len(strips) * strips.n_classes / _MIN_THREAD_BLOCK_ELEMENTS)
    n_blocks = _BLOCKS_PER_THREAD * n_threads
    if n_worthwhile_blocks < n_blocks:
        n_blocks = min(max(1, n_worthwhile_blocks), n_threads)
    return max(1, math.ceil(n_strips / n_blocks))


def choose_rows_per_share(n_table_rows: int, n_classes: int, executor: Executor | None) -> int:
    """Return the number of rows that one accumulator processes.

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
    runs_per_share = max(1, _SHARE_ELEMENTS // (rows_per_run * n_classes))
    if isinstance(executor, ThreadPoolExecutor):
        # A short table is divided further, so that every thread has work.
        n_shares = _BLOCKS_PER_THREAD * count_threads(executor)
        max_rows_per_share = -(-n_table_rows // n_shares)
        runs_per_share = min(runs_per_share, max(1, -(-max_rows_per_share // rows_per_run)))
    return runs_per_share * rows_per_run
