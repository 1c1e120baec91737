"""Cheapest: the threshold at which wrong answers and reviews together cost least, with a certified
bound of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from metacal.promises.certificate import Certificate
from metacal.promises.circumstances import Circumstances, under
from metacal.promises.notes import review_is_cheapest
from metacal.promises.quantity import COST_PER_ROW, Limits
from metacal.promises.rules import betting, bounds
from metacal.promises.rules.bands import DistributionBand
from metacal.promises.rules.costs import (
    Costed,
    CostRanking,
    Wrong,
    checked_costs,
    is_uniform,
    largest_cost,
    positive,
)
from metacal.promises.sample import Sample
from metacal.promises.words import SAME_SOURCE, register_rule
from metacal.rows.arrays import fraction

CANDIDATES = register_rule(
    "cheapest-candidates",
    "the cheapest of a fixed list of ranks; the cost of its rows and their share bounded for all of"
    " them at once",
    SAME_SOURCE,
)

#: Shares of delta: what answers cost needs most of it.
_COST_SHARE, _COVERAGE_SHARE = 0.8, 0.2
#: Ranks at even steps, and so many more that reject ever fewer rows, a half each time.
_STEPS, _HALVINGS = 24, 8


@dataclass(repr=False)
class Cheapest(Costed):
    r"""The threshold at which a row costs least on average: wrong answers that are used, and
    reviews.

    Parameters
    ----------
    wrong, random_state
        As for `MaxCost`.
    review : float
        What it costs to review a row, in the same unit.
    delta : float
        The certified bound of the cost fails with at most this probability over the calibration
        rows.

    Candidates are some thirty ranks that the number of rows alone decides; candidate m accepts what
    lies below the (m+1)-th smallest score x. The one with the lowest cost on the calibration rows
    is chosen (the cost of one more wrong answer counted against all but the first, which accepts
    nothing), and its cost

        R = F·A + (1 - F)·review,   F = P(h < x),  A = E[cost | h < x],

    is bounded by bounds on A and F that hold for all candidates at once: A <= A⁺ with 0.8·delta
    shared evenly among the candidates, and F between the ends of a band over all thresholds at
    0.2·delta; then R <= review + F·(A⁺ - review), with the end of F that makes it larger.

    Why it holds. Given x and the number M of rows below it, those rows are independent draws of the
    rows below x: an exact binomial limit (one cost for every wrong answer) or bets (a table) bound
    their mean. This is so for every fixed m, with ties too, and the chosen candidate is one of
    them: by the union bound all of it fails with at most delta. To choose on one part of the rows
    and certify on the other gave a bound as tight and a dearer threshold.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.random(2000)
    >>> certificate = Cheapest(wrong=20, review=1).certify(scores, rng.random(2000) > scores**3 / 2)
    >>> print(certificate.statement)
    Wrong answers and reviews together cost at most 0.760356 a row on average, with 90% confidence.
    >>> round(certificate.coverage, 3), round(certificate.mean_cost, 3)
    (0.459, 0.622)
    """

    wrong: Wrong
    review: float
    delta: float = 0.1
    random_state: int | None = None

    limited: ClassVar = {}
    rules: ClassVar = (CANDIDATES,)

    def __post_init__(self) -> None:
        self.wrong = checked_costs(self.wrong)
        self.review = positive("review", self.review)
        fraction("delta", self.delta)  # None is no choice here

    @property
    def rejected(self) -> float:
        return self.review

    @property
    def limits(self) -> Limits:
        """What is promised: at most what the rows certify, which is not known beforehand."""
        return ((COST_PER_ROW, math.inf),)

    def from_sample(self, sample: Sample) -> Certificate:
        largest, n = largest_cost(self.wrong), len(sample)
        losses = self.losses_in(sample)
        seed = replace(sample, losses=losses).draws(self.random_state).seed("order of bets")
        ranked = CostRanking.of(sample.score, losses.answered / largest, seed)
        spent, ends = np.append(0.0, np.cumsum(ranked.losses)) * largest, ranked.blocks.ranks
        # Of each candidate the rows that lie strictly below the next score.
        accepted = np.append(0, ends)[np.searchsorted(ends, candidates(n), side="right")]
        cost = (spent[accepted] + self.review * (n - accepted)) / n
        # One more wrong answer than was seen: few rows without an error are no reason to accept
        # what could cost much.
        cheapest = int(np.argmin(cost + np.where(accepted > 0, largest / n, 0.0)))
        kept = int(accepted[cheapest])
        threshold = ranked.blocks.just_below_next(kept) if kept else -math.inf
        notes = () if kept else (review_is_cheapest(review=self.review),)
        certificate = self._certificate(sample, threshold, notes)
        bound = self._bound(n, kept, self._answers_cost(ranked, kept))
        certificate = replace(
            certificate, target=min(bound, self.largest), mean_cost=float(cost[cheapest])
        )
        is_drawn = kept > 0 and not is_uniform(self.wrong)
        return under(
            certificate, Circumstances(random_state=self.random_state if is_drawn else None)
        )

    def _limits_in(self, certificate: Certificate) -> Limits:
        return ((COST_PER_ROW, certificate.target),)

    def impossible(self, certificate: Certificate) -> str | None:
        n, kept, right = certificate.n_rows, certificate.n_accepted, certificate.n_correct_accepted
        mean, bound = certificate.mean_cost, certificate.target
        if mean is None:
            return "a promise about costs needs a mean cost"
        if is_uniform(self.wrong):
            wrong = kept - right
            own = (wrong * largest_cost(self.wrong) + self.review * (n - kept)) / n
            if not math.isclose(mean, own, rel_tol=1e-9, abs_tol=1e-12):
                return (
                    f"{wrong:,} wrong of {kept:,} accepted and {n - kept:,} rejected rows do not"
                    f" cost {mean:g}"
                )
            least = min(self._bound(n, kept, self._exact(wrong, kept, n)), self.largest)
            good = math.isclose(bound, least, rel_tol=1e-9)
        else:
            least = mean
            good = bound * bounds.SLACK >= least
        return (
            None
            if good
            else f"these rows do not certify a cost of at most {bound:g} a row, but {least:g}"
        )

    def _answers_cost(self, ranked: CostRanking, kept: int) -> float:
        """At most what an accepted row costs on average, for all candidates at once; 0 where none
        is accepted.
        """
        if is_uniform(self.wrong):
            return self._exact(int((ranked.losses[:kept] > 0.0).sum()), kept, ranked.blocks.n)
        if not kept:
            return 0.0
        largest = largest_cost(self.wrong)
        guess = min(0.5, 0.5 * self.review / largest)
        return largest * betting.upper_mean(ranked.first(kept), self._level(ranked.blocks.n), guess)

    def _exact(self, wrong: int, kept: int, n: int) -> float:
        rate = bounds.clopper_pearson_upper(wrong, kept, self._level(n)) if kept else 0.0
        return largest_cost(self.wrong) * rate

    def _level(self, n: int) -> float:
        return _COST_SHARE * self.delta / len(candidates(n))

    def _bound(self, n: int, kept: int, answers_cost: float) -> float:
        """R <= review + F·(A⁺ - review): the lower end of F where answers are cheaper than reviews,
        else the upper.
        """
        if kept == 0:
            return self.review  # nothing is ever accepted
        if kept == n:
            return answers_cost  # the threshold is +inf
        band = DistributionBand(np.arange(float(n)))
        at, half = np.array([kept - 1.0]), _COVERAGE_SHARE * self.delta / 2
        share = band.lower(at, half) if answers_cost < self.review else band.upper(at, half)
        return float(self.review + share[0] * (answers_cost - self.review))


def candidates(n: int) -> list[int]:
    """The ranks among which the cheapest is chosen: 0 (reject all), even steps, ever fewer
    rejected, n (accept all).

    >>> candidates(300)
    [0, 12, 25, 38, 50, 62, ..., 275, 288, 291, 295, 298, 299, 300]
    """
    even = [round(n * k / _STEPS) for k in range(_STEPS + 1)]
    fewer = [n - round(n / 2**k) for k in range(5, 5 + _HALVINGS)]
    return sorted({*even, *fewer})
