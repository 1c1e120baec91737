"""Result of a comparison of calibrators, as text, HTML, JSON and data frame."""

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


#: Name of the index of the frame.
_INDEX_NAMES = ("calibrator",)


class Estimate(NamedTuple):
    """Mean over held-out rows and its standard error."""

    mean: float
    standard_error: float

    def __str__(self) -> str:
        if np.isnan(self.standard_error):
            return f"{self.mean:.4f}"
        return f"{self.mean:.4f} ± {self.standard_error:.4f}"


@dataclass(frozen=True)
class ComparisonEntry:
    """Result of one calibrator.

    Attributes
    ----------
    name : str
        Name of the calibrator.
    metrics : mapping of str to Estimate
        Metrics on held-out rows.
    fit_seconds : float
        Median CPU seconds of a fit.
    failed : str or None
        Error message, if the calibrator could not be fitted.
    impossible : int
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
        mean = self.metrics[metric].mean
        if registered_metric is None or registered_metric.smaller_is_better:
            return mean
        return -mean

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON types, with None for infinite values."""
        if self.error_message is not None:
            return {"name": self.name, "failed": self.error_message}
        metrics: dict[str, dict[str, float | None]] = {}
        for name, metric_estimate in self.metrics.items():
            metrics[name] = {
                part: value if np.isfinite(value) else None
                for part, value in metric_estimate._asdict().items()
            }
        answer: dict[str, Any] = {
            "name": self.name,
            "metrics": metrics,
            "fit_seconds": self.fit_seconds,
        }
        if self.n_zero_probability_rows:
            answer["impossible_rows"] = self.n_zero_probability_rows
        return answer

    def to_record(self) -> dict[str, Any]:
        """Return the row of the frame."""
        record: dict[str, Any] = {}
        for name, metric_estimate in self.metrics.items():
            record[name] = metric_estimate.mean
            record[f"{name}_standard_error"] = metric_estimate.standard_error
        record["fit_seconds"] = self.fit_seconds
        record["impossible_rows"] = self.n_zero_probability_rows
        record["failed"] = self.error_message
        return record


@dataclass(frozen=True)
class Comparison:
    """Calibrators compared on the same rows, lowest log loss first.

    It prints as a table, also in a notebook. `to_frame` returns a pandas frame.

    Attributes
    ----------
    entries : tuple of ComparisonEntry
        Result of each calibrator.
    n_rows, n_classes : int
        Shape of the table.
    n_splits, n_repeats : int
        Number of folds of a repetition, and number of repetitions.
    n_folds : int
        Number of folds that were measured.
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
        """Return the calibrator with the best mean of a metric."""
        best_entry = min(self._fitted_entries(), key=lambda entry: entry.loss(metric))
        return best_entry.name

    def near_best(self, metric: str = "nll") -> tuple[str, ...]:
        """Return the best calibrator and those that are hardly worse.

        A calibrator is hardly worse if its mean is at most three standard errors of the paired
        difference worse. This is a rule of thumb for a shortlist, not a confidence statement. If a
        calibrator has a very large loss on rare rows, a sample without such a row ranks it too
        high, and the truly best calibrator may be missing here.
        """
        return self.near_best_names.get(metric, (self.best(metric),))

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON types."""
        metric_names = self._metric_names()
        return {
            "n_rows": self.n_rows,
            "n_classes": self.n_classes,
            "n_splits": self.n_splits,
            "n_repeats": self.n_repeats,
            "n_folds": self.n_folds,
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
            _INDEX_NAMES,
        )

    def __str__(self) -> str:
        heading, *rows = self._table()
        # A long error message must not widen its column.
        aligned_rows = [heading, *(row for row in rows if not row[1].startswith("failed:"))]
        lines = display.align_columns([heading, *rows], aligned_rows)
        return "\n".join([self._caption(), "", *lines, "", _LEGEND, *self._infinite_loss_notes()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        heading, *rows = self._table()
        table = display.make_table_html(heading, rows, caption=self._caption())
        notes = display.make_paragraphs_html(_LEGEND, *self._infinite_loss_notes())
        return f"<div>{table}{notes}</div>"

    def _caption(self) -> str:
        """Return the caption of the table: number of rows, classes and folds."""
        folds = f"{self.n_repeats} x {self.n_splits} folds"
        if self.n_folds != self.n_repeats * self.n_splits:
            folds = f"{self.n_folds} of {folds}"
        return (
            f"{self.n_rows:,} rows, {self.n_classes} classes; estimate ± standard error from rows"
            f" not used in the fit, {folds}"
        )

    def _table(self) -> list[tuple[str, ...]]:
        """Return the heading, and a row of cells for each calibrator."""
        metric_names = self._metric_names()
        headings = [_metric_heading(metric) for metric in metric_names]
        lines: list[tuple[str, ...]] = [("calibrator", *headings, "fit, s")]
        for entry in self.entries:
            if entry.error_message is not None:
                empty_cells = [""] * len(metric_names)
                lines.append((entry.name, f"failed: {entry.error_message}", *empty_cells))
                continue
            cells = [
                f"{entry.metrics[metric]} {self._mark(entry.name, metric)}"
                for metric in metric_names
            ]
            lines.append((entry.name, *cells, f"{entry.fit_seconds:.3f}"))
        return lines

    def _mark(self, name: str, metric: str) -> str:
        """Return the mark of a calibrator: best, near the best, or neither."""
        if name == self.best(metric):
            return "*"
        if name in self.near_best(metric):
            return "·"
        return " "

    def _infinite_loss_notes(self) -> list[str]:
        """Return a note on each calibrator with an infinite log loss."""
        notes = []
        for entry in self.entries:
            if entry.n_zero_probability_rows:
                plural = "s" if entry.n_zero_probability_rows > 1 else ""
                notes.append(
                    f"{entry.name}: infinite, since the true class of {entry.n_zero_probability_rows:,} held-out"
                    f" row{plural} got probability 0"
                )
        return notes

    def _fitted_entries(self) -> list[ComparisonEntry]:
        """Return the calibrators that could be fitted."""
        return [entry for entry in self.entries if entry.error_message is None]

    def _metric_names(self) -> list[str]:
        """Return the names of the metrics, in the order of the registry."""
        return list(self._fitted_entries()[0].metrics)


def _metric_heading(metric: str) -> str:
    """Return the heading of a metric in the table."""
    registered_metric = registry.METRICS.get(metric)
    if registered_metric is None:
        return metric
    return registered_metric.heading or registered_metric.title
