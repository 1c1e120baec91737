"""How often the promises are broken and what they accept: the numbers quoted in README and docs.

    python -m benchmarks.promises [--draws 1000] [--jobs 2] [--out benchmarks/results/promises.json]

The 15,000 rows of an embedded set are the truth; calibration sets are drawn from them with
replacement (seed 0).
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

import metacal as mc
from benchmarks.experiments.pool import in_order
from metacal import metrics
from metacal.certificates.certificate import accept_up_to_threshold
from metacal.certification.ranking import Ranking
from metacal.certification.rules.fixed_sequence import count_certified_rows
from metacal.rows import Rows
from metacal.scores import score_rows

TARGETS = {"cifar10-resnet110": 0.97, "cifar100-resnet110": 0.87}
RESULTS = Path(__file__).parent / "results" / "promises.json"
SIZES = (100, 200, 500, 1000, 2000, 5000, 10_000)


def columns(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Score and correctness of every row of a set."""
    data = mc.datasets.load(name)
    return score_rows(Rows(data.logits), "entropy"), data.logits.argmax(axis=1) == data.labels


def threshold(rule: object, scores: np.ndarray, correct: np.ndarray) -> float | None:
    """The rule's threshold on a calibration set, or None when it finds the target infeasible."""
    chosen, _ = rule.split(correct)
    try:
        return rule.certify(scores[chosen], correct[chosen]).threshold
    except mc.InfeasibleTargetError:
        return None


def simulate(name: str, rule_of: Callable[[int], object], n: int, draws: int) -> np.ndarray:
    """Rows (miscoverage, accuracy, coverage) of the feasible fits."""
    scores, correct = columns(name)
    rng = np.random.default_rng(0)
    found = []
    for seed in range(draws):
        rows = rng.integers(0, len(scores), n)
        s = threshold(rule_of(seed), scores[rows], correct[rows])
        if s is not None:
            accept = accept_up_to_threshold(scores, s)
            right = accept & correct
            found.append(
                (1 - right.sum() / correct.sum(), right.sum() / accept.sum(), accept.mean())
            )
    return np.array(found)


def broken(found: np.ndarray, rule: object) -> float:
    """Share of the fits whose truth misses the target."""
    return float(
        np.mean(found[:, 1] < rule.beta if hasattr(rule, "beta") else found[:, 0] > rule.alpha)
    )


def after_looking(draws: int) -> dict[str, float]:
    """How often 97% is missed (CIFAR-10, 1,000 rows): certified, best of eight targets, largest
    that shows it.
    """
    scores, correct = columns("cifar10-resnet110")
    rng = np.random.default_rng(0)
    missed = np.zeros(3)
    for _ in range(draws):
        rows = rng.integers(0, len(scores), 1000)
        ranking = Ranking.from_scores(scores[rows], correct[rows])
        shows = dict(
            zip(
                ranking.tie_block_end_ranks.tolist(),
                (ranking.cumulative_errors <= 0.03 * ranking.tie_block_end_ranks).tolist(),
            )
        )
        tried = [
            count_certified_rows(ranking, target, 0.1) for target in np.linspace(0.95, 0.985, 8)
        ]
        chosen = (
            count_certified_rows(ranking, 0.97, 0.1),
            max((m for m in tried if m and shows[m]), default=0),
            max((m for m, good in shows.items() if good), default=0),
        )
        for i, accepted in enumerate(chosen):
            accept = (
                accept_up_to_threshold(
                    scores, ranking.largest_threshold_accepting_exactly(accepted)
                )
                if accepted
                else np.zeros(len(scores), bool)
            )
            missed[i] += accept.any() and correct[accept].mean() < 0.97
    names = ("certified", "eight targets", "largest that shows it")
    return {name: rounded(value / draws) for name, value in zip(names, missed)}


def at_five_thousand(name: str, beta: float, draws: int) -> dict[str, object]:
    """Each rule on 5,000 rows: how often it is broken, mean miscoverage, accuracy and coverage."""
    rules: dict[str, Callable[[int], object]] = {
        "paper, miscoverage": lambda seed: mc.paper.MaxMiscoverage(0.05, seed),
        "certified, miscoverage": lambda seed: mc.MaxMiscoverage(0.05),
        "in expectation, miscoverage": lambda seed: mc.MaxMiscoverage(0.05, None),
        "paper, accuracy": lambda seed: mc.paper.MinCoverageAccuracy(beta, seed),
        "certified, accuracy": lambda seed: mc.MinAccuracy(beta),
        "in expectation, accuracy": lambda seed: mc.MinAccuracy(beta, None),
    }
    answer: dict[str, object] = {}
    for title, rule_of in rules.items():
        found = simulate(name, rule_of, 5000, draws)
        f0, f1, coverage = (rounded(value) for value in found.mean(axis=0))
        broke = rounded(broken(found, rule_of(0)))
        answer[title] = {"broken": broke, "miscoverage": f0, "accuracy": f1, "coverage": coverage}
    found = simulate(name, lambda seed: mc.paper.MinCoverageAccuracy(beta, seed), 1000, draws)
    answer["paper, accuracy, 1,000 rows"] = {"broken": rounded(broken(found, mc.MinAccuracy(beta)))}
    return answer


