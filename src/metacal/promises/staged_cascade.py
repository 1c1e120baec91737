r"""Several models of rising cost behind each other, by their scores alone: thresholds under one
promise.

Model j answers what is left to it and where it is sure enough; the last one, or people, answer the
rest. All that is asked of a labelled row is where an earlier model answers otherwise than the last
one would: P(it answers, and otherwise) <= ε bounds how many more answers are wrong, and takes no
true label.

**Two models.** R(s) = P(h <= s, otherwise) rises with s: no sequence, no rows set aside. With k the
largest number for which P(Bin(n, ε) <= k) <= δ, answered is what is surer than the (k+1)-th surest
row that is answered otherwise.

*Proof.* Let s₀ = inf{s: R(s) > ε}; R(s₀) >= ε, from the right. If what lies strictly below the
threshold t has more than ε, then t > s₀, and of the rows with h <= s₀ at most k are answered
otherwise: their number is Bin(n, R(s₀)). ∎

*Of a pool* of N rows, n of them drawn at random and answered by the last model: k is the largest
number for which P(Hyp(N, E+1+k, n) <= k) <= δ, E = ⌊εN⌋. More than E rows are answered otherwise
just where of the E+1+k surest such rows at most k were drawn. The count is exact for every fixed
pool. In both cases as few of the rows are counted as have the same k: more of them would make the
threshold stricter for nothing.

**More models.** A path of threshold vectors, from strict to lax, is fixed without the tested rows;
it ends before the first point at which more than k rows are answered otherwise. *Proof.* The first
bad point on the path, if any, is fixed; its count is Bin(n, more than ε), at most k with
probability at most δ; whoever stops beyond it has passed it. Of a pool: Hyp(N, E+1, n). No risk
need be monotone. ∎

**Absolute**, `MinAccuracy`: of the a tested rows that are answered at a fixed point the wrong ones
are Bin(a, error rate) given a, and P(Bin(a, 1-β) <= wrong) is its p-value; the same paths, each
from the point whose p-value the pilot expects to be the least: before it hardly a row is answered.
The last model answers the rest, or people do.

Two paths, at δ/2 each, the cheaper end of the two: one rank for all models, and the path of a price
for such answers (Lagrange): each model answers where the price times the risk at its score is less
than what it costs to go on. Ranks and risks come from a fifth of the rows. How good they are
decides how far the path comes, never whether the promise holds. The risk of an answer is learned
from the model's own score, over all rows; with `joint` from all scores up to it, over the rows that
the models before leave. Either fails where the other works: the first where the rows that are left
are harder than their score says, the second where there are few of them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np
from scipy.special import bdtr, gammaln

from metacal.certificates.certificate import Certificate, accepts
from metacal.certificates.circumstances import Circumstances, under
from metacal.certificates.quantity import DISAGREEMENT
from metacal.certificates.subgroups import StageCount, Stages
from metacal.certification.ranking import Evidence, Outcome
from metacal.certification.statements import build_certificate
from metacal.errors import InfeasibleTargetError, InputError
from metacal.formulas import Codes, Flags, Float
from metacal.kernels.grid import RELATIVE
from metacal.promises.accuracy import MinAccuracy
from metacal.promises.cascade import JOINT, MaxLoss, inaccurate
from metacal.promises.cascade_candidates import expected_p_value, risk, risk_curve
from metacal.promises.promise import Promise
from metacal.rows.draws import RowDraws
from metacal.statistics import bounds

#: Points of a path; prices of an answer that differs, in costs of the last model.
_STEPS, _PRICES = 100, np.logspace(5, -2, 150)
#: Of the labelled rows those that lay out the paths, where there are three models or more; the
#: fewest of them.
_PILOT, _FEWEST = 0.2, 20
#: How often the thresholds of a price are gone through, where each depends on the others.
_SWEEPS = 3


@dataclass(frozen=True, eq=False)
class Staged(Evidence):
    """What several models say about the same rows.

    Attributes
    ----------
    doubt : array of shape (n, m)
        The score of each model that may turn a row away, higher is less sure.
    differs : boolean array of shape (n, m) or (n, m + 1)
        Whether the answer of each is otherwise than that of the last model; with people in its
        place, wrong. Where an accuracy is promised, wrong, with a column of the last model too if
        there are no people.
    costs : array of shape (m + 1,)
        What it costs to ask each, the last one or people included.
    unlabelled : array of shape (N - n, m)
        The scores of further rows.
    pool : bool
        Whether the promise is about all N rows, of which the n labelled ones were drawn at random.
    people : bool
        Whether people answer what no model does.
    random_state : int, optional
        Seed of the draw of the rows that are counted, and of those that lay out the paths. By
        default it is derived from the scores and from which models differ.
    joint : bool
        Whether the risk of an answer is learned from all scores up to it.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> doubt = rng.random((2000, 1))
    >>> rows = Staged(doubt, rng.random((2000, 1)) < doubt**3 / 4, np.array([1.0, 10.0]), doubt[:0])
    >>> certificate = MaxLoss(0.01).certify(rows)
    >>> certificate.statement
    "At most 1% of all answers differ from the large model's, so at most 1% more are wrong, with 90% confidence."
    >>> round(certificate.stages.items[0].n_rows / certificate.n_rows, 2)
    0.57
    """

    doubt: Float
    differs: Flags
    costs: Float
    unlabelled: Float
    pool: bool = False
    people: bool = False
    random_state: int | None = None
    joint: bool = False

    def certify(self, promise: Promise) -> Certificate:
        """The thresholds at which asking costs least, with their certificate."""
        if isinstance(promise, MinAccuracy):
            return self._accurate(promise)
        if not isinstance(promise, MaxLoss):
            raise InputError(
                f"a cascade of scores promises MaxLoss(0.01) or MinAccuracy(0.95); got {promise!r}."
            )
        order = self._drawn_order()
        alone = self.doubt.shape[1] == 1
        n_pilot = 0 if alone else _pilot_size(len(order))
        tested, share = len(order) - n_pilot, 1.0 if alone else 0.5
        of = len(order) + len(self.unlabelled) - n_pilot if self.pool else None
        law = Law(promise.epsilon, promise.delta * share, of, None if of is None else n_pilot + of)
        if (most := law.most(tested, alone=alone)) < 0:
            needed = math.ceil(math.log(law.delta) / math.log1p(-law.epsilon))
            few = (
                f"{tested:,} labelled rows are tested, and with no disagreement at all it takes"
                f" {needed:,}"
            )
            said = f"max loss {law.epsilon:g} cannot be certified: {few} {promise.surely}"
            said += "; allow more, or label more rows."
            raise InfeasibleTargetError(said, target=law.epsilon, rows_needed=needed)
        tested = law.fewest(tested, most, alone=alone)
        rows, pilot = order[n_pilot : n_pilot + tested], order[:n_pilot]
        found = [self._alone(rows, most)] if alone else self._walked(rows, pilot, most)
        best = min(found, key=lambda limits: self._cost(limits, rows))
        return self._certificate(promise, best, rows, n_pilot, law)

    def _accurate(self, promise: MinAccuracy) -> Certificate:
        """The cheapest point that passes, on each path from the one that the pilot expects to pass
        most surely.
        """
        order = self._drawn_order()
        n_pilot = _pilot_size(len(order))
        pilot, rows = order[:n_pilot], order[n_pilot:]
        credit = 1.0 - promise.beta if self.people else 0.0
        paths = (
            [self._common_ranks(pilot)] if self.doubt.shape[1] == 1 else self._paths(pilot, credit)
        )
        level, passed, first = (promise.delta or 0.0) / len(paths), [], (0, 0)
        for path in paths:
            for limits in path[self._surest(path, pilot, promise.beta) :]:
                answered = self._answered(self.answered_by(limits, rows))
                seen = self._bad(limits, rows), int(np.count_nonzero(answered))
                if not seen[1] or bounds.binomial_p_value(*seen, 1.0 - promise.beta) > level:
                    first = first if first[1] else seen
                    break
                passed.append(limits)
        if not passed:
            raise inaccurate(promise, *first, level, people=self.people)
        return self._certificate(
            promise, min(passed, key=lambda limits: self._cost(limits, rows)), rows, n_pilot, None
        )

    def _drawn_order(self) -> Codes:
        """Return the labelled rows in random order."""
        return RowDraws(*self.doubt.T, *self.differs.T, random_state=self.random_state).order(
            "staged rows"
        )

    def _surest(self, path: list[Float], pilot: Codes, beta: float) -> int:
        """Which point of a path has the least p-value, by the rows and errors that are to be
        expected.
        """
        m, scale = self.doubt.shape[1], len(self.doubt) / len(pilot) - 1.0
        wrong = self._wrong(pilot).astype(np.float64)
        wrong[:, :m] = np.stack(
            [risk(self.doubt[pilot, j], wrong[:, j] == 0.0) for j in range(m)], axis=1
        )
        found = [self.answered_by(limits, pilot) for limits in path]
        answered = np.array([scale * np.count_nonzero(self._answered(by)) for by in found])
        errors = np.array([scale * wrong[np.arange(len(pilot)), by].sum() for by in found])
        return int(np.argmin(expected_p_value(answered, errors, beta)))

    def _alone(self, rows: Codes, most: int) -> Float:
        """Strictly below the first row too many that is answered otherwise."""
        doubt = np.sort(self.doubt[rows, 0][self.differs[rows, 0]])
        limit = (
            math.inf
            if len(doubt) <= most
            else RELATIVE.settled(float(np.nextafter(doubt[most], -np.inf)))
        )
        return np.array([limit])

    def _walked(self, rows: Codes, pilot: Codes, most: int) -> list[Float]:
        """The last point of each path up to which at most so many rows are answered otherwise."""

        def few(limits: Float) -> bool:
            return self._bad(limits, rows) <= most

        never = np.full(self.doubt.shape[1], -math.inf)
        return [[never, *takewhile(few, path)][-1] for path in self._paths(pilot)]

    def answered_by(self, limits: Float, rows: Codes) -> Codes:
        """The number of the model that answers each row, m where none of them does."""
        sure = accepts(self.doubt[rows], limits)
        return np.where(sure.any(axis=1), sure.argmax(axis=1), sure.shape[1])

    def _wrong(self, rows: Codes) -> Flags:
        """Whether each answers otherwise, or wrong: the last too, who by itself, or as people,
        never does.
        """
        own = self.differs[rows]
        return (
            own
            if own.shape[1] > self.doubt.shape[1]
            else np.column_stack([own, np.zeros(len(own), dtype=bool)])
        )

    def _answered(self, by: Codes) -> Flags:
        """Whether a model answers."""
        return (by < self.doubt.shape[1]) | (not self.people)

    def _bad(self, limits: Float, rows: Codes) -> int:
        return int(self._wrong(rows)[np.arange(len(rows)), self.answered_by(limits, rows)].sum())

    def _cost(self, limits: Float, rows: Codes) -> float:
        return float(self.costs.cumsum()[self.answered_by(limits, rows)].mean())

    def _paths(self, pilot: Codes, credit: float = 0.0) -> list[list[Float]]:
        prices = self._prices_of_all if self.joint else self._prices
        return [self._common_ranks(pilot), prices(pilot, credit)]

    def _common_ranks(self, pilot: Codes) -> list[Float]:
        """The same share of each model's scores below its threshold, from little to all."""
        known = np.vstack([self.doubt[pilot], self.unlabelled])
        levels = np.arange(1, _STEPS + 1) / _STEPS
        return _settled(np.quantile(known, levels, axis=0, method="lower"))

    def _prices(self, pilot: Codes, credit: float) -> list[Float]:
        """For each price of a bad answer, from dear to cheap: where to answer costs less than to go
        on.

        `credit` is the share of bad answers that every answer is allowed.
        """
        m, n, last = self.doubt.shape[1], len(pilot), float(self._wrong(pilot)[:, -1].mean())
        order = [np.argsort(self.doubt[pilot, j], kind="stable") for j in range(m)]
        curves = [
            risk_curve(self.doubt[pilot, j], ~self.differs[pilot, j]) - credit for j in range(m)
        ]
        limits = np.full((len(_PRICES), m), -math.inf)
        for row, price in zip(limits, _PRICES * self.costs[-1]):
            later = price * last
            for j in reversed(range(m)):
                go_on = self.costs[j + 1] + later
                stays = price * curves[j][order[j]] <= go_on
                count = n if stays.all() else int(np.argmin(stays))  # up to the first that goes on
                row[j] = self.doubt[pilot, j][order[j][count - 1]] if count else -math.inf
                later = float(np.minimum(price * curves[j], go_on).mean())
        return _settled(np.maximum.accumulate(limits, axis=0))

    def _prices_of_all(self, pilot: Codes, credit: float) -> list[Float]:
        """The same by all scores up to each: one threshold after the other, over the rows that
        reach it.
        """
        doubt, wrong, m = self.doubt[pilot], self._wrong(pilot), self.doubt.shape[1]
        order = np.argsort(doubt, axis=0, kind="stable")
        rank, rows = np.argsort(order, axis=0, kind="stable"), np.arange(len(pilot))
        curves = [risk_curve(doubt[:, : j + 1], ~wrong[:, j]) - credit for j in range(m)]
        curves.append(wrong[:, m].astype(np.float64))
        below, limits = np.zeros(m, dtype=np.intp), np.full((len(_PRICES), m), -math.inf)
        for row, price in zip(limits, _PRICES * self.costs[-1]):
            paid = self.costs.cumsum() + price * np.stack(curves, axis=1)
            for j in [*range(m)][::-1] * _SWEEPS:
                sure = np.column_stack([rank < below, np.ones(len(rows), dtype=bool)])
                go_on = paid[rows, j + 1 + sure[:, j + 1 :].argmax(axis=1)]
                gain = np.where(sure[:, :j].any(axis=1), 0.0, go_on - paid[:, j])[order[:, j]]
                below[j] = np.argmax(np.concatenate(([0.0], gain.cumsum())))
            row[:] = np.where(below > 0, doubt[order[below - 1, range(m)], range(m)], -math.inf)
        return _settled(np.maximum.accumulate(limits, axis=0))

    def _certificate(
        self,
        promise: MaxLoss | MinAccuracy,
        limits: Float,
        rows: Codes,
        n_pilot: int,
        law: Law | None,
    ) -> Certificate:
        """With the counts of the tested rows; `law` where answers that differ are counted."""
        by, m = self.answered_by(limits, rows), self.doubt.shape[1]
        shown = [*limits.tolist(), *([] if self.people else [math.inf])]
        between = (
            ["middle"] if len(shown) == 3 else [f"middle {k}" for k in range(1, len(shown) - 1)]
        )
        wrong, at = self._wrong(rows), np.arange(len(rows))
        bad, counts = wrong[at, by], np.bincount(by, minlength=m + 1)
        errors = [None] * len(shown) if law else np.bincount(by[bad], minlength=m + 1).tolist()
        items = tuple(
            StageCount(name, "score", limit, int(count), own)
            for name, limit, count, own in zip(("small", *between, "large"), shown, counts, errors)
        )
        last = np.zeros(len(rows), dtype=bool) if law else wrong[:, len(shown) - 1]
        earlier = by < (m if law else len(shown) - 1)
        n_worse, n_better = int((earlier & bad & ~last).sum()), int((earlier & ~bad & last).sum())
        of_agreement = law is not None and not self.people
        stages = Stages(
            items,
            people=self.people,
            n_worse=None if of_agreement else n_worse,
            n_better=None if of_agreement else n_better,
            n_aside=n_pilot,
            n_labels=len(rows),
            pool=law.whole if law else None,
            n_differ=n_worse if of_agreement else None,
        )
        answered = stages.n_answered
        right = 0 if law else answered - int(bad.sum())
        outcome = Outcome(len(rows), right, answered, right, None, None)
        own = build_certificate(
            *promise.limits[0], promise.delta, promise.rule, limits[0].item(), outcome
        )
        own = replace(own, labelled=law is None)
        if of_agreement:
            own = replace(own, quantity=DISAGREEMENT)
        rule = JOINT[self.pool, m > 1] if law else promise.cascade_rules[0]
        certificate = replace(own, rule=rule, stages=stages)
        return under(certificate, Circumstances(random_state=self.random_state))


