"""What `python -m benchmarks paper` leaves behind: JSON rows, Markdown tables, figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.experiments import figure
from benchmarks.experiments import run as experiment
from benchmarks.experiments.logits_files import Found
from benchmarks.experiments.results_file import read_json, write_json, write_whole
from benchmarks.paper import figures as paper_figures
from benchmarks.paper import runs as paper_runs
from benchmarks.paper import summary as paper_summary
from benchmarks.paper import tables as paper_tables

RESULTS, SECONDS = "paper.json", "paper-seconds.json"


def collect(sets: Sequence[Found], folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The results of the journals in `folder`, and the times apart from them."""
    rows, headers, seconds = [], [], {}
    for found, header, entries in experiment.read(sets, folder):
        headers.append(header)
        rows += paper_summary.summarise(found, header, entries)
        spreads = paper_summary.summarise_seconds(header, entries)
        seconds[found.name] = {
            method: {part: asdict(spread) for part, spread in parts.items()} for method, parts in spreads.items()
        }
    timed = {
        "format": paper_runs.FORMAT,
        "bench": "paper",
        "machine": machine.description(),
        "load_average": machine.load_average(),
        "seconds": seconds,
    }
    return paper_summary.results(rows, headers), timed


def write(results: dict[str, Any], seconds: dict[str, Any], folder: Path) -> list[Path]:
    """Write JSON, tables and (with matplotlib) figures; the paths written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [
        write_json(folder / RESULTS, results),
        write_json(folder / SECONDS, seconds),
        write_whole(folder / "paper.md", paper_tables.page(results)),
        write_whole(folder / "paper-seconds.md", paper_tables.seconds_page(results, seconds)),
    ]
    return written + (paper_figures.draw(results, folder) if figure.can_draw() else [])


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `write` left in `folder`."""
    return read_json(folder / RESULTS, "paper"), read_json(folder / SECONDS, "paper")
