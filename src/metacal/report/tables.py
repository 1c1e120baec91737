"""The tables of the report: by true class, by predicted class or group, and the rows worth a look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, eq=False)
class ClassTable:
    """One entry per class, worst first; classes beyond the first `shown` are left out.

    Attributes
    ----------
    column : integer array
        The class's column in the table.
    name : tuple of str
    n : rows of this true class
    accuracy : share of them that is right
    ece : the class's own calibration error (their mean over all classes is the class-wise ECE)
    coverage, miscoverage, accuracy_accepted : of the rows of this true class; NaN without a gate
    surely : the least that its miscoverage (without a gate its error rate) is, by the exact 95% interval
    n_classes, order : int, str
        All classes; what "worst" means here.
    """

    column: Codes
    name: tuple[str, ...]
    n: Float
    accuracy: Float
    ece: Float
    coverage: Float
    miscoverage: Float
    accuracy_accepted: Float
    surely: Float
    n_classes: int
    order: str


def class_table(names: Array, rows: Measured) -> ClassTable:
    """Shares by true class, worst first: by what can be said of its miscoverage, or without a gate of its errors.

    That is the lower end of the exact 95% interval: a class with a single row, wrong or rejected, is no headline.
    """
    codes, correct, accept = rows.codes, rows.correct, rows.accept
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
    surely = np.where(of > 0, exact_limits(bad, of, 0.025)[0], np.nan)
    # Classes nobody can judge (no row of them here) come last; ties by error, then by column.
    worst = -np.nan_to_num(surely, nan=-1.0)
    order = np.lexsort((np.arange(len(names)), -np.nan_to_num(1.0 - accuracy), worst))[:MOST_CLASSES]
    return ClassTable(
        column=order,
        name=tuple(str(names[k]) for k in order),
        n=n[order],
        accuracy=accuracy[order],
        ece=rows.errors[order],
        coverage=coverage[order],
        miscoverage=miscoverage[order],
        accuracy_accepted=accepted_accuracy[order],
        surely=surely[order],
        n_classes=len(names),
        order=f"surest of a {'low accuracy' if accept is None else 'high miscoverage'} first",
    )


@dataclass(frozen=True, eq=False)
class PartTable:
    """What is accepted and how much of it is right, by predicted class or by group: the most evidence first.

    Attributes
    ----------
    by : "class" or "group"
    name : tuple of str
    n, accepted, right : arrays
        Rows, accepted ones, and right ones of these. Without a gate all are accepted.
    coverage, accuracy, miscoverage : Series
        Shares with exact intervals, which hold for all parts of the table together at the summary's level (Bonferroni).
    evidence : array
        The chance of so many bad rows, or more, if the limit is just kept: small says that it is not. The table goes by
        it, so that a part with a single row is no headline.
    judged, at_most, limit, promised : str, bool, float, str
        Which of the three the evidence is about, whether small is good, the limit, and of whom it is promised: of
        "each" part, of "all" rows together, or "none": the limit is then what all rows together have.
    threshold : array
        Where each part has its own; NaN otherwise.
    n_parts : int
        All parts that have rows here; the table may be cut.
    """

    by: str
    name: tuple[str, ...]
    n: Float
    accepted: Float
    right: Float
    coverage: Series
    accuracy: Series
    miscoverage: Series
    evidence: Float
    judged: str
    at_most: bool
    limit: float
    promised: str
    threshold: Float
    n_parts: int


def part_table(
    by: str,
    names: Array,
    codes: Codes,
    correct: Flags,
    accept: Flags | None,
    *,
    level: float,
    certificate: Certificate | None = None,
) -> PartTable:
    """The table of the parts that have rows here; `codes` says which of the `names` each row belongs to.

    Where groups have two sides a name has two entries, the group and what its rows are called.

    Examples
    --------
    >>> codes, correct = np.repeat([0, 1, 2], [300, 300, 1]), np.ones(601, dtype=bool)
    >>> correct[[*range(10), *range(300, 360), 600]] = False
    >>> found = part_table("class", np.array(["good", "bad", "one row"]), codes, correct, None, level=0.95)
    >>> found.name, found.accuracy.estimate.round(3).tolist()  # all of one row wrong is no headline
    (('bad', 'one row', 'good'), [0.8, 0.0, 0.967])
    """
    kept = np.ones(len(codes), dtype=bool) if accept is None else accept
    quantity, limit, promised = _judged_by(certificate, by, kept, correct)
    hit, looked_at = quantity.flags(kept, correct)
    against = hit if quantity.at_most else looked_at & ~hit
    columns = (slice(None), kept, kept & correct, correct, against, looked_at)
    counted = [_counts(codes[rows], names) for rows in columns]
    there = np.flatnonzero(counted[0])
    n, accepted, right, all_right, bad, of = (count[there] for count in counted)
    lost = all_right - right
    evidence = _evidence(bad, of, quantity.limit_on_bad(limit))
    order = np.lexsort((there, -n, evidence))[:MOST_PARTS]
    cells = [(name, None) if np.ndim(name) == 0 else name for name in names]
    own = _thresholds(certificate, by, cells)
    each = (1.0 - level) / max(1, len(there))
    return PartTable(
        by=by,
        name=tuple(side_of(*cells[k]) for k in there[order]),
        n=n[order],
        accepted=accepted[order],
        right=right[order],
        coverage=_shares(accepted[order], n[order], each),
        accuracy=_shares(right[order], accepted[order], each),
        miscoverage=_shares(lost[order], all_right[order], each),
        evidence=evidence[order],
        judged=quantity.short,
        at_most=quantity.at_most,
        limit=limit,
        promised=promised,
        threshold=own[there[order]],
        n_parts=len(there),
    )


def _judged_by(certificate: Certificate | None, by: str, accept: Flags, correct: Flags) -> tuple[Quantity, float, str]:
    """What is promised, or else what all rows together have; and of whom it is promised."""
    if certificate is not None:
        quantity, limit = certificate.limits[0]
        counted_here = quantity.short in PartTable.__dataclass_fields__  # of two sides precision and recall are not
        if quantity.needs_labels and counted_here and not quantity.mean and not quantity.paired:
            return quantity, limit, "each" if certificate.parts is not None and certificate.parts.by == by else "all"
    hit, of = COVERAGE_ACCURACY.share(accept, correct)
    return COVERAGE_ACCURACY, min(max(hit / of if of else 0.5, 1e-9), 1.0 - 1e-9), "none"


def _thresholds(certificate: Certificate | None, by: str, cells: Sequence[Sequence[Any]]) -> Float:
    found = np.full(len(cells), np.nan)
    if certificate is None or certificate.parts is None or certificate.parts.by != by:
        return found
    own = {tuple(map(str, cell)): part.threshold for part in certificate.parts.items for cell in part.cells}
    return np.array([own.get(tuple(map(str, cell)), -np.inf) for cell in cells])


def _evidence(bad: Float, of: Float, limit: float) -> Float:
    """P(Bin(of, limit) >= bad) of each part, which is I_limit(bad, of - bad + 1)."""
    return np.where(bad > 0, betainc(np.maximum(bad, 1.0), of - bad + 1.0, limit), 1.0)


def _shares(hit: Float, of: Float, each: float) -> Series:
    """Shares with Clopper-Pearson limits at 1 - each; NaN where there is nothing to share."""
    return Series(_share(hit, of), *(np.where(of > 0, end, np.nan) for end in exact_limits(hit, of, each / 2)))


@dataclass(frozen=True)
class Row:
    """A row worth a look: its number from 0, its id, true and predicted class, score, confidence, whether accepted."""

    row: int
    id: str | None
    label: str
    predicted: str
    score: float
    confidence: float
    accepted: bool | None


def striking_rows(rows: Measured, chosen: Flags, by: Float, names: Array, ids: Any = None) -> tuple[Row, ...]:
    """Of the chosen rows those where `by` is lowest, ties by row number; no class and no answer without names."""
    candidates = np.flatnonzero(chosen)
    if len(candidates) > ROWS_SHOWN:  # a sort of the few that matter
        limit = np.partition(by[candidates], ROWS_SHOWN - 1)[ROWS_SHOWN - 1]
        candidates = candidates[by[candidates] <= limit]
    best = candidates[np.lexsort((candidates, by[candidates]))][:ROWS_SHOWN]
    return tuple(
        Row(
            row=int(rows.numbers[k]),
            id=None if ids is None else str(ids[rows.numbers[k]]),
            label=str(names[rows.codes[k]]) if len(names) else "",
            predicted=str(names[rows.predicted[k]]) if len(names) else "",
            score=float(rows.doubt[k]),
            confidence=float(rows.confidence[k]),
            accepted=None if rows.accept is None else bool(rows.accept[k]),
        )
        for k in best
    )


def _counts(codes: Codes, names: Array) -> Float:
    return np.bincount(codes, minlength=len(names))[: len(names)].astype(np.float64)


def _share(part: Float, whole: Float) -> Float:
    return np.where(whole > 0, part / np.maximum(whole, 1.0), np.nan)
