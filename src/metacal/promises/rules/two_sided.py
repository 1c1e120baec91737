r"""Two classes, two sides: what is called positive, what is called negative, and between them what
people review.

With s the log-odds of the positive class (any score that rises with it will do), rows are called
positive iff s > u, and negative iff s <= l. A side is certified by itself on all n rows, ranked
from its own end, with *right* = "is of the class it is called":

- `MinPrecision`, P(positive | called positive) >= beta, the positive predictive value:
  `rules.precision`.
- `MinRecall`, P(called negative | positive) <= 1 - level, and `MaxFalsePositiveRate`, P(called
  positive | negative) <= level: of the n₁ rows that must not be called so, the r-th from the end;
  strictly beyond it lies P ~ Beta(r, n₁ + 1 - r) (Tong, Feng & Li 2018). The largest r with
  P(Bin(n₁, limit) <= r - 1) <= delta.

**Both sides** have half of delta each; the union bound does the rest. Of two predictive values the
side of a class declared rare has .8 of delta, the other .2. Where u < l, both walks have passed
ranks that overlap. Every rank that a walk has passed is certified, all at once: each side then
takes the highest of them on its own side of even calibrated odds, a point that may depend on labels
since it only chooses among what is certified. (The point itself is no threshold: it was never
tested, and breaks up to .9 of promises.) A threshold lies just before the next row that is not
accepted, never at a row.

A side whose rows cannot carry its promise is closed, and its rows go to review. Only where no side
is left it is an error. So is a predictive value that the share of the class reaches without any
score: it says nothing. (That is asked of the labels, and can only make broken promises fewer: one
that is refused is not made.)

**For each group** (`PerGroup`) both sides are certified on its rows alone, at its share of delta;
calling changes at log-odds of its own. *Why it holds.* Given how many rows each group has, its rows
are i.i.d., and all above holds of it: at level d a walk passes a rank, or an order statistic
reaches a limit, that breaks one of its promises with probability at most d, both sides together. By
the union bound none does in any group where the levels add up to delta; the other shares of
`parts.per` ask for no more than such a level, and none is passed on to other groups. How delta is
shared follows from how many rows groups have; of a recall or a false-positive rate from how many
must not be called so, since order statistics hold given all labels. A precision does not: where one
is promised, labels have no say in it. Rows that are set aside, or say which groups are pooled, are
drawn from each group without a look at what is tested. In a group where a predictive value says
nothing that side is closed.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from metacal.errors import InfeasibleTargetError, InputError
from metacal.formulas import Codes, Flags, Float
from metacal.kernels.grid import RELATIVE
from metacal.promises.certificate import Certificate
from metacal.promises.parts.part import Name, Part, Parts
from metacal.promises.promise import ByPart
from metacal.promises.quantity import FALSE_POSITIVE_RATE, RECALL, Limits
from metacal.promises.rules import bounds
from metacal.promises.sample import Outcome, Ranking, Sample
from metacal.promises.scouts import Scouts
from metacal.promises.words import SAME_SOURCE, register_rule
from metacal.rows.arrays import fraction

SIDES = register_rule(
    "two-sided",
    "each side by itself: a precision by exact binomial tests in a fixed sequence of ranks with"
    " fallback shares of delta (Wiens 2003), a recall or false-positive rate by an order statistic"
    " (Tong, Feng & Li 2018)",
    SAME_SOURCE,
    at_values=(
        "each side by itself: a precision by exact binomial tests at the values of the score, the"
        " surest first, a recall or false-positive rate by an order statistic (Tong, Feng & Li"
        " 2018)"
    ),
)
#: A class of no more than this share is rare: its side has so much of delta.
_RARE, _OF_RARE = 0.2, 0.8


class Sided(ByPart):
    """A promise about what rows of two classes are called. Its rows are log-odds, right where of
    the second class.
    """

    rules: ClassVar = (SIDES, SIDES)
    sided: ClassVar[bool] = True

    @property
    def asks_labels(self) -> bool:
        """Whether scouts are asked for their labels too: how rare a class is was not declared."""
        return any(side.scouted and side.share is None for side in self.each)

    @property
    @abstractmethod
    def each(self) -> tuple[Side, ...]:
        """The promises that it is made of."""

    @abstractmethod
    def sides(self, names: Sequence[Name]) -> dict[int, Side]:
        """What is promised of rows that are called by either class, each with its share of
        delta.
        """

    #: A side that cannot carry its promise calls nothing.
    unproven: ClassVar[float] = -math.inf
    #: About how rare the class is that rows are called by, where that was said.
    share: float | None = None
    delta: float

    def from_sample(self, sample: Sample) -> Certificate:
        """Certify each side of all rows."""
        codes, names, sides = sample.codes, sample.classes, self.sides(sample.classes).values()
        if (
            empty := next(filter(None, (side.vacuous(codes, names) for side in sides)), None)
        ) is not None:
            raise InputError(empty)
        accepted, _ = self.settle(sample, self.delta)
        if accepted is None:
            said = "; ".join(side.too_few(codes, names) for side in sides)
            raise InfeasibleTargetError(f"{said}.", target=self.limits[0][1])
        parts = Parts(
            "class", "together", self.parts_of((), sample, accepted, self.delta, self.delta)
        )
        counts = {
            name: sum(getattr(part, name) for part in parts.items) for name in Outcome._fields[:4]
        }
        found = self._certified(
            -math.inf, Outcome(**counts, highest_accepted=None, lowest_rejected=None)
        )
        return self.told(replace(found, decision_at=decision_point(sample, accepted), parts=parts))

    def settle(
        self, sample: Sample, level: float, planned: float = 0.0
    ) -> tuple[dict[int, int] | None, bool]:
        """How many rows may be called by either class, from its end; nothing of the level is left
        for other groups.
        """
        names, codes, s, scouts = sample.classes, sample.codes, sample.score, sample.scouts
        values = (
            None if scouts is None or scouts.values is None else RELATIVE.rounded(scouts.values)
        )
        starts = (values, None if values is None else -values[::-1])
        rankings = [
            Ranking.of(RELATIVE.rounded(-s if code else s), codes == code, starts[code])
            for code in (0, 1)
        ]
        sides = {
            code: side.knowing(scouts, code)
            for code, side in self.at_level(level).sides(names).items()
        }
        sides = {code: side for code, side in sides.items() if side.vacuous(codes, names) is None}
        accepted = {code: side.passed(rankings[code]) for code, side in sides.items()}
        if sum(accepted.values()) > len(s):
            for code, side in sides.items():
                known = rankings[code].below(-sample.even_odds if code else sample.even_odds)
                accepted[code] = side.passed(rankings[code], known)
        return accepted if any(accepted.values()) else None, False

    def takes(self, sample: Sample, level: float) -> list[tuple[int, int]]:
        sides = self.at_level(level).sides(sample.classes)
        by_rows = [
            (len(sample), side.fewest(side.delta))
            for side in sides.values()
            if not side.limits[0][0].of_class
        ]
        return by_rows or [
            (int((sample.codes != code).sum()), side.fewest(side.delta))
            for code, side in sides.items()
        ]

    def parts_of(
        self, names: tuple[Name, ...], sample: Sample, found: Any, level: float | None, spare: float
    ) -> tuple[Part, ...]:
        """Either side of all rows or, where these are named, of a group: the first class's
        first.
        """
        accepted, parts = found or {}, []
        at = decision_point(sample, accepted)
        doubt, right, called = self.decided(sample, at)
        sides = self.at_level(spare if level is None else level).sides(sample.classes)
        for code, name in enumerate(sample.classes):
            own, side = called == code, sides.get(code)
            ranking = Ranking.of(doubt[own], right[own])
            threshold = RELATIVE.settled(ranking.strictly_before(accepted.get(code, 0)))
            facts: dict[str, Any] = {"called": name, "at": at} if names else {}
            if side is not None:
                facts |= {"quantity": side.limits[0][0], "target": float(side.level)}
                facts |= {"about": sample.classes[side.positive_code(sample.classes)]}
                facts |= {"delta": None if level is None else side.delta}
                facts |= {
                    "rows_needed": side.fewest(side.delta) if threshold == -math.inf else None
                }
            parts.append(
                Part(
                    names or (name,),
                    threshold=threshold,
                    **ranking.outcome(threshold)._asdict(),
                    **facts,
                )
            )
        return tuple(parts)

    def decided(self, sample: Sample, at: float | Float) -> tuple[Float, Flags, Codes]:
        called = (sample.score > at).astype(np.intp)
        return RELATIVE.rounded(-np.abs(sample.score - at)), called == sample.codes, called

    def told(self, certificate: Certificate) -> Certificate:
        ((first, target),) = self._limits_in(certificate)
        return replace(
            certificate, quantity=first, target=target, max_miscoverage=None, score="margin"
        )

    def impossible(self, certificate: Certificate) -> str | None:
        parts = certificate.parts
        if parts is None or len(parts.items) != 2 or parts.by != "class":
            return f"it does not belong to the promise {self!r}; fit again"
        return self.impossible_part(parts.items, self.delta)

    def impossible_part(self, family: tuple[Part, ...], level: float) -> str | None:
        names = [part.names[0] if part.called is None else part.called for part in family]
        sides = self.at_level(level).sides(names)
        for code, part in enumerate(family):
            side, tested = sides.get(code), any(other.delta is not None for other in family)
            closed = part.threshold == -math.inf
            own: tuple[Any, Any, Any] = (None, None, None)
            if side is not None:
                own = (*side.limits[0], names[side.positive_code(names)])
            needed = side.fewest(part.delta or side.delta) if side is not None and closed else None
            delta = side.delta if side is not None and tested else 0.0
            same = (part.quantity, part.target, part.about) == own and part.rows_needed == needed
            if not same or not math.isclose(part.delta or 0.0, delta, rel_tol=1e-12):
                return f"class {names[code]}: it does not belong to the promise {self!r}; fit again"
            wrong = part.n_accepted - part.n_correct_accepted
            must_not = part.n_rows - part.n_correct + family[1 - code].n_correct
            if not closed and (side is None or not side.carries(part.n_accepted, wrong, must_not)):
                return (
                    f"class {names[code]}: {wrong:,} wrong of {part.n_accepted:,} rows called so"
                    " certify nothing"
                )
        return None

    def _limits_in(self, certificate: Certificate) -> Limits:
        """That of the second class's side, where it has one."""
        items = () if certificate.parts is None else certificate.parts.items[1::-1]
        said = [
            (part.quantity, part.target)
            for part in items
            if part.quantity is not None and part.target is not None
        ]
        return (*said[:1],)


