r"""Memory: where older rows say that the tests of an accuracy begin.

**Why it holds, whatever the older rows were.** The proof of `accuracy.certified_prefix` takes ranks, order and shares
that do not depend on the rows that are tested. Given older rows, the start that they choose is fixed: with them
independent of the new ones, from whatever source, or made up, the promise holds at delta given any of them, and so on
average. A bad choice costs coverage, never validity. (The values of a given score: `promises.scouts`, likewise.)

**How it is chosen.** From the older rows' errors along their ranking a profile is fitted as in `rows_needed`, profiles
are drawn around it with its standard errors, and n new rows from each. The candidate start that carries furthest on
average is taken if it beats the usual ones by two standard errors. It then has 9/10 of delta, and the usual ones the
rest: on rows of another source something is left. Where the same source is declared it has all of delta.

`python -m benchmarks memory` measures what is gained, and what is lost with another source.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metacal.promises.rules.rows_needed import fitted_profiles, rates
from metacal.promises.rules.sequence import Ladder, Segment, Starts, allowed, rungs, segments, usual_starts
from metacal.promises.sample import Ranking
from metacal.rows.draws import generator

if TYPE_CHECKING:
    from metacal.promises.certificate import Certificate
    from metacal.promises.sequential.profile import Profile

#: The remembered start's share of delta, where nobody declared the same source.
_SHARE = Fraction("0.9")
#: Groups of older rows, candidates for a start, drawn samples at most, and their rows in all.
_GROUPS, _CANDIDATES, _DRAWS, _DRAWN = 100, 10, 160, 400_000
#: With more rows than this a start matters no more.
_MOST_ROWS = 10_000
#: What a start must gain to be taken: in standard errors, and as a share of the rows.
_STANDARD_ERRORS, _LEAST = 2.0, 0.01


@dataclass(frozen=True)
class SameSource:
    """Declares that older rows, or those of an older gate, come from the source of the new ones.

    The start that they choose has all of delta then. Where that is wrong less is accepted; the promise holds anyway.
    """

    prior: Any


@dataclass(frozen=True)
class Memory:
    """Of older rows, from the surest on, in groups: how many there were, and how many of them were wrong.

    >>> older = Memory((200, 300, 500, 1000), (1, 11, 38, 240))
    >>> older.starts(300, 0.97, 0.1), older.starts(100_000, 0.97, 0.1)
    (((0, Fraction(9, 10)), (1, Fraction(1, 10))), None)
    """

    rows: tuple[int, ...]
    wrong: tuple[int, ...]
    declared: bool = False

    @classmethod
    def of(cls, ranking: Ranking, *, declared: bool = False) -> Memory:
        """That of rows, ranked."""
        ends = np.linspace(1, ranking.n, min(_GROUPS, ranking.n)).astype(int)
        blocks = np.unique(np.searchsorted(ranking.ranks, ends))
        return cls._up_to(ranking.ranks[blocks], ranking.errors[blocks], declared=declared)

    @classmethod
    def of_gate(cls, certificate: Certificate, profile: Profile | None, *, declared: bool = False) -> Memory:
        """That of a gate: its accepted rows by their confidence, and the rejected ones."""
        accepted, right = certificate.n_accepted, certificate.n_correct_accepted
        bins = () if profile is None else profile.by_confidence[::-1]
        looked_at = max(1, sum(rows for rows, _, _ in bins))
        rows = accepted * np.cumsum([count for count, _, _ in bins], dtype=np.float64) / looked_at
        wrong = accepted * np.cumsum([count - good for count, good, _ in bins], dtype=np.float64) / looked_at
        inside = wrong <= accepted - right
        ranks = np.concatenate([rows[inside][:-1], [accepted, certificate.n_rows]])
        errors = np.concatenate([wrong[inside][:-1], [accepted - right, certificate.n_rows - certificate.n_correct]])
        return cls._up_to(np.round(ranks).astype(int), np.round(errors).astype(int), declared=declared)

    @classmethod
    def _up_to(cls, ranks: NDArray[np.intp], errors: NDArray[np.intp], *, declared: bool) -> Memory:
        rows, wrong = (np.diff(column, prepend=0) for column in (ranks, errors))
        return cls(tuple(rows[rows > 0].tolist()), tuple(wrong[rows > 0].tolist()), declared)

    @property
    def n(self) -> int:
        """All of the older rows."""
        return sum(self.rows)

    @property
    def share(self) -> Fraction:
        """The share of delta that their start may have."""
        return Fraction(1) if self.declared else _SHARE

    def starts(self, n: int, beta: float, delta: float) -> Starts | None:
        """Where tests of n new rows begin; None: where they do anyway."""
        return _starts(self, n, beta, delta) if self.n and n <= _MOST_ROWS else None


@lru_cache(maxsize=64)
def _starts(memory: Memory, n: int, beta: float, delta: float) -> Starts | None:
    most = Ladder(n, 1.0 - beta, delta).most_errors(n)
    if most < 0:
        return None
    errors = _new_rows(memory, n)
    usual = _reached(errors, segments(n, beta, delta), delta)
    found: list[tuple[float, Starts]] = []
    for errors_there in np.unique(np.geomspace(1, most + 1, _CANDIDATES).astype(int) - 1).tolist():
        starts = _with(errors_there, memory.share, usual_starts(n, beta))
        gained = _reached(errors, segments(n, beta, delta, starts), delta) - usual
        least = max(_LEAST, _STANDARD_ERRORS * float(gained.std()) / len(gained) ** 0.5)
        if (gain := float(gained.mean())) > least:
            found.append((gain, starts))
    return max(found, key=lambda one: one[0])[1] if found else None


def _with(start: int, share: Fraction, usual: Starts) -> Starts:
    """A start that allows so many errors, with a share of delta, and the usual ones with the rest."""
    shares = {start: share}
    for errors, own in usual:
        shares[errors] = shares.get(errors, Fraction(0)) + own * (1 - share)
    return tuple((errors, share) for errors, share in sorted(shares.items()) if share)


def _new_rows(memory: Memory, n: int) -> NDArray[np.intp]:
    """Of samples of n rows like the older ones: the errors up to each rank."""
    ends = np.cumsum(memory.rows)
    middle = (ends - np.array(memory.rows) / 2.0) / memory.n
    draws = max(_DRAWS // 4, min(_DRAWS, _DRAWN // n))
    profiles = fitted_profiles(middle, memory.wrong, memory.rows, draws, 1.0)
    # The share at rank m of n is about m/n: its noise adds nothing to where a start is best.
    chance = rates(profiles, (np.arange(n) + 0.5) / n)
    return np.cumsum(generator(n).random((draws, n)) < chance, axis=1, dtype=np.intp)


def _reached(errors: NDArray[np.intp], plan: tuple[Segment, ...], delta: float) -> NDArray[np.float64]:
    """The share of the rows that each sample's walk certifies: `sequence.walk`, of many samples at once."""
    n = errors.shape[1]
    best, since = np.zeros(len(errors), dtype=np.intp), np.zeros(len(errors), dtype=np.intp)
    for j, part in enumerate(plan):
        tested = rungs(part.ladder)
        tested = tested[(tested >= part.start) & (tested < part.stop)]
        for first in np.unique(since).tolist():
            own = np.flatnonzero(since == first)
            level = float(sum((one.share for one in plan[first : j + 1]), Fraction(0))) * delta
            most = allowed(Ladder(n, part.ladder.rate, level))[tested - 1]
            failed = errors[own][:, tested - 1] > most
            passed = np.where(failed.any(axis=1), failed.argmax(axis=1), len(tested))
            best[own] = np.where(passed > 0, tested[np.maximum(passed, 1) - 1], best[own])
            since[own] = np.where(passed < len(tested), j + 1, first)
    return best / n
