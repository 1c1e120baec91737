"""Reliability diagrams of a report, with exact confidence limits of the accuracy in each bin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from metacal.formulas import Flags, Float
from metacal.metrics.binning import assign_bins, equal_mass, equal_width
from metacal.metrics.intervals import Interval, compute_clopper_pearson_limits
from metacal.metrics.reliability_diagram import ReliabilityCurve, compute_reliability_curve
from metacal.metrics.toplabel import TopLabel

if TYPE_CHECKING:
    from metacal.reports.report_rows import ReportRows, Settings

#: Number of bins of the confidence histogram.
N_HISTOGRAM_BINS = 40
#: Tolerance for floating-point error when counts are rounded to integers.
_COUNT_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class ReliabilityBins:
    """Accuracy and mean confidence in each confidence bin, with simultaneous limits.

    Bin b is the interval (edges[b], edges[b+1]]. Values of empty bins are NaN. `low` and `high` are
    exact (Clopper-Pearson) limits of the accuracy, with Bonferroni's correction over the bins with
    a row. If the probabilities are calibrated, the accuracy leaves the limits in any bin with
    probability at most 1 - level.
    """

    edges: Float
    count: Float
    confidence: Float
    accuracy: Float
    low: Float
    high: Float


@dataclass(frozen=True, eq=False)
class ReliabilityDiagram:
    """Reliability diagram of all or accepted rows, before or after calibration.

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
        Accuracy and mean confidence of these rows.

    ece, ece_equal_mass : dict
        estimate, low, high, level and method, as in `metacal.metrics.evaluate`.

    equal_width, equal_mass : ReliabilityBins
        Bins of equal width, and bins with equal numbers of rows.

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
    equal_width: ReliabilityBins
    equal_mass: ReliabilityBins
    histogram_edges: Float
    histogram: Float


def build_diagrams(report_rows: ReportRows, settings: Settings) -> tuple[ReliabilityDiagram, ...]:
    """Build the reliability diagrams of a report, before and after calibration.

    The first diagram shows the softmax on all rows. With a gate, two diagrams follow that show the
    accepted rows before and after calibration. With a calibrator, one diagram follows that shows all
    rows after calibration. If there is no softmax, the only diagram shows the confidence of the gate
    on all rows.
    """
    evaluation = report_rows.evaluation
    # Without a calibrator, the metrics after calibration are those of the softmax.
    softmax_metrics = evaluation.after if evaluation.before is None else evaluation.before
    calibrated_metrics = evaluation.after
    softmax_top_label = report_rows.softmax_top_label
    calibrated_top_label = report_rows.calibrated_top_label
    accept = report_rows.accept

    after_title = "Calibrated confidence" if softmax_top_label is None else "After: calibrated"
    builder = _DiagramBuilder(settings, after_title=after_title)
    builder.add_diagram_if_measured("before", softmax_top_label, softmax_metrics.all_rows)
    if accept is None or softmax_top_label is None:
        builder.add_diagram_if_measured("after", calibrated_top_label, calibrated_metrics.all_rows)
    elif accept.any():
        builder.add_diagram_if_measured(
            "before", softmax_top_label, softmax_metrics.accepted_rows, accept=accept
        )
        builder.add_diagram_if_measured(
            "after", calibrated_top_label, calibrated_metrics.accepted_rows, accept=accept
        )
    return tuple(builder.diagrams)


class _DiagramBuilder:
    """Builder of reliability diagrams that share settings and titles.

    Parameters
    ----------
    settings : Settings
        Settings of the report.

    after_title : str
        Title of the diagrams after calibration.
    """

    def __init__(self, settings: Settings, *, after_title: str) -> None:
        self.diagrams: list[ReliabilityDiagram] = []
        self._settings = settings
        self._titles = {"before": "Before: softmax of the logits", "after": after_title}

    def add_diagram_if_measured(
        self,
        stage: str,
        top_label: TopLabel | None,
        metrics: Mapping[str, Interval] | None,
        *,
        accept: Flags | None = None,
    ) -> None:
        """Append a reliability diagram, unless its confidence or its metrics are missing.

        Parameters
        ----------
        stage : {"before", "after"}
            Stage of the diagram.

        top_label : TopLabel or None
            Confidence of all predictions, and whether each is correct.

        metrics : mapping of str to Interval, or None
            Metrics of the rows of the diagram.

        accept : array of bool of shape (n_rows,), default=None
            Mask of the rows to show. None stands for all rows.
        """
        if top_label is None or metrics is None:
            return
        rows_name = "all"
        if accept is not None:
            rows_name = "accepted"
            top_label = TopLabel(top_label.confidence[accept], top_label.correct[accept])
        title = f"{self._titles[stage]}, {rows_name} rows"
        diagram = build_diagram(
            top_label,
            stage=stage,
            rows_name=rows_name,
            title=title,
            metrics=metrics,
            n_bins=self._settings.n_bins,
            confidence_level=self._settings.level,
        )
        self.diagrams.append(diagram)


