"""Passes over a table on a GPU, and threads on the CPU, of this code and of an older version.

    PYTHONPATH=src python -m benchmarks.speed.device_pass --against OLD/src --out device-pass.json

OLD is a checkout of an older commit, with its C kernel built. Each version runs in a process of its
own, and the processes take turns, so that a busy moment of the machine falls on both. Sizes are
200,000 × 1,000 float32 (D) and 100,000 × 32,000 bfloat16 (V); the unit is one copy of the table on
the GPU. Decisions on some rows are compared with those of the CPU. It takes about five minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("device_worker.py")
#: What is timed on the GPU, by size, and the largest number of copies it may take.
BARS = {
    "predict_proba:temperature": 3.0,
    "predict_proba:default": 3.0,
    "uniform predict_proba:default": None,
    "accepts:default": 2.5,
    "decide:default": None,
    "temperature fit": None,
    "fit:temperature": 15.0,
    "fit:default": 30.0,
}
#: What is timed on the CPU, on one thread and on all.
HOST_TASKS = ("predict_proba:default", "ranking_scores:default", "fit:temperature", "fit:default")
HOST_THREADS = (1, 16)
#: Sizes of tiles that are tried with --tune.
TILES: dict[str, list[dict[str, int]]] = {
    "D": [
        {"TILE_ELEMENTS": tile, "THREAD_ELEMENTS": share, "MAX_REGISTERS": registers}
        for tile, share in ((1024, 32), (1024, 16))
        for registers in (168, 128, 96)
    ],
    "V": [
        {
            "LONG_TILE_ELEMENTS": tile,
            "LONG_THREAD_ELEMENTS": share,
            "LONG_MAX_REGISTERS": registers,
            "PIPELINE_STAGES": stages,
            "ACCEPTANCE_STAGES": stages,
        }
        for tile, share in ((2048, 8), (4096, 8), (2048, 16))
        for registers in (128, 96, 64)
        for stages in (1, 4)
    ],
}


class Worker:
    """Process that times one version of metacal.

    Parameters
    ----------
    source : Path
        Folder that contains the package.
    """

    def __init__(self, source: Path) -> None:
        reading_end, writing_end = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), str(writing_end)],
            stdin=subprocess.PIPE,
            pass_fds=(writing_end,),
            env={**os.environ, "PYTHONPATH": str(source)},
            text=True,
        )
        os.close(writing_end)
        self.answers = os.fdopen(reading_end)

    def ask(self, what: str, **request: Any) -> Any:
        """Send a request, and return the answer; an error is returned as text."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"what": what, **request}) + "\n")
        self.process.stdin.flush()
        line = self.answers.readline()
        if not line:
            return {"error": "the process ended"}
        answer = json.loads(line)
        return answer.get("answer", answer)

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def time_in_turns(
    workers: dict[str, Worker], rounds: int, repeats: int, **request: Any
) -> dict[str, Any]:
    """Time a task in all processes, which take turns.

    Parameters
    ----------
    workers : dict
        Processes by the name of their version.

    rounds : int
        Number of turns of each process.

    repeats : int
        Number of repeats in a turn.

    **request
        Task, size and threads.

    Returns
    -------
    dict
        Milliseconds of all repeats by version, or an error as text.
    """
    samples: dict[str, Any] = {name: [] for name in workers}
    for round_number in range(rounds):
        names = list(workers) if round_number % 2 == 0 else list(workers)[::-1]
        for name in names:
            if isinstance(samples[name], dict):
                continue
            warm_up = 2 if round_number == 0 and "n_jobs" not in request else 1
            answer = workers[name].ask("time", repeats=repeats, warm_up=warm_up, **request)
            if isinstance(answer, dict):
                samples[name] = answer
            else:
                samples[name] += answer
    return samples


def summarise(samples: dict[str, Any], copy_ms: float | None = None) -> dict[str, Any]:
    """Return the median of each version, the ratio of new to old, and the raw samples."""
    summary: dict[str, Any] = {"samples": samples}
    medians = {
        name: statistics.median(values)
        for name, values in samples.items()
        if isinstance(values, list) and values
    }
    summary["ms"] = medians
    if copy_ms is not None:
        summary["copies"] = {name: median / copy_ms for name, median in medians.items()}
    if "old" in medians and "new" in medians:
        summary["new_to_old"] = medians["new"] / medians["old"]
    return summary


