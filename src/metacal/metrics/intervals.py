"""Estimates with confidence intervals, and the exact interval of a proportion."""

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
from metacal.rows.arrays import check_fraction

# Values of `Interval.method`.
EXACT = "Clopper-Pearson"
BOOTSTRAP = "bootstrap"
#: Bootstrap with exponential row weights and an unseen row (`metacal.metrics.area_intervals`).
BAYESIAN_BOOTSTRAP = "Bayesian bootstrap"
NO_INTERVAL = "none"
#: No interval, because the sample has too few incorrect rows.
TOO_FEW_ERRORS = "none: too few errors"


@dataclass(frozen=True)
class Interval:
    """Estimate of a metric with its two-sided confidence interval.

    Attributes
    ----------
    estimate : float
        Value of the metric on the sample, NaN if the metric is undefined there.

    low, high : float
        Ends of the interval, NaN if there is no interval.

    level : float
        Confidence level.

    method : str
        Method that computed the interval.

    Examples
    --------
    >>> interval = clopper_pearson(97, 100)
    >>> print(interval)
    0.9700 [0.9148, 0.9938]
    >>> 0.95 in interval
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
        return f"{self.estimate:.4f} {display.format_interval(self.low, self.high)}"

    def to_dict(self) -> dict[str, float | str | None]:
        """Return the fields as JSON types, with None for numbers that are not finite."""
        fields: dict[str, float | str | None] = {}
        for name, value in vars(self).items():
            is_json = name == "method" or isfinite(value)
            fields[name] = value if is_json else None
        return fields

    def to_frame(self) -> Any:
        """Return a `pandas.DataFrame` of one row with the fields as columns."""
        return display.make_frame([vars(self)])

    def _repr_html_(self) -> str:
        text = str(self)
        if not isnan(self.low):
            text += f", {100 * self.level:g}% interval ({self.method})"
        return f"<span>{escape(text)}</span>"


def clopper_pearson(successes: int, n: int, level: float = 0.95) -> Interval:
    """Compute the exact confidence interval of a proportion.

    The ends are the proportions at which a one-sided binomial test of size (1 - level) / 2 just
    rejects. They are quantiles of Beta(k, n - k + 1) and Beta(k + 1, n - k) for k successes.

    Parameters
    ----------
    successes : int
        Number of successes.

    n : int
        Number of trials.

    level : float, default=0.95
        Confidence level.

    Returns
    -------
    Interval
        All numbers are NaN if `n` is 0.

    Raises
    ------
    InputError
        If `successes` is negative or larger than `n`.

    References
    ----------
    Clopper & Pearson, "The use of confidence or fiducial limits illustrated in the case of the
    binomial", Biometrika, 1934.

    Examples
    --------
    >>> clopper_pearson(0, 30)
    Interval(estimate=0.0, low=0.0, high=0.115..., level=0.95, method='Clopper-Pearson')
    """
    level = check_fraction("level", level)
    if not 0 <= successes <= n:
        raise InputError(f"successes must lie between 0 and n = {n}, but got {successes}.")
    if n == 0:
        return Interval(estimate=nan, low=nan, high=nan, level=level, method=EXACT)
    lower_limit, upper_limit = compute_clopper_pearson_limits(
        successes, n, tail=(1.0 - level) / 2.0
    )
    proportion = successes / n
    # Rounding must not move an end past the estimate.
    return Interval(
        estimate=proportion,
        low=min(float(lower_limit), proportion),
        high=max(float(upper_limit), proportion),
        level=level,
        method=EXACT,
    )


def compute_clopper_pearson_limits(
    successes: ArrayLike, n: ArrayLike, tail: float
) -> tuple[Float, Float]:
    """Compute the Clopper-Pearson limits of many proportions.

    Parameters
    ----------
    successes, n : array-like
        Numbers of successes and of trials, which broadcast against each other.

    tail : float
        One-sided error probability of each limit.

    Returns
    -------
    lower_limits, upper_limits : arrays
        0 and 1 if there are no trials.

    Examples
    --------
    >>> [limits.round(3).tolist() for limits in compute_clopper_pearson_limits([0, 45, 50], 50, 0.025)]
    [[0.0, 0.782, 0.929], [0.071, 0.967, 1.0]]
    """
    n_successes = np.asarray(successes, dtype=np.float64)
    n_trials = np.asarray(n, dtype=np.float64)
    n_failures = n_trials - n_successes
    lower_limits = np.where(
        n_successes > 0,
        betaincinv(np.maximum(n_successes, 1.0), n_failures + 1.0, tail),
        0.0,
    )
    upper_limits = np.where(
        n_successes < n_trials,
        betaincinv(n_successes + 1.0, np.maximum(n_failures, 1.0), 1.0 - tail),
        1.0,
    )
    return lower_limits, upper_limits
