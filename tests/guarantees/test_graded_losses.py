"""Graded losses: how much is accepted, and that a limit is exceeded no more often than promised.

`benchmarks.graded_losses` measures the same with many more draws.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import metacal as mc
from benchmarks import graded_losses
from metacal.certification.plans import PilotRows
from metacal.certification.rules import loss_bets
from metacal.certification.rules.loss_bets import (
    LossRanking,
    count_certified_loss_rows,
    find_last_rank_to_test,
)
from metacal.statistics.replicating_bets import find_means_below

DELTA = graded_losses.DELTA


def largest_share(draws):
    """Return the largest share of broken promises that chance explains (three standard errors)."""
    return DELTA + 3.0 * math.sqrt(DELTA * (1.0 - DELTA) / draws)


def pass_share(name, draws, mean_fraction=None):
    test = graded_losses.TESTS[name]
    mean = test.limit * (test.mean_fraction if mean_fraction is None else mean_fraction)
    rng = np.random.default_rng(0)
    sequences = [test.shape(np.full(test.n, mean), rng) for _ in range(draws)]
    return find_means_below(sequences, test.limit, DELTA).mean()


@pytest.mark.parametrize(
    ("name", "least_share"),
    [
        ("0/1 .1, 500, .8", 0.53),
        ("0 or uniform .1, 300, .8", 0.49),
        ("beta 1/9 .15, 500, .9", 0.88),
        ("beta 1/9 .15, 100, .8", 0.61),
    ],
)
def test_a_mean_below_the_limit_passes_about_as_often_as_an_exact_test(name, least_share):
    assert pass_share(name, draws=2000) >= least_share


@pytest.mark.parametrize(
    "name", ["0/1 .1, 500, 1", "0/1 .1, 100, 1", "0 or uniform .1, 300, 1", "beta 1/9 .15, 500, 1"]
)
def test_a_mean_at_the_limit_passes_with_probability_delta_at_most(name):
    assert pass_share(name, draws=2000) <= largest_share(2000)


@pytest.mark.parametrize(
    ("n", "draws", "least_share"), [(300, 24, 0.23), (1000, 10, 0.43), (3000, 5, 0.69)]
)
def test_the_mean_of_fifteen_populations_is_close_to_that_of_the_oracle(n, draws, least_share):
    shares = [
        graded_losses.population_draw(name, n, seed)["rule"]
        for name in graded_losses.POPULATIONS
        for seed in range(draws)
    ]
    assert np.mean(shares) >= least_share


@pytest.mark.parametrize("name", graded_losses.ADVERSARIES)
def test_a_limit_is_exceeded_no_more_often_than_promised(name):
    draws = 40
    broken = [
        graded_losses.adversary_draw(name, limit, seed)
        for limit in graded_losses.LIMITS
        for seed in range(draws)
    ]
    assert np.mean(broken) <= largest_share(len(broken))


def rare_good_rows(rng, n=600):
    """Draw a ranking in which a tenth of the rows is good, and pilot rows that are all bad."""
    scores = rng.random(n)
    losses = np.where(scores < 0.1, 0.005, 0.4 + 0.6 * rng.random(n))
    ranking = LossRanking.from_scores(scores, losses, bet_order_seed=0)
    pilot = PilotRows(scores=rng.random(10), relative_losses=np.full(10, 0.9))
    return ranking, pilot


def test_the_least_certain_rows_are_read_if_good_pilot_rows_are_rare():
    ranking, pilot = rare_good_rows(np.random.default_rng(0))
    n_tested = find_last_rank_to_test(ranking, 0.1, DELTA, pilot)
    assert 29 <= n_tested < 120
    n_accepted = count_certified_loss_rows(ranking, 0.1, DELTA, pilot)
    assert 40 < n_accepted <= n_tested
    # Without the pilot rows, tests begin where most rows are bad.
    assert count_certified_loss_rows(ranking, 0.1, DELTA) == 0
    two_good = PilotRows(scores=pilot.scores, relative_losses=np.repeat([0.05, 0.9], [2, 8]))
    assert find_last_rank_to_test(ranking, 0.1, DELTA, two_good) == 600


def test_losses_of_rows_that_are_tested_do_not_decide_which_rows_are_tested():
    rng = np.random.default_rng(1)
    ranking, pilot = rare_good_rows(rng)
    n_tested = find_last_rank_to_test(ranking, 0.1, DELTA, pilot)
    for _ in range(20):
        losses = ranking.losses_by_rank.copy()
        losses[:n_tested] = rng.random(n_tested)
        changed = LossRanking(ranking.error_ranking, losses, ranking.bet_order)
        assert find_last_rank_to_test(changed, 0.1, DELTA, pilot) == n_tested


def test_rows_that_were_read_are_rejected(monkeypatch):
    """Only the last rows are bad, so few that all rows together would pass."""
    n = 600
    losses = np.zeros(n)
    losses[-24:] = np.tile([1.0, 0.0], 12)
    ranking = LossRanking.from_scores(np.arange(float(n)), losses, bet_order_seed=0)
    pilot = PilotRows(scores=np.arange(10.0), relative_losses=np.ones(10))
    n_tested = find_last_rank_to_test(ranking, 0.1, DELTA, pilot)
    assert n - 48 < n_tested < n
    assert count_certified_loss_rows(ranking, 0.1, DELTA, pilot) == n_tested
    # Testing rows after they were read would accept them.
    monkeypatch.setattr(loss_bets, "find_last_rank_to_test", lambda *given: n)
    assert count_certified_loss_rows(ranking, 0.1, DELTA, pilot) == n


def test_the_best_limit_is_found_if_the_least_certain_rows_are_read_for_small_limits_only():
    """A tenth of the rows has losses near 0, the others between 0.1 and 0.9."""
    rng = np.random.default_rng(3)
    scores, losses = graded_losses.POPULATIONS["rare2 .1"].draw(1000, rng)
    gate = mc.ScoreGate(mc.MaxRisk(0.01), higher_is="doubtful")
    with pytest.raises(mc.InfeasibleTargetError) as caught:
        gate.fit(scores, loss=losses)
    assert caught.value.best < 0.1
    best = mc.MaxRisk(caught.value.best)
    assert mc.ScoreGate(best, higher_is="doubtful").fit(scores, loss=losses).accepts(scores).any()
