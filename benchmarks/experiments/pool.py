"""Many independent tasks on several processes, their answers in the order of the tasks.

Each process computes on one thread, so an answer does not depend on how many processes there are.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import get_context, parent_process
from typing import Any, TypeVar

from metacal.errors import InputError

Answer = TypeVar("Answer")

#: Tasks handed out beyond the first unfinished one, per process.
_AHEAD = 3


def in_order(
    task: Callable[..., Answer], arguments: Iterable[tuple[Any, ...]], n_jobs: int
) -> Iterator[Answer]:
    """task(*arguments) of each, in order, on `n_jobs` processes (1: this one; -1: one per core).

    Examples
    --------
    >>> list(in_order(max, [(1, 2), (5, 3)], n_jobs=1))
    [2, 5]
    """
    count = n_processes(n_jobs)
    if count == 1:
        with one_thread():
            for argument in arguments:
                yield task(*argument)
        return
    # A fresh interpreter for each process: a copy of this one could hold locks of threads that it
    # does not have.
    with ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_begin) as pool:
        waiting: deque[Future[Answer]] = deque()
        try:
            for argument in arguments:
                waiting.append(pool.submit(task, *argument))
                if len(waiting) > _AHEAD * count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def n_processes(n_jobs: int) -> int:
    """How many processes `n_jobs` means.

    Examples
    --------
    >>> n_processes(3)
    3
    """
    if n_jobs == 0:
        raise InputError("n_jobs must be a whole number other than 0 (-1: one per core), got 0.")
    return n_jobs if n_jobs > 0 else max(1, (os.cpu_count() or 1) + 1 + n_jobs)


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep the libraries behind NumPy to one thread."""
    with _threadpoolctl().threadpool_limits(limits=1):
        yield


def _threadpoolctl() -> Any:
    return import_module("threadpoolctl")  # comes with scikit-learn


def _begin() -> None:
    """In each process: one thread, no say in Ctrl-C, and an end when the parent is gone instead of
    an endless wait.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"  # for the libraries that are not loaded yet
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _threadpoolctl().threadpool_limits(limits=1)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
