"""Display: how a matplotlib display is made and what it shares with others on its axis.

Without a name a display fills its axis: before and after calibration, the gate's own point, what is
promised. With `name` it is one of several: the calibrated probabilities alone, in the next colour,
and what is the same for all of them (the diagonal, a promised limit) is drawn once.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from metacal.errors import InputError, needs_extra
from metacal.report.reliability import Diagram
from metacal.report.summary import Summary, summarise

#: Colours that people with any colour vision tell apart (Okabe & Ito 2008).
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
#: Those of named displays on one axis, in turn, with their markers.
_NAMED = (
    (BLUE, "s"),
    (ORANGE, "o"),
    (GREEN, "^"),
    ("#CC79A7", "D"),
    ("#E69F00", "v"),
    ("#56B4E9", "P"),
    ("0.1", "X"),
)
#: Opacity of a band.
BAND = 0.18
#: Marks the one curve by which a named display is counted.
_COUNTED = "metacal-named"


class Display:
    """What the displays share: how they are made, and how several stand on one axis."""

    #: Width and height of a new figure, and where the legend stands.
    _size: ClassVar[tuple[float, float]] = (6.4, 4.2)
    _legend: ClassVar[str] = "upper left"

    def __init__(self, summary: Summary) -> None:
        given: Any = summary
        if not isinstance(given, Summary):
            name = type(self).__name__
            raise InputError(
                f"{name}(summary) takes a Summary, as metacal.report.summary.summarise(...) returns"
                f" it; got {type(given).__name__}. Of an estimator:"
                f" {name}.from_estimator(estimator, logits, labels); of a table:"
                f" {name}.from_predictions(labels, proba)."
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
        """Draw a fitted MetaCal or calibrator on labelled rows.

        Parameters
        ----------
        estimator : fitted MetaCal or calibrator
        logits, labels : array-like
            Rows that it was not fitted on.
        ax : matplotlib axes, optional
            Where to draw; a new figure when None.
        name : str, optional
            What it is called in the legend, where it is one of several on the axis.
        **options
            Keywords of `plot`, those of the line among them (`color`, `linewidth`, …), and of
            `metacal.report.summary.summarise` (`level`, `delta`, `n_bins`, `classes`).
        """
        if not hasattr(estimator, "map_"):
            raise InputError(
                f"{cls.__name__}.from_estimator takes (estimator, logits, labels), a fitted MetaCal"
                f" or calibrator first; got {type(estimator).__name__}. Of a table of probabilities"
                f" alone: {cls.__name__}.from_predictions(labels, proba)."
            )
        return cls._made(logits, labels, estimator, ax, {"name": name, **options})

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
        """Draw a table of probabilities (or of logits, with ``input="logits"``) as it is.

        Parameters
        ----------
        labels : array of shape (n,)
        proba : array of shape (n, K)
            In scikit-learn's order; the order of `metacal.metrics`, (proba, labels), works too, as
            the two have different shapes.
        input : "probabilities" or "logits"
        ax, name, **options
            As in `from_estimator`.
        """
        if np.ndim(labels) == 2 and np.ndim(proba) == 1:
            labels, proba = proba, labels
        return cls._made(proba, labels, None, ax, {"input": input, "name": name, **options})

    @classmethod
    def _made(
        cls, table: ArrayLike, labels: ArrayLike, estimator: Any, ax: Any, options: dict[str, Any]
    ) -> Self:
        summed = list(inspect.signature(summarise).parameters)[3:]  # after logits, labels, gate
        own = {name: options.pop(name) for name in summed if name in options}
        # Bootstrap intervals are drawn nowhere.
        return cls(summarise(table, labels, estimator, **{"n_resamples": 0, **own})).plot(
            ax, **options
        )

    def plot(self, ax: Any = None, *, name: str | None = None, **line_kw: Any) -> Self:
        """Draw.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Where to draw; a new figure when None.
        name : str, optional
            Its name in the legend, where it is one of several on the axis.
        **line_kw
            Keywords of the curves, as `matplotlib.lines.Line2D` takes them.
        """
        return self._plotted(ax, name, line_kw)

    def _plotted(
        self, ax: Any, name: str | None, line_kw: Mapping[str, Any], **options: Any
    ) -> Self:
        if ax is None:
            _, ax = _pyplot().subplots(figsize=self._size, layout="constrained")
        self.ax_, self.figure_ = ax, ax.figure
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(True, color="0.9", linewidth=0.8)
        ax.set_axisbelow(True)
        self._draw(ax, name, line_kw, **options)
        ax.legend(loc=self._legend, framealpha=0.85, edgecolor="none")
        return self

    def _draw(self, ax: Any, name: str | None, line_kw: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def _style(
        self, ax: Any, name: str | None, line_kw: Mapping[str, Any], **usual: Any
    ) -> dict[str, Any]:
        """How the curve is drawn: as usual or, where it is named, in the next colour; what is asked
        for comes last.
        """
        from matplotlib import cbook, lines

        if name is not None:
            color, marker = _NAMED[n_named(ax) % len(_NAMED)]
            usual |= {"color": color, "gid": _COUNTED}
            usual |= {"marker": marker} if "marker" in usual else {}
        return {**usual, **cbook.normalize_kwargs(dict(line_kw), lines.Line2D)}

    def _compared(self, name: str | None) -> list[Diagram]:
        """Before, and after where there is one, on the same rows; of a named display the last of
        these alone.
        """
        both = [
            diagram
            for diagram in self.summary.diagrams
            if diagram.rows == self.summary.diagrams[-1].rows
        ]
        return both if name is None else both[-1:]


def n_named(ax: Any) -> int:
    """How many named displays stand on the axis already."""
    return sum(artist.get_gid() == _COUNTED for artist in (*ax.lines, *ax.patches))


def once(ax: Any, label: str) -> bool:
    """Whether nothing on the axis has this label yet."""
    return label not in ax.get_legend_handles_labels()[1]


def _pyplot() -> Any:
    with needs_extra("drawing a plot", "plot"):
        import matplotlib.pyplot as pyplot
    return pyplot
