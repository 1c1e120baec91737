"""Does a learned ranking certify more than entropy, which needs no rows to learn from?

    python -m benchmarks.rankers [--splits 20] [--jobs 2] [--out benchmarks/results/rankers.json]

5,000 labelled rows of each set that comes with the project, the other 10,000 to measure; random splits. Entropy
certifies with all 5,000; a ranker learns from 1,000 of them and certifies with 4,000. Accuracy at least .97 (CIFAR-10)
or .87 (CIFAR-100), delta = .1. Of each ranker the difference to entropy on the same split, with its standard error.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import metacal as mc
from benchmarks.experiments.pool import in_order
from metacal import metrics
from metacal.promises.certificate import accepts
from metacal.scores import score_rows
from metacal.scores.learned import LogisticRanker, PairwiseRanker, split_rows

RESULTS = Path(__file__).parent / "results" / "rankers.json"
DATA = Path(__file__).parent / "data"
RANKERS = {"logistic": LogisticRanker, "pairwise": PairwiseRanker}


def one_split(data: str, seed: int) -> dict[str, list[float]]:
    """Coverage, AUROC and AURC of each score, and whether the accepted test rows miss the target."""
    beta = 0.87 if data.startswith("cifar100") else 0.97
    whole = mc.datasets.load(data, folder=None if data in mc.datasets.names() else DATA)
    (x, y), (new_x, new_y) = whole.split(5000, random_state=seed)
    (train_x, train_y), (rest_x, rest_y) = split_rows(x, y, 0.2, random_state=seed)
    scores: dict[str, tuple[Any, Any, Any]] = {
        "entropy": (score_rows(mc.Rows(x), "entropy"), x.argmax(axis=1) == y, score_rows(mc.Rows(new_x), "entropy"))
    }
    for name, kind in RANKERS.items():
        ranker = kind().fit(train_x, train_y)
        scores[name] = ranker(rest_x), rest_x.argmax(axis=1) == rest_y, ranker(new_x)
    right = new_x.argmax(axis=1) == new_y
    found = {}
    for name, (score, correct, new) in scores.items():
        accept = accepts(new, mc.MinAccuracy(beta).certify(score, correct).threshold)
        found[name] = [
            float(accept.mean()),
            float(metrics.auroc(new, right)),
            float(metrics.aurc(new, right)),
            float(right[accept].mean() < beta),
        ]
    return found


def summary(data: str, found: list[dict[str, list[float]]]) -> dict[str, Any]:
    """Entropy's means, the others' differences to it, standard errors of these."""
    table = {name: np.array([one[name] for one in found]) for name in found[0]}
    keys = ("coverage", "auroc", "aurc", "missed")
    answer: dict[str, Any] = {"set": data, "entropy": dict(zip(keys, _rounded(table["entropy"].mean(axis=0))))}
    for name in RANKERS:
        apart = table[name] - table["entropy"]
        errors = apart.std(axis=0, ddof=1) / np.sqrt(len(apart))
        answer[name] = dict(zip(keys, _rounded(apart.mean(axis=0))))
        answer[name]["errors"] = dict(zip(keys[:3], _rounded(errors[:3])))
    return answer


def _rounded(values: Any) -> list[float]:
    return [round(float(value), 5) for value in values]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    sets = [*mc.datasets.names(), *mc.datasets.names(folder=DATA)]
    tasks = [(data, seed) for data in sets for seed in range(options.splits)]
    found = list(in_order(one_split, tasks, options.jobs))
    rows = [summary(data, found[k * options.splits : (k + 1) * options.splits]) for k, data in enumerate(sets)]
    options.out.write_text(json.dumps({"splits": options.splits, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
