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

#: Limits of a batch of int8 weights: its number of elements, and its number of resamples.
_BATCH_ELEMENTS = 1 << 22
_MAX_BATCH_RESAMPLES = 64
#: Smallest number of rows at which batches of floats have fewer resamples and more elements.
#: With this many rows, the results of 8 resamples fill the cache.
_MANY_ROWS = 1 << 14
#: Limits of a batch of float64 weights: its number of elements, and its number of resamples.
_FLOAT_BATCH_ELEMENTS = 1 << 18
_MAX_FLOAT_RESAMPLES = 32
#: The same two limits for tables with many rows.
_FLOAT_BATCH_ELEMENTS_OF_MANY_ROWS = 1 << 20
_MAX_FLOAT_RESAMPLES_OF_MANY_ROWS = 8


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
        for position_in_batch in range(batch_size):
            weight_buffer[position_in_batch] = draw_weights()
        yield weight_buffer[:batch_size]
        report_finished_rows(batch_size * n_rows)


def split_into_float_batches(row_weights: Weights) -> Iterator[Weights]:
    """Yield row weights as float64 in batches of a few resamples.

    The weights of each row are contiguous in memory, as sparse products require.
    """
    n_resamples, n_rows = row_weights.shape
    batch_size = _choose_float_batch_size(n_rows)
    for start in range(0, n_resamples, batch_size):
        batch_weights = row_weights[start : start + batch_size]
        weights_by_row = np.ascontiguousarray(batch_weights.T, dtype=np.float64)
        yield weights_by_row.T


def _choose_float_batch_size(n_rows: int) -> int:
    """Choose the number of resamples whose float64 weights stay in the cache together."""
    if n_rows >= _MANY_ROWS:
        max_resamples = _MAX_FLOAT_RESAMPLES_OF_MANY_ROWS
        max_elements = _FLOAT_BATCH_ELEMENTS_OF_MANY_ROWS
    else:
        max_resamples = _MAX_FLOAT_RESAMPLES
        max_elements = _FLOAT_BATCH_ELEMENTS
    return max(1, min(max_resamples, max_elements // n_rows))


@dataclass(frozen=True, eq=False)
class Target:
    """Statistic to resample, with its range and the size of its batches.

    Attributes
    ----------
    statistic : Statistic
        Function from row weights to one value per resample.

    low, high : float
        Smallest and largest possible value.

    is_calibration_error : bool
        Whether the value is 0 for perfect calibration but positive on every sample.

    needs_large_batches : bool
        Whether the statistic gets whole batches of int8 weights instead of a few resamples as
        floats. A statistic that reads a large table for each batch then reads it less often.
    """

    statistic: Statistic
    low: float = 0.0
    high: float = 1.0
    is_calibration_error: bool = False
    needs_large_batches: bool = False

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
    large_batch_targets = {
        name: target for name, target in targets.items() if target.needs_large_batches
    }
    float_batch_targets = {
        name: target for name, target in targets.items() if not target.needs_large_batches
    }
    for row_weights in weight_batches:
        for name, target in large_batch_targets.items():
            n_evaluated_resamples = sum(map(len, values_by_batch[name]))
            if n_evaluated_resamples < target.max_resamples:
                values_by_batch[name].append(target.statistic(row_weights))
        for float_weights in split_into_float_batches(row_weights):
            for name, target in float_batch_targets.items():
                values_by_batch[name].append(target.statistic(float_weights))
    # The empty array is the result of a statistic without batches.
    return {
        name: np.concatenate([np.empty(0), *batches]) for name, batches in values_by_batch.items()
    }
