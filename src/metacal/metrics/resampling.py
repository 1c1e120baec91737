"""Row weights of resamples, some at a time: what a bootstrap draws.

A draw is one small whole number a row. It is kept as such, a byte each, and turned into floats a few resamples at a
time: those stay in the cache while everything is computed from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from metacal.metrics.binning import Weights
from metacal.rows import advance

#: Weights drawn at once, as small whole numbers, up to 64 resamples of them: one product with a whole table.
_BATCH_ELEMENTS = 1 << 22
#: Those of them that are floats at a time, for everything else: up to 32 resamples of few rows, 8 of many.
_FEW_ELEMENTS, _LEAST_ELEMENTS = 1 << 18, 1 << 20
#: Rows from which on they are many: what is computed from 8 resamples then fills the cache.
_MANY = 1 << 14


def batches(count: int, n_rows: int, draw: Callable[[], Weights]) -> Iterator[Weights]:
    """Yield `count` draws of row weights, several at a time; the draws do not depend on the batch size.

    A batch has the shape (resamples, rows). Weights are a handful at most: that a row is drawn 128 times out of n rows
    has a probability below 1/128!.
    """
    step = max(1, min(64, _BATCH_ELEMENTS // n_rows))
    held = np.empty((step, n_rows), dtype=np.int8)
    for start in range(0, count, step):
        n_drawn = min(step, count - start)
        for number in range(n_drawn):
            held[number] = draw()
        yield held[:n_drawn]
        advance(n_drawn * n_rows)


def few_as_floats(batch: Weights) -> Iterator[Weights]:
    """The same weights a few resamples at a time; in memory as (rows, resamples), as sparse products want them."""
    n_rows = batch.shape[1]
    step = min(8, _LEAST_ELEMENTS // n_rows) if n_rows >= _MANY else min(32, _FEW_ELEMENTS // n_rows)
    step = max(1, step)
    for start in range(0, len(batch), step):
        yield np.ascontiguousarray(batch[start : start + step].T, dtype=np.float64).T
