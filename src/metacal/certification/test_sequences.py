"""The fixed sequence of ranks that an accuracy is tested at.

Which ranks are tested, in which order and at which level follows from the number of rows, beta and
delta alone. `metacal.certification.rules.fixed_sequence` runs the tests and has the proof.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr

from metacal.certification.ranking import Ranking
from metacal.formulas import Codes, Flags, Float
from metacal.statistics import bounds

T = TypeVar("T")

#: A rank is tested only where its exact test uses this much of the level: elsewhere it is strict
#: for nothing.
_USED = 0.75
#: With fewer errors allowed in all than this there is one start, at all of delta; from the second
#: number on it allows one error (it then lies in the middle of the rows, otherwise too late).
_FEW_ERRORS, _ONE_ERROR = 20, 8
#: The first start, as a share of the n·(1-beta) errors that all rows may have: min(.18, .03 +
#: 2·(1-beta)). The stricter the target, the smaller the part of the rows that meets it. Rounded to
#: the nearest, or down where there are few.
_LOWEST, _SLOPE, _HIGHEST = Fraction("0.03"), 2, Fraction("0.18")
#: The share of delta there, and fallbacks: where, and the share of delta they bring. The last is
#: for scores of few values, a judge's marks: inside a large block of equal scores the wrong rows
#: come first, and an early start fails.
_FIRST_SHARE = Fraction("0.95")
_FALLBACKS = ((Fraction("0.3"), Fraction("0.03")), (Fraction("0.65"), Fraction("0.02")))
#: All of these are for this delta, and suit others at the same ranks.
_TUNED_FOR = 0.1
#: Stretches of rows looked at together, and the most mixed ones that a segment asks for in one go:
#: the first decide.
_CHUNK, ASKED = 4096, 1024
#: How far below the level a p-value must lie for what is smaller in mathematics to be smaller as
#: computed too: a binomial tail is computed to some 1e-12 of itself.
_CLEARLY = 1.0 - 1e-6


@dataclass(frozen=True)
class Ladder:
    """The ranks 1 … n at which "errors are rarer than `rate`" is tested: those that waste little of
    the level, and n.

    With c(m) the most errors that pass at rank m, m is a rung if P(Bin(m, rate) <= c(m)) is at
    least 3/4 of the level.

    >>> ladder = Ladder(200, 0.05, 0.1)
    >>> [m for m in range(1, 201) if ladder.at_or_above(m) == m][:12]
    [45, 46, 47, 48, 49, 50, 77, 78, 79, 80, 81, 82]
    """

    n: int
    rate: float
    level: float

    def tail(self, errors: int, rank: int) -> float:
        """Return the probability of at most this many errors in the first `rank` rows."""
        return float(bdtr(float(errors), rank, self.rate)) if errors >= 0 else 0.0

    def most_errors(self, rank: int) -> int:
        """c(m): the most errors that pass at this rank; -1 when not even none does."""
        return bisect_right(range(rank), self.level, key=lambda errors: self.tail(errors, rank)) - 1

    def first(self, errors: int) -> int:
        """The lowest rank at which this many errors pass; n + 1 when there is none."""
        ranks = range(errors + 1, self.n + 1)
        return (
            errors
            + 1
            + bisect_left(ranks, True, key=lambda rank: self.tail(errors, rank) <= self.level)
        )

    def at_or_above(self, rank: int) -> int:
        """The lowest rung from this rank on; n + 1 past the last, which is n."""
        if rank > self.n:
            return self.n + 1
        while rank < self.n:
            errors = self.most_errors(rank)
            if errors >= 0 and self.tail(errors, rank) >= _USED * self.level:
                return rank
            rank = self.first(errors + 1)
        return self.n

    def below(self, rank: int) -> int:
        """The highest rung below this rank; 0 when there is none."""
        if rank > self.n:
            return self.n
        rank -= 1
        while rank >= 1 and (errors := self.most_errors(rank)) >= 0:
            first = self.first(errors)
            ranks = range(first, rank + 1)
            wasteful = bisect_left(
                ranks, True, key=lambda m: self.tail(errors, m) < _USED * self.level
            )
            if wasteful:
                return first + wasteful - 1
            rank = first - 1
        return 0


@dataclass(frozen=True)
class Segment:
    """The rungs of a ladder from `start` up to, not including, `stop`; `share` of delta is added
    where it begins.
    """

    ladder: Ladder
    start: int
    stop: int
    share: Fraction


#: The errors that each start of a sequence allows, and the share of delta that it brings.
Starts = tuple[tuple[int, Fraction], ...]


@lru_cache(maxsize=512)
def usual_starts(n: int, beta: float, delta: float) -> Starts:
    """From n, beta and delta alone: as near as can be to the ranks at which tests begin for delta =
    0.1.

    >>> usual_starts(300, 0.97, 0.1), usual_starts(300, 0.97, 0.001)
    (((1, Fraction(1, 1)),), ((0, Fraction(1, 1)),))
    """
    rate = 1 - bounds.to_exact_fraction(beta)
    errors = n * rate
    wanted = min(_HIGHEST, _LOWEST + _SLOPE * rate) * errors
    starts: Starts = ((max(int(wanted), int(errors >= _ONE_ERROR)), Fraction(1)),)
    if errors >= _FEW_ERRORS:
        starts = (
            (int(wanted + Fraction(1, 2)), _FIRST_SHARE),
            *((int(at * errors), share) for at, share in _FALLBACKS),
        )
    shares = accumulate(share for _, share in starts)
    return tuple(
        (_as_early(n, beta, at, float(spent), delta), own)
        for (at, own), spent in zip(starts, shares)
    )


def _as_early(n: int, beta: float, errors: int, spent: float, delta: float) -> int:
    """So many errors at a start with a part of delta = 0.1; how many with that of another, at a
    rank close by.
    """
    usual, ladder = (Ladder(n, 1.0 - beta, spent * level) for level in (_TUNED_FOR, delta))
    rank = min(n, usual.first(errors))
    fewer = max(0, ladder.most_errors(rank))
    return fewer + int(rank * rank >= ladder.first(fewer) * ladder.first(fewer + 1))


@lru_cache(maxsize=512)
def segments(n: int, beta: float, delta: float, at: Starts | None = None) -> tuple[Segment, ...]:
    """The sequence of tests for n rows: starts that rise, the usual ones or those given, each at
    all shares up to it.

    >>> [(part.start, part.stop, float(part.share)) for part in segments(1000, 0.95, 0.1)]
    [(236, 424, 0.95), (424, 807, 0.03), (807, 1001, 0.02)]
    """
    starts: list[tuple[Ladder, int, Fraction]] = []
    spent = Fraction(0)
    for errors, share in usual_starts(n, beta, delta) if at is None else at:
        spent += share
        ladder = Ladder(n, 1.0 - beta, float(spent) * delta)
        errors = min(errors, ladder.most_errors(n))
        start = ladder.first(errors) if errors >= 0 else n + 1
        if start <= n and (not starts or start > starts[-1][1]):
            starts.append((ladder, start, share))
    stops = [start for _, start, _ in starts[1:]] + [n + 1]
    return tuple(
        Segment(ladder, start, stop, share) for (ladder, start, share), stop in zip(starts, stops)
    )


def expected_passes(errors: Codes, ranks: Codes, beta: float) -> Flags:
    """Whether E + 1 <= (1 - beta)(m + 1), for E errors up to each rank m, in exact arithmetic."""
    share = 1 - bounds.to_exact_fraction(beta)
    ints: type = object if share.denominator * (int(ranks.max()) + 1) >= 2**62 else np.int64
    left: NDArray[Any] = (errors.astype(ints) + 1) * share.denominator
    return np.asarray(left <= (ranks.astype(ints) + 1) * share.numerator, dtype=bool)


def start_value(
    scouts: Float, n: int, beta: float, delta: float, starts: Starts | None = None
) -> float:
    """The value at which tests begin: the first below which the main start's share of the rows is
    expected to lie.

    >>> start_value(np.repeat([1.0, 2.0, 3.0], [1, 3, 6]), 1000, 0.95, 0.1)
    2.0
    """
    ladder = Ladder(n, 1.0 - beta, delta)
    main, _ = max(starts or usual_starts(n, beta, delta), key=lambda one: one[1])
    errors = min(main, ladder.most_errors(n))
    first = ladder.first(errors) if errors >= 0 else n
    return float(scouts[min(len(scouts), max(1, math.ceil(len(scouts) * first / max(n, 1)))) - 1])


def find_first_failure(ranking: Ranking, part: Segment, level: float) -> tuple[int, list[int]]:
    """The first rung of the segment that is known to fail at the level, its stop when none is, and
    mixed blocks before.

    In a stretch of w wrong rows, then right ones, behind m rows with e errors the p-value rises up
    to p(e + w, m + w) and falls from there on. Where that passes, all of the stretch does, in
    whatever order its first rows are: only the others are looked at closely.
    """
    begin, wrong, errors, mixed = ranking.stretches
    first = int(np.searchsorted(begin, part.start)) - 1
    last = int(np.searchsorted(begin, part.stop - 1))
    opened: list[int] = []
    close = _Closely(part, level)
    for low in range(first, last, _CHUNK):
        some = np.arange(low, min(low + _CHUNK, last))
        peaks = np.maximum(begin[some] + wrong[some], part.start)
        for i in some[~clearly_pass(errors[some], peaks, part.ladder.rate, level)].tolist():
            end = int(begin[i + 1]) if i + 1 < len(begin) else ranking.n
            if mixed is not None and (block := int(mixed[i])) >= 0:
                opened.append(block)
                failed = close.falling(int(ranking.ranks[block]), end, int(errors[i]))
            else:
                failed = close.failing(int(begin[i]), int(wrong[i]), end, int(errors[i]))
            if failed < part.stop or len(opened) >= ASKED:
                return failed, opened
    return part.stop, opened


@dataclass
class _Closely:
    """Tests of single rungs of a segment, at ranks that rise; `above` is the lowest rung from the
    last of them on.
    """

    part: Segment
    level: float
    above: int = 0

    def rung(self, rank: int) -> int:
        # Far away where nearly every row is wrong, and then not looked for again.
        self.above = self.above if self.above >= rank else self.part.ladder.at_or_above(rank)
        return self.above

    def failing(self, begin: int, wrong: int, end: int, errors: int) -> int:
        """The first rung that fails in a stretch; the segment's stop when none does."""
        part, before = self.part, errors - wrong
        # Up to the last wrong row p rises from rank to rank: the first that fails, then the first
        # rung from there on.
        rising = range(max(begin + 1, part.start), min(begin + wrong + 1, part.stop))
        first = bisect_right(
            rising, self.level, key=lambda rank: part.ladder.tail(before + rank - begin, rank)
        )
        if first < len(rising) and (rung := self.rung(rising[first])) < rising.stop:
            return rung
        return self.falling(max(begin + wrong, begin + 1), end, errors)

    def falling(self, rank: int, end: int, errors: int) -> int:
        """The same from a rank on, with right rows alone behind it: only the first rung can
        fail.
        """
        rung, part = self.rung(max(rank, self.part.start)), self.part
        return (
            rung
            if rung < min(end + 1, part.stop) and part.ladder.tail(errors, rung) > self.level
            else part.stop
        )


