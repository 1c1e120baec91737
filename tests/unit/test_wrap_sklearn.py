"""CalibratedClassifier inside scikit-learn: pipelines, searches, routing of weights, cross-fitting,
odd classes.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import sklearn
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import load_digits, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, KFold, ShuffleSplit, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import metacal as mc
from metacal.certificates import words
from metacal.estimators.classifier import SelectiveUtility, coverage

X, Y = load_digits(return_X_y=True)
ORDER = np.random.default_rng(0).permutation(len(X))
X, Y = X[ORDER] + np.random.default_rng(1).normal(scale=4, size=X.shape), Y[ORDER]
TRAIN, FIT, TEST = slice(0, 600), slice(600, 1200), slice(1200, None)
NAMES = np.array([f"digit {digit}" for digit in range(10)])[Y]

REAL = {
    "logistic": LogisticRegression(C=0.001, max_iter=100),
    "forest": RandomForestClassifier(40, random_state=0),
    "boosting": HistGradientBoostingClassifier(max_iter=8, max_leaf_nodes=8, random_state=0),
    "svc": SVC(C=1.0),
    "mlp": make_pipeline(
        StandardScaler(), MLPClassifier((40,), max_iter=40, learning_rate_init=0.01, random_state=0)
    ),
    "pipeline": make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=300)),
}


@pytest.fixture(autouse=True)
def no_noise():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cv", "name"), [*((None, name) for name in REAL), (3, "logistic"), (3, "forest"), (3, "svc")]
)
def test_real_classifiers_on_digits(name, cv):
    gate = mc.CalibratedClassifier(REAL[name], mc.MinAccuracy(0.85), cv=cv).fit(X[:1200], Y[:1200])
    accept, predicted = gate.accepts(X[TEST]), gate.predict(X[TEST])
    assert accept.mean() > 0.3
    assert accuracy_score(Y[TEST][accept], predicted[accept]) > 0.85
    np.testing.assert_array_equal(predicted == -1, ~accept)
    np.testing.assert_allclose(gate.predict_proba(X[TEST]).sum(axis=1), 1, rtol=1e-6)
    n_pilot_rows = gate.certificate_.design.n_pilot_rows
    n_certification_rows = gate.certificate_.n_rows + n_pilot_rows
    assert n_certification_rows == (1200 if cv else pytest.approx(360, abs=6))
    assert gate.certificate_.guarantee == ("approximate" if cv else "certified")


def test_few_rows_of_wine():
    rows, labels = load_wine(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(rows))
    gate = mc.CalibratedClassifier(REAL["pipeline"], mc.MaxMiscoverage(0.1), cv=5).fit(
        rows[order], labels[order]
    )
    assert gate.accepts(rows).mean() > 0.85


# ── pipelines, searches, frames ───────────────────────────────────────────────────────────────────


def test_as_the_last_step_of_a_pipeline_with_frames():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=[f"pixel {k}" for k in range(64)])
    gate = mc.CalibratedClassifier(LogisticRegression(C=0.01, max_iter=300), mc.MaxMiscoverage(0.1))
    pipe = Pipeline([("scale", StandardScaler()), ("gate", gate)]).set_output(transform="pandas")
    pipe.fit(frame[:1200], Y[:1200])
    assert pipe["gate"].feature_names_in_.tolist() == list(frame.columns)
    assert isinstance(pipe.predict_proba(frame[1200:]), np.ndarray)
    assert pipe.predict(frame[1200:]).shape == (597,)
    assert (
        clone(pipe)
        .set_params(gate__promise__alpha=0.2)
        .fit(frame[:1200], Y[:1200])["gate"]
        .certificate_.target
        == 0.2
    )


@pytest.mark.slow
def test_a_search_over_the_constraint_maximises_usefulness():
    frozen = FrozenEstimator(LogisticRegression(C=0.001, max_iter=300).fit(X[TRAIN], Y[TRAIN]))
    gate = mc.CalibratedClassifier(frozen, mc.MaxMiscoverage(0.1))
    search = GridSearchCV(gate, {"promise__alpha": [0.02, 0.1, 0.5]}, cv=3).fit(X[FIT], Y[FIT])
    scores = search.cv_results_["mean_test_score"]
    assert search.best_params_["promise__alpha"] == [0.02, 0.1, 0.5][int(np.argmax(scores))]
    assert search.best_estimator_.certificate_.target == search.best_params_["promise__alpha"]
    costly = GridSearchCV(
        gate, {"promise__alpha": [0.02, 0.1, 0.5]}, cv=3, scoring=SelectiveUtility(wrong_cost=30.0)
    )
    assert (
        costly.fit(X[FIT], Y[FIT]).best_params_["promise__alpha"]
        > search.best_params_["promise__alpha"]
    )


def test_what_score_means():
    frozen = FrozenEstimator(LogisticRegression(C=0.001, max_iter=300).fit(X[TRAIN], Y[TRAIN]))
    gate = mc.CalibratedClassifier(frozen, mc.MaxMiscoverage(0.1)).fit(X[FIT], Y[FIT])
    accept, right = gate.accepts(X[TEST]), gate.predict(X[TEST]) == Y[TEST]
    assert gate.score(X[TEST], Y[TEST]) == pytest.approx(
        (accept & right).mean() - (accept & ~right).mean()
    )
    assert SelectiveUtility(5.0)(gate, X[TEST], Y[TEST]) == pytest.approx(
        right.mean() - 5 * (accept & ~right).mean()
    )
    assert coverage(gate, X[TEST]) == pytest.approx(accept.mean(), rel=1e-12)
    weight = np.arange(len(accept), dtype=float)
    gains = np.where(accept, np.where(right, 1.0, -1.0), 0.0)
    assert gate.score(X[TEST], Y[TEST], weight) == pytest.approx(np.average(gains, weights=weight))
    plain = mc.CalibratedClassifier(frozen).fit(X[FIT], Y[FIT])
    assert plain.score(X[TEST], Y[TEST]) == pytest.approx(
        accuracy_score(Y[TEST], plain.predict(X[TEST])), rel=1e-12
    )


@pytest.mark.slow
def test_coverage_compares_classifiers_under_one_promise():
    gate = mc.CalibratedClassifier(LogisticRegression(max_iter=300), mc.MinAccuracy(0.85))
    search = GridSearchCV(gate, {"estimator__C": [1e-6, 1e-3]}, cv=3, scoring=coverage).fit(
        X[:1200], Y[:1200]
    )
    assert search.best_params_ == {"estimator__C": 1e-3}
    assert cross_val_score(gate, X, Y, cv=3, scoring=coverage).min() > 0


# ── weights ───────────────────────────────────────────────────────────────────────────────────────


class Weighed(GaussianNB):
    def fit(self, X, y, sample_weight=None):
        self.seen_ = None if sample_weight is None else np.asarray(sample_weight)
        return super().fit(X, y, sample_weight)


@pytest.mark.parametrize("cv", [None, 3])
def test_weights_go_to_the_classifier_and_the_calibrator_and_never_to_the_certificate(cv):
    weight = np.random.default_rng(0).random(1200) + 0.5
    gate = mc.CalibratedClassifier(Weighed(var_smoothing=0.1), mc.MaxMiscoverage(0.1), cv=cv)
    weighed, plain = (
        clone(gate).fit(X[:1200], Y[:1200], weight),
        clone(gate).fit(X[:1200], Y[:1200]),
    )
    seen = weighed.estimator_.seen_
    assert len(seen) == (1200 if cv else 1200 - weighed.certificate_.n_rows)
    assert set(seen) <= set(weight)
    assert weighed.certificate_.n_rows == plain.certificate_.n_rows
    assert any(
        "weights affect only the calibrator" in str(note) for note in weighed.certificate_.notes
    )
    fitted = FrozenEstimator(GaussianNB(var_smoothing=0.1).fit(X[TRAIN], Y[TRAIN]))
    frozen = mc.CalibratedClassifier(fitted, mc.MaxMiscoverage(0.1))
    one, two = (
        frozen.fit(X[FIT], Y[FIT]).calibrator_,
        clone(frozen).fit(X[FIT], Y[FIT], weight[:600]).calibrator_,
    )
    assert one.threshold_ == two.threshold_
    assert one.map_.source.map != two.map_.source.map


def test_a_classifier_that_takes_no_weights_is_said_to():
    class NoWeights(ClassifierMixin, BaseEstimator):
        def fit(self, X, y):
            self.inner_ = GaussianNB().fit(X, y)
            self.classes_ = self.inner_.classes_
            return self

        def predict_proba(self, X):
            return self.inner_.predict_proba(X)

    with pytest.warns(
        mc.MetacalWarning,
        match="NoWeights.fit does not support sample_weight",
    ):
        mc.CalibratedClassifier(NoWeights()).fit(X, Y, sample_weight=np.ones(len(Y)))


@pytest.mark.slow
def test_metadata_routing():
    weight = np.random.default_rng(0).random(len(Y)) + 0.5
    with sklearn.config_context(enable_metadata_routing=True):
        inner = Weighed(var_smoothing=0.1).set_fit_request(sample_weight=True)
        gate = mc.CalibratedClassifier(inner, mc.MaxMiscoverage(0.1)).set_fit_request(
            sample_weight=True
        )
        gate.set_score_request(sample_weight=False)
        pipe = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), gate)
        pipe.fit(X, Y, sample_weight=weight)
        assert set(pipe[-1].estimator_.seen_) <= set(weight)
        search = GridSearchCV(gate, {"promise__alpha": [0.1, 0.2]}, cv=3).fit(
            X, Y, sample_weight=weight
        )
        assert search.best_estimator_.estimator_.seen_ is not None
        blind = mc.CalibratedClassifier(
            clone(inner).set_fit_request(sample_weight=False), mc.MaxMiscoverage(0.1)
        )
        assert blind.fit(X, Y, sample_weight=weight).estimator_.seen_ is None


def test_other_fit_parameters_follow_the_rows():
    class Extra(GaussianNB):
        def fit(self, X, y, tag=None, sample_weight=None):
            self.tag_ = tag
            return super().fit(X, y)

    gate = mc.CalibratedClassifier(Extra(var_smoothing=0.1), mc.MaxMiscoverage(0.1)).fit(
        X, Y, tag=np.arange(len(Y))
    )
    assert len(gate.estimator_.tag_) == len(Y) - gate.certificate_.n_rows
    frozen = FrozenEstimator(gate.estimator_)
    with pytest.raises(mc.InputError, match="tag has no effect"):
        mc.CalibratedClassifier(frozen).fit(X, Y, tag=np.arange(len(Y)))


# ── cross-fitting ─────────────────────────────────────────────────────────────────────────────────


def test_cross_fitted_rows_are_scored_by_classifiers_that_have_not_seen_them():
    leaked = []

    class Remembers(GaussianNB):
        def fit(self, X, y):
            self.rows_ = {row.tobytes() for row in X}
            return super().fit(X, y)

        def predict_proba(self, X):
            leaked.append(bool(self.rows_ & {row.tobytes() for row in X}))
            return super().predict_proba(X)

    gate = mc.CalibratedClassifier(Remembers(var_smoothing=0.1), mc.MaxMiscoverage(0.1), cv=4).fit(
        X, Y
    )
    assert leaked == [False] * 4
    assert len(gate.estimator_.rows_) == len(X)


def test_the_certificate_of_cross_fitting_promises_less_in_plain_words():
    gate = mc.CalibratedClassifier(GaussianNB(var_smoothing=0.1), mc.MaxMiscoverage(0.1), cv=5).fit(
        X, Y
    )
    certificate = gate.certificate_
    assert certificate.statement.endswith("with about 90% confidence (approximate, not certified).")
    assert words.describe_rule(certificate).endswith("on out-of-fold scores of 5 folds")
    assert "fitted on all rows" in certificate.assumptions[-1]
    assert "instead of the final one" in str(certificate.notes[-1])
    assert "Barber et al. 2021" in str(certificate.notes[-1])
    average = (
        mc.CalibratedClassifier(GaussianNB(), mc.MaxMiscoverage(0.1, delta=None), cv=3)
        .fit(X, Y)
        .certificate_
    )
    assert average.statement.endswith(
        "on average over calibration sets (approximate, not certified)."
    )
    paper = (
        mc.CalibratedClassifier(GaussianNB(), mc.paper.MaxMiscoverage(0.1), cv=3)
        .fit(X, Y)
        .certificate_
    )
    assert paper.guarantee == "none"


@pytest.mark.slow
def test_folds_repeat_with_the_seed_and_may_be_the_user_s():
    gate = mc.CalibratedClassifier(GaussianNB(var_smoothing=0.1), mc.MaxMiscoverage(0.1), cv=3)
    assert gate.fit(X, Y).certificate_ == clone(gate).fit(X, Y).certificate_
    assert (
        gate.set_params(random_state=1).fit(X, Y).certificate_
        != clone(gate).set_params(random_state=2).fit(X, Y).certificate_
    )
    folds = KFold(4)
    assert gate.set_params(cv=folds).fit(X, Y).certificate_.design.n_folds == 4
    assert gate.set_params(cv=list(folds.split(X))).fit(X, Y).certificate_.design.n_folds == 4


@pytest.mark.parametrize(
    ("estimator", "cv", "message"),
    [
        (GaussianNB(), 1, "an integer of at least 2"),
        (GaussianNB(), True, "an integer of at least 2"),
        (GaussianNB(), ShuffleSplit(3, random_state=0), "exactly one test fold"),
        (GaussianNB(), 2000, "Use fewer folds"),
        (FrozenEstimator(GaussianNB().fit(X, Y)), 3, "a frozen classifier is not fitted again"),
    ],
)
def test_folds_that_cannot_be(estimator, cv, message):
    with pytest.raises(mc.InputError, match=message):
        mc.CalibratedClassifier(estimator, cv=cv).fit(X, Y)


# ── labels and classes ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("cv", [None, 3])
def test_string_labels(cv):
    gate = mc.CalibratedClassifier(
        GaussianNB(), mc.MaxMiscoverage(0.2), reject_label="a person", cv=cv
    ).fit(X, NAMES)
    assert set(gate.predict(X)) <= {*NAMES, "a person"}
    assert gate.gate_.classes_.tolist() == sorted(set(NAMES))
    np.testing.assert_array_equal(gate.gate_.predict(gate.logits(X)), gate.predict(X))


def test_a_class_too_rare_for_the_folds():
    labels = np.where(
        np.arange(len(Y)) < 2, 77, Y
    )  # two rows: in some folds nobody has seen the class
    gate = mc.CalibratedClassifier(GaussianNB(var_smoothing=0.1), mc.MaxMiscoverage(0.2), cv=5).fit(
        X, labels
    )
    assert 77 in gate.classes_
    assert gate.predict_proba(X[TEST]).shape == (597, 11)
    assert gate.certificate_.n_rows == len(Y)
    alone = np.where(np.arange(len(Y)) < 1, 77, Y)
    assert mc.CalibratedClassifier(GaussianNB(), cv=3).fit(X, alone).predict_proba(X[:5]).shape == (
        5,
        11,
    )


def test_calibration_rows_of_two_classes_for_a_classifier_of_ten():
    fitted = FrozenEstimator(GaussianNB(var_smoothing=0.1).fit(X[TRAIN], Y[TRAIN]))
    rows = Y[FIT] < 2
    gate = mc.CalibratedClassifier(fitted, mc.MaxMiscoverage(0.2)).fit(X[FIT][rows], Y[FIT][rows])
    assert gate.predict_proba(X[TEST]).shape == (597, 10)
    assert gate.certificate_.n_rows == rows.sum()


def test_decision_values_of_pairs_are_refused():
    machine = FrozenEstimator(SVC(decision_function_shape="ovo").fit(X[TRAIN], Y[TRAIN]))
    with pytest.raises(
        mc.InputError, match=r"45 columns for 10 classes.*decision_function_shape='ovr'"
    ):
        mc.CalibratedClassifier(machine).fit(X[FIT], Y[FIT])


def test_the_gate_of_somebody_else_s_calibrator():
    gate = mc.CalibratedClassifier(GaussianNB(), calibrator=LogisticRegression()).fit(X, Y)
    with pytest.raises(AttributeError, match="LogisticRegression is not one of metacal's"):
        _ = gate.gate_
