"""The report: `summary` has the numbers, `html` makes one self-contained page of them; `write_report` does both."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["write_report"]


def write_report(
    gate: Any, X: Any, y: Any, path: str | os.PathLike[str], *, title: str | None = None, **options: Any
) -> int:
    """Write the page on labelled rows that the gate has not seen, whole or not at all; return its size in bytes.

    Parameters
    ----------
    gate : Gate, or fitted MetaCal, ScoreGate, Cascade or calibrator, or None
        What is reported on; None for the classifier alone.
    X, y : array-like
        Logits (or what the gate takes) and true labels; for a gate on scores the scores, and whether each row is right.
    path : path
        The page, one file that opens without a network.
    title : str, optional
        Its heading.
    **options
        Keywords of `metacal.report.summarise.summarise`: `class_names`, `ids`, `level`, `n_resamples`, `compare`, …; or
        of `metacal.report.scored.summarise_scores`; for a cascade `large`, the second model's table.

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
    from metacal.gate import CascadeGate, ScoredGate
    from metacal.report import html

    cascade = getattr(gate, "gate_", gate)
    if isinstance(cascade, CascadeGate):
        from metacal.report.cascade import summarise_cascade
        from metacal.report.cascade_page import write_cascade_report

        large = options.pop("large", None)
        small, other = (X, large) if cascade is gate else gate.tables(X, large)
        return write_cascade_report(summarise_cascade(cascade, small, other, y, **options), path, title=title)
    held = gate if isinstance(gate, ScoredGate) else getattr(gate, "gate_", None)
    if isinstance(held, ScoredGate):
        from metacal.report.scored import summarise_scores

        return html.write_report(summarise_scores(X, y, held, **options), path, title=title)
    from metacal.report.summarise import summarise

    return html.write_report(summarise(X, y, gate, **options), path, title=title)
