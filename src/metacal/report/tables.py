"""By predicted class and by group: what is accepted, how much of it is right, and how much speaks against it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaincinv

from metacal.promises.certificate import Certificate
from metacal.promises.quantity import COVERAGE_ACCURACY, Quantity
from metacal.report.summary import PartTable, Series

Column = NDArray[np.float64]
Codes = NDArray[np.intp]
Flags = NDArray[np.bool_]

#: Parts listed.
MOST_PARTS = 500


def part_table(
    by: str,
    names: NDArray[Any],
    codes: Codes,
    correct: Flags,
    accept: Flags | None,
    *,
    level: float,
    certificate: Certificate | None = None,
    most: int = MOST_PARTS,
) -> PartTable:
    """The table of the parts that have rows here; `codes` says which of the `names` each row belongs to.

    Examples
    --------
    >>> codes, correct = np.repeat([0, 1, 2], [300, 300, 1]), np.ones(601, dtype=bool)
    >>> correct[[*range(10), *range(300, 360), 600]] = False
    >>> found = part_table("class", np.array(["good", "bad", "one row"]), codes, correct, None, level=0.95)
    >>> found.name, found.accuracy.estimate.round(3).tolist()  # all of one row wrong is no headline
    (('bad', 'one row', 'good'), [0.8, 0.0, 0.967])
    """
    kept = np.ones(len(codes), dtype=bool) if accept is None else accept
    counted = [np.bincount(codes[rows], minlength=len(names)) for rows in (slice(None), kept, kept & correct, correct)]
    there = np.flatnonzero(counted[0])
    n, accepted, right, all_right = (count[there].astype(np.float64) for count in counted)
    lost = all_right - right
    quantity, limit, promised = _judged_by(certificate, by, kept, correct)
    hit, looked_at = quantity.flags(kept, correct)
    against = hit if quantity.at_most else looked_at & ~hit
    bad, of = (np.bincount(codes[rows], minlength=len(names))[there].astype(float) for rows in (against, looked_at))
    evidence = _evidence(bad, of, quantity.limit_on_bad(limit))
    order = np.lexsort((there, -n, evidence))[:most]
    own = _thresholds(certificate, by, names)
    each = (1.0 - level) / max(1, len(there))
    return PartTable(
        by=by,
        name=tuple(str(names[k]) for k in there[order]),
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
        if quantity.needs_labels and not quantity.mean:
            return quantity, limit, "each" if certificate.parts is not None and certificate.parts.by == by else "all"
    hit, of = COVERAGE_ACCURACY.share(accept, correct)
    return COVERAGE_ACCURACY, min(max(hit / of if of else 0.5, 1e-9), 1.0 - 1e-9), "none"


def _thresholds(certificate: Certificate | None, by: str, names: NDArray[Any]) -> Column:
    found = np.full(len(names), np.nan)
    if certificate is None or certificate.parts is None or certificate.parts.by != by:
        return found
    own = {str(name): part.threshold for part in certificate.parts.items for name in part.names}
    return np.array([own.get(str(name), -np.inf) for name in names])


def _evidence(bad: Column, of: Column, limit: float) -> Column:
    """P(Bin(of, limit) >= bad) of each part, which is I_limit(bad, of - bad + 1)."""
    return np.where(bad > 0, betainc(np.maximum(bad, 1.0), of - bad + 1.0, limit), 1.0)


def _shares(hit: Column, of: Column, each: float) -> Series:
    """Shares with Clopper-Pearson limits at 1 - each; NaN where there is nothing to share."""
    nothing = of == 0
    low = np.where(hit > 0, betaincinv(np.maximum(hit, 1.0), of - hit + 1.0, each / 2), 0.0)
    high = np.where(hit < of, betaincinv(hit + 1.0, np.maximum(of - hit, 1.0), 1.0 - each / 2), 1.0)
    share = hit / np.maximum(of, 1.0)
    return Series(*(np.where(nothing, np.nan, column) for column in (share, low, high)))
