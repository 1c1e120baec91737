"""Fresh processes: the worker with one kernel and one thread, and whole commands by their CPU
time.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from metacal.errors import MetacalError

ROOT = Path(__file__).resolve().parents[2]
_ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

_IMPORT = "import time; begun = time.process_time(); {}; print(time.process_time() - begun)"
_LOAD = "import sys, numpy; file = numpy.load(sys.argv[1]); file['logits']; file['labels']"
_FIT = "from metacal.cli import main; main(prog_name='metacal')"

#: What is imported -> the statement. "first use" is what a script pays that fits a temperature.
IMPORTS = {
    "numpy": "import numpy",
    "metacal": "import metacal",
    "metacal.rows": "import metacal.rows",
    "first use": "import metacal; metacal.TemperatureScaling",
}


class BenchmarkError(MetacalError):
    """A process of the benchmark failed."""


def environment(kernel: str | None = None) -> dict[str, str]:
    """The present environment with one thread and one kernel, and bytecode kept."""
    found = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    found |= dict.fromkeys(_ONE_THREAD, "1")
    if kernel is not None:
        found["METACAL_KERNEL"] = kernel
    return found


def run_worker(job: dict[str, Any], kernel: str, doing: Callable[[str], None]) -> dict[str, Any]:
    """Do one job in a fresh process; `doing` hears what it is at."""
    command = [sys.executable, "-m", "benchmarks.speed.worker"]
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(kernel),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            encoding="utf-8",
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(job))
        process.stdin.close()
        last: dict[str, Any] = {}
        for line in process.stdout:
            last = json.loads(line)
            if "doing" in last:
                doing(last["doing"])
        process.wait()
        if "answer" in last:
            answer: dict[str, Any] = last["answer"]
            return answer
        complaints.seek(0)
        said = complaints.read().strip().splitlines()
        why = last.get("failed") or (said[-1] if said else f"exit code {process.returncode}")
        raise BenchmarkError(f"the {job['kind']} job with the {kernel} kernel failed: {why}")


def import_seconds(repeats: int) -> dict[str, float]:
    """Median CPU seconds of each import, in fresh processes, interleaved; bytecode is compiled by
    what ran before.
    """
    samples: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(repeats):
        for name, statement in IMPORTS.items():
            command = [sys.executable, "-c", _IMPORT.format(statement)]
            done = subprocess.run(
                command, env=environment(), capture_output=True, check=True, text=True
            )
            samples[name].append(float(done.stdout))
    return {name: statistics.median(values) for name, values in samples.items()}


def fit_commands(file: Path) -> dict[str, list[str]]:
    """The processes that only load a file, and that fit a gate on it."""
    fit_arguments = ["fit", str(file), "--max-miscoverage", "0.05", "--json"]
    return {
        "load": [sys.executable, "-c", _LOAD, str(file)],
        "fit": [sys.executable, "-c", _FIT, *fit_arguments],
    }


def fit_process_seconds(file: Path, kernel: str, repeats: int) -> dict[str, float] | None:
    """Median CPU seconds of `metacal fit` on a file, and of a process that only loads it; None
    where not measurable.
    """
    commands = fit_commands(file)
    if not hasattr(os, "wait4"):
        return None
    samples: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(repeats):
        for name, command in commands.items():
            samples[name].append(cpu_seconds(command, environment(kernel)))
    return {name: statistics.median(values) for name, values in samples.items()}


def cpu_seconds(command: list[str], env: dict[str, str]) -> float:
    """CPU seconds of a process, or BenchmarkError if it fails."""
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise BenchmarkError(
            f"`{' '.join(command[3:])}` failed with exit code {process.returncode}."
        )
    return usage.ru_utime + usage.ru_stime
