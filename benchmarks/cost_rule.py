"""A limit on costs, certified by betting, by Hoeffding-Bentkus and by counting every cost as a
whole; and the cheapest threshold, certified on all rows or on a part of them.

    python -m benchmarks.cost_rule --data FOLDER [--draws 60] [--out
    benchmarks/results/cost-rule.json]

Every `*.npz` file (`logits`, `labels`) in the folder is a truth of its own; calibration sets are
drawn from its rows with replacement. Tables of costs: of many sizes, of two sizes, mostly small and
rarely large. Coverage is given as a share of the oracle's, the largest part of the ranking that
costs at most the limit, and as that at most; how often a rule goes beyond, which delta of the draws
may, stands beside it. All rules walk the same ranks with the same shares of delta,
Hoeffding-Bentkus also from the earlier start of the exact tests.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
from scipy.special import bdtr, rel_entr

import metacal as mc
from benchmarks.experiments.pool import in_order
from metacal.certification.row_losses import Losses
from metacal.certification.rules.fixed_sequence import count_certified_rows
from metacal.certification.rules.loss_bets import (
    LossRanking,
    count_certified_loss_rows,
    plan_loss_ranks,
)
from metacal.certification.test_sequences import plan_rank_ranges
from metacal.promises import Sample
from metacal.rows import Rows
from metacal.scores import score_rows
from metacal.statistics import betting

#: Ten classes, a hundred, and languages that come unevenly.
SETS = ("cifar10_resnet110", "cifar100_resnet110", "langid176_sentences")
SIZES, LIMITS, DELTA = (300, 1000, 5000), (0.15, 0.3, 0.5, 0.85), 0.1
TABLES = ("many sizes", "two sizes", "rare and large")
WRONG_COSTS = (5.0, 20.0, 50.0)


def table_of_costs(n_classes: int, kind: str) -> np.ndarray:
    """Costs between 0 and 1 for each pair of classes, drawn with a fixed seed."""
    rng = np.random.default_rng(0)
    drawn = rng.random((n_classes, n_classes))
    costs = {
        "many sizes": drawn,
        "two sizes": np.where(drawn < 0.5, 1.0, 0.2),
        "rare and large": np.where(drawn < 0.05, 1.0, 0.02),
    }[kind]
    return costs * (1 - np.eye(n_classes)) / costs.max()


def hoeffding_bentkus(losses: np.ndarray, limit: float) -> float:
    """The p-value of "the mean is at least the limit" (Bates, Angelopoulos, Lei, Malik & Jordan
    2021).
    """
    n, mean = len(losses), float(losses.mean())
    if mean >= limit:
        return 1.0
    hoeffding = math.exp(-n * float(rel_entr(mean, limit) + rel_entr(1 - mean, 1 - limit)))
    return min(hoeffding, math.e * float(bdtr(math.ceil(n * mean - 1e-9), n, limit)))


def walked(steps: list[tuple[Fraction, list[int]]], passes: Callable[[int, float], bool]) -> int:
    """The highest rank that passes along a fixed sequence with fallback shares."""
    best, level = 0, Fraction(0)
    for share, ranks in steps:
        level += share
        for rank in ranks:
            if not passes(rank, float(level) * DELTA):
                level = Fraction(0)
                break
            best = rank
    return best


def early_rungs(n: int, limit: float) -> list[tuple[Fraction, list[int]]]:
    """The same with the first start of the exact tests."""
    step = max(1, n // 200)
    return [
        (part.level_fraction, list(range(part.start_rank, part.stop_rank, step)))
        for part in plan_rank_ranges(n, 1.0 - limit, DELTA)
    ]


def bentkus_rank(ranked: LossRanking, limit: float, steps: list[tuple[Fraction, list[int]]]) -> int:
    """The rank that Hoeffding-Bentkus certifies; ties do not matter here."""
    return walked(
        steps, lambda rank, level: hoeffding_bentkus(ranked.losses_by_rank[:rank], limit) <= level
    )


RULES: dict[str, Callable[[LossRanking, float], int]] = {
    "betting": lambda ranked, limit: count_certified_loss_rows(ranked, limit, DELTA),
    "Hoeffding-Bentkus": lambda ranked, limit: bentkus_rank(
        ranked, limit, plan_loss_ranks(ranked.error_ranking.n_rows, limit, DELTA)
    ),
    "Hoeffding-Bentkus, early": lambda ranked, limit: bentkus_rank(
        ranked, limit, early_rungs(ranked.error_ranking.n_rows, limit)
    ),
    "every cost a whole one": lambda ranked, limit: count_certified_rows(
        ranked.error_ranking, 1.0 - limit, DELTA
    ),
}


def columns(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Score, label and answer of every row, by rising score; the number of classes."""
    with np.load(path) as file:
        logits, labels = file["logits"], file["labels"].astype(int)
    scores = score_rows(Rows(logits), "entropy")
    order = np.argsort(scores, kind="stable")
    return scores[order], labels[order], logits.argmax(axis=1)[order], logits.shape[1]


