"""Is "about N rows would certify it in 4 of 5 cases" right in 4 of 5 cases? On eight sets of real logits.

    python -m benchmarks.rows_needed [--cases 400] [--out benchmarks/results/how-many-rows.json]

Rows are drawn with replacement from each set. With half of the rows that an accuracy takes in truth (found by trying),
many draws certify nothing; each of those names a number of rows, as many are drawn anew, and certified or not. Two
minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import metacal as mc
from metacal.datasets.packing import read_packed
from metacal.promises.rules.rows_needed import rows_needed
from metacal.promises.rules.sequence import last_passed
from metacal.promises.sample import Ranking
from metacal.scores import score_rows

HERE = Path(__file__).parent
#: Sets of rows, and the accuracy that is asked for.
POPULATIONS = {
    "cifar10-resnet110": 0.99,
    "cifar10-densenet40": 0.99,
    "cifar10-resnet110sd": 0.995,
    "cifar10-wrn32": 0.995,
    "cifar100-resnet110": 0.95,
    "cifar100-densenet40": 0.95,
    "cifar100-resnet110sd": 0.97,
    "cifar100-wrn32": 0.97,
}
DELTA = 0.1


def ranked(name: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Whether each row of a set is right, the surest first."""
    try:
        data = mc.datasets.load(name)
        logits, labels = data.logits, data.labels
    except mc.InputError:
        with (HERE / "data" / f"{name}.npz").open("rb") as file:
            logits, labels, *_ = read_packed(file)
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


def measured(name: str, n_cases: int) -> dict[str, float]:
    """One set."""
    right, beta, rng = ranked(name), POPULATIONS[name], np.random.default_rng(len(name))
    truly = taken(right, beta, rng)
    n = truly // 2
    said = [needed for needed, _ in zip(cases(right, n, beta, rng), range(n_cases))]
    named = [needed for needed in said if needed is not None]
    certified = [certifies(right, needed, beta, rng) for needed in named]
    return {
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
    parser.add_argument("--cases", type=int, default=400)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "how-many-rows.json")
    options = parser.parse_args()
    with ProcessPoolExecutor() as pool:
        found = dict(zip(POPULATIONS, pool.map(measured, POPULATIONS, [options.cases] * len(POPULATIONS))))
    options.out.write_text(
        json.dumps({"cases": options.cases, "populations": found}, indent=1) + "\n", encoding="utf-8"
    )
    print("\n".join(f"{name:22} {row}" for name, row in found.items()))


if __name__ == "__main__":
    main()
