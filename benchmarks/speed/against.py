"""`python -m benchmarks speed --against COMMIT`: this tree beside an earlier commit, interleaved.

The commit is checked out into a temporary folder and its C kernel is built there. One process per
tree stays alive and is asked for one sample at a time, so that a busy moment of the machine falls on
both. Which tree goes first alternates.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.speed.measure import Progress
from benchmarks.speed.processes import ROOT, BenchmarkError, environment
from benchmarks.speed.sizes import Size, write_table
from metacal.display import align_columns

#: Which tree a process times.
TREES = ("before", "after")
#: A sample lasts at least this many seconds; a short task is called several times.
_MIN_SAMPLE_SECONDS = 0.02
_MAX_CALLS = 200
#: Probability with which the interval of a ratio contains its median.
_CONFIDENCE = 0.95
_WORKER = Path(__file__).with_name("against_worker.py")


@dataclass(frozen=True)
class Comparison:
    """What to compare.

    Attributes
    ----------
    commit : str
        Earlier commit.

    sizes : tuple of Size
        Tables.

    repeats : int
        Samples of each task and tree.

    seed : int
        Seed of the logits.

    n_threads : int
        Number of threads. One thread is measured by processor time, several by wall-clock time.
    """

    commit: str
    sizes: tuple[Size, ...]
    repeats: int
    seed: int = 0
    n_threads: int = 1


class _Worker:
    """Process that times the tasks of one tree."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        first_answer = self._read_answer()
        self.tasks: list[str] = first_answer["tasks"]
        self.kernel: str = first_answer["kernel"]

    def _read_answer(self) -> dict[str, Any]:
        """Return the next line of the process as JSON."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            assert self._process.stderr is not None
            errors = self._process.stderr.read().strip().splitlines() or ["no message"]
            raise BenchmarkError(f"a process of the comparison failed: {errors[-1]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def measure(self, task: str, n_calls: int) -> float:
        """Return the seconds of one call of a task."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"task": task, "calls": n_calls}) + "\n")
        self._process.stdin.flush()
        return float(self._read_answer()["seconds"])


def compare(comparison: Comparison, progress: Progress) -> dict[str, Any]:
    """Time both trees, and return every sample and the ratios as JSON types."""
    load_before = machine.load_average()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="metacal-against-")))
        progress.begin(1 + len(comparison.sizes))
        progress.doing(f"building {comparison.commit}")
        earlier_tree = stack.enter_context(_check_out(comparison.commit, folder))
        progress.done()
        sources = {"before": earlier_tree / "src", "after": ROOT / "src"}
        sizes = {}
        for size in comparison.sizes:
            files = write_table(size, folder, comparison.seed)
            sizes[size.name] = _compare_on(size, files, sources, comparison, progress)
            for file in files:
                file.unlink()
            progress.done()
    return {
        "format": 1,
        "against": _resolve_commit(comparison.commit),
        "commit": _resolve_commit("HEAD"),
        "has_uncommitted_changes": _has_uncommitted_changes(),
        "machine": machine.description(),
        "load_average": {"before": load_before, "after": machine.load_average()},
        "threads": comparison.n_threads,
        "clock": "processor time" if comparison.n_threads == 1 else "wall-clock time",
        "repeats": comparison.repeats,
        "seed": comparison.seed,
        "sizes": sizes,
    }


def _resolve_commit(commit: str) -> str:
    """Return the full hash of a commit, or raise BenchmarkError."""
    found = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if found.returncode:
        raise BenchmarkError(f"there is no commit {commit!r} in this repository.")
    return found.stdout.strip()


def _has_uncommitted_changes() -> bool:
    """Check whether a file of the package differs from the last commit."""
    command = ["git", "status", "--porcelain", "--", "src"]
    changes = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return bool(changes.stdout.strip())


@contextmanager
def _check_out(commit: str, folder: Path) -> Iterator[Path]:
    """Provide a tree of the commit with its C kernel built, and remove it afterwards."""
    tree = folder / "tree"
    full_hash = _resolve_commit(commit)
    add = ["git", "worktree", "add", "--detach", str(tree), full_hash]
    subprocess.run(add, cwd=ROOT, check=True, capture_output=True)
    try:
        build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        subprocess.run(build, cwd=tree, capture_output=True, check=False)
        yield tree
    finally:
        remove = ["git", "worktree", "remove", "--force", str(tree)]
        subprocess.run(remove, cwd=ROOT, check=False, capture_output=True)


