"""Does a learned ranking certify more than entropy, which needs no rows to learn from?

    python -m benchmarks.rankers [--splits 40] [--jobs 2] [--out benchmarks/results/rankers.json]

5,000 labelled rows of each set that comes with the project, the other 10,000 to measure; random
splits. Entropy certifies with all 5,000; a ranker learns from 1,000 of them and certifies with
4,000. Accuracy at least .97 (CIFAR-10) or .87 (CIFAR-100), delta = .1. Of each ranker the
difference to entropy on the same split, with its standard error.

The paper expects that a learned ranker "has a lower Type II error, thus [...] the worst-case
estimation of expected calibration error can be improved". So the Type II error (incorrect rows that
are accepted) is measured twice: by the threshold that rejects 5% of the correct test rows, and by
Meta-Cal with the paper's own rule for a miscoverage of .05; for the latter also the ECE of all
rows, of the accepted rows, and the largest over all binnings.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import metacal as mc
from benchmarks.experiments.pool import in_order
from metacal import metrics
from metacal.certificates.certificate import accept_up_to_threshold
from metacal.scores import score_rows
from metacal.scores.learned import (
    LogisticRanker,
    LogitsAndLabels,
    PairwiseRanker,
    Ranker,
    split_rows,
)

RESULTS = Path(__file__).parent / "results" / "rankers.json"
DATA = Path(__file__).parent / "data"
ALPHA = 0.05
RANKERS: dict[str, type[Ranker]] = {"logistic": LogisticRanker, "pairwise": PairwiseRanker}
#: What is measured of each score.
KEYS = (
    "coverage",
    "auroc",
    "aurc",
    "missed",
    "type_2_at_alpha",
    "type_1",
    "type_2",
    "ece",
    "ece_accepted",
    "sup_ece",
)

Table = NDArray[Any]
Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Codes = NDArray[np.int64]
Score = Callable[[Table], Array]


def one_split(data: str, seed: int) -> dict[str, list[float]]:
    """Measure each score on one random split.

    Parameters
    ----------
    data : str
        Name of a data set of the project.
    seed : int
        Which split.

    Returns
    -------
    dict
        Score -> its numbers in the order of `KEYS`, all of them measured on the 10,000 test rows.
    """
    beta = 0.87 if data.startswith("cifar100") else 0.97
    whole = mc.datasets.load(data, folder=None if data in mc.datasets.names() else DATA)
    fit_rows, (test_logits, test_labels) = whole.split(5000, random_state=seed)
    train_rows, other_rows = split_rows(*fit_rows, 0.2, random_state=seed)
    candidates: dict[str, tuple[Score, LogitsAndLabels]] = {"entropy": (entropy, fit_rows)}
    for name, kind in RANKERS.items():
        candidates[name] = kind().fit(*train_rows), other_rows
    is_correct = test_logits.argmax(axis=1) == test_labels
    found = {}
    for name, (score, (logits, labels)) in candidates.items():
        test_scores = score(test_logits)
        certificate = mc.MinAccuracy(beta).certify(score(logits), logits.argmax(axis=1) == labels)
        accept = accept_up_to_threshold(test_scores, certificate.threshold)
        gate = mc.MetaCal(
            mc.paper.MaxMiscoverage(ALPHA, random_state=seed), mc.TemperatureScaling(), score=score
        )
        found[name] = [
            float(accept.mean()),
            float(metrics.auroc(test_scores, is_correct)),
            float(metrics.aurc(test_scores, is_correct)),
            float(is_correct[accept].mean() < beta),
            type_2_error(test_scores, is_correct, ALPHA),
            *meta_cal_errors(gate.fit(logits, labels), test_logits, test_labels),
        ]
    return found


def entropy(logits: Table) -> Array:
    """Score rows by the entropy of their softmax."""
    return np.asarray(score_rows(mc.Rows(logits), "entropy"))


def type_2_error(scores: Array, is_correct: Flags, alpha: float) -> float:
    """Compute the share of incorrect rows accepted by the threshold that rejects alpha of the
    correct ones.

    The threshold is the one of the test rows themselves, so that the Type I error of all scores is
    the same and only the ranking counts.

    Examples
    --------
    >>> type_2_error(np.array([1.0, 2.0, 3.0, 4.0]), np.array([True, True, False, False]), 0.5)
    0.0
    """
    correct_scores = np.sort(scores[is_correct])
    n_rejected = int(alpha * len(correct_scores))
    threshold = correct_scores[len(correct_scores) - 1 - n_rejected]
    return float((scores[~is_correct] <= threshold).mean())


def meta_cal_errors(gate: Any, logits: Table, labels: Codes) -> list[float]:
    """Compute the Type I and II errors of a gate, and its ECE: of all rows, of the accepted ones,
    the worst case.
    """
    accept = gate.accepts(logits)
    is_correct = logits.argmax(axis=1) == labels
    top = metrics.top_label(gate.predict_proba(logits, rejected="uniform"), labels)
    return [
        float((~accept)[is_correct].mean()),
        float(accept[~is_correct].mean()),
        float(metrics.ece(*top)),
        float(metrics.ece(top.confidence[accept], top.correct[accept])),
        float(metrics.sup_ece(*top)),
    ]


def summary(data: str, found: list[dict[str, list[float]]]) -> dict[str, Any]:
    """Average over the splits: entropy's numbers, the others' differences to entropy with their
    standard errors.
    """
    table = {name: np.array([one[name] for one in found]) for name in found[0]}
    answer: dict[str, Any] = {
        "set": data,
        "entropy": dict(zip(KEYS, _rounded(table["entropy"].mean(axis=0)))),
    }
    for name in RANKERS:
        difference = table[name] - table["entropy"]
        errors = difference.std(axis=0, ddof=1) / np.sqrt(len(difference))
        answer[name] = dict(zip(KEYS, _rounded(difference.mean(axis=0))))
        answer[name]["errors"] = dict(zip(KEYS, _rounded(errors)))
        del answer[name]["errors"]["missed"]
    return answer


def _rounded(values: Any) -> list[float]:
    return [round(float(value), 5) for value in values]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--splits", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    sets = [*mc.datasets.names(), *mc.datasets.names(folder=DATA)]
    tasks = [(data, seed) for data in sets for seed in range(options.splits)]
    found = list(in_order(one_split, tasks, options.jobs))
    rows = [
        summary(data, found[k * options.splits : (k + 1) * options.splits])
        for k, data in enumerate(sets)
    ]
    options.out.write_text(
        json.dumps({"splits": options.splits, "rows": rows}, indent=1) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
