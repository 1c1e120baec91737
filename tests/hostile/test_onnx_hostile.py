"""Hostile model files: an ArtifactError or InputError with advice, or a valid file. Never a crash,
a hang, or code run.

Mutations of valid models, by bytes and by structure, go through `attach`. What survives the reading
is checked and run as `save_attached` does it, by the same child process (many files to a process,
for speed; whatever takes the process down is tried again alone). METACAL_MUTATIONS sets their
number; 10,000 were run when this was written.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest

import metacal as mc

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from metacal.export.onnx import attach, checking, save_attached  # noqa: E402

MUTATIONS = int(os.environ.get("METACAL_MUTATIONS", "300"))
BATCH = 60
PROBE = os.path.join(os.path.dirname(checking.__file__), "probe.py")
ERRORS = (mc.ArtifactError, mc.InputError)


def network(*, branch=False):
    """Two layers; with a branch (an If) where asked."""
    rng = np.random.default_rng(0)
    constants = {
        "w1": rng.normal(size=(4, 6)).astype(np.float32),
        "b1": rng.normal(size=6).astype(np.float32),
        "w2": rng.normal(size=(6, 5)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("MatMul", ["active", "w2"], ["logits"]),
        helper.make_node("ArgMax", ["logits"], ["label"], axis=1, keepdims=0),
    ]
    if branch:
        sides = [
            helper.make_graph(
                [helper.make_node(kind, ["hidden"], [f"side_{kind}"])],
                kind,
                [],
                [helper.make_tensor_value_info(f"side_{kind}", TensorProto.FLOAT, None)],
            )
            for kind in ("Relu", "Abs")
        ]
        nodes[1] = helper.make_node(
            "If", ["flag"], ["active"], then_branch=sides[0], else_branch=sides[1]
        )
        constants["flag"] = np.array(True)
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 5]),
            helper.make_tensor_value_info("label", TensorProto.INT64, ["n"]),
        ],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


@pytest.fixture(scope="module")
def gate():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(500, 5)) * 3
    return mc.MetaCal(mc.MaxMiscoverage(0.1)).fit(
        table, (table + rng.gumbel(size=table.shape)).argmax(axis=1)
    )


# ── mutations ─────────────────────────────────────────────────────────────────────────────────────


def mutated_bytes(raw, rng):
    """Flip, cut, repeat, insert: what damage and fuzzers do."""
    data = bytearray(raw)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(data)))
        kind = rng.integers(7)
        if kind == 0:
            data[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            data[at] = int(rng.integers(256))
        elif kind == 2:
            del data[at : at + int(rng.integers(1, 16))]
        elif kind == 3:
            data[at:at] = bytes(rng.integers(0, 256, int(rng.integers(1, 16)), dtype=np.uint8))
        elif kind == 4:
            data = data[: max(1, at)]
        elif kind == 5:
            data[at:at] = data[at : at + int(rng.integers(1, 200))]
        else:
            data[at:at] = b"\xff" * 9 + b"\x01"  # the largest varint
    return bytes(data)


HUGE = (-1, 0, 1, 2**31 - 1, 2**40, 2**62, -(2**63))


def mutated_structure(model, rng):
    """Change what a field says, in ways that no byte flip finds."""
    mutant = onnx.ModelProto()
    mutant.CopyFrom(model)
    graph = mutant.graph
    node = graph.node[int(rng.integers(len(graph.node)))]
    tensor = graph.initializer[int(rng.integers(len(graph.initializer)))]
    output = graph.output[int(rng.integers(len(graph.output)))]
    huge = HUGE[int(rng.integers(len(HUGE)))]
    names = [
        "",
        "x",
        "logits",
        "label",
        "w1",
        "hidden",
        "probs",
        "metacal/constant_0",
        "a" * 5000,
        "\u0000",
        "../x",
    ]
    name = names[int(rng.integers(len(names)))]
    kinds = [
        "Loop",
        "If",
        "Scan",
        "Softmax",
        "Reshape",
        "Expand",
        "ConstantOfShape",
        "Range",
        "Tile",
        "Nope",
        "Pad",
    ]
    choices = [
        lambda: tensor.dims.append(huge),
        lambda: tensor.dims.__setitem__(0, huge),
        lambda: setattr(tensor, "data_type", int(rng.integers(-1, 30))),
        lambda: setattr(tensor, "raw_data", b""),
        lambda: setattr(tensor, "name", name),
        lambda: setattr(node, "op_type", kinds[int(rng.integers(len(kinds)))]),
        lambda: setattr(node, "domain", name),
        lambda: node.input.append(name),
        lambda: node.output.append(name),
        lambda: node.input.__delitem__(slice(None)),
        lambda: node.output.__delitem__(slice(None)),
        lambda: node.output.__setitem__(0, name) if node.output else None,
        lambda: graph.node.add().CopyFrom(node),
        lambda: graph.node.reverse(),
        lambda: setattr(output, "name", name),
        lambda: graph.output.__delitem__(slice(None)),
        lambda: graph.output.add().CopyFrom(output),
        lambda: setattr(output.type.tensor_type, "elem_type", int(rng.integers(-1, 30))),
        lambda: output.type.tensor_type.shape.dim.add().__setattr__("dim_value", huge),
        lambda: [setattr(dim, "dim_value", huge) for dim in output.type.tensor_type.shape.dim],
        lambda: [
            setattr(dim, "dim_value", huge) for dim in graph.input[0].type.tensor_type.shape.dim
        ],
        lambda: graph.input.__delitem__(slice(None)),
        lambda: setattr(mutant, "ir_version", int(huge if huge > -(2**63) else 0)),
        lambda: setattr(mutant.opset_import[0], "version", huge),
        lambda: mutant.opset_import.__delitem__(slice(None)),
        lambda: setattr(mutant.opset_import[0], "domain", name),
        lambda: setattr(tensor, "data_location", TensorProto.EXTERNAL),
        lambda: _external(tensor, name),
        lambda: mutant.ClearField("graph"),
        lambda: mutant.metadata_props.add(key="metacal.promise", value="anything"),
    ]
    for _ in range(int(rng.integers(1, 3))):
        with contextlib.suppress(IndexError, ValueError):  # what it would change is gone already
            choices[int(rng.integers(len(choices)))]()
    return mutant.SerializeToString()


def _external(tensor, location):
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location or "/etc/passwd")
    tensor.external_data.add(key="length", value=str(HUGE[4]))


# ── the runs ──────────────────────────────────────────────────────────────────────────────────────


#: One child for many requests, which says besides how much memory it has held at most.
MANY = """
import json, runpy, sys
answer = runpy.run_path(sys.argv[1])["main"]
for path in sys.argv[2:]:
    folder = path.removesuffix(".onnx")
    answer(path, folder, str(192 * 2**20), "60")
    reply = f"{folder}/reply.json"
    with open("/proc/self/status") as file:
        peak = 1024 * int(next(line for line in file if line.startswith("VmHWM")).split()[1])
    with open(reply) as file:
        said = json.load(file)
    with open(reply, "w") as file:
        json.dump({**said, "peak_bytes": peak}, file)
