r"""Two classes, two sides: what is called positive, what is called negative, and between them what people review.

With s the log-odds of the positive class (any score that rises with it will do), rows are called positive iff s > u,
and negative iff s <= l. A side is certified by itself on all n rows, ranked from its own end, with *right* = "is of the
class it is called":

- `MinPrecision`, P(positive | called positive) >= beta, the positive predictive value: the fixed sequence of ranks of
  `accuracy.certified_prefix`, whose proof holds for any ranking and any notion of right. Only the starts differ: those
  of an accuracy are a share of n·(1 - beta) errors, where a rare class never comes to. With a declared `share` π of the
  class λ = n·min(1, π/beta)·(1 - beta) errors are to be expected at best, and starts allow f·λ, .3·λ, .65·λ of them, f
  = min(.12, .03 + 1 - beta), at .9, .05 and .05 of delta. Without, they allow 0, 1, 3, 8, 20, 50, 120 and 300 errors at
  an eighth each. Both follow from n, beta, delta and π alone: π may come from training labels or from the user, never
  from the calibration labels.
- `MinRecall`, P(called negative | positive) <= 1 - level, and `MaxFalsePositiveRate`, P(called positive | negative) <=
  level: of the n₁ rows that must not be called so, the r-th from the end; strictly beyond it lies P ~ Beta(r, n₁ + 1 -
  r) (Tong, Feng & Li 2018). The largest r with P(Bin(n₁, limit) <= r - 1) <= delta.

**Both sides** have half of delta each; the union bound does the rest. Of two predictive values the side of a class
declared rare has .8 of delta, the other .2. Where u < l, both walks have passed ranks that overlap. Every rank that a
walk has passed is certified, all at once: each side then takes the highest of them on its own side of even calibrated
odds, a point that may depend on labels since it only chooses among what is certified. (The point itself is no
threshold: it was never tested, and breaks up to .9 of promises.) A threshold lies just before the next row that is not
accepted, never at a row.

A side whose rows cannot carry its promise is closed, and its rows go to review. Only where no side is left it is an
error. So is a predictive value that the share of the class reaches without any score: it says nothing. (That is asked
of the labels, and can only make broken promises fewer: one that is refused is not made.)
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from metacal.errors import InfeasibleTargetError, InputError
from metacal.kernels.grid import RELATIVE
from metacal.promises.certificate import Certificate
from metacal.promises.parts.part import Name, Part, Parts
from metacal.promises.promise import Promise
from metacal.promises.quantity import FALSE_POSITIVE_RATE, PRECISION, RECALL, Limits
from metacal.promises.rules import bounds
from metacal.promises.rules.even_odds import decision_point, even_odds, rows_below
from metacal.promises.rules.sequence import walk
from metacal.promises.sample import Codes, Outcome, Ranking, Sample, Scores
from metacal.promises.words import SAME_SOURCE, register_rule
from metacal.rows.arrays import fraction

SIDES = register_rule(
    "two-sided",
    "each side by itself: a precision by exact binomial tests in a fixed sequence of ranks with fallback shares of "
    "delta (Wiens 2003), a recall or false-positive rate by an order statistic (Tong, Feng & Li 2018)",
    SAME_SOURCE,
)
#: Errors that starts allow where nothing is known of how rare a class is; each has an equal share of delta.
_GEOMETRIC = (0, 1, 3, 8, 20, 50, 120, 300)
#: With a declared share: the fallbacks as shares of λ, and of delta.
_FALLBACKS = ((Fraction("0.3"), Fraction("0.05")), (Fraction("0.65"), Fraction("0.05")))

#: A class of no more than this share is rare: its side has so much of delta.
_RARE, _OF_RARE = 0.2, 0.8


class Sided(Promise):
    """A promise about what rows of two classes are called. Its rows are log-odds, right where of the second class."""

    rules: ClassVar = (SIDES, SIDES)
    sided: ClassVar[bool] = True

    @abstractmethod
    def sides(self, names: Sequence[Name]) -> dict[int, Side]:
        """What is promised of rows that are called by either class, each with its share of delta."""

    def from_sample(self, sample: Sample) -> Certificate:
        """Certify each side; a sample's `part` has the class of each row, -1 for none, its `names` the classes."""
        classes = sample.part is not None and np.array_equal(sample.part == 1, sample.right)  # and no groups
        codes = sample.part if classes and sample.part is not None else sample.right.astype(np.intp)
        names = sample.names or (0, 1)
        sides, s = self.sides(names), sample.score
        rankings = [Ranking.of(RELATIVE.rounded(s), codes == 0), Ranking.of(RELATIVE.rounded(-s), codes == 1)]
        accepted = {code: side.passed(rankings[code]) for code, side in sides.items()}
        for code, side in sides.items():
            if isinstance(side, MinPrecision):
                side.check_says_something(codes, code, names)
        even = even_odds(s, codes == 1)
        if sum(accepted.values()) > len(s):
            for code, side in sides.items():
                accepted[code] = side.passed(rankings[code], rows_below(rankings[code], -even if code else even))
        if not any(accepted.values()):
            said = "; ".join(side.too_few(rankings[code], names) for code, side in sides.items())
            raise InfeasibleTargetError(f"{said}.", target=self.limits[0][1], best=None, rows_needed=None)
        at = decision_point(np.sort(s), accepted.get(0, 0), accepted.get(1, 0), even)
        return self._with_sides(s, codes, at, accepted, names)

    def _with_sides(
        self, s: Scores, codes: Codes, at: float, accepted: Mapping[int, int], names: Sequence[Name]
    ) -> Certificate:
        """The certificate of a decision between the classes, and of so many rows called from either end."""
        called, doubt, sides = s > at, RELATIVE.rounded(-np.abs(s - at)), self.sides(names)
        parts = []
        for code in (0, 1):
            own = called == (code == 1)
            ranking, side = Ranking.of(doubt[own], codes[own] == code), sides.get(code)
            threshold = RELATIVE.settled(_threshold(ranking, accepted.get(code, 0)))
            facts: dict[str, Any] = {} if side is None else side.facts
            needed = side.fewest() if side is not None and threshold == -math.inf else None
            seen = ranking.outcome(threshold)._asdict()
            parts.append(Part((names[code],), threshold=threshold, rows_needed=needed, **seen, **facts))
        counts = {name: sum(getattr(part, name) for part in parts) for name in Outcome._fields[:4]}
        first = next(part.quantity for part in reversed(parts) if part.quantity is not None)
        target = next(part.target for part in reversed(parts) if part.target is not None)
        found = self._certified(-math.inf, Outcome(**counts, highest_accepted=None, lowest_rejected=None))
        found = replace(found, quantity=first, target=target, max_miscoverage=None, score="margin")
        return replace(found, decision_at=at, parts=Parts("class", "together", tuple(parts)))

    def impossible(self, certificate: Certificate) -> str | None:
        parts = certificate.parts
        items = () if parts is None else parts.items
        said = [(part.quantity, part.target) for part in items if part.quantity is not None]
        first = (certificate.quantity, certificate.target)
        if parts is None or len(parts.items) != 2 or parts.by != "class" or said[-1:] != [first]:
            return f"it does not belong to the promise {self!r}; fit again"
        names = [part.names[0] for part in parts.items]
        sides = self.sides(names)
        for code, part in enumerate(parts.items):
            side = sides.get(code)
            own = {"delta": part.delta, "quantity": part.quantity, "target": part.target}
            if own != (dict.fromkeys(own) if side is None else side.facts):
                return f"class {part.name}: it does not belong to the promise {self!r}; fit again"
            wrong = part.n_accepted - part.n_correct_accepted
            must_not = part.n_rows - part.n_correct + parts.items[1 - code].n_correct
            if part.threshold != -math.inf and (side is None or not side.carries(part.n_accepted, wrong, must_not)):
                return f"class {part.name}: {wrong:,} wrong of {part.n_accepted:,} rows called so certify nothing"
        return None

    def _limits_in(self, certificate: Certificate) -> Limits:
        return ((certificate.quantity, certificate.target),)


