"""The tables of the report: one line per class, and the rows worth a look."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from metacal.report.summary import ClassTable, Row

Column = NDArray[np.float64]
Codes = NDArray[np.intp]
Flags = NDArray[np.bool_]

#: Classes listed, and rows of each kind.
MOST_CLASSES = 1000
ROWS_SHOWN = 20


def class_table(
    names: NDArray[Any], codes: Codes, correct: Flags, accept: Flags | None, errors: Column, *, most: int = MOST_CLASSES
) -> ClassTable:
    """Shares by true class, worst first: by what can be said of its miscoverage, or without a gate of its errors.

    That is the lower end of the exact 95% interval: a class with a single row, wrong or turned away, is no headline.
    """
    n = _counts(codes, names)
    right = _counts(codes[correct], names)
    nothing = np.full(len(names), np.nan)
    coverage = miscoverage = accepted_accuracy = nothing
    if accept is not None:
        accepted, kept = _counts(codes[accept], names), _counts(codes[accept & correct], names)
        coverage, accepted_accuracy = _share(accepted, n), _share(kept, accepted)
        miscoverage = 1.0 - _share(kept, right)
    accuracy = _share(right, n)
    bad, of = (n - right, n) if accept is None else (right - kept, right)
    surely = np.where(bad > 0, betaincinv(np.maximum(bad, 1.0), of - bad + 1.0, 0.025), np.where(of > 0, 0.0, -1.0))
    # Classes nobody can judge (no row of them here) come last; ties by error, then by column.
    order = np.lexsort((np.arange(len(names)), -np.nan_to_num(1.0 - accuracy), -surely))[:most]
    return ClassTable(
        column=order,
        name=tuple(str(names[k]) for k in order),
        n=n[order],
        accuracy=accuracy[order],
        ece=errors[order],
        coverage=coverage[order],
        miscoverage=miscoverage[order],
        accuracy_accepted=accepted_accuracy[order],
        surely=np.where(of > 0, surely, np.nan)[order],
        n_classes=len(names),
        order=f"surest of a {'low accuracy' if accept is None else 'high miscoverage'} first",
    )


def striking_rows(
    scores: Column,
    chosen: Flags,
    *,
    most_confident: bool,
    names: NDArray[Any],
    codes: Codes,
    predicted: Codes,
    confidence: Column,
    accept: Flags | None,
    ids: Any = None,
    most: int = ROWS_SHOWN,
) -> tuple[Row, ...]:
    """The chosen rows of lowest (or highest) score, ties by row number."""
    candidates = np.flatnonzero(chosen)
    sign = scores[candidates] if most_confident else -scores[candidates]
    if len(candidates) > most:  # a sort of the few that matter
        limit = np.partition(sign, most - 1)[most - 1]
        candidates, sign = candidates[sign <= limit], sign[sign <= limit]
    best = candidates[np.lexsort((candidates, sign))][:most]
    return tuple(
        Row(
            row=int(row),
            id=None if ids is None else str(ids[row]),
            label=str(names[codes[row]]),
            predicted=str(names[predicted[row]]),
            score=float(scores[row]),
            confidence=float(confidence[row]),
            accepted=None if accept is None else bool(accept[row]),
        )
        for row in best
    )


def _counts(codes: Codes, names: NDArray[Any]) -> Column:
    return np.bincount(codes, minlength=len(names)).astype(np.float64)


def _share(part: Column, whole: Column) -> Column:
    return np.where(whole > 0, part / np.maximum(whole, 1.0), np.nan)