def measure_device(workers: dict[str, Worker], size: str, rounds: int) -> dict[str, Any]:
    """Time everything on the GPU for one size of the table."""
    copies = time_in_turns({"new": workers["new"]}, 2, 9, task="copy", size=size)
    copy_ms = statistics.median(copies["new"])
    result: dict[str, Any] = {"copy_ms": copy_ms, "copy_samples": copies["new"], "tasks": {}}
    print(f"\n{size}: one copy {copy_ms:.3f} ms")
    for task, bar in BARS.items():
        samples = time_in_turns(workers, rounds, 3, task=task, size=size)
        line = summarise(samples, copy_ms)
        line["events"] = {
            name: worker.ask("events", task=task, size=size) for name, worker in workers.items()
        }
        line["bar_copies"] = bar
        result["tasks"][task] = line
        _print_line(task, line, bar)
    return result


def _print_line(task: str, line: dict[str, Any], bar: float | None) -> None:
    """Print a task with its time, and say whether it reaches its bar."""
    text = f"  {task:32}"
    for name, median in line["ms"].items():
        text += f" {name} {median:9.3f} ms"
        if "copies" in line:
            text += f" {line['copies'][name]:6.2f} copies"
    for name, events in line.get("events", {}).items():
        if "launches" in events:
            text += f" | {name} {events['device_ms']:.3f} ms on device,"
            text += f" {events['launches']} launches, {events['copies']} copies"
        else:
            text += f" | {name} {events}"
    if bar is not None and "new" in line["copies"]:
        text += f" | <= {bar:g} {'yes' if line['copies']['new'] <= bar else 'NO'}"
    errors = {name: value for name, value in line["samples"].items() if isinstance(value, dict)}
    print(text, errors or "", flush=True)


def measure_host(workers: dict[str, Worker], size: str, rounds: int) -> dict[str, Any]:
    """Time the CPU on one thread and on many."""
    result: dict[str, Any] = {}
    print(f"\n{size} on the CPU")
    for task in HOST_TASKS:
        for n_jobs in HOST_THREADS:
            samples = time_in_turns(workers, rounds, 1, task=task, size=size, n_jobs=n_jobs)
            result[f"{task}:{n_jobs}"] = summarise(samples)
        for name in workers:
            one, many = (result[f"{task}:{n}"]["ms"].get(name) for n in HOST_THREADS)
            if one and many:
                print(f"  {task:28} {name} {one:8.1f} ms, {many:8.1f} ms, gain {one / many:.1f}x")
    return result


def compare_with_cpu(worker: Worker, size: str) -> dict[str, Any]:
    """Compare decisions and probabilities with those of the CPU."""
    result = {}
    types = ("", "float64", "float16") if size == "D" else ("",)
    for base in ("temperature", "default"):
        for rejected in ("calibrated", "uniform"):
            for dtype in types:
                name = f"{base}, {rejected}, {dtype or 'as drawn'}"
                answer = worker.ask("compare", size=size, base=base, rejected=rejected, dtype=dtype)
                result[name] = answer
                print(f"  {size} {name}: {answer}", flush=True)
    return result


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, help="folder `src` of an older version")
    parser.add_argument("--out", type=Path, required=True, help="file for the JSON")
    parser.add_argument("--sizes", default="D,V", help="of D, V and tiny")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--host-size", default="D", help="size of the table on the CPU, or none")
    parser.add_argument("--tune", action="store_true", help="also try other sizes of tiles")
    parser.add_argument("--profile", action="store_true", help="also profile the fits")
    options = parser.parse_args()
    begun = time.perf_counter()
    own_source = Path(__file__).resolve().parents[2] / "src"
    workers = {"new": Worker(own_source)}
    if options.against is not None:
        workers["old"] = Worker(options.against.resolve())
    report: dict[str, Any] = {
        "about": {name: worker.ask("about") for name, worker in workers.items()},
        "device": {},
        "compared": {},
        "tuned": {},
        "profiles": {},
    }
    print(json.dumps(report["about"]))

    def save() -> None:
        report["seconds"] = time.perf_counter() - begun
        options.out.write_text(json.dumps(report, indent=1) + "\n")
        print(f"  ({report['seconds']:.0f} s)", flush=True)

    for size in options.sizes.split(","):
        report["device"][size] = measure_device(workers, size, options.rounds)
        save()
        report["compared"][size] = compare_with_cpu(workers["new"], size)
        if options.profile:
            for task in (
                "fit:temperature",
                "fit:default",
                "predict_proba:default",
                "accepts:default",
            ):
                profile = workers["new"].ask("profile", task=task, size=size)
                report["profiles"][f"{size} {task}"] = profile
        if options.tune and size in TILES:
            report["tuned"][size] = workers["new"].ask("tune", size=size, constants=TILES[size])
            for line in report["tuned"][size]:
                print("  ", line)
        save()
        if size != options.host_size:
            for worker in workers.values():
                worker.ask("forget")
    if options.host_size != "none":
        report["host"] = measure_host(workers, options.host_size, options.rounds)
    for worker in workers.values():
        worker.close()
    save()


if __name__ == "__main__":
    main()
