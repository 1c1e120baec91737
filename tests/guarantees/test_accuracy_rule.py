"""The certified accuracy, with nothing assumed about the ranking: real logits, and populations
built against the rule.

A promise is broken when the true accuracy at or below the threshold is less than beta. It may be in
`DELTA` of the draws, and three standard errors of a finite number of draws are allowed on top: 16%
of 200, where 2 delta would fail nine times of ten.
"""

from __future__ import annotations

import numpy as np
import pytest

import metacal as mc
from metacal.certification.ranking import Ranking
from metacal.certification.rules.expected_prefix import count_expected_prefix
from metacal.certification.rules.fixed_sequence import count_certified_rows, find_last_passed_rank
from metacal.certification.test_sequences import plan_rank_ranges
from metacal.statistics import bounds

DELTA = 0.1
REAL_DRAWS, DRAWS = 100, 200


def limit(draws):
    return DELTA + 3 * np.sqrt(DELTA * (1 - DELTA) / draws)


def broken(draw, true_accuracy, betas, draws):
    """For each beta the share of draws whose threshold accepts rows that are right less than beta
    of the time.
    """
    count = np.zeros(len(betas))
    for _ in range(draws):
        ranking = Ranking.from_scores(*draw())
        for i, beta in enumerate(betas):
            rank = find_last_passed_rank(ranking, beta, DELTA)
            count[i] += (
                rank > 0
                and true_accuracy(ranking.largest_threshold_after_passing_rank(rank)) < beta
            )
    return count / draws


@pytest.mark.slow
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
    """Scores uniform on [0, 1]; the error rate of all rows at or below each knot is given, linear
    in errors between.
    """

    def __init__(self, knots, rates):
        self.knots = np.concatenate(([0.0], knots))
        self.errors = np.concatenate(([0.0], np.asarray(rates) * knots))
        self.density = np.diff(self.errors) / np.diff(self.knots)
        assert self.knots[-1] == 1.0
        assert -1e-9 <= self.density.min() <= self.density.max() <= 1.0 + 1e-9

    def draw(self, rng, n):
        scores = rng.random(n)
        return scores, rng.random(n) >= self.density[
            np.searchsorted(self.knots, scores, side="right") - 1
        ]

    def accuracy(self, threshold):
        at = min(threshold, 1.0)
        return 1.0 - np.interp(at, self.knots, self.errors) / at

    def ever_bad(self, beta):
        return any(self.accuracy(at) < beta for at in self.knots[1:])


def bad_at_the_starts(n, beta):
    """Just below beta where each walk begins and well above it between: what a rule that skips
    ranks would miss.
    """
    starts = [part.start_rank / n for part in plan_rank_ranges(n, beta, DELTA)]
    q, knots, rates = 1.0 - beta, [], []
    for at, following in zip(starts, [*starts[1:], 1.0]):
        middle = (at + min(following, 1.3 * at)) / 2
        knots += [at, middle]
        rates += [1.001 * q, 0.96 * q]
    if knots[-1] < 1.0:
        knots, rates = [*knots, 1.0], [*rates, 1.001 * q]
    return Population(np.array(knots), rates)


def hopeless(n, beta):
    """Below beta by a hair everywhere: whatever is accepted breaks the promise, and each walk is a
    chance to do so.
    """
    return Population(np.array([1.0]), [1.0001 * (1.0 - beta)])


def oscillating(n, beta):
    """The accuracy crosses beta some thirty times, by ever the same factor."""
    knots = np.geomspace(0.02, 1.0, 60)
    rates = (1.0 - beta) * np.where(np.arange(60) % 2, 1.002, 0.998)
    return Population(knots, rates)


def confidently_wrong(n, beta):
    """The surest 2% are wrong half of the time; then it is right nearly always, and falls below
    beta at the end.
    """
    q = 1.0 - beta
    return Population(
        np.array([0.02, 0.5, 0.9, 1.0]), [0.5, max(0.012 / 0.5, 0.7 * q), 1.01 * q, 1.5 * q]
    )


@pytest.mark.slow
@pytest.mark.parametrize("n", [300, 1000, 5000])
@pytest.mark.parametrize("beta", [0.9, 0.97])
@pytest.mark.parametrize("build", [bad_at_the_starts, hopeless, oscillating, confidently_wrong])
def test_kept_on_populations_built_against_it(build, beta, n):
    population, rng = build(n, beta), np.random.default_rng([n, round(100 * beta)])
    assert population.ever_bad(beta)
    found = broken(lambda: population.draw(rng, n), population.accuracy, [beta], DRAWS)
    assert found[0] <= limit(DRAWS), found


@pytest.mark.slow
@pytest.mark.parametrize("n", [300, 1000, 5000])
@pytest.mark.parametrize("mass", [(0.2,) * 5, (0.025,) * 40, (0.6, 0.1, 0.3), (0.05, 0.15, 0.8)])
def test_kept_where_scores_are_a_few_mass_points(mass, n):
    """The accuracy up to each point is a little below beta and a little above it in turn, below at
    the first.
    """
    beta, ends = 0.9, np.cumsum(mass)
    rates = (1.0 - beta) * np.where(np.arange(len(mass)) % 2, 0.99, 1.001)
    ends[-1] = 1.0
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
    for promise in (mc.MinAccuracy(0.8), mc.Both(alpha=0.9, beta=0.8)):
        found = promise.certify(embedded_set.scores[:2000], embedded_set.correct[:2000])
        assert len(found.assumptions) == 1
        assert found.assumptions[0].startswith("new rows come from the same source")