@dataclass
class Side(Sided):
    """A promise about what is called by one class; what is not goes to review."""

    level: float
    positive: Name | None = None
    delta: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction("delta", self.delta)  # certified, or not at all
        self.positive = getattr(self.positive, "item", lambda: self.positive)()  # NumPy's scalars as Python's

    #: Whether it speaks about what is called positive, or about what is called negative.
    calls_positive: ClassVar[bool] = True

    def sides(self, names: Sequence[Name]) -> dict[int, Side]:
        return {self.calls(names): self}

    def calls(self, names: Sequence[Name]) -> int:
        """The number of the class that rows are called by."""
        if self.positive is not None and self.positive not in list(names):
            raise InputError(f"positive={self.positive!r} is neither of the classes ({', '.join(map(str, names))}).")
        positive = 1 if self.positive is None else list(names).index(self.positive)
        return positive if self.calls_positive else 1 - positive

    @property
    def bad(self) -> float:
        """The largest share of bad rows that is allowed."""
        return self.limits[0][0].limit_on_bad(self.level)

    def passed(self, ranking: Ranking, known: int | None = None) -> int:
        """How many rows from this end may be called so, of the first `known`: of those strictly before the r-th wrong.

        A precision has a rule of its own.
        """
        n = int(ranking.errors[-1])
        r = n + 1 - bounds.certified_miscoverage_rank(n, self.bad, self.delta)
        block = int(np.searchsorted(ranking.errors, max(r, 1)))
        allowed = int(ranking.ranks[block - 1]) if r >= 1 and block else 0
        return allowed if known is None else min(allowed, known)

    def fewest(self) -> int:
        """How many rows that must not be called so it takes at least."""
        return bounds.correct_rows_needed(self.bad, self.delta)

    @property
    def facts(self) -> dict[str, Any]:
        """What the part of a certificate says of it."""
        return {"delta": self.delta, "quantity": self.limits[0][0], "target": float(self.level)}

    def carries(self, called: int, wrong: int, must_not: int) -> bool:
        """Whether these counts certify it."""
        return bool(must_not) and bounds.keeps_enough(must_not, must_not - wrong, self.bad, self.delta)

    def too_few(self, ranking: Ranking, names: Sequence[Name]) -> str:
        """What is said where no row may be called so."""
        wrong, what = int(ranking.errors[-1]), self.limits[0][0]
        rows = f"rows that are {names[1 - self.calls(names)]}; there are {wrong:,}"
        rows = rows if what.of_class else "rows without an error from that end of the scores, or more with some"
        return f"{what} {self.level:g} cannot be certified: at this delta it takes {self.fewest():,} {rows}"


