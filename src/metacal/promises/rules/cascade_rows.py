"""What two models say about the same rows, and what a pair of thresholds does to them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal.promises.certificate import accepts

Scores = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Paired:
    """What both models say about the same rows: ranking scores, whether each is right, whether a label is known.

    Where no label is known both `right` columns are False: such rows count where the two agree, as "neither".
    """

    small_score: Scores
    large_score: Scores
    small_right: Flags
    large_right: Flags
    agree: Flags
    known: Flags

    def __len__(self) -> int:
        return len(self.small_score)

    def take(self, rows: NDArray[np.intp]) -> Paired:
        """Some of the rows."""
        return Paired(*(column[rows] for column in vars(self).values()))


class Candidate(NamedTuple):
    """Thresholds of the two gates; the large one is +inf where nothing goes to people."""

    small: float
    large: float = math.inf


class Counts(NamedTuple):
    """What a candidate does to rows."""

    small: int
    large: int
    person: int
    worse: int
    better: int
    wrong_small: int
    wrong_large: int

    @property
    def answered(self) -> int:
        """Rows that a model answers."""
        return self.small + self.large

    @property
    def wrong(self) -> int:
        """Those of them that are wrong."""
        return self.wrong_small + self.wrong_large


def counts(rows: Paired, candidate: Candidate) -> Counts:
    """Who answers how many of the rows, and how many of them are wrong.

    Examples
    --------
    >>> flags = np.array([True, True, False, False])
    >>> rows = Paired(np.arange(4.0), np.arange(4.0), flags, ~flags, np.zeros(4, dtype=bool), np.ones(4, dtype=bool))
    >>> counts(rows, Candidate(0.5))
    Counts(small=1, large=3, person=0, worse=0, better=1, wrong_small=0, wrong_large=1)
    """
    small = accepts(rows.small_score, candidate.small)
    large = ~small & accepts(rows.large_score, candidate.large)
    columns = (
        small,
        large,
        ~small & ~large,
        small & ~rows.small_right & rows.large_right,
        small & rows.small_right & ~rows.large_right,
        small & ~rows.small_right,
        large & ~rows.large_right,
    )
    return Counts(*(int(np.count_nonzero(column)) for column in columns))
