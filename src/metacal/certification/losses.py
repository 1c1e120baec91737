"""Certification of a limit on the mean loss of the accepted rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from metacal.certificates.certificate import Certificate
from metacal.certificates.design import CertificationDesign, record_design
from metacal.certificates.quantity import Quantity
from metacal.certificates.rule_texts import ACCURACY_FALLS_WITH_SCORE, SAME_SOURCE, register_rule
from metacal.certification.pilot import PilotPolicy
from metacal.certification.plans import PilotRows
from metacal.certification.ranking import Ranking
from metacal.certification.row_losses import Costs, Losses
from metacal.certification.rows import CalibrationRows
from metacal.certification.rows_needed import estimate_rows_needed_by_resampling
from metacal.certification.ruled_out import find_ruled_out_thresholds
from metacal.certification.rules.accuracy_shortfall import (
    estimate_rows_needed_for_accuracy,
)
from metacal.certification.rules.fixed_sequence import (
    FIXED_SEQUENCE_RULE,
    certify_accuracy,
    count_certified_rows,
)
from metacal.certification.rules.loss_bets import (
    LossRanking,
    count_certified_loss_rows,
    count_expected_loss_rows,
    find_last_rank_to_test,
    has_one_start,
)
from metacal.certification.statements import (
    build_certificate_for_threshold,
    build_infeasible_target_error,
)
from metacal.errors import InfeasibleTargetError
from metacal.formulas import Codes, Float
from metacal.statistics import betting, bounds

# Name of the rule in certificates if bets on the losses certify the limit.
LOSS_BETTING_RULE = register_rule(
    "loss-betting",
    "bets on the loss of the rows up to each of a fixed sequence of ranks, with fallback shares of"
    " delta (Waudby-Smith & Ramdas 2024; Wiens 2003)",
    SAME_SOURCE,
)

# Name of the rule in certificates if randomly rounded losses are tested exactly.
ROUNDED_LOSSES_RULE = register_rule(
    "rounded-losses",
    "each loss rounded at random to 0 or 1, then exact binomial tests in a fixed sequence of ranks"
    " with fallback shares of delta (Wiens 2003; Angelopoulos et al. 2021)",
    SAME_SOURCE,
)

# Name of the rule in certificates if the limit holds in expectation.
EXPECTED_LOSS_RULE = register_rule(
    "expected-loss",
    "largest prefix of the ranking with (loss + largest) <= limit (rows + 1)",
    SAME_SOURCE,
    ACCURACY_FALLS_WITH_SCORE,
)

# Number of candidate limits in the search for the smallest supported limit.
_N_CANDIDATE_LIMITS = 25

# Number of bisection steps between candidate limits, for three digits of precision.
_N_BISECTION_STEPS = 9

# Number of significant digits of the smallest supported limit, which is rounded up.
_N_DIGITS_OF_LIMIT = 3

# Relative difference up to which two mean losses count as equal.
RELATIVE_TOLERANCE = 1e-9

# Absolute difference up to which two mean losses count as equal.
_ABSOLUTE_TOLERANCE = 1e-12


@dataclass(frozen=True)
class MeanLossLimit:
    """Procedure that limits the mean loss of the accepted rows.

    If every loss is 0 or the largest loss, the mean is a share of rows, and exact binomial tests
    certify it like an accuracy. Otherwise bets do (`rules.loss_bets`).

    Implements `metacal.certification.procedures.Procedure`.

    Parameters
    ----------
    quantity : Quantity
        Quantity that is limited.

    limit : float
        Largest allowed mean loss, in the unit of the losses.

    costs : Costs
        Losses of incorrect and of rejected rows.

    noun_in_messages : str
        Noun for the mean loss in messages, for example "risk".

    bets_rule_name : str
        Name of the rule in the certificate if the tests are not exact.

    is_near_binary : bool, default=False
        Whether nearly all graded losses are 0 or 1. If there are fewer than 50 / limit rows, losses
        are then rounded at random, so that the exact tests apply. Otherwise the bets begin with the
        variance of 0 and 1.

    runs_test_sequence : bool, default=True
        Whether tests run in a sequence, which pilot rows can plan.

    mean_follows_from_error_count : bool or None, default=None
        Whether the mean loss in a certificate follows from its number of errors. If None, it does
        so under the rule of the exact tests.

    random_state : int, optional
        Seed of the order of the bets and of the rounding. By default it is derived from the rows.
    """

    quantity: Quantity
    limit: float
    costs: Costs
    noun_in_messages: str
    bets_rule_name: str
    is_near_binary: bool = False
    runs_test_sequence: bool = True
    mean_follows_from_error_count: bool | None = None
    random_state: int | None = None

    @property
    def max_loss(self) -> float:
        """Largest possible loss of a row."""
        return self.costs.max_row_cost

    @property
    def relative_limit(self) -> float:
        """Limit as a fraction of the largest loss."""
        return self.limit / self.max_loss

    def build_pilot_policy(
        self, random_state: int | None = None, declared_score_values: Float | None = None
    ) -> PilotPolicy | None:
        """Return the policy that chooses pilot rows, or None if no test needs them."""
        if not self.runs_test_sequence:
            return None
        return PilotPolicy(random_state=random_state, declared_score_values=declared_score_values)

    def certify_promise(self, rows: CalibrationRows, delta: float | None) -> Certificate:
        """Certify one threshold for all rows."""
        loss_tests = self._build_loss_tests(rows, delta)
        n_accepted = loss_tests.count_acceptable_rows(self.relative_limit)
        if n_accepted == 0:
            raise self._build_infeasible_error(loss_tests, delta)

        error_ranking = loss_tests.loss_ranking.error_ranking
        certificate = build_certificate_for_threshold(
            rows,
            quantity=self.quantity,
            target=self.limit,
            delta=delta,
            rule_name=loss_tests.rule_name,
            threshold=error_ranking.largest_threshold_accepting_exactly(n_accepted),
        )
        losses_by_rank = loss_tests.loss_ranking.losses_by_rank
        mean_relative_loss = float(losses_by_rank[: certificate.n_accepted].mean())
        certificate = replace(certificate, mean_cost=mean_relative_loss * self.max_loss)

        design = loss_tests.build_planning_design(self.relative_limit)
        bets_in_random_order = loss_tests.rule_name == LOSS_BETTING_RULE
        rounds_losses_at_random = loss_tests.rule_name == ROUNDED_LOSSES_RULE
        if bets_in_random_order or rounds_losses_at_random:
            design = replace(design, random_state=self.random_state)
        return record_design(certificate, design)

    def _build_loss_tests(self, rows: CalibrationRows, delta: float | None) -> _LossTests:
        """Rank the rows, and choose binomial tests of the losses or bets on them.

        The type of the losses decides about the tests, not their values. It is known before any
        loss is read, so that one test is made. If exact tests were used whenever the losses happen
        to be 0 or 1, and bets otherwise, both tests could fail: with probability up to 2 delta.
        """
        row_losses = rows.losses
        if row_losses is None:
            row_losses = self.costs.losses_from_correctness(rows.is_correct)
        relative_losses = row_losses.if_accepted / self.max_loss
        row_draws = replace(rows, losses=row_losses).build_row_draws(self.random_state)
        loss_ranking = LossRanking.from_scores(
            rows.scores, relative_losses, bet_order_seed=row_draws.derive_seed("order of bets")
        )

        binomial_rule_name = None
        if delta is not None:
            binomial_rule_name = self._choose_binomial_rule_name(row_losses, n_rows=len(rows))
        losses_are_errors = binomial_rule_name == FIXED_SEQUENCE_RULE
        losses_are_rounded = binomial_rule_name == ROUNDED_LOSSES_RULE
        if losses_are_errors:
            loss_ranking = replace(loss_ranking, error_ranking=rows.ranking)
        elif losses_are_rounded:
            uniform_numbers = row_draws.draw_uniform_numbers("rounded losses")
            error_ranking = _rank_rows_with_rounded_losses(rows, relative_losses, uniform_numbers)
            loss_ranking = replace(loss_ranking, error_ranking=error_ranking)
        return _LossTests(
            loss_ranking,
            rule_name=binomial_rule_name or self.bets_rule_name,
            uses_binomial_tests=binomial_rule_name is not None,
            delta=delta,
            pilot_rows=rows.pilot_rows,
            losses_are_rare=self.is_near_binary,
        )

    def _choose_binomial_rule_name(self, losses: Losses, n_rows: int) -> str | None:
        """Return the name of the rule with binomial tests, or None if bets are used."""
        if losses.is_all_or_nothing:
            return FIXED_SEQUENCE_RULE
        if self.is_near_binary and has_one_start(n_rows, self.relative_limit):
            return ROUNDED_LOSSES_RULE
        return None

    def _build_infeasible_error(
        self, loss_tests: _LossTests, delta: float | None
    ) -> InfeasibleTargetError:
        """Build the error for rows that do not support the limit."""
        error_ranking = loss_tests.loss_ranking.error_ranking
        n_rows = error_ranking.n_rows

        def sample_certifies_limit(increasing_row_indices: Codes) -> bool:
            sampled_tests = loss_tests.resample(increasing_row_indices)
            return sampled_tests.certifies_limit(self.relative_limit)

        if loss_tests.uses_binomial_tests:
            # If each loss is 0 or 1, the limit is the largest allowed share of errors.
            min_accuracy = 1.0 - self.relative_limit
            rows_needed = estimate_rows_needed_for_accuracy(error_ranking, min_accuracy, delta)
            ruled_out_thresholds = find_ruled_out_thresholds(error_ranking, min_accuracy, delta)
        else:
            rows_needed = estimate_rows_needed_by_resampling(n_rows, sample_certifies_limit)
            ruled_out_thresholds = None
        smallest_limit = self._find_smallest_limit(loss_tests)
        smallest_limit_text = ""
        if smallest_limit is not None:
            smallest_limit_text = f"{smallest_limit:g}"
        return build_infeasible_target_error(
            f"a mean {self.noun_in_messages} of at most {self.limit:g}",
            target=self.limit,
            delta=delta,
            n_rows=n_rows,
            best_limit=smallest_limit,
            best_text=smallest_limit_text,
            rows_needed=rows_needed,
            weaker_promise_advice="Raise the limit",
            ruled_out=ruled_out_thresholds,
            ruled_out_predicate=f"has so low a {self.noun_in_messages}",
        )

    def _find_smallest_limit(self, loss_tests: _LossTests) -> float | None:
        """Find the smallest limit that the rows certify, to three significant digits."""
        # Candidate limits are tried in increasing order, because a larger limit may change the tests
        # and is not always easier to certify. The first certified limit is refined by bisection.
        largest_failed_limit = self.relative_limit
        smallest_certified_limit = 1.0
        candidate_limits = np.geomspace(self.relative_limit, 1.0, _N_CANDIDATE_LIMITS)
        inner_limits = candidate_limits[1:-1].tolist()
        for candidate_limit in inner_limits:
            if loss_tests.certifies_limit(candidate_limit):
                smallest_certified_limit = candidate_limit
                break
            largest_failed_limit = candidate_limit
        limit_bracket = betting.bracket_first_true(
            loss_tests.certifies_limit,
            largest_failed_limit,
            smallest_certified_limit,
            n_steps=_N_BISECTION_STEPS,
        )
        smallest_relative_limit = limit_bracket.smallest_true
        smallest_limit = smallest_relative_limit * self.max_loss
        exponent_of_first_digit = math.floor(math.log10(smallest_limit))
        unit_of_last_digit = 10.0 ** (exponent_of_first_digit - (_N_DIGITS_OF_LIMIT - 1))
        rounded_up_limit = math.ceil(smallest_limit / unit_of_last_digit) * unit_of_last_digit
        if rounded_up_limit >= self.max_loss:
            return None
        if not loss_tests.certifies_limit(rounded_up_limit / self.max_loss):
            return None
        # Six digits remove a floating-point error such as 0.30000000000000004.
        return float(f"{rounded_up_limit:.6g}")

    def find_contradiction(
        self, certificate: Certificate, delta: float | None, promise: object
    ) -> str | None:
        """Describe why the mean loss in a certificate cannot certify the limit."""
        n_accepted = certificate.n_accepted
        mean_loss = certificate.mean_cost
        if mean_loss is None or n_accepted == 0:
            return "a promise about losses needs accepted rows and their mean loss"

        n_errors = n_accepted - certificate.n_correct_accepted
        if self.mean_loss_follows_from_error_count(certificate):
            mean_loss_of_errors = n_errors / n_accepted * self.max_loss
            if not is_close(mean_loss, mean_loss_of_errors):
                return (
                    f"{n_errors:,} wrong of {n_accepted:,} accepted rows do not cost"
                    f" {mean_loss:g} on average"
                )
        limit_is_supported = self._can_certify_limit(certificate, mean_loss, delta)
        if limit_is_supported and mean_loss <= self.max_loss:
            return None
        return (
            f"{n_accepted:,} accepted rows that cost {mean_loss:g} on average do not certify"
            f" a {self.noun_in_messages} of at most {self.limit:g}"
        )

    def mean_loss_follows_from_error_count(self, certificate: Certificate) -> bool:
        """Check whether the number of errors determines the mean loss."""
        if self.mean_follows_from_error_count is None:
            return certificate.rule == FIXED_SEQUENCE_RULE
        return self.mean_follows_from_error_count

    def _can_certify_limit(
        self, certificate: Certificate, mean_loss: float, delta: float | None
    ) -> bool:
        """Check whether a mean loss on the accepted rows can certify the limit."""
        n_accepted = certificate.n_accepted
        if delta is None:
            return self._keeps_limit_in_expectation(n_accepted, mean_loss)
        if certificate.rule == LOSS_BETTING_RULE:
            mean_loss_is_within_limit = mean_loss <= self.limit * bounds.ONE_PLUS_ROUNDING_ERROR
            return mean_loss_is_within_limit and self._can_bets_certify_limit(
                certificate.n_rows, delta
            )
        min_possible_errors = n_accepted - certificate.n_correct_accepted
        if certificate.rule == ROUNDED_LOSSES_RULE:
            # The certificate does not record rounded losses, so all of them may be 0.
            min_possible_errors = 0
        min_p_value = bounds.binomial_p_value(min_possible_errors, n_accepted, self.relative_limit)
        return bool(min_p_value <= bounds.ONE_PLUS_ROUNDING_ERROR * delta)

    def _keeps_limit_in_expectation(self, n_accepted: int, mean_loss: float) -> bool:
        """Check whether the mean loss is within the limit in expectation."""
        # The loss of the next row is unknown, so the largest loss is assumed.
        total_loss_with_next_row = mean_loss * n_accepted + self.max_loss
        n_rows_with_next = n_accepted + 1
        max_total_loss = bounds.ONE_PLUS_ROUNDING_ERROR * self.limit * n_rows_with_next
        return total_loss_with_next_row <= max_total_loss

    def _can_bets_certify_limit(self, n_rows: int, delta: float) -> bool:
        """Check whether bets can certify the limit if every loss is zero."""
        # The capital grows most if every loss is zero and each bet stakes the largest fraction.
        max_log_gain_per_bet = math.log1p(
            betting.MAX_STAKE_FRACTION * self.relative_limit / (1.0 - self.relative_limit)
        )
        required_log_capital = -math.log(bounds.ONE_PLUS_ROUNDING_ERROR * delta)
        return n_rows * max_log_gain_per_bet >= required_log_capital


@dataclass(frozen=True, eq=False)
class _LossTests:
    """Tests of the mean loss of ranked rows at any limit.

    Attributes
    ----------
    loss_ranking : LossRanking
        Rows in increasing order of score.

    rule_name : str
        Name of the rule in the certificate.

    uses_binomial_tests : bool
        Whether exact binomial tests are used, instead of bets on losses. Each loss is then 0 or 1,
        perhaps after rounding.

    delta : float or None
        Significance level, or None for a limit in expectation.

    pilot_rows : PilotRows or None
        Pilot rows.

    losses_are_rare : bool
        Whether nearly all graded losses are 0 or 1, according to the user.
    """

    loss_ranking: LossRanking
    rule_name: str
    uses_binomial_tests: bool
    delta: float | None
    pilot_rows: PilotRows | None
    losses_are_rare: bool

    def count_acceptable_rows(self, relative_limit: float) -> int:
        """Count the rows that may be accepted under a limit on the mean loss."""
        if self.delta is None:
            return count_expected_loss_rows(self.loss_ranking, relative_limit)
        if self.uses_binomial_tests:
            min_accuracy = 1.0 - relative_limit
            return count_certified_rows(
                self.loss_ranking.error_ranking, min_accuracy, self.delta, self.pilot_rows
            )
        return count_certified_loss_rows(
            self.loss_ranking,
            relative_limit,
            self.delta,
            self.pilot_rows,
            losses_are_rare=self.losses_are_rare,
        )

    def build_planning_design(self, relative_limit: float) -> CertificationDesign:
        """Return the certification design, with the number of rows used for planning."""
        if self.delta is None:
            return CertificationDesign()
        if not self.uses_binomial_tests:
            n_rows = self.loss_ranking.error_ranking.n_rows
            last_rank_to_test = find_last_rank_to_test(
                self.loss_ranking, relative_limit, self.delta, self.pilot_rows
            )
            return CertificationDesign(n_planning_rows=n_rows - last_rank_to_test)
        min_accuracy = 1.0 - relative_limit
        threshold_result = certify_accuracy(
            self.loss_ranking.error_ranking, min_accuracy, self.delta, self.pilot_rows
        )
        return threshold_result.design

    def certifies_limit(self, relative_limit: float) -> bool:
        """Check whether the tests certify a limit on the mean loss."""
        return self.count_acceptable_rows(relative_limit) > 0

    def resample(self, increasing_row_indices: Codes) -> _LossTests:
        """Return the loss tests of a bootstrap sample of the ranked rows.

        Parameters
        ----------
        increasing_row_indices : array of int
            Position of each sampled row in the ranking, in increasing order.
        """
        sampled_losses = self.loss_ranking.losses_by_rank[increasing_row_indices]
        # The sampled rows are sorted by score, so their positions replace the scores.
        sampled_scores = np.arange(float(len(sampled_losses)))
        sampled_ranking = LossRanking.from_scores(sampled_scores, sampled_losses, bet_order_seed=0)
        # The pilot rows are not resampled, because they only serve to plan the tests.
        pilot_rows = self.pilot_rows
        if pilot_rows is not None:
            # The sampled scores have no ties, so ranks are tested instead of score values.
            pilot_rows = replace(pilot_rows, requires_score_value_tests=False)
        return replace(self, loss_ranking=sampled_ranking, pilot_rows=pilot_rows)


def _rank_rows_with_rounded_losses(
    rows: CalibrationRows, relative_losses: Float, uniform_numbers: Float
) -> Ranking:
    """Rank rows whose losses in [0, 1] are rounded at random to 0 or 1.

    For a uniform number U, the rounded loss 1[U < L] has mean L, so exact tests of errors apply to it.
    """
    is_rounded_to_zero = uniform_numbers >= relative_losses
    rounded_rows = replace(rows, correct=is_rounded_to_zero, precomputed_ranking=None)
    return rounded_rows.ranking


def is_close(first: float, second: float) -> bool:
    """Check whether two mean losses are equal up to rounding."""
    return math.isclose(first, second, rel_tol=RELATIVE_TOLERANCE, abs_tol=_ABSOLUTE_TOLERANCE)
