"""Does the torch module say what Python says? Every calibrator × score × input type on every real
set, all rows.

    PYTHONPATH=src python -m benchmarks.export.torch_parity --jobs 2 --devices cpu

prints one line for each cell that differs by more than 1e-5 or flips a decision, then a summary;
`--out` keeps all of it as JSON. Gates are fitted on 5,000 rows and compared on all of them, fitted
rows included. float16 logits are also given as float32, so that what is compared is the arithmetic
and not the spacing of float16 outputs.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import itertools
import json
import time
import warnings
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

import metacal as mc
from metacal.estimators import CALIBRATORS
from metacal.export.torch import to_module
from metacal.scores import NAMED

FOLDER = Path(__file__).resolve().parents[1] / "data"
#: Chosen by cross-validation otherwise, which takes long and changes nothing for an export.
OPTIONS = {"matrix": {"regularisation": 1.0}, "dirichlet": {"regularisation": 1.0}}
TOLERANCE = 1e-5


def read(name):
    """A set by name: embedded, or in benchmarks/data."""
    return mc.datasets.load(name, folder=None if name in mc.datasets.names() else FOLDER)


def compare(devices, job):
    """All cells of one set and calibrator."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    name, calibrator = job
    data = read(name)
    (fit_x, fit_y), (rest, _) = data.split(5000, random_state=0)
    table = np.concatenate([fit_x, rest])
    cells = []
    for score in NAMED:
        accuracy = mc.MinAccuracy(0.97 if data.n_classes == 10 else 0.87)
        promise = mc.MaxMiscoverage(0.05) if score in ("margin", "energy") else accuracy
        base = CALIBRATORS[calibrator](**OPTIONS.get(calibrator, {}))
        cal = mc.MetaCal(promise, base, score).fit(fit_x, fit_y)
        module = to_module(cal)
        for dtype, device in itertools.product((np.float32, np.float16, np.float64), devices):
            logits = table.astype(dtype)
            given = torch.from_numpy(logits).to(device)
            probs, _, accept = module(given)
            if probs.dtype != given.dtype or probs.device != given.device:
                raise AssertionError(
                    f"{probs.dtype} on {probs.device} from {given.dtype} on {given.device}"
                )
            if dtype == np.float16:
                probs, _, _ = module(given.float())
            away = np.abs(probs.cpu().numpy() - cal.predict_proba(logits)).max(axis=1)
            cells.append(
                {
                    "set": name,
                    "calibrator": calibrator,
                    "score": score,
                    "dtype": np.dtype(dtype).name,
                    "device": device,
                    "rows": len(table),
                    "largest_difference": float(away.max()),
                    "rows_off": int((away > TOLERANCE).sum()),
                    "decisions_off": int((accept.cpu().numpy() != cal.accepts(logits)).sum()),
                }
            )
    return cells


def main():
    """Run the grid."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--jobs", type=int, default=1)
    options.add_argument("--devices", nargs="+", default=["cpu"])
    options.add_argument("--out", type=Path)
    chosen = options.parse_args()
    started = time.perf_counter()
    names = [*mc.datasets.names(), *mc.datasets.names(folder=FOLDER)]
    # The large sets first, so that the last process does not end long after the others.
    jobs = sorted(itertools.product(names, CALIBRATORS), key=lambda job: -read(job[0]).n_classes)
    cells = []
    with get_context("spawn").Pool(chosen.jobs) as pool:
        for found in pool.imap_unordered(partial(compare, chosen.devices), jobs):
            cells += found
            for cell in found:
                if cell["rows_off"] or cell["decisions_off"]:
                    print(json.dumps(cell), flush=True)
    summary = []
    for device in chosen.devices:
        own = [cell for cell in cells if cell["device"] == device]
        summary.append(
            {
                "device": device,
                "cells": len(own),
                "rows": sum(cell["rows"] for cell in own),
                "largest_difference": max(cell["largest_difference"] for cell in own),
                "rows_off": sum(cell["rows_off"] for cell in own),
                "decisions_off": sum(cell["decisions_off"] for cell in own),
            }
        )
        print(json.dumps(summary[-1]))
    print(f"{time.perf_counter() - started:.0f} s, torch {torch.__version__}")
    if chosen.out:
        chosen.out.write_text(
            json.dumps({"torch": torch.__version__, "summary": summary, "cells": cells}, indent=1)
        )


if __name__ == "__main__":
    main()
