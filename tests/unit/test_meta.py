"""MetaCal: what it returns, what it shares with its parts, and that fitting is safe anywhere."""

from __future__ import annotations

import random
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

import metacal as mc
from metacal.estimators.calibrator_factory import make_base_calibrator
from metacal.gate import Gate
from metacal.maps.composed import ComposedMap

BOTH = [mc.MaxMiscoverage(0.05), mc.MinAccuracy(0.97)]


@pytest.fixture
def halves(cifar10):
    return (
        cifar10.logits[:5000],
        cifar10.labels[:5000],
        cifar10.logits[5000:],
        cifar10.labels[5000:],
    )


@pytest.mark.parametrize("promise", BOTH)
def test_output(halves, promise):
    x, y, new_x, _ = halves
    cal = mc.MetaCal(promise).fit(x, y)
    proba, accept, labels = cal.predict_proba(new_x), cal.accepts(new_x), cal.predict(new_x)
    assert 0 < accept.mean() < 1
    np.testing.assert_array_equal(accept, cal.ranking_scores(new_x) <= cal.threshold_)
    np.testing.assert_array_equal(proba, cal.calibrator_.predict_proba(new_x))
    paper_proba = cal.predict_proba(new_x, rejected="uniform")
    assert (paper_proba[~accept] == np.float32(0.1)).all()
    np.testing.assert_array_equal(paper_proba[accept], proba[accept])
    assert (labels[~accept] == -1).all()
    np.testing.assert_array_equal(labels[accept], new_x[accept].argmax(axis=1))
    assert labels.dtype.kind == "i"
    np.testing.assert_allclose(proba.sum(axis=1), 1, rtol=1e-5)
    assert cal.threshold_ == cal.certificate_.threshold == cal.map_.threshold


def test_the_map_is_a_frozen_value(halves):
    x, y, new_x, _ = halves
    cal = mc.MetaCal(BOTH[0]).fit(x, y)
    assert isinstance(cal.map_, Gate)
    assert isinstance(cal.map_.source.map, ComposedMap)
    with pytest.raises(AttributeError):
        cal.map_.threshold = 0.0
    np.testing.assert_array_equal(cal.map_(new_x), cal.predict_proba(new_x))


@pytest.mark.parametrize("calibrator", [None, "temperature", "spline"])
def test_base_is_fitted_on_all_rows(halves, calibrator):
    x, y, *_ = halves
    cal = mc.MetaCal(BOTH[1], calibrator).fit(x, y)
    assert not cal.accepts(x).all()
    assert cal.gate_.source.map == make_base_calibrator(calibrator, None).fit(x, y).map_


def test_any_estimator_on_logits_is_a_base_calibrator(halves):
    x, y, new_x, _ = halves
    cal = mc.MetaCal(BOTH[1], calibrator=LogisticRegression(C=0.01, max_iter=2000)).fit(x, y)
    accept = cal.accepts(new_x)
    expected = cal.calibrator_.predict_proba(new_x[accept])
    np.testing.assert_allclose(cal.predict_proba(new_x)[accept], expected, rtol=1e-4)
    assert any("largest logit" in str(note) for note in cal.certificate_.notes)
    np.testing.assert_array_equal(cal.predict(new_x)[accept], new_x[accept].argmax(axis=1))


def test_a_base_calibrator_that_misses_a_class_keeps_the_columns():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(900, 4)) * 2
    x[:, 2] = -5
    y = np.where(rng.random(900) < 0.9, x.argmax(axis=1), rng.choice([0, 1, 3], 900))
    cal = mc.MetaCal(mc.MaxMiscoverage(0.1), calibrator=LogisticRegression()).fit(x, y)
    proba = cal.predict_proba(x)
    assert proba.shape == (900, 4)
    assert (proba[cal.accepts(x), 2] < 1e-300).all()  # none is exactly 0
    np.testing.assert_allclose(proba.sum(axis=1), 1)


def test_sample_weights_reach_the_base_and_are_confessed(halves):
    x, y, *_ = halves
    weights = np.random.default_rng(0).integers(0, 3, len(y)).astype(float)
    cal = mc.MetaCal(BOTH[0]).fit(x, y, sample_weight=weights)
    plain = mc.MetaCal(BOTH[0]).fit(x, y)
    assert cal.threshold_ == plain.threshold_
    assert cal.calibrator_.temperature_ != plain.calibrator_.temperature_
    assert any("weights" in str(note) for note in cal.certificate_.notes)


