"""Counts of calibration rows: those that certified (`Tested`), and those that describe what arrives
(`Traffic`).

Mostly the two are the same rows. They are not where some rows were set aside, or where only right
rows were looked at, and then neither may stand in for the other: what was certified says nothing
about coverage. So they are two types.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from metacal.certificates.certificate import Certificate

#: Whose traffic rows describe: where the calibration rows come from, or the target that weights
#: describe.
Population = Literal["source", "target"]
#: Of fields that a file has only where they say something.
OPTIONAL = {"optional": True}


@dataclass(frozen=True)
class Counts:
    """How many rows there were, how many of them are accepted, how many right, how many both; 0
    where nobody knows.
    """

    n_rows: int
    n_accepted: int
    n_correct: int = field(default=0, metadata=OPTIONAL)
    n_correct_accepted: int = field(default=0, metadata=OPTIONAL)


@dataclass(frozen=True)
class TestedCounts(Counts):
    """The rows that certified: what a promise is recomputed from when a file is read."""


@dataclass(frozen=True)
class Traffic(Counts):
    """What rows that arrive look like, and whose they are: coverage, accuracy, forecasts, what a
    monitor compares with.

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


# ── counts that cannot be ─────────────────────────────────────────────────────────────────────────


def find_traffic_contradiction(certificate: Certificate, split: bool) -> str | None:
    """What describes the traffic but cannot: the rows that certify do or, after a split, all of
    which they are part.
    """
    if certificate.other_traffic is None:
        return None
    tested, traffic = vars(certificate.tested_counts), vars(certificate.traffic)
    rejected = traffic["n_rows"] - traffic["n_accepted"]
    among = all(count <= traffic[name] for name, count in tested.items())
    if split and among and certificate.n_rows - certificate.n_accepted <= rejected:
        return None
    said = f"{traffic['n_accepted']:,} of {traffic['n_rows']:,} rows accepted"
    return f"{said} is not the traffic that its rows describe"


def find_score_value_contradiction(certificate: Certificate) -> str | None:
    """Whether a table of marks has other rows than the certificate, or the marks are not in
    order.
    """
    table = certificate.marks
    kept = [row for row in table if row[0] <= certificate.threshold]
    rows, wrong, accepted, wrong_accepted = (
        sum(row[i] for row in own) for own in (table, kept) for i in (1, 2)
    )
    counts = (rows, rows - wrong, accepted, accepted - wrong_accepted)
    said = (
        certificate.n_rows,
        certificate.n_correct,
        certificate.n_accepted,
        certificate.n_correct_accepted,
    )
    rising = all(low[0] < high[0] for low, high in pairwise(table))
    fits = rising and counts == said and all(0 <= row[2] <= row[1] for row in table)
    return (
        None if not table or fits else "the rows of its table of marks are not those that it counts"
    )


def find_label_contradiction(certificate: Certificate, *, some_will_do: bool) -> str | None:
    """What cannot be where labels were asked for; None where all agrees, or every row came with its
    label.

    Every accepted row has a label. Of the rejected ones some have, if `some_will_do`, and right
    rows are counted among those with a label.
    """
    labels, n = certificate.labels, certificate.n_rows
    if labels is None:
        return None
    accepted, right = certificate.n_accepted, certificate.n_correct
    if not 1 <= labels <= n:
        return f"{labels:,} of {n:,} rows cannot have a label"
    if labels < n and not some_will_do:
        return f"{labels:,} of {n:,} rows have a label, and this promise takes all"
    if labels < accepted:
        return f"{accepted:,} rows are accepted, but only {labels:,} have a label"
    if not 0 <= right - certificate.n_correct_accepted <= labels - accepted:
        return f"{right:,} of {labels:,} rows with a label cannot be right"
    return None
