"""A threshold for each class or group, exported: every row is decided as Python decides it."""

from __future__ import annotations

import json

import numpy as np
import pytest

import metacal as mc

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
torch = pytest.importorskip("torch")

from metacal.export.onnx import save, save_attached, to_onnx  # noqa: E402
from metacal.export.torch import CalibratedModule, to_module  # noqa: E402

K = 5


def made_up(n, n_classes=K, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(n_classes, size=n)
    X = (
        rng.normal(size=(n, n_classes))
        + np.linspace(1.0, 6.0, n_classes)[y][:, None] * np.eye(n_classes)[y]
    ).astype(np.float32)
    X[: n // 10] = np.round(X[: n // 10])  # ties for the first place
    return X, y


def by_class(n_classes=K, score="entropy", **options):
    X, y = made_up(300 * n_classes, n_classes)
    return mc.MetaCal(mc.PerClass(mc.MinAccuracy(0.9), shares="each"), score=score, **options).fit(
        X, y
    )


def by_group():
    X, y = made_up(1500)
    groups = np.array(["a", "b", "c"])[np.arange(len(X)) % 3]
    return mc.MetaCal(mc.PerGroup(mc.MinAccuracy(0.8))).fit(X, y, groups=groups)


def session(model):
    return onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize(("n_classes", "score"), [(K, "entropy"), (K, "margin"), (40, "entropy")])
def test_onnx_decides_like_python_by_class(n_classes, score, dtype):
    cal = by_class(n_classes, score)
    X = made_up(20000, n_classes, seed=1)[0].astype(dtype)
    probs, _, accept = session(to_onnx(cal, dtype=dtype)).run(None, {"logits": X})
    expected = cal.accepts(X)
    assert 0 < expected.sum() < len(X)
    assert len(set(cal.gate_.subgroup_thresholds.subgroup_thresholds)) > 2
    assert (accept == expected).all()
    tolerance = 2e-6 if dtype != "float16" else 2e-3
    np.testing.assert_allclose(probs, cal.predict_proba(X), atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("opset", [11, 13, 18])
def test_onnx_by_group_at_every_operator_set(tmp_path, opset):
    cal, X = by_group(), made_up(5000, seed=1)[0]
    saved = save(cal, tmp_path / "gate.onnx", opset=opset)
    assert json.loads(saved.metadata["metacal.groups"]) == ["a", "b", "c"]
    assert saved.metadata["metacal.group_input"] == "group"
    model = onnxruntime.InferenceSession(
        str(tmp_path / "gate.onnx"), providers=["CPUExecutionProvider"]
    )
    assert [entry.name for entry in model.get_inputs()] == ["logits", "group"]
    codes = np.arange(len(X)) % 6 - 1  # -1, 3 and 4 are no group
    names = np.where(
        (codes >= 0) & (codes < 3), np.array(["a", "b", "c"])[np.clip(codes, 0, 2)], "other"
    )
    accept = model.run(["accept"], {"logits": X, "group": codes.astype(np.int64)})[0]
    with pytest.warns(mc.MetacalWarning, match="other"):
        assert (accept == cal.accepts(X, groups=names)).all()
    assert not accept[(codes < 0) | (codes > 2)].any()


def test_onnx_of_probabilities():
    X, y = made_up(1500)
    powers = np.exp(X - X.max(axis=1, keepdims=True)).astype(np.float64)
    P = powers / powers.sum(axis=1, keepdims=True)
    cal = mc.MetaCal(mc.PerClass(mc.MinAccuracy(0.85)), input="probabilities").fit(P, y)
    accept = session(to_onnx(cal, dtype="float64")).run(["accept"], {"logits": P})[0]
    assert (accept == cal.accepts(P)).all()


def classifier(path, width=7):
    rng = np.random.default_rng(3)
    weights = onnx.numpy_helper.from_array(rng.normal(size=(width, K)).astype(np.float32), "w")
    make = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        "model",
        [make("x", 1, ["batch", width])],
        [make("y", 1, ["batch", K])],
        [weights],
    )
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8
    )
    path.write_bytes(model.SerializeToString())
    return onnx.numpy_helper.to_array(weights)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["class", "group"])
def test_attached_to_a_classifier(tmp_path, by):
    cal = by_class() if by == "class" else by_group()
    weights = classifier(tmp_path / "model.onnx")
    saved = save_attached(tmp_path / "model.onnx", cal, tmp_path / "served.onnx")
    assert saved.ran
    x = np.random.default_rng(0).normal(size=(500, 7)).astype(np.float32)
    feed = {"x": x} if by == "class" else {"x": x, "group": np.arange(500) % 3}
    model = onnxruntime.InferenceSession(
        str(tmp_path / "served.onnx"), providers=["CPUExecutionProvider"]
    )
    logits, accept = model.run(["y", "accept"], feed)
    more = {} if by == "class" else {"groups": np.array(["a", "b", "c"])[np.arange(500) % 3]}
    assert (accept == cal.accepts(logits, **more)).all()
    np.testing.assert_allclose(logits, x @ weights, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_torch_decides_like_python(dtype):
    X = torch.from_numpy(made_up(5000, seed=2)[0]).to(dtype)
    cal = by_class()
    probs, _, accept = to_module(cal)(X)
    assert (accept.numpy() == cal.accepts(X.numpy())).all()
    tolerance = 1e-5 if dtype != torch.float16 else 2e-3
    np.testing.assert_allclose(probs.numpy(), cal.predict_proba(X.numpy()), atol=tolerance)
    cal, codes = by_group(), torch.arange(5000) % 3
    accept = to_module(cal)(X, codes)[2]
    assert (
        accept.numpy() == cal.accepts(X.numpy(), groups=np.array(["a", "b", "c"])[codes.numpy()])
    ).all()
    assert not to_module(cal)(X, codes + 7)[2].any()


def test_torch_says_what_it_needs():
    X = torch.zeros(2, K)
    with pytest.raises(mc.InputError, match=r"a, b, c.*gate\(logits, group\)"):
        to_module(by_group())(X)
    with pytest.raises(mc.InputError, match="the same threshold for all rows"):
        to_module(by_class())(X, torch.zeros(2))


@pytest.mark.slow
@pytest.mark.parametrize("by", ["class", "group"])
@pytest.mark.parametrize("how", ["trace", "export"])
def test_exported_torch_modules(by, how):
    cal = by_class() if by == "class" else by_group()
    module, X = to_module(cal), torch.from_numpy(made_up(1000, seed=2)[0])
    given = (X,) if by == "class" else (X, torch.arange(1000) % 3)
    exported = (
        torch.jit.trace(module, given)
        if how == "trace"
        else torch.export.export(module, given).module()
    )
    assert (exported(*given)[2] == module(*given)[2]).all()


def test_a_classifier_does_not_see_the_group():
    model, cal = torch.nn.Linear(7, K), by_group()
    x, codes = torch.randn(50, 7), torch.arange(50) % 3
    served = CalibratedModule(model, cal)
    accept = served(x, group=codes)[2]
    assert (accept == to_module(cal)(model(x).detach(), codes)[2]).all()
