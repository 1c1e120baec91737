"""Histogram binning, BBQ and the top-label maps."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from scipy.special import log_softmax

from metacal.errors import InputError, MetacalWarning
from metacal.estimators.binning import HistogramBinning, TopLabelHistogramBinning
from metacal.maps.bbq import build_equal_mass_binnings, fit_bbq, fit_bbq_curve, fit_top_label_bbq
from metacal.maps.curve_fitting import BinaryColumn, merge_equal_probabilities
from metacal.maps.curves import TopLabelMap, evaluate_curve
from metacal.maps.histogram import (
    find_equal_mass_bin_ends,
    fit_histogram_binning,
    fit_histogram_curve,
    fit_top_label_histogram_binning,
)
from metacal.maps.imax import fit_imax_binning
from metacal.maps.isotonic import SharedMap, fit_top_label_isotonic
from metacal.maps.temperature import fit_temperature
from metacal.metrics.binning import equal_mass
from metacal.rows import Rows

ONE_VS_REST = {
    "width": fit_histogram_binning,
    "mass": lambda *a: fit_histogram_binning(*a, bins="equal_mass"),
    "bbq": fit_bbq,
    "imax": fit_imax_binning,
    "imax, class by class": lambda *a: fit_imax_binning(*a, shared=False),
}
TOP_LABEL = {
    "top width": lambda *a: fit_top_label_histogram_binning(*a, bins="equal_width"),
    "top mass": fit_top_label_histogram_binning,
    "top bbq": fit_top_label_bbq,
    "top isotonic": fit_top_label_isotonic,
    "top isotonic, raw": lambda *a: fit_top_label_isotonic(*a, tempered=False),
}
FITS = ONE_VS_REST | TOP_LABEL

each_fit = pytest.mark.parametrize("name", FITS)
each_top_label_fit = pytest.mark.parametrize("name", TOP_LABEL)


def drawn(n, n_classes, seed=0, scale=1.0, spread=1.5):
    """Logits whose softmax is exactly calibrated, times `scale`."""
    random = np.random.default_rng(seed)
    logits = spread * random.standard_normal((n, n_classes))
    return scale * logits, (logits + random.gumbel(size=logits.shape)).argmax(axis=1)


def quietly(fit, *arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MetacalWarning)
        return fit(*arguments)


def assert_distributions(table):
    assert np.isfinite(table).all()
    assert (table >= 0).all()
    rounding = max(1e-14, table.shape[1] * np.finfo(np.float64).eps)  # of a sum of so many terms
    np.testing.assert_allclose(table.sum(axis=1), 1.0, rtol=0, atol=rounding)


@each_fit
@pytest.mark.parametrize("n_classes", [3, 7])
def test_relabelling_the_classes_commutes(name, n_classes):
    logits, labels = drawn(600, n_classes, seed=1, scale=2.0)
    order = np.random.default_rng(2).permutation(n_classes)
    straight = FITS[name](Rows(logits), labels)(logits)
    turned = FITS[name](Rows(logits[:, order]), np.argsort(order)[labels])(logits[:, order])
    np.testing.assert_allclose(turned, straight[:, order], rtol=0, atol=1e-9)


@each_fit
@pytest.mark.parametrize("n_classes", [2, 4])
def test_whole_weights_are_repetitions_and_zero_is_absence(name, n_classes):
    logits, labels = drawn(400, n_classes, seed=3, scale=2.0)
    times = np.random.default_rng(4).integers(0, 3, len(labels))
    weighted = FITS[name](Rows(logits), labels, times.astype(float))(logits)
    repeated = FITS[name](Rows(np.repeat(logits, times, axis=0)), np.repeat(labels, times))(logits)
    np.testing.assert_allclose(weighted, repeated, rtol=0, atol=1e-8)


@each_fit
def test_rows_of_weight_zero_change_nothing_at_all(name):
    logits, labels = drawn(300, 3, seed=5)
    junk = 50.0 * np.random.default_rng(6).standard_normal((40, 3))
    plain = FITS[name](Rows(logits), labels, np.ones(300))(logits)
    weights = np.append(np.ones(300), np.zeros(40))
    padded = FITS[name](
        Rows(np.vstack((logits, junk))), np.append(labels, np.zeros(40, dtype=int)), weights
    )(logits)
    np.testing.assert_array_equal(padded, plain)


@each_fit
@pytest.mark.parametrize("n_classes", [2, 4])
def test_a_calibrated_model_is_left_nearly_alone(name, n_classes):
    logits, labels = drawn(20_000, n_classes, seed=7)
    found = FITS[name](Rows(logits), labels)(logits)
    # The width of the bins is the error of binning.
    assert np.abs(found - np.exp(log_softmax(logits, axis=1))).mean() < (
        0.015 if "isotonic" in name else 0.04
    )


@each_top_label_fit
@pytest.mark.parametrize("n_classes", [2, 10])
def test_top_label_maps_keep_every_prediction_and_the_shares_of_the_others(name, n_classes):
    logits, labels = drawn(3000, n_classes, seed=8, scale=3.0)
    fitted = FITS[name](Rows(logits), labels)
    assert fitted.preserves_accuracy
    random = np.random.default_rng(9)
    hard = np.concatenate(
        [
            logits,
            random.normal(size=(500, n_classes)) * 1e-12,
            random.normal(size=(500, n_classes)) * 200.0,
            random.integers(0, 2, (500, n_classes)).astype(float),
        ]
    )
    for table in (hard, hard.astype(np.float32)):
        np.testing.assert_array_equal(fitted(table).argmax(axis=1), table.argmax(axis=1))
    if n_classes > 2:
        found, tempered = (
            fitted(logits),
            np.exp(log_softmax(fitted.inverse_temperature * logits, axis=1)),
        )
        rest = np.sort(found, axis=1)[:, :-1]
        shares = np.sort(tempered, axis=1)[:, :-1]
        np.testing.assert_allclose(
            rest / rest.sum(axis=1, keepdims=True),
            shares / shares.sum(axis=1, keepdims=True),
            atol=1e-9,
        )


def test_a_curve_that_would_unseat_the_prediction_leaves_it_just_ahead():
    gate = TopLabelMap(np.array([0.0]), np.array([0.1]), "step")
    first, second, third = gate(np.log([[0.5, 0.4, 0.1]]))[0]
    assert second < first < second * (1 + 2e-6)
    assert second / third == pytest.approx(4.0)


def test_the_temperature_of_a_top_label_map_is_that_of_temperature_scaling():
    logits, labels = drawn(1000, 4, seed=10, scale=3.0)
    wanted = fit_temperature(Rows(logits), labels).inverse_temperature
    assert fit_top_label_histogram_binning(Rows(logits), labels).inverse_temperature == wanted
    assert (
        fit_top_label_histogram_binning(Rows(logits), labels, tempered=False).inverse_temperature
        == 1.0
    )


@each_fit
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize(
    "case", ["all right", "all wrong", "constant", "one row each", "huge", "one row", "duplicated"]
)
def test_degenerate_tables_give_distributions(name, n_classes, case):
    logits, labels = drawn(60, n_classes, seed=11)
    if case == "all right":
        labels = logits.argmax(axis=1)
    elif case == "all wrong":
        labels = logits.argmin(axis=1)
    elif case == "constant":
        logits = np.zeros_like(logits)
    elif case == "one row each":
        logits, labels = 2.0 * np.eye(n_classes), np.arange(n_classes)
    elif case == "huge":
        logits = 1e5 * logits
    elif case == "one row":
        logits, labels = logits[:1], labels[:1]
    elif case == "duplicated":
        logits[:, -1] = logits[:, 0]
    fitted = quietly(FITS[name], Rows(logits), labels)
    for table in (logits, 10.0 * logits, np.zeros((1, n_classes)), -1e4 * np.eye(n_classes)):
        assert_distributions(fitted(table))


@each_fit
def test_masked_classes_stay_at_zero_and_unseen_ones_do_not_vanish(name):
    logits, labels = drawn(800, 4, seed=12)
    labels[labels == 2] = 0
    hidden = np.random.default_rng(13).random(logits.shape) < 0.2
    hidden[np.arange(800), labels] = False
    logits[hidden] = -np.inf
    found = quietly(FITS[name], Rows(logits), labels)(logits)
    assert_distributions(found)
    assert (found[hidden] == 0.0).all()
    assert (found[~hidden] > 0.0).all()
    lonely = np.array([[-np.inf, 2.0, -np.inf, -np.inf]])
    np.testing.assert_array_equal(
        quietly(FITS[name], Rows(logits), labels)(lonely), [[0.0, 1.0, 0.0, 0.0]]
    )


@pytest.mark.slow
@each_fit
def test_two_thousand_classes(name):
    logits, labels = drawn(60, 2000, seed=14, spread=3.0)
    assert_distributions(quietly(FITS[name], Rows(logits), labels)(logits))


@each_fit
def test_threads_do_not_change_a_bit(name):
    from concurrent.futures import ThreadPoolExecutor

    logits, labels = drawn(20_000, 5, seed=15)
    alone = FITS[name](Rows(logits), labels)(logits)
    with ThreadPoolExecutor(2) as pool:
        rows = Rows(logits, executor=pool, block_rows=10)
        np.testing.assert_array_equal(FITS[name](rows, labels)(logits, rows=rows), alone)


def test_a_row_without_any_positive_answer_keeps_its_softmax():
    logits = np.log([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])
    fitted = fit_histogram_binning(
        Rows(np.repeat(logits, 5, axis=0)), np.repeat([0, 1, 2], 5), n_bins=2, prior_rows=0.0
    )
    unsure = np.log([[0.3, 0.4, 0.3]])
    np.testing.assert_allclose(fitted(unsure), [[0.3, 0.4, 0.3]], atol=1e-15)
    never = SharedMap(np.array([0.0, 1.0]), np.zeros(2), inverse_temperature=0.5)
    np.testing.assert_allclose(never(2.0 * unsure), [[0.3, 0.4, 0.3]], atol=1e-15)


# ── the bins themselves ───────────────────────────────────────────────────────────────────────────


def test_the_histogram_counts():
    at, outcome = np.array([0.1, 0.2, 0.5, 0.55, 0.9]), np.array([0.0, 1.0, 1.0, 0.0, 1.0])
    ties = merge_equal_probabilities(BinaryColumn(at, outcome, np.ones(5)))
    plain = fit_histogram_curve(ties, 2, "equal_width", 0.0)
    np.testing.assert_allclose(plain.knots, [0.0, 0.5])
    np.testing.assert_allclose(plain.values, [2 / 3, 1 / 2])
    smooth = fit_histogram_curve(ties, 2, "equal_width", 1.0)
    np.testing.assert_allclose(smooth.values, [(2 + 0.8 / 3) / 4, (1 + 1.45 / 2) / 3])
    sparse = fit_histogram_curve(ties, 10, "equal_width", 0.0)
    assert sparse.values[2] == pytest.approx(0.25)  # an empty bin answers with its middle


def test_bins_of_equal_mass_are_those_of_the_metrics():
    random = np.random.default_rng(16)
    at = np.round(random.random(500) ** 3, 2)
    points, counts = np.unique(at, return_counts=True)
    ends = find_equal_mass_bin_ends(counts.astype(float), 15)
    np.testing.assert_array_equal(points[ends[:-1]], equal_mass(at, 15)[1:-1])


def test_bbq_is_the_papers_formula():
    random = np.random.default_rng(17)
    at = np.round(random.random(150), 2)
    outcome = (random.random(150) < at**2).astype(float)
    fitted = fit_bbq_curve(merge_equal_probabilities(BinaryColumn(at, outcome, np.ones(150))))
    order = np.argsort(at, kind="stable")
    grid = np.linspace(0.0, 1.0, 501)

    scores, curves, seen = [], [], []
    for n_bins in range(1, 31):  # 150^(1/3) = 5.3: from 1 to 30 = 150 / 5 bins
        cuts = sorted(
            {at[order][math.ceil(150 * k / n_bins) - 1] for k in range(1, n_bins)} - {at.max()}
        )
        if cuts in seen:
            continue
        seen.append(cuts)
        edges, size = [0.0, *cuts, 1.0], len(cuts) + 1
        score, curve = 0.0, np.zeros(len(grid))
        for b in range(size):
            left, right = edges[b], edges[b + 1]
            inside = (at <= right) & ((at > left) | (b == 0))
            n, m = inside.sum(), outcome[inside].sum()
            middle = min(max((left + right) / 2, 1 / 152), 1 - 1 / 152)
            alpha, beta = 2 / size * middle, 2 / size * (1 - middle)
            score += math.lgamma(2 / size) - math.lgamma(n + 2 / size)
            score += (
                math.lgamma(m + alpha)
                - math.lgamma(alpha)
                + math.lgamma(n - m + beta)
                - math.lgamma(beta)
            )
            curve[(grid <= right) & ((grid > left) | (b == 0))] = (m + alpha) / (n + 2 / size)
        scores.append(score)
        curves.append(curve)
    posterior = np.exp(np.array(scores) - max(scores))
    posterior[posterior < 1e-3] = 0.0
    wanted = posterior @ np.array(curves) / posterior.sum()
    np.testing.assert_allclose(
        evaluate_curve(fitted.knots, fitted.values, "step", grid), wanted, atol=1e-12
    )


def test_ties_merge_binnings():
    binnings = build_equal_mass_binnings(np.array([5000.0]))
    np.testing.assert_array_equal(binnings.last_point_of_bin, [0])
    np.testing.assert_array_equal(binnings.first_bin_of_binning, [0])


@pytest.mark.parametrize(
    ("cal", "word"),
    [
        (HistogramBinning(n_bins=0), r"n_bins must be a positive integer, but got 0\."),
        (
            HistogramBinning(bins="quantile"),
            r"bins must be 'equal_width' or 'equal_mass', but got 'quantile'\.",
        ),
        (
            TopLabelHistogramBinning(n_bins=2.5),
            r"n_bins must be a positive integer, but got 2\.5\.",
        ),
        (
            TopLabelHistogramBinning(prior_rows="many"),
            r"prior_rows must be a nonnegative number, but got 'many'\.",
        ),
    ],
)
def test_options_out_of_range_are_refused(cal, word):
    with pytest.raises(InputError, match=word):
        cal.fit(*drawn(20, 3))
