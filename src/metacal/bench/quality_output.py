"""What `metacal bench quality` leaves behind: JSON rows and Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metacal.bench import experiment, quality_runs, quality_tables
from metacal.bench.logits_files import Found
from metacal.bench.results_file import read_json, write_json, write_whole

RESULTS = "quality.json"


def collect(sets: Sequence[Found], folder: Path) -> dict[str, Any]:
    """The results of the journals in `folder`."""
    rows, headers = [], []
    for found, header, entries in experiment.read(sets, folder):
        headers.append(header)
        rows += quality_runs.summarise(found, header, entries)
    return quality_runs.results(rows, headers)


def write(results: dict[str, Any], folder: Path) -> list[Path]:
    """Write JSON and tables; the paths written."""
    folder.mkdir(parents=True, exist_ok=True)
    return [
        write_json(folder / RESULTS, results),
        write_whole(folder / "quality.md", quality_tables.page(results)),
    ]


def read(folder: Path) -> dict[str, Any]:
    """What `write` left in `folder`."""
    return read_json(folder / RESULTS, "quality")
