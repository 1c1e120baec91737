"""How far off is the named number of rows, on real sets that played no part in choosing its
constants?

    python -m benchmarks.rows_needed_unseen --data FOLDER [--cases 100] [--jobs 16] [--out FILE]

For each set and accuracy, the number of rows that certifies in 4 of 5 draws is found by trying
("truly needed"). Samples of a third and of half of that number are drawn. Each sample that
certifies nothing names a number of rows. The result holds the named number divided by the number
truly needed, and how often so many new rows certify the accuracy.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.experiments.pool import in_order
from benchmarks.rows_needed import DELTA, STARTS, Right, certifies, failed, ranked
from metacal.certification.rows_needed import estimate_rows_needed
from metacal.certification.rules.accuracy_shortfall import plan_starting_tests

HERE = Path(__file__).resolve().parent
#: Sets and accuracies. In the two matching sets, correct rows are rare.
CASES: tuple[tuple[str, float], ...] = (
    ("cifar10_resnet110_paper", 0.98),
    ("cifar10_resnet110_paper", 0.99),
    ("imagenet5000_efficientnet_lite0", 0.9),
    ("imagenet5000_efficientnet_lite0", 0.95),
    ("mmlu_two_models, small", 0.8),
    ("mmlu_two_models, large", 0.9),
    ("redaction_btc", 0.98),
    ("redaction_btc", 0.99),
    ("receipt_fields", 0.9),
    ("matching_abt_buy", 0.5),
    ("matching_amazon_google", 0.4),
)
#: The number of rows truly needed is looked for between these powers of two, in steps of a quarter.
SMALLEST_POWER, LARGEST_POWER = 5.0, 14.0
TRIES = 200


def ordered(name: str, folder: Path) -> Right:
    """Return whether each row is correct, the surest row first; tied rows stand in random order."""
    if name.startswith(("cifar", "imagenet")):
        return ranked(name, folder)
    file_name, _, model = name.partition(", ")
    with np.load(folder / f"{file_name}.npz") as file:
        score = file["score"].astype(np.float64).reshape(-1)
        if file_name == "redaction_btc":
            correct = (score > 0) == file["gold"].astype(np.bool_).reshape(-1)
            score = np.abs(score)
        else:
            correct = file[f"correct_{model}" if model else "correct"].astype(np.bool_).reshape(-1)
    has_score = ~np.isnan(score)
    score, correct = score[has_score], correct[has_score]
    tie_breaker = np.random.default_rng(0).random(len(score))
    return np.asarray(correct[np.lexsort((tie_breaker, -score))])


def truly_needed(correct: Right, beta: float, random: np.random.Generator) -> int | None:
    """Find how many rows certify an accuracy in 4 of 5 draws; None if no number that is tried
    does.
    """
    for power in np.arange(SMALLEST_POWER, LARGEST_POWER, 0.25):
        n_rows = round(2**power)
        if np.mean([certifies(correct, n_rows, beta, random) for _ in range(TRIES)]) >= 0.8:
            return n_rows
    return None


def measured(name: str, beta: float, correct: Right, n_cases: int) -> list[dict[str, Any]]:
    """Measure one set at one accuracy, from a third and from half of the rows truly needed."""
    random = np.random.default_rng([*name.encode(), round(1000 * beta)])
    needed = truly_needed(correct, beta, random)
    if needed is None:
        return [{"set": name, "accuracy": beta, "truly_needed": None}]
    rows = []
    for start, share in STARTS.items():
        n_rows = round(needed * share)
        samples = failed(correct, n_rows, beta, random)
        plan = partial(plan_starting_tests, limit=beta, significance_level=DELTA)
        found = [estimate_rows_needed(next(samples), plan) for _ in range(n_cases)]
        named = [number for number in found if number is not None]
        certified = [certifies(correct, number, beta, random) for number in named]
        rows.append(
            {
                "set": name,
                "accuracy": beta,
                "truly_needed": needed,
                "from": start,
                "rows": n_rows,
                "none_named": round(1.0 - len(named) / n_cases, 4),
                "ratios": [round(number / needed, 3) for number in named],
                "certified": round(float(np.mean(certified)), 4),
            }
        )
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Pool the ratios of all sets, each with equal weight."""
    found = [row for row in rows if row["truly_needed"] is not None]
    weights = np.concatenate(
        [np.full(len(row["ratios"]), 1.0 / len(row["ratios"])) for row in found]
    )
    ratios = np.concatenate([row["ratios"] for row in found])
    order = np.argsort(ratios)
    shares = np.cumsum(weights[order]) / weights.sum()
    quantiles = {
        str(q): float(ratios[order][np.searchsorted(shares, q)])
        for q in (0.05, 0.1, 0.5, 0.9, 0.95)
    }
    certified = [row["certified"] for row in found]
    within = {
        str(factor): round(
            float(weights[(ratios >= 1.0 / factor) & (ratios <= factor)].sum() / weights.sum()), 4
        )
        for factor in (2, 3, 4)
    }
    return {
        "sets": len({row["set"] for row in found}),
        "certified": {
            "mean": round(float(np.mean(certified)), 4),
            "lowest": min(certified),
            "highest": max(certified),
        },
        "named / truly needed": quantiles,
        "within a factor": within,
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "how-many-rows-unseen.json")
    options = parser.parse_args()
    tasks = [(name, beta, ordered(name, options.data), options.cases) for name, beta in CASES]
    rows = [row for found in in_order(measured, tasks, options.jobs) for row in found]
    result: dict[str, Any] = {"cases": options.cases, "in all": summary(rows), "populations": []}
    for row in rows:
        ratios = row.pop("ratios", [])
        if ratios:
            row["median_ratio"] = float(np.median(ratios))
        result["populations"].append(row)
        print(row, flush=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
