"""The gate behind real classifiers: torch's and scikit-learn's, external weights, awkward outputs,
the command line.
"""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.utils import shuffle

import metacal as mc
from metacal.cli import main

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from metacal.export.onnx import attach, save_attached  # noqa: E402

BETA = 0.97


@pytest.fixture(scope="module")
def digits():
    """Shuffled: the file has one writer after the other."""
    X, y = shuffle(*load_digits(return_X_y=True), random_state=0)
    return (X / 16).astype(np.float32), y


def run(path, table):
    session = onnxruntime.InferenceSession(os.fspath(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {session.get_inputs()[0].name: table})))


def assert_promise_kept(gate, y, found, logits):
    """Decided as Python decides; and at least BETA right, up to what chance allows on these rows (3
    sd).
    """
    accept = found["accept"]
    assert (accept == gate.accepts(logits)).all()
    assert np.abs(found["probs"] - gate.predict_proba(logits)).max() < 1e-5
    right = (found["probs"].argmax(axis=1) == y)[accept]
    assert 0.2 < accept.mean() < 1.0
    assert right.mean() > BETA - 3.0 * np.sqrt(BETA * (1.0 - BETA) / accept.sum())
    assert right.mean() > (logits.argmax(axis=1) == y).mean()


# ── real models end to end ────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_network_exported_by_torch(digits, tmp_path):
    torch = pytest.importorskip("torch")
    X, y = digits
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    torch.set_num_threads(1)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    inputs, targets = torch.tensor(X[:400]), torch.tensor(y[:400])
    for _ in range(40):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(inputs), targets).backward()
        optimizer.step()
    logits = net(torch.tensor(X)).detach().numpy()
    gate = mc.MetaCal(mc.MinAccuracy(BETA)).fit(logits[400:1100], y[400:1100])
    path = tmp_path / "digits.onnx"
    torch.onnx.export(
        net,
        (inputs[:2],),
        os.fspath(path),
        dynamo=False,
        opset_version=15,
        input_names=["pixels"],
        output_names=["logits"],
        dynamic_axes={"pixels": {0: "batch"}, "logits": {0: "batch"}},
    )
    before = path.read_bytes()
    saved = save_attached(path, gate, tmp_path / "served.onnx")
    assert saved.ran
    assert (saved.opset, saved.ir_version) == (15, onnx.load(path).ir_version)
    assert saved.outputs == ("logits", "probs", "score", "accept")
    assert path.read_bytes() == before
    found = run(tmp_path / "served.onnx", X[1100:])
    assert_promise_kept(gate, y[1100:], found, found["logits"])
    assert np.abs(found["logits"] - logits[1100:]).max() < 1e-4


@pytest.mark.slow
def test_a_logistic_regression_exported_by_skl2onnx(digits, tmp_path):
    skl2onnx = pytest.importorskip("skl2onnx")
    X, y = digits
    model = LogisticRegression(max_iter=300, C=0.1).fit(X[:300], y[:300])
    logits = model.decision_function(X).astype(np.float32)
    gate = mc.MetaCal(mc.MinAccuracy(BETA)).fit(logits[300:1100], y[300:1100])
    path, served = tmp_path / "lr.onnx", tmp_path / "served.onnx"

    def export(**options):
        onnx.save(
            skl2onnx.to_onnx(model, X[:1], options={id(model): options}, target_opset=17), path
        )

    export()
    with pytest.raises(mc.InputError, match=r"ZipMap.*'zipmap': False, 'raw_scores': True"):
        save_attached(path, gate, served)
    export(zipmap=False)
    with pytest.raises(
        mc.InputError,
        match=r"holds probabilities, because it is the output of a Normalizer.*raw_scores",
    ):
        save_attached(path, gate, served)
    assert not served.exists()
    save_attached(path, gate, served, input="probabilities")
    found = run(served, X[1100:])
    assert (
        found["accept"] == gate.accepts(logits[1100:])
    ).mean() > 0.999  # its probabilities are float32
    export(zipmap=False, raw_scores=True)
    save_attached(path, gate, served)
    found = run(served, X[1100:])
    assert set(found) == {"label", "probabilities", "probs", "score", "accept"}
    assert_promise_kept(gate, y[1100:], found, found["probabilities"])


