"""The threshold rules of the paper, which give no guarantee.

Ma & Blaschko, "Meta-Cal: Well-controlled Post-hoc Calibration by Ranking", ICML 2021, Algorithms 1
and 2. They are kept to reproduce its tables. The miscoverage target is exceeded in about half of all
fits, and the accuracy target is missed in 20% to 40% of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from metacal.certificates.certificate import Certificate
from metacal.certificates.quantities import MISCOVERAGE, SELECTIVE_ACCURACY
from metacal.certificates.quantity import Quantity
from metacal.certificates.rule_texts import register_rule
from metacal.certification.one_threshold import OneThresholdProcedure
from metacal.certification.pilot import PilotPolicy
from metacal.certification.rows import CalibrationRows
from metacal.certification.rules.order_statistics import RejectionRateRule
from metacal.certification.statements import build_certificate_for_threshold
from metacal.errors import InfeasibleTargetError
from metacal.formulas import Flags, Float
from metacal.statistics import bounds

# Name of Algorithm 1 of the paper in certificates and files.
ALGORITHM_1 = register_rule(
    "paper-algorithm-1",
    "the paper's rank on up to 500 correct rows (Ma & Blaschko 2021, Algorithm 1)",
)

# Name of Algorithm 2 of the paper in certificates and files.
ALGORITHM_2 = register_rule(
    "paper-algorithm-2",
    "the paper's binned isotonic estimate on up to 500 rows (Ma & Blaschko 2021, Algorithm 2)",
)

# Largest number of calibration rows from which the paper chooses the threshold.
MAX_THRESHOLD_ROWS = 500


@dataclass(frozen=True)
class PaperMiscoverage:
    """Algorithm 1 of the paper: an order statistic of the scores of correct rows.

    The threshold has the rank ceil((n + 1)(1 - max_miscoverage)) among the scores of n correct rows.

    Implements `metacal.certification.procedures.Procedure`.
    """

    max_miscoverage: float

    def build_pilot_policy(
        self, random_state: int | None = None, declared_score_values: Float | None = None
    ) -> PilotPolicy | None:
        """Return None, because this algorithm needs no pilot rows."""
        return None

    def certify_promise(self, rows: CalibrationRows, delta: float | None) -> Certificate:
        """Choose the score of a correct row as the threshold, without a guarantee.

        Every row is accepted if too few rows are correct.
        """
        sorted_correct_scores = np.sort(rows.scores[rows.is_correct])
        n_correct = len(sorted_correct_scores)
        # Rank 1 is the lowest score of a correct row. Rank n_correct + 1 is above every score.
        threshold_rank = bounds.expected_miscoverage_rank(n_correct, self.max_miscoverage)
        must_accept_every_row = threshold_rank > n_correct
        if must_accept_every_row:
            threshold = math.inf
        else:
            threshold = float(sorted_correct_scores[threshold_rank - 1])
        return _build_certificate_without_guarantee(
            rows,
            quantity=MISCOVERAGE,
            target=self.max_miscoverage,
            rule_name=ALGORITHM_1,
            threshold=threshold,
        )

    def find_contradiction(
        self, certificate: Certificate, delta: float | None, promise: object
    ) -> str | None:
        """Describe why the paper's Algorithm 1 cannot have these counts, or return None.

        The number of rows and the number of accepted correct rows are checked.
        """
        if certificate.n_rows > MAX_THRESHOLD_ROWS:
            return _describe_too_many_rows(certificate.n_rows)
        # Algorithm 1 is calibrated on correctly classified rows only.
        has_incorrect_rows = certificate.n_correct != certificate.n_rows
        if has_incorrect_rows:
            return (
                f"the paper's split takes right rows only; {certificate.n_correct:,} of"
                f" {certificate.n_rows:,} are"
            )
        # The rule for expected miscoverage chooses the same rank among correct rows as Algorithm 1.
        procedure_with_same_rank = OneThresholdProcedure(
            MISCOVERAGE, self.max_miscoverage, RejectionRateRule()
        )
        return procedure_with_same_rank.find_contradiction(certificate, delta=None, promise=promise)


@dataclass(frozen=True)
class PaperAccuracy:
    """Algorithm 2 of the paper: isotonic regression of accuracy on binned scores.

    The threshold is the score at which the fitted accuracy falls to `min_accuracy`.

    Implements `metacal.certification.procedures.Procedure`.
    """

    min_accuracy: float
    n_bins: int

    def build_pilot_policy(
        self, random_state: int | None = None, declared_score_values: Float | None = None
    ) -> PilotPolicy | None:
        """Return None, because this algorithm needs no pilot rows."""
        return None

    def certify_promise(self, rows: CalibrationRows, delta: float | None) -> Certificate:
        """Choose the largest score at which the estimated accuracy reaches the target."""
        bin_mean_scores, bin_accuracies = coverage_accuracy_curve(
            rows.scores, rows.is_correct, self.n_bins
        )
        # The estimated accuracy never rises from bin to bin, so the first bin has the highest.
        highest_accuracy = float(bin_accuracies[0])
        if highest_accuracy < self.min_accuracy:
            message = (
                f"The paper's estimate of the accuracy is below {self.min_accuracy:g} at every"
                f" threshold on these {len(rows)} rows. Lower the target to at most"
                f" {highest_accuracy:.4f}."
            )
            raise InfeasibleTargetError(message, target=self.min_accuracy, best=highest_accuracy)
        threshold = _find_largest_score_with_accuracy(
            self.min_accuracy, bin_mean_scores, bin_accuracies
        )
        return _build_certificate_without_guarantee(
            rows,
            quantity=SELECTIVE_ACCURACY,
            target=self.min_accuracy,
            rule_name=ALGORITHM_2,
            threshold=threshold,
        )

    def find_contradiction(
        self, certificate: Certificate, delta: float | None, promise: object
    ) -> str | None:
        """Describe why the paper's Algorithm 2 cannot have these counts, or return None.

        The number of rows is checked, and the accuracy of all rows if all are accepted.

        The counts do not determine the binned estimate. But every row is accepted only if all rows
        together reach the target, because a decreasing fit ends at or below their accuracy.
        """
        if certificate.n_rows > MAX_THRESHOLD_ROWS:
            return _describe_too_many_rows(certificate.n_rows)
        misses_target = (
            certificate.n_correct * bounds.ONE_PLUS_ROUNDING_ERROR
            < self.min_accuracy * certificate.n_rows
        )
        if certificate.accepts_everything and misses_target:
            return "everything is accepted although all rows together miss the target"
        return None


def coverage_accuracy_curve(scores: Float, correct: Flags, n_bins: int) -> tuple[Float, Float]:
    """Estimate the accuracy of the rows up to each score.

    Parameters
    ----------
    scores : array of float of shape (n_rows,)
        Ranking scores.

    correct : array of bool of shape (n_rows,)
        Whether each prediction is correct.

    n_bins : int
        Number of bins with equal numbers of rows.

    Returns
    -------
    centres : array of float of shape (n_bins,)
        Mean score of each bin.

    accuracy : array of float of shape (n_bins,)
        Decreasing fit of the accuracy of the bins up to each bin.

    Examples
    --------
    >>> coverage_accuracy_curve(np.arange(4.0), np.array([True, True, False, True]), 2)
    (array([0.5, 2.5]), array([1.  , 0.75]))
    """
    from scipy.optimize import isotonic_regression  # Takes 0.1 s to import.

    indices_by_score = np.argsort(scores, kind="stable")
    bins_of_indices = np.array_split(indices_by_score, min(n_bins, len(indices_by_score)))
    mean_score_by_bin = np.array([scores[bin_indices].mean() for bin_indices in bins_of_indices])
    n_rows_up_to_bin = np.cumsum([len(bin_indices) for bin_indices in bins_of_indices])
    n_correct_up_to_bin = np.cumsum([correct[bin_indices].sum() for bin_indices in bins_of_indices])
    accuracy_up_to_bin = n_correct_up_to_bin / n_rows_up_to_bin
    decreasing_fit = isotonic_regression(accuracy_up_to_bin, increasing=False)
    return mean_score_by_bin, np.asarray(decreasing_fit.x)


def _find_largest_score_with_accuracy(
    min_accuracy: float, score_of_bins: Float, accuracy_up_to_bins: Float
) -> float:
    """Find the largest score that reaches an accuracy, by linear interpolation.

    The score is +inf if the last bin has the accuracy.
    """
    last_accurate_bin = int(np.flatnonzero(accuracy_up_to_bins >= min_accuracy)[-1])
    is_last_bin = last_accurate_bin == len(accuracy_up_to_bins) - 1
    if is_last_bin:
        return math.inf
    score = score_of_bins[last_accurate_bin]
    next_score = score_of_bins[last_accurate_bin + 1]
    accuracy = accuracy_up_to_bins[last_accurate_bin]
    accuracy_drop = accuracy - accuracy_up_to_bins[last_accurate_bin + 1]
    fraction_of_drop = (accuracy - min_accuracy) / accuracy_drop
    return float(score + fraction_of_drop * (next_score - score))


def _build_certificate_without_guarantee(
    rows: CalibrationRows, quantity: Quantity, target: float, rule_name: str, threshold: float
) -> Certificate:
    """Build a certificate that states no guarantee."""
    certificate = build_certificate_for_threshold(
        rows,
        quantity=quantity,
        target=target,
        delta=None,
        rule_name=rule_name,
        threshold=threshold,
    )
    return replace(certificate, guarantee="none")


def _describe_too_many_rows(n_rows: int) -> str:
    """Describe a certificate that has more rows than the paper uses."""
    return (
        f"the paper's split sets aside at most {MAX_THRESHOLD_ROWS} rows for the threshold, not"
        f" {n_rows:,}"
    )
