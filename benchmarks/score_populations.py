"""Populations of scored rows with known curves, and a check whether the curves leave their bands.

A population has a true coverage, selective accuracy and miscoverage at every threshold. Draw rows
from it, compute bands, and ask `left_bands` whether a true curve leaves its band at any threshold,
including thresholds strictly between two scores of the sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import rel_entr

from metacal.statistics.bands import OperatingBands, operating_bands

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Curves:
    """True coverage, selective accuracy and miscoverage at some thresholds."""

    coverage: Floats
    accuracy: Floats
    miscoverage: Floats


class Population(Protocol):
    """Scored rows whose true curves are known."""

    def draw(self, n_rows: int, rng: np.random.Generator) -> tuple[Floats, Flags]:
        """Draw scores and flags for correct predictions."""
        ...

    def extreme_thresholds(self, scores: Floats) -> Floats:
        """Return thresholds among which a curve is farthest from any band of these rows."""
        ...

    def curves(self, thresholds: Floats) -> Curves:
        """Compute the true curves at thresholds that accept some share of the rows."""
        ...


@dataclass(frozen=True, eq=False)
class StepPopulation:
    """Uniform scores on [0, 1] whose error rate is constant between edges.

    Attributes
    ----------
    edges : array
        Rising, from 0 to 1.
    error_rates : array
        One for each interval between edges.
    tied : bool
        If true, every row of an interval has the upper edge of the interval as its score.
    """

    edges: Floats
    error_rates: Floats
    tied: bool = False

    @classmethod
    def of(
        cls, inner_edges: list[float], error_rates: list[float], tied: bool = False
    ) -> StepPopulation:
        """Build a population from its edges without 0 and 1."""
        edges = np.array([0.0, *inner_edges, 1.0])
        return cls(edges=edges, error_rates=np.array(error_rates, dtype=np.float64), tied=tied)

    def draw(self, n_rows: int, rng: np.random.Generator) -> tuple[Floats, Flags]:
        """Draw scores and flags for correct predictions."""
        scores = rng.random(n_rows)
        interval = np.searchsorted(self.edges, scores, side="right") - 1
        correct = rng.random(n_rows) >= self.error_rates[interval]
        if self.tied:
            scores = self.edges[interval + 1]
        return scores, correct

    def extreme_thresholds(self, scores: Floats) -> Floats:
        """Return the edges, the scores, and the largest numbers below the scores.

        Bands are constant between scores, and curves are monotone between edges.
        """
        if self.tied:
            return self.edges[1:]
        below = np.nextafter(scores, 0.0)
        return np.unique(np.concatenate([self.edges[1:], scores, below[below > 0.0]]))

    def curves(self, thresholds: Floats) -> Curves:
        """Compute the true curves at positive thresholds."""
        incorrect_at_edges = np.append(0.0, np.cumsum(np.diff(self.edges) * self.error_rates))
        incorrect = np.interp(thresholds, self.edges, incorrect_at_edges)
        n_correct = max(1.0 - incorrect_at_edges[-1], 1e-300)
        return Curves(
            coverage=thresholds,
            accuracy=1.0 - incorrect / thresholds,
            miscoverage=1.0 - (thresholds - incorrect) / n_correct,
        )


@dataclass(frozen=True, eq=False)
class TablePopulation:
    """The rows of a table, drawn with replacement. The scores are sorted."""

    values: Floats
    n_rows: Counts
    n_correct: Counts
    scores: Floats
    correct: Flags

    @classmethod
    def of(cls, scores: Floats, correct: Flags) -> TablePopulation:
        """Build the population of these rows."""
        order = np.argsort(scores, kind="stable")
        values, codes = np.unique(scores[order], return_inverse=True)
        return cls(
            values=values,
            n_rows=np.cumsum(np.bincount(codes)),
            n_correct=np.cumsum(np.bincount(codes, correct[order])).astype(np.int64),
            scores=scores[order],
            correct=correct[order],
        )

    def draw(self, n_rows: int, rng: np.random.Generator) -> tuple[Floats, Flags]:
        """Draw rows with replacement."""
        rows = rng.integers(0, len(self.scores), n_rows)
        return self.scores[rows], self.correct[rows]

    def extreme_thresholds(self, scores: Floats) -> Floats:
        """Return the ends of each stretch between sample scores, and the extremes of the accuracy
        in it.

        Bands are constant on such a stretch, and the other two curves are monotone.
        """
        n_accepted = np.searchsorted(np.sort(scores), self.values, side="right")
        is_first = np.diff(n_accepted, prepend=-1) > 0
        starts = np.flatnonzero(is_first)
        stretch = np.cumsum(is_first) - 1
        accuracy = self.n_correct / self.n_rows
        is_lowest = accuracy == np.minimum.reduceat(accuracy, starts)[stretch]
        is_highest = accuracy == np.maximum.reduceat(accuracy, starts)[stretch]
        is_last = np.append(is_first[1:], True)
        return self.values[is_first | is_last | is_lowest | is_highest]

    def curves(self, thresholds: Floats) -> Curves:
        """Compute the true curves at thresholds not below the smallest score."""
        index = np.searchsorted(self.values, thresholds, side="right") - 1
        n_rows = self.n_rows[index]
        n_correct = self.n_correct[index]
        return Curves(
            coverage=n_rows / self.n_rows[-1],
            accuracy=n_correct / n_rows,
            miscoverage=1.0 - n_correct / self.n_correct[-1],
        )


@dataclass(frozen=True)
class Exits:
    """Whether each true curve leaves its band at any threshold."""

    coverage: bool
    accuracy_below: bool
    accuracy_above: bool
    miscoverage: bool

    @property
    def accuracy(self) -> bool:
        """Whether the selective accuracy leaves its band on either side."""
        return self.accuracy_below or self.accuracy_above

    @property
    def any(self) -> bool:
        """Whether any curve leaves its band."""
        return self.coverage or self.accuracy or self.miscoverage


def surprising_thresholds(
    population: Population, scores: Floats, correct: Flags, log_ratio: float = 2.5
) -> Floats:
    """Return the thresholds at which counts of these rows are surprising under the truth.

    Only there can a band be left, so other thresholds need no band. Counts are surprising if the
    likelihood ratio of an observed share to the true one is at least exp(log_ratio).
    """
    thresholds = population.extreme_thresholds(scores)
    truth = population.curves(thresholds)
    n_accepted, n_kept = accepted_counts(scores, correct, thresholds)
    surprising = log_likelihood_ratio(n_kept, n_accepted, truth.accuracy) >= log_ratio
    n_rows = np.full(len(thresholds), len(scores))
    surprising |= log_likelihood_ratio(n_accepted, n_rows, truth.coverage) >= log_ratio
    n_correct = np.full(len(thresholds), correct.sum())
    surprising |= log_likelihood_ratio(n_kept, n_correct, 1.0 - truth.miscoverage) >= log_ratio
    return thresholds[surprising]


def log_likelihood_ratio(n_hits: Counts, n_trials: Counts, chance: Floats) -> Floats:
    """Compute the log-likelihood ratio of the observed share of hits to the true chance."""
    share = n_hits / np.maximum(n_trials, 1)
    chance = np.clip(chance, 0.0, 1.0)
    divergence = rel_entr(share, chance) + rel_entr(1.0 - share, 1.0 - chance)
    divergence[n_trials == 0] = 0.0
    return n_trials * divergence


def accepted_counts(scores: Floats, correct: Flags, thresholds: Floats) -> tuple[Counts, Counts]:
    """Count the accepted rows and the accepted correct rows."""
    n_accepted = np.searchsorted(np.sort(scores), thresholds, side="right")
    n_kept = np.searchsorted(np.sort(scores[correct]), thresholds, side="right")
    return n_accepted, n_kept


def left_bands(population: Population, bands: OperatingBands) -> Exits:
    """Check whether the true curves leave their bands at the thresholds of the bands."""
    truth = population.curves(bands.accuracy.threshold)
    rounding = 1e-12

    def below(curve: Floats, limit: Floats) -> bool:
        return bool((curve < limit - rounding).any())

    def outside(curve: Floats, lower: Floats, upper: Floats) -> bool:
        return below(curve, lower) or below(upper, curve)

    return Exits(
        coverage=outside(truth.coverage, bands.coverage.lower, bands.coverage.upper),
        accuracy_below=below(truth.accuracy, bands.accuracy.lower),
        accuracy_above=below(bands.accuracy.upper, truth.accuracy),
        miscoverage=outside(truth.miscoverage, bands.miscoverage.lower, bands.miscoverage.upper),
    )


def drawn_exits(
    population: Population, n_rows: int, delta: float, rng: np.random.Generator
) -> Exits:
    """Draw rows, compute their bands at the surprising thresholds, and check the true curves."""
    scores, correct = population.draw(n_rows, rng)
    thresholds = surprising_thresholds(population, scores, correct)
    return left_bands(population, operating_bands(scores, correct, delta, thresholds))


#: Populations on which bands that are only calibrated fail. Most have incorrect rows at the sure
#: end, so that the bound jumps at each correct row that follows. The first number of an entry is
#: the share of the surest rows with the first error rate.
HARD_POPULATIONS: dict[str, StepPopulation] = {
    **{
        f"error rate 1 up to {edge:g}, then {rate:g}": StepPopulation.of([edge], [1.0, rate])
        for edge in (0.1, 0.3, 0.4, 0.45, 0.5, 0.55, 0.7)
        for rate in (0.0, 0.05)
    },
    **{
        f"error rate 0 up to {edge:g}, then 1": StepPopulation.of([edge], [0.0, 1.0])
        for edge in (0.3, 0.45, 0.5, 0.55)
    },
    "error rate 1, 0, 1": StepPopulation.of([0.2, 0.6], [1.0, 0.0, 1.0]),
    "error rate 0, 1, 0": StepPopulation.of([0.1, 0.4], [0.0, 1.0, 0.0]),
    "error rate 1, 0.5, 0": StepPopulation.of([0.3, 0.6], [1.0, 0.5, 0.0]),
    "error rate 0.9 up to 0.5, then 0.1": StepPopulation.of([0.5], [0.9, 0.1]),
    "alternating, narrowing": StepPopulation.of(
        [0.01, 0.02, 0.05, 0.1, 0.2, 0.4], [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0]
    ),
    "tied, error rate 1 up to 0.45, then 0": StepPopulation.of(
        [0.15, 0.3, 0.45, 0.6, 0.8], [1.0, 1.0, 1.0, 0.0, 0.0, 0.0], tied=True
    ),
    "flat 0.5": StepPopulation.of([], [0.5]),
}
