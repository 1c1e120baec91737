"""MinPrecision: what is called positive is so, at least `level` of the time.

It is the fixed sequence of ranks of `accuracy.certified_prefix`, whose proof holds for any ranking
and any notion of right. Only the starts differ: those of an accuracy are a share of n·(1 - beta)
errors, where a rare class never comes to. Of a class with a share π of all rows λ = n·min(1,
π/beta)·(1 - beta) errors are to be expected at best, and starts allow f·λ, .3·λ, .65·λ of them, f =
min(.12, .03 + 1 - beta), at .9, .05 and .05 of delta. Below λ = 20 there is the first alone, at all
of delta, and below 10 every rank from there on is tested. All that follows from n, beta, delta and
π alone. π is declared (training labels, experience), or that of scouts, a random sqrt(n) of the
rows, which certify nothing; it never comes from the labels that are tested. Without either it is a
half.

Where scouts show that scores tie, values are tested in place of ranks (`promises.scouts` has the
proof), from the one on below which a start with half of these errors is expected. Each side is a
sequence of its own, and its start is independent of the rows that it tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar

import numpy as np

from metacal.formulas import Codes
from metacal.promises.parts.part import Name
from metacal.promises.quantity import PRECISION
from metacal.promises.rules import bounds
from metacal.promises.rules.sequence import Ladder, Starts, walk
from metacal.promises.rules.two_sided import Side
from metacal.promises.sample import Ranking
from metacal.promises.scouts import Scouts
from metacal.rows.arrays import fraction

#: The fallbacks as shares of λ, and of delta.
_FALLBACKS = ((Fraction("0.3"), Fraction("0.05")), (Fraction("0.65"), Fraction("0.05")))
#: With fewer errors to be expected there are none, and with still fewer every rank is tested.
_FEW, _VERY_FEW = 20, 10


@dataclass
class MinPrecision(Side):
    """At least `level` of what is called positive is positive.

    Of the other class it is the negative predictive value: `MinPrecision(0.99, positive="fine")`.
    Everything that is not called so goes to review.

    Parameters
    ----------
    level : float
        The precision, or positive predictive value.
    positive, delta
        As for `MinRecall`.
    share : float, optional
        About how large a share of all rows the class is, from training labels or from experience:
        the tests then begin where such a class is to be expected. Never from the calibration
        labels: where it is left out, `MetaCal` sets a random sqrt(n) of the rows aside to learn it
        from, of each group by itself. `certify`, given a bare `Sample`, sets none aside, and takes
        a half.

    Examples
    --------
    >>> from metacal.promises.sample import Sample
    >>> rng = np.random.default_rng(0)
    >>> s = rng.normal(size=4000)
    >>> fraud = rng.random(4000) < 1 / (1 + np.exp(3 - 2 * s))
    >>> found = MinPrecision(0.6, share=0.15).certify(Sample(s, fraud, classes=("fine", "fraud")))
    >>> print(found.statement)
    At least 60% of what is called fraud is fraud, with 90% confidence.
    """

    share: float | None = None

    limited: ClassVar = {"level": PRECISION}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.share is not None:
            fraction("share", self.share)

    scouted: ClassVar[bool] = True

    def knowing(self, scouts: Scouts | None, code: int) -> MinPrecision:
        if (
            self.share is not None
            or scouts is None
            or scouts.truth is None
            or not len(scouts.truth)
        ):
            return self
        return replace(
            self, share=(float((scouts.truth == code).sum()) + 0.5) / (len(scouts.truth) + 1.0)
        )

    def passed(self, ranking: Ranking, known: int | None = None) -> int:
        """The highest rank that the fixed sequence has passed, of the first `known`: the end of a
        block of ties.
        """
        known = ranking.n if known is None else known
        starts = self.starts(ranking.n)
        if ranking.scouts is None and self.expected(ranking.n) < _VERY_FEW:
            best = every_rank(ranking, starts[0][0], self.level, self.delta, known)
        else:
            starts = starts if ranking.scouts is None else ((starts[0][0] // 2, Fraction(1)),)
            best = (
                walk(ranking, self.level, self.delta, known=known, starts=starts).best
                if known
                else 0
            )
        return ranking.accepted_at(best) if best else 0

    def expected(self, n: int) -> Fraction:
        """How many errors are to be expected of n rows at best."""
        share = bounds.exact(0.5 if self.share is None else self.share) / bounds.exact(self.level)
        return n * min(Fraction(1), share) * (1 - bounds.exact(self.level))

    def starts(self, n: int) -> Starts:
        """The errors that each start allows and its share of delta: from n and what was declared
        alone.

        >>> [errors for errors, _ in MinPrecision(0.9, share=0.05).starts(5000)], len(MinPrecision(0.9).starts(300))
        ([3, 8, 18], 1)
        """
        expected = self.expected(n)
        first = int(
            min(Fraction("0.12"), Fraction("0.03") + 1 - bounds.exact(self.level)) * expected
        )
        if expected < _FEW:
            return ((first, Fraction(1)),)
        return (
            (first, Fraction("0.9")),
            *((int(at * expected), share) for at, share in _FALLBACKS),
        )

    def vacuous(self, codes: Codes, names: Sequence[Name]) -> str | None:
        called = self.calls(names)
        other, share = names[1 - called], float((codes == called).mean()) if len(codes) else 0.0
        if share < self.level:
            return None
        return (
            f"a precision of {self.level:g} for {names[called]} says nothing: {share:.1%} of the"
            f" rows are so, and calling all of them so would keep it. Promise how few {other} slip"
            f" through, MinRecall(0.95, positive={other!r}) (--min-recall), or ask for more than"
            f" {share:.4g}."
        )

    def fewest(self, level: float) -> int:
        """How many rows without an error a test takes."""
        return bounds.error_free_rows_needed(self.level, level)

    def carries(self, called: int, wrong: int, must_not: int) -> bool:
        return bounds.few_enough(wrong, called, self.level, self.delta)


def every_rank(ranking: Ranking, errors: int, level: float, delta: float, known: int) -> int:
    """The highest rank that passes, with all those before it, from the first on at which so many
    errors would; 0: none.

    >>> every_rank(Ranking.of(np.arange(100.0), np.arange(100) < 60), 0, 0.9, 0.1, 100)
    62
    """
    start = Ladder(ranking.n, 1.0 - level, delta).first(errors)
    ranks = np.arange(start, known + 1)
    wrong = np.searchsorted(ranking.stretches.begin[1:], ranks)  # rows before each wrong one
    failed = np.flatnonzero(bounds.binomial_p_value(wrong, ranks, 1.0 - level) > delta)
    passed = int(failed[0]) if len(failed) else len(ranks)
    return start + passed - 1 if passed else 0
