"""Counts of calibration rows, and checks that the counts of a certificate are consistent.

The *tested* rows certified the promise (`TestedCounts`). The *traffic* rows describe the rows that a
gate receives (`Traffic`). Usually both are the same rows. They differ if some rows only chose the
threshold, or if only correct rows were tested. The coverage of tested rows then says nothing about
the coverage of the traffic, so the two kinds of counts have different types.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

from metacal.certificates.stored_fields import OPTIONAL

if TYPE_CHECKING:
    from metacal.certificates.certificate import Certificate

#: Population that counts describe: that of the sampled rows, or the target of their weights.
Population = Literal["source", "target"]

#: Counts that a file stores as null if the calibration rows had no labels.
COUNTS_THAT_NEED_LABELS = ("n_correct", "n_correct_accepted")


@dataclass(frozen=True)
class Counts:
    """Numbers of all, accepted, correct, and accepted correct rows."""

    n_rows: int
    n_accepted: int
    n_correct: int = field(default=0, metadata=OPTIONAL)
    n_correct_accepted: int = field(default=0, metadata=OPTIONAL)

    @property
    def n_rejected(self) -> int:
        """Number of rejected rows."""
        return self.n_rows - self.n_accepted

    def can_be_subset_of(self, other: Counts) -> bool:
        """Check whether the counted rows can be a subset of those counted by `other`."""
        return (
            self.n_rows <= other.n_rows
            and self.n_accepted <= other.n_accepted
            and self.n_rejected <= other.n_rejected
            and self.n_correct <= other.n_correct
            and self.n_correct_accepted <= other.n_correct_accepted
        )


@dataclass(frozen=True)
class TestedCounts(Counts):
    """Counts of the rows that certified a promise, from which it can be recomputed."""


@dataclass(frozen=True)
class Traffic(Counts):
    """Counts of rows that describe the traffic of a gate, and their population.

    >>> Traffic(100, 80, 90, 76).coverage, Traffic(100, 80, 90, 76).accuracy
    (0.8, 0.95)
    """

    population: Population = "source"

    @property
    def coverage(self) -> float:
        """Accepted share of the rows."""
        return self.n_accepted / self.n_rows

    @property
    def accuracy(self) -> float:
        """Correct share of the accepted rows, NaN if no row is accepted."""
        return self.n_correct_accepted / self.n_accepted if self.n_accepted else math.nan


class ScoreValueCount(NamedTuple):
    """Number of rows, and of incorrect rows, that have the same score."""

    score: float
    n_rows: int
    n_wrong: int


# ── consistency checks ────────────────────────────────────────────────────────────────────────────


def find_traffic_contradiction(
    certificate: Certificate, *, tests_only_some_rows: bool
) -> str | None:
    """Find a contradiction between the counts of all rows and of the tested rows.

    Parameters
    ----------
    certificate : Certificate
        Certificate to check.
    tests_only_some_rows : bool
        Whether the rule tests only some of the calibration rows. If not, the traffic counts must be
        those of the tested rows.

    Returns
    -------
    str or None
        Text of an error message, without a full stop.
    """
    counts_of_all_rows = certificate.all_rows_traffic
    if counts_of_all_rows is None:
        return None
    counts_of_tested_rows = certificate.tested_counts
    if tests_only_some_rows and counts_of_tested_rows.can_be_subset_of(counts_of_all_rows):
        return None
    return (
        f"{counts_of_all_rows.n_accepted:,} of {counts_of_all_rows.n_rows:,} rows accepted is not"
        " the traffic that its rows describe"
    )


def find_planning_row_contradiction(
    certificate: Certificate, *, can_plan_tests_on_rows: bool
) -> str | None:
    """Describe why so many rows cannot have been used only to plan the tests.

    Planning rows are the least certain rows. They are only read to plan the tests of the others.

    Parameters
    ----------
    certificate : Certificate
        Certificate to check.
    can_plan_tests_on_rows : bool
        Whether the rule of the promise can read some rows to plan the tests of the others.

    Returns
    -------
    str or None
        Text of an error message, without a full stop.
    """
    n_planning_rows = certificate.design.n_planning_rows
    if n_planning_rows == 0:
        return None
    tested_counts = certificate.tested_counts
    subgroups = certificate.subgroups
    # Rows that only plan the tests are rejected, so their number is at most that of rejected rows.
    max_planning_rows = tested_counts.n_rejected
    if subgroups is not None and subgroups.is_two_sided:
        # Each predicted class has its own planning rows, so one row may plan the tests of both.
        max_planning_rows = 2 * tested_counts.n_rows
    if can_plan_tests_on_rows and n_planning_rows <= max_planning_rows:
        return None
    return (
        f"{n_planning_rows:,} of {tested_counts.n_rows:,} rows cannot have been only read to plan the tests of the"
        " others"
    )


def find_score_value_contradiction(certificate: Certificate) -> str | None:
    """Find a contradiction between the counts by score and the total counts."""
    value_counts = certificate.score_value_counts
    if not value_counts:
        return None
    is_sorted = all(previous.score < current.score for previous, current in pairwise(value_counts))
    has_valid_counts = all(0 <= value.n_wrong <= value.n_rows for value in value_counts)
    accepted_values = [value for value in value_counts if value.score <= certificate.threshold]
    n_rows = sum(value.n_rows for value in value_counts)
    n_wrong = sum(value.n_wrong for value in value_counts)
    n_accepted = sum(value.n_rows for value in accepted_values)
    n_wrong_accepted = sum(value.n_wrong for value in accepted_values)
    summed_counts = TestedCounts(
        n_rows=n_rows,
        n_accepted=n_accepted,
        n_correct=n_rows - n_wrong,
        n_correct_accepted=n_accepted - n_wrong_accepted,
    )
    if is_sorted and has_valid_counts and summed_counts == certificate.tested_counts:
        return None
    return "the rows of its table of marks are not those that it counts"


def find_label_contradiction(
    certificate: Certificate, *, allows_missing_labels: bool
) -> str | None:
    """Find a contradiction between the number of labels and the other counts.

    Every accepted row has a label. Correct rows are counted among the labelled rows.

    Parameters
    ----------
    certificate : Certificate
        Certificate to check. Without requested labels (`n_labels` is None), it passes.
    allows_missing_labels : bool
        Whether the promise can be certified if rejected rows have no labels.

    Returns
    -------
    str or None
        Text of an error message, without a full stop.
    """
    n_labels = certificate.n_labels
    if n_labels is None:
        return None
    n_rows = certificate.n_rows
    n_accepted = certificate.n_accepted
    n_correct = certificate.n_correct
    if not 1 <= n_labels <= n_rows:
        return f"{n_labels:,} of {n_rows:,} rows cannot have a label"
    if n_labels < n_rows and not allows_missing_labels:
        return f"{n_labels:,} of {n_rows:,} rows have a label, and this promise takes all"
    if n_labels < n_accepted:
        return f"{n_accepted:,} rows are accepted, but only {n_labels:,} have a label"
    n_correct_rejected = n_correct - certificate.n_correct_accepted
    n_labelled_rejected = n_labels - n_accepted
    if not 0 <= n_correct_rejected <= n_labelled_rejected:
        return f"{n_correct:,} of {n_labels:,} rows with a label cannot be right"
    return None
