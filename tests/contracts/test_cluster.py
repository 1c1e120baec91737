"""A cluster gives the same bits as one machine, gets descriptions and never rows, and survives the
loss of a worker.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import metacal as mc
from benchmarks.speed.sizes import fill_table
from metacal import rows as rows_module
from metacal.cli.cluster import open_cluster
from metacal.io.predictions import read_predictions
from metacal.maps import curve_fitting
from metacal.rows import cluster as cluster_module
from metacal.rows.stored import StoredTable

dask = pytest.importorskip("dask", reason="dask not found: pip install distributed")
distributed = pytest.importorskip(
    "distributed", reason="distributed not found: pip install distributed"
)
pytestmark = pytest.mark.filterwarnings("ignore")

LOCAL = {"processes": True, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
METHODS = {
    "temperature": mc.TemperatureScaling(),
    "uniform": mc.UniformTemperatureScaling(),
    "ensemble": mc.EnsembleTemperatureScaling(),
    "vector": mc.VectorScaling(),
    "structured": mc.StructuredScaling(),
    "local": mc.LocalTemperatureScaling(),
    "spline": mc.SplineCalibration(),
    "histogram": mc.HistogramBinning(),
}
QUICK = ("temperature", "vector", "spline", "histogram")  # one of each way to walk the rows


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Four files of 20 classes, 30,000 rows in all."""
    folder = tmp_path_factory.mktemp("logs")
    table = np.empty((30_000, 20), dtype=np.float32)
    labels = fill_table(table, seed=0)
    for part in range(4):
        rows = slice(7500 * part, 7500 * (part + 1))
        np.save(folder / f"x{part}.npy", table[rows])
        np.save(folder / f"y{part}.npy", labels[rows])
    return folder


@pytest.fixture
def found(files):
    return read_predictions(str(files / "x*.npy"), labels=str(files / "y*.npy"), stream=True)


@pytest.fixture(scope="module", autouse=True)
def workers_start_at_once():
    """New workers are forks of one clean process that has imported what a worker needs."""
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        distributed.utils.get_mp_context()  # sets a list of its own, once
        needed = [
            name
            for name in sys.modules
            if name.partition(".")[0] == "metacal" and ".cli" not in name
        ]
        multiprocessing.set_forkserver_preload(["distributed", *needed])
        yield


@pytest.fixture(scope="module")
def client():
    # On a busy machine a worker takes more than 15 s to come back, after which the cluster would do
    # without.
    patient = dask.config.set({"distributed.deploy.lost-worker-timeout": "10 minutes"})
    # Failures of tasks that no one waits for are logged when they are collected, which may be
    # during a later test that looks at the error output of a command.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    with (
        patient,
        distributed.LocalCluster(n_workers=2, **LOCAL) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(autouse=True)
def many_blocks(monkeypatch):
    monkeypatch.setattr(rows_module, "BLOCK_ELEMENTS", 1 << 16)  # ten blocks: each a strip


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in METHODS],
)
def test_a_cluster_gives_the_bits_of_one_machine(name, found, client):
    base = METHODS[name]
    here = mc.MetaCal(mc.MinAccuracy(0.85), calibrator=base).fit(
        np.asarray(found.table), found.labels
    )
    there = mc.MetaCal(mc.MinAccuracy(0.85), calibrator=base).fit(
        found.table, found.labels, executor=client
    )
    assert there.certificate_ == here.certificate_
    assert there.data_hash_ == here.data_hash_
    rows = np.asarray(found.table[:500])
    assert there.predict_proba(rows).tobytes() == here.predict_proba(rows).tobytes()


@pytest.mark.parametrize(("name", "most"), [("temperature", 4), ("vector", 14), ("histogram", 1)])
def test_how_often_the_table_is_read(name, most, found, monkeypatch):
    monkeypatch.setattr(
        curve_fitting, "MAX_GROUP_ENTRIES", 30_000
    )  # where classes are gathered by groups: one at a time
    executors_of_passes = []
    run_on_blocks = rows_module.Rows._run_on_blocks

    def record_executor(rows, *arguments, **options):
        executors_of_passes.append(rows.executor)
        return run_on_blocks(rows, *arguments, **options)

    monkeypatch.setattr(rows_module.Rows, "_run_on_blocks", record_executor)
    with ProcessPoolExecutor(1) as pool:
        METHODS[name].fit(found.table, found.labels, executor=pool)
    assert 1 <= len([None for executor in executors_of_passes if executor is pool]) <= most


def test_a_pool_of_processes_is_an_executor_too(found):
    here = mc.TemperatureScaling().fit(np.asarray(found.table), found.labels)
    with ProcessPoolExecutor(2) as pool:
        there = mc.TemperatureScaling().fit(found.table, found.labels, executor=pool)
    assert there.temperature_ == here.temperature_


