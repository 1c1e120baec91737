"""A review budget, a limit on costs, the cheapest threshold: kept on real logits and on populations
built against them.

The whole set is the truth, and calibration sets are drawn from it with replacement. A promise may
be broken in `DELTA` of the draws, and three standard errors of a finite number of draws are allowed
on top: 16% of 200, where 2 delta would fail nine times of ten.
"""

from __future__ import annotations

import numpy as np
import pytest

import metacal as mc
from metacal.certification.rules.loss_bets import (
    LossRanking,
    count_certified_loss_rows,
    plan_loss_ranks,
)
from metacal.promises import Sample
from metacal.statistics import betting

DELTA = 0.1
SIZES = (300, 1000, 5000)


def limit(draws, delta=DELTA):
    return delta + 3 * np.sqrt(delta * (1 - delta) / draws)


class Truth:
    """A real set with a cost for each answer: what any threshold costs."""

    def __init__(self, real_set, wrong, review=0.0):
        self.scores, self.correct = real_set.scores, real_set.correct
        self.codes, self.answers = real_set.labels, real_set.logits.argmax(axis=1)
        order = np.argsort(self.scores, kind="stable")
        self.ordered = self.scores[order]
        self.promise = mc.Cheapest(wrong, max(review, 1e-9))
        self.costs = costs = self.promise.losses(self.codes, self.answers).if_accepted
        self.mean, self.largest = float(costs.mean()), self.promise.largest
        self.accepted_cost = np.concatenate(([0.0], np.cumsum(costs[order])))
        self.review = review

    def accepted(self, threshold):
        return int(np.searchsorted(self.ordered, threshold, side="right"))

    def cost(self, threshold):
        accepted = self.accepted(threshold)
        return self.accepted_cost[accepted] / max(accepted, 1)

    def cost_per_row(self, threshold):
        accepted, n = self.accepted(threshold), len(self.ordered)
        return (self.accepted_cost[accepted] + self.review * (n - accepted)) / n

    def least_per_row(self):
        n = len(self.ordered)
        return float(((self.accepted_cost + self.review * (n - np.arange(n + 1))) / n).min())

    def ranked(self, rows, seed):
        return LossRanking.from_scores(self.scores[rows], self.costs[rows] / self.largest, seed)

    def certify(self, promise, rows):
        losses = promise.losses(self.codes[rows], self.answers[rows])
        return promise.certify(Sample.of(self.scores[rows], self.correct[rows], losses=losses))


def table_of_costs(n_classes, kind):
    """Of many sizes, or mostly small and now and then a hundred times as large."""
    rng = np.random.default_rng(n_classes)
    size = (n_classes, n_classes)
    costs = (
        rng.integers(1, 20, size)
        if kind == "many sizes"
        else np.where(rng.random(size) < 0.05, 100, 1)
    )
    return costs * (1 - np.eye(n_classes))


# ── the budget ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("n", SIZES)
def test_the_review_budget_is_kept_and_used(real_set, n):
    draws, share, rng = 200, 0.1, np.random.default_rng(n)
    ordered = np.sort(real_set.scores)
    reviewed = np.empty(draws)
    for i in range(draws):
        threshold = mc.MaxReview(share).certify(rng.choice(real_set.scores, n)).threshold
        reviewed[i] = 1.0 - np.searchsorted(ordered, threshold, side="right") / len(ordered)
    assert np.mean(reviewed > share) <= limit(draws)
    # What a certified budget leaves unused on average, where scores do not tie.
    assert abs(reviewed.mean() / share - {300: 0.76, 1000: 0.88, 5000: 0.94}[n]) < 0.03


@pytest.mark.slow
@pytest.mark.parametrize("n", SIZES)
def test_in_expectation_the_budget_is_used_up(real_set, n):
    draws, share, rng = 200, 0.2, np.random.default_rng(n)
    ordered = np.sort(real_set.scores)
    thresholds = [
        mc.MaxReview(share, None).certify(rng.choice(real_set.scores, n)).threshold
        for _ in range(draws)
    ]
    reviewed = 1.0 - np.searchsorted(ordered, thresholds, side="right") / len(ordered)
    assert reviewed.mean() <= share + 3 * reviewed.std() / np.sqrt(draws)
    assert reviewed.mean() > 0.95 * share


@pytest.mark.parametrize("mass", [(0.75, 0.1, 0.15), (0.5, 0.28, 0.22), (0.81, 0.19)])
def test_the_budget_is_kept_where_scores_are_a_few_mass_points(mass):
    draws, share, rng = 200, 0.2, np.random.default_rng(len(mass))
    broken = 0
    for _ in range(draws):
        scores = rng.choice(len(mass), 300, p=mass).astype(float)
        threshold = mc.MaxReview(share).certify(scores).threshold
        broken += sum(p for point, p in enumerate(mass) if point > threshold) > share
    assert broken / draws <= limit(draws)