@dataclass
class Side(Sided):
    """A promise about what is called by one class; what is not goes to review."""

    level: float
    positive: Name | None = None
    delta: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction("delta", self.delta)  # certified, or not at all
        self.positive = getattr(
            self.positive, "item", lambda: self.positive
        )()  # NumPy's scalars as Python's

    #: Whether it speaks about what is called positive, or about what is called negative.
    calls_positive: ClassVar[bool] = True

    @property
    def each(self) -> tuple[Side, ...]:
        return (self,)

    def sides(self, names: Sequence[Name]) -> dict[int, Side]:
        return {self.calls(names): self}

    def positive_code(self, names: Sequence[Name]) -> int:
        """Return the column of the positive class, which the promise is about."""
        if self.positive is not None and self.positive not in list(names):
            raise InputError(
                f"positive={self.positive!r} is neither of the classes"
                f" ({', '.join(map(str, names))})."
            )
        return 1 if self.positive is None else list(names).index(self.positive)

    def calls(self, names: Sequence[Name]) -> int:
        """Return the column of the class that rows are called by."""
        positive = self.positive_code(names)
        return positive if self.calls_positive else 1 - positive

    @property
    def bad(self) -> float:
        """The largest share of bad rows that is allowed."""
        return self.limits[0][0].limit_on_bad(self.level)

    def passed(self, ranking: Ranking, known: int | None = None) -> int:
        """How many rows from this end may be called so, of the first `known`: of those strictly
        before the r-th wrong.

        A precision has a rule of its own.
        """
        n = int(ranking.errors[-1])
        r = n + 1 - bounds.certified_miscoverage_rank(n, self.bad, self.delta)
        block = int(np.searchsorted(ranking.errors, max(r, 1)))
        allowed = int(ranking.ranks[block - 1]) if r >= 1 and block else 0
        return allowed if known is None else min(allowed, known)

    def knowing(self, scouts: Scouts | None, code: int) -> Side:
        """The same with what scouts show of the class that rows are called by."""
        return self

    def vacuous(self, codes: Codes, names: Sequence[Name]) -> str | None:
        """What is said where calling every row so would keep the promise; None where it would
        not.
        """
        return None

    def fewest(self, level: float) -> int:
        """How many rows that must not be called so it takes at least."""
        return bounds.correct_rows_needed(self.bad, level)

    def carries(self, called: int, wrong: int, must_not: int) -> bool:
        """Whether these counts certify it."""
        return bool(must_not) and bounds.keeps_enough(
            must_not, must_not - wrong, self.bad, self.delta
        )

    def too_few(self, codes: Codes, names: Sequence[Name]) -> str:
        """What is said where no row may be called so."""
        called, what = self.calls(names), self.limits[0][0]
        rows = f"rows that are {names[1 - called]}; there are {int((codes != called).sum()):,}"
        rows = (
            rows
            if what.of_class
            else "rows without an error from that end of the scores, or more with some"
        )
        promised = what.about(names[self.positive_code(names)])
        return (
            f"{promised} {self.level:g} cannot be certified: at this delta it takes"
            f" {self.fewest(self.delta):,} {rows}"
        )


