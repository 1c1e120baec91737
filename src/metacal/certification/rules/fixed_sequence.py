r"""FixedSequenceRule: exact binomial tests of an accuracy in a fixed sequence of ranks.

The rule certifies "at least `limit` of the accepted rows are correct". It serves the selective
accuracy and the precision of one of two classes. They differ in which rows count as correct, which
is decided by whoever builds the ranking, and in the ranks at which the tests start.

Terms used in this module:

- *error*: a row that is not correct. E_m is the number of errors among the first m rows.
- *rank m passes at level l*: P(Bin(m, q) <= E_m) <= l, where q = 1 - limit.
- *rank range*: consecutive ranks that are tested until one fails. Each rank range adds a fraction of the
  significance level.
- *tie block*: rows with equal scores. Within a tie block errors come first.

**The rule for ranks.** Segments start where about 0.18, 0.30 and 0.65 of the n q errors that all
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
from fractions import Fraction

import numpy as np

from metacal.certificates.counts import Counts
from metacal.certificates.quantity import Quantity
from metacal.certificates.rule_texts import SAME_SOURCE, register_rule
from metacal.certification.first_failure import find_first_failure
from metacal.certification.plans import (
    EarlyStarts,
    PilotRows,
    RankPlan,
    ShareStarts,
    StartPolicy,
    UsualStarts,
    plan_test_sequence,
)
from metacal.certification.rank_tests import BinomialRankTests, find_clear_passes
from metacal.certification.ranking import Ranking
from metacal.certification.rules.accuracy_shortfall import (
    estimate_rows_needed_for_accuracy,
    find_accuracy_shortfall,
)
from metacal.certification.rules.rule import (
    NOTHING_CERTIFIED,
    REJECT_ALL_ROWS,
    Certifies,
    SequenceTrace,
    Shortfall,
    ThresholdResult,
    get_last_or_zero,
)
from metacal.certification.test_sequences import RankRange
from metacal.formulas import Float
from metacal.statistics import bounds

# Name of the rule for a selective accuracy.
FALLBACK_SEQUENCE = register_rule(
    "fallback-sequence",
    "exact binomial tests in a fixed sequence of ranks with fallback shares of delta "
    "(Wiens 2003; Angelopoulos et al. 2021)",
    SAME_SOURCE,
    score_value_description=(
        "exact binomial tests at the values of the score, in rising order (Angelopoulos et al."
        " 2021)"
    ),
)


# Starts for predictions that are mostly correct.
_USUAL_STARTS = UsualStarts()


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

    start_policy: StartPolicy = _USUAL_STARTS
    name: str = FALLBACK_SEQUENCE

    # A rule that certifies nothing rejects every row.
    fallback_threshold = REJECT_ALL_ROWS

    reads_labels_in_order = True

    def plan(
        self,
        n_rows: int,
        limit: float,
        significance_level: float | None,
        pilot: PilotRows | None = None,
    ) -> RankPlan:
        """Plan the tests from the number of rows, the limit, the level and the pilot rows."""
        assert significance_level is not None
        return plan_test_sequence(self.start_policy, n_rows, limit, significance_level, pilot)

    def certify(
        self,
        ranking: Ranking,
        plan: RankPlan,
        significance_level: float | None,
        last_rank: int | None = None,
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

        last_rank : int, default=None
            If given, only ranks up to this one are tested. It must be the end of a tie block.

        Returns
        -------
        ThresholdResult
            `threshold` is None if no rank passed.
        """
        assert significance_level is not None
        if plan.first_tested_score is not None:
            trace, every_test_passed = _test_every_score_value(
                ranking,
                plan.first_tested_score,
                accuracy=plan.limit,
                significance_level=significance_level,
                last_rank=last_rank,
            )
        elif plan.first_tested_rank is not None:
            trace = _test_every_rank(
                ranking,
                plan.first_tested_rank,
                accuracy=plan.limit,
                significance_level=significance_level,
                last_rank=last_rank,
            )
            every_test_passed = False
        else:
            trace, every_test_passed = _test_rank_ranges(
                ranking, plan.rank_ranges, significance_level, last_rank
            )

        n_accepted = 0
        if trace.best_rank > 0:
            n_accepted = ranking.count_accepted_after_passing_rank(trace.best_rank)
        if n_accepted == 0:
            return replace(NOTHING_CERTIFIED, every_test_passed=every_test_passed, trace=trace)
        return ThresholdResult(
            n_accepted=n_accepted,
            threshold=ranking.largest_threshold_after_passing_rank(trace.best_rank),
            every_test_passed=every_test_passed,
            trace=trace,
        )

    def find_shortfall(
        self,
        ranking: Ranking,
        limit: float,
        significance_level: float | None,
        certifies: Certifies | None = None,
    ) -> Shortfall:
        """Find the highest accuracy that the rows support and the number of rows needed.

        Without `certifies`, only the number of rows is estimated.
        """
        if certifies is not None:
            return find_accuracy_shortfall(ranking, limit, significance_level, certifies)

        n_errors = get_last_or_zero(ranking.cumulative_errors)
        n_required = self.compute_required_rows(limit, significance_level)
        has_too_few_rows = n_errors == 0 and ranking.n_rows < n_required
        if ranking.n_rows == 0 or has_too_few_rows:
            return Shortfall(rows_needed=n_required)
        rows_needed = estimate_rows_needed_for_accuracy(ranking, limit, significance_level)
        return Shortfall(rows_needed=rows_needed)

    def convert_target_to_limit(self, quantity: Quantity, target: float) -> float:
        """Return the target, which is an accuracy."""
        return target

    def count_reference_rows(self, ranking: Ranking) -> int:
        """Count all rows."""
        return ranking.n_rows

    def compute_required_rows(self, limit: float, significance_level: float | None) -> int:
        """Compute how many rows without an error pass a test."""
        assert significance_level is not None
        return bounds.error_free_rows_needed(limit, significance_level)

    def supports(self, counts: Counts, limit: float, significance_level: float | None) -> bool:
        """Check whether the accepted rows contain few enough errors."""
        n_errors = counts.n_accepted - counts.n_correct_accepted
        return bounds.certifies_accuracy(n_errors, counts.n_accepted, limit, significance_level)

    def with_early_starts(self) -> FixedSequenceRule:
        """Return the rule with early starts, unless it has starts for a share of correct rows."""
        if self.start_policy != _USUAL_STARTS:
            return self
        return replace(self, start_policy=EarlyStarts())

    def with_correct_share(self, correct_share: float) -> FixedSequenceRule:
        """Return the rule with the starts for a share of correct rows."""
        return replace(self, start_policy=ShareStarts(correct_share))


