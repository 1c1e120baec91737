"""One set of verbs on everything that is fitted: evaluate, verify, report, watch, save, export."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import is_classifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import metacal as mc

RANDOM = np.random.default_rng(0)
LABELS = RANDOM.integers(3, size=1500)
X = RANDOM.normal(size=(1500, 3)) + 3.0 * np.eye(3)[LABELS]
MARK = RANDOM.random(1500)
RIGHT = RANDOM.random(1500) < 0.6 + 0.4 * MARK
FIT, NEW = slice(0, 700), slice(700, None)


def fitted(kind):
    """Something fitted under a promise, what it reads of new rows, and their truth."""
    if kind == "ScoreGate":
        return (
            mc.ScoreGate(mc.MaxMiscoverage(0.2)).fit(MARK[FIT], RIGHT[FIT]),
            (MARK[NEW],),
            RIGHT[NEW],
            {},
        )
    if kind == "Cascade":
        small = X + RANDOM.normal(size=X.shape)
        cascade = mc.Cascade(promise=mc.MinAccuracy(0.8)).fit(small[FIT], LABELS[FIT], large=X[FIT])
        return cascade, (small[NEW],), LABELS[NEW], {"large": X[NEW]}
    if kind == "CalibratedClassifier":
        classifier = FrozenEstimator(LogisticRegression().fit(X[:300], LABELS[:300]))
        gate = mc.CalibratedClassifier(classifier, mc.MinAccuracy(0.9)).fit(
            X[300:700], LABELS[300:700]
        )
        return gate, (X[NEW],), LABELS[NEW], {}
    cal = mc.MetaCal(mc.MinAccuracy(0.9)).fit(X[FIT], LABELS[FIT])
    return cal if kind == "MetaCal" else cal.gate_, (X[NEW],), LABELS[NEW], {}


@pytest.mark.parametrize(
    "kind", ["MetaCal", "CalibratedClassifier", "ScoreGate", "Cascade", "Gate"]
)
def test_everything_that_is_fitted_has_the_verbs(kind, tmp_path):
    gate, rows, truth, more = fitted(kind)
    verified = gate.verify(*rows, truth, **more)
    assert verified.to_dict() == mc.verify(gate, *rows, truth, **more).to_dict()
    assert (
        gate.evaluate(*rows, truth, n_resamples=0, **more).verdict.word
        == verified.verdict.word
        != "refuted"
    )
    page = tmp_path / "report.html"
    assert gate.report(*rows, truth, page, n_resamples=0, **more) == page.stat().st_size
    gate.save(tmp_path / "gate.json")
    again = mc.load(tmp_path / "gate.json")
    given = gate.logits(*rows) if kind == "CalibratedClassifier" else rows[0]
    found = again.verify(given, truth, **more)
    assert found.verdict.to_dict() == verified.verdict.to_dict()
    watched = gate.watch().update([given, *more.values()] if more else given, truth)
    assert (watched.counts.labelled, watched.raised) == (len(truth), ())


@pytest.mark.slow
def test_export_has_two_destinations(tmp_path):
    cal = fitted("MetaCal")[0]
    assert cal.export(tmp_path / "gate.onnx").outputs == ("probs", "score", "accept")
    assert (tmp_path / "gate.onnx").exists()
    for wrong in ({"to": "tflite"}, {}, {"to": "torch", "path": "gate.pt"}):
        with pytest.raises(mc.InputError, match="with a path, or"):
            cal.export(**wrong)


def test_export_makes_a_module():
    pytest.importorskip("torch")
    assert type(fitted("MetaCal")[0].export(to="torch")).__name__ == "Gate"


def test_a_pipeline_reaches_the_gate_in_its_last_step():
    inner = mc.CalibratedClassifier(LogisticRegression(), mc.MinAccuracy(0.9))
    pipeline = make_pipeline(StandardScaler(), inner).fit(X[FIT], LABELS[FIT])
    accept = mc.accepts(pipeline, X[NEW])
    np.testing.assert_array_equal(accept, pipeline.predict(X[NEW]) != -1)
    assert mc.verify(pipeline, X[NEW], LABELS[NEW]).n_accepted == accept.sum()
    assert mc.Watch.of(pipeline).gate == pipeline[-1].gate_.gate_


def test_metacal_is_a_classifier_that_wants_a_promise():
    assert is_classifier(mc.MetaCal())
    with pytest.raises(mc.InputError, match="promise must be an object such as"):
        mc.MetaCal().fit(X, LABELS)


class Untouched(LogisticRegression):
    """A classifier that must not be trained."""

    def fit(self, *args, **options):
        raise AssertionError("trained before the arguments were checked")


@pytest.mark.parametrize(
    ("parameters", "options", "message"),
    [
        ({"promise": 0.97}, {}, "promise must be an object such as"),
        ({"promise": mc.MinAccuracy(0.9), "ranking": "entropie"}, {}, "entropie"),
        ({"promise": mc.MinAccuracy(0.9), "reject_label": 1}, {}, "must not be one of the classes"),
        ({"calibrator": "temprature"}, {}, "temprature"),
        ({"response_method": "proba"}, {}, "response_method must be"),
        (
            {"promise": mc.PerGroup(mc.MinAccuracy(0.9))},
            {"groups": ["a"]},
            "groups must have one entry for each row",
        ),
    ],
)
def test_a_classifier_is_not_trained_for_what_cannot_be_meant(parameters, options, message):
    with pytest.raises(mc.InputError, match=message):
        mc.CalibratedClassifier(Untouched(), **parameters).fit(X, LABELS, **options)


@pytest.mark.parametrize("labels", [np.array(["a", "b", "c"]), np.array([10, 20, 30])])
def test_labels_come_back_as_they_came_and_groups_go_through(labels):
    y, groups = labels[LABELS], np.where(np.arange(1500) % 2, "left", "right")
    gate = mc.CalibratedClassifier(LogisticRegression(), mc.PerGroup(mc.MinAccuracy(0.85)))
    gate.fit(X[FIT], y[FIT], groups=groups[FIT], units=np.arange(700))
    accept = gate.accepts(X[NEW], groups=groups[NEW])
    said = gate.predict(X[NEW], groups=groups[NEW])
    assert said.dtype.kind == y.dtype.kind
    assert set(said[accept]) <= set(labels.tolist())
    assert gate.predict_proba(X[NEW], groups=groups[NEW]).shape == (800, 3)
