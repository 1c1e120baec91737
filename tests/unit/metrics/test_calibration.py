"""Calibration errors against closed forms and brute force."""

from __future__ import annotations

import numpy as np
import pytest

from metacal import metrics
from metacal.errors import InputError
from metacal.metrics.registry import METRICS, TOP_LABEL


def set_partitions(items):
    """Every way to put the items into bins."""
    if not items:
        yield []
        return
    first, *rest = items
    for smaller in set_partitions(rest):
        for place, part in enumerate(smaller):
            yield [*smaller[:place], [first, *part], *smaller[place + 1 :]]
        yield [[first], *smaller]


def plain_ece(confidence, correct, n_bins):
    """The definition, bin by bin and row by row."""
    sums = [0.0] * n_bins
    for conf, right in zip(confidence, correct, strict=True):
        inside = [b for b in range(n_bins) if b / n_bins < conf <= (b + 1) / n_bins] or [0]
        sums[inside[0]] += right - conf
    return sum(map(abs, sums)) / len(confidence)


@pytest.fixture
def rows():
    random = np.random.default_rng(3)
    confidence = random.uniform(0.2, 1.0, 400)
    return confidence, (random.random(400) < confidence**2).astype(float)


def test_top_label_shares_ties_of_the_top():
    third = 1 / 3
    table = [[0.6, 0.3, 0.1], [0.4, 0.4, 0.2], [0.4, 0.4, 0.2], [0.4, 0.4, 0.2], [third] * 3]
    top = metrics.top_label(table, [1, 0, 1, 2, 2])
    np.testing.assert_array_equal(top.confidence, [0.6, 0.4, 0.4, 0.4, third])
    np.testing.assert_allclose(top.correct, [0, 1 / 2, 1 / 2, 0, 1 / 3], rtol=1e-15)
    assert top.confidence.dtype == top.correct.dtype == np.float64


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_top_label_over_many_blocks_is_the_plain_definition(dtype):
    random = np.random.default_rng(0)
    table = random.dirichlet(np.full(300, 0.02), size=1500)
    table[random.random(1500) < 0.3] = 1 / 300
    table = table.astype(dtype)
    table[7, :] = 0
    table[7, [3, 4]] = 0.5
    labels = random.integers(300, size=1500)
    labels[7] = 4
    top = metrics.top_label(table, labels)
    best = table.max(axis=1)
    expected = (table[np.arange(1500), labels] == best) / (table == best[:, None]).sum(axis=1)
    np.testing.assert_array_equal(top.confidence, np.minimum(best.astype(np.float64), 1))
    np.testing.assert_array_equal(top.correct, expected)


def test_named_classes_and_lists_are_understood():
    assert metrics.accuracy([[0.9, 0.1], [0.2, 0.8]], ["cat", "cat"], classes=["cat", "dog"]) == 0.5
    assert metrics.accuracy(np.asfortranarray([[0.9, 0.1], [0.2, 0.8]]), [0, 0]) == 0.5


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ([[2.0, -1.0]], r"\[0, 1\]"),
        ([[np.nan, 1.0]], r"\[0, 1\]"),
        ([[0.7, 0.7]], "sum to 1"),
        ([[1.5, -0.5]], r"\[0, 1\]"),
        ([0.5, 0.5], "same number of rows"),
        (np.empty((0, 2)), "empty"),
        ([[[1.0]]], "must be 2-D"),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_not_a_probability_table_is_refused(table, words, dtype):
    with pytest.raises(InputError, match=words):
        metrics.ece(np.asarray(table, dtype=dtype), [0])


def test_negative_zero_and_a_hair_above_one_pass():
    assert metrics.accuracy(np.array([[1.0, -0.0]]), [0]) == 1.0
    above = np.array([[np.nextafter(np.float32(1), np.float32(2)), 0.0]], dtype=np.float32)
    assert metrics.ece(above, [0]) == 0.0


def test_labels_outside_the_columns_are_refused():
    with pytest.raises(InputError, match="row 1 has label 2"):
        metrics.ece([[0.5, 0.5]] * 3, [0, 2, 1])


@pytest.mark.parametrize("n_bins", [1, 2, 3, 7, 10, 15, 49])
def test_ece_on_every_bin_edge(n_bins):
    confidence = np.arange(n_bins + 1) / n_bins
    correct = np.linspace(1, 0, n_bins + 1)
    assert metrics.ece(confidence, correct, n_bins) == pytest.approx(
        plain_ece(confidence, correct, n_bins), abs=1e-14
    )
    counts = metrics.reliability_curve(confidence, correct, n_bins).counts
    np.testing.assert_array_equal(counts, [2] + [1] * (n_bins - 1))  # 0 joins 1/B in the first bin


