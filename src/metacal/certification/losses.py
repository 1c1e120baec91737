"""Procedures for a promise about losses: a limit on the mean loss, and the cheapest threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from metacal.certification.pilot import PilotPolicy
from metacal.certification.plans import PilotRows
from metacal.certification.rows import CalibrationRows
from metacal.certification.rules.accuracy_shortfall import (
    describe_ruled_out,
    estimate_rows_needed_for_accuracy,
)
from metacal.certification.rules.fixed_sequence import FALLBACK_SEQUENCE, certified_prefix
from metacal.certification.rules.loss_bets import (
    LossRanking,
    certified_loss_rank,
    expected_loss_rank,
)
from metacal.certification.rules.rule import REJECT_ALL_ROWS
from metacal.certification.statements import cannot_certify_error, certify_threshold
from metacal.errors import InfeasibleTargetError
from metacal.formulas import Codes, Float
from metacal.promises.certificate import Certificate
from metacal.promises.circumstances import Circumstances, under
from metacal.promises.notes import Note, review_is_cheapest
from metacal.promises.quantity import COST_PER_ROW, Quantity
from metacal.promises.rules import betting, bounds
from metacal.promises.rules.bands import DistributionBand
from metacal.promises.rules.costs import Costs, Losses
from metacal.promises.rules.rows_needed import resampled
from metacal.promises.words import RANKED, SAME_SOURCE, register_rule

# Name of the rule that bets on losses.
BETTING = register_rule(
    "loss-betting",
    "bets on the loss of the rows up to each of a fixed sequence of ranks, with fallback shares of"
    " delta (Waudby-Smith & Ramdas 2024; Wiens 2003)",
    SAME_SOURCE,
)

# Name of the rule that rounds losses at random and tests them exactly.
ROUNDED = register_rule(
    "rounded-losses",
    "each loss rounded at random to 0 or 1, then exact binomial tests in a fixed sequence of ranks"
    " with fallback shares of delta (Wiens 2003; Angelopoulos et al. 2021)",
    SAME_SOURCE,
)

# Name of the rule for a mean loss in expectation.
EXPECTED_LOSS = register_rule(
    "expected-loss",
    "largest prefix of the ranking with (loss + largest) <= limit (rows + 1)",
    SAME_SOURCE,
    RANKED,
)

# Name of the rule that chooses the cheapest threshold.
CHEAPEST_CANDIDATES = register_rule(
    "cheapest-candidates",
    "the cheapest of a fixed list of ranks; the cost of its rows and their share bounded for all of"
    " them at once",
    SAME_SOURCE,
)

# Number of bisection steps in the search for the smallest limit that the rows support.
_N_BISECTION_STEPS = 14

# Fraction of the initial capital that a bet stakes at most, as a bound for audits.
_LARGEST_STAKE = 0.9

# Relative and absolute differences up to which two mean losses are equal.
_RELATIVE_TOLERANCE = 1e-9
_ABSOLUTE_TOLERANCE = 1e-12

# Fractions of delta for the bounds on the cost of accepted rows and on the coverage.
_COST_SHARE = 0.8
_COVERAGE_SHARE = 0.2

# Number of candidate ranks at equal steps.
_N_EVEN_STEPS = 24

# Exponents k of further candidates, which reject n / 2**k rows.
_REJECTED_EXPONENTS = range(5, 13)


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

    noun : str
        Noun for the mean loss in messages.

    bets_rule_name : str
        Name of the rule in the certificate if the tests are not exact.

    rounds_losses : bool, default=False
        Whether graded losses are rounded at random to 0 or 1, so that the exact tests apply.

    uses_pilot_rows : bool, default=True
        Whether tests run in a sequence, which pilot rows can plan.

    counts_errors : bool or None, default=None
        Whether the mean loss in a certificate follows from its number of errors. If None, it does
        so under the rule of the exact tests.

    random_state : int, optional
        Seed of the order of the bets and of the rounding. By default it is derived from the rows.
    """

    quantity: Quantity
    limit: float
    costs: Costs
    noun: str
    bets_rule_name: str
    rounds_losses: bool = False
    uses_pilot_rows: bool = True
    counts_errors: bool | None = None
    random_state: int | None = None

    @property
    def max_loss(self) -> float:
        """Largest loss of a row."""
        return self.costs.largest

    @property
    def relative_limit(self) -> float:
        """Limit as a fraction of the largest loss."""
        return self.limit / self.max_loss

    def pilot_policy(
        self, random_state: int | None = None, declared_values: Float | None = None
    ) -> PilotPolicy | None:
        """Return how pilot rows are chosen, if tests run in a sequence."""
        if not self.uses_pilot_rows:
            return None
        return PilotPolicy(random_state=random_state, declared_values=declared_values)

    def certify_all(self, rows: CalibrationRows, delta: float | None) -> Certificate:
        """Certify all rows together."""
        tests = self._build_tests(rows, delta)
        n_accepted = tests.count_certified(self.relative_limit)
        if n_accepted == 0:
            raise self._infeasible(tests, delta)

        rule_name = tests.exact_rule_name or self.bets_rule_name
        threshold = tests.ranking.blocks.just_below_next(n_accepted)
        certificate = certify_threshold(
            rows, self.quantity, self.limit, delta, rule_name, threshold
        )
        mean_loss = float(tests.ranking.losses[: certificate.n_accepted].mean())
        certificate = replace(certificate, mean_cost=mean_loss * self.max_loss)
        if rule_name not in (BETTING, ROUNDED):
            return certificate
        return under(certificate, Circumstances(random_state=self.random_state))

    def _build_tests(self, rows: CalibrationRows, delta: float | None) -> _LossTests:
        """Sort the rows by score and choose the tests.

        The type of the losses decides about the tests, not their values. It is known before any
        loss is read, so that one test is made. If exact tests were used whenever the losses happen
        to be 0 or 1, and bets otherwise, both tests could fail: with probability up to 2 delta.
        """
        losses = rows.losses
        if losses is None:
            losses = self.costs.losses_of_correct(rows.is_correct)
        relative_losses = losses.answered / self.max_loss
        draws = replace(rows, losses=losses).draws(self.random_state)
        ranking = LossRanking.of(rows.scores, relative_losses, draws.seed("order of bets"))

        exact_rule_name = None
        if delta is not None:
            exact_rule_name = self._exact_rule_name(losses)
        if exact_rule_name == ROUNDED:
            # A rounded loss has the mean of the loss: B = 1[U < L] with an independent uniform U has
            # E[B | row] = L. The proof for errors needs no more than this.
            is_zero = draws.numbers("rounded losses") >= relative_losses
            rounded_rows = replace(rows, correct=is_zero, known_ranking=None)
            ranking = replace(ranking, blocks=rounded_rows.ranking)
        elif exact_rule_name is not None:
            ranking = replace(ranking, blocks=rows.ranking)
        return _LossTests(ranking, exact_rule_name, delta, rows.pilot)

    def _exact_rule_name(self, losses: Losses) -> str | None:
        """Return the name of the exact rule that fits the losses, or None."""
        if losses.all_or_nothing:
            return FALLBACK_SEQUENCE
        if self.rounds_losses:
            return ROUNDED
        return None

    def _infeasible(self, tests: _LossTests, delta: float | None) -> InfeasibleTargetError:
        """Build the error for rows that do not support the limit."""
        blocks = tests.ranking.blocks
        if tests.exact_rule_name is None:
            rows_needed = resampled(
                blocks.n, lambda index: tests.resample(index).certifies(self.relative_limit)
            )
            ruled_out = None
        else:
            # Losses that are 0 or 1, or were rounded to them, are errors.
            accuracy = 1.0 - self.relative_limit
            rows_needed = estimate_rows_needed_for_accuracy(blocks, accuracy, delta)
            ruled_out = describe_ruled_out(blocks, accuracy, delta, f"has so low a {self.noun}")
        best_limit = self._find_smallest_limit(tests)
        return cannot_certify_error(
            f"max {self.noun} {self.limit:g}",
            self.limit,
            delta,
            blocks.n,
            best_limit=best_limit,
            best_text=f"{best_limit or 0.0:g}",
            rows_needed=rows_needed,
            loosen="raise the limit",
            ruled_out=ruled_out,
        )

    def _find_smallest_limit(self, tests: _LossTests) -> float | None:
        """Find the smallest limit, to three digits, that the rows certify."""
        _, certified_limit = betting.halved(
            tests.certifies, self.relative_limit, _N_BISECTION_STEPS
        )
        smallest_limit = certified_limit * self.max_loss
        unit = 10.0 ** (math.floor(math.log10(smallest_limit)) - 2)
        rounded_limit = math.ceil(smallest_limit / unit) * unit
        if rounded_limit >= self.max_loss or not tests.certifies(rounded_limit / self.max_loss):
            return None
        return float(f"{rounded_limit:.6g}")

    def find_contradiction(
        self, certificate: Certificate, delta: float | None, promise: object
    ) -> str | None:
        """Check that the mean loss in a certificate supports the limit."""
        n_accepted = certificate.n_accepted
        mean_loss = certificate.mean_cost
        if mean_loss is None or n_accepted == 0:
            return "a promise about losses needs accepted rows and their mean loss"

        n_errors = n_accepted - certificate.n_correct_accepted
        mean_of_errors = n_errors / n_accepted * self.max_loss
        if self.counts_errors_in(certificate) and not _is_close(mean_loss, mean_of_errors):
            return (
                f"{n_errors:,} wrong of {n_accepted:,} accepted rows do not cost {mean_loss:g} on"
                " average"
            )
        is_supported = self._supports(certificate, mean_loss, delta)
        if is_supported and mean_loss <= self.max_loss:
            return None
        return (
            f"{n_accepted:,} accepted rows that cost {mean_loss:g} on average do not certify"
            f" a {self.noun} of at most {self.limit:g}"
        )

    def counts_errors_in(self, certificate: Certificate) -> bool:
        """Check whether the mean loss in a certificate follows from its number of errors."""
        if self.counts_errors is None:
            return certificate.rule == FALLBACK_SEQUENCE
        return self.counts_errors

    def _supports(self, certificate: Certificate, mean_loss: float, delta: float | None) -> bool:
        """Check whether a mean loss on the accepted rows can certify the limit."""
        n_accepted = certificate.n_accepted
        if delta is None:
            summed_loss = mean_loss * n_accepted + self.max_loss
            return summed_loss <= bounds.SLACK * self.limit * (n_accepted + 1)
        if certificate.rule == BETTING:
            # No bets win more: no row had a loss, and nearly everything was staked each time.
            log_gain = math.log1p(
                _LARGEST_STAKE * self.relative_limit / (1.0 - self.relative_limit)
            )
            is_below = mean_loss <= self.limit * bounds.SLACK
            return is_below and certificate.n_rows * log_gain >= -math.log(bounds.SLACK * delta)
        n_errors = n_accepted - certificate.n_correct_accepted
        if certificate.rule == ROUNDED:
            # The certificate does not record which losses were rounded up. At best none was.
            n_errors = 0
        p_value = bounds.binomial_p_value(n_errors, n_accepted, self.relative_limit)
        return bool(p_value <= bounds.SLACK * delta)