"""


def probe_all(paths, folder):
    """Check and run files in one child; return those for which it left no reply."""
    for path in paths:
        (folder / path.stem).mkdir()
    subprocess.run(
        [sys.executable, "-P", "-c", MANY, PROBE, *paths],
        capture_output=True,
        timeout=300,
        check=False,
    )
    return [path for path in paths if not (folder / path.stem / "reply.json").exists()]


def attached(path, gate):
    """The model with its gate, or what was said against it; a warning is as bad as another
    exception.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return attach(path, gate), ""
    except ERRORS as error:
        return None, str(error)


@pytest.mark.slow
def test_mutated_models(gate, tmp_path):
    models = [network(), network(branch=True)]
    raws = [model.SerializeToString() for model in models]
    rng = np.random.default_rng(int(os.environ.get("METACAL_MUTATION_SEED", "0")))
    counts = {"refused": 0, "survived": 0, "alone": 0, "peak MB": 0}
    waiting = []

    def flush():
        down = probe_all(waiting, tmp_path) if waiting else []
        for reply in tmp_path.glob("*/reply.json"):
            counts["peak MB"] = max(
                counts["peak MB"], json.loads(reply.read_text())["peak_bytes"] >> 20
            )
        for path in down:
            counts["alone"] += 1
            with pytest.raises(ERRORS):  # what took the child down
                checking.run_in_child_process(path, None, path.stat().st_size)
        waiting.clear()
        for item in tmp_path.iterdir():
            shutil.rmtree(item) if item.is_dir() else item.unlink()

    for number in range(MUTATIONS):
        which = int(rng.integers(2))
        raw = (
            mutated_bytes(raws[which], rng) if number % 2 else mutated_structure(models[which], rng)
        )
        path = tmp_path / f"{number}.onnx"
        path.write_bytes(raw)
        began = time.process_time()
        served, said = attached(path, gate)
        if served is None:
            counts["refused"] += 1
            assert 20 < len(said) < 12_000, said
        else:
            counts["survived"] += 1
            target = tmp_path / f"{number}_served.onnx"
            target.write_bytes(served.SerializeToString())
            waiting.append(target)
        assert time.process_time() - began < 5.0
        if len(waiting) >= BATCH:
            flush()
    flush()
    assert counts["refused"] > MUTATIONS // 5, counts
    assert counts["survived"] > MUTATIONS // 20, counts
    assert counts["peak MB"] < 280, (
        counts
    )  # of which onnx, onnxruntime and NumPy alone take about 80
    if MUTATIONS > 1000:
        print(counts)


