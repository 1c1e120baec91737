"""Functions that compute the confidence interval of a metric or of any other statistic.

`interval(metric, *data)` takes the metric function and its data::

    interval(ece, proba, labels, n_bins=15)
    interval(ece, confidence, correct)
    interval(aurc, score, correct)
    interval(coverage_accuracy, accept, correct)

The methods are described in `metacal.metrics.resampling`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from math import inf
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from metacal.errors import InputError
from metacal.metrics.binning import statistic_from_function
from metacal.metrics.intervals import Interval
from metacal.metrics.registry import METRICS, Metric
from metacal.metrics.replicates import Target
from metacal.metrics.resampling import RandomState, Resampling
from metacal.metrics.toplabel import TopLabel


def interval(
    metric: Callable[..., float],
    *data: ArrayLike,
    level: float = 0.95,
    n_resamples: int = 1000,
    random_state: RandomState = 0,
    **options: Any,
) -> Interval:
    """Compute the confidence interval of a metric of this package.

    Parameters
    ----------
    metric : callable
        Any metric of `metacal.metrics` that returns one number.

    *data : arrays
        Data of the metric: (proba, labels), (confidence, correct), (accept, correct) or (score,
        correct).

    level, n_resamples, random_state
        As in `bootstrap`. Proportions have an exact interval and draw nothing.

    **options
        Options of the metric: `n_bins`, `binning`, `classes`.

    Returns
    -------
    Interval

    Raises
    ------
    InputError
        If the metric is not registered, or has no such option.

    Examples
    --------
    >>> from metacal.metrics import coverage, ece
    >>> print(interval(coverage, [True] * 9 + [False]))
    0.9000 [0.5549, 0.9975]
    >>> result = interval(ece, [0.9, 0.8, 0.7, 0.6], [1, 1, 0, 1], n_bins=5, n_resamples=100)
    >>> result.low <= result.estimate <= result.high
    True
    """
    plan = Resampling(level, n_resamples, random_state)
    entry = _find_metric(metric)
    _check_options(metric, entry.name, options)
    if entry.input is None:
        counts = None
        if entry.counts is not None:
            counts = entry.counts(*data, **options)
        return plan.measure([(entry, counts or (0, 0))], n_rows=0)[entry.name]

    input_options = {}
    if "classes" in options:
        input_options["classes"] = options.pop("classes")
    source = entry.input(*data, **input_options)
    n_errors = inf
    if entry.needs_errors:
        top = source if isinstance(source, TopLabel) else source.top_label()
        n_errors = float((top.correct < 1.0).sum())
    measured = entry.measured(source, **options)
    return plan.measure([(entry, measured)], len(source), n_errors)[entry.name]


def _find_metric(function: Callable[..., float]) -> Metric:
    """Return the registry entry of a metric function; raise InputError if there is none."""
    name = getattr(function, "__name__", str(function))
    entry = METRICS.get(name)
    if entry is None or entry.function is not function:
        raise InputError(
            f"there is no interval for {name!r}; known are {', '.join(sorted(METRICS))}. "
            "For a statistic of your own use bootstrap(statistic, *columns)."
        )
    return entry


def _check_options(function: Callable[..., float], name: str, options: Mapping[str, Any]) -> None:
    """Raise InputError if a metric function has no parameter of the name of an option."""
    parameters = list(inspect.signature(function).parameters)
    for option in options:
        if option not in parameters:
            raise InputError(
                f"{name} has no option {option!r}; its arguments are {', '.join(parameters)}."
            )


def bootstrap(
    statistic: Callable[..., float],
    *data: ArrayLike,
    level: float = 0.95,
    n_resamples: int = 1000,
    random_state: RandomState = 0,
    bounds: tuple[float, float] = (-inf, inf),
) -> Interval:
    """Compute a bootstrap interval of any statistic of columns with integer row weights.

    The interval is the hull of the percentile and the basic interval,
    ``θ ± max(q_high - θ, θ - q_low)``. It always contains the estimate θ.

    Parameters
    ----------
    statistic : callable
        Function of (*columns, weights) that counts row i ``weights[i]`` times. If all weights are
        1, it returns the estimate.

    *data : arrays
        Columns with one entry per row.

    level : float, default=0.95
        Confidence level.

    n_resamples : int, default=1000
        Number of resamples.

    random_state : int, numpy.random.Generator or None, default=0
        Seed or generator. The same seed gives the same bits.

    bounds : tuple of two floats, optional
        Range of the statistic. The interval is clipped to it.

    Returns
    -------
    Interval

    Raises
    ------
    InputError
        If there is no column, or the columns are empty or of different lengths.

    References
    ----------
    Davison & Hinkley, Bootstrap Methods and their Application, 1997, section 5.2.

    Examples
    --------
    >>> def mean(x, weights):
    ...     return float((x * weights).sum() / weights.sum())
    >>> result = bootstrap(mean, [1.0, 2.0, 3.0, 4.0], n_resamples=200)
    >>> result.estimate, 2.5 in result, result.method
    (2.5, True, 'bootstrap')
    """
    columns = [np.asarray(column) for column in data]
    lengths = [len(column) for column in columns]
    if len(set(lengths)) != 1 or lengths[0] == 0:
        raise InputError(
            "bootstrap needs at least one column, all of one non-zero length; got lengths"
            f" {lengths}."
        )
    weighted_statistic = statistic_from_function(
        lambda weights: float(statistic(*columns, weights))
    )
    plan = Resampling(level, n_resamples, random_state)
    target = Target(weighted_statistic, low=bounds[0], high=bounds[1])
    return plan.intervals({"statistic": target}, lengths[0])["statistic"]
