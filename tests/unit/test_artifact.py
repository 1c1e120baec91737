"""Saved estimators come back bit for bit; damaged and forged files never come back as anything."""

from __future__ import annotations

import json
import math
import os
import pickle
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.utils.validation import check_is_fitted

import metacal as mc
from metacal.errors import ArtifactError, InputError
from metacal.estimators.base import Calibrator
from metacal.export import saved as artifact
from metacal.io.artifact import wrapping
from metacal.maps.map import Map
from metacal.maps.methods import METHODS, Method, register
from metacal.maps.temperature import TemperatureMap
from metacal.scores.learned import LogisticRanker, PairwiseRanker

ROWS = np.random.default_rng(7).normal(size=(600, 4)) * 3
CODES = (ROWS + np.random.default_rng(8).normal(size=(600, 4))).argmax(1)
NAMES = np.array(["cat", "dog", "größe", "a,b"])
NEW = np.random.default_rng(9).normal(size=(50, 4)) * 3

ESTIMATORS = {
    "accuracy": mc.MetaCal(mc.MinAccuracy(0.9)),
    "miscoverage": mc.MetaCal(
        mc.MaxMiscoverage(0.1, delta=0.2), calibrator=mc.TemperatureScaling(n_jobs=2)
    ),
    "in expectation": mc.MetaCal(
        mc.MaxMiscoverage(0.1, delta=None), score="margin", reject_label=99, n_jobs=2
    ),
    "paper accuracy": mc.MetaCal(mc.paper.MinCoverageAccuracy(0.8, random_state=3)),
    "paper miscoverage": mc.MetaCal(mc.paper.MaxMiscoverage(0.1, random_state=None)),
    "named": mc.MetaCal(mc.MaxMiscoverage(0.1), classes=list(NAMES), reject_label="none"),
    "base with classes": mc.MetaCal(
        mc.MaxMiscoverage(0.1), calibrator=mc.TemperatureScaling(classes=[0, 1, 2, 3])
    ),
    "numbered": mc.MetaCal(mc.MaxMiscoverage(0.1), classes=np.array([3, 1, 2, 7], dtype=np.int16)),
    "temperature": mc.TemperatureScaling(),
    "temperature, named": mc.TemperatureScaling(classes=NAMES.tolist(), n_jobs=-1),
}


def fitted(estimator):
    labels = CODES if estimator.classes is None else np.asarray(estimator.classes)[CODES]
    return clone(estimator).fit(ROWS, labels)


def document(estimator=None):
    return json.loads(artifact.dumps(estimator or fitted(ESTIMATORS["accuracy"])))


def signed(data):
    """The bytes of a document whose checksum is right, whatever else is wrong."""
    return json.dumps({**data, "checksum": artifact.checksum(data)}).encode()


def refuse(match, raw):
    with pytest.raises(ArtifactError, match=match) as caught:
        artifact.loads(raw if isinstance(raw, bytes) else signed(raw))
    assert "\n" not in str(caught.value)


# ── there and back ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ESTIMATORS)
def test_what_is_saved_comes_back(tmp_path, name):
    before = fitted(ESTIMATORS[name])
    mc.save(before, tmp_path / "cal.json")
    after = mc.load(tmp_path / "cal.json")
    check_is_fitted(after)
    assert type(after) is type(before)
    assert repr(after.get_params(deep=False).keys()) == repr(before.get_params(deep=False).keys())
    for key, value in before.get_params(deep=False).items():
        if key == "classes" and value is not None:
            assert after.classes == list(value)
        elif key == "reject_label":  # a file has it, whether it was asked for or not
            assert after.reject_label == before.gate_.reject_label == after.gate_.reject_label
        elif key != "calibrator":
            assert getattr(after, key) == value
    assert after.map_ == before.map_
    assert after.classes_.dtype == before.classes_.dtype
    assert np.array_equal(after.classes_, before.classes_)
    for new in (NEW, NEW.astype(np.float32)):
        assert np.array_equal(after.predict_proba(new), before.predict_proba(new))
        assert np.array_equal(after.predict(new), before.predict(new))
        assert after.predict(new).dtype == before.predict(new).dtype
    if isinstance(before, mc.MetaCal):
        assert after.certificate_ == before.certificate_
        assert np.array_equal(after.accepts(NEW), before.accepts(NEW))
        assert np.array_equal(
            after.calibrator_.predict_proba(NEW), before.calibrator_.predict_proba(NEW)
        )
        assert repr(after.calibrator) == repr(before.calibrator)
    assert artifact.dumps(after) == artifact.dumps(before)
    again = clone(after).fit(
        ROWS, CODES if after.classes is None else np.asarray(after.classes)[CODES]
    )
    assert np.array_equal(again.predict_proba(NEW), before.predict_proba(NEW)) or "paper" in name


