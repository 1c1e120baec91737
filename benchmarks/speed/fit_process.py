"""What `metacal fit` costs as a process, beside a process that only loads its file.

    python -m benchmarks.speed.fit_process --json fit-process.json

The file holds 25,000 × 1,000 float32 logits and their labels (100 MB). Processor time of whole
processes with one thread, interleaved, medians. Besides both: Python alone, and the imports of NumPy
and of the command, which say where the time goes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import machine
from benchmarks.speed.processes import cpu_seconds, environment, fit_commands
from benchmarks.speed.sizes import SIZES, fill_table

#: What a process runs besides loading and fitting -> its code.
_IMPORTS = {
    "python": "pass",
    "import numpy": "import numpy",
    "import metacal.cli": "import metacal.cli",
}


def measure(file: Path, repeats: int) -> dict[str, list[float]]:
    """Return the processor seconds of every process, sampled in turn."""
    commands = {name: [sys.executable, "-c", code] for name, code in _IMPORTS.items()}
    commands |= fit_commands(file)
    for command in commands.values():
        cpu_seconds(command, environment())
    samples: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(repeats):
        for name, command in commands.items():
            samples[name].append(cpu_seconds(command, environment()))
    return samples


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path, help="where the result goes")
    arguments = parser.parse_args()
    size = SIZES["C"]
    load_before = machine.load_average()
    with tempfile.TemporaryDirectory() as folder:
        table = np.empty((size.rows, size.classes), dtype=size.dtype)
        labels = fill_table(table, seed=0)
        file = Path(folder) / "logits.npz"
        np.savez(file, logits=table, labels=labels)
        del table
        samples = measure(file, arguments.repeats)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    ratio = statistics.median(
        fit / load for fit, load in zip(samples["fit"], samples["load"], strict=True)
    )
    for name, seconds in medians.items():
        print(f"{1e3 * seconds:8.1f} ms  {name}")
    print(f"{ratio:8.2f}     fit / load")
    if arguments.json is not None:
        result = {
            "machine": machine.description(),
            "load_average": {"before": load_before, "after": machine.load_average()},
            "rows": size.rows,
            "classes": size.classes,
            "repeats": arguments.repeats,
            "seconds": medians,
            "samples": samples,
            "fit_over_load": ratio,
        }
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
