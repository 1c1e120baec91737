"""Interface of the rules that certify one threshold from one ranking.

A rule is stateless. It does not know about subgroups, clusters, labels that arrive or tables that
are too long to sort. `procedures`, `scopes`, `arriving` and `passes` handle these around any rule.

A rule has two steps. `plan` chooses the tests without the ranking, so that the labels cannot
influence which tests are made. `certify` runs the plan on the ranking.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self

from metacal.certificates.counts import Counts
from metacal.certificates.design import CertificationDesign
from metacal.certificates.quantity import Quantity
from metacal.certification.peeling import LeastCertainRowReader
from metacal.certification.ranking import Ranking
from metacal.formulas import Codes

if TYPE_CHECKING:
    from metacal.certification.plans import PilotRows
    from metacal.certification.rank_plan import RankPlan

# Threshold that accepts every row.
ACCEPT_ALL_ROWS = math.inf

# Threshold that rejects every row.
REJECT_ALL_ROWS = -math.inf


@dataclass(frozen=True)
class SequenceTrace:
    """Record of where a test sequence ended.

    Attributes
    ----------
    highest_passed_rank : int
        Highest rank that passed, or 0 if no rank passed.

    last_read_rank : int
        Rank of the last row whose label was read. The labels of later rows had no influence on the
        result, so these rows can still be used as an unbiased sample.

    n_failures : int
        Number of rank ranges that failed below `highest_passed_rank`.
    """

    highest_passed_rank: int
    last_read_rank: int
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

    n_planning_rows : int
        Number of the least certain rows that were read to plan the tests, and that are rejected.

    tests_tie_blocks : bool
        Whether the ends of tie blocks were tested, because rows near the tested ones tie.
    """

    n_accepted: int = 0
    threshold: float | None = None
    every_test_passed: bool = False
    trace: SequenceTrace | None = None
    n_planning_rows: int = 0
    tests_tie_blocks: bool = False

    @property
    def design(self) -> CertificationDesign:
        """Design that records the kind of tests and the rows read to plan the tests."""
        return CertificationDesign(
            tests_score_values=self.tests_tie_blocks, n_planning_rows=self.n_planning_rows
        )


# Result of a rule that certified no threshold.
NOTHING_CERTIFIED = ThresholdResult()


@dataclass(frozen=True)
class Shortfall:
    """Best certifiable limit and number of rows needed.

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


# Type of a function that checks whether the same rows certify another limit.
Certifies = Callable[[float], bool]


class ThresholdRule(Protocol):
    """Test that certifies one threshold from one ranking."""

    @property
    def name(self) -> str:
        """Name of the rule in certificates and files."""

    @property
    def fallback_threshold(self) -> float:
        """Threshold to use if no threshold is certified.

        It is +inf if accepting every row keeps the promise, and -inf otherwise.
        """

    @property
    def tests_ranks_sequentially(self) -> bool:
        """Whether the test at a rank reads only the labels up to that rank.

        Labels may then be collected in the order of the ranking.
        """

    def plan(
        self,
        n_rows: int,
        limit: float,
        significance_level: float | None,
        pilot_rows: PilotRows | None = None,
        planning_row_reader: LeastCertainRowReader | None = None,
    ) -> RankPlan:
        """Plan the tests without reading a label of the tested rows.

        The plan may depend on the least certain rows, which it reads from `planning_row_reader`.
        The rows that it has read are not tested.
        """

    def certify(
        self,
        ranking: Ranking,
        plan: RankPlan,
        significance_level: float | None,
        max_tested_rank: int | None = None,
    ) -> ThresholdResult:
        """Run the planned tests at the ranks up to `max_tested_rank`.

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
        n_planning_rows: int = 0,
    ) -> Shortfall:
        """Find the best limit that the rows support, and the number of rows needed.

        `certifies` tests another limit. Without it, a best limit that requires a search is omitted.
        `n_planning_rows` rows were only read to plan the tests of the others.
        """

    def convert_target_to_limit(self, quantity: Quantity, target: float) -> float:
        """Convert the target of a promise to the limit that is tested."""

    def count_reference_rows(self, ranking: Ranking) -> int:
        """Count the rows that the tests use."""

    def compute_required_rows(self, limit: float, significance_level: float | None) -> int:
        """Compute the smallest number of counted rows with which a test can pass."""

    def supports(self, counts: Counts, limit: float, significance_level: float | None) -> bool:
        """Check whether counts that were read from a file can certify the limit."""

    def with_early_starts(self) -> Self:
        """Return the rule with tests that start at lower ranks, if it has starting ranks."""


