"""How the figures of the benchmarks look, and how they are saved: the same bytes for the same
numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

#: Colours that people with any colour vision tell apart (Okabe & Ito 2008).
ORANGE, SKY, GREEN, BLUE, RED, PINK = (
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
GREY, INK = "#8a8f98", "#22262b"

_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e4e7eb",
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "svg.hashsalt": "metacal",
    "svg.fonttype": "path",
}


def can_draw() -> bool:
    """Whether matplotlib is installed (metacal[plot])."""
    return find_spec("matplotlib") is not None


@contextmanager
def drawing() -> Iterator[Any]:
    """matplotlib.pyplot without a screen, in the style of these figures."""
    matplotlib = import_module("matplotlib")
    matplotlib.use("agg")
    pyplot = import_module("matplotlib.pyplot")
    with matplotlib.rc_context(_STYLE):
        yield pyplot
        pyplot.close("all")


def save(figure: Any, folder: Path, name: str) -> list[Path]:
    """Write `name`.png and `name`.svg; nothing in them depends on the hour."""
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    figure.savefig(paths[0], dpi=150, metadata={"Software": None})
    figure.savefig(paths[1], metadata={"Date": None, "Creator": None})
    return paths
