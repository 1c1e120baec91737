"""Files of format version 3 predict the numbers they predicted when they were written.

The fixtures were written by format 1, and converted when certificates became facts, when every gate
became stages and when gates got a sketch of their rows; that of the fixtures is of made-up rows.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import metacal as mc
from contracts.write_fixtures import (
    CASE_PROMISES,
    CASES,
    OF_CASCADES,
    REWRITE,
    drawn_items,
    file_name,
    layout,
)
from metacal.certificates import words
from metacal.export import saved as artifact
from metacal.io.artifact.sources import LEARNED_SCORE_CLASSES
from metacal.maps.methods import get_all_methods
from metacal.promises.kinds import load_promise_classes
from metacal.scores import named as scores

FIXTURES = Path(__file__).parent / "fixtures"
EXPECTED = json.loads((FIXTURES / "artifact-v3-expected.json").read_text(encoding="utf-8"))


def predict_paper_map(estimator, rows, expected, **groups):
    """Predict probabilities as they were recorded: uniform for the rejected rows of a gate."""
    is_gate = expected["accept"] is not None
    options = {"rejected": "uniform"} if is_gate else {}
    return estimator.predict_proba(rows, **options, **groups)


@pytest.mark.parametrize("name", EXPECTED)
def test_version_3_predicts_what_it_predicted(name):
    estimator, expected = mc.load(FIXTURES / f"artifact-v3-{name}.json"), EXPECTED[name]
    rows = np.array(expected["rows"])
    np.testing.assert_allclose(
        predict_paper_map(estimator, rows, expected), expected["probs"], rtol=1e-12
    )
    assert estimator.predict(rows).tolist() == expected["prediction"]
    if expected["accept"] is not None:
        assert estimator.accepts(rows).tolist() == expected["accept"]


ALL = FIXTURES / "artifacts-v3"
EXPECTED_OF_ALL = json.loads((ALL / "expected.json").read_text(encoding="utf-8"))


@pytest.mark.filterwarnings("ignore:rows of groups")
@pytest.mark.parametrize("name", EXPECTED_OF_ALL)
def test_every_kind_of_version_3_predicts_what_it_predicted(name):
    estimator, expected = mc.load(ALL / f"{name}.json"), EXPECTED_OF_ALL[name]
    rows, by_group = (
        np.array(expected["rows"]),
        {name: expected[name] for name in expected if name == "groups"},
    )
    np.testing.assert_allclose(
        predict_paper_map(estimator, rows, expected, **by_group),
        expected["probs"],
        rtol=1e-9,
        atol=1e-12,
    )
    assert estimator.predict(rows, **by_group).tolist() == expected["prediction"]
    if expected["accept"] is not None:
        assert estimator.accepts(rows, **by_group).tolist() == expected["accept"]
        # Written before scores were rounded: half a step of the grid, which is even below 1 for
        # some scores.
        score = estimator.decide(rows, **by_group).score
        np.testing.assert_allclose(score, expected["score"], rtol=2.0**-31, atol=2.0**-31)
    committed = (ALL / f"{name}.json").read_text(encoding="utf-8")
    assert layout(artifact.dumps(estimator)) == layout(committed), REWRITE


def name_of_score(data):
    score = data["stages"][0]["source"]["score"]
    return score if isinstance(score, str) else score["type"]


def test_version_3_has_a_file_of_every_kind():
    saved = [
        json.loads((ALL / f"{name}.json").read_text(encoding="utf-8")) for name in EXPECTED_OF_ALL
    ]
    gates = [data for data in saved if data["kind"] == "MetaCal"]
    calibrators = {row.public_name for row in get_all_methods().values()}
    assert {data["kind"] for data in saved} == {"MetaCal", *calibrators}, REWRITE
    promises = {data["promise"]["type"] for data in gates} | OF_CASCADES | CASE_PROMISES.keys()
    assert promises == set(load_promise_classes()), REWRITE
    assert {name_of_score(data) for data in gates} == {*scores.NAMED, *LEARNED_SCORE_CLASSES}, (
        REWRITE
    )


@pytest.mark.parametrize("name", CASE_PROMISES)
def test_gates_about_cases_accept_what_they_accepted(name):
    path = CASES / f"{file_name(name)}.json"
    expected = json.loads((CASES / "expected.json").read_text(encoding="utf-8"))[path.stem]
    gate = mc.load(path)
    assert gate.promise == CASE_PROMISES[name]
    items = drawn_items()
    accept = gate.accepts(items["score"], groups=items["groups"])
    assert np.flatnonzero(accept).tolist() == expected
    assert 0 < len(expected) < len(accept)
    assert layout(artifact.dumps(gate)) == layout(path.read_text(encoding="utf-8")), REWRITE


def test_version_3_keeps_everything_else():
    gate = mc.load(FIXTURES / "artifact-v3-gate.json")
    assert gate.promise == mc.MinAccuracy(0.9)
    assert gate.classes_.tolist() == ["cat", "dog", "größe"]
    assert gate.reject_label == "rejected"
    assert gate.certificate_.n_rows == 400
    assert isinstance(gate.calibrator_, mc.TemperatureScaling)
    assert mc.load(FIXTURES / "artifact-v3-accept-all.json").score == "margin"
    assert mc.load(FIXTURES / "artifact-v3-temperature.json").input == "probabilities"


def test_the_layout_of_version_3():
    data = json.loads((FIXTURES / "artifact-v3-gate.json").read_text(encoding="utf-8"))
    assert list(data) == [
        "format",
        "version",
        "metacal_version",
        "kind",
        "n_jobs",
        "feature_names",
        "reject_label",
        "stages",
        "promise",
        "certificate",
        "data_hash",
        "sketch",
        "profile",
        "checksum",
    ]
    assert data["checksum"] == artifact.checksum(data)
    written = json.loads(artifact.dumps(mc.load(FIXTURES / "artifact-v3-gate.json")))
    for whole in (written, data):
        del whole["metacal_version"], whole["checksum"]  # these may change
    assert written == data


def test_the_names_that_files_use_stay_known():
    assert {"entropy", "max_probability", "margin", "energy"} <= set(scores.NAMED)


def test_a_gate_on_scores_of_version_3_decides_what_it_decided():
    gate = mc.load(FIXTURES / "scores-v3.json")
    expected = json.loads((FIXTURES / "scores-v3-expected.json").read_text(encoding="utf-8"))
    found = gate.decide(expected["scores"])
    assert found.accept.tolist() == expected["accept"]
    np.testing.assert_allclose(
        found.confidence, np.array(expected["confidence"], dtype=np.float64), rtol=1e-12
    )
    assert (gate.promise, gate.higher_is, gate.score_name) == (
        mc.MinAccuracy(0.85),
        "surer",
        "größe",
    )
    written = json.loads(artifact.dumps(gate))
    saved = json.loads((FIXTURES / "scores-v3.json").read_text(encoding="utf-8"))
    assert {k: v for k, v in written.items() if k not in ("metacal_version", "checksum")} == {
        k: v for k, v in saved.items() if k not in ("metacal_version", "checksum")
    }


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_from_before_the_first_release_is_refused_in_a_sentence(tmp_path, version):
    data = json.loads((FIXTURES / "artifact-v3-gate.json").read_text(encoding="utf-8"))
    data["version"] = version
    (tmp_path / "old.json").write_text(
        json.dumps({**data, "checksum": artifact.checksum(data)}), encoding="utf-8"
    )
    with pytest.raises(mc.ArtifactError, match="written before the first release of metacal"):
        mc.load(tmp_path / "old.json")


def test_words_may_change_and_files_still_load(monkeypatch):
    """A capital letter in a rule's words is no reason to refuse a file: it holds the rule's
    name.
    """
    before = mc.load(ALL / "gate-max-miscoverage.json").certificate_
    new = replace(words.RULES[before.rule], description="Umbrella", assumptions=("something else",))
    monkeypatch.setitem(words.RULES, before.rule, new)
    after = mc.load(ALL / "gate-max-miscoverage.json").certificate_
    assert after == before
    assert ("rule", "Umbrella") in after.description_lines
    assert after.assumptions == ("something else",)
