"""Certification of promises about cases by testing a sequence of cutoffs.

`case_sequences` has the tests and their proofs. Terms are defined in `case_items`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from metacal.certificates.case_counts import CaseCounts
from metacal.certificates.certificate import Certificate
from metacal.certificates.rule_texts import register_rule
from metacal.certification.case_division import CaseDivision, divide_cases
from metacal.certification.case_items import CaseItems, Cases
from metacal.certification.case_procedures import SAME_SOURCE_OF_CASES, CaseProcedure
from metacal.certification.case_scale import fit_harmlessness_model
from metacal.certification.case_sequences import (
    compute_first_automated_fraction,
    drop_cutoffs_before_likeliest_to_pass,
    find_last_passing,
    passes_automated_error_test,
    passes_mean_error_test,
    plan_cutoff_sequence,
)
from metacal.certification.case_statements import build_no_passing_cutoffs_error
from metacal.certification.case_thresholds import (
    build_case_certificate,
    convert_cutoffs_to_thresholds,
)
from metacal.certification.rows import CalibrationRows
from metacal.formulas import Float
from metacal.statistics import betting, bounds

# Name of the rule that limits the share of automated cases with an error.
CASE_SEQUENCE = register_rule(
    "case-sequence",
    "exact binomial tests of the automated cases, in a sequence of thresholds that other cases fixed",
    SAME_SOURCE_OF_CASES,
)

# Name of the rule that limits the mean number of errors per case.
CASE_BETS = register_rule(
    "case-bets",
    "bets on the errors of each case, in a sequence of thresholds that other cases fixed"
    " (Waudby-Smith & Ramdas 2024)",
    SAME_SOURCE_OF_CASES,
)

# Fraction of the cases to test if the share of automated cases with an error is limited.
# Poor first cutoffs end the sequence early, so a third of the cases are pilot cases.
_TESTED_FRACTION_FOR_EXACT_TESTS = Fraction(2, 3)

# Fraction of the cases to test if the mean number of errors is limited.
_TESTED_FRACTION_FOR_BETS = Fraction(17, 20)

# Step between the limits that are tried to find the strictest supported limit.
_LIMIT_STEP = 1e-3


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
        """Whether the mean number of errors per case is limited."""
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
        """Largest log gain of a single bet."""
        assert self.max_counted_errors is not None
        mean_loss_limit = self.target / self.max_counted_errors
        return math.log1p(betting.MAX_STAKE_FRACTION * mean_loss_limit / (1.0 - mean_loss_limit))

    def _count_cases_needed(self, delta: float) -> int:
        """Compute the number of cases needed to pass the test without any error."""
        if self.limits_mean_errors:
            required_log_capital = -math.log(delta)
            n_tested = math.ceil(required_log_capital / self._max_log_gain_per_bet)
        else:
            n_tested = bounds.correct_rows_needed(self.target, delta)
        return math.ceil(n_tested / self._tested_case_fraction)

    def _certify_items(
        self, rows: CalibrationRows, cases: Cases, items: CaseItems, delta: float | None
    ) -> Certificate:
        """Certify the last cutoffs that pass in a sequence of tests."""
        assert delta is not None
        all_cases_mask = np.ones(cases.n_cases, dtype=bool)
        no_cases_mask = np.zeros(cases.n_cases, dtype=bool)
        division = divide_cases(
            rows,
            items,
            cases,
            is_counted_by_quantity=all_cases_mask,
            breaks_at_every_cutoff=no_cases_mask,
            n_counted_cases_to_test=math.floor(cases.n_cases * self._tested_case_fraction),
        )
        cutoffs = self._find_cutoffs(division, self.target, delta)
        if cutoffs is None:
            raise build_no_passing_cutoffs_error(
                self.quantity,
                self.target,
                delta,
                n_cases=cases.n_cases,
                cases_needed=self._count_cases_needed(delta),
                strictest_limit=self._find_strictest_limit(division, delta),
            )
        return build_case_certificate(
            rows,
            cases,
            division,
            convert_cutoffs_to_thresholds(cutoffs, limits_accepted_errors=True),
            quantity=self.quantity,
            target=self.target,
            delta=delta,
            rule_name=self.rule_name,
            max_counted_errors=self.max_counted_errors,
        )

    def _find_cutoffs(self, division: CaseDivision, limit: float, delta: float) -> Float | None:
        """Return the last cutoffs that pass before the first failed test."""
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
        """Plan the cutoffs at which the mean number of errors is tested."""
        harmlessness_model = fit_harmlessness_model(
            division.pilot_items, same_scale=self.same_scale
        )
        return plan_cutoff_sequence(
            division.pilot_items,
            harmlessness_model,
            min_automated_fraction=0.0,
            n_pilot_cases=division.n_pilot,
        )

    def _plan_automated_error_sequence(
        self, division: CaseDivision, limit: float, delta: float
    ) -> list[Float]:
        """Plan the cutoffs at which the errors of automated cases are tested."""
        harmlessness_model = fit_harmlessness_model(
            division.pilot_items, same_scale=self.same_scale
        )
        n_tested_cases = len(division.tested_cases)
        all_cutoffs = plan_cutoff_sequence(
            division.pilot_items,
            harmlessness_model,
            min_automated_fraction=compute_first_automated_fraction(limit, delta, n_tested_cases),
            n_pilot_cases=division.n_pilot,
        )
        return drop_cutoffs_before_likeliest_to_pass(
            all_cutoffs,
            division.pilot_items,
            harmlessness_model,
            limit,
            tested_cases_per_pilot_case=n_tested_cases / division.n_pilot,
        )

    def _passes_exact_test(
        self, division: CaseDivision, cutoffs: Float, limit: float, delta: float
    ) -> bool:
        """Test whether the share of automated cases with an error is within the limit."""
        tested_items = division.tested_items
        is_cleared = tested_items.find_cleared(cutoffs)
        n_automated = len(np.unique(tested_items.cases[is_cleared]))
        n_broken = len(np.unique(tested_items.cases[is_cleared & tested_items.is_harmful]))
        return passes_automated_error_test(n_automated, n_broken, limit, delta)

    def _passes_bets(
        self, division: CaseDivision, cutoffs: Float, limit: float, delta: float
    ) -> bool:
        """Test by bets whether the mean number of errors is within the limit."""
        assert self.max_counted_errors is not None
        tested_items = division.tested_items
        is_error = tested_items.find_cleared(cutoffs) & tested_items.is_harmful
        n_errors_per_case = np.bincount(
            tested_items.cases[is_error], minlength=len(division.tested_cases)
        )
        return passes_mean_error_test(n_errors_per_case, self.max_counted_errors, limit, delta)

    def _find_strictest_limit(self, division: CaseDivision, delta: float) -> float | None:
        """Find the strictest limit that some cutoffs pass, by bisection."""
        loosest_limit = 1.0
        if self.max_counted_errors is not None:
            loosest_limit = float(self.max_counted_errors)
        n_steps = int(loosest_limit / _LIMIT_STEP)

        def certifies_step(step: int) -> bool:
            limit = step * _LIMIT_STEP
            return self._find_cutoffs(division, limit, delta) is not None

        certified_step = n_steps - 1
        if not certifies_step(certified_step):
            return None
        # The bisection runs over integer steps, so that the returned limit has been tested.
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
        """Describe why the counts of cases cannot have passed the test."""
        case_counts = certificate.cases
        assert case_counts is not None
        assert delta is not None
        if self.limits_mean_errors:
            could_pass_test = self._could_pass_bets(case_counts, certificate.mean_cost, delta)
        else:
            could_pass_test = self._could_pass_exact_test(case_counts, delta)
        if could_pass_test:
            return None
        return (
            f"{case_counts.n_broken:,} {self.quantity.violations_text}, of"
            f" {case_counts.n_counted:,}, do not certify the limit {self.target:g}"
            f"{bounds.format_confidence_suffix(delta)}"
        )

    def _could_pass_exact_test(self, counts: CaseCounts, delta: float) -> bool:
        """Check whether the counts of automated and broken cases pass the exact test."""
        if counts.n_counted == 0:
            return False
        p_value = float(bounds.binomial_p_value(counts.n_broken, counts.n_counted, self.target))
        return p_value <= bounds.ONE_PLUS_ROUNDING_ERROR * delta

    def _could_pass_bets(self, counts: CaseCounts, mean_errors: float | None, delta: float) -> bool:
        """Check whether bets on these cases could certify the mean number of errors."""
        assert self.max_counted_errors is not None
        if mean_errors is None or mean_errors > self.target * bounds.ONE_PLUS_ROUNDING_ERROR:
            return False
        # A broken case has between 1 and `max_counted_errors` errors.
        min_mean_errors = counts.n_broken / counts.n_counted
        max_mean_errors = self.max_counted_errors * min_mean_errors
        is_possible_mean = (
            min_mean_errors <= mean_errors * bounds.ONE_PLUS_ROUNDING_ERROR
            and mean_errors <= max_mean_errors * bounds.ONE_PLUS_ROUNDING_ERROR
        )
        required_log_capital = -math.log(bounds.ONE_PLUS_ROUNDING_ERROR * delta)
        max_log_capital = counts.n_counted * self._max_log_gain_per_bet
        return is_possible_mean and max_log_capital >= required_log_capital