def _pilot_size(n: int) -> int:
    return max(_FEWEST, math.ceil(_PILOT * n))


@dataclass(frozen=True)
class Law:
    """How many of n rows may be answered otherwise: of a source, or of `of` rows that they were
    drawn from.

    `whole` rows the pool has in all, those that lay out paths included: so many, times epsilon, may
    be bad.

    >>> Law(0.01, 0.1).most(1000, alone=True), Law(0.01, 0.1).fewest(1000, 5, alone=True)
    (5, 926)
    >>> Law(0.01, 0.1, 5000, 5000).most(1000, alone=True)
    7
    """

    epsilon: float
    delta: float
    of: int | None = None
    whole: int | None = None

    def chance(self, k: int, n: int, *, alone: bool) -> float:
        """How likely at most k of n rows are bad where just too many of all are."""
        if self.of is None or self.whole is None:
            return float(bdtr(k, n, self.epsilon))
        bad = math.floor(self.epsilon * self.whole) + 1 + (k if alone else 0)
        return _hypergeometric(k, self.of, min(bad, self.of), min(n, self.of))

    def most(self, n: int, *, alone: bool) -> int:
        """The largest k that happens with at most delta; -1: none."""
        k = -1
        while k < n and self.chance(k + 1, n, alone=alone) <= self.delta:
            k += 1
        return k

    def fewest(self, n: int, k: int, *, alone: bool) -> int:
        """The smallest number of rows with the same k."""
        more = range(k + 1, n)  # the chance falls as n grows
        return (
            k
            + 1
            + bisect_left(
                more, True, key=lambda rows: self.chance(k, rows, alone=alone) <= self.delta
            )
        )


