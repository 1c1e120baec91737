"""How much a small network may answer under a promise over two: all pairs of the networks that ship
with the project.

    python -m benchmarks.cascade [--draws 200] [-n 1000] [-o benchmarks/results/cascade.json]

Two networks on the same images (the files are in the same order, which is checked) are taken as the
whole truth; n rows are drawn from it with replacement, a cascade is certified on them, and what it
does to all rows is measured: the share that the small network answers, and whether the promise is
broken. For each pair, the less accurate network is the small one:

- relative, `MaxLoss(0.01)`: the exact test, and beside it betting (Waudby-Smith & Ramdas 2024) at
  the same thresholds;
- absolute, `MinAccuracy(accuracy of the large network - 0.01)`, the same limit as an accuracy, no
  people;
- absolute with people, `MinAccuracy(accuracy of the large network + 0.03)`: who answers, and what
  it costs in calls of the large network where a person costs ten, beside the cheapest pair of
  thresholds that keeps the promise.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.experiments.pool import in_order
from metacal import datasets
from metacal.errors import InfeasibleTargetError
from metacal.kernels.grid import RELATIVE_GRID
from metacal.promises.accuracy import MinAccuracy
from metacal.promises.cascade import MaxLoss
from metacal.promises.cascade_candidates import (
    Candidate,
    CascadePlan,
    PairedPredictions,
    count_outcomes,
    split_pilot_rows,
)
from metacal.promises.cascade_sequences import build_loss_sequences
from metacal.promises.promise import Promise
from metacal.promises.two_model_cascade import TwoModelEvidence
from metacal.rows import Rows
from metacal.scores import score_rows

DATA = Path(__file__).resolve().parent / "data"
NETWORKS = ("resnet110", "densenet40", "resnet110sd", "wrn32")
#: Pairs of these, on CIFAR-10 and on CIFAR-100.
N_PAIRS = 12
EPSILON, DELTA = 0.01, 0.1


def networks(family: str) -> dict[str, Any]:
    """Every network of a family: scores, answers, whether they are right."""
    found = {}
    for name in NETWORKS:
        full = f"{family}-{name}"
        one = datasets.load(full, folder=None if full in datasets.names() else DATA)
        answer = one.logits.argmax(axis=1)
        found[name] = (
            score_rows(Rows(one.logits), "entropy"),
            answer,
            answer == one.labels,
            one.labels,
        )
    labels = [each[3] for each in found.values()]
    assert all(np.array_equal(labels[0], other) for other in labels[1:]), (
        "the files are not in the same order"
    )
    return found


def betting_passes(difference: NDArray[np.int_], margin: float, level: float) -> bool:
    """Predictable plug-in betting on "the mean is at least the margin", rows in the order given."""
    n, i = len(difference), np.arange(1, len(difference) + 1)
    mean = np.cumsum(difference) / (i + 1)
    variance = (margin + np.cumsum((difference - mean) ** 2)) / (i + 1)
    before = np.append(margin, variance[:-1])
    bet = np.minimum(np.sqrt(2.0 * math.log(1.0 / level) / (n * before)), 0.9 / (1.0 - margin))
    return bool(np.cumsum(np.log1p(bet * (margin - difference))).max() >= math.log(1.0 / level))


def by_betting(rows: PairedPredictions, plan: CascadePlan) -> Candidate | None:
    """The same walk with betting in place of the exact test."""
    aside, tested = split_pilot_rows(rows, plan)
    difference = tested.large_correct.astype(int) - tested.small_correct.astype(int)
    found = None
    for candidate in build_loss_sequences(aside, RELATIVE_GRID)[0].candidates:
        if not betting_passes(
            np.where(tested.small_score <= candidate.small_threshold, difference, 0), EPSILON, DELTA
        ):
            break
        found = candidate
    return found


def by_rule(
    promise: Promise, rows: PairedPredictions, plan: CascadePlan
) -> tuple[Candidate | None, int]:
    """What the rule certifies, and how many labels it needed."""
    try:
        found = promise.certify(TwoModelEvidence(rows, plan))
    except InfeasibleTargetError:
        return None, 0
    return Candidate(*(stage.threshold for stage in found.stages.models)), found.stages.n_labels


def measured(
    population: PairedPredictions, found: list[Candidate | None], limit: float
) -> dict[str, float]:
    """Mean share that the small network answers, and the share of broken promises: risk of all rows
    above the limit.
    """
    shares, broken = [], 0
    for candidate in found:
        seen = count_outcomes(population, candidate or Candidate(-math.inf))
        shares.append(seen.n_small / len(population))
        broken += candidate is not None and seen.n_errors / len(population) > limit
    return {"share": float(np.mean(shares)), "broken": broken / len(found)}


def oracle(population: PairedPredictions, limit: float) -> float:
    """The largest share that the small network may answer with the risk below the limit."""
    order = np.argsort(population.small_score, kind="stable")
    gain = population.large_correct[order].astype(int) - population.small_correct[order].astype(int)
    risk = float((~population.large_correct).mean()) + np.append(0, np.cumsum(gain)) / len(
        population
    )
    return float(np.flatnonzero(risk <= limit)[-1] / len(population))


def pair(small: Any, large: Any, n: int, draws: int) -> dict[str, Any]:
    """All rules on one pair."""
    everywhere = np.ones(len(small[0]), dtype=bool)
    population = PairedPredictions(
        small[0], large[0], small[2], large[2], small[1] == large[1], everywhere
    )
    own = float((~large[2]).mean())
    beta = round(1.0 - own - EPSILON, 4)
    rng = np.random.default_rng(n)
    exact, bets, absolute, labels = [], [], [], []
    for draw in range(draws):
        rows, plan = (
            population.take(rng.integers(len(population), size=n)),
            CascadePlan(random_state=draw),
        )
        found, needed = by_rule(MaxLoss(EPSILON, DELTA), rows, plan)
        exact.append(found)
        labels.append(needed)
        bets.append(by_betting(rows, plan))
        absolute.append(by_rule(MinAccuracy(beta, DELTA), rows, plan)[0])
    return {
        "accuracy": [float(small[2].mean()), 1.0 - own],
        "disagree": float((small[1] != large[1]).mean()),
        "oracle": oracle(population, own + EPSILON),
        "exact": measured(population, exact, own + EPSILON),
        "labels": float(np.mean(labels)),
        "betting": measured(population, bets, own + EPSILON),
        "absolute": {"beta": beta, **measured(population, absolute, 1.0 - beta)},
    }


def cost(shares: NDArray[np.float64]) -> float:
    """Calls of the large network a row: what the small one does not answer goes there, and a person
    costs ten.
    """
    return float(shares[1] + shares[2] + 10.0 * shares[2])


def cheapest(population: PairedPredictions, beta: float) -> float:
    """The lowest cost of any pair of thresholds, on a grid of quantiles, that keeps the
    accuracy.
    """
    grid = [-np.inf, *np.quantile(population.small_score, np.linspace(0.0, 1.0, 41)), np.inf]
    other = [-np.inf, *np.quantile(population.large_score, np.linspace(0.0, 1.0, 41)), np.inf]
    found = np.inf
    for candidate in (Candidate(float(s), float(t)) for s in grid for t in other):
        seen = count_outcomes(population, candidate)
        if seen.n_answered and seen.n_errors <= (1.0 - beta) * seen.n_answered:
            people = len(population) - seen.n_answered
            found = min(
                found, cost(np.array([seen.n_small, seen.n_large, people]) / len(population))
            )
    return float(found)


def with_people(small: Any, large: Any, n: int, draws: int) -> dict[str, Any]:
    """A higher accuracy than the large network has: people answer what neither is sure of."""
    everywhere = np.ones(len(small[0]), dtype=bool)
    population = PairedPredictions(
        small[0], large[0], small[2], large[2], small[1] == large[1], everywhere
    )
    beta = round(min(0.99, float(large[2].mean()) + 0.03), 4)
    rng = np.random.default_rng(n)
    shares, broken = [], 0
    for draw in range(draws):
        rows = population.take(rng.integers(len(population), size=n))
        found = by_rule(
            MinAccuracy(beta, DELTA), rows, CascadePlan(has_human_review=True, random_state=draw)
        )[0]
        seen = count_outcomes(population, found or Candidate(-math.inf, -math.inf))
        shares.append(
            np.array([seen.n_small, seen.n_large, len(population) - seen.n_answered])
            / len(population)
        )
        broken += found is not None and seen.n_errors > (1.0 - beta) * seen.n_answered
    mean = np.mean(shares, axis=0)
    return {
        "beta": beta,
        "shares": mean.tolist(),
        "broken": broken / draws,
        "cost": cost(mean),
        "cheapest": cheapest(population, beta),
    }


def main() -> None:
    """Every pair; print the table of docs/cascade-measured.md."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("-n", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {
        "n": options.n,
        "draws": options.draws,
        "epsilon": EPSILON,
        "delta": DELTA,
        "pairs": {},
    }
    print(
        "| small, large | accuracy | disagree | labels | exact | betting | absolute | best"
        " possible |"
    )
    print("|---|---|---|---|---|---|---|---|")
    found_of = list(
        in_order(of_pair, ((k, options.n, options.draws) for k in range(N_PAIRS)), options.jobs)
    )
    for name, found, _ in found_of:
        results["pairs"][name] = found
        rules = [
            f"{found[rule]['share']:.2f} ({found[rule]['broken']:.3f})"
            for rule in ("exact", "betting", "absolute")
        ]
        accuracy = " / ".join(f"{value:.3f}" for value in found["accuracy"])
        labels = f"{found['disagree']:.3f} | {found['labels']:.0f}"
        print(
            f"| {name} | {accuracy} | {labels} | {' | '.join(rules)} | {found['oracle']:.2f} |",
            flush=True,
        )
    print(
        "\n| small, large | beta | small | large | people | cost | cheapest | broken |\n"
        + "|---" * 8
        + "|"
    )
    for name, _, found in found_of:
        results["pairs"][name]["people"] = found
        shares = " | ".join(f"{share:.2f}" for share in found["shares"])
        costs = f"{found['cost']:.2f} | {found['cheapest']:.2f}"
        print(
            f"| {name} | {found['beta']:.4f} | {shares} | {costs} | {found['broken']:.3f} |",
            flush=True,
        )
    if options.output is not None:
        options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def of_pair(k: int, n: int, draws: int) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """What the k-th pair does, by itself and with people."""
    name, small, large = next(itertools.islice(pairs(), k, None))
    return name, pair(small, large, n, draws), with_people(small, large, n, draws)


def pairs() -> Iterator[tuple[str, Any, Any]]:
    """Every pair of networks: its name, the less accurate one, the other."""
    for family in ("cifar10", "cifar100"):
        known = networks(family)
        for one, other in itertools.combinations(NETWORKS, 2):
            small, large = sorted((one, other), key=lambda name: known[name][2].mean())
            yield f"{family}: {small}, {large}", known[small], known[large]


if __name__ == "__main__":
    main()
