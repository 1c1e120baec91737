"""What is odd about calibration rows, if anything: said in a warning and in the certificate before it counts."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.kernels.keys import most_repeats
from metacal.rows import Rows

#: Of rows that share their score with two others or more, at least two in three repeat an earlier one.
_FEW_TIED = 1.5
#: A smaller share of repeated rows changes no confidence by much.
_REPEATED_SHARE = 0.01


#: What breaks ties among scores that are computed from logits.
_FINER_LOGITS = "Logits in higher precision break them."


def remarks_on_scores(
    values: NDArray[np.float64],
    correct: NDArray[np.bool_],
    remedy: str = _FINER_LOGITS,
    *,
    ties: bool = True,
    repeats: int | None = None,
) -> list[str]:
    """Rows that look like training data and, unless the reason is known, scores that tie; `remedy` breaks ties.

    Examples
    --------
    >>> remarks_on_scores(np.arange(100.0), np.ones(100, dtype=bool))[0][:40]
    '0 errors in 100 rows: is this the traini'
    """
    found = []
    n, errors = len(correct), int((~correct).sum())
    if n >= 50 and errors <= 0.001 * n:
        found.append(
            f"{errors} errors in {n:,} rows: is this the training data? Promises hold only for rows from the same "
            "source as the calibration rows."
        )
    return [*found, *(tied_scores(values, remedy, repeats) if ties else [])]


def tied_scores(values: NDArray[np.float64], remedy: str = _FINER_LOGITS, repeats: int | None = None) -> list[str]:
    """Scores that tie, if there are many; at most `repeats` repeat an earlier one, where that is known already.

    Examples
    --------
    >>> tied_scores(np.arange(100.0)), tied_scores(np.zeros(100))[0][:44]
    ([], '100 of 100 rows share their score with other')
    """
    n = len(values)
    if _FEW_TIED * (most_repeats(values) if repeats is None else repeats) <= 0.01 * n:
        return []
    ordered = np.sort(values)
    counts = np.diff(np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1], [True]))))
    tied = int(counts[counts > 2].sum())  # among millions of rows some pairs share a grid point by chance
    if tied <= 0.01 * n:
        return []
    return [
        f"{tied:,} of {n:,} rows share their score with other rows: ties are accepted or rejected together, which "
        f"costs coverage. {remedy}"
    ]


def remarks_on_rows(rows: Rows, values: NDArray[np.float64], repeats: int | None = None) -> list[str]:
    """Rows that repeat an earlier one: copies are not independent, and what is certified from them is not as sure.

    Examples
    --------
    >>> table = np.array([[2.0, 0.0], [1.0, 0.0], [2.0, 0.0]])
    >>> remarks_on_rows(Rows(table), table[:, 0])[0][:50]
    '1 of 3 rows repeat the logits of an earlier row: i'
    """
    repeated = _repeated_rows(rows, values, most_repeats(values) if repeats is None else repeats)
    if not repeated:
        return []
    return [
        f"{repeated:,} of {len(values):,} rows repeat the logits of an earlier row: if these are copies, and not "
        "different inputs, the rows are not independent and the confidence is void as stated. Keep one row of each, or "
        "say which rows belong together: fit(..., groups=), --unit-key."
    ]


def _repeated_rows(rows: Rows, values: NDArray[np.float64], repeats: int) -> int:
    """How many rows are equal to an earlier one, bit for bit; 0 where they are too few to matter.

    Equal rows have equal scores, so only rows that share theirs are read again.
    """
    if rows.on_device or repeats <= _REPEATED_SHARE * len(values):
        return 0
    order = np.argsort(values, kind="stable")
    same = values[order[1:]] == values[order[:-1]]
    if np.count_nonzero(same) <= _REPEATED_SHARE * len(values):
        return 0
    shared = np.zeros(len(values), dtype=bool)
    shared[order[1:][same]] = shared[order[:-1][same]] = True
    marks = rows.where(shared).collect(_row_marks)
    repeated = len(marks) - len(np.unique(marks))
    return repeated if repeated > _REPEATED_SHARE * len(values) else 0


def _row_marks(block: NDArray[Any]) -> NDArray[np.int64]:
    """A number for each row that equal rows share, in any process, and others only by accident."""
    marks = b"".join(blake2b(row.tobytes(), digest_size=8).digest() for row in np.ascontiguousarray(block))
    return np.frombuffer(marks, dtype=np.int64)
