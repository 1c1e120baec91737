r"""Certification of rows that are too many to sort: rows are counted in cells of their score.

Sorting holds every score in memory. A rule reads few of them: an order statistic for a miscoverage,
and for an accuracy the ranks at which a test comes close to failing. So correct and incorrect rows are
counted by the top bits of their scores (`metacal.kernels.keys`). If the counts do not determine the
certificate, the rule names cells (`FinerCountsNeeded`), and only these are counted again by their next bits.
Scores on the grid have 42 bits. The first pass uses 22 of them and the second up to 20 more, so that
two or three passes over the rows suffice.

**The certificate is the one that sorting gives, bit for bit.**

1. *Counts determine ranks.* Cells are intervals of scores, in order. If m rows, e of them errors, lie
   in the cells below a cell with r correct rows and w errors, its rows have the ranks m + 1, ..., m + r
   + w, and there are e + w errors up to its end, whatever the order inside the cell.
2. *The order inside a cell is used only if it is known.* A question is answered from counts only if
   every order inside the cells gives the same answer. The order statistic of a rank lies in the cell
   that contains the rank. No test inside a cell can fail if it passes with all errors first (see
   below). Otherwise `FinerCountsNeeded` names the cells.
3. *A cell with one score has no inside.* Rows with one score are tied, and tied rows have one order,
   errors first. A cell that contains only one multiple of 2^unit is such a cell, where `unit` is the
   number of trailing bits that are zero in every key. Every refinement divides each named cell, so the
   passes come to an end.
4. Rank, score and neighbours of the threshold are then computed by the same functions (`Ranking`) from
   the same numbers. ∎

**The test sequence of an accuracy** (`rules.fixed_sequence`) from counts. p(e, m) = P(Bin(m, q) <= e)
increases with e and decreases with m. In a cell of w errors and r correct rows behind m rows with e
errors, the test at rank m + k has at most e + min(w, k) errors, which is the number with the errors
first. The largest of these p-values is p(e + w, m + w), because one more error increases p and one more
correct row decreases it. If it passes, every test inside the cell does. If all rows of a cell are
correct, all are errors, or all have one score, the errors at each rank are known, and the first rank
that fails is found.

Counts are integers that may be added in any order. The counts of each block are added once, even if a
worker was lost and the block was counted again. A process holds only the counts of nonempty cells, so
its memory does not depend on the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from metacal.certificates.certificate import Certificate
from metacal.certification.certify import CertifiablePromise
from metacal.certification.one_threshold import OneThresholdProcedure
from metacal.certification.ranking import Evidence, FinerCountsNeeded, Ranking, require_some_correct
from metacal.certification.rows import check_scores
from metacal.certification.statements import sorting_needed_error
from metacal.errors import InputError
from metacal.kernels.keys import MAX_CELLS, CellCounts, Counter, Cut, keys_to_scores
from metacal.rows.executors import ExecutorLike, resolve_executor
from metacal.rows.tasks import run_in_order

Ints = NDArray[np.int64]
# Function that counts all rows in the cells of a cut, in one pass over them.
Pass = Callable[[Cut], CellCounts]
# Number of blocks that are counted at a time.
_WINDOW = 64
# Number of rows that are rounded and counted at a time. They fit into the cache of a core.
_AT_ONCE = 1 << 15
# Number of new cells per refined cell, at least.
_REFINED = 4


@dataclass(frozen=True)
class CellTally:
    """Numbers of correct rows and of errors in the nonempty cells of a score.

    Attributes
    ----------
    low, high : arrays of int64 of shape (n_cells,)
        Lowest and highest key of each cell, in increasing order.
    right, wrong : arrays of int64 of shape (n_cells,)
        Number of correct rows and of errors in each cell.
    unit : int
        Every key is a multiple of 2^unit.

    Examples
    --------
    >>> scores, correct = np.array([0.5, 0.25, 0.5]), np.array([True, True, False])
    >>> tally = CellTally.first(partial(_count_arrays, scores, correct))
    >>> tally.ranking
    Ranking(block_end_ranks=array([1, 3]), cumulative_errors=array([0, 1]), block_scores=array([0.25, 0.5 ]), has_unknown_order=array([False, False]))
    """

    low: Ints
    high: Ints
    right: Ints
    wrong: Ints
    unit: int

    @classmethod
    def first(cls, count: Pass, cells: int = MAX_CELLS) -> CellTally:
        """Count all rows by the top bits of their scores."""
        cut = Cut.whole(cells)
        counts = count(cut)
        if counts.missing:
            raise InputError("certify needs a score for every row; some are NaN.")
        require_some_correct(counts.right, int(counts.wrong.sum()))
        unit = 63 if not counts.bits else (counts.bits & -counts.bits).bit_length() - 1
        return cls(*cut.bounds_of(counts.cells), counts.right, counts.wrong, unit)

    def refined(self, wanted: Iterable[int], count: Pass, cells: int = MAX_CELLS) -> CellTally:
        """Count the rows of some cells again, by the next bits of their scores."""
        asked = np.unique(np.array(list(wanted), dtype=np.int64))[: max(1, cells // _REFINED)]
        cut = Cut.of(self.low[asked], self.high[asked], self.unit, cells)
        counts = count(cut)
        if int((counts.right + counts.wrong).sum()) != int((self.right + self.wrong)[asked].sum()):
            raise InputError(
                "the rows changed between two passes over them; count rows that stay as they are."
            )
        low, high = cut.bounds_of(counts.cells)
        parts = (
            (self.low, low),
            (self.high, high),
            (self.right, counts.right),
            (self.wrong, counts.wrong),
        )
        merged = [np.concatenate((np.delete(old, asked), new)) for old, new in parts]
        order = np.argsort(merged[0])
        low, high, right, wrong = (column[order] for column in merged)
        return CellTally(low, high, right, wrong, self.unit)

    @cached_property
    def ranking(self) -> Ranking:
        """Ranking with one block per cell. A cell with several scores is marked as mixed."""
        ranks, errors = np.cumsum(self.right + self.wrong), np.cumsum(self.wrong)
        below = np.int64((1 << self.unit) - 1)
        lowest = (self.low + below) & ~below  # the lowest multiple of 2^unit in each cell
        # Whether the order inside a cell is open: there is room for several scores.
        mixed = (self.high - lowest).view(np.uint64) >= np.uint64(1 << self.unit)
        return Ranking(ranks, errors, keys_to_scores(lowest), mixed)

    def open_at(self, ranks: Sequence[int]) -> list[int]:
        """Return the cells with several scores that contain one of these ranks."""
        cells = np.unique(
            np.searchsorted(self.ranking.block_end_ranks, np.array(ranks, dtype=np.int64))
        )
        return [
            int(cell)
            for cell in cells
            if self.ranking.has_unknown_order is not None and self.ranking.has_unknown_order[cell]
        ]


class Passes(Evidence):
    """Rows that are counted in two or three passes and never held in memory.

    The certificate is the one of all rows at once.

    Parameters
    ----------
    count : callable
        Function that counts all rows in the cells of a cut. `Passes.over` builds it from blocks
        that workers read.
    cells : int
        Number of cells that one pass counts.
    ranks : sequence of int
        Ranks whose blocks of equal scores must be known in the final `ranking`.

    Attributes
    ----------
    ranking : Ranking
        Ranking as far as it is known, once a promise was certified.
    """

    ranking: Ranking

    def __init__(self, count: Pass, cells: int = MAX_CELLS, ranks: Sequence[int] = ()) -> None:
        self.count, self.cells, self.ranks = count, cells, ranks

    @classmethod
    def over(
        cls,
        read: Callable[[Any], tuple[Any, Any]],
        blocks: Iterable[Any],
        *,
        executor: ExecutorLike | None = None,
    ) -> Self:
        """Passes over blocks of rows: counts come back, never rows.

        Parameters
        ----------
        read : function
            From a block to one score and one boolean a row. It must say the same each time, and
            travels to the workers.
        blocks : sequence
            What names the blocks: paths, seeds, numbers. Gone through once a pass.
        executor : concurrent.futures.Executor or distributed.Client, optional
            Threads, processes, or a Dask client; this thread when None.

        >>> from metacal.promises import MinAccuracy
        >>> def rows(seed):
        ...     rng = np.random.default_rng(seed)
        ...     scores = rng.random(5000)
        ...     return scores, rng.random(5000) > 0.2 * scores
        >>> found = MinAccuracy(0.93).certify(Passes.over(rows, range(20)))
        >>> scores, correct = (np.concatenate(column) for column in zip(*map(rows, range(20))))
        >>> found == MinAccuracy(0.93).certify(scores, correct), found.n_rows
        (True, 100000)
        """
        return cls(partial(_count_all_blocks, read, list(blocks), resolve_executor(executor)))

    def certify(self, promise: CertifiablePromise) -> Certificate:
        """Count the rows in ever smaller cells until the certificate is determined."""
        procedure = promise.procedure()
        if not isinstance(procedure, OneThresholdProcedure) or promise.scope is not None:
            raise sorting_needed_error(promise)
        tally = CellTally.first(self.count, self.cells)
        while True:
            open_cells = tally.open_at(self.ranks)
            try:
                certificate = procedure.certify_ranking(tally.ranking, promise.delta)
            except FinerCountsNeeded as question:
                open_cells = [*question.cells, *open_cells]
            else:
                if not open_cells:
                    self.ranking = tally.ranking
                    return certificate
            tally = tally.refined(open_cells, self.count, self.cells)


def _count_all_blocks(
    read: Any, blocks: list[Any], executor: Executor | None, cut: Cut
) -> CellCounts:
    """Count every block once."""
    pieces = ((block,) for block in blocks)
    task = partial(_count_block, read, cut)
    parts = (
        (task(*piece) for piece in pieces)
        if executor is None
        else run_in_order(executor, task, pieces, _WINDOW)
    )
    return CellCounts.together(cut, parts)


def _count_block(read: Any, cut: Cut, block: Any) -> CellCounts:
    scores, correct = map(np.asarray, read(block))
    if scores.shape != correct.shape:
        check_scores(scores, correct)  # Raises the error for columns that do not fit together.
    return _count_arrays(scores, correct, cut)


def _count_arrays(scores: Any, correct: Any, cut: Cut) -> CellCounts:
    counter = Counter(cut)
    for at in range(0, max(1, len(scores)), _AT_ONCE):
        correct_chunk = np.asarray(correct[at : at + _AT_ONCE])
        counter.add(check_scores(scores[at : at + _AT_ONCE], correct_chunk), correct_chunk)
    return counter.result()
