"""The certified accuracy, with nothing assumed about the ranking: real logits, and populations built against the rule.

A promise is broken when the true accuracy at or below the threshold is less than beta. It may be in `DELTA` of the
draws, and three standard errors of a finite number of draws are allowed on top.
"""

from __future__ import annotations

import numpy as np
import pytest

import metacal as mc
from metacal.promises.ranking import Ranking
from metacal.promises.sequence import last_passed, segments

DELTA = 0.1
REAL_DRAWS, DRAWS = 100, 300


def limit(draws):
    return DELTA + 3 * np.sqrt(DELTA * (1 - DELTA) / draws)


def broken(draw, true_accuracy, betas, draws):
    """For each beta the share of draws whose threshold accepts rows that are right less than beta of the time."""
    count = np.zeros(len(betas))
    for _ in range(draws):
        ranking = Ranking.of(*draw())
        for i, beta in enumerate(betas):
            rank = last_passed(ranking, beta, DELTA)
            count[i] += rank > 0 and true_accuracy(ranking.threshold_at(rank)) < beta
    return count / draws


@pytest.mark.parametrize("n", [300, 1000, 5000])
def test_kept_on_real_logits(real_set, n):
    """The whole set is the truth. Its accuracy does rise again along the ranking."""
    scores, codes = np.unique(real_set.scores, return_inverse=True)
    right = np.cumsum(np.bincount(codes, real_set.correct))
    rows = np.cumsum(np.bincount(codes))
    rng = np.random.default_rng(n)

    def draw():
        chosen = rng.integers(0, len(codes), n)
        return real_set.scores[chosen], real_set.correct[chosen]

    def accuracy(threshold):
        last = np.searchsorted(scores, threshold, side="right") - 1
        return right[last] / rows[last]

    found = broken(draw, accuracy, (real_set.beta, 0.95, 0.99), REAL_DRAWS)
    assert found.max() <= limit(REAL_DRAWS), found


class Population:
    """Scores uniform on [0, 1]; the error rate of all rows at or below each knot is given, linear in errors between."""

    def __init__(self, knots, rates):
        self.knots = np.concatenate(([0.0], knots))
        self.errors = np.concatenate(([0.0], np.asarray(rates) * knots))
        self.density = np.diff(self.errors) / np.diff(self.knots)
        assert self.knots[-1] == 1.0
        assert 0.0 <= self.density.min() <= self.density.max() <= 1.0

    def draw(self, rng, n):
        scores = rng.random(n)
        return scores, rng.random(n) >= self.density[np.searchsorted(self.knots, scores, side="right") - 1]

    def accuracy(self, threshold):
        at = min(threshold, 1.0)
        return 1.0 - np.interp(at, self.knots, self.errors) / at

    def ever_bad(self, beta):
        return any(self.accuracy(at) < beta for at in self.knots[1:])


def bad_at_the_starts(n, beta):
    """Just below beta where each walk begins and well above it between: what a rule that skips ranks would miss."""
    starts = [part.start / n for part in segments(n, beta, DELTA)]
    q, knots, rates = 1.0 - beta, [], []
    for at, following in zip(starts, [*starts[1:], 1.0]):
        middle = (at + min(following, 1.3 * at)) / 2
        knots += [at, middle]
        rates += [1.001 * q, 0.96 * q]
    if knots[-1] < 1.0:
        knots, rates = [*knots, 1.0], [*rates, 1.001 * q]
    return Population(np.array(knots), rates)


def hopeless(n, beta):
    """Below beta by a hair everywhere: whatever is accepted breaks the promise, and each walk is a chance to do so."""
    return Population(np.array([1.0]), [1.0001 * (1.0 - beta)])


def oscillating(n, beta):
    """The accuracy crosses beta some thirty times, by ever the same factor."""
    knots = np.geomspace(0.02, 1.0, 60)
    rates = (1.0 - beta) * np.where(np.arange(60) % 2, 1.002, 0.998)
    return Population(knots, rates)


def confidently_wrong(n, beta):
    """The surest 2% are wrong half of the time; then it is right nearly always, and falls below beta at the end."""
    q = 1.0 - beta
    return Population(np.array([0.02, 0.5, 0.9, 1.0]), [0.5, max(0.012 / 0.5, 0.7 * q), 1.01 * q, 1.5 * q])


@pytest.mark.parametrize("n", [300, 1000, 5000])
@pytest.mark.parametrize("beta", [0.9, 0.97])
@pytest.mark.parametrize("build", [bad_at_the_starts, hopeless, oscillating, confidently_wrong])
def test_kept_on_populations_built_against_it(build, beta, n):
    population, rng = build(n, beta), np.random.default_rng([n, round(100 * beta)])
    assert population.ever_bad(beta)
    found = broken(lambda: population.draw(rng, n), population.accuracy, [beta], DRAWS)
    assert found[0] <= limit(DRAWS), found


@pytest.mark.parametrize("n", [300, 1000, 5000])
@pytest.mark.parametrize("mass", [(0.2, 0.2, 0.2, 0.2, 0.2), (0.6, 0.1, 0.3), (0.05, 0.15, 0.8)])
def test_kept_where_scores_are_a_few_mass_points(mass, n):
    """The accuracy up to each point is a little below beta and a little above it in turn, below at the first."""
    beta, ends = 0.9, np.cumsum(mass)
    rates = (1.0 - beta) * np.where(np.arange(len(mass)) % 2, 0.99, 1.001)
    density = np.diff(rates * ends, prepend=0.0) / mass
    rng = np.random.default_rng([n, len(mass)])

    def draw():
        points = rng.choice(len(mass), n, p=mass)
        return points.astype(float), rng.random(n) >= density[points]

    def accuracy(threshold):
        return 1.0 - rates[int(min(np.floor(threshold), len(mass) - 1))]

    found = broken(draw, accuracy, [beta], DRAWS)
    assert found[0] <= limit(DRAWS), found


def test_the_certificate_lists_no_assumption_about_the_ranking(embedded_set):
    for promise in (mc.MinCoverageAccuracy(0.8), mc.Both(alpha=0.9, beta=0.8)):
        found = promise.certify(embedded_set.scores[:2000], embedded_set.correct[:2000])
        assert len(found.assumptions) == 1
        assert found.assumptions[0].startswith("new rows come from the same source")