def _compare_on(
    size: Size,
    files: tuple[Path, Path],
    sources: dict[str, Path],
    comparison: Comparison,
    progress: Progress,
) -> dict[str, Any]:
    """Return the samples and the ratios of every task on one table."""
    with ExitStack() as stack:
        workers = {
            tree: stack.enter_context(_start_worker(source, files, comparison.n_threads))
            for tree, source in sources.items()
        }
        kernels = {tree: worker.kernel for tree, worker in workers.items()}
        tasks = [task for task in workers["after"].tasks if task in workers["before"].tasks]
        found = {}
        for task in tasks:
            progress.doing(f"{size.name}: {task}")
            found[task] = _measure_in_turn(workers, task, comparison.repeats)
    return {"rows": size.rows, "classes": size.classes, "kernels": kernels, "tasks": found}


@contextmanager
def _start_worker(source: Path, files: tuple[Path, Path], n_threads: int) -> Iterator[_Worker]:
    """Provide the worker of one tree, which ends with the context."""
    with subprocess.Popen(
        [sys.executable, str(_WORKER), *map(str, files), str(n_threads)],
        env={**environment(), "PYTHONPATH": str(source)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    ) as process:
        try:
            yield _Worker(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def _measure_in_turn(workers: dict[str, _Worker], task: str, repeats: int) -> dict[str, Any]:
    """Sample one task of both trees in turn, and return the samples and their ratio."""
    first_seconds = max(worker.measure(task, 1) for worker in workers.values())
    n_calls = min(_MAX_CALLS, math.ceil(_MIN_SAMPLE_SECONDS / max(first_seconds, 1e-6)))
    samples: dict[str, list[float]] = {tree: [] for tree in TREES}
    for repeat in range(repeats):
        for tree in TREES if repeat % 2 == 0 else reversed(TREES):
            samples[tree].append(workers[tree].measure(task, n_calls))
    pairs = zip(samples["before"], samples["after"], strict=True)
    ratio, interval = median_with_interval([after / before for before, after in pairs])
    return {
        "calls": n_calls,
        "samples": samples,
        "median": {tree: statistics.median(values) for tree, values in samples.items()},
        "ratio": ratio,
        "interval": interval,
    }


def median_with_interval(values: list[float]) -> tuple[float, list[float] | None]:
    """Return the median of independent values, and a 95% interval of the true median.

    The interval has two of the ordered values as ends. It assumes no distribution: the number of
    values below the true median is binomial. Fewer than six values have no such interval.

    Examples
    --------
    >>> median_with_interval([1.0, 1.1, 0.9, 1.2, 1.0, 1.05, 0.95, 1.0, 1.15])
    (1.0, [0.95, 1.15])
    >>> median_with_interval([1.0, 1.1])
    (1.05, None)
    """
    ordered = sorted(values)
    n = len(ordered)
    max_tail = (1.0 - _CONFIDENCE) / 2.0
    tail, n_outside = 0.0, -1
    while True:
        tail += math.comb(n, n_outside + 1) / 2.0**n
        if tail > max_tail:
            break
        n_outside += 1
    median = statistics.median(ordered)
    if n_outside < 0:
        return median, None
    return median, [ordered[n_outside], ordered[n - 1 - n_outside]]


def table_of(results: dict[str, Any]) -> list[str]:
    """Return the lines of a table for people: milliseconds and ratio of each task."""
    clock = results["clock"]
    threads = results["threads"]
    head = f"against {results['against'][:12]}, {clock}, {threads} thread{'s' * (threads > 1)}"
    rows = [["size", "task", "before, ms", "after, ms", "after / before", "95% interval"]]
    for name, size in results["sizes"].items():
        for task, found in size["tasks"].items():
            interval = found["interval"]
            rows.append(
                [
                    name,
                    task,
                    *(f"{1e3 * found['median'][tree]:.3g}" for tree in TREES),
                    f"{found['ratio']:.3f}",
                    "-" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}",
                ]
            )
    return [head, "", *align_columns(rows)]
