"""The exported gate answers as Python does: every calibrator, score and precision, in onnxruntime,
on real logits.
"""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import metacal as mc
from metacal.certificates.certificate import accept_up_to_threshold
from metacal.estimators import CALIBRATORS
from metacal.gate import Gate
from metacal.io.artifact.audit import decode_certificate
from metacal.scores.named import NAMED, get_rounding_grid

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from metacal.export.onnx import save, to_onnx  # noqa: E402
from metacal.export.onnx.probe_rows import generate_probe_table  # noqa: E402

DTYPES = ("float32", "float16", "float64")
OPSETS = range(11, min(26, onnx.defs.onnx_opset_version()) + 1)  # an older onnx knows fewer
#: Given, not cross-validated: this is about the export.
GIVEN = {name: {"regularisation": 1.0} for name in ("matrix", "dirichlet", "vector", "structured")}


def run_each(model, *tables):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return [dict(zip(names, session.run(None, {"logits": table}))) for table in tables]


def run(model, table):
    return run_each(model, table)[0]


def with_base(gate, base):
    """The gate in front of another calibrator."""
    gate.calibrator_, gate.gate_ = base, gate.gate_.with_source(map=base.map_)
    return gate


def assert_same(gate, table, model):
    found = run(model, table)
    expected = gate.accepts(table)
    assert (found["accept"] == expected).all()
    assert np.abs(found["probs"] - gate.predict_proba(table)).max() < 1e-5
    assert found["probs"].dtype == gate.predict_proba(table[:1]).dtype
    # What is decided can be checked by whoever reads the outputs.
    level = float({p.key: p.value for p in model.metadata_props}["metacal.threshold"])
    assert (accept_up_to_threshold(found["score"], level) == found["accept"]).all()
    assert np.abs(found["score"] - gate.ranking_scores(table)).max() < 1e-4


@pytest.fixture(scope="module")
def ten():
    return mc.datasets.load("cifar10-resnet110")


@pytest.fixture(scope="module")
def hundred():
    return mc.datasets.load("cifar100-resnet110")


@pytest.fixture(scope="module")
def gates(ten):
    """A gate of each score; the threshold of this promise is a calibration score itself, the
    hardest case.
    """
    return {
        s: mc.MetaCal(mc.MaxMiscoverage(0.05), score=s).fit(ten.logits[:3000], ten.labels[:3000])
        for s in NAMED
    }


