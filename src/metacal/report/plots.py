"""Matplotlib displays of a report's curves, in scikit-learn's Display pattern; they draw from the same `Summary`.

Each display is made by `from_estimator(estimator, logits, labels)`, `from_predictions(labels, proba)` or from a summary
that is at hand, `Display(summary)`; it is drawn by `.plot(ax=None)` and then has `ax_` and `figure_`. Any number of
classes. Needs matplotlib, ``pip install "metacal[plot]"``, which is imported when something is drawn.
"""

from __future__ import annotations

import difflib
import inspect
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from metacal.errors import InputError, MissingExtraError
from metacal.promises.shares import at_least, at_most, percent
from metacal.report.summarise import summarise
from metacal.report.summary import Bins, Diagram, Series, Summary

#: Colours that people with any colour vision tell apart (Okabe & Ito 2008).
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
_BAND = 0.18  # opacity
_LEGEND: dict[str, Any] = {"framealpha": 0.85, "edgecolor": "none"}


class _Display:
    """What the displays share: how they are made."""

    #: Bootstrap intervals are drawn nowhere unless a display says so.
    _n_resamples: ClassVar[int] = 0

    ax_: Any
    figure_: Any

    def __init__(self, summary: Summary) -> None:
        given: Any = summary
        if not isinstance(given, Summary):
            name = type(self).__name__
            raise InputError(
                f"{name}(summary) takes a Summary, as metacal.report.summarise.summarise(...) returns it; got "
                f"{type(given).__name__}. Of an estimator: {name}.from_estimator(estimator, logits, labels); of a "
                f"table: {name}.from_predictions(labels, proba)."
            )
        self.summary = summary

    @classmethod
    def from_estimator(
        cls, estimator: Any, logits: ArrayLike, labels: ArrayLike, *, ax: Any = None, **options: Any
    ) -> Self:
        """Draw a fitted MetaCal or calibrator on labelled rows.

        Parameters
        ----------
        estimator : fitted MetaCal or calibrator
        logits, labels : array-like
            Rows that it was not fitted on.
        ax : matplotlib axes, optional
        **options
            Keywords of `plot`, and of `metacal.report.summarise.summarise` (`level`, `delta`, `n_bins`, `classes`).
        """
        if not hasattr(estimator, "map_"):
            raise InputError(
                f"{cls.__name__}.from_estimator takes (estimator, logits, labels), a fitted MetaCal or calibrator "
                f"first; got {type(estimator).__name__}. Of a table of probabilities alone: "
                f"{cls.__name__}.from_predictions(labels, proba)."
            )
        return cls._made("from_estimator", logits, labels, estimator, ax, options)

    @classmethod
    def from_predictions(
        cls, labels: ArrayLike, proba: ArrayLike, *, input: str = "probabilities", ax: Any = None, **options: Any
    ) -> Self:
        """Draw a table of probabilities (or of logits, with ``input="logits"``) as it is.

        Parameters
        ----------
        labels : array of shape (n,)
        proba : array of shape (n, K)
            In scikit-learn's order; the order of `metacal.metrics`, (proba, labels), works too, as the two have
            different shapes.
        input : "probabilities" or "logits"
        ax : matplotlib axes, optional
        **options
            Keywords of `plot`, and of `metacal.report.summarise.summarise`.
        """
        if np.ndim(labels) == 2 and np.ndim(proba) == 1:
            labels, proba = proba, labels
        return cls._made("from_predictions", proba, labels, None, ax, {"input": input, **options})

    @classmethod
    def _made(
        cls, maker: str, table: ArrayLike, labels: ArrayLike, estimator: Any, ax: Any, options: dict[str, Any]
    ) -> Self:
        cls._check_options(maker, options)
        drawing = {name: options.pop(name) for name in cls._plot_options if name in options}
        options.setdefault("n_resamples", cls._n_resamples)
        return cls(summarise(table, labels, estimator, **options)).plot(ax, **drawing)

    @classmethod
    def _check_options(cls, maker: str, options: dict[str, Any]) -> None:
        summed = list(inspect.signature(summarise).parameters)[3:]  # after logits, labels, gate
        known = ["ax", *cls._plot_options, *summed]
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1, 0.5)
                meant = f" Did you mean {near[0]!r}?" if near else ""
                drawing = f"for the drawing {', '.join(known[: 1 + len(cls._plot_options)])}"
                raise InputError(
                    f"{cls.__name__}.{maker} has no argument {name!r}.{meant} It takes {drawing}; for the numbers "
                    f"{', '.join(summed)}."
                )

    #: Keywords of `plot`, so that the makers can tell them from those of `summarise`.
    _plot_options: ClassVar[tuple[str, ...]] = ()

    def plot(self, ax: Any = None) -> Self:
        """Draw; a new figure when `ax` is None."""
        raise NotImplementedError

    def _start(self, ax: Any, size: tuple[float, float]) -> Any:
        if ax is None:
            _, ax = _pyplot().subplots(figsize=size, layout="constrained")
        self.ax_, self.figure_ = ax, ax.figure
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(True, color="0.9", linewidth=0.8)
        ax.set_axisbelow(True)
        return ax


