"""Base class of the matplotlib displays.

A display without a name has its axes to itself. It shows the curves before and after calibration,
the operating point of the gate, and the promised limit. A display with a `name` is one of several on
the same axes. It shows only the calibrated curve, in the next colour of the palette. Elements that
all displays share (the diagonal, a promised limit) are drawn once.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from metacal.errors import InputError, needs_extra
from metacal.reports.reliability import ReliabilityDiagram
from metacal.reports.summary import Summary, summarise

# These colours are distinguishable with any colour vision (Okabe & Ito 2008).
BLUE = "#0072B2"
ORANGE = "#D55E00"
GREEN = "#009E73"
GREY = "#666666"
#: Colours and markers that named displays on the same axes get in turn.
_NAMED_STYLES = (
    (BLUE, "s"),
    (ORANGE, "o"),
    (GREEN, "^"),
    ("#CC79A7", "D"),
    ("#E69F00", "v"),
    ("#56B4E9", "P"),
    ("0.1", "X"),
)
#: Opacity of a confidence band.
BAND_ALPHA = 0.18
#: Matplotlib group id (gid) of the first curve of each named display.
_NAMED_GID = "metacal-named"


class Display:
    """Base class of displays, which draw a `Summary` with matplotlib.

    The interface follows the Display objects of scikit-learn.

    Parameters
    ----------
    summary : Summary
        Numbers to draw.

    Attributes
    ----------
    ax_, figure_
        Matplotlib axes and figure, after `plot`.
    """

    #: Width and height of a new figure in inches.
    _figure_size: ClassVar[tuple[float, float]] = (6.4, 4.2)
    #: Location of the legend, as in `matplotlib.axes.Axes.legend`.
    _legend_location: ClassVar[str] = "upper left"

    def __init__(self, summary: Summary) -> None:
        # The type `Any` keeps mypy from treating the check of the argument as unreachable.
        argument: Any = summary
        if not isinstance(argument, Summary):
            class_name = type(self).__name__
            raise InputError(
                f"{class_name}(summary) requires the Summary that"
                " metacal.reports.summary.summarise(...) returns, but got"
                f" {type(argument).__name__}. For an estimator, use"
                f" {class_name}.from_estimator(estimator, logits, labels). For a table, use"
                f" {class_name}.from_predictions(labels, proba)."
            )
        self.summary = summary

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        logits: ArrayLike,
        labels: ArrayLike,
        *,
        ax: Any = None,
        name: str | None = None,
        **options: Any,
    ) -> Self:
        """Draw the display of a fitted estimator on labelled rows.

        Parameters
        ----------
        estimator : fitted MetaCal or calibrator
            Estimator to draw.

        logits, labels : array-like
            Rows that it was not fitted on.

        ax : matplotlib axes, default=None
            Axes to draw on. If None, a new figure is created.

        name : str, default=None
            Name in the legend, for one of several displays on the same axes.

        **options
            Keyword arguments of `plot`, including those of the line (`color`, `linewidth`), and of
            `metacal.reports.summary.summarise` (`level`, `delta`, `n_bins`, `classes`).

        Returns
        -------
        Display
        """
        if not hasattr(estimator, "map_"):
            raise InputError(
                f"{cls.__name__}.from_estimator requires a fitted MetaCal or calibrator as its"
                f" first argument, but got {type(estimator).__name__}. For a table of"
                f" probabilities, use {cls.__name__}.from_predictions(labels, proba)."
            )
        return cls._summarise_and_plot(logits, labels, estimator, ax, {"name": name, **options})

    @classmethod
    def from_predictions(
        cls,
        labels: ArrayLike,
        proba: ArrayLike,
        *,
        input: str = "probabilities",
        ax: Any = None,
        name: str | None = None,
        **options: Any,
    ) -> Self:
        """Draw the display of probabilities, or of logits with ``input="logits"``.

        Parameters
        ----------
        labels : array of shape (n,)
            True classes.

        proba : array of shape (n, K)
            Probabilities or logits. The order of the arguments is that of scikit-learn. The order
            of `metacal.metrics`, (proba, labels), works as well, because the shapes differ.

        input : {"probabilities", "logits"}, default="probabilities"
            Content of `proba`.

        ax, name, **options
            As in `from_estimator`.

        Returns
        -------
        Display
        """
        if np.ndim(labels) == 2 and np.ndim(proba) == 1:
            labels, proba = proba, labels
        all_options = {"input": input, "name": name, **options}
        return cls._summarise_and_plot(proba, labels, None, ax, all_options)

    @classmethod
    def _summarise_and_plot(
        cls, table: ArrayLike, labels: ArrayLike, estimator: Any, ax: Any, options: dict[str, Any]
    ) -> Self:
        """Compute a summary of labelled rows, and draw it.

        Parameters
        ----------
        table, labels : array-like
            Logits or probabilities, and true classes.

        estimator : fitted MetaCal or calibrator, or None
            Estimator to draw.

        ax : matplotlib axes or None
            Axes to draw on.

        options : dict
            Keyword arguments of `summarise` and of `plot`.

        Returns
        -------
        Display
        """
        # The first parameters of `summarise` are the rows, their labels and the gate.
        n_data_parameters = 3
        summary_parameters = list(inspect.signature(summarise).parameters)
        summary_option_names = summary_parameters[n_data_parameters:]
        # Resampling is skipped because no display shows a bootstrap interval.
        summary_options: dict[str, Any] = {"n_resamples": 0}
        plot_options: dict[str, Any] = {}
        for option_name, option_value in options.items():
            if option_name in summary_option_names:
                summary_options[option_name] = option_value
            else:
                plot_options[option_name] = option_value
        summary = summarise(table, labels, estimator, **summary_options)
        return cls(summary).plot(ax, **plot_options)

    def plot(self, ax: Any = None, *, name: str | None = None, **line_kw: Any) -> Self:
        """Draw the summary on matplotlib axes.

        Parameters
        ----------
        ax : matplotlib axes, default=None
            Axes to draw on. If None, a new figure is created.

        name : str, default=None
            Name in the legend, for one of several displays on the same axes.

        **line_kw
            Keyword arguments of the curves, as in `matplotlib.lines.Line2D`.

        Returns
        -------
        Display
        """
        return self._plot_on_axes(ax, name, line_kw)

    def _plot_on_axes(
        self, ax: Any, display_name: str | None, line_kw: Mapping[str, Any], **draw_options: Any
    ) -> Self:
        """Draw the grid, the curves and the legend, on new axes if `ax` is None.

        Parameters
        ----------
        ax : matplotlib axes or None
            Axes to draw on.

        display_name : str or None
            Name of the display.

        line_kw : mapping
            Keyword arguments of the curves.

        **draw_options
            Keyword arguments of `_draw`.

        Returns
        -------
        Display
        """
        if ax is None:
            _, ax = _import_pyplot().subplots(figsize=self._figure_size, layout="constrained")
        self.ax_ = ax
        self.figure_ = ax.figure
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(True, color="0.9", linewidth=0.8)
        ax.set_axisbelow(True)
        self._draw(ax, display_name, line_kw, **draw_options)
        ax.legend(loc=self._legend_location, framealpha=0.85, edgecolor="none")
        return self

    def _draw(self, ax: Any, display_name: str | None, line_kw: Mapping[str, Any]) -> None:
        """Draw the curves. Subclasses implement this method."""
        raise NotImplementedError

    def _make_line_style(
        self, ax: Any, display_name: str | None, line_kw: Mapping[str, Any], **defaults: Any
    ) -> dict[str, Any]:
        """Make the keyword arguments with which matplotlib draws a curve.

        Parameters
        ----------
        ax : matplotlib axes
            Axes to draw on.

        display_name : str or None
            Name of the display. A named display has the next colour and marker of the palette.

        line_kw : mapping
            Keyword arguments of the user, which take precedence.

        **defaults
            Keyword arguments of a display without a name.

        Returns
        -------
        dict
        """
        from matplotlib import cbook, lines

        line_style = dict(defaults)
        if display_name is not None:
            style_index = count_named_displays(ax) % len(_NAMED_STYLES)
            named_color, named_marker = _NAMED_STYLES[style_index]
            line_style["color"] = named_color
            line_style["gid"] = _NAMED_GID
            if "marker" in line_style:
                line_style["marker"] = named_marker
        line_style.update(cbook.normalize_kwargs(dict(line_kw), lines.Line2D))
        return line_style

    def _select_diagrams(self, display_name: str | None) -> list[ReliabilityDiagram]:
        """Select the diagrams before and after calibration, on the same rows.

        If the display has a name, only the last diagram is selected.
        """
        last_diagram = self.summary.diagrams[-1]
        if display_name is not None:
            return [last_diagram]
        return [diagram for diagram in self.summary.diagrams if diagram.rows == last_diagram.rows]


def count_named_displays(ax: Any) -> int:
    """Count the named displays that are drawn on the axes."""
    artists = [*ax.lines, *ax.patches]
    return sum(artist.get_gid() == _NAMED_GID for artist in artists)


def is_label_unused(ax: Any, label: str) -> bool:
    """Check whether no artist on the axes has this label."""
    _, used_labels = ax.get_legend_handles_labels()
    return label not in used_labels


def _import_pyplot() -> Any:
    """Import matplotlib.pyplot, or raise an error that names the extra to install."""
    with needs_extra("drawing a plot", "plot"):
        import matplotlib.pyplot as pyplot
    return pyplot
