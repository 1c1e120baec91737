"""Procedures: how calibration rows are certified under one kind of promise.

A procedure stands between a promise and the rules. It builds rankings from the rows, calls its
rules, and states the result as a certificate.

Every procedure certifies all rows together (`Procedure`). Some can also certify each subgroup of
rows (`SubgroupProcedure`): `scopes` divides the error probability among the subgroups and calls
the procedure for each of them. `OneThresholdProcedure` in this module has one rule and one threshold.
`two_sides.TwoClassProcedure` has one for each of two classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from metacal.certificates.certificate import Certificate
from metacal.certificates.counts import Counts
from metacal.certificates.notes import Note
from metacal.certificates.quantity import Quantity
from metacal.certificates.subgroups import Name, SubgroupCertificate
from metacal.certification.pilot import PilotPolicy
from metacal.certification.plans import PilotRows
from metacal.certification.ranking import Ranking
from metacal.certification.rows import CalibrationRows
from metacal.certification.rules.accuracy_shortfall import describe_ruled_out
from metacal.certification.rules.rule import (
    ACCEPT_ALL_ROWS,
    REJECT_ALL_ROWS,
    Shortfall,
    ThresholdResult,
    ThresholdRule,
)
from metacal.certification.statements import (
    build_certificate,
    inaccurate_error,
    too_few_rows_note,
    unsupported_counts_sentence,
)
from metacal.errors import InfeasibleTargetError
from metacal.formulas import Codes, Flags, Float
from metacal.kernels.grid import RELATIVE


class PromisedLimit(NamedTuple):
    """Quantity and its limit, as promised."""

    quantity: Quantity
    target: float


class RowRequirement(NamedTuple):
    """Number of rows that a rule counts, and the smallest number with which it can pass."""

    n_reference_rows: int
    n_required_rows: int

    @property
    def is_met(self) -> bool:
        """Whether there are enough rows for a test."""
        return self.n_reference_rows >= self.n_required_rows


@dataclass(frozen=True)
class SubgroupResult:
    """Result for the rows of one subgroup.

    Attributes
    ----------
    sides : tuple of (ThresholdResult or None)
        One result per threshold: a single one, or one for each of two classes. None if nothing is
        promised about the class, or if the promise says nothing about it in this subgroup.
    """

    threshold_results: tuple[ThresholdResult | None, ...]

    @property
    def accepts_any_row(self) -> bool:
        """Whether any row is accepted."""
        return any(side is not None and side.n_accepted > 0 for side in self.threshold_results)

    @property
    def every_test_passed(self) -> bool:
        """Whether the subgroup needs no significance level any more."""
        if len(self.threshold_results) != 1 or self.threshold_results[0] is None:
            return False
        return self.threshold_results[0].every_test_passed

    def count_accepted(self, side: int) -> int:
        """Count the accepted rows of one side."""
        result = self.threshold_results[side]
        if result is None:
            return 0
        return result.n_accepted


class DecisionColumns(NamedTuple):
    """Rows as a gate decides them.

    Attributes
    ----------
    uncertainty : array of float of shape (n_rows,)
        Number that is compared with the threshold.

    correct : array of bool of shape (n_rows,)
        Whether each prediction is correct.

    side_codes : array of int of shape (n_rows,)
        Index of the threshold of each row within its subgroup.
    """

    uncertainty: Float
    correct: Flags
    threshold_indices: Codes


class Procedure(Protocol):
    """Certification of all rows together."""

    def certify_all(self, rows: CalibrationRows, delta: float | None) -> Certificate:
        """Certify all rows together.

        Raises
        ------
        InfeasibleTargetError
            If the rows do not support the promise.
        """

    def find_contradiction(
        self, certificate: Certificate, delta: float | None, promise: object
    ) -> str | None:
        """Return what in a certificate from a file cannot be true, or None.

        Only the counts of a certificate are available, not its rows. `promise` is named in the
        sentence.
        """

    def pilot_policy(
        self, random_state: int | None = None, declared_values: Float | None = None
    ) -> PilotPolicy | None:
        """Return how pilot rows are chosen, or None if the procedure uses no pilot rows."""


class SubgroupProcedure(Procedure, Protocol):
    """Certification that is also possible for each subgroup."""

    @property
    def promised_limits(self) -> tuple[PromisedLimit, ...]:
        """Limits in the order in which the promise names them."""

    @property
    def rule_name(self) -> str:
        """Name of the rule in certificates and files."""

    @property
    def score_name(self) -> str | None:
        """Name of the score that the thresholds apply to. None if the caller chooses it."""

    @property
    def fallback_threshold(self) -> float:
        """Threshold of a subgroup for which nothing is certified."""

    def get_main_limit(self, rows: CalibrationRows) -> PromisedLimit:
        """Return the limit that the certificate names first."""

    def count_rows_and_requirements(
        self, rows: CalibrationRows, significance_level: float
    ) -> list[RowRequirement]:
        """Count the rows that each rule uses, without reading what the rules test."""

    def certify_subgroup(
        self,
        rows: CalibrationRows,
        significance_level: float,
        planned_level: float | None = None,
    ) -> SubgroupResult:
        """Certify a subgroup by tests that were planned for `planned_level`."""

    def build_subgroup_certificates(
        self,
        names: tuple[Name, ...],
        rows: CalibrationRows,
        result: SubgroupResult | None,
        significance_level: float | None,
        spare_level: float,
    ) -> tuple[SubgroupCertificate, ...]:
        """Return what the certificate states about a subgroup.

        `significance_level` is None if the subgroup was not tested. The number of rows that it
        needs is then computed for `spare_level`.
        """

    def compute_decision_columns(
        self, rows: CalibrationRows, decision_points: float | Float
    ) -> DecisionColumns:
        """Return the columns by which a gate decides the rows."""

    def find_contradiction_in_subgroup(
        self, family: tuple[SubgroupCertificate, ...], significance_level: float, promise: object
    ) -> str | None:
        """Return what in the parts of one subgroup cannot be true, or None."""

    def with_early_starts(self) -> SubgroupProcedure:
        """Return the procedure for subgroups under the false-coverage rate."""


@dataclass(frozen=True)
class OneThresholdProcedure:
    """Procedure with one rule and one threshold.

    A row is accepted if its score is at most the threshold. Implements `SubgroupProcedure`.

    Parameters
    ----------
    quantity : Quantity
        Quantity that is limited.

    target : float
        Promised limit of the quantity.

    rule : ThresholdRule
        Rule that certifies the threshold.
    """

    quantity: Quantity
    target: float
    rule: ThresholdRule

    # The caller chooses the score.
    score_name = None

    @property
    def promised_limits(self) -> tuple[PromisedLimit, ...]:
        """The only limit."""
        return (PromisedLimit(self.quantity, self.target),)

    @property
    def rule_name(self) -> str:
        """Name of the rule in certificates and files."""
        return self.rule.name

    @property
    def fallback_threshold(self) -> float:
        """Threshold of rows that certify nothing."""
        return self.rule.fallback_threshold

    @property
    def limit(self) -> float:
        """Limit that the tests of the rule are about."""
        return self.rule.convert_target_to_limit(self.quantity, self.target)

    def get_main_limit(self, rows: CalibrationRows) -> PromisedLimit:
        """Return the only limit."""
        return PromisedLimit(self.quantity, self.target)

    def pilot_policy(
        self, random_state: int | None = None, declared_values: Float | None = None
    ) -> PilotPolicy | None:
        """Return how pilot rows are chosen, if the rule runs a sequence of tests."""
        if not self.rule.reads_labels_in_order:
            return None
        return PilotPolicy(random_state=random_state, declared_values=declared_values)

    def count_rows_and_requirements(
        self, rows: CalibrationRows, significance_level: float
    ) -> list[RowRequirement]:
        """Count the rows that the rule uses."""
        n_required = self.rule.compute_required_rows(self.limit, significance_level)
        return [RowRequirement(self.rule.count_reference_rows(rows.ranking), n_required)]

    def certify_subgroup(
        self,
        rows: CalibrationRows,
        significance_level: float,
        planned_level: float | None = None,
    ) -> SubgroupResult:
        """Certify the threshold of a subgroup."""
        result = self.find_threshold(
            rows.ranking, significance_level, planned_level, pilot=rows.pilot
        )
        return SubgroupResult(threshold_results=(result,))

    def find_threshold(
        self,
        ranking: Ranking,
        significance_level: float | None,
        planned_level: float | None = None,
        *,
        target: float | None = None,
        pilot: PilotRows | None = None,
        last_rank: int | None = None,
    ) -> ThresholdResult:
        """Plan and run the tests of one ranking.

        Parameters
        ----------
        ranking : Ranking
            Rows in increasing order of score.

        significance_level : float or None
            Significance level of the tests, or None for a rule in expectation.

        planned_level : float, optional
            Significance level that the tests are planned for, by default `significance_level`.

        target : float, optional
            Target to certify, by default the promised one.

        pilot : PilotRows, optional
            Pilot rows.

        last_rank : int, optional
            If given, only ranks up to this one are tested.

        Returns
        -------
        ThresholdResult
        """
        limit = self.limit
        if target is not None:
            limit = self.rule.convert_target_to_limit(self.quantity, target)
        if planned_level is None:
            planned_level = significance_level
        plan = self.rule.plan(ranking.n_rows, limit, planned_level, pilot)
        return self.rule.certify(ranking, plan, significance_level, last_rank)

    def build_subgroup_certificates(
        self,
        names: tuple[Name, ...],
        rows: CalibrationRows,
        result: SubgroupResult | None,
        significance_level: float | None,
        spare_level: float,
    ) -> tuple[SubgroupCertificate, ...]:
        """Return the one part of a subgroup."""
        threshold = None
        if result is not None and result.threshold_results[0] is not None:
            threshold = result.threshold_results[0].threshold

        shortfall = Shortfall()
        if threshold is None:
            threshold = self.fallback_threshold
            level = spare_level if significance_level is None else significance_level
            shortfall = self.rule.shortfall(rows.ranking, self.limit, level)

        threshold = RELATIVE.settled(threshold)
        part = SubgroupCertificate(
            names,
            threshold=threshold,
            delta=significance_level,
            best=shortfall.best_limit,
            rows_needed=shortfall.rows_needed,
            **rows.ranking.summarize_threshold(threshold)._asdict(),
        )
        return (part,)

    def certify_all(self, rows: CalibrationRows, delta: float | None) -> Certificate:
        """Certify all rows together."""
        certificate = self.certify_ranking(rows.ranking, delta, pilot=rows.pilot)
        return replace(certificate, labelled=rows.correct is not None)

    def certify_ranking(
        self, ranking: Ranking, delta: float | None, *, pilot: PilotRows | None = None
    ) -> Certificate:
        """Certify rows of which only the ranking is known.

        Raises
        ------
        InfeasibleTargetError
            If the rows support no threshold, and accepting every row may break the promise.

        FinerCountsNeeded
            If the ranking contains only counts, and they do not determine the certificate.
        """
        result = self.find_threshold(ranking, delta, pilot=pilot)
        if result.threshold is not None:
            _require_known_neighbours(ranking, result.n_accepted)
            return self.build_certificate_at(ranking, result.threshold, delta)

        if self.fallback_threshold == REJECT_ALL_ROWS:
            raise self._build_infeasible_error(ranking, delta, pilot)
        note = too_few_rows_note(
            self.quantity,
            self.rule.count_reference_rows(ranking),
            self.target,
            delta,
            self.rule.compute_required_rows(self.limit, delta),
        )
        return self.build_certificate_at(ranking, self.fallback_threshold, delta, notes=(note,))

    def build_certificate_at(
        self,
        ranking: Ranking,
        threshold: float,
        delta: float | None,
        notes: tuple[Note, ...] = (),
    ) -> Certificate:
        """Build the certificate of a threshold with the counts of a ranking.

        Scores are points of the grid. Moving the threshold between two points passes no score.
        """
        threshold = RELATIVE.settled(threshold)
        return build_certificate(
            self.quantity,
            self.target,
            delta,
            self.rule.name,
            threshold,
            ranking.summarize_threshold(threshold),
            notes,
        )

    def _build_infeasible_error(
        self, ranking: Ranking, delta: float | None, pilot: PilotRows | None
    ) -> InfeasibleTargetError:
        """Build the error for rows that support no threshold."""

        def certifies(target: float) -> bool:
            result = self.find_threshold(ranking, delta, target=target, pilot=pilot)
            return result.threshold is not None

        shortfall = self.rule.shortfall(ranking, self.limit, delta, certifies)
        return inaccurate_error(
            self.target,
            delta,
            ranking.n_rows,
            shortfall.best_limit,
            shortfall.rows_needed,
            describe_ruled_out(ranking, self.limit, delta, "is that accurate"),
        )

    def compute_decision_columns(
        self, rows: CalibrationRows, decision_points: float | Float
    ) -> DecisionColumns:
        """Return the score and the correctness of each row. All rows have one threshold."""
        assert rows.correct is not None
        side_codes = np.zeros(len(rows), dtype=np.intp)
        return DecisionColumns(rows.scores, rows.correct, side_codes)

    def find_contradiction(
        self, certificate: Certificate, delta: float | None, promise: object
    ) -> str | None:
        """Check that the counts of a certificate support the target."""
        return self._find_contradiction_in_counts(certificate, delta)

    def find_contradiction_in_subgroup(
        self, family: tuple[SubgroupCertificate, ...], significance_level: float, promise: object
    ) -> str | None:
        """Check that the counts of a subgroup support the target."""
        return self._find_contradiction_in_counts(family[0], significance_level)

    def _find_contradiction_in_counts(
        self, counted: Certificate | SubgroupCertificate, significance_level: float | None
    ) -> str | None:
        accepting_is_safe = self.fallback_threshold == ACCEPT_ALL_ROWS
        if accepting_is_safe and counted.accepts_everything:
            return None
        counts = Counts(
            n_rows=counted.n_rows,
            n_accepted=counted.n_accepted,
            n_correct=counted.n_correct,
            n_correct_accepted=counted.n_correct_accepted,
        )
        if self.rule.supports(counts, self.limit, significance_level):
            return None
        return unsupported_counts_sentence(self.quantity, self.target, counts, significance_level)

    def with_early_starts(self) -> OneThresholdProcedure:
        """Return the procedure with a rule that starts its tests at low ranks."""
        return replace(self, rule=self.rule.with_early_starts())


def _require_known_neighbours(ranking: Ranking, n_accepted: int) -> None:
    """Raise `FinerCountsNeeded` if only counts are known of a block on either side of the threshold."""
    first_rejected_block = int(np.searchsorted(ranking.block_end_ranks, n_accepted, side="right"))
    ranking.require_known_order(first_rejected_block - 1, first_rejected_block)
