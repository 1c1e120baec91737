"""Many rows: the certificate of a gate from counts, which workers take where the rows are.

Above MOST_SORTED rows nobody holds the scores. Each pass computes them again, block by block, and
what comes back of a block is how many right and wrong rows lie in which cells
(`metacal.certification.passes`, which proves that the certificate is the one of sorting). The first pass
also takes the fingerprint of the rows. What is held of every row is its label, which the caller
brought, and two flags, which a last pass takes for the base map: accepted, right.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.certificates.certificate import Certificate, accepts
from metacal.certificates.fingerprint import Fingerprint, fingerprint_rows
from metacal.certificates.notes import Note, check_error_count, check_repeated_rows, check_ties
from metacal.certification.ranking import Ranking
from metacal.formulas import Codes, Flags, Float
from metacal.kernels.grid import RELATIVE, Grid
from metacal.kernels.keys import CellCounts, Counter, Cut
from metacal.rows import Rows
from metacal.rows.plausibility import Suspicion
from metacal.scores import Score, ScoreAndCorrectness, get_rounding_grid, score_rows

#: Up to so many rows scores are sorted, which takes memory for each row; the answer is the same
#: either way.
MOST_SORTED = 10_000_000
#: Rows and numbers of the sample that ties and repeated rows are looked for in, and the stretches
#: it comes from.
_SAMPLE_ROWS, _SAMPLE_ELEMENTS, _STRETCHES = 1 << 16, 1 << 23, 16


class Counting:
    """Counts the rows of a table in the cells of a cut, as often as is asked; looks them over the
    first time.
    """

    def __init__(self, rows: Rows, codes: Codes, score: str | Score) -> None:
        self.rows, self.codes, self.score = rows, codes, score
        self.fingerprint: Fingerprint | None = None

    def __call__(self, cut: Cut) -> CellCounts:
        """One pass. Careful, a kernel gives no score to a row that is none, or may have masks: then
        one more.
        """
        ranked, fine = ScoreAndCorrectness(self.score), False
        if self.rows.is_unvalidated and kernels.can_pass_whole_blocks(ranked, self.rows.table):
            found = self._counted(partial(ranked, is_unvalidated=True), cut)
            fine = not found.missing
        self.rows = self.rows.validated(is_validated=fine)
        return found if fine else self._counted(ranked, cut)

    def _counted(self, score_block: Any, cut: Cut) -> CellCounts:
        needs_fingerprint = self.fingerprint is None
        gather = partial(_Gathered, cut, get_rounding_grid(self.score), needs_fingerprint)
        fingerprints: list[Fingerprint] = []
        shares = self.rows.fold(score_block, gather, self.codes)
        found = CellCounts.together(cut, _set_aside(shares, fingerprints))
        if needs_fingerprint and not found.missing:
            self.fingerprint = sum(fingerprints[1:], start=fingerprints[0])
        return found


def _set_aside(
    shares: Iterator[tuple[CellCounts, Fingerprint | None]], fingerprints: list[Fingerprint]
) -> Iterator[CellCounts]:
    """Yield the counts of each share of the rows, and append its fingerprint to a list."""
    for counts, fingerprint in shares:
        if fingerprint is not None:
            fingerprints.append(fingerprint)
        yield counts


class _Gathered:
    """Counts of a share of the rows and, if needed, their fingerprint."""

    def __init__(self, cut: Cut, grid: Grid, needs_fingerprint: bool) -> None:
        self._counter, self._grid, self._needs_fingerprint = Counter(cut), grid, needs_fingerprint
        self._fingerprint: Fingerprint | None = None

    def add(self, score_and_correct: Float) -> None:
        """Add a block of rows: the unrounded score of each row, and whether its prediction is
        correct.
        """
        scores, correct = self._grid.rounded(score_and_correct[:, 0]), score_and_correct[:, 1] > 0.0
        self._counter.add(scores if self._grid == RELATIVE else RELATIVE.rounded(scores), correct)
        if self._needs_fingerprint:
            own = fingerprint_rows(scores, correct)
            self._fingerprint = own if self._fingerprint is None else self._fingerprint + own

    def result(self) -> tuple[CellCounts, Fingerprint | None]:
        """Return the counts and the fingerprint."""
        return self._counter.result(), self._fingerprint


def decided_flags(
    rows: Rows, codes: Codes, score: str | Score, threshold: float
) -> tuple[Flags, Flags]:
    """Decide rows that were only counted, in one more pass. One byte per row comes back.

    Returns
    -------
    is_accepted : array of bool of shape (n_rows,)
        Whether each row is accepted.

    correct : array of bool of shape (n_rows,)
        Whether each prediction is correct.
    """
    flags = rows.collect(_Accepted(score, threshold), codes)
    return (flags & 1).view(bool), (flags >> 1).view(bool)


class _Accepted:
    """Of each row of a block: 1 if it is accepted, 2 more if it is right."""

    def __init__(self, score: str | Score, threshold: float) -> None:
        self.ranked, self.threshold, self.grid = (
            ScoreAndCorrectness(score),
            threshold,
            get_rounding_grid(score),
        )
        self.takes_whole_blocks = self.ranked.takes_whole_blocks

    def __call__(self, block: NDArray[Any], labels: Codes, **chosen: Any) -> NDArray[np.uint8]:
        both = self.ranked(block, labels, **chosen)
        accept = accepts(self.grid.rounded(both[:, 0]), self.threshold).view(np.uint8)
        return accept + 2 * (both[:, 1] > 0.0).view(np.uint8)


def remarks_on_long_rows(
    rows: Rows, score: str | Score, found: Certificate, odd: Suspicion | None
) -> list[Note]:
    """What is odd: too few errors among all rows; ties, and rows that repeat others, in a sample of
    them.
    """
    remarks = check_error_count(found.n_rows - found.n_correct, found.n_rows)
    if odd is not None and odd.kind in ("alike", "one-hot"):
        return remarks
    n = len(rows)
    each = max(1, min(n, _SAMPLE_ROWS, _SAMPLE_ELEMENTS // rows.n_classes) // _STRETCHES)
    starts = [k * (n - each) // (_STRETCHES - 1) for k in range(_STRETCHES)]
    sample = Rows(np.concatenate([np.asarray(rows.table[at : at + each]) for at in starts]))
    values = score_rows(sample, score)
    ranking = Ranking.from_scores(values, np.ones(len(values), dtype=bool))
    ties = check_ties(ranking, "sampled logits") if odd is None else []
    return [*remarks, *ties, *check_repeated_rows(sample, values, len(ranking.block_end_ranks))]