@dataclass
class MinRecall(Side):
    """At least `level` of the positive class is caught or sent to review: at most 1 - level is
    called negative.

    Rows are called negative where s <= l; all others go to review. An order statistic of the
    positives, exact.

    Parameters
    ----------
    level : float
        The recall, or sensitivity, that is promised.
    positive : label, optional
        The class that must not be missed; the second one when None.
    delta : float
        The promise fails with at most this probability over the calibration rows.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> s = rng.normal(size=4000)
    >>> fraud = rng.random(4000) < 1 / (1 + np.exp(3 - 2 * s))
    >>> found = MinRecall(0.95).certify(Sample(s, fraud, classes=("fine", "fraud")))
    >>> print(found.statement)
    At least 95% of all fraud is caught or sent to review, with 90% confidence.
    >>> round(found.coverage, 2)
    0.48
    """

    limited: ClassVar = {"level": RECALL}
    calls_positive: ClassVar[bool] = False


@dataclass
class MaxFalsePositiveRate(Side):
    """At most `level` of the negative class is called positive.

    Rows are called positive where s > u; everything else goes to review. An order statistic of the
    negatives, exact.

    Parameters
    ----------
    level : float
        The false-positive rate, 1 - specificity.
    positive, delta
        As for `MinRecall`.
    """

    limited: ClassVar = {"level": FALSE_POSITIVE_RATE}