def fallback(
    walks: Iterable[tuple[Any, Iterable[T]]], passes: Callable[[T, Any], bool]
) -> T | None:
    """The last candidate that passed, by any test: walks of a share of delta and the candidates on
    its way.

    A walk has its own share and those of the walks before it that passed to their end; one that
    fails stops there, and its shares are lost (Wiens 2003).

    >>> fallback([(0.9, [1, 2, 3]), (0.1, [4, 5])], lambda candidate, share: candidate < 5 and share > 0.5)
    4
    """
    best, level = None, 0
    for share, candidates in walks:
        level += share
        for candidate in candidates:
            if not passes(candidate, level):
                level = 0
                break
            best = candidate
    return best


def clearly_pass(errors: Codes, ranks: Codes, rate: float, level: float) -> Flags:
    """Whether P(Bin(rank, rate) <= errors) is below the level by more than it may be off as
    computed.

    Most tests are settled by Chernoff's bound on the lower tail, P(Bin <= μ - t) <= exp(-t² / 2μ)
    with μ = rank·rate, which takes no special function.

    >>> clearly_pass(np.array([0, 1, 30]), np.array([100, 100, 1000]), 0.05, 0.1)
    array([ True,  True,  True])
    """
    mean = ranks * rate
    room = mean - errors
    clear = (room > 0.0) & (room * room * _CLEARLY >= -2.0 * math.log(level * _CLEARLY) * mean)
    close = np.flatnonzero(~clear & (room > 0.0))
    clear[close] = bounds.binomial_p_value(errors[close], ranks[close], rate) <= level * _CLEARLY
    return clear
