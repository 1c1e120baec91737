"""I-Max binning: the information in its bins against brute force, its edges against the paper's
stationary point.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.special import expit, logit, xlogy

import metacal as mc
from metacal.maps.imax import find_most_informative_bin_ends, fit_imax_binning
from metacal.rows import Rows

DATA = mc.datasets.load("cifar10-resnet110")


def information(weight, positive, ends):
    """I(y; bin) in nats of a partition into runs of cells, straight from the joint table."""
    parts = np.split(np.arange(len(weight)), np.asarray(ends)[:-1] + 1)
    joint = (
        np.array([(positive[p].sum(), (weight - positive)[p].sum()) for p in parts]) / weight.sum()
    )
    product = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0)
    return float((xlogy(joint, joint) - xlogy(joint, product)).sum())


def every_partition(n_cells, n_bins):
    for n_cuts in range(n_bins):
        for cuts in itertools.combinations(range(n_cells - 1), n_cuts):
            yield [*cuts, n_cells - 1]


@pytest.mark.parametrize("seed", range(12))
def test_no_partition_keeps_more_information(seed):
    rng = np.random.default_rng(seed)
    n_cells, n_bins = int(rng.integers(2, 11)), int(rng.integers(1, 6))
    weight = rng.random(n_cells) + 0.05
    positive = weight * (np.sort(rng.random(n_cells)) if seed % 2 else rng.random(n_cells))
    found = find_most_informative_bin_ends(weight, positive, n_bins)
    assert found[-1] == n_cells - 1
    assert (np.diff(found) > 0).all()
    assert len(found) <= n_bins
    best = max(information(weight, positive, ends) for ends in every_partition(n_cells, n_bins))
    assert information(weight, positive, found) == pytest.approx(best, abs=1e-12)


def test_for_a_rising_posterior_no_other_assignment_keeps_more():
    """Runs of cells are enough: not even an assignment of cells to bins in any order does
    better.
    """
    weight = np.array([0.3, 0.1, 0.2, 0.15, 0.15, 0.1])
    positive = weight * np.array([0.02, 0.2, 0.25, 0.6, 0.8, 0.97])
    best = 0.0
    for bins in itertools.product(range(3), repeat=6):
        joint = np.array([
            (positive[np.equal(bins, b)].sum(), (weight - positive)[np.equal(bins, b)].sum()) for b in range(3)
        ])  # fmt: skip
        product = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0)
        best = max(
            best,
            float((xlogy(joint, joint) - xlogy(joint, np.where(product > 0, product, 1.0))).sum()),
        )
    found = find_most_informative_bin_ends(weight, positive, 3)
    assert information(weight, positive, found) == pytest.approx(best, abs=1e-12)


def test_edges_are_where_the_paper_says():
    """g_m = log{ log[(1+e^φ_{m+1})/(1+e^φ_m)] / log[(1+e^-φ_m)/(1+e^-φ_{m+1})] }, the edge between
    bins m and m+1.

    It holds where σ(λ) is the posterior: a calibrated model, drawn here with two classes and
    log-odds N(0, 2²).
    """
    rng = np.random.default_rng(0)
    odds = 2.0 * rng.standard_normal(400_000)
    labels = (rng.random(len(odds)) < expit(odds)).astype(np.intp)
    fitted = fit_imax_binning(
        Rows(np.stack([np.zeros_like(odds), odds], axis=1)), labels, n_bins=5, prior_rows=0.0
    )
    edges, answers = logit(fitted.knots[1:]), logit(fitted.values)
    up, down = np.logaddexp(0.0, answers), np.logaddexp(0.0, -answers)
    expected = np.log(np.diff(up) / -np.diff(down))
    np.testing.assert_allclose(
        edges, expected, atol=0.12
    )  # the optimum is flat: 1/256 of each half is a step


def test_it_keeps_more_information_than_equal_width_or_equal_mass():
    logits, labels = (column[:5000] for column in (DATA.logits, DATA.labels))
    proba = mc.TemperatureScaling().fit(logits, labels).predict_proba(logits)
    at, right = proba.ravel(), (np.arange(10) == labels[:, None]).ravel().astype(float)

    def kept(edges):
        bins = np.searchsorted(edges, at)
        return information(np.bincount(bins), np.bincount(bins, right), np.arange(bins.max() + 1))

    edges = fit_imax_binning(Rows(np.log(proba)), labels, n_bins=8).knots[1:8]
    assert kept(edges) > kept(np.arange(1, 8) / 8) + 0.002
    assert kept(edges) > kept(np.quantile(at, np.arange(1, 8) / 8)) + 0.002


def test_shared_bins_are_one_curve_and_others_are_not():
    shared = mc.IMaxBinning(n_bins=6).fit(DATA.logits[:3000], DATA.labels[:3000]).map_
    curves = np.split(shared.values, shared.offsets[1:-1])
    assert all((curve == curves[0]).all() for curve in curves)
    own = mc.IMaxBinning(n_bins=6, shared=False).fit(DATA.logits[:3000], DATA.labels[:3000]).map_
    assert len(np.unique(own.values)) > 6


def test_answers_are_frequencies():
    fitted = (
        mc.IMaxBinning(n_bins=4, prior_rows=0.0).fit(DATA.logits[:3000], DATA.labels[:3000]).map_
    )
    table = np.exp(
        DATA.logits[:3000].astype(np.float64) - DATA.logits[:3000].max(axis=1, keepdims=True)
    )
    at = (table / table.sum(axis=1, keepdims=True)).ravel()
    right = (np.arange(10) == DATA.labels[:3000, None]).ravel()
    n_bins = fitted.offsets[1]
    bins = np.searchsorted(fitted.knots[1:n_bins], at, side="left")
    expected = np.bincount(bins, right) / np.bincount(bins)
    np.testing.assert_allclose(fitted.values[:n_bins], expected, atol=1e-3)


def test_weights_count_rows_and_classes_without_rows_are_left_alone():
    logits, labels = DATA.logits[:400], DATA.labels[:400]
    times = np.random.default_rng(0).integers(0, 3, 400)
    weighted = fit_imax_binning(Rows(logits), labels, times.astype(float))
    repeated = fit_imax_binning(Rows(np.repeat(logits, times, axis=0)), np.repeat(labels, times))
    np.testing.assert_allclose(weighted.values, repeated.values, atol=1e-12)
    masked = logits.copy()
    masked[:, 3] = -np.inf
    kept = labels != 3
    found = fit_imax_binning(Rows(masked[kept]), labels[kept], shared=False)(masked)
    assert (found[:, 3] == 0.0).all()
    np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-6)


@pytest.mark.parametrize("bad", [0, 2.5, "few", True])
def test_a_wrong_number_of_bins_is_refused(bad):
    with pytest.raises(mc.InputError, match="n_bins"):
        mc.IMaxBinning(n_bins=bad).fit(DATA.logits[:100], DATA.labels[:100])
