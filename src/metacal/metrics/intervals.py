"""An estimate with its confidence interval, and the exact one of a proportion (Clopper & Pearson
1934).
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from math import isfinite, isnan, nan
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv

from metacal import display
from metacal.errors import InputError
from metacal.formulas import Float
from metacal.rows.arrays import fraction

EXACT = "Clopper-Pearson"
BOOTSTRAP = "bootstrap"
#: Resamples with exponential row weights and an unseen row (`metacal.metrics.ranking`).
BAYESIAN_BOOTSTRAP = "Bayesian bootstrap"
NO_INTERVAL = "none"
#: These rows cannot tell: there are too few wrong ones among them.
TOO_FEW_ERRORS = "none: too few errors"


@dataclass(frozen=True)
class Interval:
    """An estimate and its two-sided confidence interval; all NaN when the metric is undefined on
    the data.

    Examples
    --------
    >>> found = clopper_pearson(97, 100)
    >>> print(found)
    0.9700 [0.9148, 0.9938]
    >>> 0.95 in found
    True
    """

    estimate: float
    low: float
    high: float
    level: float
    method: str

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        if isnan(self.estimate):
            return "undefined"
        if self.method == TOO_FEW_ERRORS:
            return f"{self.estimate:.4f} (too few errors)"
        if isnan(self.low):
            return f"{self.estimate:.4f}"
        return f"{self.estimate:.4f} {display.outward(self.low, self.high)}"

    def to_dict(self) -> dict[str, float | str | None]:
        """JSON-safe: what is not a finite number becomes None."""
        return {
            name: value if name == "method" or isfinite(value) else None
            for name, value in vars(self).items()
        }

    def to_frame(self) -> Any:
        """One row of a `pandas.DataFrame`: estimate, low, high, level, method."""
        return display.frame([vars(self)])

    def _repr_html_(self) -> str:
        told = "" if isnan(self.low) else f", {100 * self.level:g}% interval ({self.method})"
        return f"<span>{escape(f'{self}{told}')}</span>"


def clopper_pearson(successes: int, n: int, level: float = 0.95) -> Interval:
    """Exact interval of a proportion from `successes` out of `n` (Clopper & Pearson 1934); NaN when
    n is 0.

    The ends are the proportions at which a one-sided binomial test of level (1 - level)/2 just
    rejects: quantiles of Beta(k, n - k + 1) and Beta(k + 1, n - k).

    Examples
    --------
    >>> clopper_pearson(0, 30)
    Interval(estimate=0.0, low=0.0, high=0.115..., level=0.95, method='Clopper-Pearson')
    """
    level = fraction("level", level)
    if not 0 <= successes <= n:
        raise InputError(f"successes must lie between 0 and n = {n}, got {successes}.")
    if n == 0:
        return Interval(nan, nan, nan, level, EXACT)
    low, high = map(float, exact_limits(successes, n, (1.0 - level) / 2.0))
    share = successes / n
    return Interval(share, min(low, share), max(high, share), level, EXACT)


def exact_limits(successes: ArrayLike, n: ArrayLike, tail: float) -> tuple[Float, Float]:
    """Both ends of many such intervals, each at one-sided level `tail`; 0 and 1 where there is
    nothing to go by.

    Examples
    --------
    >>> [end.round(3).tolist() for end in exact_limits([0, 45, 50], 50, 0.025)]
    [[0.0, 0.782, 0.929], [0.071, 0.967, 1.0]]
    """
    hit, of = np.asarray(successes, dtype=np.float64), np.asarray(n, dtype=np.float64)
    low = np.where(hit > 0, betaincinv(np.maximum(hit, 1.0), of - hit + 1.0, tail), 0.0)
    return low, np.where(
        hit < of, betaincinv(hit + 1.0, np.maximum(of - hit, 1.0), 1.0 - tail), 1.0
    )
