"""SimultaneousThreshold: targets that may be chosen after looking at the rows that certify them."""

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
from metacal.certification.statements import build_certificate_for_threshold
from metacal.errors import InfeasibleTargetError
from metacal.formulas import Float
from metacal.statistics import bands
from metacal.statistics.accepted_counts import candidate_thresholds

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

# Largest number of thresholds at which an error message searches for the best targets.
_MAX_MESSAGE_THRESHOLDS = 2000

# Relative tolerance for bounds that are recomputed from a file.
_RELATIVE_TOLERANCE = 1e-9


@dataclass(frozen=True)
class SimultaneousThreshold:
    """Procedure that uses bands which hold at every threshold at once.

    The bounds hold at all thresholds with probability 1 - delta, so the targets and the threshold
    may be chosen after looking at the same rows. One limit receives all of delta, two receive half
    of it each. The bands are proved in `statistics.levels` (miscoverage) and
    `statistics.selective_accuracy` (accuracy).

    Implements `metacal.certification.procedures.Procedure`.

    Parameters
    ----------
    alpha : float or None
        Largest allowed miscoverage.

    beta : float or None
        Smallest allowed accuracy. At least one of `alpha` and `beta` is given.

    threshold : float or None
        Threshold to certify. By default, the largest threshold that supports `beta`, or the smallest
        one that supports `alpha` if it is given alone.
    """

    alpha: float | None = None
    beta: float | None = None
    threshold: float | None = None

    @property
    def promised_limits(self) -> tuple[PromisedLimit, ...]:
        """The limits, the accuracy first."""
        limits = []
        if self.beta is not None:
            limits.append(PromisedLimit(SELECTIVE_ACCURACY, self.beta))
        if self.alpha is not None:
            limits.append(PromisedLimit(MISCOVERAGE, self.alpha))
        return tuple(limits)

    @property
    def rule_name(self) -> str:
        """Name of the rule in certificates and files."""
        if self.beta is None:
            return DISTRIBUTION_BAND
        return ACCURACY_BAND

    def pilot_policy(
        self, random_state: int | None = None, declared_values: Float | None = None
    ) -> PilotPolicy | None:
        """Return None, because the bands hold at every threshold."""
        return None

    def certify_promise(self, rows: CalibrationRows, delta: float | None) -> Certificate:
        """Certify the given threshold, or find one."""
        assert delta is not None
        if self.threshold is None:
            found_threshold = self._find_threshold(rows, delta)
            return self._build_certificate(rows, found_threshold, delta)

        certificate = self._build_certificate(rows, self.threshold, delta)
        contradiction = self.find_contradiction(certificate, delta, promise=self)
        if contradiction is not None:
            message = (
                f"The threshold {self.threshold:g} does not support the promise: {contradiction}."
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
        """Find a certified threshold, and raise it to just below the next score."""
        if self.beta is None:
            threshold = self._find_threshold_for_alpha(rows, delta)
        else:
            threshold = self._find_threshold_for_beta(rows, self.beta, delta)
        n_accepted = int((rows.scores <= threshold).sum())
        if n_accepted == 0:
            return threshold
        return rows.ranking.largest_threshold_accepting_exactly(n_accepted)

    def _find_threshold_for_alpha(self, rows: CalibrationRows, delta: float) -> float:
        """Find the smallest score of a correct row at which the miscoverage is certified.

        Without one, the threshold accepts every row.
        """
        assert self.alpha is not None
        correct_scores = np.sort(rows.scores[rows.is_correct])
        max_miscoverage_at_scores = bands.certified_miscoverage(
            correct_scores, thresholds=correct_scores, delta=self._compute_limit_level(delta)
        )
        is_certified = max_miscoverage_at_scores <= float(self.alpha)
        certified_scores = correct_scores[is_certified]
        if len(certified_scores) == 0:
            return math.inf
        return float(certified_scores[0])

    def _find_threshold_for_beta(self, rows: CalibrationRows, beta: float, delta: float) -> float:
        """Find the largest threshold that supports `beta`.

        Raises
        ------
        InfeasibleTargetError
            If no threshold supports `beta`, or if the threshold does not support `alpha`.
        """
        limit_level = self._compute_limit_level(delta)
        threshold = bands.largest_supporting_threshold(
            rows.scores, rows.is_correct, accuracy=beta, delta=limit_level
        )
        if threshold is None:
            raise self._build_accuracy_error(rows, beta, delta)
        if self.alpha is not None:
            correct_scores = rows.scores[rows.is_correct]
            (max_miscoverage,) = bands.certified_miscoverage(
                correct_scores, thresholds=[threshold], delta=limit_level
            )
            if max_miscoverage > self.alpha:
                raise self._build_pair_error(
                    rows,
                    beta=beta,
                    alpha=self.alpha,
                    miscoverage=float(max_miscoverage),
                    delta=delta,
                )
        return threshold

    def _compute_limit_level(self, delta: float) -> float:
        """Return the significance level of each limit."""
        return delta / len(self.promised_limits)

    def find_contradiction(
        self, certificate: Certificate, delta: float | None, promise: object
    ) -> str | None:
        """Check that the bands at the counts of a certificate support the targets."""
        assert delta is not None
        n_correct_accepted = certificate.n_correct_accepted
        n_errors = certificate.n_accepted - n_correct_accepted
        if self.beta is not None:
            accuracy = bands.certified_accuracy_from_counts(
                n_correct_accepted, n_errors, certificate.n_rows, self._compute_limit_level(delta)
            )
            if not accuracy >= self.beta * (1.0 - _RELATIVE_TOLERANCE):
                return (
                    f"{n_errors:,} errors in {n_correct_accepted + n_errors:,} accepted rows certify an accuracy"
                    f" of {floor_to_4_decimals(accuracy):.4f} at every threshold at once, not of"
                    f" {self.beta:g} (delta {delta:g})"
                )
        if self.alpha is not None and not certificate.accepts_everything:
            miscoverage = bands.certified_miscoverage_from_counts(
                n_correct_accepted, certificate.n_correct, self._compute_limit_level(delta)
            )
            if not miscoverage <= self.alpha * (1.0 + _RELATIVE_TOLERANCE):
                return (
                    f"{n_correct_accepted:,} accepted of {certificate.n_correct:,} correct rows certify a"
                    f" miscoverage of {ceil_to_4_decimals(miscoverage):.4f} at every threshold at once, not"
                    f" of {self.alpha:g} (delta {delta:g})"
                )
        return None

    def _compute_frontier(self, rows: CalibrationRows, delta: float) -> bands.CertifiedFrontier:
        """Compute the certified frontier at no more thresholds than a message needs."""
        thresholds = candidate_thresholds(rows.scores, rows.is_correct)
        step = max(1, math.ceil(len(thresholds) / _MAX_MESSAGE_THRESHOLDS))
        share = 1.0 / len(self.promised_limits)
        return bands.certified_frontier(
            rows.scores, rows.is_correct, delta, thresholds[::step], share
        )

    def _build_accuracy_error(
        self, rows: CalibrationRows, beta: float, delta: float
    ) -> InfeasibleTargetError:
        """Build the error for rows that support the accuracy at no threshold."""
        frontier = self._compute_frontier(rows, delta)
        best_beta = floor_to_4_decimals(float(frontier.beta.max(initial=0.0)))
        message = (
            f"Cannot certify an accuracy of {beta:g} at a threshold chosen on these {len(rows):,}"
            " rows. The highest accuracy that they support at all thresholds at once is"
            f" {best_beta:.4f}. Lower the target, or use more rows."
        )
        return InfeasibleTargetError(message, target=beta, best=best_beta)

    def _build_pair_error(
        self,
        rows: CalibrationRows,
        beta: float,
        alpha: float,
        miscoverage: float,
        delta: float,
    ) -> InfeasibleTargetError:
        """Build the error for a threshold that supports `beta`, but not `alpha`."""
        smallest_alpha = ceil_to_4_decimals(miscoverage)
        best_beta = floor_to_4_decimals(self._compute_frontier(rows, delta).best_accuracy(alpha))
        message = (
            f"Cannot certify an accuracy of {beta:g} together with a miscoverage of {alpha:g} at a"
            f" threshold chosen on these rows. An accuracy of {beta:g} needs a miscoverage of"
            f" {smallest_alpha:.4f}; a miscoverage of {alpha:g} supports an accuracy of"
            f" {best_beta:.4f}. Relax one of them, or use more rows."
        )
        return InfeasibleTargetError(message, target=alpha, best=smallest_alpha)
