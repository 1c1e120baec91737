"""Certification of a promise by one rule and one threshold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from metacal.certificates.certificate import Certificate
from metacal.certificates.counts import Counts
from metacal.certificates.design import record_design
from metacal.certificates.notes import Note
from metacal.certificates.quantity import Quantity
from metacal.certificates.subgroups import Name, SubgroupCertificate
from metacal.certification.procedures import (
    DecisionColumns,
    PromisedLimit,
    RowRequirement,
    SubgroupResult,
)
from metacal.certification.ranking import Ranking
from metacal.certification.rows import CalibrationRows
from metacal.certification.rules.rule import (
    ACCEPT_ALL_ROWS,
    REJECT_ALL_ROWS,
    Shortfall,
    ThresholdResult,
    ThresholdRule,
    run_rule,
)
from metacal.certification.statements import (
    build_certificate,
    build_infeasible_accuracy_error,
    format_unsupported_counts,
    warn_about_too_few_rows,
)
from metacal.formulas import Float
from metacal.kernels.grid import RELATIVE_GRID

if TYPE_CHECKING:
    from metacal.certification.pilot import PilotPolicy
    from metacal.certification.plans import PilotRows
    from metacal.errors import InfeasibleTargetError


@dataclass(frozen=True)
class OneThresholdProcedure:
    """Procedure with one rule and one threshold.

    A row is accepted if its score is at most the threshold. Implements
    `metacal.certification.procedures.SubgroupProcedure`.

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

    # The caller chooses the score of the rows, so the procedure cannot name the score.
    score_name = None

    @property
    def promised_limits(self) -> tuple[PromisedLimit, ...]:
        """Promised limits, as a tuple with one entry."""
        return (PromisedLimit(self.quantity, self.target),)

    @property
    def rule_name(self) -> str:
        """Name of the rule in certificates and files."""
        return self.rule.name

    @property
    def fallback_threshold(self) -> float:
        """Threshold to use if no threshold is certified."""
        return self.rule.fallback_threshold

    @property
    def limit(self) -> float:
        """Limit that the rule tests, which follows from the target."""
        return self.rule.convert_target_to_limit(self.quantity, self.target)

    def get_main_limit(self, rows: CalibrationRows) -> PromisedLimit:
        """Return the only promised limit."""
        return PromisedLimit(self.quantity, self.target)

    def build_pilot_policy(
        self, random_state: int | None = None, declared_score_values: Float | None = None
    ) -> PilotPolicy | None:
        """Build the policy that chooses pilot rows, or None if the rule needs none."""
        if not self.rule.tests_ranks_sequentially:
            return None
        from metacal.certification.pilot import PilotPolicy

        return PilotPolicy(random_state=random_state, declared_score_values=declared_score_values)

    def compute_row_requirements(
        self, rows: CalibrationRows, significance_level: float
    ) -> list[RowRequirement]:
        """Count the available reference rows, and compute how many the rule requires."""
        row_requirement = RowRequirement(
            n_reference_rows=self.rule.count_reference_rows(rows.ranking),
            n_required_rows=self.rule.compute_required_rows(self.limit, significance_level),
        )
        return [row_requirement]

    def certify_subgroup(
        self,
        rows: CalibrationRows,
        significance_level: float,
        plan_significance_level: float | None = None,
    ) -> SubgroupResult:
        """Certify the threshold of a subgroup."""
        threshold_result = self.find_threshold(
            rows.ranking, significance_level, plan_significance_level, pilot_rows=rows.pilot_rows
        )
        return SubgroupResult(threshold_results=(threshold_result,))

    def find_threshold(
        self,
        ranking: Ranking,
        significance_level: float | None,
        plan_significance_level: float | None = None,
        *,
        target: float | None = None,
        pilot_rows: PilotRows | None = None,
        max_tested_rank: int | None = None,
    ) -> ThresholdResult:
        """Plan and run the tests of one ranking of rows.

        Parameters
        ----------
        ranking : Ranking
            Rows in increasing order of score.

        significance_level : float or None
            Significance level of the tests, or None for a rule in expectation.

        plan_significance_level : float, optional
            Significance level that the tests are planned for, by default `significance_level`.

        target : float, optional
            Target to certify instead of the promised one. The tests are about the limit that
            follows from it.

        pilot_rows : PilotRows, optional
            Pilot rows, which determine where the tests begin.

        max_tested_rank : int, optional
            If given, only ranks up to this one are tested.

        Returns
        -------
        ThresholdResult
        """
        if target is None:
            target = self.target
        return run_rule(
            self.rule,
            ranking,
            self.rule.convert_target_to_limit(self.quantity, target),
            significance_level,
            plan_significance_level=plan_significance_level,
            pilot_rows=pilot_rows,
            max_tested_rank=max_tested_rank,
        )

    def build_subgroup_certificates(
        self,
        subgroup_names: tuple[Name, ...],
        rows: CalibrationRows,
        result: SubgroupResult | None,
        significance_level: float | None,
        significance_level_if_untested: float,
    ) -> tuple[SubgroupCertificate, ...]:
        """Build the certificate for the threshold of a subgroup.

        The tuple has one entry. Procedures with a threshold for each of two classes return two.
        """
        certified_threshold = None
        n_planning_rows = 0
        if result is not None:
            certified_threshold = result.get_threshold(threshold_index=0)
            n_planning_rows = result.design.n_planning_rows

        if certified_threshold is not None:
            threshold = certified_threshold
            empty_shortfall = Shortfall(best_limit=None, rows_needed=None)
            shortfall = empty_shortfall
        else:
            threshold = self.fallback_threshold
            level_of_future_test = significance_level
            if level_of_future_test is None:
                level_of_future_test = significance_level_if_untested
            shortfall = self.rule.find_shortfall(
                rows.ranking, self.limit, level_of_future_test, n_planning_rows=n_planning_rows
            )

        threshold = RELATIVE_GRID.make_robust_to_rounding(threshold)
        threshold_outcome = rows.ranking.summarize_threshold(threshold)
        subgroup_certificate = SubgroupCertificate(
            subgroup_names,
            threshold=threshold,
            delta=significance_level,
            best_supported_target=shortfall.best_limit,
            rows_needed=shortfall.rows_needed,
            **threshold_outcome._asdict(),
        )
        return (subgroup_certificate,)

    def certify_promise(self, rows: CalibrationRows, delta: float | None) -> Certificate:
        """Certify one threshold for all rows."""
        certificate = self.certify_ranking(rows.ranking, delta, pilot_rows=rows.pilot_rows)
        return replace(certificate, has_labels=rows.correct is not None)

    def certify_ranking(
        self, ranking: Ranking, delta: float | None, *, pilot_rows: PilotRows | None = None
    ) -> Certificate:
        """Certify one threshold for the rows of a ranking.

        Parameters
        ----------
        ranking : Ranking
            Rows in increasing order of score, or only their counts.

        delta : float or None
            Error probability of the promise. None if it holds in expectation.

        pilot_rows : PilotRows, optional
            Pilot rows, which determine where the tests begin.

        Returns
        -------
        Certificate

        Raises
        ------
        InfeasibleTargetError
            If the rows support no threshold, and accepting every row may break the promise.

        FinerCountsNeeded
            If the ranking contains only counts, and they do not determine the certificate.
        """
        threshold_result = self.find_threshold(ranking, delta, pilot_rows=pilot_rows)
        if threshold_result.threshold is not None:
            _require_exact_scores_beside_threshold(ranking, threshold_result.n_accepted)
            certificate = self.build_certificate_at(ranking, threshold_result.threshold, delta)
            return record_design(certificate, threshold_result.design)

        fallback_rejects_all_rows = self.fallback_threshold == REJECT_ALL_ROWS
        if fallback_rejects_all_rows:
            raise self._build_infeasible_error(ranking, delta, pilot_rows)
        note = warn_about_too_few_rows(
            self.quantity,
            n_reference_rows=self.rule.count_reference_rows(ranking),
            target=self.target,
            delta=delta,
            n_required_rows=self.rule.compute_required_rows(self.limit, delta),
        )
        return self.build_certificate_at(ranking, self.fallback_threshold, delta, notes=(note,))

    def build_certificate_at(
        self,
        ranking: Ranking,
        threshold: float,
        delta: float | None,
        notes: tuple[Note, ...] = (),
    ) -> Certificate:
        """Build the certificate of a threshold from the counts of a ranking.

        The threshold is rounded to the grid of the scores. No score lies between a threshold and
        its rounded value, so the same rows are accepted.

        Parameters
        ----------
        ranking : Ranking
            Rows in increasing order of score.

        threshold : float
            Rows with a score of at most `threshold` are accepted.

        delta : float or None
            Error probability of the promise. None if it holds in expectation.

        notes : tuple of Note, default=()
            Notes of the certificate.

        Returns
        -------
        Certificate
        """
        threshold = RELATIVE_GRID.make_robust_to_rounding(threshold)
        return build_certificate(
            quantity=self.quantity,
            target=self.target,
            delta=delta,
            rule_name=self.rule.name,
            threshold=threshold,
            outcome=ranking.summarize_threshold(threshold),
            notes=notes,
        )

    def _build_infeasible_error(
        self, ranking: Ranking, delta: float | None, pilot_rows: PilotRows | None
    ) -> InfeasibleTargetError:
        """Build the error for rows that support no threshold."""
        from metacal.certification.ruled_out import find_ruled_out_thresholds

        def certifies_target(target: float) -> bool:
            threshold_result = self.find_threshold(
                ranking, delta, target=target, pilot_rows=pilot_rows
            )
            return threshold_result.threshold is not None

        failed_result = self.find_threshold(ranking, delta, pilot_rows=pilot_rows)
        shortfall = self.rule.find_shortfall(
            ranking,
            self.limit,
            delta,
            certifies=certifies_target,
            n_planning_rows=failed_result.n_planning_rows,
        )
        return build_infeasible_accuracy_error(
            self.target,
            delta,
            n_rows=ranking.n_rows,
            best_limit=shortfall.best_limit,
            rows_needed=shortfall.rows_needed,
            ruled_out=find_ruled_out_thresholds(ranking, self.limit, delta),
        )

    def compute_decision_columns(
        self, rows: CalibrationRows, decision_log_odds: float | Float
    ) -> DecisionColumns:
        """Return the score, the correctness and the threshold index of each row."""
        assert rows.correct is not None
        return DecisionColumns(
            uncertainty=rows.scores,
            correct=rows.correct,
            threshold_indices=np.zeros(len(rows), dtype=np.intp),
        )

    def find_contradiction(
        self, certificate: Certificate, delta: float | None, promise: object
    ) -> str | None:
        """Describe why the certified counts do not support the target, or return None."""
        return self._find_contradiction_in_counts(certificate, delta)

    def find_contradiction_in_subgroup(
        self,
        subgroup_certificates: tuple[SubgroupCertificate, ...],
        significance_level: float,
        promise: object,
    ) -> str | None:
        """Describe why the counts of a subgroup do not support the target, or return None."""
        first_certificate = subgroup_certificates[0]
        return self._find_contradiction_in_counts(first_certificate, significance_level)

    def _find_contradiction_in_counts(
        self,
        certificate: Certificate | SubgroupCertificate,
        significance_level: float | None,
    ) -> str | None:
        """Describe why the counts do not support the target, or return None."""
        fallback_accepts_all_rows = self.fallback_threshold == ACCEPT_ALL_ROWS
        if fallback_accepts_all_rows and certificate.accepts_everything:
            return None
        row_counts = Counts(
            n_rows=certificate.n_rows,
            n_accepted=certificate.n_accepted,
            n_correct=certificate.n_correct,
            n_correct_accepted=certificate.n_correct_accepted,
        )
        if self.rule.supports(row_counts, self.limit, significance_level):
            return None
        return format_unsupported_counts(self.quantity, self.target, row_counts, significance_level)

    def with_early_starts(self) -> OneThresholdProcedure:
        """Return the procedure with a rule whose tests start at lower ranks."""
        return replace(self, rule=self.rule.with_early_starts())


def _require_exact_scores_beside_threshold(ranking: Ranking, n_accepted: int) -> None:
    """Raise FinerCountsNeeded if a score next to the threshold is not known exactly."""
    first_rejected_block = int(
        np.searchsorted(ranking.tie_block_end_ranks, n_accepted, side="right")
    )
    last_accepted_block = first_rejected_block - 1
    ranking.require_known_order_in_blocks([last_accepted_block, first_rejected_block])
