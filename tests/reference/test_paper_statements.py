"""What the paper says and is not so, by number: one small counter-example each.

Ma & Blaschko, "Meta-Cal: Well-controlled Post-hoc Calibration by Ranking", ICML 2021.
docs/deviations.md has the words. The ways of its published code are those of
github.com/maxc01/metacal at commit 7f29db7, told in our own lines.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import metacal as mc
from metacal import bounds, metrics
from metacal.certificates.certificate import accept_up_to_threshold


def all_binnings_ece(confidence, correct):
    """The largest ECE over every partition of the distinct confidences into intervals."""
    levels = np.unique(confidence)
    best = 0.0
    for mask in range(2 ** (len(levels) - 1)):
        edges = [levels[i] for i in range(len(levels) - 1) if mask >> i & 1]
        bins = np.searchsorted(edges, confidence, side="left")
        best = max(
            best,
            sum(abs((correct - confidence)[bins == b].sum()) for b in np.unique(bins))
            / len(confidence),
        )
    return best


def test_proposition_1_second_half_an_estimate_exceeds_the_error():
    """ECE >= ECE_B is true of the whole distribution; estimated from n rows of a calibrated model
    it is never 0.
    """
    rng = np.random.default_rng(1)
    estimates = []
    for _ in range(400):
        confidence = rng.uniform(0.5, 1.0, 1000)
        estimates.append(metrics.ece(confidence, rng.random(1000) < confidence))
    assert min(estimates) > 0.0
    assert np.mean(estimates) == pytest.approx(0.0286, abs=3 * np.std(estimates) / math.sqrt(400))


def test_proposition_2_the_supremum_over_maps_is_one_for_every_classifier():
    """ "sup over B and g" leaves nothing to minimise: confidence 1 for an incorrect class on every
    row reaches 1.
    """
    rng = np.random.default_rng(2)
    for n_classes in (2, 5, 10):
        labels = rng.integers(0, n_classes, 50)
        wrong = np.eye(n_classes)[(labels + 1) % n_classes]
        assert metrics.sup_ece(wrong, labels) == 1.0


def test_proposition_2_the_optimal_map_has_no_error_zero_on_a_finite_set():
    """It is (n_rej / n) |acc_rej - 1/K|, with acc_rej binomial; 0 only if ties count in parts."""
    rng = np.random.default_rng(2)
    n, n_rejected, n_classes, draws = 2000, 200, 10, 400
    is_correct = np.arange(n) >= n_rejected
    confidence = np.where(is_correct, 1.0, 1 / n_classes)
    estimates = []
    for _ in range(draws):
        counted = np.where(is_correct, True, rng.random(n) < 1 / n_classes)
        expected = n_rejected / n * abs(counted[~is_correct].mean() - 1 / n_classes)
        estimates.append(metrics.sup_ece(confidence, counted))
        assert estimates[-1] == pytest.approx(expected, abs=1e-12)
    law = n_rejected / n * math.sqrt(2 * (n_classes - 1) / (math.pi * n_classes**2 * n_rejected))
    assert np.mean(estimates) == pytest.approx(law, abs=4 * np.std(estimates) / math.sqrt(draws))
    assert np.mean(estimates) > 0.001
    assert metrics.sup_ece(confidence, np.where(is_correct, 1.0, 1 / n_classes)) == pytest.approx(
        0.0, abs=1e-12
    )


def test_proposition_2_a_constant_map_is_as_good_and_keeps_every_prediction():
    rng = np.random.default_rng(2)
    is_correct = rng.random(12) < 0.7
    constant = np.full(12, is_correct.mean())
    assert all_binnings_ece(constant, is_correct) == pytest.approx(0.0, abs=1e-12)
    assert metrics.sup_ece(constant, is_correct) == pytest.approx(0.0, abs=1e-12)


def test_proposition_5_corrected_fails_with_ties_and_holds_without():
    confidence, right = np.full(4, 0.75), np.array([1.0, 1.0, 1.0, 0.0])
    assert all_binnings_ece(confidence, right) == metrics.sup_ece(confidence, right) == 0.0
    assert bounds.meta_cal_sup_ece(1.0, 0.75, 2) == 0.125  # everything accepted: R1 = 1
    rng = np.random.default_rng(0)
    for _ in range(200):
        n_classes, n = int(rng.integers(2, 5)), int(rng.integers(2, 8))
        confidence = np.sort(rng.uniform(1 / n_classes, 1.0, n))  # all different
        right, accept = rng.random(n) < 0.6, rng.random(n) < 0.7
        if right.all() or not (accept & ~right).any():
            continue
        shown = np.where(accept, confidence, 1 / n_classes)
        counted = np.where(accept, right, 1 / n_classes)  # a rejected, uniform row counts 1/K
        missed = (accept & ~right).sum() / (~right).sum()
        assert (
            metrics.sup_ece(shown, counted)
            >= bounds.meta_cal_sup_ece(missed, right.mean(), n_classes) - 1e-12
        )


def test_proposition_6_has_a_flat_map_and_proposition_7_needs_a_strict_one():
    """Three scores, equally frequent: a non-decreasing t is calibrated, and the error of prefixes
    is not monotone.
    """
    rate = np.array([0.1, 0.5, 0.2])
    for t in (
        np.full(3, rate.mean()),
        np.array([0.1, 0.35, 0.35]),
    ):  # a constant; the isotonic projection
        assert np.all(np.diff(t) >= 0.0)
        for u in np.unique(t):
            assert rate[t == u].mean() == pytest.approx(u)
    prefixes = np.cumsum(rate) / np.arange(1, 4)
    assert prefixes == pytest.approx([0.1, 0.3, 0.8 / 3])
    assert prefixes[2] < prefixes[1]


def test_a_rejected_row_has_no_class_and_uniform_probabilities():
    """The paper draws a class for it at random; -1 cannot be taken for an answer."""
    (logits, labels), (new, _) = mc.datasets.load("cifar10-resnet110").split(2000, random_state=0)
    gate = mc.MetaCal(mc.MinAccuracy(0.95), mc.TemperatureScaling()).fit(logits, labels)
    rejected = ~gate.accepts(new)
    assert rejected.any()
    assert set(gate.predict(new[rejected]).tolist()) == {-1}
    assert np.allclose(gate.predict_proba(new[rejected], rejected="uniform"), 0.1)


def test_the_rough_estimate_of_the_miscoverage_is_not_below_alpha():
    n, n1, alpha = 5000, 450, 0.05
    assert math.floor((1 + n) * alpha) / (1 + n1) == pytest.approx(0.554, abs=5e-4)
    for size in range(1, 600):  # with n1 for n it is E[F0], and at most alpha
        rank = bounds.expected_miscoverage_rank(size, alpha)
        assert (size + 1 - rank) / (size + 1) <= alpha + 1e-15


def test_coverage_accuracy_is_not_the_precision_of_phi():
    right, accept = (
        np.array([True] * 9 + [False] * 3),
        np.array([True] * 8 + [False, True, False, False]),
    )
    phi = np.where(accept, -1, 1)  # +1: taken to be wrong
    precision = (~right)[phi == 1].mean()
    assert precision == pytest.approx(2 / 3)
    assert metrics.selective_accuracy(accept, right) == pytest.approx(8 / 9)


def test_the_ranking_risk_with_its_missing_sign_is_one_minus_the_auroc():
    rng = np.random.default_rng(0)
    score, wrong = rng.random(60), rng.random(60) < 0.4
    sign = np.where(wrong, 1, -1)
    product = (sign[:, None] - sign) * (score[:, None] - score)
    among_pairs = sign[:, None] != sign
    assert (product < 0)[among_pairs].mean() == pytest.approx(
        1 - metrics.auroc(score, ~wrong), abs=1e-12
    )
    assert (product < 0).mean() < (product < 0)[
        among_pairs
    ].mean()  # as a probability over all pairs it is smaller


def test_the_smallest_miscoverage_is_that_of_one_score_only():
    score, right = np.array([1.0, 2.0, 3.0, 4.0]), np.array([True, False, True, True])
    kept = [
        s
        for s in score
        if metrics.selective_accuracy(accept_up_to_threshold(score, s), right) >= 0.99
    ]
    assert min(
        metrics.miscoverage(accept_up_to_threshold(score, s), right) for s in kept
    ) == pytest.approx(2 / 3)
    other_map = score != 2.0
    assert metrics.selective_accuracy(other_map, right) == 1.0
    assert metrics.miscoverage(other_map, right) == 0.0


def code_bins(scores, correct, n_bins=20):
    """The published code's bins: above one cut point, up to the next."""
    cuts = np.quantile(scores, np.linspace(0, 1, n_bins + 1))
    return [(scores > low) & (scores <= high) for low, high in itertools.pairwise(cuts)]


