"""scikit-learn's own checks on every estimator, with the exceptions written down."""

from __future__ import annotations

import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import check_estimator

import metacal as mc
from metacal.estimators import CALIBRATORS

COLUMNS = "columns are classes: the check's labels name more classes than its table has columns"
EXPECTED = {
    "check_estimators_overwrite_params": COLUMNS,
    "check_estimators_fit_returns_self": COLUMNS,
    "check_readonly_memmap_input": COLUMNS,
    "check_sample_weights_pandas_series": COLUMNS,
    "check_sample_weights_not_an_array": COLUMNS,
    "check_sample_weights_shape": COLUMNS,
    "check_sample_weights_not_overwritten": COLUMNS,
    "check_classifier_data_not_an_array": COLUMNS,
    "check_classifiers_train": (
        "columns are classes: the check's two features are not logits of its three classes"
    ),
    "check_classifiers_one_label": (
        "columns are classes: one label in y does not make the other columns impossible"
    ),
    "check_classifiers_classes": (
        "class order is explicit: string labels need classes=[...], nothing is guessed"
    ),
    "check_sample_weight_equivalence_on_sparse_data": (
        "logits are dense; scikit-learn 1.6.0 asks all the same"
    ),
}
NO_SCORE = "the parameter `score` is the ranking score, so there is no method of that name"
EXPECTED_OF_METACAL = {
    **EXPECTED,
    "check_array_api_input": NO_SCORE,
    "check_fit_score_takes_y": NO_SCORE,
    "check_n_features_in_after_fitting": NO_SCORE,
    "check_pipeline_consistency": NO_SCORE,
}


#: Their penalty, or their weights, are chosen by cross-validation.
CROSS_VALIDATED = (
    mc.AutoCalibrator,
    mc.VectorScaling,
    mc.MatrixScaling,
    mc.DirichletCalibration,
    mc.StructuredScaling,
)
EXPECTED_OF_CROSS_VALIDATED = {
    **EXPECTED,
    "check_sample_weight_equivalence_on_dense_data": (
        "repeated rows are dealt to other folds than weighted ones"
    ),
}


def expected_failures(estimator):
    if isinstance(estimator, mc.CalibratedClassifier):
        return {}
    if isinstance(estimator, CROSS_VALIDATED):
        return EXPECTED_OF_CROSS_VALIDATED
    return EXPECTED_OF_METACAL if isinstance(estimator, mc.MetaCal) else EXPECTED


#: A penalty that is not chosen: its family's one check of each day is quick, and those of each
#: night choose theirs.
GIVEN = {"dirichlet": {"regularisation": 1.0}}
ESTIMATORS = [
    *(calibrator(**GIVEN.get(name, {})) for name, calibrator in CALIBRATORS.items()),
    mc.AutoCalibrator([mc.TemperatureScaling(), mc.SplineCalibration()]),
    mc.MetaCal(mc.MaxMiscoverage(0.2)),
    mc.CalibratedClassifier(LogisticRegression()),
    mc.CalibratedClassifier(LogisticRegression(), cv=2),
]
#: One of each base class: what the checks look at (parameters, tags, clones, shapes, dtypes) is
#: written there, once; a calibrator without parameters of its own, and one with some.
ONE_OF_EACH = (mc.TemperatureScaling, mc.IsotonicCalibration, mc.MetaCal)
#: Beside them one of each family of maps, and whatever is not a calibrator. The others, whose
#: shells are the same few lines, come with `--long`.
ONE_OF_A_FAMILY = (
    mc.LocalTemperatureScaling, mc.SplineCalibration, mc.GaussianProcessCalibration, mc.DirichletCalibration,
    mc.MonotoneCalibration, mc.BBQ, mc.TopLabelIsotonic, mc.ComposedCalibration, mc.AutoCalibrator,
    mc.CalibratedClassifier,
)  # fmt: skip


def marks(estimator):
    """When an estimator is checked: always, in CI, each night."""
    if isinstance(estimator, ONE_OF_EACH):
        return ()
    return (pytest.mark.slow,) if isinstance(estimator, ONE_OF_A_FAMILY) else (pytest.mark.long,)


@pytest.fixture(autouse=True)
def array_api(monkeypatch):
    """scikit-learn skips a check where this is not set.

    SciPy asks for it when it is imported: set for all tests, it makes every call of a special
    function three times as slow, a fifth of what the simulations take.
    """
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "estimator",
    [
        pytest.param(estimator, marks=marks(estimator), id=repr(estimator))
        for estimator in ESTIMATORS
    ],
)
def test_scikit_learn_checks(estimator):
    """All checks of an estimator in one test.

    As a test each, with pytest.mark.xfail, those that are expected to fail took three quarters of
    the time: pytest renders their tracebacks, which lead through scikit-learn's longest module.
    """
    answers = check_estimator(
        estimator, expected_failed_checks=expected_failures(estimator), on_fail=None, on_skip=None
    )
    assert len(answers) > 40
    failed = {
        answer["check_name"]: answer["exception"]
        for answer in answers
        if answer["status"] == "failed"
    }
    assert not failed
    skipped = [
        f"{answer['check_name']}: {answer['exception']}"
        for answer in answers
        if answer["status"] == "skipped"
    ]
    if skipped:
        pytest.skip("; ".join(skipped))


@pytest.mark.filterwarnings("ignore")
def test_a_check_that_fails_is_named():
    class Broken(mc.TemperatureScaling):
        def predict_proba(self, X):
            return super().predict_proba(X)[:, ::-1]

    with pytest.raises(AssertionError, match="check_"):
        test_scikit_learn_checks(Broken())
