"""UnitCounts: what units of rows that belong together say about a promised share, each by its own two counts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metacal.promises.quantity import Quantity
from metacal.promises.rules import betting
from metacal.promises.sample import Flags, WholeUnits
from metacal.rows.draws import generator

#: Halvings of [0, 1].
_HALVINGS = 30


class UnitCounts(NamedTuple):
    """Of each unit its bad rows and those that are looked at, in random order; how many rows a unit can have.

    With q the share of bad rows that is allowed, (bad - q·of) / largest + q lies between 0 and 1, and is at most q on
    average over units just where the promise about rows is kept: `promises.rules.whole_units`.
    """

    bad: NDArray[np.float64]
    of: NDArray[np.float64]
    largest: int

    @classmethod
    def of_rows(cls, promised: Quantity, units: WholeUnits, accept: Flags, correct: Flags | None) -> UnitCounts:
        """What rows say of a quantity under a gate, unit by unit.

        The order depends on the seed alone: bets on units that a file has sorted would see a drift that is none.
        """
        hit, of = promised.flags(accept, correct)
        own = np.unique(units.code, return_inverse=True)[1]
        n = int(own.max(initial=-1)) + 1
        order = generator(units.seed).permutation(n)
        bad = hit if promised.at_most else of & ~hit
        bad_of, seen_of = (np.bincount(own[flags], minlength=n).astype(np.float64)[order] for flags in (bad, of))
        return cls(bad_of, seen_of, units.largest)

    def values(self, limit: float) -> NDArray[np.float64]:
        """A number between 0 and 1 for each unit, whose mean is at most the limit where the promise is kept."""
        return (self.bad - limit * self.of) / self.largest + limit

    def interval(self, level: float) -> tuple[float, float]:
        """The share of bad rows lies between these, each end with probability 1 - level."""
        ends = []
        for side in (betting.log_capital_above, betting.log_capital_below):
            low, high = 0.0, 1.0
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                values = self.values(middle)
                beyond = side(values, middle, betting.stakes(values, level, middle)) >= -np.log(level)
                low, high = (middle, high) if beyond == (side is betting.log_capital_above) else (low, middle)
            ends.append(low if side is betting.log_capital_above else high)
        return ends[0], ends[1]
