"""What `evaluate` and the report cost on 25,000 × 1,000 logits, beside another checkout: processor
time, interleaved.

    python -m benchmarks.one_walk OTHER/src [--repeats 5] [-o benchmarks/results/one-walk.json]

Each sample is a process of its own: it fits a gate, warms up on 2,000 rows, then times one call on
them all. OTHER is the tree to compare with, as it was before.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import metacal as mc
from benchmarks.machine import description, load_average
from benchmarks.speed.sizes import fill_table

ROWS, CLASSES = 25_000, 1_000
TASKS = ("evaluate", "evaluate without intervals", "report")
_CHILD = """
import sys, time, warnings
import numpy as np
import metacal as mc
warnings.simplefilter("ignore")
*files, page, rows, task = sys.argv[1:]
(table, labels), rows = map(np.load, files), int(rows)
gate = mc.MetaCal(mc.MinAccuracy(0.85)).fit(table[rows:], labels[rows:])
def run(n, resamples):
    if task == "report":
        mc.report(gate, table[:n], labels[:n], page, **({} if n > 2000 else {"n_resamples": 0}))
    else:
        mc.evaluate(gate, table[:n], labels[:n], n_resamples=resamples)
run(2000, 10 if task == "evaluate" else 0)
begun = time.process_time()
run(rows, 1000 if task == "evaluate" else 0)
print(time.process_time() - begun)
"""


def main() -> None:
    """Measure both trees in turn, and write medians and their ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    trees = {"before": asked.other.resolve(), "after": Path(mc.__file__).resolve().parents[1]}
    samples: dict[str, dict[str, list[float]]] = {
        task: {name: [] for name in trees} for task in TASKS
    }
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder) / name) for name in ("table.npy", "labels.npy", "report.html")]
        table = np.empty((ROWS + 5000, CLASSES), dtype=np.float32)
        labels = fill_table(table, 0)
        np.save(files[0], table)
        np.save(files[1], labels)
        for _ in range(asked.repeats):
            for task in TASKS:
                for name, tree in trees.items():
                    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
                    command = [sys.executable, "-c", _CHILD, *files, str(ROWS), task]
                    done = subprocess.run(
                        command, env=environment, capture_output=True, text=True, check=True
                    )
                    samples[task][name].append(float(done.stdout))
    found = {
        task: {name: round(statistics.median(values), 3) for name, values in both.items()}
        for task, both in samples.items()
    }
    answer = {
        "rows": ROWS,
        "classes": CLASSES,
        "repeats": asked.repeats,
        "cpu_seconds": found,
        "times_less": {
            task: round(both["before"] / both["after"], 2) for task, both in found.items()
        },
        "machine": description(),
        "load_average": load_average(),
    }
    text = json.dumps(answer, indent=1) + "\n"
    print(text, end="")
    if asked.output is not None:
        asked.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