@dataclass
class MinRecall(Side):
    """At least `level` of the positive class is caught or sent to review: at most 1 - level is called negative.

    Rows are called negative where s <= l; everything else goes to review. An order statistic of the positives, exact.

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
    >>> found = MinRecall(0.95).certify(Sample(s, fraud, names=("fine", "fraud")))
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

    Rows are called positive where s > u; everything else goes to review. An order statistic of the negatives, exact.

    Parameters
    ----------
    level : float
        The false-positive rate, 1 - specificity.
    positive, delta
        As for `MinRecall`.
    """

    limited: ClassVar = {"level": FALSE_POSITIVE_RATE}


@dataclass
class MinPrecision(Side):
    """At least `level` of what is called positive is positive.

    Of the other class it is the negative predictive value: `MinPrecision(0.99, positive="fine")`. Everything that is
    not called so goes to review.

    Parameters
    ----------
    level : float
        The precision, or positive predictive value.
    positive, delta
        As for `MinRecall`.
    share : float, optional
        About how large a share of all rows the class is, from training labels or from experience: the tests then begin
        where such a class is to be expected. Never from the calibration labels.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> s = rng.normal(size=4000)
    >>> fraud = rng.random(4000) < 1 / (1 + np.exp(3 - 2 * s))
    >>> found = MinPrecision(0.6, share=0.15).certify(Sample(s, fraud, names=("fine", "fraud")))
    >>> print(found.statement)
    At least 60% of what is called fraud is fraud, with 90% confidence.
    """

    share: float | None = None

    limited: ClassVar = {"level": PRECISION}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.share is not None:
            fraction("share", self.share)

    def passed(self, ranking: Ranking, known: int | None = None) -> int:
        """The highest rank that the fixed sequence has passed, of the first `known`: the end of a block of ties."""
        if known == 0:
            return 0
        best = walk(ranking, self.level, self.delta, known=known, starts=self.starts(ranking.n)).best
        return ranking.accepted_at(best) if best else 0

    def starts(self, n: int) -> tuple[tuple[int, Fraction], ...]:
        """The errors that each start allows and its share of delta: from n and what was declared alone.

        >>> [errors for errors, _ in MinPrecision(0.9, share=0.05).starts(5000)], len(MinPrecision(0.9).starts(5000))
        ([3, 8, 18], 8)
        """
        if self.share is None:
            return tuple((errors, Fraction(1, len(_GEOMETRIC))) for errors in _GEOMETRIC)
        rate = 1 - bounds.exact(self.level)
        expected = n * min(Fraction(1), bounds.exact(self.share) / bounds.exact(self.level)) * rate
        first = int(min(Fraction("0.12"), Fraction("0.03") + rate) * expected)
        return ((first, Fraction("0.9")), *((int(at * expected), share) for at, share in _FALLBACKS))

    def check_says_something(self, codes: Codes, code: int, names: Sequence[Name]) -> None:
        """Raise where calling every row so would keep the promise."""
        share = float((codes == code).mean()) if len(codes) else 0.0
        if share >= self.level:
            other = names[1 - code]
            raise InputError(
                f"a precision of {self.level:g} for {names[code]} says nothing: {share:.1%} of the rows are so, and "
                f"calling all of them so would keep it. Promise how few {other} slip through, MinRecall(0.95, "
                f"positive={other!r}) (--min-recall), or ask for more than {share:.4g}."
            )

    def fewest(self) -> int:
        """How many rows without an error a test takes."""
        return bounds.error_free_rows_needed(self.level, self.delta)

    def carries(self, called: int, wrong: int, must_not: int) -> bool:
        return bounds.few_enough(wrong, called, self.level, self.delta)


