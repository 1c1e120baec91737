r"""Tally: a ranking known by counts, finer where a promise asks for it. What certifies rows that nobody can sort.

Sorting holds every score in one place. A promise looks at few of them: a miscoverage at one order statistic, an
accuracy at the ranks where a test comes close to failing. So rows are counted, right and wrong ones, by the top bits of
their scores (`metacal.kernels.keys`); a promise says which cells it must know more finely, these alone are counted
again by their next bits, and so on until it has what it needs. Scores on the grid have 42 bits that matter; the first
pass takes 22, the second up to 20 more: two or three passes in all, each of which reads, or makes, every score once.

**Why the certificate is the one that sorting gives, bit for bit.**

1. *Counts know ranks.* Cells are stretches of scores, in order. With m rows, e of them wrong, in the cells below a cell
   of r right and w wrong rows, its rows have ranks m + 1 … m + r + w, and the errors up to its end are e + w: exactly,
   whatever the order inside.
2. *What is inside matters only where it could matter.* A question is answered from counts only if every order inside
   the cells gives the same answer: the order statistic of a rank lies in the cell that has the rank; no test inside a
   cell can fail if it would pass with all wrong rows first (`promises.rules.tally_walk`). Otherwise `Undecided` names
   the cells.
3. *A cell of one score has no inside.* Rows of one score are tied, and tied rows have one order, wrong rows first: the
   cell is a block of ties as sorting finds it. A cell in which only one multiple of 2^unit lies, unit being the bits at
   the end that are zero in every key, is such a cell. Every refinement splits each cell that is named, so the passes
   come to an end.
4. What is then asked of the cells around the threshold, rank, score, neighbours, is asked of the same functions
   (`metacal.promises.sample.Ranking`) with the same numbers. ∎

Counts are whole numbers, added in any order; each block's counts are added once, however often a worker was lost and
the block counted again. What one process holds is the counts of cells that have rows: it depends on how many cells
there are, not on how many rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.kernels.keys import CELLS, CellCounts, Counter, Cut, scores_of
from metacal.promises.certificate import Certificate
from metacal.promises.promise import Promise, columns, none_correct
from metacal.promises.sample import Ranking, Undecided
from metacal.rows.executors import ExecutorLike, executor_of
from metacal.rows.tasks import in_order

Ints = NDArray[np.int64]
#: One pass over all rows: counts them in the cells of a cut.
Pass = Callable[[Cut], CellCounts]
#: Blocks that are under way at a time.
_WINDOW = 64
#: Rows that are rounded and counted at once: they stay in a core's cache.
_AT_ONCE = 1 << 15
#: Cells that are refined in one pass, at most, as a share of the cells of a pass: each is split in four or more.
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

    Examples
    --------
    >>> scores, correct = np.array([0.5, 0.25, 0.5]), np.array([True, True, False])
    >>> tally = Tally.first(partial(_counted_array, scores, correct))
    >>> tally.blocks.ranks, tally.blocks.errors, tally.blocks.scores, tally.single
    (array([1, 3]), array([0, 1]), array([0.25, 0.5 ]), array([ True,  True]))
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
        found = count(cut)
        if found.missing:
            raise InputError("certify needs a score for every row; some are NaN.")
        if not found.right.any():
            raise none_correct(int(found.wrong.sum()))
        unit = 63 if not found.bits else (found.bits & -found.bits).bit_length() - 1
        return cls(*cut.bounds_of(found.cells), found.right, found.wrong, unit)

    def refined(self, wanted: Iterable[int], count: Pass, cells: int = CELLS) -> Tally:
        """The same with these cells counted more finely: another pass."""
        asked = np.unique(np.array(list(wanted), dtype=np.int64))[: max(1, cells // _REFINED)]
        cut = Cut.of(self.low[asked], self.high[asked], self.unit, cells)
        found = count(cut)
        if int((found.right + found.wrong).sum()) != int((self.right + self.wrong)[asked].sum()):
            raise InputError("the rows changed between two passes over them; count rows that stay as they are.")
        low, high = cut.bounds_of(found.cells)
        parts = ((self.low, low), (self.high, high), (self.right, found.right), (self.wrong, found.wrong))
        merged = [np.concatenate((np.delete(old, asked), new)) for old, new in parts]
        order = np.argsort(merged[0])
        low, high, right, wrong = (column[order] for column in merged)
        return Tally(low, high, right, wrong, self.unit)

    @cached_property
    def blocks(self) -> Ranking:
        """The cells as if each were a block of equal scores: true of those that are `single`."""
        return Ranking(np.cumsum(self.right + self.wrong), np.cumsum(self.wrong), scores_of(self._lowest))

    @cached_property
    def single(self) -> NDArray[np.bool_]:
        """Whether all rows of a cell have one score."""
        return (self.high - self._lowest).view(np.uint64) < np.uint64(1 << self.unit)

    @cached_property
    def _lowest(self) -> Ints:
        """The lowest multiple of 2^unit in each cell."""
        below = np.int64((1 << self.unit) - 1)
        return (self.low + below) & ~below

    def open_at(self, ranks: Sequence[int]) -> list[int]:
        """The cells that have these ranks and more than one score."""
        cells = np.unique(np.searchsorted(self.blocks.ranks, np.array(ranks, dtype=np.int64)))
        return [cell for cell in cells.tolist() if not self.single[cell]]

    def settle(self, *cells: int) -> None:
        """Raise `Undecided` unless these cells, where there are any, have one score each."""
        if not all(self.single[cell] for cell in cells if 0 <= cell < len(self.low)):
            raise self.undecided(cells)

    def undecided(self, cells: Iterable[int]) -> Undecided:
        """These cells, and those beside them: a threshold that lies in one has a neighbour in the next."""
        around = {near for cell in cells for near in (cell - 1, cell, cell + 1) if 0 <= near < len(self.low)}
        return Undecided(near for near in around if not self.single[near])


def certified(promise: Any, count: Pass, cells: int = CELLS, ranks: Sequence[int] = ()) -> tuple[Certificate, Ranking]:
    """The certificate of a promise from passes over the rows: that of sorting them, whatever the number of cells.

    And the ranking as far as it is known: the blocks of equal scores that have these ranks are, on the way.
    """
    tally = Tally.first(count, cells)
    while True:
        wanted = tally.open_at(ranks)
        try:
            found: Certificate = promise.certify_tally(tally)
            if not wanted:
                return found, tally.blocks
        except Undecided as question:
            wanted = [*question.cells, *wanted]
        tally = tally.refined(wanted, count, cells)


def takes_tally(promise: Any) -> bool:
    """Whether a promise can be certified from counts.

    Examples
    --------
    >>> from metacal.promises import Both, MaxMiscoverage
    >>> takes_tally(MaxMiscoverage(0.05)), takes_tally(Both(alpha=0.1, beta=0.9))
    (True, False)
    """
    return isinstance(promise, Promise) and hasattr(promise, "certify_tally")


def certify_blocks(
    promise: Promise,
    read: Callable[[Any], tuple[Any, Any]],
    blocks: Iterable[Any],
    *,
    executor: ExecutorLike | None = None,
) -> Certificate:
    """Certify rows that are in no one place: `read(block)` gives the scores and the flags of one block of them.

    Blocks are read where the executor's workers are, once for each of two or three passes; counts come back, never
    rows, and memory does not grow with the number of rows. The certificate is that of `promise.certify` on all rows.

    Parameters
    ----------
    promise : MaxMiscoverage or MinAccuracy
        Others sort: their `certify` takes all rows at once.
    read : function
        From a block to one score and one boolean a row. It must say the same each time, and travels to the workers.
    blocks : sequence
        What names the blocks: paths, seeds, numbers. Gone through once a pass.
    executor : concurrent.futures.Executor or distributed.Client, optional
        Threads, processes, or a Dask client; this thread when None.

    Examples
    --------
    >>> from metacal.promises import MinAccuracy
    >>> def rows(seed):
    ...     rng = np.random.default_rng(seed)
    ...     scores = rng.random(5000)
    ...     return scores, rng.random(5000) > 0.2 * scores
    >>> found = certify_blocks(MinAccuracy(0.93), rows, range(20))
    >>> scores, correct = (np.concatenate(column) for column in zip(*map(rows, range(20))))
    >>> found == MinAccuracy(0.93).certify(scores, correct), found.n_rows
    (True, 100000)
    """
    if not takes_tally(promise):
        raise InputError(
            f"{type(promise).__name__} is certified by sorting: give all rows to its certify(scores, correct). From "
            "counts are certified: MaxMiscoverage, MinAccuracy."
        )
    return certified(promise, partial(_one_pass, read, list(blocks), executor_of(executor)))[0]


def _one_pass(read: Any, blocks: list[Any], executor: Executor | None, cut: Cut) -> CellCounts:
    """Every block counted once."""
    pieces = ((block,) for block in blocks)
    task = partial(_count_block, read, cut)
    parts = (task(*piece) for piece in pieces) if executor is None else in_order(executor, task, pieces, _WINDOW)
    return CellCounts.together(cut, parts)


def _count_block(read: Any, cut: Cut, block: Any) -> CellCounts:
    scores, correct = map(np.asarray, read(block))
    if scores.shape != correct.shape:
        columns(scores, correct)  # says what is wrong
    return _counted_array(scores, correct, cut)


def _counted_array(scores: Any, correct: Any, cut: Cut) -> CellCounts:
    counter = Counter(cut)
    for at in range(0, max(1, len(scores)), _AT_ONCE):
        counter.add(*columns(scores[at : at + _AT_ONCE], correct[at : at + _AT_ONCE], part=True))
    return counter.result()
