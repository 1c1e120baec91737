"""Procedures that certify promises about cases.

`CaseCutProcedure` chooses cuts that a tolerated number of cases breaks (`case_cuts`).
`CaseSequenceProcedure` tests a sequence of cuts (`case_sequences`). Both implement
`metacal.certification.procedures.Procedure`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np

from metacal.certificates.case_counts import CaseCounts
from metacal.certificates.certificate import Certificate
from metacal.certificates.circumstances import Circumstances, add_circumstances
from metacal.certificates.notes import Note, note_uncovered_items
from metacal.certificates.quantity import Quantity
from metacal.certificates.rule_texts import register_rule
from metacal.certification.case_cuts import (
    TESTED_SHARE,
    count_tested_cases,
    count_tolerated_cases,
    find_learned_cuts,
    find_single_cut,
)
from metacal.certification.case_division import CaseDivision, divide_cases
from metacal.certification.case_items import CaseItems, Cases
from metacal.certification.case_scale import fit_type_scale
from metacal.certification.case_sequences import (
    compute_first_share,
    drop_cuts_before_safest,
    find_last_passing,
    passes_automated_error_test,
    passes_mean_error_test,
    plan_cut_sequence,
)
from metacal.certification.case_statements import (
    build_no_passing_cuts_error,
    build_too_few_cases_error,
    build_uncovered_items_error,
)
from metacal.certification.case_thresholds import (
    build_case_certificate,
    build_case_items,
    convert_cuts_to_thresholds,
)
from metacal.certification.pilot import PilotPolicy
from metacal.certification.rows import CalibrationRows
from metacal.errors import InfeasibleTargetError
from metacal.formulas import Float
from metacal.statistics import betting, bounds

_SAME_SOURCE_OF_CASES = (
    "new cases come from the same source as the calibration cases, which the scores were not"
    " trained on; items of one case may depend on each other"
)

# Name of the rule for one type of items.
CASE_ORDER_STATISTIC = register_rule(
    "case-order-statistic",
    "order statistic of the cases, each by its one item that breaks it first",
    _SAME_SOURCE_OF_CASES,
)

# Name of the rule for several types of items.
CASE_BLOCKS = register_rule(
    "case-blocks",
    "statistically equivalent blocks of cases (Tukey 1947), on a scale of the item types that learns"
    " from every case that was cut",
    _SAME_SOURCE_OF_CASES,
)

# Name of the rule for the errors among automated cases.
CASE_SEQUENCE = register_rule(
    "case-sequence",
    "exact binomial tests of the automated cases, in a sequence of thresholds that other cases fixed",
    _SAME_SOURCE_OF_CASES,
)

# Name of the rule for the mean number of errors of a case.
CASE_BETS = register_rule(
    "case-bets",
    "bets on the errors of each case, in a sequence of thresholds that other cases fixed"
    " (Waudby-Smith & Ramdas 2024)",
    _SAME_SOURCE_OF_CASES,
)

# Numerator and denominator of the share of cases that are tested by a sequence of cuts: for the errors
# among automated cases, where the first cuts must be well chosen, and for a mean number of errors.
_SEQUENCE_TESTED_SHARE = (2, 3)
_BETS_TESTED_SHARE = (17, 20)

# Step of the limits among which the strictest one that the cases support is searched.
_LIMIT_STEP = 1e-3


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
        """Largest share of the counted cases that may break."""
        return self.quantity.max_violation_rate(self.target)

    @property
    def clears_accepted(self) -> bool:
        """Whether accepting an item is what may break the promise."""
        return not self.quantity.accepting_cannot_break_promise

    def pilot_policy(
        self, random_state: int | None = None, declared_values: Float | None = None
    ) -> PilotPolicy | None:
        """Return None, because whole cases are withheld here, and no pilot rows."""
        return None

    def certify_promise(self, rows: CalibrationRows, delta: float | None) -> Certificate:
        """Certify the promise on the items of calibration cases."""
        cases = rows.cases
        assert cases is not None
        items = build_case_items(rows, cases, clears_accepted=self.clears_accepted)
        certificate = self._certify_items(rows, cases, items, delta)
        counts = certificate.cases
        assert counts is not None
        # Without pilot cases no draw influences the certificate, so the seed is not recorded.
        if cases.random_state is None or counts.n_pilot == 0:
            return certificate
        return add_circumstances(certificate, Circumstances(random_state=cases.random_state))

    @abstractmethod
    def _certify_items(
        self, rows: CalibrationRows, cases: Cases, items: CaseItems, delta: float | None
    ) -> Certificate:
        """Certify the promise on the items of calibration cases."""

    def find_contradiction(
        self, certificate: Certificate, delta: float | None, promise: object
    ) -> str | None:
        """Check that the counts of cases support the target."""
        counts = certificate.cases
        if counts is None:
            return "it has no counts of cases"
        contradiction = counts.find_contradiction()
        if contradiction is not None:
            return contradiction
        return self._find_contradiction_in_counts(certificate, delta)

    @abstractmethod
    def _find_contradiction_in_counts(
        self, certificate: Certificate, delta: float | None
    ) -> str | None:
        """Describe why consistent counts do not support the target, or return None."""


@dataclass(frozen=True)
class CaseCutProcedure(CaseProcedure):
    """Procedure that chooses cuts which at most a tolerated number of cases breaks."""

    def _certify_items(
        self, rows: CalibrationRows, cases: Cases, items: CaseItems, delta: float | None
    ) -> Certificate:
        """Certify the cuts on all cases, or on those that fitted no scale."""
        is_counted = np.ones(cases.n_cases, dtype=bool)
        is_uncovered = np.zeros(cases.n_cases, dtype=bool)
        if not self.clears_accepted:
            is_counted = cases.any_item(items.is_harmful) | cases.has_correct_item_without_score
            is_uncovered = cases.has_correct_item_without_score
        n_counted = int(is_counted.sum())
        has_types = items.n_types > 1
        n_tested = n_counted
        if has_types:
            n_tested = count_tested_cases(n_counted, self.max_violation_rate, delta)
        n_tolerated = count_tolerated_cases(n_tested, self.max_violation_rate, delta)
        if n_tolerated < 0:
            raise self._build_too_few_cases_error(n_counted, delta, has_types=has_types)
        division = divide_cases(rows, items, cases, is_counted, is_uncovered, n_tested)
        n_uncovered = int(division.is_uncovered.sum())
        if n_uncovered > n_tolerated:
            raise build_uncovered_items_error(
                self.quantity, self.target, delta, n_cases=n_tested, n_uncovered=n_uncovered
            )
        cuts = self._find_cuts(division, n_tolerated, has_types=has_types)
        notes: tuple[Note, ...] = ()
        if n_uncovered:
            notes = (note_uncovered_items(uncovered=n_uncovered, cases=division.n_counted),)
        return build_case_certificate(
            rows,
            cases,
            division,
            convert_cuts_to_thresholds(cuts, clears_accepted=self.clears_accepted),
            quantity=self.quantity,
            target=self.target,
            delta=delta,
            rule_name=CASE_BLOCKS if has_types else CASE_ORDER_STATISTIC,
            notes=notes,
        )

    def _find_cuts(self, division: CaseDivision, n_tolerated: int, *, has_types: bool) -> Float:
        """Find the cut of each type."""
        items = division.tested_items
        # Cases that the quantity does not count have no harmful item, so they decide no cut.
        counted_number = np.cumsum(division.is_counted) - 1
        is_uncovered = division.is_uncovered[division.is_counted]
        if not has_types:
            harmful = items.take(items.is_harmful)
            cut = find_single_cut(
                harmful.safety, counted_number[harmful.cases], is_uncovered, n_tolerated
            )
            return np.full(items.n_types, cut)
        scale = fit_type_scale(division.pilot_items, same_scale=self.same_scale)
        return find_learned_cuts(
            replace(items, cases=counted_number[items.cases]),
            is_uncovered,
            division.pilot_items,
            cases_ratio=len(division.tested_cases) / max(1, division.n_pilot),
            scale=scale,
            n_tolerated=n_tolerated,
        )

    def _build_too_few_cases_error(
        self, n_counted: int, delta: float | None, *, has_types: bool
    ) -> InfeasibleTargetError:
        """Build the error for fewer cases than error-free cases would need."""
        cases_needed = bounds.correct_rows_needed(self.max_violation_rate, delta)
        n_testable = n_counted
        if has_types:
            numerator, denominator = TESTED_SHARE
            n_testable = n_counted * numerator // denominator
            cases_needed = -(-cases_needed * denominator // numerator)
        best_limit = 1.0
        if n_testable:
            best_limit = bounds.smallest_certifiable_miscoverage(n_testable, delta)
        return build_too_few_cases_error(
            self.quantity,
            self.target,
            delta,
            n_cases=n_counted,
            best_limit=best_limit,
            cases_needed=cases_needed,
            n_pilot=n_counted - n_testable,
        )

    def _find_contradiction_in_counts(
        self, certificate: Certificate, delta: float | None
    ) -> str | None:
        """Check that at most the tolerated number of cases breaks."""
        counts = certificate.cases
        assert counts is not None
        is_certified = bounds.certifies_violation_rate(
            counts.n_counted,
            n_without_violation=counts.n_counted - counts.n_broken,
            max_rate=self.max_violation_rate,
            delta=delta,
        )
        if is_certified:
            return None
        return (
            f"{counts.n_broken:,} {self.quantity.violations_text}, of {counts.n_counted:,}, do not"
            f" certify the limit {self.target:g}{bounds.format_confidence_suffix(delta)}"
        )


@dataclass(frozen=True)
class CaseSequenceProcedure(CaseProcedure):
    """Procedure that tests a sequence of cuts, from strict to lax.

    Parameters
    ----------
    largest : int or None, default=None
        Largest number of errors that counts in a case, if their mean is limited. None if the share
        of automated cases with an error is limited.
    """

    largest: int | None = None

    @property
    def rule_name(self) -> str:
        """Name of the rule in certificates and files."""
        return CASE_SEQUENCE if self.largest is None else CASE_BETS

    @property
    def _tested_share(self) -> tuple[int, int]:
        """Numerator and denominator of the share of cases that are tested."""
        return _SEQUENCE_TESTED_SHARE if self.largest is None else _BETS_TESTED_SHARE

    @property
    def _max_log_gain_per_bet(self) -> float:
        """Largest log gain of a bet, on a case without an error."""
        assert self.largest is not None
        relative_limit = self.target / self.largest
        return math.log1p(betting.MAX_STAKE_FRACTION * relative_limit / (1.0 - relative_limit))

    def _count_cases_needed(self, delta: float) -> int:
        """Count the calibration cases with which error-free ones pass the test."""
        if self.largest is None:
            n_tested = bounds.correct_rows_needed(self.target, delta)
        else:
            n_tested = math.ceil(-math.log(delta) / self._max_log_gain_per_bet)
        numerator, denominator = self._tested_share
        return -(-n_tested * denominator // numerator)

    def _certify_items(
        self, rows: CalibrationRows, cases: Cases, items: CaseItems, delta: float | None
    ) -> Certificate:
        """Certify the last cuts of the sequence that pass."""
        assert delta is not None
        numerator, denominator = self._tested_share
        division = divide_cases(
            rows,
            items,
            cases,
            is_counted=np.ones(cases.n_cases, dtype=bool),
            is_uncovered=np.zeros(cases.n_cases, dtype=bool),
            n_tested=cases.n_cases * numerator // denominator,
        )
        cuts = self._find_cuts(division, self.target, delta)
        if cuts is None:
            raise build_no_passing_cuts_error(
                self.quantity,
                self.target,
                delta,
                n_cases=cases.n_cases,
                cases_needed=self._count_cases_needed(delta),
                best=self._find_best_limit(division, delta),
            )
        return build_case_certificate(
            rows,
            cases,
            division,
            convert_cuts_to_thresholds(cuts, clears_accepted=True),
            quantity=self.quantity,
            target=self.target,
            delta=delta,
            rule_name=self.rule_name,
            largest=self.largest,
        )

    def _find_cuts(self, division: CaseDivision, limit: float, delta: float) -> Float | None:
        """Find the last cuts of the sequence that pass at a limit, or None if the first ones fail."""
        pilot_items = division.pilot_items
        n_tested = len(division.tested_cases)
        if len(pilot_items.safety) == 0 or n_tested == 0:
            return None
        scale = fit_type_scale(pilot_items, same_scale=self.same_scale)
        if self.largest is not None:
            sequence = plan_cut_sequence(pilot_items, scale, 0.0, division.n_pilot)
            return find_last_passing(
                sequence, lambda cuts: self._passes_bets(division, cuts, limit, delta)
            )
        sequence = drop_cuts_before_safest(
            plan_cut_sequence(
                pilot_items, scale, compute_first_share(limit, delta, n_tested), division.n_pilot
            ),
            pilot_items,
            scale,
            limit,
            cases_ratio=n_tested / division.n_pilot,
        )
        return find_last_passing(
            sequence, lambda cuts: self._passes_exact_test(division, cuts, limit, delta)
        )

    def _passes_exact_test(
        self, division: CaseDivision, cuts: Float, limit: float, delta: float
    ) -> bool:
        """Test the share of automated cases that break."""
        items = division.tested_items
        is_cleared = items.find_cleared(cuts)
        n_automated = len(np.unique(items.cases[is_cleared]))
        n_broken = len(np.unique(items.cases[is_cleared & items.is_harmful]))
        return passes_automated_error_test(n_automated, n_broken, limit, delta)

    def _passes_bets(self, division: CaseDivision, cuts: Float, limit: float, delta: float) -> bool:
        """Test the mean number of errors of a case."""
        assert self.largest is not None
        items = division.tested_items
        is_error = items.find_cleared(cuts) & items.is_harmful
        n_errors = np.bincount(items.cases[is_error], minlength=len(division.tested_cases))
        return passes_mean_error_test(n_errors, self.largest, limit, delta)

    def _find_best_limit(self, division: CaseDivision, delta: float) -> float | None:
        """Find the strictest limit at which some cuts pass, by bisection."""
        # Limits are whole multiples of a step, so that the limit that is named is one that was tried.
        largest_limit = 1.0 if self.largest is None else float(self.largest)
        n_steps = int(largest_limit / _LIMIT_STEP)

        def certifies(step: int) -> bool:
            return self._find_cuts(division, step * _LIMIT_STEP, delta) is not None

        high = n_steps - 1
        if not certifies(high):
            return None
        low = int(self.target / _LIMIT_STEP)
        while high - low > 1:
            middle = (low + high) // 2
            if certifies(middle):
                high = middle
            else:
                low = middle
        return round(high * _LIMIT_STEP, 4)

    def _find_contradiction_in_counts(
        self, certificate: Certificate, delta: float | None
    ) -> str | None:
        """Check that the counts can pass the test."""
        counts = certificate.cases
        assert counts is not None
        assert delta is not None
        if self.largest is None:
            p_value = float(
                bounds.binomial_p_value(counts.n_broken, max(1, counts.n_counted), self.target)
            )
            is_certified = (
                counts.n_counted > 0 and p_value <= bounds.ONE_PLUS_ROUNDING_ERROR * delta
            )
        else:
            is_certified = self._could_pass_bets(counts, certificate.mean_cost, delta)
        if is_certified:
            return None
        return (
            f"{counts.n_broken:,} {self.quantity.violations_text}, of {counts.n_counted:,}, do not"
            f" certify the limit {self.target:g}{bounds.format_confidence_suffix(delta)}"
        )

    def _could_pass_bets(self, counts: CaseCounts, mean_errors: float | None, delta: float) -> bool:
        """Check whether bets can have certified a mean number of errors."""
        assert self.largest is not None
        if mean_errors is None or mean_errors > self.target * bounds.ONE_PLUS_ROUNDING_ERROR:
            return False
        # A broken case has from one error to the largest number that counts.
        lowest_mean = counts.n_broken / counts.n_counted
        is_possible_mean = (
            lowest_mean <= mean_errors * bounds.ONE_PLUS_ROUNDING_ERROR
            and mean_errors <= self.largest * lowest_mean * bounds.ONE_PLUS_ROUNDING_ERROR
        )
        required_log_capital = -math.log(bounds.ONE_PLUS_ROUNDING_ERROR * delta)
        max_log_capital = counts.n_counted * self._max_log_gain_per_bet
        return is_possible_mean and max_log_capital >= required_log_capital
