"""Certification of targets that are chosen after looking at the calibration rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from metacal.certificates.certificate import Certificate
from metacal.certificates.number_format import ceil_to_4_decimals, floor_to_4_decimals
from metacal.certificates.quantities import MISCOVERAGE, SELECTIVE_ACCURACY
from metacal.certificates.rule_texts import SAME_SOURCE, register_rule
from metacal.certification.pilot import PilotPolicy
from metacal.certification.procedures import PromisedLimit
from metacal.certification.rows import CalibrationRows
from metacal.certification.rules.rule import ACCEPT_ALL_ROWS
from metacal.certification.statements import build_certificate_for_threshold
from metacal.errors import InfeasibleTargetError
from metacal.formulas import Float
from metacal.statistics import bands
from metacal.statistics.accepted_counts import find_candidate_thresholds

# Name of the rule for a miscoverage alone.
DISTRIBUTION_BAND = register_rule(
    "band-over-thresholds",
    "band over all thresholds at once, equal local levels (Bates et al. 2021): targets may be"
    " chosen after looking",
    SAME_SOURCE,
)

# Name of the rule for an accuracy, alone or with a miscoverage.
ACCURACY_BAND = register_rule(
    "accuracy-band",
    "mixture of likelihood ratios at all thresholds at once (Robbins 1970; Ville 1939): targets may"
    " be chosen after looking",
    SAME_SOURCE,
)

# Maximum number of thresholds at which an error message searches for the best targets.
_MAX_THRESHOLDS_FOR_MESSAGE = 2000

# Relative tolerance for bounds that are recomputed from a file.
_RELATIVE_TOLERANCE = 1e-9


@dataclass(frozen=True)
class SimultaneousThreshold:
    """Procedure that certifies targets by simultaneous confidence bands.

    The bounds hold at all thresholds with probability 1 - delta, so the targets and the threshold
    may be chosen after looking at the same rows. One limit receives all of delta, two receive half
    of it each. The bands are proved in `statistics.levels` (miscoverage) and
    `statistics.selective_accuracy` (accuracy).

    Implements `metacal.certification.procedures.Procedure`.

    Parameters
    ----------
    max_miscoverage : float or None
        Largest allowed miscoverage.

    min_accuracy : float or None
        Smallest allowed accuracy. At least one of `max_miscoverage` and `min_accuracy` is given.

    requested_threshold : float or None
        Threshold to certify. By default, the largest threshold that supports `min_accuracy`, or the
        smallest one that supports `max_miscoverage` if it is given alone.
    """

    max_miscoverage: float | None = None
    min_accuracy: float | None = None
    requested_threshold: float | None = None

    @property
    def promised_limits(self) -> tuple[PromisedLimit, ...]:
        """Promised limits, with the accuracy first."""
        promised_limits = []
        if self.min_accuracy is not None:
            promised_limits.append(PromisedLimit(SELECTIVE_ACCURACY, self.min_accuracy))
        if self.max_miscoverage is not None:
            promised_limits.append(PromisedLimit(MISCOVERAGE, self.max_miscoverage))
        return tuple(promised_limits)

    @property
    def rule_name(self) -> str:
        """Name of the rule in certificates and files."""
        if self.min_accuracy is None:
            return DISTRIBUTION_BAND
        return ACCURACY_BAND

    def build_pilot_policy(
        self, random_state: int | None = None, declared_score_values: Float | None = None
    ) -> PilotPolicy | None:
        """Return None, because confidence bands need no pilot rows."""
        return None

    def certify_promise(self, rows: CalibrationRows, delta: float | None) -> Certificate:
        """Certify the requested threshold, or find one that supports the targets."""
        assert delta is not None
        if self.requested_threshold is None:
            certified_threshold = self._find_threshold(rows, delta)
            return self._build_certificate(rows, certified_threshold, delta)

        certificate = self._build_certificate(rows, self.requested_threshold, delta)
        unsupported_limit_text = self._describe_unsupported_limit(certificate, delta)
        if unsupported_limit_text is not None:
            message = (
                f"The threshold {self.requested_threshold:g} does not support the promise:"
                f" {unsupported_limit_text}."
                " Leave out the threshold, or choose a target that a report of these rows"
                " supports at this threshold."
            )
            raise InfeasibleTargetError(message, target=float(self.promised_limits[0].target))
        return certificate

    def _build_certificate(
        self, rows: CalibrationRows, threshold: float, delta: float
    ) -> Certificate:
        """Build the certificate of a threshold."""
        main_limit, *further_limits = self.promised_limits
        # If both limits are promised, the certificate states the accuracy as its main target.
        certificate = build_certificate_for_threshold(
            rows,
            quantity=main_limit.quantity,
            target=main_limit.target,
            delta=delta,
            rule_name=self.rule_name,
            threshold=threshold,
        )
        if not further_limits:
            return certificate
        miscoverage_limit = further_limits[0]
        return replace(certificate, max_miscoverage=float(miscoverage_limit.target))

    def _find_threshold(self, rows: CalibrationRows, delta: float) -> float:
        """Find a certified threshold, raised to just below the next score."""
        if self.min_accuracy is None:
            threshold = self._find_threshold_for_miscoverage(rows, delta)
        else:
            threshold = self._find_threshold_for_accuracy(rows, self.min_accuracy, delta)
        n_accepted = int((rows.scores <= threshold).sum())
        if n_accepted == 0:
            return threshold
        return rows.ranking.largest_threshold_accepting_exactly(n_accepted)

    def _find_threshold_for_miscoverage(self, rows: CalibrationRows, delta: float) -> float:
        """Find the smallest threshold with a certified miscoverage within the limit.

        The threshold accepts every row if the miscoverage is certified at no score.
        """
        assert self.max_miscoverage is not None
        sorted_correct_scores = np.sort(rows.scores[rows.is_correct])
        certified_miscoverages = bands.certified_miscoverage(
            sorted_correct_scores,
            thresholds=sorted_correct_scores,
            delta=self._compute_delta_per_limit(delta),
        )
        is_within_limit = certified_miscoverages <= float(self.max_miscoverage)
        certified_thresholds = sorted_correct_scores[is_within_limit]
        if len(certified_thresholds) == 0:
            return ACCEPT_ALL_ROWS
        return float(certified_thresholds[0])

    def _find_threshold_for_accuracy(
        self, rows: CalibrationRows, min_accuracy: float, delta: float
    ) -> float:
        """Find the largest threshold that supports an accuracy.

        Raises
        ------
        InfeasibleTargetError
            If no threshold supports the accuracy, or if the threshold does not support the
            miscoverage.
        """
        delta_per_limit = self._compute_delta_per_limit(delta)
        threshold = bands.largest_supporting_threshold(
            rows.scores, rows.is_correct, accuracy=min_accuracy, delta=delta_per_limit
        )
        if threshold is None:
            raise self._build_accuracy_error(rows, min_accuracy, delta)
        if self.max_miscoverage is None:
            return threshold

        (certified_miscoverage,) = bands.certified_miscoverage(
            rows.scores[rows.is_correct], thresholds=[threshold], delta=delta_per_limit
        )
        if certified_miscoverage > self.max_miscoverage:
            raise self._build_pair_error(
                rows,
                min_accuracy=min_accuracy,
                max_miscoverage=self.max_miscoverage,
                certified_miscoverage=float(certified_miscoverage),
                delta=delta,
            )
        return threshold

    def _compute_delta_per_limit(self, delta: float) -> float:
        """Divide delta evenly among the promised limits."""
        n_limits = len(self.promised_limits)
        return delta / n_limits

    def find_contradiction(
        self, certificate: Certificate, delta: float | None, promise: object
    ) -> str | None:
        """Describe a limit that the counts of a certificate do not support."""
        assert delta is not None
        return self._describe_unsupported_limit(certificate, delta)

    def _describe_unsupported_limit(self, certificate: Certificate, delta: float) -> str | None:
        """Describe a promised limit that the confidence bands do not support."""
        if self.min_accuracy is not None:
            unsupported_accuracy_text = self._describe_unsupported_accuracy(
                certificate, self.min_accuracy, delta
            )
            if unsupported_accuracy_text is not None:
                return unsupported_accuracy_text
        if self.max_miscoverage is not None and not certificate.accepts_everything:
            return self._describe_unsupported_miscoverage(certificate, self.max_miscoverage, delta)
        return None

    def _describe_unsupported_accuracy(
        self, certificate: Certificate, min_accuracy: float, delta: float
    ) -> str | None:
        """Describe why the counts do not support an accuracy, or return None."""
        n_accepted_errors = certificate.n_accepted - certificate.n_correct_accepted
        certified_accuracy = bands.certified_accuracy_from_counts(
            certificate.n_correct_accepted,
            n_accepted_errors,
            certificate.n_rows,
            self._compute_delta_per_limit(delta),
        )
        # The comparison with NaN is false, so its negation also detects a NaN accuracy.
        if not certified_accuracy >= min_accuracy * (1.0 - _RELATIVE_TOLERANCE):
            return (
                f"{n_accepted_errors:,} errors in {certificate.n_accepted:,} accepted rows certify"
                f" an accuracy of {floor_to_4_decimals(certified_accuracy):.4f} at every threshold"
                f" at once, not of {min_accuracy:g} (delta {delta:g})"
            )
        return None

    def _describe_unsupported_miscoverage(
        self, certificate: Certificate, max_miscoverage: float, delta: float
    ) -> str | None:
        """Describe why the counts do not support a miscoverage, or return None."""
        n_correct_accepted = certificate.n_correct_accepted
        certified_miscoverage = bands.certified_miscoverage_from_counts(
            n_correct_accepted, certificate.n_correct, self._compute_delta_per_limit(delta)
        )
        # The comparison with NaN is false, so its negation also detects a NaN miscoverage.
        if not certified_miscoverage <= max_miscoverage * (1.0 + _RELATIVE_TOLERANCE):
            return (
                f"{n_correct_accepted:,} accepted of {certificate.n_correct:,} correct rows certify"
                f" a miscoverage of {ceil_to_4_decimals(certified_miscoverage):.4f} at every"
                f" threshold at once, not of {max_miscoverage:g} (delta {delta:g})"
            )
        return None

    def _compute_frontier(self, rows: CalibrationRows, delta: float) -> bands.CertifiedFrontier:
        """Compute the certified pairs of accuracy and miscoverage."""
        candidate_thresholds = find_candidate_thresholds(rows.scores, rows.is_correct)
        index_step = max(1, math.ceil(len(candidate_thresholds) / _MAX_THRESHOLDS_FOR_MESSAGE))
        delta_fraction_per_limit = 1.0 / len(self.promised_limits)
        return bands.certified_frontier(
            rows.scores,
            rows.is_correct,
            delta,
            candidate_thresholds[::index_step],
            delta_fraction_per_limit,
        )

    def _build_accuracy_error(
        self, rows: CalibrationRows, min_accuracy: float, delta: float
    ) -> InfeasibleTargetError:
        """Build the error for rows that do not support the accuracy at any threshold."""
        frontier = self._compute_frontier(rows, delta)
        largest_possible_miscoverage = 1.0
        best_accuracy = floor_to_4_decimals(frontier.best_accuracy(largest_possible_miscoverage))
        message = (
            f"Cannot certify an accuracy of {min_accuracy:g} at a threshold chosen on these"
            f" {len(rows):,} rows. The highest accuracy that they support at all thresholds at once"
            f" is {best_accuracy:.4f}. Lower the target, or use more rows."
        )
        return InfeasibleTargetError(message, target=min_accuracy, best=best_accuracy)

    def _build_pair_error(
        self,
        rows: CalibrationRows,
        min_accuracy: float,
        max_miscoverage: float,
        certified_miscoverage: float,
        delta: float,
    ) -> InfeasibleTargetError:
        """Build the error for a threshold that does not support the miscoverage."""
        smallest_miscoverage = ceil_to_4_decimals(certified_miscoverage)
        frontier = self._compute_frontier(rows, delta)
        best_accuracy = floor_to_4_decimals(frontier.best_accuracy(max_miscoverage))
        message = (
            f"Cannot certify an accuracy of {min_accuracy:g} together with a miscoverage of"
            f" {max_miscoverage:g} at a threshold chosen on these rows. An accuracy of"
            f" {min_accuracy:g} needs a miscoverage of {smallest_miscoverage:.4f}; a miscoverage of"
            f" {max_miscoverage:g} supports an accuracy of {best_accuracy:.4f}. Relax one of them,"
            " or use more rows."
        )
        return InfeasibleTargetError(message, target=max_miscoverage, best=smallest_miscoverage)
