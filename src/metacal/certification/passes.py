r"""Passes: rows that nobody can sort, counted again and again; Tally: their ranking by counts,
finer where asked.

Sorting holds every score in one place. A promise looks at few of them: a miscoverage at one order
statistic, an accuracy at the ranks where a test comes close to failing. So rows are counted, right
and wrong ones, by the top bits of their scores (`metacal.kernels.keys`); a promise says which cells
it must know more finely, these alone are counted again by their next bits, and so on until it has
what it needs. Scores on the grid have 42 bits that matter; the first pass takes 22, the second up
to 20 more: two or three passes in all, each of which reads, or makes, every score once.

**Why the certificate is the one that sorting gives, bit for bit.**

1. *Counts know ranks.* Cells are stretches of scores, in order. With m rows, e of them wrong, in the cells below a cell
   of r right and w wrong rows, its rows have ranks m + 1 … m + r + w, and the errors up to its end
   are e + w: exactly, whatever the order inside.
2. *What is inside matters only where it could matter.* A question is answered from counts only if every order inside
   the cells gives the same answer: the order statistic of a rank lies in the cell that has the
   rank; no test inside a cell can fail if it would pass with all wrong rows first (see below).
   Otherwise `Undecided` names the cells.
3. *A cell of one score has no inside.* Rows of one score are tied, and tied rows have one order, wrong rows first: the
   cell is a block of ties as sorting finds it. A cell in which only one multiple of 2^unit lies,
   unit being the bits at the end that are zero in every key, is such a cell. Every refinement
   splits each cell that is named, so the passes come to an end.
4. What is then asked of the cells around the threshold, rank, score, neighbours, is asked of the same functions
   (`metacal.promises.sample.Ranking`) with the same numbers. ∎

**The test sequence of an accuracy** (`rules.fixed_sequence`) from counts. p(e, m) =
P(Bin(m, q) <= e) rises with e and falls with m. In a cell of w wrong and r right rows behind m rows
with e errors, the test at any rank m + k sees at most e + min(w, k) errors, which is what it sees
with the wrong rows first; of those values p(e + w, m + w) is the largest, since a wrong row more
raises p and a right one lowers it. If that one passes, every test inside does. Where all rows of a
cell are right, all are wrong, or all have one score, the errors at each rank are known, and the
first that fails is found.

Counts are whole numbers, added in any order; each block's counts are added once, however often a
worker was lost and the block counted again. What one process holds is the counts of cells that have
rows: it depends on how many cells there are, not on how many rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from metacal.certification.certify import CertifiablePromise
from metacal.certification.procedures import OneThreshold
from metacal.certification.rows import checked_scores
from metacal.certification.statements import sorting_needed_error
from metacal.errors import InputError
from metacal.kernels.keys import CELLS, CellCounts, Counter, Cut, scores_of
from metacal.promises.certificate import Certificate
from metacal.promises.sample import Evidence, Ranking, Undecided, require_some_correct
from metacal.rows.executors import ExecutorLike, executor_of
from metacal.rows.tasks import in_order

Ints = NDArray[np.int64]
#: One pass over all rows: counts them in the cells of a cut.
Pass = Callable[[Cut], CellCounts]
#: Blocks that are under way at a time.
_WINDOW = 64
#: Rows that are rounded and counted at once: they stay in a core's cache.
_AT_ONCE = 1 << 15
#: Cells that are refined in one pass, at most, as a share of the cells of a pass: each is split in
#: four or more.
_REFINED = 4


@dataclass(frozen=True)
class Tally:
    """Right and wrong rows by rising score, counted in cells.

    Attributes
    ----------
    low, high : int64 arrays
        The lowest and the highest key that each cell has room for.
    right, wrong : int64 arrays
        Rows of each cell; every cell has some.
    unit : int
        Every key is a multiple of 2^unit.

    >>> scores, correct = np.array([0.5, 0.25, 0.5]), np.array([True, True, False])
    >>> tally = Tally.first(partial(_counted_array, scores, correct))
    >>> tally.ranking
    Ranking(ranks=array([1, 3]), errors=array([0, 1]), scores=array([0.25, 0.5 ]), mixed=array([False, False]))
    """

    low: Ints
    high: Ints
    right: Ints
    wrong: Ints
    unit: int

    @classmethod
    def first(cls, count: Pass, cells: int = CELLS) -> Tally:
        """From a first pass, by the top bits."""
        cut = Cut.whole(cells)
        counts = count(cut)
        if counts.missing:
            raise InputError("certify needs a score for every row; some are NaN.")
        require_some_correct(counts.right, int(counts.wrong.sum()))
        unit = 63 if not counts.bits else (counts.bits & -counts.bits).bit_length() - 1
        return cls(*cut.bounds_of(counts.cells), counts.right, counts.wrong, unit)

    def refined(self, wanted: Iterable[int], count: Pass, cells: int = CELLS) -> Tally:
        """The same with these cells counted more finely: another pass."""
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
        return Tally(low, high, right, wrong, self.unit)

    @cached_property
    def ranking(self) -> Ranking:
        """The cells as if each were a block of equal scores: true of those that are not `mixed`."""
        ranks, errors = np.cumsum(self.right + self.wrong), np.cumsum(self.wrong)
        below = np.int64((1 << self.unit) - 1)
        lowest = (self.low + below) & ~below  # the lowest multiple of 2^unit in each cell
        # Whether the order inside a cell is open: there is room for several scores.
        mixed = (self.high - lowest).view(np.uint64) >= np.uint64(1 << self.unit)
        return Ranking(ranks, errors, scores_of(lowest), mixed)

    def open_at(self, ranks: Sequence[int]) -> list[int]:
        """The cells that have these ranks and more than one score."""
        cells = np.unique(np.searchsorted(self.ranking.ranks, np.array(ranks, dtype=np.int64)))
        return [
            int(cell)
            for cell in cells
            if self.ranking.mixed is not None and self.ranking.mixed[cell]
        ]


class Passes(Evidence):
    """Rows that are in no one place, or too many to sort: they are counted, two or three times, and
    never held.

    `count(cut)` is a pass over all rows; `Passes.over` makes it from blocks that workers read. The
    certificate is that of all rows at once; memory does not grow with their number. `ranks` are
    those whose blocks of equal scores are to be known in the end, in `ranking`.
    """

    #: The ranking as far as it is known, once a promise was certified.
    ranking: Ranking

    def __init__(self, count: Pass, cells: int = CELLS, ranks: Sequence[int] = ()) -> None:
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
        return cls(partial(_one_pass, read, list(blocks), executor_of(executor)))

    def certify(self, promise: CertifiablePromise) -> Certificate:
        """Count the rows in ever smaller cells until the certificate is determined."""
        procedure = promise.procedure()
        if not isinstance(procedure, OneThreshold) or promise.scope is not None:
            raise sorting_needed_error(promise)
        tally = Tally.first(self.count, self.cells)
        while True:
            open_cells = tally.open_at(self.ranks)
            try:
                certificate = procedure.certify_all_ranked(tally.ranking, promise.delta)
            except Undecided as question:
                open_cells = [*question.cells, *open_cells]
            else:
                if not open_cells:
                    self.ranking = tally.ranking
                    return certificate
            tally = tally.refined(open_cells, self.count, self.cells)


def _one_pass(read: Any, blocks: list[Any], executor: Executor | None, cut: Cut) -> CellCounts:
    """Every block counted once."""
    pieces = ((block,) for block in blocks)
    task = partial(_count_block, read, cut)
    parts = (
        (task(*piece) for piece in pieces)
        if executor is None
        else in_order(executor, task, pieces, _WINDOW)
    )
    return CellCounts.together(cut, parts)


def _count_block(read: Any, cut: Cut, block: Any) -> CellCounts:
    scores, correct = map(np.asarray, read(block))
    if scores.shape != correct.shape:
        checked_scores(scores, correct)  # Raises the error for columns that do not fit together.
    return _counted_array(scores, correct, cut)


def _counted_array(scores: Any, correct: Any, cut: Cut) -> CellCounts:
    counter = Counter(cut)
    for at in range(0, max(1, len(scores)), _AT_ONCE):
        correct_chunk = np.asarray(correct[at : at + _AT_ONCE])
        counter.add(checked_scores(scores[at : at + _AT_ONCE], correct_chunk), correct_chunk)
    return counter.result()
