"""Rows: views, kept rows, strides and executors give what plain NumPy gives."""

from __future__ import annotations

import numpy as np
import pytest

from metacal.rows import Rows, workers
from metacal.rows import rows as rows_module

TABLE = np.random.default_rng(0).normal(size=(1003, 5)).astype(np.float32)
LABELS = np.random.default_rng(1).integers(0, 5, 1003)


@pytest.fixture(autouse=True)
def small_strips(monkeypatch):
    monkeypatch.setattr(rows_module, "STRIP_ELEMENTS", 100)
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
    with workers(n_jobs) as executor:
        rows = Rows(TABLE, executor=executor)
        rows = rows if keep is None else rows.where(chosen)
        assert len(rows) == chosen.sum()
        expected = column_sums(TABLE[chosen], LABELS[chosen])
        np.testing.assert_allclose(rows.sum(column_sums, LABELS[chosen]), expected)
        np.testing.assert_array_equal(rows.collect(lambda block: block.max(axis=1)), TABLE[chosen].max(axis=1))


def test_fill():
    out = np.empty_like(TABLE)
    with workers(2) as executor:
        Rows(TABLE, executor=executor).fill(lambda block, part: np.multiply(block, 2, out=part), out)
    np.testing.assert_array_equal(out, TABLE * 2)


@pytest.mark.parametrize("step", [1, 3, 40])
def test_every(step):
    sample, at = Rows(TABLE).every(step)
    np.testing.assert_array_equal(at, np.arange(0, 1003, step))
    np.testing.assert_array_equal(sample.collect(lambda block: block[:, 0]), TABLE[::step, 0])
    assert np.shares_memory(sample.table, TABLE)
    keep = np.arange(1003) % 2 == 1
    sample, at = Rows(TABLE).where(keep).every(step)
    np.testing.assert_array_equal(sample.collect(lambda block: block[:, 0]), TABLE[keep][at, 0])


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
    both = Rows(TABLE).where(first).where(second)
    np.testing.assert_array_equal(both.collect(lambda block: block[:, 1]), TABLE[first][second, 1])


def test_workers_count():
    with workers(None) as none, workers(1) as one, workers(-1) as all_cores, workers(4) as four:
        assert none is None
        assert one is None
        assert four is not None
        assert four._max_workers == 4
        assert all_cores is None or all_cores._max_workers > 1
