"""The one registry of metrics: what `evaluate`, `compare`, `interval`, the command line and the report ask.

How to add a metric is written in `metacal.metrics.metric`.
"""

from __future__ import annotations

from collections.abc import Callable

from metacal.errors import InputError
from metacal.metrics import calibration, proper, ranking, selective
from metacal.metrics.metric import Input, Metric

#: Every metric by name, in the order in which tables show them.
METRICS: dict[str, Metric] = {
    metric.name: metric
    for family in (calibration.METRICS, proper.METRICS, selective.METRICS, ranking.METRICS)
    for metric in family
}


def register(metric: Metric) -> None:
    """Enter a metric: from then on it is evaluated, compared and reported as its row says, and has an interval.

    Examples
    --------
    >>> from metacal.metrics.metric import PROBABILITIES
    >>> def nll(proba, labels):
    ...     return 0.0
    >>> register(Metric(function=nll, title="mine", input=PROBABILITIES, losses=lambda checked: checked.top))
    Traceback (most recent call last):
    metacal.errors.InputError: there is a metric named 'nll' already; give the function another name.
    """
    if metric.name in METRICS:
        raise InputError(f"there is a metric named {metric.name!r} already; give the function another name.")
    METRICS[metric.name] = metric


def evaluated(*inputs: Input) -> list[Metric]:
    """Return what `evaluate` shows of the metrics that take one of `inputs`.

    Examples
    --------
    >>> from metacal.metrics.metric import DECISION
    >>> [metric.name for metric in evaluated(DECISION)]
    ['coverage', 'miscoverage', 'coverage_accuracy', 'type_1_error', 'type_2_error']
    """
    return [metric for metric in METRICS.values() if metric.evaluated and metric.input in inputs]


def compared() -> list[Metric]:
    """Return what `compare` measures, proper scoring rules first.

    Examples
    --------
    >>> [metric.heading for metric in compared()]
    ['NLL', 'Brier', 'ECE', 'ECE eq. mass', 'class-wise']
    """
    return sorted((metric for metric in METRICS.values() if metric.compared), key=lambda metric: not metric.proper)


def metric_of(function: Callable[..., float]) -> Metric | None:
    """Return the metric that a public function computes.

    Examples
    --------
    >>> metric_of(calibration.ece).title
    'ECE, equal width'
    """
    return next((metric for metric in METRICS.values() if function is metric.function), None)


def title_of(name: str) -> str:
    """Return the title of a metric; its name where it is not registered (any more)."""
    return METRICS[name].title if name in METRICS else name
