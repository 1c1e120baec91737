"""Tasks on row ranges of fixed size, on the threads of a pool."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

#: Number of rows per task of a thread. The C kernel takes a quarter of a millisecond for them.
_TASK_ROWS = 1 << 15


def run_on_row_ranges(
    pool: ThreadPoolExecutor | None, task: Callable[[int, int], Any], n_rows: int
) -> list[Any]:
    """Run a task on row ranges of fixed size, and return the results in order.

    Each thread of a pool gets consecutive ranges, so that few threads are woken.

    Parameters
    ----------
    pool : ThreadPoolExecutor or None
        Pool of threads.

    task : callable
        Function of the start and the stop of a row range.

    n_rows : int
        Number of rows.

    Returns
    -------
    list

    Examples
    --------
    >>> with ThreadPoolExecutor(2) as pool:
    ...     run_on_row_ranges(pool, lambda start, stop: stop - start, 70_000)
    [32768, 32768, 4464]
    """
    row_ranges = [
        (start, min(start + _TASK_ROWS, n_rows)) for start in range(0, n_rows, _TASK_ROWS)
    ]

    def run_task_on_ranges(ranges: list[tuple[int, int]]) -> list[Any]:
        return [task(start, stop) for start, stop in ranges]

    if pool is None or len(row_ranges) < 2:
        return run_task_on_ranges(row_ranges)
    n_threads = pool._max_workers
    n_ranges_per_thread = -(-len(row_ranges) // n_threads)
    ranges_of_threads = [
        row_ranges[start : start + n_ranges_per_thread]
        for start in range(0, len(row_ranges), n_ranges_per_thread)
    ]
    results: list[Any] = []
    for thread_results in pool.map(run_task_on_ranges, ranges_of_threads):
        results.extend(thread_results)
    return results
