"""The logits that ship with the package, and the way they are packed."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from benchmarks.packing import pack, write_packed
from metacal import datasets
from metacal.datasets.packing import read_packed, unpack
from metacal.errors import InputError

BENCHMARK_DATA = Path(__file__).resolve().parents[2] / "benchmarks" / "data"

#: n_classes, accuracy, NLL and 15-bin ECE of the float32 originals; see docs/data-card.md.
FACTS = {
    "cifar10-resnet110": (10, 0.931000, 0.404552, 0.051584),
    "cifar100-resnet110": (100, 0.696800, 1.732644, 0.191498),
}


def measured(logits: np.ndarray, labels: np.ndarray) -> tuple[float, float, float]:
    table = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    log_probabilities = table - np.log(np.exp(table).sum(axis=1, keepdims=True))
    correct = table.argmax(axis=1) == labels
    confidence = np.exp(log_probabilities.max(axis=1))
    bins = np.clip(np.ceil(confidence * 15) - 1, 0, 14).astype(int)
    ece = np.abs(np.bincount(bins, correct - confidence, minlength=15)).sum() / len(labels)
    return correct.mean(), -log_probabilities[np.arange(len(labels)), labels].mean(), ece


@pytest.mark.parametrize("name", FACTS)
def test_shipped_sets_keep_the_metrics_of_the_originals(name):
    data = datasets.load(name)
    n_classes, *metrics = FACTS[name]
    assert data.name == name
    assert data.n_classes == n_classes
    assert data.logits.shape == (15000, n_classes)
    assert (data.logits.dtype, data.labels.dtype, data.is_test.dtype) == (
        np.float32,
        np.int64,
        np.bool_,
    )
    assert data.is_test.sum() == 10000
    assert isinstance(data.source, str)
    np.testing.assert_allclose(measured(data.logits, data.labels), metrics, atol=5e-5, rtol=0)


@pytest.mark.parametrize("name", FACTS)
def test_no_row_has_two_largest_logits(name):
    largest = np.partition(datasets.load(name).logits, -2, axis=1)[:, -2:]
    assert (largest[:, 0] < largest[:, 1]).all()


def test_the_wheel_stays_small():
    files = list(Path(datasets.__file__).parent.glob("*.npz"))
    assert sorted(file.stem for file in files) == list(datasets.names())
    assert sum(file.stat().st_size for file in files) <= 4_000_000


def test_names():
    assert datasets.names() == ("cifar10-resnet110", "cifar100-resnet110")


def test_loading_twice_shares_nothing():
    first = datasets.load("cifar10-resnet110")
    first.logits[:] = 0
    first.labels[:] = 0
    assert datasets.load("cifar10-resnet110").logits.any()
    assert datasets.load("cifar10-resnet110").labels.any()


@pytest.mark.parametrize("name", ["cifar10-resnet101", "CIFAR10_ResNet110"])
def test_unknown_name_says_what_was_meant(name):
    with pytest.raises(
        InputError,
        match=r"did you mean 'cifar10-resnet110'\? The available data sets are cifar10-resnet110",
    ):
        datasets.load(name)


@pytest.mark.parametrize("name", ["mnist", "../packing", "", 3])
def test_unknown_name_lists_the_known(name):
    with pytest.raises(InputError, match=r"data sets are cifar10-resnet110, cifar100-resnet110\."):
        datasets.load(name)


def test_split_is_a_partition():
    data = datasets.load("cifar10-resnet110")
    (fit_logits, fit_labels), (test_logits, test_labels) = data.split(5000, random_state=3)
    assert fit_logits.shape == (5000, 10)
    assert test_labels.shape == (10000,)

    def rows(logits, labels):
        return sorted(zip(map(bytes, logits), labels.tolist()))

    merged = rows(
        np.concatenate([fit_logits, test_logits]), np.concatenate([fit_labels, test_labels])
    )
    assert merged == rows(data.logits, data.labels)


def test_split_merges_held_out_and_test_rows_at_random():
    data = datasets.load("cifar10-resnet110")
    marked = datasets.LogitsSet(
        "marked", data.logits, data.is_test.astype(np.int64), data.is_test, ""
    )
    (_, from_test), _ = marked.split(5000)
    assert abs(from_test.mean() - 2 / 3) < 0.03


def test_split_repeats_with_the_same_random_state_only():
    data = datasets.load("cifar10-resnet110")
    first, again, other = (data.split(random_state=state)[0][0] for state in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("n_fit", [0, 15000, -1, 2.5, True, "many"])
def test_split_refuses_sizes_that_leave_a_side_empty(n_fit):
    with pytest.raises(InputError, match="n_fit must be an integer between 1 and 14999"):
        datasets.load("cifar10-resnet110").split(n_fit)


def test_folder(tmp_path):
    with (tmp_path / "tiny.npz").open("wb") as file:
        write_packed(file, np.eye(3), np.arange(3), np.ones(3, bool), "by hand")
    assert datasets.names(folder=tmp_path) == ("tiny",)
    assert datasets.load("tiny", folder=tmp_path).n_classes == 3
    with pytest.raises(InputError, match=r"data sets are tiny\."):
        datasets.load("cifar10-resnet110", folder=tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        datasets.load("tiny", folder=tmp_path / "none")


@pytest.mark.skipif(
    not BENCHMARK_DATA.is_dir(), reason="an installed package has no benchmarks folder"
)
def test_benchmark_sets_are_in_the_same_format():
    found = datasets.names(folder=BENCHMARK_DATA)
    assert len(found) == 6
    for name in found:
        data = datasets.load(name, folder=BENCHMARK_DATA)
        assert data.logits.shape == (15000, 100 if name.startswith("cifar100") else 10)


def test_packing_keeps_the_largest_logit_alone_and_where_it_was():
    rng = np.random.default_rng(0)
    logits = rng.normal(20, 10, size=(2000, 10)).astype(np.float32)
    logits[:, 3] = np.nextafter(logits.max(axis=1), np.float32(np.inf))
    again = unpack(*pack(logits))
    assert (again.argmax(axis=1) == 3).all()
    assert (np.sort(again, axis=1)[:, -2] < again[:, 3]).all()
    assert np.array_equal(again.max(axis=1), logits.max(axis=1))
    np.testing.assert_allclose(again, logits, atol=0.04)


def test_packing_is_deterministic_and_keeps_many_classes():
    files = io.BytesIO(), io.BytesIO()
    for file in files:
        write_packed(file, np.eye(300), np.arange(300), np.zeros(300, bool), "x")
        file.seek(0)
    assert files[0].getvalue() == files[1].getvalue()
    assert np.array_equal(read_packed(files[0])[1], np.arange(300))
