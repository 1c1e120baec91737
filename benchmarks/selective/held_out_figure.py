"""Risk-coverage curves of the held-out sets, with what each rule accepts on them.

    python -m benchmarks.selective.held_out_figure [--out docs/images]

A panel for each set of `benchmarks.selective.held_out`: the error rate of the accepted rows against
the share that is accepted, along the ranking. The dashed line is the error rate that the first
target allows. A marker is a rule: its mean coverage over the draws of 1,000 rows, and the mean
error rate of the rows that it accepts.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.experiments.figure import BLUE, GREEN, GREY, INK, ORANGE, RED, SKY, drawing, save
from benchmarks.selective.held_out import RESULTS
from benchmarks.selective.rules import RULES
from benchmarks.tables.held_out import by_cell

NAME = "selective-held-out"
_N = 1000
_COLUMNS = 4
#: Rule -> colour, marker, size.
_LOOKS = {
    "certified": (BLUE, "s", 8.0),
    "sgr": (GREEN, "o", 6.5),
    "ltt-sequence": (ORANGE, "^", 6.5),
    "ltt-bonferroni": (SKY, "v", 6.5),
    "plug-in": (RED, "D", 5.5),
}
#: Sets whose title alone does not tell them apart.
_TITLES = {
    "matching-abt-buy": "linkage (Abt-Buy)",
    "matching-amazon-google": "linkage (Amazon)",
}


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Write the figure as png and svg, and return the paths."""
    sets = results["sets"]
    cells = by_cell(results)
    n_rows = -(-len(sets) // _COLUMNS)
    with drawing() as pyplot:
        figure, axes = pyplot.subplots(
            n_rows,
            _COLUMNS,
            figsize=(3.0 * _COLUMNS, 2.7 * n_rows),
            layout="constrained",
            squeeze=False,
        )
        panels = list(axes.flat)
        for axis, one in zip(panels, sets):
            beta = min(target for name, target, _ in cells if name == one["set"])
            _draw_panel(axis, one, beta, cells[one["set"], beta, _N])
        for axis in panels[len(sets) :]:
            axis.set_visible(False)
        for axis in axes[:, 0]:
            axis.set_ylabel("error rate of accepted rows")
        handles, labels = panels[len(sets) - 1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        return save(figure, folder, NAME)


def _draw_panel(axis: Any, one: dict[str, Any], beta: float, cell: dict[str, Any]) -> None:
    """Draw the curve of one set, the target and the rules."""
    curve = one["curve"]
    axis.plot(curve["coverage"], curve["risk"], color=GREY, lw=1.6, label="all thresholds")
    axis.axhline(1.0 - beta, color=INK, lw=1.0, ls=(0, (5, 3)), label="target")
    for rule, (colour, marker, size) in _LOOKS.items():
        row = cell[rule]
        title = RULES[rule].title
        if row["risk"] is None:  # accepts nothing in any draw: on the left edge, hollow
            axis.plot(
                [0.0],
                [0.0],
                marker,
                color=colour,
                ms=size,
                mfc="none",
                ls="none",
                label=title,
                clip_on=False,
            )
        else:
            axis.plot(
                [row["coverage"]],
                [row["risk"]],
                marker,
                color=colour,
                ms=size,
                ls="none",
                label=title,
            )
    axis.set_title(f"{_TITLES.get(one['set'], one['title'])}, β = {beta:g}", fontsize=9)
    axis.set_xlim(0.0, min(1.0, 3.0 * cell["certified"]["oracle"]))
    axis.set_ylim(0.0, min(1.0, 2.5 * (1.0 - beta)))
    axis.set_xlabel("coverage")


def main() -> None:
    """Draw the figure of the committed result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    options = parser.parse_args()
    draw(json.loads(RESULTS.read_text(encoding="utf-8")), options.out)


if __name__ == "__main__":
    main()
