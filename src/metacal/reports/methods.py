"""Methods section of the report: definitions of its numbers, and software versions."""

from __future__ import annotations

import hashlib
import math
import platform
import tomllib
from collections.abc import Sequence
from importlib import resources
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from metacal import __version__
from metacal.certificates.number_format import format_percent, format_percent_floor

if TYPE_CHECKING:
    from metacal.reports.report_rows import Settings

#: Number of elements that are hashed at once.
_BLOCK_ELEMENTS = 1 << 20
#: Packages whose versions the report lists, besides metacal and Python.
_LISTED_PACKAGES = ("numpy", "scipy", "scikit-learn")


def describe_methods(settings: Settings, score_name: str, gate_kind: str) -> dict[str, Any]:
    """Return definitions of the numbers of a report, and software versions.

    Parameters
    ----------
    settings : Settings
        Settings of the report.

    score_name : str
        Name of the ranking score, with a leading "-" if higher values are more confident.

    gate_kind : {"logits", "scores", "cascade", "cases"}
        Kind of the gate; "cases" for a gate on scores whose promise is about cases.

    Returns
    -------
    dict
        "definitions" is a list of (term, text) and "versions" maps packages to versions.
    """
    bootstrap_text = "not computed for a table of this size"
    if settings.n_resamples:
        bootstrap_text = (
            f"bootstrap of the rows with {settings.n_resamples:,} resamples (seed {settings.seed})"
        )
    placeholder_values = {
        "score": score_name.removeprefix("-"),
        "higher": "higher = more confident"
        if score_name.startswith("-")
        else "higher = less confident",
        "n_bins": settings.n_bins,
        "confidence": format_percent_floor(1.0 - settings.delta),
        "level": format_percent(settings.level),
        "bootstrap": bootstrap_text,
    }
    toml_path = resources.files("metacal.reports").joinpath("page/methods.toml")
    templates_by_kind = tomllib.loads(toml_path.read_text("utf-8"))
    # The definitions for gates on logits apply to every kind of gate, unless its own section
    # replaces a definition, or removes it by an empty text.
    templates = templates_by_kind["logits"]
    if gate_kind == "cases":
        templates |= templates_by_kind["scores"]
    templates |= templates_by_kind[gate_kind]
    definitions = [
        (term, template.format(**placeholder_values))
        for term, template in templates.items()
        if template
    ]
    versions = {"metacal": __version__}
    for package in _LISTED_PACKAGES:
        versions[package] = version(package)
    versions["python"] = platform.python_version()
    return {"definitions": definitions, "versions": versions}


def hash_arrays(tables: Sequence[Any], labels: Any) -> str:
    """Compute the SHA-256 of tables and labels.

    Shape, data type and bytes of each table are hashed, in blocks of rows.

    Examples
    --------
    >>> hash_arrays([np.zeros((2, 3))], np.array([0, 1]))[:16]
    'ce253c0b0af57f08'
    """
    digest = hashlib.sha256()
    for table in tables:
        digest.update(f"{tuple(table.shape)} {table.dtype}".encode())
        elements_per_row = max(1, math.prod(table.shape[1:]))
        rows_per_block = max(1, _BLOCK_ELEMENTS // elements_per_row)
        for start in range(0, len(table), rows_per_block):
            block = np.ascontiguousarray(table[start : start + rows_per_block])
            digest.update(block.reshape(-1).view(np.uint8).data)
    label_array = np.asarray(labels)
    if label_array.dtype == object:
        # The bytes of an object array are memory addresses, so the labels are converted first.
        label_array = np.asarray(label_array.tolist())
    digest.update(label_array.tobytes())
    return digest.hexdigest()
