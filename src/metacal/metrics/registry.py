"""Registry of all metrics.

**To add a metric**, edit the file of its family (`calibration`, `proper`, `selective` or
`ranking`): write the function and the function that prepares its statistic, and decorate the metric
with `register`. Describe it in docs/metrics.md. `metacal.metrics` then exports it by name. You can
register your own metric outside the package in the same way.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from metacal.errors import InputError
from metacal.formulas import Float
from metacal.metrics.binning import Statistic, build_mean_statistic
from metacal.metrics.toplabel import CheckedTable, checked_table, read_top_label

F = TypeVar("F", bound=Callable[..., Any])

#: Input of an interval: successes and trials of a proportion, or a statistic to resample.
#: A plain value has no interval.
CountsStatisticOrValue = tuple[int, int] | Statistic | float


#: Function that validates the arguments of a metric. It also names the kind of data in the registry.
Input = Callable[..., Any]
#: (proba, labels), read as a `CheckedTable`.
PROBABILITIES: Input = checked_table
#: (proba, labels) or (confidence, correct), read as a `TopLabel`.
TOP_LABEL: Input = read_top_label
#: (accept, correct), the decisions of the gate. Such a metric has only `compute_counts`.
DECISION = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Metric:
    """Description of a registered metric: its function, data, statistic and display.

    A metric has a `statistic`, or `losses`, or only `compute_counts`. A metric with a statistic or
    losses may have `compute_counts` as well.

    Attributes
    ----------
    function : callable
        The public function. Its name is the key of the metric in JSON.

    title : str
        Name of the metric in tables.

    input : Input or None
        Kind of data that the function takes: `PROBABILITIES`, `TOP_LABEL`, `DECISION`, or
        `metacal.metrics.ranking.RANKING`.

    heading : str
        Short name for the head of a narrow column.

    statistic : callable, optional
        Function from the validated data (and `n_bins`, if the metric is binned) to a statistic.

    debiased : callable, optional
        Replacement for `statistic` when methods are compared, without the bias of small samples.

    losses : callable, optional
        Function from a `CheckedTable` to one value per row. The metric is the mean of these values
        and can be computed block by block.

    make_accumulator : callable, optional
        Function from (n_classes, n_bins) to an accumulator with `add(table, accept)`, ``+=`` and
        `value(accepted)`. The accumulator computes a metric of the whole table without the table,
        and the result does not depend on the order of the rows. Only an interval needs the table.

    compute_counts : callable, optional
        Function that returns the successes and trials of a proportion, which has an exact interval.
        It returns None if the data are not plain counts.

    range : tuple of two floats
        Smallest and largest possible value. Intervals are clipped to it.

    smaller_is_better : bool
        Whether smaller values are better.

    calibration_error : bool
        Whether the metric is 0 for perfect calibration but positive on every sample. Its interval
        includes 0 if chance explains the estimate.

    evaluated, compared : bool
        Whether `evaluate` (with the report) and `compare` show the metric.

    proper : bool
        Whether it is a proper scoring rule. Comparisons show these first.

    needs_errors : bool
        Whether a few incorrect rows contribute most of the value. With fewer than five of them
        there is no interval.

    has_interval : bool
        Whether an interval is computed. False if no bootstrap interval is valid at any sample size.

    needs_rejected : bool
        For a metric of decisions, whether it depends on the correctness of rejected rows.

    printed_title : str or None
        Name of the metric in a printed evaluation. If empty, the title is printed. If None, the
        metric is only in the JSON output and the data frame.
    """

    function: Callable[..., float]
    title: str
    input: Input | None
    heading: str = ""
    statistic: Callable[..., Statistic] | None = None
    debiased: Callable[..., Statistic] | None = None
    losses: Callable[[CheckedTable], Float] | None = None
    make_accumulator: Callable[[int, int], Any] | None = None
    compute_counts: Callable[..., tuple[int, int] | None] | None = None
    range: tuple[float, float] = (0.0, 1.0)
    smaller_is_better: bool = True
    calibration_error: bool = False
    evaluated: bool = False
    compared: bool = False
    proper: bool = False
    needs_errors: bool = False
    has_interval: bool = True
    needs_rejected: bool = True
    printed_title: str | None = ""

    @property
    def name(self) -> str:
        """Name of the public function, which is the key of the metric."""
        return self.function.__name__

    @property
    def printed_name(self) -> str | None:
        """Name in a printed evaluation, None if it omits the metric."""
        if self.printed_title is None:
            return None
        return self.printed_title or self.title

    @property
    def is_mean_of_row_losses(self) -> bool:
        """Whether the metric is the mean of a loss of each row."""
        return self.losses is not None

    @property
    def reads_top_label(self) -> bool:
        """Whether the confidence and the correctness of each row determine the metric."""
        return self.input is TOP_LABEL

    @property
    def has_bins(self) -> bool:
        """Whether the function has a parameter `n_bins`."""
        return "n_bins" in inspect.signature(self.function).parameters

    @property
    def reads_whole_table(self) -> bool:
        """Whether the statistic reads the whole table for each batch of resamples."""
        return self.input is PROBABILITIES and self.losses is None

    @property
    def is_proportion(self) -> bool:
        """Whether the metric is a proportion, which successes and trials determine."""
        return self.compute_counts is not None

    def prepare_statistic(self, validated_data: Any, **options: Any) -> Statistic:
        """Build the statistic of validated data.

        Parameters
        ----------
        validated_data : CheckedTable, TopLabel or Ranking
            Result of the function `input`.

        **options
            Options of the metric, such as `n_bins`.

        Returns
        -------
        Statistic

        Raises
        ------
        TypeError
            If the metric has only `compute_counts`.

        Examples
        --------
        >>> import numpy as np
        >>> top = read_top_label([[0.9, 0.1], [0.6, 0.4]], [0, 1])
        >>> statistic = METRICS["ece"].prepare_statistic(top, n_bins=5)
        >>> statistic(np.array([[1, 1], [2, 0]])).round(6)
        array([0.35, 0.1 ])
        """
        if self.losses is not None:
            row_losses = self.losses(validated_data)
            return build_mean_statistic(row_losses)
        if self.statistic is None:
            raise TypeError(
                f"The metric {self.name} is computed from counts, so it does not support row"
                " weights."
            )
        return self.statistic(validated_data, **options)

    def prepare_counts_or_statistic(
        self, validated_data: Any, **options: Any
    ) -> CountsStatisticOrValue:
        """Return the counts of a proportion, or the statistic if there are no counts."""
        if self.compute_counts is not None:
            successes_and_trials = self.compute_counts(validated_data)
            if successes_and_trials is not None:
                return successes_and_trials
        return self.prepare_statistic(validated_data, **options)


#: All metrics by name, in the order of the tables.
METRICS: dict[str, Metric] = {}


def register(**attributes: Any) -> Callable[[F], F]:
    """Return a decorator that registers a function as a metric.

    Parameters
    ----------
    **attributes
        Attributes of `Metric` other than `function`.

    Returns
    -------
    callable
        Decorator that returns the function unchanged.

    Raises
    ------
    InputError
        If a metric of this name is registered already.

    Examples
    --------
    >>> @register(title="mine", input=PROBABILITIES, losses=lambda table: table.row_maxima)
    ... def nll(proba, labels):
    ...     return 0.0
    Traceback (most recent call last):
    metacal.errors.InputError: A metric named 'nll' is already registered. Choose another name ...
    """

    def add_to_registry(function: F) -> F:
        metric = Metric(function=function, **attributes)
        if metric.name in METRICS:
            raise InputError(
                f"A metric named {metric.name!r} is already registered. Choose another name"
                " for the function."
            )
        METRICS[metric.name] = metric
        return function

    return add_to_registry


def list_metric_modules() -> dict[str, str]:
    """Return the module of each metric, as a dict from metric name to module name."""
    return {name: metric.function.__module__ for name, metric in METRICS.items()}


def list_evaluated_metrics(*inputs: Input | None) -> list[Metric]:
    """List the metrics that `evaluate` shows and that take one of the kinds of input.

    Examples
    --------
    >>> METRICS["coverage"] in list_evaluated_metrics(DECISION)
    True
    """
    return [metric for metric in METRICS.values() if metric.evaluated and metric.input in inputs]


def describe_calibration_metrics(metric_names: Iterable[str]) -> list[dict[str, Any]]:
    """Describe the calibration metrics that the report shows.

    Parameters
    ----------
    metric_names : iterable of str
        Names of the metrics that were evaluated.

    Returns
    -------
    list of dict
        ``name``, ``title``, and ``is_share``: whether the metric is a share of the rows.

    Examples
    --------
    >>> describe_calibration_metrics(["nll", "accuracy"])
    [{'name': 'accuracy', 'title': 'Accuracy', 'is_share': True},
     {'name': 'nll', 'title': 'Log loss', 'is_share': False}]
    """
    evaluated_names = set(metric_names)
    descriptions = []
    for metric in list_evaluated_metrics(PROBABILITIES, TOP_LABEL):
        printed_name = metric.printed_name
        if metric.name not in evaluated_names or printed_name is None:
            continue
        descriptions.append(
            {
                "name": metric.name,
                "title": printed_name[0].upper() + printed_name[1:],
                "is_share": metric.is_proportion,
            }
        )
    return descriptions


def list_compared_metrics() -> list[Metric]:
    """List the metrics that `compare` shows, proper scoring rules first.

    Examples
    --------
    >>> metrics = list_compared_metrics()
    >>> metrics[0].proper, metrics[-1].proper
    (True, False)
    """
    metrics = [metric for metric in METRICS.values() if metric.compared]
    proper_metrics = [metric for metric in metrics if metric.proper]
    other_metrics = [metric for metric in metrics if not metric.proper]
    return proper_metrics + other_metrics


def get_gate_metric_names() -> dict[str, str]:
    """Return the short names of the metrics of decisions, keyed by metric.

    Every page and table takes them from here, so that each quantity has one name.

    Examples
    --------
    >>> get_gate_metric_names()
    {'coverage': 'coverage',
     'miscoverage': 'miscoverage',
     'selective_accuracy': 'selective accuracy'}
    """
    return {
        metric.name: metric.heading for metric in list_evaluated_metrics(DECISION) if metric.heading
    }


def get_printed_names(metric_names: Iterable[str]) -> dict[str, str]:
    """Return the printed name of each metric, without the metrics that are not printed.

    Parameters
    ----------
    metric_names : iterable of str
        Names of metrics. A metric that is not registered (any more) is printed by its name.

    Returns
    -------
    dict
        Printed names, keyed by the names of the metrics.
    """
    printed_names: dict[str, str] = {}
    for name in metric_names:
        metric = METRICS.get(name)
        if metric is None:
            printed_names[name] = name
        elif metric.printed_name is not None:
            printed_names[name] = metric.printed_name
    return printed_names