@dataclass
class TwoSided(Sided):
    """Two promises at once: rows are called positive, called negative, or go to review in between.

    Parameters
    ----------
    first, second : MinPrecision, MinRecall or MaxFalsePositiveRate
        One about what is called positive (`MinPrecision(0.9)`, `MaxFalsePositiveRate(0.01)`), one
        about what is called negative (`MinRecall(0.95)`, `MinPrecision(0.99, positive=0)`). Their
        own `delta` does not count.
    delta : float
        Both hold together but with this probability.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> s = rng.normal(size=4000) * 2
    >>> fraud = rng.random(4000) < 1 / (1 + np.exp(1 - 2 * s))
    >>> from metacal.promises.rules.precision import MinPrecision
    >>> promise = TwoSided(MinPrecision(0.9), MinRecall(0.95))
    >>> found = promise.certify(Sample(s, fraud, classes=("fine", "fraud")))
    >>> print(found.statement)
    At least 90% of what is called fraud is fraud, and at least 95% of all fraud is caught or sent to review, with 90%
    confidence for both together.
    >>> print(found.lines[0][1])
    called fraud if log-odds > 0.874561, called fine if log-odds < -0.331437, else review
    """

    first: Side
    second: Side
    delta: float = 0.1

    def __post_init__(self) -> None:
        for side in self.each:
            if not isinstance(side, Side):
                raise InputError(
                    "TwoSided takes two of MinPrecision(...), MinRecall(...),"
                    f" MaxFalsePositiveRate(...); got {side!r}."
                )
        fraction("delta", self.delta)

    limited: ClassVar = {}

    @property
    def limits(self) -> Limits:
        return (*self.first.limits, *self.second.limits)

    @property
    def each(self) -> tuple[Side, ...]:
        return self.first, self.second

    @property
    def scouted(self) -> bool:
        return any(side.scouted for side in self.each)

    def sides(self, names: Sequence[Name]) -> dict[int, Side]:
        both = {side.calls(names): side for side in self.each}
        if len(both) == 1:
            raise InputError(
                f"both promises are about what is called {names[min(both)]}; give one about either"
                " side, say TwoSided(MinPrecision(0.9), MinRecall(0.95))."
            )
        first = 0.5  # the share of delta of the first class's side
        for code, side in both.items():
            if both[1 - code].scouted and side.share is not None:
                of_first = side.share if code == 0 else 1.0 - side.share
                first = (
                    _OF_RARE
                    if of_first <= _RARE
                    else 1.0 - _OF_RARE
                    if of_first >= 1.0 - _RARE
                    else 0.5
                )
        shares = (first, 1.0 - first)
        return {code: replace(side, delta=self.delta * shares[code]) for code, side in both.items()}


def decision_point(sample: Sample, accepted: Mapping[int, int]) -> float:
    """Where calling changes: at even odds, or as near as so many rows called by either class, from
    its end, leave it.

    >>> sample = Sample(np.arange(10.0), np.arange(10) > 4)
    >>> round(decision_point(sample, {}), 3), decision_point(sample, {0: 7, 1: 2})
    (4.5, 6.5)
    """
    ordered, low, high = np.sort(sample.score), accepted.get(0, 0), accepted.get(1, 0)
    finite = ordered[np.isfinite(ordered)]
    ends = float(finite.min(initial=0.0)) - 1.0, float(finite.max(initial=0.0)) + 1.0
    around = np.concatenate([ends[:1], np.clip(ordered, *ends), ends[1:]])
    between = 0.5 * around[:-1] + 0.5 * around[1:]
    lowest, highest = (
        between[low] if low else -np.inf,
        between[len(ordered) - high] if high else np.inf,
    )
    return float(np.clip(sample.even_odds, lowest, highest))