def code_prefix_accuracies(scores, correct):
    accuracies = [
        correct[rows].mean() if rows.any() else 0.0 for rows in code_bins(scores, correct)
    ]
    return np.cumsum(accuracies) / np.arange(1, len(accuracies) + 1)


def test_published_bins_lose_the_lowest_score():
    rng = np.random.default_rng(0)
    scores, right = rng.random(500), rng.random(500) < 0.9
    rows = np.sum(code_bins(scores, right), axis=0)
    assert rows.sum() == 499
    assert rows[scores.argmin()] == 0
    ours, _ = mc.paper.coverage_accuracy_curve(scores, right, 20)
    assert ours[0] == pytest.approx(np.sort(scores)[:25].mean())


def test_published_bins_weigh_the_same_and_count_as_wrong_where_empty():
    scores = np.r_[np.zeros(300), np.linspace(0.1, 1.0, 200)]
    right = np.r_[np.ones(300, dtype=bool), np.arange(200) < 150]
    of_code = code_prefix_accuracies(scores, right)
    assert sum(not rows.any() for rows in code_bins(scores, right)) == 12
    assert of_code.max() == pytest.approx(1 / 3)
    _, of_text = mc.paper.coverage_accuracy_curve(scores, right, 20)
    assert of_text.min() == pytest.approx(0.9)
    assert mc.paper.MinCoverageAccuracy(0.85).certify(scores, right).accepts_everything


def test_published_rank_is_another():
    """np.quantile with "higher" is rank ceil((n-1)(1-alpha)) + 1: its mean miscoverage exceeds
    alpha for most n.
    """
    exceeds = 0
    for n in range(10, 501):
        rank = int(np.quantile(np.arange(1, n + 1), 0.95, method="higher"))
        exceeds += (n + 1 - rank) / (n + 1) > 0.05
    assert exceeds == 441
