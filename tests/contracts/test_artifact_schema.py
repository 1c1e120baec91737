"""The JSON Schema describes every file that is saved, and refuses nothing that `load` takes."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import metacal as mc
from docs import artifact_schema as schema
from metacal.estimators import CALIBRATORS
from metacal.export import saved as artifact
from metacal.promises import both
from metacal.scores.learned import LogisticRanker, PairwiseRanker

jsonschema = pytest.importorskip("jsonschema")

FIXTURES = sorted((Path(__file__).parent / "fixtures" / "artifacts-v3").glob("*.json"))
FILES = [path for path in FIXTURES if path.stem != "expected"]
VALIDATOR = jsonschema.Draft202012Validator(schema.schema())

LOGITS = np.random.default_rng(0).normal(size=(240, 3)) * 3
LABELS = (LOGITS + np.random.default_rng(1).normal(size=(240, 3))).argmax(1)
PROMISES = [
    mc.MaxMiscoverage(0.1),
    mc.MinAccuracy(0.8),
    mc.MaxMiscoverage(0.1, delta=None),
    mc.MinAccuracy(0.8, delta=None),
    mc.paper.MaxMiscoverage(0.1),
    mc.paper.MinCoverageAccuracy(0.8),
    both.Both(0.5, 0.8),
    both.AfterLooking(alpha=0.5),
]
SCORES = ["entropy", "max_probability", "margin", "energy", LogisticRanker, PairwiseRanker]


@pytest.mark.slow
def test_it_is_a_schema_and_a_command_prints_it():
    printed = subprocess.run(
        [sys.executable, schema.__file__], capture_output=True, check=True
    ).stdout
    assert json.loads(printed) == schema.schema()
    jsonschema.Draft202012Validator.check_schema(schema.schema())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_fixtures_are_valid(path):
    VALIDATOR.validate(json.loads(path.read_text(encoding="utf-8")))


@pytest.mark.slow
def test_signed_files_are_valid():
    for path in FILES:
        data = json.loads(artifact.dumps(mc.load(path), key=bytes(range(32))))
        assert data["signature"]["algorithm"] == "hmac-sha256"
        VALIDATOR.validate(data)


@pytest.fixture(scope="module")
def gates():
    """A saved gate of every promise with every score."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for p, promise in enumerate(PROMISES):
            for s, score in enumerate(SCORES):
                ranking = score if isinstance(score, str) else score().fit(LOGITS[:90], LABELS[:90])
                found[p, s] = mc.MetaCal(promise, score=ranking).fit(LOGITS[90:], LABELS[90:])
    return {key: json.loads(artifact.dumps(gate)) for key, gate in found.items()}


@pytest.mark.slow
def test_every_promise_with_every_score_is_valid(gates):
    for saved in gates.values():
        VALIDATOR.validate(saved)
        artifact.loads(json.dumps(saved).encode())