def test_an_infinite_threshold(tmp_path):
    with pytest.warns(mc.MetacalWarning, match="Every row is accepted"):
        before = mc.MetaCal(mc.MaxMiscoverage(0.01)).fit(ROWS[:60], CODES[:60])
    assert before.threshold_ == math.inf
    mc.save(before, tmp_path / "cal.json")
    assert mc.load(tmp_path / "cal.json").threshold_ == math.inf


def test_probabilities_and_column_names(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(TemperatureMap(1.0)(ROWS), columns=list("abcd"))
    before = mc.MetaCal(mc.MaxMiscoverage(0.1), input="probabilities").fit(frame, CODES)
    mc.save(before, tmp_path / "cal.json")
    after = mc.load(tmp_path / "cal.json")
    assert after.feature_names_in_.tolist() == list("abcd")
    assert np.array_equal(after.predict_proba(frame), before.predict_proba(frame))


@pytest.mark.parametrize(
    "ranker", [LogisticRanker(n_top=3), PairwiseRanker(penalty=2.0, classes=list(NAMES))]
)
def test_a_linear_ranker_is_saved_inside_the_gate(tmp_path, ranker):
    labels = CODES if ranker.classes is None else NAMES[CODES]
    ranker.fit(ROWS[:300], labels[:300])
    before = mc.MetaCal(mc.MinAccuracy(0.8), score=ranker).fit(ROWS[300:], CODES[300:])
    mc.save(before, tmp_path / "cal.json")
    after = mc.load(tmp_path / "cal.json")
    assert type(after.score) is type(ranker)
    assert (after.score.n_top, after.score.penalty) == (ranker.n_top, ranker.penalty)
    assert after.score.classes == ranker.classes
    assert np.array_equal(after.ranking_scores(NEW), before.ranking_scores(NEW))
    assert np.array_equal(after.predict_proba(NEW), before.predict_proba(NEW))
    assert np.array_equal(
        clone(after).fit(ROWS[300:], CODES[300:]).accepts(NEW), before.accepts(NEW)
    )


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        ("n_classes_", 5, "must have 4 classes, as the gate has, but it has 5"),
        (
            "coefficients_",
            {"dtype": "<f8", "shape": [2], "values": [1.0, 2.0]},
            "coefficients must be 8 finite numbers",
        ),
        (
            "coefficients_",
            {"dtype": "<f8", "shape": [1], "values": [1e200]},
            "must hold finite numbers",
        ),
        (
            "scales_",
            {"dtype": "<f8", "shape": [8], "values": [0.0] * 8},
            "scales must contain only positive numbers",
        ),
        ("n_top", 1, "must be at least 2"),
        ("penalty", 0, "penalty must be a positive number"),
        ("parameters", {"n_top": 5}, 'unexpected entry "parameters"'),
        ("type", "OtherRanker", "must be one of LogisticRanker"),
    ],
)
def test_forged_rankers(field, value, match):
    ranker = LogisticRanker(n_top=4).fit(ROWS[:300], CODES[:300])
    data = document(mc.MetaCal(mc.MaxMiscoverage(0.1), score=ranker).fit(ROWS[300:], CODES[300:]))
    data["stages"][0]["source"]["score"][field] = value
    refuse(match, data)


