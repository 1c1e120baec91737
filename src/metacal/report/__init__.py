"""The report: `summary` has the numbers, `html` makes one self-contained page of them; `write_report` does both."""

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
    """Write the page on labelled rows that the gate has not seen, whole or not at all; return its size in bytes.

    Parameters
    ----------
    gate : Gate, or fitted MetaCal, ScoreGate, Cascade or calibrator, or None
        What is reported on; None for the classifier alone.
    X, y : array-like
        Logits (or what the gate takes) and true labels; for a gate on scores the scores, and whether each row is right.
    path : path
        The page, one file that opens without a network.
    large : table, optional
        Of a cascade that reads tables: the large model's table of the same rows.
    title : str, optional
        Its heading.
    **options
        Keywords of `metacal.report.summarise.summarise`: `class_names`, `ids`, `level`, `n_resamples`, `compare`, …; or
        of `metacal.report.scored.summarise_scores`; for a cascade `level`.

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
    from metacal.estimators.cascade_evaluation import evaluate_cascade
    from metacal.estimators.opened import opened
    from metacal.gate import CascadeGate, Gate, ScoredGate
    from metacal.report import html
    from metacal.report.cascade_page import write_cascade_report
    from metacal.report.scored import summarise_scores
    from metacal.report.summarise import summarise
    from metacal.rows import Rows

    own, table, other = rows = opened(gate, X, large)

    def on_logits() -> int:
        return html.write_report(summarise(table, y, own, **options), path, title=title)

    def on_scores() -> int:
        return html.write_report(summarise_scores(table, y, own, **options), path, title=title)

    def on_cascade() -> int:
        options.pop("n_resamples", None)  # all of its intervals are exact
        summary = evaluate_cascade(own, Rows(table), Rows(other), y, **options)
        return write_cascade_report(summary, path, title=title)

    kinds = {type(None): on_logits, Gate: on_logits, ScoredGate: on_scores, CascadeGate: on_cascade}
    return rows.by_kind("the report", kinds)
