"""The bound on the selective accuracy: its arithmetic, step by step of the proof."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import betaincinv

from metacal.statistics import selective_accuracy
from metacal.statistics.levels import local_level, uniform_order_statistic_quantiles
from metacal.statistics.selective_accuracy import (
    COVERAGE_DELTA_FRACTION,
    MAX_S_FACTOR,
    MIN_S_FACTOR,
    bound_selective_accuracy,
    certifies_selective_accuracy,
)


def counts(*pairs):
    correct, incorrect = zip(*pairs, strict=True)
    return np.array(correct), np.array(incorrect)


def mixture_by_quadrature(rate, n_correct, n_incorrect, n_rows, delta):
    """Compute the smaller mixture of the proof with an adaptive integrator, from its definition."""
    level = local_level(n_rows, COVERAGE_DELTA_FRACTION * delta / 2)
    accepted = np.array([n_correct + n_incorrect])
    coverages = (
        uniform_order_statistic_quantiles(accepted, n_rows, level)[0],
        1 - uniform_order_statistic_quantiles(n_rows - accepted, n_rows, level)[0],
    )
    scale = -np.log((1 - COVERAGE_DELTA_FRACTION) * delta) / n_rows
    smallest, largest = MIN_S_FACTOR * scale, np.sqrt(MAX_S_FACTOR * scale)

    def likelihood_ratio(s, coverage):
        incorrect, correct = rate * coverage, (1 - rate) * coverage
        return (1 - s / incorrect) ** n_incorrect * (1 + s / correct) ** n_correct

    def mixture(coverage):
        stop = min(largest, rate * coverage)
        total, _ = quad(
            lambda u: likelihood_ratio(np.exp(u), coverage), np.log(smallest), np.log(stop)
        )
        return total / np.log(largest / smallest)

    return min(mixture(coverage) for coverage in coverages)


@pytest.mark.parametrize(
    ("n_correct", "n_incorrect"), [(300, 0), (280, 20), (150, 100), (60, 2), (20, 0)]
)
@pytest.mark.parametrize("delta", [0.2, 0.1, 0.0125])
def test_the_mixture_reaches_its_limit_at_the_bound(n_correct, n_incorrect, delta):
    bound = bound_selective_accuracy(np.array([n_correct]), np.array([n_incorrect]), 300, delta)[0]
    value = mixture_by_quadrature(1 - bound, n_correct, n_incorrect, 300, delta)
    assert value * (1 - COVERAGE_DELTA_FRACTION) * delta == pytest.approx(1.0, rel=1e-6)


def test_no_coverage_between_the_two_ends_has_a_smaller_mixture():
    """Step 6: the mixture has no inner minimum in the coverage."""
    correct, incorrect = counts((100, 3), (40, 0), (600, 150), (15, 1))
    mixture = selective_accuracy._EvidenceAgainstErrorRates.from_counts(
        correct, incorrect, 1000, 0.1
    )
    rate = 1.0 - bound_selective_accuracy(correct, incorrect, 1000, 0.1)
    smallest = mixture.compute_surplus(rate)
    for weight in np.linspace(0.0, 1.0, 21):
        inner = (1 - weight) * mixture.log_coverage[0] + weight * mixture.log_coverage[1]
        at_one_coverage = selective_accuracy._EvidenceAgainstErrorRates(
            mixture.n_correct,
            mixture.n_incorrect,
            np.stack([inner, inner]),
            mixture.log_min_s,
            mixture.log_max_s,
            mixture.required_log_evidence,
        )
        assert (at_one_coverage.compute_surplus(rate) >= smallest - 1e-9).all()


def test_the_supermartingale_has_mean_one():
    """Step 2, by enumeration: three rows, incorrect with probability W and correct with C below
    t.
    """
    incorrect, correct, s = 0.3, 0.5, 0.2
    outcomes = [
        (incorrect, 1 - s / incorrect),
        (correct, 1 + s / correct),
        (1 - incorrect - correct, 1.0),
    ]
    mean = sum(
        p1 * p2 * p3 * v1 * v2 * v3
        for p1, v1 in outcomes
        for p2, v2 in outcomes
        for p3, v3 in outcomes
    )
    assert mean == pytest.approx(1.0)


@pytest.mark.parametrize("n_rows", [10, 100, 5000, 10**6])
@pytest.mark.parametrize("delta", [0.3, 0.1, 1e-6])
def test_more_nodes_do_not_change_the_bound(n_rows, delta, monkeypatch):
    accepted = np.unique(np.geomspace(1, n_rows, 20).astype(int))
    incorrect = accepted // 9
    bound = bound_selective_accuracy(accepted - incorrect, incorrect, n_rows, delta)
    nodes_and_weights = selective_accuracy._gauss_legendre(300)
    monkeypatch.setattr(selective_accuracy, "_gauss_legendre", lambda n_nodes: nodes_and_weights)
    exact = bound_selective_accuracy(accepted - incorrect, incorrect, n_rows, delta)
    assert bound == pytest.approx(exact, abs=1e-8)


@pytest.mark.parametrize("n_rows", [1, 2, 5, 20, 80])
def test_the_bound_lies_between_zero_and_clopper_and_pearson(n_rows):
    accepted, incorrect = np.tril_indices(n_rows + 1)
    correct = accepted - incorrect
    bound = bound_selective_accuracy(correct, incorrect, n_rows, 0.1)
    pointwise = np.where(correct > 0, betaincinv(np.maximum(correct, 1), incorrect + 1, 0.1), 0.0)
    assert (bound >= 0.0).all()
    assert (bound <= pointwise).all()
    assert (bound[correct == 0] == 0.0).all()


def test_another_correct_row_never_lowers_the_bound():
    """`find_candidate_thresholds` leaves out thresholds that a further correct row improves."""
    for n_rows, n_incorrect in [(20, 0), (50, 3), (300, 0), (300, 40), (2000, 7)]:
        correct = np.arange(1, n_rows - n_incorrect + 1)
        bound = bound_selective_accuracy(correct, np.full(len(correct), n_incorrect), n_rows, 0.1)
        assert (np.diff(bound) >= -1e-11).all()


def test_a_smaller_delta_lowers_the_bound():
    correct, incorrect = counts((900, 30), (100, 0), (50, 20))
    bounds = [
        bound_selective_accuracy(correct, incorrect, 1000, delta)
        for delta in (0.3, 0.1, 0.01, 1e-4)
    ]
    assert (np.diff(bounds, axis=0) < 0.0).all()


def test_an_accuracy_is_supported_up_to_the_bound():
    accepted, incorrect = np.tril_indices(81)
    correct = accepted - incorrect
    bound = bound_selective_accuracy(correct, incorrect, 80, 0.1)
    for accuracy in (0.3, 0.8, 0.9, float(bound.max())):
        supported = certifies_selective_accuracy(correct, incorrect, 80, accuracy, 0.1)
        assert (supported == (bound >= accuracy)).all()


def test_chunks_do_not_change_the_bound(monkeypatch):
    accepted = np.arange(1, 201)
    whole = bound_selective_accuracy(accepted, accepted // 10, 300, 0.1)
    monkeypatch.setattr(selective_accuracy, "_CHUNK_SIZE", 7)
    assert np.array_equal(bound_selective_accuracy(accepted, accepted // 10, 300, 0.1), whole)