def test_the_fingerprint_of_the_calibration_rows(tmp_path):
    gate = fitted(ESTIMATORS["accuracy"])
    mc.save(gate, tmp_path / "cal.json")
    assert mc.load(tmp_path / "cal.json").data_hash_ == gate.data_hash_
    assert fitted(ESTIMATORS["accuracy"]).data_hash_ == gate.data_hash_
    assert (
        mc.MetaCal(mc.MinAccuracy(0.9)).fit(ROWS[:599], CODES[:599]).data_hash_ != gate.data_hash_
    )
    data = document(gate)
    assert artifact.loads(signed({**data, "data_hash": None, "sketch": None})).data_hash_ is None
    for wrong in ("md5:0", "sha256:0", 5):
        refuse("data_hash must be", {**data, "data_hash": wrong})


def test_a_calibrated_classifier_saves_its_gate(tmp_path):
    names = NAMES[CODES]
    classifier = FrozenEstimator(LogisticRegression().fit(ROWS[:200], names[:200]))
    clf = mc.CalibratedClassifier(classifier, mc.MaxMiscoverage(0.1), reject_label="?").fit(
        ROWS[200:], names[200:]
    )
    with pytest.raises(ArtifactError, match=r"contains your classifier.*Save the gate with"):
        mc.save(clf, tmp_path / "cal.json")
    clf.save(tmp_path / "cal.json")
    gate = mc.load(tmp_path / "cal.json")
    assert np.array_equal(gate.predict(clf.logits(NEW)), clf.predict(NEW))
    assert np.array_equal(gate.predict_proba(clf.logits(NEW)), clf.predict_proba(NEW))
    plain = mc.CalibratedClassifier(classifier, calibrator=mc.VectorScaling()).fit(
        ROWS[200:], names[200:]
    )
    mc.save(plain.gate_, tmp_path / "plain.json")
    assert np.array_equal(
        mc.load(tmp_path / "plain.json").predict(plain.logits(NEW)), plain.predict(NEW)
    )


def test_a_cross_fitted_gate_stays_approximate(tmp_path):
    clf = mc.CalibratedClassifier(LogisticRegression(), mc.MaxMiscoverage(0.1), cv=3).fit(
        ROWS, CODES
    )
    mc.save(clf.gate_, tmp_path / "cal.json")
    assert mc.load(tmp_path / "cal.json").certificate_ == clf.certificate_
    assert clf.certificate_.guarantee == "approximate"


@dataclass(frozen=True, eq=False)
class AnyMap(Map):
    """A map with a field of every kind that a future calibrator may have."""

    weights: NDArray[np.float64]
    counts: NDArray[np.int32]
    edges: tuple[float, ...]
    pair: tuple[int, str]
    inner: TemperatureMap | None
    flag: bool = True
    preserves_accuracy = False

    def write_probabilities(self, block, out):
        TemperatureMap(1.0).write_probabilities(block * self.weights.ravel()[: block.shape[1]], out)


def fit_any(rows, labels, weights=None, *, width: float = 0.5):
    big = np.random.default_rng(0).random((4, 40))
    return AnyMap(big, np.arange(3, dtype=np.int32), (0.1, width), (3, "x"), TemperatureMap(1 / 3))


class AnyScaling(Calibrator):
    def __init__(
        self, *, width: float = 0.5, input: str = "logits", classes=None, n_jobs: int | None = None
    ):
        self.width, self.input, self.classes, self.n_jobs = width, input, classes, n_jobs


@pytest.fixture
def any_scaling():
    here = AnyScaling.__module__
    register(Method("any", f"{here}:AnyScaling", f"{here}:AnyMap", f"{here}:fit_any"))
    yield AnyScaling(width=0.25).fit(ROWS, CODES)
    del METHODS["any"]


