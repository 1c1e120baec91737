"""What `python -m benchmarks selective` leaves behind: JSON rows, Markdown tables, a figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.experiments import figure
from benchmarks.experiments import run as experiment
from benchmarks.experiments.logits_files import Found
from benchmarks.experiments.results_file import read_json, write_json, write_whole
from benchmarks.selective import figure as selective_figure
from benchmarks.selective import runs as selective_runs
from benchmarks.selective import tables as selective_tables
from benchmarks.selective.rules import RULES

RESULTS = "selective.json"


def collect(sets: Sequence[Found], folder: Path) -> dict[str, Any]:
    """The results of the journals in `folder`."""
    rows, headers = [], []
    for found, header, entries in experiment.read(sets, folder):
        headers.append(header)
        rows += selective_runs.summarise(found, header, entries)
    return selective_runs.results(rows, headers)


def write(results: dict[str, Any], folder: Path) -> list[Path]:
    """Write JSON, tables and (with matplotlib) the figure; the paths written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [
        write_json(folder / RESULTS, results),
        write_whole(folder / "selective.md", selective_tables.page(results)),
    ]
    return written + (selective_figure.draw(results, folder) if figure.can_draw() else [])


def keeping(results: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The results with the rules that were not run as they stand in `folder`: of the same data,
    draws and level.

    Another package's rule on the same draws accepts what it did; how far ours leads is new, a
    difference of two means.
    """
    before = read_json(folder / RESULTS, "selective")
    same = [_about(header) for header in results["sets"]]
    sets = [header["set"] for header in before["sets"] if _about(header) in same]
    run = {row["rule"] for row in results["rows"]}
    ours = {(row["data"], row["n"]): row for row in results["rows"] if row["rule"] == "certified"}
    kept = []
    for row in before["rows"]:
        own = ours.get((row["data"], row["n"]))
        if row["rule"] in run or row["data"] not in sets or own is None:
            continue
        error = math.hypot(own["coverage_se"], row["coverage_se"])
        lead = round(own["coverage"] - row["coverage"], 6)
        kept.append({**row, "lead": lead, "lead_se": round(error, 6)})
    order = [header["set"] for header in results["sets"]]
    rows = sorted(
        [*results["rows"], *kept],
        key=lambda row: (order.index(row["data"]), row["n"], _RANK[row["rule"]]),
    )
    return {**results, "kept": sorted({row["rule"] for row in kept}), "rows": rows}


def _about(header: dict[str, Any]) -> tuple[Any, ...]:
    """What decides the draws of a set, and what is asked of a rule on them."""
    return tuple(header[name] for name in ("set", "digest", "beta", "delta", "seed"))


_RANK = {rule: rank for rank, rule in enumerate(RULES)}


def read(*folders: Path) -> dict[str, Any]:
    """What `write` left in these folders, as one: of a later one the rules that none before it has.

    Rules that take long may be run apart, on fewer draws: the first of the same ones, for a seed
    fixes them all.
    """
    first, *others = (read_json(folder / RESULTS, "selective") for folder in folders)
    rows = list(first["rows"])
    for more in others:
        known = {row["rule"] for row in rows}
        rows += [row for row in more["rows"] if row["rule"] not in known]
    sets, rules = [header["set"] for header in first["sets"]], list(RULES)
    rows = [row for row in rows if row["data"] in sets]
    rows.sort(key=lambda row: (sets.index(row["data"]), row["n"], rules.index(row["rule"])))
    return {**first, "rows": rows}