def test_descriptions_travel_and_never_rows(found, client):
    from distributed.protocol import dumps

    piece, _ = rows_module.Rows(found.table)._extract_piece((), rows_module.strips.Span(0, 2))
    assert sum(len(frame) for frame in dumps(piece)) < 20_000 < found.table[:6000].nbytes / 20


def without_seconds(comparison):
    return [{**entry, "fit_seconds": None} for entry in comparison.to_dict()["calibrators"]]


def test_evaluate_compare_and_apply_give_the_bits_of_one_machine(found, files, client, tmp_path):
    table, executor = np.asarray(found.table), client.get_executor(retries=3)
    gate = mc.MetaCal(mc.MinAccuracy(0.85)).fit(table[::2], found.labels[::2])
    here = mc.evaluate(gate, table, found.labels, n_resamples=20).to_dict()
    there = mc.evaluate(
        gate, found.table, found.labels, n_resamples=20, executor=executor
    ).to_dict()
    for rows in (
        here["all_rows"],
        here["accepted_rows"],
    ):  # the one interval that needs every entry at once
        rows["classwise_ece"] |= {"low": None, "high": None, "method": "none"}
    assert there == here

    chosen = {"n_splits": 2, "n_repeats": 1}
    one = mc.compare(table, found.labels, ["temperature", "isotonic"], **chosen)
    two = mc.compare(
        found.table, found.labels, ["temperature", "isotonic"], executor=executor, **chosen
    )
    assert without_seconds(one) == without_seconds(two)

    mc.save(gate, tmp_path / "cal.json")
    source, options = str(files / "x*.npy"), {"output_format": "parquet"}
    mc.apply(tmp_path / "cal.json", source, f"{tmp_path}/here/", **options)
    done = mc.apply(
        tmp_path / "cal.json", source, f"{tmp_path}/there/", executor=executor, **options
    )
    assert (done.n_files, done.n_kept, done.n_rows) == (4, 0, 30_000)
    names = sorted(path.name for path in (tmp_path / "here").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "there").iterdir())
    for name in names[1:]:
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()
    assert (
        mc.apply(
            tmp_path / "cal.json", source, f"{tmp_path}/there/", executor=executor, **options
        ).n_kept
        == 4
    )


class Unread(StoredTable):
    """A table that nobody may read."""

    def read(self, start, stop):
        raise AssertionError("it was read")


@pytest.mark.parametrize("name", ["isotonic", "bbq", "auto", LogisticRegression()])
def test_what_is_no_sum_says_so_before_anything_is_read(name, client):
    table, labels = Unread((100, 3), np.float32), np.arange(100) % 3
    with pytest.raises(mc.InputError, match="does not support an executor"):
        mc.MetaCal(mc.MinAccuracy(0.5), calibrator=name).fit(table, labels, executor=client)
    with pytest.raises(mc.InputError, match="Workers write one result per file"):
        mc.apply(
            mc.TemperatureScaling().fit(np.eye(3), range(3)), "x.npy", "out.csv", executor=client
        )


def workers(client):
    """The processes of both workers; after the loss of one its nanny brings another."""
    for _ in range(600):
        found = client.run(os.getpid, on_error="return")
        pids = [pid for pid in found.values() if isinstance(pid, int)]
        if len(pids) == 2:
            return pids
        time.sleep(0.1)
    raise AssertionError("the second worker does not come back")


def killed_at(moment, client):
    """Kill a worker so many seconds from now."""
    killer = threading.Timer(moment, os.kill, (workers(client)[0], signal.SIGKILL))
    killer.start()
    return killer


def test_a_worker_killed_in_the_middle_changes_nothing(found, files, client, tmp_path):
    here = mc.MetaCal(mc.MinAccuracy(0.85)).fit(np.asarray(found.table), found.labels)
    measured = mc.evaluate(here, found.table, found.labels, n_resamples=0).to_dict()
    source = str(files / "x*.npy")
    mc.apply(here, source, f"{tmp_path}/here/")
    for number, moment in enumerate((0.05, 0.2)):
        killer = killed_at(moment, client)
        there = mc.MetaCal(mc.MinAccuracy(0.85)).fit(found.table, found.labels, executor=client)
        killer.join()
        assert there.gate_ == here.gate_
        killer = killed_at(moment, client)
        mc.apply(here, source, f"{tmp_path}/{number}/", executor=client)
        killer.join()
        for path in (tmp_path / "here").iterdir():
            if path.name[0] != "_":
                assert (tmp_path / str(number) / path.name).read_bytes() == path.read_bytes()
        # And no leftover; a file that the lost worker had finished may just be made again.
        results = {f"x{part}.npz" for part in range(4)}
        deadline = time.monotonic() + 20.0
        while (
            names := {
                path.name for path in (tmp_path / str(number)).iterdir() if path.name[0] != "_"
            }
        ) != results:
            assert time.monotonic() < deadline, names
            time.sleep(0.1)
        killer = killed_at(moment, client)
        again = mc.evaluate(here, found.table, found.labels, n_resamples=0, executor=client)
        killer.join()
        assert again.to_dict() == measured


