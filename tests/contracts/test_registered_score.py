"""A score from outside: registered once, then chosen, saved, loaded and exported by its name."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import metacal as mc
from metacal.scores import NAMED, NamedScore, register_score

MODULE = '''
def largest(xp, x):
    """The largest logit, negative."""
    return -xp.max(x)
'''


@pytest.fixture
def registered(tmp_path, monkeypatch):
    (tmp_path / "toy_score.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    register_score(NamedScore("toy", "toy_score:largest", absolute_error=True))
    yield "toy"
    del NAMED["toy"]
    sys.modules.pop("toy_score", None)


def test_it_is_chosen_saved_and_exported_by_its_name(registered, cifar10, tmp_path):
    logits, labels = cifar10.logits[:1500], cifar10.labels[:1500]
    cal = mc.MetaCal(mc.MaxMiscoverage(0.1), score="toy").fit(logits, labels)
    accept = cal.accepts(logits)
    assert 0 < accept.mean() < 1
    mc.save(cal, tmp_path / "cal.json")
    np.testing.assert_array_equal(mc.load(tmp_path / "cal.json").accepts(logits), accept)

    torch = pytest.importorskip("torch")
    from metacal.export.torch import to_module

    np.testing.assert_array_equal(to_module(cal)(torch.from_numpy(logits))[2].numpy(), accept)
    runtime = pytest.importorskip("onnxruntime")
    from metacal.export.onnx import to_onnx

    session = runtime.InferenceSession(to_onnx(cal).SerializeToString())
    np.testing.assert_array_equal(session.run(["accept"], {"logits": logits})[0], accept)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (NamedScore("margin", "a:b"), "A score named 'margin' is already"),
        (NamedScore("new", "nowhere"), "module:func"),
    ],
)
def test_a_wrong_row_is_refused(row, message):
    with pytest.raises(mc.InputError, match=message):
        register_score(row)
