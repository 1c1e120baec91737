"""attach: a model that could not be run, has other classes than it says, or gives probabilities is
refused.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

import metacal as mc
from metacal.cli import main

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from metacal.export.onnx import attach, save_attached  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::metacal.errors.MetacalWarning")


@pytest.fixture(scope="module")
def gate():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(500, 5)) * 3
    return mc.MetaCal(mc.MaxMiscoverage(0.1)).fit(
        table, (table + rng.gumbel(size=table.shape)).argmax(axis=1)
    )


def written(folder, nodes, inputs, outputs, constants=None, opset=15):
    """A model of these nodes, in a file."""
    make = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node(kind, *rest[:2], **(rest[2] if len(rest) > 2 else {}))
            for kind, *rest in nodes
        ],
        "model",
        [make(name, *kind) for name, kind in inputs.items()],
        [make(name, *kind) for name, kind in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def weights(rows, columns):
    return np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32)


FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
LINEAR = [("MatMul", ["x", "w"], ["logits"])]


def assert_left_alone(folder):
    assert [item.name for item in folder.iterdir()] == ["model.onnx"]


@pytest.mark.parametrize(
    "declared", [["n", 5], ["n", "k"], None], ids=["wrongly", "not at all", "no shape"]
)
def test_a_model_with_another_number_of_classes(declared, gate, tmp_path):
    path = written(
        tmp_path,
        LINEAR,
        {"x": (FLOAT, ["n", 5])},
        {"logits": (FLOAT, declared)},
        {"w": weights(5, 6)},
    )
    with pytest.raises((mc.InputError, mc.ArtifactError), match=r"column|shape|Dimension|checker"):
        save_attached(path, gate, tmp_path / "out.onnx", logits="logits", unchecked=True)
    assert_left_alone(tmp_path)


def test_a_model_that_also_gives_text(gate, tmp_path):
    """Labels by their names, as scikit-learn's classifiers give them."""
    nodes = [
        *LINEAR,
        ("ArgMax", ["logits"], ["code"], {"axis": 1, "keepdims": 0}),
        ("Cast", ["code"], ["label"], {"to": TensorProto.STRING}),
    ]
    outputs = {"label": (TensorProto.STRING, ["n"]), "logits": (FLOAT, ["n", 5])}
    path = written(tmp_path, nodes, {"x": (FLOAT, ["n", 5])}, outputs, {"w": weights(5, 5)})
    saved = save_attached(path, gate, tmp_path / "out.onnx")
    assert saved.ran
    assert saved.outputs == ("label", "logits", "probs", "score", "accept")


def test_the_reason_names_both_numbers(gate, tmp_path):
    path = written(
        tmp_path,
        LINEAR,
        {"x": (FLOAT, ["n", 5])},
        {"logits": (FLOAT, ["n", 5])},
        {"w": weights(5, 6)},
    )
    with pytest.raises(
        mc.InputError,
        match=r"has 6 columns for every input, but the calibration has 5 classes",
    ):
        save_attached(path, gate, tmp_path / "out.onnx")


def test_the_served_graph_counts_the_columns_itself(gate, tmp_path):
    """A width that only the inputs decide: the model runs on five columns, and fails on any other
    number.
    """
    path = written(
        tmp_path,
        [("Neg", ["x"], ["logits"])],
        {"x": (FLOAT, ["n", "k"])},
        {"logits": (FLOAT, ["n", "k"])},
    )
    given = {"x": np.random.default_rng(0).normal(size=(20, 5)).astype(np.float32)}
    assert save_attached(path, gate, tmp_path / "out.onnx", inputs=given).ran
    session = onnxruntime.InferenceSession(
        str(tmp_path / "out.onnx"), providers=["CPUExecutionProvider"]
    )
    logits, accept = session.run(["logits", "accept"], given)
    np.testing.assert_array_equal(accept, gate.accepts(logits))
    assert session.run(["accept"], {"x": given["x"][:0]})[0].shape == (0,)
    for width in (1, 4, 6, 10):  # 10 × 10 could be read as 20 × 5
        with pytest.raises(Exception, match="one_column_per_class"):
            session.run(["accept"], {"x": np.zeros((10, width), dtype=np.float32)})


@pytest.mark.parametrize(
    ("nodes", "inputs", "constants"),
    [
        (LINEAR, {"x": (FLOAT, ["n", 7])}, {"w": weights(7, 5)}),
        (LINEAR, {"x": (FLOAT, [1, 7])}, {"w": weights(7, 5)}),
        (
            [
                ("Gather", ["w", "ids"], ["e"], {"axis": 0}),
                ("ReduceMean", ["e"], ["logits"], {"axes": [1], "keepdims": 0}),
            ],
            {"ids": (INT64, ["batch", "length"])},
            {"w": weights(9, 5)},
        ),
        (
            [
                ("Gather", ["w", "ids"], ["e"], {"axis": 0}),
                ("Cast", ["mask"], ["m"], {"to": 1}),
                ("Unsqueeze", ["m", "two"], ["wide"]),
                ("Mul", ["e", "wide"], ["kept"]),
                ("ReduceMean", ["kept"], ["logits"], {"axes": [1], "keepdims": 0}),
            ],
            {"ids": (INT64, ["batch", "length"]), "mask": (INT64, ["batch", "length"])},
            {"w": weights(1, 5), "two": np.array([2])},
        ),
        (
            [
                ("Conv", ["image", "kernel"], ["maps"]),
                ("GlobalAveragePool", ["maps"], ["mean"]),
                ("Flatten", ["mean"], ["logits"]),
            ],
            {"image": (FLOAT, ["n", "c", "h", "w"])},
            {"kernel": weights(5, 3 * 9 * 9).reshape(5, 3, 9, 9)},
        ),
        (
            [
                ("Cast", ["image"], ["float"], {"to": 1}),
                ("Flatten", ["float"], ["flat"]),
                ("MatMul", ["flat", "w"], ["logits"]),
            ],
            {"image": (TensorProto.UINT8, ["n", 3, 8, 8])},
            {"w": weights(192, 5) / 500},
        ),
    ],
    ids=[
        "table",
        "batch of one",
        "tokens",
        "tokens and mask, one word",
        "image of any size",
        "bytes",
    ],
)
def test_inputs_are_made_up(nodes, inputs, constants, gate, tmp_path):
    path = written(tmp_path, nodes, inputs, {"logits": (FLOAT, ["n", 5])}, constants)
    assert save_attached(path, gate, tmp_path / "out.onnx").ran


