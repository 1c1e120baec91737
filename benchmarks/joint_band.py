"""AfterLooking: how often the joint band on an accuracy is left, and how much is accepted under it.

    python -m benchmarks.joint_band --data FOLDER [--jobs 16] [--out benchmarks/results/joint-band.json]

Violations: 2,000 draws from each of more than forty populations of n = 300, 1,000 and 5,000 rows, where the chance of
an error is the same for all rows (flat), rises, falls, steps or goes up and down with the score, or is that of a logits
file; the share of draws in which the true accuracy of what some threshold accepts lies below its bound. Coverage: of
`AfterLooking(beta=...)` on each file, as a share of the oracle's, with the band that it had before.
About 3 minutes on 16 cores.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr

from benchmarks.accuracy_rule import columns
from benchmarks.experiments.pool import in_order
from metacal.promises.rules.bands import certified_accuracy, lowest_accuracy, run_ends
from metacal.promises.rules.levels import joint_levels, local_level, quantiles_at

HERE = Path(__file__).resolve().parent
DELTA, SIZES, DRAWS = 0.1, (300, 1000, 5000), 2000
FLAT = (0.5, 0.4, 0.3, 0.2, 0.1, 0.05)

Column = NDArray[np.float64]
#: The chance of an error at a score between 0 and 1.
CHANCES: dict[str, Callable[[Column], Column]] = {
    **{f"flat {r:g}": lambda u, r=r: np.full(len(u), r) for r in FLAT},
    **{f"rising {a:g} to {b:g}": lambda u, a=a, b=b: a + (b - a) * u for a in (0.0, 0.1) for b in (0.3, 0.6, 0.9)},
    **{f"falling {a:g} to {b:g}": lambda u, a=a, b=b: a + (b - a) * u for a in (0.3, 0.6, 0.9) for b in (0.0, 0.1)},
    **{f"power {p:g}": lambda u, p=p: u**p for p in (0.5, 2.0, 4.0, 8.0, 16.0)},
    **{f"step at {s:g}": lambda u, s=s: np.where(u < s, 0.02, 0.5) for s in (0.01, 0.1, 0.5, 0.9)},
    **{f"step down at {s:g}": lambda u, s=s: np.where(u < s, 0.5, 0.02) for s in (0.01, 0.1, 0.5)},
    "four steps": lambda u: np.select([u < 0.3, u < 0.6, u < 0.85], [0.002, 0.02, 0.1], 0.6),
    **{f"waves of {k}": lambda u, k=k: 0.25 + 0.24 * np.sin(2 * np.pi * k * u) for k in (1, 3, 10, 30)},
    **{f"late waves of {k}": lambda u, k=k: 0.25 - 0.24 * np.cos(2 * np.pi * k * np.log(u + 1e-9)) for k in (1, 2)},
}


def drawn_from(name: str, truth: tuple[Column, Column] | None, n: int, rng: np.random.Generator) -> tuple[Column, ...]:
    """Scores, errors, and the true error rate below any score, at a fine grid of scores."""
    if truth is None:
        u = rng.random(n)
        return u, rng.random(n) < CHANCES[name](u)
    rows = rng.integers(0, len(truth[0]), n)
    return truth[0][rows], truth[1][rows]


def violations(name: str, path: str | None, n: int) -> dict[str, Any]:
    """The share of draws in which the truth lies below its bound at some threshold."""
    truth = None
    if path is None:
        grid = (np.arange(200_000) + 0.5) / 200_000
        rates = np.cumsum(CHANCES[name](grid)) / np.arange(1, len(grid) + 1)
    else:
        scores, correct = columns(Path(path))
        truth = scores, ~correct
        grid, rates = scores, np.cumsum(~correct) / np.arange(1, len(scores) + 1)
    largest, rng, left = joint_levels(n, DELTA)[1].max(), np.random.default_rng([n, sum(map(ord, name))]), 0
    for _ in range(DRAWS):
        score, wrong = drawn_from(name, truth, n, rng)
        order = np.argsort(score, kind="stable")
        score, errors = score[order], np.cumsum(wrong[order])
        ranks = np.arange(1, n + 1)
        below = np.append(score[1:], np.inf)  # the widest threshold that accepts the same rows
        at = np.searchsorted(grid, below) - 1
        own = np.searchsorted(grid, score, side="right") - 1
        worst = np.maximum(rates[np.maximum(at, 0)], rates[np.maximum(own, 0)])
        # No bound can fail where the truth is not unlikely at the largest of the levels.
        close = np.flatnonzero((bdtr(errors, ranks, worst) <= 1.001 * largest) & (below > score))
        bound = lowest_accuracy(ranks[close] - errors[close], errors[close], n, DELTA)
        left += bool((worst[close] > 1.0 - bound + 1e-12).any())
    return {"population": name, "n": n, "left": round(left / DRAWS, 4)}


def former_bound(scores: Column, correct: NDArray[np.bool_], at: Column, delta: float) -> Column:
    """The bound before: two bands on distribution functions, at .8 and .2 of half of delta."""
    n, (right, wrong) = len(scores), (np.searchsorted(np.sort(scores[own]), at, "right") for own in (correct, ~correct))
    low = quantiles_at(right, n, local_level(n, 0.2 * delta / 2))
    high = 1.0 - quantiles_at(n - wrong, n, local_level(n, 0.8 * delta / 2))
    return low / (low + high)


def coverage(path: str, n: int, beta: float, draws: int = 400) -> dict[str, Any]:
    """What is accepted, before and now, as a share of the oracle's, and how often the promise is broken."""
    scores, correct = columns(Path(path))
    values, codes = np.unique(scores, return_inverse=True)
    rows, right = np.cumsum(np.bincount(codes)), np.cumsum(np.bincount(codes, correct))
    kept = np.flatnonzero(right >= beta * rows)
    oracle = int(rows[kept[-1]]) if len(kept) else 0
    rng, found = np.random.default_rng([n, int(1000 * beta)]), {"before": [], "now": []}
    broken = 0
    for _ in range(draws if 0.05 * len(scores) < oracle < len(scores) else 0):
        drawn = rng.integers(0, len(scores), n)
        at = run_ends(scores[drawn], correct[drawn])
        for name, bound in (("before", former_bound), ("now", certified_accuracy)):
            good = np.flatnonzero(bound(scores[drawn], correct[drawn], at, DELTA) >= beta)
            last = int(np.searchsorted(values, at[good[-1]], side="right")) - 1 if len(good) else -1
            accepted = int(rows[last]) if last >= 0 else 0
            found[name].append(min(1.0, accepted / oracle))
            broken += name == "now" and last >= 0 and right[last] < beta * rows[last] - 1e-9
    shares = {name: round(float(np.mean(own)), 4) if own else None for name, own in found.items()}
    return {"set": Path(path).stem, "n": n, "beta": beta, **shares, "broken": round(broken / draws, 4)}


