"""metacal apply with a folder: a result for each file that is read, and what is finished is kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from metacal.cli.options import OUTPUT_FORMATS, check_not_an_input
from metacal.cli.printing import note


def apply_parts(
    one: Callable[[str, str], tuple[int, int | None]],
    artifact: str,
    file: str,
    output: str,
    output_format: str | None,
    made_with: dict[str, Any],
) -> tuple[int, int | None, dict[str, int]]:
    """Let one(source, target) write each result that is not finished yet; return rows, accepted ones and counts.

    `made_with` are the options that the results depend on.
    """
    from metacal.files.many import parts_of
    from metacal.files.partitions import Partitions, digest, result_names
    from metacal.files.predictions import READERS

    sources = parts_of(file, READERS) or [file]
    suffix = _suffix(sources[0], output_format)
    names = result_names(sources, suffix)
    for source, name in zip(sources, names, strict=True):
        check_not_an_input(os.path.join(output, name), source, file)
    results = Partitions(output, {**made_with, "artifact": digest(artifact), "format": suffix})
    told: list[dict[str, Any]] = []
    kept = 0
    for source, name in zip(sources, names, strict=True):
        found = results.finished(name, source)
        if found is None:
            n_rows, accepted = one(source, os.path.join(output, name))
            found = {"n_rows": n_rows, "n_accepted": accepted}
            results.finish(name, source, found)
        else:
            kept += 1
            note(f"{name} is finished; it is kept.")
        told.append(found)
    accepted_in_all = None if told[0]["n_accepted"] is None else sum(part["n_accepted"] for part in told)
    return sum(part["n_rows"] for part in told), accepted_in_all, {"n_files": len(told), "n_kept": kept}


def _suffix(source: str, output_format: str | None) -> str:
    """As the user says, else as the sources are, else Parquet."""
    own = Path(source).suffix.lower().lstrip(".")
    return f".{output_format or (own if own in OUTPUT_FORMATS else 'parquet')}"
