"""Tables larger than memory: same bits as an array, on any executor, in memory bounded by the
block.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
from sklearn.base import clone

import metacal as mc
from metacal import kernels
from metacal.io import open_table, read_predictions
from metacal.rows import Rows, open_executor, stored, validate
from metacal.rows.stored import ConvertedTable, StoredTable

pq = pytest.importorskip("pyarrow.parquet")
pa = pytest.importorskip("pyarrow")

N, K = 5003, 40
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, K, N)
TABLE = (RNG.normal(size=(N, K)) * 2 + 6 * np.eye(K)[LABELS] * RNG.random((N, 1))).astype(
    np.float32
)


@pytest.fixture(params=[1, 997, 1638, N], ids=lambda rows: f"groups of {rows}")
def parquet(request, tmp_path):
    """The table in Parquet: tiny row groups, odd ones, a strip each, and one for all."""
    path = tmp_path / "table.parquet"
    table, labels = (TABLE, LABELS) if request.param > 1 else (TABLE[:200], LABELS[:200])
    lists = pa.FixedSizeListArray.from_arrays(pa.array(table.ravel()), K)
    pq.write_table(pa.table({"logits": lists, "label": labels}), path, row_group_size=request.param)
    found = read_predictions(path, stream=True)
    assert isinstance(found.table, StoredTable)
    return found.table, table, labels


@pytest.mark.parametrize("n_jobs", [1, 3])
def test_the_same_bits_as_an_array(parquet, n_jobs):
    on_disk, table, labels = parquet
    for estimator in (
        mc.TemperatureScaling(n_jobs=n_jobs),
        mc.MetaCal(mc.MaxMiscoverage(0.2), n_jobs=n_jobs),
        mc.MetaCal(
            mc.MaxMiscoverage(0.2),
            calibrator=mc.EnsembleTemperatureScaling(),
            score="margin",
            n_jobs=n_jobs,
        ),
    ):
        here, there = (clone(estimator).fit(x, labels) for x in (table, on_disk))
        assert here.map_ == there.map_
        assert getattr(here, "certificate_", None) == getattr(there, "certificate_", None)
        np.testing.assert_array_equal(here.predict_proba(table), there.predict_proba(on_disk))
        np.testing.assert_array_equal(here.predict(table), there.predict(on_disk))


@pytest.mark.parametrize(
    "index",
    [
        np.s_[:],
        np.s_[3:9],
        np.s_[9:3],
        np.s_[-5:],
        np.s_[10:190:7],
        np.s_[::-50],
        np.s_[5],
        np.s_[[7, 3, 3, -1]],
        np.s_[:, [2, 0]],
        np.s_[[4, 9], [1, 2]],
        np.s_[4, 2],
    ],
)
def test_indexing_is_that_of_an_array(parquet, index):
    on_disk, table, _ = parquet
    np.testing.assert_array_equal(on_disk[index], table[index])


def test_masks_copies_and_orders(parquet):
    on_disk, table, labels = parquet
    np.testing.assert_array_equal(on_disk[labels == 3], table[labels == 3])
    np.testing.assert_array_equal(np.asarray(on_disk, dtype=np.float64), table.astype(np.float64))
    np.testing.assert_array_equal(on_disk.select_columns([2, 0])[5:50], table[5:50, [2, 0]])
    with pytest.raises(IndexError):
        on_disk[[len(table)]]
    again = pickle.loads(pickle.dumps(on_disk))
    np.testing.assert_array_equal(again[50:150], table[50:150])
    assert len(pickle.dumps(on_disk.lazy_slice(10, 150))) < 1500


@pytest.mark.parametrize("sample_bytes", [0, 1 << 30])
def test_samples_in_memory_or_not(parquet, sample_bytes, monkeypatch):
    on_disk, table, labels = parquet
    monkeypatch.setattr(stored, "SAMPLE_BYTES", sample_bytes)
    monkeypatch.setattr(stored, "SAMPLE_SHARE", 0.0)
    for step in (1, 3, 50):
        here, there = (Rows(x).take_every(step) for x in (table, on_disk))
        assert isinstance(there.table, StoredTable) == (sample_bytes == 0)
        np.testing.assert_array_equal(
            here.compute_column(kernels.entropy), there.compute_column(kernels.entropy)
        )
        here, there = (Rows(x).select(labels % 3 > 0).take_every(step) for x in (table, on_disk))
        np.testing.assert_array_equal(
            here.compute_column(kernels.entropy), there.compute_column(kernels.entropy)
        )


@pytest.mark.slow
def test_processes_get_descriptions(tmp_path):
    path = tmp_path / "table.parquet"
    with open_table(path, N) as write:
        for start in range(0, N, 1000):
            write({"logits": TABLE[start : start + 1000]})
    on_disk = read_predictions(path, stream=True).table
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        rows = Rows(on_disk, executor=pool, block_rows=1000)
        np.testing.assert_array_equal(
            rows.compute_column(kernels.entropy), Rows(TABLE).compute_column(kernels.entropy)
        )
        kept = rows.select(LABELS > 5)
        right = Rows(TABLE).select(LABELS > 5).compute_column(kernels.predict_classes)
        np.testing.assert_array_equal(kept.compute_column(kernels.predict_classes), right)
        # What is filled lies here: another process fills room of its own, which comes back.
        np.testing.assert_array_equal(rows.fill_columns(np.negative, np.zeros_like(TABLE)), -TABLE)


@pytest.mark.parametrize("kind", ["memory map", "parquet"])
def test_probabilities_stay_on_disk_too(tmp_path, kind):
    proba = mc.TemperatureScaling().fit(TABLE, LABELS).predict_proba(TABLE)
    proba[5, 0], proba[5, 1] = 0.0, proba[5, 0] + proba[5, 1]
    if kind == "parquet":
        with open_table(tmp_path / "p.parquet", N) as write:
            write({"probs": proba})
        source = read_predictions(tmp_path / "p.parquet", input="probabilities", stream=True).table
    else:
        np.save(tmp_path / "p.npy", proba)
        source = np.load(tmp_path / "p.npy", mmap_mode="r")
    logits = validate.read_logits(source, "probabilities")
    assert isinstance(logits, StoredTable)
    np.testing.assert_array_equal(logits[:], validate.read_logits(proba, "probabilities"))
    fits = [
        mc.TemperatureScaling(input="probabilities").fit(x, LABELS).map_ for x in (proba, source)
    ]
    assert fits[0] == fits[1]


def test_checks_name_the_row_of_the_file():
    table = TABLE.copy()
    table[4321, 7] = np.inf
    lazy = ConvertedTable(table, np.ascontiguousarray, table.dtype)
    with pytest.raises(mc.InputError, match="row 4321, column 7 is infinity"):
        mc.TemperatureScaling().fit(lazy, LABELS)
    with pytest.raises(mc.InputError, match="at least 2 columns"):
        validate.check_logits(lazy.select_columns([0]))
    whole = ConvertedTable(np.arange(20).reshape(10, 2), np.ascontiguousarray, np.int64)
    assert validate.check_logits(whole)[3:4].tolist() == [[6.0, 7.0]]


def test_progress_is_told():
    seen = []
    from metacal.rows import report_progress_to

    with report_progress_to(seen.append), open_executor(2) as executor:
        Rows(TABLE, executor=executor, block_rows=2000).compute_column(kernels.entropy)
    assert sum(seen) == N
    assert len(seen) > 1


# ── the memory limit ──────────────────────────────────────────────────────────────────────────────

CHILD = """
import resource, sys
import numpy as np
import metacal as mc
from metacal.cli import main

