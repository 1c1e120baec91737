"""Export of a gate whose promise is about cases: a threshold for each item type, without cases."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.cli import main

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

FIELDS = np.array(["date", "name", "total"])


def draw_items(n_cases, seed):
    """Draw scores, correctness and the index of the type of each item."""
    rng = np.random.default_rng(seed)
    correct = rng.random((n_cases, 3)) < [0.9, 0.97, 0.7]
    score = (2.0 * correct + rng.normal(size=correct.shape)).astype(np.float32)
    return score.ravel(), correct.ravel(), np.tile(np.arange(3), n_cases)


@pytest.mark.parametrize(
    "promise",
    [mc.MaxCaseErrors(0.2), mc.MaxCaseErrors(0.2, among="automated"), mc.MinCaseRecall(0.8)],
    ids=str,
)
@pytest.mark.parametrize("has_types", [True, False])
def test_the_exported_gate_decides_on_items_as_python_does(promise, has_types, tmp_path):
    score, correct, types = draw_items(800, 0)
    groups = FIELDS[types] if has_types else None
    gate = mc.ScoreGate(promise).fit(
        score, correct, cases=np.repeat(np.arange(800), 3), groups=groups
    )
    gate.save(tmp_path / "gate.json")
    words = ["export", str(tmp_path / "gate.json"), "-o", str(tmp_path / "gate.onnx")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output

    session = runtime.InferenceSession(tmp_path / "gate.onnx")
    names = [entry.name for entry in session.get_inputs()]
    new_score, _, new_types = draw_items(500, 1)
    inputs = {names[0]: new_score}
    if has_types:
        assert len(names) == 2
        inputs[names[1]] = new_types.astype(np.int64)
        expected = gate.accepts(new_score, groups=FIELDS[new_types])
    else:
        assert len(names) == 1
        expected = gate.accepts(new_score)
    (accept,) = session.run(["accept"], inputs)
    np.testing.assert_array_equal(accept, expected)
    assert 0 < accept.sum() < len(accept)
    if has_types:
        # Items of a type without a threshold are decided as in Python.
        inputs[names[1]] = np.full(len(new_score), 3)
        (accept,) = session.run(["accept"], inputs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = gate.accepts(new_score, groups=np.full(len(new_score), "unknown"))
        np.testing.assert_array_equal(accept, expected)
    metadata = session.get_modelmeta().custom_metadata_map
    assert any(gate.certificate_.statement in text for text in metadata.values())
