"""Estimates of several methods on the same rows, and which of them are near the best one.

The losses of two methods on the same rows go up and down together. The standard error of their
difference is often ten times smaller than that of either loss, so only the difference shows whether
two methods can be told apart.

**Near the best.** A method is near the best one if its estimate is worse by at most
`STANDARD_ERRORS` standard errors of the difference. This is a rule of thumb without a confidence
level, for three reasons:

1. A standard error comes from the rows of the sample. If a method has a huge loss on one row in n, more than a third of
   all samples of n rows lack such a row, and no multiple of the standard error makes up for it. A
   log loss has no upper bound that could take the place of the missing row.
2. The methods were fitted on folds that overlap, so the losses of the rows are not independent.
3. The error is that of the measured rows. It does not include how a fit depends on the rows it was fitted on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from metacal.formulas import Codes, Float
from metacal.metrics.binning import Statistic, estimate
from metacal.metrics.resampling import Target, batches, replicates
from metacal.rows.draws import generator

#: How many standard errors of the difference a method near the best one may be worse.
STANDARD_ERRORS = 3.0
#: How often rows are drawn again for the standard error of a statistic that is no mean.
_RESAMPLES = 100


class Paired(NamedTuple):
    """A metric of several methods: estimates, replicates (a line each), and what makes an error of
    their spread.

    >>> random = np.random.default_rng(0)
    >>> rows = random.exponential(size=1000)                       # the same rows, hard and easy ones
    >>> noise = random.normal(0.0, 0.05, (3, 1000))
    >>> found = by_rows(rows + noise + [[0.0], [0.001], [0.02]], np.arange(1000))
    >>> found.near_best, bool(found.error(2) > 10 * found.error(2, 0))
    ([0, 1], True)
    """

    estimates: Float
    replicates: Float
    scale: float
    smaller_is_better: bool

    def error(self, one: int, other: int | None = None) -> float:
        """The standard error of an estimate, or of the difference of two; NaN where it cannot be
        told.
        """
        if self.replicates.shape[1] < 2:
            return float("nan")
        with np.errstate(invalid="ignore"):
            drawn = self.replicates[one] - (0.0 if other is None else self.replicates[other])
            return self.scale * float(drawn.std(ddof=1))

    @property
    def near_best(self) -> list[int]:
        """Indices of the best method and of those that are at most `STANDARD_ERRORS` standard
        errors worse.

        If the standard error of a difference is unknown, any difference counts.
        """
        losses = self.estimates if self.smaller_is_better else -self.estimates
        best = int(np.argmin(losses))
        near = []
        for method, loss in enumerate(losses):
            allowed = STANDARD_ERRORS * float(np.nan_to_num(self.error(method, best), posinf=0.0))
            if loss <= losses[best] or loss - losses[best] <= allowed:
                near.append(method)
        return near


def by_rows(losses: ArrayLike, rows: Codes, smaller_is_better: bool = True) -> Paired:
    """From the losses of each method on these rows; one that comes several times counts with its
    mean.
    """
    at, times = np.unique(rows, return_counts=True)
    columns = np.array(
        [np.bincount(rows, own)[at] / times for own in np.asarray(losses, np.float64)]
    )
    return Paired(columns.mean(axis=1), columns, 1.0 / float(np.sqrt(len(at))), smaller_is_better)


def by_folds(values: ArrayLike, smaller_is_better: bool = True) -> Paired:
    """From a value of each method on each fold."""
    table = np.asarray(values, dtype=np.float64)
    return Paired(
        table.mean(axis=1), table, 1.0 / float(np.sqrt(table.shape[1])), smaller_is_better
    )


def by_resamples(
    statistics: Sequence[Statistic], n_rows: int, smaller_is_better: bool = True
) -> Paired:
    """From a statistic of each method on the same rows, which are drawn again, the same for all."""
    random = generator(0)
    targets = {str(number): Target(statistic) for number, statistic in enumerate(statistics)}
    draws = batches(
        _RESAMPLES,
        n_rows,
        lambda: np.bincount(random.integers(n_rows, size=n_rows), minlength=n_rows),
    )
    drawn = replicates(targets, draws)
    found = np.array([estimate(statistic, n_rows) for statistic in statistics])
    return Paired(found, np.array(list(drawn.values())), 1.0, smaller_is_better)