def build_diagram(
    top_label: TopLabel,
    *,
    stage: str,
    rows_name: str,
    title: str,
    metrics: Mapping[str, Interval],
    n_bins: int,
    confidence_level: float,
) -> ReliabilityDiagram:
    """Build a reliability diagram with bins of equal width and of equal mass.

    Parameters
    ----------
    top_label : TopLabel
        Confidence of the predictions, and whether each is correct.

    stage : {"before", "after"}
        Softmax of the logits, or calibrated probabilities.

    rows_name : {"all", "accepted"}
        Name of the rows of the diagram.

    title : str
        Title of the diagram.

    metrics : mapping of str to Interval
        Metrics of the same rows, with "ece" and "ece_equal_mass".

    n_bins : int
        Number of confidence bins.

    confidence_level : float
        Confidence level of the accuracy limits, which hold in all bins at once.

    Returns
    -------
    ReliabilityDiagram
    """
    confidence = top_label.confidence
    equal_width_edges = equal_width(confidence, n_bins)
    equal_mass_edges = equal_mass(confidence, n_bins)
    equal_width_curve = compute_reliability_curve(top_label, equal_width_edges)
    equal_mass_curve = compute_reliability_curve(top_label, equal_mass_edges)
    histogram_edges = equal_width(confidence, N_HISTOGRAM_BINS)
    bin_indices = assign_bins(confidence, histogram_edges)
    histogram = np.bincount(bin_indices, minlength=N_HISTOGRAM_BINS)
    return ReliabilityDiagram(
        stage=stage,
        rows=rows_name,
        title=title,
        n_rows=len(top_label),
        accuracy=float(top_label.correct.mean()),
        confidence=float(confidence.mean()),
        ece=metrics["ece"].to_dict(),
        ece_equal_mass=metrics["ece_equal_mass"].to_dict(),
        equal_width=add_accuracy_limits(equal_width_curve, confidence_level),
        equal_mass=add_accuracy_limits(equal_mass_curve, confidence_level),
        histogram_edges=histogram_edges,
        histogram=histogram.astype(np.float64),
    )


def add_accuracy_limits(curve: ReliabilityCurve, level: float) -> ReliabilityBins:
    """Add accuracy limits that hold in all bins at once with probability `level`.

    Given the number of rows in a bin, the number of correct rows is binomial. The Clopper-Pearson
    limits are corrected by Bonferroni over the bins with a row. Counts that are not whole numbers,
    because top classes are tied, are rounded outwards.

    Examples
    --------
    >>> from metacal import metrics
    >>> confidence, correct = [0.9] * 50 + [0.4] * 50, [1] * 45 + [0] * 55
    >>> curve = metrics.reliability_curve(confidence, correct, n_bins=2)
    >>> bins = add_accuracy_limits(curve, 0.95)
    >>> bins.accuracy, bins.low.round(3), bins.high.round(3)
    (array([0. , 0.9]), array([0. , 0.764]), array([0.084, 0.972]))
    """
    bin_counts = curve.counts.astype(np.float64)
    n_correct = np.nan_to_num(curve.accuracy * bin_counts)
    has_rows = bin_counts > 0
    n_used_bins = max(int(has_rows.sum()), 1)
    tail_probability = (1.0 - level) / (2.0 * n_used_bins)
    # A prediction with tied top classes is partly correct, so counts can be fractional.
    n_correct_floor = np.floor(n_correct + _COUNT_TOLERANCE)
    n_correct_ceil = np.ceil(n_correct - _COUNT_TOLERANCE)
    lower_limits, _ = compute_clopper_pearson_limits(n_correct_floor, bin_counts, tail_probability)
    _, upper_limits = compute_clopper_pearson_limits(n_correct_ceil, bin_counts, tail_probability)
    return ReliabilityBins(
        edges=curve.edges,
        count=bin_counts,
        confidence=curve.mean_confidence,
        accuracy=curve.accuracy,
        low=np.where(has_rows, lower_limits, np.nan),
        high=np.where(has_rows, upper_limits, np.nan),
    )
