"""The abstention comparison as a picture: coverage as a share of the oracle's against broken
promises.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.experiments.figure import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PINK,
    RED,
    SKY,
    drawing,
    save,
)
from benchmarks.selective.rules import RULES
from benchmarks.selective.tables import rows_of

_LOOKS = {
    "certified": (BLUE, "s", 7.5),
    "sgr": (GREEN, "o", 6.0),
    "ltt-sequence": (ORANGE, "^", 6.0),
    "ltt-bonferroni": (ORANGE, "v", 6.0),
    "ltt-sequence-even": (SKY, "^", 6.0),
    "ltt-bonferroni-even": (SKY, "v", 6.0),
    "mapie": (PINK, "P", 6.0),
    "mapie-sequence": (PINK, "X", 6.0),
    "mapie-starts": (PINK, "*", 7.0),
    "mapie-split": (PINK, "<", 6.0),
    "mapie-multi": (PINK, ">", 6.0),
    "plug-in": (GREY, "D", 5.5),
    "paper": (RED, "d", 6.5),
}


#: Places on the axis of broken promises, which is stretched where the promise is kept.
_TICKS = (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)


def _root(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.sign(values) * np.sqrt(np.abs(values))


def _square(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.sign(values) * values * values


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Write the figure; the paths written."""
    rows = rows_of(results)
    sizes = list(dict.fromkeys(row.n for row in rows))
    rules = list(dict.fromkeys(row.rule for row in rows))
    delta = results["sets"][0]["delta"]
    with drawing() as pyplot:
        figure, axes = pyplot.subplots(
            1, len(sizes), figsize=(1.2 + 3.7 * len(sizes), 4.7), layout="constrained", sharex=True, sharey=True,
            squeeze=False,
        )  # fmt: skip
        for axis, n in zip(axes[0], sizes):
            axis.axvspan(delta, 1.0, color="#fdecea", zorder=0)
            axis.axvline(delta, color=INK, lw=1.1, ls=(0, (5, 3)), zorder=1)
            axis.axhline(1.0, color=GREEN, lw=1.1, zorder=1)
            for rule in rules:
                colour, marker, size = _LOOKS[rule]
                here = [row for row in rows if row.rule == rule and row.n == n]
                axis.plot(
                    [row.violation for row in here], [row.coverage / row.oracle for row in here], marker, ls="none",
                    color=colour, ms=size, alpha=0.8, mec="white", mew=0.5, label=RULES[rule].title,
                    zorder=4 if rule == "certified" else 3,
                )  # fmt: skip
            axis.set_title(f"{n:,} calibration rows")
            axis.set_xlabel("share of draws that break the promise")
            axis.set_xscale("function", functions=(_root, _square))
            axis.set_xticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
        axes[0][0].set_xlim(-0.003, 0.68)
        axes[0][0].set_ylim(-0.04, 1.08)
        axes[0][0].set_ylabel("coverage / the oracle's coverage")
        axes[0][-1].text(
            delta + 0.015,
            0.02,
            f"promise broken more\noften than {delta:.0%}",
            fontsize=8.5,
            color=RED,
        )
        axes[0][-1].text(0.66, 1.015, "oracle", fontsize=8.5, color=GREEN, ha="right")
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5)
        return save(figure, folder, "selective")
