"""Ranking: calibration rows in increasing order of score, and what it is built from."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from metacal.errors import InputError
from metacal.formulas import Codes, Flags, Float
from metacal.kernels.keys import rank_scores

if TYPE_CHECKING:
    from metacal.certificates.certificate import Certificate


#: Standard deviation of slope and intercept, in units in which the scores have one of 1.
_RIDGE = 3.0
_STEPS = 50


class Evidence(ABC):
    """Evidence other than rows: counts of rows, labels that arrive, the answers of two models."""

    @abstractmethod
    def certify(self, promise: Any) -> Certificate:
        """Certify a promise."""


def even_odds(s: Float, positive: Flags) -> float:
    """The score at which the odds are even, by logistic regression with a ridge; within the scores,
    or just beyond.

    >>> rng = np.random.default_rng(0)
    >>> s = rng.normal(size=5000)
    >>> round(even_odds(s, rng.random(5000) < 1 / (1 + np.exp(1 - 2 * s))), 1)
    0.5
    """
    if not len(s):
        return 0.0
    low, high = float(s[np.isfinite(s)].min(initial=0.0)), float(s[np.isfinite(s)].max(initial=0.0))
    finite = np.clip(s, low - 1.0, high + 1.0)
    centre, scale = float(finite.mean()), float(finite.std()) or 1.0
    design = np.column_stack([np.ones(len(s)), (finite - centre) / scale])
    theta = np.array([0.0, 1.0])
    for _ in range(_STEPS):
        p = 1.0 / (1.0 + np.exp(-np.clip(design @ theta, -30.0, 30.0)))
        gradient = design.T @ (p - positive) + theta / _RIDGE**2
        hessian = (design * (p * (1.0 - p))[:, None]).T @ design + np.eye(2) / _RIDGE**2
        step = np.linalg.solve(hessian, gradient)
        theta = theta - step / max(1.0, float(np.abs(step).max()))
    slope = max(float(theta[1]), 1e-6)
    return float(np.clip(centre - scale * theta[0] / slope, low - 1.0, high + 1.0))


def require_some_correct(correct: Flags | Codes, n_rows: int | None = None) -> None:
    """Raise when the classifier got every calibration row wrong, of these or, where they are
    counts, of so many.
    """
    if not correct.any():
        n_rows = len(correct) if n_rows is None else n_rows
        raise InputError(
            f"no calibration row is classified correctly (n_samples={n_rows}): nothing can be"
            " promised. Check that the labels and the columns use the same class order."
        )


class Outcome(NamedTuple):
    """What calibration rows look like under a threshold, as a certificate has it."""

    n_rows: int
    n_correct: int
    n_accepted: int
    n_correct_accepted: int
    highest_accepted: float | None
    lowest_rejected: float | None


class Stretches(NamedTuple):
    """Rows in order, cut where wrong ones begin: some wrong rows, then right ones up to the next
    cut.

    `begin` rows lie before each, `wrong` ones come first in it, `errors` there are then in all. The
    first stretch has no wrong row. Of counted rows, `mixed` is the block that a stretch begins with
    where its order is open, else -1.
    """

    begin: Codes
    wrong: Codes
    errors: Codes
    mixed: Codes | None = None


@dataclass(frozen=True)
class Ranking:
    """The calibration rows by rising score, at the ranks that end a block of equal scores.

    `ranks[i]` rows have a score of at most `scores[i]`, with `errors[i]` wrong ones among them.
    Where rows are only counted (`metacal.certification.passes`), `mixed` says which blocks hold
    several scores, in an order that nobody knows.
    """

    ranks: Codes
    errors: Codes
    scores: Float
    mixed: Flags | None = None

    @classmethod
    def of(cls, scores: Float, correct: Flags) -> Ranking:
        """Sort, and keep the ends of the tie blocks."""
        ordered, ranks, errors, wrong = rank_scores(scores, correct)
        ranking = cls(ranks, errors, ordered)
        single = np.ones(len(wrong), dtype=np.intp)
        # Known already, that is how they were sorted: each wrong row, and the right ones behind it.
        columns = (wrong - 1, single, np.arange(1, len(wrong) + 1))
        ranking.__dict__["stretches"] = Stretches(*(np.append(0, column) for column in columns))
        return ranking

    @property
    def n(self) -> int:
        """All rows."""
        return int(self.ranks[-1]) if len(self.ranks) else 0

    @cached_property
    def stretches(self) -> Stretches:
        """Of counted rows: from each block with wrong ones up to the next such block, and those
        before the first.
        """
        wrong = np.diff(self.errors, prepend=0)
        at = np.flatnonzero(wrong)
        mixed = np.zeros(len(wrong), dtype=bool) if self.mixed is None else self.mixed
        alone = wrong == np.diff(self.ranks, prepend=0)  # of wrong rows alone the order is known
        columns = (np.append(0, self.ranks)[at], wrong[at], self.errors[at])
        mixed_at = np.where((mixed & ~alone)[at], at, -1)
        begin, wrong, errors = (np.append(0, column) for column in columns)
        return Stretches(begin, wrong, errors, np.append(-1, mixed_at))

    def settle(self, *blocks: int) -> None:
        """Raise `Undecided` where one of these blocks, if it is there, is mixed."""
        if self.mixed is not None and any(
            self.mixed[block] for block in blocks if 0 <= block < len(self.ranks)
        ):
            raise self.undecided(blocks)

    def undecided(self, blocks: Iterable[int]) -> Undecided:
        """The mixed ones of these blocks and those beside them: a threshold in one has a neighbour
        in the next.
        """
        assert self.mixed is not None
        around = {
            near
            for block in blocks
            for near in (block - 1, block, block + 1)
            if 0 <= near < len(self.ranks)
        }
        return Undecided(near for near in around if self.mixed[near])

    def just_below_next(self, accepted: int) -> float:
        """The largest threshold that accepts the first `accepted` rows and no more: +inf for all of
        them.
        """
        if accepted == self.n:
            return math.inf
        following = self.scores[np.searchsorted(self.ranks, accepted, side="right")]
        return float(np.nextafter(following, -np.inf))

    def strictly_before(self, accepted: int) -> float:
        """The threshold before the next row, where so many are accepted; rows that tie with that
        one are not.
        """
        block = int(np.searchsorted(self.ranks, min(accepted, self.n), side="right"))
        return self.just_below_next(int(self.ranks[block - 1])) if block else -math.inf

    def below(self, score: float) -> int:
        """How many rows have a score below this one: the end of a block of ties."""
        before = int(np.searchsorted(self.scores, score))
        return int(self.ranks[before - 1]) if before else 0

    def outcome(self, threshold: float) -> Outcome:
        """What the rows look like under a threshold."""
        above = int(np.searchsorted(self.scores, threshold, side="right"))
        accepted, wrong = (
            (int(self.ranks[above - 1]), int(self.errors[above - 1])) if above else (0, 0)
        )
        return Outcome(
            n_rows=self.n,
            n_correct=self.n - int(self.errors[-1:].sum()),
            n_accepted=accepted,
            n_correct_accepted=accepted - wrong,
            highest_accepted=float(self.scores[above - 1]) if above else None,
            lowest_rejected=float(self.scores[above]) if above < len(self.scores) else None,
        )

    def accepted_at(self, rank: int) -> int:
        """How many rows a rank that passed lets accept: the rank, or where its block of ties begins
        or ends.

        Equal scores are ordered wrong rows first. With all wrong rows of the block among the first
        `rank`, the whole block is accepted, else none of it: see
        `metacal.certification.rules.fixed_sequence`.

        >>> ranking = Ranking.of(np.array([0.0, 1.0, 1.0, 1.0]), np.array([True, False, True, True]))
        >>> [ranking.accepted_at(rank) for rank in (1, 2, 3, 4)]
        [1, 4, 4, 4]
        """
        block = self.at_least(rank)
        end = int(self.ranks[block])
        begin, wrong = (
            (int(self.ranks[block - 1]), int(self.errors[block - 1])) if block else (0, 0)
        )
        return end if rank == end or rank - begin >= int(self.errors[block]) - wrong else begin

    def threshold_at(self, rank: int) -> float:
        """The threshold of a rank that passed: just below the next score; of a block that ends
        behind it, its score.
        """
        accepted = self.accepted_at(rank)
        if accepted <= rank or accepted == self.n:
            return self.just_below_next(accepted)
        return float(self.scores[self.at_least(rank)])

    def at_least(self, rank: int) -> int:
        """Index of the first tie-block end at or above `rank`; len(ranks) if there is none."""
        return int(np.searchsorted(self.ranks, rank))


class Undecided(Exception):
    """Where rows are only counted (`certification.passes`): these cells must be known more
    finely.
    """

    def __init__(self, cells: Iterable[int]) -> None:
        super().__init__()
        self.cells = sorted(set(cells))
