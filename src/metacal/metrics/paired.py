r"""Methods compared on the same rows: which of them does no other beat by more than chance?

Losses of two methods on the same rows go up and down together, so that the standard error of their difference is often
ten times smaller than that of either; only the first says whether one is as good as the other.

**The set of winners.** One method is beaten by another where its estimate is worse by more than z standard errors of
the difference, z the normal quantile at 1 - α/(M - 1) for M methods. The truly best one is at least as good as each of
the M - 1 others, so each beats it with probability at most α/(M - 1): it is in the set of those that nobody beats with
confidence 1 - α (Boole). The error is that of the rows that are measured; what depends on which rows the methods were
fitted on is not in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from metacal.formulas import Codes, Float
from metacal.metrics.binning import Statistic, estimate
from metacal.metrics.resampling import Target, batches, replicates
from metacal.rows.draws import generator

#: 1 - α: how sure it is that the truly best method is in the set.
CONFIDENCE = 0.9
#: How often rows are drawn again for the standard error of a statistic that is no mean.
_RESAMPLES = 100


class Paired(NamedTuple):
    """A metric of several methods: estimates, replicates (a line each), and what makes an error of their spread.

    >>> random = np.random.default_rng(0)
    >>> rows = random.exponential(size=1000)                       # the same rows, hard and easy ones
    >>> noise = random.normal(0.0, 0.05, (3, 1000))
    >>> found = by_rows(rows + noise + [[0.0], [0.001], [0.02]], np.arange(1000))
    >>> found.unbeaten, bool(found.error(2) > 10 * found.error(2, 0))
    ([0, 1], True)
    """

    estimates: Float
    replicates: Float
    scale: float
    smaller_is_better: bool

    def error(self, one: int, other: int | None = None) -> float:
        """The standard error of an estimate, or of the difference of two; NaN where it cannot be told."""
        if self.replicates.shape[1] < 2:
            return float("nan")
        with np.errstate(invalid="ignore"):
            drawn = self.replicates[one] - (0.0 if other is None else self.replicates[other])
            return self.scale * float(drawn.std(ddof=1))

    @property
    def unbeaten(self) -> list[int]:
        """Those that no other one beats; where an error cannot be told, any difference counts."""
        n = len(self.estimates)
        z = float(ndtri(1.0 - (1.0 - CONFIDENCE) / max(n - 1, 1)))
        losses = self.estimates if self.smaller_is_better else -self.estimates

        def beaten(one: int, other: int) -> bool:
            if not losses[one] > losses[other]:
                return False
            return bool(losses[one] - losses[other] > z * np.nan_to_num(self.error(one, other), posinf=0.0))

        return [one for one in range(n) if not any(beaten(one, other) for other in range(n) if other != one)]


def by_rows(losses: ArrayLike, rows: Codes, smaller_is_better: bool = True) -> Paired:
    """From the losses of each method on these rows; one that comes several times counts with its mean."""
    at, times = np.unique(rows, return_counts=True)
    columns = np.array([np.bincount(rows, own)[at] / times for own in np.asarray(losses, np.float64)])
    return Paired(columns.mean(axis=1), columns, 1.0 / float(np.sqrt(len(at))), smaller_is_better)


def by_folds(values: ArrayLike, smaller_is_better: bool = True) -> Paired:
    """From a value of each method on each fold."""
    table = np.asarray(values, dtype=np.float64)
    return Paired(table.mean(axis=1), table, 1.0 / float(np.sqrt(table.shape[1])), smaller_is_better)


def by_resamples(statistics: Sequence[Statistic], n_rows: int, smaller_is_better: bool = True) -> Paired:
    """From a statistic of each method on the same rows, which are drawn again, the same for all."""
    random = generator(0)
    targets = {str(number): Target(statistic) for number, statistic in enumerate(statistics)}
    draws = batches(_RESAMPLES, n_rows, lambda: np.bincount(random.integers(n_rows, size=n_rows), minlength=n_rows))
    drawn = replicates(targets, draws)
    found = np.array([estimate(statistic, n_rows) for statistic in statistics])
    return Paired(found, np.array(list(drawn.values())), 1.0, smaller_is_better)
