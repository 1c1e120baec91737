"""A cluster gives the same bits as one machine, gets descriptions and never rows, and survives the loss of a worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest

import metacal as mc
from metacal.bench.sizes import fill_table
from metacal.files.predictions import read_predictions
from metacal.rows import rows as rows_module

distributed = pytest.importorskip("distributed", reason="distributed not found: pip install distributed")
pytestmark = pytest.mark.filterwarnings("ignore")

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


@pytest.fixture(scope="module")
def client():
    options = {"processes": True, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
    with distributed.LocalCluster(2, **options) as cluster, distributed.Client(cluster, set_as_default=False) as client:
        yield client


@pytest.fixture(autouse=True)
def many_blocks(monkeypatch):
    monkeypatch.setattr(rows_module, "BLOCK_ELEMENTS", 1 << 16)  # ten blocks: each a strip


@pytest.mark.parametrize("name", METHODS)
def test_a_cluster_gives_the_bits_of_one_machine(name, found, client):
    base = METHODS[name]
    here = mc.MetaCal(mc.MinCoverageAccuracy(0.85), calibrator=base).fit(np.asarray(found.table), found.labels)
    executor = client.get_executor(retries=3)
    there = mc.MetaCal(mc.MinCoverageAccuracy(0.85), calibrator=base).fit(found.table, found.labels, executor=executor)
    assert there.certificate_ == here.certificate_
    assert there.data_hash_ == here.data_hash_
    rows = np.asarray(found.table[:500])
    assert there.predict_proba(rows).tobytes() == here.predict_proba(rows).tobytes()


def test_a_pool_of_processes_is_an_executor_too(found):
    here = mc.TemperatureScaling().fit(np.asarray(found.table), found.labels)
    with ProcessPoolExecutor(2) as pool:
        there = mc.TemperatureScaling().fit(found.table, found.labels, executor=pool)
    assert there.temperature_ == here.temperature_


def test_descriptions_travel_and_never_rows(found, client):
    from distributed.protocol import dumps

    piece, _ = rows_module.Rows(found.table)._piece((), (0, 2))
    assert sum(len(frame) for frame in dumps(piece)) < 20_000 < found.table[:6000].nbytes / 20


def workers(client):
    """The processes of both workers; after the loss of one its nanny brings another."""
    for _ in range(100):
        found = client.run(os.getpid, on_error="return")
        pids = [pid for pid in found.values() if isinstance(pid, int)]
        if len(pids) == 2:
            return pids
        time.sleep(0.1)
    raise AssertionError("the second worker does not come back")


def test_a_worker_killed_in_the_middle_changes_nothing(found, client):
    here = mc.MetaCal(mc.MinCoverageAccuracy(0.85)).fit(np.asarray(found.table), found.labels)
    moments = np.random.default_rng(0).uniform(0.0, 0.3, size=5)
    for moment in moments:
        pids = workers(client)
        killer = threading.Timer(moment, os.kill, (pids[0], signal.SIGKILL))
        killer.start()
        executor = client.get_executor(retries=5)
        there = mc.MetaCal(mc.MinCoverageAccuracy(0.85)).fit(found.table, found.labels, executor=executor)
        killer.join()
        assert there.gate_ == here.gate_


def test_a_vanished_file_is_named(files, tmp_path, client):
    copies = []
    for part in range(4):
        copies.append(tmp_path / f"x{part}.npy")
        copies[-1].write_bytes((files / f"x{part}.npy").read_bytes())
    found = read_predictions([str(path) for path in copies], stream=True)
    copies[2].unlink()
    labels = np.concatenate([np.load(files / f"y{part}.npy") for part in range(4)])
    with pytest.raises(mc.InputError, match=r"x2\.npy"):
        mc.TemperatureScaling().fit(found.table, labels, executor=client.get_executor(retries=1))


def test_the_command_line_reaches_a_cluster(files, tmp_path, client):
    address = client.scheduler.address.replace("tcp://", "dask://")
    command = [sys.executable, "-m", "metacal", "fit", str(files / "x*.npy"), "--labels", str(files / "y*.npy")]
    answers = []
    for more in ((), ("--executor", address)):
        saved = tmp_path / f"{len(more)}.json"
        done = subprocess.run(
            [*command, "--min-accuracy", "0.85", "-q", "-o", str(saved), *more], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        answers.append(saved.read_text())
    assert answers[0] == answers[1]
    wrong = subprocess.run([*command, "--min-accuracy", "0.85", "--executor", "spark"], capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "names no cluster" in wrong.stderr
