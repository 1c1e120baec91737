r"""Labelling: which rows of a pool to ask about next, and what the answers certify so far.

The pool is a sample of unlabelled rows from the source that new rows will come from; what is promised is about that
source, not about the pool. Its rows are put into random order once. The first part of them is set aside: thresholds
and cells are quantiles of *their* scores, so that the rest, which comes by one after the other, is independent of them.
A row that comes by is asked about with the probability of its cell (`luck < probability`, both written down); asked
about or not, it moves the evidence (`metacal.promises.evidence` has the proof).

Rows come in rounds: within one, probabilities, guesses and stakes stay as they are; they are chosen anew, from all
answers before, when the next begins. Answers count in the order in which rows were asked about, up to the first one
that is missing: nobody can bias the evidence by answering the easy rows first.

Where no goal is given, the first round is even over the whole pool, plans the goal, and proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.promises.accuracy import MinCoverageAccuracy
from metacal.promises.asking import ErrorRates, Outlook, best_design, comfortable, even_rows, stakes_for
from metacal.promises.cells import Cells
from metacal.promises.evidence import Chain, Evidence
from metacal.promises.miscoverage import MaxMiscoverage
from metacal.promises.promise import Promise
from metacal.promises.wagers import RIGHT, UNASKED, WRONG, Design, Float, Payoff, Wagers

Index = NDArray[np.intp]

#: What is thought of error rates beforehand: for an accuracy they rise from 0 so that the goal keeps half of its
#: limit, with the weight of so many errors allowed; else to this rate, with the weight of so many rows.
_LIMITS_WORTH, _PLANNING_WORTH, _GUESSED_ERRORS, _GUESS_ROWS = 1.0, 0.3, 0.2, 20.0
#: Rows set aside for thresholds: this share of the pool, at most so many.
_SET_ASIDE, _MOST_ASIDE = 0.2, 5000
#: The share of delta that the goal starts with, and those of two easier starts, as shares of the way to the goal.
_STARTS = ((1.0, 0.9), (0.75, 0.07), (0.5, 0.03))
#: How far another machine's rounding may carry a probability or a stake: bisection stops at some 1e-6 of a stake.
_ROUNDING = 1e-5
#: Sets these random numbers apart from all others that a seed gives.
_OUR_OWN = 0x6D657461
#: The fewest rows that a pool has: below, there is nothing to choose from.
FEWEST = 50


@dataclass(eq=False)
class Round:
    """Rows `begin` … `end` of those that come by, and how they are dealt with.

    `target` is the threshold that the design is for; `asked` are the places of the rows that are asked about; `proves`
    is False where the round only plans.
    """

    begin: int
    end: int
    target: int
    design: Design
    stakes: Float
    asked: Index
    proves: bool


@dataclass(eq=False)
class Labelling:
    """A pool that is being labelled: `Certifier` is its public face.

    Parameters
    ----------
    constraint : MinCoverageAccuracy or MaxMiscoverage
        With a `delta`.
    doubts : array
        The ranking score of each row of the pool, higher = less sure, on the grid.
    goal : float or None
        The share of the rows that shall be accepted; None: planned from the first round.
    batch, pilot : int
        Labels in a round, and in the first one where it plans.
    seed : int
        Of the order in which rows come by, and of who is asked about.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> doubts = rng.random(20_000)
    >>> wrong = rng.random(20_000) < 0.2 * doubts**3
    >>> labelling = Labelling(MinCoverageAccuracy(0.97), doubts, goal=0.6)
    >>> while not labelling.finished:
    ...     rows = labelling.propose()
    ...     labelling.answer(rows, ~wrong[rows])
    >>> labelling.labels, float(np.mean(doubts <= labelling.threshold).round(2))
    (400, 0.6)
    """

    constraint: Promise
    doubts: Float
    goal: float | None = None
    batch: int = 50
    pilot: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        self._check()
        n = len(self.doubts)
        # A seed's bits are the same in every NumPy; what is made of them may not be. Ours are our own: a pool that was
        # drawn with the same seed must not come in the order of its scores.
        bits = np.random.PCG64(np.random.SeedSequence([self.seed, _OUR_OWN]))
        order = np.argsort(bits.random_raw(n), kind="stable")
        aside = min(int(n * _SET_ASIDE), _MOST_ASIDE)
        self.cells = Cells.of(self.doubts[order[:aside]], self.goal)
        #: The rows that come by, the cell of each, and the number that decides whether it is asked about.
        self.rows = order[aside:]
        self.cell = self.cells.numbers(self.doubts[self.rows])
        self.luck = (bits.random_raw(n - aside) >> np.uint64(11)) * 2.0**-53
        #: What became of each row that came by; -1 where it is not known yet.
        self.outcome = np.full(len(self.rows), -1, dtype=np.intp)
        self._place = np.full(n, -1, dtype=np.intp)
        self._place[self.rows] = np.arange(len(self.rows))
        n_cells = len(self.cells.share)
        self.payoff = _payoff(self.constraint, n_cells)
        self.evidence = Evidence.none(n_cells)
        self.rounds: list[Round] = []
        self.chain: Chain | None = None
        self.counted = 0  # rows whose outcome has moved the evidence
        if self.goal is not None:
            self._aim(self.cells.near(self.goal))

    def _check(self) -> None:
        if not isinstance(self.constraint, MinCoverageAccuracy | MaxMiscoverage) or self.constraint.delta is None:
            raise InputError(
                "labels are asked for a promise with a delta, MinCoverageAccuracy(0.97) or MaxMiscoverage(0.05); "
                f"got {self.constraint!r}."
            )
        if len(self.doubts) < FEWEST:
            raise InputError(f"the pool has {len(self.doubts)} rows; bring at least {FEWEST}, the more the better.")
        if self.goal is not None and not 0.0 < self.goal <= 1.0:
            raise InputError(f"the coverage to aim at must be above 0 and at most 1; got {self.goal!r}.")
        if self.batch < 1 or self.pilot < 20:
            raise InputError("a round takes at least 1 label, and the first, where it plans, at least 20.")

    # ── asking and answering ─────────────────────────────────────────────────────────────────────────────────────────

    def propose(self, n: int | None = None) -> Index:
        """The next rows of the pool to label, in order: what is left of the round, or the first `n` of that."""
        while not self.finished and not len(self.pending):
            self.rounds.append(self._next_round())
            self._advance()
        return np.empty(0, dtype=np.intp) if self.finished else self.rows[self.pending[:n]]

    def answer(self, rows: Index, right: NDArray[np.bool_]) -> None:
        """Take in answers: whether the prediction of each of these rows of the pool is right."""
        places = self._place[rows]
        asked = self.rounds[-1].asked if self.rounds else np.empty(0, dtype=np.intp)
        known = np.isin(places, asked) | (self.outcome[places] > UNASKED)
        if not (known & (places >= 0)).all():
            raise InputError(
                f"row {int(rows[~(known & (places >= 0))][0])} was not asked about; answer those that propose gives."
            )
        new = np.where(right, RIGHT, WRONG)
        differs = (self.outcome[places] >= 0) & (self.outcome[places] != new)
        if differs.any():
            raise InputError(
                f"row {int(rows[differs][0])} has been answered otherwise before; the first answer counts. If that one "
                "was a mistake, start again."
            )
        self.outcome[places] = new
        self._advance()

    @property
    def pending(self) -> Index:
        """The places of the rows that are asked about and not answered."""
        if not self.rounds:
            return np.empty(0, dtype=np.intp)
        asked = self.rounds[-1].asked
        return asked[self.outcome[asked] < 0]

    @property
    def labels(self) -> int:
        """How many answers have been given."""
        return int((self.outcome > UNASKED).sum())

    def resume(self, kept: Sequence[Round], right: Mapping[int, bool]) -> None:
        """Go on where a file left off: its rounds, and the answers by the numbers of the rows.

        Everything is laid out once more from the answers, and must come out as it was written down; what was written
        down is then what counts, to the last bit. Answers to rows that were not asked about are refused.
        """
        for number, one in enumerate(kept, start=1):
            if self.finished or len(self.pending):
                raise InputError(f"round {number} began before the one before it was answered.")
            again = self._next_round()
            if not _alike(one, again):
                raise InputError(f"round {number} is not what the answers before it lead to.")
            labels = self.batch if again.proves else self.pilot
            self.rounds.append(
                self._round(again.begin, labels, again.target, one.design, one.stakes, proves=again.proves)
            )
            rows = [row for row in self.rows[self.rounds[-1].asked].tolist() if row in right]
            self.answer(np.array(rows, dtype=np.intp), np.array([right[row] for row in rows], dtype=bool))
        if self.labels != len(right):
            raise InputError(f"{len(right) - self.labels} of the answers are to rows that were never asked about.")

    # ── what is certified ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def certified(self) -> tuple[int, ...]:
        """The thresholds that are certified by now, the hardest last."""
        return () if self.chain is None else self.chain.certified(self.evidence.log_peak)

    @property
    def threshold(self) -> float | None:
        """The certified threshold that does most: accepts most of those that keep an accuracy, or rejects most."""
        found = self.certified
        return float(self.cells.thresholds[found[-1]]) if found else None

    @property
    def reached(self) -> bool:
        """Whether the goal, or more, is certified."""
        return (
            self.chain is not None
            and self.aim in self.chain.order
            and any(self.chain.order.index(j) >= self.chain.order.index(self.aim) for j in self.certified)
        )

    @property
    def finished(self) -> bool:
        """Whether there is nothing more to ask: the goal is certified, or the pool is used up."""
        return self.reached or (self.counted == len(self.rows))

    def forecast(self) -> float | None:
        """How many labels are likely still needed, if error rates are as estimated; None where no number would do.

        An estimate, not a promise.
        """
        if self.reached:
            return 0.0
        if self.chain is None:
            return None
        outlook = self._outlook(self.aim)
        found = outlook.labels_for(self._missing(self.aim))
        return found if math.isfinite(found) else None

    # ── rounds ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def rates(self) -> ErrorRates:
        """The error rates of the cells, from all answers that count."""
        share, limit = self.cells.share, self.payoff.limit
        middle = self.cells.coverage - 0.5 * share
        prior, rows = _GUESSED_ERRORS * middle, _GUESS_ROWS
        if self.payoff.counts_wrong:
            goal = 0.5 if self.chain is None else self.cells.coverage[self.aim]
            prior = np.minimum(limit * middle / goal, 0.5)
            rows = (_PLANNING_WORTH if self.chain is None else _LIMITS_WORTH) / (limit * goal)
        found = ErrorRates.of(share, prior, rows)
        known = np.flatnonzero(self.outcome[: self.counted] > UNASKED)
        found.add(self.cell[known], self.outcome[known] == WRONG)
        return found

    def _next_round(self) -> Round:
        begin, n_cells = self.counted, len(self.cells.share)
        if self.chain is None and self.rounds:
            self._aim(self._planned())
        if self.chain is None:
            even = Design(np.ones(n_cells), np.zeros(n_cells))
            return self._round(begin, self.pilot, n_cells - 1, even, np.zeros(n_cells), proves=False)
        target = self._target()
        design = self._outlook(target).design
        stakes, _ = stakes_for(self.payoff, design, self.rates())
        return self._round(begin, self.batch, target, design, stakes, proves=True)

    def _round(self, begin: int, labels: int, target: int, design: Design, stakes: Float, *, proves: bool) -> Round:
        asked = np.flatnonzero(self.luck[begin:] < design.probability[self.cell[begin:]])[:labels] + begin
        end = int(asked[-1]) + 1 if len(asked) == labels else len(self.rows)
        return Round(begin, end, target, design, stakes, asked, proves)

    def _advance(self) -> None:
        """Let the evidence take in the rows up to the first that has not been answered."""
        if not self.rounds:
            return
        now = self.rounds[-1]
        unknown = now.asked[self.outcome[now.asked] < 0]
        end = int(unknown[0]) if len(unknown) else now.end
        fresh = self.outcome[self.counted : end]
        fresh[fresh < 0] = UNASKED
        if now.proves:
            wagers = Wagers.of(self.payoff, now.design)
            self.evidence.take(self.cell[self.counted : end], fresh, wagers, now.stakes)
        self.counted = end

    def _outlook(self, threshold: int) -> Outlook:
        left = len(self.rows) - self.counted
        return best_design(self.payoff, threshold, self.rates(), self._missing(threshold), left)

    def _missing(self, threshold: int) -> float:
        assert self.chain is not None
        return max(self.chain.needed(threshold, self.evidence.log_peak) - float(self.evidence.log_now[threshold]), 0.0)

    # ── the goal ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _aim(self, goal: int) -> None:
        """Lay out the tests: the goal with most of delta, easier thresholds with the rest, should it not be reached."""
        self.aim, last = goal, len(self.cells.share) - 1
        assert self.constraint.delta is not None
        at, shares = float(self.cells.coverage[goal]), dict[int, float]()
        for way, share in _STARTS:
            start = self.cells.near(way * at if self.payoff.counts_wrong else 1.0 - way * (1.0 - at))
            start = min(start, goal) if self.payoff.counts_wrong else max(start, goal)
            shares[start] = shares.get(start, 0.0) + share
        order = range(min(shares), last + 1) if self.payoff.counts_wrong else range(max(shares), -1, -1)
        self.chain = Chain(tuple(order), shares, self.constraint.delta)

    def _planned(self) -> int:
        """The goal that the first answers suggest: most of what the estimates leave some room for."""
        rates, last = self.rates(), len(self.cells.share) - 1
        fine = np.flatnonzero(comfortable(self.payoff, rates))
        if self.payoff.counts_wrong:
            bad = np.where(self.cells.coverage >= 0.1, self.payoff.rates(rates.share, rates.errors), np.inf)
            return int(fine[-1]) if len(fine) else int(bad.argmin())
        return min(int(fine[0]), max(last - 1, 0)) if len(fine) else last

    def _target(self) -> int:
        """The threshold to ask for: the goal or, where the rows left would not do, the hardest that they may do for."""
        assert self.chain is not None
        rows, left = even_rows(self.payoff, self.rates()), len(self.rows) - self.counted
        certified, order = set(self.certified), self.chain.order
        for j in order[order.index(self.aim) :: -1]:
            if j in certified:
                break
            missing = self._missing(j)
            if math.isfinite(missing) and missing * rows[j] <= left:
                return j
        return self.aim


def _alike(one: Round, other: Round) -> bool:
    """Whether two rounds are the same but for the rounding of another machine."""
    if (one.begin, one.target, one.proves) != (other.begin, other.target, other.proves):
        return False
    pairs = (
        (one.design.probability, other.design.probability),
        (one.design.guess, other.design.guess),
        (one.stakes, other.stakes),
    )
    return all(a.shape == b.shape and np.allclose(a, b, rtol=_ROUNDING, atol=_ROUNDING) for a, b in pairs)


def _payoff(constraint: Promise, n_cells: int) -> Payoff:
    if isinstance(constraint, MinCoverageAccuracy):
        return Payoff.of_accuracy(n_cells, constraint.beta)
    assert isinstance(constraint, MaxMiscoverage)
    return Payoff.of_miscoverage(n_cells, constraint.alpha)
