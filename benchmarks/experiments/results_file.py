"""Results on disk: written whole or not at all, and read back only if a benchmark wrote them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from metacal.errors import InputError


def write_whole(path: Path, text: str) -> Path:
    """Write to a temporary file and rename it."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
    return path


def write_json(path: Path, answer: dict[str, Any]) -> Path:
    """Write strict JSON; the same answer gives the same bytes."""
    return write_whole(path, json.dumps(answer, indent=1, allow_nan=False) + "\n")


def read_json(path: Path, bench: str) -> dict[str, Any]:
    """A JSON file that `python -m benchmarks` wrote; `InputError` when it is something else."""
    if not path.is_file():
        raise InputError(
            f"there is no {path.name} in {path.parent}; give a folder that a benchmark wrote"
            " with -o."
        )
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("bench") != bench:
        raise InputError(f"{path} was not written by python -m benchmarks {bench}.")
    return found


def same_rows(records: list[dict[str, Any]], others: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the others that were measured on the very rows of some record."""
    names = ("population", "n", "beta", "delta", "draws", "rows", "oracle")
    known = {tuple(row.get(name) for name in names) for row in records}
    return [row for row in others if tuple(row[name] for name in names) in known]