# ── the limit on costs ────────────────────────────────────────────────────────────────────────────

COST_DRAWS = {300: 100, 1000: 60, 5000: 25}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["many sizes", "rare and large"])
@pytest.mark.parametrize("n", SIZES)
def test_costs_are_kept_on_real_logits(real_set, n, kind):
    truth = Truth(real_set, table_of_costs(real_set.logits.shape[1], kind))
    at_most, rng, broken, draws = 0.5 * truth.mean, np.random.default_rng(n), 0, COST_DRAWS[n]
    for seed in range(draws):
        ranked = truth.ranked(rng.integers(0, len(truth.scores), n), seed)
        rank = count_certified_loss_rows(ranked, at_most / truth.largest, DELTA)
        broken += (
            rank > 0
            and truth.cost(ranked.error_ranking.largest_threshold_accepting_exactly(rank)) > at_most
        )
    assert broken / draws <= limit(draws)


@pytest.mark.slow
def test_costs_accept_nearly_what_they_could(embedded_set):
    """Accepting nothing would keep every promise about costs."""
    truth = Truth(embedded_set, table_of_costs(embedded_set.logits.shape[1], "many sizes"))
    promise, rng = mc.MaxCost(truth.promise.wrong, 0.5 * truth.mean), np.random.default_rng(0)
    means = truth.accepted_cost[1:] / np.arange(1, len(truth.scores) + 1)
    best = np.flatnonzero(means <= promise.limit)[-1] + 1
    for n, least in ((1000, 0.8), (5000, 0.9)):
        found = [
            truth.accepted(truth.certify(promise, rng.integers(0, len(truth.scores), n)).threshold)
            for _ in range(12)
        ]
        assert np.mean(found) >= least * best


class CostPopulation:
    """Scores uniform on [0, 1]; the mean cost of all rows at or below each knot is given, linear in
    cost between.
    """

    def __init__(self, knots, means, sizes):
        self.knots = np.concatenate(([0.0], knots))
        self.costs = np.concatenate(([0.0], np.asarray(means) * knots))
        self.density = np.diff(self.costs) / np.diff(self.knots)
        assert self.knots[-1] == 1.0
        assert 0.0 <= self.density.min() <= self.density.max() <= 1.0
        self.sizes = sizes

    def draw(self, rng, n):
        scores = rng.random(n)
        return scores, self.sizes(
            rng, self.density[np.searchsorted(self.knots, scores, side="right") - 1]
        )

    def mean(self, threshold):
        at = min(threshold, 1.0)
        return np.interp(at, self.knots, self.costs) / at


def spread(rng, mean):
    """Uniform between 0 and twice the mean."""
    return 2.0 * mean * rng.random(len(mean))


def rare_and_large(rng, mean):
    """Nine tenths of the mean come from the largest cost, the rest from one of a twentieth of
    it.
    """
    return np.where(
        rng.random(len(mean)) < 0.9 * mean,
        1.0,
        np.where(rng.random(len(mean)) < 2.0 * mean, 0.05, 0.0),
    )


def bad_at_the_starts(n, at_most):
    """Just above the limit where each walk begins and well below it between."""
    starts = [ranks[0] / n for _, ranks in plan_loss_ranks(n, at_most, DELTA)]
    knots, means = [], []
    for at, following in zip(starts, [*starts[1:], 1.0]):
        middle = (at + min(following, 1.3 * at)) / 2
        room = middle - at > 0.05 * at  # for a part that costs less, but no less than nothing
        knots += [at, middle] if room else [at]
        means += [1.001 * at_most, 0.96 * at_most] if room else [1.001 * at_most]
    if knots[-1] < 1.0:
        knots, means = [*knots, 1.0], [*means, 1.001 * at_most]
    return np.array(knots), means


def hopeless(n, at_most):
    return np.array([1.0]), [1.0001 * at_most]


def oscillating(n, at_most):
    knots = np.geomspace(0.02, 1.0, 60)
    return knots, at_most * np.where(np.arange(60) % 2, 1.002, 0.998)


