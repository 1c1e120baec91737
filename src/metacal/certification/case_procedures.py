"""Procedures that certify promises about cases.

`CaseCutoffProcedure` chooses cutoffs that a tolerated number of cases breaks (`case_cutoffs`).
`CaseSequenceProcedure` tests a sequence of cutoffs (`case_sequences`). Both implement
`metacal.certification.procedures.Procedure`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from metacal.certificates.case_counts import CaseCounts
from metacal.certificates.certificate import Certificate
from metacal.certificates.circumstances import Circumstances, add_circumstances
from metacal.certificates.notes import Note, uncovered_items
from metacal.certificates.quantity import Quantity
from metacal.certificates.rule_texts import register_rule
from metacal.certification.case_cutoffs import (
    TESTED_CASE_FRACTION,
    count_tested_cases,
    count_tolerated_cases,
    find_learned_cutoffs,
    find_single_cutoff,
)
from metacal.certification.case_division import CaseDivision, divide_cases
from metacal.certification.case_items import CaseItems, Cases
from metacal.certification.case_scale import fit_type_scale
from metacal.certification.case_sequences import (
    compute_first_automated_fraction,
    drop_cutoffs_before_safest,
    find_last_passing,
    passes_automated_error_test,
    passes_mean_error_test,
    plan_cutoff_sequence,
)
from metacal.certification.case_statements import (
    build_no_passing_cutoffs_error,
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

# Fraction of the cases that are tested if the share of automated cases with an error is limited.
# Many pilot cases are needed, because the first cutoffs must be well chosen.
_TESTED_FRACTION_FOR_EXACT_TESTS = Fraction(2, 3)

# Fraction of the cases that are tested if the mean number of errors is limited.
_TESTED_FRACTION_FOR_BETS = Fraction(17, 20)

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
        """Largest allowed share of broken cases among the counted ones."""
        return self.quantity.max_violation_rate(self.target)

    @property
    def clears_accepted(self) -> bool:
        """Whether accepting an item is what may break the promise."""
        return not self.quantity.accepting_cannot_break_promise

    def pilot_policy(
        self, random_state: int | None = None, declared_values: Float | None = None
    ) -> PilotPolicy | None:
        """Return None, because whole cases are withheld instead of pilot rows."""
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
        is_independent_of_seed = counts.n_pilot == 0
        if cases.random_state is None or is_independent_of_seed:
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
        """Describe why the counts do not support the target, or return None."""


@dataclass(frozen=True)
class CaseCutoffProcedure(CaseProcedure):
    """Procedure that chooses cutoffs which at most a tolerated number of cases breaks."""

    def _certify_items(
        self, rows: CalibrationRows, cases: Cases, items: CaseItems, delta: float | None
    ) -> Certificate:
        """Certify the cutoffs on all cases, or on the tested ones if there are pilot cases."""
        is_counted = np.ones(cases.n_cases, dtype=bool)
        breaks_at_every_cutoff = np.zeros(cases.n_cases, dtype=bool)
        if not self.clears_accepted:
            is_counted = cases.any_item(items.is_harmful) | cases.has_correct_item_without_score
            breaks_at_every_cutoff = cases.has_correct_item_without_score
        n_counted = int(is_counted.sum())
        has_several_types = items.n_types > 1
        n_tested = n_counted
        if has_several_types:
            n_tested = count_tested_cases(n_counted, self.max_violation_rate, delta)
        n_tolerated = count_tolerated_cases(n_tested, self.max_violation_rate, delta)
        if n_tolerated < 0:
            raise self._build_too_few_cases_error(
                n_counted, delta, has_several_types=has_several_types
            )
        division = divide_cases(
            rows,
            items,
            cases,
            is_counted=is_counted,
            breaks_at_every_cutoff=breaks_at_every_cutoff,
            n_counted_to_test=n_tested,
        )
        n_uncovered = int(division.breaks_at_every_cutoff.sum())
        if n_uncovered > n_tolerated:
            raise build_uncovered_items_error(
                self.quantity, self.target, delta, n_cases=n_tested, n_uncovered=n_uncovered
            )
        cutoffs = self._find_cutoffs(division, n_tolerated, has_several_types=has_several_types)
        notes: tuple[Note, ...] = ()
        if n_uncovered > 0:
            notes = (uncovered_items(uncovered=n_uncovered, cases=division.n_counted),)
        return build_case_certificate(
            rows,
            cases,
            division,
            convert_cutoffs_to_thresholds(cutoffs, clears_accepted=self.clears_accepted),
            quantity=self.quantity,
            target=self.target,
            delta=delta,
            rule_name=CASE_BLOCKS if has_several_types else CASE_ORDER_STATISTIC,
            notes=notes,
        )

    def _find_cutoffs(
        self, division: CaseDivision, n_tolerated: int, *, has_several_types: bool
    ) -> Float:
        """Find the cutoff of each item type."""
        tested_items = division.tested_items
        # Cases that the quantity does not count have no harmful item, so they decide no cutoff.
        # The other cases are numbered from 0.
        new_number_of_cases = np.cumsum(division.is_counted) - 1
        breaks_at_every_cutoff = division.breaks_at_every_cutoff[division.is_counted]
        if not has_several_types:
            harmful_items = tested_items.take(tested_items.is_harmful)
            cutoff = find_single_cutoff(
                harmful_items.safety,
                new_number_of_cases[harmful_items.cases],
                breaks_at_every_cutoff,
                n_tolerated,
            )
            return np.full(tested_items.n_types, cutoff)
        scale = fit_type_scale(division.pilot_items, same_scale=self.same_scale)
        n_tested_cases = len(division.tested_cases)
        return find_learned_cutoffs(
            replace(tested_items, cases=new_number_of_cases[tested_items.cases]),
            breaks_at_every_cutoff,
            division.pilot_items,
            tested_cases_per_pilot_case=n_tested_cases / max(1, division.n_pilot),
            scale=scale,
            n_tolerated=n_tolerated,
        )

    def _build_too_few_cases_error(
        self, n_counted: int, delta: float | None, *, has_several_types: bool
    ) -> InfeasibleTargetError:
        """Build the error for so few cases that they certify nothing even without an error."""
        cases_needed = bounds.correct_rows_needed(self.max_violation_rate, delta)
        n_testable = n_counted
        if has_several_types:
            n_testable = math.floor(n_counted * TESTED_CASE_FRACTION)
            cases_needed = math.ceil(cases_needed / TESTED_CASE_FRACTION)
        best_limit = 1.0
        if n_testable > 0:
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
        """Describe why the counts of broken cases do not certify the limit, or return None."""
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
    """Procedure that tests a sequence of cutoffs, from strict to lax.

    Parameters
    ----------
    max_counted_errors : int or None, default=None
        Largest number of errors that counts in a case, if their mean is limited. None if the share
        of automated cases with an error is limited.
    """

    max_counted_errors: int | None = None

    @property
    def limits_mean_errors(self) -> bool:
        """Whether the mean number of errors is limited, and not the share of broken cases."""
        return self.max_counted_errors is not None

    @property
    def rule_name(self) -> str:
        """Name of the rule in certificates and files."""
        return CASE_BETS if self.limits_mean_errors else CASE_SEQUENCE

    @property
    def _tested_case_fraction(self) -> Fraction:
        """Fraction of the cases that are tested."""
        if self.limits_mean_errors:
            return _TESTED_FRACTION_FOR_BETS
        return _TESTED_FRACTION_FOR_EXACT_TESTS

    @property
    def _max_log_gain_per_bet(self) -> float:
        """Largest log gain of a bet, on a case without an error."""
        assert self.max_counted_errors is not None
        relative_limit = self.target / self.max_counted_errors
        return math.log1p(betting.MAX_STAKE_FRACTION * relative_limit / (1.0 - relative_limit))

    def _count_cases_needed(self, delta: float) -> int:
        """Count the calibration cases with which the test passes if no case has an error."""
        if self.limits_mean_errors:
            required_log_capital = -math.log(delta)
            n_tested = math.ceil(required_log_capital / self._max_log_gain_per_bet)
        else:
            n_tested = bounds.correct_rows_needed(self.target, delta)
        return math.ceil(n_tested / self._tested_case_fraction)

    def _certify_items(
        self, rows: CalibrationRows, cases: Cases, items: CaseItems, delta: float | None
    ) -> Certificate:
        """Certify the last cutoffs of the sequence that pass."""
        assert delta is not None
        division = divide_cases(
            rows,
            items,
            cases,
            is_counted=np.ones(cases.n_cases, dtype=bool),
            breaks_at_every_cutoff=np.zeros(cases.n_cases, dtype=bool),
            n_counted_to_test=math.floor(cases.n_cases * self._tested_case_fraction),
        )
        cutoffs = self._find_cutoffs(division, self.target, delta)
        if cutoffs is None:
            raise build_no_passing_cutoffs_error(
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
            convert_cutoffs_to_thresholds(cutoffs, clears_accepted=True),
            quantity=self.quantity,
            target=self.target,
            delta=delta,
            rule_name=self.rule_name,
            max_counted_errors=self.max_counted_errors,
        )

    def _find_cutoffs(self, division: CaseDivision, limit: float, delta: float) -> Float | None:
        """Find the last cutoffs of the test sequence that pass, or None if the first ones fail."""
        if len(division.pilot_items.safety) == 0 or len(division.tested_cases) == 0:
            return None
        if self.limits_mean_errors:
            return find_last_passing(
                self._plan_mean_error_sequence(division),
                lambda cutoffs: self._passes_bets(division, cutoffs, limit, delta),
            )
        return find_last_passing(
            self._plan_automated_error_sequence(division, limit, delta),
            lambda cutoffs: self._passes_exact_test(division, cutoffs, limit, delta),
        )

    def _plan_mean_error_sequence(self, division: CaseDivision) -> list[Float]:
        """Plan the cutoffs at which the mean number of errors is tested, from strict to lax."""
        scale = fit_type_scale(division.pilot_items, same_scale=self.same_scale)
        return plan_cutoff_sequence(
            division.pilot_items,
            scale,
            min_automated_fraction=0.0,
            n_pilot_cases=division.n_pilot,
        )

    def _plan_automated_error_sequence(
        self, division: CaseDivision, limit: float, delta: float
    ) -> list[Float]:
        """Plan the cutoffs at which the errors of automated cases are tested."""
        scale = fit_type_scale(division.pilot_items, same_scale=self.same_scale)
        n_tested_cases = len(division.tested_cases)
        all_cutoffs = plan_cutoff_sequence(
            division.pilot_items,
            scale,
            min_automated_fraction=compute_first_automated_fraction(limit, delta, n_tested_cases),
            n_pilot_cases=division.n_pilot,
        )
        return drop_cutoffs_before_safest(
            all_cutoffs,
            division.pilot_items,
            scale,
            limit,
            tested_cases_per_pilot_case=n_tested_cases / division.n_pilot,
        )

    def _passes_exact_test(
        self, division: CaseDivision, cutoffs: Float, limit: float, delta: float
    ) -> bool:
        """Test whether few enough of the automated cases have an error, by an exact test."""
        items = division.tested_items
        is_cleared = items.find_cleared(cutoffs)
        n_automated = len(np.unique(items.cases[is_cleared]))
        n_broken = len(np.unique(items.cases[is_cleared & items.is_harmful]))
        return passes_automated_error_test(n_automated, n_broken, limit, delta)

    def _passes_bets(
        self, division: CaseDivision, cutoffs: Float, limit: float, delta: float
    ) -> bool:
        """Test whether the mean number of errors of a case keeps the limit, by bets."""
        assert self.max_counted_errors is not None
        items = division.tested_items
        is_error = items.find_cleared(cutoffs) & items.is_harmful
        n_errors_per_case = np.bincount(items.cases[is_error], minlength=len(division.tested_cases))
        return passes_mean_error_test(n_errors_per_case, self.max_counted_errors, limit, delta)

    def _find_best_limit(self, division: CaseDivision, delta: float) -> float | None:
        """Find the strictest limit at which some cutoffs pass, by bisection."""
        largest_limit = 1.0
        if self.max_counted_errors is not None:
            largest_limit = float(self.max_counted_errors)
        n_steps = int(largest_limit / _LIMIT_STEP)

        def certifies_step(step: int) -> bool:
            limit = step * _LIMIT_STEP
            return self._find_cutoffs(division, limit, delta) is not None

        certified_step = n_steps - 1
        if not certifies_step(certified_step):
            return None
        # Limits are whole multiples of a step, so the returned limit is one that was tried.
        uncertified_step = int(self.target / _LIMIT_STEP)
        while certified_step - uncertified_step > 1:
            middle_step = (uncertified_step + certified_step) // 2
            if certifies_step(middle_step):
                certified_step = middle_step
            else:
                uncertified_step = middle_step
        return round(certified_step * _LIMIT_STEP, 4)

    def _find_contradiction_in_counts(
        self, certificate: Certificate, delta: float | None
    ) -> str | None:
        """Describe why the counts of cases cannot have passed the test, or return None."""
        counts = certificate.cases
        assert counts is not None
        assert delta is not None
        if self.limits_mean_errors:
            can_pass_test = self._could_pass_bets(counts, certificate.mean_cost, delta)
        else:
            can_pass_test = self._could_pass_exact_test(counts, delta)
        if can_pass_test:
            return None
        return (
            f"{counts.n_broken:,} {self.quantity.violations_text}, of {counts.n_counted:,}, do not"
            f" certify the limit {self.target:g}{bounds.format_confidence_suffix(delta)}"
        )

    def _could_pass_exact_test(self, counts: CaseCounts, delta: float) -> bool:
        """Check whether the exact test passes with the counts of automated and broken cases."""
        if counts.n_counted == 0:
            return False
        p_value = float(bounds.binomial_p_value(counts.n_broken, counts.n_counted, self.target))
        return p_value <= bounds.ONE_PLUS_ROUNDING_ERROR * delta

    def _could_pass_bets(self, counts: CaseCounts, mean_errors: float | None, delta: float) -> bool:
        """Check whether bets can have certified a mean number of errors."""
        assert self.max_counted_errors is not None
        if mean_errors is None or mean_errors > self.target * bounds.ONE_PLUS_ROUNDING_ERROR:
            return False
        # A broken case has at least one error, and at most the largest number that counts.
        lowest_mean = counts.n_broken / counts.n_counted
        highest_mean = self.max_counted_errors * lowest_mean
        is_possible_mean = (
            lowest_mean <= mean_errors * bounds.ONE_PLUS_ROUNDING_ERROR
            and mean_errors <= highest_mean * bounds.ONE_PLUS_ROUNDING_ERROR
        )
        required_log_capital = -math.log(bounds.ONE_PLUS_ROUNDING_ERROR * delta)
        max_log_capital = counts.n_counted * self._max_log_gain_per_bet
        return is_possible_mean and max_log_capital >= required_log_capital
