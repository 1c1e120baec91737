"""The report: `summary` has the numbers, `html` makes one self-contained page of them;
`write_report` does both.
"""

from __future__ import annotations

import os
from typing import Any

__all__ = ["write_report"]


def write_report(
    gate: Any,
    X: Any,
    y: Any,
    path: str | os.PathLike[str],
    *,
    large: Any = None,
    title: str | None = None,
    **options: Any,
) -> int:
    """Write the page on labelled rows that the gate has not seen, whole or not at all; return its
    size in bytes.

    Parameters
    ----------
    gate : Gate, or fitted MetaCal, ScoreGate, Cascade or calibrator, or None
        What is reported on; None for the classifier alone.
    X, y : array-like
        Logits (or what the gate takes) and true labels; for a gate on scores the scores, and
        whether each row is right.
    path : path
        The page, one file that opens without a network.
    large : table, optional
        Of a cascade that reads tables: the large model's table of the same rows.
    title : str, optional
        Its heading.
    **options
        Keywords of `metacal.report.summary.summarise`: `class_names`, `ids`, `level`,
        `n_resamples`, `compare`, …

    Examples
    --------
    >>> import tempfile
    >>> import metacal as mc
    >>> (fit_x, fit_y), (new_x, new_y) = mc.datasets.load("cifar10-resnet110").split(5000, random_state=0)
    >>> gate = mc.MetaCal(mc.MinAccuracy(0.97)).fit(fit_x, fit_y)
    >>> path = os.path.join(tempfile.mkdtemp(), "report.html")
    >>> write_report(gate, new_x, new_y, path, n_resamples=0) == os.path.getsize(path)
    True
    """
    from metacal.report import html
    from metacal.report.summary import summarise

    return html.write_report(summarise(X, y, gate, large=large, **options), path, title=title)
