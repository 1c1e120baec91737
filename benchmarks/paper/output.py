"""What `python -m benchmarks paper` leaves behind: JSON rows, Markdown tables, figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.experiments import figure
from benchmarks.experiments import run as experiment
from benchmarks.experiments.logits_files import CATALOGUE, Found
from benchmarks.experiments.results_file import read_json, write_json, write_whole
from benchmarks.paper import figures as paper_figures
from benchmarks.paper import runs as paper_runs
from benchmarks.paper import summary as paper_summary
from benchmarks.paper import tables as paper_tables
from metacal.errors import InputError

RESULTS, SECONDS = "paper.json", "paper-seconds.json"


def collect(sets: Sequence[Found], folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The results of the journals in `folder`, and the times apart from them."""
    rows, headers, seconds = [], [], {}
    for found, header, entries in experiment.read(sets, folder):
        headers.append(header)
        rows += paper_summary.summarise(found, header, entries)
        spreads = paper_summary.summarise_seconds(header, entries)
        seconds[found.name] = {
            method: {part: asdict(spread) for part, spread in parts.items()}
            for method, parts in spreads.items()
        }
    timed = {
        "format": paper_runs.FORMAT,
        "bench": "paper",
        "machine": machine.description(),
        "load_average": machine.load_average(),
        "seconds": seconds,
    }
    return paper_summary.results(rows, headers), timed


def keeping(
    results: dict[str, Any], seconds: dict[str, Any], folder: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Add the data sets that were not run as they stand in `folder`.

    Parameters
    ----------
    results, seconds : dict
        What `collect` returned.
    folder : Path
        A folder that `write` filled, with the same numbers of splits and draws and the same seed.

    Returns
    -------
    results, seconds : dict
        All data sets in the order of the catalogue. `seconds["kept"]` names the sets whose times
        were taken before, with the machine of that time.

    Raises
    ------
    InputError
        If the folder's results come from other settings or another format.
    """
    old_results, old_seconds = read(folder)
    for setting in ("runs", "draws", "seed", "format"):
        old = {header[setting] for header in old_results["sets"]}
        new = {header[setting] for header in results["sets"]}
        if old != new:
            raise InputError(
                f"{folder} holds results with {setting} {sorted(old)}, this run has {sorted(new)}."
                " Give a folder with the same settings, or run all data sets."
            )
    run_now = {header["set"] for header in results["sets"]}
    kept = [header["set"] for header in old_results["sets"] if header["set"] not in run_now]
    order = {file.name: place for place, file in enumerate(CATALOGUE)}
    headers = [header for header in old_results["sets"] if header["set"] in kept] + results["sets"]
    rows = [row for row in old_results["rows"] if row["data"] in kept] + results["rows"]
    times = {**{name: old_seconds["seconds"][name] for name in kept}, **seconds["seconds"]}
    merged = {
        **results,
        "sets": sorted(headers, key=lambda header: order[header["set"]]),
        "rows": sorted(rows, key=lambda row: order[row["data"]]),
    }
    merged_seconds = {
        **seconds,
        "kept": {"sets": kept, "machine": old_seconds["machine"]},
        "seconds": {name: times[name] for name in sorted(times, key=order.__getitem__)},
    }
    return merged, merged_seconds


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
