"""Measure the band on the selective accuracy: how often it is left, and how much it accepts.

    python -m benchmarks.joint_band --data FOLDER [--jobs 16] [--out
    benchmarks/results/joint-band.json]

Exits: 2,000 draws of 20 to 1,000 rows and 1,000 draws of 5,000 rows from each population. The error
rate is the same for all rows (flat), rises, falls, steps or goes up and down with the score, is
drawn at random, or is that of a logits file. `score_populations.HARD_POPULATIONS` holds the ones on
which a band that was calibrated by simulation failed. Each side of the band has all of delta. A
side is left if the true selective accuracy lies beyond it at any threshold, including those between
two scores of the sample.

Coverage: of `AfterLooking(beta=...)` on each file, as a share of the coverage of the best threshold
for the whole file, with this band and with two bands on distribution functions.

About 4 minutes on 16 cores.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy_rule import columns
from benchmarks.experiments.pool import in_order
from benchmarks.score_populations import (
    HARD_POPULATIONS,
    Flags,
    Floats,
    Population,
    StepPopulation,
    TablePopulation,
    accepted_counts,
    log_likelihood_ratio,
)
from metacal.statistics.accepted_counts import find_candidate_thresholds
from metacal.statistics.bands import largest_supporting_threshold
from metacal.statistics.levels import local_level, uniform_order_statistic_quantiles
from metacal.statistics.selective_accuracy import bound_selective_accuracy

HERE = Path(__file__).resolve().parent
DELTA = 0.1
#: Draws of each population, and of the largest samples, which take longest.
DRAWS, LARGE_DRAWS, LARGE = 2000, 1000, 5000
SIZES = (20, 50, 100, 300, 1000, 5000)
COVERAGE_SIZES, TARGETS, COVERAGE_DRAWS = (100, 300, 1000, 5000), (0.9, 0.95, 0.97), 400
RANDOM_POPULATIONS = 32

#: Error rate at a score between 0 and 1.
ERROR_RATES: dict[str, Callable[[Floats], Floats]] = {
    **{f"flat {r:g}": lambda u, r=r: np.full(len(u), r) for r in (0.5, 0.4, 0.3, 0.2, 0.1, 0.05)},
    **{
        f"rising {a:g} to {b:g}": lambda u, a=a, b=b: a + (b - a) * u
        for a in (0.0, 0.1)
        for b in (0.3, 0.6, 0.9)
    },
    **{
        f"falling {a:g} to {b:g}": lambda u, a=a, b=b: a + (b - a) * u
        for a in (0.3, 0.6, 0.9)
        for b in (0.0, 0.1)
    },
    **{f"power {p:g}": lambda u, p=p: u**p for p in (0.5, 2.0, 4.0, 8.0, 16.0)},
    **{f"step at {s:g}": lambda u, s=s: np.where(u < s, 0.02, 0.5) for s in (0.01, 0.1, 0.5, 0.9)},
    **{f"step down at {s:g}": lambda u, s=s: np.where(u < s, 0.5, 0.02) for s in (0.01, 0.1, 0.5)},
    "four steps": lambda u: np.select([u < 0.3, u < 0.6, u < 0.85], [0.002, 0.02, 0.1], 0.6),
    **{
        f"waves of {k}": lambda u, k=k: 0.25 + 0.24 * np.sin(2 * np.pi * k * u)
        for k in (1, 3, 10, 30)
    },
    **{
        f"late waves of {k}": lambda u, k=k: 0.25 - 0.24 * np.cos(2 * np.pi * k * np.log(u))
        for k in (1, 2)
    },
}


def smooth_population(error_rate: Callable[[Floats], Floats]) -> StepPopulation:
    """Approximate an error rate by steps that are narrow at the sure end."""
    edges = np.unique(
        np.concatenate([[0.0], np.geomspace(1e-5, 1.0, 300), np.linspace(0.0, 1.0, 401)])
    )
    middles = (edges[1:] + edges[:-1]) / 2.0
    return StepPopulation(edges=edges, error_rates=error_rate(middles))


def random_population(seed: int) -> StepPopulation:
    """Draw a population of one to five steps. Half have error rates 0 and 1, a quarter have
    ties.
    """
    rng = np.random.default_rng(seed)
    n_steps = int(rng.integers(1, 6))
    inner_edges = np.sort(rng.random(n_steps) ** rng.choice([1.0, 3.0]))
    error_rates = rng.random(n_steps + 1)
    if seed % 2:
        error_rates = np.round(error_rates)
    return StepPopulation.of(inner_edges.tolist(), error_rates.tolist(), tied=seed % 4 == 0)


def population_named(name: str, path: str | None) -> Population:
    """Return a population by its name, or that of a logits file."""
    if path is not None:
        return TablePopulation.of(*columns(Path(path)))
    if name in HARD_POPULATIONS:
        return HARD_POPULATIONS[name]
    if name in ERROR_RATES:
        return smooth_population(ERROR_RATES[name])
    return random_population(int(name.removeprefix("random ")))


def exits(name: str, path: str | None, n_rows: int) -> dict[str, Any]:
    """Measure the share of draws in which the true accuracy lies below or above its bound."""
    population = population_named(name, path)
    rng = np.random.default_rng([n_rows, sum(map(ord, name))])
    n_below = n_above = 0
    draws = LARGE_DRAWS if n_rows >= LARGE else DRAWS
    for _ in range(draws):
        scores, correct = population.draw(n_rows, rng)
        thresholds = population.extreme_thresholds(scores)
        accuracy = population.curves(thresholds).accuracy
        n_accepted, n_correct = accepted_counts(scores, correct, thresholds)
        # The band is constant where the counts are, so only the extremes of the truth matter there.
        starts = np.flatnonzero(np.diff(n_accepted, prepend=-1))
        lowest = np.minimum.reduceat(accuracy, starts)
        highest = np.maximum.reduceat(accuracy, starts)
        n_correct = n_correct[starts]
        n_incorrect = n_accepted[starts] - n_correct
        n_below += _exceeds(n_correct, n_incorrect, lowest, n_rows)
        n_above += _exceeds(n_incorrect, n_correct, 1.0 - highest, n_rows)
    return {
        "population": name,
        "n": n_rows,
        "left": round(n_below / draws, 4),
        "left above": round(n_above / draws, 4),
    }


def _exceeds(n_hits: np.ndarray, n_misses: np.ndarray, truth: Floats, n_rows: int) -> bool:
    """Check whether a lower bound on the share of hits exceeds the truth at any threshold."""
    n_accepted = n_hits + n_misses
    log_ratio = log_likelihood_ratio(n_hits, n_accepted, truth)
    # A bound exceeds the truth only if this reaches log(1 / DELTA). Some slack is left for
    # mistakes.
    is_doubtful = (n_hits > truth * n_accepted) & (log_ratio >= -0.7 * np.log(DELTA))
    doubtful = np.flatnonzero(is_doubtful)
    bound = bound_selective_accuracy(n_hits[doubtful], n_misses[doubtful], n_rows, DELTA)
    return bool((bound > truth[doubtful] + 1e-12).any())


def threshold_of_two_bands(scores: Floats, correct: Flags, beta: float) -> float | None:
    """Find the largest threshold that two bands on distribution functions support.

    The bands bound the shares of correct and of incorrect rows below a threshold, at .2 and .8 of
    half of delta.
    """
    thresholds = find_candidate_thresholds(scores, correct)
    n_rows = len(scores)
    n_accepted, n_correct = accepted_counts(scores, correct, thresholds)
    n_incorrect = n_accepted - n_correct
    lowest_correct = uniform_order_statistic_quantiles(
        n_correct, n_rows, local_level(n_rows, 0.2 * DELTA / 2)
    )
    level = local_level(n_rows, 0.8 * DELTA / 2)
    highest_incorrect = 1.0 - uniform_order_statistic_quantiles(n_rows - n_incorrect, n_rows, level)
    supported = lowest_correct / (lowest_correct + highest_incorrect) >= beta
    return float(thresholds[supported][-1]) if supported.any() else None


def threshold_of_joint_band(scores: Floats, correct: Flags, beta: float) -> float | None:
    """Find the largest threshold that the band on the selective accuracy supports."""
    return largest_supporting_threshold(scores, correct, beta, DELTA)


#: The key of each rule in the results.
RULES = {"before": threshold_of_two_bands, "now": threshold_of_joint_band}


def coverage(path: str, n_rows: int, beta: float) -> dict[str, Any] | None:
    """Measure coverage as a share of the best, and how often a promise is broken.

    Returns None if the best threshold of the file accepts everything or next to nothing.
    """
    population = TablePopulation.of(*columns(Path(path)))
    reaches = np.flatnonzero(population.n_correct >= beta * population.n_rows)
    best = int(population.n_rows[reaches[-1]]) if len(reaches) else 0
    n_population = len(population.scores)
    if not 0.05 * n_population < best < n_population:
        return None
    rng = np.random.default_rng([n_rows, int(1000 * beta)])
    shares: dict[str, list[float]] = {name: [] for name in RULES}
    n_broken = dict.fromkeys(RULES, 0)
    for _ in range(COVERAGE_DRAWS):
        scores, correct = population.draw(n_rows, rng)
        for name, rule in RULES.items():
            threshold = rule(scores, correct, beta)
            if threshold is None:
                shares[name].append(0.0)
                continue
            truth = population.curves(np.array([threshold]))
            shares[name].append(min(1.0, float(truth.coverage[0]) * n_population / best))
            n_broken[name] += bool(truth.accuracy[0] < beta - 1e-12)
    return {
        "set": Path(path).stem,
        "n": n_rows,
        "beta": beta,
        **{name: round(float(np.mean(values)), 4) for name, values in shares.items()},
        "broken": round(n_broken["now"] / COVERAGE_DRAWS, 4),
    }


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Average the coverage over the files, for each size and target."""
    summary = []
    for n_rows, beta in dict.fromkeys((row["n"], row["beta"]) for row in rows):
        same = [row for row in rows if (row["n"], row["beta"]) == (n_rows, beta)]
        means = {name: round(float(np.mean([row[name] for row in same])), 4) for name in RULES}
        summary.append({"n": n_rows, "beta": beta, "sets": len(same), **means})
    return summary