@cache
def small_gate(name, alpha, kind, score):
    """A gate on 500 rows of a set, for reading."""
    data, base = mc.datasets.load(name), {} if kind is None else {"calibrator": kind()}
    return mc.MetaCal(mc.MaxMiscoverage(alpha), score=score, **base).fit(
        data.logits[:500], data.labels[:500]
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", CALIBRATORS)
def test_every_calibrator_score_and_precision(kind, ten, gates):
    """Each calibrator in each precision, each time with another score: the result onnx-parity has
    all cells.
    """
    base = CALIBRATORS[kind](**GIVEN.get(kind, {})).fit(ten.logits[:3000], ten.labels[:3000])
    for place, dtype in enumerate(DTYPES, list(CALIBRATORS).index(kind)):
        table = ten.logits[:3000].astype(dtype)  # the row at the threshold is one of them
        gate = gates[list(NAMED)[place % len(NAMED)]]
        assert_same(with_base(gate, base), table, to_onnx(gate, dtype=dtype))


@pytest.mark.slow
@pytest.mark.parametrize("score", NAMED)
@pytest.mark.parametrize(
    "promise", [mc.MaxMiscoverage(0.1), mc.MinAccuracy(0.87)], ids=["alpha", "beta"]
)
def test_a_hundred_classes_are_scored_in_single_and_decided_in_double(score, promise, hundred):
    gate = mc.MetaCal(promise, score=score).fit(hundred.logits[:5000], hundred.labels[:5000])
    for dtype in DTYPES:
        assert_same(gate, hundred.logits[:8000].astype(dtype), to_onnx(gate, dtype=dtype))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vector", "isotonic", "gaussian-process", "top-label-histogram"])
def test_other_maps_on_a_hundred_classes(kind, hundred):
    base = CALIBRATORS[kind](**GIVEN.get(kind, {})).fit(
        hundred.logits[:3000], hundred.labels[:3000]
    )
    gate = with_base(
        mc.MetaCal(mc.MaxMiscoverage(0.1)).fit(hundred.logits[:3000], hundred.labels[:3000]), base
    )
    assert_same(gate, hundred.logits[:4000], to_onnx(gate))


def test_rows_close_to_the_threshold_are_decided_in_double(hundred):
    gate = mc.MetaCal(mc.MaxMiscoverage(0.1)).fit(hundred.logits[:5000], hundred.labels[:5000])
    scores = gate.ranking_scores(hundred.logits)
    nearest = hundred.logits[np.abs(scores - gate.threshold_).argmin()]
    around = nearest * (
        1.0 + 1e-6 * np.random.default_rng(0).normal(size=(300, 100)).astype(np.float32)
    )
    found = run(to_onnx(gate), around)
    expected = gate.accepts(around)
    assert 50 < expected.sum() < 250
    assert (found["accept"] == expected).all()
    assert (
        np.abs(found["score"] - gate.ranking_scores(around)).max() < 1e-9
    )  # all were computed again, in double


@pytest.mark.slow
@pytest.mark.parametrize("kind", CALIBRATORS)
def test_two_classes_and_masked_ones(kind):
    rng = np.random.default_rng(3)
    for width in (2, 5):
        table = rng.normal(size=(800, width)) * 3
        labels = (table + rng.gumbel(size=table.shape)).argmax(axis=1)
        gate = mc.MetaCal(mc.MaxMiscoverage(0.1), CALIBRATORS[kind](**GIVEN.get(kind, {}))).fit(
            table, labels
        )
        masked = np.concatenate([table, table[:50]])
        masked[np.arange(50), rng.integers(0, width, 50)] = -np.inf
        assert_same(gate, masked, to_onnx(gate, dtype="float64"))


@pytest.mark.slow
@pytest.mark.parametrize("opset", OPSETS)
def test_every_operator_set_the_runtime_loads(opset, hundred, ten):
    ir_version = 6 if opset < 13 else 8 if opset < 19 else 10
    for data, score, kind in (
        (hundred, "entropy", mc.TemperatureScaling),
        (ten, "margin", mc.TopLabelBBQ),
        (ten, "energy", mc.PlattScaling),
        (ten, "max_probability", mc.IsotonicCalibration),
    ):
        gate = small_gate(data.name, 0.1, kind, score)
        model = to_onnx(gate, opset=opset, ir_version=ir_version)
        onnx.checker.check_model(model, full_check=True)
        assert {node.domain for node in model.graph.node} == {""}
        try:
            assert_same(gate, data.logits[:600], model)
        except Exception as error:
            if "guarantees* support" not in str(error):
                raise
            pytest.skip(f"this onnxruntime does not know operator set {opset} yet")


def test_before_ir_version_4_constants_are_nodes(gates, ten):
    model = to_onnx(gates["entropy"], opset=11, ir_version=3)
    assert not model.graph.initializer
    assert_same(gates["entropy"], ten.logits[:100], model)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("score", NAMED)
@pytest.mark.parametrize("promise", ["alpha", "everything"])
def test_what_python_refuses_is_never_accepted(dtype, score, promise, ten, hundred):
    for data in (ten, hundred):
        gate = copy.copy(small_gate(data.name, 0.05, None, score))
        if promise == "everything":
            open_ = replace(gate.certificate_, threshold=math.inf)
            gate.gate_ = Gate.from_source(gate.gate_.source, math.inf, certificate=open_)
        batch = generate_probe_table(gate.gate_.source, dtype)[0]
        found, *few = run_each(to_onnx(gate, dtype=dtype), batch, batch[:0], batch[:1])
        assert not found["accept"][-3:].any()
        assert np.isnan(found["score"][-3:]).all()
        assert np.allclose(found["probs"][-3:], 1.0 / batch.shape[1])
        assert (found["accept"][:-3] == gate.accepts(batch[:-3])).all()
        assert np.isfinite(found["probs"]).all()
        assert [len(one["probs"]) for one in few] == [0, 1]


@pytest.mark.parametrize("kind", CALIBRATORS)
def test_a_calibrator_without_a_gate_has_probabilities_only(kind, ten):
    base = CALIBRATORS[kind](**GIVEN.get(kind, {})).fit(ten.logits[:1000], ten.labels[:1000])
    batch = generate_probe_table(base.gate_.source, "float32")[0]
    found = run(to_onnx(base), batch)
    assert list(found) == ["probs"]
    assert np.abs(found["probs"][:-3] - base.predict_proba(batch[:-3])).max() < 1e-5
    assert np.isnan(found["probs"][-3:]).all()
    assert (
        np.abs(
            run(to_onnx(base), ten.logits[:500])["probs"] - base.predict_proba(ten.logits[:500])
        ).max()
        < 1e-5
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_probabilities_in(dtype, ten):
    table = np.exp(ten.logits.astype(np.float64))
    table = (table / table.sum(axis=1, keepdims=True)).astype(dtype)
    table[:20, 3] = 0.0
    table[:20] /= table[:20].sum(axis=1, keepdims=True)
    gate = mc.MetaCal(mc.MaxMiscoverage(0.05), input="probabilities").fit(
        table[:3000], ten.labels[:3000]
    )
    found = run(to_onnx(gate, dtype=dtype), table)
    assert (found["accept"] == gate.accepts(table)).all()
    assert np.abs(found["probs"] - gate.predict_proba(table)).max() < 1e-5
    wrong = np.full((3, 10), 0.1, dtype=dtype)
    wrong[0, 0], wrong[1], wrong[2, :2] = np.nan, 0.9, (-0.1, 0.3)
    assert not run(to_onnx(gate, dtype=dtype), wrong)["accept"].any()


def test_the_choice_of_auto_is_exported(ten):
    gate = mc.MetaCal(
        mc.MaxMiscoverage(0.1), mc.AutoCalibrator(candidates=[mc.TemperatureScaling(), mc.IRM()])
    )
    gate.fit(ten.logits[:800], ten.labels[:800])
    assert_same(gate, ten.logits[:500], to_onnx(gate))


def test_a_calibrated_classifier_is_its_gate(ten):
    from sklearn.frozen import FrozenEstimator
    from sklearn.linear_model import LogisticRegression

    X, y = ten.logits[:2500].astype(np.float64) / 10, ten.labels[:2500]
    inner = FrozenEstimator(LogisticRegression(max_iter=500).fit(X[:500], y[:500]))
    wrapped = mc.CalibratedClassifier(inner, mc.MaxMiscoverage(0.1)).fit(X[500:1500], y[500:1500])
    found = run(
        to_onnx(wrapped, dtype="float64", input="probabilities"), inner.predict_proba(X[1500:])
    )
    assert (found["accept"] == wrapped.accepts(X[1500:])).all()


# ── the threshold ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "promise", [mc.MaxMiscoverage(0.05), mc.MinAccuracy(0.97), mc.paper.MaxMiscoverage(0.05)]
)
@pytest.mark.parametrize("score", NAMED)
def test_the_threshold_that_is_stored_is_the_certified_one_and_parts_the_neighbours(
    promise, score, ten
):
    gate = mc.MetaCal(promise, score=score).fit(ten.logits[:5000], ten.labels[:5000])
    certificate = gate.certificate_
    stored = float({p.key: p.value for p in to_onnx(gate).metadata_props}["metacal.threshold"])
    assert certificate.highest_accepted < stored < certificate.lowest_rejected
    assert (
        stored == certificate.threshold == get_rounding_grid(score).make_robust_to_rounding(stored)
    )


# ── metadata, errors, files ───────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_the_metadata_carries_promise_certificate_and_hashes(ten, gates, tmp_path):
    gate = mc.MetaCal(mc.MaxMiscoverage(0.05)).fit(ten.logits[:3000], ten.labels[:3000])
    saved = save(gate, tmp_path / "gate.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "gate.onnx")
    found = session.get_modelmeta().custom_metadata_map
    assert found == saved.metadata
    assert saved.ran
    assert found["metacal.promise"] == gate.certificate_.statement
    said = json.loads(found["metacal.certificate"])
    assert decode_certificate(said) == gate.certificate_
    assert found["metacal.artifact_hash"].startswith("sha256:")
    assert found["metacal.data_hash"].startswith("sha256:")
    assert json.loads(found["metacal.classes"]) == list(range(10))


def test_the_same_gate_is_the_same_bytes(gates):
    assert (
        to_onnx(gates["entropy"]).SerializeToString()
        == to_onnx(gates["entropy"]).SerializeToString()
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x, y: mc.MetaCal(mc.MaxMiscoverage(0.05)), "not fitted"),
        (
            lambda x, y: mc.MetaCal(mc.MaxMiscoverage(0.05), score=lambda b: -b.max(axis=1)).fit(
                x, y
            ),
            "Python function",
        ),
        (
            lambda x, y: "cal.json",
            r"CalibratedClassifier \(metacal\.export\.onnx also exports gates on scores and cascades\), but got str\.",
        ),
        (lambda x, y: mc.MetaCal, "got MetaCal"),
    ],
)
def test_what_cannot_be_exported_says_so(make, message, ten):
    with pytest.raises(mc.InputError, match=message):
        to_onnx(make(ten.logits[:300], ten.labels[:300]))


