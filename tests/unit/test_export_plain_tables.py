"""Tables of many classes without masks: ONNX needs few passes, and gives what Python gives."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import metacal as mc
from metacal.gate import Gate

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from metacal.export.onnx import to_onnx  # noqa: E402

#: 10, 40 and 100 are cut into blocks, 37 is a prime number. Up to 32 classes, all scores are in
#: double precision.
WIDTHS = (3, 10, 37, 40, 100)
#: Bound on the relative difference of two probabilities. The largest logits are a few hundred, and
#: ONNX multiplies them by the inverse temperature in single precision.
TOLERANCE = 3e-4

pytestmark = pytest.mark.filterwarnings("ignore::metacal.errors.MetacalWarning")


def draw_rows(n_rows, n_classes, seed=0):
    random = np.random.default_rng(seed)
    labels = random.integers(0, n_classes, n_rows)
    logits = random.normal(0.0, 2.0, (n_rows, n_classes))
    logits[np.arange(n_rows), labels] += random.normal(7.0, 4.0, n_rows)
    return logits.astype(np.float32), labels


def extreme_rows(n_classes):
    """Rows with probabilities near 0 and 1, with ties, and far from zero."""
    rows, _ = draw_rows(60, n_classes, seed=1)
    rows[:10] *= 40.0
    rows[10:20, -1] = 300.0
    rows[20:30, -1] = -300.0
    rows[30:35, :2] = rows[30:35].max(axis=1, keepdims=True) + 1.0
    rows[35:40] = np.round(rows[35:40])
    rows[40:45] += 100.0
    rows[45:50] -= 100.0
    rows[50:52] = 1.5
    return rows


def load(model):
    return onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )


def run(session, rows):
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"logits": rows})))


def without_uniform_component(gate):
    """Return the gate with a base map whose uniform component is 0."""
    source = gate.gate_.logits_source
    first = replace(source.map.first, uniform=0.0)
    return gate.gate_.with_source(map=replace(source.map, first=first))


def make_gate(kind, n_classes):
    table, labels = draw_rows(2_000, n_classes)
    calibrator = mc.TemperatureScaling() if kind == "temperature" else None
    score = "margin" if kind == "margin" else "entropy"
    gate = mc.MetaCal(mc.MinAccuracy(0.9), calibrator, score=score).fit(table, labels)
    return without_uniform_component(gate) if kind == "no uniform component" else gate.gate_


@pytest.fixture(scope="module")
def gates():
    return {(kind, width): make_gate(kind, width) for kind in KINDS for width in WIDTHS}


KINDS = ("default", "no uniform component", "temperature", "margin")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("opset", [11, 17])
def test_every_row_is_as_in_python(gates, kind, width, opset):
    gate: Gate = gates[kind, width]
    session = load(to_onnx(gate, opset=opset))
    rows = extreme_rows(width)
    decision = gate.decide(mc.Rows(gate.read(rows)))
    # The table has rows that are not plain. Most rows by themselves are plain tables.
    for chosen in (slice(None), *(slice(i, i + 1) for i in range(len(rows)))):
        found = run(session, rows[chosen])
        assert np.array_equal(found["accept"], decision.accept[chosen])
        expected = decision.probabilities[chosen]
        assert np.all(found["probs"] > 0.0)
        assert np.all(found["probs"] < 1.0)
        is_large = expected > 1e-35
        assert np.allclose(found["probs"][is_large], expected[is_large], rtol=TOLERANCE, atol=1e-30)


@pytest.mark.parametrize("kind", KINDS)
def test_rejected_rows_can_be_uniform(gates, kind):
    gate = gates[kind, 40]
    rows, _ = draw_rows(80, 40, seed=2)
    found = run(load(to_onnx(gate, rejected="uniform")), rows)
    kept = run(load(to_onnx(gate, rejected="calibrated")), rows)
    assert 0 < found["accept"].sum() < len(rows)
    assert np.allclose(found["probs"][~found["accept"]], 1.0 / 40, rtol=1e-6)
    assert np.array_equal(found["probs"][found["accept"]], kept["probs"][found["accept"]])


@pytest.mark.parametrize("kind", KINDS)
def test_masked_and_invalid_rows_take_the_general_nodes(gates, kind):
    gate = gates[kind, 40]
    rows, _ = draw_rows(6, 40, seed=3)
    rows[0, 5] = -np.inf
    rows[1, 5] = -1e9
    rows[2, 5] = np.nan
    rows[3, 5] = np.inf
    is_valid = np.isfinite(rows.max(axis=1))
    expected = np.full(rows.shape, 1.0 / 40)
    expected[is_valid] = gate.decide(mc.Rows(gate.read(rows[is_valid]))).probabilities
    session = load(to_onnx(gate))
    for chosen in (slice(None), *(slice(i, i + 1) for i in range(len(rows)))):
        found = run(session, rows[chosen])
        assert not found["accept"][~is_valid[chosen]].any()
        assert np.allclose(found["probs"], expected[chosen], rtol=TOLERANCE, atol=1e-9)
    assert run(session, rows[:2])["probs"][:, 5].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("kind", "n_passes"), [("temperature", 7), ("default", 11)])
def test_a_plain_table_is_passed_over_a_few_times(gates, kind, n_passes, tmp_path):
    """The general nodes pass over the table more than twice as often."""
    rows, _ = draw_rows(64, 100, seed=4)
    model = to_onnx(gates[kind, 100])
    assert count_table_passes(model, rows, tmp_path) == n_passes
    rows[0, 0] = -np.inf
    assert count_table_passes(model, rows, tmp_path) > 2 * n_passes


@pytest.mark.parametrize(("kind", "n_passes"), [("temperature", 7), ("default", 11)])
def test_a_row_near_the_threshold_takes_the_nodes_of_plain_tables(gates, kind, n_passes, tmp_path):
    gate = gates[kind, 100]
    rows, _ = draw_rows(64, 100, seed=4)
    rows[0] *= find_factor_at_threshold(gate, rows[:1])
    decision = gate.decide(mc.Rows(gate.read(rows)))
    assert decision.score[0] == pytest.approx(gate.threshold, abs=1e-6)
    model = to_onnx(gate)
    # One more node selects the rows that are scored again.
    assert count_table_passes(model, rows, tmp_path) == n_passes + 1
    assert np.array_equal(run(load(model), rows)["accept"], decision.accept)


def find_factor_at_threshold(gate, row):
    """Find a factor of one row of logits for which its entropy is close to the threshold."""
    low, high = 0.01, 100.0
    for _ in range(60):
        factor = np.sqrt(low * high)
        scaled_row = row * np.float32(factor)
        if gate.decide(mc.Rows(gate.read(scaled_row))).score[0] > gate.threshold:
            low = factor
        else:
            high = factor
    return np.float32(high)


def test_no_node_combines_a_column_with_a_single_number(gates, tmp_path):
    """onnxruntime calls the inner loop of such a node once per row. Vectors take a sixth."""
    rows, _ = draw_rows(64, 100, seed=4)
    model = to_onnx(gates["default", 100])
    n_rows_times_one = [len(rows), 1]
    for event in profile_nodes(model, rows, tmp_path):
        shapes = list_shapes(event, "input_type_shape")
        has_number = any(np.prod(shape) == 1 for shape in shapes)
        if event["args"]["op_name"] not in _SHAPE_OPERATORS:
            assert not (n_rows_times_one in shapes and has_number), event["name"]


#: Operators of which the second input is an axis or a shape.
_SHAPE_OPERATORS = {"ReduceSum", "Squeeze", "Unsqueeze"}

#: Operators that only contain others, copy nothing, or read a few columns of the table.
_PARTIAL_OPERATORS = {"If", "Reshape", "Slice", "GatherND", "GatherElements"}


def count_table_passes(model, rows, folder):
    """Count the executed nodes with an input or output of the size of the table."""
    n_passes = 0
    for event in profile_nodes(model, rows, folder):
        if event["args"]["op_name"] in _PARTIAL_OPERATORS:
            continue
        shapes = [
            shape
            for side in ("input_type_shape", "output_type_shape")
            for shape in list_shapes(event, side)
        ]
        n_passes += any(np.prod(shape) == rows.size for shape in shapes)
    return n_passes


def list_shapes(event, side):
    """List the shapes of the inputs or outputs of an executed node."""
    return [shape for tensor in event["args"][side] for shape in tensor.values()]


def profile_nodes(model, rows, folder):
    """Run a model, and return onnxruntime's record of each executed node."""
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    session.run(None, {"logits": rows})
    with open(session.end_profiling(), encoding="utf-8") as file:
        events = json.load(file)
    return [event for event in events if event.get("name", "").endswith("_kernel_time")]
