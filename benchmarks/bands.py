"""Behind metacal.statistics.levels and .bands: the table of local levels, how often true curves
leave their bands.

python -m benchmarks.bands levels        # print the table of metacal.statistics.levels (about 5
minutes) python -m benchmarks.bands exits         # results/bands.json: 500 draws of 1,000 and 5,000
rows from each set, and
                                         # 2,000 draws of 20 to 300 rows from each of the populations that are hardest
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, gammaln

from benchmarks.experiments.pool import in_order
from benchmarks.score_populations import HARD_POPULATIONS, Population, TablePopulation, drawn_exits
from metacal import datasets
from metacal.rows import Rows
from metacal.scores import score_rows
from metacal.statistics.levels import TABLE_LEVELS

HERE = Path(__file__).resolve().parent
DRAWS, DELTA = 500, 0.1
HARD_DRAWS, HARD_SIZES = 2000, (20, 50, 100, 300)


def exit_probability(n: int, level: float) -> float:
    """P(U_(i) < L_i for some i) with L_i the `level` quantile of the i-th of n uniform order
    statistics, exactly.

    U_(i) >= L_i for all i means that of the n uniforms at most i - 1 lie below L_i. Counts of a
    Poisson process of rate n have independent increments, and given n points in all they are those
    of the uniforms: carry the law of the count from L_1 to L_n by convolution, cutting off what
    exceeds i - 1 at each step, and divide by P(Poisson(n) = n) (Moscovich, Nadler & Spiegelman
    2016). Tails below 1e-20 are dropped, which can only raise the answer. O(n^1.5); 0.1 s for n =
    4,000.

    >>> round(exit_probability(1, 0.01), 6), round(exit_probability(100, 0.001), 6)
    (0.01, 0.023125)
    """
    ranks = np.arange(1, n + 1)
    limits = betaincinv(ranks, n + 1 - ranks, level)
    log_factorial = gammaln(np.arange(n + 100) + 1.0)
    law, first, log_mass, reached = np.ones(1), 0, 0.0, 0.0
    for rank, limit in zip(ranks, limits):
        step = _poisson(n * (limit - reached), n, log_factorial)
        law, reached = np.convolve(law, step)[: rank - first], limit
        mass = law.sum()
        telling = np.flatnonzero(law > 1e-20 * mass)
        law = law[telling[0] : telling[-1] + 1] / mass
        first, log_mass = first + int(telling[0]), log_mass + math.log(mass)
    rest = n - first - np.arange(len(law))
    mean = n * (1.0 - reached)
    last = np.exp(rest * math.log(mean) - mean - log_factorial[rest])
    whole = n * math.log(n) - n - log_factorial[n]
    return float(1.0 - (law * last).sum() * math.exp(log_mass - whole))


def _poisson(mean: float, n: int, log_factorial: NDArray[np.float64]) -> NDArray[np.float64]:
    """P(Poisson(mean) = k), k = 0, 1, … as far as it matters."""
    count = np.arange(min(int(mean + 12.0 * math.sqrt(mean) + 25.0), n + 1))
    return np.asarray(np.exp(count * math.log(mean) - mean - log_factorial[count]))


def print_levels() -> None:
    """-log(1 - exit probability) / level for n = 1, 2, 4, …, 65,536, as the module's file has
    it.
    """
    for power in range(17):
        exits = [-np.log1p(-exit_probability(2**power, level)) / level for level in TABLE_LEVELS]
        print(",".join([f"order {2**power}", *(f"{value:.5g}" for value in exits)]), flush=True)


def exits_of_set(name: str, n_rows: int) -> dict[str, object]:
    """Measure how often the true curves of a data set leave their bands."""
    data = datasets.load(name, folder=None if name in datasets.names() else HERE / "data")
    scores = score_rows(Rows(data.logits), "entropy")
    correct = data.logits.argmax(axis=1) == data.labels
    population = TablePopulation.of(scores, correct)
    return {"set": name, "n": n_rows, **exit_rates(population, n_rows, DRAWS)}


def exits_of_population(name: str, n_rows: int) -> dict[str, object]:
    """Measure how often the true curves of a population made for it leave their bands."""
    rates = exit_rates(HARD_POPULATIONS[name], n_rows, HARD_DRAWS)
    return {"population": name, "n": n_rows, **rates}


def exit_rates(population: Population, n_rows: int, draws: int) -> dict[str, float]:
    """Measure the share of draws in which each curve, and any of them, leaves its band anywhere."""
    rng = np.random.default_rng(n_rows)
    found = [drawn_exits(population, n_rows, DELTA, rng) for _ in range(draws)]
    names = ("miscoverage", "accuracy", "coverage", "any")
    return {
        name: round(float(np.mean([getattr(exits, name) for exits in found])), 4) for name in names
    }


def main() -> None:
    """Print the table of levels, or write how often curves leave their bands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("levels", "exits"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "bands.json")
    options = parser.parse_args()
    if options.what == "levels":
        print_levels()
        return
    sets = (*datasets.names(), *datasets.names(folder=HERE / "data"))
    set_tasks = [(name, n_rows) for name in sets for n_rows in (1000, 5000)]
    hard_tasks = [(name, n_rows) for name in HARD_POPULATIONS for n_rows in HARD_SIZES]
    document = {
        "draws": DRAWS,
        "delta": DELTA,
        "rows": list(in_order(exits_of_set, set_tasks, options.jobs)),
        "hard draws": HARD_DRAWS,
        "hard": list(in_order(exits_of_population, hard_tasks, options.jobs)),
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
