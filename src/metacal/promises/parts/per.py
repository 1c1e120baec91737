"""A promise in parts: one threshold for each class or group, from rows that are looked at part by
part.

Given how many rows fall into each part, the rows of a part are i.i.d., and those of two parts
independent. So whatever certifies a threshold for all rows certifies one for a part, and how delta
is shared may depend on these counts.

*Together.* Parts that cannot pass a test at their share, however few errors they have, get none:
with the counts in falling order, the k largest share delta where k is the largest number whose k-th
count is enough for a test at delta/k. Each is tested at delta/k, so the union bound says that all
promises hold together with probability 1 - delta.

*Recycling* (Holm's step-down). A part whose every test has passed accepts everything and needs no
level; what is left is shared by those still open, which are tested again, at the same ranks, at
delta over their number. It holds: call a part vulnerable if a threshold that breaks the promise is
among its tests, and let there be v of them. A test that passes at one level passes at any higher
one, and at level l a breaking test of a vulnerable part passes with probability at most l. So with
probability 1 - v·(delta/v) none does at delta/v. On that event no vulnerable part ever has all its
tests passed: the levels that are passed on are those of other parts, at most delta/v is reached,
and no breaking test passes.

*Each.* Every part is tested at delta. Each promise then fails with probability at most delta, and
the expected share of broken promises, of however many, is at most delta.

*False-coverage rate* (Benjamini & Yekutieli 2005). K parts have rows enough for a test at delta,
and r is K at first. All are tested at delta·r/K; those that certify nothing are out, and with r the
number of those that are left these are tested again, until none falls out: R parts accept what they
certify at delta·R/K, and the expected share of broken ones among them is at most delta. For one
part i let R(i) be where this ends if i never falls out, whatever its rows are: that depends on the
others alone. Where i accepts, it has never fallen out, and R = R(i). So i counts 1/R(i) where it
accepts and is broken, and a breaking test of it passes with probability at most delta·R(i)/K, given
the others: delta/K for each, delta for all. Nothing is asked of how tests at different levels go
together: each level lays out its own. One broken part among many is likely then; it is the share
that stays small. Tests begin early here (`_Early`): the more parts certify something, the higher
the level of all.

*Pooled.* A quarter of the rows, drawn at random, are pilot rows. Their counts show which subgroups
have few rows, less than twice the number that a test takes. These subgroups become one, the pool,
which is tested on its rows outside the quarter. Given the pilot rows, the other rows of the pool
are i.i.d. from the pool's own mixture: the promise holds for the pooled subgroups taken together,
and for no single one of them. Two shortcuts are not valid. If all counts chose the pool, subgroups
that happen to have few rows would go into it, and its rows would be no sample of what comes. If
every fourth row were a pilot row, a file that is sorted by subgroup would have nearly the same
share of each subgroup among the pilot rows, so that these would reveal the counts of the tested
rows (broken in .27 to .35 of draws at delta = .1).

Benjamini & Yekutieli, "False discovery rate-adjusted multiple confidence intervals for selected
parameters", Journal of the American Statistical Association 2005. Holm, "A simple sequentially
rejective multiple test procedure", Scandinavian Journal of Statistics 1979.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, Self, get_args

import numpy as np

from metacal.errors import InfeasibleTargetError, InputError
from metacal.formulas import Codes, Flags
from metacal.promises.certificate import Certificate, accepts
from metacal.promises.parts.part import By, Part, Parts, Shares
from metacal.promises.promise import ByPart, Promise
from metacal.promises.quantity import Limits
from metacal.promises.rules.bounds import SLACK, exact
from metacal.promises.rules.sequence import Starts
from metacal.promises.sample import Outcome, Sample

#: One of so many rows is a pilot row, which helps to choose the pooled subgroups.
_PILOT_SHARE = 4
#: A subgroup is pooled if it has fewer than so many times the rows that a test takes at least: so
#: few rows pass only where hardly any of them is wrong.
_ENOUGH = 2
#: Where tests begin under the false-coverage rate: as shares of the errors that all rows of a part
#: may have. The second start has a fifth of delta too, where there are errors enough for two.
_FIRST, _SECOND, _FOR_TWO = Fraction("0.05"), Fraction("0.2"), 15
#: What a promise has settled for a part, whether every test passed, and the level, None where there
#: was no test.
Settled = tuple[Any, bool, float | None]


@dataclass
class Per(Promise):
    """A promise for each part: a threshold each, delta shared or for each."""

    promise: Any
    shares: Shares = "together"
    fallback: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.promise, ByPart) or (self.promise.sided and self.by == "class"):
            raise InputError(
                f"{type(self).__name__} takes MinAccuracy(...) or MaxMiscoverage(...), and of two"
                " classes PerGroup MinPrecision(...), MinRecall(...), MaxFalsePositiveRate(...),"
                f" TwoSided(...); got {self.promise!r}."
            )
        if self.promise.delta is None:
            raise InputError(
                f"{type(self).__name__} shares a delta; give the promise one, say delta=0.1: in"
                " expectation nothing can be said of all parts."
            )
        if self.shares not in get_args(Shares):
            raise InputError(f"shares must be 'together', 'each' or 'fcr', got {self.shares!r}.")
        if self.fallback not in (None, "pooled"):
            raise InputError(f"fallback must be None or 'pooled', got {self.fallback!r}.")

    #: What makes the parts.
    by: ClassVar[By]

    @property
    def delta(self) -> float:  # type: ignore[override]
        return float(self.promise.delta)

    @property
    def limits(self) -> Limits:
        return self.promise.limits

    @property
    def rule(self) -> str:
        return self.promise.rule

    @property
    def scouted(self) -> bool:
        return self.promise.scouted

    @property
    def sided(self) -> bool:
        return self.promise.sided

    @property
    def asks_labels(self) -> bool:
        """Of two sides: whether scouts are asked for their labels too."""
        return self.promise.asks_labels

    def from_sample(self, sample: Sample) -> Certificate:
        codes, names = sample.part, sample.names
        if codes is None:
            raise InputError(
                f"{type(self).__name__} certifies rows of known {self.by}: give a Sample with part"
                " and names, or fit a MetaCal."
            )
        members: list[tuple[int, ...]] = [(i,) for i in range(len(names))]
        tested = np.ones(len(codes), dtype=bool)
        if self.fallback is not None:
            pilot = _pilot_rows(sample)
            members, tested = self._pool_subgroups(sample, codes, pilot, len(names)), ~pilot
        table = [sample.take(_rows_of(codes, own, tested)) for own in members]
        if (scouts := sample.scouts) is not None:
            table = [replace(rows, scouts=scouts.of(own)) for rows, own in zip(table, members)]
        settled = settle_parts(self.promise, table, self.delta, self.shares)
        spare = self._spare(sum(level is not None for *_, level in settled))
        families = [
            self.promise.parts_of(tuple(names[i] for i in own), rows, found, level, spare)
            for own, rows, (found, _, level) in zip(members, table, settled)
        ]
        parts = Parts(self.by, self.shares, tuple(part for family in families for part in family))
        if len(parts.rejected) == len(parts.items):
            raise self._infeasible(parts, len(sample))
        own = {name: family for family in families for name in family[0].names}
        limits = np.array([[part.threshold for part in own[name]] for name in names])
        at = np.array([own[name][0].at for name in names])[codes]
        doubt, right, called = self.promise.decided(sample, at)
        accept = accepts(doubt, limits[codes, called])
        flags = {"n_correct": right, "n_accepted": accept, "n_correct_accepted": accept & right}
        counts = {"n_rows": len(sample), **{name: int(own.sum()) for name, own in flags.items()}}
        found = self._certified(
            -math.inf, Outcome(**counts, highest_accepted=None, lowest_rejected=None)
        )
        return self.promise.told(replace(found, parts=parts))

    def impossible(self, certificate: Certificate) -> str | None:
        parts = certificate.parts
        if parts is None or parts.by != self.by or parts.shares != self.shares:
            return f"it does not belong to the promise {self!r}; fit again"
        if parts.pooled and self.fallback != "pooled":
            return f"{parts.plural} are pooled, which was not asked for"
        tested = [
            (level, family) for family in parts.families if (level := _level(family)) is not None
        ]
        spare = self._spare(len(tested)) if self.sided else self.delta
        for family in parts.families:
            level, opened, why = _level(family), _opened(family), None
            if level is None and opened and self.promise.unproven == -math.inf:
                why = "it accepts rows, but was never tested"
            elif opened or self.sided:
                why = self.promise.impossible_part(family, spare if level is None else level)
            if why is not None:
                return f"{self.by} {family[0].whole}: {why}"
        still = sum(not all(part.accepts_everything for part in family) for _, family in tested)
        most = self.delta if self.shares != "together" else self.delta / max(1, still)
        if self.shares == "fcr":
            most = self.delta * sum(_opened(family) for _, family in tested) / max(1, len(tested))
        if any(not 0.0 < level <= SLACK * most for level, _ in tested):
            return f"a {self.by} was tested at more than its share of delta {self.delta:g}"
        return None

    def _spare(self, tested: int) -> float:
        """What one part more is tested at."""
        return self.delta / (tested + 1) if self.shares == "together" else self.delta

    def at(self, share: float) -> Self:
        return replace(self, promise=self.promise.at(share))

    def _limits_in(self, certificate: Certificate) -> Limits:
        return self.promise._limits_in(certificate)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments and, as scikit-learn has it, those of the promise inside."""
        inner = self.promise.get_params() if deep and hasattr(self.promise, "get_params") else {}
        return {
            **super().get_params(),
            **{f"promise__{name}": value for name, value in inner.items()},
        }

    def set_params(self, **params: Any) -> Self:
        """Change arguments in place, those of the promise as `promise__beta`."""
        inner = {name: params.pop(name) for name in [*params] if name.startswith("promise__")}
        super().set_params(**params)
        if inner:
            self.promise.set_params(
                **{name.removeprefix("promise__"): value for name, value in inner.items()}
            )
            type(self)(**self.get_params(deep=False))
        return self

    def _pool_subgroups(
        self, sample: Sample, codes: Codes, pilot: Flags, n_parts: int
    ) -> list[tuple[int, ...]]:
        """Return the classes or groups of each subgroup. Those with too few pilot rows are pooled,
        as the last one.
        """
        level = self.delta / n_parts if self.shares == "together" else self.delta
        few = []
        for part in range(n_parts):
            counts = self.promise.takes(sample.take(pilot & (codes == part)), level)
            if any(_PILOT_SHARE * n < _ENOUGH * fewest for n, fewest in counts):
                few.append(part)
        if len(few) < 2:
            return [(part,) for part in range(n_parts)]
        return [*((part,) for part in range(n_parts) if part not in few), tuple(few)]

    def _infeasible(self, parts: Parts, n_rows: int) -> InfeasibleTargetError:
        (quantity, target), *_ = self.limits
        needed = [part.rows_needed for part in parts.items if part.rows_needed is not None]
        best = max((part.best for part in parts.items if part.best is not None), default=None)
        can = "" if best is None else f" the best that one of them certifies is {best:.4f};"
        do = "lower the target, or improve the model"
        if needed and parts.sides:
            do = (
                f"it takes at least {min(needed):,} rows of one group that speak about it; lower"
                " the target"
            )
        elif needed:
            do = (
                f"lower the target; about {min(needed):,} rows of one {self.by} may be enough (a"
                " rough estimate)"
            )
        of = f"any {self.by} of these {n_rows:,} rows ({len(parts.families)} of them)"
        said = f"{quantity} {target:g} cannot be certified for {of} {self.surely};{can} {do}."
        return InfeasibleTargetError(
            said, target=target, best=best, rows_needed=min(needed, default=None)
        )


