"""Procedures that certify promises about cases.

`CaseCutoffProcedure` chooses cutoffs that break at most an allowed number of cases (`case_cutoffs`).
`case_sequence_procedure` has the procedure that tests a sequence of cutoffs. Both implement
`metacal.certification.procedures.Procedure`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from metacal.certificates.certificate import Certificate
from metacal.certificates.design import CertificationDesign, record_design
from metacal.certificates.notes import Note, note_uncovered_items
from metacal.certificates.quantity import Quantity
from metacal.certificates.rule_texts import register_rule
from metacal.certification.case_cutoffs import (
    TESTED_CASE_FRACTION,
    compute_max_broken_cases,
    count_tested_cases,
    find_learned_cutoffs,
    find_single_cutoff,
)
from metacal.certification.case_division import CaseDivision, divide_cases
from metacal.certification.case_items import CaseItems, Cases
from metacal.certification.case_scale import fit_harmlessness_model
from metacal.certification.case_statements import (
    build_too_few_cases_error,
    build_uncovered_items_error,
)
from metacal.certification.case_thresholds import (
    build_case_certificate,
    build_case_items,
    convert_cutoffs_to_thresholds,
)
from metacal.certification.pilot import PilotPolicy
from metacal.certification.rows import CalibrationRows
from metacal.errors import InfeasibleTargetError
from metacal.formulas import Float
from metacal.statistics import bounds

# Assumption of every rule that certifies a promise about cases.
SAME_SOURCE_OF_CASES = (
    "new cases come from the same source as the calibration cases, which the scores were not"
    " trained on; items of one case may depend on each other"
)

# Name of the rule in certificates for a single type of items.
CASE_ORDER_STATISTIC = register_rule(
    "case-order-statistic",
    "order statistic of the cases, each by its one item that breaks it first",
    SAME_SOURCE_OF_CASES,
)

# Name of the rule in certificates for several types of items.
CASE_BLOCKS = register_rule(
    "case-blocks",
    "statistically equivalent blocks of cases (Tukey 1947), on a scale of the item types that learns"
    " from every case that was cut",
    SAME_SOURCE_OF_CASES,
)


@dataclass(frozen=True)
class CaseProcedure(ABC):
    """Base class of the procedures that certify promises about cases.

    Parameters
    ----------
    quantity : Quantity
        Limited quantity.

    target : float
        Promised limit.

    same_scale : bool, default=False
        Whether the scores of all item types have one scale.
    """

    quantity: Quantity
    target: float
    same_scale: bool = False

    @property
    def max_violation_rate(self) -> float:
        """Largest allowed share of broken cases among the counted ones."""
        return self.quantity.max_violation_rate(self.target)

    @property
    def limits_accepted_errors(self) -> bool:
        """Whether accepted errors break the promise, instead of rejected correct items."""
        return not self.quantity.limits_only_rejections

    def build_pilot_policy(
        self, random_state: int | None = None, declared_score_values: Float | None = None
    ) -> PilotPolicy | None:
        """Return None, because the procedure chooses pilot cases instead of pilot rows."""
        return None

    def certify_promise(self, rows: CalibrationRows, delta: float | None) -> Certificate:
        """Certify the promise on the items of calibration cases."""
        cases = rows.cases
        assert cases is not None
        items = build_case_items(rows, cases, limits_accepted_errors=self.limits_accepted_errors)
        certificate = self._certify_items(rows, cases, items, delta)
        case_counts = certificate.cases
        assert case_counts is not None
        # Without pilot cases, the certificate does not depend on the seed.
        has_no_pilot_cases = case_counts.n_pilot == 0
        if cases.random_state is None or has_no_pilot_cases:
            return certificate
        return record_design(certificate, CertificationDesign(random_state=cases.random_state))

    @abstractmethod
    def _certify_items(
        self, rows: CalibrationRows, cases: Cases, items: CaseItems, delta: float | None
    ) -> Certificate:
        """Certify the promise on the items of calibration cases."""

    def find_contradiction(
        self, certificate: Certificate, delta: float | None, promise: object
    ) -> str | None:
        """Describe why the counts of cases do not support the target."""
        case_counts = certificate.cases
        if case_counts is None:
            return "it has no counts of cases"
        contradiction = case_counts.find_contradiction()
        if contradiction is not None:
            return contradiction
        return self._find_contradiction_in_counts(certificate, delta)

    @abstractmethod
    def _find_contradiction_in_counts(
        self, certificate: Certificate, delta: float | None
    ) -> str | None:
        """Describe why the counts do not support the target, or return None."""


@dataclass(frozen=True)
class CaseCutoffProcedure(CaseProcedure):
    """Procedure that chooses cutoffs by an allowed number of broken cases."""

    def _certify_items(
        self, rows: CalibrationRows, cases: Cases, items: CaseItems, delta: float | None
    ) -> Certificate:
        """Certify the cutoffs on the tested cases."""
        is_counted_by_quantity = np.ones(cases.n_cases, dtype=bool)
        breaks_at_every_cutoff = np.zeros(cases.n_cases, dtype=bool)
        if not self.limits_accepted_errors:
            is_counted_by_quantity = (
                cases.any_item(items.is_harmful) | cases.has_correct_item_without_score
            )
            breaks_at_every_cutoff = cases.has_correct_item_without_score
        n_counted = int(is_counted_by_quantity.sum())
        has_several_types = items.n_types > 1
        n_tested = n_counted
        if has_several_types:
            n_tested = count_tested_cases(n_counted, self.max_violation_rate, delta)
        max_broken_cases = compute_max_broken_cases(n_tested, self.max_violation_rate, delta)
        if max_broken_cases < 0:
            raise self._build_too_few_cases_error(
                n_counted, delta, needs_pilot_cases=has_several_types
            )
        division = divide_cases(
            rows,
            items,
            cases,
            is_counted_by_quantity=is_counted_by_quantity,
            breaks_at_every_cutoff=breaks_at_every_cutoff,
            n_counted_cases_to_test=n_tested,
        )
        n_uncovered = int(division.breaks_at_every_cutoff.sum())
        if n_uncovered > max_broken_cases:
            raise build_uncovered_items_error(
                self.quantity, self.target, delta, n_cases=n_tested, n_uncovered=n_uncovered
            )
        cutoffs = self._find_cutoffs(
            division, max_broken_cases, has_several_types=has_several_types
        )
        notes: tuple[Note, ...] = ()
        if n_uncovered > 0:
            notes = (note_uncovered_items(uncovered=n_uncovered, cases=division.n_counted),)
        return build_case_certificate(
            rows,
            cases,
            division,
            convert_cutoffs_to_thresholds(
                cutoffs, limits_accepted_errors=self.limits_accepted_errors
            ),
            quantity=self.quantity,
            target=self.target,
            delta=delta,
            rule_name=CASE_BLOCKS if has_several_types else CASE_ORDER_STATISTIC,
            notes=notes,
        )

    def _find_cutoffs(
        self, division: CaseDivision, max_broken_cases: int, *, has_several_types: bool
    ) -> Float:
        """Find the cutoff on the safety for each item type."""
        # Uncounted cases have no harmful item, so only the counted cases determine the cutoffs.
        counted_items = division.select_counted_items()
        breaks_at_every_cutoff = division.breaks_at_every_cutoff[division.is_counted_by_quantity]
        if not has_several_types:
            harmful_items = counted_items.take(counted_items.is_harmful)
            cutoff = find_single_cutoff(
                harmful_items.safety, harmful_items.cases, breaks_at_every_cutoff, max_broken_cases
            )
            return np.full(counted_items.n_types, cutoff)
        n_tested_cases = len(division.tested_cases)
        return find_learned_cutoffs(
            counted_items,
            breaks_at_every_cutoff,
            division.pilot_items,
            tested_cases_per_pilot_case=n_tested_cases / max(1, division.n_pilot),
            harmlessness_model=fit_harmlessness_model(
                division.pilot_items, same_scale=self.same_scale
            ),
            max_broken_cases=max_broken_cases,
        )

    def _build_too_few_cases_error(
        self, n_counted: int, delta: float | None, *, needs_pilot_cases: bool
    ) -> InfeasibleTargetError:
        """Build the error for too few cases to certify the target without an error."""
        tested_cases_needed = bounds.correct_rows_needed(self.max_violation_rate, delta)
        cases_needed = tested_cases_needed
        n_testable_cases = n_counted
        if needs_pilot_cases:
            cases_needed = math.ceil(tested_cases_needed / TESTED_CASE_FRACTION)
            n_testable_cases = math.floor(n_counted * TESTED_CASE_FRACTION)
        # Broken cases correspond to rejected correct rows in the bound on the miscoverage.
        best_violation_rate = 1.0
        if n_testable_cases > 0:
            best_violation_rate = bounds.smallest_certifiable_miscoverage(n_testable_cases, delta)
        return build_too_few_cases_error(
            self.quantity,
            self.target,
            delta,
            n_cases=n_counted,
            best_violation_rate=best_violation_rate,
            cases_needed=cases_needed,
            n_pilot=n_counted - n_testable_cases,
        )

    def _find_contradiction_in_counts(
        self, certificate: Certificate, delta: float | None
    ) -> str | None:
        """Describe why the number of broken cases does not certify the limit."""
        case_counts = certificate.cases
        assert case_counts is not None
        is_certified = bounds.certifies_violation_rate(
            case_counts.n_counted,
            n_without_violation=case_counts.n_counted - case_counts.n_broken,
            max_rate=self.max_violation_rate,
            delta=delta,
        )
        if is_certified:
            return None
        return (
            f"{case_counts.n_broken:,} {self.quantity.violations_text}, of"
            f" {case_counts.n_counted:,}, do not certify the limit {self.target:g}"
            f"{bounds.format_confidence_suffix(delta)}"
        )
