"""Who works on blocks of rows: threads, other processes, a cluster; and how far they have come, for
whoever listens.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from metacal.errors import InputError, WrongTypeError
from metacal.lazy import found

if TYPE_CHECKING:
    from distributed import Client

#: What callers may give to work with. A client is used as it is; an executor that Dask made of one,
#: by its client.
ExecutorLike: TypeAlias = "Executor | Client"
_Value = TypeVar("_Value")


@contextmanager
def workers(n_jobs: int | None, executor: ExecutorLike | None = None) -> Iterator[Executor | None]:
    """An executor of `n_jobs` threads, None for work in this thread, or the caller's own
    `executor`, which stays open.

    None and 1 mean this thread; -1 means one thread per core, -2 all but one, as in scikit-learn.

    Examples
    --------
    >>> with workers(1) as executor:
    ...     print(executor)
    None
    """
    if executor is not None:
        yield executor_of(executor)
        return
    if n_jobs is not None and (
        not isinstance(n_jobs, int | np.integer) or isinstance(n_jobs, bool) or n_jobs == 0
    ):
        raise InputError(
            "n_jobs must be a whole number other than 0 (-1: one per core) or None, got"
            f" {n_jobs!r}."
        )
    count = 1 if n_jobs is None else int(n_jobs)
    if count < 0:
        count = max(1, cores() + 1 + count)
    if count == 1:
        yield None
        return
    waiting = _idle.setdefault(count, [])
    try:
        pool = (
            waiting.pop()
        )  # not asked first whether there is one: another thread may take it in between
    except IndexError:
        pool = ThreadPoolExecutor(count, "metacal")
    try:
        yield pool
    except BaseException:
        # Ctrl-C above all: what has not begun must not keep the others waiting.
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    waiting.append(pool)


def executor_of(executor: ExecutorLike | None) -> Executor | None:
    """The executor to work with: the caller's own, and for a Dask client, or an executor that it
    made, one of ours.

    Examples
    --------
    >>> executor_of(None)
    >>> executor_of(4)
    Traceback (most recent call last):
    metacal.errors.WrongTypeError: executor must be a concurrent.futures.Executor or a Dask Client; got int. ...
    """
    distributed: Any = sys.modules.get("distributed")  # whoever has a client has imported it
    if distributed is not None:
        cluster: Callable[..., Executor] = found("metacal.rows.cluster:ClusterExecutor")
        if isinstance(executor, distributed.Client):
            return cluster(executor)
        if isinstance(executor, distributed.cfexecutor.ClientExecutor):
            return cluster(executor._client, **executor._kwargs)
    if executor is None or isinstance(executor, Executor):
        return executor
    raise WrongTypeError(
        "executor must be a concurrent.futures.Executor or a Dask Client; got"
        f" {type(executor).__name__}. For threads of this process there is n_jobs."
    )


def is_remote(executor: ExecutorLike | None) -> bool:
    """Whether work goes to other processes, which share no memory with this one."""
    return executor is not None and not isinstance(executor_of(executor), ThreadPoolExecutor)


def started(
    executor: Executor | None, task: Callable[..., Any], *arguments: Any, aside: bool = False
) -> Callable[[], Any]:
    """Let a thread of the pool begin with a task; what is returned waits for its answer. Without a
    pool it begins then.

    Another process would have to be sent what the task works on: only threads are asked. With
    `aside` one is made where there is no pool: while a device works this machine has nothing else
    to do.

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
    """The cores that this process may use; a container or a batch system often grants fewer than
    there are.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_of(pool: Executor) -> int:
    """How many threads a pool has; 1 for an executor of another kind."""
    return int(pool._max_workers) if isinstance(pool, ThreadPoolExecutor) else 1


#: Threads that wait for the next call, by their number: waking sixteen takes no time, making them
#: more than a small table does. Whoever uses some has them alone, so that work within work never
#: waits for itself. A fork has none.
_idle: dict[int, list[ThreadPoolExecutor]] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)

#: Told how many rows were gone through, block by block.
_listener: ContextVar[Callable[[int], object] | None] = ContextVar(
    "metacal_rows_listener", default=None
)


@contextmanager
def within(variable: ContextVar[_Value], value: _Value) -> Iterator[None]:
    """Within this the variable has that value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def told(tell: Callable[[int], object] | None) -> AbstractContextManager[None]:
    """Within this, `tell(n)` is called whenever n more rows were gone through: what a progress bar
    needs.

    Examples
    --------
    >>> with told(print):
    ...     advance(3)
    3
    """
    return within(_listener, tell)


def advance(n: int) -> None:
    """Say that n more rows were gone through otherwise than by `Rows`."""
    tell = _listener.get()
    if tell is not None:
        tell(n)


def telling(results: Iterator[Any], kept: list[int]) -> Iterator[Any]:
    """The results as they come; whoever listens is told how many rows each stands for."""
    for result, n in zip(results, kept):
        yield result
        advance(n)