def test_confidence_one_is_in_the_last_bin_and_alone_there():
    curve = metrics.reliability_curve([1.0, 14 / 15], [1, 1])
    np.testing.assert_array_equal(curve.counts, [0] * 13 + [1, 1])


def test_two_classes_at_exactly_one_half():
    assert metrics.ece([[0.5, 0.5], [0.5, 0.5]], [0, 1]) == 0.0


@pytest.mark.parametrize("n_bins", [1, 4, 15])
def test_ece_is_the_plain_definition(rows, n_bins):
    assert metrics.ece(*rows, n_bins) == pytest.approx(plain_ece(*rows, n_bins), abs=1e-14)


def test_table_and_column_functions_agree():
    random = np.random.default_rng(1)
    table, labels = random.dirichlet([0.4] * 4, size=200), random.integers(4, size=200)
    top = metrics.top_label(table, labels)
    columns = [metric.name for metric in METRICS.values() if metric.input is TOP_LABEL]
    for name in [*columns, "reliability_curve"]:
        ours, theirs = getattr(metrics, name)(table, labels), getattr(metrics, name)(*top)
        if name == "reliability_curve":
            np.testing.assert_array_equal(ours.counts, theirs.counts)
        else:
            assert ours == theirs, name


def test_reliability_curve_holds_the_ece(rows):
    for binning in (metrics.equal_width, metrics.equal_mass):
        curve = metrics.reliability_curve(*rows, 10, binning)
        held = curve.counts > 0
        gaps = np.abs(curve.accuracy - curve.mean_confidence)[held]
        weights = curve.counts[held] / curve.counts.sum()
        assert (curve.edges[0], curve.edges[-1], len(curve.edges)) == (
            0.0,
            1.0,
            len(curve.counts) + 1,
        )
        assert np.isnan(curve.accuracy[~held]).all()
        assert gaps.max() == pytest.approx(metrics.max_calibration_error(*rows, 10, binning))
        assert np.sqrt(weights @ gaps**2) == pytest.approx(
            metrics.rms_calibration_error(*rows, 10, binning)
        )
        plain = metrics.ece if binning is metrics.equal_width else metrics.ece_equal_mass
        assert weights @ gaps == pytest.approx(plain(*rows, 10))


def test_equal_mass_bins_have_equal_counts_without_ties(rows):
    counts = metrics.reliability_curve(*rows, 7, metrics.equal_mass).counts
    assert counts.sum() == 400
    assert counts.max() - counts.min() <= 1


def test_equal_mass_with_more_bins_than_rows_is_the_finest_binning():
    confidence, correct = [0.9, 0.6, 0.3], [1, 0, 1]
    assert metrics.ece_equal_mass(confidence, correct, 50) == pytest.approx(
        metrics.sup_ece(confidence, correct)
    )


def test_sup_ece_is_the_largest_over_all_partitions():
    random = np.random.default_rng(5)
    for _ in range(10):
        confidence = random.choice([0.25, 0.5, 0.625, 0.75, 1.0], 6)
        correct = random.choice([0.0, 0.5, 1.0], 6)
        values = np.unique(confidence).tolist()
        best = max(
            sum(
                abs(sum(correct[np.isin(confidence, part)] - confidence[np.isin(confidence, part)]))
                for part in parts
            )
            for parts in set_partitions(values)
        )
        assert metrics.sup_ece(confidence, correct) == pytest.approx(best / 6, abs=1e-14)


def test_ks_error_by_hand():
    # Cumulative gaps: -0.2, then the tied block +0.5 at once.
    assert metrics.ks_error([0.2, 0.75, 0.75], [0, 1, 1]) == pytest.approx(0.3 / 3)


def test_classwise_ece_is_the_mean_of_binary_eces():
    random = np.random.default_rng(2)
    table, labels = random.dirichlet([0.3] * 5, size=300), random.integers(5, size=300)
    table[:20] = 0.2
    expected = np.mean([plain_ece(table[:, k], labels == k, 15) for k in range(5)])
    assert metrics.classwise_ece(table, labels) == pytest.approx(expected, abs=1e-14)
    narrow = table.astype(np.float32)
    expected = np.mean([plain_ece(narrow[:, k].astype(float), labels == k, 10) for k in range(5)])
    assert metrics.classwise_ece(narrow, labels, n_bins=10) == pytest.approx(expected, abs=1e-12)