@pytest.mark.slow
@pytest.mark.parametrize("name", CALIBRATORS)
def test_every_calibrator_is_valid_in_gates_of_promises_in_turn(name, gates):
    """The calibrator is fitted once and put into a third of the gates: promise and score do not
    depend on it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = json.loads(artifact.dumps(CALIBRATORS[name]().fit(LOGITS, LABELS)))
    VALIDATOR.validate(alone)
    position = list(CALIBRATORS).index(name)
    expected = artifact.loads(json.dumps(alone).encode()).predict_proba(LOGITS)
    for p in range(position % 3, len(PROMISES), 3):
        gate = gates[p, (p + position) % len(SCORES)]
        data, learned = copy.deepcopy(gate), alone["stages"][0]["source"]
        data["stages"][0]["source"] |= {"recipe": learned["recipe"], "map": learned["map"]}
        data["checksum"] = artifact.checksum(data)
        VALIDATOR.validate(data)
        loaded = artifact.loads(json.dumps(data).encode())
        kept = loaded.accepts(LOGITS)
        paper_map = np.where(kept[:, None], expected, 1 / 3)
        for rejected, probabilities in (("calibrated", expected), ("uniform", paper_map)):
            np.testing.assert_allclose(
                loaded.predict_proba(LOGITS, rejected=rejected), probabilities, rtol=1e-12
            )


#: Changes that break the schema: path, new value (KeyError: remove it).
INVALID = [
    (("format",), "skops"),
    (("version",), 2),
    (("version",), "1"),
    (("kind",), "Pipeline"),
    (("checksum",), "md5:0"),
    (("surprise",), 1),
    (("signature",), None),
    (("signature",), "0" * 64),
    (("signature",), {"algorithm": "none", "value": ""}),
    (("signature",), {"algorithm": "hmac-sha256", "value": "0" * 128}),
    (("signature",), {"algorithm": "ed25519", "value": "0" * 64}),
    (("feature_names",), [1, 2, 3]),
    (("stages", 0, "source", "classes", "dtype"), "float16"),
    (("stages", 0, "source", "classes", "values"), []),
    (("stages", 0, "source", "classes", "values"), [None, 1, 2]),
    (("stages", 0, "source", "classes_given"), 1),
    (("stages", 0, "source", "input"), "scores"),
    (("n_jobs",), 0),
    (("n_jobs",), 5000),
    (("stages", 0, "source", "score"), "doubt"),
    (("stages", 0, "source", "score"), KeyError),
    (("promise", "type"), "Exactly"),
    (("promise", "beta"), 1.0),
    (("promise", "delta"), "0.1"),
    (("promise",), []),
    (("stages", 0, "source", "recipe", "type"), "LogisticRegression"),
    (("certificate", "quantity"), "accuracy"),
    (("certificate", "guarantee"), "sure"),
    (("certificate", "target"), 0),
    (("certificate", "delta"), 1),
    (("certificate", "n_rows"), -1),
    (("certificate", "n_rows"), 1.5),
    (("certificate", "threshold"), None),
    (("certificate", "threshold"), "nan"),
    (("certificate", "notes"), "none"),
    (("certificate", "max_miscoverage"), None),
    (("certificate", "coverage"), KeyError),
    (("data_hash",), 5),
    (("data_hash",), KeyError),
    (("data_hash",), "sha256:0"),
    (("stages", 0, "source", "type"), "TemperatureMap"),
    (("stages", 0, "source", "map"), {"type": "MetaMap"}),
    (("stages", 0, "source", "map", "coefficients", "dtype"), "<f4"),
    (("stages", 0, "source", "map", "coefficients", "dtype"), "|O"),
    (("stages", 0, "source", "map", "coefficients", "shape"), [-4]),
    (("stages", 0, "source", "map", "coefficients", "shape"), "4"),
    (("stages", 0, "source", "map", "coefficients", "values"), ["1", "2", "3", "4"]),
    (("stages", 0, "source", "map", "coefficients", "base64"), "AAAA"),
    (("stages", 0, "source", "map", "extra"), 1),
    (("stages", 0, "source", "score"), {"type": "OtherRanker"}),
    (("stages", 0, "threshold"), True),
]


@pytest.mark.parametrize(
    ("path", "value"),
    INVALID,
    ids=lambda part: ".".join(map(str, part)) if isinstance(part, tuple) else None,
)
def test_what_the_schema_refuses_load_refuses(path, value):
    text = next(path for path in FILES if path.stem == "gate-min-accuracy").read_text(
        encoding="utf-8"
    )
    data = copy.deepcopy(json.loads(text))
    parent = data
    for key in path[:-1]:
        parent = parent[key]
    if value is KeyError:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    assert not VALIDATOR.is_valid(data)
    if path != ("checksum",):
        data["checksum"] = artifact.checksum(data)
    with pytest.raises(mc.ArtifactError):
        artifact.loads(json.dumps(data).encode())


# ── gates on scores ───────────────────────────────────────────────────────────────────────────────

ON_SCORES = json.loads(
    (Path(__file__).parent / "fixtures" / "scores-v3.json").read_text(encoding="utf-8")
)
INVALID_ON_SCORES = [
    (("stages", 0, "source", "higher_is"), "better"),
    (("stages", 0, "source", "score"), 7),
    (("stages", 0, "source", "input"), "logits"),
    (("stages", 0, "source", "curve", "type"), "SplineMap"),
    (("stages", 0, "source", "curve", "knots"), None),
    (("stages", 0, "threshold"), "much"),
    (("data_hash",), "md5:0"),
    (("stages", 0, "source", "classes"), {"dtype": "int64", "values": [0, 1]}),
    (("promise",), KeyError),
    (("certificate",), KeyError),
    (("stages", 0, "source", "curve"), KeyError),
]


def test_a_gate_on_scores_is_valid():
    VALIDATOR.validate(ON_SCORES)
    bare = copy.deepcopy(ON_SCORES) | {"data_hash": None}
    bare["stages"][0]["source"]["curve"] = None
    VALIDATOR.validate(bare)


@pytest.mark.parametrize(("path", "value"), INVALID_ON_SCORES, ids=lambda value: str(value)[:40])
def test_what_the_schema_refuses_of_a_gate_on_scores_load_refuses(path, value):
    data = json.loads(json.dumps(ON_SCORES))
    place = data
    for key in path[:-1]:
        place = place[key]
    if value is KeyError:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    assert not VALIDATOR.is_valid(data)
    data["checksum"] = artifact.checksum(data)
    with pytest.raises(mc.ArtifactError):
        artifact.loads(json.dumps(data).encode())


@pytest.mark.parametrize(
    "promise",
    [
        mc.MaxCaseErrors(0.2),
        mc.MaxCaseErrors(0.3, among="automated"),
        mc.MinCaseRecall(0.5),
        mc.MaxErrorsPerCase(0.3, largest=3),
    ],
    ids=repr,
)
@pytest.mark.parametrize("has_types", [False, True])
def test_gates_about_cases_are_valid(promise, has_types):
    rng = np.random.default_rng(0)
    score = rng.random(900)
    gate = mc.ScoreGate(promise).fit(
        score,
        rng.random(900) < score,
        cases=np.arange(900) // 3,
        groups=np.arange(900) % 3 if has_types else None,
    )
    VALIDATOR.validate(json.loads(artifact.dumps(gate)))
