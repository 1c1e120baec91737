"""Graded losses: how much `MaxRisk` accepts, how often one test passes, how often a limit is exceeded.

    python -m benchmarks.graded_losses [--draws 200] [--adversary-draws 2000] [--jobs 16] [-o RESULT.json]

`populations`: accepted share of the rows, as a share of the oracle's, which is the largest part of
the ranking that keeps the limit. "rule" is `MaxRisk`, with ten pilot rows; "former" is the rule
before it, with stakes of constant size and a later start, on the same tested rows. The starts of the
rule were chosen on fifteen populations with these names. Their exact definitions were not kept, so
they were reconstructed from their names, the oracle's share, and the shares that the former rule and
the best start reach at three sizes. `near binary`: populations whose losses are nearly all 0 or 1,
certified by rounding and by bets; it shows below which n · limit `near_binary=True` should round.
`tests`: how often one test passes, for losses with a mean below the limit and at it. `adversaries`: how
often what is accepted has a mean loss above the limit, for populations just above it, everywhere or in
places.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.experiments.pool import in_order
from metacal.certification.pilot import PilotPolicy
from metacal.certification.ranking import Ranking
from metacal.certification.row_losses import Losses
from metacal.certification.rows import CalibrationRows
from metacal.certification.rules.fixed_sequence import count_certified_rows
from metacal.certification.rules.loss_bets import LossRanking, count_certified_loss_rows
from metacal.certification.test_sequences import plan_rank_ranges, run_fallback_tests
from metacal.statistics.bounds import ONE_PLUS_ROUNDING_ERROR
from metacal.statistics.replicating_bets import find_means_below

Float = NDArray[np.float64]
#: Draw the losses of rows with these mean losses.
Shape = Callable[[Float, np.random.Generator], Float]

DELTA = 0.1
SIZES = (300, 1000, 3000)
#: Points at which a mean loss is integrated along the ranking.
N_POINTS = 200_000
#: Number of values of a score with ties.
N_TIED_VALUES = 10


def zero_or_one(mean: Float, rng: np.random.Generator) -> Float:
    """Draw losses of 0 and 1, as floats."""
    return (rng.random(len(mean)) < mean).astype(np.float64)


def zero_or_uniform(mean: Float, rng: np.random.Generator) -> Float:
    """Draw losses that are 0, or uniform between 0 and 1."""
    return np.where(rng.random(len(mean)) < 2.0 * mean, rng.random(len(mean)), 0.0)


def near_binary(mean: Float, rng: np.random.Generator) -> Float:
    """Draw losses that are 0, 1, or in a tenth of the losses that are not 0, uniform."""
    sizes = np.where(rng.random(len(mean)) < 0.1, rng.random(len(mean)), 1.0)
    return np.where(rng.random(len(mean)) < mean / 0.95, sizes, 0.0)


def low_variance(mean: Float, rng: np.random.Generator) -> Float:
    """Draw losses between 0.6 and 1.4 times their mean."""
    return mean * (0.6 + 0.8 * rng.random(len(mean)))


def one_minus_f1(mean: Float, rng: np.random.Generator) -> Float:
    """Draw losses like 1 - F1: mostly 0, sometimes 1, and a few values in between."""
    values = np.array([0.2, 1.0 / 3.0, 0.5, 2.0 / 3.0, 0.8])
    grades = np.where(rng.random(len(mean)) < 0.25, 1.0, values[rng.integers(5, size=len(mean))])
    return np.where(rng.random(len(mean)) < 1.6 * mean, grades, 0.0)


def quarters(mean: Float, rng: np.random.Generator) -> Float:
    """Draw losses that are multiples of a quarter."""
    return rng.binomial(4, mean) / 4.0


def beta(variance_fraction: float) -> Shape:
    """Return a draw of beta losses, by their variance as a fraction of that of 0 and 1."""
    concentration = 1.0 / variance_fraction - 1.0

    def draw(mean: Float, rng: np.random.Generator) -> Float:
        return rng.beta(concentration * mean, concentration * (1.0 - mean))

    return draw


@dataclass(frozen=True)
class Population:
    """Losses along a ranking.

    Attributes
    ----------
    limit : float
        Limit of the mean loss.
    mean : callable
        Mean loss at a place of the ranking, from 0 (the most certain row) to 1.
    shape : callable
        How losses are spread about their mean.
    """

    limit: float
    mean: Callable[[Float], Float]
    shape: Shape

    def accumulate(self) -> tuple[Float, Float]:
        """Return places along the ranking, and the mean loss of the rows up to each of them."""
        places = (np.arange(N_POINTS) + 0.5) / N_POINTS
        return places, np.cumsum(self.mean(places)) / np.arange(1, N_POINTS + 1)

    def find_oracle_share(self) -> float:
        """Find the largest share of the rows whose mean loss is at most the limit."""
        places, mean_losses = self.accumulate()
        return float(
            places[np.flatnonzero(mean_losses <= self.limit * ONE_PLUS_ROUNDING_ERROR)[-1]]
        )

    def draw(self, n: int, rng: np.random.Generator) -> tuple[Float, Float]:
        """Draw the scores and the losses of rows."""
        places = rng.random(n)
        return places, np.clip(self.shape(self.mean(places), rng), 0.0, 1.0)


def rising(start: float, slope: float) -> Callable[[Float], Float]:
    """Return a mean loss that rises linearly along the ranking."""
    return lambda place: start + slope * place


def power(
    limit: float, oracle_share: float, exponent: float, start: float = 0.0
) -> Callable[[Float], Float]:
    """Return a mean loss whose mean up to a place is a power of the place, and meets the limit.

    `start` is the mean loss of the first row, as a fraction of the limit.
    """

    def mean(place: Float) -> Float:
        slope = (1.0 + exponent) * (1.0 - start) * (place / oracle_share) ** exponent
        return limit * (start + slope)

    return mean


def rare_good(good_share: float, bad_loss: float, width: float) -> Callable[[Float], Float]:
    """Return a mean loss that is 0.005 for a small share of the rows, and high for all others."""

    def mean(place: Float) -> Float:
        is_bad = 1.0 / (1.0 + np.exp((good_share - place) / (width * good_share)))
        return 0.005 + (bad_loss - 0.005) * is_bad

    return mean


def spread(mean: Float, rng: np.random.Generator) -> Float:
    """Draw losses uniformly about their mean, away from 0 and 1."""
    half_width = 0.6 * np.minimum(mean, 1.0 - mean)
    return mean + half_width * (2.0 * rng.random(len(mean)) - 1.0)


def cliff(place: Float) -> Float:
    """Return a mean loss that jumps."""
    return np.where(place < 0.4, 0.03, 0.5)


def bad_top(place: Float) -> Float:
    """Return a mean loss that is high for the most certain rows, then low, then rising."""
    return np.where(place < 0.05, 0.25, np.clip(0.03 + 3.04 * (place - 0.5), 0.03, 0.5))


POPULATIONS = {
    "beta .15": Population(0.15, rising(0.1155, 0.246), beta(1 / 9)),
    "near-binary .05": Population(0.05, power(0.05, 0.47, 1.5, 0.2), near_binary),
    "low variance .1": Population(0.1, power(0.1, 0.78, 0.7), low_variance),
    "1-F1 .15": Population(0.15, power(0.15, 0.37, 1.2, 0.6), one_minus_f1),
    "1-F1 .3": Population(0.3, power(0.15, 0.37, 1.2, 0.6), one_minus_f1),
    "cliff .1": Population(0.1, cliff, zero_or_uniform),
    "weak 0/1 .1": Population(0.1, rising(0.06, 0.072), zero_or_one),
    "rare .1": Population(0.1, rare_good(0.06, 0.6, 0.15), spread),
    "bad top .1": Population(0.1, bad_top, zero_or_uniform),
    "beta2 .13": Population(0.13, rising(0.099, 0.182), beta(1 / 6)),
    "zero-inflated .1": Population(0.1, rising(0.053, 0.24), zero_or_uniform),
    "u-shape .12": Population(0.12, power(0.12, 0.29, 0.25), beta(0.6)),
    "steps of 1/4 .12": Population(0.12, power(0.12, 0.22, 0.3), quarters),
    "rare2 .1": Population(0.1, rare_good(0.1, 0.5, 0.04), spread),
    "drift .08": Population(0.08, rising(0.06, 0.08), low_variance),
}


# ── whole rules ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class Calibration:
    """Calibration rows of a population, without the ten pilot rows."""

    rows: CalibrationRows
    loss_ranking: LossRanking

    @classmethod
    def draw(cls, population: Population, n: int, seed: int, has_ties: bool = False) -> Calibration:
        """Draw rows, and withhold the pilot rows as `ScoreGate` does."""
        scores, losses = population.draw(n, np.random.default_rng([seed, n]))
        if has_ties:
            scores = np.ceil(N_TIED_VALUES * scores) / N_TIED_VALUES
        all_rows = CalibrationRows(
            scores=scores, correct=losses == 0.0, losses=Losses.from_graded(losses)
        )
        rows = PilotPolicy(random_state=seed).withhold_pilot_rows(all_rows)
        assert rows.losses is not None
        return cls(rows, LossRanking.from_scores(rows.scores, rows.losses.if_accepted, seed))

    def find_accepted_share(self, n_accepted: int) -> float:
        """Return the share of the population up to the largest accepted score."""
        if n_accepted == 0:
            return 0.0
        return min(
            1.0, self.loss_ranking.error_ranking.largest_threshold_accepting_exactly(n_accepted)
        )


def count_rows_of_former_rule(loss_ranking: LossRanking, limit: float) -> int:
    """Count the rows that the rule before accepted.

    Its stakes had a constant size, for the variance of rare losses. Its tests began at 1.2 times the
    first rank of the exact tests, and at their later ones, with their shares of delta.
    """
    n_rows = loss_ranking.error_ranking.n_rows
    step = max(1, n_rows // 200)
    sequences = []
    for rank_range in plan_rank_ranges(n_rows, 1.0 - limit, DELTA):
        start = rank_range.start_rank
        if not sequences:
            start = min(n_rows, math.ceil(1.2 * start))
        ranks = set(range(start, rank_range.stop_rank, step))
        if n_rows < rank_range.stop_rank:
            ranks.add(n_rows)
        sequences.append((rank_range.level_fraction, sorted(ranks)))

    def passes(rank: int, level_fraction: Fraction) -> bool:
        losses = loss_ranking.losses_up_to(rank)
        has_allowed_mean = bool(losses.mean() <= limit)
        return has_allowed_mean and passes_by_constant_stakes(
            losses, limit, float(level_fraction) * DELTA
        )

    best_rank = run_fallback_tests(sequences, passes)
    if best_rank is None:
        return 0
    return loss_ranking.count_accepted_after_passing_rank(best_rank, limit)


def passes_by_constant_stakes(losses: Float, limit: float, level: float) -> bool:
    """Test a mean by stakes that are optimal if the rows just suffice."""
    n_before = np.arange(len(losses)) + 30.0
    mean_before = (np.cumsum(losses) - losses + 30.0 * limit) / n_before
    squares = (losses - mean_before) ** 2
    variance = (np.cumsum(squares) - squares + 30.0 * limit * (1.0 - limit)) / n_before
    stakes = np.sqrt(-2.0 * math.log(level) / (len(losses) * variance))
    stakes = np.minimum(stakes, 0.9 / (1.0 - limit))
    return bool(np.log1p(stakes * (limit - losses)).cumsum().max() >= -math.log(level))


def population_draw(name: str, n: int, seed: int) -> dict[str, float]:
    """Return the accepted share of one calibration set as a share of the oracle's, by both rules."""
    population = POPULATIONS[name]
    calibration = Calibration.draw(population, n, seed)
    ranking = calibration.loss_ranking
    counts = {
        "rule": count_certified_loss_rows(
            ranking, population.limit, DELTA, calibration.rows.pilot_rows
        ),
        "former": count_rows_of_former_rule(ranking, population.limit),
    }
    return judge_counts(calibration, population, counts)