def test_a_new_calibrator_is_one_entry(any_scaling, tmp_path):
    mc.save(any_scaling, tmp_path / "cal.json")
    after = mc.load(tmp_path / "cal.json")
    assert after.width == 0.25
    assert np.array_equal(after.map_.weights, any_scaling.map_.weights)
    assert not after.map_.weights.flags.writeable
    assert after.map_.counts.dtype == np.int32
    for name in ("edges", "pair", "inner", "flag"):
        assert getattr(after.map_, name) == getattr(any_scaling.map_, name)
    assert np.array_equal(after.predict_proba(NEW), any_scaling.predict_proba(NEW))
    gate = mc.MetaCal(mc.MaxMiscoverage(0.1), calibrator=AnyScaling()).fit(ROWS, CODES)
    mc.save(gate, tmp_path / "gate.json")
    assert np.array_equal(
        mc.load(tmp_path / "gate.json").predict_proba(NEW), gate.predict_proba(NEW)
    )


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        (
            "weights",
            {"dtype": "<f8", "shape": [10**12, 10**12], "base64": "AAAAAAAAAAA="},
            r"it has 1\.",
        ),
        (
            "weights",
            {"dtype": "<f8", "shape": [1], "base64": "AAAA"},
            "base64 data of .* are damaged",
        ),
        (
            "weights",
            {"dtype": "<f8", "shape": [1], "base64": "!!"},
            "base64 data of .* are damaged",
        ),
        (
            "weights",
            {"dtype": "<f8", "shape": [-1], "values": [1.0]},
            "must be a list of",
        ),
        ("weights", {"dtype": "<f8", "shape": [1], "values": ["1"]}, "a list of plain numbers"),
        ("weights", {"dtype": "O", "shape": [1], "values": [1.0]}, "unknown dtype"),
        (
            "weights",
            {"dtype": "<f4", "shape": [1], "values": [1.0]},
            r"must be an array of float64, but it is an array of float32\.",
        ),
        (
            "weights",
            {"dtype": "<f8", "shape": [3], "values": [1.0, 1.0, 1.0]},
            "does not support 4 columns",
        ),
        (
            "counts",
            {"dtype": "<i4", "shape": [1], "values": [2**40]},
            r"does not fit the dtype int32\.",
        ),
        ("counts", [1, 2], r"must be an object, but it is a list\."),
        ("edges", [0.1, "nan"], r"map.edges\[1\] must be a number"),
        ("pair", [3], r"must have 2 entries, but it has 1\."),
        ("flag", 1, r"must be true or false, but it is 1\."),
        ("inner", {"type": "AnyMap"}, "must be one of TemperatureMap"),
    ],
)
def test_arrays_and_nested_maps_are_audited(any_scaling, field, value, match):
    data = document(any_scaling)
    data["stages"][0]["source"]["map"][field] = value
    refuse(match, data)


# ── what cannot be saved ──────────────────────────────────────────────────────────────────────────


def spread(block):
    return -block.std(axis=1)


class MyScaling(mc.TemperatureScaling):
    pass


class MyPromise(mc.MaxMiscoverage):
    pass


class MyRanker(LogisticRanker):
    pass


UNSAVABLE = {
    "ranker": (
        mc.MetaCal(mc.MaxMiscoverage(0.1), score=MyRanker().fit(ROWS[:300], CODES[:300])),
        "MyRanker.*named score: entropy.*or a trained LogisticRanker or PairwiseRanker",
    ),
    "score": (
        mc.MetaCal(mc.MaxMiscoverage(0.1), score=spread),
        r"score spread is a Python function, so a gate file cannot store it\. Use a named score: entropy",
    ),
    "base": (
        mc.MetaCal(mc.MaxMiscoverage(0.1), calibrator=LogisticRegression()),
        "base calibrator is a LogisticRegression.*Use one of metacal's",
    ),
    "subclass": (MyScaling(), "Cannot save a MyScaling. Save a fitted MetaCal"),
    "base subclass": (
        mc.MetaCal(mc.MaxMiscoverage(0.1), calibrator=MyScaling()),
        "base calibrator is a MyScaling",
    ),
    "promise": (
        mc.MetaCal(MyPromise(0.1)),
        r"promise is a MyPromise, which a gate file cannot store\. Use",
    ),
    "generator": (
        mc.MetaCal(mc.paper.MaxMiscoverage(0.1, random_state=np.random.default_rng(0))),
        r"is a Generator, which a gate file cannot store\. Use a plain value",
    ),
}


