"""The calibration rows by rising score."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from metacal.kernels.keys import ranked
from metacal.promises.promise import Flags, Outcome, Scores


@dataclass(frozen=True)
class Ranking:
    """The calibration rows by rising score, at the ranks that end a block of equal scores.

    `ranks[i]` rows have a score of at most `scores[i]`, with `errors[i]` wrong ones among them.
    """

    ranks: NDArray[np.intp]
    errors: NDArray[np.intp]
    scores: Scores

    @classmethod
    def of(cls, scores: Scores, correct: Flags) -> Ranking:
        """Sort, and keep the ends of the tie blocks."""
        ordered, ranks, errors, wrong_first = ranked(scores, correct)
        found = cls(ranks, errors, ordered)
        found.__dict__["wrong_first"] = wrong_first  # known already: that is how they were sorted
        return found

    @property
    def n(self) -> int:
        """All rows."""
        return int(self.ranks[-1])

    @cached_property
    def wrong_first(self) -> NDArray[np.intp]:
        """The rank of each wrong row, where equal scores are ordered wrong rows first."""
        wrong = np.diff(self.errors, prepend=0)
        begin = np.append(0, self.ranks[:-1]) - np.append(0, self.errors[:-1])
        return np.repeat(begin, wrong) + np.arange(1, int(self.errors[-1]) + 1)

    def just_below_next(self, accepted: int) -> float:
        """The largest threshold that accepts the first `accepted` rows and no more: +inf for all of them."""
        if accepted == self.n:
            return math.inf
        following = self.scores[np.searchsorted(self.ranks, accepted, side="right")]
        return float(np.nextafter(following, -np.inf))

    def outcome(self, threshold: float) -> Outcome:
        """What the rows look like under a threshold.

        Examples
        --------
        >>> Ranking.of(np.array([0.0, 1.0, 1.0]), np.array([True, False, True])).outcome(0.5)
        Outcome(n_rows=3, n_correct=2, n_accepted=1, n_correct_accepted=1, highest_accepted=0.0, lowest_rejected=1.0)
        """
        above = int(np.searchsorted(self.scores, threshold, side="right"))
        accepted, wrong = (int(self.ranks[above - 1]), int(self.errors[above - 1])) if above else (0, 0)
        return Outcome(
            n_rows=self.n,
            n_correct=self.n - int(self.errors[-1]),
            n_accepted=accepted,
            n_correct_accepted=accepted - wrong,
            highest_accepted=float(self.scores[above - 1]) if above else None,
            lowest_rejected=float(self.scores[above]) if above < len(self.scores) else None,
        )

    def accepted_at(self, rank: int) -> int:
        """How many rows a rank that passed lets accept: the rank, or where its block of ties begins or ends.

        Equal scores are ordered wrong rows first. With all wrong rows of the block among the first `rank`, the whole
        block is accepted, else none of it: see `metacal.promises.rules.accuracy.certified_prefix`.

        Examples
        --------
        >>> ranking = Ranking.of(np.array([0.0, 1.0, 1.0, 1.0]), np.array([True, False, True, True]))
        >>> [ranking.accepted_at(rank) for rank in (1, 2, 3, 4)]
        [1, 4, 4, 4]
        """
        block = self.at_least(rank)
        end = int(self.ranks[block])
        begin, wrong = (int(self.ranks[block - 1]), int(self.errors[block - 1])) if block else (0, 0)
        return end if rank == end or rank - begin >= int(self.errors[block]) - wrong else begin

    def threshold_at(self, rank: int) -> float:
        """The threshold of a rank that passed: just below the next score; of a block that ends behind it, its score."""
        accepted = self.accepted_at(rank)
        if accepted <= rank or accepted == self.n:
            return self.just_below_next(accepted)
        return float(self.scores[self.at_least(rank)])

    def at_least(self, rank: int) -> int:
        """Index of the first tie-block end at or above `rank`; len(ranks) if there is none."""
        return int(np.searchsorted(self.ranks, rank))


class Undecided(Exception):
    """Where rows are only counted (`metacal.promises.rules.tally`): these cells must be known more finely."""

    def __init__(self, cells: Iterable[int]) -> None:
        super().__init__()
        self.cells = sorted(set(cells))