@pytest.mark.slow
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("sizes", [spread, rare_and_large])
@pytest.mark.parametrize("build", [bad_at_the_starts, hopeless, oscillating])
def test_costs_are_kept_on_populations_built_against_them(build, sizes, n):
    at_most = 0.04
    population = CostPopulation(*build(n, at_most), sizes)
    rng, broken, draws = np.random.default_rng(n), 0, 200 if n < 5000 else 100
    for seed in range(draws):
        ranked = LossRanking.from_scores(*population.draw(rng, n), seed)
        rank = count_certified_loss_rows(ranked, at_most, DELTA)
        broken += (
            rank > 0
            and population.mean(ranked.error_ranking.largest_threshold_accepting_exactly(rank))
            > at_most
        )
    assert broken / draws <= limit(draws)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("mass", [(0.2, 0.2, 0.2, 0.2, 0.2), (0.6, 0.1, 0.3), (0.05, 0.15, 0.8)])
def test_costs_are_kept_where_scores_are_a_few_mass_points(mass, n):
    """The mean cost up to each point is a little above the limit and a little below it in turn,
    above at the first.
    """
    at_most, ends = 0.1, np.cumsum(mass)
    means = at_most * np.where(np.arange(len(mass)) % 2, 0.99, 1.001)
    density = np.diff(means * ends, prepend=0.0) / mass
    rng, broken, draws = np.random.default_rng([n, len(mass)]), 0, 200 if n < 5000 else 100
    for seed in range(draws):
        points = rng.choice(len(mass), n, p=mass)
        ranked = LossRanking.from_scores(points.astype(float), spread(rng, density[points]), seed)
        rank = count_certified_loss_rows(ranked, at_most, DELTA)
        if rank:
            last = int(
                min(
                    np.floor(ranked.error_ranking.largest_threshold_accepting_exactly(rank)),
                    len(mass) - 1,
                )
            )
            broken += means[last] > at_most
    assert broken / draws <= limit(draws)


# ── the cheapest threshold ────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("table", [False, True])
def test_the_bound_of_the_cheapest_holds_and_is_near(real_set, n, table):
    wrong = table_of_costs(real_set.logits.shape[1], "many sizes") if table else 20.0
    truth = Truth(real_set, wrong, review=1.0)
    rng, draws = np.random.default_rng(n), 60
    found = np.empty((draws, 2))
    for i in range(draws):
        certificate = truth.certify(truth.promise, rng.integers(0, len(truth.scores), n))
        found[i] = truth.cost_per_row(certificate.threshold), certificate.target
    cost, bound = found.T
    assert np.mean(cost > bound) <= limit(draws)
    least = truth.least_per_row()
    assert cost.mean() <= {300: 1.2, 1000: 1.1, 5000: 1.06}[n] * least
    assert bound.mean() <= {300: 3.0, 1000: 1.9, 5000: 1.4}[n] * least


@pytest.mark.parametrize("rate", [0.004, 0.05, 0.3])
def test_the_bound_holds_where_every_threshold_costs_the_same(rate):
    """With review at what an answer costs nothing is gained anywhere; whatever looks cheapest does
    so by luck.
    """
    draws, n, rng, broken = 300, 300, np.random.default_rng(0), 0
    promise = mc.Cheapest(wrong=1.0 / rate, review=1.0)
    for _ in range(draws):
        correct = rng.random(n) >= rate
        if correct.any():
            broken += promise.certify(rng.random(n), correct).target < 1.0
    assert broken / draws <= limit(draws)


def test_the_bound_holds_where_scores_tie():
    draws, n, rng, broken = 300, 300, np.random.default_rng(1), 0
    mass, rates = np.array([0.35, 0.25, 0.25, 0.15]), np.array([0.02, 0.05, 0.05, 0.3])
    promise = mc.Cheapest(wrong=20.0, review=1.0)
    for _ in range(draws):
        points = rng.choice(4, n, p=mass)
        certificate = promise.certify(points.astype(float), rng.random(n) >= rates[points])
        accept = np.arange(4) <= certificate.threshold
        broken += (mass * np.where(accept, 20.0 * rates, 1.0)).sum() > certificate.target
    assert broken / draws <= limit(draws)


# ── bets ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("draw", ["rare", "even", "beta"])
@pytest.mark.parametrize("n", [30, 300])
def test_limits_of_a_mean_by_betting_hold(draw, n):
    draws, rng = 200, np.random.default_rng(n)
    make = {
        "rare": (0.01, lambda: (rng.random(n) < 0.01).astype(float)),
        "even": (0.5, lambda: rng.random(n)),
        "beta": (0.05, lambda: rng.beta(0.2, 3.8, n)),
    }
    mean, sample = make[draw]
    low, high = np.array(
        [
            (betting.mean_lower_bound(x, DELTA, 0.1), betting.mean_upper_bound(x, DELTA, 0.1))
            for x in (sample() for _ in range(draws))
        ]
    ).T
    assert np.mean(low > mean) <= limit(draws)
    assert np.mean(high < mean) <= limit(draws)
    assert (low <= high).all()