def labels_that_pay(promise: MaxLoss, n_rows: int) -> int:
    """How many of n rows to label, each a call of the large model: 0.7·n^⅔, at least 6/ε, and no
    more than have its k.

    A threshold is off by about n^-½ labels' worth of rows; measured in `benchmarks.answers`.

    >>> [labels_that_pay(MaxLoss(0.02), n) for n in (1000, 5000, 20_000, 100_000)]
    [265, 265, 462, 1463]
    """
    law = Law(promise.epsilon, promise.delta)
    n = min(n_rows, math.ceil(max(0.7 * n_rows ** (2 / 3), 6 / promise.epsilon)))
    return law.fewest(n, law.most(n, alone=True), alone=True)


def _hypergeometric(k: int, of: int, bad: int, n: int) -> float:
    """P(at most k of n rows drawn from `of` are among the `bad`).

    >>> round(_hypergeometric(1, 10, 4, 3), 4)
    0.6667
    """
    i = np.arange(max(0, n + bad - of), min(k, n, bad) + 1)

    def choose(a: int, b: int | Codes) -> Float:
        return np.asarray(gammaln(a + 1) - gammaln(b + 1) - gammaln(a - b + 1))

    return float(np.exp(choose(bad, i) + choose(of - bad, n - i) - choose(of, n)).sum())


def _settled(path: Float) -> list[Float]:
    """The points of a path that differ, each threshold between two numbers that a score can be."""
    return list(np.vectorize(RELATIVE.settled, otypes=[np.float64])(np.unique(path, axis=0)))
