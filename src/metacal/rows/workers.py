"""Threads to work on blocks of rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from metacal.errors import InputError
from metacal.rows.elsewhere import in_order as in_order


@contextmanager
def workers(n_jobs: int | None, executor: Executor | None = None) -> Iterator[Executor | None]:
    """An executor of `n_jobs` threads, None for work in this thread, or the caller's own `executor`, which stays open.

    None and 1 mean this thread; -1 means one thread per core, -2 all but one, as in scikit-learn.

    Examples
    --------
    >>> with workers(1) as executor:
    ...     print(executor)
    None
    """
    if executor is not None:
        yield executor
        return
    if n_jobs is not None and (not isinstance(n_jobs, int | np.integer) or isinstance(n_jobs, bool) or n_jobs == 0):
        raise InputError(f"n_jobs must be a whole number other than 0 (-1: one per core) or None, got {n_jobs!r}.")
    count = 1 if n_jobs is None else int(n_jobs)
    if count < 0:
        count = max(1, cores() + 1 + count)
    if count == 1:
        yield None
        return
    waiting = _idle.setdefault(count, [])
    try:
        pool = waiting.pop()  # not asked first whether there is one: another thread may take it in between
    except IndexError:
        pool = ThreadPoolExecutor(count, "metacal")
    try:
        yield pool
    except BaseException:
        # Ctrl-C above all: what has not begun must not keep the others waiting.
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    waiting.append(pool)


def started(
    executor: Executor | None, task: Callable[..., Any], *arguments: Any, aside: bool = False
) -> Callable[[], Any]:
    """Let a thread of the pool begin with a task; what is returned waits for its answer. Without a pool it begins then.

    Another process would have to be sent what the task works on: only threads are asked. With `aside` one is made where
    there is no pool: while a device works this machine has nothing else to do.

    Examples
    --------
    >>> with workers(2) as pool:
    ...     answer = started(pool, pow, 2, 10)
    ...     answer()
    1024
    >>> started(None, pow, 2, 10, aside=True)()
    1024
    """
    if isinstance(executor, ThreadPoolExecutor):
        return executor.submit(task, *arguments).result
    if not aside:
        return partial(task, *arguments)
    thread = ThreadPoolExecutor(1, "metacal")
    answer = thread.submit(task, *arguments).result
    thread.shutdown(wait=False)
    return answer


def cores() -> int:
    """The cores that this process may use; a container or a batch system often grants fewer than there are.

    Examples
    --------
    >>> cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_of(pool: Executor) -> int:
    """How many threads a pool has; 1 for an executor of another kind.

    Examples
    --------
    >>> with workers(3) as pool:
    ...     threads_of(pool)
    3
    """
    return int(pool._max_workers) if isinstance(pool, ThreadPoolExecutor) else 1


#: Threads that wait for the next call, by their number: waking sixteen takes no time, making them more than a small
#: table does. Whoever uses some has them alone, so that work within work never waits for itself. A fork has none.
_idle: dict[int, list[ThreadPoolExecutor]] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)
