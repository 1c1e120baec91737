"""Intervals: exact ones against the binomial, bootstrap ones against resampled tables and known
answers.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import softmax

from metacal import metrics
from metacal.errors import InputError
from metacal.metrics import classwise_ece, evaluate, interval, nll
from metacal.metrics.ranking import RANKING
from metacal.metrics.registry import DECISION, METRICS, PROBABILITIES, TOP_LABEL
from metacal.rows.draws import make_generator


def binomial_tail(successes, n, share):
    return sum(math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(successes, n + 1))


@pytest.fixture
def table():
    random = np.random.default_rng(11)
    proba = random.dirichlet([0.4] * 3, size=150)
    labels = (random.random((150, 1)) > np.cumsum(proba, axis=1)).sum(axis=1).clip(0, 2)
    return proba, labels


@pytest.mark.parametrize(("successes", "n"), [(3, 10), (1, 50), (49, 50)])
def test_clopper_pearson_ends_are_where_the_binomial_test_turns(successes, n):
    found = metrics.clopper_pearson(successes, n, level=0.9)
    assert binomial_tail(successes, n, found.low) == pytest.approx(0.05)
    assert 1 - binomial_tail(successes + 1, n, found.high) == pytest.approx(0.05)


def test_clopper_pearson_at_the_borders():
    none, every, nothing = (metrics.clopper_pearson(k, n) for k, n in ((0, 20), (20, 20), (0, 0)))
    assert (none.low, none.high) == (0.0, pytest.approx(1 - 0.025 ** (1 / 20)))
    assert (every.low, every.high) == (pytest.approx(0.025 ** (1 / 20)), 1.0)
    assert math.isnan(nothing.estimate)
    assert str(nothing) == "undefined"
    with pytest.raises(InputError, match="between 0 and n"):
        metrics.clopper_pearson(5, 4)


def test_bootstrap_of_a_mean_is_close_to_the_normal_interval():
    values = np.random.default_rng(0).standard_normal(2000)
    found = metrics.bootstrap(lambda x, w: (w * x).sum() / w.sum(), values, n_resamples=2000)
    assert found.low == pytest.approx(values.mean() - 1.96 * values.std() / np.sqrt(2000), abs=4e-3)
    assert found.high == pytest.approx(
        values.mean() + 1.96 * values.std() / np.sqrt(2000), abs=4e-3
    )


def of_input(*inputs):
    return [metric for metric in METRICS.values() if metric.input in inputs]


def named(metric):
    return metric.name


def data_of(metric, table):
    top = metrics.top_label(*table)
    right = top.correct == 1
    if metric.function is metrics.coverage:
        return (top.confidence > 0.6,)
    if metric.input is DECISION:
        return top.confidence > 0.6, right
    return (np.round(1 - top.confidence, 2), right) if metric.input is RANKING else table


@pytest.mark.parametrize("metric", METRICS.values(), ids=named)
def test_every_metric_has_an_interval_around_the_value_it_returns(metric, table):
    data = data_of(metric, table)
    found = metrics.interval(metric.function, *data, n_resamples=60)
    assert found.estimate == pytest.approx(metric.function(*data), rel=1e-12, abs=1e-12)
    if metric.has_interval:
        assert found.low <= found.estimate <= found.high
    else:
        assert math.isnan(found.low)
        assert math.isnan(found.high)
    assert found == metrics.interval(metric.function, *data, n_resamples=60)


FIXED_BINS = [
    metric for metric in of_input(TOP_LABEL, PROBABILITIES) if metric.name != "ece_equal_mass"
]


@pytest.mark.parametrize("metric", FIXED_BINS, ids=named)
def test_row_weights_count_rows_again(metric, table):
    """The statistic at weights w is the metric of a table with row i written w_i times."""
    proba, labels = table
    weights = np.bincount(np.random.default_rng(0).integers(150, size=150), minlength=150)
    statistic = metric.prepare_statistic(metric.input(proba, labels))
    resampled = metric.function(np.repeat(proba, weights, axis=0), np.repeat(labels, weights))
    assert statistic(weights[None])[0] == pytest.approx(resampled, abs=1e-9)


@pytest.mark.parametrize("metric", of_input(RANKING), ids=named)
def test_row_weights_count_rows_again_in_rankings(metric):
    random = np.random.default_rng(1)
    score, correct = np.round(random.random(80), 1), random.random(80) < 0.6
    weights = np.bincount(random.integers(80, size=80), minlength=80)
    statistic = metric.prepare_statistic(metric.input(score, correct))
    resampled = metric.function(np.repeat(score, weights), np.repeat(correct, weights))
    assert statistic(weights[None])[0] == pytest.approx(resampled, abs=1e-12)


def test_options_reach_the_metric(table):
    found = metrics.interval(
        metrics.max_calibration_error, *table, n_bins=4, binning=metrics.equal_mass, n_resamples=20
    )
    assert found.estimate == metrics.max_calibration_error(
        *table, n_bins=4, binning=metrics.equal_mass
    )
    names = np.array(["a", "b", "c"])
    named = metrics.interval(
        metrics.ece, table[0], names[table[1]], classes=["a", "b", "c"], n_resamples=20
    )
    assert named == metrics.interval(metrics.ece, *table, n_resamples=20)
    named = metrics.interval(
        metrics.nll, table[0], names[table[1]], classes=["a", "b", "c"], n_resamples=20
    )
    assert named == metrics.interval(metrics.nll, *table, n_resamples=20)


def test_seeds_and_generators():
    data = ([0.9, 0.8, 0.7, 0.65, 0.6], [1, 1, 0, 1, 0])
    seeded = [
        metrics.interval(metrics.ece, *data, random_state=seed, n_resamples=51)
        for seed in (1, 1, 2)
    ]
    assert seeded[0] == seeded[1] != seeded[2]
    generated = metrics.interval(metrics.ece, *data, random_state=make_generator(1), n_resamples=51)
    assert generated == seeded[0]


def test_infinite_nll_has_an_interval_that_contains_it():
    found = metrics.interval(metrics.nll, [[0.0, 1.0], [0.5, 0.5], [0.5, 0.5]], [0, 0, 1])
    assert found.estimate == found.high == np.inf
    assert found.low == pytest.approx(np.log(2))
    assert found.to_dict()["estimate"] is None


def test_accuracy_is_exact_without_ties_and_bootstrapped_with():
    assert metrics.interval(metrics.accuracy, [0.9, 0.8], [1, 0]).method == "Clopper-Pearson"
    assert metrics.interval(metrics.accuracy, [0.9, 0.5], [1, 0.5]).method == "bootstrap"


def test_undefined_metrics_have_undefined_intervals():
    found = metrics.interval(metrics.auroc, [0.1, 0.2], [True, True])
    assert math.isnan(found.estimate)
    assert math.isnan(found.low)
    method = "Bayesian bootstrap"
    assert found.to_dict() == {
        "estimate": None,
        "low": None,
        "high": None,
        "level": 0.95,
        "method": method,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "metric", [metrics.ece, metrics.rms_calibration_error, metrics.smooth_ece, metrics.ks_error]
)
def test_the_interval_of_a_calibrated_sample_reaches_zero(metric):
    """The true error is 0; plain percentile intervals miss it nearly always, since no resample
    comes near 0.
    """
    random = np.random.default_rng(2)
    reached = 0
    for _ in range(40):
        confidence = random.uniform(0.4, 1.0, 400)
        reached += (
            metrics.interval(
                metric, confidence, random.random(400) < confidence, n_resamples=100
            ).low
            == 0.0
        )
    assert reached >= 36  # 97.5% expected


def test_the_interval_of_a_clear_error_stays_away_from_zero():
    random = np.random.default_rng(3)
    confidence = random.uniform(0.4, 1.0, 1000)
    found = metrics.interval(
        metrics.ece, confidence, random.random(1000) < confidence - 0.15, n_resamples=200
    )
    assert 0.08 < found.low < 0.15 < found.high < 0.22


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: metrics.interval(len, [1]), "No interval is registered for 'len'"),
        (
            lambda: metrics.interval(metrics.ece, [0.5], [1], level=95),
            "level must be strictly between 0 and 1",
        ),
        (lambda: metrics.interval(metrics.ece, [0.5], [1], n_resamples=-1), "n_resamples"),
        (lambda: metrics.bootstrap(lambda w: 0.0), "at least one column"),
        (lambda: metrics.bootstrap(lambda x, y, w: 0.0, [1], [1, 2]), "same positive length"),
    ],
)
def test_bad_requests_are_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()


@pytest.mark.slow
def test_the_class_wise_interval_holds_the_truth_on_few_rows():
    """A plug-in error is mostly chance there: the interval reaches down by what chance may have
    added.
    """

    def drawn(n, seed):
        random = np.random.default_rng([11, seed])
        logits = random.normal(0.0, 2.0, (n, 10))
        return softmax(1.3 * logits, axis=1), (logits + random.gumbel(size=logits.shape)).argmax(
            axis=1
        )

    truth = classwise_ece(*drawn(300_000, 10**6))
    held = sum(
        truth in interval(classwise_ece, *drawn(300, seed), n_resamples=100) for seed in range(40)
    )
    assert held >= 34


def test_with_too_few_errors_a_log_loss_has_no_interval_and_says_so():
    proba, labels = np.array([[0.98, 0.02]] * 300), np.zeros(300, dtype=int)
    labels[:4] = 1
    found = interval(nll, proba, labels, n_resamples=50)
    assert (found.method, np.isnan(found.low)) == ("none: too few errors", True)
    assert str(found).endswith("(too few errors)")
    labels[:5] = 1
    assert interval(nll, proba, labels, n_resamples=50).high > found.estimate
    whole = evaluate(proba, labels, accept=np.arange(300) >= 3, n_resamples=50)
    assert np.isnan(whole.accepted_rows["brier"].low)
    assert whole.accepted_rows["ece"].high > 0.0