def count_certified_rows(
    ranking: Ranking, accuracy: float, delta: float, pilot: PilotRows | None = None
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

    pilot : PilotRows, optional
        Pilot rows.

    Returns
    -------
    int
        Number of accepted rows, 0 if nothing is certified.

    Examples
    --------
    >>> ranking = Ranking.from_scores(np.arange(1000.0), np.arange(1000) < 900)
    >>> count_certified_rows(ranking, 0.95, 0.1)
    937
    """
    rule = FixedSequenceRule()
    plan = rule.plan(ranking.n_rows, accuracy, delta, pilot)
    return rule.certify(ranking, plan, delta).n_accepted


def find_last_passed_rank(
    ranking: Ranking, accuracy: float, delta: float, pilot: PilotRows | None = None
) -> int:
    """Find the highest rank at which the test of an accuracy passes, or return 0.

    The rank may lie inside a tie block. `count_certified_rows` returns the number of rows that may be
    accepted.

    Examples
    --------
    >>> find_last_passed_rank(Ranking.from_scores(np.arange(1000.0), np.arange(1000) < 900), 0.95, 0.1)
    937
    """
    rule = FixedSequenceRule()
    plan = rule.plan(ranking.n_rows, accuracy, delta, pilot)
    result = rule.certify(ranking, plan, delta)
    if result.threshold is None or result.trace is None:
        return 0
    return result.trace.best_rank


def _test_rank_ranges(
    ranking: Ranking,
    rank_ranges: tuple[RankRange, ...],
    significance_level: float,
    last_rank: int | None,
) -> tuple[SequenceTrace, bool]:
    """Test the ranks of each range until one fails.

    If the ranking contains only counts, it may be open whether a range fails, and then also which
    level the next range has. Both possibilities are followed, so that one `FinerCountsNeeded` names
    all cells that must be counted again.

    Returns
    -------
    trace : SequenceTrace
        End of the sequence.

    every_test_passed : bool
        Whether all tests of all ranges passed.
    """
    best_rank = 0
    every_test_passed = len(rank_ranges) > 0
    # Fractions of delta that earlier ranges may pass on: several if an order of rows is unknown.
    possible_carried_fractions = {Fraction(0)}
    failures: list[_Failure] = []
    unordered_cells: set[int] = set()
    for rank_range in rank_ranges:
        next_carried_fractions: set[Fraction] = set()
        for carried_fraction in possible_carried_fractions:
            delta_fraction = carried_fraction + rank_range.delta_fraction
            range_level = float(delta_fraction) * significance_level
            first_failure = find_first_failure(ranking, rank_range, range_level)
            end_of_passed_ranks = first_failure.rank
            unordered_cells.update(first_failure.unordered_cells)
            if last_rank is not None and first_failure.rank > last_rank:
                end_of_passed_ranks = last_rank + 1
                every_test_passed = False
                next_carried_fractions.add(delta_fraction)
            elif first_failure.rank < rank_range.stop_rank:
                every_test_passed = False
                rank_tests = replace(rank_range.rank_tests, significance_level=range_level)
                failures.append(_Failure(first_failure.rank, rank_tests))
                next_carried_fractions.add(Fraction(0))
            else:
                next_carried_fractions.add(delta_fraction)
                if first_failure.unordered_cells:
                    # A test in an unordered cell may fail, and then no fraction is passed on.
                    next_carried_fractions.add(Fraction(0))
            last_passed_rank = rank_range.rank_tests.highest_tested_rank_below(end_of_passed_ranks)
            if last_passed_rank >= rank_range.start_rank:
                best_rank = last_passed_rank
        possible_carried_fractions = next_carried_fractions

    if unordered_cells:
        raise ranking.build_finer_counts_error(unordered_cells)
    if 0 < best_rank < ranking.n_rows:
        ranking.require_known_order(ranking.find_tie_block(best_rank))
    return _trace_sequence(ranking, best_rank, failures), every_test_passed


@dataclass(frozen=True)
class _Failure:
    """Rank at which a test failed, and the tests at its significance level."""

    rank: int
    rank_tests: BinomialRankTests


def _trace_sequence(ranking: Ranking, best_rank: int, failures: list[_Failure]) -> SequenceTrace:
    """Find the row at which the first failure beyond the best rank became certain.

    A test at a rank fails as soon as there are more errors than it tolerates. The row with that
    error is the stopping time of the sequence, together with its tie block.
    """
    failures_above_best_rank = [failure for failure in failures if failure.rank > best_rank]
    n_failures_below = len(failures) - len(failures_above_best_rank)
    was_only_counted = ranking.has_unknown_order is not None
    if not failures_above_best_rank or was_only_counted:
        return SequenceTrace(best_rank, stopping_rank=ranking.n_rows, n_failures=n_failures_below)

    first_failure = failures_above_best_rank[0]
    n_tolerated_errors = max(first_failure.rank_tests.max_passing_errors(first_failure.rank), 0)
    # Errors are counted from 0, so the error with this index is the first that is not tolerated.
    rank_of_first_excess_error = int(ranking.error_runs.error_ranks[n_tolerated_errors])
    deciding_rank = max(best_rank, rank_of_first_excess_error)
    stopping_tie_block = ranking.find_tie_block(deciding_rank)
    return SequenceTrace(
        best_rank,
        stopping_rank=int(ranking.tie_block_end_ranks[stopping_tie_block]),
        n_failures=n_failures_below,
    )


def _test_every_score_value(
    ranking: Ranking,
    first_tested_score: float,
    accuracy: float,
    significance_level: float,
    last_rank: int | None,
) -> tuple[SequenceTrace, bool]:
    """Test the values of the score from the first tested score upward until one fails.

    A value that no row has stands for the next lower value that some row has.
    """
    n_tie_blocks = len(ranking.tie_block_end_ranks)
    n_blocks_up_to_first_score = int(
        np.searchsorted(ranking.tie_block_scores, first_tested_score, side="right")
    )
    if n_blocks_up_to_first_score == 0:
        stopping_rank = _find_end_of_next_tie_block(ranking, rank=0)
        return SequenceTrace(best_rank=0, stopping_rank=stopping_rank), False

    first_tested_block = n_blocks_up_to_first_score - 1
    stop_block = n_tie_blocks
    if last_rank is not None:
        stop_block = int(np.searchsorted(ranking.tie_block_end_ranks, last_rank, side="right"))
    tested_ranks = ranking.tie_block_end_ranks[first_tested_block:stop_block]
    n_errors = ranking.cumulative_errors[first_tested_block:stop_block]

    # A test that clearly passes keeps the p-value 0, because an exact p-value is slow to compute.
    error_rate = 1.0 - accuracy
    passes_clearly = find_clear_passes(n_errors, tested_ranks, error_rate, significance_level)
    unclear = np.flatnonzero(~passes_clearly)
    p_values = np.zeros(len(tested_ranks))
    p_values[unclear] = bounds.binomial_p_value(
        n_errors[unclear], tested_ranks[unclear], error_rate
    )

    n_passed = _count_passes_before_first_failure(p_values, significance_level)
    best_rank = get_last_or_zero(tested_ranks[:n_passed])
    n_blocks_up_to_best_rank = first_tested_block + n_passed
    passed_last_block = n_blocks_up_to_best_rank == n_tie_blocks
    every_test_passed = n_passed > 0 and passed_last_block
    stopping_rank = _find_end_of_next_tie_block(ranking, best_rank)
    return SequenceTrace(best_rank, stopping_rank=stopping_rank), every_test_passed


def _test_every_rank(
    ranking: Ranking,
    first_tested_rank: int,
    accuracy: float,
    significance_level: float,
    last_rank: int | None,
) -> SequenceTrace:
    """Test every rank from the first tested rank upward until one fails."""
    if last_rank is None:
        last_rank = ranking.n_rows
    tested_ranks = np.arange(first_tested_rank, last_rank + 1)
    n_errors = np.searchsorted(ranking.error_runs.error_ranks, tested_ranks, side="right")
    p_values = bounds.binomial_p_value(n_errors, tested_ranks, error_rate=1.0 - accuracy)
    n_passed = _count_passes_before_first_failure(p_values, significance_level)
    best_rank = get_last_or_zero(tested_ranks[:n_passed])
    stopping_rank = _find_end_of_next_tie_block(ranking, best_rank)
    return SequenceTrace(best_rank, stopping_rank=stopping_rank)


def _find_end_of_next_tie_block(ranking: Ranking, rank: int) -> int:
    """Return the last rank of the tie block that follows a rank."""
    next_block = int(np.searchsorted(ranking.tie_block_end_ranks, rank, side="right"))
    return get_last_or_zero(ranking.tie_block_end_ranks[: next_block + 1])


def _count_passes_before_first_failure(p_values: Float, significance_level: float) -> int:
    """Count the tests that pass before the first one that fails."""
    failed_tests = np.flatnonzero(p_values > significance_level)
    if len(failed_tests) == 0:
        return len(p_values)
    first_failed_test = failed_tests[0]
    return int(first_failed_test)
