"""Certification of the threshold with the lowest cost of errors and reviews."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from metacal.certificates.certificate import Certificate
from metacal.certificates.design import CertificationDesign, record_design
from metacal.certificates.notes import Note, note_review_is_cheapest
from metacal.certificates.quantities import COST_PER_ROW
from metacal.certificates.rule_texts import SAME_SOURCE, register_rule
from metacal.certification.losses import RELATIVE_TOLERANCE, is_close
from metacal.certification.pilot import PilotPolicy
from metacal.certification.row_losses import Costs
from metacal.certification.rows import CalibrationRows
from metacal.certification.rules.loss_bets import LossRanking
from metacal.certification.rules.rule import REJECT_ALL_ROWS
from metacal.certification.statements import build_certificate_for_threshold
from metacal.formulas import Float
from metacal.statistics import betting, bounds
from metacal.statistics.distribution_band import DistributionBand

# Name of the rule that chooses the cheapest threshold.
CHEAPEST_CANDIDATES = register_rule(
    "cheapest-candidates",
    "the cheapest of a fixed list of ranks; the cost of its rows and their share bounded for all of"
    " them at once",
    SAME_SOURCE,
)

# Fractions of delta for the bound on the accepted cost and the bound on the coverage.
_COST_DELTA_FRACTION = 0.8
_COVERAGE_DELTA_FRACTION = 0.2

# Number of equal steps between the evenly spaced candidate ranks.
_N_EVEN_STEPS = 24

# Further candidates reject n / 2**k of the n rows for these exponents k.
_REJECTED_EXPONENTS = range(5, 13)


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

    The stakes of these bets do not depend on the bound, so bisection finds it. The bets of
    `statistics.replicating_bets` would need a test at each limit of a fine grid, and at the small level
    of one candidate their bound is hardly lower.

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
        return self.costs.review_cost

    def build_pilot_policy(
        self, random_state: int | None = None, declared_score_values: Float | None = None
    ) -> PilotPolicy | None:
        """Return None, because the candidates follow from the number of rows."""
        return None

    def certify_promise(self, rows: CalibrationRows, delta: float | None) -> Certificate:
        """Choose the cheapest threshold and bound its cost."""
        assert delta is not None
        max_prediction_cost = self.costs.max_prediction_cost
        row_losses = rows.losses
        if row_losses is None:
            row_losses = self.costs.losses_from_correctness(rows.is_correct)
        row_draws = replace(rows, losses=row_losses).build_row_draws(self.random_state)
        loss_ranking = LossRanking.from_scores(
            rows.scores,
            row_losses.if_accepted / max_prediction_cost,
            bet_order_seed=row_draws.derive_seed(purpose="order of bets"),
        )
        n_accepted, mean_cost = self._find_cheapest_candidate(loss_ranking)
        return self._build_certificate(
            rows, loss_ranking, n_accepted=n_accepted, mean_cost=mean_cost, delta=delta
        )

    def _find_cheapest_candidate(self, loss_ranking: LossRanking) -> tuple[int, float]:
        """Return the number of accepted rows and the mean cost of the cheapest candidate."""
        n_rows = loss_ranking.error_ranking.n_rows
        max_prediction_cost = self.costs.max_prediction_cost
        candidate_ranks = choose_candidate_ranks(n_rows)
        # Rows with equal scores are accepted together, so a candidate accepts whole blocks.
        block_end_ranks = loss_ranking.error_ranking.tie_block_end_ranks
        n_accepted_blocks = np.searchsorted(block_end_ranks, candidate_ranks, side="right")
        n_rows_up_to_block = np.append(0, block_end_ranks)
        n_accepted = n_rows_up_to_block[n_accepted_blocks]
        cumulative_losses = np.append(0.0, np.cumsum(loss_ranking.losses_by_rank))
        cumulative_costs = cumulative_losses * max_prediction_cost
        review_costs = self.review_cost * (n_rows - n_accepted)
        mean_costs = (cumulative_costs[n_accepted] + review_costs) / n_rows

        # One additional error is assumed, because a few correct rows do not imply a low error rate.
        cost_of_one_more_error = np.where(n_accepted > 0, max_prediction_cost / n_rows, 0.0)
        cheapest_index = int(np.argmin(mean_costs + cost_of_one_more_error))
        return int(n_accepted[cheapest_index]), mean_costs[cheapest_index]

    def _build_certificate(
        self,
        rows: CalibrationRows,
        loss_ranking: LossRanking,
        n_accepted: int,
        mean_cost: float,
        delta: float,
    ) -> Certificate:
        """Build the certificate of the cheapest candidate."""
        threshold = REJECT_ALL_ROWS
        notes: tuple[Note, ...] = (note_review_is_cheapest(review=self.review_cost),)
        if n_accepted > 0:
            threshold = loss_ranking.error_ranking.largest_threshold_accepting_exactly(n_accepted)
            notes = ()
        accepted_cost_bound = self._bound_accepted_cost(loss_ranking, n_accepted, delta)
        mean_cost_bound = self._bound_mean_cost(len(rows), n_accepted, accepted_cost_bound, delta)
        certified_cost = min(mean_cost_bound, self.costs.max_row_cost)
        certificate = build_certificate_for_threshold(
            rows,
            quantity=COST_PER_ROW,
            target=certified_cost,
            delta=delta,
            rule_name=CHEAPEST_CANDIDATES,
            threshold=threshold,
            notes=notes,
        )
        certificate = replace(certificate, mean_cost=float(mean_cost))
        # The seed matters only for bets, which bound the cost if errors have unequal costs.
        cost_is_bounded_by_bets = n_accepted > 0 and not self.costs.has_equal_error_costs
        if not cost_is_bounded_by_bets:
            return certificate
        return record_design(certificate, CertificationDesign(random_state=self.random_state))

    def _bound_accepted_cost(
        self, loss_ranking: LossRanking, n_accepted: int, delta: float
    ) -> float:
        """Compute an upper bound on the mean cost of the accepted rows."""
        n_rows = loss_ranking.error_ranking.n_rows
        if self.costs.has_equal_error_costs:
            n_errors = int((loss_ranking.losses_by_rank[:n_accepted] > 0.0).sum())
            return self._bound_cost_of_errors(n_errors, n_accepted, n_rows, delta)
        if n_accepted == 0:
            return 0.0
        max_prediction_cost = self.costs.max_prediction_cost
        max_mean_loss = betting.mean_upper_bound(
            values=loss_ranking.losses_up_to(n_accepted),
            significance_level=_compute_delta_per_candidate(n_rows, delta),
            guessed_mean=_guess_mean_loss(self.review_cost / max_prediction_cost),
        )
        return max_prediction_cost * max_mean_loss

    def _bound_cost_of_errors(
        self, n_errors: int, n_accepted: int, n_rows: int, delta: float
    ) -> float:
        """Bound the mean cost of the accepted rows if all errors have the same cost."""
        max_error_rate = 0.0
        if n_accepted > 0:
            max_error_rate = bounds.clopper_pearson_upper(
                n_errors, n_accepted, delta=_compute_delta_per_candidate(n_rows, delta)
            )
        return self.costs.max_prediction_cost * max_error_rate

    def _bound_mean_cost(
        self, n_rows: int, n_accepted: int, accepted_cost_bound: float, delta: float
    ) -> float:
        """Compute an upper bound on the mean cost of all rows."""
        if n_accepted == 0:
            return self.review_cost
        if n_accepted == n_rows:
            return accepted_cost_bound
        # The band depends only on the order of the scores, so ranks replace the scores.
        ranks_as_scores = np.arange(float(n_rows))
        coverage_band = DistributionBand(ranks_as_scores)
        highest_accepted_score = np.array([n_accepted - 1.0])
        # The lower and the upper side of the band each use half of its share of delta.
        delta_per_side = _COVERAGE_DELTA_FRACTION * delta / 2
        # If accepting is cheaper than review, the cost is largest at the lowest coverage.
        if accepted_cost_bound < self.review_cost:
            coverage_bounds = coverage_band.lower_bound_on_cdf(
                highest_accepted_score, delta_per_side
            )
        else:
            coverage_bounds = coverage_band.upper_bound_on_cdf(
                highest_accepted_score, delta_per_side
            )
        (coverage_bound,) = coverage_bounds
        extra_cost_if_accepted = accepted_cost_bound - self.review_cost
        return float(self.review_cost + coverage_bound * extra_cost_if_accepted)

    def find_contradiction(
        self, certificate: Certificate, delta: float | None, promise: object
    ) -> str | None:
        """Describe why the counts of a certificate do not support its cost bound."""
        assert delta is not None
        n_rows = certificate.n_rows
        n_accepted = certificate.n_accepted
        mean_cost = certificate.mean_cost
        certified_cost = certificate.target
        if mean_cost is None:
            return "a promise about costs needs a mean cost"
        if not self.costs.has_equal_error_costs:
            if certified_cost * bounds.ONE_PLUS_ROUNDING_ERROR >= mean_cost:
                return None
            return _describe_unsupported_cost(certified_cost, mean_cost)

        n_errors = n_accepted - certificate.n_correct_accepted
        n_rejected = n_rows - n_accepted
        cost_of_errors = n_errors * self.costs.max_prediction_cost
        mean_cost_from_counts = (cost_of_errors + self.review_cost * n_rejected) / n_rows
        if not is_close(mean_cost, mean_cost_from_counts):
            return (
                f"{n_errors:,} wrong of {n_accepted:,} accepted and {n_rejected:,} rejected rows do"
                f" not cost {mean_cost:g}"
            )
        accepted_cost_bound = self._bound_cost_of_errors(n_errors, n_accepted, n_rows, delta)
        mean_cost_bound = self._bound_mean_cost(n_rows, n_accepted, accepted_cost_bound, delta)
        certifiable_cost = min(mean_cost_bound, self.costs.max_row_cost)
        if math.isclose(certified_cost, certifiable_cost, rel_tol=RELATIVE_TOLERANCE):
            return None
        return _describe_unsupported_cost(certified_cost, certifiable_cost)


def choose_candidate_ranks(n_rows: int) -> list[int]:
    """Return the ranks of the candidate thresholds.

    They are 0 (reject all rows), equal steps, ranks that reject few rows, and n (accept all rows).

    Examples
    --------
    >>> choose_candidate_ranks(300)
    [0, 12, 25, 38, 50, 62, ..., 275, 288, 291, 295, 298, 299, 300]
    """
    evenly_spaced_ranks = [
        round(n_rows * step / _N_EVEN_STEPS) for step in range(_N_EVEN_STEPS + 1)
    ]
    ranks_rejecting_few = [n_rows - round(n_rows / 2**exponent) for exponent in _REJECTED_EXPONENTS]
    return sorted({*evenly_spaced_ranks, *ranks_rejecting_few})


def _guess_mean_loss(relative_review_cost: float) -> float:
    """Guess that the mean loss of the accepted rows is half of the review cost."""
    return min(0.5, 0.5 * relative_review_cost)


def _compute_delta_per_candidate(n_rows: int, delta: float) -> float:
    """Divide the delta of the bounds on the cost evenly among the candidates."""
    return _COST_DELTA_FRACTION * delta / len(choose_candidate_ranks(n_rows))


def _describe_unsupported_cost(stated_cost: float, certifiable_cost: float) -> str:
    """Describe a certified cost that the counts of the certificate do not support."""
    return (
        f"these rows do not certify a cost of at most {stated_cost:g} a row, but"
        f" {certifiable_cost:g}"
    )
