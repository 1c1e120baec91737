"""The walk of a promise on accuracy (`metacal.promises.rules.sequence`) where only counts are known.

p(e, m) = P(Bin(m, q) <= e) rises with e and falls with m. In a cell of w wrong and r right rows behind m rows with e
errors, the test at any rank m + k sees at most e + min(w, k) errors, which is what it sees with the wrong rows first;
of those values p(e + w, m + w) is the largest, since a wrong row more raises p and a right one lowers it. If that one
passes, every test inside does. Where all rows of a cell are right, all are wrong, or all have one score, the errors at
each rank are known, and the first that fails is found.
"""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.promises.rules import bounds
from metacal.promises.rules.sequence import Segment, clearly_pass, segments
from metacal.promises.rules.tally import Tally

#: Cells looked at together, and the most that one segment asks for in one go: the first of them decide.
_CHUNK, _ASKED = 4096, 1024


def last_passed(tally: Tally, beta: float, delta: float) -> int:
    """The highest rank that the fixed sequence with fallback shares certifies; 0 when none. Undecided where it is open.

    As long as a segment is open, so is whether it fails, and with it the level of the next ones: both are followed.
    """
    asked: set[int] = set()
    best, states = 0, {Fraction(0)}
    for part in segments(tally.blocks.n, beta, delta):
        following: set[Fraction] = set()
        for spent in states:
            at_hand = spent + part.share
            failed, cells = _first_failure(tally, part, float(at_hand) * delta)
            asked.update(cells)
            following.add(at_hand if failed == part.stop else Fraction(0))
            if cells:
                following.add(Fraction(0))
            elif not asked:
                passed = part.ladder.below(failed)
                best = passed if passed >= part.start else best
        states = following
    if asked:
        raise tally.undecided(asked)
    if best and best < tally.blocks.n:
        tally.settle(tally.blocks.at_least(best))
    return best if best and tally.blocks.accepted_at(best) else 0


def _first_failure(tally: Tally, part: Segment, level: float) -> tuple[int, list[int]]:
    """The first rung of the segment that is known to fail, its stop when none is, and the open cells before it."""
    ends, errors = tally.blocks.ranks, tally.blocks.errors
    first = tally.blocks.at_least(part.start)
    last = int(np.searchsorted(ends - tally.right - tally.wrong, part.stop - 1, side="left"))
    opened: list[int] = []
    for low in range(first, last, _CHUNK):
        cells = np.arange(low, min(low + _CHUNK, last))
        ranks = np.maximum(ends[cells] - tally.right[cells], part.start)
        for cell in cells[~clearly_pass(errors[cells], ranks, part.ladder.rate, level)].tolist():
            known = tally.single[cell] or not tally.right[cell] or not tally.wrong[cell]
            failed = _failure_inside(tally, cell, part, level) if known else _failure_at_end(tally, cell, part, level)
            if not known:
                opened.append(cell)
            if failed < part.stop or len(opened) >= _ASKED:
                return failed, opened
    return part.stop, opened


def _failure_at_end(tally: Tally, cell: int, part: Segment, level: float) -> int:
    """The end of the cell if its test is one of the segment's and fails: then some rung up to it is the first."""
    end, errors = int(tally.blocks.ranks[cell]), int(tally.blocks.errors[cell])
    tested = part.start <= end < part.stop and part.ladder.at_or_above(end) == end
    return end if tested and part.ladder.tail(errors, end) > level else part.stop


def _failure_inside(tally: Tally, cell: int, part: Segment, level: float) -> int:
    """The first rung that fails in a cell whose wrong rows come first; the segment's stop when none does."""
    end, errors = int(tally.blocks.ranks[cell]), int(tally.blocks.errors[cell])
    wrong = int(tally.wrong[cell])
    begin = end - wrong - int(tally.right[cell])
    before = errors - wrong
    # Up to the last wrong row p rises from rank to rank: the first that fails, then the first rung from there on.
    rising = range(max(begin + 1, part.start), min(begin + wrong + 1, part.stop))
    fails = rising.start + bisect_right(rising, level, key=lambda rank: part.ladder.tail(before + rank - begin, rank))
    if fails < rising.stop:
        rung = part.ladder.at_or_above(fails)
        if rung < rising.stop:
            return rung
    # Behind it p falls: only the first rung can fail.
    rung = part.ladder.at_or_above(max(begin + wrong, begin + 1, part.start))
    return rung if rung < min(end + 1, part.stop) and part.ladder.tail(errors, rung) > level else part.stop


def expected_prefix(tally: Tally, beta: float) -> int:
    """The largest m that ends a block of ties with E_m + 1 <= (1 - beta)(m + 1); 0 when there is none.

    The ends of cells end blocks. Inside a cell of several scores nothing passes if m + r rows with e errors do not, all
    its right rows and none of the wrong ones: open are cells above the highest end that passes where they do.
    """
    share = 1 - bounds.exact(beta)
    ints: type = object if share.denominator * (tally.blocks.n + 1) >= 2**62 else np.int64
    good = _passes(tally.blocks.errors, tally.blocks.ranks, share, ints)
    highest = int(np.flatnonzero(good)[-1]) if good.any() else -1
    possible = _passes(tally.blocks.errors - tally.wrong, tally.blocks.ranks - tally.wrong, share, ints)
    possible[: highest + 1] = False
    if (possible & ~tally.single).any():
        raise tally.undecided(np.flatnonzero(possible & ~tally.single)[-_ASKED:].tolist())
    if highest < 0:
        return 0
    if highest + 1 < len(good):
        tally.settle(highest, highest + 1)
    return int(tally.blocks.ranks[highest])


def _passes(errors: NDArray[np.intp], ranks: NDArray[np.intp], share: Fraction, ints: type) -> NDArray[np.bool_]:
    left: NDArray[Any] = (errors.astype(ints) + 1) * share.denominator
    return np.asarray(left <= (ranks.astype(ints) + 1) * share.numerator, dtype=bool)
