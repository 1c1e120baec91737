"""How often do the 95% intervals of AUROC, AURC, excess AURC and AUGRC miss the true value?

    python -m benchmarks.area_intervals --data FOLDER [--draws 1000] [--jobs 16] [--out FILE]

A population is a list of scores of incorrect rows, a list of scores of correct rows, and an error
rate. Its true areas are computed from the lists. Samples of several sizes are drawn from it. Each
sample gets the interval of the package and the plain bootstrap interval, the hull of percentile and
basic. The result holds the share of samples whose interval misses the true value, and the mean
width. Samples without a value (AUROC needs both kinds of rows) do not count.

Some populations are made to break the intervals. In "3% of errors first", 97% of the incorrect rows
rank behind all correct rows and 3% rank before them, so that a small sample usually holds none of
the latter.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri

from benchmarks.experiments.pool import in_order
from metacal.metrics.area_intervals import AreaStatistic, WeightedErrorBlocks
from metacal.metrics.binning import Statistic
from metacal.metrics.ranked_errors import Ranking
from metacal.metrics.registry import METRICS
from metacal.metrics.replicates import Target
from metacal.metrics.resampling import Resampling

HERE = Path(__file__).resolve().parent
AREAS = ("auroc", "aurc", "e_aurc", "augrc")
LEVEL = 0.95
LIST_LENGTH = 4_000
#: Expected numbers of incorrect and of correct rows.
COUNTS = (
    (3, 300),
    (10, 300),
    (30, 1000),
    (100, 1000),
    (300, 3000),
    (300, 10),
    (1000, 30),
    (1000, 100),
)
#: Rows that are drawn from a real set.
REAL_ROWS = (50, 200, 1000)
REAL_SETS = (
    "cifar10_resnet110",
    "cifar10_resnet110_paper",
    "imagenet5000_efficientnet_lite0",
    "langid176_sentences",
)


@dataclass(frozen=True, eq=False)
class Population:
    """Scores of incorrect and of correct rows, and the error rate; a higher score means less
    sure.
    """

    incorrect: Any
    correct: Any
    error_rate: float

    def drawn(self, n_rows: int, random: np.random.Generator) -> Ranking:
        """Draw a sample."""
        is_incorrect = random.random(n_rows) < self.error_rate
        from_incorrect = self.incorrect[random.integers(len(self.incorrect), size=n_rows)]
        from_correct = self.correct[random.integers(len(self.correct), size=n_rows)]
        return Ranking(np.where(is_incorrect, from_incorrect, from_correct), ~is_incorrect)

    def areas(self) -> dict[str, float]:
        """Compute the true value of every area."""
        scores, block = np.unique(
            np.concatenate([self.incorrect, self.correct]), return_inverse=True
        )
        n_incorrect = len(self.incorrect)
        incorrect = (
            np.bincount(block[:n_incorrect], minlength=len(scores)) * self.error_rate / n_incorrect
        )
        n_correct = len(self.correct)
        correct = (
            np.bincount(block[n_incorrect:], minlength=len(scores))
            * (1.0 - self.error_rate)
            / n_correct
        )
        stop = np.cumsum(incorrect + correct)[None]
        start = stop - (incorrect + correct)
        blocks = WeightedErrorBlocks(
            total_rows=np.ones((1, 1)),
            rows_before_block=np.maximum(start, 0.0),
            rows_through_block=stop,
            n_errors=incorrect[None],
        )
        any_ranking = Ranking(np.zeros(1), np.ones(1, dtype=np.bool_))
        statistics = {name: METRICS[name].prepare_statistic(any_ranking) for name in AREAS}
        return {
            name: float(area_of(statistic).compute_area(blocks)[0])
            for name, statistic in statistics.items()
        }


def area_of(statistic: Statistic) -> AreaStatistic:
    """Check the type of an area's statistic."""
    assert isinstance(statistic, AreaStatistic)
    return statistic


def normal_scores(mean: float, spread: float) -> Any:
    """Return the quantiles of a normal distribution."""
    return mean + spread * ndtri((np.arange(LIST_LENGTH) + 0.5) / LIST_LENGTH)


def uniform_scores(first: float, share_first: float, other: float) -> Any:
    """Return scores of which a share lies in [first, first + 1] and the others in [other, other +
    1].
    """
    n_first = round(share_first * LIST_LENGTH)
    in_first = first + (np.arange(n_first) + 0.5) / max(n_first, 1)
    n_other = LIST_LENGTH - n_first
    return np.concatenate([in_first, other + (np.arange(n_other) + 0.5) / n_other])


