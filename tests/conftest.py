"""Real logits for the tests, and the switch that turns skips into failures.

`METACAL_DATA` names a folder of further logits files (default: ../shared/data beside the repository); without it those
tests skip, and that skip alone is never a failure. `METACAL_REQUIRE_ALL=1` makes every other skip a failure.
"""

from __future__ import annotations

import os

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # before SciPy is imported: scikit-learn skips a check without it
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # two workers with a pool each would fight over two cores
os.environ.setdefault("OMP_NUM_THREADS", "1")

from dataclasses import dataclass
from functools import cache, partialmethod
from pathlib import Path

import click.testing
import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from metacal import datasets
from metacal.rows import Rows
from metacal.scores import score_rows

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("METACAL_DATA", ROOT.parent / "shared" / "data"))
NO_DATA = "further logits not found: set METACAL_DATA to their folder"

PUBLIC = ("cifar10_densenet40_paper", "cifar100_resnet110_mit", "langid176_sentences")

settings.register_profile("metacal", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("metacal")

if "mix_stderr" in click.testing.CliRunner.__init__.__annotations__:  # click 8.1: two streams only where asked for
    click.testing.CliRunner.__init__ = partialmethod(click.testing.CliRunner.__init__, mix_stderr=False)
    click.testing.Result.output = property(
        lambda result: result.stdout if result.stderr_bytes is None else result.stderr + result.stdout
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
    return RealSet(name, logits, labels, score_rows(Rows(logits), "entropy"), logits.argmax(axis=1) == labels)


@pytest.fixture(params=[*datasets.names(), *datasets.names(folder=ROOT / "benchmarks" / "data"), *PUBLIC])
def real_set(request: pytest.FixtureRequest) -> RealSet:
    """Each real set in turn: embedded, ours under benchmarks/data, and the public ones where they are found."""
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


#: What runs long: simulations, browsers, whole experiments, processes that are stopped half-way.
SLOW_FOLDERS = ("guarantees", "browser")
SLOW_FILES = ("test_experiments", "test_bench", "test_train", "test_signals", "test_attach", "test_metrics_laws")


def pytest_collection_modifyitems(items):
    """Mark the long ones `slow`: `pytest -m "not slow"` is for while one works; CI and the README's command run all."""
    for item in items:
        if item.path.parent.name in SLOW_FOLDERS or item.path.stem in SLOW_FILES:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if os.environ.get("METACAL_REQUIRE_ALL") == "1" and report.skipped and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr)
        if NO_DATA not in reason:
            report.outcome = "failed"
            report.longrepr = f"skipped although METACAL_REQUIRE_ALL=1: {reason}"
