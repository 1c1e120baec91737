"""Real logits for the tests, and the switch that turns skips into failures.

`METACAL_DATA` names a folder of further logits files (default: ../shared/data beside the
repository); without it those tests skip, and that skip alone is never a failure.
`METACAL_REQUIRE_ALL=1` makes every other skip a failure.
"""

from __future__ import annotations

import gc
import os
import signal
import sys

os.environ.setdefault(
    "OPENBLAS_NUM_THREADS", "1"
)  # two workers with a pool each would fight over two cores
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What the tests import, and the hundreds of processes that they start, is compiled once, also where
# an image says otherwise: each time anew it was a tenth of all the work.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

from dataclasses import dataclass
from functools import cache, partial, partialmethod
from pathlib import Path

import click.testing
import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from metacal import datasets
from metacal.metrics import smooth
from metacal.rows import Rows
from metacal.scores import score_rows
from skips import NO_DATA, SkipsAreFailures

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("METACAL_DATA", ROOT.parent / "shared" / "data"))

PUBLIC = ("cifar10_densenet40_paper", "cifar100_resnet110_mit", "langid176_sentences")

plainly = partial(
    settings, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("metacal", plainly(max_examples=30))
settings.register_profile("long", plainly(max_examples=400))
settings.load_profile("metacal")

if (
    "mix_stderr" in click.testing.CliRunner.__init__.__annotations__
):  # click 8.1: two streams only where asked for
    click.testing.CliRunner.__init__ = partialmethod(
        click.testing.CliRunner.__init__, mix_stderr=False
    )
    click.testing.Result.output = property(
        lambda result: (
            result.stdout if result.stderr_bytes is None else result.stderr + result.stdout
        )
    )


@dataclass(frozen=True)
class RealSet:
    """Logits, labels, and the two columns the constraints see."""

    name: str
    logits: np.ndarray
    labels: np.ndarray
    scores: np.ndarray
    correct: np.ndarray

    @property
    def beta(self) -> float:
        """The paper's accuracy target: .87 for CIFAR-100, .97 otherwise."""
        return 0.87 if self.name.startswith("cifar100") else 0.97


@cache
def read_set(name: str) -> RealSet:
    if name in PUBLIC:
        path = DATA / f"{name}.npz"
        if not path.exists():
            pytest.skip(NO_DATA)
        with np.load(path) as file:
            logits, labels = file["logits"], file["labels"].astype(np.int64)
    else:
        folder = None if name in datasets.names() else ROOT / "benchmarks" / "data"
        found = datasets.load(name, folder=folder)
        logits, labels = found.logits, found.labels
    columns = (logits, labels, score_rows(Rows(logits), "entropy"), logits.argmax(axis=1) == labels)
    for column in columns:
        column.flags.writeable = False  # every test of the process sees the same arrays
    return RealSet(name, *columns)


#: Ten and a hundred classes, and 176 of another kind. The other networks on the same images say the
#: same, and take minutes: they come with `--long`.
TELLING = (*datasets.names(), "langid176_sentences")
EVERY = (*datasets.names(), *datasets.names(folder=ROOT / "benchmarks" / "data"), *PUBLIC)


@pytest.fixture(
    params=[n if n in TELLING else pytest.param(n, marks=pytest.mark.long) for n in EVERY]
)
def real_set(request: pytest.FixtureRequest) -> RealSet:
    """Each real set in turn: embedded, ours under benchmarks/data, and the public ones where they
    are found.
    """
    return read_set(request.param)


@pytest.fixture(params=datasets.names())
def embedded_set(request: pytest.FixtureRequest) -> RealSet:
    return read_set(request.param)


@pytest.fixture(scope="session")
def set_named():
    """The real set with a name."""
    return read_set


@pytest.fixture
def cifar10() -> RealSet:
    return read_set("cifar10-resnet110")


@pytest.fixture(scope="session")
def paper_set() -> RealSet:
    """The file that the paper itself used for DenseNet-40 on CIFAR-10."""
    return read_set("cifar10_densenet40_paper")


@pytest.fixture
def signals_as_usual():
    """No signal is ignored while the test runs, for commands that it starts and stops.

    What starts the tests may ignore some (`nohup`, a background job of sh, some runners). Every
    process inherits that, and metacal keeps it: a user who says nohup means it.
    """
    names = ("SIGINT", "SIGHUP", "SIGTERM", "SIGQUIT")
    ignored = [
        n
        for name in names
        if (n := getattr(signal, name, None)) and signal.getsignal(n) == signal.SIG_IGN
    ]
    for number in ignored:
        signal.signal(
            number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        )
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


#: What is slow as a whole: browsers, whole experiments, clusters, processes that are stopped
#: half-way.
SLOW_FOLDERS = ("browser", "bench")
SLOW_FILES = ("test_signals", "test_attach", "test_metrics_laws", "test_cluster", "test_engines")
SLOW_FILES += ("test_export_transformers",)


def slow_as_a_whole(path: Path) -> bool:
    return path.parent.name in SLOW_FOLDERS or path.stem in SLOW_FILES


def pytest_ignore_collect(collection_path, config):
    """What is slow as a whole is not even imported where it is not wanted."""
    return (
        True if config.option.markexpr == "not slow" and slow_as_a_whole(collection_path) else None
    )


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="also the tests that take minutes in all")


def pytest_configure(config):
    if config.getoption("--long"):
        settings.load_profile("long")
    if os.environ.get("METACAL_REQUIRE_ALL") == "1":
        # Registered, it is asked about the doctests of src/metacal, too; a hook of this file is not.
        config.pluginmanager.register(SkipsAreFailures())


def pytest_collection_modifyitems(config, items):
    """Mark the slow ones and leave the longest out.

    `pytest -m "not slow"` is for while one works: what takes more than 0.3 s and has a shorter
    sibling is `slow`. CI and the README's command run all but `long`, which takes minutes in all
    and has a shorter sibling, too; `--long`, as each night, runs that as well.
    """
    for item in items:
        if slow_as_a_whole(item.path):
            item.add_marker(pytest.mark.slow)
    # The browser's tests first, in one worker: while they wait, linters and the other worker
    # compute. Those of the site last: until then it is being built.
    items.sort(key=lambda item: (item.path.stem == "test_site", item.path.parent.name != "browser"))
    if config.getoption("--long"):
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


def pytest_collection_finish():
    """What was imported stays: the garbage collector need not walk torch's and the others' objects
    ever again.
    """
    gc.freeze()


@pytest.fixture(scope="session")
def smooth_ece_at():
    """The smooth ECE at one given bandwidth, to look at the fixed point from outside."""

    def area(top, bandwidth):
        node_sums = smooth._make_mesh_sum_function(top, smooth.MESH_CELLS)(np.ones((1, len(top))))
        cosines = smooth._compute_cosine_coefficients(node_sums, len(top))
        return float(smooth._compute_smece(cosines, np.array([bandwidth]))[0])

    return area
