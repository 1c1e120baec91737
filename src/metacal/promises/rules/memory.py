r"""Memory: where older rows say that the tests of an accuracy begin.

**Why it holds, whatever the older rows were.** The proof of `accuracy.certified_prefix` takes ranks, order and shares
that do not depend on the rows that are tested. Given older rows, the start that they choose is fixed: with them
independent of the new ones, from whatever source, or made up, the promise holds at delta given any of them, and so on
average. A bad choice costs coverage, never validity. (The values of a given score: `promises.scouts`, likewise.)

**How it is chosen.** From the older rows' errors along their ranking a profile is fitted as in `rows_needed`, profiles
are drawn around it with its standard errors, and n new rows from each. The candidate start that carries furthest on
average is taken if it beats the usual ones by a standard error. It then has 9/10 of delta, and the usual ones the
rest: on rows of another source something is left. Where the same source is declared it has all of delta.

`python -m benchmarks memory` measures what is gained, and what is lost with another source.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from metacal.formulas import Codes, Float
from metacal.promises.rules.rows_needed import fitted_profiles, rates
from metacal.promises.rules.sequence import Ladder, Starts, rungs, usual_starts
from metacal.promises.sample import Ranking
from metacal.rows.draws import generator

if TYPE_CHECKING:
    from metacal.promises.certificate import Certificate
    from metacal.promises.sequential.profile import Profile

#: The remembered start's share of delta, where nobody declared the same source.
_SHARE = Fraction("0.9")
#: Groups of older rows, candidates for a start, drawn samples at most, and their rows in all.
_GROUPS, _CANDIDATES, _DRAWS, _DRAWN = 100, 20, 160, 400_000
#: With more rows than this a start matters no more.
_MOST_ROWS = 10_000
#: What a start must gain to be taken: in standard errors, and as a share of the rows.
_STANDARD_ERRORS, _LEAST = 1.0, 0.005


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
        ends = np.unique(np.searchsorted(ranking.ranks, np.linspace(1, ranking.n, min(_GROUPS, ranking.n)).astype(int)))
        rows, wrong = (np.diff(column[ends], prepend=0).tolist() for column in (ranking.ranks, ranking.errors))
        return cls(tuple(rows), tuple(wrong), declared)

    @classmethod
    def of_gate(cls, certificate: Certificate, profile: Profile | None, *, declared: bool = False) -> Memory:
        """That of a gate: its accepted rows, by their confidence where that is known, and as many of the rejected."""
        accepted, right = certificate.n_accepted, certificate.n_correct_accepted
        bins = () if profile is None else profile.by_confidence[::-1]
        groups = [(rows, rows - good) for rows, good, _ in bins] or [(accepted, accepted - right)]
        rejected = certificate.n_rows - accepted, certificate.n_rows - certificate.n_correct - (accepted - right)
        looked_at = sum(rows for rows, _ in groups) / max(1, accepted)
        groups = [*groups, (round(looked_at * rejected[0]), round(looked_at * rejected[1]))]
        rows, wrong = zip(*((rows, wrong) for rows, wrong in groups if rows))
        return cls(rows, wrong, declared)

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
        return _starts(self, n, beta, delta) if self.n and 0 < n <= _MOST_ROWS else None


@lru_cache(maxsize=64)
def _starts(memory: Memory, n: int, beta: float, delta: float) -> Starts | None:
    usual = usual_starts(n, beta, delta)
    ladder, own = (Ladder(n, 1.0 - beta, float(share) * delta) for share in (memory.share, usual[0][1]))
    most = ladder.most_errors(n)
    if most < 0:
        return None
    errors = _new_rows(memory, n)
    candidates = np.unique(np.geomspace(1, most + 1, _CANDIDATES).astype(int) - 1)
    before = _reached(errors, own, np.array([min(usual[0][0], own.most_errors(n))]))
    gained = _reached(errors, ladder, candidates) - before
    gain, noise = gained.mean(axis=0), gained.std(axis=0) / len(gained) ** 0.5
    best = int(gain.argmax())
    if gain[best] <= max(_LEAST, _STANDARD_ERRORS * float(noise[best])):
        return None
    shares = {int(candidates[best]): memory.share}
    for at, share in usual:
        shares[at] = shares.get(at, Fraction(0)) + share * (1 - memory.share)
    return tuple((at, share) for at, share in sorted(shares.items()) if share)


def _new_rows(memory: Memory, n: int) -> Codes:
    """Of samples of n rows like the older ones: the errors up to each rank."""
    middle = (np.cumsum(memory.rows) - np.array(memory.rows) / 2.0) / memory.n
    draws = max(_DRAWS // 4, min(_DRAWS, _DRAWN // n))
    # The share at rank m of n is about m/n: its noise adds nothing to where a start is best.
    chance = rates(fitted_profiles(middle, memory.wrong, memory.rows, draws, 1.0), (np.arange(n) + 0.5) / n)
    return np.cumsum(generator(n).random((draws, n)) < chance, axis=1, dtype=np.intp)


def _reached(errors: Codes, ladder: Ladder, starts: Codes) -> Float:
    """The share of the rows that walks at this level alone certify: each sample's, from each start."""
    tested, most = rungs(ladder)
    failed = np.where(errors[:, tested - 1] > most, np.arange(len(tested)), len(tested))
    first = np.searchsorted(tested, [ladder.first(at) for at in starts.tolist()])
    until = np.minimum.accumulate(failed[:, ::-1], axis=1)[:, ::-1][:, first]
    return np.where(until > first, tested[np.maximum(until, 1) - 1], 0) / ladder.n
