"""Threshold rules based on a single order statistic of the scores.

Two rules choose a threshold so that at most a given fraction of some rows falls
on the wrong side of it. `RejectionRateRule` bounds the fraction that is rejected.
`AcceptanceRateRule` bounds the fraction that is accepted. Both implement
`metacal.certification.rules.rule.ThresholdRule`.

Terms used in this module:

- *score*: uncertainty of a prediction. A row is accepted if its score is at most
  the threshold.
- *reference rows*: the rows whose fraction is bounded, for example all correct
  rows. They are the denominator of the rate.
- *tie block*: rows with equal scores. A `Ranking` stores one entry per tie block,
  in increasing order of score, with cumulative counts of rows and of errors.
- *significance level*: largest allowed probability that the chosen threshold
  breaks the limit. A caller that runs one test passes delta, the error probability
  of the whole promise. A caller that runs several tests passes a part of delta. If
  the significance level is None, the limit holds in expectation instead.
- *starting rank*: first rank of a sequence of tests. The rules below choose one
  order statistic and run no sequence, so they have no starting rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from metacal.certificates.counts import Counts
from metacal.certificates.quantity import Quantity
from metacal.certification.rank_plan import RankPlan
from metacal.certification.ranking import Ranking
from metacal.certification.rules.rule import (
    ACCEPT_ALL_ROWS,
    NOTHING_CERTIFIED,
    REJECT_ALL_ROWS,
    Certifies,
    Shortfall,
    ThresholdResult,
    get_last_or_zero,
)
from metacal.formulas import Codes
from metacal.statistics import bounds

if TYPE_CHECKING:
    from metacal.certification.peeling import LeastCertainRowReader
    from metacal.certification.plans import PilotRows


@dataclass(frozen=True)
class RejectionRateRule:
    """Rule that bounds the fraction of reference rows that are rejected.

    The threshold is the k-th smallest score of the reference rows. The rank k is
    the smallest one for which the bound on the rejection rate holds, so the rule
    rejects as many rows as the limit allows.

    Parameters
    ----------
    reference_rows : {"correct", "all"}, default="correct"
        Rows whose rejection rate is bounded. Use "correct" for the miscoverage
        (false rejection rate) and "all" for the review rate.

    name : str, default="umbrella"
        Name of the rule in certificates and files.

    References
    ----------
    Tong, Feng & Li, "Neyman-Pearson classification algorithms and NP receiver
    operating characteristics", Science Advances, 2018.
    """

    reference_rows: Literal["correct", "all"] = "correct"
    name: str = "umbrella"

    # If nothing is certified, every row is accepted, so the rejection rate is 0.
    fallback_threshold = ACCEPT_ALL_ROWS

    # All labels are read, because the tested rank depends on the number of reference rows.
    tests_ranks_sequentially = False

    def plan(
        self,
        n_rows: int,
        limit: float,
        significance_level: float | None,
        pilot_rows: PilotRows | None = None,
        planning_row_reader: LeastCertainRowReader | None = None,
    ) -> RankPlan:
        """Build a plan that contains only the limit.

        The rule runs no sequence of tests, so `n_rows`, `significance_level` and
        `pilot_rows` have no effect.
        """
        return RankPlan(limit=limit)

    def certify(
        self,
        ranking: Ranking,
        plan: RankPlan,
        significance_level: float | None,
        max_tested_rank: int | None = None,
    ) -> ThresholdResult:
        """Find the smallest threshold whose rejection rate is within the limit.

        Parameters
        ----------
        ranking : Ranking
            Calibration rows in increasing order of score.

        plan : RankPlan
            Plan that holds the limit on the rejection rate.

        significance_level : float or None
            Largest allowed probability that the rejection rate exceeds the limit.
            If None, the limit holds in expectation.

        max_tested_rank : int, default=None
            Ignored. Present for compatibility with `ThresholdRule`.

        Returns
        -------
        ThresholdResult
            The threshold, or `NOTHING_CERTIFIED` if there are too few reference
            rows to reject any row.

        Raises
        ------
        FinerCountsNeeded
            If the ranking contains only counts for a tie block next to the
            threshold, so that the threshold is not determined.
        """
        cumulative_reference_rows = self._count_reference_rows_up_to_blocks(ranking)
        n_reference_rows = get_last_or_zero(cumulative_reference_rows)
        # The threshold is the score of the reference row with this rank among reference rows.
        threshold_rank = bounds.smallest_rank_keeping_miscoverage(
            n_reference_rows, plan.limit, significance_level
        )
        threshold_block = int(np.searchsorted(cumulative_reference_rows, threshold_rank))
        n_tie_blocks = len(cumulative_reference_rows)
        has_too_few_reference_rows = threshold_rank > n_reference_rows
        if has_too_few_reference_rows:
            last_tie_block = n_tie_blocks - 1
            ranking.require_known_order_in_blocks([last_tie_block])
            return NOTHING_CERTIFIED

        next_block = threshold_block + 1
        ranking.require_known_order_in_blocks([threshold_block, next_block])
        return ThresholdResult(
            n_accepted=int(ranking.tie_block_end_ranks[threshold_block]),
            threshold=float(ranking.tie_block_scores[threshold_block]),
        )

    def find_shortfall(
        self,
        ranking: Ranking,
        limit: float,
        significance_level: float | None,
        certifies: Certifies | None = None,
        n_planning_rows: int = 0,
    ) -> Shortfall:
        """Compute the smallest certifiable limit and the number of rows needed.

        Both values have a closed form, so `certifies`, which tests another limit,
        is not called.

        Returns
        -------
        Shortfall
            `best_limit` is the smallest rejection rate at which these rows allow
            any rejection, or None without reference rows. `rows_needed` is the
            number of reference rows that `limit` requires.
        """
        n_required_rows = self.compute_required_rows(limit, significance_level)
        n_reference_rows = self.count_reference_rows(ranking)
        if n_reference_rows == 0:
            return Shortfall(best_limit=None, rows_needed=n_required_rows)

        smallest_limit = bounds.smallest_certifiable_miscoverage(
            n_reference_rows, significance_level
        )
        return Shortfall(best_limit=smallest_limit, rows_needed=n_required_rows)

    def convert_target_to_limit(self, quantity: Quantity, target: float) -> float:
        """Convert the target of a promise to a limit on the rejection rate."""
        return quantity.max_violation_rate(target)

    def count_reference_rows(self, ranking: Ranking) -> int:
        """Count the reference rows."""
        return get_last_or_zero(self._count_reference_rows_up_to_blocks(ranking))

    def compute_required_rows(self, limit: float, significance_level: float | None) -> int:
        """Compute how many reference rows are needed to reject any row."""
        return bounds.correct_rows_needed(limit, significance_level)

    def supports(self, counts: Counts, limit: float, significance_level: float | None) -> bool:
        """Check whether the counts in a certificate prove its limit.

        Parameters
        ----------
        counts : Counts
            Numbers of rows and of accepted rows, read from a certificate file.

        limit : float
            Limit on the rejection rate.

        significance_level : float or None
            Significance level of the certificate. If None, the certificate states
            that the limit holds in expectation.

        Returns
        -------
        bool
        """
        if self.reference_rows == "all":
            n_reference_rows = counts.n_rows
            n_accepted_reference_rows = counts.n_accepted
        else:
            n_reference_rows = counts.n_correct
            n_accepted_reference_rows = counts.n_correct_accepted
        return bounds.certifies_violation_rate(
            n_rows=n_reference_rows,
            n_without_violation=n_accepted_reference_rows,
            max_rate=limit,
            delta=significance_level,
        )

    def with_early_starts(self) -> RejectionRateRule:
        """Return the rule unchanged, because it has no starting rank."""
        return self

    def _count_reference_rows_up_to_blocks(self, ranking: Ranking) -> Codes:
        """Count the reference rows up to the end of each tie block."""
        if self.reference_rows == "all":
            return ranking.tie_block_end_ranks
        return ranking.tie_block_end_ranks - ranking.cumulative_errors


@dataclass(frozen=True)
class AcceptanceRateRule:
    """Rule that bounds the fraction of reference rows that are accepted.

    The rule selects one reference row by its rank and accepts the rows with a
    strictly smaller score. The rank is the largest one for which the bound on the
    acceptance rate holds, so the rule accepts as many rows as the limit allows.

    Parameters
    ----------
    reference_rows : {"incorrect", "all"}, default="incorrect"
        Rows whose acceptance rate is bounded. Use "incorrect" for the recall or the
        false-positive rate of one of two classes. Use "all" if each row is a case
        with several items, scored by the incorrect item with the lowest score.

    name : str, default="two-sided"
        Name of the rule in certificates and files.
    """

    reference_rows: Literal["incorrect", "all"] = "incorrect"
    name: str = "two-sided"

    # If nothing is certified, every row is rejected, so the acceptance rate is 0.
    fallback_threshold = REJECT_ALL_ROWS

    # All labels are read, because the tested rank depends on the number of reference rows.
    tests_ranks_sequentially = False

    def plan(
        self,
        n_rows: int,
        limit: float,
        significance_level: float | None,
        pilot_rows: PilotRows | None = None,
        planning_row_reader: LeastCertainRowReader | None = None,
    ) -> RankPlan:
        """Build a plan that contains only the limit.

        The rule runs no sequence of tests, so `n_rows`, `significance_level` and
        `pilot_rows` have no effect.
        """
        return RankPlan(limit=limit)

    def certify(
        self,
        ranking: Ranking,
        plan: RankPlan,
        significance_level: float | None,
        max_tested_rank: int | None = None,
    ) -> ThresholdResult:
        """Find the largest threshold whose acceptance rate is within the limit.

        Parameters
        ----------
        ranking : Ranking
            Calibration rows in increasing order of score.

        plan : RankPlan
            Plan that holds the limit on the acceptance rate.

        significance_level : float
            Largest allowed probability that the acceptance rate exceeds the limit.
            None is not supported: this rule has no version in expectation.

        max_tested_rank : int, default=None
            If given, accept at most this many rows.

        Returns
        -------
        ThresholdResult
            The threshold, or `NOTHING_CERTIFIED` if there are too few reference
            rows to accept any row.
        """
        assert significance_level is not None
        cumulative_reference_rows = self._count_reference_rows_up_to_blocks(ranking)
        n_reference_rows = get_last_or_zero(cumulative_reference_rows)
        n_reference_rows_to_reject = _count_rows_to_reject(
            n_reference_rows,
            max_acceptance_rate=plan.limit,
            significance_level=significance_level,
        )
        if n_reference_rows_to_reject > n_reference_rows:
            return NOTHING_CERTIFIED

        # The whole tie block is rejected, because a threshold cannot separate equal scores.
        first_rejected_rank = n_reference_rows - n_reference_rows_to_reject + 1
        first_rejected_block = int(np.searchsorted(cumulative_reference_rows, first_rejected_rank))
        n_accepted = get_last_or_zero(ranking.tie_block_end_ranks[:first_rejected_block])
        if max_tested_rank is not None:
            n_accepted = min(n_accepted, max_tested_rank)
        return ThresholdResult(
            n_accepted=n_accepted, threshold=ranking.largest_threshold_accepting_at_most(n_accepted)
        )

    def find_shortfall(
        self,
        ranking: Ranking,
        limit: float,
        significance_level: float | None,
        certifies: Certifies | None = None,
        n_planning_rows: int = 0,
    ) -> Shortfall:
        """Compute the number of reference rows needed to certify the limit.

        The smallest certifiable limit is not computed, so `ranking` and `certifies`
        have no effect.
        """
        return Shortfall(rows_needed=self.compute_required_rows(limit, significance_level))

    def convert_target_to_limit(self, quantity: Quantity, target: float) -> float:
        """Convert the target of a promise to a limit on the acceptance rate."""
        return quantity.max_violation_rate(target)

    def count_reference_rows(self, ranking: Ranking) -> int:
        """Count the reference rows."""
        return get_last_or_zero(self._count_reference_rows_up_to_blocks(ranking))

    def compute_required_rows(self, limit: float, significance_level: float | None) -> int:
        """Compute how many reference rows are needed to accept any row."""
        return bounds.correct_rows_needed(limit, significance_level)

    def supports(self, counts: Counts, limit: float, significance_level: float | None) -> bool:
        """Check whether the counts in a certificate prove its limit.

        The incorrect rows are the reference rows here, whatever the value of
        `reference_rows`.

        Parameters
        ----------
        counts : Counts
            Numbers of rows, correct rows and accepted rows, read from a certificate
            file.

        limit : float
            Limit on the acceptance rate.

        significance_level : float or None
            Significance level of the certificate. If None, the certificate states
            that the limit holds in expectation.

        Returns
        -------
        bool
            False if there are no incorrect rows.
        """
        n_incorrect = counts.n_rows - counts.n_correct
        if n_incorrect <= 0:
            return False
        n_incorrect_accepted = counts.n_accepted - counts.n_correct_accepted
        n_incorrect_rejected = n_incorrect - n_incorrect_accepted
        return bounds.certifies_violation_rate(
            n_rows=n_incorrect,
            n_without_violation=n_incorrect_rejected,
            max_rate=limit,
            delta=significance_level,
        )

    def with_early_starts(self) -> AcceptanceRateRule:
        """Return the rule unchanged, because it has no starting rank."""
        return self

    def _count_reference_rows_up_to_blocks(self, ranking: Ranking) -> Codes:
        """Count the reference rows up to the end of each tie block."""
        if self.reference_rows == "all":
            return ranking.tie_block_end_ranks
        return ranking.cumulative_errors


def _count_rows_to_reject(
    n_rows: int, max_acceptance_rate: float, significance_level: float
) -> int:
    """Count the rows that must be rejected to limit the acceptance rate.

    The result is `n_rows` + 1 if there are too few rows to accept any of them.
    """
    # The acceptance rate equals the miscoverage of a gate that ranks the rows in reverse order, and
    # accepts exactly the rows that this gate rejects.
    return bounds.certified_miscoverage_rank(
        n_correct=n_rows, alpha=max_acceptance_rate, delta=significance_level
    )
