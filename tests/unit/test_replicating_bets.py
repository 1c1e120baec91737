"""Bets that replicate an option: the same result alone and in a batch, and no look at later values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtri

from metacal.statistics.replicating_bets import certifies_mean_below, find_means_below


def certifies_step_by_step(values, limit, level, n_pseudo_values=5.0, variance_fraction=0.5):
    """Bet on one value after another, and read the capital before each of them."""
    capital, total, squares, weight = 1.0, 0.0, 0.0, n_pseudo_values
    squares = n_pseudo_values * variance_fraction * limit * (1.0 - limit)
    for t, value in enumerate(values):
        variance = max(squares / weight - (total / weight) ** 2, 1e-12)
        price = min(level * capital / 1.05, 0.9999)
        quantile = ndtri(price)
        density = math.exp(-(quantile**2) / 2.0) / math.sqrt(2.0 * math.pi)
        stake = density / (price * math.sqrt(variance * (len(values) - t)))
        capital *= 1.0 + min(stake, 0.9 / (1.0 - limit)) * (limit - value)
        if capital >= 1.0 / level:
            return True
        total += limit - value
        squares += (limit - value) ** 2
        weight += 1.0
    return False


def draw_losses(rng, kind, n, mean):
    if kind == "0/1":
        return (rng.random(n) < mean).astype(float)
    if kind == "0 or uniform":
        return np.where(rng.random(n) < 2.0 * mean, rng.random(n), 0.0)
    return rng.beta(8.0 * mean, 8.0 * (1.0 - mean), n)


@pytest.mark.parametrize("kind", ["0/1", "0 or uniform", "beta"])
def test_few_readings_of_the_capital_certify_as_often_as_one_before_each_value(kind):
    rng = np.random.default_rng(0)
    sequences = [draw_losses(rng, kind, 300, 0.08) for _ in range(400)]
    passes = find_means_below(sequences, 0.1, 0.1)
    passes_step_by_step = [certifies_step_by_step(values, 0.1, 0.1) for values in sequences]
    assert abs(passes.mean() - np.mean(passes_step_by_step)) < 0.02
    assert np.mean(passes == passes_step_by_step) > 0.95


def test_a_sequence_has_the_same_result_alone_and_in_a_batch():
    rng = np.random.default_rng(1)
    lengths = [0, 1, 2, 3, 10, 99, 100, 500, 501, 1023, 1024, 2047, 2048, 2049, 5000, 5003]
    sequences = [draw_losses(rng, "beta", n, 0.09) for n in lengths for _ in range(5)]
    together = find_means_below(sequences, 0.1, 0.1)
    alone = [certifies_mean_below(values, 0.1, 0.1) for values in sequences]
    assert together.tolist() == alone
    assert 0 < together.sum() < len(sequences)


def test_a_passed_test_does_not_depend_on_later_values():
    """Values after the one at which the capital suffices do not matter, but their number does."""
    values = np.zeros(400)
    values[300:] = 1.0
    assert certifies_mean_below(values, 0.1, 0.1)
    assert not certifies_mean_below(values[::-1], 0.1, 0.1)


def test_no_values_certify_nothing():
    assert not certifies_mean_below(np.zeros(0), 0.5, 0.1)


def test_losses_of_1_certify_no_limit():
    with np.errstate(all="raise", under="ignore"):
        assert not certifies_mean_below(np.ones(3000), 0.999, 0.1)
        assert not certifies_mean_below(np.ones(3000), 0.001, 0.1)


@pytest.mark.parametrize("limit", [0.3, 0.1, 0.01, 0.001])
def test_losses_of_0_pass_as_soon_as_the_largest_stakes_do(limit):
    """The largest stakes need a tenth more values than exact tests."""
    max_log_gain = math.log1p(0.9 * limit / (1.0 - limit))
    n_required = math.ceil(math.log(10.0) / max_log_gain)
    assert certifies_mean_below(np.zeros(round(1.05 * n_required)), limit, 0.1)
    assert not certifies_mean_below(np.zeros(n_required - 1), limit, 0.1)


def test_rare_losses_start_with_the_variance_of_0_and_1():
    """With few rows, the prior for rare losses certifies more 0/1 losses (0.50 against 0.41)."""
    rng = np.random.default_rng(2)
    sequences = [draw_losses(rng, "0/1", 100, 0.06) for _ in range(1000)]
    usual = find_means_below(sequences, 0.1, 0.1).mean()
    rare = find_means_below(sequences, 0.1, 0.1, losses_are_rare=True).mean()
    assert rare > usual + 0.04
