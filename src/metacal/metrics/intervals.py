"""An estimate with its confidence interval, and the exact one of a proportion (Clopper & Pearson 1934)."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from math import floor, isfinite, isnan, nan
from typing import Any

from scipy.special import betaincinv

from metacal import shown
from metacal.errors import InputError
from metacal.rows import validate

#: What a float's last bits add to a decimal: 1e4 · 0.57 is 5699.999999999999.
_NOISE = 1e-6
EXACT = "Clopper-Pearson"
BOOTSTRAP = "bootstrap"
NO_INTERVAL = "none"


@dataclass(frozen=True)
class Interval:
    """An estimate and its two-sided confidence interval; all NaN when the metric is undefined on the data.

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
        if isnan(self.low):
            return f"{self.estimate:.4f}"
        return f"{self.estimate:.4f} {outward(self.low, self.high)}"

    def to_dict(self) -> dict[str, float | str | None]:
        """JSON-safe: what is not a finite number becomes None."""
        numbers = {"estimate": self.estimate, "low": self.low, "high": self.high, "level": self.level}
        return {**{name: value if isfinite(value) else None for name, value in numbers.items()}, "method": self.method}

    def to_frame(self) -> Any:
        """One row of a `pandas.DataFrame`: estimate, low, high, level, method."""
        return shown.frame([vars(self)])

    def _repr_html_(self) -> str:
        told = "" if isnan(self.low) else f", {100 * self.level:g}% interval ({self.method})"
        return f"<span>{escape(f'{self}{told}')}</span>"


def outward(low: float, high: float, digits: int = 4) -> str:
    """An interval in words, its ends rounded outward: what is said never claims more than what was computed.

    Examples
    --------
    >>> outward(0.91482, 0.99381), outward(0.57, 0.58)
    ('[0.9148, 0.9939]', '[0.5700, 0.5800]')
    """
    below, above = (side(value, digits) for side, value in ((_down, low), (_up, high)))
    return f"[{below:.{digits}f}, {above:.{digits}f}]"


def _down(value: float, digits: int) -> float:
    units = value * 10.0**digits
    return (round(units) if abs(units - round(units)) < _NOISE else floor(units)) / 10.0**digits


def _up(value: float, digits: int) -> float:
    return -_down(-value, digits)


def clopper_pearson(successes: int, n: int, level: float = 0.95) -> Interval:
    """Exact interval of a proportion from `successes` out of `n` (Clopper & Pearson 1934); NaN when n is 0.

    The ends are the proportions at which a one-sided binomial test of level (1 - level)/2 just rejects: quantiles of
    Beta(k, n - k + 1) and Beta(k + 1, n - k).

    Examples
    --------
    >>> clopper_pearson(0, 30)
    Interval(estimate=0.0, low=0.0, high=0.115..., level=0.95, method='Clopper-Pearson')
    """
    level = validate.fraction("level", level)
    if not 0 <= successes <= n:
        raise InputError(f"successes must lie between 0 and n = {n}, got {successes}.")
    if n == 0:
        return Interval(nan, nan, nan, level, EXACT)
    tail = (1.0 - level) / 2.0
    low = float(betaincinv(successes, n - successes + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, n - successes, 1.0 - tail)) if successes < n else 1.0
    share = successes / n
    return Interval(share, min(low, share), max(high, share), level, EXACT)
