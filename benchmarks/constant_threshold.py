"""A constant threshold against a certified one: record linkage, receipts and redaction.

    python -m benchmarks.constant_threshold --data DATA --jobs 2 --out RESULT.json

DATA holds `matching_abt_buy.npz`, `matching_amazon_google.npz`, `receipt_fields.npz` and
`redaction_btc.npz`. The cases of a file are the population: the pairs, the receipts, or the tweets
with a name. A draw takes cases with replacement, and a promise is broken if it fails on the whole
file.

The methods get the same cases:

- *metacal*: `ScoreGate` with the promise of the task, at 90% confidence.
- *tuned*: the threshold that accepts most (or masks least) among those that meet the target on the
  drawn cases, without a margin for chance.
- constants, applied to the score as a probability. They do not depend on the draw, so each of them
  is broken in all draws or in none.

`python -m benchmarks.constant_threshold_figure` draws the pictures of the how-to pages.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

import metacal as mc
from benchmarks.case_promises import Items, fit_gate, load_receipts, load_tweets
from benchmarks.experiments.pool import in_order
from metacal.promises import Promise

COMMITTED = Path(__file__).resolve().parent / "results" / "constant-threshold.json"
CONSTANTS = (0.5, 0.7, 0.85)
#: Thresholds that are tried in tuning: so many quantiles of the scores of correct items.
N_CANDIDATES = 401
#: Draws whose points the pictures show.
N_SHOWN_DRAWS = 80

#: From items and accepted ones to a share.
Measure = Callable[[Items, np.ndarray], float]


# ── data and measures ─────────────────────────────────────────────────────────────────────────────


def load_pairs(folder: str, name: str) -> Items:
    """Return the pairs of a matching file, each as a case with one item."""
    data = np.load(Path(folder) / f"matching_{name}.npz")
    n_pairs = len(data["score"])
    return Items(
        data["score"],
        data["correct"].astype(bool),
        np.arange(n_pairs),
        np.zeros(n_pairs, dtype=int),
    )


def load_words(folder: str) -> Items:
    """Return the words of the tweets with a name, with the probability that each is in a name."""
    tweets = load_tweets(folder)
    return replace(tweets, score=expit(tweets.score))


def error_rate(items: Items, accept: np.ndarray) -> float:
    """Return the share of accepted items that are incorrect."""
    return float((~items.correct[accept]).mean()) if accept.any() else 0.0


def recall(items: Items, accept: np.ndarray) -> float:
    """Return the share of correct items that are accepted."""
    return float(accept[items.correct].mean())


def accepted_share(items: Items, accept: np.ndarray) -> float:
    """Return the share of items that are accepted."""
    return float(accept.mean())


def broken_share(items: Items, accept: np.ndarray) -> float:
    """Return the share of cases with an incorrect accepted item."""
    return items.share_of_broken_cases(accept)


def broken_share_of_automated(items: Items, accept: np.ndarray) -> float:
    """Return the share of cases with an incorrect item, among the cases with an accepted one."""
    n_automated = (items.count_accepted(accept) > 0).sum()
    return float((items.count_errors(accept) > 0).sum() / max(n_automated, 1))


def leaking_share(items: Items, accept: np.ndarray) -> float:
    """Return the share of cases in which a correct item is not accepted."""
    n_missed = np.bincount(items.case[items.correct & ~accept], minlength=items.n_cases)
    return float((n_missed > 0).mean())


def masked_share(items: Items, accept: np.ndarray) -> float:
    """Return the share of incorrect items that are accepted, such as harmless words masked."""
    return float(accept[~items.correct].mean())


@dataclass(frozen=True)
class Task:
    """A file of scores, the promise about it, and what is measured.

    Attributes
    ----------
    name : str
        Key of the task in the result.
    promise : Promise
        Promise of the gate.
    limit : float
        Largest allowed value of `risk` on the whole file.
    n_cases : int
        Number of cases of a draw.
    risk : Measure
        Quantity that the promise limits.
    amount : Measure
        Quantity that a method makes large, or small if `is_cost`.
    is_cost : bool
        Whether a smaller amount is better.
    """

    name: str
    promise: Promise
    limit: float
    n_cases: int
    risk: Measure
    amount: Measure
    is_cost: bool = False

    def load(self, folder: str) -> Items:
        """Return the population."""
        if self.name.startswith("receipts"):
            return load_receipts(folder)
        if self.name == "tweets":
            return load_words(folder)
        return load_pairs(folder, self.name)


TASKS = {
    task.name: task
    for task in (
        Task("abt_buy", mc.MinAccuracy(0.9), 0.1, 2000, error_rate, recall),
        Task("amazon_google", mc.MinAccuracy(0.9), 0.1, 2000, error_rate, recall),
        Task(
            "receipts automated",
            mc.MaxCaseErrors(0.1, among="automated"),
            0.1,
            300,
            broken_share_of_automated,
            accepted_share,
        ),
        Task("receipts", mc.MaxCaseErrors(0.1), 0.1, 300, broken_share, accepted_share),
        Task("tweets", mc.MinCaseRecall(0.9), 0.1, 1000, leaking_share, masked_share, is_cost=True),
    )
}


# ── methods ───────────────────────────────────────────────────────────────────────────────────────


def fit_certified(task: Task, items: Items) -> Callable[[Items], np.ndarray] | None:
    """Fit the gate of a task; None if the drawn cases do not support the promise."""
    if task.promise.counts_cases:
        return fit_gate(task.promise, items, has_types=task.name.startswith("receipts"))
    try:
        gate = mc.ScoreGate(task.promise).fit(items.score, items.correct)
    except mc.InfeasibleTargetError:
        return None
    return lambda new: gate.accepts(new.score)


def tune_threshold(task: Task, items: Items) -> float | None:
    """Find the best threshold that meets the target on the drawn cases; None if there is none."""
    candidates = np.unique(np.quantile(items.score[items.correct], np.linspace(0, 1, N_CANDIDATES)))
    in_order_of_preference = candidates[::-1] if task.is_cost else candidates
    for threshold in in_order_of_preference:
        if task.risk(items, items.score >= threshold) <= task.limit:
            return float(threshold)
    return None


def measure_draw(name: str, folder: str, seed: int) -> dict[str, tuple[float, float] | None]:
    """Return risk and amount on the whole file, for each method that learns from the draw."""
    warnings.simplefilter("ignore")
    task = TASKS[name]
    population = task.load(folder)
    rng = np.random.default_rng([list(TASKS).index(name), seed])
    items = population.take(rng.integers(population.n_cases, size=task.n_cases))
    accepted: dict[str, np.ndarray | None] = {"metacal": None, "tuned": None}
    decide = fit_certified(task, items)
    if decide is not None:
        accepted["metacal"] = decide(population)
    threshold = tune_threshold(task, items)
    if threshold is not None:
        accepted["tuned"] = population.score >= threshold
    return {
        method: None
        if accept is None
        else (task.risk(population, accept), task.amount(population, accept))
        for method, accept in accepted.items()
    }


# ── result ────────────────────────────────────────────────────────────────────────────────────────


def summarize(task: Task, points: list[tuple[float, float] | None]) -> dict[str, Any]:
    """Average over the draws. A draw without a threshold accepts nothing."""
    certified = [point for point in points if point is not None]
    risks, amounts = zip(*certified, strict=True) if certified else ((), ())
    # If a promise about recall has no threshold, everything is masked.
    amount_of_none = 1.0 if task.is_cost else 0.0
    all_amounts = [*amounts, *([amount_of_none] * (len(points) - len(certified)))]
    return {
        "amount": round(float(np.mean(all_amounts)), 4),
        "risk": round(float(np.mean(risks)), 4) if risks else None,
        "broken": round(sum(risk > task.limit for risk in risks) / len(points), 4),
        "infeasible": round(1 - len(certified) / len(points), 4),
        "points": [[round(x, 4) for x in point] for point in certified[:N_SHOWN_DRAWS]],
    }


def measure_task(task: Task, folder: str, n_draws: int, n_jobs: int) -> dict[str, Any]:
    """Measure a task."""
    tasks = [(task.name, folder, seed) for seed in range(n_draws)]
    found = list(in_order(measure_draw, tasks, n_jobs))
    population = task.load(folder)
    constants = {}
    for threshold in CONSTANTS:
        accept = population.score >= threshold
        risk, amount = task.risk(population, accept), task.amount(population, accept)
        constants[str(threshold)] = {
            "amount": round(amount, 4),
            "risk": round(risk, 4),
            "broken": float(risk > task.limit),
        }
    thresholds = np.quantile(population.score[population.correct], np.linspace(0, 1, N_CANDIDATES))
    masks = [population.score >= threshold for threshold in np.unique(thresholds)]
    return {
        "limit": task.limit,
        "cases": task.n_cases,
        "population": population.n_cases,
        "draws": n_draws,
        "correct": round(float(population.correct.mean()), 4),
        "methods": {
            **{
                method: summarize(task, [draw[method] for draw in found])
                for method in ("metacal", "tuned")
            },
            **constants,
        },
        "curve": [
            [round(measure(population, mask), 4) for measure in (task.risk, task.amount)]
            for mask in masks
        ],
    }


def write_result(tasks: dict[str, Any], path: Path) -> None:
    """Write the result, one line for each task."""
    lines = [f"  {json.dumps(name)}: {json.dumps(cell)}" for name, cell in tasks.items()]
    body = ",\n".join(lines)
    path.write_text(f'{{\n "delta": 0.1,\n "tasks": {{\n{body}\n }}\n}}\n', encoding="utf-8")


def main() -> None:
    """Measure all tasks and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True)
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=COMMITTED)
    options = parser.parse_args()
    cells = {}
    for name, task in TASKS.items():
        cells[name] = measure_task(task, options.data, options.draws, options.jobs)
        print(f"{name}: {len(cells)} of {len(TASKS)} tasks", file=sys.stderr)
    write_result(cells, options.out)


if __name__ == "__main__":
    main()
