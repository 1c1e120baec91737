"""What `python -m benchmarks quality` leaves behind: JSON rows, Markdown tables; of one run, or of
several.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.experiments.journal import Entry, Line, read_journal
from benchmarks.experiments.results_file import read_json, write_whole
from benchmarks.quality import runs as quality_runs
from benchmarks.quality import tables as quality_tables
from benchmarks.quality.runs import AUTO
from benchmarks.quality.tables import Row
from metacal.errors import InputError

RESULTS = "quality.json"
#: Where the journals of a run are, and the losses of every row, in its folder.
RUNS, LOSSES = "runs", "losses"


@dataclass(frozen=True)
class Run:
    """The journal of one data set in one folder."""

    folder: Path
    header: Line
    entries: Sequence[Entry]


def collect(folders: Sequence[Path]) -> dict[str, Any]:
    """The results of the runs in these folders: methods that were run apart are compared row by row
    all the same.
    """
    rows, headers, splits = [], [], []
    for name in _sets(folders):
        runs = [
            Run(folder, *read_journal(folder / RUNS, name))
            for folder in folders
            if _journal(folder, name).is_file()
        ]
        if (
            len({run.header["digest"] for run in runs}) > 1
            or len({run.header["seed"] for run in runs}) > 1
        ):
            raise InputError(
                f"the runs on {name} are of other data or seeds, and cannot be put together."
            )
        headers.append(_header(runs))
        tasks = _tasks(name, runs)
        splits += [
            _rounded((task[-1], *one))
            for task, here in tasks.items()
            for one in quality_tables.standings(here)
        ]
        rows += _means(tasks)
    rows.sort(key=lambda row: row.n)
    found = {"format": quality_runs.FORMAT, "bench": "quality", "sets": headers, **_packed(rows)}
    return {**found, "auto_by_split": splits} if splits else found


def write(results: dict[str, Any], folder: Path) -> list[Path]:
    """Write JSON, a row to a line, and tables; the paths written."""
    folder.mkdir(parents=True, exist_ok=True)
    lists = {key: results[key] for key in ("auto_by_split", "rows") if key in results}
    head = json.dumps(
        {key: value for key, value in results.items() if key not in lists},
        indent=1,
        allow_nan=False,
    )
    text = head[: head.rindex("}")].rstrip()
    for key, rows in lists.items():
        lines = ",\n".join(json.dumps(row, separators=(",", ":"), allow_nan=False) for row in rows)
        text += f',\n "{key}": [\n{lines}\n]'
    text += "}\n"
    return [
        write_whole(folder / RESULTS, text),
        write_whole(folder / "quality.md", quality_tables.page(results)),
    ]


def read(folders: Sequence[Path]) -> dict[str, Any]:
    """What `write` left in one folder; of several, what their runs give together."""
    if len(folders) > 1:
        return collect(folders)
    results = read_json(folders[0] / RESULTS, "quality")
    if results.get("format") != quality_runs.FORMAT:
        raise InputError(
            f"{folders[0] / RESULTS} is of an earlier format; run python -m benchmarks quality"
            " again."
        )
    return results


def _journal(folder: Path, name: str) -> Path:
    return folder / RUNS / f"{name}.jsonl"


def _sets(folders: Sequence[Path]) -> list[str]:
    """The data sets that some run has a journal of, in order."""
    found = [path.stem for folder in folders for path in sorted((folder / RUNS).glob("*.jsonl"))]
    names = [name for name in dict.fromkeys(found) if not name.endswith(".seconds")]
    if not names:
        raise InputError(
            f"there are no runs in {', '.join(map(str, folders))}; give folders of this benchmark."
        )
    return sorted(names)


def _header(runs: Iterable[Run]) -> Line:
    """What was run on a set, in all."""
    headers = [run.header for run in runs]
    joined = {
        key: list(dict.fromkeys(x for h in headers for x in h[key]))
        for key in ("methods", "variants", "sizes")
    }
    packages = {name: version for h in headers for name, version in h["packages"].items()}
    failed: dict[str, str] = {}
    for run in runs:
        for entry in run.entries:
            for method, why in entry.computed["failed"].items():
                failed.setdefault(method, why)
    return {**headers[0], **joined, "packages": packages, "failed": failed}


def _tasks(name: str, runs: Sequence[Run]) -> dict[tuple[str, int, int], list[Row]]:
    """The rows of one data set by variant, size and split."""
    found: dict[tuple[str, int, int], list[Row]] = {}
    for task in dict.fromkeys(_task(entry) for run in runs for entry in run.entries):
        answers: dict[str, Line] = {}
        for run in runs:
            for entry in run.entries:
                if _task(entry) == task:
                    answers |= entry.computed["methods"]
        beside = _beside_auto((name, *task), runs)
        variant, n, _ = task
        found[task] = [
            Row(name, variant, n, method, 1, {**one, **beside.get(method, {})})
            for method, one in answers.items()
        ]
    return found


def _task(entry: Entry) -> tuple[str, int, int]:
    return entry.computed["variant"], entry.computed["n"], entry.computed["split"]


def _means(tasks: dict[tuple[str, int, int], list[Row]]) -> list[Row]:
    """The rows of one data set, means over the splits that a method has."""
    known: dict[tuple[str, int, str], list[Row]] = {}
    for row in (row for rows in tasks.values() for row in rows):
        known.setdefault((row.variant, row.n, row.method), []).append(row)
    found = []
    for same in known.values():
        keys = [key for key in same[0].metrics if all(key in row.metrics for row in same)]
        means = {key: round(float(np.mean([row.metrics[key] for row in same])), 6) for key in keys}
        found.append(replace(same[0], splits=len(same), metrics=means))
    return found


def _beside_auto(
    task: tuple[str, str, int, int], runs: Sequence[Run]
) -> dict[str, dict[str, float]]:
    """How far the log loss of every method lies above auto's, row by row; nothing where auto was
    not run.
    """
    losses: dict[str, Any] = {}
    for run in runs:
        path = quality_runs.losses_path(run.folder / LOSSES, task)
        if path.is_file():
            with np.load(path) as file:
                losses |= dict(file)
    if AUTO not in losses:
        return {}
    return {
        method: quality_runs.difference("auto", (values - losses[AUTO]).astype(np.float64))
        for method, values in losses.items()
    }


def _rounded(values: Iterable[Any]) -> list[Any]:
    return [round(value, 6) if isinstance(value, float) else value for value in values]


def _packed(rows: Sequence[Row]) -> dict[str, Any]:
    """The rows with the names of the metrics once."""
    metrics = list(dict.fromkeys(key for row in rows for key in row.metrics))
    packed = [
        [r.data, r.variant, r.n, r.method, r.splits, *(r.metrics.get(key) for key in metrics)]
        for r in rows
    ]
    return {"columns": ["data", "variant", "n", "method", "splits", *metrics], "rows": packed}
