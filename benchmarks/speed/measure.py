"""`python -m benchmarks speed`: make the tables, run every job in its own process, gather the
ratios.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks import machine
from benchmarks.speed import processes, scaling
from benchmarks.speed.bars import ratios
from benchmarks.speed.peers import MOST_ELEMENTS, PEERS
from benchmarks.speed.sizes import Size, write_table
from benchmarks.speed.tasks import tasks_of
from metacal.errors import InputError

KERNELS = ("numpy", "fused")
FORMAT = 1
#: CPU seconds after which a peer is not sampled again.
PEER_BUDGET = 15.0
#: On tables up to here the peers run beside every kernel; on larger ones beside the last only.
_PEERS_EVERYWHERE = 2_000_000
#: Below this a table is too small for its peak memory to mean anything (bytes).
_SMALLEST_FOR_MEMORY = 1 << 24
_MEMORY_TASKS = ("temperature", "max_miscoverage")


class Progress(Protocol):
    """What hears how far the benchmark is."""

    def begin(self, steps: int) -> None:
        """Say how many steps there will be."""

    def doing(self, text: str) -> None:
        """Say what runs now."""

    def done(self) -> None:
        """Say that a step is done."""


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    sizes: tuple[Size, ...]
    kernels: tuple[str, ...] = KERNELS
    peers: tuple[str, ...] = ()
    repeats: int = 5
    seed: int = 0


def parse_kernels(text: str) -> list[str]:
    """Return the kernels that a list such as "numpy,fused" names.

    Examples
    --------
    >>> parse_kernels("numpy")
    ['numpy']
    >>> parse_kernels("cuda")
    Traceback (most recent call last):
    metacal.errors.InputError: there is no kernel 'cuda'; give numpy, fused or both, separated by a comma.
    """
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in KERNELS:
            raise InputError(
                f"there is no kernel {name!r}; give numpy, fused or both, separated by a comma."
            )
    return names


def measure(plan: Plan, progress: Progress) -> dict[str, Any]:
    """Run the plan; return everything that was measured, as plain JSON types."""
    before = machine.load_average()
    with tempfile.TemporaryDirectory(prefix="metacal-bench-") as name:
        run = _Run(plan, Path(name), progress)
        progress.begin(run.steps())
        results = run.results()
    results["load_average"] = {"before": before, "after": machine.load_average()}
    results["ratios"] = [ratio.to_dict() for ratio in ratios(results)]
    return results


class _Run:
    """One run of a plan, in one folder."""

    def __init__(self, plan: Plan, folder: Path, progress: Progress) -> None:
        self.plan = plan
        self.folder = folder
        self.progress = progress
        fitting = [
            size
            for size in plan.sizes
            if size.elements <= MOST_ELEMENTS and size.dtype == "float32"
        ]
        #: The table of `metacal fit` and of the scaling: the largest of ordinary size.
        self.ordinary = max(fitting, key=lambda size: size.elements) if fitting else None

    def steps(self) -> int:
        """How many steps `results` takes."""
        memory = sum(
            len(_MEMORY_TASKS) for size in self.plan.sizes if size.bytes >= _SMALLEST_FOR_MEMORY
        )
        per_kernel = 1 + len(self.plan.sizes) + memory + (2 if self.ordinary else 0)
        return 1 + len(self.plan.sizes) + per_kernel * len(self.plan.kernels)

    def results(self) -> dict[str, Any]:
        """Everything but the ratios."""
        kernels: dict[str, Any] = {}
        for kernel in self.plan.kernels:
            config = self._step({"kind": "kernel"}, kernel, "kernel")
            kernels[kernel] = {"config": config, "sizes": {}, "fit_process": None}
        sizes = {}
        for size in self.plan.sizes:
            sizes[size.name] = self._on(size, kernels)
        self.progress.doing("imports")
        imports = processes.import_seconds(self.plan.repeats)
        self.progress.done()
        for kernel in self.plan.kernels:
            kernels[kernel]["scaling"] = self._scaling(kernel)
        return {
            "format": FORMAT,
            "machine": machine.description(),
            "settings": self._settings(),
            "sizes": sizes,
            "kernels": kernels,
            "imports": imports,
        }

    def _settings(self) -> dict[str, Any]:
        peers = {name: PEERS[name].version for name in self.plan.peers}
        missing = [name for name, peer in PEERS.items() if not peer.installed]
        settings: dict[str, Any] = {
            "repeats": self.plan.repeats,
            "seed": self.plan.seed,
            "threads": 1,
        }
        return settings | {
            "peers": peers,
            "peers_not_installed": missing,
            "peer_budget_seconds": PEER_BUDGET,
        }

    def _on(self, size: Size, kernels: dict[str, Any]) -> dict[str, Any]:
        """All that is measured on one table; the table is removed afterwards."""
        self.progress.doing(f"{size.name}: making {size.bytes / 1e6:,.0f} MB of logits")
        table, labels = write_table(size, self.folder, self.plan.seed)
        files = {"table": str(table), "labels": str(labels)}
        exact = self._step({"kind": "exact", **files}, self.plan.kernels[0], f"{size.name}")
        for kernel in self.plan.kernels:
            job = {"kind": "timing", **files, "tasks": tasks_of(size), "repeats": self.plan.repeats}
            job |= {"peers": self._peers(size, kernel), "budget": PEER_BUDGET}
            timed = self._step(job, kernel, f"{size.name}, {kernel}")
            timed["error"] = abs(timed["temperature"] / exact["temperature"] - 1.0)
            timed["memory"] = self._memory(size, files, kernel)
            kernels[kernel]["sizes"][size.name] = timed
        if size == self.ordinary:
            self._fit_process(size, table, labels, kernels)
        table.unlink()
        labels.unlink()
        return {**asdict(size), "bytes": size.bytes, **exact}

    def _peers(self, size: Size, kernel: str) -> list[tuple[str, str]]:
        last = self.plan.kernels[-1]
        if size.elements > MOST_ELEMENTS or (size.elements > _PEERS_EVERYWHERE and kernel != last):
            return []
        return [
            (name, task)
            for name in self.plan.peers
            for task in PEERS[name].does
            if task in tasks_of(size)
        ]

    def _memory(self, size: Size, files: dict[str, str], kernel: str) -> dict[str, float]:
        if size.bytes < _SMALLEST_FOR_MEMORY:
            return {}
        return {
            task: self._step(
                {"kind": "memory", "task": task, **files}, kernel, f"{size.name}, {kernel}"
            )["multiple"]
            for task in _MEMORY_TASKS
        }

    def _fit_process(self, size: Size, table: Path, labels: Path, kernels: dict[str, Any]) -> None:
        file = self.folder / "fit.npz"
        np.savez(file, logits=np.load(table, mmap_mode="r"), labels=np.load(labels))
        for kernel in self.plan.kernels:
            self.progress.doing(f"{size.name}, {kernel}: metacal fit")
            seconds = processes.fit_process_seconds(file, kernel, self.plan.repeats)
            kernels[kernel]["fit_process"] = (
                None if seconds is None else {"size": size.name, **seconds}
            )
            self.progress.done()
        file.unlink()

    def _scaling(self, kernel: str) -> dict[str, Any]:
        if self.ordinary is None:
            return {}
        rows, classes = scaling.ladders(self.ordinary)
        job = {"kind": "scaling", "rows": rows, "classes": classes, "seed": self.plan.seed}
        return self._step({**job, "repeats": self.plan.repeats}, kernel, kernel)

    def _step(self, job: dict[str, Any], kernel: str, where: str) -> dict[str, Any]:
        answer = processes.run_worker(job, kernel, self._teller(where))
        self.progress.done()
        return answer

    def _teller(self, where: str) -> Callable[[str], None]:
        return lambda text: self.progress.doing(f"{where}: {text}")
