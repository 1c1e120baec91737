"""Result of an evaluation, as text, HTML, JSON and data frame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri

from metacal import display
from metacal.metrics import registry
from metacal.metrics.intervals import Interval
from metacal.metrics.marginal import MarginalCheck

#: Intervals keyed by the names of the metrics.
Intervals = Mapping[str, Interval]

#: Rows of a table as text. The first row is the heading.
TextTable = list[tuple[str, ...]]

_PAPER_MAP_NOTE = (
    "The paper's map assigns 1/K to every class of a rejected row, which dilutes the ECE of all"
    " rows and\nlowers their accuracy: judge calibration by the accepted rows, next to the"
    " coverage."
)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Result of `evaluate`.

    It prints itself and is a table in a notebook. `to_dict` returns JSON types and `to_frame` a
    data frame.

    Attributes
    ----------
    all_rows : mapping of metric name to Interval
        Metrics of the probabilities of all rows.

    accepted_rows : mapping of metric name to Interval, or None
        The same metrics on the accepted rows. None without `accept`, or if nothing was accepted.

    gate : mapping of metric name to Interval
        Metrics of the gate. Empty without `accept` and `score`.

    n_rows : int
        Number of rows.

    n_accepted : int or None
        Number of accepted rows. None without `accept`.

    n_classes : int
        Number of classes, 0 if there is no probability table.

    level : float
        Confidence level of the intervals.

    n_bins : int
        Number of bins of binned metrics.

    marginal : MarginalCheck or None
        Whether the confidence matches the accuracy for each predicted class, on the accepted rows
        if there is a gate. None if there are no classes.

    is_paper_map : bool
        Whether the probabilities of rejected rows are 1/K in every class, as in the paper.
    """

    all_rows: Intervals
    accepted_rows: Intervals | None
    gate: Intervals
    n_rows: int
    n_accepted: int | None
    n_classes: int
    level: float
    n_bins: int
    marginal: MarginalCheck | None = None
    is_paper_map: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON types, with None for numbers that are not finite."""
        return {
            "n_rows": self.n_rows,
            "n_accepted": self.n_accepted,
            "n_classes": self.n_classes,
            "level": self.level,
            "n_bins": self.n_bins,
            "is_paper_map": self.is_paper_map,
            "marginal": None if self.marginal is None else self.marginal.to_dict(),
            "accepted_rows": _intervals_to_dict(self.accepted_rows),
            "all_rows": _intervals_to_dict(self.all_rows),
            "gate": _intervals_to_dict(self.gate),
        }

    def to_frame(self) -> Any:
        """Return a `pandas.DataFrame` of intervals, indexed by (rows, metric).

        Examples
        --------
        >>> from metacal.metrics import evaluate
        >>> evaluation = evaluate([[0.9, 0.1], [0.2, 0.8]], [0, 1], intervals=False)
        >>> round(evaluation.to_frame().loc[("all rows", "brier"), "estimate"].item(), 4)
        0.05
        """
        intervals_by_group: dict[str, Intervals] = {
            "gate": self.gate,
            "accepted rows": self.accepted_rows or {},
            "all rows": self.all_rows,
        }
        frame_index = []
        records = []
        for group_name, intervals in intervals_by_group.items():
            for metric_name, interval in intervals.items():
                frame_index.append((group_name, metric_name))
                records.append(vars(interval))
        return display.make_frame(records, frame_index, ["rows", "metric"])

    def __str__(self) -> str:
        return self.text(self._make_header_lines(), before=None, caveat=self._make_marginal_lines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        tables = []
        for heading, *table_rows in self._build_text_tables():
            row_title, *column_titles = heading
            html_heading = [row_title]
            for column_title in column_titles:
                html_heading.append(column_title or "value")
            tables.append(display.make_table_html(tuple(html_heading), table_rows))
        header = display.make_paragraphs_html(*self._make_header_lines())
        footer = display.make_paragraphs_html(*self._make_marginal_lines(), *self._make_remarks())
        return f"<div>{header}{''.join(tables)}{footer}</div>"

    @property
    def size(self) -> str:
        """Numbers of rows, classes and accepted rows, as text."""
        size_text = f"{self.n_rows:,} rows"
        if self.n_classes:
            size_text += f", {self.n_classes} classes"
        if self.n_accepted is not None:
            size_text += f"; {self.n_accepted:,} accepted"
        return size_text

    def text(self, head: list[str], before: Evaluation | None, caveat: list[str]) -> str:
        """Return the result as text.

        Parameters
        ----------
        head : list of str
            Lines at the top.

        before : Evaluation or None
            Evaluation of the uncalibrated probabilities. Its estimates are shown in columns of
            their own.

        caveat : list of str
            Paragraphs below the table of probabilities.

        Returns
        -------
        str
        """
        tables = []
        for text_table in self._build_text_tables(before):
            tables.append("\n".join(display.align_columns(text_table)))
        probability_table, *other_tables = tables
        paragraphs = [
            "\n".join(head),
            probability_table,
            *caveat,
            *other_tables,
            *self._make_remarks(),
        ]
        return "\n\n".join(paragraphs)

    def _make_header_lines(self) -> list[str]:
        """Return the size and the confidence level as text."""
        return [self.size, f"(in brackets: {100 * self.level:g}% intervals)"]

    def _make_marginal_lines(self) -> list[str]:
        """Return the marginal check as text, or nothing if there is none."""
        if self.marginal is None:
            return []
        return [str(self.marginal)]

    def _make_remarks(self) -> list[str]:
        """Return the note on uniform probabilities of rejected rows, if they are uniform."""
        return [_PAPER_MAP_NOTE] if self.is_paper_map else []

    def _build_text_tables(self, before: Evaluation | None = None) -> list[TextTable]:
        """Return the table of probabilities and, if there is one, the table of the gate."""
        tables = [self._build_probability_table(before)]
        if self.gate:
            printed_names = registry.get_printed_names(self.gate)
            gate_rows = [(title, str(self.gate[name])) for name, title in printed_names.items()]
            heading = "ranking of the rows" if self.n_accepted is None else "gate"
            if gate_rows:
                tables.append([(heading, ""), *gate_rows])
        return tables

    def _build_probability_table(self, before: Evaluation | None) -> TextTable:
        """Return the metrics of the probabilities as text.

        The columns are the accepted rows, if there is a gate, and all rows. If `before` is given,
        each of them is followed by a column of the uncalibrated estimates.
        """
        heading = ["probabilities" if self.n_classes else "confidence"]
        all_rows_heading = "all rows, paper's map" if self.is_paper_map else "all rows"
        if self.n_accepted is not None:
            heading.append("accepted rows")
            if before is not None:
                heading.append("uncalibrated")
        heading.append(all_rows_heading)
        if before is not None:
            heading.append("uncalibrated")

        printed_names = registry.get_printed_names(self.all_rows)
        table: TextTable = [tuple(heading)]
        for metric_name, title in printed_names.items():
            cells = [title]
            if self.n_accepted is not None:
                cells.append(_format_interval(self.accepted_rows, metric_name))
                if before is not None:
                    cells.append(_format_estimate(before.accepted_rows, metric_name))
            cells.append(_format_interval(self.all_rows, metric_name))
            if before is not None:
                cells.append(_format_estimate(before.all_rows, metric_name))
            table.append(tuple(cells))
        return table


def _intervals_to_dict(intervals: Intervals | None) -> dict[str, Any] | None:
    """Return intervals as JSON types."""
    if intervals is None:
        return None
    return {name: interval.to_dict() for name, interval in intervals.items()}


def _format_interval(intervals: Intervals | None, metric_name: str) -> str:
    """Return the interval of a metric as text, "undefined" if there is none."""
    interval = None if intervals is None else intervals.get(metric_name)
    return "undefined" if interval is None else str(interval)


def _format_estimate(intervals: Intervals | None, metric_name: str) -> str:
    """Return the estimate of a metric as text, "undefined" if there is none."""
    interval = None if intervals is None else intervals.get(metric_name)
    return "undefined" if interval is None else f"{interval.estimate:.4f}"


def describe_harm(after: Evaluation, before: Evaluation) -> str | None:
    """Describe the metrics that a calibrator worsens by more than a standard error.

    The standard error comes from the interval of the calibrated rows. Without intervals, any higher
    value counts.

    Parameters
    ----------
    after, before : Evaluation
        Evaluations with and without the calibrator. The accepted rows are compared if both have
        some, otherwise all rows.

    Returns
    -------
    str or None
        None if neither the log loss nor the ECE is worse.

    Examples
    --------
    >>> from metacal.metrics import evaluate
    >>> labels, sure, unsure = [0, 0, 1], [[0.9, 0.1]] * 3, [[0.6, 0.4]] * 3
    >>> plain, worse = (evaluate(proba, labels, intervals=False) for proba in (unsure, sure))
    >>> describe_harm(plain, worse) is None
    True
    >>> print(describe_harm(worse, plain))
    Calibration does not help on these rows: log loss 0.8378 against 0.6460 without, ECE ...
    """
    rows_name = "accepted rows"
    calibrated_intervals = after.accepted_rows
    uncalibrated_intervals = before.accepted_rows
    if calibrated_intervals is None or uncalibrated_intervals is None:
        rows_name = "rows"
        calibrated_intervals = after.all_rows
        uncalibrated_intervals = before.all_rows
    worse_metrics = []
    for metric_name, title in (("nll", "log loss"), ("ece", "ECE")):
        calibrated = calibrated_intervals[metric_name].estimate
        uncalibrated = uncalibrated_intervals[metric_name].estimate
        standard_error = _compute_standard_error(calibrated_intervals[metric_name])
        if calibrated - uncalibrated > standard_error:
            worse_metrics.append(f"{title} {calibrated:.4f} against {uncalibrated:.4f} without")
    if not worse_metrics:
        return None
    return f"Calibration does not help on these {rows_name}: {', '.join(worse_metrics)}."


def _compute_standard_error(interval: Interval) -> float:
    """Compute the standard error from the width of an interval, 0 if not finite."""
    normal_quantile = float(ndtri(0.5 * (1.0 + interval.level)))
    standard_error = (interval.high - interval.low) / (2.0 * normal_quantile)
    return standard_error if np.isfinite(standard_error) else 0.0
