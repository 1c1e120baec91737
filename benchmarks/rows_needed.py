"""Is "about N rows would certify it in 4 of 5 cases" right in 4 of 5 cases? On sets of real logits.

    python -m benchmarks.rows_needed --data FOLDER [--cases 300] [--jobs 16] [--out FILE]

Rows are drawn with replacement from each set. With a third and with half of the rows that an accuracy takes in truth
(found by trying), many draws certify nothing; each of those names a number of rows, as many are drawn anew, and
certified or not. `tuned` are the eight populations on which the constants of `promises.rules.rows_needed` were chosen,
`unseen` eight others: other sets (in FOLDER), and other accuracies. About a minute on 16 cores.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import metacal as mc
from benchmarks.experiments.pool import in_order
from metacal.promises.rules.rows_needed import rows_needed
from metacal.promises.rules.sequence import last_passed
from metacal.promises.sample import Ranking
from metacal.scores import score_rows

HERE = Path(__file__).parent
#: Sets of rows and the accuracy that is asked for: those that the constants were chosen on, and others.
TUNED = (
    ("cifar10-resnet110", 0.99),
    ("cifar10-densenet40", 0.99),
    ("cifar10-resnet110sd", 0.995),
    ("cifar10-wrn32", 0.995),
    ("cifar100-resnet110", 0.95),
    ("cifar100-densenet40", 0.95),
    ("cifar100-resnet110sd", 0.97),
    ("cifar100-wrn32", 0.97),
)
UNSEEN = (
    ("langid176_sentences", 0.98),
    ("cifar10_densenet40_paper", 0.98),
    ("cifar100_resnet110_mit", 0.9),
    ("cifar10-resnet110sd", 0.99),
    ("cifar10-wrn32", 0.98),
    ("cifar100-resnet110", 0.9),
    ("cifar100-densenet40", 0.97),
    ("cifar100-resnet110sd", 0.95),
)
STARTS = {"a third": 1 / 3, "half": 1 / 2}
DELTA = 0.1


def ranked(name: str, folder: Path) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether each row of a set is right, the surest first."""
    if "_" in name:
        with np.load(folder / f"{name}.npz") as file:
            logits, labels = file["logits"], file["labels"]
    else:
        own = name in mc.datasets.names()
        data = mc.datasets.load(name, folder=None if own else HERE / "data")
        logits, labels = data.logits, data.labels
    order = np.argsort(score_rows(mc.Rows(np.asarray(logits, dtype=np.float32)), "entropy"), kind="stable")
    return (logits.argmax(axis=1) == labels)[order]


def drawn(right: Any, n: int, rng: np.random.Generator) -> Ranking:
    """Rows of the set, without ties."""
    return Ranking.of(np.arange(float(n)), right[np.sort(rng.integers(len(right), size=n))])


def certifies(right: Any, n: int, beta: float, rng: np.random.Generator) -> bool:
    """Whether n rows certify anything."""
    return last_passed(drawn(right, n, rng), beta, DELTA) > 0


def taken(right: Any, beta: float, rng: np.random.Generator) -> int:
    """How many rows certify the target in 4 of 5 cases, to an eighth of a doubling."""
    for step in range(40, 160):
        n = round(2 ** (step / 8))
        if np.mean([certifies(right, n, beta, rng) for _ in range(150)]) >= 0.8:
            return n
    raise AssertionError("no number of rows")


def cases(right: Any, n: int, beta: float, rng: np.random.Generator) -> Iterator[int | None]:
    """What is said by draws of n rows that certify nothing."""
    promise = mc.MinAccuracy(beta, DELTA)
    while True:
        sample = drawn(right, n, rng)
        if last_passed(sample, beta, DELTA) == 0:
            yield rows_needed(sample, promise.plan)


def measured(name: str, beta: float, start: float, n_cases: int, folder: Path) -> dict[str, Any]:
    """One population, from one number of rows."""
    right, rng = ranked(name, folder), np.random.default_rng([len(name), round(1000 * beta)])
    truly = taken(right, beta, rng)
    n = round(truly * start)
    said = [needed for needed, _ in zip(cases(right, n, beta, rng), range(n_cases))]
    named = [needed for needed in said if needed is not None]
    certified = [certifies(right, needed, beta, rng) for needed in named]
    return {
        "set": name,
        "accuracy": beta,
        "rows": n,
        "truly_needed": truly,
        "none_named": round(1 - len(named) / n_cases, 4),
        "median_named": float(np.median(named)),
        "certified": round(float(np.mean(certified)), 4),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "how-many-rows.json")
    options = parser.parse_args()
    groups = {"tuned": TUNED, "unseen": UNSEEN}
    where = [(group, words, *one) for group, found in groups.items() for words in STARTS for one in found]
    tasks = [(name, beta, STARTS[words], options.cases, options.data) for _, words, name, beta in where]
    rows = list(in_order(measured, tasks, options.jobs))
    result: dict[str, Any] = {"cases": options.cases}
    for (group, words, *_), row in zip(where, rows):
        result.setdefault(group, {}).setdefault(words, []).append(row)
        print(f"{group} {words:8} {row}")
    for group in groups:
        shares = [row["certified"] for words in STARTS for row in result[group][words]]
        inside = sum(0.75 <= share <= 0.85 for share in shares)
        result[f"{group}, in all"] = {
            "populations": len(groups[group]),
            "starts": len(STARTS),
            "mean": round(float(np.mean(shares)), 4),
            "lowest": min(shares),
            "highest": max(shares),
            "within .05": inside,
        }
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