def test_debiased_ece_takes_off_most_of_the_noise_of_a_calibrated_sample():
    random = np.random.default_rng(0)
    plain, debiased = [], []
    for _ in range(50):
        confidence = random.uniform(0.3, 1.0, 500)
        correct = random.random(500) < confidence
        plain.append(metrics.ece(confidence, correct))
        debiased.append(metrics.debiased_ece(confidence, correct))
    # Pure noise: the estimate of the excess is sqrt(2) - 1 of the whole, more where the clip at 0
    # does not bite.
    assert np.mean(debiased) < 0.7 * np.mean(plain)


def test_debiased_rms_is_unbiased_in_the_square():
    # One bin, true gap 0.2: E[g² - v/(n-1)] = 0.04 exactly, over all outcomes of 4 coin tosses.
    expected = 0.0
    for outcome in range(16):
        hits = np.array([(outcome >> place) & 1 for place in range(4)], dtype=float)
        gap, variance = hits.mean() - 0.7, hits.var()
        expected += (gap**2 - variance / 3) / 16
        value = metrics.debiased_rms_calibration_error([0.7] * 4, hits)
        assert value == pytest.approx(np.sqrt(max(gap**2 - variance / 3, 0)))
    assert expected == pytest.approx(0.04)


def test_uniform_rows_are_calibrated_and_have_no_sampling_error():
    table, labels = np.full((12, 4), 0.25), np.zeros(12, dtype=int)
    for metric in (
        metrics.ece,
        metrics.debiased_ece,
        metrics.rms_calibration_error,
        metrics.sup_ece,
    ):
        assert metric(table, labels) == 0.0
        assert metrics.interval(metric, table, labels, n_resamples=20).high == 0.0


def reflected_gaussian_area(confidence, residual, bandwidth, cells=20_000):
    """The definition of smECE at one bandwidth: images on the line, midpoint rule."""
    t = (np.arange(cells) + 0.5) / cells
    density = np.zeros(cells)
    for place, weight in zip(confidence, residual, strict=True):
        for image in (place + 2 * fold for fold in range(-3, 4)):
            density += weight * np.exp(-0.5 * ((t - image) / bandwidth) ** 2)
        for image in (-place + 2 * fold for fold in range(-3, 4)):
            density += weight * np.exp(-0.5 * ((t - image) / bandwidth) ** 2)
    return np.abs(density).mean() / (bandwidth * np.sqrt(2 * np.pi)) / len(confidence)


@pytest.mark.slow
@pytest.mark.parametrize("bandwidth", [0.01, 0.05, 0.3, 1.0])
def test_smooth_ece_at_a_bandwidth_is_the_integral(rows, bandwidth, smooth_ece_at):
    confidence, correct = rows[0][:60], rows[1][:60]
    confidence = np.concatenate((confidence, [0.0, 1.0, 1.0]))
    correct = np.concatenate((correct, [1.0, 0.0, 1.0]))
    expected = reflected_gaussian_area(confidence, correct - confidence, bandwidth)
    assert smooth_ece_at(metrics.TopLabel(confidence, correct), bandwidth) == pytest.approx(
        expected, rel=2e-4
    )


def test_smooth_ece_is_its_own_bandwidth(rows, smooth_ece_at):
    value = metrics.smooth_ece(*rows)
    assert smooth_ece_at(metrics.TopLabel(*rows), value) == pytest.approx(value, abs=1e-8)


def test_smooth_ece_of_a_constant_gap_is_the_gap():
    assert metrics.smooth_ece([0.8] * 10, [1] * 5 + [0] * 5) == pytest.approx(0.3, abs=1e-8)
    assert metrics.smooth_ece([1.0, 1.0], [1, 1]) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("n_bins", [0, -1, 2.5, True, "15"])
def test_a_bad_number_of_bins_is_refused(n_bins):
    with pytest.raises(InputError, match="n_bins must be a positive integer"):
        metrics.ece([0.5], [1], n_bins)


@pytest.mark.parametrize(
    ("confidence", "correct", "words"),
    [
        ([0.5, 0.6], [1], "same number of rows"),
        ([1.2], [1], r"\[0, 1\]"),
        ([0.5], [-1], r"\[0, 1\]"),
        ([np.nan], [1], "NaN"),
        ([], [], "at least one row"),
        ([[[0.5]]], [1], "must be 2-D"),
        (["a"], [1], "numbers"),
        ([0.5], [[1]], "swapped"),
    ],
)
def test_bad_columns_are_refused(confidence, correct, words):
    with pytest.raises(InputError, match=words):
        metrics.ece(confidence, correct)
