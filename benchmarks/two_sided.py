"""Promises about two classes on populations that are known: how often they are broken, and what
they accept.

    python -m benchmarks.two_sided --draws 1000 --processes 16 -o benchmarks/results/two-sided.json

A population is 20,000 log-odds, each with the chance that a row there is positive; calibration rows
are drawn from it with replacement, so that every rate of every threshold is known exactly. Some are
as people have them, some were made to break what is certified: flat at the target, ties, five
marks, one class alone, sides that overlap, chances that oscillate. Beside what is accepted stands
what whoever knows the population would accept and, where MAPIE is installed and has the promise,
what its controllers do on some of the same draws: Bonferroni-Holm over its hundred thresholds, and
a fixed sequence of these or of 300 quantiles of other scores, the safest first.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

import metacal as mc
from benchmarks.experiments.pilot_scores import with_pilot_scores
from metacal.certification.even_odds import find_even_odds_score
from metacal.certification.rows import CalibrationRows, Subgroups

ATOMS = 20_000
DELTA = 0.1
SIZES = (100, 300, 1000, 5000, 20_000)


@dataclass(frozen=True)
class Population:
    """Log-odds as a classifier gives them, and the true chance of the second class at each."""

    s: np.ndarray
    chance: np.ndarray

    @property
    def others(self) -> np.ndarray:
        """300 quantiles of the scores of other rows, without labels."""
        return np.quantile(self.s, np.linspace(0.0, 1.0, 301)[:-1], method="lower")

    def draw(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Calibration rows: log-odds, and whether each is positive."""
        at = rng.integers(len(self.s), size=n)
        return self.s[at], rng.random(n) < self.chance[at]


def _normal(scale: float = 3.5, offset: float = 0.0) -> np.ndarray:
    """Evenly spread quantiles of a normal law: no draw of ours is in the truth."""
    from scipy.special import ndtri

    return scale * ndtri((np.arange(ATOMS) + 0.5) / ATOMS) + offset


def _with_share(s: np.ndarray, share: float) -> np.ndarray:
    """Chances σ(s + c) with this mean."""
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if expit(s + middle).mean() < share else (low, middle)
    return expit(s + low)