@dataclass
class PerClass(Per):
    """`promise` for every predicted class, each with a threshold of its own.

    One threshold for all classes keeps the accuracy of what is accepted on average over them: some
    class nearly always stands below it. Here the rows of each predicted class are certified by
    themselves. Among the right rows the predicted class is the true one, so a limit on the
    miscoverage holds for every true class.

    A class whose rows cannot carry an accuracy is always rejected, and the certificate says which,
    why, and how many rows it would take; one with too few right rows to reject any under a limit on
    the miscoverage accepts every row.

    Parameters
    ----------
    promise : MinAccuracy or MaxMiscoverage
        What is promised of each class.
    shares : "together", "each" or "fcr"
        "together": all promises hold at once with probability 1 - delta. "each": each does by
        itself, so that the expected share of broken classes is at most delta; it takes far fewer
        rows. "fcr", the false-coverage rate: the expected share of broken classes among those that
        accept rows is at most delta; nearly as few rows, and classes that accept nothing do not
        make it look smaller.
    fallback : None or "pooled"
        "pooled": classes with too few rows share one threshold, certified for all of them taken
        together and for none by itself. The proofs stand above.

    Examples
    --------
    >>> from metacal.promises.rules.accuracy import MinAccuracy
    >>> rng = np.random.default_rng(0)
    >>> scores, codes = rng.random(3000), rng.integers(3, size=3000)
    >>> correct = rng.random(3000) > scores * np.array([0.05, 0.3, 2.0])[codes]
    >>> sample = Sample.of(scores, correct, part=codes, names=["cat", "dog", "cow"])
    >>> found = PerClass(MinAccuracy(0.95)).certify(sample)
    >>> print(found.statement)
    For every predicted class, what is accepted is right at least 95% of the time,
    with 90% confidence for all classes together.
    >>> [(part.name, part.status) for part in found.parts.items]
    [('cat', 'accepts everything'), ('dog', 'certified'), ('cow', 'always rejected')]
    """

    by: ClassVar[By] = "class"  # the class with the largest logit


