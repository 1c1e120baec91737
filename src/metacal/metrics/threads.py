"""Matrix products in one thread while resampling.

A bootstrap is thousands of small products with other work in between. BLAS hands each to all cores, and its threads
then wait for the next one at full speed: on two cores 1,000 resamples of 25,000 x 1,000 burned five times the processor
time of one thread, and more on more cores. One thread also gives the same bits whatever the number of cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep BLAS to one thread inside, where threadpoolctl (which comes with scikit-learn) is there to do it.

    Examples
    --------
    >>> with one_blas_thread():
    ...     pass
    """
    limits: AbstractContextManager[object]
    try:
        limits = import_module("threadpoolctl").threadpool_limits(limits=1, user_api="blas")
    except ImportError:
        limits = nullcontext()
    with limits:
        yield