def judge_counts(
    calibration: Calibration, population: Population, counts: dict[str, int]
) -> dict[str, float]:
    """Compare the rows that each rule accepts with the oracle's, and with the limit."""
    result = {}
    for rule, n_accepted in counts.items():
        share = calibration.find_accepted_share(n_accepted)
        result[rule] = share / find_oracle_share(population)
        result[f"{rule} broken"] = float(is_broken(population, share))
    return result


@cache
def find_oracle_share(population: Population) -> float:
    """Find the oracle's share of a population."""
    return population.find_oracle_share()


@cache
def accumulate_mean_losses(population: Population) -> Float:
    """Return the mean losses up to each of `N_POINTS` places of a population."""
    return population.accumulate()[1]


def is_broken(population: Population, share: float) -> bool:
    """Check whether the mean loss of an accepted share exceeds the limit."""
    if share == 0.0:
        return False
    index = min(N_POINTS - 1, max(0, round(share * N_POINTS) - 1))
    return bool(accumulate_mean_losses(population)[index] > population.limit + 1e-9)


def average_draws(draws: list[dict[str, float]]) -> dict[str, float]:
    """Average each number over the draws."""
    return {key: float(np.mean([draw[key] for draw in draws])) for key in draws[0]}


def measure_populations(draws: int, jobs: int) -> dict[str, object]:
    """Measure all populations at all sizes. The largest size has half of the draws."""
    cells = [(name, n) for n in SIZES for name in POPULATIONS]
    tasks = [
        (name, n, seed)
        for name, n in cells
        for seed in range(draws if n < SIZES[-1] else draws // 2)
    ]
    table: dict[tuple[str, int], list[dict[str, float]]] = {cell: [] for cell in cells}
    for (name, n, _), result in zip(tasks, in_order(population_draw, tasks, jobs), strict=True):
        table[name, n].append(result)
    sizes = {}
    for n in SIZES:
        rows = {name: average_draws(table[name, n]) for name in POPULATIONS}
        sizes[str(n)] = {
            "draws": len(table["beta .15", n]),
            **rows,
            "mean": average_draws(list(rows.values())),
        }
    oracle = {name: find_oracle_share(population) for name, population in POPULATIONS.items()}
    return {"oracle": oracle, "sizes": sizes}


# ── losses that are nearly all 0 or 1 ────────────────────────────────────────────────────────────

NEAR_BINARY = {
    "near-binary .05": POPULATIONS["near-binary .05"],
    "near-binary .1": Population(0.1, power(0.1, 0.7, 1.5), near_binary),
    "weak 0/1 .1": POPULATIONS["weak 0/1 .1"],
}
#: Products of rows and limit.
ALLOWED_LOSSES = (10, 20, 30, 50, 100, 200)


def near_binary_draw(name: str, allowed_loss: int, seed: int) -> dict[str, float]:
    """Certify one calibration set by rounding, by bets, and by bets that expect rare losses."""
    population = NEAR_BINARY[name]
    n = round(allowed_loss / population.limit)
    calibration = Calibration.draw(population, n, seed)
    rows, ranking = calibration.rows, calibration.loss_ranking
    uniform_numbers = np.random.default_rng([seed, n, 1]).random(len(rows))
    assert rows.losses is not None
    rounded = Ranking.from_scores(rows.scores, uniform_numbers >= rows.losses.if_accepted)
    counts = {
        "rounding": count_certified_rows(rounded, 1.0 - population.limit, DELTA),
        "bets": count_certified_loss_rows(ranking, population.limit, DELTA, rows.pilot_rows),
        "bets, rare": count_certified_loss_rows(
            ranking, population.limit, DELTA, rows.pilot_rows, losses_are_rare=True
        ),
    }
    return judge_counts(calibration, population, counts)


def measure_near_binary(draws: int, jobs: int) -> dict[str, object]:
    """Measure rounding and bets at several products of rows and limit."""
    cells = [(name, allowed_loss) for name in NEAR_BINARY for allowed_loss in ALLOWED_LOSSES]
    tasks = [(*cell, seed) for cell in cells for seed in range(draws)]
    table: dict[tuple[str, int], list[dict[str, float]]] = {cell: [] for cell in cells}
    for (name, allowed_loss, _), result in zip(
        tasks, in_order(near_binary_draw, tasks, jobs), strict=True
    ):
        table[name, allowed_loss].append(result)
    rows = {f"{name}, {loss}": average_draws(table[name, loss]) for name, loss in cells}
    return {"draws": draws, **rows}


# ── single tests ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class SingleTest:
    """One test of the mean of a number of losses."""

    limit: float
    n: int
    mean_fraction: float
    shape: Shape


TESTS = {
    "0/1 .1, 500, .8": SingleTest(0.1, 500, 0.8, zero_or_one),
    "0/1 .1, 500, .6": SingleTest(0.1, 500, 0.6, zero_or_one),
    "0/1 .1, 500, 1": SingleTest(0.1, 500, 1.0, zero_or_one),
    "0/1 .1, 100, .6": SingleTest(0.1, 100, 0.6, zero_or_one),
    "0/1 .1, 100, 1": SingleTest(0.1, 100, 1.0, zero_or_one),
    "0/1 .05, 200, .6": SingleTest(0.05, 200, 0.6, zero_or_one),
    "0 or uniform .1, 300, .8": SingleTest(0.1, 300, 0.8, zero_or_uniform),
    "0 or uniform .1, 300, .6": SingleTest(0.1, 300, 0.6, zero_or_uniform),
    "0 or uniform .1, 300, 1": SingleTest(0.1, 300, 1.0, zero_or_uniform),
    "beta 1/9 .15, 500, .9": SingleTest(0.15, 500, 0.9, beta(1 / 9)),
    "beta 1/9 .15, 500, 1": SingleTest(0.15, 500, 1.0, beta(1 / 9)),
    "beta 1/9 .15, 100, .8": SingleTest(0.15, 100, 0.8, beta(1 / 9)),
    "beta 1/31 .1, 200, .8": SingleTest(0.1, 200, 0.8, beta(1 / 31)),
}
N_SINGLE_TESTS = 3000


def measure_tests() -> dict[str, object]:
    """Measure how often single tests pass."""
    rows: dict[str, object] = {"draws": N_SINGLE_TESTS}
    for number, (name, test) in enumerate(TESTS.items()):
        rng = np.random.default_rng(number)
        means = np.full(test.n, test.mean_fraction * test.limit)
        sequences = [test.shape(means, rng) for _ in range(N_SINGLE_TESTS)]
        former = [passes_by_constant_stakes(losses, test.limit, DELTA) for losses in sequences]
        rows[name] = {
            "replicating": float(find_means_below(sequences, test.limit, DELTA).mean()),
            "replicating, rare": float(
                find_means_below(sequences, test.limit, DELTA, losses_are_rare=True).mean()
            ),
            "constant": float(np.mean(former)),
        }
    return rows


# ── adversaries ──────────────────────────────────────────────────────────────────────────────────

LIMITS = (0.05, 0.1, 0.3)
N_ADVERSARY_ROWS = 600
#: How far the mean losses are above the limit.
EXCESS = 1.002


def sure_part_and_ones(mean: Float, rng: np.random.Generator) -> Float:
    """Draw losses that are half of their mean for sure, and rarely 1."""
    sure_part = 0.5 * mean
    return np.where(rng.random(len(mean)) < (mean - sure_part) / (1.0 - sure_part), 1.0, sure_part)


def zero_or_three_means(mean: Float, rng: np.random.Generator) -> Float:
    """Draw losses that are 0, or three times their mean."""
    size = np.minimum(1.0, 3.0 * mean)
    return np.where(rng.random(len(mean)) < mean / size, size, 0.0)


def changing_variance(mean: Float, rng: np.random.Generator) -> Float:
    """Draw losses that are nearly constant in one half of the rows, and 0 or 1 in the other."""
    is_constant = rng.random(len(mean)) < 0.5
    return np.where(is_constant, mean, zero_or_one(mean, rng))


def flat(place: Float, limit: float) -> Float:
    """Return a mean loss just above the limit."""
    return np.full_like(place, EXCESS * limit)


def good_then_over(place: Float, limit: float) -> Float:
    """Return a mean loss that is low, then high, and then such that all rows are above the limit."""
    first_mean = np.where(place < 0.25, 0.5 * limit, 3.0 * limit)
    return np.where(place < 0.3125, first_mean, EXCESS * limit)


def steps(place: Float, limit: float) -> Float:
    """Return a mean loss of steps about the limit."""
    return EXCESS * limit * np.where(np.floor(8.0 * place) % 2 == 0, 1.15, 0.85)


def waves(place: Float, limit: float) -> Float:
    """Return a mean loss that oscillates about the limit."""
    return EXCESS * limit * (1.0 + 0.5 * np.cos(12.0 * np.pi * place))


def bad_tail(place: Float, limit: float) -> Float:
    """Return a mean loss just above the limit for an eighth of the rows, and 0.9 for the others."""
    return np.where(place < 0.125, EXCESS * limit, 0.9)


@dataclass(frozen=True)
class Adversary:
    """Population in which hardly any prefix of the ranking keeps the limit.

    Attributes
    ----------
    mean : callable
        Mean loss at a place of the ranking, for a limit.
    shape : callable
        How losses are spread about their mean.
    has_ties : bool
        Whether the score has ten values only.
    """

    mean: Callable[[Float, float], Float]
    shape: Shape
    has_ties: bool = False


ADVERSARIES = {
    "flat 0/1": Adversary(flat, zero_or_one),
    "flat beta": Adversary(flat, beta(0.1)),
    "flat 0 or three limits": Adversary(flat, zero_or_three_means),
    "flat sure part and ones": Adversary(flat, sure_part_and_ones),
    "good then over": Adversary(good_then_over, zero_or_one),
    "steps": Adversary(steps, zero_or_one),
    "waves": Adversary(waves, quarters),
    "bad tail": Adversary(bad_tail, zero_or_one),
    "changing variance": Adversary(flat, changing_variance),
    "ties": Adversary(waves, zero_or_one, has_ties=True),
}


@cache
def build_population(name: str, limit: float) -> Population:
    """Build the population of an adversary."""
    return Population(limit, partial(ADVERSARIES[name].mean, limit=limit), ADVERSARIES[name].shape)


def adversary_draw(name: str, limit: float, seed: int) -> float:
    """Check whether one calibration set leads to an accepted share above the limit."""
    population = build_population(name, limit)
    has_ties = ADVERSARIES[name].has_ties
    calibration = Calibration.draw(population, N_ADVERSARY_ROWS, seed, has_ties)
    n_accepted = count_certified_loss_rows(
        calibration.loss_ranking, limit, DELTA, calibration.rows.pilot_rows
    )
    share = calibration.find_accepted_share(n_accepted)
    if has_ties:
        share = math.floor(N_TIED_VALUES * share + 1e-9) / N_TIED_VALUES
    return float(is_broken(population, share))


def measure_adversaries(draws: int, jobs: int) -> dict[str, object]:
    """Measure how often each limit is exceeded under each adversary."""
    cells = [(name, limit) for name in ADVERSARIES for limit in LIMITS]
    tasks = [(*cell, seed) for cell in cells for seed in range(draws)]
    results = np.array(list(in_order(adversary_draw, tasks, jobs))).reshape(len(cells), draws)
    broken = {
        f"{name}, {limit}": float(share)
        for (name, limit), share in zip(cells, results.mean(axis=1), strict=True)
    }
    return {"draws": draws, "broken": broken, "largest": max(broken.values())}


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--adversary-draws", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("-o", "--out")
    options = parser.parse_args()
    result = {
        "delta": DELTA,
        "populations": measure_populations(options.draws, options.jobs),
        "near binary": measure_near_binary(options.draws, options.jobs),
        "tests": measure_tests(),
        "adversaries": measure_adversaries(options.adversary_draws, options.jobs),
    }
    text = json.dumps(result, indent=1) + "\n"
    if options.out is None:
        print(text, end="")
    else:
        Path(options.out).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
