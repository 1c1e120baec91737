"""Timings of one tree of metacal: `python against_worker.py TABLE LABELS THREADS`, run by `against.py`.

The process imports metacal from PYTHONPATH and nothing else of a tree, so that the same file times
an old commit. It answers in lines of JSON: first the names of the tasks, then the seconds of each
task that a line of stdin names.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np


def prepare_tasks(table: Any, labels: Any, n_threads: int) -> dict[str, Callable[[], Any]]:
    """Return what users call, as functions without arguments, keyed by their names."""
    import metacal as mc

    n_jobs = n_threads if n_threads > 1 else None
    # Commits before b139d9e have the promise under its former name.
    min_accuracy = getattr(mc, "MinAccuracy", None) or mc.MinCoverageAccuracy
    promise = min_accuracy(0.85)
    temperature = mc.TemperatureScaling(n_jobs=n_jobs)
    temperature_gate = mc.MetaCal(promise, calibrator=mc.TemperatureScaling(), n_jobs=n_jobs)
    default_gate = mc.MetaCal(promise, n_jobs=n_jobs)
    fitted_temperature = mc.TemperatureScaling(n_jobs=n_jobs).fit(table, labels)
    fitted_gate = mc.MetaCal(promise, n_jobs=n_jobs).fit(table, labels)
    # An old gate gives rejected rows 1/K, so the probabilities are those of its calibrator.
    fitted_default = fitted_gate.calibrator_.set_params(n_jobs=n_jobs)
    out = np.zeros(table.shape, dtype=np.result_type(table.dtype, np.float32))
    return {
        "temperature fit": lambda: temperature.fit(table, labels),
        "Meta-Cal fit, temperature": lambda: temperature_gate.fit(table, labels),
        "Meta-Cal fit, default base": lambda: default_gate.fit(table, labels),
        "ranking_scores": lambda: fitted_gate.ranking_scores(table),
        "accepts": lambda: fitted_gate.accepts(table),
        "predict_proba(out=), temperature": lambda: fitted_temperature.predict_proba(
            table, out=out
        ),
        "predict_proba(out=), default base": lambda: fitted_default.predict_proba(table, out=out),
        "predict_proba, default base": lambda: fitted_default.predict_proba(table),
    }


def main() -> None:
    """Prepare and warm up every task, then time those that stdin names."""
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    table, labels = np.load(sys.argv[1]), np.load(sys.argv[2])
    n_threads = int(sys.argv[3])
    clock = time.process_time if n_threads == 1 else time.perf_counter
    tasks = prepare_tasks(table, labels, n_threads)
    for task in tasks.values():
        task()
    from metacal import show_config

    answers.write(json.dumps({"tasks": list(tasks), "kernel": show_config().kernel}) + "\n")
    answers.flush()
    for line in sys.stdin:
        request = json.loads(line)
        task = tasks[request["task"]]
        started = clock()
        for _ in range(request["calls"]):
            task()
        seconds = (clock() - started) / request["calls"]
        answers.write(json.dumps({"seconds": seconds}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
