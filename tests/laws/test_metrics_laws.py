"""Laws the metrics keep on any data."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metacal import metrics
from metacal.metrics.binning import assign_bins, equal_mass
from metacal.metrics.intervals import TOO_FEW_ERRORS
from metacal.metrics.ranking import RANKING
from metacal.metrics.registry import METRICS, TOP_LABEL

TOP_LABEL_METRICS = [metric.function for metric in METRICS.values() if metric.input is TOP_LABEL]
SCORE_METRICS = [metric.function for metric in METRICS.values() if metric.input is RANKING]
COARSE = st.integers(0, 20).map(lambda step: step / 20)
ROWS = st.lists(
    st.tuples(COARSE | st.floats(0, 1), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=40
)
RANKED = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=40)
SEEDS = st.integers(0, 2**32 - 1)


def table_of(seed, n_rows=60, n_classes=4, dtype=np.float64):
    """A probability table with some uniform rows, and labels."""
    random = np.random.default_rng(seed)
    table = random.dirichlet(np.full(n_classes, 0.5), size=n_rows)
    table[random.random(n_rows) < 0.2] = 1 / n_classes
    return table.astype(dtype), random.integers(n_classes, size=n_rows)


def split(rows):
    first, second = zip(*rows, strict=True)
    return np.array(first, dtype=float), np.array(second)


@pytest.mark.parametrize("metric", TOP_LABEL_METRICS, ids=lambda metric: metric.__name__)
@given(rows=ROWS, seed=SEEDS)
def test_row_order_does_not_matter(metric, rows, seed):
    confidence, correct = split(rows)
    order = np.random.default_rng(seed).permutation(len(rows))
    assert metric(confidence[order], correct[order]) == pytest.approx(
        metric(confidence, correct), abs=1e-7
    )


@pytest.mark.parametrize("metric", SCORE_METRICS, ids=lambda metric: metric.__name__)
@given(rows=RANKED, seed=SEEDS)
def test_row_order_does_not_matter_to_rankings(metric, rows, seed):
    score, correct = split(rows)
    order = np.random.default_rng(seed).permutation(len(rows))
    assert metric(score[order], correct[order]) == pytest.approx(
        metric(score, correct), abs=1e-12, nan_ok=True
    )
    if metric is metrics.exponential_ranking_loss:  # feels the scale of the margins, but no shift
        shifted = metric(score + 1, correct)
    else:
        shifted = metric(3 * score + 1, correct)
    assert shifted == pytest.approx(metric(score, correct), rel=1e-12, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("metric", SCORE_METRICS, ids=lambda metric: metric.__name__)
@given(rows=RANKED)
def test_intervals_of_rankings_contain_their_estimate(metric, rows):
    found = metrics.interval(metric, *split(rows), n_resamples=15)
    if not METRICS[metric.__name__].has_interval:
        assert np.isnan([found.low, found.high]).all()
    else:
        assert np.isnan(found.estimate) or 0 <= found.low <= found.estimate <= found.high <= 1


@given(rows=RANKED)
def test_the_exponential_loss_bounds_the_ranking_risk(rows):
    score, correct = split(rows)
    if 0 < correct.sum() < len(correct):
        pairs = [np.exp(right - wrong) for wrong in score[~correct] for right in score[correct]]
        found = metrics.exponential_ranking_loss(score, correct)
        assert found == pytest.approx(np.mean(pairs), rel=1e-12)
        assert found >= 1 - metrics.auroc(score, correct) - 1e-12


@given(rows=ROWS, n_bins=st.integers(1, 20), norms=st.tuples(st.floats(1, 40), st.floats(1, 40)))
def test_the_norm_of_the_gaps_never_falls(rows, n_bins, norms):
    """Power means rise with the power, from the mean gap to the largest one."""
    data = split(rows)
    powers = (1, *sorted(norms), np.inf)
    found = [metrics.ece(*data, n_bins, norm=power) for power in powers]
    assert all(low <= high + 1e-12 for low, high in itertools.pairwise(found))


@pytest.mark.parametrize("metric", TOP_LABEL_METRICS, ids=lambda metric: metric.__name__)
@settings(max_examples=20)
@given(rows=ROWS, level=st.floats(0.5, 0.99))
def test_intervals_contain_their_estimate(metric, rows, level):
    """Where these rows have one: of few wrong ones a supremum has none, and says so."""
    found = metrics.interval(metric, *split(rows), n_resamples=15, level=level)
    if found.method == TOO_FEW_ERRORS:
        assert metric is metrics.sup_ece
        assert sum(1.0 - right for _, right in rows) < 5
    else:
        assert 0 <= found.low <= found.estimate <= found.high <= 1


@given(successes=st.integers(0, 500), failures=st.integers(0, 500), level=st.floats(0.5, 0.999))
def test_exact_intervals_contain_their_estimate(successes, failures, level):
    found = metrics.clopper_pearson(successes, successes + failures, level)
    assert successes + failures == 0 or 0 <= found.low <= found.estimate <= found.high <= 1


@given(rows=ROWS, n_bins=st.integers(1, 30))
def test_no_binning_beats_the_supremum(rows, n_bins):
    data = split(rows)
    supremum = metrics.sup_ece(*data)
    assert 0 <= supremum <= 1
    assert 0 <= metrics.ece(*data, n_bins) <= supremum + 1e-12
    assert 0 <= metrics.ece_equal_mass(*data, n_bins) <= supremum + 1e-12
    assert metrics.smooth_ece(*data) <= supremum + 1e-6
    assert metrics.ks_error(*data) <= supremum + 1e-12


@given(rows=ROWS, n_bins=st.integers(1, 30))
def test_norms_are_ordered(rows, n_bins):
    data = split(rows)
    ece, rms, largest = (
        f(*data, n_bins)
        for f in (metrics.ece, metrics.rms_calibration_error, metrics.max_calibration_error)
    )
    assert ece <= rms + 1e-12
    assert rms <= largest + 1e-12
    assert metrics.debiased_ece(*data, n_bins) <= ece + 1e-12
    assert metrics.debiased_rms_calibration_error(*data, n_bins) <= rms + 1e-12


@given(values=st.lists(COARSE, min_size=1, max_size=60), n_bins=st.integers(1, 20))
def test_equal_mass_bins_never_split_a_tie_and_are_never_empty(values, n_bins):
    confidence = np.array(values)
    edges = equal_mass(confidence, n_bins)
    codes = assign_bins(confidence, edges)
    assert len(edges) - 1 <= n_bins
    assert set(codes) == set(range(len(edges) - 1))
    for value in set(values):
        assert len(set(codes[confidence == value])) == 1


@given(seed=SEEDS)
def test_class_order_does_not_matter(seed):
    table, labels = table_of(seed)
    order = np.random.default_rng(seed).permutation(4)
    place = np.argsort(order)
    for metric in (
        metrics.ece,
        metrics.classwise_ece,
        metrics.smooth_ece,
        metrics.nll,
        metrics.brier,
        metrics.accuracy,
    ):
        assert metric(table[:, order], place[labels]) == pytest.approx(
            metric(table, labels), abs=1e-9
        )


@given(seed=SEEDS)
def test_float32_and_float64_agree(seed):
    """Uniform rows stay ties; elsewhere rounding moves an error by no more than rounding."""
    table, labels = table_of(seed)
    narrow = table.astype(np.float32)
    for metric in (
        metrics.accuracy,
        metrics.ece,
        metrics.sup_ece,
        metrics.nll,
        metrics.brier,
        metrics.smooth_ece,
    ):
        assert metric(narrow, labels) == pytest.approx(metric(table, labels), abs=1e-5)


@given(seed=SEEDS)
def test_a_table_written_twice_has_the_same_metrics(seed):
    table, labels = table_of(seed)
    for metric in (
        metrics.ece,
        metrics.classwise_ece,
        metrics.sup_ece,
        metrics.nll,
        metrics.brier,
        metrics.ks_error,
    ):
        twice = metric(np.concatenate((table, table)), np.concatenate((labels, labels)))
        assert twice == pytest.approx(metric(table, labels), abs=1e-12)


@given(seed=SEEDS, n_bins=st.integers(1, 20))
def test_brier_parts_add_up(seed, n_bins):
    table, labels = table_of(seed)
    parts = metrics.brier_decomposition(table, labels, n_bins)
    assert parts.brier == pytest.approx(metrics.brier(table, labels), abs=1e-12)
    assert min(parts.reliability, parts.resolution, parts.uncertainty) >= 0


@given(rows=RANKED)
def test_the_curve_holds_the_gate(rows):
    score, correct = split(rows)
    curve = metrics.risk_coverage_curve(score, correct)
    for threshold, coverage, risk in zip(curve.threshold, curve.coverage, curve.risk, strict=True):
        accept = score <= threshold
        assert metrics.coverage(accept) == pytest.approx(coverage)
        assert metrics.selective_accuracy(accept, correct) == pytest.approx(1 - risk)
    assert metrics.e_aurc(score, correct) <= metrics.aurc(score, correct) + 1e-12