@pytest.mark.parametrize("name", UNSAVABLE)
def test_what_cannot_be_saved_leaves_the_file_alone(tmp_path, name):
    estimator, match = UNSAVABLE[name]
    path = tmp_path / "cal.json"
    path.write_text("old")
    with pytest.raises(ArtifactError, match=match):
        mc.save(estimator.fit(ROWS, CODES), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("thing", "match"),
    [
        (mc.MetaCal(mc.MaxMiscoverage(0.1)), "not fitted. Call fit"),
        (mc.TemperatureScaling(), "not fitted. Call fit"),
        (mc.TemperatureScaling, r"the class TemperatureScaling\."),
        (LogisticRegression(), "Cannot save a LogisticRegression"),
        ({"a": 1}, "Cannot save a dict"),
        (None, "Cannot save a NoneType"),
    ],
)
def test_things_that_are_not_fitted_estimators(tmp_path, thing, match):
    with pytest.raises(ArtifactError, match=match):
        mc.save(thing, tmp_path / "cal.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "change", [{"promise": mc.MaxMiscoverage(0.2)}, {"score": "margin"}, {"classes": [5, 6, 7, 8]}]
)
def test_parameters_changed_after_fit(change):
    with pytest.raises(ArtifactError, match=r"fit again|not the same|changed after fit"):
        artifact.dumps(fitted(ESTIMATORS["miscoverage"]).set_params(**change))


def test_places_that_cannot_be_written(tmp_path, monkeypatch):
    cal = fitted(ESTIMATORS["temperature"])
    with pytest.raises(InputError, match="does not exist"):
        mc.save(cal, tmp_path / "no" / "cal.json")

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("metacal.io.writing.os.fsync", full)
    with pytest.raises(InputError, match=r"cannot write .*cal.json: No space left on device"):
        mc.save(cal, tmp_path / "cal.json")
    assert not list(tmp_path.iterdir())


# ── files that are refused ────────────────────────────────────────────────────────────────────────