def works(table, labels, executor):
    """A fit, an evaluate and a compare of a table."""
    chosen = {"n_splits": 2, "n_repeats": 1, "executor": executor}
    return (
        lambda: mc.TemperatureScaling().fit(table, labels, executor=executor),
        lambda: mc.evaluate(None, table, labels, n_resamples=0, executor=executor),
        lambda: mc.compare(table, labels, ["temperature", "spline"], **chosen),
    )


def test_what_is_wrong_with_a_file_is_one_error_that_names_it(tmp_path, client):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = np.empty((4000, 10), dtype=np.float32)
    labels = fill_table(table, seed=0)
    flat = pa.FixedSizeListArray.from_arrays(table.ravel(), 10)
    for part in range(3):
        pq.write_table(
            pa.table({"logits": flat, "label": labels}),
            tmp_path / f"{part}.parquet",
            row_group_size=1000,
        )
    column = pq.ParquetFile(tmp_path / "1.parquet").metadata.row_group(2).column(0)
    found = read_predictions(tmp_path, stream=True)
    before = os.stat(tmp_path / "1.parquet")
    with open(tmp_path / "1.parquet", "r+b") as file:
        file.seek(column.data_page_offset)
        file.write(b"\xff" * 40)
    os.utime(tmp_path / "1.parquet", ns=(before.st_atime_ns, before.st_mtime_ns))
    for work in works(found.table, found.labels, client.get_executor(retries=0)):
        with pytest.raises(mc.InputError, match=r"1\.parquet, row group 2: the file is damaged"):
            work()


class Greedy(StoredTable):
    """A table whose reading ends a worker, as the system does to one that takes too much memory."""

    path = "logs/greedy.parquet"

    def __init__(self, shape, dtype):
        super().__init__(shape, dtype)
        self.driver = os.getpid()

    def read(self, start, stop):
        if os.getpid() != self.driver:
            os.kill(os.getpid(), signal.SIGKILL)
        return (
            np.random.default_rng(start)
            .normal(size=(stop - start, self.shape[1]))
            .astype(self.dtype)
        )


@pytest.mark.parametrize(
    ("what", "resubmissions"), [("sums", 1), ("compare", 0)]
)  # each costs a worker
def test_workers_that_run_out_of_memory_are_one_error_that_names_the_file(
    what, resubmissions, monkeypatch
):
    monkeypatch.setattr(cluster_module, "RESUBMISSIONS", resubmissions)
    with (
        dask.config.set(
            {"distributed.scheduler.allowed-failures": 0}
        ),  # nobody tries again: it would end as this one
        distributed.LocalCluster(n_workers=1, **LOCAL) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        greedy, labels = Greedy((10_000, 20), np.float32), np.arange(10_000) % 20
        sums = partial(rows_module.Rows(greedy, executor=client).sum, np.sum)
        work = sums if what == "sums" else works(greedy, labels, client)[2]
        with pytest.raises(
            mc.InputError, match=r"greedy\.parquet: The workers with these rows were lost"
        ):
            work()


def test_a_vanished_file_is_named(files, tmp_path, client):
    copies = []
    for part in range(4):
        copies.append(tmp_path / f"x{part}.npy")
        copies[-1].write_bytes((files / f"x{part}.npy").read_bytes())
    found = read_predictions([str(path) for path in copies], stream=True)
    copies[2].unlink()
    labels = np.concatenate([np.load(files / f"y{part}.npy") for part in range(4)])
    for work in works(found.table, labels, client.get_executor(retries=1)):
        with pytest.raises(mc.InputError, match=r"x2\.npy"):
            work()


def test_the_command_line_reaches_a_cluster(files, tmp_path, client):
    address = client.scheduler.address.replace("tcp://", "dask://")
    command = [
        sys.executable,
        "-m",
        "metacal",
        "fit",
        str(files / "x*.npy"),
        "--labels",
        str(files / "y*.npy"),
    ]
    answers = []
    for more in ((), ("--executor", address)):
        saved = tmp_path / f"{len(more)}.json"
        done = subprocess.run(
            [*command, "--min-accuracy", "0.85", "-q", "-o", str(saved), *more],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        answers.append(saved.read_text())
    assert answers[0] == answers[1]
    wrong = subprocess.run(
        [*command, "--min-accuracy", "0.85", "--executor", "spark"], capture_output=True, text=True
    )
    assert wrong.returncode == 2
    assert "is not the address of a cluster" in wrong.stderr


def test_the_command_line_starts_as_many_processes_as_jobs():
    with open_cluster("dask", 2) as client:
        assert len(client.nthreads()) == 2
