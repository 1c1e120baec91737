"""Columns of one entry per row from which the metrics of probabilities are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from typing import Any

from metacal.formulas import Flags, Float
from metacal.metrics import registry
from metacal.metrics.binning import build_mean_statistic
from metacal.metrics.intervals import Interval
from metacal.metrics.registry import PROBABILITIES, TOP_LABEL, CountsStatisticOrValue, Metric
from metacal.metrics.resampling import Resampling
from metacal.metrics.toplabel import CheckedTable, TopLabel

#: Metrics, each with its counts, its statistic or its value.
PreparedMetrics = list[tuple[Metric, CountsStatisticOrValue]]


@dataclass(frozen=True, eq=False)
class ProbabilityColumns:
    """Columns from which the metrics of probabilities are computed, one entry per row.

    The columns of a subset of rows need no second pass over the probability table.

    Attributes
    ----------
    top_labels : TopLabel
        Confidence and correctness.

    losses : mapping of metric name to array of shape (n_rows,)
        Loss of each row, for each metric that is a mean over rows.

    table : CheckedTable or None
        The probability table. Without it, metrics of the whole table have no interval.

    accumulators : mapping of metric name to accumulator
        Accumulators of `Metric.make_accumulator`. They give the value of a metric of the whole
        table without the table.

    accepted : bool
        Whether these are the accepted rows only.

    metrics : sequence of Metric
        Metrics to compute.
    """

    top_labels: TopLabel
    losses: Mapping[str, Float]
    table: CheckedTable | None = None
    accumulators: Mapping[str, Any] = field(default_factory=dict)
    accepted: bool = False
    metrics: Sequence[Metric] = field(
        default_factory=lambda: registry.list_evaluated_metrics(PROBABILITIES, TOP_LABEL)
    )

    def select_accepted(self, is_accepted: Flags) -> ProbabilityColumns:
        """Return the columns of the accepted rows, without a copy of the table."""
        return replace(
            self,
            top_labels=TopLabel(
                self.top_labels.confidence[is_accepted], self.top_labels.correct[is_accepted]
            ),
            losses={name: column[is_accepted] for name, column in self.losses.items()},
            table=None if self.table is None else self.table.subset(is_accepted),
            accepted=True,
        )

    def compute_intervals(self, resampling: Resampling, n_bins: int) -> dict[str, Interval]:
        """Compute the interval of each metric, keyed by the name of the metric."""
        return resampling.compute_intervals(
            self.prepare_metrics(n_bins),
            n_rows=len(self.top_labels),
            n_errors=count_errors(self.top_labels.correct),
        )

    def prepare_metrics(self, n_bins: int) -> PreparedMetrics:
        """Prepare each metric: pair it with its counts, statistic or value."""
        return [(metric, self._prepare_metric(metric, n_bins)) for metric in self.metrics]

    def _prepare_metric(self, metric: Metric, n_bins: int) -> CountsStatisticOrValue:
        """Return the counts, the statistic or the value of a metric, NaN if it is unknown."""
        if metric.losses is not None:
            row_losses = self.losses[metric.name]
            return build_mean_statistic(row_losses)
        needs_table = metric.input is not TOP_LABEL
        if needs_table and self.table is None:
            return self._get_accumulated_value(metric.name)
        validated_data = self.table if needs_table else self.top_labels
        options = {"n_bins": n_bins} if metric.has_bins else {}
        return metric.prepare_counts_or_statistic(validated_data, **options)

    def _get_accumulated_value(self, metric_name: str) -> float:
        """Return the value of an accumulator, or NaN if the metric has none."""
        if metric_name not in self.accumulators:
            return nan
        accumulator = self.accumulators[metric_name]
        return float(accumulator.value(accepted=self.accepted))


def compute_row_losses(table: CheckedTable) -> dict[str, Float]:
    """Compute the row losses of each evaluated metric that is a mean over rows."""
    return {
        metric.name: metric.losses(table)
        for metric in registry.list_evaluated_metrics(PROBABILITIES)
        if metric.losses is not None
    }


def count_errors(correct: Float) -> float:
    """Count the incorrect rows. A row that is tied with other classes is incorrect."""
    return float((correct < 1.0).sum())
