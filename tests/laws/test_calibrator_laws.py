"""What every calibrator owes: laws, degenerate inputs, files, and its place as the base of a
gate.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.special import softmax

import metacal as mc
from metacal.estimators import CALIBRATORS
from metacal.export.saved import dumps, loads

NAMES = sorted(CALIBRATORS)
#: Monotone in each class's own probability before normalisation.
KEEPS_PREDICTIONS = {
    "temperature", "ensemble-temperature", "local-temperature", "irm", "spline",
    "top-label-isotonic", "top-label-histogram", "top-label-bbq",
}  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore::metacal.MetacalWarning")
#: One set of each kind: embedded, the one that a looser rule of choice did harm on, the paper's,
#: under-confident.
AUTO_SETS = (
    "cifar10-resnet110",
    pytest.param("cifar100-resnet110", marks=pytest.mark.long),
    "cifar10-resnet110sd",
    "cifar10_densenet40_paper",
    pytest.param("langid176_sentences", marks=pytest.mark.long),
)


def noisy(n=600, k=4, seed=0, sharpness=2.0):
    """Logits of an over-confident classifier, and labels."""
    rng = np.random.default_rng(seed)
    honest = rng.normal(size=(n, k)) * 1.3
    labels = (softmax(honest, axis=1).cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    return honest * sharpness, labels


def saved(estimator):
    """What comes back from a file."""
    return loads(dumps(estimator).encode())


def proba_of(name, fit, labels, new=None, **fit_options):
    proba = (
        CALIBRATORS[name]()
        .fit(fit, labels, **fit_options)
        .predict_proba(fit if new is None else new)
    )
    assert np.isfinite(proba).all()
    assert (proba >= 0).all()
    np.testing.assert_allclose(proba.sum(axis=1), 1, rtol=1e-9)
    return proba


@pytest.mark.parametrize("name", NAMES)
def test_relabelling_classes_commutes(name):
    logits, labels = noisy()
    order = np.array([2, 0, 3, 1])
    renamed = proba_of(name, logits[:, order], np.argsort(order)[labels])
    np.testing.assert_allclose(renamed, proba_of(name, logits, labels)[:, order], atol=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_weight_zero_change_nothing(name):
    logits, labels = noisy()
    more, others = noisy(seed=1, sharpness=9.0)
    weights = np.repeat([1.0, 0.0], 600)
    with_them = proba_of(
        name, np.vstack([logits, more]), np.append(labels, others), logits, sample_weight=weights
    )
    np.testing.assert_allclose(with_them, proba_of(name, logits, labels), atol=2e-5)


@pytest.mark.parametrize("name", sorted(KEEPS_PREDICTIONS))
def test_accuracy_preserving_maps_keep_every_prediction(name):
    logits, labels = noisy()
    fitted = CALIBRATORS[name]().fit(logits, labels)
    assert fitted.map_.preserves_accuracy
    new, _ = noisy(n=5000, seed=3)
    np.testing.assert_array_equal(fitted.predict_proba(new).argmax(axis=1), new.argmax(axis=1))


@pytest.mark.parametrize("name", NAMES)
def test_preserves_accuracy_is_stated_and_true(name):
    logits, labels = noisy(sharpness=4.0)
    fitted = CALIBRATORS[name]().fit(logits, labels)
    assert isinstance(fitted.map_.preserves_accuracy, bool)
    if fitted.map_.preserves_accuracy:
        np.testing.assert_array_equal(fitted.predict(logits), logits.argmax(axis=1))


@pytest.mark.parametrize("name", NAMES)
def test_helps_an_over_confident_classifier(name):
    logits, labels = noisy(n=4000, sharpness=3.0)
    new, new_labels = noisy(n=4000, seed=5, sharpness=3.0)
    before = mc.metrics.nll(softmax(new, axis=1), new_labels)
    assert mc.metrics.nll(proba_of(name, logits, labels, new), new_labels) < before - 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_near_identity_on_calibrated_logits(name):
    logits, labels = noisy(n=50_000, k=3, sharpness=1.0)
    new, _ = noisy(n=2000, k=3, seed=9, sharpness=1.0)
    difference = np.abs(proba_of(name, logits, labels, new) - softmax(new, axis=1))
    assert difference.mean() < (
        0.02 if name in ("histogram", "top-label-histogram", "imax") else 0.01
    )


@pytest.mark.parametrize("name", NAMES)
def test_single_precision_stays_single_and_agrees(name):
    logits, labels = noisy()
    single = (
        CALIBRATORS[name]()
        .fit(logits.astype(np.float32), labels)
        .predict_proba(logits.astype(np.float32))
    )
    assert single.dtype == np.float32
    double = (
        CALIBRATORS[name]()
        .fit(logits.astype(np.float32).astype(np.float64), labels)
        .predict_proba(logits)
    )
    if "bbq" in name or "histogram" in name:  # a row on the edge of a bin may fall to either side
        assert np.abs(single - double).mean() < 3e-3
    else:
        np.testing.assert_allclose(single, double, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_adding_a_constant_to_a_row_changes_nothing(name):
    logits, labels = noisy()
    shift = np.random.default_rng(2).normal(size=(600, 1)) * 20
    np.testing.assert_allclose(
        proba_of(name, logits + shift, labels), proba_of(name, logits, labels), atol=1e-5
    )


DEGENERATE = {
    "a class never seen": lambda: (lambda x, y: (x[y != 2], y[y != 2]))(*noisy()),
    "two classes": lambda: noisy(k=2),
    "all rows correct": lambda: (noisy()[0], noisy()[0].argmax(axis=1)),
    "one row per class": lambda: (np.eye(5) * 3 + np.arange(5) * 0.01, np.array([0, 1, 2, 4, 3])),
    "one row": lambda: (np.array([[1.0, 0.0, -1.0]]), np.array([1])),
    "constant logits": lambda: (np.zeros((40, 3)), np.arange(40) % 3),
    "duplicated columns": lambda: (np.repeat(noisy()[0], 2, axis=1), noisy()[1] * 2),
    "a masked class": lambda: (np.column_stack([noisy()[0], np.full(600, -np.inf)]), noisy()[1]),
    "huge logits": lambda: (noisy()[0] * 1e6, noisy()[1]),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", DEGENERATE)
@pytest.mark.parametrize("name", NAMES)
def test_degenerate_inputs(name, case):
    logits, labels = DEGENERATE[case]()
    proba = proba_of(name, logits, labels)
    if case == "a class never seen":
        assert (proba[:, 2] > 0).all()
    if case == "a masked class":
        assert (proba[:, -1] == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_thousands_of_classes(name):
    rng = np.random.default_rng(0)
    n_parameters_is_square = name in ("matrix", "dirichlet")
    k = 1000 if n_parameters_is_square else 2000
    labels = rng.integers(0, k, 60)
    logits = rng.normal(size=(60, k)).astype(np.float32) + 6 * np.eye(k, dtype=np.float32)[labels]
    # a million parameters: one strength, not a search
    options = {"regularisation": 100.0} if n_parameters_is_square else {}
    proba = CALIBRATORS[name](**options).fit(logits, labels).predict_proba(logits)
    assert np.isfinite(proba).all()
    np.testing.assert_allclose(proba.sum(axis=1), 1, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_saved_alone_and_in_a_gate(name):
    logits, labels = noisy()
    alone = CALIBRATORS[name]().fit(logits, labels)
    np.testing.assert_array_equal(saved(alone).predict_proba(logits), alone.predict_proba(logits))
    gate = mc.MetaCal(mc.MaxMiscoverage(0.1), calibrator=CALIBRATORS[name]()).fit(logits, labels)
    again = saved(gate)
    np.testing.assert_array_equal(again.predict_proba(logits), gate.predict_proba(logits))
    np.testing.assert_array_equal(again.accepts(logits), gate.accepts(logits))
    assert type(again.calibrator_) is CALIBRATORS[name]


@pytest.mark.parametrize("name", NAMES)
def test_threads_leave_every_bit(name):
    logits, labels = noisy()
    one, two = (
        CALIBRATORS[name](n_jobs=n).fit(logits, labels).predict_proba(logits) for n in (1, 2)
    )
    assert one.tobytes() == two.tobytes()


class TestAuto:
    @pytest.mark.parametrize("real_set", AUTO_SETS, indirect=True)
    @pytest.mark.slow
    def test_never_much_worse_than_temperature(self, real_set):
        """By more than one standard error of the paired difference, on rows not used in the fit."""
        order = np.random.default_rng(0).permutation(len(real_set.labels))
        n = 2000 if real_set.logits.shape[1] <= 100 else 500
        fit, new = order[:n], order[n:]
        rows = np.arange(len(new))

        def losses(calibrator):
            proba = calibrator.fit(real_set.logits[fit], real_set.labels[fit]).predict_proba(
                real_set.logits[new]
            )
            return -np.log(proba[rows, real_set.labels[new]].astype(np.float64))

        difference = losses(mc.AutoCalibrator()) - losses(mc.TemperatureScaling())
        assert difference.mean() <= difference.std() / np.sqrt(len(new))

    def test_rows_of_weight_zero_change_nothing_but_the_folds(self):
        logits, labels = noisy()
        weights = np.repeat([1.0, 0.0], 300)
        half = mc.AutoCalibrator([mc.TemperatureScaling()]).fit(logits[:300], labels[:300])
        weighted = mc.AutoCalibrator([mc.TemperatureScaling()]).fit(
            logits, labels, sample_weight=weights
        )
        np.testing.assert_allclose(
            weighted.predict_proba(logits), half.predict_proba(logits), rtol=1e-6
        )


def test_warnings_are_ours():
    logits, labels = noisy()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        warnings.simplefilter("error", DeprecationWarning)
        for name in NAMES:
            proba_of(name, logits, labels)
