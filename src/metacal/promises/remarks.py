"""What is odd about calibration rows, if anything: said in a warning and in the certificate before it counts."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.promises import notes
from metacal.promises.notes import Note
from metacal.promises.sample import Ranking
from metacal.rows import Rows

#: A smaller share of repeated rows changes no confidence by much.
_REPEATED_SHARE = 0.01


def remarks_on_scores(ranking: Ranking, of: notes.Tied = "logits", *, ties: bool = True) -> list[Note]:
    """Rows that look like training data and, unless the reason is known, scores that tie.

    Examples
    --------
    >>> remarks_on_scores(Ranking.of(np.arange(100.0), np.ones(100, dtype=bool)))[0].kind
    'few_errors'
    """
    found = too_few_errors(int(ranking.errors[-1]), ranking.n)
    return [*found, *(tied_scores(ranking, of) if ties else [])]


def too_few_errors(errors: int, n: int) -> list[Note]:
    """Rows that look like training data."""
    return [] if n < 50 or errors > 0.001 * n else [notes.few_errors(errors=errors, rows=n)]


def tied_scores(ranking: Ranking, of: notes.Tied = "logits") -> list[Note]:
    """Scores that tie, if there are many.

    Examples
    --------
    >>> right = np.ones(100, dtype=bool)
    >>> tied_scores(Ranking.of(np.arange(100.0), right)), tied_scores(Ranking.of(np.zeros(100), right))[0].kind
    ([], 'tied_scores')
    """
    if 1.5 * (ranking.n - len(ranking.ranks)) <= 0.01 * ranking.n:  # of c > 2 rows with one score c - 1 are repeats
        return []
    counts = np.diff(ranking.ranks, prepend=0)
    tied = int(counts[counts > 2].sum())  # among millions of rows some pairs share a grid point by chance
    return [] if tied <= 0.01 * ranking.n else [notes.tied_scores(tied=tied, rows=ranking.n, of=of)]


def remarks_on_rows(rows: Rows, values: NDArray[np.float64], distinct: int | None = None) -> list[Note]:
    """Rows that repeat an earlier one: copies are not independent, and what is certified from them is not as sure.

    `distinct` scores there are, where that is known.

    Examples
    --------
    >>> table = np.array([[2.0, 0.0], [1.0, 0.0], [2.0, 0.0]])
    >>> str(remarks_on_rows(Rows(table), table[:, 0])[0])[:50]
    '1 of 3 rows repeat the logits of an earlier row: i'
    """
    repeated = _repeated_rows(rows, values, len(np.unique(values)) if distinct is None else distinct)
    return [notes.repeated_rows(repeated=repeated, rows=len(values))] if repeated else []


def _repeated_rows(rows: Rows, values: NDArray[np.float64], distinct: int) -> int:
    """How many rows are equal to an earlier one, bit for bit; 0 where they are too few to matter.

    Equal rows have equal scores, so only rows that share theirs are read again.
    """
    if rows.on_device or len(values) - distinct <= _REPEATED_SHARE * len(values):
        return 0
    order = np.argsort(values, kind="stable")
    same = values[order[1:]] == values[order[:-1]]
    shared = np.zeros(len(values), dtype=bool)
    shared[order[1:][same]] = shared[order[:-1][same]] = True
    marks = rows.where(shared).collect(_row_marks)
    repeated = len(marks) - len(np.unique(marks))
    return repeated if repeated > _REPEATED_SHARE * len(values) else 0


def _row_marks(block: NDArray[Any]) -> NDArray[np.int64]:
    """A number for each row that equal rows share, in any process, and others only by accident."""
    marks = b"".join(blake2b(row.tobytes(), digest_size=8).digest() for row in np.ascontiguousarray(block))
    return np.frombuffer(marks, dtype=np.int64)