@pytest.mark.slow
def test_a_value_inside_the_graph(digits, tmp_path):
    skl2onnx = pytest.importorskip("skl2onnx")
    X, y = digits
    model = MLPClassifier((32,), max_iter=60, learning_rate_init=0.01, random_state=0).fit(
        X[:400], y[:400]
    )
    path = tmp_path / "mlp.onnx"
    onnx.save(
        skl2onnx.to_onnx(model, X[:1], options={id(model): {"zipmap": False}}, target_opset=15),
        path,
    )
    log_p = np.log(model.predict_proba(X).astype(np.float64))
    gate = mc.MetaCal(mc.MinAccuracy(BETA)).fit(log_p[400:1100], y[400:1100])
    with pytest.raises(mc.InputError, match="Softmax") as error:
        save_attached(path, gate, tmp_path / "served.onnx")
    inner = str(error.value).split("the input of the node, '")[1].split("'")[0]
    save_attached(path, gate, tmp_path / "served.onnx", logits=inner)
    found = run(tmp_path / "served.onnx", X[1100:])
    assert (found["accept"] == gate.accepts(log_p[1100:])).mean() > 0.999
    assert np.abs(found["probs"] - gate.predict_proba(log_p[1100:])).max() < 1e-5


# ── models made by hand ───────────────────────────────────────────────────────────────────────────


def linear_model(
    *,
    opset=17,
    ir_version=8,
    dtype=TensorProto.FLOAT,
    outputs=("logits",),
    width=10,
    names=("weights", "bias"),
):
    """x -> x·W + b, with further outputs that are copies."""
    rng = np.random.default_rng(0)
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    weights = numpy_helper.from_array(rng.normal(size=(4, width)).astype(kind), names[0])
    bias = numpy_helper.from_array(rng.normal(size=width).astype(kind), names[1])
    nodes = [
        helper.make_node("MatMul", ["x", names[0]], ["product"]),
        helper.make_node("Add", ["product", names[1]], [outputs[0]]),
        *(helper.make_node("Identity", [outputs[0]], [name]) for name in outputs[1:]),
    ]
    graph = helper.make_graph(
        nodes,
        "linear",
        [helper.make_tensor_value_info("x", dtype, ["n", 4])],
        [helper.make_tensor_value_info(name, dtype, ["n", width]) for name in outputs],
        [weights, bias],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version
    )


#: Operator sets and the format of the files they came with.
SETS = [(11, 6), (13, 7), (18, 8), (21, 10), (26, 13)]


@pytest.fixture(scope="module")
def gate():
    data = mc.datasets.load("cifar10-resnet110")
    return mc.MetaCal(mc.MaxMiscoverage(0.05)).fit(data.logits[:2000], data.labels[:2000])


@pytest.mark.parametrize(
    ("opset", "ir_version"),
    [
        (opset, ir) for opset, ir in SETS if opset <= onnx.defs.onnx_opset_version()
    ],  # an older onnx knows fewer
)
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE])
def test_the_models_own_operator_set_and_type(opset, ir_version, dtype, gate):
    served = attach(linear_model(opset=opset, ir_version=ir_version, dtype=dtype), gate)
    assert (served.opset_import[0].version, served.ir_version) == (opset, ir_version)
    onnx.checker.check_model(served, full_check=True)
    session = onnxruntime.InferenceSession(served.SerializeToString())
    table = (
        np.random.default_rng(1).normal(size=(50, 4)).astype(helper.tensor_dtype_to_np_dtype(dtype))
    )
    logits, probs, score, accept = session.run(["logits", "probs", "score", "accept"], {"x": table})
    assert (accept == gate.accepts(logits)).all()
    assert np.abs(probs - gate.predict_proba(logits)).max() < 1e-5
    assert np.abs(score - gate.ranking_scores(logits)).max() < 1e-6


def test_names_that_are_taken_are_not_used(gate):
    model = linear_model(
        outputs=("logits", "probs", "accept"), names=("metacal/constant_0", "score")
    )
    served = attach(model, gate, logits="logits")
    onnx.checker.check_model(served)
    names = [output.name for output in served.graph.output]
    assert names == [
        "logits",
        "probs",
        "accept",
        "metacal_probs",
        "metacal_score",
        "metacal_accept",
    ]
    found = {entry.key: entry.value for entry in served.metadata_props}
    assert json.loads(found["metacal.outputs"])["probs"] == "metacal_probs"
    onnxruntime.InferenceSession(served.SerializeToString())