def main() -> None:
    """Measure, print the summary, write the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "joint-band.json")
    options = parser.parse_args()
    files = sorted(map(str, options.data.glob("*.npz")))
    sources = [(name, None) for name in CHANCES] + [(Path(path).stem, path) for path in files]
    band = list(in_order(violations, [(*source, n) for n in SIZES for source in sources], options.jobs))
    asked = [(path, n, beta) for path in files for n in SIZES for beta in (0.95, 0.97)]
    kept = [row for row in in_order(coverage, asked, options.jobs) if row["now"] is not None]
    summary = []
    for n, beta in dict.fromkeys((row["n"], row["beta"]) for row in kept):
        own = [row for row in kept if (row["n"], row["beta"]) == (n, beta)]
        before, now = (round(float(np.mean([row[key] for row in own])), 4) for key in ("before", "now"))
        summary.append({"n": n, "beta": beta, "sets": len(own), "before": before, "now": now})
    worst = max(band, key=lambda row: row["left"])
    flat = min(row["left"] for row in band if row["population"] == "flat 0.5")
    print(f"{len(sources)} populations; worst {worst}; flat 0.5 at least {flat}")
    print(*summary, sep="\n")
    document = {"draws": DRAWS, "delta": DELTA, "populations": len(sources), "band": band, "coverage": kept}
    text = json.dumps({**document, "summary": summary}, indent=1)
    options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
