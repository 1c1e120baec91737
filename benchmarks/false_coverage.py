"""PerClass with the false-coverage rate, beside "together" and "each": coverage, and how many
classes are broken.

    python -m benchmarks.false_coverage --data FOLDER [--jobs 16] [--out
    benchmarks/results/false-coverage.json]

Every `*.npz` file of a hundred classes is a truth of its own; calibration rows are drawn from it
with replacement. A class is broken in a draw where what is accepted of it is right less than beta
of the time. "best starts" is a ceiling, no rule: each class by itself at delta, from the one start
that accepts most of it on average, were the truth known. About 2 minutes on 16 cores.
"""

from __future__ import annotations

import argparse
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

import metacal as mc
from benchmarks.experiments.pool import in_order
from metacal.certificates.certificate import accept_up_to_threshold
from metacal.certification.rank_plan import RankPlan
from metacal.certification.rules.fixed_sequence import FixedSequenceRule
from metacal.certification.test_sequences import plan_rank_ranges
from metacal.gate.thresholds import get_certified_thresholds
from metacal.promises import Sample
from metacal.rows import Rows
from metacal.scores import score_rows

HERE = Path(__file__).resolve().parent
DELTA, DRAWS, SIZES, BETAS = 0.1, 100, (5000, 10_000, 20_000), (0.9, 0.95)
#: Errors that a start may allow, of which the best is taken for each class.
STARTS = (0, 1, 2, 3, 4, 6, 9)


def best_starts(sample: Sample, beta: float, scores: np.ndarray, top: np.ndarray) -> np.ndarray:
    """How many rows of each class every start accepts, at all of delta."""
    found = np.zeros((len(sample.names), len(STARTS)))
    assert sample.part is not None
    for k in sample.names:
        ranking, own = sample.rows.take(sample.part == k).ranking, scores[top == k]
        for s, start in enumerate(STARTS):
            plan = RankPlan(
                beta,
                rank_ranges=plan_rank_ranges(ranking.n_rows, beta, DELTA, ((start, Fraction(1)),)),
            )
            threshold = FixedSequenceRule().certify(ranking, plan, DELTA).threshold
            found[k, s] = 0.0 if threshold is None else accept_up_to_threshold(own, threshold).sum()
    return found


def measured(path: str, n: int, beta: float, shares: str) -> dict[str, Any]:
    """One rule on one file: means over the draws."""
    with np.load(path) as file:
        logits, labels = file["logits"], file["labels"]
    scores, top = score_rows(Rows(logits), "entropy"), logits.argmax(axis=1)
    correct, classes = top == labels, np.arange(logits.shape[1])
    rng, found, ceiling = (
        np.random.default_rng([n, int(100 * beta)]),
        np.zeros((DRAWS, 3)),
        shares == "best starts",
    )
    promise = mc.PerClass(mc.MinAccuracy(beta, DELTA), shares="each" if ceiling else shares)
    from_starts = np.zeros((len(classes), len(STARTS)))
    for i in range(DRAWS):
        rows = rng.integers(0, len(top), n)
        sample = Sample.of(scores[rows], correct[rows], part=top[rows], names=classes.tolist())
        if ceiling:
            from_starts += best_starts(sample, beta, scores, top)
            continue
        try:
            accept = accept_up_to_threshold(
                scores,
                get_certified_thresholds(promise.certify(sample), classes).get_row_thresholds(top),
            )
        except mc.InfeasibleTargetError:
            continue
        kept = np.bincount(top[accept], minlength=len(classes))
        broken = (
            np.bincount(top[accept & correct], minlength=len(classes)) < beta * kept - 1e-9
        ) & (kept > 0)
        found[i] = accept.mean(), broken.sum() / max(1, (kept > 0).sum()), broken.any()
    coverage, share, anyone = found.mean(axis=0).round(4).tolist()
    at = {"set": Path(path).stem, "n": n, "beta": beta, "shares": shares}
    if ceiling:
        return {**at, "coverage": round(float(from_starts.max(axis=1).sum()) / DRAWS / len(top), 4)}
    return {**at, "coverage": coverage, "broken_of_accepting": share, "any_broken": anyone}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "false-coverage.json")
    options = parser.parse_args()
    files = sorted(map(str, options.data.glob("cifar100*.npz")))
    kinds = ("together", "each", "fcr", "best starts")
    tasks = [
        (path, n, beta, shares)
        for path in files
        for n in SIZES
        for beta in BETAS
        for shares in kinds
    ]
    rows = list(in_order(measured, tasks, options.jobs))
    print(*rows, sep="\n")
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    head = f'"draws": {DRAWS}, "delta": {DELTA}'
    options.out.write_text("{" + head + ', "rows": [\n  ' + lines + "\n]}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
