r"""Scouts: rows whose scores, and nothing else of them, say where the tests of a given score begin.

Scores that are given, a judge's marks, confidences with two decimals, tie. A test at a rank inside
a block of equal scores says nothing of the block, and sorting its wrong rows first, which is valid,
leaves little to certify. So the *values* of the score are tested, each on all rows at or below it,
from a start value upward.

**Why it holds.** Let the start v0 be independent of the rows that are tested, and R(v) be the true
error rate of what scores at most v. All values from v0 on are tested in rising order at level
delta, exactly: given that N(v) rows have a score of at most v, E(v) ~ Bin(N(v), R(v)). One that no
row has stands with the counts of the value below it; the first value whose test fails ends the
walk, and what lies below it is accepted. Let l be the lowest value from v0 on at which, or
immediately above which, R exceeds q = 1 - beta; R(l) >= q. Whoever accepts more than q of errors
has passed the test at l, and P(p(E(l), N(l)) <= delta) <= delta. Nothing is assumed of how errors
go with the score.

**Why rows are set aside.** A start that the tested rows' own counts choose is not independent of
them: where bad values are passed over for having few rows, so are their errors. So a random sqrt(n)
of the rows are set aside, and certify nothing. They also say whether the score ties: where two rows
are equal with a chance below 1/sqrt(n), ranks are tested as for logits, and where no two of the
first ten are, no more rows are set aside. Rows of a pool that stay unlabelled (`Scouts.among`)
choose as well: a bad choice costs coverage, never validity.

**Not valid**: random order among equal scores, then accepting up to the last end of a block below
the last rank that passed. That end may never have been tested: of two marks, .02 and .98 of the
rows, the first with 1.002 times the errors allowed, it breaks .19 of the promises at delta = .1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from metacal.formulas import Codes, Flags, Float
from metacal.promises.circumstances import Circumstances

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metacal.promises.sample import Sample

#: With fewer rows none is set aside, unless the score is known to be a scale of few marks.
_FEWEST_ROWS = 100
#: So many say whether more are needed.
_FIRST = 10
#: Rows that tie with one, on average, where values are tested for a promise about classes.
_ALIKE = 8.0
#: A table of more marks is not shown.
_MOST_MARKS = 25


@dataclass(frozen=True, eq=False)
class Scouts:
    """Scores of rows that certify nothing; `part` has the class or group of each, and `truth` the
    label, if any.

    Attributes
    ----------
    by_value : bool
        Whether values are tested: the score was declared to be a scale, or many of these rows are
        equal.
    aside : int
        How many of the calibration rows they are; 0: they are other rows.
    """

    score: Float
    part: Codes | None = None
    by_value: bool = True
    aside: int = 0
    truth: Codes | None = None

    @classmethod
    def among(cls, pool: Float, drawn: int) -> Scouts:
        """The rest of a pool, in random order, of which so many rows are to be drawn.

        Where the rest is less than a square root of these, the last rows of the pool, ten or so
        many, are not drawn either. Nothing but their scores says how many they are, and whether
        values are tested.
        """
        rest = len(pool) - drawn
        if rest**2 < drawn and drawn >= _FEWEST_ROWS:
            rest = max(rest, _enough(pool[-_FIRST:], drawn))
        scores = pool[len(pool) - rest :]
        ties = rest > 0 and chance_of_a_tie(scores) >= 1.0 / math.sqrt(len(pool) - rest)
        return cls(scores, by_value=ties, aside=drawn + rest - len(pool))

    def of(self, parts: Sequence[int]) -> Scouts:
        """Those of some parts; all of them where nobody knows their parts."""
        if self.part is None:
            return self
        own = np.isin(self.part, parts)
        return replace(
            self,
            score=self.score[own],
            part=None,
            truth=None if self.truth is None else self.truth[own],
        )

    @property
    def values(self) -> Float | None:
        """Their scores, sorted, where values are to be tested and there are some to choose a start
        from.
        """
        return np.sort(self.score) if self.by_value and len(self.score) else None


@dataclass(frozen=True, eq=False)
class Scouting:
    """How rows are set aside as scouts; `scale` has the marks that were declared.

    `random_state` is a seed that the user chose; None derives it from the rows.

    For a promise about the classes themselves (`rules.two_sided`: `labels` is not None) rows are
    drawn whatever their class is; where it is True their labels are asked for, and so many are set
    aside whether or not the score ties.
    """

    random_state: int | None = None
    scale: Float | None = None
    labels: bool | None = None

    def of(self, sample: Sample) -> Sample:
        """The rows that are tested, with their scouts."""
        aside = self._aside(sample)
        if not aside.any():
            return sample
        own = sample.take(aside)
        by_value = self.tests_values(own.score, len(sample))
        scouts = Scouts(own.score, own.part, by_value, int(aside.sum()), own.truth)
        return replace(sample.take(~aside), scouts=scouts)

    def tests_values(self, scores: Float, n: int) -> bool:
        """Whether values are tested: two rows are equal with a chance of at least 1/sqrt(n), as
        these show it.

        Of a class, which may be rare, where a row has eight others like it.
        """
        least = 1.0 / math.sqrt(n) if self.labels is None else min(1.0 / math.sqrt(n), _ALIKE / n)
        return self.scale is not None or chance_of_a_tie(scores) >= least

    def _aside(self, sample: Sample) -> Flags:
        """A random square root of the rows, of each part by itself; ten of them where these show no
        tie.
        """
        flags = np.zeros(len(sample), dtype=bool)
        turns = sample.draws(self.random_state).order("pilot scores")
        part = sample.part
        parts = (
            [turns] if part is None else [turns[part[turns] == i] for i in range(len(sample.names))]
        )
        for rows in parts:
            if len(rows) >= _FEWEST_ROWS or self.scale is not None:
                wanted = self.labels or self.scale is not None
                flags[rows[: _enough(sample.score[rows[:_FIRST]], len(rows), wanted=wanted)]] = True
        return flags

    def circumstances(self, scouts: Scouts) -> Circumstances:
        """Return what a certificate records about the pilot rows."""
        seed = self.random_state if scouts.aside else None
        return Circumstances(by_value=scouts.by_value, aside=scouts.aside, random_state=seed)

    def marks(self, sample: Sample) -> tuple[tuple[float, int, int], ...]:
        """Of a scale of few marks: each, with how many of the tested rows have it and how many of
        those are wrong.
        """
        scouts, ranking, losses = sample.scouts, sample.ranking, sample.losses
        graded = (
            losses is not None and not losses.all_or_nothing
        )  # right and wrong are not what is known
        if scouts is None or not scouts.by_value or sample.part is not None or graded:
            return ()
        scale = ranking.scores if self.scale is None else np.union1d(self.scale, ranking.scores)
        if len(scale) > _MOST_MARKS:
            return ()
        up_to = np.searchsorted(ranking.scores, scale, side="right")
        rows, wrong = (
            np.diff(np.append(0, column)[up_to], prepend=0)
            for column in (ranking.ranks, ranking.errors)
        )
        return tuple(zip(scale.tolist(), rows.tolist(), wrong.tolist()))


def _enough(first: Float, n: int, *, wanted: bool = False) -> int:
    """How many of n rows are set aside: a square root where they are wanted or the first ten tie,
    or these ten.
    """
    return round(math.sqrt(n)) if wanted or chance_of_a_tie(first) > 0.0 else _FIRST


def chance_of_a_tie(scores: Float) -> float:
    """The share of pairs of rows that have the same score.

    >>> chance_of_a_tie(np.array([1.0, 1.0, 2.0, 3.0]))
    0.16666666666666666
    """
    counts = np.unique(scores, return_counts=True)[1].astype(np.float64)
    n = len(scores)
    return float((counts * (counts - 1.0)).sum() / (n * (n - 1.0))) if n > 1 else 0.0
