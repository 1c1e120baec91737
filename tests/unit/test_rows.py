"""Rows: views, kept rows, strides and executors give what plain NumPy gives."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from threading import Timer

import numpy as np
import pytest

from metacal import kernels
from metacal import rows as rows_module
from metacal.errors import InputError
from metacal.rows import Rows, open_executor
from metacal.rows.stored import StoredTable
from metacal.rows.tasks import run_as_completed, run_in_order

TABLE = np.random.default_rng(0).normal(size=(1003, 5)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(0, 5, 1003)


@pytest.fixture(autouse=True)
def small_strips(monkeypatch):
    monkeypatch.setattr(rows_module.strips, "STRIP_ELEMENTS", 100)
    monkeypatch.setattr(rows_module, "BLOCK_ELEMENTS", 400)


def column_sums(block, labels):
    return np.append(block.astype(np.float64).sum(axis=0), labels.sum())


@pytest.mark.parametrize("n_jobs", [1, 3])
@pytest.mark.parametrize("keep", [None, "some", "one", "sparse"])
def test_sum_and_collect(n_jobs, keep):
    chosen = {
        None: np.ones(1003, dtype=bool),
        "some": np.arange(1003) % 7 < 3,
        "one": np.arange(1003) == 500,
        "sparse": np.isin(np.arange(1003), [0, 999, 1002]),
    }[keep]
    with open_executor(n_jobs) as executor:
        rows = Rows(TABLE, executor=executor)
        rows = rows if keep is None else rows.select(chosen)
        assert len(rows) == chosen.sum()
        expected = column_sums(TABLE[chosen], LABELS[chosen])
        np.testing.assert_allclose(rows.sum(column_sums, LABELS[chosen]), expected)
        np.testing.assert_array_equal(
            rows.compute_column(lambda block: block.max(axis=1)), TABLE[chosen].max(axis=1)
        )


def test_fill():
    out = np.empty_like(TABLE)
    with open_executor(2) as executor:
        Rows(TABLE, executor=executor).fill_columns(
            lambda block, part: np.multiply(block, 2, out=part), out
        )
    np.testing.assert_array_equal(out, TABLE * 2)


@pytest.mark.parametrize("step", [1, 3, 40])
def test_every(step):
    sample = Rows(TABLE).take_every(step)
    np.testing.assert_array_equal(
        sample.compute_column(lambda block: block[:, 0]), TABLE[::step, 0]
    )
    assert np.shares_memory(sample.table, TABLE)
    keep = np.arange(1003) % 2 == 1
    sample = Rows(TABLE).select(keep).take_every(step)
    np.testing.assert_array_equal(
        sample.compute_column(lambda block: block[:, 0]), TABLE[keep][::step, 0]
    )


def test_block_size_is_whole_strips():
    assert Rows(TABLE, block_rows=1).block_rows == 20
    assert Rows(TABLE, block_rows=21).block_rows == 40


def test_memory_maps_are_read_in_place(tmp_path):
    np.save(tmp_path / "table.npy", TABLE)
    mapped = np.load(tmp_path / "table.npy", mmap_mode="r")
    np.testing.assert_allclose(Rows(mapped).sum(column_sums, LABELS), column_sums(TABLE, LABELS))


def test_where_of_where():
    first = np.arange(1003) % 3 > 0
    second = np.arange(first.sum()) % 5 == 2
    both = Rows(TABLE).select(first).select(second)
    np.testing.assert_array_equal(
        both.compute_column(lambda block: block[:, 1]), TABLE[first][second, 1]
    )


def test_workers_count():
    with (
        open_executor(None) as none,
        open_executor(1) as one,
        open_executor(-1) as all_cores,
        open_executor(4) as four,
    ):
        assert none is None
        assert one is None
        assert four is not None
        assert four._max_workers == 4
        assert all_cores is None or all_cores._max_workers > 1


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f4"])
@pytest.mark.parametrize("kept", [None, 3, 40])
@pytest.mark.parametrize("threads", [1, 2, 16])
def test_a_walk_over_blocks_gives_the_bits_of_a_walk_over_strips(dtype, kept, threads, monkeypatch):
    monkeypatch.setattr(rows_module.block_sizes, "_MIN_THREAD_BLOCK_ELEMENTS", 200)
    rng = np.random.default_rng(7)
    table = (3.0 * rng.normal(size=(2017, 5))).astype(dtype)
    keep = None if kept is None else np.arange(2017) % kept == 1
    chosen = np.arange(2017) if keep is None else np.flatnonzero(keep)
    labels, weights = rng.integers(5, size=len(chosen)), rng.random(len(chosen))
    total = np.zeros(4)
    for start in range(0, 2017, 20):  # strips of 100 elements
        here = (chosen >= start) & (chosen < start + 20)
        if here.any():
            total += kernels.tempered_loss_and_derivatives(
                table[chosen[here]], labels[here], weights[here], 0.7
            )
    with open_executor(threads) as pool:
        rows = Rows(table, row_mask=keep, executor=pool)
        loss = partial(kernels.tempered_loss_and_derivatives, inverse_temperature=0.7)
        assert rows.sum(loss, labels, weights).tobytes() == total.tobytes()
        for score in (
            kernels.entropy,
            kernels.one_minus_max_probability,
            kernels.negative_margin,
            kernels.free_energy,
            kernels.predict_classes,
        ):
            assert rows.compute_column(score).tobytes() == score(table[chosen]).tobytes()
        members = partial(kernels.ensemble_label_probabilities, inverse_temperature=0.7)
        assert (
            rows.compute_column(members, labels).tobytes()
            == members(table[chosen], labels).tobytes()
        )


def test_threads_wait_for_the_next_call_and_nobody_shares_them():
    with open_executor(3) as first, open_executor(3) as within:
        assert first is not within
        assert list(within.map(lambda n: sum(first.map(int, [n, n])), [1, 2])) == [2, 4]
    with open_executor(3) as again:
        assert again in (first, within)
        assert again.submit(int, 1).result() == 1
    with pytest.raises(KeyError), open_executor(3) as failing:
        raise KeyError
    with pytest.raises(RuntimeError, match="shutdown"):
        failing.submit(int)


def test_threads_may_ask_for_threads_at_the_same_time():
    def once(n):
        with open_executor(2) as pool:
            return pool.submit(int, n).result()

    with ThreadPoolExecutor(8) as callers:
        assert list(callers.map(once, range(400))) == list(range(400))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_has_threads_of_its_own():
    with open_executor(2) as pool:
        assert pool.submit(int, 3).result() == 3
    child = os.fork()
    if child == 0:  # the threads above are not here: waiting for them would last for ever
        with open_executor(2) as fresh:
            os._exit(fresh.submit(int, 5).result())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5


class Stored(StoredTable):
    """A table that says which process reads it."""

    def __init__(self, path):
        found = np.load(path, mmap_mode="r")
        super().__init__(found.shape, found.dtype)
        self.path, self.home = str(path), os.getpid()

    def read(self, start, stop):
        assert os.getpid() != self.home, "it is read here"
        return np.array(np.load(self.path, mmap_mode="r")[start:stop])


def double(block, out, limits):
    np.multiply(block, limits[:, None], out=out)
    limits += 1.0


def test_another_process_reads_what_it_samples_and_fills(tmp_path):
    np.save(tmp_path / "x.npy", TABLE)
    keep = np.arange(1003) % 3 > 0
    with ProcessPoolExecutor(1) as pool:
        for rows, chosen in (
            (Rows(Stored(tmp_path / "x.npy"), executor=pool), TABLE),
            (Rows(Stored(tmp_path / "x.npy"), executor=pool, row_mask=keep), TABLE[keep]),
        ):
            np.testing.assert_array_equal(rows.take_every(7).table, chosen[::7])
            out, limits = np.empty_like(chosen), np.arange(len(chosen), dtype=np.float64)
            rows.fill_columns(double, out, limits)
            np.testing.assert_array_equal(
                out, (chosen * np.arange(len(chosen))[:, None]).astype(np.float32)
            )
            np.testing.assert_array_equal(limits, np.arange(len(chosen)) + 1.0)


class Slow:
    """An executor whose first task ends when eight others have."""

    def __init__(self, pool):
        self.pool, self.ended, self.first = pool, threading.Semaphore(0), True

    def submit(self, task, *given):
        first, self.first = self.first, False

        def run():
            if first:
                for _ in range(8):
                    assert self.ended.acquire(timeout=10), "the others wait for the slow one"
            else:
                self.ended.release()
            return task(*given)

        return self.pool.submit(run)


def test_a_slow_piece_does_not_stall_the_rest():
    with ThreadPoolExecutor(2) as pool:
        assert list(
            run_in_order(Slow(pool), pow, ((2, n) for n in range(12)), 2, max_pending=10)
        ) == [2**n for n in range(12)]
        assert sorted(run_as_completed(Slow(pool), pow, ((2, n) for n in range(12)), 2))[11] == (
            (2, 11),
            2048,
        )


def end(number, name):
    os._exit(number)


def test_a_lost_worker_is_told_with_the_file():
    with (
        ProcessPoolExecutor(1) as pool,
        pytest.raises(InputError, match=r"b\.npy: The workers with these rows were lost"),
    ):
        list(run_in_order(pool, end, [(1, "b.npy")], 2, describe_piece=lambda piece: piece[1]))
    with (
        ThreadPoolExecutor(1) as pool,
        pytest.raises(InputError, match=r"rows: A worker has too little memory"),
    ):
        list(run_in_order(pool, bytearray, [(1 << 62,)], 2, describe_piece=lambda piece: "rows"))


class LateFuture(Future):
    """Done at once; whoever asked to be called is called a moment later, as by a worker that is
    interrupted there.
    """

    def add_done_callback(self, fn):
        Timer(0.02, fn, [self]).start()


class LateExecutor(Executor):
    def submit(self, task, /, *piece):
        future = LateFuture()
        future.set_result(task(*piece))
        return future


def test_an_answer_that_is_noted_late_ends_nothing():
    pieces = [(2, n) for n in range(5)]
    assert list(run_in_order(LateExecutor(), pow, pieces, max_running=1)) == [1, 2, 4, 8, 16]
    assert dict(run_as_completed(LateExecutor(), pow, pieces, max_running=2)) == {
        piece: pow(*piece) for piece in pieces
    }
