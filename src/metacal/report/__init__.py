"""The report: `summary` has the numbers, `html` makes one self-contained page of them."""

from __future__ import annotations

import os
from typing import Any


def write_report(gate: Any, X: Any, y: Any, path: str | os.PathLike[str], **options: Any) -> int:
    """Write the page on labelled rows that a gate, or a calibrator, has not seen; return its size in bytes.

    Parameters
    ----------
    gate : Gate, or fitted MetaCal, calibrator or CalibratedClassifier
        What is reported on; None for the classifier's own probabilities.
    X, y : array-like
        Logits (or what the gate was fitted on) and true labels.
    path : path
        Where the page goes: one file that needs no other. It is written whole or not at all.
    **options
        As in `metacal.report.summarise.summarise`: `class_names`, `ids`, `level`, `delta`, `n_bins`, `compare`, …

    Examples
    --------
    >>> import tempfile
    >>> import metacal as mc
    >>> (fit_x, fit_y), (new_x, new_y) = mc.datasets.load("cifar10-resnet110").split(5000, random_state=0)
    >>> cal = mc.MetaCal(mc.MinCoverageAccuracy(0.97)).fit(fit_x, fit_y)
    >>> size = write_report(cal, new_x, new_y, os.path.join(tempfile.mkdtemp(), "report.html"), n_resamples=0)
    """
    from metacal.report import html
    from metacal.report.summarise import summarise

    return html.write_report(summarise(X, y, gate, **options), path)