def test_the_model_in_memory_is_not_changed(gate):
    model = linear_model()
    before = model.SerializeToString()
    attach(model, gate)
    assert model.SerializeToString() == before


def test_a_calibrator_alone_adds_probabilities():
    data = mc.datasets.load("cifar10-resnet110")
    served = attach(
        linear_model(),
        mc.VectorScaling(regularisation=1.0).fit(data.logits[:500], data.labels[:500]),
    )
    assert [output.name for output in served.graph.output] == ["logits", "probs"]


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            lambda: linear_model(outputs=("a", "b")),
            {},
            r"which output holds the logits\. The outputs are 'a' \(float n × 10\), 'b'",
        ),
        (
            lambda: linear_model(),
            {"logits": "nothing"},
            r"value 'nothing'\. Its outputs are 'logits'",
        ),
        (lambda: linear_model(), {"logits": "product"}, r"type of the value 'product'\."),
        (lambda: linear_model(width=7), {}, "has 7 columns, but the calibration has 10 classes"),
        (
            lambda: linear_model(opset=9, ir_version=4),
            {},
            r"operator set 9\.",
        ),
        (lambda: 3, {}, r"a path or an onnx\.ModelProto, but got int\."),
    ],
)
def test_what_does_not_fit_says_so(model, options, message, gate):
    with pytest.raises(mc.InputError, match=message):
        attach(model(), gate, **options)


def test_a_gate_is_not_attached_twice(gate):
    with pytest.raises(mc.InputError, match="already contains a metacal gate"):
        attach(attach(linear_model(), gate), gate, logits="logits")


# ── weights in files beside the model ─────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_external_weights_are_neither_read_nor_moved(gate, tmp_path):
    home = tmp_path / "model"
    home.mkdir()
    path = home / "linear.onnx"
    onnx.save(
        linear_model(), path, save_as_external_data=True, location="linear.bin", size_threshold=0
    )
    before = {item.name: (item.read_bytes(), item.stat().st_mtime_ns) for item in home.iterdir()}
    with pytest.raises(mc.InputError, match="Write the result to the same folder"):
        save_attached(path, gate, tmp_path / "served.onnx")
    saved = save_attached(path, gate, home / "served.onnx")
    assert saved.ran
    assert {name: (home / name).read_bytes() for name in before} == {
        name: kept for name, (kept, _) in before.items()
    }
    assert all((home / name).stat().st_mtime_ns == time for name, (_, time) in before.items())
    assert sorted(item.name for item in home.iterdir()) == [
        "linear.bin",
        "linear.onnx",
        "served.onnx",
    ]
    table = np.random.default_rng(1).normal(size=(20, 4)).astype(np.float32)
    found = run(home / "served.onnx", table)
    assert (found["accept"] == gate.accepts(found["logits"])).all()
    assert (found["logits"] == run(path, table)["logits"]).all()


# ── the command line ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_the_commands(gate, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mc.save(gate, "cal.json")
    onnx.save(linear_model(outputs=("a", "b")), "model.onnx")

    def call(*arguments, code=0):
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == code, done.output
        assert "Traceback" not in done.output
        return done

    answer = json.loads(
        call("attach", "model.onnx", "cal.json", "--logits", "a", "-o", "out.onnx", "--json").stdout
    )
    assert answer["outputs"] == ["a", "b", "probs", "score", "accept"]
    assert answer["promise"] == gate.certificate_.statement
    assert answer["ran"] is True
    said = call(
        "export",
        "cal.json",
        "--to",
        "onnx",
        "-o",
        "gate.onnx",
        "--dtype",
        "float16",
        "--opset",
        "13",
    )
    assert not said.stdout
    assert "operator set 13" in said.stderr
    session = onnxruntime.InferenceSession("gate.onnx")
    assert session.get_inputs()[0].type == "tensor(float16)"
    assert (
        "--logits NAME" in call("attach", "model.onnx", "cal.json", "-o", "out.onnx", code=2).stderr
    )
    assert (
        "also an input file"
        in call("attach", "model.onnx", "cal.json", "-o", "model.onnx", code=2).stderr
    )
    assert "must end in .onnx" in call("export", "cal.json", "-o", "gate.txt", code=2).stderr
    assert (
        "file does not exist"
        in call("attach", "no.onnx", "cal.json", "-o", "out.onnx", code=2).stderr
    )
    assert sorted(os.listdir()) == ["cal.json", "gate.onnx", "model.onnx", "out.onnx"]
