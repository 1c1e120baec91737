"""Each bound against brute force, rationals or simulation."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from metacal.metrics import sup_ece
from metacal.statistics import bounds


def binomial_at_least(n, k, p):
    return sum(Fraction(math.comb(n, j)) * p**j * (1 - p) ** (n - j) for j in range(k, n + 1))


@pytest.mark.slow
def test_expected_rank_in_rationals_up_to_2000():
    """alpha = i/200: (n+1-k)/(n+1) <= alpha, and one rank lower is not."""
    for i in range(1, 200):
        alpha, share = i / 200, Fraction(i, 200)
        for n in range(1, 2001, 1 + i % 7):
            k = bounds.expected_miscoverage_rank(n, alpha)
            assert k == n + 1 - (n + 1) * share.numerator // share.denominator


@pytest.mark.slow
def test_the_float_formula_of_the_paper_is_sometimes_off():
    wrong = sum(
        math.ceil((n + 1) * (1 - i / 200)) != bounds.expected_miscoverage_rank(n, i / 200)
        for i in range(1, 200) for n in range(1, 501)
    )  # fmt: skip
    assert 0 < wrong < 0.02 * 199 * 500


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 5, 44, 45, 46, 100, 137])
@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.3])
@pytest.mark.parametrize("delta", [0.05, 0.1, 0.5])
def test_certified_rank_in_rationals(n, alpha, delta):
    p = 1 - Fraction(str(alpha))
    tails = [binomial_at_least(n, k, p) for k in range(1, n + 1)]
    expected = next((k for k, tail in enumerate(tails, 1) if tail <= Fraction(str(delta))), n + 1)
    assert bounds.certified_miscoverage_rank(n, alpha, delta) == expected
    if expected <= n:
        violation = bounds.miscoverage_violation(n, expected, alpha)
        assert violation == pytest.approx(float(tails[expected - 1]), rel=1e-9)
        assert bounds.miscoverage_quantile(n, expected, 1 - delta) <= alpha + 1e-12


@pytest.mark.parametrize(
    ("alpha", "delta"), [(0.05, 0.1), (0.01, 0.05), (0.2, None), (0.05, None), (0.03, None)]
)
def test_rows_needed_is_the_first_n_that_rejects(alpha, delta):
    def rank(n):
        if delta is None:
            return bounds.expected_miscoverage_rank(n, alpha)
        return bounds.certified_miscoverage_rank(n, alpha, delta)

    n = bounds.correct_rows_needed(alpha, delta)
    assert rank(n) <= n
    assert rank(n - 1) > n - 1
    assert bounds.smallest_certifiable_miscoverage(n, delta) <= alpha + 1e-15
    assert bounds.smallest_certifiable_miscoverage(n - 1, delta) > alpha


@pytest.mark.parametrize("delta", [0.1, 0.01])
def test_error_free_rows(delta):
    m = bounds.error_free_rows_needed(0.97, delta)
    assert bounds.binomial_p_value(0, m, 0.03) <= delta < bounds.binomial_p_value(0, m - 1, 0.03)
    assert (
        bounds.largest_certifiable_accuracy(m, delta)
        >= 0.97
        > bounds.largest_certifiable_accuracy(m - 1, delta)
    )


def test_clopper_pearson_inverts_the_binomial_test():
    for errors, n in ((0, 10), (3, 50), (10, 10), (50, 1000)):
        upper = bounds.clopper_pearson_upper(errors, n, 0.1)
        lower = bounds.clopper_pearson_lower(n - errors, n, 0.1)
        assert upper == pytest.approx(1 - lower, abs=1e-12)
        if errors < n:
            assert bounds.binomial_p_value(errors, n, upper) == pytest.approx(0.1, rel=1e-9)


def partitions(values):
    """Every binning of sorted distinct values into intervals."""
    for size in range(len(values)):
        for cuts in combinations(range(1, len(values)), size):
            yield np.split(values, cuts)


def brute_sup_ece(confidence, correct):
    best = 0.0
    for binning in partitions(np.unique(confidence)):
        gaps = [abs(np.sum((correct - confidence)[np.isin(confidence, part)])) for part in binning]
        best = max(best, sum(gaps) / len(confidence))
    return best


@pytest.mark.parametrize("seed", range(20))
def test_proposition_1_without_ties(seed):
    rng = np.random.default_rng(seed)
    n, k = 6, int(rng.integers(2, 5))
    confidence = np.sort(rng.uniform(1 / k, 1, n))
    correct = rng.integers(0, 2, n).astype(float)
    bound = bounds.accuracy_preserving_sup_ece(correct.mean(), k)
    assert (
        brute_sup_ece(confidence, correct) >= bound - 1e-12
    )  # the bound is attained: both may be the same number


def test_proposition_1_is_false_with_ties():
    confidence, correct = np.full(4, 0.75), np.array([1.0, 1, 1, 0])
    assert brute_sup_ece(confidence, correct) == 0 < bounds.accuracy_preserving_sup_ece(0.75, 2)


@pytest.mark.parametrize("seed", range(20))
def test_proposition_3_exactly(seed):
    """Accepted rows say 1, rejected ones 1/K; rejected rows counted by argmax need the second
    term.
    """
    rng = np.random.default_rng(seed)
    n, k = 12, int(rng.integers(2, 6))
    right, accept = rng.random(n) < 0.6, rng.random(n) < 0.7
    accept[:2], right[0] = [False, True], False
    confidence = np.where(accept, 1.0, 1 / k)
    counted = np.where(accept, right, rng.integers(0, 2, n)).astype(float)
    type_2 = np.mean(accept[~right])
    expected = bounds.gate_sup_ece(
        type_2, right.mean(), (~accept).mean(), counted[~accept].mean(), k
    )
    assert brute_sup_ece(confidence, counted) == pytest.approx(expected)
    in_expectation = np.where(accept, right, 1 / k)
    assert brute_sup_ece(confidence, in_expectation) == pytest.approx(
        bounds.gate_sup_ece(type_2, right.mean())
    )


def test_proposition_5_as_printed_is_false_and_ours_holds():
    """K = 2, accuracy 1/2, a perfect gate: accepted rows are all right and may be as confident as
    we like.
    """
    k, right = 2, np.array([True, True, False, False])
    accept = right.copy()
    nearly_one = 1 - 1e-9
    proba = np.where(accept[:, None], [nearly_one, 1 - nearly_one], 1 / k)
    labels = np.where(right, 0, 1)
    value = sup_ece(proba, labels)
    printed = accept.mean() * (1 - right.mean()) / k
    assert printed == 0.125
    assert value < printed
    assert value >= bounds.meta_cal_sup_ece(0.0, 0.5, k) - 1e-12


@pytest.mark.parametrize("seed", range(20))
def test_proposition_5_corrected(seed):
    rng = np.random.default_rng(seed)
    n, k = 40, int(rng.integers(2, 6))
    right, accept = rng.random(n) < 0.7, rng.random(n) < 0.8
    right[:2] = [True, False]
    top = rng.uniform(1 / k + 1e-6, 1, n)
    proba = np.column_stack([top, *[(1 - top) / (k - 1)] * (k - 1)])
    proba[~accept] = 1 / k
    value = sup_ece(proba, np.where(right, 0, 1))
    assert value >= bounds.meta_cal_sup_ece(accept[~right].mean(), right.mean(), k) - 1e-12


def test_proposition_7_needs_the_density():
    rng = np.random.default_rng(0)
    u = rng.beta(2, 8, 200_000)
    wrong = rng.random(200_000) < u
    limit = 0.3
    assert bounds.error_below(limit, u) == pytest.approx(wrong[u < limit].mean(), abs=0.004)
    assert abs(limit**2 / 2 - wrong[u < limit].mean()) > 0.05  # the paper's ∫u du
    assert math.isnan(bounds.error_below(0.0, u))
