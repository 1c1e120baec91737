"""MaxMiscoverage: at most alpha of the correct predictions are rejected."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from metacal.errors import warn_caller
from metacal.kernels.grid import RELATIVE
from metacal.promises.certificate import Certificate
from metacal.promises.contradiction import too_few_right_kept
from metacal.promises.notes import Note, too_few_right
from metacal.promises.parts.part import Part
from metacal.promises.parts.per import Settled
from metacal.promises.promise import Flags, Promise, Scores, check_shares, columns, promised
from metacal.promises.quantity import Limits
from metacal.promises.rules import bounds
from metacal.promises.sample import Ranking
from metacal.promises.words import SAME_SOURCE, register_rule

if TYPE_CHECKING:
    from metacal.promises.rules.tally import Tally

#: Certified, and in expectation.
UMBRELLA = register_rule(
    "umbrella", "umbrella order statistic of the correct scores (Tong, Feng & Li 2018)", SAME_SOURCE
)
EXPECTED_RANK = register_rule(
    "expected-rank",
    "rank of the correct scores, in expectation (Ma & Blaschko 2021, exact arithmetic)",
    SAME_SOURCE,
)


@dataclass
class MaxMiscoverage(Promise):
    """At most `alpha` of the correct predictions are rejected.

    With probability 1 - `delta` over the calibration rows (the umbrella algorithm of Tong, Feng & Li 2018), or in
    expectation when `delta` is None (the paper's rank, on all correct rows). The threshold is just above the k-th
    smallest score of the correct rows; with too few rows to reject any, everything is accepted, and the certificate
    says so.

    Examples
    --------
    >>> scores, correct = np.arange(200.0), np.ones(200, dtype=bool)
    >>> MaxMiscoverage(0.05).certify(scores, correct).highest_accepted
    194.0
    >>> MaxMiscoverage(0.05, delta=None).certify(scores, correct).highest_accepted
    190.0
    """

    alpha: float
    delta: float | None = 0.1

    def __post_init__(self) -> None:
        check_shares(self, "alpha", "delta")

    @property
    def limits(self) -> Limits:
        """What is promised, as a certificate lists it."""
        return promised(alpha=self.alpha)

    def certify(self, scores: Scores, correct: Flags) -> Certificate:
        """Choose the threshold on the scores of the correct rows."""
        return self.certify_ranking(Ranking.of(*columns(scores, correct)))

    def certify_ranking(self, ranking: Ranking) -> Certificate:
        """The same where the rows have been ranked."""
        right = ranking.ranks - ranking.errors
        block = int(np.searchsorted(right, self._rank(int(right[-1]))))
        if block < len(right):
            threshold = RELATIVE.settled(float(ranking.scores[block]))
            return self._certified(threshold, ranking.outcome(threshold))
        note = self._too_few(int(right[-1]))
        warn_caller(str(note))
        return self._certified(math.inf, ranking.outcome(math.inf), (note,))

    def certify_tally(self, tally: Tally) -> Certificate:
        """The same from counts: the rank is in the first cell up to whose end there are as many right rows."""
        right = np.cumsum(tally.right)
        cell = int(np.searchsorted(right, self._rank(int(right[-1]))))
        tally.settle(cell - 1 if cell == len(right) else cell, cell + 1)
        return self.certify_ranking(tally.blocks)

    def _rank(self, n: int) -> int:
        """The rank among so many right scores; n + 1 where none will do."""
        if self.delta is None:
            return bounds.expected_miscoverage_rank(n, self.alpha)
        return bounds.certified_miscoverage_rank(n, self.alpha, self.delta)

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules that its certificates may have, the usual one first."""
        return (EXPECTED_RANK,) if self.delta is None else (UMBRELLA,)

    def impossible(self, certificate: Certificate) -> str | None:
        """What in the counts cannot be; None when all agrees."""
        return too_few_right_kept(certificate, self.alpha, self.delta)

    #: A part with too few right rows to reject any accepts everything, which keeps the promise.
    unproven: ClassVar[float] = math.inf

    def fewest(self, level: float) -> int:
        """How many right rows it takes before any row can be rejected."""
        return bounds.correct_rows_needed(self.alpha, level)

    def counted(self, correct: Flags) -> int:
        """The right rows."""
        return int(correct.sum())

    def settle(self, scores: Scores, correct: Flags, level: float, planned: float) -> Settled:
        """The order statistic at a level; nothing of it is left over for other parts."""
        right = scores[correct]
        rank = bounds.certified_miscoverage_rank(len(right), self.alpha, level)
        return Settled(_smallest(right, rank) if rank <= len(right) else None, False)

    def lacking(self, scores: Scores, correct: Flags, level: float) -> tuple[float | None, int | None]:
        """The smallest limit at which any row can be rejected, and how many right rows would do."""
        right = int(correct.sum())
        best = bounds.smallest_certifiable_miscoverage(right, level) if right else None
        return best, self.fewest(level)

    def part_impossible(self, part: Part) -> str | None:
        """What in the counts of a part cannot be; None when all agrees."""
        return too_few_right_kept(part, self.alpha, self.delta if part.delta is None else part.delta)

    def _too_few(self, n_correct: int) -> Note:
        best = bounds.smallest_certifiable_miscoverage(n_correct, self.delta)
        needed = bounds.correct_rows_needed(self.alpha, self.delta)
        return too_few_right(right=n_correct, alpha=float(self.alpha), best=best, needed=needed)


def _smallest(scores: Scores, rank: int) -> float:
    """The score of this rank, counted from 1; the others need no order."""
    return float(np.partition(scores, rank - 1)[rank - 1])
