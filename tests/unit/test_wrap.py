"""CalibratedClassifier around real classifiers."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

import metacal as mc

X, Y = load_digits(return_X_y=True)
ORDER = np.random.default_rng(0).permutation(len(X))
X, Y = X[ORDER] + np.random.default_rng(1).normal(scale=4, size=X.shape), Y[ORDER]
TRAIN, FIT, TEST = slice(0, 700), slice(700, 1250), slice(1250, None)

CLASSIFIERS = [
    LogisticRegression(C=0.001, max_iter=500),
    make_pipeline(StandardScaler(), LinearSVC(C=0.001)),
    RandomForestClassifier(60, random_state=0),
    GaussianNB(),
]


@pytest.mark.slow
@pytest.mark.parametrize("classifier", CLASSIFIERS, ids=lambda c: type(c).__name__)
def test_around_a_fitted_classifier(classifier):
    fitted = FrozenEstimator(clone(classifier).fit(X[TRAIN], Y[TRAIN]))
    gate = mc.CalibratedClassifier(fitted, mc.MinAccuracy(0.9)).fit(X[FIT], Y[FIT])
    assert gate.estimator_ is fitted
    accept = gate.accepts(X[TEST])
    predicted = gate.predict(X[TEST])
    assert accept.mean() > 0.3
    np.testing.assert_array_equal(predicted == -1, ~accept)
    assert (predicted[accept] == Y[TEST][accept]).mean() > 0.87
    proba = gate.predict_proba(X[TEST])
    np.testing.assert_allclose(proba.sum(axis=1), 1, rtol=1e-6)
    certificate = gate.certificate_
    assert certificate.n_rows + certificate.design.n_pilot_rows == 550


@pytest.mark.slow
@pytest.mark.parametrize("classifier", [CLASSIFIERS[0], CLASSIFIERS[2]], ids=["logistic", "forest"])
def test_without_a_constraint_probabilities_improve_and_nothing_is_rejected(classifier):
    fitted = FrozenEstimator(clone(classifier).fit(X[TRAIN], Y[TRAIN]))
    calibrated = mc.CalibratedClassifier(fitted).fit(X[FIT], Y[FIT])
    rows = np.arange(len(Y[TEST]))

    def nll(proba):
        return -np.log(np.maximum(proba[rows, Y[TEST]], 1e-16)).mean()

    assert nll(calibrated.predict_proba(X[TEST])) < nll(fitted.predict_proba(X[TEST]))
    np.testing.assert_array_equal(calibrated.predict(X[TEST]), fitted.predict(X[TEST]))
    assert calibrated.accepts(X[TEST]).all()
    with pytest.raises(
        AttributeError, match=r"has no certificate_, because it was fitted without a promise\."
    ):
        _ = calibrated.certificate_


@pytest.mark.slow
def test_string_labels_and_frozen_estimators_survive_clone():
    names = np.array([f"digit {digit}" for digit in range(10)])[Y]
    frozen = FrozenEstimator(LogisticRegression(C=0.001, max_iter=500).fit(X[TRAIN], names[TRAIN]))
    gate = clone(mc.CalibratedClassifier(frozen, mc.MaxMiscoverage(0.1), reject_label="a person"))
    predicted = gate.fit(X[FIT], names[FIT]).predict(X[TEST])
    assert "a person" in predicted
    assert set(predicted) <= {*names, "a person"}
    plain = mc.CalibratedClassifier(frozen, mc.MaxMiscoverage(0.1)).fit(X[FIT], names[FIT])
    assert np.array_equal(
        plain.predict(X[TEST]), np.where(predicted == "a person", "rejected", predicted)
    )
    assert plain.gate_.gate_.reject_label == "rejected"
    with pytest.raises(mc.InputError, match="must be a string"):
        mc.CalibratedClassifier(frozen, mc.MaxMiscoverage(0.1), reject_label=-1).fit(
            X[FIT], names[FIT]
        )


def test_calibration_rows_may_miss_a_class_and_a_label_of_none_counts_as_wrong():
    fitted = FrozenEstimator(LogisticRegression(C=0.001, max_iter=500).fit(X[TRAIN], Y[TRAIN]))
    without = Y[FIT] != 3
    gate = mc.CalibratedClassifier(fitted, mc.MaxMiscoverage(0.1)).fit(
        X[FIT][without], Y[FIT][without]
    )
    assert gate.predict_proba(X[TEST]).shape[1] == 10
    labels = np.where(np.arange(len(Y[FIT])) % 10 == 0, 11, Y[FIT])
    known = mc.CalibratedClassifier(fitted, mc.MaxMiscoverage(0.1)).fit(X[FIT], Y[FIT]).certificate_
    wrong = mc.CalibratedClassifier(fitted, mc.MaxMiscoverage(0.1)).fit(X[FIT], labels).certificate_
    assert wrong.n_rows == known.n_rows
    assert wrong.n_correct < known.n_correct
    with pytest.raises(mc.InputError, match=r"None of the .* calibration rows has a label"):
        mc.CalibratedClassifier(fitted, mc.MaxMiscoverage(0.1)).fit(X[FIT], Y[FIT] + 100)


def test_an_unfitted_classifier_is_fitted_on_other_rows_than_it_is_calibrated_on():
    class Remembers(LogisticRegression):
        def fit(self, X, y):
            self.seen_ = {row.tobytes() for row in X}
            return super().fit(X, y)

        def predict_proba(self, X):
            self.asked_ = {row.tobytes() for row in X}
            return super().predict_proba(X)

    gate = mc.CalibratedClassifier(Remembers(C=0.001, max_iter=500), mc.MaxMiscoverage(0.1)).fit(
        X, Y
    )
    assert not gate.estimator_.seen_ & gate.estimator_.asked_
    assert len(gate.estimator_.seen_) + len(gate.estimator_.asked_) == len(X)
    assert gate.certificate_.n_rows == pytest.approx(0.3 * len(X), abs=6)


def test_two_classes_by_decision_values():
    binary = (Y < 5).astype(int)
    machine = FrozenEstimator(LinearSVC(C=0.0001).fit(X[TRAIN], binary[TRAIN]))
    gate = mc.CalibratedClassifier(machine, mc.MinAccuracy(0.85)).fit(X[FIT], binary[FIT])
    accept = gate.accepts(X[TEST])
    np.testing.assert_array_equal(gate.predict(X[TEST])[accept], machine.predict(X[TEST])[accept])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"response_method": "predict"}, "response_method must be"),
        (
            {"response_method": "decision_function"},
            r"has none of the required methods: decision_function\.",
        ),
        ({"holdout": 1.0}, "holdout must be"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(mc.InputError, match=message):
        mc.CalibratedClassifier(GaussianNB(), **arguments).fit(X[FIT], Y[FIT])


def test_row_and_label_counts_must_agree():
    with pytest.raises(mc.InputError, match=r"550 rows and 549 labels\."):
        mc.CalibratedClassifier(GaussianNB()).fit(X[FIT], Y[FIT][:-1])
