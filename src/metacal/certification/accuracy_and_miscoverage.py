"""Certification of an accuracy together with a miscoverage at one threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from metacal.certificates.certificate import Certificate
from metacal.certificates.design import record_design
from metacal.certificates.number_format import ceil_to_4_decimals
from metacal.certificates.quantities import MISCOVERAGE, SELECTIVE_ACCURACY
from metacal.certificates.rule_texts import ERROR_RATE_RISES_WITH_SCORE, SAME_SOURCE, register_rule
from metacal.certification.one_threshold import OneThresholdProcedure
from metacal.certification.pilot import PilotPolicy
from metacal.certification.rows import CalibrationRows
from metacal.certification.rules.accuracy_shortfall import (
    ACCURACY_STEPS_PER_UNIT,
    find_highest_certified_step,
)
from metacal.certification.rules.expected_prefix import ExpectedPrefixRule
from metacal.certification.rules.fixed_sequence import FixedSequenceRule
from metacal.certification.rules.order_statistics import RejectionRateRule
from metacal.certification.rules.rule import ACCEPT_ALL_ROWS
from metacal.certification.statements import (
    build_certificate_for_threshold,
    format_confidence_level,
)
from metacal.errors import InfeasibleTargetError
from metacal.formulas import Float
from metacal.statistics import bounds

# Name of the rule in certificates if the promises have a confidence level.
BOTH_CERTIFIED = register_rule(
    "both-half-each",
    "binomial tests in a fixed sequence of ranks with fallback shares, and the order statistic of"
    " the correct scores, delta/2 each",
    SAME_SOURCE,
    score_value_description=(
        "binomial tests at the values of the score, in rising order, and the order statistic of the"
        " correct scores, delta/2 each"
    ),
)

# Name of the rule in certificates if the promises hold in expectation.
BOTH_EXPECTED = register_rule(
    "both-expected", "both rules in expectation", SAME_SOURCE, ERROR_RATE_RISES_WITH_SCORE
)

# Step between consecutive miscoverages that are rounded to four decimals.
_MISCOVERAGE_STEP = 1e-4


@dataclass(frozen=True)
class AccuracyAndMiscoverage:
    """Procedure that certifies an accuracy and a miscoverage at half of delta each.

    The largest threshold that is certified for the accuracy is used. It also keeps the miscoverage
    if it is at least the smallest threshold that is certified for the miscoverage, because a higher
    threshold rejects fewer rows. By the union bound both promises hold together with probability 1 -
    delta.

    **Not valid**: all of delta for each promise, although both tests must pass. If a single threshold
    keeps both promises, a lower one breaks the miscoverage and a higher one the accuracy. Each
    happens with nearly its own level (0.16 were broken by tests at 0.1 each on a source that was
    made for it).

    Implements `metacal.certification.procedures.Procedure`.

    Parameters
    ----------
    max_miscoverage : float
        Largest allowed miscoverage.

    min_accuracy : float
        Smallest allowed accuracy.

    in_expectation : bool
        Whether both promises hold in expectation.
    """

    max_miscoverage: float
    min_accuracy: float
    in_expectation: bool = False

    @property
    def accuracy_procedure(self) -> OneThresholdProcedure:
        """Procedure of the accuracy."""
        if self.in_expectation:
            return OneThresholdProcedure(
                SELECTIVE_ACCURACY, self.min_accuracy, ExpectedPrefixRule()
            )
        return OneThresholdProcedure(SELECTIVE_ACCURACY, self.min_accuracy, FixedSequenceRule())

    @property
    def miscoverage_procedure(self) -> OneThresholdProcedure:
        """Procedure of the miscoverage."""
        return OneThresholdProcedure(MISCOVERAGE, self.max_miscoverage, RejectionRateRule())

    @property
    def rule_name(self) -> str:
        """Name of the rule in certificates and files."""
        if self.in_expectation:
            return BOTH_EXPECTED
        return BOTH_CERTIFIED

    def build_pilot_policy(
        self, random_state: int | None = None, declared_score_values: Float | None = None
    ) -> PilotPolicy | None:
        """Return the policy that chooses pilot rows for the tests of the accuracy."""
        return self.accuracy_procedure.build_pilot_policy(random_state, declared_score_values)

    def certify_promise(self, rows: CalibrationRows, delta: float | None) -> Certificate:
        """Certify a threshold for the accuracy, and check its miscoverage."""
        delta_per_promise = _compute_delta_per_promise(delta)
        accuracy_certificate = self.accuracy_procedure.certify_promise(rows, delta_per_promise)
        threshold = accuracy_certificate.threshold
        n_correct_accepted = int((rows.is_correct & (rows.scores <= threshold)).sum())
        n_correct = int(rows.is_correct.sum())
        min_correct_accepted = bounds.smallest_rank_keeping_miscoverage(
            n_correct, self.max_miscoverage, delta_per_promise
        )
        rejects_some_rows = threshold < ACCEPT_ALL_ROWS
        if rejects_some_rows and n_correct_accepted < min_correct_accepted:
            raise self._build_infeasible_error(rows, n_correct_accepted, delta)
        certificate = build_certificate_for_threshold(
            rows,
            quantity=SELECTIVE_ACCURACY,
            target=self.min_accuracy,
            delta=delta,
            rule_name=self.rule_name,
            threshold=threshold,
        )
        certificate = record_design(certificate, accuracy_certificate.design)
        return replace(certificate, max_miscoverage=float(self.max_miscoverage))

    def find_contradiction(
        self, certificate: Certificate, delta: float | None, promise: object
    ) -> str | None:
        """Describe why the counts of a certificate do not support both targets."""
        delta_per_promise = _compute_delta_per_promise(delta)
        contradiction = self.accuracy_procedure.find_contradiction(
            certificate, delta_per_promise, promise
        )
        if contradiction is not None:
            return contradiction
        return self.miscoverage_procedure.find_contradiction(
            certificate, delta_per_promise, promise
        )

    def _build_infeasible_error(
        self, rows: CalibrationRows, n_correct_accepted: int, delta: float | None
    ) -> InfeasibleTargetError:
        """Build the error for rows that do not support both targets at once."""
        delta_per_promise = _compute_delta_per_promise(delta)
        n_correct = int(rows.is_correct.sum())
        smallest_miscoverage = _find_smallest_certified_miscoverage(
            n_correct=n_correct, n_correct_accepted=n_correct_accepted, delta=delta_per_promise
        )
        highest_accuracy = self._find_highest_accuracy_keeping_miscoverage(rows, delta)
        if highest_accuracy is None:
            best_accuracy_text = "no accuracy"
        else:
            best_accuracy_text = f"an accuracy of {highest_accuracy:.4f}"
        message = (
            f"Cannot certify an accuracy of {self.min_accuracy:g} together with a miscoverage of"
            f" {self.max_miscoverage:g} on these {len(rows):,} rows"
            f" {format_confidence_level(delta)}: an accuracy of {self.min_accuracy:g} needs a"
            f" miscoverage of {smallest_miscoverage:.4f}, and a miscoverage of"
            f" {self.max_miscoverage:g} supports {best_accuracy_text}. Relax one of them, use more"
            " rows, or use a better ranking score."
        )
        return InfeasibleTargetError(
            message, target=self.max_miscoverage, best=smallest_miscoverage
        )

    def _find_highest_accuracy_keeping_miscoverage(
        self, rows: CalibrationRows, delta: float | None
    ) -> float | None:
        """Find the highest certifiable accuracy that respects the miscoverage limit."""
        min_accepted_rows = self._count_rows_to_accept_for_miscoverage(rows, delta)

        def keeps_miscoverage(accuracy: float) -> bool:
            n_accepted = self._count_rows_accepted_for_accuracy(rows, accuracy, delta)
            return n_accepted >= min_accepted_rows

        # Accuracies are searched on a grid of equal steps from 0 to the promised accuracy.
        highest_passing_step = find_highest_certified_step(
            certified_step=0,
            uncertified_step=math.ceil(ACCURACY_STEPS_PER_UNIT * self.min_accuracy),
            certifies=keeps_miscoverage,
        )
        has_no_passing_accuracy = highest_passing_step == 0
        if has_no_passing_accuracy:
            return None
        return highest_passing_step / ACCURACY_STEPS_PER_UNIT

    def _count_rows_accepted_for_accuracy(
        self, rows: CalibrationRows, accuracy: float, delta: float | None
    ) -> int:
        """Count the rows that are accepted if the given accuracy is promised."""
        threshold_result = self.accuracy_procedure.find_threshold(
            rows.ranking,
            _compute_delta_per_promise(delta),
            target=accuracy,
            pilot_rows=rows.pilot_rows,
        )
        return threshold_result.n_accepted

    def _count_rows_to_accept_for_miscoverage(
        self, rows: CalibrationRows, delta: float | None
    ) -> int:
        """Count the rows that must be accepted to respect the miscoverage limit."""
        sorted_correct_scores = np.sort(rows.scores[rows.is_correct])
        n_correct = len(sorted_correct_scores)
        min_correct_accepted = bounds.smallest_rank_keeping_miscoverage(
            n_correct, self.max_miscoverage, _compute_delta_per_promise(delta)
        )
        # With too few correct rows, the smallest count is n_correct + 1, and all rows are accepted.
        threshold = ACCEPT_ALL_ROWS
        if min_correct_accepted <= n_correct:
            threshold = sorted_correct_scores[min_correct_accepted - 1]
        return int((rows.scores <= threshold).sum())


def _compute_delta_per_promise(delta: float | None) -> float | None:
    """Return half of delta, or None if the promises hold in expectation."""
    if delta is None:
        return None
    return delta / 2


def _compute_expected_miscoverage(n_correct: int, n_correct_accepted: int) -> float:
    """Compute the expected miscoverage from the number of accepted correct rows."""
    return (n_correct + 1 - n_correct_accepted) / (n_correct + 1)


def _find_smallest_certified_miscoverage(
    n_correct: int, n_correct_accepted: int, delta: float | None
) -> float:
    """Find the smallest certified miscoverage, rounded up to four decimals."""
    if n_correct_accepted == 0:
        return 1.0
    if delta is None:
        unrounded_miscoverage = _compute_expected_miscoverage(n_correct, n_correct_accepted)
    else:
        unrounded_miscoverage = bounds.miscoverage_quantile(
            n_correct, n_correct_accepted, level=1.0 - delta
        )

    def is_certified(miscoverage: float) -> bool:
        min_correct_accepted = bounds.smallest_rank_keeping_miscoverage(
            n_correct, miscoverage, delta
        )
        return n_correct_accepted >= min_correct_accepted

    rounded_miscoverage = ceil_to_4_decimals(unrounded_miscoverage)
    # Because of rounding errors, the rounded quantile may be slightly too small.
    while rounded_miscoverage < 1.0 and not is_certified(rounded_miscoverage):
        rounded_miscoverage = round(rounded_miscoverage + _MISCOVERAGE_STEP, 4)
    return rounded_miscoverage
