"""Offsets of more than two classes, and what a thousand classes cost: two questions about
calibrating many classes.

    python -m benchmarks.many_classes FOLDER [--draws 3] [--jobs 2] [-o
    benchmarks/results/many-classes.json]

*Offsets*: every .npz with `logits` and `labels` in the folder, as it is and long-tailed
(`quality.variants`: the last class keeps one row in twenty, in the rows to fit and in those to
measure alike, so the classifier's offsets are wrong). Temperature scaling, the default base,
`VectorScaling(penalty="offsets")` and `AutoCalibrator` on the same rows: log loss of up to 8,000
other rows, whether the marginal check fails there, CPU seconds of the fit.

*Thousand*: made logits of 1,000 classes, each with an offset of standard deviation ½ that the
classifier does not know; `AutoCalibrator` on 1,000 and on 5,000 rows, five draws of each.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import metacal as mc
from benchmarks.experiments.pool import in_order
from benchmarks.quality.variants import VARIANTS
from benchmarks.tables.markdown import number
from benchmarks.tables.markdown import table as markdown
from metacal import metrics

SIZES, MOST_TEST, FEWEST_TEST = (200, 500, 1000, 5000), 8000, 2000
MADE_SIZES, MADE_CLASSES, MADE_DRAWS, SPREAD = (1000, 5000), 1000, 5, 0.5
METHODS: dict[str, Callable[[], Any]] = {
    "temperature": mc.TemperatureScaling,
    "composed": mc.ComposedCalibration,
    "offsets": lambda: mc.VectorScaling(penalty="offsets"),
    "auto": mc.AutoCalibrator,
}
#: How the names of sets begin, and what they are.
KINDS = {"cifar": "CIFAR", "langid": "languages"}
Table = tuple[NDArray[Any], NDArray[Any]]


def measured(fit: Table, new: Table, names: tuple[str, ...]) -> dict[str, Any]:
    """Log loss, the marginal check and seconds of each method."""
    found: dict[str, Any] = {}
    for name in names:
        begun = time.process_time()
        with warnings.catch_warnings(action="ignore"):
            fitted = METHODS[name]().fit(*fit)
        seconds = time.process_time() - begun
        proba = fitted.predict_proba(new[0])
        check = metrics.marginal_check(proba, new[1])
        found[name] = {
            "nll": round(float(metrics.nll(proba, new[1])), 6),
            "off": round(float(check.gap), 6),
            "fails": bool(check.fails),
            "seconds": round(seconds, 4),
        }
    return found


def real(file: Path, variant: str, n: int, draw: int) -> dict[str, Any] | None:
    """One draw of n rows of a file; None where too few are left to measure on."""
    with np.load(file) as data:
        table, truth = data["logits"], data["labels"].reshape(-1).astype(np.int64)
    random = np.random.default_rng([2, list(VARIANTS).index(variant), n, draw])
    table, truth = VARIANTS[variant](table, truth, random)
    order = random.permutation(len(truth))
    fit, new = order[:n], order[n : n + MOST_TEST]
    if len(new) < FEWEST_TEST:
        return None
    about = {"set": file.stem, "variant": variant, "n": n, "draw": draw}
    return {**about, **measured((table[fit], truth[fit]), (table[new], truth[new]), tuple(METHODS))}


def made(n: int, draw: int) -> dict[str, Any]:
    """One draw of n made rows of a thousand classes."""
    random = np.random.default_rng([3, n, draw])
    table = random.normal(0.0, 1.0, (n + FEWEST_TEST, MADE_CLASSES)).astype(np.float32)
    lead = random.integers(MADE_CLASSES, size=len(table))
    table[np.arange(len(table)), lead] = np.log(MADE_CLASSES) + random.normal(2.0, 2.5, len(table))
    offsets = random.normal(0.0, SPREAD, MADE_CLASSES)
    truth = (table + offsets + random.gumbel(size=table.shape)).argmax(axis=1)
    table *= 1.5
    names = ("temperature", "auto")
    return {"n": n, "draw": draw, **measured((table[:n], truth[:n]), (table[n:], truth[n:]), names)}


def offsets(result: dict[str, Any]) -> list[str]:
    """The table of docs/calibrators-affine.md: means over the sets, and how often the marginal
    check fails.
    """
    lines = []
    for name, variant, n in product(KINDS, ("plain", "long-tailed"), SIZES):
        own = [row for row in result["offsets"] if (row["variant"], row["n"]) == (variant, n)]
        own = [row for row in own if row["set"].startswith(name)]
        if own:
            cells = []
            for method in METHODS:
                loss, failed = (
                    np.mean([row[method][key] for row in own]) for key in ("nll", "fails")
                )
                cells.append(f"{number(float(loss))} ({100 * failed:.0f}%)")
            seconds = [
                f"{np.mean([row[method]['seconds'] for row in own]):.2g}"
                for method in ("offsets", "auto")
            ]
            lines.append([f"{KINDS[name]}, {variant}", f"{n:,}", *cells, *seconds])
    head = ["rows", "n", *(f"`{name}`" for name in METHODS), "s: `offsets`", "`auto`"]
    return markdown(head, lines)


def thousand(result: dict[str, Any]) -> list[str]:
    """The table of docs/quality.md: seconds of each draw, and log loss beside temperature
    scaling's.
    """
    lines = []
    for n in MADE_SIZES:
        own = [row for row in result["thousand"] if row["n"] == n]
        seconds = [row["auto"]["seconds"] for row in own]
        losses = {
            name: np.array([row[name]["nll"] for row in own]) for name in ("auto", "temperature")
        }
        gap = losses["auto"] - losses["temperature"]
        error = float(gap.std(ddof=1) / len(own) ** 0.5)
        cells = [number(float(losses[name].mean())) for name in losses]
        spent = f"{np.mean(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})"
        lines.append([f"{n:,}", spent, *cells, f"{number(float(gap.mean()))} ± {number(error)}"])
    return markdown(["n", "seconds", "log loss, `auto`", "`temperature`", "difference"], lines)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("benchmarks/results/many-classes.json")
    )
    options = parser.parse_args()
    of_thousand = list(
        in_order(made, product(reversed(MADE_SIZES), range(MADE_DRAWS)), options.jobs)
    )
    tasks = product(sorted(options.folder.glob("*.npz")), ("plain", "long-tailed"), reversed(SIZES))
    found = in_order(
        real, ((*task, draw) for task in tasks for draw in range(options.draws)), options.jobs
    )
    parts = {"offsets": [row for row in found if row is not None], "thousand": of_thousand}
    text = ",\n".join(
        f' "{name}": [\n  ' + ",\n  ".join(map(json.dumps, rows)) + "\n ]"
        for name, rows in parts.items()
    )
    options.output.write_text("{\n" + text + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
