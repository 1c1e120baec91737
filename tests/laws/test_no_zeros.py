"""No map gives a possible class probability 0 or 1, in any precision or runtime: a log loss is
never infinite.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import metacal as mc
from metacal.gate import LogitsSource
from metacal.maps.methods import METHODS, get_calibrator_class

N_CLASSES = 4


def hostile_rows() -> np.ndarray:
    """Rows that drive a softmax to its ends: far apart, tied, huge, tiny, and one far below all."""
    random = np.random.default_rng(0)
    far = random.normal(0.0, 200.0, (40, N_CLASSES))
    huge = random.normal(0.0, 1e6, (10, N_CLASSES))
    tied = np.repeat(random.normal(0.0, 50.0, (5, 1)), N_CLASSES, axis=1)
    floored = np.where(
        random.random((40, N_CLASSES)) < 0.5, -27.6, random.normal(0.0, 1.0, (40, N_CLASSES))
    )
    steep = np.eye(N_CLASSES)[random.integers(N_CLASSES, size=20)] * 800.0
    return np.concatenate([far, huge, tied, floored, steep])


@pytest.fixture(scope="module")
def fitted():
    random = np.random.default_rng(1)
    logits = random.normal(0.0, 6.0, (500, N_CLASSES))
    labels = (0.4 * logits + random.gumbel(size=logits.shape)).argmax(axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: get_calibrator_class(name)().fit(logits, labels) for name in METHODS}


def check(proba: np.ndarray, rows: np.ndarray, keeps: bool) -> None:
    assert np.all(proba > 0.0)
    assert np.all(proba < 1.0)
    assert np.allclose(proba.sum(axis=1), 1.0, atol=1e-5)
    if keeps:
        assert np.array_equal(proba.argmax(axis=1), rows.argmax(axis=1))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_calibrator_gives_zero_or_one(fitted, name, dtype):
    rows, cal = hostile_rows().astype(dtype), fitted[name]
    proba = cal.predict_proba(rows)
    assert proba.dtype == dtype
    check(proba, rows, cal.map_.preserves_accuracy)
    gate = mc.Gate.from_source(LogitsSource(cal.map_, np.arange(N_CLASSES)))
    check(gate.decide(mc.Rows(rows)).probabilities, rows, cal.map_.preserves_accuracy)


@pytest.mark.parametrize("name", ["temperature", "composed", "platt", "isotonic", "structured"])
def test_a_masked_class_keeps_zero_and_the_only_possible_one_has_all(fitted, name):
    rows = np.array(
        [[900.0, -900.0, -np.inf, 0.0], [3.0, -np.inf, -np.inf, -np.inf]], dtype=np.float32
    )
    proba = fitted[name].predict_proba(rows)
    assert (proba[0, 2], proba[1].tolist()) == (0.0, [1.0, 0.0, 0.0, 0.0])
    assert proba[0, [0, 1, 3]].min() > 0.0
    assert proba[0].max() < 1.0


@pytest.mark.parametrize(
    "name", ["temperature", "composed", "beta", "local-temperature", "top-label-histogram"]
)
def test_torch_says_the_same(fitted, name):
    torch = pytest.importorskip("torch")
    from metacal.export.torch import to_module

    cal = fitted[name]
    module = to_module(mc.Gate.from_source(LogitsSource(cal.map_, np.arange(N_CLASSES))))
    for dtype in (np.float32, np.float64):
        rows = hostile_rows().astype(dtype)
        check(module(torch.from_numpy(rows))[0].numpy(), rows, cal.map_.preserves_accuracy)


@pytest.mark.parametrize(
    "name", ["temperature", "composed", "beta", "local-temperature", "top-label-histogram"]
)
def test_onnx_says_the_same(fitted, name):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    from metacal.export.onnx import to_onnx

    cal, rows = fitted[name], hostile_rows().astype(np.float32)
    model = to_onnx(mc.Gate.from_source(LogitsSource(cal.map_, np.arange(N_CLASSES))))
    session = runtime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    check(session.run(["probs"], {"logits": rows})[0], rows, cal.map_.preserves_accuracy)
    masked = np.array(
        [[900.0, -900.0, -np.inf, 0.0], [3.0, -np.inf, -np.inf, -np.inf]], dtype=np.float32
    )
    found = session.run(["probs"], {"logits": masked})[0]
    assert (found[0, 2], found[1].tolist()) == (0.0, [1.0, 0.0, 0.0, 0.0])
    assert found[0, 1] > 0.0
