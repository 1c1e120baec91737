"""Pack the logits trained for this project, and show that packing changes no metric.

    python -m benchmarks.data.pack ORIGINALS [--check]

ORIGINALS is the folder with the eight float32 files (`cifar10_resnet110.npz`, …). Two of them go
into the package, the others beside this script. `--check` writes nothing and prints the table only.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from benchmarks.packing import write_packed
from metacal.datasets.packing import read_packed

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "src" / "metacal" / "datasets"
IN_PACKAGE = ("cifar10_resnet110", "cifar100_resnet110")
BESIDE = (
    "cifar10_densenet40",
    "cifar10_resnet110sd",
    "cifar10_wrn32",
    "cifar100_densenet40",
    "cifar100_resnet110sd",
    "cifar100_wrn32",
)
SOURCE = "trained for metacal by the recipe of Ma & Blaschko (2021); see docs/data-card.md"
#: Two values are the same to the fourth digit when they differ by less than half of it.
TOLERANCE = 0.5e-4


def metrics(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return accuracy, negative log-likelihood, 15-bin ECE and best temperature, written out apart
    from the package.
    """
    table = logits.astype(np.float64)
    rows = np.arange(len(table))
    log_probabilities = log_softmax(table, axis=1)
    correct = table.argmax(axis=1) == labels
    confidence = np.exp(log_probabilities.max(axis=1))
    bins = np.clip(np.ceil(confidence * 15) - 1, 0, 14).astype(int)
    ece = np.abs(np.bincount(bins, correct - confidence, minlength=15)).sum() / len(table)

    def loss(log_temperature: float) -> float:
        return float(-log_softmax(table / np.exp(log_temperature), axis=1)[rows, labels].mean())

    best = minimize_scalar(loss, bounds=(-3, 3), method="bounded", options={"xatol": 1e-10})
    return np.array([correct.mean(), -log_probabilities[rows, labels].mean(), ece, np.exp(best.x)])


def top_ties(logits: NDArray[np.float32]) -> int:
    """Return in how many rows the largest logit is not alone."""
    largest = np.partition(logits, -2, axis=1)[:, -2:]
    return int((largest[:, 0] == largest[:, 1]).sum())


def pack_one(original: Path, folder: Path, *, check: bool) -> None:
    """Pack one file into `folder`, print its rows of the table, and stop if a metric moved."""
    with np.load(original, allow_pickle=False) as arrays:
        logits, labels = arrays["logits"], arrays["labels"].astype(np.int64)
        is_test = arrays["is_test"]
    packed = io.BytesIO()
    write_packed(packed, logits, labels, is_test, SOURCE)
    packed.seek(0)
    again, labels_again, is_test_again, _ = read_packed(packed)
    plain = logits.astype(np.float16).astype(np.float32)
    name = original.stem.replace("_", "-")
    before = metrics(logits, labels)
    for way, table in (("float32", logits), ("float16", plain), ("packed", again)):
        values = metrics(table, labels)
        size = {"float32": original.stat().st_size, "packed": packed.getbuffer().nbytes}.get(way, 0)
        moved = int((table.argmax(axis=1) != logits.argmax(axis=1)).sum())
        print(
            f"| {name} | {way} | " + " | ".join(f"{value:.6f}" for value in values),
            f" | {np.abs(values - before).max():.1e} | {top_ties(table)} | {moved} |"
            f" {f'{size:,}' if size else ''} |",
            sep="",
        )
    same = np.array_equal(labels, labels_again) and np.array_equal(is_test, is_test_again)
    if (
        not same
        or top_ties(again)
        or np.abs(metrics(again, labels_again) - before).max() >= TOLERANCE
    ):
        raise SystemExit(
            f"{name}: packing changes a metric in the fourth digit; nothing was written for it."
        )
    if not check:
        (folder / f"{name}.npz").write_bytes(packed.getvalue())


def main() -> None:
    """Pack all eight sets."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("originals", type=Path, help="folder with the eight float32 files")
    parser.add_argument("--check", action="store_true", help="print the table, write nothing")
    options = parser.parse_args()
    missing = [
        name for name in (*IN_PACKAGE, *BESIDE) if not (options.originals / f"{name}.npz").is_file()
    ]
    if missing:
        parser.error(f"{options.originals} lacks {', '.join(f'{name}.npz' for name in missing)}")
    print(
        "| set | stored as | accuracy | NLL | ECE | best T | largest change | ties at the top |"
        " argmax moved | bytes |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for names, folder in ((IN_PACKAGE, PACKAGE), (BESIDE, HERE)):
        for name in names:
            pack_one(options.originals / f"{name}.npz", folder, check=options.check)


if __name__ == "__main__":
    main()