class ReliabilityDisplay(_Display):
    """Accuracy against confidence, bin by bin, before and after calibration, with limits for all bins at once.

    On the diagonal confidence is what it claims to be. With a gate both curves are of its accepted rows.

    Examples
    --------
    >>> import metacal as mc
    >>> (fit_x, fit_y), (new_x, new_y) = mc.datasets.load("cifar10-resnet110").split(5000, random_state=0)
    >>> cal = mc.TemperatureScaling().fit(fit_x, fit_y)
    >>> display = ReliabilityDisplay.from_estimator(cal, new_x, new_y, binning="equal_mass")
    >>> [text.get_text() for text in display.ax_.get_legend().get_texts()]
    ['perfectly calibrated', 'before, ECE 0.0496', 'after, ECE 0.0072']
    """

    _plot_options = ("binning",)

    def plot(self, ax: Any = None, *, binning: str = "equal_width") -> Self:
        """Draw with bins of equal width or of equal counts.

        Parameters
        ----------
        ax : matplotlib axes, optional
        binning : "equal_width" or "equal_mass"
        """
        if binning not in ("equal_width", "equal_mass"):
            raise InputError(f"binning must be 'equal_width' or 'equal_mass', got {binning!r}.")
        ax = self._start(ax, (5.2, 5.0))
        ax.plot([0, 1], [0, 1], color=GREY, linestyle=(0, (4, 3)), linewidth=1, label="perfectly calibrated")
        found = _compared(self.summary)
        for diagram, (color, marker) in zip(found, ((ORANGE, "o"), (BLUE, "s")), strict=False):
            bins: Bins = getattr(diagram, binning)
            ece = (diagram.ece if binning == "equal_width" else diagram.ece_equal_mass)["estimate"]
            held = bins.count > 0
            x, y = bins.confidence[held], bins.accuracy[held]
            ax.fill_between(x, bins.low[held], bins.high[held], color=color, alpha=_BAND, linewidth=0)
            ax.vlines(x, bins.low[held], bins.high[held], color=color, linewidth=1, alpha=0.6)
            name = f"{diagram.stage}, " if len(found) > 1 else ""
            style: dict[str, Any] = {"color": color, "marker": marker, "markersize": 5, "linewidth": 1.6}
            ax.plot(x, y, **style, clip_on=False, zorder=3, label=f"{name}ECE {ece:.4f}")
        level = percent(self.summary.settings.level)
        rows = "accepted rows" if found[0].rows == "accepted" else "all rows"
        ax.set(xlabel=f"confidence ({rows})", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1), aspect="equal")
        ax.set_title(f"Reliability; bands: all bins at once, {level}", fontsize=10)
        ax.legend(loc="upper left", **_LEGEND)
        return self


class ConfidenceHistogramDisplay(_Display):
    """How many rows have which confidence, before and after calibration; the accuracy is where their mean should be.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> display = ConfidenceHistogramDisplay.from_predictions(data.labels, data.logits, input="logits")
    >>> display.ax_.get_ylabel()
    'share of rows'
    """

    _plot_options = ("log",)

    def plot(self, ax: Any = None, *, log: bool = False) -> Self:
        """Draw; `log` for a logarithmic scale of the shares.

        Parameters
        ----------
        ax : matplotlib axes, optional
        log : bool
        """
        ax = self._start(ax, (6.0, 4.0))
        found = _compared(self.summary)
        for diagram, (color, style) in zip(found, ((ORANGE, "-"), (BLUE, "-")), strict=False):
            share = diagram.histogram / max(diagram.n_rows, 1)
            edges = diagram.histogram_edges
            ax.stairs(share, edges, color=color, fill=True, alpha=_BAND)
            name = f"{diagram.stage}: " if len(found) > 1 else ""
            ax.stairs(share, edges, color=color, linestyle=style, linewidth=1.6, label=f"{name}confidence")
            label = f"{name}mean {diagram.confidence:.4f}"
            ax.axvline(diagram.confidence, color=color, linestyle=(0, (4, 2)), linewidth=1.4, label=label)
        accuracy = found[-1].accuracy
        ax.axvline(accuracy, color="black", linewidth=1.2, label=f"accuracy {accuracy:.4f}")
        rows = "accepted rows" if found[0].rows == "accepted" else "all rows"
        ax.set(xlabel=f"confidence ({rows})", ylabel="share of rows", xlim=(0, 1))
        if log:
            ax.set_yscale("log")
        ax.set_title("Confidence of the top class", fontsize=10)
        ax.legend(loc="upper left", **_LEGEND)
        return self


