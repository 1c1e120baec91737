"""How many of the next rows go to review: a prediction interval, before any of them has been seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from metacal.errors import InputError
from metacal.rows.validate import fraction

#: Every count has its probability computed.
_MOST_ROWS = 10_000_000


@dataclass(frozen=True)
class NextRows:
    """How many of the next `rows` rows go to review: at least `fewest` and at most `most`, with probability `level`.

    Examples
    --------
    >>> print(next_rows(1000, accepted=892, of=1000))
    of the next 1,000 rows 86 to 131 go to review (90% interval)
    >>> print(next_rows(50, accepted=200, of=200))
    none of the next 50 rows goes to review
    """

    rows: int
    level: float
    fewest: int
    most: int

    def __str__(self) -> str:
        if self.most == 0:
            return f"none of the next {self.rows:,} rows goes to review"
        share = f"{100 * self.level:.6g}%"
        return f"of the next {self.rows:,} rows {self.fewest:,} to {self.most:,} go to review ({share} interval)"

    def to_dict(self) -> dict[str, float]:
        """As plain JSON types."""
        return {"rows": self.rows, "level": self.level, "fewest": self.fewest, "most": self.most}


def next_rows(rows: int, level: float = 0.9, *, accepted: int, of: int) -> NextRows:
    """The equal-tailed interval of a beta-binomial count, for a gate that accepts `accepted` `of` calibration rows.

    The threshold lies just below the (m+1)-th of n scores, so the true share of accepted rows is Beta(m+1, n-m), and of
    N new rows BetaBinomial(N, m+1, n-m) are accepted. Exact for a rank m that was fixed beforehand; where labels chose
    it, measured: 90% intervals cover 89 to 93%. A binomial with the calibration's share covers 76 to 80%: it takes for
    known what a finite calibration set only estimates.
    """
    if isinstance(rows, bool) or not isinstance(rows, int | np.integer) or not 1 <= rows <= _MOST_ROWS:
        raise InputError(f"rows must be a whole number from 1 to {_MOST_ROWS:,}, got {rows!r}.")
    fraction("level", level)
    if accepted == of:
        return NextRows(int(rows), float(level), 0, 0)
    # Reviewed rows: the same with the two sides exchanged.
    a, b, n = of - accepted, accepted + 1, int(rows)
    count = np.arange(n + 1.0)
    log_mass = (
        gammaln(n + 1.0) - gammaln(count + 1.0) - gammaln(n - count + 1.0) + gammaln(count + a) + gammaln(n - count + b)
    )
    mass = np.exp(log_mass - log_mass.max())
    below = np.cumsum(mass) / mass.sum()
    tail = (1.0 - level) / 2.0
    fewest = int(np.searchsorted(below, tail, side="right"))
    most = int(np.searchsorted(below, 1.0 - tail, side="left"))
    return NextRows(n, float(level), fewest, min(most, n))
