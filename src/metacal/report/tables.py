"""The tables of the report: by true class, by predicted class or group, and the rows worth a look.

Nobody but the page reads them: they are mappings in the shape that `page/types.d.ts` describes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import betainc

from metacal.formulas import Array, Codes, Flags, Float
from metacal.metrics.intervals import exact_limits
from metacal.promises.certificate import Certificate
from metacal.promises.parts.part_words import side_of
from metacal.promises.quantity import COVERAGE_ACCURACY, Quantity
from metacal.report.operating import Series

if TYPE_CHECKING:
    from metacal.report.measured import Measured

#: Classes and parts listed, and rows of each kind.
MOST_CLASSES, MOST_PARTS, ROWS_SHOWN = 1000, 500, 20


def class_table(names: Array, rows: Measured) -> dict[str, Any]:
    """Shares by true class, worst first: by what can be said of its miscoverage, or without a gate
    of its errors.

    That is the lower end of the exact 95% interval: a class with a single row, wrong or rejected,
    is no headline.

    Returns
    -------
    dict
        One entry per class of

        - column : the class's column in the table; name : str
        - n : rows of this true class; accuracy : share of them that is right
        - ece : the class's own calibration error (their mean over all classes is the class-wise
          ECE)
        - coverage, miscoverage, accuracy_accepted : of the rows of this true class; NaN without a
          gate
        - surely : the least that its miscoverage (without a gate its error rate) is, by the exact
          95% interval

        and n_classes, all of them (those beyond the first thousand are left out), order, what
        "worst" means here.
    """
    codes, correct, accept = rows.codes, rows.correct, rows.accept
    n, right = _counts(codes, names), _counts(codes[correct], names)
    accuracy, bad, of = _share(right, n), n - right, n
    coverage = miscoverage = accepted_accuracy = np.full(len(names), np.nan)
    if accept is not None:
        accepted, kept = _counts(codes[accept], names), _counts(codes[accept & correct], names)
        coverage, accepted_accuracy = _share(accepted, n), _share(kept, accepted)
        miscoverage = 1.0 - _share(kept, right)
        bad, of = right - kept, right
    surely = np.where(of > 0, exact_limits(bad, of, 0.025)[0], np.nan)
    # Classes nobody can judge (no row of them here) come last; ties by error, then by column.
    worst = -np.nan_to_num(surely, nan=-1.0)
    order = np.lexsort((-np.nan_to_num(1.0 - accuracy), worst))[:MOST_CLASSES]
    return {
        "column": order,
        "name": tuple(str(names[k]) for k in order),
        "n": n[order],
        "accuracy": accuracy[order],
        "ece": rows.errors[order],
        "coverage": coverage[order],
        "miscoverage": miscoverage[order],
        "accuracy_accepted": accepted_accuracy[order],
        "surely": surely[order],
        "n_classes": len(names),
        "order": f"surest of a {'low accuracy' if accept is None else 'high miscoverage'} first",
    }


def part_table(
    by: str,
    names: Array,
    codes: Codes,
    correct: Flags,
    accept: Flags | None,
    *,
    level: float,
    certificate: Certificate | None = None,
) -> dict[str, Any]:
    """What is accepted and how much of it is right, by predicted class or by group: the most
    evidence first.

    `codes` says which of the `names` each row belongs to.

    Returns
    -------
    dict
        One entry per part that has rows here of

        - name : str; n, accepted, right : rows, accepted ones, and right ones of these. Without a
          gate all are accepted
        - coverage, accuracy, miscoverage : Series, shares with exact intervals, which hold for all
          parts of the table together at the summary's level (Bonferroni)
        - evidence : the chance of so many bad rows, or more, if the limit is just kept: small says
          that it is not. The table goes by it, so that a part with a single row is no headline
        - threshold : where each part has its own; NaN otherwise

        and by, "class" or "group"; judged, which of the three shares the evidence is about;
        at_most, whether small is good; limit; promised, of whom the limit is promised: of "each"
        part, of "all" rows together, or "none": the limit is then what all rows together have;
        n_parts, all parts that have rows here, as the table may be cut.

    Where groups have two sides a name has two entries, the group and what its rows are called.

    Examples
    --------
    >>> codes, correct = np.repeat([0, 1, 2], [300, 300, 1]), np.ones(601, dtype=bool)
    >>> correct[[*range(10), *range(300, 360), 600]] = False
    >>> found = part_table("class", np.array(["good", "bad", "one row"]), codes, correct, None, level=0.95)
    >>> found["name"], found["accuracy"].estimate.round(3).tolist()  # all of one row wrong is no headline
    (('bad', 'one row', 'good'), [0.8, 0.0, 0.967])
    """
    kept = np.ones(len(codes), dtype=bool) if accept is None else accept
    quantity, limit, promised = _judged_by(certificate, by, kept, correct)
    hit, looked_at = quantity.flags(kept, correct)
    against = hit if quantity.at_most else looked_at & ~hit
    columns = (slice(None), kept, kept & correct, correct, against, looked_at)
    counted = np.array([_counts(codes[rows], names) for rows in columns])
    there = np.flatnonzero(counted[0])
    n, *_, bad, of = counted[:, there]
    # P(Bin(of, limit) >= bad) of each part, which is I_limit(bad, of - bad + 1).
    evidence = np.where(
        bad > 0, betainc(np.maximum(bad, 1.0), of - bad + 1.0, quantity.limit_on_bad(limit)), 1.0
    )
    order = np.lexsort((-n, evidence))[:MOST_PARTS]
    shown, each = there[order], (1.0 - level) / max(1, len(there))
    n, accepted, right, all_right, *_ = counted[:, shown]
    cells = [(name, None) if np.ndim(name) == 0 else name for name in names[shown]]
    return {
        "by": by,
        "name": tuple(side_of(*cell) for cell in cells),
        "n": n,
        "accepted": accepted,
        "right": right,
        "coverage": _shares(accepted, n, each),
        "accuracy": _shares(right, accepted, each),
        "miscoverage": _shares(all_right - right, all_right, each),
        "evidence": evidence[order],
        "judged": quantity.short,
        "at_most": quantity.at_most,
        "limit": limit,
        "promised": promised,
        "threshold": _thresholds(certificate, by, cells),
        "n_parts": len(there),
    }


def _judged_by(
    certificate: Certificate | None, by: str, accept: Flags, correct: Flags
) -> tuple[Quantity, float, str]:
    """What is promised, or else what all rows together have; and of whom it is promised."""
    if certificate is not None:
        quantity, limit = certificate.limits[0]
        counted_here = quantity.short in (
            "coverage",
            "accuracy",
            "miscoverage",
        )  # of two sides precision is not
        if quantity.needs_labels and counted_here and not quantity.mean and not quantity.paired:
            return (
                quantity,
                limit,
                "each" if certificate.parts is not None and certificate.parts.by == by else "all",
            )
    hit, of = COVERAGE_ACCURACY.share(accept, correct)
    return COVERAGE_ACCURACY, min(max(hit / of if of else 0.5, 1e-9), 1.0 - 1e-9), "none"


def _thresholds(certificate: Certificate | None, by: str, cells: Sequence[Sequence[Any]]) -> Float:
    if certificate is None or certificate.parts is None or certificate.parts.by != by:
        return np.full(len(cells), np.nan)
    own = {
        tuple(map(str, cell)): part.threshold
        for part in certificate.parts.items
        for cell in part.cells
    }
    return np.array([own.get(tuple(map(str, cell)), -np.inf) for cell in cells])


def _shares(hit: Float, of: Float, each: float) -> Series:
    """Shares with Clopper-Pearson limits at 1 - each; NaN where there is nothing to share."""
    return Series(
        _share(hit, of), *(np.where(of > 0, end, np.nan) for end in exact_limits(hit, of, each / 2))
    )


def striking_rows(
    rows: Measured, chosen: Flags, by: Float, names: Array, ids: Any = None
) -> list[dict[str, Any]]:
    """Of the chosen rows those where `by` is lowest, ties by row number; no class and no answer
    without names.

    Each has its number from 0, its id, true and predicted class, score, confidence, whether it is
    accepted.
    """
    candidates = np.flatnonzero(chosen)
    if len(candidates) > ROWS_SHOWN:  # a sort of the few that matter
        limit = np.partition(by[candidates], ROWS_SHOWN - 1)[ROWS_SHOWN - 1]
        candidates = candidates[by[candidates] <= limit]
    return [
        {
            "row": int(rows.numbers[k]),
            "id": None if ids is None else str(ids[rows.numbers[k]]),
            "label": str(names[rows.codes[k]]) if len(names) else "",
            "predicted": str(names[rows.predicted[k]]) if len(names) else "",
            "score": float(rows.doubt[k]),
            "confidence": float(rows.confidence[k]),
            "accepted": None if rows.accept is None else bool(rows.accept[k]),
        }
        for k in candidates[np.argsort(by[candidates], kind="stable")][:ROWS_SHOWN]
    ]


def _counts(codes: Codes, names: Array) -> Float:
    return np.bincount(codes, minlength=len(names))[: len(names)].astype(np.float64)


def _share(part: Float, whole: Float) -> Float:
    return np.where(whole > 0, part / np.maximum(whole, 1.0), np.nan)
