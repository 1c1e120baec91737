"""BatchGate: record batches in, record batches out, the same bits as on a whole table."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys

import numpy as np
import pytest

import metacal as mc
from metacal.io import batches as module
from metacal.maps.methods import METHODS

pa = pytest.importorskip("pyarrow")

DATA = mc.datasets.load("cifar10-resnet110")
FIT, NEW = (DATA.logits[:2000], DATA.labels[:2000]), np.ascontiguousarray(DATA.logits[2000:2400])
NAMES = [f"c{k}" for k in range(10)]


@pytest.fixture(scope="module")
def cal():
    return mc.MetaCal(mc.MinAccuracy(0.95), classes=NAMES).fit(*FIT)


@pytest.fixture
def saved(cal, tmp_path):
    mc.save(cal, tmp_path / "cal.json")
    return tmp_path / "cal.json"


def lists(rows, kind=None):
    made = pa.FixedSizeListArray.from_arrays(rows.ravel(), rows.shape[1])
    return made if kind is None else made.cast(kind)


def batch(rows, **more):
    return pa.record_batch({"logits": lists(rows), **more})


def table(found, name="probs"):
    return np.array(found[name].to_pylist(), dtype=np.float32)


@pytest.mark.parametrize(
    "kind", [None, pa.list_(pa.float32()), pa.large_list(pa.float32()), pa.list_(pa.float64())]
)
def test_lists_of_every_kind(kind, cal):
    found = mc.BatchGate(cal)(pa.record_batch({"logits": lists(NEW, kind)}))
    told = cal.decide(
        NEW if kind is None or kind.value_type == pa.float32() else NEW.astype(np.float64)
    )
    assert found.schema.names == ["prediction", "answer", "confidence", "accept", "score", "probs"]
    assert found["prediction"].to_pylist() == told.label.tolist()
    assert found["score"].to_numpy().tobytes() == told.score.tobytes()
    assert found["probs"].flatten().to_numpy().tobytes() == told.probabilities.tobytes()
    assert found["probs"].type == pa.list_(pa.from_numpy_dtype(told.probabilities.dtype), 10)
    assert found.schema.metadata[b"metacal.classes"] == str(NAMES).replace("'", '"').encode()


def test_a_column_for_each_class_in_any_order(cal):
    told = cal.decide(NEW)
    order = np.random.default_rng(0).permutation(10)
    for prefix in ("", "logits_"):
        columns = {f"{prefix}{NAMES[k]}": np.ascontiguousarray(NEW[:, k]) for k in order}
        rows = pa.record_batch({"url": ["u"] * len(NEW), **columns, "id": np.arange(len(NEW))})
        found = mc.BatchGate(cal, keep=["url"])(rows)
        assert found.schema.names[:3] == ["id", "url", "prediction"]
        assert table(found).tobytes() == told.probabilities.tobytes()
        assert found["id"].to_pylist() == list(range(len(NEW)))


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_batches_of_any_size_give_the_bits_of_one_table(name):
    cal = mc.MetaCal(mc.MinAccuracy(0.95), calibrator=name).fit(*FIT)
    told = cal.decide(NEW)
    gate = pickle.loads(pickle.dumps(mc.BatchGate(cal)))
    ends = [0, 1, 1, 7, 150, 400]
    found = pa.Table.from_batches(
        gate.batches(batch(NEW[a:b]) for a, b in itertools.pairwise(ends))
    )
    assert found["prediction"].to_pylist() == told.label.tolist()
    assert found["score"].to_pylist() == told.score.tolist()
    if name in (
        "matrix",
        "dirichlet",
    ):  # BLAS adds in an order that depends on how many rows there are
        np.testing.assert_allclose(table(found), told.probabilities, rtol=1e-5, atol=1e-7)
    else:
        assert table(found).tobytes() == told.probabilities.tobytes()


def test_a_table_gives_a_table_and_slices_are_rows(cal):
    whole = pa.Table.from_batches([batch(NEW[:100]), batch(NEW[100:])])
    found = mc.BatchGate(cal)(whole)
    assert isinstance(found, pa.Table)
    assert (
        table(mc.BatchGate(cal)(batch(NEW).slice(30, 50))).tobytes()
        == table(found)[30:80].tobytes()
    )


def test_an_empty_batch_and_the_schema(cal):
    for options in ({}, {"probabilities": False}, {"fixed_size": False}, {"keep": ["url"]}):
        gate = mc.BatchGate(cal, **options)
        rows = batch(NEW, url=pa.array(["u"] * len(NEW)), id=np.arange(len(NEW)))
        found, empty = gate(rows), gate(rows.slice(0, 0))
        assert empty.num_rows == 0
        assert empty.schema.equals(found.schema, check_metadata=True)
        assert gate.schema(rows.schema).equals(found.schema, check_metadata=True)
    plain = pa.schema([("logits", pa.list_(pa.float32()))])
    assert mc.BatchGate(cal).schema(plain).field("probs").type == pa.list_(pa.float32(), 10)
    bare = mc.BatchGate(cal, probabilities=False)(batch(NEW))
    assert bare.schema.names == ["prediction", "answer", "accept", "score"]


def test_rejected_rows_and_groups(cal):
    uniform = mc.BatchGate(cal, rejected="uniform")(batch(NEW))
    assert table(uniform).tobytes() == cal.decide(NEW, rejected="uniform").probabilities.tobytes()
    groups = np.where(np.arange(2000) % 2, "a", "b")
    by_group = mc.MetaCal(mc.PerGroup(mc.MinAccuracy(0.95))).fit(*FIT, groups=groups)
    own = np.where(np.arange(len(NEW)) % 3, "a", "b")
    found = mc.BatchGate(by_group, group_key="site")(batch(NEW, site=pa.array(own)))
    assert found["accept"].to_pylist() == by_group.accepts(NEW, groups=own).tolist()
    assert (
        mc.BatchGate(by_group, group_key="site")(
            batch(NEW[:0], site=pa.array([], pa.string()))
        ).num_rows
        == 0
    )
    with pytest.raises(mc.InputError, match="one threshold for each group of rows"):
        mc.BatchGate(by_group)
    with pytest.raises(mc.InputError, match="group_key names 'site', which the file"):
        mc.BatchGate(by_group, group_key="site")(batch(NEW))


def test_what_travels_is_small_and_is_loaded_once(saved, cal, monkeypatch):
    gate = mc.BatchGate(saved, keep=["id"])
    sent = pickle.dumps(gate)
    assert len(sent) < 1000
    assert b'"checksum"' in pickle.dumps(
        mc.BatchGate(cal)
    )  # the text itself, for workers that share no disk
    module._gate_cache.clear()
    there = [pickle.loads(sent) for _ in range(3)]
    assert not module._gate_cache  # nothing is read before a batch comes
    loads = []
    monkeypatch.setattr(
        module,
        "_load_and_cache_gate",
        lambda *given, load=module._load_and_cache_gate: loads.append(1) or load(*given),
    )
    for one in there:
        one(batch(NEW, id=np.arange(len(NEW))))
    assert len(loads) == 1


@pytest.mark.slow
def test_a_worker_needs_no_scikit_learn(saved):
    sent = pickle.dumps(mc.BatchGate(saved)).hex()
    code = (
        f"import pickle, sys, pyarrow as pa\ngate = pickle.loads(bytes.fromhex('{sent}'))\nrows ="
        " pa.record_batch({'logits': pa.array([[0.0] * 9 + [9.0]],"
        " pa.list_(pa.float32()))})\nprint(gate(rows)['answer'][0], sorted({'sklearn',"
        " 'scipy.stats'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["c9", "[]"]


def test_another_file_of_that_name_is_refused(saved, cal):
    sent = pickle.dumps(mc.BatchGate(saved))
    mc.save(mc.TemperatureScaling(classes=NAMES).fit(*FIT), saved)
    module._gate_cache.clear()
    with pytest.raises(mc.InputError, match="file differs from the gate that was sent"):
        pickle.loads(sent)(batch(NEW))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            lambda: {"logits": lists(NEW[:, :9])},
            "the gate was fitted on 10",
        ),
        (
            lambda: {"logits": pa.array([[1.0] * 10, [1.0] * 9])},
            r"row 1 of column 'logits' has 9 numbers",
        ),
        (lambda: {"logits": pa.array([[1.0] * 10, None])}, "row 1 of the column 'logits' is null"),
        (
            lambda: {"logits": pa.array([[1.0] * 10, [float("nan")] * 10])},
            r"row 1, column 0 is NaN",
        ),
        (lambda: {"marks": lists(NEW)}, "no column 'logits'.*name the column of logits"),
        (
            lambda: {"logits": lists(NEW), "score": np.arange(400)},
            "already have a column 'score'",
        ),
        (lambda: {"logits": lists(NEW)}, "names the column 'score', which the"),
        (
            lambda: {name: np.arange(3.0) for name in (*NAMES[:9], "d")},
            r"no columns for the classes 'c9'\.",
        ),
    ],
)
def test_what_cannot_be_read_says_so(rows, message, cal):
    keep = ["score"] if "score" in message else []
    with pytest.raises(mc.InputError, match=message):
        mc.BatchGate(cal, keep=keep)(pa.record_batch(rows()))


def test_what_is_no_gate_on_logits(cal):
    scored = mc.ScoreGate(mc.MinAccuracy(0.5)).fit(np.linspace(0.0, 1.0, 200), np.arange(200) > 20)
    with pytest.raises(mc.InputError, match="a gate on one table of logits"):
        mc.BatchGate(scored)
    with pytest.raises(mc.InputError, match=r"keep must be a list"):
        mc.BatchGate(cal, keep="url")
    with pytest.raises(mc.InputError, match="the file does not exist"):
        mc.BatchGate("nowhere.json")
    calibrator = mc.BatchGate(mc.TemperatureScaling().fit(*FIT))
    assert calibrator(batch(NEW)).schema.names == ["prediction", "confidence", "probs"]
