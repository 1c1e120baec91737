"""Counts of calibration rows: those that certified (`Tested`), and those that describe what arrives (`Traffic`).

Mostly the two are the same rows. They are not where some rows were set aside, or where only right rows were looked at,
and then neither may stand in for the other: what was certified says nothing about coverage. So they are two types.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

#: Whose traffic rows describe: where the calibration rows come from, or the target that weights describe.
Population = Literal["source", "target"]
#: Of fields that a file has only where they say something.
OPTIONAL = {"optional": True}


@dataclass(frozen=True)
class Counts:
    """How many rows there were, how many of them are accepted, how many right, how many both; 0 where nobody knows."""

    n_rows: int
    n_accepted: int
    n_correct: int = field(default=0, metadata=OPTIONAL)
    n_correct_accepted: int = field(default=0, metadata=OPTIONAL)


@dataclass(frozen=True)
class Tested(Counts):
    """The rows that certified: what a promise is recomputed from when a file is read."""


@dataclass(frozen=True)
class Traffic(Counts):
    """What rows that arrive look like, and whose they are: coverage, accuracy, forecasts, what a monitor compares with.

    >>> Traffic(100, 80, 90, 76).coverage, Traffic(100, 80, 90, 76).accuracy
    (0.8, 0.95)
    """

    population: Population = "source"

    @property
    def coverage(self) -> float:
        """Share of them that is accepted."""
        return self.n_accepted / self.n_rows

    @property
    def accuracy(self) -> float:
        """Share of right ones among the accepted; nan where none is."""
        return self.n_correct_accepted / self.n_accepted if self.n_accepted else math.nan
