"""Result of a comparison of calibrators, which prints as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from metacal import display
from metacal.metrics import registry
from metacal.metrics.paired import STANDARD_ERRORS

_LEGEND = (
    f"* the best   · at most {STANDARD_ERRORS:g} standard errors of the paired difference worse "
    "(a rule of thumb, no confidence level)"
)
#: Start of the cell that shows why a calibrator could not be fitted.
_ERROR_PREFIX = "failed: "


class Estimate(NamedTuple):
    """Mean over held-out rows and its standard error."""

    mean: float
    standard_error: float

    def __str__(self) -> str:
        if np.isnan(self.standard_error):
            return f"{self.mean:.4f}"
        return f"{self.mean:.4f} ± {self.standard_error:.4f}"

    def to_dict(self) -> dict[str, float | None]:
        """Return mean and standard error, with None for infinite or missing values."""
        finite_values: dict[str, float | None] = {}
        for name, value in self._asdict().items():
            finite_values[name] = value if np.isfinite(value) else None
        return finite_values


@dataclass(frozen=True)
class ComparisonEntry:
    """Cross-validated metrics of one calibrator.

    Attributes
    ----------
    name : str
        Name of the calibrator.
    metrics : mapping of str to Estimate
        Metrics on held-out rows.
    fit_seconds : float
        Median CPU seconds of a fit.
    error_message : str or None
        Error message, if the calibrator could not be fitted.
    n_zero_probability_rows : int
        Number of held-out rows whose true class got probability 0, so that their log loss is
        infinite.
    """

    name: str
    metrics: Mapping[str, Estimate]
    fit_seconds: float
    error_message: str | None = None
    n_zero_probability_rows: int = 0

    def loss(self, metric: str) -> float:
        """Return the mean of a metric, negated if larger values are better."""
        registered_metric = registry.METRICS.get(metric)
        metric_mean = self.metrics[metric].mean
        if registered_metric is None or registered_metric.smaller_is_better:
            return metric_mean
        return -metric_mean

    def to_dict(self) -> dict[str, Any]:
        """Return the metrics as JSON types, with None for infinite values."""
        if self.error_message is not None:
            return {"name": self.name, "failed": self.error_message}
        document: dict[str, Any] = {
            "name": self.name,
            "metrics": {name: estimate.to_dict() for name, estimate in self.metrics.items()},
            "fit_seconds": self.fit_seconds,
        }
        if self.n_zero_probability_rows:
            document["impossible_rows"] = self.n_zero_probability_rows
        return document

    def to_record(self) -> dict[str, Any]:
        """Return the entries of this calibrator in a data frame, keyed by the column name."""
        record: dict[str, Any] = {}
        for metric_name, estimate in self.metrics.items():
            record[metric_name] = estimate.mean
            record[f"{metric_name}_standard_error"] = estimate.standard_error
        record["fit_seconds"] = self.fit_seconds
        record["impossible_rows"] = self.n_zero_probability_rows
        record["failed"] = self.error_message
        return record


@dataclass(frozen=True)
class Comparison:
    """Comparison of calibrators on the same rows, lowest log loss first.

    It prints as a table, also in a notebook. `to_frame` returns a pandas data frame.

    Attributes
    ----------
    entries : tuple of ComparisonEntry
        Result of each calibrator.
    n_rows, n_classes : int
        Shape of the table.
    n_splits, n_repeats : int
        Number of folds of a repetition, and number of repetitions.
    n_folds : int
        Number of folds that were used.
    near_best_names : mapping of metric to names
        Calibrators that `near_best` returns.
    """

    entries: tuple[ComparisonEntry, ...]
    n_rows: int
    n_classes: int
    n_splits: int
    n_repeats: int
    n_folds: int
    near_best_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def best(self, metric: str = "nll") -> str:
        """Return the name of the calibrator with the best mean of a metric."""
        best_entry = min(self._list_fitted_entries(), key=lambda entry: entry.loss(metric))
        return best_entry.name

    def near_best(self, metric: str = "nll") -> tuple[str, ...]:
        """Return the names of the best calibrator and of those that are hardly worse.

        A calibrator is hardly worse if its mean is at most three standard errors of the paired
        difference worse. This is a rule of thumb for a shortlist, not a confidence statement. If a
        calibrator has a very large loss on rare rows, a sample without such a row ranks it too
        high, and the truly best calibrator may be missing here.
        """
        return self.near_best_names.get(metric, (self.best(metric),))

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON types."""
        metric_names = self._list_metric_names()
        return {
            "n_rows": self.n_rows,
            "n_classes": self.n_classes,
            "n_splits": self.n_splits,
            "n_repeats": self.n_repeats,
            "n_folds": self.n_folds,
            "metrics": [_describe_metric(metric) for metric in metric_names],
            "best": {metric: self.best(metric) for metric in metric_names},
            "near_best": {metric: list(self.near_best(metric)) for metric in metric_names},
            "near_best_standard_errors": STANDARD_ERRORS,
            "calibrators": [entry.to_dict() for entry in self.entries],
        }

    def to_frame(self) -> Any:
        """Return a `pandas.DataFrame` with mean and standard error of each metric.

        It has one row per calibrator.
        """
        return display.make_frame(
            [entry.to_record() for entry in self.entries],
            [entry.name for entry in self.entries],
            index_names=["calibrator"],
        )

    def __str__(self) -> str:
        header = self._list_headings()
        fitted_rows = [self._list_cells(entry) for entry in self._list_fitted_entries()]
        all_rows = [self._list_cells(entry) for entry in self.entries]
        # A long error message must not widen its column.
        table_lines = display.align_columns([header, *all_rows], width_rows=[header, *fitted_rows])
        notes = self._list_infinite_loss_notes()
        return "\n".join([self._format_caption(), "", *table_lines, "", _LEGEND, *notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        all_rows = [self._list_cells(entry) for entry in self.entries]
        table_html = display.make_table_html(
            self._list_headings(), all_rows, caption=self._format_caption()
        )
        notes_html = display.make_paragraphs_html(_LEGEND, *self._list_infinite_loss_notes())
        return f"<div>{table_html}{notes_html}</div>"

    def _format_caption(self) -> str:
        """Format the caption of the table, with the numbers of rows, classes and folds."""
        folds_text = f"{self.n_repeats} x {self.n_splits} folds"
        if self.n_folds != self.n_repeats * self.n_splits:
            folds_text = f"{self.n_folds} of {folds_text}"
        return (
            f"{self.n_rows:,} rows, {self.n_classes} classes; estimate ± standard error from rows"
            f" not used in the fit, {folds_text}"
        )

    def _list_headings(self) -> tuple[str, ...]:
        """Return the headings of the columns of the table."""
        metric_headings = [_get_metric_heading(metric) for metric in self._list_metric_names()]
        return ("calibrator", *metric_headings, "fit, s")

    def _list_cells(self, entry: ComparisonEntry) -> tuple[str, ...]:
        """Return the table cells of a calibrator: its metrics, or why it was not fitted."""
        metric_names = self._list_metric_names()
        if entry.error_message is not None:
            empty_cells = [""] * len(metric_names)
            return (entry.name, f"{_ERROR_PREFIX}{entry.error_message}", *empty_cells)
        metric_cells = [
            f"{entry.metrics[metric]} {self._get_rank_symbol(entry.name, metric)}"
            for metric in metric_names
        ]
        return (entry.name, *metric_cells, f"{entry.fit_seconds:.3f}")

    def _get_rank_symbol(self, name: str, metric: str) -> str:
        """Return the symbol that marks the best and the nearly best calibrators."""
        if name == self.best(metric):
            return "*"
        if name in self.near_best(metric):
            return "·"
        return " "

    def _list_infinite_loss_notes(self) -> list[str]:
        """Return a note on each calibrator with an infinite log loss."""
        notes = []
        for entry in self.entries:
            n_zero_rows = entry.n_zero_probability_rows
            if n_zero_rows > 0:
                plural_suffix = "s" if n_zero_rows > 1 else ""
                notes.append(
                    f"{entry.name}: infinite, since the true class of {n_zero_rows:,} held-out"
                    f" row{plural_suffix} got probability 0"
                )
        return notes

    def _list_fitted_entries(self) -> list[ComparisonEntry]:
        """Return the entries of the calibrators that could be fitted."""
        return [entry for entry in self.entries if entry.error_message is None]

    def _list_metric_names(self) -> list[str]:
        """Return the names of the metrics, in the order of the registry."""
        any_fitted_entry = self._list_fitted_entries()[0]
        return list(any_fitted_entry.metrics)


def _describe_metric(metric: str) -> dict[str, Any]:
    """Return the name, the column heading and the direction of a metric as JSON types."""
    registered_metric = registry.METRICS.get(metric)
    smaller_is_better = registered_metric is None or registered_metric.smaller_is_better
    return {
        "name": metric,
        "heading": _get_metric_heading(metric),
        "smaller_is_better": smaller_is_better,
    }


def _get_metric_heading(metric: str) -> str:
    """Return the column heading of a metric."""
    registered_metric = registry.METRICS.get(metric)
    if registered_metric is None:
        return metric
    return registered_metric.heading or registered_metric.title
