"""What `metacal evaluate` takes, start-up and bootstrap with it: wall, CPU and memory of the whole
process.

    python -m benchmarks.evaluate_command --repeats 9

10,000 rows of 10 classes, and 25,000 of 1,000 (a table of 100 MB in float32) from each kind of
file, without a gate and through one. Medians; memory is the largest resident set of the process as
the system counts it (`ru_maxrss`): the interpreter, NumPy and SciPy, some 60 MB, and mapped
libraries are in it. Results go to benchmarks/results/evaluate-command.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import metacal as mc
from benchmarks.machine import description, load_average
from benchmarks.speed.sizes import fill_table

RESULTS = Path(__file__).parent / "results" / "evaluate-command.json"
SIZES = {"10,000 x 10": (10_000, 10), "25,000 x 1,000": (25_000, 1000)}


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    answer: dict[str, Any] = {"machine": description(), "repeats": chosen.repeats}
    for size, (n, k) in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            answer[size] = {
                f"{kind}, {how}": taken([*gate, *given], chosen.repeats)
                for kind, given in written(Path(folder), n, k).items()
                for how, gate in (("no gate", []), ("through a gate", [f"{folder}/cal.json"]))
            }
        print(size, json.dumps(answer[size], indent=1), flush=True)
    answer["load"] = load_average()
    chosen.out.write_text(json.dumps(answer, indent=1) + "\n")


def written(folder: Path, n: int, k: int) -> dict[str, list[str]]:
    """The same rows in each kind of file, as arguments of the command; and a gate, fitted on
    others.
    """
    table = np.empty((n, k), dtype=np.float32)
    mc.save(
        mc.MetaCal(mc.MinAccuracy(0.85)).fit(table, fill_table(table, seed=1)), folder / "cal.json"
    )
    labels = fill_table(table, seed=0)
    np.savez(folder / "test.npz", logits=table, labels=labels)
    np.save(folder / "logits.npy", table)
    np.save(folder / "labels.npy", labels)
    found = {
        ".npz": [f"{folder}/test.npz"],
        ".npy and labels": [f"{folder}/logits.npy", "--labels", f"{folder}/labels.npy"],
    }
    if find_spec("pyarrow") is not None:
        mc.io.write_table(folder / "test.parquet", {"logits": table, "label": labels})
        found[".parquet"] = [f"{folder}/test.parquet"]
    return found


#: A process counts as its own what the one that started it held: a small one starts the command.
STARTER = """
import os, sys, time
begun = time.perf_counter()
null = os.open(os.devnull, os.O_WRONLY)
silent = [(os.POSIX_SPAWN_DUP2, null, stream) for stream in (1, 2)]
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=silent)
_, status, used = os.wait4(pid, 0)
print(status, time.perf_counter() - begun, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6)
"""


def taken(arguments: list[str], repeats: int) -> dict[str, float]:
    """Medians of wall and CPU seconds, the largest memory."""
    command = [sys.executable, "-m", "metacal", "evaluate", *arguments, "--json"]
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    found = []
    for _ in range(repeats):
        starter = [sys.executable, "-S", "-c", STARTER, *command]
        told = subprocess.run(
            starter, capture_output=True, text=True, check=True, env=environment
        ).stdout.split()
        status, *numbers = map(float, told)
        if status:
            raise SystemExit(f"{' '.join(command)} failed")
        found.append(numbers)
    wall, cpu, memory = zip(*found, strict=True)
    return {
        "wall_s": round(statistics.median(wall), 2),
        "cpu_s": round(statistics.median(cpu), 2),
        "memory_mb": round(max(memory)),
    }


if __name__ == "__main__":
    main()