def made_populations(error_rate: float) -> dict[str, Population]:
    """Return the made populations at an error rate."""
    normal = normal_scores(0.0, 1.0)
    uniform = uniform_scores(1.0, 1.0, 0.0)
    found = {
        "no ranking": Population(normal_scores(1e-5, 1.0), normal, error_rate),
        "binormal, distance 1.5": Population(normal_scores(1.5, 0.7), normal, error_rate),
        "binormal, distance 3": Population(normal_scores(3.0, 0.7), normal, error_rate),
        "five scores": Population(np.round(normal_scores(1.5, 1.0)), np.round(normal), error_rate),
    }
    for share in (0.01, 0.03, 0.1, 0.3):
        found[f"{share:.0%} of errors first"] = Population(
            uniform_scores(0.0, share, 3.0), uniform, error_rate
        )
    for share in (0.03, 0.1):
        found[f"{share:.0%} of correct last"] = Population(
            uniform, uniform_scores(3.0, share, 0.0), error_rate
        )
    return found


def real_population(path: Path) -> Population:
    """Read a set of logits. The score is the entropy of the softmax."""
    with np.load(path) as file:
        logits, labels = file["logits"].astype(np.float64), file["labels"]
    logits -= logits.max(axis=1, keepdims=True)
    proba = np.exp(logits)
    proba /= proba.sum(axis=1, keepdims=True)
    entropy = -(proba * np.log(np.maximum(proba, 1e-300))).sum(axis=1)
    is_incorrect = logits.argmax(axis=1) != labels
    return Population(entropy[is_incorrect], entropy[~is_incorrect], float(is_incorrect.mean()))


def plain_bootstrap(statistic: Statistic) -> Target:
    """Hide the type of an area's statistic, so that it is resampled like any other metric."""
    return Target(lambda row_weights: statistic(row_weights))


def measured(name: str, population: Population, n_rows: int, n_draws: int) -> dict[str, Any]:
    """Measure one population at one sample size."""
    random = np.random.default_rng([*name.encode(), n_rows])
    truth = population.areas()
    methods = ("package", "plain")
    missed = {method: dict.fromkeys(AREAS, 0) for method in methods}
    widths = {method: dict.fromkeys(AREAS, 0.0) for method in methods}
    n_defined = dict.fromkeys(AREAS, 0)
    n_incorrect = []
    for draw in range(n_draws):
        ranking = population.drawn(n_rows, random)
        n_incorrect.append(int((~ranking.correct).sum()))
        statistics = {area: METRICS[area].prepare_statistic(ranking) for area in AREAS}
        resampling = Resampling(LEVEL, random_state=draw)
        found = {
            "package": resampling.resample_statistics(
                {area: Target(statistics[area]) for area in AREAS}, n_rows
            ),
            "plain": resampling.resample_statistics(
                {area: plain_bootstrap(statistics[area]) for area in AREAS}, n_rows
            ),
        }
        for area in AREAS:
            if np.isnan(found["package"][area].estimate):
                continue
            n_defined[area] += 1
            for method in methods:
                interval = found[method][area]
                missed[method][area] += (
                    not interval.low - 1e-9 <= truth[area] <= interval.high + 1e-9
                )
                widths[method][area] += interval.high - interval.low
    row: dict[str, Any] = {
        "population": name,
        "rows": n_rows,
        "incorrect": round(float(np.mean(n_incorrect)), 1),
        "correct": round(n_rows - float(np.mean(n_incorrect)), 1),
    }
    for area in AREAS:
        count = max(n_defined[area], 1)
        row[area] = {
            "true": round(truth[area], 5),
            "samples": n_defined[area],
            **{f"missed, {method}": round(missed[method][area] / count, 4) for method in methods},
            **{f"width, {method}": round(widths[method][area] / count, 5) for method in methods},
        }
    return row


def cells(folder: Path, n_draws: int) -> Iterator[tuple[str, Population, int, int]]:
    """Yield the arguments of `measured`."""
    for n_incorrect, n_correct in COUNTS:
        n_rows = n_incorrect + n_correct
        for name, population in made_populations(n_incorrect / n_rows).items():
            yield name, population, n_rows, n_draws
    for name in REAL_SETS:
        population = real_population(folder / f"{name}.npz")
        for n_rows in REAL_ROWS:
            yield name, population, n_rows, n_draws


def summary(rows: list[dict[str, Any]], n_draws: int) -> dict[str, Any]:
    """Find the highest share of misses of each area, and count the cells that exceed chance."""
    tolerated = 1.0 - LEVEL + 3.0 * float(np.sqrt(LEVEL * (1.0 - LEVEL) / n_draws))
    found: dict[str, Any] = {"tolerated": round(tolerated, 4), "cells": len(rows)}
    for area in AREAS:
        # Of populations with three expected errors, many samples have no AUROC.
        cells = [row[area] for row in rows if row[area]["samples"] >= n_draws / 2]
        for method in ("package", "plain"):
            shares = [cell[f"missed, {method}"] for cell in cells]
            above = sum(share > tolerated for share in shares)
            found[f"{area}, {method}"] = {
                "highest": max(shares),
                "cells above": above,
                "of": len(shares),
            }
    return found


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "area-intervals.json")
    options = parser.parse_args()
    rows = []
    for row in in_order(measured, list(cells(options.data, options.draws)), options.jobs):
        rows.append(row)
        print(row, flush=True)
    result = {"draws": options.draws, "summary": summary(rows, options.draws), "populations": rows}
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
