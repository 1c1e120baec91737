"""Gates of several stages, and on scores by group, as one graph that answers as `Gate.decide`
does.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

import metacal as mc
from metacal.gate import Gate, Stage
from metacal.gate.thresholds import SingleThreshold

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from metacal.export.onnx import save, to_onnx  # noqa: E402


def run(path, **given):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, given)))


@pytest.fixture(scope="module")
def models():
    rng = np.random.default_rng(0)
    y = rng.integers(5, size=3000)
    return y, *(rng.normal(size=(3000, 5)) + gap * np.eye(5)[y] for gap in (3.0, 4.0))


@pytest.fixture(scope="module")
def cascade(models):
    y, small, large = (part[:2000] for part in models)
    return mc.Cascade(promise=mc.MinAccuracy(0.985)).fit(small, y, large=large)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"dtype": "float64", "rejected": "uniform"}, {"opset": 11, "ir_version": 3}],
    ids=str,
)
def test_any_number_of_stages(options, models, cascade, tmp_path):
    small, large = (table[2000:].astype(options.get("dtype", "float32")) for table in models[1:])
    first, second = cascade.gate_.stages
    gate = Gate(
        (Stage(first.source, SingleThreshold(0.2), "tiny"), first, second), cascade.certificate_
    )
    saved = save(gate, tmp_path / "gate.onnx", **options)
    assert saved.outputs == ("probs", "answered_by", "accept", "score")
    assert json.loads(saved.metadata["metacal.answered_by"]) == ["tiny", "small", "large", "person"]
    assert saved.metadata["metacal.small_threshold"] == repr(first.thresholds.threshold)
    found = run(tmp_path / "gate.onnx", logits_tiny=small, logits_small=small, logits_large=large)
    wanted = gate.decide(small, small, large, rejected=options.get("rejected"))
    assert set(wanted.by) == {0, 1, 2, 3}
    np.testing.assert_array_equal(found["answered_by"], wanted.by)
    np.testing.assert_array_equal(found["accept"], wanted.accept)
    np.testing.assert_allclose(found["probs"], wanted.probabilities, atol=1e-5)


@pytest.mark.slow
def test_a_cascade_of_probabilities(models, cascade, tmp_path):
    """Fitted on logits, it can stand behind models that give probabilities, as a gate of one stage
    can.
    """
    tables = [
        np.exp(table[2000:] - table[2000:].max(axis=1, keepdims=True)) for table in models[1:]
    ]
    small, large = (powers / powers.sum(axis=1, keepdims=True) for powers in tables)
    save(cascade, tmp_path / "gate.onnx", dtype="float64", input="probabilities")
    found = run(tmp_path / "gate.onnx", logits_small=small, logits_large=large)
    np.testing.assert_array_equal(
        found["answered_by"], cascade.gate_.decide(*(t[2000:] for t in models[1:])).by
    )


def test_one_stage_of_a_cascade(models, cascade):
    model = to_onnx(cascade.gate_.stage(0), dtype="float64")
    assert [entry.name for entry in model.graph.input] == ["logits"]
    accept = run(model.SerializeToString(), logits=models[1])["accept"]
    np.testing.assert_array_equal(accept, ~cascade.needs_large(models[1]))


@pytest.fixture(scope="module")
def marks():
    rng = np.random.default_rng(1)
    score = rng.random(1800)
    return score, rng.random(1800) < score


@pytest.mark.slow
def test_stages_of_scores(marks, tmp_path):
    score, right = marks
    judge = mc.ScoreGate(mc.MaxMiscoverage(0.6)).fit(score, right).gate_
    panel = mc.ScoreGate(mc.MaxMiscoverage(0.2), higher_is="doubtful").fit(-(score**2), right).gate_
    stages = (
        Stage(judge.source, judge.thresholds, "judge"),
        Stage(panel.source, panel.thresholds, "panel"),
    )
    gate = Gate(stages, judge.certificate)
    assert save(gate, tmp_path / "gate.onnx", dtype="float64").outputs == (
        "confidence",
        "answered_by",
        "accept",
    )
    found = run(tmp_path / "gate.onnx", scores_judge=score, scores_panel=-(score**2))
    wanted = gate.decide(score, -(score**2))
    assert set(wanted.by) == {0, 1, 2}
    np.testing.assert_array_equal(found["answered_by"], wanted.by)
    np.testing.assert_allclose(found["confidence"], wanted.confidence, atol=1e-9)


@pytest.mark.slow
def test_scores_by_group(marks, tmp_path):
    score, right = marks
    names, numbers = np.array(["north", "south"]), np.arange(1800) % 2
    cal = mc.ScoreGate(mc.PerGroup(mc.MaxMiscoverage(0.4))).fit(score, right, groups=names[numbers])
    saved = save(cal, tmp_path / "gate.onnx", dtype="float64")
    assert json.loads(saved.metadata["metacal.groups"]) == ["north", "south"]
    accept = run(tmp_path / "gate.onnx", scores=score, group=numbers)["accept"]
    np.testing.assert_array_equal(accept, cal.gate_.accepts(score, names[numbers]))
    assert 0 < accept.sum() < len(accept)
    assert not run(tmp_path / "gate.onnx", scores=score, group=numbers + 2)["accept"].any()