def logits_files(folder: Path) -> list[str]:
    """Return the files of a folder that hold logits."""
    found = []
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as file:
            if "logits" in file.files:
                found.append(str(path))
    return found


def main() -> None:
    """Measure, print the summary, write the records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "joint-band.json")
    options = parser.parse_args()
    files = logits_files(options.data)
    names = [
        *HARD_POPULATIONS,
        *ERROR_RATES,
        *(f"random {seed}" for seed in range(RANDOM_POPULATIONS)),
    ]
    sources = [
        *((name, None) for name in dict.fromkeys(names)),
        *((Path(path).stem, path) for path in files),
    ]
    # The largest samples take longest, so they are drawn first.
    exit_tasks = [(*source, n_rows) for n_rows in reversed(SIZES) for source in sources]
    band = list(in_order(exits, exit_tasks, options.jobs))
    coverage_tasks = [
        (path, n, beta) for n in reversed(COVERAGE_SIZES) for path in files for beta in TARGETS
    ]
    rows = [row for row in in_order(coverage, coverage_tasks, options.jobs) if row is not None]
    rows.sort(key=lambda row: (row["n"], row["beta"], row["set"]))
    summary = summarise(rows)
    worst = max(band, key=lambda row: max(row["left"], row["left above"]))
    print(f"{len(sources)} populations; the band was left most often by {worst}")
    print(*summary, sep="\n")
    document = {
        "draws": DRAWS,
        "delta": DELTA,
        "populations": len(sources),
        "band": band,
        "coverage": rows,
    }
    text = json.dumps({**document, "summary": summary}, indent=1)
    options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
