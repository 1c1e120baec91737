r"""Rule for an accuracy that holds in expectation.

The rule accepts the largest prefix of the ranking, at the end of a tie block, with E_m + 1 <= q (m +
1). Here E_m is the number of errors among the first m rows, and q = 1 - limit.

**Statement.** If the probability of an error does not decrease as the score increases, the mean
error rate of the accepted rows is at most q. The mean is over calibration sets, and a set on which
nothing is certified counts as error rate 0. (Given that something is certified, the mean can exceed
q, because only lucky sets certify a strict target from few rows.)

**Proof.** First without ties. Let τ be the largest m, r_m the true error rate below X_(m+1), F the
distribution function, and c_m = floor(q (m + 1)) - 1.

1. Given the n - m rows above, "τ = m" is d < E_m <= c_m with some d that they determine, and E_m ~
   Bin(m, r_m). Add a row below X_(m+1), and let E' = E_m + 1 if it is an error and E' = E_m
   otherwise. Then

       r_m P(τ = m) = P(τ = m, the new row is an error)
                    = E[E' / (m + 1); d + 1 < E' <= c_m + 1] <= q P(d + 1 < E' <= c_m + 1).

   The last event is that n + 1 rows, with the same rows above, have m + 1 as their largest m' with
   E'_m' <= q m'. Call this number τ'.
2. The density of the rows above is that in a set of n + 1 rows times (m + 1) / ((n + 1) F(X_(m+1))).
   So E[r_τ; τ > 0] <= q E[D_τ'] with D_k = k / ((n + 1) F(X_(k+1))) from n + 1 rows, and D_(n+1) = 1.
3. For decreasing k from n + 1, D is a martingale given the rows above, because F(X_(k)) / F(X_(k+1))
   is the largest of k uniform numbers. To continue at k means that E'_k is large. If errors do not
   become rarer, this is an increasing event of independent scores, while D_(k-1) decreases in them.
   The two are negatively correlated (Harris's inequality), so E[D_τ'] <= 1.
4. With ties, broken by an independent number, the largest block end that passes is at or below τ,
   where the error rate is not higher. ∎

The search from the largest m downward with "+ 1" is that of Barber & Candès, "Controlling the false
discovery rate via knockoffs", Annals of Statistics, 2015.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from metacal.certificates.counts import Counts
from metacal.certificates.quantity import Quantity
from metacal.certificates.rule_texts import ERROR_RATE_RISES_WITH_SCORE, SAME_SOURCE, register_rule
from metacal.certification.first_failure import MAX_BLOCKS_PER_RECOUNT
from metacal.certification.peeling import LeastCertainRowReader
from metacal.certification.plans import PilotRows
from metacal.certification.rank_plan import RankPlan
from metacal.certification.rank_tests import passes_in_expectation
from metacal.certification.ranking import Ranking
from metacal.certification.rules.accuracy_shortfall import find_accuracy_shortfall
from metacal.certification.rules.rule import (
    NOTHING_CERTIFIED,
    REJECT_ALL_ROWS,
    Certifies,
    Shortfall,
    ThresholdResult,
)
from metacal.statistics import bounds

# Name of the rule in certificates and files.
EXPECTED_PREFIX = register_rule(
    "expected-prefix",
    "largest prefix of the ranking with (errors + 1) <= (1 - beta)(rows + 1)",
    SAME_SOURCE,
    ERROR_RATE_RISES_WITH_SCORE,
)


@dataclass(frozen=True)
class ExpectedPrefixRule:
    """Rule that accepts the largest prefix of the ranking with few enough errors.

    Implements `metacal.certification.rules.rule.ThresholdRule`. The significance level is None in
    all its methods.

    Parameters
    ----------
    name : str, default="expected-prefix"
        Name of the rule in certificates and files.
    """

    name: str = EXPECTED_PREFIX

    # A rule that certifies nothing rejects every row.
    fallback_threshold = REJECT_ALL_ROWS

    # All labels are read, because the largest prefix depends on each label.
    tests_ranks_sequentially = False

    def plan(
        self,
        n_rows: int,
        limit: float,
        significance_level: float | None,
        pilot_rows: PilotRows | None = None,
        planning_row_reader: LeastCertainRowReader | None = None,
    ) -> RankPlan:
        """Build a plan that contains only the limit."""
        return RankPlan(limit=limit)

    def certify(
        self,
        ranking: Ranking,
        plan: RankPlan,
        significance_level: float | None,
        max_tested_rank: int | None = None,
    ) -> ThresholdResult:
        """Find the largest prefix of the ranking with few enough errors.

        The argument `max_tested_rank` is ignored.
        """
        n_accepted = count_expected_prefix(ranking, plan.limit)
        if n_accepted == 0:
            return NOTHING_CERTIFIED
        return ThresholdResult(
            n_accepted=n_accepted,
            threshold=ranking.largest_threshold_after_passing_rank(n_accepted),
        )

    def find_shortfall(
        self,
        ranking: Ranking,
        limit: float,
        significance_level: float | None,
        certifies: Certifies | None = None,
        n_planning_rows: int = 0,
    ) -> Shortfall:
        """Find the highest accuracy that the rows support and the number of rows needed."""
        assert certifies is not None
        return find_accuracy_shortfall(ranking, limit, None, certifies)

    def convert_target_to_limit(self, quantity: Quantity, target: float) -> float:
        """Return the target, which is an accuracy."""
        return target

    def count_reference_rows(self, ranking: Ranking) -> int:
        """Count all rows."""
        return ranking.n_rows

    def compute_required_rows(self, limit: float, significance_level: float | None) -> int:
        """Compute the smallest number of error-free rows that can be accepted."""
        allowed_error_rate = 1 - bounds.to_exact_fraction(limit)
        # Without an error, the condition is 1 <= allowed_error_rate * (rows + 1).
        return math.ceil(1 / allowed_error_rate) - 1

    def supports(self, counts: Counts, limit: float, significance_level: float | None) -> bool:
        """Check whether the accepted rows contain few enough errors."""
        n_errors = counts.n_accepted - counts.n_correct_accepted
        return bounds.certifies_accuracy(n_errors, counts.n_accepted, limit, None)

    def with_early_starts(self) -> ExpectedPrefixRule:
        """Return the rule unchanged, because it has no starting rank."""
        return self


def count_expected_prefix(ranking: Ranking, accuracy: float) -> int:
    """Count the rows of the largest prefix of a ranking with few enough errors.

    Parameters
    ----------
    ranking : Ranking
        Calibration rows in increasing order of score.

    accuracy : float
        Accuracy that holds in expectation.

    Returns
    -------
    int
        Number of rows, 0 if no prefix has few enough errors.

    Raises
    ------
    FinerCountsNeeded
        If the ranking contains only counts, and a larger prefix might end inside a cell.

    Examples
    --------
    >>> count_expected_prefix(Ranking.from_scores(np.arange(100.0), np.arange(100) < 95), 0.97)
    96
    """
    block_passes = passes_in_expectation(
        ranking.cumulative_errors, ranking.tie_block_end_ranks, accuracy
    )
    passing_blocks = np.flatnonzero(block_passes)
    n_accepted_blocks = 0
    if len(passing_blocks) > 0:
        last_passing_block = int(passing_blocks[-1])
        n_accepted_blocks = last_passing_block + 1
    _require_finer_counts_if_more_could_pass(
        ranking, accuracy, first_undecided_block=n_accepted_blocks
    )
    if n_accepted_blocks == 0:
        return 0
    return int(ranking.tie_block_end_ranks[n_accepted_blocks - 1])


def _require_finer_counts_if_more_could_pass(
    ranking: Ranking, accuracy: float, first_undecided_block: int
) -> None:
    """Raise FinerCountsNeeded if a prefix that ends inside a tie block could pass.

    This is possible for rows that were only counted, if their order within a block is unknown.
    Blocks before `first_undecided_block` are ignored.
    """
    if ranking.is_unordered_block is None:
        return
    # The best prefix inside a block contains all of its correct rows and none of its errors.
    n_errors_in_block = np.diff(ranking.cumulative_errors, prepend=0)
    best_prefix_could_pass = passes_in_expectation(
        n_errors=ranking.cumulative_errors - n_errors_in_block,
        ranks=ranking.tie_block_end_ranks - n_errors_in_block,
        accuracy=accuracy,
    )
    needs_finer_counts = best_prefix_could_pass & ranking.is_unordered_block
    needs_finer_counts[:first_undecided_block] = False
    blocks_to_recount = np.flatnonzero(needs_finer_counts)
    if len(blocks_to_recount) > 0:
        # The last blocks are counted first, because they would give the largest prefix.
        last_blocks_to_recount = blocks_to_recount[-MAX_BLOCKS_PER_RECOUNT:]
        raise ranking.build_finer_counts_error(last_blocks_to_recount.tolist())
