"""Given scores that tie, labelled in sequence: what a Certifier certifies beside a fit with as many
labels.

    python -m benchmarks.ties_labels --data FOLDER [--draws 1000] [--jobs 16] [--out RESULT.json]

A judge's five marks, confidences with two decimals of three `*.npz` files, and the populations of
`benchmarks.ties` that are made to break a rule (beta = 0.9). A pool of the n rows that may be
labelled, or of four times as many, is drawn with replacement; labels come in blocks of a twentieth.
After every block the threshold that is certified by then is held against the truth: a draw counts
as broken if any of them ever was. `fit` is a `ScoreGate` on n rows of the pool, all labelled at
once. About 3 minutes on 16 cores.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import metacal as mc
from benchmarks.experiments.pool import in_order
from benchmarks.ties import ASKED, FIVE, HOSTILE, confidences, in_lines

RESULT = Path(__file__).resolve().parent / "results" / "ties-labels.json"
FILES = ("cifar10_resnet110", "cifar100_wrn32", "langid176_sentences")
#: The pool has so many times the rows that may be labelled.
POOLS = (1, 4)
BLOCKS = 20


def population(data: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The score of every row, higher = less sure, and the chance that it is right."""
    if name in FILES:
        score, right = confidences(data / f"{name}.npz", calibrated=False)
        return score.round(2), right.astype(float)
    mass, error = FIVE if name == "five marks" else HOSTILE[name]
    counts = np.round(np.array(mass) * 10_000).astype(int)
    return np.repeat(np.arange(len(mass), dtype=float), counts), np.repeat(
        1.0 - np.array(error), counts
    )


def labelled(certifier: mc.Certifier, right: np.ndarray) -> set[float]:
    """Every threshold that is certified after some block of labels."""
    found = set()
    while len(rows := certifier.propose(max(5, certifier.n_drawn // BLOCKS))):
        certifier.update(rows, right[rows])
        if certifier.threshold is not None:
            found.add(certifier.threshold)
    return found


def task(data: Path, name: str, n: int, beta: float, times: int, draws: int) -> dict[str, Any]:
    """One population, size and pool: coverage in sequence and at once, broken promises, and labels
    as a share.
    """
    score, chance = population(data, name)
    values, codes = np.unique(score, return_inverse=True)
    mass = np.cumsum(np.bincount(codes)) / len(score)
    bad = np.cumsum(np.bincount(codes, chance)) < (beta - 1e-12) * len(score) * mass
    sums = np.zeros(5)
    for draw in range(draws):
        rng = np.random.default_rng([draw, n, times, sum(map(ord, name))])
        rows = rng.integers(0, len(score), n * times)
        right = rng.random(len(rows)) < chance[rows]
        with warnings.catch_warnings(action="ignore"):
            certifier = mc.Certifier(
                mc.MinAccuracy(beta), score[rows], labels=n, random_state=draw, higher_is="doubtful"
            )
            ends = np.searchsorted(values, [-np.inf, *labelled(certifier, right)], side="right") - 1
            try:
                gate = mc.ScoreGate(mc.MinAccuracy(beta), higher_is="doubtful").fit(
                    score[rows[:n]], right[:n]
                )
                at_once = int(gate.accepts(values).sum()) - 1
            except mc.InfeasibleTargetError:
                at_once = -1
        shares, broken = np.append(mass, 0.0), np.append(bad, False)
        sums += (
            shares[ends.max()],
            shares[at_once],
            broken[ends].any(),
            broken[at_once],
            certifier.n_labels / n,
        )
    kept = np.flatnonzero(~bad)
    means = dict(
        zip(("coverage", "fit", "broken", "fit_broken", "labels"), (sums / draws).round(4).tolist())
    )
    oracle = round(float(mass[kept[-1]]), 4) if len(kept) else 0.0
    return {
        "population": name,
        "n": n,
        "beta": beta,
        "pool": n * times,
        "draws": draws,
        "oracle": oracle,
        **means,
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    cells = [(name, n, beta) for n, beta in ASKED for name in ("five marks", *FILES)]
    cells += [(name, 1000, 0.9) for name in HOSTILE]
    tasks = [(options.data, *cell, times, options.draws) for cell in cells for times in POOLS]
    records = list(in_order(task, tasks, options.jobs))
    print(*records, sep="\n")
    options.out.write_text(in_lines({"records": records}), encoding="utf-8")


if __name__ == "__main__":
    main()
