"""ThresholdRule: the interface of the tests that certify one threshold from one ranking.

A rule is stateless. It does not know about subgroups, clusters, labels that arrive or tables that
are too long to sort. `procedures`, `scopes`, `arriving` and `passes` handle these around any rule.

A rule has two steps. `plan` chooses the tests without the ranking, so that the labels cannot
influence which tests are made. `certify` runs the plan on the ranking.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

from metacal.certificates.counts import Counts
from metacal.certificates.quantity import Quantity
from metacal.certification.plans import PilotRows, RankPlan
from metacal.certification.ranking import Ranking
from metacal.formulas import Codes

# Threshold that accepts every row.
ACCEPT_ALL_ROWS = math.inf

# Threshold that rejects every row.
REJECT_ALL_ROWS = -math.inf


@dataclass(frozen=True)
class SequenceTrace:
    """End of a test sequence.

    Attributes
    ----------
    best_rank : int
        Highest rank that passed, or 0 if no rank passed.

    stopping_rank : int
        Rank of the last row that influenced the result. The labels of later rows were not read, so
        these rows are still an unbiased sample.

    n_failures : int
        Number of rank ranges that failed below `best_rank`.
    """

    best_rank: int
    stopping_rank: int
    n_failures: int = 0


@dataclass(frozen=True)
class ThresholdResult:
    """Largest threshold that a rule certified.

    Attributes
    ----------
    n_accepted : int
        Number of rows of the ranking that the threshold accepts.

    threshold : float or None
        Largest accepted score, or None if no test passed.

    every_test_passed : bool
        Whether all planned tests passed. The significance level is then not used up, and other
        subgroups may use it (Holm's correction).

    trace : SequenceTrace or None
        End of the test sequence, if the rule runs one.
    """

    n_accepted: int = 0
    threshold: float | None = None
    every_test_passed: bool = False
    trace: SequenceTrace | None = None


# Result of a rule that certified no threshold.
NOTHING_CERTIFIED = ThresholdResult()


@dataclass(frozen=True)
class Shortfall:
    """Explanation of why the rows certify nothing.

    Attributes
    ----------
    best_limit : float or None
        Strictest limit that the rows support. None if they support no limit, or if the search for
        it was skipped.

    rows_needed : int or None
        Approximate number of rows that would certify the limit. None if more rows would not help.
    """

    best_limit: float | None = None
    rows_needed: int | None = None


# Function that returns whether the same rows certify another limit.
Certifies = Callable[[float], bool]


class ThresholdRule(Protocol):
    """Test that certifies one threshold from one ranking."""

    @property
    def name(self) -> str:
        """Name of the rule in certificates and files."""

    @property
    def fallback_threshold(self) -> float:
        """Threshold to use if nothing is certified.

        It is +inf if accepting every row keeps the promise, and -inf otherwise.
        """

    @property
    def reads_labels_in_order(self) -> bool:
        """Whether the test at a rank reads only the labels up to that rank.

        Labels may then be collected in the order of the ranking.
        """

    def plan(
        self,
        n_rows: int,
        limit: float,
        significance_level: float | None,
        pilot: PilotRows | None = None,
    ) -> RankPlan:
        """Plan the tests without reading a label of the tested rows."""

    def certify(
        self,
        ranking: Ranking,
        plan: RankPlan,
        significance_level: float | None,
        last_rank: int | None = None,
    ) -> ThresholdResult:
        """Run the plan on the ranks up to `last_rank`.

        Raises
        ------
        FinerCountsNeeded
            If the ranking contains only counts, and the result depends on the order of the rows
            within a cell.
        """

    def find_shortfall(
        self,
        ranking: Ranking,
        limit: float,
        significance_level: float | None,
        certifies: Certifies | None = None,
    ) -> Shortfall:
        """Explain why the rows certify nothing.

        `certifies` tests another limit. Without it, a best limit that requires a search is omitted.
        """

    def convert_target_to_limit(self, quantity: Quantity, target: float) -> float:
        """Convert the target of a promise to the limit that the tests are about."""

    def count_reference_rows(self, ranking: Ranking) -> int:
        """Count the rows that the tests use."""

    def compute_required_rows(self, limit: float, significance_level: float | None) -> int:
        """Compute the smallest number of counted rows with which a test can pass."""

    def supports(self, counts: Counts, limit: float, significance_level: float | None) -> bool:
        """Check whether counts that were read from a file can certify the limit."""

    def with_early_starts(self) -> Self:
        """Return the rule for subgroups under the false-coverage rate."""

    def with_correct_share(self, correct_share: float) -> Self:
        """Return the rule for a declared or estimated share of correct rows."""


def get_last_or_zero(cumulative_counts: Codes) -> int:
    """Return the last of some cumulative counts, or 0 if there are none."""
    return int(cumulative_counts[-1:].sum())
