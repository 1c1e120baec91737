"""Broken promises with derived seeds, with the best of 20 seeds, and with the best of 20 shuffles.

The true error rate, or loss, of every population lies just above its limit at every threshold, so a
certificate that accepts anything is broken. delta is 0.1. For each draw of calibration rows:

- *derived*: the default, a seed that is derived from the rows;
- *20 seeds*: random_state=0 to 19, and the certificate that accepts most is taken;
- *20 shuffles*: the default on 20 shuffles of the file, and the certificate that accepts most is
  taken. It is the same certificate each time.

python benchmarks/derived_seeds.py --draws 2000 --jobs 16 --out derived_seeds.json
"""

from __future__ import annotations

import argparse
import json
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np

import metacal as mc
from metacal.certification.clusters import ClusterBettingRule
from metacal.certification.losses import MeanLossLimit
from metacal.certification.one_threshold import OneThresholdProcedure

DELTA, TRIES = 0.1, 20
#: The error rate is this much above what is allowed.
ABOVE = 1.003


def skip_explanations() -> None:
    """Replace the search for the best certifiable limit, which changes no certificate, by
    nothing.
    """

    def infeasible(*_: Any) -> mc.InfeasibleTargetError:
        return mc.InfeasibleTargetError("infeasible", target=0.1)

    MeanLossLimit._infeasible = infeasible  # type: ignore[method-assign]
    ClusterBettingRule.find_highest_certified_accuracy = lambda *_: None  # type: ignore[method-assign]
    OneThresholdProcedure._build_infeasible_error = infeasible  # type: ignore[method-assign]


class Columns(dict[str, Any]):
    """Arguments of `ScoreGate.fit`, one column each."""

    def ordered(self, rows: np.ndarray[Any, Any]) -> Columns:
        """Return the same rows in another order."""
        return Columns({name: column[rows] for name, column in self.items()})


def one_row_of_each_unit(rng: np.random.Generator) -> tuple[Columns, dict[str, Any]]:
    """Draw 300 units of 8 rows. Rows of one unit err independently, so each seed sees other
    rows.
    """
    n = 2400
    score, correct = rng.random(n), rng.random(n) > 0.1 * ABOVE
    return Columns(score=score, correct=correct, units=np.repeat(np.arange(300), 8)), {}


def whole_units(rng: np.random.Generator) -> tuple[Columns, dict[str, Any]]:
    """Draw 400 units of 5 rows, all of which count."""
    n = 2000
    score, correct = rng.random(n), rng.random(n) > 0.1 * ABOVE
    return Columns(score=score, correct=correct, units=np.repeat(np.arange(400), 5)), {"per": "row"}


def importance(rng: np.random.Generator) -> tuple[Columns, dict[str, Any]]:
    """Draw rows that are kept with probability 1/4 or 1."""
    n = 1500
    score, correct = rng.random(n), rng.random(n) > 0.1 * ABOVE
    return Columns(score=score, correct=correct, importance=rng.choice([0.25, 1.0], n)), {}


def max_risk(rng: np.random.Generator) -> tuple[Columns, dict[str, Any]]:
    """Draw graded losses, whose order of bets is random."""
    n = 1000
    return Columns(score=rng.random(n), loss=rng.beta(0.2, 1.8 / ABOVE - 0.2, n)), {}


def near_binary(rng: np.random.Generator) -> tuple[Columns, dict[str, Any]]:
    """Draw losses that are rounded at random."""
    n = 1000
    loss = np.where(
        rng.random(n) < 0.5, rng.random(n) < 0.1 * ABOVE, rng.beta(0.2, 0.2 * (10 / ABOVE - 1), n)
    )
    return Columns(score=rng.random(n), loss=loss.astype(float)), {"near_binary": True}


def few_marks(rng: np.random.Generator) -> tuple[Columns, dict[str, Any]]:
    """Draw scores with five values, of which pilot rows choose the first to test."""
    n = 1000
    return Columns(score=rng.integers(5, size=n) / 4.0, correct=rng.random(n) > 0.1 * ABOVE), {}


POPULATIONS = {
    population.__name__: population
    for population in (
        one_row_of_each_unit,
        whole_units,
        importance,
        max_risk,
        near_binary,
        few_marks,
    )
}


def accepted(
    columns: Columns, options: dict[str, Any], random_state: int | None = None
) -> tuple[int, float]:
    """Return how many rows a certificate accepts, and its threshold; nothing if there is none."""
    given = dict(columns)
    promise: Any = mc.MinAccuracy(0.9, DELTA)
    if "loss" in given:
        promise = mc.MaxRisk(0.1, DELTA, options.get("near_binary", False), random_state)
    if "per" in options:
        given["units"] = mc.Units(given["units"], per=options["per"], largest=5)
    if "importance" in given:
        given["importance"] = mc.Importance(given["importance"], largest=1.0)
    try:
        gate = mc.ScoreGate(promise, higher_is="doubtful").fit(**given, random_state=random_state)
    except mc.InfeasibleTargetError:
        return 0, -np.inf
    return gate.certificate_.n_accepted, gate.threshold_


def one_draw(name: str, tries: int, draw: int) -> dict[str, bool]:
    """Return which certificates of one draw are broken, and whether all shuffles agree."""
    warnings.simplefilter("ignore")
    skip_explanations()
    rng = np.random.default_rng([draw, 39])
    columns, options = POPULATIONS[name](rng)
    n = len(columns["score"])
    derived = accepted(columns, options)
    found = {"derived": derived[0] > 0}
    if tries:
        seeds = [accepted(columns, options, seed)[0] for seed in range(tries)]
        shuffles = [accepted(columns.ordered(rng.permutation(n)), options) for _ in range(tries)]
        orders = [
            np.argsort(columns["score"]),
            np.argsort(columns["score"])[::-1],
            np.arange(n)[::-1],
        ]
        shuffles += [accepted(columns.ordered(order), options) for order in orders]
        found["20 seeds"] = max(seeds) > 0
        found["20 shuffles"] = max(shuffle[0] for shuffle in shuffles) > 0
        found["every order agrees"] = all(shuffle == derived for shuffle in shuffles)
    return found


def main() -> None:
    """Print, and with --out write, the share of broken promises."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument(
        "--searched", type=int, default=200, help="draws with 20 seeds and 20 shuffles"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", choices=POPULATIONS, help="one population")
    parser.add_argument("--out")
    options = parser.parse_args()
    results: dict[str, Any] = {"delta": DELTA, "draws": options.draws, "searched": options.searched}
    with ProcessPoolExecutor(options.jobs) as pool:
        for name in [options.only] if options.only else POPULATIONS:
            found = list(pool.map(partial(one_draw, name, 0), range(options.draws), chunksize=16))
            searched = list(
                pool.map(partial(one_draw, name, TRIES), range(options.searched), chunksize=4)
            )
            rates = {"derived": float(np.mean([one["derived"] for one in found]))}
            for kind in ("20 seeds", "20 shuffles", "every order agrees"):
                rates[kind] = float(np.mean([one[kind] for one in searched])) if searched else None
            results[name] = rates
            print(name, rates, flush=True)
    limit = DELTA + 3.0 * np.sqrt(DELTA * (1.0 - DELTA) / options.draws)
    results["limit"] = float(limit)
    print(f"limit, delta + 3 standard errors: {limit:.4f}")
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
