"""Report on a gate or calibrator: one self-contained HTML page.

`summary` computes the numbers and `html` renders the page. `report` does both.
"""

from __future__ import annotations

import os
from typing import Any

__all__ = ["report"]


def report(
    gate: Any,
    X: Any,
    y: Any,
    path: str | os.PathLike[str] = "report.html",
    *,
    large: Any = None,
    title: str | None = None,
    **options: Any,
) -> int:
    """Write a report on labelled rows that were not used to fit the gate.

    The file is written atomically.

    Parameters
    ----------
    gate : Gate, or fitted MetaCal, ScoreGate, Cascade or calibrator, or None
        Object to report on. None for the classifier alone.

    X, y : array-like
        Logits (or other input of the gate) and true labels. For a gate on scores, the scores and
        whether each row is correct.

    path : path-like, default="report.html"
        Path of the page, one file that opens without a network.

    large : array-like, default=None
        For a cascade that reads tables, the table of the large model for the same rows.

    title : str, default=None
        Heading of the page.

    **options
        Keyword arguments of `metacal.reports.summary.summarise`: `class_names`, `ids`, `level`,
        `n_resamples`, `compare` and others.

    Returns
    -------
    int
        Size of the page in bytes.

    Raises
    ------
    InputError
        If the rows do not fit the gate, or the file cannot be written.

    See Also
    --------
    evaluate : Measure calibration and the promise on labelled rows.
    verify : Test the promise on labelled rows.

    Examples
    --------
    >>> import tempfile
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> (fit_x, fit_y), (new_x, new_y) = data.split(5000, random_state=0)
    >>> gate = mc.MetaCal(mc.MinAccuracy(0.97)).fit(fit_x, fit_y)
    >>> path = os.path.join(tempfile.mkdtemp(), "report.html")
    >>> report(gate, new_x, new_y, path, n_resamples=0) == os.path.getsize(path)
    True
    """
    from metacal.reports import html
    from metacal.reports.summary import summarise

    summary = summarise(X, y, gate, large=large, **options)
    return html.write_report(summary, path, title=title)
