"""ECE in any norm over any bins, against a loop over bins; the exponential ranking loss against all
pairs.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from metacal import metrics


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(5)
    confidence = np.round(random.uniform(0.2, 1.0, 700), 2)  # with ties, and values on edges
    return confidence, (random.random(700) < confidence**1.3).astype(float)


def by_hand(confidence, correct, edges, norm):
    gaps, shares = [], []
    for number, (low, high) in enumerate(itertools.pairwise(edges)):
        inside = (confidence > low) & (confidence <= high)
        if number == 0:
            inside |= confidence == 0
        if inside.any():
            gaps.append(abs(correct[inside].mean() - confidence[inside].mean()))
            shares.append(inside.mean())
    if np.isinf(norm):
        return max(gaps)
    return np.dot(shares, np.power(gaps, norm)) ** (1 / norm)


def halves_of_the_top(confidence, n_bins):
    return [0.0, *sorted(1 - 0.5**k for k in range(1, n_bins)), 1.0]


@pytest.mark.parametrize("norm", [1, 1.5, 2, 3, 25.0, np.inf])
@pytest.mark.parametrize(
    ("binning", "edges"),
    [
        (metrics.equal_width, np.arange(8) / 7),
        ([0, 0.5, 0.9, 1], [0, 0.5, 0.9, 1]),
        (np.array([0.0, 1.0]), [0, 1]),
        (halves_of_the_top, halves_of_the_top(None, 7)),
    ],
    ids=["equal width", "edges", "one bin", "function"],
)
def test_any_norm_over_any_bins(data, binning, edges, norm):
    expected = by_hand(*data, edges, norm)
    assert metrics.ece(*data, 7, binning, norm) == pytest.approx(expected, abs=1e-13)


def test_equal_mass_bins_are_those_of_the_metric_of_that_name(data):
    assert metrics.ece(*data, 9, metrics.equal_mass) == metrics.ece_equal_mass(*data, 9)


@pytest.mark.parametrize("binning", [metrics.equal_width, metrics.equal_mass])
def test_the_named_norms_are_these_norms(data, binning):
    assert metrics.ece(*data, 12, binning, 2) == metrics.rms_calibration_error(*data, 12, binning)
    assert metrics.ece(*data, 12, binning, np.inf) == metrics.max_calibration_error(
        *data, 12, binning
    )


def test_a_high_norm_of_tiny_gaps_does_not_underflow():
    confidence = np.array([0.5, 0.5, 0.9, 0.9])
    correct = confidence + np.array([1e-9, 1e-9, 0.0, 0.0])
    assert metrics.ece(confidence, correct, norm=200) == pytest.approx(
        1e-9 * 0.5 ** (1 / 200), rel=1e-6
    )


def test_a_table_and_its_interval_take_the_same_options():
    random = np.random.default_rng(0)
    proba, labels = random.dirichlet([0.4] * 3, 200), random.integers(3, size=200)
    options = {"binning": [0, 0.6, 1], "norm": 2}
    found = metrics.interval(metrics.ece, proba, labels, n_resamples=30, **options)
    assert found.estimate == metrics.ece(proba, labels, **options)
    assert found.low <= found.estimate <= found.high


def test_the_exponential_loss_is_the_mean_over_pairs():
    random = np.random.default_rng(2)
    score, correct = random.standard_normal(60), random.random(60) < 0.7
    pairs = np.exp(-(score[~correct][:, None] - score[correct][None, :]))
    assert metrics.exponential_ranking_loss(score, correct) == pytest.approx(
        pairs.mean(), rel=1e-13
    )
    # A bound on the ranking risk, and far below 1 only for a score that separates with a margin.
    assert pairs.mean() >= 1 - metrics.auroc(score, correct)
    assert metrics.exponential_ranking_loss(score - 20.0 * correct, correct) < 1e-6


def test_the_exponential_loss_of_far_scores():
    """Sums of exp(±score) overflow where their product does not."""
    assert metrics.exponential_ranking_loss([1000.0, 1000.5], [True, False]) == pytest.approx(
        np.exp(-0.5)
    )
    assert metrics.exponential_ranking_loss([1e4, -1e4], [True, False]) == np.inf
    assert np.isnan(metrics.exponential_ranking_loss([0.1, 0.2], [True, True]))
    found = metrics.interval(
        metrics.exponential_ranking_loss, [0.1, 0.9, 0.5, 0.2], [True, False, True, False]
    )
    assert np.isnan([found.low, found.high]).all()
    assert found.method == "none"
