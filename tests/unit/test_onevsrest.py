"""Platt, beta, isotonic, IROvA-TS, IRM and spline calibration: laws, degenerate inputs, and what
the fits minimise.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, log_softmax

from metacal import (
    BBQ,
    IRM,
    BetaCalibration,
    HistogramBinning,
    IROvATS,
    IsotonicCalibration,
    PlattScaling,
    SplineCalibration,
    TopLabelBBQ,
    TopLabelHistogramBinning,
    TopLabelIsotonic,
    datasets,
    metrics,
)
from metacal.errors import ConvergenceWarning, InputError, MetacalWarning
from metacal.kernels import exact
from metacal.maps import averaged_spline
from metacal.maps.averaged_spline import fit_averaged_spline
from metacal.maps.curves import PiecewiseMap
from metacal.maps.fitting.newton import Derivatives, minimise_by_newton
from metacal.maps.fitting.spline import build_spline_design
from metacal.maps.histogram import fit_histogram_binning
from metacal.maps.isotonic import SharedMap, fit_irm, fit_irova_ts, fit_isotonic
from metacal.maps.logistic import (
    BetaMap,
    PlattMap,
    compute_log_probabilities,
    fit_beta_calibration,
    fit_platt_scaling,
)
from metacal.maps.spline import SplineMap, confidence_log_odds, fit_spline
from metacal.maps.temperature import fit_temperature
from metacal.metrics.classwise import ClassGaps
from metacal.metrics.toplabel import checked_table
from metacal.rows import Rows

FITS = {
    "platt": fit_platt_scaling,
    "abm": fit_beta_calibration,
    "am": lambda *a: fit_beta_calibration(*a, variant="am"),
    "ab": lambda *a: fit_beta_calibration(*a, variant="ab"),
    "isotonic": fit_isotonic,
    "irova_ts": fit_irova_ts,
    "irm": fit_irm,
    "spline": fit_spline,
}
KEEPS_PREDICTIONS = ("irm", "spline")
FACES = [
    PlattScaling,
    BetaCalibration,
    IsotonicCalibration,
    IROvATS,
    IRM,
    SplineCalibration,
    HistogramBinning,
    BBQ,
    TopLabelIsotonic,
    TopLabelHistogramBinning,
    TopLabelBBQ,
]

each_fit = pytest.mark.parametrize("name", FITS)


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
    tolerance = 1e-14 if table.dtype == np.float64 else 1e-5
    np.testing.assert_allclose(table.sum(axis=1, dtype=np.float64), 1.0, rtol=0, atol=tolerance)


# ── laws ──────────────────────────────────────────────────────────────────────────────────────────


@each_fit
@pytest.mark.parametrize("n_classes", [2, 3, 7])
def test_relabelling_the_classes_commutes(name, n_classes):
    logits, labels = drawn(600, n_classes, seed=1, scale=2.0)
    order = np.random.default_rng(2).permutation(n_classes)[::-1]
    straight = FITS[name](Rows(logits), labels)(logits)
    turned = FITS[name](Rows(logits[:, order]), np.argsort(order)[labels])(logits[:, order])
    np.testing.assert_allclose(turned, straight[:, order], rtol=0, atol=1e-6)


@each_fit
@pytest.mark.parametrize("n_classes", [2, 4])
def test_whole_weights_are_repetitions_and_zero_is_absence(name, n_classes):
    logits, labels = drawn(400, n_classes, seed=3, scale=2.0)
    times = np.random.default_rng(4).integers(0, 3, len(labels))
    weighted = FITS[name](Rows(logits), labels, times.astype(float))(logits)
    repeated = FITS[name](Rows(np.repeat(logits, times, axis=0)), np.repeat(labels, times))(logits)
    np.testing.assert_allclose(weighted, repeated, rtol=0, atol=1e-7)


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
def test_the_rows_kept_out_of_a_table_change_nothing(name):
    logits, labels = drawn(400, 3, seed=7)
    keep = np.arange(400) % 3 > 0
    kept = FITS[name](Rows(logits, row_mask=keep), labels[keep])(logits)
    alone = FITS[name](Rows(logits[keep]), labels[keep])(logits)
    np.testing.assert_allclose(kept, alone, rtol=0, atol=1e-9)


@each_fit
@pytest.mark.parametrize(("n_classes", "scale"), [(2, 1.0), (5, 1.0), (5, 3.0)])
def test_a_calibrated_model_is_left_nearly_alone_and_a_sharpened_one_is_mended(
    name, n_classes, scale
):
    logits, labels = drawn(20_000, n_classes, seed=8, scale=scale)
    truth = np.exp(log_softmax(logits / scale, axis=1))
    found = FITS[name](Rows(logits), labels)(logits)
    # A temperature mends sharpening exactly; answers about p alone can only come near beyond two
    # classes.
    mends = n_classes == 2 or scale == 1.0 or name in ("irova_ts", "irm", "spline")
    tolerance = {"isotonic": 0.015, "irova_ts": 0.015, "irm": 0.015}.get(name, 0.006)
    assert np.abs(found - truth).mean() < (tolerance if mends else 0.03)


@each_fit
@pytest.mark.parametrize("n_classes", [2, 10])
def test_predictions_are_kept_where_that_is_said(name, n_classes):
    logits, labels = drawn(3000, n_classes, seed=9, scale=3.0)
    fitted = FITS[name](Rows(logits), labels)
    assert fitted.preserves_accuracy == (name in KEEPS_PREDICTIONS)
    if fitted.preserves_accuracy:
        random = np.random.default_rng(10)
        hard = np.concatenate(
            [
                logits,
                random.normal(size=(500, n_classes)) * 1e-12,
                random.normal(size=(500, n_classes)) * 200.0,
                1.0 + np.finfo(float).eps * random.integers(0, 3, (500, n_classes)),
                random.integers(0, 2, (500, n_classes)).astype(float),
            ]
        )
        for table in (hard, hard.astype(np.float32)):
            np.testing.assert_array_equal(fitted(table).argmax(axis=1), table.argmax(axis=1))


@pytest.mark.parametrize("name", ["platt", "abm", "am", "ab", "isotonic", "irova_ts"])
def test_each_answer_rises_with_its_own_probability(name):
    logits, labels = drawn(500, 2, seed=11, scale=4.0)
    along = np.column_stack((np.zeros(2001), np.linspace(-40.0, 40.0, 2001)))
    answers = FITS[name](Rows(logits), labels)(along)[:, 1]
    assert (np.diff(answers) >= 0.0).all()
    assert 0.0 < answers[0] < 0.05
    assert 0.95 < answers[-1] <= 1.0


def test_the_slopes_are_not_negative_even_when_the_scores_mislead():
    logits, labels = drawn(500, 2, seed=12)
    assert fit_platt_scaling(Rows(-logits), labels).slope == [0.0]
    beta = fit_beta_calibration(Rows(-logits), labels)
    assert beta.a == beta.b == [0.0]
    frequency = labels.mean()
    np.testing.assert_allclose(beta(logits)[:, 1], frequency, atol=1e-3)


# ── what is minimised ─────────────────────────────────────────────────────────────────────────────


def test_platt_minimises_its_likelihood():
    logits, labels = drawn(400, 3, seed=13, scale=2.0)
    fitted = fit_platt_scaling(Rows(logits), labels)
    log_p, minus_log_rest = compute_log_probabilities(logits)
    for k in range(3):
        positive = labels == k
        n = positive.sum()
        target = np.where(positive, (n + 1) / (n + 2), 1 / (400 - n + 2))
        odds = (log_p + minus_log_rest)[:, k]

        def loss(theta, odds=odds, target=target):
            z = theta[0] * odds + theta[1]
            return (np.logaddexp(0, z) - target * z).sum()

        best = minimize(
            loss, [1.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}
        )
        assert loss([fitted.slope[k], fitted.intercept[k]]) <= best.fun + 1e-9


@pytest.mark.parametrize("turn", [1.0, -1.0])
def test_beta_minimises_its_penalised_likelihood_under_its_bounds(turn):
    random = np.random.default_rng(14)
    p = random.random(400)
    outcome = random.random(400) < (0.2 + 0.7 * p**4 if turn > 0 else 0.1 + 0.7 * p**0.25)
    logits = np.log(np.column_stack((1 - p, p)))
    fitted = fit_beta_calibration(Rows(logits), outcome.astype(np.intp))

    def loss(theta):
        z = theta[0] * np.log(p) - theta[1] * np.log1p(-p) + theta[2]
        prior = ((np.asarray(theta) - [1.0, 1.0, 0.0]) ** 2).sum()
        return (np.logaddexp(0, z) - outcome * z).sum() + 0.005 * prior

    best = minimize(
        loss, [1, 1, 0], method="L-BFGS-B", bounds=[(0, None), (0, None), (None, None)], tol=1e-14
    )
    assert loss([fitted.a[0], fitted.b[0], fitted.intercept[0]]) <= best.fun + 1e-7
    assert min(fitted.a[0], fitted.b[0]) == pytest.approx(min(best.x[:2]), abs=1e-3)


def test_the_pooled_isotonic_curve_is_the_regression_on_all_pairs():
    from sklearn.isotonic import IsotonicRegression

    random = np.random.default_rng(15)
    logits = random.integers(-3, 4, (300, 4)) + 0.25 * random.standard_normal((300, 4))
    logits[:50] = np.round(logits[:50])  # ties
    labels = (logits + random.gumbel(size=logits.shape)).argmax(axis=1)
    weights = random.integers(1, 4, 300).astype(float)
    p = np.exp(log_softmax(logits, axis=1))
    pooled = IsotonicRegression(out_of_bounds="clip").fit(
        p.ravel(), np.eye(4)[labels].ravel(), sample_weight=np.repeat(weights, 4)
    )
    fitted = fit_irm(Rows(logits), labels, weights, tempered=False, prior_rows=0.0)
    grid = np.linspace(0, 1, 3001)
    np.testing.assert_allclose(
        np.interp(grid, fitted.knots, fitted.values), pooled.predict(grid), atol=1e-9
    )


def test_the_spline_design_is_the_integral_of_the_broken_line():
    knots, slopes = np.array([-1.0, 0.5, 2.0]), np.array([0.3, 2.0, 0.1])
    z = np.linspace(-4, 5, 20_001)
    slope = np.interp(z, knots, slopes)
    numeric = np.concatenate(([0.0], np.cumsum((slope[1:] + slope[:-1]) / 2 * np.diff(z))))
    numeric -= np.interp(knots[0], z, numeric)
    np.testing.assert_allclose(build_spline_design(knots, z) @ slopes, numeric, atol=1e-6)


def _how_far_off(level, slope, n=1000):
    """The mean distance in probability of the averaged spline from the truth, level + slope·z, over
    ten draws.
    """
    random, off = np.random.default_rng(0), []
    for _ in range(10):
        z = random.normal(2.0, 1.5, n)
        truth = expit(level + slope * z)
        fitted = fit_averaged_spline(z, np.asarray(random.random(n) < truth, dtype=float), None)
        off.append(np.abs(expit(fitted.curve.value(z)) - truth).mean())
    return float(np.mean(off))


def test_the_averaged_spline_trusts_what_is_right_and_mends_what_is_not(monkeypatch):
    # A level alone, known from 1,000 rows that are right four times in five, is off by
    # .8·√(.16/1000) = .01.
    assert _how_far_off(0.0, 1.0) < 0.01
    for level, slope in ((-2.0, 1.0), (2.0, 1.0), (0.0, 0.3), (0.0, 3.0)):
        untouched = np.abs(
            expit(level + slope * np.linspace(-1.0, 5.0, 99)) - expit(np.linspace(-1.0, 5.0, 99))
        ).mean()
        assert _how_far_off(level, slope) < 0.25 * untouched, (level, slope)
    together = _how_far_off(0.0, 1.0)
    monkeypatch.setattr(
        averaged_spline, "_PRIORS", averaged_spline._PRIORS[:1]
    )  # the loosest alone
    assert together < 0.75 * _how_far_off(0.0, 1.0)


def test_weights_that_are_shares_do_not_leave_the_prior_alone():
    random = np.random.default_rng(3)
    z = random.normal(2.0, 1.5, 800)
    right = np.asarray(random.random(800) < expit(z - 1.0), dtype=float)
    plain, shares = (
        fit_averaged_spline(z, right, weights).curve.value(z)
        for weights in (None, np.full(800, 1.0 / 800))
    )
    np.testing.assert_allclose(shares, plain, atol=1e-6)
    twice, doubled = (
        np.repeat(np.arange(800), 2),
        fit_averaged_spline(z, right, np.full(800, 2.0)).curve.value(z),
    )
    np.testing.assert_allclose(
        fit_averaged_spline(z[twice], right[twice], None).curve.value(z), doubled, atol=1e-6
    )


def test_the_spline_follows_a_bend_that_no_temperature_can():
    random = np.random.default_rng(16)
    z = random.uniform(0, 6, 20_000)
    truth = expit(0.3 + 1.5 * np.minimum(z, 2.0))  # saturates
    logits = np.column_stack((z, np.zeros_like(z)))
    labels = (random.random(20_000) > truth).astype(np.intp)
    found = fit_spline(Rows(logits), labels)(logits)[:, 0]
    tempered = fit_temperature(Rows(logits), labels)(logits)[:, 0]
    assert np.abs(found - truth).mean() < 0.006 < np.abs(tempered - truth).mean()


def test_log_odds_lose_nothing_near_zero_and_one():
    logits = np.array([[60.0, 0.0, -5.0], [0.0, -200.0, -np.inf], [3000.0, 0.0, 0.0]])
    log_p, minus_log_rest = compute_log_probabilities(logits)
    assert log_p[0, 1] == pytest.approx(-60.0, rel=1e-12)
    assert minus_log_rest[0, 0] == pytest.approx(60.0 - np.log1p(np.exp(-5.0)), rel=1e-12)
    assert minus_log_rest[1, 0] == pytest.approx(200.0, rel=1e-12)
    assert np.isfinite(log_p).all()
    assert np.isfinite(minus_log_rest).all()
    assert confidence_log_odds(logits)[1] == pytest.approx(200.0, rel=1e-12)


def test_a_fit_that_does_not_converge_says_so():
    def endless(theta):  # exp(-θ) has no minimum, and Newton's step is always one
        value = np.exp(-theta[:, 0])
        return Derivatives(value, -value[:, None], value[:, None, None])

    with pytest.warns(ConvergenceWarning, match="Endless did not converge for 1 of 1 classes"):
        minimise_by_newton(
            endless, np.array([[-200.0]]), np.array([False]), np.array([1.0]), "Endless"
        )


# ── degenerate inputs ─────────────────────────────────────────────────────────────────────────────


@each_fit
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize(
    "case", ["all right", "all wrong", "constant", "one row each", "huge", "one row", "duplicated"]
)
def test_degenerate_tables_give_distributions(name, n_classes, case):
    logits, labels = drawn(60, n_classes, seed=17)
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
def test_masked_classes_stay_at_zero(name):
    logits, labels = drawn(500, 4, seed=18)
    hidden = np.random.default_rng(19).random(logits.shape) < 0.2
    hidden[np.arange(500), labels] = False
    logits[hidden] = -np.inf
    logits[:, 3] = np.where(labels == 3, logits[:, 3], -np.inf)  # never a negative row
    found = quietly(FITS[name], Rows(logits), labels)(logits)
    assert_distributions(found)
    assert (found[np.isneginf(logits)] == 0.0).all()
    lonely = np.array([[-np.inf, 2.0, -np.inf, -np.inf]])
    np.testing.assert_array_equal(
        quietly(FITS[name], Rows(logits), labels)(lonely), [[0.0, 1.0, 0.0, 0.0]]
    )


@each_fit
def test_masks_of_two_classes(name):
    logits, labels = drawn(300, 2, seed=20)
    masked = np.array([[-np.inf, 0.0], [0.0, -np.inf], [0.0, 1.0]])
    found = FITS[name](Rows(np.vstack((logits, masked))), np.append(labels, [1, 0, 1]))(masked)
    np.testing.assert_array_equal(found[:2], [[0.0, 1.0], [1.0, 0.0]])
    assert_distributions(found)


@each_fit
def test_a_class_masked_in_every_row_can_still_be_asked_about(name):
    logits, labels = drawn(300, 3, seed=21)
    labels %= 2
    shut = logits.copy()
    shut[:, 2] = -np.inf
    found = FITS[name](Rows(shut), labels)(logits)
    assert_distributions(found)
    assert (found > 0).all()


@each_fit
@pytest.mark.parametrize("n_classes", [2, 5])
def test_an_unseen_class_keeps_a_finite_share(name, n_classes):
    logits, labels = drawn(1000, n_classes, seed=22)
    labels[labels == 1] = 0
    found = quietly(FITS[name], Rows(logits), labels)(logits)
    assert_distributions(found)
    assert (found[:, 1] > 0.0).all()
    if name not in (*KEEPS_PREDICTIONS, "ab"):  # with its midpoint fixed, "ab" cannot say "rarely"
        assert found[:, 1].mean() < 0.05


@each_fit
def test_two_thousand_classes(name):
    logits, labels = drawn(60, 2000, seed=23, spread=3.0)
    found = quietly(FITS[name], Rows(logits), labels)(logits)
    assert_distributions(found)


@each_fit
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_dtypes_are_promises(name, dtype):
    logits, labels = drawn(200, 3, seed=24)
    found = FITS[name](Rows(logits.astype(dtype)), labels)(logits.astype(dtype))
    assert found.dtype == (np.float64 if dtype is np.float64 else np.float32)
    assert_distributions(found)


@pytest.mark.slow
@each_fit
def test_threads_do_not_change_a_bit(name):
    from concurrent.futures import ThreadPoolExecutor

    logits, labels = drawn(20_000, 5, seed=25)
    alone = FITS[name](Rows(logits), labels)(logits)
    with ThreadPoolExecutor(2) as pool:
        rows = Rows(logits, executor=pool, block_rows=10)
        np.testing.assert_array_equal(FITS[name](rows, labels)(logits, rows=rows), alone)


# ── values and faces ──────────────────────────────────────────────────────────────────────────────


def test_maps_are_frozen_values_that_refuse_nonsense():
    fitted = fit_isotonic(Rows(drawn(100, 3)[0]), drawn(100, 3)[1])
    with pytest.raises(ValueError, match="read-only"):
        fitted.values[0] = 0.5
    one, two = np.ones(1), np.array([0.0, 1.0])
    for make, word in [
        (lambda: PlattMap(-one, one), "negative"),
        (lambda: BetaMap(one, np.ones(2), one), "must be 1-D and finite"),
        (lambda: PlattMap(np.array([np.nan]), one), "finite"),
        (lambda: PiecewiseMap(two, two, np.array([0, 2]), "cubic"), "interpolation"),
        (lambda: PiecewiseMap(two, two, np.array([0, 3]), "step"), "3 entries"),
        (lambda: PiecewiseMap(two, two, np.array([1, 2]), "step"), "offsets"),
        (lambda: PiecewiseMap(two[::-1], two, np.array([0, 2]), "step"), "increas"),
        (lambda: SharedMap(two, 2 * two), "values"),
        (lambda: SharedMap(two, two, 0.0), "inverse_temperature"),
        (lambda: SplineMap(two, -two, 0.0), "slopes"),
        (lambda: SplineMap(two, one, 0.0), "slope for each"),
    ]:
        with pytest.raises(InputError, match=word):
            make()
    with pytest.raises(InputError, match="fitted on 3 classes"):
        fitted(np.zeros((1, 4)))


@pytest.mark.parametrize("face", FACES)
def test_faces_hold_their_map_and_work_with_strings_and_probabilities(face):
    logits, labels = drawn(300, 3, seed=26)
    p = np.exp(log_softmax(logits, axis=1))
    names = np.array(["ant", "bee", "cow"])
    cal = face(input="probabilities", classes=names.tolist(), n_jobs=2).fit(p, names[labels])
    found = cal.predict_proba(p)
    assert_distributions(found)
    np.testing.assert_allclose(found, face().fit(logits, labels).predict_proba(logits), atol=1e-9)
    assert set(cal.predict(p)) <= set(names)
    if cal.map_.preserves_accuracy:
        assert cal.score(p, names[labels]) == pytest.approx(
            (p.argmax(axis=1) == labels).mean(), rel=1e-12
        )


@pytest.mark.parametrize(
    ("cal", "word"),
    [
        (BetaCalibration(variant="abc"), "variant must be one of 'abm', 'am', 'ab'"),
        (
            IsotonicCalibration(prior_rows=-1),
            r"prior_rows must be a nonnegative number, but got -1\.",
        ),
        (SplineCalibration(n_knots=0), r"n_knots must be a positive integer, but got 0\."),
    ],
)
def test_options_out_of_range_are_refused(cal, word):
    with pytest.raises(InputError, match=word):
        cal.fit(*drawn(20, 3))


@pytest.mark.slow
def test_on_real_logits_every_one_of_them_helps():
    data = datasets.load("cifar10-resnet110")
    (fit_x, fit_y), (new_x, new_y) = data.split(5000, random_state=0)
    raw = np.exp(log_softmax(new_x.astype(np.float64), axis=1))
    for face in FACES:
        found = face().fit(fit_x, fit_y).predict_proba(new_x)
        assert metrics.nll(found, new_y) < metrics.nll(raw, new_y), face
        assert metrics.ece(found, new_y) < 0.4 * metrics.ece(raw, new_y), face


def test_more_rows_than_whole_numbers_hold_are_binned_class_by_class(monkeypatch):
    random = np.random.default_rng(0)
    logits = random.normal(size=(300, 4))
    labels = random.integers(4, size=300)
    usual = fit_histogram_binning(Rows(logits), labels)
    monkeypatch.setattr(exact, "MAX_SUMMANDS", 299)
    np.testing.assert_allclose(
        fit_histogram_binning(Rows(logits), labels)(logits), usual(logits), rtol=1e-12
    )
    gaps = ClassGaps(4)
    gaps.add(checked_table(usual(logits), labels))
    assert np.isnan(gaps.value())