def run_rule(
    rule: ThresholdRule,
    ranking: Ranking,
    limit: float,
    significance_level: float | None,
    *,
    plan_significance_level: float | None = None,
    pilot_rows: PilotRows | None = None,
    max_tested_rank: int | None = None,
    correct_rows_are_rare: bool | None = None,
) -> ThresholdResult:
    """Plan the tests of a rule and run them.

    If the pilot rows show that correct rows are rare, the plan may read the least certain rows of
    the ranking (`metacal.certification.peeling`). No test is made at a rank among the rows that it
    has read, whatever the plan says.

    Parameters
    ----------
    rule : ThresholdRule
        Rule to run.

    ranking : Ranking
        Rows in increasing order of score.

    limit : float
        Limit to certify.

    significance_level : float or None
        Significance level of the tests, or None for a rule in expectation.

    plan_significance_level : float, optional
        Significance level that the tests are planned for, by default `significance_level`.

    pilot_rows : PilotRows, optional
        Pilot rows, which determine where the tests begin.

    max_tested_rank : int, optional
        If given, only ranks up to this one are tested. It must be the end of a tie block.

    correct_rows_are_rare : bool, optional
        Whether at most half of the rows are thought to be correct. By default, the pilot rows show
        it, and without pilot rows no row is read.

    Returns
    -------
    ThresholdResult
    """
    if plan_significance_level is None:
        plan_significance_level = significance_level
    if correct_rows_are_rare is None:
        correct_rows_are_rare = pilot_rows is not None and pilot_rows.shows_few_correct_rows
    if not correct_rows_are_rare or not rule.tests_ranks_sequentially:
        rank_plan = rule.plan(ranking.n_rows, limit, plan_significance_level, pilot_rows)
        return rule.certify(ranking, rank_plan, significance_level, max_tested_rank)

    max_score_kept_unread = -math.inf
    if pilot_rows is not None:
        max_score_kept_unread = pilot_rows.max_score_kept_unread
    planning_row_reader = LeastCertainRowReader.from_ranking(
        ranking, max_score_kept_unread=max_score_kept_unread
    )
    rank_plan = rule.plan(
        ranking.n_rows, limit, plan_significance_level, pilot_rows, planning_row_reader
    )
    n_planning_rows = planning_row_reader.n_read_rows
    if n_planning_rows == 0:
        return rule.certify(ranking, rank_plan, significance_level, max_tested_rank)
    return _certify_without_planning_rows(
        rule,
        ranking,
        rank_plan,
        n_planning_rows=n_planning_rows,
        significance_level=significance_level,
        max_tested_rank=max_tested_rank,
    )


def _certify_without_planning_rows(
    rule: ThresholdRule,
    ranking: Ranking,
    plan: RankPlan,
    *,
    n_planning_rows: int,
    significance_level: float | None,
    max_tested_rank: int | None,
) -> ThresholdResult:
    """Run a plan on all rows but the least certain ones, which the plan depends on."""
    last_tested_rank = ranking.n_rows - n_planning_rows
    if max_tested_rank is not None:
        last_tested_rank = min(max_tested_rank, last_tested_rank)
    threshold_result = rule.certify(ranking, plan, significance_level, last_tested_rank)
    sequence_trace = threshold_result.trace
    if sequence_trace is not None:
        # The labels at the end of the ranking were read to make the plan.
        sequence_trace = replace(sequence_trace, last_read_rank=ranking.n_rows)
    return replace(
        threshold_result,
        trace=sequence_trace,
        n_planning_rows=n_planning_rows,
        tests_tie_blocks=plan.tests_tie_blocks,
    )


def get_last_or_zero(cumulative_counts: Codes) -> int:
    """Return the last cumulative count, or 0 if there is none."""
    if len(cumulative_counts) == 0:
        return 0
    return int(cumulative_counts[-1])
