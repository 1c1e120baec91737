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

#: Largest numbers of elements and of resamples in a batch of weights as bytes.
_BATCH_ELEMENTS = 1 << 22
_MAX_BATCH_RESAMPLES = 64
#: Smallest number of rows at which the results of 8 resamples fill the cache.
_MANY_ROWS = 1 << 14
#: Largest numbers of elements and of resamples in a batch of weights as floats.
_FLOAT_BATCH_ELEMENTS = 1 << 18
_MAX_FLOAT_RESAMPLES = 32
#: Largest numbers of elements and of resamples in a batch of floats with many rows.
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
    # scikit-learn depends on threadpoolctl, so the module is installed.
    threadpoolctl = import_module("threadpoolctl")
    with threadpoolctl.threadpool_limits(limits=1, user_api="blas"):
        yield


def draw_batches(
    n_resamples: int, n_rows: int, draw_weights: Callable[[], Weights]
) -> Iterator[Weights]:
    """Yield batches of random row weights as int8.

    The weights do not depend on the batch size. A weight of 128, which int8 cannot hold, does not
    occur: the probability that a row is drawn 128 times out of n is below 1/128!.

    Parameters
    ----------
    n_resamples : int
        Number of resamples in all batches.

    n_rows : int
        Number of rows.

    draw_weights : callable
        Function that returns the weights of one resample.

    Yields
    ------
    array of int8 of shape (batch_size, n_rows)
        The array is overwritten by the next batch.
    """
    max_batch_size = max(1, min(_MAX_BATCH_RESAMPLES, _BATCH_ELEMENTS // n_rows))
    weight_buffer = np.empty((max_batch_size, n_rows), dtype=np.int8)
    for first_resample in range(0, n_resamples, max_batch_size):
        batch_size = min(max_batch_size, n_resamples - first_resample)
        for index in range(batch_size):
            weight_buffer[index] = draw_weights()
        yield weight_buffer[:batch_size]
        report_finished_rows(batch_size * n_rows)


def split_into_float_batches(row_weights: Weights) -> Iterator[Weights]:
    """Yield row weights as float64 in batches of a few resamples.

    The weights of each row are contiguous in memory, as sparse products require.
    """
    n_resamples, n_rows = row_weights.shape
    if n_rows >= _MANY_ROWS:
        batch_size = min(_MAX_LONG_FLOAT_RESAMPLES, _LONG_FLOAT_BATCH_ELEMENTS // n_rows)
    else:
        batch_size = min(_MAX_FLOAT_RESAMPLES, _FLOAT_BATCH_ELEMENTS // n_rows)
    batch_size = max(1, batch_size)
    for start in range(0, n_resamples, batch_size):
        batch_weights = row_weights[start : start + batch_size]
        yield np.ascontiguousarray(batch_weights.T, dtype=np.float64).T


@dataclass(frozen=True, eq=False)
class Target:
    """Statistic to resample, with its range and the size of its batches.

    Attributes
    ----------
    statistic : Statistic
        Function from row weights to one value per resample.

    low, high : float
        Smallest and largest possible value.

    calibration_error : bool
        Whether the value is 0 for perfect calibration but positive on every sample.

    reads_whole_table : bool
        Whether the statistic reads a whole table. Such a statistic gets many resamples at a time,
        so that the table is read less often.
    """

    statistic: Statistic
    low: float = 0.0
    high: float = 1.0
    calibration_error: bool = False
    reads_whole_table: bool = False

    @property
    def max_resamples(self) -> float:
        """Number of resamples that suffice for an interval."""
        if isinstance(self.statistic, NearlyNormalStatistic):
            return self.statistic.n_resamples
        return inf


def compute_replicates(
    targets: Mapping[str, Target], weight_batches: Iterable[Weights]
) -> dict[str, Float]:
    """Evaluate each statistic on all batches of row weights, in order."""
    values_by_batch: dict[str, list[Float]] = {name: [] for name in targets}
    for row_weights in weight_batches:
        for name, target in targets.items():
            n_resamples_so_far = sum(map(len, values_by_batch[name]))
            if target.reads_whole_table and n_resamples_so_far < target.max_resamples:
                values_by_batch[name].append(target.statistic(row_weights))
        for float_weights in split_into_float_batches(row_weights):
            for name, target in targets.items():
                if not target.reads_whole_table:
                    values_by_batch[name].append(target.statistic(float_weights))
    # The empty array is for statistics without any batch.
    return {
        name: np.concatenate([np.empty(0), *batches]) for name, batches in values_by_batch.items()
    }