CASES = {
    "empty": lambda m: b"",
    "text": lambda m: b"this is not a model, it is a sentence",
    "pickle": lambda m: b"\x80\x04\x95" + b"x" * 50,
    "json": lambda m: b'{"format": "metacal"}',
    "damaged or incomplete": lambda m: m.SerializeToString()[:-200],
    "random": lambda m: np.random.default_rng(0).bytes(5000),
    "nested": lambda m: b"\x3a\xff\xff\xff\x7f" * 4000,
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_no_model(case, gate, tmp_path):
    (tmp_path / "bad.onnx").write_bytes(CASES[case](network()))
    with pytest.raises(ERRORS, match=r"bad\.onnx"):
        save_attached(tmp_path / "bad.onnx", gate, tmp_path / "out.onnx")
    assert [item.name for item in tmp_path.iterdir()] == ["bad.onnx"]


def _unsorted(model):
    model.graph.node.reverse()


def _cyclic(model):
    model.graph.node[0].input[0] = "logits"


def _doubled(model):
    model.graph.node.add().CopyFrom(model.graph.node[0])


def _strings(model):
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.STRING


def _bomb(model):
    """A constant that unfolds into 4 TB when the graph is loaded."""
    model.graph.initializer.append(
        numpy_helper.from_array(np.array([2**20, 2**20], dtype=np.int64), "size")
    )
    model.graph.node.insert(0, helper.make_node("ConstantOfShape", ["size"], ["huge"]))
    model.graph.node.insert(1, helper.make_node("ReduceMax", ["huge"], ["most"], keepdims=0))
    model.graph.node.insert(2, helper.make_node("Add", ["x", "most"], ["more"]))
    model.graph.node[3].input[0] = "more"


def _endless(model):
    """A loop of 2^60 rounds."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Sin", ["v"], ["next"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, None),
        ],
    )
    model.graph.initializer.append(
        numpy_helper.from_array(np.array(2**60, dtype=np.int64), "rounds")
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "go_on"))
    model.graph.node.insert(
        0, helper.make_node("Loop", ["rounds", "go_on", "x"], ["spun"], body=body)
    )
    model.graph.node[1].input[0] = "spun"


@pytest.mark.slow
@pytest.mark.parametrize("change", [_unsorted, _cyclic, _doubled, _strings, _endless])
def test_graphs_that_are_wrong_or_mean_harm(change, gate, tmp_path, monkeypatch):
    # The loop would take all of this processor time.
    monkeypatch.setattr(checking, "_MIN_CPU_SECONDS", 3)
    model = network()
    change(model)
    (tmp_path / "bad.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ERRORS):
        save_attached(tmp_path / "bad.onnx", gate, tmp_path / "out.onnx", logits="logits")
    assert [item.name for item in tmp_path.iterdir()] == ["bad.onnx"]


@pytest.mark.slow
def test_a_graph_that_wants_all_memory_gets_none(gate, tmp_path):
    """It is a valid file, so it may be written; but whoever checks it must not fall for it."""
    model = network()
    _bomb(model)
    path = tmp_path / "bomb.onnx"
    path.write_bytes(attach(model, gate).SerializeToString())
    assert not probe_all([path], tmp_path)
    reply = json.loads((tmp_path / "bomb" / "reply.json").read_text())
    assert reply["stage"] != "ran"
    assert reply["peak_bytes"] < 280 * 2**20  # onnx, onnxruntime and NumPy alone: about 80 MB


@pytest.mark.parametrize(
    ("location", "error", "message"),
    [
        ("../secret.bin", mc.ArtifactError, "outside the folder of the model"),
        ("/etc/passwd", mc.ArtifactError, "outside the folder of the model"),
        ("sub/../../secret.bin", mc.ArtifactError, "outside the folder of the model"),
        ("link.bin", mc.ArtifactError, "outside the folder of the model"),
        ("", mc.ArtifactError, "outside the folder of the model"),
        ("missing.bin", mc.InputError, "does not contain the external data file"),
        ("short.bin", mc.ArtifactError, "shorter than the model requires"),
    ],
)
def test_external_data_that_is_missing_or_elsewhere(location, error, message, gate, tmp_path):
    home = tmp_path / "home"
    (home / "sub").mkdir(parents=True)
    (tmp_path / "secret.bin").write_bytes(b"\0" * 1000)
    (home / "link.bin").symlink_to(tmp_path / "secret.bin")
    (home / "short.bin").write_bytes(b"\0")
    model = network()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    tensor.external_data.add(key="length", value="96")
    (home / "bad.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(error, match=message):
        save_attached(home / "bad.onnx", gate, home / "out.onnx")
    assert not (home / "out.onnx").exists()