@dataclass
class TwoSided(Sided):
    """Two promises at once: rows are called positive, called negative, or go to review in between.

    Parameters
    ----------
    first, second : MinPrecision, MinRecall or MaxFalsePositiveRate
        One about what is called positive (`MinPrecision(0.9)`, `MaxFalsePositiveRate(0.01)`), one about what is called
        negative (`MinRecall(0.95)`, `MinPrecision(0.99, positive=0)`). Their own `delta` does not count.
    delta : float
        Both hold together but with this probability.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> s = rng.normal(size=4000) * 2
    >>> fraud = rng.random(4000) < 1 / (1 + np.exp(1 - 2 * s))
    >>> promise = TwoSided(MinPrecision(0.9), MinRecall(0.95))
    >>> found = promise.certify(Sample(s, fraud, names=("fine", "fraud")))
    >>> print(found.statement)
    At least 90% of what is called fraud is fraud, and at least 95% of all fraud is caught or sent to review, with 90%
    confidence for both together.
    >>> print(found.lines[0][1])
    called fraud if log-odds > 0.87628, called fine if log-odds <= -0.331437, else review
    """

    first: Side
    second: Side
    delta: float = 0.1

    def __post_init__(self) -> None:
        for side in (self.first, self.second):
            if not isinstance(side, Side):
                raise InputError(
                    f"TwoSided takes two of MinPrecision(...), MinRecall(...), MaxFalsePositiveRate(...); got {side!r}."
                )
        fraction("delta", self.delta)

    limited: ClassVar = {}

    @property
    def limits(self) -> Limits:
        return (*self.first.limits, *self.second.limits)

    def sides(self, names: Sequence[Name]) -> dict[int, Side]:
        both = {side.calls(names): side for side in (self.first, self.second)}
        if len(both) == 1:
            (code,) = both
            raise InputError(
                f"both promises are about what is called {names[code]}; give one about either side, say "
                "TwoSided(MinPrecision(0.9), MinRecall(0.95))."
            )
        first = 0.5  # the share of delta of the first class's side
        for code, side in both.items():
            if isinstance(side, MinPrecision) and isinstance(both[1 - code], MinPrecision) and side.share is not None:
                of_first = side.share if code == 0 else 1.0 - side.share
                first = _OF_RARE if of_first <= _RARE else 1.0 - _OF_RARE if of_first >= 1.0 - _RARE else 0.5
        shares = (first, 1.0 - first)
        return {code: replace(side, delta=self.delta * shares[code]) for code, side in both.items()}


def _threshold(ranking: Ranking, accepted: int) -> float:
    """Just before the next row, where so many of its rows are called so; rows that tie with that one are not."""
    if not accepted or not ranking.n:
        return -math.inf
    if accepted >= ranking.n:
        return math.inf
    block = int(np.searchsorted(ranking.ranks, accepted, side="right"))
    return ranking.just_below_next(int(ranking.ranks[block - 1])) if block else -math.inf