def populations() -> dict[str, Population]:
    """Ten kinds, adversarial ones among them."""
    s = _normal()
    marks = np.repeat([-3.0, -1.0, 0.0, 1.0, 3.0], [ATOMS // 5] * 5)
    return {
        "even": Population(s, expit(s)),
        "offset": Population(_normal(offset=1.5), expit(s)),
        "1:20": Population(s, _with_share(s, 1 / 21)),
        "1:1,000": Population(s, _with_share(s, 1 / 1001)),
        "flat": Population(s, np.full(ATOMS, 0.5)),
        "flat at the target": Population(s, np.full(ATOMS, 0.899)),
        "ties": Population(np.round(s, 1), expit(np.round(s, 1))),
        "marks": Population(marks, np.repeat([0.02, 0.08, 0.5, 0.898, 0.98], [ATOMS // 5] * 5)),
        "one class": Population(s, np.zeros(ATOMS)),
        "overlap": Population(3 * s, expit(6 * s)),
        "oscillating": Population(s, np.where(np.floor(4 * s) % 2 == 0, 0.93, 0.86)),
    }


def not_vacuous(share: float) -> float:
    """A negative predictive value that takes a score: halfway from the share of the negatives to 1,
    or .9.
    """
    return min(max(0.9, 1.0 - share / 2.0), 0.9999)


PROMISES: dict[str, Callable[[float], Any]] = {
    "precision": lambda share: mc.MinPrecision(0.9),
    "precision, share declared": lambda share: mc.MinPrecision(
        0.9, share=min(max(share, 0.001), 0.999)
    ),
    "recall": lambda share: mc.MinRecall(0.95),
    "false-positive rate": lambda share: mc.MaxFalsePositiveRate(0.05),
    "precision of both": lambda share: mc.TwoSided(
        mc.MinPrecision(0.9, share=min(max(share, 0.001), 0.999)),
        mc.MinPrecision(not_vacuous(share), positive=0),
    ),
    "precision and recall": lambda share: mc.TwoSided(mc.MinPrecision(0.9), mc.MinRecall(0.95)),
    "accuracy, learned decision": lambda share: mc.MinAccuracy(0.9),
    "accuracy, own decision": lambda share: mc.MinAccuracy(0.9),
}


def outcome(
    population: Population,
    promise: Any,
    s: np.ndarray,
    positive: np.ndarray,
    *,
    learned: bool = True,
) -> tuple[bool, float]:
    """Whether the promise is broken on the population, and the share that is accepted: 0 where none
    is certified.
    """
    try:
        if isinstance(promise, mc.MinAccuracy):
            aside = np.zeros(len(s), dtype=bool)
            aside[: min(max(40, len(s) // 10), len(s) // 2) * learned] = (
                True  # rows are drawn: the first are as good
            )
            at = find_even_odds_score(s[aside], positive[aside]) if learned else 0.0
            right = (s > at) == positive
            certificate = promise.certify(-np.abs(s - at)[~aside], right[~aside])
            accept = -np.abs(population.s - at) <= certificate.threshold
            chance = np.where(population.s > at, population.chance, 1.0 - population.chance)
            share = float(accept.mean())
            return bool(share and chance[accept].mean() < promise.beta - 1e-12), share
        rows = CalibrationRows(s, positive, class_codes=positive.astype(np.intp))
        policy = promise.procedure().build_pilot_policy()
        if policy is not None:  # MAPIE is given the quantiles of other scores: so is this
            rows = with_pilot_scores(rows, population.others, policy)
        certificate = promise.certify(rows)
    except mc.InfeasibleTargetError:
        return False, 0.0
    except mc.InputError:  # no row is right at all
        return False, 0.0
    return sides_of(population, promise, certificate.subgroups.items, certificate.decision_at)


def sides_of(
    population: Population, promise: Any, parts: tuple[Any, ...], at: float
) -> tuple[bool, float]:
    """Whether either side of these parts is broken on the population, and the share that is
    accepted.
    """
    called = [
        (population.s > at if code else population.s <= at)
        & (-np.abs(population.s - at) <= parts[code].threshold)
        for code in (0, 1)
    ]
    broken = False
    for code, side in promise.procedure().get_promises_by_class((0, 1)).items():
        of = population.chance if code else 1.0 - population.chance
        wrong = float((1.0 - of)[called[code]].sum())
        if side.quantity.conditions_on_true_class:
            total = float((1.0 - of).sum())
            rate = wrong / total if total else 0.0
        else:
            rate = wrong / called[code].sum() if called[code].any() else 0.0
        broken |= rate > side.quantity.max_violation_rate(side.target) + 1e-12
    return broken, float((called[0] | called[1]).mean())


# ── groups ────────────────────────────────────────────────────────────────────────────────────────

#: Share of the rows, and the population, of three groups: one with an offset, one rare with scores
#: that tie.
GROUPS = {"usual": (0.6, "even"), "offset": (0.36, "offset"), "rare": (0.04, "ties")}
#: The same at the edge: chances just below what is promised, and marks.
AT_THE_EDGE = {
    "flat": (0.6, "flat at the target"),
    "marks": (0.36, "marks"),
    "rare": (0.04, "flat at the target"),
}
MIXTURES = {"three groups": GROUPS, "three at the edge": AT_THE_EDGE}
PER_GROUP = (
    "precision",
    "recall",
    "false-positive rate",
    "precision of both",
    "precision and recall",
)


def group_cell(job: tuple[str, str, Any, int, int]) -> dict[str, Any]:
    """Of one mixture, promise and number of rows: how often any group, and each of them, has its
    promise broken.
    """
    where, what, shares, n, draws = job
    known, names = populations(), tuple(MIXTURES[where])
    groups = [known[name] for _, name in MIXTURES[where].values()]
    promise = mc.PerGroup(PROMISES[what](0.5), shares=shares)
    rng = np.random.default_rng(
        [n, list(MIXTURES).index(where), PER_GROUP.index(what), len(shares)]
    )
    broken, accepted = np.zeros((draws, len(groups)), dtype=bool), np.zeros((draws, len(groups)))
    for draw in range(draws):
        part = rng.choice(len(groups), size=n, p=[share for share, _ in MIXTURES[where].values()])
        s, positive = np.empty(n), np.empty(n, dtype=bool)
        for code, population in enumerate(groups):
            s[part == code], positive[part == code] = population.draw(
                rng, int((part == code).sum())
            )
        rows = CalibrationRows(
            s,
            positive,
            subgroups=Subgroups(part, tuple(names)),
            class_codes=positive.astype(np.intp),
        )
        policy = promise.procedure().build_pilot_policy()
        if policy is not None:
            rows = policy.withhold_pilot_rows(rows)
        try:
            families = promise.certify(rows).subgroups.sides_by_group  # type: ignore[union-attr]
        except mc.InfeasibleTargetError:
            continue
        for code, (population, family) in enumerate(zip(groups, families, strict=True)):
            found = sides_of(population, promise.promise, family, family[0].decision_log_odds)
            broken[draw, code], accepted[draw, code] = found
    return {
        "groups": where,
        "promise": what,
        "shares": shares,
        "rows": n,
        "draws": draws,
        "broken": int(broken.any(axis=1).sum()),
        "broken by group": {name: int(own.sum()) for name, own in zip(names, broken.T)},
        "accepted by group": {name: float(own.mean()) for name, own in zip(names, accepted.T)},
    }


#: What MAPIE calls a promise, its level, and whether it is kept by high thresholds.
OF_MAPIE = {"precision": ("precision", 0.9, True), "recall": ("recall", 0.95, False)}
OF_MAPIE["false-positive rate"] = ("fpr", 0.05, True)


def controllers(population: Population) -> dict[str, tuple[str, np.ndarray]]:
    """How each of MAPIE's controllers goes about it: the procedure, and its thresholds from the
    lowest.
    """
    p = np.quantile(expit(population.s), np.linspace(0.0, 1.0, 301)[:-1])
    fixed = {"hundred": np.linspace(0, 0.99, 100), "quantiles": np.unique(p)}
    named = {f"fixed sequence, {name}": ("fixed_sequence", grid) for name, grid in fixed.items()}
    return {"Holm": ("bonferroni_holm", fixed["hundred"]), **named}


def peers(
    population: Population, what: str, draws: list[tuple[np.ndarray, np.ndarray]]
) -> dict[str, Any]:
    """Of each of MAPIE's controllers how many draws break the promise, and the share that is
    accepted.
    """
    try:
        from mapie.risk_control import BinaryClassificationController
    except ImportError:
        return {}
    risk, level, high = OF_MAPIE[what]
    chance, p, found = population.chance, expit(population.s), {}
    for name, (method, grid) in controllers(population).items():
        broken, accepted = 0, 0.0
        for s, positive in draws:
            controller = BinaryClassificationController(
                lambda X: np.column_stack([1.0 - X.ravel(), X.ravel()]),
                risk,
                level,
                1.0 - DELTA,
                list_predict_params=grid[::-1] if high and method == "fixed_sequence" else grid,
                fwer_method=method,
            )
            controller.calibrate(expit(s)[:, None], positive.astype(int))
            if controller.best_predict_param is None:
                continue
            called = p >= controller.best_predict_param
            right = {
                "precision": chance[called].sum() / max(called.sum(), 1),
                "recall": chance[called].sum(),
            }
            right["recall"] /= max(chance.sum(), 1e-300)
            right["fpr"] = 1.0 - (1.0 - chance)[called].sum() / max((1.0 - chance).sum(), 1e-300)
            limit = 1.0 - level if risk == "fpr" else level
            broken += bool((called.any() or risk == "recall") and right[risk] < limit - 1e-12)
            accepted += float(called.mean() if high else 1.0 - called.mean())
        found[name] = {"draws": len(draws), "broken": broken, "accepted": accepted / len(draws)}
    return found


def oracle(population: Population, what: str) -> float:
    """The share that the best thresholds accept: from either end, or by the distance from even
    odds.
    """
    s, chance = population.s, population.chance
    low, high = np.argsort(s, kind="stable"), np.argsort(-s, kind="stable")
    if what.startswith("accuracy"):
        return _longest(
            np.maximum(chance, 1 - chance)[np.argsort(-np.abs(chance - 0.5), kind="stable")], 0.9
        )
    upper = _longest(chance[high], 0.9) if what.startswith("precision") else 0.0
    lower = (
        _longest(1 - chance[low], not_vacuous(float(chance.mean())))
        if what == "precision of both"
        else 0.0
    )
    if "recall" in what:
        lower = float((np.cumsum(chance[low]) <= 0.05 * chance.sum()).mean())
    if what == "false-positive rate":
        upper = float((np.cumsum(1 - chance[high]) <= 0.05 * (1 - chance).sum()).mean())
    return min(1.0, upper + lower)


def _longest(right: np.ndarray, level: float) -> float:
    """The share of the longest prefix with at least this mean."""
    enough = np.flatnonzero(np.cumsum(right) >= level * np.arange(1, len(right) + 1) - 1e-9)
    return float((enough[-1] + 1) / len(right)) if len(enough) else 0.0


def cell(job: tuple[str, str, int, int]) -> dict[str, Any]:
    """One population, promise and number of rows: how many of the draws break it, and what is
    accepted on average.
    """
    where, what, n, draws = job
    population = populations()[where]
    promise = PROMISES[what](float(population.chance.mean()))
    rng = np.random.default_rng([n, list(populations()).index(where), list(PROMISES).index(what)])
    with warnings.catch_warnings(action="ignore"):
        learned = what != "accuracy, own decision"
        samples = [population.draw(rng, n) for _ in range(draws)]
        found = [outcome(population, promise, *sample, learned=learned) for sample in samples]
        few = draws // (50 if n > 5000 else 20)
        beside = peers(population, what, samples[:few]) if what in OF_MAPIE else {}
    broken = sum(bool(bad) for bad, _ in found)
    accepted = float(np.mean([share for _, share in found]))
    return {
        "population": where,
        "promise": what,
        "rows": n,
        "draws": draws,
        "broken": broken,
        "accepted": accepted,
        "oracle": oracle(population, what),
        "peers": beside,
        "accepted beside peers": float(np.mean([share for _, share in found[:few]])),
    }


def beside_peers(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each cell with peers what the best of those accepts that keep the promise, and by how much
    we accept more.
    """
    rows = []
    for one in cells:
        room = 3.0 * np.sqrt(DELTA * (1.0 - DELTA))
        valid = {
            name: peer["accepted"]
            for name, peer in one["peers"].items()
            if peer["broken"] / peer["draws"] <= DELTA + room / np.sqrt(peer["draws"])
        }
        if valid and one["oracle"] > 0.001:  # elsewhere whatever is accepted breaks the promise
            best = max(valid, key=lambda name: valid[name])
            known = {name: one[name] for name in ("population", "promise", "rows")}
            ours = {
                "accepted": one["accepted beside peers"],
                "more": one["accepted beside peers"] - valid[best],
            }
            rows.append({**known, **ours, "best peer": best, "it accepts": valid[best]})
    return sorted(rows, key=lambda row: row["more"])


def jobs(draws: int) -> Iterator[tuple[str, str, int, int]]:
    """Every cell."""
    for where, what, n in product(populations(), PROMISES, SIZES):
        yield where, what, n, draws


def main() -> None:
    """Run, and write what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("-o", "--output", default="benchmarks/results/two-sided.json")
    options = parser.parse_args()
    mixed = product(MIXTURES, PER_GROUP, ("together", "each"), (1000, 5000), (options.draws,))
    with ProcessPoolExecutor(options.processes) as pool:
        cells = list(pool.map(cell, jobs(options.draws), chunksize=1))
        groups = list(pool.map(group_cell, mixed, chunksize=1))
    worst = max(cells, key=lambda one: one["broken"] / one["draws"])
    committed = Path("benchmarks/results/two-sided.json")
    before = json.loads(committed.read_text()) if committed.exists() else {}
    beside = beside_peers(cells) or before.get(
        "beside MAPIE", []
    )  # where MAPIE is not installed what stands is kept
    result = {
        "delta": DELTA,
        "worst": worst,
        "beside MAPIE": beside,
        "groups": groups,
        "cells": cells,
    }
    Path(options.output).write_text(json.dumps(result, indent=1) + "\n")
    print(f"worst: {worst}")


if __name__ == "__main__":
    main()