def test_what_cannot_be_run_is_not_written(gate, tmp_path):
    nodes = [("Reshape", ["x", "shape"], ["table"]), ("MatMul", ["table", "w"], ["logits"])]
    constants = {"shape": np.array([-1, 11]), "w": weights(11, 5)}
    path = written(
        tmp_path, nodes, {"x": (FLOAT, ["a", "b"])}, {"logits": (FLOAT, ["n", 5])}, constants
    )
    with pytest.raises(
        mc.InputError, match=r"could not be run \(.*\).*with inputs.*with unchecked=True"
    ) as error:
        save_attached(path, gate, tmp_path / "out.onnx")
    assert "onnxruntime_src" not in str(error.value)
    assert_left_alone(tmp_path)
    assert not save_attached(path, gate, tmp_path / "out.onnx", unchecked=True).ran
    given = {"x": np.ones((4, 11), dtype=np.float32)}
    assert save_attached(path, gate, tmp_path / "out.onnx", inputs=given).ran
    with pytest.raises(mc.ArtifactError, match="does not run the model"):
        save_attached(
            path, gate, tmp_path / "out2.onnx", inputs={"x": given["x"][:, :10]}, unchecked=True
        )


def test_logits_that_are_never_finite(gate, tmp_path):
    nodes = [("MatMul", ["x", "w"], ["product"]), ("Div", ["product", "zero"], ["logits"])]
    constants = {"w": weights(5, 5), "zero": np.zeros(1, dtype=np.float32)}
    path = written(
        tmp_path, nodes, {"x": (FLOAT, ["n", 5])}, {"logits": (FLOAT, ["n", 5])}, constants
    )
    with pytest.raises(mc.InputError, match="not finite in any row"):
        save_attached(path, gate, tmp_path / "out.onnx")


def test_probabilities_where_logits_were_calibrated(gate, tmp_path):
    """A softmax that no node is named after: seen in what comes out."""
    nodes = [
        ("MatMul", ["x", "w"], ["z"]),
        ("Exp", ["z"], ["e"]),
        ("ReduceSum", ["e", "one"], ["s"], {"keepdims": 1}),
        ("Div", ["e", "s"], ["out"]),
    ]
    constants = {"w": weights(5, 5), "one": np.array([1])}
    path = written(tmp_path, nodes, {"x": (FLOAT, ["n", 5])}, {"out": (FLOAT, ["n", 5])}, constants)
    with pytest.raises(mc.InputError, match=r"every row sums to one.*input='probabilities'"):
        save_attached(path, gate, tmp_path / "out.onnx")
    assert_left_alone(tmp_path)
    assert save_attached(path, gate, tmp_path / "out.onnx", input="probabilities").ran
    plain = written(
        tmp_path,
        LINEAR,
        {"x": (FLOAT, ["n", 5])},
        {"logits": (FLOAT, ["n", 5])},
        {"w": weights(5, 5)},
    )
    with pytest.raises(mc.InputError, match=r"does not hold probabilities, because a row sums to"):
        save_attached(plain, gate, tmp_path / "out2.onnx", input="probabilities")
    softmax = [("MatMul", ["x", "w"], ["z"]), ("Softmax", ["z"], ["out"], {"axis": 1})]
    path = written(
        tmp_path,
        softmax,
        {"x": (FLOAT, ["n", 5])},
        {"out": (FLOAT, ["n", 5])},
        {"w": weights(5, 5)},
    )
    with pytest.raises(
        mc.InputError,
        match=r"output of a Softmax node .the input of the node, 'z', may be the logits",
    ):
        attach(path, gate)


def test_the_command(gate, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    nodes = [("Reshape", ["x", "shape"], ["table"]), ("MatMul", ["table", "w"], ["logits"])]
    constants = {"shape": np.array([-1, 11]), "w": weights(11, 5)}
    written(tmp_path, nodes, {"x": (FLOAT, ["a", "b"])}, {"logits": (FLOAT, ["n", 5])}, constants)
    mc.save(gate, "cal.json")
    np.savez("rows.npz", x=np.ones((2, 11), dtype=np.float32))
    np.savez("objects.npz", x=np.array([{}], dtype=object))
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 cut short")

    def call(*more):
        return CliRunner().invoke(
            main, ["attach", "model.onnx", "cal.json", "-o", "out.onnx", *more]
        )

    done = call()
    assert (done.exit_code, "--unchecked" in done.stderr, (tmp_path / "out.onnx").exists()) == (
        2,
        True,
        False,
    )
    for name in ("objects.npz", "bad.npz", "cal.json", "no.npz"):
        done = call("--inputs", name)
        assert (done.exit_code, name in done.stderr, "unexpected" in done.stderr) == (
            2,
            True,
            False,
        ), done.stderr
    done = call("--inputs", "rows.npz", "--json")
    assert (done.exit_code, json.loads(done.stdout)["ran"]) == (0, True)
    done = call("--unchecked")
    assert (done.exit_code, "NOT RUN" in done.stderr) == (0, True)
