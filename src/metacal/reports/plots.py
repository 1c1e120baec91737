"""Matplotlib displays of the curves of a report, in the Display pattern of scikit-learn.

Create a display with `from_estimator(estimator, logits, labels)`, with `from_predictions(labels,
proba)`, or from a `Summary` with `Display(summary)`. `.plot(ax=None)` draws it and sets `ax_` and
`figure_`. Several displays can share axes if each has a `name`. Other keyword arguments are those of
the line. The displays support any number of classes. They need matplotlib, ``pip install
"metacal[plot]"``, which is imported when something is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from metacal.certificates.number_format import (
    format_percent,
    format_percent_ceil,
    format_percent_floor,
)
from metacal.reports.display import (
    BAND_ALPHA,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    Display,
    count_named_displays,
    is_label_unused,
)
from metacal.reports.operating import CurveWithBand
from metacal.reports.reliability import ReliabilityBins, ReliabilityDiagram
from metacal.rows.arrays import check_choice

_DIAGONAL_LABEL = "perfectly calibrated"
#: The axis of thresholds starts at the threshold with this coverage.
_MIN_SHOWN_COVERAGE = 0.02
#: Ratio of the largest to the smallest threshold above which the axis is logarithmic.
_LOG_AXIS_RATIO = 100.0
#: The risk axis ends at this multiple of the largest error rate, or further.
_CURVE_HEADROOM = 1.6
#: The risk axis ends at this multiple of the upper band limit at full coverage, or further.
_BAND_HEADROOM = 1.3
#: Smallest upper limit of the risk axis.
_MIN_RISK_AXIS_LIMIT = 1e-3
#: Colour and marker of the curves before and after calibration.
_BEFORE_AND_AFTER_STYLES = ((ORANGE, "o"), (BLUE, "s"))


class ReliabilityDisplay(Display):
    """Accuracy against confidence in bins, before and after calibration.

    The band holds for all bins at once. On the diagonal, confidence equals accuracy. With a gate,
    both curves are of its accepted rows.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> (fit_x, fit_y), (new_x, new_y) = data.split(5000, random_state=0)
    >>> cal = mc.TemperatureScaling().fit(fit_x, fit_y)
    >>> display = ReliabilityDisplay.from_estimator(cal, new_x, new_y, binning="equal_mass")
    >>> [text.get_text() for text in display.ax_.get_legend().get_texts()]
    ['perfectly calibrated', 'before, ECE 0.0496', 'after, ECE 0.0072']
    """

    _figure_size = (5.2, 5.0)

    def plot(
        self,
        ax: Any = None,
        *,
        name: str | None = None,
        binning: str = "equal_width",
        **line_kw: Any,
    ) -> Self:
        """Draw the reliability curves with bins of equal width or of equal mass.

        Parameters
        ----------
        ax, name, **line_kw
            As in `Display.plot`. The keyword arguments apply to the curve after calibration.

        binning : {"equal_width", "equal_mass"}, default="equal_width"
            Kind of the bins.

        Returns
        -------
        ReliabilityDisplay
        """
        check_choice("binning", binning, "equal_width", "equal_mass")
        return self._plot_on_axes(ax, name, line_kw, binning=binning)

    def _draw(
        self,
        ax: Any,
        display_name: str | None,
        line_kw: Mapping[str, Any],
        binning: str = "equal_width",
    ) -> None:
        """Draw the diagonal, and the curves before and after calibration."""
        if is_label_unused(ax, _DIAGONAL_LABEL):
            ax.plot(
                [0, 1],
                [0, 1],
                color=GREY,
                linestyle=(0, (4, 3)),
                linewidth=1,
                label=_DIAGONAL_LABEL,
            )
        diagrams = self._select_diagrams(display_name)
        for diagram, (color, marker) in zip(diagrams, _BEFORE_AND_AFTER_STYLES, strict=False):
            bins: ReliabilityBins = getattr(diagram, binning)
            ece = diagram.ece if binning == "equal_width" else diagram.ece_equal_mass
            prefix = self._make_label_prefix(
                diagram, display_name, is_only_curve=len(diagrams) == 1
            )
            style = self._make_line_style(
                ax,
                display_name,
                line_kw if diagram is diagrams[-1] else {},
                color=color,
                marker=marker,
                markersize=5,
                linewidth=1.6,
                clip_on=False,
                zorder=3,
                label=f"{prefix}ECE {ece['estimate']:.4f}",
            )
            _draw_bins(ax, bins, style)
        ax.set(
            xlabel=_make_confidence_axis_label(diagrams[0].rows, display_name),
            ylabel="accuracy",
            xlim=(0, 1),
            ylim=(0, 1),
            aspect="equal",
        )
        level_percent = format_percent(self.summary.settings.level)
        ax.set_title(f"Reliability; bands: all bins at once, {level_percent}", fontsize=10)

    @staticmethod
    def _make_label_prefix(
        diagram: ReliabilityDiagram, display_name: str | None, *, is_only_curve: bool
    ) -> str:
        """Make the start of a legend label: the display name, or "before" or "after"."""
        if display_name is not None:
            rows_text = ", accepted rows" if diagram.rows == "accepted" else ""
            return f"{display_name}{rows_text}, "
        return "" if is_only_curve else f"{diagram.stage}, "


def _draw_bins(ax: Any, bins: ReliabilityBins, style: dict[str, Any]) -> None:
    """Draw the accuracy of the non-empty bins with its confidence limits."""
    has_rows = bins.count > 0
    confidence = bins.confidence[has_rows]
    lower_limits = bins.low[has_rows]
    upper_limits = bins.high[has_rows]
    color = style["color"]
    ax.fill_between(
        confidence, lower_limits, upper_limits, color=color, alpha=BAND_ALPHA, linewidth=0
    )
    ax.vlines(confidence, lower_limits, upper_limits, color=color, linewidth=1, alpha=0.6)
    ax.plot(confidence, bins.accuracy[has_rows], **style)


class ConfidenceHistogramDisplay(Display):
    """Histograms of the confidence before and after calibration.

    Vertical lines mark the mean confidence and the accuracy, which are equal for calibrated
    probabilities.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> display = ConfidenceHistogramDisplay.from_predictions(
    ...     data.labels, data.logits, input="logits"
    ... )
    >>> display.ax_.get_ylabel()
    'share of rows'
    """

    _figure_size = (6.0, 4.0)

    def plot(
        self, ax: Any = None, *, name: str | None = None, log: bool = False, **line_kw: Any
    ) -> Self:
        """Draw the histograms of the confidence.

        Parameters
        ----------
        ax, name, **line_kw
            As in `Display.plot`. The keyword arguments apply to the outline after calibration, as in
            `matplotlib.patches.StepPatch`.

        log : bool, default=False
            Whether the vertical axis is logarithmic.

        Returns
        -------
        ConfidenceHistogramDisplay
        """
        return self._plot_on_axes(ax, name, line_kw, log=log)

    def _draw(
        self, ax: Any, display_name: str | None, line_kw: Mapping[str, Any], log: bool = False
    ) -> None:
        """Draw the histograms before and after calibration, and the accuracy."""
        diagrams = self._select_diagrams(display_name)
        for diagram, (color, _) in zip(diagrams, _BEFORE_AND_AFTER_STYLES, strict=False):
            prefix = ""
            if display_name is not None:
                prefix = f"{display_name}: "
            elif len(diagrams) > 1:
                prefix = f"{diagram.stage}: "
            style = self._make_line_style(
                ax,
                display_name,
                line_kw if diagram is diagrams[-1] else {},
                color=color,
                linewidth=1.6,
                label=f"{prefix}confidence",
            )
            _draw_histogram(ax, diagram, style, mean_label=f"{prefix}mean {diagram.confidence:.4f}")
        accuracy = diagrams[-1].accuracy
        accuracy_label = f"accuracy {accuracy:.4f}"
        if is_label_unused(ax, accuracy_label):
            ax.axvline(accuracy, color="black", linewidth=1.2, label=accuracy_label)
        rows_name = diagrams[0].rows
        confidence_label = _make_confidence_axis_label(rows_name, display_name)
        ax.set(xlabel=confidence_label, ylabel="share of rows", xlim=(0, 1))
        if log:
            ax.set_yscale("log")
        ax.set_title("Confidence of the top class", fontsize=10)


def _draw_histogram(
    ax: Any, diagram: ReliabilityDiagram, style: dict[str, Any], *, mean_label: str
) -> None:
    """Draw the histogram of the confidence, and its mean as a vertical line."""
    row_fractions = diagram.histogram / max(diagram.n_rows, 1)
    edges = diagram.histogram_edges
    color = style["color"]
    ax.stairs(row_fractions, edges, color=color, fill=True, alpha=BAND_ALPHA)
    ax.stairs(row_fractions, edges, **style)
    ax.axvline(
        diagram.confidence, color=color, linestyle=(0, (4, 2)), linewidth=1.4, label=mean_label
    )


class RiskCoverageDisplay(Display):
    """Error rate of accepted rows against coverage, with a simultaneous band.

    With a gate, its operating point is marked and the promised accuracy is drawn as a line.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> (fit_x, fit_y), (new_x, new_y) = data.split(5000, random_state=0)
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(fit_x, fit_y)
    >>> display = RiskCoverageDisplay.from_estimator(cal, new_x, new_y)
    >>> display.ax_.get_xlabel()
    'coverage: share of rows accepted'
    """

    def _draw(self, ax: Any, display_name: str | None, line_kw: Mapping[str, Any]) -> None:
        """Draw the curve, its band, the promised limit and the operating point."""
        curves = self.summary.curves
        # Other displays are counted before drawing, which adds this display to the axes.
        has_other_displays = count_named_displays(ax) > 0
        coverage = curves.coverage.estimate
        accuracy = curves.accuracy
        risk = CurveWithBand(
            estimate=1.0 - accuracy.estimate, low=1.0 - accuracy.high, high=1.0 - accuracy.low
        )
        confidence_text = f"all points at once, {format_percent_floor(1.0 - curves.delta)}"
        curve_label = "error rate of accepted rows" if display_name is None else display_name
        style = self._make_line_style(
            ax, display_name, line_kw, color=BLUE, linewidth=1.8, label=curve_label
        )
        ax.fill_between(
            coverage,
            risk.low,
            risk.high,
            color=style["color"],
            alpha=BAND_ALPHA,
            linewidth=0,
            label=f"band, {confidence_text}" if display_name is None else None,
        )
        ax.plot(coverage, risk.estimate, **style)
        self._draw_promised_limit(ax, display_name)
        self._draw_operating_point(ax, display_name, risk, style["color"])
        self._set_limits_and_axis_labels(ax, risk, has_other_displays=has_other_displays)
        title = "Risk and coverage"
        if display_name is not None:
            title += f"; bands: {confidence_text}"
        ax.set_title(title, fontsize=10)

    def _draw_promised_limit(self, ax: Any, display_name: str | None) -> None:
        """Draw the promised error rate as a horizontal line, once on the axes."""
        promise = self.summary.promise
        if promise is None:
            return
        promised_accuracy = promise.find_target("accuracy")
        if promised_accuracy is None:
            return
        max_risk = 1.0 - promised_accuracy
        label = f"promised: at most {format_percent_ceil(max_risk)} wrong"
        if is_label_unused(ax, label):
            color = ORANGE if display_name is None else GREY
            ax.axhline(max_risk, color=color, linestyle=(0, (5, 3)), linewidth=1.4, label=label)

    def _draw_operating_point(
        self, ax: Any, display_name: str | None, risk: CurveWithBand, curve_color: Any
    ) -> None:
        """Mark the coverage and error rate of the gate, if there is a gate."""
        curves = self.summary.curves
        gate_point_index = curves.current
        if gate_point_index is None:
            return
        gate_coverage = curves.coverage.estimate[gate_point_index]
        gate_risk = risk.estimate[gate_point_index]
        gate_name = "the gate" if display_name is None else display_name
        ax.plot(
            [gate_coverage],
            [gate_risk],
            "o",
            color=ORANGE if display_name is None else curve_color,
            markersize=8,
            zorder=3,
            label=f"{gate_name}: {format_percent(round(gate_coverage, 4))} accepted",
        )

    @staticmethod
    def _set_limits_and_axis_labels(
        ax: Any, risk: CurveWithBand, *, has_other_displays: bool
    ) -> None:
        """Set labels and limits of both axes, so that all displays stay visible."""
        ax.set(
            xlabel="coverage: share of rows accepted",
            ylabel="risk: share wrong of the accepted",
            xlim=(0, 1),
        )
        largest_risk = float(np.nanmax(risk.estimate))
        upper_bound_at_full_coverage = float(risk.high[-1])
        upper_limit = max(
            _CURVE_HEADROOM * largest_risk,
            _BAND_HEADROOM * upper_bound_at_full_coverage,
            _MIN_RISK_AXIS_LIMIT,
        )
        upper_limit = min(upper_limit, 1.0)
        if has_other_displays:
            _, present_upper_limit = ax.get_ylim()
            upper_limit = max(upper_limit, present_upper_limit)
        ax.set_ylim(0, upper_limit)


class ThresholdDisplay(Display):
    """Coverage, selective accuracy and miscoverage against the threshold.

    The bands hold for all thresholds at once.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> display = ThresholdDisplay.from_predictions(data.labels, data.logits, input="logits")
    >>> display.ax_.get_xlabel()
    'threshold: accept if entropy is at most this'
    """

    _figure_size = (6.6, 4.4)
    _legend_location = "center left"

    def _draw(self, ax: Any, display_name: str | None, line_kw: Mapping[str, Any]) -> None:
        """Draw the three curves with their bands, and the threshold of the gate."""
        curves = self.summary.curves
        # Other displays are counted before drawing, which adds this display to the axes.
        has_other_displays = count_named_displays(ax) > 0
        prefix = "" if display_name is None else f"{display_name}: "
        drawn_curves = (curves.accuracy, curves.coverage, curves.miscoverage)
        styles = self._make_curve_styles(ax, display_name, line_kw, prefix)
        for curve, style in zip(drawn_curves, styles, strict=True):
            ax.fill_between(
                curves.threshold,
                curve.low,
                curve.high,
                color=style["color"],
                alpha=BAND_ALPHA,
                linewidth=0,
            )
            ax.plot(curves.threshold, curve.estimate, **style)
        self._set_threshold_range(ax, has_other_displays=has_other_displays)
        gate_threshold = self._find_gate_threshold()
        if gate_threshold is not None:
            ax.axvline(
                gate_threshold,
                color="black" if display_name is None else styles[0]["color"],
                linewidth=1.2,
                linestyle=(0, (1, 1.5)),
                label=f"{prefix}the gate: {gate_threshold:.4g}",
            )
        score_name = self.summary.source.score
        ax.set(
            xlabel=f"threshold: accept if {score_name} is at most this",
            ylabel="share",
            ylim=(0, 1.02),
        )
        ax.set_title(
            f"Bands: all thresholds and curves at once, {format_percent_floor(1.0 - curves.delta)}",
            fontsize=10,
        )

    def _make_curve_styles(
        self, ax: Any, display_name: str | None, line_kw: Mapping[str, Any], prefix: str
    ) -> list[dict[str, Any]]:
        """Make the line styles of accuracy, coverage and miscoverage.

        All styles are made before a curve is drawn, because a drawn curve counts as another display
        and would change the colour of the next one.

        Parameters
        ----------
        ax : matplotlib axes
            Axes to draw on.

        display_name : str or None
            Name of the display.

        line_kw : mapping
            Keyword arguments of the user, which take precedence.

        prefix : str
            Start of the legend labels.

        Returns
        -------
        list of dict
        """
        defaults: list[dict[str, Any]] = [
            {"color": BLUE, "linestyle": "-", "label": f"{prefix}selective accuracy"},
            {"color": GREEN, "linestyle": (0, (6, 2)), "label": f"{prefix}coverage"},
            {"color": ORANGE, "linestyle": (0, (2, 1.5)), "label": f"{prefix}miscoverage"},
        ]
        styles = [
            self._make_line_style(ax, display_name, line_kw, linewidth=1.8, **curve_defaults)
            for curve_defaults in defaults
        ]
        # Only the first curve keeps the group id by which named displays are counted.
        for style in styles[1:]:
            style["gid"] = None
        return styles

    def _find_gate_threshold(self) -> float | None:
        """Find the threshold of the gate, limited to the largest one on the axis."""
        curves = self.summary.curves
        promise = self.summary.promise
        gate_point_index = curves.current
        if gate_point_index is None:
            return None
        if promise is None:
            return float(curves.threshold[gate_point_index])
        # A gate that accepts every row has an infinite threshold, which cannot be drawn.
        largest_drawn_threshold = float(curves.threshold[-1])
        return min(promise.threshold, largest_drawn_threshold)

    def _set_threshold_range(self, ax: Any, *, has_other_displays: bool) -> None:
        """Limit the axis to thresholds that accept at least 2% of the rows.

        If the axes have other displays, their range stays visible.
        """
        thresholds = self.summary.curves.threshold
        coverage = self.summary.curves.coverage.estimate
        lowest_index = int(np.searchsorted(coverage, _MIN_SHOWN_COVERAGE))
        lowest = float(thresholds[lowest_index])
        highest = float(thresholds[-1])
        if has_other_displays:
            present_lowest, present_highest = ax.get_xlim()
            lowest = min(present_lowest, lowest)
            highest = max(present_highest, highest)
        if lowest > 0.0 and highest > _LOG_AXIS_RATIO * lowest:
            ax.set_xscale("log")
        ax.set_xlim(lowest, highest)


def _make_confidence_axis_label(rows_name: str, display_name: str | None) -> str:
    """Make the label of the axis of confidence.

    The label does not state the rows of named displays, because these may show different rows.
    """
    return f"confidence ({rows_name} rows)" if display_name is None else "confidence"