@dataclass(frozen=True, eq=False)
class _LossTests:
    """Tests of the mean loss of some rows at any limit.

    Attributes
    ----------
    ranking : LossRanking
        Rows in increasing order of score.

    exact_rule_name : str or None
        Name of the rule if the losses are 0 or 1, or None if bets are used.

    delta : float or None
        Significance level, or None for a limit in expectation.

    pilot : PilotRows or None
        Pilot rows.
    """

    ranking: LossRanking
    exact_rule_name: str | None
    delta: float | None
    pilot: PilotRows | None

    def count_certified(self, relative_limit: float) -> int:
        """Count the rows that may be accepted, 0 if nothing is certified."""
        if self.delta is None:
            return expected_loss_rank(self.ranking, relative_limit)
        if self.exact_rule_name is not None:
            accuracy = 1.0 - relative_limit
            return certified_prefix(self.ranking.blocks, accuracy, self.delta, self.pilot)
        return certified_loss_rank(self.ranking, relative_limit, self.delta, self.pilot)

    def certifies(self, relative_limit: float) -> bool:
        """Check whether any row may be accepted."""
        return self.count_certified(relative_limit) > 0

    def resample(self, index: Codes) -> _LossTests:
        """Return the tests of rows that were drawn from these rows, in the order of the scores."""
        scores = np.arange(float(len(index)))
        ranking = LossRanking.of(scores, self.ranking.losses[index], seed=0)
        return replace(self, ranking=ranking, pilot=None)


