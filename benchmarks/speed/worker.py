"""One job in a fresh process: `python -m benchmarks.speed.worker` reads a job as JSON and answers
lines of JSON.

The environment chooses the kernel and one thread before anything is imported. Lines {"doing": …}
say what runs; the last line, {"answer": …} or {"failed": …}, ends the job.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

Say = Callable[[str], None]


def timing_job(job: dict[str, Any], say: Say) -> dict[str, Any]:
    """Time the reads, metacal's tasks and the peers on one table, interleaved."""
    import numpy as np

    from benchmarks.speed.passes import passes_of_temperature_fit
    from benchmarks.speed.tasks import prepare, reads
    from benchmarks.speed.timing import Stopwatch, interleaved

    table, labels = np.asarray(np.load(job["table"], mmap_mode="r")), np.load(job["labels"])
    say("preparing")
    own = {f"read {name}": Stopwatch(function) for name, function in reads(table).items()}
    own |= {name: Stopwatch(prepare(name, table, labels)) for name in job["tasks"]}
    peers = {
        f"{peer}: {task}": _peer(peer, task, table, labels, job["budget"])
        for peer, task in job["peers"]
    }
    for name, _ in interleaved(own | peers, job["repeats"]):
        say(name)
    unit = min(watch.to_dict()["median"] for name, watch in own.items() if name.startswith("read "))
    answer: dict[str, Any] = {
        "read": unit,
        "tasks": {name: watch.to_dict() for name, watch in own.items()},
    }
    answer["peers"] = {
        name: watch.to_dict() | _number(watch.answer) for name, watch in peers.items()
    }
    answer["passes"] = passes_of_temperature_fit(table, labels)
    answer["temperature"] = own["temperature"].answer
    return answer


def _peer(peer: str, task: str, table: Any, labels: Any, budget: float) -> Any:
    """A stopwatch on a peer; its imports and first steps happen here, on a few rows."""
    from benchmarks.speed.peers import PEERS
    from benchmarks.speed.timing import Stopwatch

    prepare = PEERS[peer].does[task]
    try:
        prepare(table[:200], labels[:200])()
        return Stopwatch(prepare(table, labels), budget=budget, peer=True)
    except Exception as error:
        return Stopwatch(lambda: None, peer=True, error=f"{type(error).__name__}: {error}")


def _number(answer: Any) -> dict[str, float]:
    return {"answer": float(answer)} if isinstance(answer, float) else {}


def exact_job(job: dict[str, Any], say: Say) -> dict[str, Any]:
    """The table's accuracy and its temperature, solved in float64."""
    import numpy as np

    from benchmarks.speed.passes import exact_temperature
    from benchmarks.speed.sizes import TEMPERATURE

    table, labels = np.asarray(np.load(job["table"], mmap_mode="r")), np.load(job["labels"])
    rows = max(1, (1 << 20) // table.shape[1])
    right = sum(
        int((table[start : start + rows].argmax(axis=1) == labels[start : start + rows]).sum())
        for start in range(0, len(table), rows)
    )
    say("solving in float64")
    return {
        "accuracy": right / len(table),
        "temperature": exact_temperature(table, labels, TEMPERATURE),
    }


def memory_job(job: dict[str, Any], say: Say) -> dict[str, Any]:
    """Peak memory of one task as a multiple of the table."""
    from benchmarks.speed.memory import peak_multiple

    say(f"memory of {job['task']}")
    return {"multiple": peak_multiple(job["task"], job["table"], job["labels"])}


def scaling_job(job: dict[str, Any], say: Say) -> dict[str, Any]:
    """Time against the number of rows and of classes."""
    from benchmarks.speed.scaling import scaled

    return scaled(job["rows"], job["classes"], job["repeats"], job["seed"], say)


def kernel_job(job: dict[str, Any], say: Say) -> dict[str, Any]:
    """Which kernel runs, and why."""
    from metacal.config import show_config

    return dict(vars(show_config()))


JOBS = {
    "timing": timing_job,
    "exact": exact_job,
    "memory": memory_job,
    "scaling": scaling_job,
    "kernel": kernel_job,
}


def main() -> None:
    """Read a job from stdin, do it, answer on stdout; whatever else is printed meanwhile is
    dropped.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def answer(**line: Any) -> None:
        answers.write(json.dumps(line) + "\n")
        answers.flush()

    job = json.loads(sys.stdin.read())
    warnings.simplefilter("ignore")
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        try:
            answer(answer=JOBS[job["kind"]](job, lambda text: answer(doing=text)))
        except Exception as error:
            answer(failed=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