def test_files_that_cannot_be_opened(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"cal\.json: the file does not exist"):
        mc.load(tmp_path / "cal.json")
    with pytest.raises(InputError, match="path is a folder"):
        mc.load(tmp_path)

    def denied(*args, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", denied)
    with pytest.raises(InputError, match="permission to read"):
        mc.load("cal.json")


def test_the_message_names_the_file(tmp_path):
    (tmp_path / "cal.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"cal\.json: the file is JSON but not a metacal file"):
        mc.load(tmp_path / "cal.json")


@pytest.mark.parametrize(
    ("raw", "match"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"[" * 100_000, "nested more deeply than a metacal file can be"),
        (b'{"a":' * 100_000, "nested more deeply than a metacal file can be"),
        (b"[" * 500 + b"]" * 500, "not a metacal file"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b"hello", "not JSON"),
        (b'{"format": "metacal", "version": 1', "damaged or incomplete"),
        (b'{"format": "metacal", "format": "metacal"}', '"format" occurs twice'),
        (b'{"a": {"b\\n": 1, "b\\n": 2}}', "occurs twice"),
        (b'{"format": "metacal", "x": NaN}', "NaN is not valid JSON"),
        (b'{"format": "metacal", "x": -Infinity}', "-Infinity is not valid JSON"),
        (b'{"format": "metacal", "x": 1e999}', "1e999 is out of range"),
        (b'{"format": "metacal", "x": ' + b"9" * 5000 + b"}", "not JSON|digits"),
        (b'{"format": "skops", "version": 1}', "not a metacal file"),
        (b"[]", "not a metacal file"),
        (b"null", "not a metacal file"),
        (b'{"format": "metacal"}', r"version must be a positive integer, but it is null\."),
        (b'{"format": "metacal", "version": true}', "version must be a positive integer"),
        (b'{"format": "metacal", "version": 0}', "version must be a positive integer"),
        (
            b'{"format": "metacal", "version": 4, "surprise": []}',
            r"newer version of metacal wrote the file \(format 4\)\. Update",
        ),
        (b'{"format": "metacal", "version": 1}', "Fit the gate again"),
        (b'{"format": "metacal", "version": 2}', "Fit the gate again"),
        (
            b'{"format": "metacal", "version": 3}',
            "metacal_version must be a string, but it is missing",
        ),
        (b'{"format": "metacal", "version": 3, "metacal_version": "1"}', "checksum does not match"),
        (
            pickle.dumps({"a": 1}),
            r"the file is a pickle, not a metacal file, and metacal does not read such files because they can run any code\.",
        ),
        (b"PK\x03\x04abcd", "the file is a zip archive"),
    ],
)
def test_bytes_that_are_no_artifact(raw, match):
    refuse(match, raw)


def test_a_file_that_is_too_large(monkeypatch, tmp_path):
    monkeypatch.setattr(wrapping, "MAX_BYTES", 1000)
    (tmp_path / "cal.json").write_bytes(b" " * 1001)
    with pytest.raises(ArtifactError, match=r"larger than .* mc\.load\(path, max_bytes=\.\.\.\)"):
        mc.load(tmp_path / "cal.json")
    with pytest.raises(ArtifactError, match="empty"):
        mc.load(tmp_path / "cal.json", max_bytes=2000)


def test_a_large_file_of_wide_characters(monkeypatch):
    """A single emoji would make Python hold every character of a long string in four bytes."""
    monkeypatch.setattr(wrapping, "_MAX_NON_ASCII_BYTES", 100_000)
    plain = b'{"format": "metacal", "x": "' + b"A" * 200_000
    for wide in ("\U0001f600".encode(), b"\\ud83d\\ude00"):
        refuse(r"larger than .* and not plain ASCII\. .* raise the limit", plain + wide + b'"}')
    refuse("version must be", plain + b'"}')


def test_too_many_values(monkeypatch):
    monkeypatch.setattr(wrapping, "_MAX_VALUES", 100)
    refuse("more values than a metacal file can have", b"[" + b"0," * 100 + b"0]")


def test_an_edited_file():
    text = artifact.dumps(fitted(ESTIMATORS["accuracy"]))
    refuse(
        "checksum does not match, because the file is damaged",
        text.replace("0.9", "0.8", 1).encode(),
    )
    # Spaces and the order of entries carry no meaning.
    loose = json.dumps(dict(reversed(json.loads(text).items())), indent=7)
    assert (
        artifact.loads(b"\xef\xbb\xbf" + loose.encode()).threshold_
        == artifact.loads(text.encode()).threshold_
    )


def at(data, *path):
    for key in path:
        data = data[key]
    return data


@pytest.mark.parametrize(
    ("path", "value", "match"),
    [
        (
            ("kind",),
            "LogisticRegression",
            r'unknown kind "LogisticRegression"\. This version of metacal supports MetaCal',
        ),
        (("kind",), ["MetaCal"], "unknown kind a list"),
        (
            ("kind",),
            "TemperatureScaling",
            r"the file claims to hold TemperatureScaling, but its stages and promise are those of a MetaCal\.",
        ),
        (("stages", 0, "source", "input"), "scores", 'must be "logits" or "probabilities"'),
        (("n_jobs",), 0, "n_jobs must be a number of threads other than 0"),
        (("n_jobs",), 1.5, r"n_jobs must be a whole number or null, but it is 1\.5\."),
        (("stages", 0, "source", "score"), "os.system", "must be one of entropy"),
        (
            ("reject_label",),
            0,
            "the classes and differ from all of them",
        ),
        (("reject_label",), "x", "reject_label must have the same type"),
        (("reject_label",), 2**70, "reject_label must be a plain value"),
        (("stages", 0, "classes"), [1], 'unexpected entry "classes"'),
        (
            ("stages", 0, "source", "classes", "dtype"),
            "object",
            "dtype must be one of str, bool, int8",
        ),
        (("stages", 0, "source", "classes", "dtype"), "int8", None),
        (("stages", 0, "source", "classes", "values"), [0, 1, 2, 2], "must not contain a name"),
        (
            ("stages", 0, "source", "classes", "values"),
            [0, 1, 2, 2**63],
            r"classes\[3\] must be of type int64",
        ),
        (
            ("stages", 0, "source", "classes", "values"),
            [0, 1, 2, "3"],
            r"classes\[3\] must be of type int64",
        ),
        (
            ("stages", 0, "source", "classes", "values"),
            [],
            "must be a list with one entry per column",
        ),
        (("feature_names",), ["a"], "list of 4 names"),
        (("stages", 0, "source", "type"), "TemperatureMap", "must be one of Table, Marks"),
        (
            ("stages", 0, "source", "map", "first", "inverse_temperature"),
            0.0,
            "positive finite number",
        ),
        (
            ("stages", 0, "source", "map", "first", "inverse_temperature"),
            "inf",
            "positive finite number",
        ),
        (
            ("stages", 0, "source", "map", "first", "inverse_temperature"),
            "1",
            r'must be a number, but it is "1"\.',
        ),
        (
            ("stages", 0, "source", "map", "first", "inverse_temperature"),
            10**400,
            "a number that is too large",
        ),
        (("stages", 0, "source", "map"), {"type": "MetaMap"}, "source.map must be one of "),
        (("stages", 0, "source", "score"), "margin", "has a different score than the certificate"),
        (
            ("stages", 0, "source", "score"),
            {"type": "TemperatureMap", "inverse_temperature": 1.0},
            "source.score must be one of LogisticRanker",
        ),
        (("stages", 0, "threshold"), 0.123, "has a different threshold than the certificate"),
        (("stages", 0, "source", "extra"), 1, 'unexpected entry "extra"'),
        (("promise", "type"), "subprocess.Popen", "promise must be one of"),
        (("promise", "beta"), 1.5, "beta must be strictly between 0 and 1"),
        (("promise", "beta"), 0.5, "does not belong to the promise"),
        (("promise", "delta"), None, "5 rows cannot be set aside"),
        (
            ("stages", 0, "source", "recipe"),
            {"type": "Pipeline", "parameters": {}},
            "recipe must be one of",
        ),
        (("certificate", "target"), 1.0, "does not belong to the promise"),
        (("certificate", "target"), "inf", "does not belong to the promise"),
        (("certificate", "delta"), 0, "does not belong to the promise"),
        (("certificate", "guarantee"), "sure", 'must be "certified" or'),
        (("certificate", "guarantee"), "none", "does not belong to the promise"),
        (("certificate", "quantity"), "miscoverage", "does not belong to the promise"),
        (("certificate", "threshold"), None, r"must be a number, but it is null\."),
        (("certificate", "threshold"), "inf", "does not separate|disagree"),
        (("certificate", "n_rows"), 10, "rows cannot be right"),
        (("certificate", "n_rows"), 600.0, r"must be a whole number, but it is 600\.0\."),
        (("certificate", "n_rows"), True, r"must be a whole number, but it is true\."),
        (("certificate", "n_accepted"), 601, "601 of 595 rows cannot be accepted"),
        (("certificate", "n_accepted"), -1, "-1 of 595 rows cannot be accepted"),
        (("certificate", "n_correct_accepted"), 599, "cannot be both accepted and right"),
        (("certificate", "n_correct"), 0, "0 of 595 rows cannot be right"),
        (("certificate", "highest_accepted"), None, "highest_accepted and n_accepted disagree"),
        (("certificate", "lowest_rejected"), -5.0, "does not separate"),
        (("certificate", "score"), "margin", "has a different score than the certificate"),
        (("certificate", "coverage"), 0.5, "coverage 0.5 does not follow from the counts"),
        (("certificate", "notes"), "all fine", "notes must be a list"),
        (("certificate", "notes"), [1], r"must be an object, but it is 1\."),
        (
            ("certificate", "notes"),
            [{"kind": "remark", "text": "\ud800"}],
            r"notes\[0\].text must be text",
        ),
        (("certificate",), [], r"certificate must be an object, but it is a list\."),
        (("surprise",), 1, 'unexpected entry "surprise"'),
    ],
)
def test_forged_values(path, value, match):
    data = document()
    at(data, *path[:-1])[path[-1]] = value
    if match is None:
        assert artifact.loads(signed(data)).classes_.dtype == value
    else:
        refuse(match, data)


@pytest.mark.parametrize(
    "path",
    [
        ("stages", 0, "threshold"),
        ("certificate", "n_rows"),
        ("promise", "beta"),
        ("stages", 0, "source", "classes"),
    ],
)
def test_missing_values(path):
    data = document()
    del at(data, *path[:-1])[path[-1]]
    refuse(f"{path[-1]!r}, which is missing", data)


def test_a_recipe_does_not_say_what_a_calibrator_reads():
    """Input and classes stand in the source; were the recipe believed, `load` and `load_gate` would
    read otherwise.
    """
    data = document(fitted(ESTIMATORS["temperature, named"]))
    data["stages"][0]["source"]["recipe"] |= {"input": "probabilities", "classes": None}
    found = artifact.loads(signed(data))
    assert (found.input, found.classes) == ("logits", NAMES.tolist())
    assert found.gate_.source.input == "logits"


def test_long_class_names_are_not_allocated():
    data = document(fitted(ESTIMATORS["named"]))
    data["stages"][0]["source"]["classes"]["values"] = ["x" * 2**20, *map(str, range(10_000))]
    refuse("names of .* are too long", data)


# ── fuzzing ───────────────────────────────────────────────────────────────────────────────────────

FUZZ = partial(
    settings, max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TEXTS = {
    name: artifact.dumps(fitted(ESTIMATORS[name])) for name in ("accuracy", "named", "temperature")
}

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(
        ["inf", "-inf", "nan", "entropy", "TemperatureMap", "Marks", "certified", "int64", ""]
    )
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


def loads_or_refuses(raw):
    try:
        estimator = artifact.loads(raw)
    except ArtifactError as error:
        complaint = str(error)
    else:
        works(estimator)
        complaint = ""
    assert "\n" not in complaint


def works(estimator):
    with np.errstate(all="ignore"):
        found = estimator.predict_proba(NEW[:, : estimator.n_features_in_])
    assert found.shape == (len(NEW), estimator.n_features_in_)
    assert np.isfinite(found).all()
    artifact.dumps(estimator)


def places(data, path=()):
    """Every path to a value in a document."""
    yield path
    items = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    )
    for key, value in items:
        yield from places(value, (*path, key))


@pytest.mark.slow
@FUZZ()
@given(st.data())
def test_mutated_values_are_refused_or_work(data):
    whole = json.loads(TEXTS[data.draw(st.sampled_from(sorted(TEXTS)))])
    del whole["checksum"]
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from([p for p in places(whole) if p]))
        parent = at(whole, *path[:-1])
        action = data.draw(st.sampled_from(["replace", "remove", "nudge", "swap"]))
        if action == "remove":
            del parent[path[-1]]
        elif action == "nudge" and type(parent[path[-1]]) in (int, float):
            parent[path[-1]] += data.draw(st.sampled_from([1, -1, 0.5, 1e-9]))
        elif action == "swap":
            other = at(whole, *data.draw(st.sampled_from([p for p in places(whole) if p])))
            parent[path[-1]] = json.loads(json.dumps(other))  # no two places share an object
        else:
            parent[path[-1]] = data.draw(VALUES)
    loads_or_refuses(signed(whole))


@pytest.mark.slow  # tests/hostile/test_artifacts.py starts with the same mutations, fewer of them
@FUZZ()
@given(st.data())
def test_mutated_bytes_are_refused(data):
    raw = bytearray(TEXTS[data.draw(st.sampled_from(sorted(TEXTS)))].encode())
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(raw)))
        raw[start : start + data.draw(st.integers(0, 40))] = data.draw(st.binary(max_size=10))
    loads_or_refuses(bytes(raw))


@pytest.mark.slow
@FUZZ(max_examples=100)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused(raw):
    with pytest.raises(ArtifactError):
        artifact.loads(raw)


def test_nothing_is_ever_unpickled_or_run(monkeypatch):
    def run(*args, **options):
        raise AssertionError("ran")

    for name in ("load", "loads"):
        monkeypatch.setattr(pickle, name, run)
    monkeypatch.setattr(os, "system", run)
    data = document()
    data["stages"][0]["source"]["score"] = "__import__('os').system('true')"
    refuse("must be one of entropy", data)
