"""Certification of a threshold from clustered rows.

Rows of one patient, document or video are dependent, so tests for independent rows are not valid
for them. The rule in this module treats clusters as the independent observations. It reduces each
cluster to a number in [0, 1] and tests the mean of these numbers by betting. Pilot clusters
determine which thresholds are tested, and in which order. The other clusters, called test clusters,
are used for the tests.

Terms used in this module:

- *cluster*: a set of dependent rows. Different clusters are independent.
- *reference rows* and *violations*: the denominator and the numerator of the rate
  that the promise limits. If the promise is a minimum accuracy, the reference rows
  are the accepted rows, and the violations are the incorrect ones among them.
- *limit*: largest allowed rate of violations among the reference rows.
- *delta* and *significance level*: delta is the error probability of the promise.
  All tests together are run at significance level delta, and each sequence of tests
  receives a fraction of it.
- *test sequence* and *starting threshold*: thresholds that are tested in order until
  one fails, and the first of them. A starting threshold has the role of the starting
  rank in rules for independent rows.
- *capital*: statistic of a betting test. It starts at 1, and the test passes if it
  reaches 1 / significance level (Waudby-Smith & Ramdas, 2024).

**Proof.** For a random cluster with B violations and A reference rows, "at most a share q of the
reference rows is a violation" means that

    E[B] <= q E[A],   or   E[X] <= 0   with   X = (B - q A) / S   and   -q <= X <= 1 - q,

where S is the largest number of rows of a cluster. Clusters are independent draws. A bettor who bets
that X + q is below q on average becomes rich only if the promise is kept (`statistics.replicating_bets`).
So a threshold that breaks the promise passes with probability at most the level of its test.

1. *Thresholds.* The proof for ranks (`rules.fixed_sequence`) needs independent rows. Thresholds must
   not depend on the tested clusters, so a random tenth of the clusters are pilot clusters, and
   quantiles of their scores are the thresholds. The start and the number of the thresholds follow
   from the pilot clusters too. Given these, all hypotheses and their order are fixed.
2. *Sequences.* If accepting a row can break the promise, thresholds are tested upward from a start,
   each at the whole level, until one fails. Two starts receive 0.9 and 0.1 of delta. A sequence that
   reaches the next start passes its level on (Wiens 2003). If accepting is safe, thresholds are
   tested downward from the largest one at delta.
3. *Means.* If a cluster counts once, by the share of violations among its reference rows, replace B by
   B / A, A by 1[A > 0] and S by 1. E[B / A | A > 0] <= q says E[X] <= 0 with X = (B / A - q) 1[A > 0].
   Nothing needs to be known about the size of clusters. ∎

S must be known before the rows are seen. If the largest cluster of these rows is used instead, a
larger one may come, and the certificate is called approximate.

References
----------
Waudby-Smith & Ramdas, "Estimating means of bounded random variables by betting",
Journal of the Royal Statistical Society Series B, 2024.
Wiens, "A fixed sequence Bonferroni procedure for testing multiple endpoints",
Pharmaceutical Statistics, 2003.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from metacal.certificates.certificate import accept_up_to_threshold
from metacal.certificates.counts import Counts
from metacal.certificates.quantity import Quantity
from metacal.certificates.rule_texts import SAME_SOURCE, register_rule
from metacal.certification.candidates import (
    CandidatePlan,
    CandidateSequence,
    find_last_passing_candidate,
)
from metacal.certification.cluster_counts import ClusterCounter
from metacal.certification.cluster_plans import build_increasing_sequences, choose_thresholds
from metacal.certification.rows import CalibrationRows
from metacal.certification.rules.rule import (
    ACCEPT_ALL_ROWS,
    NOTHING_CERTIFIED,
    REJECT_ALL_ROWS,
    Certifies,
    ThresholdResult,
)
from metacal.statistics import betting, replicating_bets
from metacal.statistics.bounds import ONE_PLUS_ROUNDING_ERROR

# Name of the rule in certificates and files.
WHOLE_CLUSTERS_RULE = register_rule(
    "whole-units",
    "bets on whole units (Waudby-Smith & Ramdas 2024) at thresholds from the scores of a tenth of"
    " them, in a fixed sequence (Wiens 2003)",
    SAME_SOURCE,
)

# Ratio of the number of clusters to the number of pilot clusters.
_CLUSTERS_PER_PILOT_CLUSTER = 10

# Smallest number of pilot clusters.
_MIN_PILOT_CLUSTERS = 5

# Number of bisection steps in the search for the highest certifiable accuracy.
_N_BISECTION_STEPS = 12

# The highest certifiable accuracy is rounded down to a multiple of 1 / 10,000.
_ROUNDING_STEPS_PER_UNIT = 10_000.0


@dataclass(frozen=True)
class ClusterBettingRule:
    """Rule that certifies a threshold by betting tests of whole clusters.

    Implements `metacal.certification.candidates.CandidateRule`. The candidates are
    thresholds.

    Parameters
    ----------
    quantity : Quantity
        Quantity that the promise limits.

    name : str, default="whole-units"
        Name of the rule in certificates and files.
    """

    quantity: Quantity
    name: str = WHOLE_CLUSTERS_RULE

    @property
    def fallback_threshold(self) -> float:
        """Threshold to use if no threshold is certified."""
        if self.quantity.limits_only_rejections:
            return ACCEPT_ALL_ROWS
        return REJECT_ALL_ROWS

    def plan(
        self,
        pilot_rows: CalibrationRows,
        n_test_clusters: int,
        limit: float,
        significance_level: float,
    ) -> CandidatePlan[float]:
        """Choose the thresholds to test and the order of the tests.

        The plan depends only on the pilot clusters. The hypotheses are therefore
        fixed before the test clusters are read, as fixed-sequence testing requires.

        Parameters
        ----------
        pilot_rows : CalibrationRows
            Rows of the pilot clusters.

        n_test_clusters : int
            Number of test clusters.

        limit : float
            Largest allowed rate of violations.

        significance_level : float
            Significance level of all tests together.

        Returns
        -------
        CandidatePlan
        """
        increasing_thresholds = choose_thresholds(pilot_rows)
        limits_only_rejections = self.quantity.limits_only_rejections
        if limits_only_rejections:
            # If only rejections are limited, the largest threshold is the most likely to pass.
            decreasing_thresholds = tuple(increasing_thresholds[::-1])
            test_sequence = CandidateSequence(level_fraction=1.0, candidates=decreasing_thresholds)
            return CandidatePlan(limit=limit, sequences=(test_sequence,))

        test_sequences = build_increasing_sequences(
            pilot_rows,
            increasing_thresholds,
            n_test_clusters=n_test_clusters,
            limit=limit,
            significance_level=significance_level,
        )
        return CandidatePlan(limit=limit, sequences=test_sequences)

    def passes(
        self,
        cluster_counter: ClusterCounter,
        threshold: float,
        limit: float,
        significance_level: float,
    ) -> bool:
        """Test whether the violation rate at a threshold is at most the limit.

        Parameters
        ----------
        cluster_counter : ClusterCounter
            Counter for the test clusters.

        threshold : float
            Threshold to test.

        limit : float
            Largest allowed rate of violations.

        significance_level : float
            Largest allowed probability that the test passes although the violation
            rate exceeds the limit.

        Returns
        -------
        bool
        """
        cluster_counts = cluster_counter.count(threshold)

        # The observed rate is checked, because a betting test may pass even if the rate is too high.
        max_violations = limit * cluster_counts.n_reference_rows.sum()
        observed_rate_exceeds_limit = cluster_counts.n_violations.sum() > max_violations
        if observed_rate_exceeds_limit:
            return False
        # The mean of the cluster values is below the limit if and only if the violation rate is.
        cluster_values = cluster_counts.compute_values_to_compare_with_limit(limit)
        return replicating_bets.certifies_mean_below(cluster_values, limit, significance_level)

    def certify(
        self,
        rows: CalibrationRows,
        plan: CandidatePlan[float],
        significance_level: float,
    ) -> ThresholdResult:
        """Run the planned tests and return the last threshold that passed.

        Parameters
        ----------
        rows : CalibrationRows
            Rows of the test clusters.

        plan : CandidatePlan
            Plan built from the pilot clusters.

        significance_level : float
            Significance level of all tests together.

        Returns
        -------
        ThresholdResult
            `NOTHING_CERTIFIED` if no threshold passed.
        """
        cluster_counter = ClusterCounter(rows, self.quantity)
        threshold = find_last_passing_candidate(self, cluster_counter, plan, significance_level)
        if threshold is None:
            return NOTHING_CERTIFIED
        n_accepted = int(accept_up_to_threshold(rows.scores, threshold).sum())
        return ThresholdResult(n_accepted=n_accepted, threshold=threshold)

    def find_highest_certified_accuracy(
        self, uncertified_error_rate: float, certifies: Certifies
    ) -> float | None:
        """Search for the highest accuracy that the test clusters certify.

        Parameters
        ----------
        uncertified_error_rate : float
            Error rate that could not be certified. The search covers the error rates
            between it and 1.

        certifies : callable
            Function that takes an error rate and returns whether it is certified.

        Returns
        -------
        float or None
            Accuracy, rounded down so that it is still certified. None if the search
            finds no error rate below 1.
        """
        bracket = betting.bracket_first_true(
            certifies, lower_end=uncertified_error_rate, n_steps=_N_BISECTION_STEPS
        )
        smallest_certified_error_rate = bracket.smallest_true
        if smallest_certified_error_rate >= 1.0:
            return None
        highest_accuracy = 1.0 - smallest_certified_error_rate
        return math.floor(_ROUNDING_STEPS_PER_UNIT * highest_accuracy) / _ROUNDING_STEPS_PER_UNIT

    def could_certify(
        self,
        counts: Counts,
        limit: float,
        significance_level: float,
        *,
        max_cluster_size: int,
        uses_cluster_means: bool,
    ) -> bool:
        """Check whether a certificate with these counts is possible.

        A file stores totals but not the counts of each cluster, so the test cannot
        be repeated. This method checks two necessary conditions: the observed rate
        of violations is within the limit, and the largest possible capital is high
        enough for the test to pass.

        Parameters
        ----------
        counts : Counts
            Numbers of rows, correct rows and accepted rows, read from a file.

        limit : float
            Largest allowed rate of violations.

        significance_level : float
            Significance level of the certificate.

        max_cluster_size : int
            Largest number of rows in a cluster. Ignored if `uses_cluster_means` is True.

        uses_cluster_means : bool
            Whether each cluster counts once, by the mean of its reference rows. The
            observed rate is then unknown and is not checked.

        Returns
        -------
        bool
        """
        n_reference_rows = self.count_reference_rows(counts)
        n_violations = self.count_violations(counts)

        # The comparison tolerates rounding errors of other SciPy versions.
        max_violations = ONE_PLUS_ROUNDING_ERROR * limit * n_reference_rows
        if not uses_cluster_means and n_violations > max_violations:
            return False

        max_rows_per_cluster = max_cluster_size
        if uses_cluster_means:
            # If each cluster counts as one row, a cluster has at most one reference row.
            max_rows_per_cluster = 1
        max_log_capital = _bound_log_capital(
            limit, n_reference_rows=n_reference_rows, max_rows_per_cluster=max_rows_per_cluster
        )
        required_log_capital = -math.log(significance_level)
        return ONE_PLUS_ROUNDING_ERROR * max_log_capital >= required_log_capital

    def count_reference_rows(self, counts: Counts) -> int:
        """Return the number of reference rows, the denominator of the violation rate."""
        if not self.quantity.limits_only_rejections:
            return counts.n_accepted
        if self.quantity.needs_labels:
            return counts.n_correct
        return counts.n_rows

    def count_violations(self, counts: Counts) -> int:
        """Return the number of violations, the numerator of the violation rate."""
        if not self.quantity.limits_only_rejections:
            return counts.n_accepted - counts.n_correct_accepted
        if self.quantity.needs_labels:
            return counts.n_correct - counts.n_correct_accepted
        return counts.n_rows - counts.n_accepted


def _bound_log_capital(limit: float, *, n_reference_rows: int, max_rows_per_cluster: int) -> float:
    r"""Compute an upper bound on the log capital of bets on clusters.

    A bet of stake s on a cluster with A reference rows and no violation multiplies the capital by
    1 + s limit A / S, where S is the largest number of rows of a cluster. Because s < 1 / (1 - limit)
    and log(1 + x) <= x, the log capital is at most limit / (1 - limit) times the sum of A / S.
    """
    max_log_gain_of_largest_cluster = limit / (1.0 - limit)
    return max_log_gain_of_largest_cluster * n_reference_rows / max_rows_per_cluster


def split_pilot_clusters(
    rows: CalibrationRows,
) -> tuple[CalibrationRows, CalibrationRows]:
    """Split the rows at random into pilot clusters and test clusters.

    A cluster is never divided, and at least one test cluster remains.

    Parameters
    ----------
    rows : CalibrationRows
        Rows with cluster codes.

    Returns
    -------
    pilot_rows : CalibrationRows
        Rows of the pilot clusters.

    test_rows : CalibrationRows
        Rows of the test clusters.
    """
    assert rows.clusters is not None
    n_clusters = rows.clusters.n_clusters
    n_pilot_clusters = max(n_clusters // _CLUSTERS_PER_PILOT_CLUSTER, _MIN_PILOT_CLUSTERS)
    n_pilot_clusters = min(n_pilot_clusters, n_clusters - 1)

    # The cluster numbers are in random order, so the lowest numbers are a random sample.
    random_cluster_numbers = rows.clusters.codes
    is_pilot_row = random_cluster_numbers < n_pilot_clusters
    return rows.take(is_pilot_row), rows.take(~is_pilot_row)
