"""Promises about cases are broken no more often than delta, whatever the items of a case do."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import beta, binom

import metacal as mc
from metacal.certification import case_procedures
from metacal.certification.case_items import Cases
from metacal.certification.rows import CalibrationRows, Subgroups

DELTA = 0.1
pytestmark = pytest.mark.filterwarnings("ignore::metacal.errors.MetacalWarning")


def rate_limit(n_draws, delta=DELTA):
    """Return what a rate of delta may reach in so many draws: three standard errors above it."""
    return delta + 3 * math.sqrt(delta * (1 - delta) / n_draws)


def as_rows(score, correct, *, has_types=True):
    """Return the rows of a table whose rows are cases and whose columns are item types."""
    n_types = score.shape[1]
    has_score = ~np.isnan(score)
    case, kind = np.nonzero(has_score)
    return CalibrationRows(
        scores=-score[has_score],
        correct=correct[has_score],
        subgroups=Subgroups(kind, tuple(range(n_types))) if has_types else None,
        cases=Cases(case, has_correct_item_without_score=(correct & ~has_score).any(axis=1)),
    )


def certify(promise, score, correct, *, has_types=True):
    """Return the certificate and a function from a table of scores to accepted items."""
    certificate = promise.certify(as_rows(score, correct, has_types=has_types))
    thresholds = np.full(score.shape[1], certificate.threshold)
    if has_types:
        thresholds = np.array([item_type.threshold for item_type in certificate.subgroups.items])
    return certificate, lambda new_score: -new_score <= thresholds


def draw(name, n_cases, rng):
    """Draw the scores and the correctness of six items of each case."""
    log_odds = rng.normal(2.5, 2.0, size=(n_cases, 6))
    if name == "correlated":
        log_odds += rng.normal(0.0, 2.0, size=(n_cases, 1))
    score = log_odds * np.linspace(0.5, 2.0, 6)
    if name == "hopeless":
        log_odds[:, -1] = -0.8
    if name == "reversed":
        score[:, 0] = -score[:, 0]
    if name == "steps":
        score = np.round(score / 2)
    return score, rng.random(log_odds.shape) < expit(log_odds)


@pytest.mark.parametrize("name", ["scales", "correlated", "hopeless", "reversed", "steps"])
def test_learned_cuts_are_broken_no_more_often_than_delta(name):
    n_draws, limit = 200, 0.1
    new_score, new_correct = draw(name, 20_000, np.random.default_rng(1))
    broken = []
    for seed in range(n_draws):
        data = draw(name, 150, np.random.default_rng([2, seed]))
        _, accepts = certify(mc.MaxCaseErrors(limit), *data)
        broken.append((accepts(new_score) & ~new_correct).any(axis=1).mean() > limit)
    assert np.mean(broken) <= rate_limit(n_draws)


def measure_rare_types(n_draws):
    """Return how often the promise is broken on 60 types that are each wrong in 0.0012 of the cases.

    Also returns the mean share of items that are accepted.
    """
    limit, n_types, error_rate = 0.05, 60, 0.0012
    broken, shares = [], []
    for seed in range(n_draws):
        rng = np.random.default_rng([3, seed])
        score = rng.random((165, n_types))
        certificate, _ = certify(
            mc.MaxCaseErrors(limit), score, rng.random(score.shape) > error_rate
        )
        assert certificate.cases.n_tested == 132
        thresholds = np.array([item_type.threshold for item_type in certificate.subgroups.items])
        # A uniform score exceeds a threshold with this probability.
        accepted = np.clip(1.0 + thresholds, 0.0, 1.0)
        shares.append(accepted.mean())
        broken.append(1.0 - np.prod(1.0 - error_rate * accepted) > limit)
    return np.mean(broken), np.mean(shares)


def test_no_type_is_accepted_for_free():
    """A type without a wrong item among the cases that are left is a fact about these cases."""
    n_draws = 120
    rate, accepted = measure_rare_types(n_draws)
    assert rate <= rate_limit(n_draws)
    assert accepted > 0.3


def test_types_that_are_accepted_for_free_break_the_promise(monkeypatch):
    """The shortcut, built on purpose. So the test above fails if the rule takes it."""
    find_learned_cutoffs = case_procedures.find_learned_cutoffs

    def accept_types_for_free(tested_items, is_uncovered, pilot_items, **parameters):
        cuts = find_learned_cutoffs(tested_items, is_uncovered, pilot_items, **parameters)
        harmful = tested_items.take(tested_items.is_harmful)
        is_cut = is_uncovered.copy()
        is_cut[harmful.cases[harmful.safety >= cuts[harmful.types]]] = True
        types_left = harmful.types[~is_cut[harmful.cases]]
        return np.where(np.isin(np.arange(len(cuts)), types_left), cuts, -math.inf)

    monkeypatch.setattr(case_procedures, "find_learned_cutoffs", accept_types_for_free)
    n_draws = 120
    rate, _ = measure_rare_types(n_draws)
    assert rate > rate_limit(n_draws)


@pytest.mark.parametrize(("n_cases", "limit"), [(132, 0.05), (38, 0.1)])
def test_one_threshold_has_the_law_of_its_order_statistic(n_cases, limit):
    """Without ties P(broken) is a beta distribution; learning may not change it."""
    n_draws = 3000
    n_tolerated = int(np.flatnonzero(binom.cdf(np.arange(n_cases), n_cases, limit) <= DELTA)[-1])
    exact = beta.sf(limit, n_tolerated + 1, n_cases - n_tolerated)
    share_broken = []
    for seed in range(n_draws):
        score = np.random.default_rng([4, n_cases, seed]).random((n_cases, 1))
        # Half of the items are wrong, so the case of a new item breaks above the threshold.
        correct = np.random.default_rng([5, n_cases, seed]).random(score.shape) < 0.5
        correct[0] = True
        certificate, _ = certify(mc.MaxCaseErrors(limit), score, correct, has_types=False)
        share_broken.append(0.5 * np.clip(1.0 + certificate.threshold, 0.0, 1.0))
    rate = np.mean(np.array(share_broken) > limit)
    assert abs(rate - exact) <= 3 * math.sqrt(exact * (1 - exact) / n_draws)


def test_in_expectation_the_mean_share_is_within_the_limit():
    n_draws, limit = 150, 0.1
    new_score, new_correct = draw("scales", 20_000, np.random.default_rng(1))
    shares = []
    for seed in range(n_draws):
        data = draw("scales", 150, np.random.default_rng([6, seed]))
        _, accepts = certify(mc.MaxCaseErrors(limit, delta=None), *data)
        shares.append((accepts(new_score) & ~new_correct).any(axis=1).mean())
    assert np.mean(shares) <= limit + 3 * np.std(shares) / math.sqrt(n_draws)
    assert np.mean(shares) >= 0.7 * limit


@pytest.mark.parametrize("sure_errors", [0.0, 0.03])
def test_automated_cases_keep_the_limit_although_the_risk_is_not_monotone(sure_errors):
    """Some sure items are wrong, so the share of automated cases with an error first falls."""
    n_draws, limit = 150, 0.1

    def draw_documents(n_cases, rng):
        score, correct = draw("scales", n_cases, rng)
        score[rng.random(n_cases) < sure_errors, 0] = 50.0
        return score, correct & (score < 50.0)

    new_score, new_correct = draw_documents(20_000, np.random.default_rng(1))
    broken = []
    for seed in range(n_draws):
        try:
            _, accepts = certify(
                mc.MaxCaseErrors(limit, among="automated"),
                *draw_documents(240, np.random.default_rng([7, seed])),
            )
        except mc.InfeasibleTargetError:
            broken.append(False)
            continue
        accept = accepts(new_score)
        is_automated = accept.any(axis=1)
        broken.append((accept & ~new_correct).any(axis=1)[is_automated].mean() > limit)
    assert np.mean(broken) <= rate_limit(n_draws)


@pytest.mark.parametrize("has_types", [False, True])
def test_recall_counts_true_items_without_a_score(has_types):
    n_draws, limit = 150, 0.1

    def draw_documents(n_cases, rng):
        score, correct = draw("scales", n_cases, rng)
        is_true = ~correct
        score = -score
        score[is_true & (rng.random(score.shape) < 0.02)] = np.nan
        return score, is_true

    new_score, new_is_true = draw_documents(20_000, np.random.default_rng(1))
    broken, masked = [], []
    for seed in range(n_draws):
        data = draw_documents(250, np.random.default_rng([8, seed]))
        _, accepts = certify(mc.MinCaseRecall(1 - limit), *data, has_types=has_types)
        accept = accepts(new_score)
        misses = (new_is_true & ~accept).any(axis=1)
        broken.append(misses[new_is_true.any(axis=1)].mean() > limit)
        masked.append(accept[~new_is_true].mean())
    assert np.mean(broken) <= rate_limit(n_draws)
    assert np.mean(masked) < 0.95


def test_mean_errors_keep_the_limit():
    n_draws, limit = 60, 0.2
    new_score, new_correct = draw("correlated", 20_000, np.random.default_rng(1))
    broken, accepted = [], []
    for seed in range(n_draws):
        data = draw("correlated", 300, np.random.default_rng([9, seed]))
        _, accepts = certify(mc.MaxErrorsPerCase(limit, largest=6), *data)
        accept = accepts(new_score)
        broken.append((accept & ~new_correct).sum(axis=1).mean() > limit)
        accepted.append(accept.mean())
    assert np.mean(broken) <= rate_limit(n_draws)
    assert np.mean(accepted) > 0.3