@dataclass
class PerGroup(Per):
    """`promise` for every group of rows (a hospital, a language, a camera), each with a threshold
    of its own.

    As `PerClass`, with groups that come with the rows: one name, a string or a whole number, for
    each, in `cal.fit(X, y, groups=...)` and `cal.accepts(X, groups=...)` alike. A row of a group
    that the fit has not seen is always rejected. Of two classes both sides of each group are
    certified, and its rows are decided at log-odds of their own: `rules.two_sided` has the proof.

    Parameters
    ----------
    promise : MinAccuracy, MaxMiscoverage, MinPrecision, MinRecall, MaxFalsePositiveRate or TwoSided
        What is promised of each group.
    shares, fallback
        As for `PerClass`. Groups are pooled where either side has too few rows.

    Examples
    --------
    >>> from metacal.promises.rules.order_statistic import MaxMiscoverage
    >>> rng = np.random.default_rng(0)
    >>> scores, groups = rng.random(1000), rng.choice(["north", "south"], size=1000)
    >>> promise = PerGroup(MaxMiscoverage(0.1))
    >>> from metacal.promises.parts.thresholds import rows_of_groups
    >>> codes, names = rows_of_groups(groups, 1000)
    >>> promise.certify(Sample.of(scores, scores < 0.9, part=codes, names=names)).statement
    'For every group, at most 10% of the correct predictions are rejected, with 90% confidence for all groups together.'
    """

    by: ClassVar[By] = "group"


