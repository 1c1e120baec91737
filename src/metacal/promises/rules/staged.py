r"""Several models of rising cost behind each other, by their scores alone: thresholds under one promise.

Model j answers what is left to it and where it is sure enough; the last one, or people, answer the rest. All that is
asked of a labelled row is where an earlier model answers otherwise than the last one would: P(it answers, and
otherwise) <= ε bounds how many more answers are wrong, and takes no true label.

**Two models.** R(s) = P(h <= s, otherwise) rises with s: no sequence, no rows set aside. With k the largest number for
which P(Bin(n, ε) <= k) <= δ, answered is what is surer than the (k+1)-th surest row that is answered otherwise.

*Proof.* Let s₀ = inf{s: R(s) > ε}; R(s₀) >= ε, from the right. If what lies strictly below the threshold t has more
than ε, then t > s₀, and of the rows with h <= s₀ at most k are answered otherwise: their number is Bin(n, R(s₀)). ∎

*Of a pool* of N rows, n of them drawn at random and answered by the last model: k is the largest number for which
P(Hyp(N, E+1+k, n) <= k) <= δ, E = ⌊εN⌋. More than E rows are answered otherwise just where of the E+1+k surest such
rows at most k were drawn. The count is exact for every fixed pool. In both cases as few of the rows are counted as have
the same k: more of them would make the threshold stricter for nothing.

**More models.** A path of threshold vectors, from strict to lax, is fixed without the tested rows; it ends before
the first point at which more than k rows are answered otherwise. *Proof.* The first bad point on the path, if any, is
fixed; its count is Bin(n, more than ε), at most k with probability at most δ; whoever stops beyond it has passed it.
Of a pool: Hyp(N, E+1, n). No risk need be monotone. ∎

Two paths, at δ/2 each, the cheaper end of the two: one rank for all models, and the path of a price for such answers
(Lagrange): each model answers where the price times the risk at its score is less than what it costs to go on. Ranks
and risks come from a fifth of the rows. How good they are decides how far the path comes, never whether the promise
holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, gammaln

from metacal.errors import InfeasibleTargetError, InputError
from metacal.kernels.grid import RELATIVE
from metacal.promises.certificate import Certificate, accepts
from metacal.promises.parts.part import StageCount, Stages
from metacal.promises.promise import Promise
from metacal.promises.rules.cascade import JOINT, MaxLoss
from metacal.promises.rules.cascade_walks import risk_curve
from metacal.promises.sample import Codes, Evidence, Flags, Outcome
from metacal.rows.draws import generator

Table = NDArray[np.float64]

#: Points of a path; prices of an answer that differs, in costs of the last model.
_STEPS, _PRICES = 100, np.logspace(5, -2, 150)
#: Of the labelled rows those that lay out the paths, where there are three models or more; the fewest of them.
_PILOT, _FEWEST = 0.2, 20


@dataclass(frozen=True, eq=False)
class Staged(Evidence):
    """What several models say about the same rows.

    Attributes
    ----------
    doubt : array of shape (n, m)
        The score of each model that may turn a row away, higher is less sure.
    differs : boolean array of shape (n, m)
        Whether the answer of each is otherwise than that of the last model; with people in its place, wrong.
    costs : array of shape (m + 1,)
        What it costs to ask each, the last one or people included.
    unlabelled : array of shape (N - n, m)
        The scores of further rows.
    pool : bool
        Whether the promise is about all N rows, of which the n labelled ones were drawn at random.
    people : bool
        Whether people answer what no model does.
    random_state : int
        Draws the rows that are counted, and those that lay out the paths.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> doubt = rng.random((2000, 1))
    >>> rows = Staged(doubt, rng.random((2000, 1)) < doubt**3 / 4, np.array([1.0, 10.0]), doubt[:0])
    >>> certificate = MaxLoss(0.01).certify(rows)
    >>> certificate.statement
    'Of all answers at most 1% more are wrong than if the large model answered alone, with 90% confidence.'
    >>> round(certificate.stages.items[0].n_rows / certificate.n_rows, 2)
    0.58
    """

    doubt: Table
    differs: Flags
    costs: Table
    unlabelled: Table
    pool: bool = False
    people: bool = False
    random_state: int = 0

    def certify(self, promise: Promise) -> Certificate:
        """The thresholds at which asking costs least, with their certificate."""
        if not isinstance(promise, MaxLoss):
            raise InputError(f"a cascade of scores promises MaxLoss(0.01); got {promise!r}.")
        order = generator(self.random_state).permutation(len(self.doubt))
        alone = self.doubt.shape[1] == 1
        n_pilot = 0 if alone else max(_FEWEST, math.ceil(_PILOT * len(order)))
        tested, share = len(order) - n_pilot, 1.0 if alone else 0.5
        of = len(order) + len(self.unlabelled) - n_pilot if self.pool else None
        law = Law(promise.epsilon, promise.delta * share, of, None if of is None else n_pilot + of)
        if (most := law.most(tested, alone=alone)) < 0:
            raise self._too_few(promise, tested, share)
        tested = law.fewest(tested, most, alone=alone)
        rows, pilot = order[n_pilot : n_pilot + tested], order[:n_pilot]
        found = [self._alone(rows, most)] if alone else self._walked(rows, pilot, most)
        best = min(found, key=lambda limits: self._cost(limits, rows))
        return self._certificate(promise, best, rows, n_pilot, law)

    def _alone(self, rows: Codes, most: int) -> Table:
        """Strictly below the first row too many that is answered otherwise."""
        doubt = np.sort(self.doubt[rows, 0][self.differs[rows, 0]])
        limit = math.inf if len(doubt) <= most else RELATIVE.settled(float(np.nextafter(doubt[most], -np.inf)))
        return np.array([limit])

    def _walked(self, rows: Codes, pilot: Codes, most: int) -> list[Table]:
        """The last point of each path up to which at most so many rows are answered otherwise."""
        ends = []
        for path in (self._common_ranks(pilot), self._prices(pilot)):
            end = np.full(self.doubt.shape[1], -math.inf)
            for limits in path:
                if self._bad(limits, rows) > most:
                    break
                end = limits
            ends.append(end)
        return ends

    def answered_by(self, limits: Table, rows: Codes) -> Codes:
        """The number of the model that answers each row, m where none of them does."""
        sure = accepts(self.doubt[rows], limits)
        return np.where(sure.any(axis=1), sure.argmax(axis=1), sure.shape[1])

    def _bad(self, limits: Table, rows: Codes) -> int:
        by, m = self.answered_by(limits, rows), self.doubt.shape[1]
        return int(self.differs[rows, np.minimum(by, m - 1)][by < m].sum())

    def _cost(self, limits: Table, rows: Codes) -> float:
        return float(self.costs.cumsum()[self.answered_by(limits, rows)].mean())

    def _common_ranks(self, pilot: Codes) -> list[Table]:
        """The same share of each model's scores below its threshold, from little to all."""
        known = np.vstack([self.doubt[pilot], self.unlabelled])
        levels = np.arange(1, _STEPS + 1) / _STEPS
        return _settled(np.quantile(known, levels, axis=0, method="lower"))

    def _prices(self, pilot: Codes) -> list[Table]:
        """For each price of an answer that differs, from dear to cheap: where to answer costs less than to go on."""
        m, n = self.doubt.shape[1], len(pilot)
        order = [np.argsort(self.doubt[pilot, j], kind="stable") for j in range(m)]
        risk = [risk_curve(self.doubt[pilot, j], ~self.differs[pilot, j]) for j in range(m)]
        limits = np.full((len(_PRICES), m), -math.inf)
        for row, price in zip(limits, _PRICES * self.costs[-1]):
            later = 0.0
            for j in reversed(range(m)):
                go_on = self.costs[j + 1] + later
                stays = price * risk[j][order[j]] <= go_on
                count = n if stays.all() else int(np.argmin(stays))  # up to the first that goes on
                row[j] = self.doubt[pilot, j][order[j][count - 1]] if count else -math.inf
                later = float(np.minimum(price * risk[j], go_on).mean())
        return _settled(np.maximum.accumulate(limits, axis=0))

    def _certificate(self, promise: MaxLoss, limits: Table, rows: Codes, n_pilot: int, law: Law) -> Certificate:
        by, m = self.answered_by(limits, rows), self.doubt.shape[1]
        shown = [*limits.tolist(), *([] if self.people else [math.inf])]
        between = ["middle"] if len(shown) == 3 else [f"middle {k}" for k in range(1, len(shown) - 1)]
        names = ("small", *between, "large")
        counts = np.bincount(by, minlength=m + 1)
        items = tuple(
            StageCount(name, "score", limit, int(count), None) for name, limit, count in zip(names, shown, counts)
        )
        stages = Stages(items, self.people, self._bad(limits, rows), 0, n_pilot, len(rows), law.whole)
        answered = stages.n_answered
        own = promise._certified(limits[0].item(), Outcome(len(rows), 0, answered, 0, None, None), labelled=False)
        return replace(own, rule=JOINT[self.pool, m > 1], stages=stages)

    def _too_few(self, promise: MaxLoss, n: int, share: float) -> InfeasibleTargetError:
        needed = math.ceil(math.log(promise.delta * share) / math.log1p(-promise.epsilon))
        return InfeasibleTargetError(
            f"max loss {promise.epsilon:g} cannot be certified: {n:,} labelled rows are tested, and with no "
            f"disagreement at all it takes {needed:,} {promise.surely}; allow more, or label more rows.",
            target=promise.epsilon,
            best=None,
            rows_needed=needed,
        )


@dataclass(frozen=True)
class Law:
    """How many of n rows may be answered otherwise: of a source, or of `of` rows that they were drawn from.

    `whole` rows the pool has in all, those that lay out paths included: so many, times epsilon, may be bad.

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
        low, high = k, n  # the chance falls as n grows
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.chance(k, middle, alone=alone) <= self.delta else (middle, high)
        return high


def _hypergeometric(k: int, of: int, bad: int, n: int) -> float:
    """P(at most k of n rows drawn from `of` are among the `bad`).

    >>> round(_hypergeometric(1, 10, 4, 3), 4)
    0.6667
    """
    i = np.arange(max(0, n + bad - of), min(k, n, bad) + 1)

    def choose(a: object, b: object) -> NDArray[np.float64]:
        x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
        return np.asarray(gammaln(x + 1) - gammaln(y + 1) - gammaln(x - y + 1))

    return float(np.exp(choose(bad, i) + choose(of - bad, n - i) - choose(of, n)).sum())


def _settled(path: Table) -> list[Table]:
    """The points of a path that differ, each threshold between two numbers that a score can be."""
    return list(np.vectorize(RELATIVE.settled, otypes=[np.float64])(np.unique(path, axis=0)))