kind, spare = sys.argv[1], int(sys.argv[2])
# Whatever is loaded, is loaded now: the limit is about the rows.
tiny = np.random.default_rng(0).normal(size=(500, 3))
mc.io.write_table("tiny.parquet", {"logits": tiny})
mc.save(mc.MetaCal(mc.MaxMiscoverage(0.5)).fit(tiny, np.roll(tiny, 1).argmax(axis=1)), "tiny.json")
main(["apply", "tiny.json", "tiny.parquet", "-o", "out.parquet", "--quiet"], standalone_mode=False)


def leave(spare):
    status = dict(line.split(":") for line in open("/proc/self/status"))
    limit = int(status["VmData"].split()[0]) * 1024 + spare
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))

leave(spare)
try:
    np.ones(spare // 8 * 2)
    raise SystemExit("the limit does not bind")
except MemoryError:
    pass

labels = "labels.npy" if kind.endswith("npy") else None
found = mc.read_predictions(kind, labels=labels)
assert found.table.nbytes >= 10 * spare, (found.table.nbytes, spare)
print(mc.TemperatureScaling().fit(found.table, found.labels).temperature_.hex())
gate = mc.MetaCal(mc.MaxMiscoverage(0.1)).fit(found.table, found.labels)
print(gate.threshold_.hex(), gate.calibrator_.temperature_.hex())
mc.save(gate, "gate.json")
del found, gate
leave(spare)
if kind == "table.parquet":
    main(["apply", "gate.json", kind, "-o", "probs.parquet", "--quiet"], standalone_mode=False)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """720 MB of float64: 45 times the same 2,000 rows, as .npy and as Parquet."""
    folder = tmp_path_factory.mktemp("large")
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 1000, 2000)
    block = rng.normal(size=(2000, 1000))
    block[np.arange(2000), labels] += rng.normal(4, 2, 2000)
    mapped = np.lib.format.open_memmap(folder / "table.npy", "w+", np.float64, (90_000, 1000))
    lists = pa.FixedSizeListArray.from_arrays(pa.array(block.ravel()), 1000)
    rows = pa.table({"logits": lists, "label": labels})
    options = {"compression": "none", "use_dictionary": False}
    with pq.ParquetWriter(folder / "table.parquet", rows.schema, **options) as writer:
        for start in range(0, 90_000, 2000):
            mapped[start : start + 2000] = block
            writer.write_table(rows)
    mapped.flush()
    np.save(folder / "labels.npy", np.tile(labels, 45))
    yield folder
    for path in folder.iterdir():
        path.unlink()


