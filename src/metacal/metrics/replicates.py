"""Evaluation of statistics on batches of row weights.

A *resample* is a vector of row weights, never a resampled table. A *replicate* is the value of a
statistic on a resample.

The weights are drawn as bytes and converted to floats a few resamples at a time, so that the floats
stay in the cache. BLAS is limited to one thread: a bootstrap is thousands of small products with
other work in between, and the idle threads of BLAS would spin. On two cores, 1,000 resamples of
25,000 x 1,000 took five times the processor time of one thread. One thread also gives the same bits
for any number of cores.

A metric that is a sum over thousands of cells of a large table takes the longest and is
nearly normal, so it has fewer resamples (`binning.NearlyNormalStatistic`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from math import inf

import numpy as np

from metacal.formulas import Float
from metacal.metrics.binning import NearlyNormalStatistic, Statistic, Weights
from metacal.rows import report_finished_rows

#: Elements of a batch of weights as bytes, and the largest number of resamples in it.
_BATCH_ELEMENTS = 1 << 22
_MAX_BATCH_RESAMPLES = 64
#: Number of rows from which on the results of 8 resamples fill the cache.
_MANY_ROWS = 1 << 14
#: Elements of a batch of weights as floats, and the largest number of resamples in it.
_FLOAT_BATCH_ELEMENTS = 1 << 18
_MAX_FLOAT_RESAMPLES = 32
#: The same for many rows.
_LONG_FLOAT_BATCH_ELEMENTS = 1 << 20
_MAX_LONG_FLOAT_RESAMPLES = 8


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread inside the context.

    Examples
    --------
    >>> with one_blas_thread():
    ...     pass
    """
    # threadpoolctl is a dependency of scikit-learn.
    threadpoolctl = import_module("threadpoolctl")
    with threadpoolctl.threadpool_limits(limits=1, user_api="blas"):
        yield


def batches(count: int, n_rows: int, draw: Callable[[], Weights]) -> Iterator[Weights]:
    """Yield batches of row weights as int8; the draws do not depend on the batch size.

    A weight of 128 does not occur: the probability that a row is drawn 128 times out of n is below
    1/128!.

    Parameters
    ----------
    count : int
        Number of resamples.

    n_rows : int
        Number of rows.

    draw : callable
        Function that returns the weights of one resample.

    Yields
    ------
    array of int8 of shape (n_resamples, n_rows)
        The array is overwritten by the next batch.
    """
    batch_size = max(1, min(_MAX_BATCH_RESAMPLES, _BATCH_ELEMENTS // n_rows))
    buffer = np.empty((batch_size, n_rows), dtype=np.int8)
    for start in range(0, count, batch_size):
        n_drawn = min(batch_size, count - start)
        for index in range(n_drawn):
            buffer[index] = draw()
        yield buffer[:n_drawn]
        report_finished_rows(n_drawn * n_rows)


def split_into_float_batches(batch: Weights) -> Iterator[Weights]:
    """Yield the weights as float64, a few resamples at a time.

    The weights of each row are next to each other in memory, as sparse products need them.
    """
    n_rows = batch.shape[1]
    if n_rows >= _MANY_ROWS:
        batch_size = min(_MAX_LONG_FLOAT_RESAMPLES, _LONG_FLOAT_BATCH_ELEMENTS // n_rows)
    else:
        batch_size = min(_MAX_FLOAT_RESAMPLES, _FLOAT_BATCH_ELEMENTS // n_rows)
    batch_size = max(1, batch_size)
    for start in range(0, len(batch), batch_size):
        resamples = batch[start : start + batch_size]
        yield np.ascontiguousarray(resamples.T, dtype=np.float64).T


@dataclass(frozen=True, eq=False)
class Target:
    """Statistic to resample.

    Attributes
    ----------
    statistic : Statistic
        The statistic.

    low, high : float
        Range of its values.

    calibration_error : bool
        Whether it is 0 for perfect calibration but positive on every sample.

    wide : bool
        Whether it reads a whole table. Such a statistic gets many resamples at a time, so that the
        table is read less often.
    """

    statistic: Statistic
    low: float = 0.0
    high: float = 1.0
    calibration_error: bool = False
    wide: bool = False

    @property
    def max_resamples(self) -> float:
        """Number of resamples that are enough."""
        if isinstance(self.statistic, NearlyNormalStatistic):
            return self.statistic.n_resamples
        return inf


def replicates(targets: Mapping[str, Target], drawn: Iterable[Weights]) -> dict[str, Float]:
    """Evaluate each statistic on all batches of row weights, in order."""
    value_blocks: dict[str, list[Float]] = {name: [] for name in targets}
    for batch in drawn:
        for name, target in targets.items():
            n_values = sum(map(len, value_blocks[name]))
            if target.wide and n_values < target.max_resamples:
                value_blocks[name].append(target.statistic(batch))
        for float_batch in split_into_float_batches(batch):
            for name, target in targets.items():
                if not target.wide:
                    value_blocks[name].append(target.statistic(float_batch))
    return {name: np.concatenate([np.empty(0), *blocks]) for name, blocks in value_blocks.items()}