def measure_limits(path: Path, draws: int) -> list[dict[str, object]]:
    """One record for each table, limit and size: share of the oracle's coverage, share of broken
    promises, by rule.
    """
    scores, labels, answers, n_classes = columns(path)
    records: list[dict[str, object]] = []
    for kind in TABLES:
        costs = table_of_costs(n_classes, kind)[labels, answers]
        means = np.cumsum(costs) / np.arange(1, len(costs) + 1)
        for part in LIMITS:
            limit = float(f"{part * means[-1]:.4g}")
            oracle = int(np.flatnonzero(means <= limit)[-1]) + 1
            for n in SIZES:
                rng, found = np.random.default_rng(n), np.zeros((len(RULES), draws, 2))
                for i in range(draws if n < 5000 else max(1, draws // 3)):
                    rows = rng.integers(0, len(scores), n)
                    ranked = LossRanking.from_scores(scores[rows], costs[rows], i)
                    for j, rule in enumerate(RULES.values()):
                        rank = rule(ranked, limit)
                        threshold = (
                            ranked.error_ranking.largest_threshold_accepting_exactly(rank)
                            if rank
                            else -math.inf
                        )
                        accepted = int(np.searchsorted(scores, threshold, side="right"))
                        broken = accepted > 0 and means[accepted - 1] > limit
                        found[j, i] = min(1.0, accepted / oracle), broken
                used = found[:, : i + 1].mean(axis=1)
                by_rule = {
                    name: [round(float(x), 4) for x in used[j]] for j, name in enumerate(RULES)
                }
                about = {
                    "set": path.stem,
                    "table": kind,
                    "limit": limit,
                    "oracle": round(oracle / len(scores), 4),
                    "n": n,
                }
                records.append({**about, "draws": i + 1, "coverage and broken": by_rule})
    return records


def split_bound(scores: np.ndarray, wrong: np.ndarray, cost: float) -> tuple[float, float]:
    """Choose the threshold on the first third of the rows and bound what it costs on the rest, by
    betting.
    """
    first = len(scores) // 3
    order = np.argsort(scores[:first])
    spent = np.concatenate(([0.0], np.cumsum(cost * wrong[:first][order] - 1.0)))
    best = int(np.argmin(spent))
    threshold = float(scores[:first][order][best - 1]) if best else -math.inf
    rest = np.where(scores[first:] <= threshold, cost * wrong[first:], 1.0) / cost
    return threshold, cost * betting.mean_upper_bound(rest, DELTA, 0.5 / cost)


def measure_cheapest(path: Path, draws: int) -> list[dict[str, object]]:
    """Cost at the chosen threshold and its certified bound, as multiples of the least cost; reviews
    cost 1.
    """
    scores, labels, answers, _ = columns(path)
    wrong, records = labels != answers, []
    n_all = len(scores)
    for cost in WRONG_COSTS:
        per_row = (np.concatenate(([0.0], np.cumsum(cost * wrong - 1.0))) + n_all) / n_all
        promise = mc.Cheapest(cost, 1.0, DELTA)
        for n in SIZES:
            rng, found = np.random.default_rng(n), np.zeros((2, draws, 3))
            for i in range(draws):
                rows = rng.integers(0, n_all, n)
                own = np.where(wrong[rows], cost, 0.0)
                certificate = promise.certify(
                    Sample.of(scores[rows], ~wrong[rows], losses=Losses(own, 1.0, cost, False))
                )
                pairs = (
                    (certificate.threshold, certificate.target),
                    split_bound(scores[rows], wrong[rows], cost),
                )
                for j, (threshold, bound) in enumerate(pairs):
                    true = per_row[np.searchsorted(scores, threshold, side="right")]
                    found[j, i] = true / per_row.min(), bound / per_row.min(), true > bound
            for name, values in zip(("all rows", "a third chooses"), found.mean(axis=1)):
                shown = [round(float(x), 4) for x in values]
                records.append(
                    {
                        "set": path.stem,
                        "wrong": cost,
                        "n": n,
                        "rule": name,
                        "cost, bound, broken": shown,
                    }
                )
    return records


def measured(
    measure: Callable[..., list[dict[str, object]]], path: Path, draws: int
) -> list[dict[str, object]]:
    """One of the two measurements of a file."""
    return measure(path, draws)


def averaged(records: list[dict[str, object]]) -> dict[str, dict[str, list[float]]]:
    """Mean coverage and mean share of broken promises, by size and rule."""
    found: dict[str, dict[str, list[float]]] = {}
    for n in SIZES:
        of_size = [record["coverage and broken"] for record in records if record["n"] == n]
        values = {name: np.array([record[name] for record in of_size]) for name in RULES}  # type: ignore[index]
        found[str(n)] = {
            name: [round(x, 4) for x in (v[:, 0].mean(), v[:, 1].mean())]
            for name, v in values.items()
        }
    return found


def main() -> None:
    """Measure every set and write the records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=60)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "cost-rule.json"
    )
    options = parser.parse_args()
    paths = [options.data / f"{name}.npz" for name in options.sets]
    tasks = [
        (measure, path, options.draws)
        for measure in (measure_limits, measure_cheapest)
        for path in paths
    ]
    found = list(in_order(measured, tasks, options.jobs))
    limits = [record for records in found[: len(paths)] for record in records]
    cheapest = [record for records in found[len(paths) :] for record in records]
    answer = {
        "delta": DELTA,
        "limits": averaged(limits),
        "limit records": limits,
        "cheapest": cheapest,
    }
    options.out.write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(answer["limits"], indent=1))


if __name__ == "__main__":
    main()