@pytest.mark.long
@pytest.mark.skipif(
    not os.path.exists("/proc/self/status"), reason="needs Linux's memory accounting"
)
def test_a_table_ten_times_larger_than_the_memory_that_is_left(large):
    # About 24 MB are in use at once; glibc keeps as much again of what was freed, and the kernel
    # counts that: 48 MB were enough with pyarrow 16 and with 26. The rest is for other machines.
    # What grows with their cores (a heap per thread, a buffer per BLAS thread) is kept to one.
    spare = 72_000_000
    answers = []
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MALLOC_ARENA_MAX"), "1")
    frugal = {"ARROW_DEFAULT_MEMORY_POOL": "system", **one}
    for kind in ("table.npy", "table.parquet"):
        argv = [sys.executable, "-W", "ignore", "-c", CHILD, kind, str(spare)]
        done = subprocess.run(
            argv, cwd=large, env={**os.environ, **frugal}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-2000:]
        answers.append(done.stdout.splitlines())
    assert answers[0] == answers[1]
    assert len(answers[0]) == 2
    out = pq.ParquetFile(large / "probs.parquet")
    assert out.metadata.num_rows == 90_000
    first = out.read_row_group(0)["probs"].combine_chunks().flatten().to_numpy().reshape(-1, 1000)
    block = np.load(large / "table.npy", mmap_mode="r")[: len(first)]
    np.testing.assert_array_equal(
        first, mc.load(large / "gate.json").calibrator_.predict_proba(block)
    )
