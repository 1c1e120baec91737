r"""Rule for an accuracy: exact binomial tests in a fixed sequence of ranks.

The rule certifies "at least `limit` of the accepted rows are correct". It serves the selective
accuracy and the precision of one of two classes. They differ in which rows count as correct, which
is decided by whoever builds the ranking.

Terms used in this module:

- *error*: a row that is not correct. E_m is the number of errors among the first m rows.
- *rank m passes at level l*: P(Bin(m, q) <= E_m) <= l, where q = 1 - limit.
- *rank range*: consecutive ranks that are tested until one fails. Each rank range adds a fraction of the
  significance level.
- *tie block*: rows with equal scores. Within a tie block errors come first.

**The rule for ranks.** Rank ranges start where about 0.18, 0.30 and 0.65 of the n q errors that all
rows may have would just pass, with fractions 0.95, 0.03 and 0.02 of the significance level
(`metacal.certification.test_sequences` has the exact numbers). With few rows there is one start that
receives the whole level. A rank range ends where the next one starts. It tests only ranks at which the
exact test uses at least 3/4 of its level. A rank range has its own fraction of the level and the
fractions of the preceding rank ranges whose every test passed. A rank range that fails at a rank stops
there, and its fractions are lost (Wiens 2003). Let m be the highest rank that passed. The rows that
score less than row m + 1 are accepted. If rows m and m + 1 are in one tie block, the whole block is
accepted if row m + 1 is correct (then all errors of the block are among the first m rows). If row
m + 1 is an error, the block is rejected.

**Proof for ranks.** The rows are assumed to be independent draws from one distribution, and nothing
else. Ranks, order and levels depend on n, limit and the significance level alone. Order all
possible rows by X = (score, errors first, an independent uniform number), which is the order above.
X is continuous. Let F(x) be the accuracy of the rows at or below x. The bad set {F < limit} consists
of intervals (a_i, b_i) with F = limit at their finite ends. (There are finitely many: intervals on
which F stays within ε of the limit, or that lie below a small quantile, have a probability that
vanishes.) Let C be the numbers N(a_i), N(b_i) of calibration rows up to each end. Given C:

1. Between consecutive ends the mean error is exactly q, so E_N(a_i) ~ Bin(N(a_i), q), and the same
   holds at b_i.
2. Call rank m bad if X_(m+1) lies in a bad interval, or if m = N(b_i). C determines which ranks are
   bad. In the first case the rows between a_i and X_(m+1) = x are i.i.d. with a mean error above q,
   because F(x) < limit. In the second case E_m is exactly Bin(m, q) if b_i is finite. If the last
   interval has no end (all rows together are less accurate than the limit), then m = n is bad, and
   E_n is stochastically larger than Bin(n, q), which only raises the p-value. So the p-value is
   valid at every bad rank.
3. If m is the last rank that passed and the accepted rows are less accurate than the limit, then m
   is bad. The accepted rows are those up to a point t between two scores with F(t) < limit, so t
   lies in some (a_i, b_i). *Block rejected, or no tie and row m + 1 is an error*: t is the lower end
   of the score of X_(m+1), whose errors come first. From t to X_(m+1) there are only errors, F
   decreases, and X_(m+1) is in (a_i, b_i). *No tie, row m + 1 is correct*: X_(m) <= t < X_(m+1), and
   either X_(m+1) < b_i or N(b_i) = m. *Block accepted, row m + 1 is correct*: t is the upper end of
   the score of X_(m+1). From X_(m+1) to t there are only correct rows, F increases to F(t) < limit,
   and X_(m+1) is in (a_i, b_i).
4. The bad ranks are fixed given C. The first bad rank passes with a probability of at most the
   fractions of the level up to it. If it fails, these fractions are lost, and the next bad rank has
   only later fractions. Together they sum to the significance level. ∎

**The rule for values.** If many scores are equal, a test at a rank inside a tie block says nothing
about the block. Values of the score are tested instead, in increasing order from a first value that
pilot rows determine, each on all rows at or below it and at the whole significance level.
`metacal.certification.pilot` has the proof.

**Rare correct rows.** If pilot rows show that at most half of the rows are correct, the least certain
rows are read first. All of the above and below holds for the M rows that stay unread, with M in
place of n (`metacal.certification.peeling` has the proof). The starts are those of
`start_policies.RareCorrectStarts` if M < n / 2.

**The rule for tie blocks.** If the unread rows border on large tie blocks, a rank m0 is tested at the
whole level, with rows of equal score in random order. If it passes, the ends of the tie blocks are
tested in increasing order from the block that contains m0, each at the whole level, until one fails.
The blocks up to the last end that passed are accepted.

**Proof for tie blocks.** Let X = (score, an independent uniform number), and let F, (a_i, b_i) and C be
as above. A value is bad if F at its upper end is below the limit.

1. If rank m0 is bad, which C determines, its own test passes with probability at most delta, by steps
   1 and 2 above, and nothing is accepted otherwise.
2. If rank m0 is not bad, let (a, b) be the lowest bad interval that contains the upper end of a value
   and has N(a) > m0, and let l be the lowest such value. C determines l. All values whose end is
   accepted and bad are at or above l: a bad end at or above the block of m0 lies in an interval with
   N(a) > m0, because X_(m0+1) is not in it.
3. The end of l is tested before any bad end is accepted. If no row has the score l, its counts are
   those of the tie block below, which is tested, since it ends above rank m0.
4. Given C and the number N of rows up to the end of l, N(a) of them have the mean error q and the
   others a higher one, because F at the end of l is below the limit. So the test at l passes with
   probability at most delta. ∎

**Not valid**: ordering equal scores at random, and accepting up to the last end of a tie block below
the last rank that passed. This end may never have been tested.

References
----------
Angelopoulos, Bates, Candès, Jordan & Lei, "Learn then Test: calibrating predictive algorithms to
achieve risk control", 2021.
Wiens, "A fixed sequence Bonferroni procedure for testing multiple endpoints", Pharmaceutical
Statistics, 2003.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from metacal.certificates.counts import Counts
from metacal.certificates.quantity import Quantity
from metacal.certificates.rule_texts import SAME_SOURCE, register_rule
from metacal.certification.peeling import LeastCertainRowReader
from metacal.certification.planned_tests import run_planned_tests
from metacal.certification.plans import PilotRows, plan_test_sequence
from metacal.certification.rank_plan import RankPlan
from metacal.certification.ranking import Ranking
from metacal.certification.rules.accuracy_shortfall import (
    estimate_rows_needed_for_accuracy,
    find_accuracy_shortfall,
)
from metacal.certification.rules.rule import (
    REJECT_ALL_ROWS,
    Certifies,
    Shortfall,
    ThresholdResult,
    run_rule,
)
from metacal.certification.start_policies import USUAL_STARTS, EarlyStarts, StartPolicy
from metacal.statistics import bounds

# Name of the rule for a selective accuracy.
FIXED_SEQUENCE_RULE = register_rule(
    "fallback-sequence",
    "exact binomial tests in a fixed sequence of ranks with fallback shares of delta "
    "(Wiens 2003; Angelopoulos et al. 2021)",
    SAME_SOURCE,
    score_value_description=(
        "exact binomial tests at the values of the score, in rising order (Angelopoulos et al."
        " 2021)"
    ),
)


@dataclass(frozen=True)
class FixedSequenceRule:
    """Rule that certifies an accuracy by exact binomial tests in a fixed sequence.

    Implements `metacal.certification.rules.rule.ThresholdRule`.

    Parameters
    ----------
    start_policy : StartPolicy, default=UsualStarts()
        Choice of the ranks at which the tests start.

    name : str, default="fallback-sequence"
        Name of the rule in certificates and files.
    """

    start_policy: StartPolicy = USUAL_STARTS
    name: str = FIXED_SEQUENCE_RULE

    # A rule that certifies nothing rejects every row.
    fallback_threshold = REJECT_ALL_ROWS

    tests_ranks_sequentially = True

    def plan(
        self,
        n_rows: int,
        limit: float,
        significance_level: float | None,
        pilot_rows: PilotRows | None = None,
        planning_row_reader: LeastCertainRowReader | None = None,
    ) -> RankPlan:
        """Plan the tests from the number of rows, the limit, the level and the pilot rows.

        If correct rows are rare, the least certain rows are read first.
        """
        assert significance_level is not None
        return plan_test_sequence(
            self.start_policy, n_rows, limit, significance_level, pilot_rows, planning_row_reader
        )

    def certify(
        self,
        ranking: Ranking,
        plan: RankPlan,
        significance_level: float | None,
        max_tested_rank: int | None = None,
    ) -> ThresholdResult:
        """Find the highest rank that passes and return its threshold.

        Parameters
        ----------
        ranking : Ranking
            Calibration rows in increasing order of score.

        plan : RankPlan
            Ranks or values to test.

        significance_level : float
            Significance level of all tests together. It may differ from the level that the tests
            were planned for.

        max_tested_rank : int, default=None
            If given, only ranks up to this one are tested. It must be the end of a tie block.

        Returns
        -------
        ThresholdResult
            `threshold` is None if no rank passed.
        """
        assert significance_level is not None
        sequence_outcome = run_planned_tests(ranking, plan, significance_level, max_tested_rank)
        highest_passed_rank = sequence_outcome.trace.highest_passed_rank
        n_accepted = 0
        if highest_passed_rank > 0:
            n_accepted = ranking.count_accepted_after_passing_rank(highest_passed_rank)
        threshold = None
        if n_accepted > 0:
            threshold = ranking.largest_threshold_after_passing_rank(highest_passed_rank)
        return ThresholdResult(
            n_accepted=n_accepted,
            threshold=threshold,
            every_test_passed=sequence_outcome.every_test_passed,
            trace=sequence_outcome.trace,
        )

    def find_shortfall(
        self,
        ranking: Ranking,
        limit: float,
        significance_level: float | None,
        certifies: Certifies | None = None,
        n_planning_rows: int = 0,
    ) -> Shortfall:
        """Find the highest accuracy that the rows support and the number of rows needed.

        Without `certifies`, only the number of rows is estimated.
        """
        if certifies is not None:
            return find_accuracy_shortfall(
                ranking, limit, significance_level, certifies, n_planning_rows
            )

        n_required_rows = self.compute_required_rows(limit, significance_level)
        has_too_few_rows = ranking.n_errors == 0 and ranking.n_rows < n_required_rows
        if ranking.n_rows == 0 or has_too_few_rows:
            return Shortfall(rows_needed=n_required_rows)
        rows_needed = estimate_rows_needed_for_accuracy(
            ranking, limit, significance_level, n_planning_rows
        )
        return Shortfall(rows_needed=rows_needed)

    def convert_target_to_limit(self, quantity: Quantity, target: float) -> float:
        """Return the target, which is an accuracy."""
        return target

    def count_reference_rows(self, ranking: Ranking) -> int:
        """Count all rows."""
        return ranking.n_rows

    def compute_required_rows(self, limit: float, significance_level: float | None) -> int:
        """Compute the smallest number of error-free rows with which a test passes."""
        assert significance_level is not None
        return bounds.error_free_rows_needed(limit, significance_level)

    def supports(self, counts: Counts, limit: float, significance_level: float | None) -> bool:
        """Check whether the accepted rows contain few enough errors."""
        n_errors = counts.n_accepted - counts.n_correct_accepted
        return bounds.certifies_accuracy(n_errors, counts.n_accepted, limit, significance_level)

    def with_early_starts(self) -> FixedSequenceRule:
        """Return the rule with tests that start at lower ranks."""
        return replace(self, start_policy=EarlyStarts())


def count_certified_rows(
    ranking: Ranking, accuracy: float, delta: float, pilot_rows: PilotRows | None = None
) -> int:
    """Count the rows that `FixedSequenceRule` accepts for an accuracy.

    Parameters
    ----------
    ranking : Ranking
        Calibration rows in increasing order of score.

    accuracy : float
        Accuracy to certify.

    delta : float
        Significance level.

    pilot_rows : PilotRows, optional
        Pilot rows.

    Returns
    -------
    int
        Number of accepted rows, 0 if nothing is certified.

    Examples
    --------
    >>> import numpy as np
    >>> ranking = Ranking.from_scores(np.arange(1000.0), np.arange(1000) < 900)
    >>> count_certified_rows(ranking, 0.95, 0.1)
    937
    """
    return certify_accuracy(ranking, accuracy, delta, pilot_rows).n_accepted


def certify_accuracy(
    ranking: Ranking, accuracy: float, delta: float, pilot_rows: PilotRows | None = None
) -> ThresholdResult:
    """Find the largest threshold that `FixedSequenceRule` certifies for an accuracy."""
    return run_rule(FixedSequenceRule(), ranking, accuracy, delta, pilot_rows=pilot_rows)


def find_last_passed_rank(
    ranking: Ranking, accuracy: float, delta: float, pilot_rows: PilotRows | None = None
) -> int:
    """Find the highest rank at which the test of an accuracy passes, or return 0.

    The rank may lie inside a tie block. `count_certified_rows` returns the number of rows that may be
    accepted.

    Examples
    --------
    >>> import numpy as np
    >>> find_last_passed_rank(Ranking.from_scores(np.arange(1000.0), np.arange(1000) < 900), 0.95, 0.1)
    937
    """
    threshold_result = certify_accuracy(ranking, accuracy, delta, pilot_rows)
    if threshold_result.threshold is None or threshold_result.trace is None:
        return 0
    return threshold_result.trace.highest_passed_rank