class RiskCoverageDisplay(_Display):
    """Error rate of the accepted rows against the share accepted, with its band over all thresholds at once.

    With a gate its own point is marked, and the promised accuracy drawn as a line.

    Examples
    --------
    >>> import metacal as mc
    >>> (fit_x, fit_y), (new_x, new_y) = mc.datasets.load("cifar10-resnet110").split(5000, random_state=0)
    >>> cal = mc.MetaCal(mc.MinCoverageAccuracy(0.97)).fit(fit_x, fit_y)
    >>> display = RiskCoverageDisplay.from_estimator(cal, new_x, new_y)
    >>> display.ax_.get_xlabel()
    'coverage: share of rows accepted'
    """

    def plot(self, ax: Any = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib axes, optional
        """
        ax = self._start(ax, (6.4, 4.2))
        curves = self.summary.curves
        coverage, accuracy = curves.coverage.estimate, curves.accuracy
        risk = Series(1.0 - accuracy.estimate, 1.0 - accuracy.high, 1.0 - accuracy.low)
        sure = at_least(1.0 - curves.delta)
        ax.fill_between(
            coverage,
            risk.low,
            risk.high,
            color=BLUE,
            alpha=_BAND,
            linewidth=0,
            label=f"band, all points at once, {sure}",
        )
        ax.plot(coverage, risk.estimate, color=BLUE, linewidth=1.8, label="error rate of accepted rows")
        target = _promised_on(self.summary, "accuracy")
        if target is not None:
            label = f"promised: at most {at_most(1.0 - target)} wrong"
            ax.axhline(1.0 - target, color=ORANGE, linestyle=(0, (5, 3)), linewidth=1.4, label=label)
        if curves.current is not None:
            x, y = coverage[curves.current], risk.estimate[curves.current]
            ax.plot(
                [x], [y], "o", color=ORANGE, markersize=8, zorder=3, label=f"the gate: {percent(round(x, 4))} accepted"
            )
        worst = float(np.nanmax(risk.estimate))
        ax.set(xlabel="coverage: share of rows accepted", ylabel="risk: share wrong of the accepted")
        ax.set_xlim(0, 1)
        ax.set_ylim(0, min(1.0, max(1.6 * worst, 1.3 * float(risk.high[-1]), 1e-3)))
        ax.set_title("Risk and coverage", fontsize=10)
        ax.legend(loc="upper left", **_LEGEND)
        return self


class ThresholdDisplay(_Display):
    """Coverage, accuracy of accepted and miscoverage against the threshold, each with its band over all thresholds.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> display = ThresholdDisplay.from_predictions(data.labels, data.logits, input="logits")
    >>> display.ax_.get_xlabel()
    'threshold: accept if entropy is at most this'
    """

    def plot(self, ax: Any = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib axes, optional
        """
        ax = self._start(ax, (6.6, 4.4))
        curves = self.summary.curves
        x = curves.threshold
        for series, color, style, name in (
            (curves.accuracy, BLUE, "-", "accuracy of accepted"),
            (curves.coverage, GREEN, (0, (6, 2)), "coverage"),
            (curves.miscoverage, ORANGE, (0, (2, 1.5)), "miscoverage"),
        ):
            ax.fill_between(x, series.low, series.high, color=color, alpha=_BAND, linewidth=0)
            ax.plot(x, series.estimate, color=color, linestyle=style, linewidth=1.8, label=name)
        from_here = float(x[int(np.searchsorted(curves.coverage.estimate, 0.02))])
        if from_here > 0.0 and x[-1] > 100.0 * from_here:
            ax.set_xscale("log")
        ax.set_xlim(from_here, float(x[-1]))
        if curves.current is not None:
            promise = self.summary.promise
            own = float(x[curves.current]) if promise is None else min(promise.threshold, float(x[-1]))
            ax.axvline(own, color="black", linewidth=1.2, linestyle=(0, (1, 1.5)), label=f"the gate: {own:.4g}")
        score = self.summary.source.score
        ax.set(xlabel=f"threshold: accept if {score} is at most this", ylabel="share", ylim=(0, 1.02))
        ax.set_title(f"Bands: all thresholds and curves at once, {at_least(1.0 - curves.delta)}", fontsize=10)
        ax.legend(loc="center left", **_LEGEND)
        return self


def _compared(summary: Summary) -> list[Diagram]:
    """Before, and after where there is one, on the same rows."""
    rows = "accepted" if summary.diagram("after", "accepted") is not None else "all"
    found = [summary.diagram(stage, rows) for stage in ("before", "after")]
    return [diagram for diagram in found if diagram is not None]


def _promised_on(summary: Summary, curve: str) -> float | None:
    """What is promised of the quantity that a curve shows, as the page asks too."""
    if summary.promise is None:
        return None
    return next((part["target"] for part in summary.promise.verdicts if part["curve"] == curve), None)


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot as pyplot
    except ImportError as error:
        raise MissingExtraError("drawing a plot", "plot") from error
    return pyplot