def _level(family: tuple[Part, ...]) -> float | None:
    """The level at which a part was tested, its sides together; None where it was not."""
    levels = [part.delta for part in family if part.delta is not None]
    return sum(levels) if levels else None


def _pilot_rows(sample: Sample) -> Flags:
    """Draw the rows that choose which subgroups are pooled, whatever the order of the rows."""
    pilot = np.zeros(len(sample), dtype=bool)
    pilot[sample.draws().order("pooled subgroups")[: len(sample) // _PILOT_SHARE]] = True
    return pilot


def _rows_of(codes: Codes, own: tuple[int, ...], tested: Flags) -> Flags:
    """Return a mask of the rows of a subgroup. In a pool, pilot rows are not tested."""
    if len(own) == 1:
        return np.asarray(codes == own[0])
    return np.isin(codes, own) & tested


def _opened(family: tuple[Part, ...]) -> bool:
    """Whether a part accepts rows, on either side."""
    return any(part.status != "always rejected" for part in family)


def shared_by(promise: ByPart, table: Sequence[Sample], delta: float, shares: Shares) -> list[int]:
    """The parts that have a share of delta, by their counts alone: those that a test at it can
    pass.

    >>> from metacal.promises.rules.accuracy import MinAccuracy
    >>> table = [Sample(np.zeros(n), np.ones(n, dtype=bool)) for n in (400, 20, 90, 60)]
    >>> shared_by(MinAccuracy(0.95), table, 0.1, "together")
    [0, 2]
    """
    asked = [promise.takes(rows, delta) for rows in table]
    if shares != "together":
        return [i for i, own in enumerate(asked) if any(n >= fewest for n, fewest in own)]
    order = sorted(range(len(table)), key=lambda i: -max(asked[i])[0])
    at_share = (promise.takes(table[part], delta / (k + 1)) for k, part in enumerate(order))
    return sorted(order[: sum(any(n >= fewest for n, fewest in own) for own in at_share)])


def settle_parts(
    promise: ByPart, table: Sequence[Sample], delta: float, shares: Shares
) -> list[Settled]:
    """Of each part: threshold, None where no test passed; whether every test did; level, None where
    none was made.
    """
    settled: list[Settled] = [(None, False, None)] * len(table)
    still = shared_by(promise, table, delta, shares)
    if shares == "fcr":
        return _settle_fcr(promise, table, delta, still)
    planned = level = delta if shares == "each" else delta / max(1, len(still))
    while still:
        for i in still:
            settled[i] = *promise.settle(table[i], level, planned), level
        left = [i for i in still if not settled[i][1]]
        if shares == "each" or len(left) == len(still):
            break
        still, level = left, delta / max(1, len(left))
    return settled


def _settle_fcr(
    promise: ByPart, table: Sequence[Sample], delta: float, tested: Sequence[int]
) -> list[Settled]:
    """The same at the level of the false-coverage rate: from all of delta down, while parts fall
    out.
    """
    settled: list[Settled] = [(None, False, None)] * len(table)
    early = {i: replace(table[i], starting_errors=early_starts) for i in tested}
    level, still, left = delta, [*tested], len(tested) + 1
    while still and len(still) < left:
        level, left = delta * len(still) / len(tested), len(still)
        for i in still:
            settled[i] = *promise.settle(early[i], level, level), level
        still = [i for i in still if settled[i][0] is not None]
    return [(*settled[i][:2], level) if i in early else settled[i] for i in range(len(table))]


def early_starts(n: int, beta: float, delta: float) -> Starts:
    """Choose early starts for the tests of a subgroup, from its number of rows alone.

    There is one start, or two if n rows allow at least 15 errors. Each is given as the errors that
    it allows and its share of delta.

    >>> early_starts(100, 0.9, 0.1), early_starts(500, 0.9, 0.1)
    (((0, Fraction(1, 1)),), ((2, Fraction(4, 5)), (10, Fraction(1, 5))))
    """
    errors = n * (1 - exact(beta))
    if errors < _FOR_TWO:
        return ((int(_FIRST * errors), Fraction(1)),)
    return (int(_FIRST * errors), 1 - _SECOND), (int(_SECOND * errors), _SECOND)
