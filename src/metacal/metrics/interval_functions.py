"""Confidence intervals of a metric or of any other statistic.

`interval(metric, *data)` takes the metric function and its data::

    interval(ece, proba, labels, n_bins=15)
    interval(ece, confidence, correct)
    interval(aurc, score, correct)
    interval(selective_accuracy, accept, correct)

The methods are described in `metacal.metrics.resampling`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from math import inf
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from metacal.errors import InputError, ShapeError
from metacal.metrics.binning import vectorize_statistic
from metacal.metrics.intervals import Interval
from metacal.metrics.registry import METRICS, Metric
from metacal.metrics.replicates import Target
from metacal.metrics.resampling import RandomState, Resampling
from metacal.metrics.toplabel import CheckedTable, TopLabel

#: Successes and trials of a proportion that is undefined. Its estimate is NaN.
_NO_TRIALS = (0, 0)


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
    resampling = Resampling(level, n_resamples, random_state)
    registered_metric = _find_registered_metric(metric)
    _check_options(metric, registered_metric.name, options)
    validate_data = registered_metric.input
    if validate_data is None:
        # Metrics of decisions are proportions, so only successes and trials are counted.
        successes_and_trials = _NO_TRIALS
        if registered_metric.compute_counts is not None:
            successes_and_trials = registered_metric.compute_counts(*data, **options) or _NO_TRIALS
        return resampling.compute_proportion_interval(*successes_and_trials)

    validation_options = {}
    if "classes" in options:
        validation_options["classes"] = options.pop("classes")
    validated_data = validate_data(*data, **validation_options)
    n_errors = inf
    if registered_metric.needs_errors:
        n_errors = _count_incorrect_rows(validated_data)
    counts_or_statistic = registered_metric.prepare_counts_or_statistic(validated_data, **options)
    intervals = resampling.compute_intervals(
        [(registered_metric, counts_or_statistic)], n_rows=len(validated_data), n_errors=n_errors
    )
    return intervals[registered_metric.name]


def _count_incorrect_rows(validated_data: CheckedTable | TopLabel) -> float:
    """Count the rows of a probability table or of its top labels that are not correct."""
    if isinstance(validated_data, TopLabel):
        top_labels = validated_data
    else:
        top_labels = validated_data.top_label()
    return float((top_labels.correct < 1.0).sum())


def _find_registered_metric(function: Callable[..., float]) -> Metric:
    """Return the registry entry of a metric function, or raise InputError."""
    name = getattr(function, "__name__", str(function))
    metric = METRICS.get(name)
    if metric is None or metric.function is not function:
        raise InputError(
            f"No interval is registered for {name!r}. The metrics with intervals are"
            f" {', '.join(sorted(METRICS))}. For another statistic, use bootstrap(statistic,"
            " *columns)."
        )
    return metric


def _check_options(function: Callable[..., float], name: str, options: Mapping[str, Any]) -> None:
    """Raise InputError if an option is not a parameter of the metric function."""
    parameters = list(inspect.signature(function).parameters)
    for option in options:
        if option not in parameters:
            raise InputError(
                f"{name} has no option {option!r}. Its options are {', '.join(parameters)}."
            )


def bootstrap(
    statistic: Callable[..., float],
    *data: ArrayLike,
    level: float = 0.95,
    n_resamples: int = 1000,
    random_state: RandomState = 0,
    bounds: tuple[float, float] = (-inf, inf),
) -> Interval:
    """Compute a bootstrap interval of a function of columns and integer row weights.

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
    have_equal_lengths = len(set(lengths)) == 1
    if not have_equal_lengths or lengths[0] == 0:
        raise ShapeError(
            "bootstrap requires at least one column, and all columns must have the same positive"
            f" length, but got lengths {lengths}."
        )
    (n_rows,) = set(lengths)
    weighted_statistic = vectorize_statistic(lambda weights: float(statistic(*columns, weights)))
    resampling = Resampling(level, n_resamples, random_state)
    smallest_value, largest_value = bounds
    target = Target(weighted_statistic, low=smallest_value, high=largest_value)
    intervals = resampling.resample_statistics({"statistic": target}, n_rows)
    return intervals["statistic"]
