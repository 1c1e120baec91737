"""Methods section of the report: definitions of the numbers, and versions of the software."""

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
    from metacal.report.report_rows import Settings

#: Elements of a block that is hashed at once.
_BLOCK_ELEMENTS = 1 << 20


def describe_methods(settings: Settings, score: str, kind: str) -> dict[str, Any]:
    """Return the definitions of the numbers of a report, and the software versions.

    Parameters
    ----------
    settings : Settings
        Settings of the report.

    score : str
        Name of the ranking score, with a leading "-" if higher values are more confident.

    kind : {"logits", "scores", "cascade"}
        Kind of the gate.

    Returns
    -------
    dict
        "definitions" is a list of (term, text) and "versions" maps packages to versions.
    """
    bootstrap = "not computed for a table of this size"
    if settings.n_resamples:
        bootstrap = (
            f"bootstrap of the rows with {settings.n_resamples:,} resamples (seed {settings.seed})"
        )
    placeholders = {
        "score": score.removeprefix("-"),
        "higher": "higher = surer" if score.startswith("-") else "higher = less sure",
        "n_bins": settings.n_bins,
        "sure": format_percent_floor(1.0 - settings.delta),
        "level": format_percent(settings.level),
        "bootstrap": bootstrap,
    }
    path = resources.files("metacal.report").joinpath("page/methods.toml")
    templates_by_kind = tomllib.loads(path.read_text("utf-8"))
    # An empty text removes a definition of the logits for another kind of gate.
    templates = templates_by_kind["logits"] | templates_by_kind[kind]
    definitions = [
        (term, template.format(**placeholders)) for term, template in templates.items() if template
    ]
    versions = {"metacal": __version__}
    for package in ("numpy", "scipy", "scikit-learn"):
        versions[package] = version(package)
    versions["python"] = platform.python_version()
    return {"definitions": definitions, "versions": versions}


def hash_arrays(tables: Sequence[Any], labels: Any) -> str:
    """Compute the SHA-256 of tables or columns and of the labels of their rows.

    Shape, type and bytes are hashed, in blocks of rows.

    Examples
    --------
    >>> hash_arrays([np.zeros((2, 3))], np.array([0, 1]))[:16]
    'ce253c0b0af57f08'
    """
    digest = hashlib.sha256()
    for table in tables:
        digest.update(f"{tuple(table.shape)} {table.dtype}".encode())
        row_elements = max(1, math.prod(table.shape[1:]))
        block_rows = max(1, _BLOCK_ELEMENTS // row_elements)
        for start in range(0, len(table), block_rows):
            block = np.ascontiguousarray(table[start : start + block_rows])
            digest.update(block.reshape(-1).view(np.uint8).data)
    label_column = np.asarray(labels)
    if label_column.dtype == object:
        label_column = np.asarray(label_column.tolist())
    digest.update(label_column.tobytes())
    return digest.hexdigest()
