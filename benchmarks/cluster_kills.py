"""Kill workers of a real Dask cluster at random moments of fits, applies, evaluates and compares,
many hundred times.

    python -m benchmarks.cluster_kills                  # goes on where an earlier run has stopped
    python -m benchmarks.cluster_kills --runs 40 --out /tmp/kills.json

Two processes of Dask on this machine work; in each run one to three SIGKILLs fall at moments drawn
between 0 and 0.9 of what the same work takes undisturbed, now on one worker, now on both, and
nobody waits until all are back. Every other cluster gives a piece up with its first worker
(`allowed-failures` 0), so that metacal's own resubmission is put to the test. What comes out is one
of:

- `same_bits`: what one machine alone gives, bit for bit; of an apply, whole files and the record,
  nothing else;
- `sentence`: an InputError that names the file or the cluster;
- `wrong_bits`, `raw_error`, `hung`: must never be.

Counts go to benchmarks/results/cluster-kills.json after every run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import metacal as mc
from benchmarks.machine import description
from benchmarks.speed.sizes import fill_table
from metacal import rows as rows_module

RESULTS = Path(__file__).parent / "results" / "cluster-kills.json"
FILES, ROWS, CLASSES = 6, 6_000, 20
#: Runs on one cluster, and seconds after which a run counts as hung.
BATCH, HUNG = 40, 180
LOCAL = {"processes": True, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
OUTCOMES = ("same_bits", "sentence", "wrong_bits", "raw_error", "hung")


class HungError(BaseException):
    """A run did not end."""


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs",
        type=int,
        default=556,
        help="in each a worker is killed before it ends; a tenth are compares",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    rows_module.BLOCK_ELEMENTS = 1 << 16  # many blocks
    answer: dict[str, Any] = (
        json.loads(chosen.out.read_text()) if chosen.out.exists() else {"seed": chosen.seed}
    )
    if answer["seed"] != chosen.seed:
        parser.error(f"{chosen.out} has runs of seed {answer['seed']}")
    answer |= {"machine": description(), "rows": FILES * ROWS, "classes": CLASSES, "files": FILES}
    signal.signal(signal.SIGALRM, _hung)
    with tempfile.TemporaryDirectory() as folder:
        data = Data(Path(folder))
        while (done := answer.get("n_runs", 0)) < chosen.runs:
            until = min(chosen.runs, (done // BATCH + 1) * BATCH)
            allowed_failures = 0 if (done // BATCH) % 2 else 3
            on_one_cluster(data, until, allowed_failures, answer, chosen.out)


def _hung(*_: Any) -> None:
    raise HungError


def on_one_cluster(
    data: Data, until: int, allowed_failures: int, answer: dict[str, Any], out: Path
) -> None:
    """Some runs on a fresh cluster, `until` there are so many in all; the counts are written after
    each.
    """
    import dask
    import distributed

    settings = {
        "distributed.deploy.lost-worker-timeout": "10 minutes",  # however busy this machine is
        "distributed.worker.multiprocessing-method": "forkserver",
        "distributed.scheduler.allowed-failures": allowed_failures,
    }
    # New workers are forks of one clean process that has imported what a worker needs: seconds
    # each, spared.
    with dask.config.set(settings):
        distributed.utils.get_mp_context()  # sets a list of its own, once
    needed = [name for name in sys.modules if name.partition(".")[0] == "metacal"]
    multiprocessing.set_forkserver_preload(["distributed", *needed])
    with (
        dask.config.set(settings),
        distributed.LocalCluster(n_workers=2, **LOCAL) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        alone = {
            work: min(seconds(data.works[work], client) for _ in range(3)) for work in data.works
        }
        while (run := answer.get("n_runs", 0)) < until:
            drawn = answer["n_drawn"] = answer.get("n_drawn", 0) + 1
            rng = np.random.default_rng([answer["seed"], drawn])
            work = "compare" if run % 10 == 9 else ("fit", "apply", "evaluate")[run % 3]
            outcome, text, killed = one_run(data, work, client, cluster, rng, alone[work])
            if killed or outcome != "same_bits":  # it may be over before the first kill
                record(answer, work, outcome, text, killed)
            out.write_text(json.dumps(answer, indent=1) + "\n")
            print(
                f"{run + 1} {work}: {outcome} after {killed} kills {text}",
                file=sys.stderr,
                flush=True,
            )
            client.wait_for_workers(1, timeout=120)


def seconds(work: Callable[[Any], Any], client: Any) -> float:
    """How long it takes."""
    begun = time.perf_counter()
    work(client)
    return time.perf_counter() - begun


def one_run(
    data: Data, work: str, client: Any, cluster: Any, rng: np.random.Generator, alone: float
) -> tuple[str, str, int]:
    """The outcome, what was said, and how many workers were killed meanwhile."""
    killed: list[int] = []
    ended = threading.Event()

    def kill(both: bool) -> None:
        pids = [nanny.pid for nanny in cluster.workers.values() if nanny.pid]
        for pid in pids if both else rng.permutation(pids)[:1].tolist():
            if not ended.is_set():
                with contextlib.suppress(ProcessLookupError):  # an earlier kill was there first
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    moments = rng.uniform(0.0, 0.9 * alone, size=rng.choice([1, 2, 3], p=[0.7, 0.2, 0.1]))
    killers = [threading.Timer(moment, kill, (bool(rng.random() < 0.2),)) for moment in moments]
    signal.alarm(HUNG)
    for killer in killers:
        killer.start()
    text = ""
    try:
        outcome = "same_bits" if data.works[work](client) == data.expected[work] else "wrong_bits"
    except mc.InputError as error:
        text = str(error)
        outcome = "sentence" if re.search(r"x\d\.npy|the cluster at", text) else "raw_error"
    except HungError:
        outcome = "hung"
    except Exception as error:
        outcome, text = "raw_error", f"{type(error).__name__}: {error}"
    finally:
        ended.set()
        signal.alarm(0)
    for killer in killers:
        killer.cancel()
        killer.join()
    return outcome, text, len(killed)


def record(answer: dict[str, Any], work: str, outcome: str, text: str, killed: int) -> None:
    """Add a run to the counts."""
    answer["n_runs"] = answer.get("n_runs", 0) + 1
    answer["n_killed"] = answer.get("n_killed", 0) + killed
    counts = answer.setdefault(work, dict.fromkeys(OUTCOMES, 0))
    counts[outcome] += 1
    if text:
        shape = re.sub(
            r"\S*/(x\d\.npy)", r"\1", re.sub(r"'_?\w+-[0-9a-f-]{36}'|tcp://\S+\d", "…", text)
        )
        said = Counter(answer.get("said", {}))
        said[f"{outcome}: {re.sub(r'x[0-9]', 'x0', shape)}"] += 1
        answer["said"] = dict(said)


class Data:
    """Files of logits, and each work as a function of a client, with what it gives on one
    machine.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, logs = folder, folder / "logs"
        logs.mkdir()
        for part in range(FILES):
            table = np.empty((ROWS, CLASSES), dtype=np.float32)
            np.save(logs / f"y{part}.npy", fill_table(table, seed=part))
            np.save(logs / f"x{part}.npy", table)
        self.source = str(logs / "x*.npy")
        self.stored = mc.read_predictions(self.source, labels=str(logs / "y*.npy"), stream=True)
        self.gate = mc.MetaCal(mc.MinAccuracy(0.85)).fit(
            np.asarray(self.stored.table), self.stored.labels
        )
        self.works: dict[str, Callable[[Any], Any]] = {
            "fit": self.fit,
            "apply": self.apply,
            "evaluate": self.evaluate,
            "compare": self.compare,
        }
        self.expected = {name: work(None) for name, work in self.works.items()}

    def fit(self, client: Any) -> Any:
        """A gate."""
        cal = mc.MetaCal(mc.MinAccuracy(0.85))
        return cal.fit(self.stored.table, self.stored.labels, executor=client).gate_

    def apply(self, client: Any) -> Any:
        """The bytes of every result."""
        out = self.folder / "out"
        try:
            mc.apply(self.gate, self.source, f"{out}/", executor=client, output_format="npy")
            # A worker that was given up may be at work still, on a part that nobody will put in
            # place.
            return {
                path.name: path.read_bytes()
                for path in sorted(out.iterdir())
                if path.name[0] not in "._"
            }
        finally:
            shutil.rmtree(out, ignore_errors=True)

    def evaluate(self, client: Any) -> Any:
        """All measures; the softmax's, too."""
        return mc.evaluate(
            self.gate, self.stored.table, self.stored.labels, n_resamples=0, executor=client
        ).to_dict()

    def compare(self, client: Any) -> Any:
        """The table of a comparison, but for the seconds."""
        names, options = (
            ["temperature", "vector"],
            {"n_splits": 2, "n_repeats": 1, "executor": client},
        )
        entries = mc.compare(self.stored.table, self.stored.labels, names, **options).to_dict()[
            "calibrators"
        ]
        return [{**entry, "fit_seconds": None} for entry in entries]


if __name__ == "__main__":
    main()
