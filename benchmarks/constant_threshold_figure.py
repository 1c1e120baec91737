"""Pictures of the how-to pages: what a constant threshold and a certified one accept.

    python -m benchmarks.constant_threshold_figure [--out docs/images]

The grey line is every constant threshold, judged on the whole file. Points are draws of labelled
cases, of which each gives one certified threshold (squares) and one tuned one (circles).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.ticker import PercentFormatter

from benchmarks.constant_threshold import COMMITTED
from benchmarks.experiments.figure import BLUE, GREY, INK, ORANGE, RED, drawing, save


@dataclass(frozen=True)
class Picture:
    """What a picture shows: its task, its axes with their ends, and its title."""

    name: str
    task: str
    title: str
    amount: str
    risk: str
    largest_amount: float
    largest_risk: float
    note_at: str = "left"


PICTURES = (
    Picture(
        "constant-threshold-matching",
        "abt_buy",
        "At least 90% of the accepted pairs are matches",
        "true matches that are accepted",
        "accepted pairs that are no match",
        0.75,
        0.3,
    ),
    Picture(
        "constant-threshold-extraction",
        "receipts automated",
        "At most 10% of the automated receipts have an error",
        "fields that are accepted",
        "automated receipts with an error",
        0.9,
        0.45,
    ),
    Picture(
        "constant-threshold-redaction",
        "tweets",
        "At most 10% of the tweets with a name leak one",
        "harmless words that are masked",
        "tweets that leak a name",
        0.35,
        0.85,
        note_at="right",
    ),
)


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Write the pictures as png and svg, and return the paths."""
    paths = []
    with drawing() as pyplot:
        for picture in PICTURES:
            figure, axis = pyplot.subplots(figsize=(6.6, 3.9), layout="constrained")
            _draw_task(axis, picture, results["tasks"][picture.task])
            paths += save(figure, folder, picture.name)
    return paths


def _draw_task(axis: Any, picture: Picture, cell: dict[str, Any]) -> None:
    """Draw the curve of all constants, the three named ones, the draws and the limit."""
    limit = cell["limit"]
    axis.axhspan(limit, 1.0, color="#fdecea", zorder=0)
    axis.axhline(limit, color=INK, lw=1.1, ls=(0, (5, 3)), zorder=1)
    is_left = picture.note_at == "left"
    axis.annotate(
        "promise broken above this line",
        (0.0 if is_left else 1.0, limit),
        xycoords=("axes fraction", "data"),
        xytext=(5 if is_left else -5, 4),
        textcoords="offset points",
        ha=picture.note_at,
        color=INK,
        fontsize=8.5,
    )
    risks, amounts = zip(*cell["curve"], strict=True)
    axis.plot(amounts, risks, color=GREY, lw=1.6, label="all constants", zorder=2)
    tuned, certified = (cell["methods"][method]["points"] for method in ("tuned", "metacal"))
    y, x = zip(*tuned, strict=True)
    axis.plot(x, y, "o", color=ORANGE, ms=8, mfc="none", mew=1.1, alpha=0.7, label="tuned")
    y, x = zip(*certified, strict=True)
    axis.plot(x, y, "s", color=BLUE, ms=4, alpha=0.6, mew=0, label="metacal", zorder=3)
    constants = [key for key in cell["methods"] if key not in ("tuned", "metacal")]
    for key in constants:
        amount, risk = cell["methods"][key]["amount"], cell["methods"][key]["risk"]
        label = "constant" if key == constants[0] else None
        axis.plot(amount, risk, "D", color=RED, ms=6.5, mec="white", label=label, zorder=4)
        axis.annotate(key, (amount, risk), xytext=(8, -10), textcoords="offset points", color=RED)
    axis.set_xlim(0, picture.largest_amount)
    axis.set_ylim(0, picture.largest_risk)
    axis.xaxis.set_major_formatter(PercentFormatter(1.0, 0))
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, 0))
    axis.set_xlabel(picture.amount)
    axis.set_ylabel(picture.risk)
    axis.set_title(picture.title)
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def main() -> None:
    """Draw the pictures of the committed result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    folder = parser.parse_args().out
    for path in draw(json.loads(COMMITTED.read_text(encoding="utf-8")), folder):
        print(path)


if __name__ == "__main__":
    main()
