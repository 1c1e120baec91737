"""Logits near the end of their type's range: exported gates and modules answer with numbers, and as
Python does.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

import metacal as mc
from metacal.estimators import CALIBRATORS
from metacal.formulas.logits import MAX_LOGIT_SIZE, limit_logits, replace_finite_masks
from metacal.scores import NAMED

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from metacal.export.onnx import to_onnx  # noqa: E402

DTYPES = ("float32", "float16", "float64")
WIDTHS = (2, 5, 40)
#: What is written otherwise for many classes; and one of the others.
WIDE = ("temperature", "ensemble-temperature", "matrix")
GIVEN = {name: {"regularisation": 1.0} for name in ("matrix", "dirichlet", "vector", "structured")}

pytestmark = pytest.mark.filterwarnings("ignore::metacal.errors.MetacalWarning")


def huge_rows(width, dtype):
    """One huge logit, two, all; of both signs; beside masks; and what programs write for a mask."""
    rows = []
    for share in (1.0, 0.9, 0.3, 1e-2):
        big = float(np.finfo(dtype).max) * share
        for start in (
            [big],
            [big, big / 3],
            [big, big],
            [big * 0.6, -big, -big],
            [9, -big],
            [0, big, -big],
            [-big],
        ):
            rows.append(np.array([*start, *np.zeros(width)])[:width])
        for fill, place, value in (
            (big, 0, big),
            (-big, 0, -big),
            (-big, 0, big),
            (-big, -1, 5.0),
            (big, -1, -big),
        ):
            rows.append(np.full(width, fill))
            rows[-1][place] = value
        rows.append(np.array([big, *[-np.inf] * (width - 1)]))
        rows.append(np.array([big, -big, *[-np.inf] * (width - 2)]))
        rows.append(np.where(np.arange(width) % 2, big, -big))
        rows.append(np.linspace(-1.0, 1.0, width) * big)
    for mask in (-1e30, -1e9, -1e4, -65504.0):
        if -mask <= float(np.finfo(dtype).max):
            rows.append(np.arange(width, dtype=float))
            rows[-1][1 - width % 2] = mask
    return np.array(rows).astype(dtype)


def session_of(model):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def run(model, table):
    session = model if isinstance(model, onnxruntime.InferenceSession) else session_of(model)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"logits": table})))


@pytest.fixture(scope="module")
def fitted():
    """Rows to fit on, and a gate of each score, for few classes and for many (which are scored in
    float32 first).
    """
    found = {}
    for width in WIDTHS:
        rng = np.random.default_rng(0)
        labels = rng.integers(width, size=1500)
        table = (rng.normal(size=(1500, width)) + 3.0 * np.eye(width)[labels]).astype(np.float32)
        gates = [
            mc.MetaCal(mc.MaxMiscoverage(0.1), score=score).fit(table, labels) for score in NAMED
        ]
        found[width] = (table, labels, gates)
    return found


@functools.cache
def base_of(kind, width):
    rng = np.random.default_rng(0)
    labels = rng.integers(width, size=1500)
    table = (rng.normal(size=(1500, width)) + 3.0 * np.eye(width)[labels]).astype(np.float32)
    return CALIBRATORS[kind](**GIVEN.get(kind, {})).fit(table, labels)


def with_base(gate, base):
    gate.calibrator_, gate.gate_ = base, gate.gate_.with_source(map=base.map_)
    return gate


def assert_numbers(probs, expected, tolerance):
    probs = np.asarray(probs, dtype=np.float64)
    assert np.isfinite(probs).all()
    np.testing.assert_allclose(probs.sum(axis=1), 1.0, atol=max(1e-4, 5 * tolerance))
    np.testing.assert_allclose(probs, expected, rtol=0, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CALIBRATORS)
def test_every_calibrator_in_onnx(kind, fitted):
    for width in WIDTHS if kind in WIDE else WIDTHS[:2]:
        base, gates = base_of(kind, width), fitted[width][2]
        for place, dtype in enumerate(DTYPES):
            rows = huge_rows(width, dtype)
            read = replace_finite_masks(rows)  # Python's front door
            assert_numbers(base.predict_proba(read), base.predict_proba(read), 1e-5)
            if place == WIDTHS.index(
                width
            ):  # the map alone in one type for each width, in a gate in all
                assert_numbers(
                    run(to_onnx(base, dtype=dtype), rows)["probs"], base.predict_proba(read), 1e-5
                )
            # Every score with temperature scaling, which the decision is fused with; one with each
            # other map.
            for gate in gates if kind == "temperature" else [gates[(place + width) % len(gates)]]:
                found = run(to_onnx(with_base(gate, base), dtype=dtype), rows)
                np.testing.assert_array_equal(found["accept"], gate.accepts(read))
                assert_numbers(found["probs"], gate.predict_proba(read), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CALIBRATORS)
def test_every_calibrator_in_torch(kind, fitted):
    torch = pytest.importorskip("torch")
    from metacal.export.torch import to_module

    for width in WIDTHS:
        base, gates = base_of(kind, width), fitted[width][2]
        for place, dtype in enumerate(DTYPES):
            rows = huge_rows(width, dtype)
            read = replace_finite_masks(rows)
            for gate in gates if kind == "temperature" else [gates[(place + width) % len(gates)]]:
                probs, _, accept = to_module(with_base(gate, base))(torch.from_numpy(rows))
                np.testing.assert_array_equal(accept.numpy(), gate.accepts(read))
                assert_numbers(
                    probs.numpy(), gate.predict_proba(read), 1.5e-3 if dtype == "float16" else 1e-5
                )


@pytest.mark.slow
def test_a_gate_that_accepts_everything_still_gives_numbers(fitted):
    table, _, _ = fitted[40]
    predicted = table.argmax(axis=1)
    for score in NAMED:
        gate = mc.MetaCal(mc.MinAccuracy(0.01), score=score).fit(table, predicted)
        assert gate.threshold_ == np.inf
        rows = huge_rows(40, "float32")
        found = run(to_onnx(gate), rows)
        assert found["accept"].all()
        assert_numbers(found["probs"], gate.predict_proba(replace_finite_masks(rows)), 1e-5)


@pytest.mark.parametrize("kind", ["vector", "isotonic", "temperature"])
def test_probabilities_that_are_no_numbers_are_never_accepted(kind, fitted):
    """The last line of defence: the map of such a file is out of order, whatever its score says."""
    onnx = pytest.importorskip("onnx")
    table, _, gates = fitted[5]
    base = base_of(kind, 5)
    model = to_onnx(with_base(gates[0], base))
    assert run(model, table[:100])["accept"].any()
    # Every double constant as large as the map's own becomes NaN: the scores are computed without
    # them.
    own = {"vector": (5,), "isotonic": None, "temperature": ()}[kind]
    spoilt = 0
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        hit = array.dtype.kind == "f" and (
            array.shape == own if own is not None else array.size > 20
        )
        if kind == "temperature":
            hit = (
                array.dtype == np.float32
                and array.size == 1
                and np.isclose(array, base.map_.inverse_temperature)
            )
        if hit:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.full_like(array, np.nan), tensor.name))
            spoilt += 1
    assert spoilt
    found = run(model, table[:100])
    assert not found["accept"].any()
    np.testing.assert_allclose(found["probs"], 0.2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CALIBRATORS)
def test_batches_of_none_one_and_many(kind, fitted):
    for width in WIDTHS[1:] if kind in WIDE else WIDTHS[1:2]:
        table, _, gates = fitted[width]
        base = base_of(kind, width)
        for gate in gates if kind == "temperature" else [gates[list(NAMED).index("margin")]]:
            session = session_of(to_onnx(with_base(gate, base)))
            for rows in (0, 1, 20_000):
                batch = np.resize(table, (rows, width))
                found = run(session, batch)
                assert found["probs"].shape == (rows, width)
                assert found["accept"].shape == found["score"].shape == (rows,)
                if rows:
                    np.testing.assert_array_equal(found["accept"], gate.accepts(batch))
        assert run(to_onnx(base), table[:0])["probs"].shape == (0, width)


def test_rows_of_an_ordinary_size_are_not_touched():
    table = np.random.default_rng(0).normal(size=(50, 4)) * 1e6
    assert limit_logits(table) is table
    table[0, 0] = -np.inf
    np.testing.assert_array_equal(limit_logits(table), table)
    assert limit_logits(table.astype(np.float32)).dtype == np.float32
    far = np.where(np.arange(4) == 2, -1.7e308, table)
    assert (limit_logits(far)[:, 2] == -MAX_LOGIT_SIZE).all()
    np.testing.assert_array_equal(
        np.delete(limit_logits(far), 2, axis=1), np.delete(table, 2, axis=1)
    )
