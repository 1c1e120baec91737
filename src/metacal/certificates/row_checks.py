"""Checks of calibration rows, whose results are notes in the certificate.

They find rows that look like training data, scores that tie, and rows that are repeated.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metacal.certificates.notes import (
    Note,
    ScoreOrigin,
    note_few_errors,
    note_frozen_few_errors,
    note_repeated_rows,
    note_tied_scores,
)
from metacal.formulas import Float

if TYPE_CHECKING:
    from metacal.certification.ranking import Ranking
    from metacal.rows import Rows

#: Smallest number of rows at which a low error rate suggests training data.
_MIN_ROWS_TO_SUSPECT = 50
#: Largest error rate that suggests training data.
_SUSPICIOUS_ERROR_RATE = 0.001
#: Largest error rate that suggests training data of a frozen classifier.
#: On 8 data sets, forests, boosted trees and nearest neighbours had error rates of at most 0.1% on
#: training rows, and no classifier had an error rate below 0.7% on held-out rows.
_SUSPICIOUS_FROZEN_ERROR_RATE = 0.005
#: Largest share of tied rows that is not reported, because ties of few rows cost little coverage.
_MAX_TIED_SHARE = 0.01
#: Largest share of repeated rows that is not reported, because few copies hardly matter.
MAX_REPEATED_SHARE = 0.01


def find_notes_on_errors_and_ties(
    ranking: Ranking, origin: ScoreOrigin = "logits", *, checks_ties: bool = True
) -> list[Note]:
    """Check for rows that look like training data, and for tied scores.

    Parameters
    ----------
    ranking : Ranking
        The calibration rows in the order of their scores.
    origin : "logits", "sampled logits" or "given scores", default="logits"
        Origin of the scores.
    checks_ties : bool, default=True
        Whether to check for ties.

    Returns
    -------
    list of Note

    Examples
    --------
    >>> from metacal.certification.ranking import Ranking
    >>> find_notes_on_errors_and_ties(Ranking.from_scores(np.arange(100.0), np.ones(100, dtype=bool)))[0].kind
    'few_errors'
    """
    n_errors = int(ranking.cumulative_errors[-1])
    row_notes = check_error_count(n_errors, ranking.n_rows)
    if checks_ties:
        row_notes += check_ties(ranking, origin)
    return row_notes


def check_error_count(n_errors: int, n_rows: int) -> list[Note]:
    """Check for an error rate that suggests training data."""
    if n_rows < _MIN_ROWS_TO_SUSPECT or n_errors > _SUSPICIOUS_ERROR_RATE * n_rows:
        return []
    return [note_few_errors(errors=n_errors, rows=n_rows)]


def check_frozen_error_count(n_errors: int, n_rows: int) -> list[Note]:
    """Check for an error rate that suggests training data of a frozen classifier.

    Examples
    --------
    >>> [note.kind for note in check_frozen_error_count(2, 1000)]
    ['frozen_few_errors']
    """
    if n_rows < _MIN_ROWS_TO_SUSPECT or n_errors > _SUSPICIOUS_FROZEN_ERROR_RATE * n_rows:
        return []
    return [note_frozen_few_errors(errors=n_errors, rows=n_rows)]


def check_ties(ranking: Ranking, origin: ScoreOrigin = "logits") -> list[Note]:
    """Check for many rows that share their score with at least two other rows."""
    n_rows = ranking.n_rows
    n_repeated_scores = n_rows - ranking.n_tie_blocks
    max_unreported_ties = _MAX_TIED_SHARE * n_rows
    # A tie of c > 2 rows has c - 1 >= 2c / 3 repeated scores, so at most 1.5 rows for each of them.
    max_tied_rows = 1.5 * n_repeated_scores
    if max_tied_rows <= max_unreported_ties:
        return []
    tie_sizes = np.diff(ranking.tie_block_end_ranks, prepend=0)
    # Pairs of equal scores are ignored, because they occur by chance among millions of rows.
    is_larger_than_pair = tie_sizes > 2
    n_tied = int(tie_sizes[is_larger_than_pair].sum())
    if n_tied <= max_unreported_ties:
        return []
    return [note_tied_scores(tied=n_tied, rows=n_rows, of=origin)]


def check_repeated_rows(
    rows: Rows, scores: Float, n_distinct_scores: int | None = None
) -> list[Note]:
    """Check for rows that repeat an earlier row, because copies are not independent.

    Parameters
    ----------
    rows : Rows
        Table of logits. Tables on a device are not checked.
    scores : ndarray of shape (n_rows,)
        A score of each row.
    n_distinct_scores : int, optional
        Number of distinct scores, if it is known.

    Returns
    -------
    list of Note

    Examples
    --------
    >>> from metacal.rows import Rows
    >>> table = np.array([[2.0, 0.0], [1.0, 0.0], [2.0, 0.0]])
    >>> str(check_repeated_rows(Rows(table), table[:, 0])[0])[:50]
    '1 of 3 rows repeat the logits of an earlier row. I'
    """
    n_rows = len(scores)
    if n_distinct_scores is None:
        n_distinct_scores = len(np.unique(scores))
    max_unreported_repeats = MAX_REPEATED_SHARE * n_rows
    n_repeated_scores = n_rows - n_distinct_scores
    if rows.is_on_device or n_repeated_scores <= max_unreported_repeats:
        return []
    # Only rows with equal scores can be equal, so only these rows are read and hashed.
    _, score_indices, score_counts = np.unique(
        scores, return_inverse=True, return_counts=True, equal_nan=False
    )
    has_repeated_score = score_counts[score_indices] > 1
    row_hashes = rows.select(has_repeated_score).compute_column(_hash_rows)
    n_repeated_rows = len(row_hashes) - len(np.unique(row_hashes))
    if n_repeated_rows <= max_unreported_repeats:
        return []
    return [note_repeated_rows(repeated=n_repeated_rows, rows=n_rows)]


def _hash_rows(block: NDArray[Any]) -> NDArray[np.int64]:
    """Hash each row to 64 bits, with the same result in every process."""
    row_digests = [
        blake2b(row.tobytes(), digest_size=8).digest() for row in np.ascontiguousarray(block)
    ]
    return np.frombuffer(b"".join(row_digests), dtype=np.int64)