def by_size(name: str, beta: float, draws: int) -> list[dict[str, float]]:
    """The certified accuracy at every size: mean coverage of feasible fits, how many were not, how
    many broken.
    """
    answer = []
    for n in SIZES:
        found = simulate(name, lambda seed: mc.MinAccuracy(beta), n, draws)
        rate = broken(found, mc.MinAccuracy(beta)) * len(found) / draws
        coverage, missing = rounded(found[:, 2].mean()), rounded(1 - len(found) / draws)
        answer.append(
            {"n": n, "coverage": coverage, "infeasible": missing, "broken": rounded(rate)}
        )
    return answer


def best_possible(name: str, beta: float) -> float:
    """The share of rows up to the largest rank that is accurate enough."""
    scores, correct = columns(name)
    right = correct[np.argsort(scores, kind="stable")]
    ranks = np.arange(1, len(right) + 1)
    return rounded(ranks[np.cumsum(right) >= beta * ranks].max() / len(right))


def copies(name: str, beta: float, draws: int) -> dict[str, dict[str, float]]:
    """1,000 rows, each given once, twice, five times: how often a promise is broken that counts
    them all.
    """
    scores, correct = columns(name)
    rng = np.random.default_rng(0)
    promises = {"miscoverage": mc.MaxMiscoverage(0.05), "accuracy": mc.MinAccuracy(beta)}
    answer = {times: dict.fromkeys(promises, 0.0) for times in ("1", "2", "5")}
    for _ in range(draws):
        rows = rng.integers(0, len(scores), 1000)
        for times in answer:
            several = np.repeat(rows, int(times))
            for kind, promise in promises.items():
                s = threshold(promise, scores[several], correct[several])
                accept = accept_up_to_threshold(scores, -np.inf if s is None else s)
                right = accept & correct
                missed = 1 - right.sum() / correct.sum() > 0.05
                wrong = accept.any() and right.sum() < beta * accept.sum()
                answer[times][kind] += (missed if kind == "miscoverage" else wrong) / draws
    return {
        times: {kind: rounded(value) for kind, value in kinds.items()}
        for times, kinds in answer.items()
    }


def base_rows(name: str, beta: float, n: int, splits: int = 40) -> dict[str, float]:
    """A temperature fitted on the accepted rows or on all: T, its spread, log loss and ECE of
    accepted test rows.

    Fits that accept no error at all are left out, and counted: their accepted rows know no best
    temperature.
    """
    data = mc.datasets.load(name)
    found: dict[str, list[float]] = {}
    without = 0
    for seed in range(splits):
        (x, y), (new_x, new_y) = data.split(n, random_state=seed)
        score, new_score = (score_rows(Rows(table), "entropy") for table in (x, new_x))
        s = threshold(mc.MinAccuracy(beta), score, x.argmax(axis=1) == y)
        if s is None:
            continue
        kept, accept = accept_up_to_threshold(score, s), accept_up_to_threshold(new_score, s)
        errors = int((x.argmax(axis=1) != y)[kept].sum())
        if errors == 0:  # nothing to fit a temperature to
            without += 1
            continue
        found.setdefault("errors", []).append(errors)
        for rows, used in (("accepted", kept), ("all", np.ones(n, bool))):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", mc.MetacalWarning)
                fitted = mc.TemperatureScaling().fit(x[used], y[used])
            proba = fitted.predict_proba(new_x[accept])
            found.setdefault(f"{rows}, T", []).append(fitted.temperature_)
            found.setdefault(f"{rows}, nll", []).append(metrics.nll(proba, new_y[accept]))
            found.setdefault(f"{rows}, ece", []).append(metrics.ece(proba, new_y[accept]))
    answer = {key: rounded(np.mean(values)) for key, values in found.items()}
    answer |= {
        f"{rows}, T sd": rounded(np.std(found[f"{rows}, T"])) for rows in ("accepted", "all")
    }
    return {
        **answer,
        "errors": float(np.median(found["errors"])),
        "fits": len(found["errors"]),
        "without an error": without,
    }


def worthless(n: int, draws: int) -> float:
    """Draws that accept anything although the ranking is worthless and the accuracy just below
    .9.
    """
    rng = np.random.default_rng(0)
    rankings = (
        Ranking.from_scores(rng.random(n), rng.random(n) < 0.9 - 1e-9) for _ in range(2 * draws)
    )
    return rounded(np.mean([count_certified_rows(ranking, 0.9, 0.1) > 0 for ranking in rankings]))


def rounded(value: float) -> float:
    """Four digits behind the point."""
    return round(float(value), 4)


def called(work: str, arguments: tuple[object, ...]) -> object:
    """One of the functions above, by name, in a process of its own."""
    return globals()[work](*arguments)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    draws = options.draws
    tasks: dict[tuple[str, ...], tuple[str, tuple[object, ...]]] = {}
    for name, beta in TARGETS.items():
        tasks["at 5,000", name] = "at_five_thousand", (name, beta, draws)
        tasks["by size", name] = "by_size", (name, beta, draws)
        tasks["best possible", name] = "best_possible", (name, beta)
        tasks["copies", name] = "copies", (name, beta, draws)
        for n in (300, 500, 1000, 5000):
            tasks["base rows", name, str(n)] = "base_rows", (name, beta, n)
    tasks["after looking",] = "after_looking", (draws,)
    for n in (300, 1000, 5000):
        tasks["worthless", str(n)] = "worthless", (n, draws)
    found = in_order(called, tasks.values(), options.jobs)
    answer: dict[str, object] = {"draws": draws, "seed": 0}
    for path, value in zip(tasks, found):
        place = answer
        for key in path[:-1]:
            place = place.setdefault(key, {})  # type: ignore[assignment]
        place[path[-1]] = value
    options.out.write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
