"""Gaussian-process calibration against the paper's number, and on a thousand classes.

Run from the repository::

    python -m benchmarks.reference.gp splits      # 40 merged splits of the paper's DenseNet-40 file, both centrings
    python -m benchmarks.reference.gp thousand    # 25,000 x 1,000 float32: seconds of CPU, memory

`METACAL_DATA` names the folder that holds cifar10_densenet40_paper.npz (default: ../shared/data). Ma & Blaschko
(ICML 2021), Table 1, print .00634 for Gaussian-process calibration on this file.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metacal import metrics
from metacal.maps.gp import fit_gaussian_process
from metacal.maps.local import fit_local_temperature
from metacal.maps.temperature import fit_temperature
from metacal.rows import Rows

Fit = Callable[..., Callable[..., NDArray[np.float32]]]

METHODS: dict[str, Fit] = {
    "temperature": fit_temperature,
    "GP, rows less their mean": fit_gaussian_process,
    "GP, log-softmax": partial(fit_gaussian_process, centre="log_softmax"),
    "local temperature": fit_local_temperature,
}


def splits(n_splits: int = 40, n_fit: int = 5000) -> None:
    """Mean ECE, NLL and accuracy over random splits of the merged rows, with the standard error of
    the ECE.
    """
    default = Path(__file__).resolve().parents[3] / "shared" / "data"
    with np.load(
        Path(os.environ.get("METACAL_DATA", default)) / "cifar10_densenet40_paper.npz"
    ) as file:
        logits, labels = file["logits"], file["labels"].astype(np.int64)
    for name, fit in METHODS.items():
        found = []
        for seed in range(n_splits):
            order = np.random.default_rng(seed).permutation(len(labels))
            used, rest = order[:n_fit], order[n_fit:]
            fitted = fit(Rows(logits[used]), labels[used])
            proba = fitted(logits[rest])
            found.append(
                [
                    metrics.ece(proba, labels[rest], n_bins=15),
                    metrics.nll(proba, labels[rest]),
                    metrics.accuracy(proba, labels[rest]),
                    float(fitted.preserves_accuracy),
                ]
            )
        mean = np.mean(found, axis=0)
        error = np.std(found, axis=0, ddof=1)[0] / np.sqrt(n_splits)
        print(
            f"{name:26} ECE {mean[0]:.5f} ± {error:.5f}  NLL {mean[1]:.5f}  accuracy {mean[2]:.4f} "
            f" monotone {mean[3]:.2f}"
        )


def thousand(n_rows: int = 25_000, n_classes: int = 1_000) -> None:
    """CPU seconds and memory of fitting and applying, on logits that are twice too sure beyond a
    bend.
    """
    random = np.random.default_rng(0)
    logits = np.empty((n_rows, n_classes), dtype=np.float32)
    labels = np.empty(n_rows, dtype=np.intp)
    for start in range(0, n_rows, 500):
        block = random.standard_normal((500, n_classes), dtype=np.float32)
        shown = random.integers(n_classes, size=500)
        block[np.arange(500), shown] += random.gamma(6.0, 1.5, size=500)
        bent = np.where(block > 3.0, 3.0 + 0.5 * (block - 3.0), block)
        labels[start : start + 500] = (bent + random.gumbel(size=block.shape)).argmax(axis=1)
        logits[start : start + 500] = block
    megabytes = logits.nbytes / 1e6
    print(f"table {megabytes:.0f} MB, accuracy {np.mean(logits.argmax(axis=1) == labels):.3f}")
    base, clock = _peak(), time.process_time()
    fitted = fit_gaussian_process(Rows(logits), labels)
    print(
        f"fit: {time.process_time() - clock:.1f} s of CPU, memory +{_peak() - base:.0f} MB beyond"
        " the table"
    )
    clock = time.process_time()
    proba = fitted(logits)
    print(
        f"apply: {time.process_time() - clock:.1f} s of CPU, memory +{_peak() - base:.0f} MB,"
        " output included"
    )
    plain = fit_temperature(Rows(logits), labels)(logits)
    for name, table in (("softmax of logits / T", plain), ("GP", proba)):
        print(
            f"{name:22} ECE {metrics.ece(table, labels):.4f}  NLL {metrics.nll(table, labels):.4f}"
            " (same rows)"
        )
    print(f"smallest slope {fitted.smallest_slope:.3f}, whole process {_peak():.0f} MB at its peak")


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    {"splits": splits, "thousand": thousand}[sys.argv[1]]()
