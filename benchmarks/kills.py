"""Kill a worker at a random moment of a fit, an apply, a compare and an evaluate on a real cluster, many times each.

    python -m benchmarks.kills --times 10
    python -m benchmarks.kills --only compare --only evaluate       # the others stay as they are in the file

Two processes of Dask on this machine work; one of them gets SIGKILL at a moment drawn between 0 and the time that the
same work takes undisturbed. What comes out must be what one machine alone gives, bit for bit, and in the folder of
results there must be whole files, the record, and nothing else. Results go to benchmarks/results/kills.json.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import metacal as mc
from benchmarks.machine import description
from benchmarks.speed.sizes import fill_table

RESULTS = Path(__file__).parent / "results" / "kills.json"
FILES, ROWS, CLASSES = 8, 20_000, 20
WORKS = ("fit", "apply", "compare", "evaluate")


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--only", action="append", choices=WORKS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    answer: dict[str, Any] = json.loads(chosen.out.read_text()) if chosen.only and chosen.out.exists() else {}
    answer |= {"machine": description(), "rows": FILES * ROWS, "classes": CLASSES, "files": FILES}
    with tempfile.TemporaryDirectory() as folder:
        works = chosen.only or WORKS
        for name, found in run(Path(folder), works, chosen.times, np.random.default_rng(chosen.seed)):
            answer[name] = found
            chosen.out.write_text(json.dumps(answer, indent=1) + "\n")
            print(name, json.dumps(found), flush=True)


def run(
    folder: Path, wanted: Sequence[str], times: int, rng: np.random.Generator
) -> Iterator[tuple[str, dict[str, Any]]]:
    """What each work came to after every kill."""
    import dask
    import distributed

    logs = folder / "logs"
    logs.mkdir()
    for part in range(FILES):
        table = np.empty((ROWS, CLASSES), dtype=np.float32)
        np.save(logs / f"y{part}.npy", fill_table(table, seed=part))
        np.save(logs / f"x{part}.npy", table)
    found = mc.read_predictions(str(logs / "x*.npy"), labels=str(logs / "y*.npy"), stream=True)
    here = mc.MetaCal(mc.MinCoverageAccuracy(0.85)).fit(np.asarray(found.table), found.labels)
    options = {"processes": True, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
    dask.config.set({"distributed.deploy.lost-worker-timeout": "10 minutes"})  # however busy this machine is
    with distributed.LocalCluster(2, **options) as cluster, distributed.Client(cluster) as client:
        works = works_of(found, here, logs, folder, client)
        for name in wanted:
            yield name, killed(client, works[name], times, rng)


def works_of(found: Any, here: Any, logs: Path, folder: Path, client: Any) -> dict[str, Callable[[], Any]]:
    """Each work as a function that gives something to compare."""
    source, number = str(logs / "x*.npy"), iter(range(10_000))

    def fit() -> Any:
        return mc.MetaCal(mc.MinCoverageAccuracy(0.85)).fit(found.table, found.labels, executor=executor()).gate_

    def apply() -> Any:
        out = folder / f"out{next(number)}"
        mc.apply(here, source, f"{out}/", executor=executor(), output_format="npy")
        return {path.name: path.read_bytes() for path in sorted(out.iterdir()) if path.name != "_metacal.json"}

    def compare() -> Any:
        names, how = ["temperature", "spline", "vector"], {"n_splits": 3, "n_repeats": 1}
        entries = mc.compare(found.table, found.labels, names, executor=executor(), **how).to_dict()["calibrators"]
        return [{**entry, "fit_seconds": None} for entry in entries]

    def evaluate() -> Any:
        return mc.evaluate(here, found.table, found.labels, n_resamples=0, executor=executor()).to_dict()

    def executor() -> Any:
        return client.get_executor(retries=5)

    return {"fit": fit, "apply": apply, "compare": compare, "evaluate": evaluate}


def killed(client: Any, work: Callable[[], Any], times: int, rng: np.random.Generator) -> dict[str, Any]:
    """How often the answer was right, when a worker was killed in the middle."""
    work()
    begun = time.perf_counter()
    expected = work()
    alone = time.perf_counter() - begun
    moments, right, seconds = [], 0, []
    for moment in rng.uniform(0.0, alone, size=times):
        killer = threading.Timer(moment, os.kill, (one_of(client), signal.SIGKILL))
        begun = time.perf_counter()
        killer.start()
        right += work() == expected
        seconds.append(round(time.perf_counter() - begun, 2))
        killer.join()
        moments.append(round(float(moment), 3))
    told = {"undisturbed_s": round(alone, 2), "killed_at_s": moments, "took_s": seconds}
    return {"times": times, "right": right, **told}


def one_of(client: Any) -> int:
    """The process of a worker, once both are there."""
    while True:
        pids = [pid for pid in client.run(os.getpid, on_error="return").values() if isinstance(pid, int)]
        if len(pids) == 2:
            return pids[0]
        time.sleep(0.1)


if __name__ == "__main__":
    main()
