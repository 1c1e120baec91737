"""Matplotlib displays of a report's curves, in scikit-learn's Display pattern; they draw from the
same `Summary`.

Each display is made by `from_estimator(estimator, logits, labels)`, `from_predictions(labels,
proba)` or from a summary that is at hand, `Display(summary)`; it is drawn by `.plot(ax=None)` and
then has `ax_` and `figure_`. Several stand on one axis where each has a `name`; further keywords
are those of its line. Any number of classes. Needs matplotlib, ``pip install "metacal[plot]"``,
which is imported when something is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from metacal.promises.words import at_least, at_most, percent
from metacal.report.display import BAND, BLUE, GREEN, GREY, ORANGE, Display, n_named, once
from metacal.report.operating import Series
from metacal.report.reliability import Bins
from metacal.rows.arrays import one_of

_PERFECT = "perfectly calibrated"


class ReliabilityDisplay(Display):
    """Accuracy against confidence, bin by bin, before and after calibration, with limits for all
    bins at once.

    On the diagonal confidence is what it claims to be. With a gate both curves are of its accepted
    rows.

    Examples
    --------
    >>> import metacal as mc
    >>> (fit_x, fit_y), (new_x, new_y) = mc.datasets.load("cifar10-resnet110").split(5000, random_state=0)
    >>> cal = mc.TemperatureScaling().fit(fit_x, fit_y)
    >>> display = ReliabilityDisplay.from_estimator(cal, new_x, new_y, binning="equal_mass")
    >>> [text.get_text() for text in display.ax_.get_legend().get_texts()]
    ['perfectly calibrated', 'before, ECE 0.0496', 'after, ECE 0.0072']
    """

    _size = (5.2, 5.0)

    def plot(
        self,
        ax: Any = None,
        *,
        name: str | None = None,
        binning: str = "equal_width",
        **line_kw: Any,
    ) -> Self:
        """Draw with bins of equal width or of equal counts.

        Parameters
        ----------
        ax, name, **line_kw
            As in `Display.plot`; the keywords are those of the curve after calibration.
        binning : "equal_width" or "equal_mass"
        """
        one_of("binning", binning, "equal_width", "equal_mass")
        return self._plotted(ax, name, line_kw, binning=binning)

    def _draw(
        self, ax: Any, name: str | None, line_kw: Mapping[str, Any], binning: str = "equal_width"
    ) -> None:
        if once(ax, _PERFECT):
            ax.plot([0, 1], [0, 1], color=GREY, linestyle=(0, (4, 3)), linewidth=1, label=_PERFECT)
        found = self._compared(name)
        for diagram, (color, marker) in zip(found, ((ORANGE, "o"), (BLUE, "s")), strict=False):
            bins: Bins = getattr(diagram, binning)
            ece = (diagram.ece if binning == "equal_width" else diagram.ece_equal_mass)["estimate"]
            held = bins.count > 0
            x, y = bins.confidence[held], bins.accuracy[held]
            usual: dict[str, Any] = {
                "color": color,
                "marker": marker,
                "markersize": 5,
                "linewidth": 1.6,
            }
            which = f"{diagram.stage}, " if len(found) > 1 else ""
            if name is not None:
                which = f"{name}{', accepted rows' if diagram.rows == 'accepted' else ''}, "
            usual |= {"clip_on": False, "zorder": 3, "label": f"{which}ECE {ece:.4f}"}
            style = self._style(ax, name, line_kw if diagram is found[-1] else {}, **usual)
            color = style["color"]
            ax.fill_between(
                x, bins.low[held], bins.high[held], color=color, alpha=BAND, linewidth=0
            )
            ax.vlines(x, bins.low[held], bins.high[held], color=color, linewidth=1, alpha=0.6)
            ax.plot(x, y, **style)
        level = percent(self.summary.settings.level)
        ax.set(
            xlabel=_confidence(found[0].rows, name),
            ylabel="accuracy",
            xlim=(0, 1),
            ylim=(0, 1),
            aspect="equal",
        )
        ax.set_title(f"Reliability; bands: all bins at once, {level}", fontsize=10)


class ConfidenceHistogramDisplay(Display):
    """How many rows have which confidence, before and after calibration; the accuracy is where
    their mean should be.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> display = ConfidenceHistogramDisplay.from_predictions(data.labels, data.logits, input="logits")
    >>> display.ax_.get_ylabel()
    'share of rows'
    """

    _size = (6.0, 4.0)

    def plot(
        self, ax: Any = None, *, name: str | None = None, log: bool = False, **line_kw: Any
    ) -> Self:
        """Draw; `log` for a logarithmic scale of the shares.

        Parameters
        ----------
        ax, name, **line_kw
            As in `Display.plot`; the keywords are those of the outline after calibration, as
            `matplotlib.patches.StepPatch` takes them.
        log : bool
        """
        return self._plotted(ax, name, line_kw, log=log)

    def _draw(
        self, ax: Any, name: str | None, line_kw: Mapping[str, Any], log: bool = False
    ) -> None:
        found = self._compared(name)
        for diagram, color in zip(found, (ORANGE, BLUE), strict=False):
            share = diagram.histogram / max(diagram.n_rows, 1)
            edges = diagram.histogram_edges
            which = f"{diagram.stage}: " if len(found) > 1 else "" if name is None else f"{name}: "
            usual = {"color": color, "linewidth": 1.6, "label": f"{which}confidence"}
            style = self._style(ax, name, line_kw if diagram is found[-1] else {}, **usual)
            color = style["color"]
            ax.stairs(share, edges, color=color, fill=True, alpha=BAND)
            ax.stairs(share, edges, **style)
            label = f"{which}mean {diagram.confidence:.4f}"
            ax.axvline(
                diagram.confidence, color=color, linestyle=(0, (4, 2)), linewidth=1.4, label=label
            )
        accuracy = found[-1].accuracy
        if once(ax, f"accuracy {accuracy:.4f}"):
            ax.axvline(accuracy, color="black", linewidth=1.2, label=f"accuracy {accuracy:.4f}")
        ax.set(xlabel=_confidence(found[0].rows, name), ylabel="share of rows", xlim=(0, 1))
        if log:
            ax.set_yscale("log")
        ax.set_title("Confidence of the top class", fontsize=10)


class RiskCoverageDisplay(Display):
    """Error rate of the accepted rows against the share accepted, with its band over all thresholds
    at once.

    With a gate its own point is marked, and the promised accuracy drawn as a line.

    Examples
    --------
    >>> import metacal as mc
    >>> (fit_x, fit_y), (new_x, new_y) = mc.datasets.load("cifar10-resnet110").split(5000, random_state=0)
    >>> cal = mc.MetaCal(mc.MinAccuracy(0.97)).fit(fit_x, fit_y)
    >>> display = RiskCoverageDisplay.from_estimator(cal, new_x, new_y)
    >>> display.ax_.get_xlabel()
    'coverage: share of rows accepted'
    """

    def _draw(self, ax: Any, name: str | None, line_kw: Mapping[str, Any]) -> None:
        curves, held = self.summary.curves, n_named(ax)
        coverage, accuracy = curves.coverage.estimate, curves.accuracy
        risk = Series(1.0 - accuracy.estimate, 1.0 - accuracy.high, 1.0 - accuracy.low)
        sure = f"all points at once, {at_least(1.0 - curves.delta)}"
        label = "error rate of accepted rows" if name is None else name
        style = self._style(ax, name, line_kw, color=BLUE, linewidth=1.8, label=label)
        band = f"band, {sure}" if name is None else None
        ax.fill_between(
            coverage, risk.low, risk.high, color=style["color"], alpha=BAND, linewidth=0, label=band
        )
        ax.plot(coverage, risk.estimate, **style)
        verdicts = () if self.summary.promise is None else self.summary.promise.verdicts
        target = next(
            (part["target"] for part in verdicts if part["curve"] == "accuracy"), None
        )  # as the page asks
        if target is not None and once(
            ax, label := f"promised: at most {at_most(1.0 - target)} wrong"
        ):
            color = ORANGE if name is None else GREY
            ax.axhline(1.0 - target, color=color, linestyle=(0, (5, 3)), linewidth=1.4, label=label)
        if curves.current is not None:
            x, y = coverage[curves.current], risk.estimate[curves.current]
            own = ORANGE if name is None else style["color"]
            label = f"{'the gate' if name is None else name}: {percent(round(x, 4))} accepted"
            ax.plot([x], [y], "o", color=own, markersize=8, zorder=3, label=label)
        worst = float(np.nanmax(risk.estimate))
        highest = min(1.0, max(1.6 * worst, 1.3 * float(risk.high[-1]), 1e-3))
        ax.set(
            xlabel="coverage: share of rows accepted",
            ylabel="risk: share wrong of the accepted",
            xlim=(0, 1),
        )
        ax.set_ylim(0, max(highest, ax.get_ylim()[1]) if held else highest)
        ax.set_title(f"Risk and coverage{'' if name is None else f'; bands: {sure}'}", fontsize=10)


class ThresholdDisplay(Display):
    """Coverage, accuracy of accepted and miscoverage against the threshold, each with its band over
    all thresholds.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> display = ThresholdDisplay.from_predictions(data.labels, data.logits, input="logits")
    >>> display.ax_.get_xlabel()
    'threshold: accept if entropy is at most this'
    """

    _size = (6.6, 4.4)
    _legend = "center left"

    def _draw(self, ax: Any, name: str | None, line_kw: Mapping[str, Any]) -> None:
        curves, held = self.summary.curves, n_named(ax)
        x, which = curves.threshold, "" if name is None else f"{name}: "
        drawn = (
            (curves.accuracy, BLUE, "-", "accuracy of accepted"),
            (curves.coverage, GREEN, (0, (6, 2)), "coverage"),
            (curves.miscoverage, ORANGE, (0, (2, 1.5)), "miscoverage"),
        )
        styles = [
            self._style(
                ax,
                name,
                line_kw,
                color=color,
                linestyle=dashes,
                linewidth=1.8,
                label=f"{which}{title}",
            )
            for _, color, dashes, title in drawn
        ]
        for k, ((series, *_), style) in enumerate(zip(drawn, styles, strict=True)):
            style |= {"gid": None} if k else {}  # a display is counted once
            ax.fill_between(
                x, series.low, series.high, color=style["color"], alpha=BAND, linewidth=0
            )
            ax.plot(x, series.estimate, **style)
        self._span(ax, held)
        if curves.current is not None:
            promise = self.summary.promise
            own = (
                float(x[curves.current])
                if promise is None
                else min(promise.threshold, float(x[-1]))
            )
            label, color = (
                f"{which}the gate: {own:.4g}",
                "black" if name is None else styles[0]["color"],
            )
            ax.axvline(own, color=color, linewidth=1.2, linestyle=(0, (1, 1.5)), label=label)
        score = self.summary.source.score
        ax.set(
            xlabel=f"threshold: accept if {score} is at most this", ylabel="share", ylim=(0, 1.02)
        )
        ax.set_title(
            f"Bands: all thresholds and curves at once, {at_least(1.0 - curves.delta)}", fontsize=10
        )

    def _span(self, ax: Any, held: int) -> None:
        """Show the thresholds from where 2% are accepted; and all that a named display before
        showed.
        """
        x, coverage = self.summary.curves.threshold, self.summary.curves.coverage.estimate
        lowest, highest = float(x[int(np.searchsorted(coverage, 0.02))]), float(x[-1])
        if held:
            low, high = ax.get_xlim()
            lowest, highest = min(low, lowest), max(high, highest)
        if lowest > 0.0 and highest > 100.0 * lowest:
            ax.set_xscale("log")
        ax.set_xlim(lowest, highest)


def _confidence(rows: str, name: str | None) -> str:
    """The label of an axis of confidences; named curves may be of different rows, and say so
    themselves.
    """
    return "confidence" if name is not None else f"confidence ({rows} rows)"