@dataclass(frozen=True)
class CheapestThreshold:
    r"""Procedure that chooses the threshold with the lowest cost, and bounds this cost.

    Candidates are about thirty ranks that the number of rows determines. Candidate m accepts the
    rows below the (m+1)-th smallest score x. The candidate with the lowest cost on the calibration
    rows is chosen. (The cost of one more error is added to all but the first candidate, which
    accepts nothing.) Its cost is

        R = F A + (1 - F) review,   F = P(h < x),   A = E[cost | h < x].

    **Bound.** A <= A+ for all candidates at once, at 0.8 delta that they share evenly, and F lies in
    a band over all thresholds at 0.2 delta. Then R <= review + F (A+ - review), with the end of F
    that makes it larger.

    *Proof.* Given x and the number of rows below it, those rows are independent draws of the rows
    below x. An exact binomial limit (one cost for every error) or bets (a table of costs) bound their
    mean. This holds for every fixed m, also with ties, and the chosen candidate is one of them. By
    the union bound all of it fails with probability at most delta. ∎

    Implements `metacal.certification.procedures.Procedure`.

    Parameters
    ----------
    costs : Costs
        Costs of incorrect and of rejected rows.

    random_state : int, optional
        Seed of the order of the bets. By default it is derived from the rows.
    """

    costs: Costs
    random_state: int | None = None

    @property
    def review_cost(self) -> float:
        """Cost of a rejected row."""
        return self.costs.rejected

    def pilot_policy(
        self, random_state: int | None = None, declared_values: Float | None = None
    ) -> PilotPolicy | None:
        """Return None, because the candidates follow from the number of rows."""
        return None

    def certify_all(self, rows: CalibrationRows, delta: float | None) -> Certificate:
        """Choose the cheapest threshold and bound its cost."""
        assert delta is not None
        n_rows = len(rows)
        max_cost = self.costs.largest_of_answers
        losses = rows.losses
        if losses is None:
            losses = self.costs.losses_of_correct(rows.is_correct)
        draws = replace(rows, losses=losses).draws(self.random_state)
        ranking = LossRanking.of(
            rows.scores, losses.answered / max_cost, draws.seed("order of bets")
        )

        # Each candidate accepts the rows strictly below the next score.
        block_ends = ranking.blocks.ranks
        candidate_blocks = np.searchsorted(block_ends, candidate_ranks(n_rows), side="right")
        n_accepted = np.append(0, block_ends)[candidate_blocks]
        summed_costs = np.append(0.0, np.cumsum(ranking.losses)) * max_cost
        mean_costs = summed_costs[n_accepted] + self.review_cost * (n_rows - n_accepted)
        mean_costs = mean_costs / n_rows

        # Few rows without an error are no reason to accept rows that could cost much.
        cost_of_one_more_error = np.where(n_accepted > 0, max_cost / n_rows, 0.0)
        cheapest = int(np.argmin(mean_costs + cost_of_one_more_error))
        return self._state(rows, ranking, int(n_accepted[cheapest]), mean_costs[cheapest], delta)

    def _state(
        self,
        rows: CalibrationRows,
        ranking: LossRanking,
        n_accepted: int,
        mean_cost: float,
        delta: float,
    ) -> Certificate:
        """Build the certificate of a candidate."""
        threshold = REJECT_ALL_ROWS
        notes: tuple[Note, ...] = (review_is_cheapest(review=self.review_cost),)
        if n_accepted > 0:
            threshold = ranking.blocks.just_below_next(n_accepted)
            notes = ()
        accepted_cost = self._bound_accepted_cost(ranking, n_accepted, delta)
        bound = self._bound_cost(len(rows), n_accepted, accepted_cost, delta)
        target = min(bound, self.costs.largest)
        certificate = certify_threshold(
            rows, COST_PER_ROW, target, delta, CHEAPEST_CANDIDATES, threshold, notes
        )
        certificate = replace(certificate, target=target, mean_cost=float(mean_cost))
        if n_accepted == 0 or self.costs.is_uniform:
            return certificate
        return under(certificate, Circumstances(random_state=self.random_state))

    def _bound_accepted_cost(self, ranking: LossRanking, n_accepted: int, delta: float) -> float:
        """Bound the mean cost of the accepted rows, for all candidates at once."""
        n_rows = ranking.blocks.n
        if self.costs.is_uniform:
            n_errors = int((ranking.losses[:n_accepted] > 0.0).sum())
            return self._bound_cost_of_errors(n_errors, n_accepted, n_rows, delta)
        if n_accepted == 0:
            return 0.0
        max_cost = self.costs.largest_of_answers
        guess = min(0.5, 0.5 * self.review_cost / max_cost)
        level = _level_of_candidate(n_rows, delta)
        return max_cost * betting.upper_mean(ranking.losses_up_to(n_accepted), level, guess)

    def _bound_cost_of_errors(
        self, n_errors: int, n_accepted: int, n_rows: int, delta: float
    ) -> float:
        """Bound the mean cost of the accepted rows if every error costs the same."""
        error_rate = 0.0
        if n_accepted > 0:
            level = _level_of_candidate(n_rows, delta)
            error_rate = bounds.clopper_pearson_upper(n_errors, n_accepted, level)
        return self.costs.largest_of_answers * error_rate

    def _bound_cost(
        self, n_rows: int, n_accepted: int, accepted_cost: float, delta: float
    ) -> float:
        """Bound the mean cost of all rows."""
        if n_accepted == 0:
            return self.review_cost
        if n_accepted == n_rows:
            # The threshold accepts every row.
            return accepted_cost
        band = DistributionBand(np.arange(float(n_rows)))
        threshold = np.array([n_accepted - 1.0])
        level = _COVERAGE_SHARE * delta / 2
        if accepted_cost < self.review_cost:
            coverage = band.lower(threshold, level)
        else:
            coverage = band.upper(threshold, level)
        return float(self.review_cost + coverage[0] * (accepted_cost - self.review_cost))

    def find_contradiction(
        self, certificate: Certificate, delta: float | None, promise: object
    ) -> str | None:
        """Check that the counts and the mean cost of a certificate support its bound."""
        assert delta is not None
        n_rows = certificate.n_rows
        n_accepted = certificate.n_accepted
        mean_cost = certificate.mean_cost
        bound = certificate.target
        if mean_cost is None:
            return "a promise about costs needs a mean cost"
        if not self.costs.is_uniform:
            if bound * bounds.SLACK >= mean_cost:
                return None
            return _unsupported_bound_sentence(bound, mean_cost)

        n_errors = n_accepted - certificate.n_correct_accepted
        n_rejected = n_rows - n_accepted
        cost_of_errors = n_errors * self.costs.largest_of_answers
        expected_cost = (cost_of_errors + self.review_cost * n_rejected) / n_rows
        if not _is_close(mean_cost, expected_cost):
            return (
                f"{n_errors:,} wrong of {n_accepted:,} accepted and {n_rejected:,} rejected rows do"
                f" not cost {mean_cost:g}"
            )
        accepted_cost = self._bound_cost_of_errors(n_errors, n_accepted, n_rows, delta)
        smallest_bound = self._bound_cost(n_rows, n_accepted, accepted_cost, delta)
        smallest_bound = min(smallest_bound, self.costs.largest)
        if math.isclose(bound, smallest_bound, rel_tol=_RELATIVE_TOLERANCE):
            return None
        return _unsupported_bound_sentence(bound, smallest_bound)


def candidate_ranks(n_rows: int) -> list[int]:
    """Return the ranks among which the cheapest is chosen.

    They are 0 (reject all rows), equal steps, ranks that reject few rows, and n (accept all rows).

    Examples
    --------
    >>> candidate_ranks(300)
    [0, 12, 25, 38, 50, 62, ..., 275, 288, 291, 295, 298, 299, 300]
    """
    even_ranks = [round(n_rows * step / _N_EVEN_STEPS) for step in range(_N_EVEN_STEPS + 1)]
    high_ranks = [n_rows - round(n_rows / 2**exponent) for exponent in _REJECTED_EXPONENTS]
    return sorted({*even_ranks, *high_ranks})


def _level_of_candidate(n_rows: int, delta: float) -> float:
    """Return the significance level of the bound on the cost of one candidate."""
    return _COST_SHARE * delta / len(candidate_ranks(n_rows))


def _unsupported_bound_sentence(bound: float, smallest_bound: float) -> str:
    return f"these rows do not certify a cost of at most {bound:g} a row, but {smallest_bound:g}"


def _is_close(first: float, second: float) -> bool:
    return math.isclose(first, second, rel_tol=_RELATIVE_TOLERANCE, abs_tol=_ABSOLUTE_TOLERANCE)