def test_weights_are_repetitions(halves):
    x, y = halves[0].astype(np.float64), halves[1]
    weights = np.random.default_rng(1).integers(0, 3, len(y))
    repeated = (
        mc.TemperatureScaling()
        .fit(np.repeat(x, weights, axis=0), np.repeat(y, weights))
        .temperature_
    )
    assert mc.TemperatureScaling().fit(x, y, sample_weight=weights).temperature_ == pytest.approx(
        repeated, rel=1e-8
    )


def test_tied_scores_are_noticed(halves):
    x, y, *_ = halves
    with pytest.warns(mc.MetacalWarning, match="share their score"):
        cal = mc.MetaCal(BOTH[0]).fit(np.round(x / 8) * 0.3, y)
    assert any("share their score" in str(note) for note in cal.certificate_.notes)


@pytest.mark.parametrize("promise", ["miscoverage", 0.05, None, mc.MaxMiscoverage])
def test_a_promise_is_required(halves, promise):
    with pytest.raises(mc.InputError, match="must be an object such as"):
        mc.MetaCal(promise).fit(*halves[:2])


@pytest.mark.parametrize(
    "promise", [*BOTH, mc.paper.MaxMiscoverage(0.05, 7), mc.paper.MinCoverageAccuracy(0.97, 7)]
)
def test_two_fits_are_the_same_bits_and_touch_no_global_state(halves, promise):
    x, y, new_x, _ = halves
    np.random.seed(5)  # noqa: NPY002 - the global state is what is being watched
    random.seed(5)
    before = (np.random.get_state()[1].tobytes(), random.getstate())  # noqa: NPY002
    first, second = (mc.MetaCal(promise).fit(x, y) for _ in range(2))
    assert (np.random.get_state()[1].tobytes(), random.getstate()) == before  # noqa: NPY002
    assert first.certificate_ == second.certificate_
    assert first.map_ == second.map_
    assert first.predict_proba(new_x).tobytes() == second.predict_proba(new_x).tobytes()


@pytest.mark.slow
def test_fitting_from_several_threads_at_once(halves):
    x, y, new_x, _ = halves
    jobs = [
        (promise, score) for promise in BOTH for score in ("entropy", "margin", "max_probability")
    ] * 2

    def fit(job):
        return mc.MetaCal(job[0], score=job[1]).fit(x, y).predict_proba(new_x).tobytes()

    expected = [fit(job) for job in jobs]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(fit, jobs)) == expected


def test_input_is_never_written_to(halves):
    x, y, *_ = halves
    x, y = x.copy(), y.copy()
    x.setflags(write=False)
    y.setflags(write=False)
    mc.MetaCal(BOTH[0]).fit(x, y).predict_proba(x)


def test_clone_and_params(halves):
    cal = mc.MetaCal(mc.MaxMiscoverage(0.05), score="margin")
    copy = clone(cal)
    assert copy.get_params(deep=True)["promise__alpha"] == 0.05
    copy.set_params(promise__alpha=0.2)
    assert cal.promise.alpha == 0.05
    assert copy.fit(*halves[:2]).certificate_.target == 0.2


def test_probabilities_as_input_give_the_same_gate(halves):
    x, y, new_x, _ = halves
    logits = mc.MetaCal(BOTH[1]).fit(x, y)

    def softmax(t):
        e = np.exp(t.astype(np.float64) - t.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        probabilities = mc.MetaCal(BOTH[1], input="probabilities").fit(softmax(x), y)
    # log(softmax(x)) is x up to rounding, and so is the score: what lies at the threshold may go
    # either way.
    clear = np.abs(logits.ranking_scores(new_x) - logits.threshold_) > 1e-9
    assert clear.mean() > 0.99
    np.testing.assert_array_equal(
        probabilities.accepts(softmax(new_x))[clear], logits.accepts(new_x)[clear]
    )
    np.testing.assert_allclose(
        probabilities.predict_proba(softmax(new_x)), logits.predict_proba(new_x), atol=1e-6
    )


def test_a_saved_gate_remembers_the_score(tmp_path):
    (logits, labels), _ = mc.datasets.load("cifar10-resnet110").split(1000, random_state=0)
    fitted = mc.MetaCal(mc.MaxMiscoverage(0.1), score="margin").fit(logits, labels)
    mc.save(fitted, tmp_path / "cal.json")
    again = mc.load(tmp_path / "cal.json")
    assert again.gate_ == fitted.gate_
    assert (again.ranking_scores(logits) == fitted.ranking_scores(logits)).all()
