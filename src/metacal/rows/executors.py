"""Executors of work on blocks of rows, and progress reports."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from metacal.errors import InputError, WrongTypeError
from metacal.lazy import import_object

if TYPE_CHECKING:
    from distributed import Client

#: Executors that callers may pass. A Dask client replaces an executor that it created.
ExecutorLike: TypeAlias = "Executor | Client"
_Value = TypeVar("_Value")

#: Number of threads of the shared pool for callers without a pool.
_N_HELPER_THREADS = 2


@contextmanager
def open_executor(
    n_jobs: int | None, executor: ExecutorLike | None = None
) -> Iterator[Executor | None]:
    """Provide an executor inside the context.

    Parameters
    ----------
    n_jobs : int or None
        Number of threads. None and 1 mean this thread only. -1 means one thread per core and -2 one
        less, as in scikit-learn.

    executor : Executor or distributed.Client, default=None
        Executor of the caller, which is used instead and stays open.

    Yields
    ------
    Executor or None
        None stands for work in this thread.

    Raises
    ------
    InputError
        If `n_jobs` is 0 or not an integer.

    Examples
    --------
    >>> with open_executor(1) as executor:
    ...     print(executor)
    None
    """
    if executor is not None:
        yield resolve_executor(executor)
        return
    n_threads = _resolve_n_jobs(n_jobs)
    if n_threads == 1:
        yield None
        return
    # The pool is kept for later contexts, because creating threads is slow.
    idle_pools = _idle_pools.setdefault(n_threads, [])
    # Another thread could take the last pool between a test of the list and `pop`.
    try:
        pool = idle_pools.pop()
    except IndexError:
        pool = ThreadPoolExecutor(n_threads, "metacal")
    try:
        yield pool
    except BaseException:
        # After an error such as KeyboardInterrupt, tasks that have not started are cancelled.
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    idle_pools.append(pool)


def _resolve_n_jobs(n_jobs: int | None) -> int:
    """Validate `n_jobs`, and return the number of threads."""
    if n_jobs is None:
        return 1
    if not isinstance(n_jobs, int | np.integer) or isinstance(n_jobs, bool) or n_jobs == 0:
        raise InputError(
            "n_jobs must be a nonzero integer (-1 for one thread per core) or None, but got"
            f" {n_jobs!r}."
        )
    if n_jobs > 0:
        return int(n_jobs)
    return max(1, count_usable_cores() + 1 + int(n_jobs))


def resolve_executor(executor: ExecutorLike | None) -> Executor | None:
    """Validate an executor, and wrap a Dask client in a `ClusterExecutor`.

    Raises
    ------
    WrongTypeError
        If the argument is not an executor.

    Examples
    --------
    >>> resolve_executor(None)
    >>> resolve_executor(4)
    Traceback (most recent call last):
    metacal.errors.WrongTypeError: executor must be a concurrent.futures.Executor or a Dask ...
    """
    # A caller that has a Dask client has imported distributed, so it is not imported here.
    distributed: Any = sys.modules.get("distributed")
    if distributed is not None:
        cluster_executor: Callable[..., Executor] = import_object(
            "metacal.rows.cluster:ClusterExecutor"
        )
        if isinstance(executor, distributed.Client):
            return cluster_executor(executor)
        if isinstance(executor, distributed.cfexecutor.ClientExecutor):
            return cluster_executor(executor._client, **executor._kwargs)
    if executor is None or isinstance(executor, Executor):
        return executor
    raise WrongTypeError(
        "executor must be a concurrent.futures.Executor or a Dask Client, but got"
        f" {type(executor).__name__}. To use threads of this process, pass n_jobs."
    )


def is_remote(executor: ExecutorLike | None) -> bool:
    """Check whether an executor works in other processes, which do not share memory."""
    return executor is not None and not isinstance(resolve_executor(executor), ThreadPoolExecutor)


def start_in_thread_or_defer(
    executor: Executor | None,
    task: Callable[..., Any],
    *arguments: Any,
    may_use_helper_thread: bool = False,
) -> Callable[[], Any]:
    """Start or defer a task, and return a function that returns its result.

    Without a thread, the task runs when the returned function is called. Other processes are not
    used, because the data of the task would have to be sent to them.

    Parameters
    ----------
    executor : Executor or None
        Pool of threads.

    task : callable
        The task.

    *arguments
        Arguments of the task.

    may_use_helper_thread : bool, default=False
        Whether to use a thread of its own if there is no pool, for example while a device computes.
        The task must not wait for another one.

    Returns
    -------
    callable

    Examples
    --------
    >>> with open_executor(2) as pool:
    ...     wait_for_result = start_in_thread_or_defer(pool, pow, 2, 10)
    ...     wait_for_result()
    1024
    >>> start_in_thread_or_defer(None, pow, 2, 10, may_use_helper_thread=True)()
    1024
    """
    if isinstance(executor, ThreadPoolExecutor):
        future = executor.submit(task, *arguments)
        return future.result
    if not may_use_helper_thread:
        # If no helper thread may be used, the caller runs the task when it requests the result.
        return partial(task, *arguments)
    return _get_helper_pool().submit(task, *arguments).result


@cache
def _get_helper_pool() -> ThreadPoolExecutor:
    """Return the shared thread pool for callers without a pool."""
    return ThreadPoolExecutor(_N_HELPER_THREADS, "metacal-helper")


def count_usable_cores() -> int:
    """Return the number of cores that this process may use.

    A container or a batch system often grants fewer cores than the machine has.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def count_threads(pool: Executor) -> int:
    """Return the number of threads of a pool, 1 for another kind of executor."""
    return int(pool._max_workers) if isinstance(pool, ThreadPoolExecutor) else 1


#: Pools of threads that are not in use, keyed by their number of threads.
#: Pools are reused because creating sixteen threads takes longer than work on a small table.
#: A pool in use is not shared, so that nested work cannot wait for itself.
#: A forked process starts without pools.
_idle_pools: dict[int, list[ThreadPoolExecutor]] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle_pools.clear)
    os.register_at_fork(after_in_child=_get_helper_pool.cache_clear)

#: Callback for progress, called with the number of rows of each finished block.
_progress_callback: ContextVar[Callable[[int], object] | None] = ContextVar(
    "metacal_rows_listener", default=None
)


@contextmanager
def set_context_variable(variable: ContextVar[_Value], value: _Value) -> Iterator[None]:
    """Set a context variable inside the context."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def report_progress_to(callback: Callable[[int], object] | None) -> AbstractContextManager[None]:
    """Call `callback(n)` whenever n more rows are finished inside the context.

    Examples
    --------
    >>> with report_progress_to(print):
    ...     report_finished_rows(3)
    3
    """
    return set_context_variable(_progress_callback, callback)


def report_finished_rows(n_rows: int) -> None:
    """Report newly finished rows to the progress callback."""
    callback = _progress_callback.get()
    if callback is not None:
        callback(n_rows)


def yield_and_report_progress(
    results: Iterator[Any], n_rows_of_results: list[int]
) -> Iterator[Any]:
    """Yield each result, then report its number of rows as progress."""
    for result, n_rows in zip(results, n_rows_of_results):
        yield result
        report_finished_rows(n_rows)
