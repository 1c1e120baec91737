"""Other packages' answers on the same logits: cifar10-resnet110, the first 5,000 rows fit, the
other 10,000 evaluate.

scikit-learn is asked live. The others are golden values, printed by ``python -m
benchmarks.reference.onevsrest`` in an environment with netcal 1.4.0 and betacal 1.1.0 (numpy 2.4.6,
scikit-learn 1.9.1, torch 2.13.0, Python 3.11). "Binary" is class 3 against the rest.
"""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from sklearn.calibration import _SigmoidCalibration
from sklearn.isotonic import IsotonicRegression

from metacal.maps.bbq import fit_bbq
from metacal.maps.curve_fitting import BinaryColumn, merge_equal_probabilities
from metacal.maps.histogram import fit_histogram_binning
from metacal.maps.isotonic import fit_isotonic, fit_isotonic_curve, fit_top_label_isotonic
from metacal.maps.logistic import fit_beta_calibration, fit_platt_scaling
from metacal.rows import Rows


@pytest.fixture(scope="module")
def script():
    return importlib.import_module("benchmarks.reference.onevsrest")


@pytest.fixture(scope="module")
def table(script):
    proba, labels = script.sample()
    return np.log(proba), labels


@pytest.fixture(scope="module")
def binary(script):
    proba, labels = script.sample()
    rest = np.delete(proba, script.CLASS, axis=1).sum(axis=1)
    return np.log(np.column_stack((rest, proba[:, script.CLASS]))), (labels == script.CLASS).astype(
        np.intp
    )


def evaluated(script, problem, fit, **options):
    logits, labels = problem
    fitted = fit(Rows(logits[: script.N_FIT]), labels[: script.N_FIT], **options)
    return script.nll(fitted(logits[script.N_FIT :]), labels[script.N_FIT :]), fitted


# ── scikit-learn, live ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("k", range(10))
def test_isotonic_curves_are_scikit_learns(script, table, k):
    # Rounded, because scikit-learn takes probabilities less than 2.2e-16 apart for equal.
    proba, outcome = np.round(np.exp(table[0][:, k]), 12), (table[1] == k).astype(float)
    n = script.N_FIT
    theirs = IsotonicRegression(out_of_bounds="clip").fit(proba[:n], outcome[:n]).predict(proba[n:])
    curve = fit_isotonic_curve(
        merge_equal_probabilities(BinaryColumn(proba[:n], outcome[:n], np.ones(n))), prior_rows=0.0
    )
    np.testing.assert_allclose(
        np.interp(proba[n:], curve.knots, curve.values), theirs, rtol=0, atol=1e-8
    )


def test_isotonic_one_vs_rest_is_scikit_learns_normalised(script, table):
    logits, labels = table
    n, proba = script.N_FIT, np.exp(logits)
    fits = [
        IsotonicRegression(out_of_bounds="clip").fit(proba[:n, k], labels[:n] == k)
        for k in range(10)
    ]
    theirs = np.column_stack([fit.predict(proba[n:, k]) for k, fit in enumerate(fits)])
    theirs /= theirs.sum(axis=1, keepdims=True)
    ours, _ = evaluated(script, table, fit_isotonic, prior_rows=0.0)
    assert ours == pytest.approx(script.nll(theirs, labels[n:]), abs=2e-3)


def test_one_prior_row_moves_isotonic_answers_by_at_most_its_share(script, binary):
    logits, labels = binary
    n = script.N_FIT
    plain, blended = (
        fit_isotonic(Rows(logits[:n]), labels[:n], prior_rows=s)(logits[n:]) for s in (0.0, 1.0)
    )
    assert np.abs(plain - blended).max() <= 1.0 / (n + 1)


def test_top_label_isotonic_is_scikit_learns_on_confidence_and_correctness(script, table):
    logits, labels = table
    n = script.N_FIT
    confidence, correct = np.exp(logits).max(axis=1), logits.argmax(axis=1) == labels
    theirs = (
        IsotonicRegression(out_of_bounds="clip")
        .fit(confidence[:n], correct[:n])
        .predict(confidence[n:])
    )
    fitted = fit_top_label_isotonic(Rows(logits[:n]), labels[:n], tempered=False, prior_rows=0.0)
    np.testing.assert_allclose(
        np.interp(confidence[n:], fitted.knots, fitted.values), theirs, rtol=0, atol=1e-8
    )