def former_prefix(ranking, beta, delta):
    """The rule of former versions for many rows: the largest of eight starts that passes at
    delta/80, then a walk.
    """
    starts = [ranking.find_tie_block(rank) for rank in former_starts(ranking.n_rows, beta, delta)]
    passing = [i for i in starts if passes(ranking, i, beta, delta / 80)]
    start = (
        max(passing)
        if passing
        else ranking.find_tie_block(2 * bounds.error_free_rows_needed(beta, 0.9 * delta))
    )
    if not passes(ranking, start, beta, 0.9 * delta):
        return 0
    at = np.flatnonzero(np.diff(ranking.cumulative_errors[start:]) > 0) + start + 1
    failed = ~passes(ranking, at, beta, 0.9 * delta)
    return (
        int(ranking.tie_block_end_ranks[at[failed.argmax()] - 1])
        if failed.any()
        else ranking.n_rows
    )


def former_starts(n, beta, delta):
    return np.round(np.geomspace(bounds.error_free_rows_needed(beta, delta / 80), n, 8)).astype(int)


def passes(ranking, index, beta, level):
    return (
        bounds.binomial_p_value(
            ranking.cumulative_errors[index], ranking.tie_block_end_ranks[index], 1.0 - beta
        )
        <= level
    )


def good_at_the_former_starts(n, beta):
    """Below beta by a hair, but just ahead of each start of the former rule only right rows come,
    then only wrong ones.

    A start passes where the sample is a little lucky, and the same luck carries the walk past the
    wrong rows behind it.
    """
    q = 1.0 - beta
    bad, at, errors = 1.0001 * q, [], [0.0]
    for start in former_starts(n, beta, DELTA)[:-1]:
        few = max(q * start - 2.2 * np.sqrt(q * beta * start), errors[-1])
        burst = (bad * start - few) / (1.0 - bad)
        at += [few / bad, start, start + burst]
        errors += [few, few, few + burst]
    knots = np.append(at, n) / n
    return Population(knots, np.append(errors[1:], bad * n) / n / knots)


@pytest.mark.long
def test_what_broke_the_former_rule_does_not_break_this_one():
    """The former start is chosen by labels, and accuracy that only falls was taken for granted."""
    n, beta, draws = 50_000, 0.9, 400
    population, rng, count = (
        good_at_the_former_starts(n, beta),
        np.random.default_rng(0),
        np.zeros(2),
    )
    for _ in range(draws):
        ranking = Ranking.from_scores(*population.draw(rng, n))
        for i, rule in enumerate((former_prefix, count_certified_rows)):
            accepted = rule(ranking, beta, DELTA)
            count[i] += (
                accepted > 0
                and population.accuracy(ranking.largest_threshold_accepting_exactly(accepted))
                < beta - 1e-9
            )
    former, present = count / draws
    assert former > limit(draws), former
    assert present <= limit(draws), present


def steady(n, beta):
    """As many errors everywhere: the mean of the accepted rows' error rate is then nearly all that
    is allowed.
    """
    return Population(np.array([1.0]), [1.02 * (1.0 - beta)])


def rising(n, beta):
    """Errors get more frequent all the way, up to three times what is allowed."""
    q, knots = 1.0 - beta, np.linspace(0.05, 1.0, 20)
    return Population(knots, q * (0.2 + 1.3 * knots))


def mean_error(draw, true_accuracy, beta, draws):
    """Of the rule in expectation: mean error rate of what is accepted, 0 where nothing is, and its
    standard error.
    """
    found = np.zeros(draws)
    for i in range(draws):
        ranking = Ranking.from_scores(*draw())
        if accepted := count_expected_prefix(ranking, beta):
            found[i] = 1.0 - true_accuracy(ranking.largest_threshold_accepting_exactly(accepted))
    return found.mean(), found.std() / np.sqrt(draws)


@pytest.mark.slow
@pytest.mark.parametrize("n", [100, 1000])
@pytest.mark.parametrize("beta", [0.9, 0.97])
@pytest.mark.parametrize("build", [steady, rising])
def test_kept_on_average_where_errors_get_no_rarer(build, beta, n):
    population, rng = build(n, beta), np.random.default_rng([n, round(100 * beta)])
    mean, error = mean_error(lambda: population.draw(rng, n), population.accuracy, beta, 1500)
    assert mean <= 1.0 - beta + 3 * error


@pytest.mark.slow
@pytest.mark.parametrize("n", [300, 1000, 5000])
def test_kept_on_average_on_real_logits(real_set, n):
    order = np.argsort(real_set.scores, kind="stable")
    scores, right = real_set.scores[order], np.cumsum(real_set.correct[order])
    rng = np.random.default_rng(n)

    def draw():
        chosen = rng.integers(0, len(order), n)
        return real_set.scores[chosen], real_set.correct[chosen]

    def accuracy(threshold):
        below = np.searchsorted(scores, threshold, side="right")
        return right[below - 1] / below

    for beta in (real_set.beta, 0.95, 0.99):
        mean, error = mean_error(draw, accuracy, beta, 150)
        assert mean <= 1.0 - beta + 3 * error
