"""Nothing is saved that cannot be loaded, and no map is loaded that gives no probabilities."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import time
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.cli import main, values
from metacal.errors import ArtifactError, InputError
from metacal.estimators.metacal import MetaCal
from metacal.export import saved as artifact
from metacal.io.artifact import document, probe, sources, wrapping
from metacal.maps.isotonic import SharedMap
from metacal.maps.methods import METHODS
from metacal.maps.temperature import TemperatureMap

FIXTURES = Path(__file__).resolve().parents[1] / "contracts" / "fixtures" / "artifacts-v3"
FILES = sorted(path for path in FIXTURES.glob("*.json") if path.stem != "expected")

ROWS = np.random.default_rng(7).normal(size=(300, 3)) * 3
CODES = (ROWS + np.random.default_rng(8).normal(size=(300, 3))).argmax(1)


def run(*args, code=0):
    done = CliRunner().invoke(main, [str(arg) for arg in args])
    assert done.exit_code == code, (done.output, done.exception)
    assert "Traceback" not in done.output
    assert "unexpected" not in done.output
    return done


@pytest.fixture
def val(tmp_path):
    np.savez(tmp_path / "val.npz", logits=ROWS, labels=CODES)
    return tmp_path / "val.npz"


# ── what fit would write and nobody could read ────────────────────────────────────────────────────


@pytest.mark.parametrize("calibrator", ["temperature", "vector"])
@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (("-n", 5000), 2, "must be at most 1024, but got 5000"),
        (("-n", -5000), 2, "number of threads must be at most"),
        (("-n", 2**70), 2, "number of threads must be at most"),
        (("--reject-label", 2**64), 2, "reject_label must be an integer of at most 64 bits"),
        (("--reject-label", 2**63), 2, "reject_label must fit into a signed 64-bit integer"),
        (("--reject-label", -(2**63) - 1), 2, "reject_label must be an integer of at most 64 bits"),
        (("--classes", "cat,dog,cow"), 2, "3 names of stages[0].source.classes are too long"),
    ],
)
def test_fit_says_so_before_it_writes(val, monkeypatch, calibrator, more, code, said):
    path = val.with_name("cal.json")
    path.write_text("old")
    if "--classes" in more:
        monkeypatch.setattr("metacal.io.artifact.labels._MAX_NAME_CHARACTERS", 8)
        np.savez(val, logits=ROWS, labels=np.array(["cat", "dog", "cow"])[CODES])
    done = run(
        "fit",
        val,
        "--max-miscoverage",
        "0.1",
        "--calibrator",
        calibrator,
        "-o",
        path,
        *more,
        code=code,
    )
    assert said in " ".join(done.stderr.split())
    assert path.read_text() == "old"
    assert sorted(item.name for item in val.parent.iterdir()) == ["cal.json", "val.npz"]


def test_the_most_threads_are_the_same_on_either_side():
    assert values.MAX_JOBS == sources.MAX_JOBS


UNLOADABLE = {
    "threads": (
        {"n_jobs": 5000},
        r"n_jobs must be a number of threads other than 0 and at most 1024\.",
    ),
    "half a pair": (
        {"classes": ["a", "b", "\ud800"], "reject_label": "no"},
        r"an unpaired surrogate\. Rename it\.",
    ),
    "half a label": (
        {"classes": ["a", "b", "c"], "reject_label": "\udfff"},
        "reject_label is not",
    ),
}


@pytest.mark.parametrize("name", UNLOADABLE)
def test_what_could_not_be_loaded_is_not_saved(tmp_path, name):
    params, match = UNLOADABLE[name]
    labels = CODES if "classes" not in params else np.array(params["classes"])[CODES]
    path = tmp_path / "cal.json"
    path.write_text("old")
    gate = mc.MetaCal(mc.MaxMiscoverage(0.1), **params).fit(ROWS, labels)
    with pytest.raises(ArtifactError, match=match) as caught:
        mc.save(gate, path)
    assert "\n" not in str(caught.value)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_seeds_beyond_64_bits(tmp_path):
    cal = mc.VectorScaling(random_state=2**70, regularisation=1.0).fit(ROWS, CODES)
    with pytest.raises(ArtifactError, match="fit into 64 bits, so it"):
        mc.save(cal, tmp_path / "cal.json")


def test_names_that_come_back_as_they_were(tmp_path):
    """Control characters, composed and decomposed letters: odd names, but names."""
    names = ["\x1b[31mred", "e\u0301", "\u00e9"]
    gate = mc.MetaCal(mc.MaxMiscoverage(0.1), classes=names, reject_label="\n").fit(
        ROWS, np.array(names)[CODES]
    )
    mc.save(gate, tmp_path / "cal.json")
    assert mc.load(tmp_path / "cal.json").classes_.tolist() == names
    shown = run("show", tmp_path / "cal.json").stdout
    assert "\x1b" not in shown
    assert "\\x1b[31mred" in shown
    assert "'\\n'" in shown


def test_too_many_classes(tmp_path, monkeypatch):
    monkeypatch.setattr(wrapping, "_MAX_VALUES", 5)
    with pytest.raises(
        ArtifactError,
        match="cannot be saved, because the saved file cannot be loaded: the file holds more values",
    ):
        mc.save(mc.TemperatureScaling().fit(ROWS, CODES), tmp_path / "cal.json")
    assert not list(tmp_path.iterdir())


def test_a_file_that_load_would_refuse_as_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(wrapping, "MAX_BYTES", 300)
    monkeypatch.setattr(document, "MAX_BYTES", 300)
    cal = mc.TemperatureScaling().fit(ROWS, CODES)
    with pytest.raises(
        ArtifactError,
        match="the gate must be so large, save and load it with",
    ):
        mc.save(cal, tmp_path / "cal.json")
    mc.save(cal, tmp_path / "cal.json", max_bytes=5000)
    assert mc.load(tmp_path / "cal.json", max_bytes=5000).map_ == cal.map_


def test_a_map_changed_after_fit_is_not_saved(tmp_path):
    cal = mc.TemperatureScaling().fit(ROWS, CODES)
    cal.map_ = TemperatureMap(1e60)
    with pytest.raises(
        ArtifactError,
        match="be loaded: the calibration map does not return probabilities for flat rows in",
    ):
        mc.save(cal, tmp_path / "cal.json")


def test_what_is_read_back_must_decide_the_same(monkeypatch):
    cal = mc.TemperatureScaling().fit(ROWS, CODES)
    text = json.dumps(document.encode_document(document.SavedContent(cal.gate_)))
    other = json.loads(text.replace(repr(cal.map_.inverse_temperature), "0.123"))
    monkeypatch.setattr(
        document, "build_file_text", lambda found, key: wrapping.build_file_text(other, key)
    )
    with pytest.raises(ArtifactError, match="the loaded gate would differ"):
        artifact.dumps(cal)


def test_a_disk_that_returns_other_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "read_bytes", lambda path: b"damaged")
    with pytest.raises(InputError, match=r"the file on disk differs"):
        mc.save(mc.TemperatureScaling().fit(ROWS, CODES), tmp_path / "cal.json")
    assert not list(tmp_path.iterdir())


WITHOUT_SCIKIT_LEARN = """
import sys
from metacal.cli import main

