"""A Dask client as an executor: losses, and futures whose status changes between two looks."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest

import metacal as mc
from metacal.rows import cluster
from metacal.rows.cluster import ClusterExecutor
from metacal.rows.executors import is_remote, resolve_executor
from metacal.rows.tasks import run_as_completed, run_in_order

distributed = pytest.importorskip(
    "distributed", reason="distributed not found: pip install distributed"
)
pytestmark = pytest.mark.filterwarnings("ignore")

HERE = {"processes": False, "threads_per_worker": 2, "dashboard_address": None, "silence_logs": 50}


@pytest.fixture(scope="module")
def client():
    with (
        distributed.LocalCluster(n_workers=1, **HERE) as local,
        distributed.Client(local, set_as_default=False) as client,
    ):
        yield client


def four(number):
    return [number] * 4


@pytest.mark.slow
def test_a_result_whose_status_changes_after_the_gather_is_a_result(client, monkeypatch):
    """The worker is lost just after the result has come: distributed's own executor makes a
    ValueError of it.
    """
    gather = distributed.Client._gather

    async def lost_just_after(self, futures, *args, **kwargs):
        result = await gather(self, futures, *args, **kwargs)
        for future in futures if isinstance(futures, list) else [futures]:
            future._state.lose()
        return result

    monkeypatch.setattr(distributed.Client, "_gather", lost_just_after)
    with pytest.raises(ValueError, match=r"too many values to unpack \(expected 3"):
        client.get_executor().submit(four, 1).result(10)
    for executor in (client, client.get_executor()):
        assert resolve_executor(executor).submit(four, 2).result(10) == [2, 2, 2, 2]
        assert list(run_in_order(resolve_executor(executor), four, [(3,), (4,)], 2)) == [
            [3] * 4,
            [4] * 4,
        ]


def cancelled_from_outside(times):
    """A gather under which the first `times` futures are cancelled, as all are when the scheduler
    is lost.
    """
    gather, left = distributed.Client._gather, [times]

    async def other(self, future, *args, **kwargs):
        if left[0]:
            left[0] -= 1
            future._state.cancel()
        return await gather(self, future, *args, **kwargs)

    return other


@pytest.mark.parametrize("times", [1, cluster.RESUBMISSIONS, cluster.RESUBMISSIONS + 1])
def test_a_lost_piece_is_submitted_anew_so_many_times(client, monkeypatch, times):
    monkeypatch.setattr(distributed.Client, "_gather", cancelled_from_outside(times))
    work = run_as_completed(
        resolve_executor(client), pow, [(2, 5)], 1, describe_piece=lambda piece: "logs/7.parquet"
    )
    if times <= cluster.RESUBMISSIONS:
        assert list(work) == [((2, 5), 32)]
        return
    with pytest.raises(
        mc.InputError, match=r"logs/7\.parquet: The workers with these rows were lost"
    ):
        list(work)


def test_a_scheduler_that_cannot_be_reached_is_a_loss_and_no_raw_error(client, monkeypatch):
    async def refused(*_, **__):
        raise OSError("Timed out trying to connect to tcp://…")

    monkeypatch.setattr(distributed.Client, "_gather", refused)
    with pytest.raises(
        mc.InputError, match=r"7\.parquet: The workers with these rows were lost .*Timed out"
    ):
        list(
            run_in_order(
                resolve_executor(client), pow, [(2, 5)], 1, describe_piece=lambda piece: "7.parquet"
            )
        )


def test_what_a_task_raises_stays_what_it_is(client):
    executor = ClusterExecutor(client, retries=0)
    with pytest.raises(ZeroDivisionError):
        executor.submit(divmod, 1, 0).result(10)
    with pytest.raises(FileNotFoundError):
        executor.submit(open, "file does not exist").result(10)


def test_what_nobody_waits_for_is_cancelled(client):
    work = run_in_order(
        resolve_executor(client), time.sleep, ((seconds,) for seconds in (0, *[2] * 8)), 9
    )
    assert next(work) is None
    work.close()
    deadline = time.monotonic() + 1.5
    while any(client.processing().values()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(client.processing().values())


def test_a_cluster_without_workers_ends_in_a_sentence(monkeypatch):
    monkeypatch.setattr(cluster, "PATIENCE", 0.3)
    with (
        distributed.LocalCluster(n_workers=0, processes=False, dashboard_address=None) as local,
        distributed.Client(local, set_as_default=False) as client,
    ):
        begun = time.monotonic()
        with pytest.raises(
            mc.InputError,
            match=r"^a\.npy: No worker of the cluster at \S+ answered within 0.3 s\. ",
        ):
            list(
                run_in_order(
                    resolve_executor(client),
                    pow,
                    [(2, 5), (2, 6)],
                    2,
                    describe_piece=lambda piece: "a.npy",
                )
            )
        assert time.monotonic() - begun < 5.0
        executor = resolve_executor(client)
    with pytest.raises(
        mc.InputError, match=r"^The connection to the cluster at \S+ was lost. Start"
    ):
        list(run_in_order(executor, pow, [(2, 5)], 2))
    with pytest.raises(mc.InputError, match=r"The Dask client is closed"):
        resolve_executor(client)


@pytest.mark.slow
def test_the_patience_begins_anew_with_every_worker_seen(client, monkeypatch):
    monkeypatch.setattr(cluster, "PATIENCE", 0.1)
    assert resolve_executor(client).submit(lambda: time.sleep(0.45) or 1).result(10) == 1


@pytest.mark.parametrize("executor", [4, "dask://host:8786", map])
def test_what_is_no_executor_is_said_at_once(executor, tmp_path):
    table, labels = np.eye(3), np.arange(3)
    gate = mc.TemperatureScaling().fit(table, labels)
    for work in (
        lambda: mc.TemperatureScaling().fit(table, labels, executor=executor),
        lambda: mc.MetaCal(mc.MinAccuracy(0.5)).fit(table, labels, executor=executor),
        lambda: mc.evaluate(gate, table, labels, executor=executor),
        lambda: mc.compare(table, labels, ["temperature"], n_splits=2, executor=executor),
        lambda: mc.apply(gate, "x.npy", f"{tmp_path}/out/", executor=executor),
        lambda: mc.Rows(table, executor=executor),
    ):
        with pytest.raises(mc.InputError, match="or a Dask Client, but got"):
            work()
    assert not list(tmp_path.iterdir())


def test_a_client_that_cannot_be_waited_for_is_refused():
    async def ask():
        async with (
            distributed.LocalCluster(n_workers=1, asynchronous=True, **HERE) as local,
            distributed.Client(local, asynchronous=True, set_as_default=False) as client,
        ):
            with pytest.raises(
                mc.InputError, match="metacal does not support a Dask client with asynchronous=True"
            ):
                is_remote(client)

    asyncio.run(ask())


@pytest.mark.slow
def test_a_client_that_closes_meanwhile_ends_the_work_with_a_sentence():
    with distributed.LocalCluster(n_workers=1, **HERE) as local:
        client = distributed.Client(local, set_as_default=False)
        work = run_in_order(
            resolve_executor(client),
            time.sleep,
            [(0,), (0.3,), (0.3,)],
            3,
            describe_piece=lambda piece: "a.npy",
        )
        assert next(work) is None
        client.close()
        with pytest.raises(
            mc.InputError, match=r"^a\.npy: The connection to the cluster at \S+ was lost. Start"
        ):
            next(work)


def missing():
    raise ModuleNotFoundError("No module named 'metacal'")


class Unreadable:
    """What a scheduler without metacal cannot read."""

    def __reduce__(self):
        return missing, ()


def test_a_cluster_without_metacal_is_said(client):
    with pytest.raises(
        mc.InputError,
        match=r"^a\.npy: The scheduler at \S+ cannot read the data that it receives. Start",
    ):
        list(
            run_in_order(
                resolve_executor(client),
                str,
                [(Unreadable(),)],
                3,
                describe_piece=lambda piece: "a.npy",
            )
        )
