"""Reliability diagrams of a report, with exact limits of the accuracy in each bin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from metacal.formulas import Flags, Float
from metacal.metrics.binning import (
    ReliabilityCurve,
    assign_bins,
    compute_reliability_curve,
    equal_mass,
    equal_width,
)
from metacal.metrics.intervals import Interval, clopper_pearson_limits
from metacal.metrics.toplabel import TopLabel

if TYPE_CHECKING:
    from metacal.report.measured import Measured, Settings

#: Number of bins of the confidence histogram.
HISTOGRAM_BINS = 40
#: Tolerance for counts that are whole numbers apart from rounding.
_COUNT_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class Bins:
    """Reliability table: bin b is (edges[b], edges[b+1]], and empty bins have NaN.

    `low` and `high` are exact (Clopper-Pearson) limits of the accuracy of each bin. They hold
    together at the level of the summary, by Bonferroni's correction over the bins with a row: a
    calibrated table leaves the band anywhere with probability at most 1 - level.
    """

    edges: Float
    count: Float
    confidence: Float
    accuracy: Float
    low: Float
    high: Float


@dataclass(frozen=True, eq=False)
class Diagram:
    """Reliability diagram of one table of probabilities.

    Attributes
    ----------
    stage : {"before", "after"}
        Softmax of the logits, or calibrated probabilities.

    rows : {"all", "accepted"}
        Rows of the diagram.

    title : str
        Title of the diagram.

    n_rows : int
        Number of rows.

    accuracy, confidence : float
        Means over these rows.

    ece, ece_equal_mass : dict
        estimate, low, high, level and method, as in `metacal.metrics.evaluate`.

    equal_width, equal_mass : Bins
        Reliability tables.

    histogram_edges, histogram : array
        Number of rows per bin of the confidence. These bins have equal width and are finer than
        those of the reliability table.
    """

    stage: str
    rows: str
    title: str
    n_rows: int
    accuracy: float
    confidence: float
    ece: dict[str, Any]
    ece_equal_mass: dict[str, Any]
    equal_width: Bins
    equal_mass: Bins
    histogram_edges: Float
    histogram: Float


def diagrams(measured: Measured, settings: Settings) -> tuple[Diagram, ...]:
    """Build the reliability diagrams of a report.

    The first diagram shows the softmax on all rows. With a gate, two diagrams follow that show the
    accepted rows before and after calibration. With a calibrator, one diagram follows that shows all
    rows after calibration. If there is no softmax, the only diagram shows the confidence of the gate
    on all rows.
    """
    evaluation = measured.evaluation
    softmax_evaluation = evaluation.after if evaluation.before is None else evaluation.before
    after_title = "Calibrated confidence" if measured.before is None else "After: calibrated"
    builder = _DiagramBuilder(settings, after_title=after_title)
    builder.add("before", measured.before, softmax_evaluation.all_rows)
    if measured.accept is None or measured.before is None:
        builder.add("after", measured.after, evaluation.after.all_rows)
    elif measured.accept.any():
        builder.add(
            "before", measured.before, softmax_evaluation.accepted_rows, accept=measured.accept
        )
        builder.add("after", measured.after, evaluation.after.accepted_rows, accept=measured.accept)
    return tuple(builder.diagrams)


class _DiagramBuilder:
    """List of diagrams that share their settings and titles.

    Parameters
    ----------
    settings : Settings
        Settings of the report.

    after_title : str
        Title of diagrams after calibration.
    """

    def __init__(self, settings: Settings, *, after_title: str) -> None:
        self.diagrams: list[Diagram] = []
        self._settings = settings
        self._titles = {"before": "Before: softmax of the logits", "after": after_title}

    def add(
        self,
        stage: str,
        top: TopLabel | None,
        metrics: Mapping[str, Interval] | None,
        *,
        accept: Flags | None = None,
    ) -> None:
        """Add a diagram unless its data are missing.

        Parameters
        ----------
        stage : {"before", "after"}
            Stage of the diagram.

        top : TopLabel or None
            Confidence and correctness of all rows.

        metrics : mapping of str to Interval, or None
            Metrics of the rows of the diagram.

        accept : array of bool of shape (n_rows,), default=None
            Rows of the diagram. None stands for all rows.
        """
        if top is None or metrics is None:
            return
        rows_name = "all"
        if accept is not None:
            rows_name = "accepted"
            top = TopLabel(top.confidence[accept], top.correct[accept])
        title = f"{self._titles[stage]}, {rows_name} rows"
        self.diagrams.append(diagram(top, stage, rows_name, title, metrics, self._settings))


def diagram(
    top: TopLabel,
    stage: str,
    rows: str,
    title: str,
    metrics: Mapping[str, Interval],
    settings: Settings,
) -> Diagram:
    """Build a reliability diagram.

    Parameters
    ----------
    top : TopLabel
        Confidence and correctness.

    stage, rows, title : str
        Attributes of the diagram.

    metrics : mapping of str to Interval
        Metrics of the same rows.

    settings : Settings
        Settings of the report.

    Returns
    -------
    Diagram
    """
    confidence = top.confidence
    wide_bins = compute_reliability_curve(top, equal_width(confidence, settings.n_bins))
    equal_bins = compute_reliability_curve(top, equal_mass(confidence, settings.n_bins))
    histogram_edges = equal_width(confidence, HISTOGRAM_BINS)
    histogram_codes = assign_bins(confidence, histogram_edges)
    histogram = np.bincount(histogram_codes, minlength=HISTOGRAM_BINS)
    return Diagram(
        stage=stage,
        rows=rows,
        title=title,
        n_rows=len(top),
        accuracy=float(top.correct.mean()),
        confidence=float(confidence.mean()),
        ece=metrics["ece"].to_dict(),
        ece_equal_mass=metrics["ece_equal_mass"].to_dict(),
        equal_width=with_limits(wide_bins, settings.level),
        equal_mass=with_limits(equal_bins, settings.level),
        histogram_edges=histogram_edges,
        histogram=histogram.astype(np.float64),
    )


def with_limits(curve: ReliabilityCurve, level: float) -> Bins:
    """Add limits of the accuracy that hold for all bins at once with probability `level`.

    Given the number of rows in a bin, the number of correct rows is binomial. The Clopper-Pearson
    limits are corrected by Bonferroni over the bins with a row. Counts that are not whole numbers,
    because of ties, are rounded outwards.

    Examples
    --------
    >>> from metacal import metrics
    >>> confidence, correct = [0.9] * 50 + [0.4] * 50, [1] * 45 + [0] * 55
    >>> bins = with_limits(metrics.reliability_curve(confidence, correct, n_bins=2), 0.95)
    >>> bins.accuracy, bins.low.round(3), bins.high.round(3)
    (array([0. , 0.9]), array([0. , 0.764]), array([0.084, 0.972]))
    """
    counts = curve.counts.astype(np.float64)
    n_correct = np.nan_to_num(curve.accuracy * counts)
    has_rows = counts > 0
    n_used_bins = max(int(has_rows.sum()), 1)
    tail = (1.0 - level) / (2.0 * n_used_bins)
    lower_limits, _ = clopper_pearson_limits(np.floor(n_correct + _COUNT_TOLERANCE), counts, tail)
    _, upper_limits = clopper_pearson_limits(np.ceil(n_correct - _COUNT_TOLERANCE), counts, tail)
    return Bins(
        edges=curve.edges,
        count=counts,
        confidence=curve.mean_confidence,
        accuracy=curve.accuracy,
        low=np.where(has_rows, lower_limits, np.nan),
        high=np.where(has_rows, upper_limits, np.nan),
    )
