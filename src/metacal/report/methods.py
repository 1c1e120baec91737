"""The methods box: what each number means, and what computed it."""

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
from metacal.promises.words import at_least, percent

if TYPE_CHECKING:
    from metacal.report.measured import Settings


def methods(settings: Settings, score: str, kind: str) -> dict[str, Any]:
    """How the numbers came about: definitions as (term, text), and the versions of what computed
    them.

    In plain words, with the settings filled in, for a gate on logits, on scores, or a cascade.
    """
    bootstrap = (
        f"bootstrap of the rows with {settings.n_resamples:,} resamples (seed {settings.seed})"
    )
    filled = {
        "score": score.removeprefix("-"),
        "higher": "higher = surer" if score.startswith("-") else "higher = less sure",
        "n_bins": settings.n_bins,
        "sure": at_least(1.0 - settings.delta),
        "level": percent(settings.level),
        "bootstrap": bootstrap if settings.n_resamples else "not computed for a table of this size",
    }
    written = tomllib.loads(
        resources.files("metacal.report").joinpath("page/methods.toml").read_text("utf-8")
    )
    used = [
        (term, text.format(**filled))
        for term, text in (written["logits"] | written[kind]).items()
        if text
    ]
    versions = {
        name: version(name) for name in ("numpy", "scipy", "scikit-learn")
    }  # without importing them
    found = {"metacal": __version__, **versions, "python": platform.python_version()}
    return {"definitions": used, "versions": found}


def arrays_sha256(tables: Sequence[Any], labels: Any) -> str:
    """SHA-256 of tables, or columns, and the labels of their rows: shape, type and bytes, read in
    blocks.

    Examples
    --------
    >>> arrays_sha256([np.zeros((2, 3))], np.array([0, 1]))[:16]
    'ce253c0b0af57f08'
    """
    digest = hashlib.sha256()
    for table in tables:
        digest.update(f"{tuple(table.shape)} {table.dtype}".encode())
        step = max(1, (1 << 20) // max(1, math.prod(table.shape[1:])))
        for start in range(0, len(table), step):
            digest.update(
                np.ascontiguousarray(table[start : start + step]).reshape(-1).view(np.uint8).data
            )
    column = np.asarray(labels)
    digest.update(np.asarray(column.tolist() if column.dtype == object else column).tobytes())
    return digest.hexdigest()
