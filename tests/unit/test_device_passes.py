"""How often the path of a device reads or writes the whole table, and how many operations it starts.

Tensors on the CPU are sent down that path, and a dispatch mode sees every operation of torch. The
limits are what the code needs today. A test that adds one pass shows that they are tight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import metacal as mc
from metacal import kernels

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from metacal.kernels import torch as device_kernels  # noqa: E402
from metacal.kernels import triton as fused_kernels  # noqa: E402

N_ROWS = 1_500
N_CLASSES = 40
#: Operations that allocate memory without writing it.
ALLOCATIONS = ("empty", "empty_like", "empty_strided", "new_empty")


class OperationCounter(TorchDispatchMode):
    """Counts operations, and those that read or write a tensor as large as the table."""

    def __init__(self) -> None:
        super().__init__()
        self.n_operations = 0
        self.passes: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if func.is_view or name in (*ALLOCATIONS, "detach"):
            return result
        self.n_operations += 1
        tensors = [value for value in (*args, result) if isinstance(value, torch.Tensor)]
        if any(tensor.numel() >= N_ROWS * N_CLASSES for tensor in tensors):
            self.passes.append(name)
        return result


@dataclass(frozen=True)
class Limits:
    """Largest number of passes over the table, and of all operations."""

    passes: int
    operations: int


#: Limits of the plain implementation in torch.
PLAIN_LIMITS = {
    "predict_proba, temperature": Limits(passes=21, operations=53),
    "predict_proba, default": Limits(passes=24, operations=143),
    "accepts": Limits(passes=15, operations=42),
    "decide": Limits(passes=41, operations=188),
    "fit, temperature": Limits(passes=155, operations=411),
    "fit, default": Limits(passes=255, operations=647),
}


@pytest.fixture(scope="module")
def table_and_labels():
    random = np.random.default_rng(0)
    logits = random.normal(size=(N_ROWS, N_CLASSES)) * 2.0
    logits[np.arange(N_ROWS), random.integers(N_CLASSES, size=N_ROWS)] += random.gamma(
        4.0, 2.5, size=N_ROWS
    )
    labels = (logits / 1.7 + random.gumbel(size=logits.shape)).argmax(axis=1)
    return torch.tensor(logits, dtype=torch.float32), torch.tensor(labels)


@pytest.fixture
def calls(table_and_labels, monkeypatch):
    """What is counted, by name."""
    table, labels = table_and_labels
    monkeypatch.setattr(kernels, "is_device_tensor", lambda value: isinstance(value, torch.Tensor))
    estimators = {
        "temperature": mc.MetaCal(mc.MaxMiscoverage(0.05), calibrator="temperature"),
        "default": mc.MetaCal(mc.MaxMiscoverage(0.05)),
    }
    gates = {name: estimator.fit(table, labels) for name, estimator in estimators.items()}
    return {
        "predict_proba, temperature": lambda: gates["temperature"].predict_proba(table),
        "predict_proba, default": lambda: gates["default"].predict_proba(table),
        "accepts": lambda: gates["default"].accepts(table),
        "decide": lambda: gates["default"].decide(table),
        "fit, temperature": lambda: estimators["temperature"].fit(table, labels),
        "fit, default": lambda: estimators["default"].fit(table, labels),
    }


def count(call) -> OperationCounter:
    with OperationCounter() as counter:
        call()
    return counter


def check(call, limits: Limits) -> None:
    """Fail if a call makes more passes over the table, or more operations, than its limits."""
    counter = count(call)
    assert len(counter.passes) <= limits.passes, counter.passes
    assert counter.n_operations <= limits.operations


@pytest.mark.parametrize("name", PLAIN_LIMITS)
def test_no_pass_is_added_to_the_plain_path(calls, name):
    check(calls[name], PLAIN_LIMITS[name])


@pytest.mark.parametrize("name", PLAIN_LIMITS)
def test_one_pass_more_is_noticed(calls, table_and_labels, name):
    table, _ = table_and_labels

    def call_with_another_pass():
        calls[name]()
        table.amax()

    with pytest.raises(AssertionError):
        check(call_with_another_pass, PLAIN_LIMITS[name])


#: Fused kernels that read the table, and the largest number of other operations on tensors.
FUSED_KERNELS = {
    "predict_proba, temperature": (["decision_kernel"], 2),
    "predict_proba, default": (["decision_kernel"], 3),
    "accepts": (["_acceptance_kernel"], 0),
    "decide": (["_acceptance_kernel", "decision_kernel"], 4),
}


@pytest.fixture
def launches(monkeypatch):
    """The names of the fused kernels that are started, which write only zeros."""
    names: list[str] = []

    def record(kernel, n_programs, table, **arguments):
        names.append(kernel.__name__)
        for tensor in arguments.values():
            if isinstance(tensor, torch.Tensor):
                tensor.numpy().fill(0)
        return True

    monkeypatch.setattr(fused_kernels, "can_fuse", lambda block: True)
    monkeypatch.setattr(fused_kernels, "launch_kernel", record)
    return names


@pytest.mark.parametrize("name", FUSED_KERNELS)
def test_one_fused_kernel_reads_the_table_once(calls, launches, name):
    kernel_names, n_other_operations = FUSED_KERNELS[name]
    counter = count(calls[name])
    assert launches == kernel_names
    assert counter.passes == []
    assert counter.n_operations <= n_other_operations


@pytest.mark.parametrize("name", FUSED_KERNELS)
def test_one_fused_kernel_more_is_noticed(calls, launches, table_and_labels, name):
    table, _ = table_and_labels
    calls[name]()
    device_kernels.predict_classes(table)
    assert launches != FUSED_KERNELS[name][0]