def run(*args):
    try:
        main([*args, "-q"], prog_name="metacal")
    except SystemExit as done:
        assert not done.code, (args, done.code)
    assert "sklearn" not in sys.modules, args

_, val, out, *methods = sys.argv
for name in methods:
    run("fit", val, "--max-miscoverage", "0.1", "--calibrator", name, "-o", out)
    run("show", out)
run("report", out, val, "-o", out + ".html")
import metacal, numpy
gate = metacal.load_gate(out)
metacal.save(gate, out)
gate.decide(metacal.Rows(numpy.zeros((5, 3))))
assert "metacal.io.artifact.document" in sys.modules and "sklearn" not in sys.modules
"""


@pytest.mark.slow
def test_fit_save_show_and_load_without_scikit_learn(val):
    arguments = [
        sys.executable,
        "-c",
        WITHOUT_SCIKIT_LEARN,
        str(val),
        str(val.with_name("cal.json")),
        *METHODS,
    ]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", [*METHODS, "MetaCal"])
def test_the_parameters_in_files_are_those_of_the_estimator(name):
    cls = MetaCal if name == "MetaCal" else METHODS[name].estimator_class()
    by_name = (
        "score",
        "ranking",
        "first",
        "then",
    )  # code, or another estimator: files have its name
    elsewhere = (
        "classes",
        "positive",
        "decision",
        "promise",
        "calibrator",
        *by_name,
    )  # files have the classes in their order
    of_a_gate = {"reject_label": Any, "input": str, "n_jobs": int | None}
    hints = get_type_hints(cls if is_dataclass(cls) else cls.__init__)
    own = {key: hints[key] for key in inspect.signature(cls).parameters if key not in elsewhere}
    held = of_a_gate if name == "MetaCal" else sources.get_estimator_parameter_types(METHODS[name])
    held = {
        key: str if key == "input" else kind for key, kind in held.items() if key not in elsewhere
    }
    assert held == own


# ── maps are asked before they are trusted ────────────────────────────────────────────────────────


def forged(name, *path, value):
    """A fixture with another value somewhere in its source."""
    data = json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))
    parent = data["stages"][0]["source"]
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    return json.dumps({**data, "checksum": artifact.checksum(data)}).encode()


def test_names_that_nobody_gave_can_be_saved_again():
    loaded = artifact.loads(forged("gate-min-accuracy", "classes_given", value=False))
    assert artifact.loads(artifact.dumps(loaded).encode()).classes_.tolist() == [
        "cat",
        "dog",
        "größe",
    ]


def refused(raw):
    with pytest.raises(ArtifactError) as caught:
        artifact.loads(raw)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("b", [1e39, 1e50, 1e300])
@pytest.mark.parametrize("name", ["temperature", "ensemble-temperature"])
def test_an_inverse_temperature_that_float32_cannot_hold(name, b):
    assert "in float32: some are not finite" in refused(
        forged(name, "map", "inverse_temperature", value=b)
    )


@pytest.mark.parametrize("name", ["irm", "isotonic", "irova-ts", "top-label-isotonic"])
def test_an_increasing_curve_that_falls(name):
    data = json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))
    values = artifact.loads(json.dumps(data).encode()).map_.values[::-1]
    array = {"dtype": "<f8", "shape": [len(values)], "values": values.tolist()}
    assert "The values of an increasing curve must not decrease" in refused(
        forged(name, "map", "values", value=array)
    )


def test_steps_may_fall():
    data = json.loads((FIXTURES / "histogram.json").read_text(encoding="utf-8"))
    values = artifact.loads(json.dumps(data).encode()).map_.values[::-1]
    array = {"dtype": "<f8", "shape": [len(values)], "values": values.tolist()}
    artifact.loads(forged("histogram", "map", "values", value=array))


def test_a_map_whose_rows_do_not_sum_to_one():
    class Falling(SharedMap):
        def __post_init__(self):
            pass

    curve = Falling(np.array([0.0, 1.0]), np.array([1.0, 0.0]))
    with pytest.raises(ArtifactError, match=r"they sum to 1\.\d+"):
        probe.check_map(curve, 3)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda rows: np.full(rows.shape, np.nan), "some are not finite"),
        (lambda rows: np.full(rows.shape, -0.5), "some are not between 0 and 1"),
        (lambda rows: np.full(rows.shape, 0.5), "they sum to 1.5"),
        (lambda rows: np.ones(3), "does not return probabilities in 3 columns."),
        (lambda rows: 1 / 0, "does not support 3 columns (division by zero)"),
        (
            lambda rows: np.where(rows.dtype == np.float64, 0.5, 1 / 3) * np.ones(rows.shape),
            "in float64: they sum",
        ),
    ],
)
def test_answers_that_are_no_probabilities(answer, said):
    with pytest.raises(ArtifactError) as caught:
        probe.check_map(answer, 3)
    assert said in str(caught.value)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_probing_is_quick(path):
    """A few milliseconds; the limit leaves room for a busy machine."""
    estimator = mc.load(path)
    times = []
    for _ in range(5):
        began = time.process_time()
        probe.check_map(estimator.map_, estimator.n_features_in_)
        times.append(time.process_time() - began)
    assert min(times) < 0.05


def test_a_curve_that_costs_too_much():
    inducing = {"dtype": "<f8", "shape": [900], "values": np.linspace(-5, 5, 900).tolist()}
    raw = json.loads(forged("gaussian-process", "map", "inducing", value=inducing))
    source = raw["stages"][0]["source"]
    source["map"]["weights"] = {"dtype": "<f8", "shape": [900], "values": [0.0] * 900}
    source["classes"] = {"dtype": "int64", "values": list(range(5000))}
    raw["checksum"] = artifact.checksum(raw)
    assert "900 inducing, which is too many" in refused(json.dumps(raw).encode())


def test_given_scores_without_a_certificate():
    scored = mc.ScoreGate(mc.MinAccuracy(0.5)).fit(np.linspace(0.0, 1.0, 200), np.arange(200) > 20)
    raw = json.loads(artifact.dumps(scored))
    raw |= {"kind": "TemperatureScaling", "certificate": None, "promise": None, "data_hash": None}
    raw |= {"sketch": None, "profile": None}
    raw["stages"][0]["threshold"] = "inf"
    raw["checksum"] = artifact.checksum(raw)
    assert "scores, so the gate must have a certificate" in refused(json.dumps(raw).encode())