def test_platt_is_scikit_learns_sigmoid(script, binary):
    logits, labels = binary
    n = script.N_FIT
    odds = logits[:, 1] - logits[:, 0]
    theirs = _SigmoidCalibration().fit(odds[:n], labels[:n])
    nll, fitted = evaluated(script, binary, fit_platt_scaling)
    assert fitted.slope[0] == pytest.approx(-theirs.a_, rel=1e-3)
    assert fitted.intercept[0] == pytest.approx(-theirs.b_, abs=1e-3)
    assert nll == pytest.approx(script.binary_nll(theirs.predict(odds[n:]), labels[n:]), abs=1e-5)


# ── netcal 1.4.0 ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("n_bins", "theirs"), [(10, 0.4950879037974706), (15, 0.5394799959136072)])
def test_histogram_binning_is_netcals(script, table, n_bins, theirs):
    # HistogramBinning(n_bins).fit(proba, labels).transform(...), float64
    assert evaluated(script, table, fit_histogram_binning, n_bins=n_bins, prior_rows=0.0)[
        0
    ] == pytest.approx(theirs, abs=1e-12)
    # A row's worth of the uncalibrated model in each bin, the default, spares its zeros.
    assert evaluated(script, table, fit_histogram_binning, n_bins=n_bins)[0] < theirs - 0.1


def test_binary_histogram_binning_is_netcals(script, binary):
    # HistogramBinning(15).fit(column, outcome).transform(...), float64
    ours, _ = evaluated(script, binary, fit_histogram_binning, prior_rows=0.0)
    assert ours == pytest.approx(0.10726264359797101, abs=1e-12)


def test_binary_bbq_is_better_than_netcals(script, binary):
    # BBQ("BIC") and BBQ("AIC").fit(column, outcome).transform(...), float64. Not the same method:
    # netcal averages bins of equal width by BIC or AIC and leaves their zeros, the paper (and we)
    # bins of equal mass by their evidence with a Beta prior. The formula itself is checked against
    # a plain transcription in tests/unit/test_binned.py.
    ours, _ = evaluated(script, binary, fit_bbq)
    assert ours < min(0.10701737666341657, 0.10844881495237896) - 0.02


def test_binary_beta_calibration_is_netcals(script, binary):
    # BetaCalibration().fit(column, outcome).transform(...), float64
    assert evaluated(script, binary, fit_beta_calibration)[0] == pytest.approx(
        0.07608691823278932, abs=1e-6
    )


# ── betacal 1.1.0 ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("variant", "nll", "a", "b"),
    # BetaCalibration(variant).fit(column, outcome); .predict(...), .calibrator_.map_: L-BFGS
    # stopped at 1e-4
    [
        ("abm", 0.07608707721424397, 0.3039431916425293, 0.2450240011288385),
        ("am", 0.07612066858954365, 0.2780163966578839, 0.2780163966578839),
        ("ab", 0.07662489829107783, 0.34179034528627084, 0.20780048171548657),
    ],
)
def test_binary_beta_calibration_is_betacals(script, binary, variant, nll, a, b):
    ours, fitted = evaluated(script, binary, fit_beta_calibration, variant=variant)
    assert ours == pytest.approx(nll, abs=3e-6)
    assert fitted.a[0] == pytest.approx(a, rel=2e-3)
    assert fitted.b[0] == pytest.approx(b, rel=2e-3)


@pytest.mark.parametrize(
    ("variant", "nll"),
    [("abm", 0.22438840712974306), ("am", 0.2244390300199547), ("ab", 0.2238628889795571)],
)
def test_one_vs_rest_beta_calibration_is_betacals_class_by_class(script, table, variant, nll):
    assert evaluated(script, table, fit_beta_calibration, variant=variant)[0] == pytest.approx(
        nll, abs=3e-5
    )
