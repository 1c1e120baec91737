"""Rows that belong together: how often `verify` refutes a promise that is kept, and how often a
watch alarms.

    python -m benchmarks.units [--gates 400] [--jobs 16] [--out benchmarks/results/units.json]

A unit has a difficulty of its own, and its rows come out nearly alike: nine of ten rows are right
or wrong together. Gates are certified on 300 units (selective accuracy 90%, delta .1), of 20 rows
each or of 1 to 40 where units with many rows err more, about a random row of a random unit and
about rows. Each is then verified on 60 further units, and watched over them: from the same source;
from one in which units are wrong so much more often that the promise is kept exactly (by 20,000
units of it), which is the hardest case that must not be refuted, nor raise the promise alarm; and
from one in which units are wrong more often than that by .15. `as rows` is what `verify` says if it
takes rows for independent.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import metacal as mc
from benchmarks.experiments.pool import in_order

BETA, UNITS, NEW, TRUTH, DROP = 0.9, 300, 60, 20_000, 0.15
RESULTS = Path(__file__).parent / "results" / "units.json"
SIZES = ("20 rows each", "1 to 40 rows")


def chances(
    rng: np.random.Generator, n: int, sizes: str, drop: float = 0.0
) -> tuple[Any, Any, Any]:
    """Of n units: the unit of each row, how easy each is, and the chance that it is right."""
    rows = np.full(n, 20) if sizes == SIZES[0] else rng.integers(1, 41, n)
    ease = rng.normal(size=n) - (0.0 if sizes == SIZES[0] else 0.02) * rows
    return (
        np.repeat(np.arange(n), rows),
        ease,
        np.clip(1.0 / (1.0 + np.exp(-(3.2 + 1.6 * ease))) - drop, 0.0, 1.0),
    )


def drawn(rng: np.random.Generator, n: int, sizes: str, drop: float = 0.0) -> tuple[Any, Any, Any]:
    """Scores, whether rows are right, and their units."""
    unit, ease, chance = chances(rng, n, sizes, drop)
    alike, own = rng.random(len(unit)) < 0.9, rng.random(len(unit)) < chance[unit]
    right = np.where(alike, (rng.random(n) < chance)[unit], own)
    return ease[unit] + 0.3 * rng.normal(size=len(unit)), right, unit


def spare(gate: Any, per: str, sizes: str) -> float:
    """By how much units may be wrong more often until the promise is kept exactly; negative where
    it is broken.
    """
    rng = np.random.default_rng(99)
    unit, ease, chance = chances(rng, TRUTH, sizes)
    accept = gate.decide(ease[unit] + 0.3 * rng.normal(size=len(unit))).accept
    weight = accept / (1.0 if per == "row" else np.bincount(unit)[unit])
    by_unit, low, high = np.bincount(unit, weight), -1.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2.0
        enough = (by_unit * np.clip(chance - middle, 0.0, 1.0)).sum() >= BETA * by_unit.sum()
        low, high = (middle, high) if enough else (low, middle)
    return low


def one(seed: int, per: Any, sizes: str) -> dict[str, bool] | None:
    """One gate; None where nothing could be certified."""
    rng = np.random.default_rng([seed, len(sizes), len(per)])
    score, right, unit = drawn(rng, UNITS, sizes)
    most = (40 if sizes == SIZES[1] else 20) if per == "row" else None
    try:
        scored = mc.ScoreGate(mc.MinAccuracy(BETA)).fit(
            score, right, units=mc.Units(unit, per=per, largest=most)
        )
    except mc.InfeasibleTargetError:
        return None
    limit = spare(scored.gate_, per, sizes)
    found = {"kept": limit >= 0.0}
    for source, drop in (("same", 0.0), ("limit", limit), ("drop", limit + DROP)):
        score, right, unit = drawn(rng, NEW, sizes, drop)
        raised = mc.Watch.of(scored).update(score, right.astype(int), units=unit).raised
        found |= {f"{source} any": bool(raised), f"{source} promise": "promise" in raised}
        found[f"{source} refuted"] = mc.verify(scored, score, right, units=unit).refuted
        found[f"{source} as rows"] = mc.verify(scored, score, right).refuted
    return found


def rates(found: list[dict[str, bool]]) -> dict[str, float | int]:
    """Shares of the gates, of all but those that break their promise."""
    keep = [one for one in found if one["kept"]]
    shares = {
        name: round(float(np.mean([one[name] for one in keep])), 4)
        for name in keep[0]
        if name != "kept"
    }
    return {"gates": len(found), "broken": round(1.0 - len(keep) / len(found), 4), **shares}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gates", type=int, default=400)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    cells = [(per, sizes) for per in ("unit", "row") for sizes in SIZES]
    tasks = [(seed, *cell) for cell in cells for seed in range(options.gates)]
    found = list(in_order(one, tasks, options.jobs))
    result = {"units": UNITS, "new": NEW, "beta": BETA, "drop": DROP, "level": 0.05, "cells": []}
    for k, (per, sizes) in enumerate(cells):
        own = [
            each for each in found[k * options.gates : (k + 1) * options.gates] if each is not None
        ]
        result["cells"].append({"per": per, "sizes": sizes, **rates(own)})
        print(result["cells"][-1], flush=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
