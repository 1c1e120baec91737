"""How often the promises are broken and what they accept: the numbers quoted in README and docs.

    python -m benchmarks.promises [--draws 1000]

The 15,000 rows of an embedded set are the truth; calibration sets are drawn from them with replacement (seed 0).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

import metacal as mc
from metacal.promises.certificate import accepts
from metacal.promises.rules.accuracy import certified_prefix
from metacal.promises.sample import Ranking
from metacal.rows import Rows
from metacal.scores import score_rows

TARGETS = {"cifar10-resnet110": 0.97, "cifar100-resnet110": 0.87}
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
            accept = accepts(scores, s)
            right = accept & correct
            found.append((1 - right.sum() / correct.sum(), right.sum() / accept.sum(), accept.mean()))
    return np.array(found)


def broken(found: np.ndarray, rule: object) -> float:
    """Share of the fits whose truth misses the target."""
    return float(np.mean(found[:, 1] < rule.beta if hasattr(rule, "beta") else found[:, 0] > rule.alpha))


def after_looking(draws: int) -> np.ndarray:
    """How often 97% is missed (CIFAR-10, 1,000 rows): certified, best of eight targets, largest that shows it."""
    scores, correct = columns("cifar10-resnet110")
    rng = np.random.default_rng(0)
    missed = np.zeros(3)
    for _ in range(draws):
        rows = rng.integers(0, len(scores), 1000)
        ranking = Ranking.of(scores[rows], correct[rows])
        shows = dict(zip(ranking.ranks.tolist(), (ranking.errors <= 0.03 * ranking.ranks).tolist()))
        tried = [certified_prefix(ranking, target, 0.1) for target in np.linspace(0.95, 0.985, 8)]
        chosen = (
            certified_prefix(ranking, 0.97, 0.1),
            max((m for m in tried if m and shows[m]), default=0),
            max((m for m, good in shows.items() if good), default=0),
        )
        for i, accepted in enumerate(chosen):
            accept = accepts(scores, ranking.just_below_next(accepted)) if accepted else np.zeros(len(scores), bool)
            missed[i] += accept.any() and correct[accept].mean() < 0.97
    return missed / draws


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1000)
    draws = parser.parse_args().draws
    print(f"n = 5,000, {draws} draws: broken, mean miscoverage / accuracy / coverage")
    for name, beta in TARGETS.items():
        rules: dict[str, Callable[[int], object]] = {
            "paper, alpha .05": lambda seed: mc.paper.MaxMiscoverage(0.05, seed),
            "certified, alpha .05": lambda seed: mc.MaxMiscoverage(0.05),
            "in expectation, alpha .05": lambda seed: mc.MaxMiscoverage(0.05, None),
            "paper, beta": lambda seed, beta=beta: mc.paper.MinCoverageAccuracy(beta, seed),
            "certified, beta": lambda seed, beta=beta: mc.MinAccuracy(beta),
            "in expectation, beta": lambda seed, beta=beta: mc.MinAccuracy(beta, None),
        }
        for title, rule_of in rules.items():
            found = simulate(name, rule_of, 5000, draws)
            f0, f1, coverage = found.mean(axis=0)
            print(f"{name:20} {title:28} {broken(found, rule_of(0)):.3f}  {f0:.4f} / {f1:.4f} / {coverage:.3f}")
    print("\ncertified accuracy by n: coverage of feasible fits, infeasible, broken")
    for name, beta in TARGETS.items():
        for n in SIZES:
            found = simulate(name, lambda seed, beta=beta: mc.MinAccuracy(beta), n, draws)
            rate = broken(found, mc.MinAccuracy(beta)) * len(found) / draws
            print(f"{name:20} {n:6} {found[:, 2].mean():.3f} {1 - len(found) / draws:.3f} {rate:.3f}")
    print("\n97% missed: certified, best of eight targets, largest threshold that shows it:", after_looking(draws))
    print("\na worthless ranking of accuracy just under beta = .9: draws that accept anything")
    for n in (300, 1000, 5000):
        rng = np.random.default_rng(0)
        rankings = (Ranking.of(rng.random(n), rng.random(n) < 0.9 - 1e-9) for _ in range(2 * draws))
        print(n, np.mean([certified_prefix(ranking, 0.9, 0.1) > 0 for ranking in rankings]))


if __name__ == "__main__":
    main()