def test_somebody_elses_calibrator_cannot_be_exported(ten):
    from sklearn.linear_model import LogisticRegression

    gate = mc.MetaCal(mc.MaxMiscoverage(0.1), LogisticRegression()).fit(
        ten.logits[:500], ten.labels[:500]
    )
    with pytest.raises(mc.InputError, match="LogisticRegression is not one of metacal's"):
        to_onnx(gate)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"opset": 9}, "operator set 11 or newer"),
        ({"opset": 17.0}, "opset must be an integer, but got"),
        ({"dtype": "int8"}, "'float32', 'float16' or 'float64'"),
        ({"input": "scores"}, "'logits' or 'probabilities'"),
    ],
)
def test_wrong_options(options, message, gates):
    with pytest.raises(mc.InputError, match=message):
        to_onnx(gates["entropy"], **options)


def test_energy_needs_logits(gates):
    with pytest.raises(mc.InputError, match="requires logits"):
        to_onnx(gates["energy"], input="probabilities")


@pytest.mark.slow
def test_a_file_that_the_runtime_does_not_load_is_not_written(gates, tmp_path):
    with pytest.raises(
        mc.ArtifactError, match=r"(does not load|checker refuses) the model"
    ):  # or onnx itself
        save(gates["entropy"], tmp_path / "gate.onnx", opset=28, ir_version=14)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_without_onnx_the_extra_is_named():
    code = (
        "import sys\nsys.modules['onnx'] = None\nimport metacal as mc\n"
        "from metacal.export.onnx import to_onnx\n"
        "cal = mc.TemperatureScaling().fit([[2.0, 0.0], [0.0, 1.0], [0.5, 0.0]], [0, 1, 1])\n"
        "try:\n    to_onnx(cal)\nexcept mc.MissingExtraError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "metacal[onnx]"' in done.stdout
