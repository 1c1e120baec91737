"""What more threads bring: each job on 1, 2, 4, … threads of one machine, beside a read of the
table on as many.

    PYTHONPATH=src python -m benchmarks.speed.threads --sizes A,B,C,D,E --threads 1,4,16 --out
    threads.json

Jobs are what a caller types: `TemperatureScaling.fit`, `MetaCal.ranking_scores`,
`predict_proba(out=)`, `MetaCal.fit`. Wall-clock time, the thread counts of a job interleaved,
medians; a read is the sum of the table in blocks. Results on every number of threads are compared
bit for bit while at it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import metacal as mc
from benchmarks.speed.sizes import Size, fill_table, parse_sizes
from metacal.errors import MetacalWarning

#: Elements read at a time.
_BLOCK = 1 << 18


def read(table: np.ndarray[Any, Any], threads: int) -> float:
    """Sum all entries (of float16 their bits): what any job must at least do."""
    flat = table.reshape(-1)
    flat = flat.view(np.uint16) if flat.dtype == np.float16 else flat
    share = -(-len(flat) // threads)

    def one(start: int) -> float:
        end = min(start + share, len(flat))
        return sum(
            float(np.add.reduce(flat[i : min(i + _BLOCK, end)])) for i in range(start, end, _BLOCK)
        )

    if threads == 1:
        return one(0)
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(one, range(0, len(flat), share)))


def jobs(
    table: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]
) -> dict[str, Callable[[int], Any]]:
    """Each job as a function of the number of threads; what it returns must not depend on it."""
    fitted = mc.MetaCal(mc.MinAccuracy(0.85), calibrator=mc.TemperatureScaling()).fit(table, labels)
    room = np.empty(table.shape, dtype=np.float32)

    def temperature(n: int) -> Any:
        return mc.TemperatureScaling(n_jobs=n).fit(table, labels).temperature_

    def scores(n: int) -> Any:
        return fitted.set_params(n_jobs=n).ranking_scores(table)

    def probabilities(n: int) -> Any:
        return fitted.calibrator_.set_params(n_jobs=n).predict_proba(table, out=room)

    def meta(n: int) -> Any:
        base = mc.TemperatureScaling()
        return (
            mc.MetaCal(mc.MinAccuracy(0.85), calibrator=base, n_jobs=n)
            .fit(table, labels)
            .threshold_
        )

    def default(n: int) -> Any:
        return mc.MetaCal(mc.MinAccuracy(0.85), n_jobs=n).fit(table, labels).threshold_

    return {
        "read": lambda n: read(table, n),
        "temperature": temperature,
        "scores": scores,
        "probabilities": probabilities,
        "meta-cal": meta,
        "meta-cal, default base": default,
    }


def timed(
    job: Callable[[int], Any], threads: list[int], repeats: int, same: bool
) -> dict[int, float]:
    """Median seconds for each number of threads, interleaved; raises where the answers differ."""
    first = np.copy(job(threads[0]))
    seconds: dict[int, list[float]] = {n: [] for n in threads}
    for _ in range(repeats):
        for n in threads:
            start = time.perf_counter()
            answer = job(n)
            seconds[n].append(time.perf_counter() - start)
            if same and not np.array_equal(answer, first):
                raise SystemExit(f"{n} threads give another answer than {threads[0]}")
    return {n: statistics.median(times) for n, times in seconds.items()}


def measure(size: Size, threads: list[int], repeats: int) -> dict[str, Any]:
    """Every job on one table: seconds, gain over one thread, and reads on as many threads."""
    table = np.empty((size.rows, size.classes), dtype=size.dtype)
    labels = fill_table(table, seed=0)
    found: dict[str, Any] = {}
    for name, job in jobs(table, labels).items():
        seconds = timed(job, threads, repeats, same=name != "read")
        read_s = (
            seconds if name == "read" else {int(n): s for n, s in found["read"]["seconds"].items()}
        )
        found[name] = {
            "seconds": {str(n): round(s, 6) for n, s in seconds.items()},
            "gain": {str(n): round(seconds[threads[0]] / s, 2) for n, s in seconds.items()},
            "reads": {str(n): round(s / read_s[n], 2) for n, s in seconds.items()},
        }
        line = "  ".join(
            f"{n}: {s * 1e3:.2f} ms ({seconds[threads[0]] / s:.1f}x)" for n, s in seconds.items()
        )
        print(f"{size.name:2} {name:24} {line}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Read the options, time, write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="A,B,C,D,E")
    parser.add_argument("--threads", default="1,4,16")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore", MetacalWarning)
    threads = [int(n) for n in options.threads.split(",")]
    found = {
        size.name: measure(size, threads, options.repeats) for size in parse_sizes(options.sizes)
    }
    answer = {
        "cores": os.cpu_count(),
        "numpy": np.__version__,
        "kernel": str(mc.show_config().kernel),
        "sizes": found,
    }
    text = json.dumps(answer, indent=1) + "\n"
    if options.out is None:
        print(text, end="")
    else:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
