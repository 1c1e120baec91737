"""Every calibrator on every set that comes with the project: log loss, ECE, accuracy, predictions
that it changes.

    python -m benchmarks.calibrators [--splits 5] [--jobs 2] [--out
    benchmarks/results/calibrators.json]

5,000 rows to fit, 10,000 to measure, random splits (seeds 0, 1, ...). All methods of the registry
as they come, and a few of their options. ECE with 15 bins of equal width. `changed` counts rows
whose most probable class is another than that of the largest logit. `seconds` is CPU time of one
fit.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import metacal as mc
from benchmarks.experiments.pool import in_order
from metacal import metrics
from metacal.maps.methods import METHODS

RESULTS = Path(__file__).parent / "results" / "calibrators.json"
DATA = Path(__file__).parent / "data"
N_FIT = 5000
#: Further options of some methods: (method, what is said of it, parameters).
OPTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("ensemble-temperature", 'loss="mse"', {"loss": "mse"}),
    ("vector", "no penalty", {"regularisation": 0.0}),
    ("matrix", 'penalty="odir"', {"penalty": "odir"}),
    ("dirichlet", 'penalty="odir"', {"penalty": "odir"}),
    ("imax", "shared=False", {"shared": False}),
    ("gaussian-process", 'centre="log_softmax"', {"centre": "log_softmax"}),
)


def choices() -> list[tuple[str, str, dict[str, Any]]]:
    """Every method, the options behind it."""
    found = [(name, "", {}) for name in METHODS]
    return sorted([*found, *OPTIONS], key=lambda choice: list(METHODS).index(choice[0]))


def measure(
    data: str, method: str, option: str, parameters: dict[str, Any], splits: int
) -> dict[str, Any]:
    """One method on one set: means over the splits."""
    module, _, name = METHODS[method].estimator.partition(":")
    kind = getattr(import_module(module), name)
    whole = mc.datasets.load(data, folder=None if data in mc.datasets.names() else DATA)
    found: dict[str, list[float]] = {
        key: [] for key in ("nll", "ece", "accuracy", "changed", "seconds")
    }
    for seed in range(splits):
        (fit_x, fit_y), (x, y) = whole.split(N_FIT, random_state=seed)
        begun = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted = kind(**parameters).fit(fit_x, fit_y)
        found["seconds"].append(time.process_time() - begun)
        proba = fitted.predict_proba(x)
        found["nll"].append(metrics.nll(proba, y))
        found["ece"].append(metrics.ece(proba, y))
        found["accuracy"].append(metrics.accuracy(proba, y))
        found["changed"].append(int((proba.argmax(axis=1) != x.argmax(axis=1)).sum()))
    means = {key: round(float(sum(values) / splits), 6) for key, values in found.items()}
    return {"set": data, "method": method, "option": option, "class": name, **means}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    sets = [*mc.datasets.names(), *mc.datasets.names(folder=DATA)]
    tasks = [(data, *choice, options.splits) for data in sets for choice in choices()]
    rows = list(in_order(measure, tasks, options.jobs))
    lines = ",\n  ".join(map(json.dumps, rows))
    head = (
        f'"splits": {options.splits}, "fitted": {N_FIT}, "methods": {len(METHODS)}, "sets":'
        f" {len(sets)}"
    )
    options.out.write_text("{" + head + ', "rows": [\n  ' + lines + "\n]}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
