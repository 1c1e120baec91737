"""Does `MetaCal` as it comes ever make the accepted rows' probabilities worse than no calibration
at all?

    python -m benchmarks.default_base FOLDER ... [--splits 3] [-o
    benchmarks/results/default-base.json]

Every .npz with `logits` and `labels` in the folders, each as it is and with four things wrong
(`quality_variants`); 500, 1,000 and 5,000 rows to fit on, the others to measure on. Two gates: at
most 10% of the correct predictions rejected, and an accuracy halfway between the classifier's own and
one, where that can be certified. Accepted rows: ECE with 15 bins, log loss, their differences to
the softmax of the logits, and the standard errors of these.

Beside the ECE, two that say how low it can be: `ece_floor`, of the same confidences with labels
drawn from them, so of a map that is right; and `ece_line`, of somebody who knows the curve from
confidence to accuracy (from the rows that are measured on) but for a straight line in the log-odds,
and has that line from the n rows.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

import metacal as mc
from benchmarks.quality.variants import VARIANTS
from metacal import metrics
from metacal.errors import InfeasibleTargetError
from metacal.maps.averaged_spline import fit_averaged_spline
from metacal.maps.spline import confidence_log_odds
from metacal.maps.temperature import TemperatureMap
from metacal.metrics import top_label

SIZES = (500, 1000, 5000)
FEWEST, RESAMPLES, DRAWS = 500, 50, 10
#: A set of logits and labels.
Table = tuple[NDArray[Any], NDArray[Any]]


def measured(gate: mc.MetaCal, fit: Table, new: Table) -> dict[str, Any] | None:
    """ECE and log loss of the accepted rows, with and without, and the differences with their
    standard errors.
    """
    accept = gate.accepts(new[0])
    if accept.sum() < FEWEST:
        return None
    known = all_but_a_line(gate, fit, new)[accept]
    logits, labels = new[0][accept], new[1][accept]
    tables = gate.predict_proba(logits), TemperatureMap(1.0)(logits)
    own = np.arange(len(labels)), labels
    losses = [-np.log(np.maximum(table[own], 1e-12)) for table in tables]
    tops = [top_label(table, labels) for table in tables]
    difference = losses[0] - losses[1]
    ece = [float(metrics.ece(*top)) for top in tops]
    random, draws = np.random.default_rng(0), []
    for _ in range(RESAMPLES if ece[0] > ece[1] else 0):  # how much better it is needs no error
        rows = random.integers(len(labels), size=len(labels))
        drawn = [float(metrics.ece(top.confidence[rows], top.correct[rows])) for top in tops]
        draws.append(drawn[0] - drawn[1])
    drawn = [random.random(len(labels)) < tops[0].confidence for _ in range(DRAWS)]
    return {
        "ece": ece[0],
        "ece_floor": float(
            np.mean([metrics.ece(tops[0].confidence, right.astype(float)) for right in drawn])
        ),
        "ece_line": float(metrics.ece(known, tops[0].correct)),
        "ece_plain": ece[1],
        "ece_error": float(np.std(draws)) if draws else 0.0,
        "nll": float(losses[0].mean()),
        "nll_plain": float(losses[1].mean()),
        "nll_error": float(difference.std() / math.sqrt(len(difference))),
        "gave_way": any("not calibrated." in str(note) for note in gate.certificate_.notes),
        "said": any("does not help" in str(note) for note in gate.certificate_.notes),
    }


def all_but_a_line(gate: mc.MetaCal, fit: Table, new: Table) -> NDArray[Any]:
    """The confidence of each new row by the curve of the new rows, after a line in log-odds that
    `fit` says.
    """
    front = gate.gate_.source.map.first
    (z, right), (new_z, new_right) = (
        (
            confidence_log_odds(np.log(front(logits))),
            (logits.argmax(axis=1) == labels).astype(float),
        )
        for logits, labels in (fit, new)
    )
    curve = fit_averaged_spline(new_z, new_right, None, n_knots=12).curve
    line, own = np.array([0.0, 1.0]), np.stack([np.ones(len(z)), curve.value(z)])
    for _ in range(30):
        chance = expit(line @ own)
        curvature = (own * chance * (1.0 - chance)) @ own.T + 1e-6 * np.eye(2)
        line = line + np.linalg.solve(curvature, own @ (right - chance))
    return np.asarray(expit(line[0] + line[1] * curve.value(new_z)))


def of_task(
    logits: NDArray[Any], labels: NDArray[Any], n: int, random: np.random.Generator
) -> dict[str, Any]:
    """Both gates fitted on n rows and measured on the others."""
    order = random.permutation(len(labels))
    fit, new = order[:n], order[n:]
    beta = 0.5 * (1.0 + float((logits[fit].argmax(axis=1) == labels[fit]).mean()))
    found: dict[str, Any] = {}
    for name, promise in (
        ("miscoverage", mc.MaxMiscoverage(0.1)),
        ("accuracy", mc.MinAccuracy(beta)),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                gate = mc.MetaCal(promise).fit(logits[fit], labels[fit])
            except InfeasibleTargetError:
                continue
            answer = measured(gate, (logits[fit], labels[fit]), (logits[new], labels[new]))
        if answer is not None:
            found[name] = {
                key: value if isinstance(value, bool) else round(value, 6)
                for key, value in answer.items()
            }
    return found


def of_file(file: Path, splits: int) -> list[dict[str, Any]]:
    """Every task of one file."""
    with np.load(file) as data:
        table, truth = data["logits"], data["labels"].astype(np.int64)
    rows = []
    for (at, (variant, made)), n, split in product(
        enumerate(VARIANTS.items()), SIZES, range(splits)
    ):
        random = np.random.default_rng([1, at, n, split])
        logits, labels = made(table, truth, random)
        if len(labels) < n + FEWEST:
            continue
        task = {"set": file.stem, "variant": variant, "n": n, "split": split}
        answers = of_task(np.ascontiguousarray(logits), labels, n, random)
        rows += [{**task, "gate": gate, **answer} for gate, answer in answers.items()]
    return rows


def main() -> None:
    """Run every task, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("benchmarks/results/default-base.json")
    )
    arguments = parser.parse_args()
    files = sorted(path for folder in arguments.folders for path in folder.glob("*.npz"))
    with ProcessPoolExecutor(arguments.jobs) as pool:
        rows = [
            row for own in pool.map(of_file, files, [arguments.splits] * len(files)) for row in own
        ]
    lines = ",\n".join(f"    {json.dumps(row)}" for row in rows)
    arguments.output.write_text(
        f'{{\n  "format": 1,\n  "rows": [\n{lines}\n  ]\n}}\n', encoding="utf-8"
    )


if __name__ == "__main__":
    main()
