"""Confidence limits of areas of a ranking (AUROC, AURC, excess AURC and AUGRC).

An area depends on the few incorrect rows, and most of all on an incorrect row among the most
confident ones. A sample without such a row does not show that there are none, so its resamples vary
too little: nominal 95% intervals of the plain bootstrap missed in up to 93% of the samples
(`benchmarks/area_intervals.py`). `area_limits` therefore adds an unseen row to each resample.

1. Every row gets an independent weight with an exponential distribution (the Bayesian bootstrap,
   Rubin 1981).
2. For the unfavourable end, an unseen incorrect row that ranks first gets such a weight, too. For
   the favourable end, the unseen row is correct and ranks first. AUROC and excess AURC compare
   correct with incorrect rows. They get an unseen row of each kind.
3. The ends are quantiles of these resamples.

For the mean of zeros and ones this construction is the exact interval of Clopper & Pearson, because
the weighted mean has a beta distribution. For means of values between 0 and 1 it was proposed by
Gaffke (2005). For areas it is not proved. The benchmark above measures how often the intervals
miss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import xlogy

from metacal.formulas import Float
from metacal.metrics.binning import Weights
from metacal.metrics.ranked_errors import RankedErrors, Ranking

#: Elements of one array of weighted resamples. A few such arrays fit into the cache.
_BATCH_ELEMENTS = 1 << 16
#: Number of blocks of equal score that are resampled one by one. Later blocks are merged into as
#: many again.
_SINGLE_BLOCKS = 400


@dataclass(frozen=True, eq=False)
class WeightedErrors(RankedErrors):
    """`RankedErrors` of rows whose positive weights are not whole numbers."""

    @property
    def wrong_before(self) -> Float:
        """Weight of the incorrect rows that rank before each block."""
        return np.cumsum(self.wrong, axis=1) - self.wrong

    @cached_property
    def aurc(self) -> Float:
        """Area under the risk-coverage curve of each resample.

        The area is ∫ E(u)/u du, where E(u) is the weight of the errors among the first fraction u
        of all weight. Errors of density c between the fractions a and b add c ∫ -log t dt from a to
        b, and the antiderivative of -log t is t - t log t.
        """
        start = self.start / self.n_rows
        stop = self.stop / self.n_rows
        width = self.stop - self.start
        density = np.divide(self.wrong, width, out=np.zeros_like(width), where=width > 0)
        antiderivative_at_stop = stop - xlogy(stop, stop)
        antiderivative_at_start = start - xlogy(start, start)
        return np.asarray(
            (density * (antiderivative_at_stop - antiderivative_at_start)).sum(axis=1)
        )


@dataclass(frozen=True, eq=False)
class RowRuns:
    """Numbers of correct and incorrect rows along a ranking.

    Attributes
    ----------
    between_blocks : array of shape (n_blocks + 1,)
        Number of correct rows before each block with an incorrect row, and after the last block.

    correct, incorrect : array of shape (n_blocks,)
        Number of correct and incorrect rows in each block.
    """

    between_blocks: Float
    correct: Float
    incorrect: Float

    @classmethod
    def from_ranking(cls, ranking: Ranking) -> RowRuns:
        """Count the rows of a ranking."""
        errors = ranking.errors(np.ones((1, len(ranking)), dtype=np.intp))
        block_start = errors.start[0]
        block_stop = errors.stop[0]
        incorrect = errors.wrong[0]
        gap_start = np.concatenate(([0.0], block_stop))
        gap_stop = np.append(block_start, errors.n_rows[0])
        return cls(
            between_blocks=gap_stop - gap_start,
            correct=block_stop - block_start - incorrect,
            incorrect=incorrect,
        )

    def merge_blocks(self) -> RowRuns:
        """Merge neighbouring blocks if there are so many that resampling would be slow.

        The first blocks stay as they are, because they have the largest influence on an AURC.
        """
        n_blocks = len(self.incorrect)
        if n_blocks <= 2 * _SINGLE_BLOCKS:
            return self
        merged_starts = np.linspace(_SINGLE_BLOCKS, n_blocks, _SINGLE_BLOCKS, endpoint=False)
        first_blocks = np.concatenate([np.arange(_SINGLE_BLOCKS), merged_starts.astype(np.intp)])
        correct_rows_inside = self.between_blocks[:-1].copy()
        correct_rows_inside[first_blocks] = 0.0
        return RowRuns(
            between_blocks=self.between_blocks[np.append(first_blocks, n_blocks)],
            correct=np.add.reduceat(self.correct + correct_rows_inside, first_blocks),
            incorrect=np.add.reduceat(self.incorrect, first_blocks),
        )

    def resample(
        self, n_resamples: int, random: np.random.Generator
    ) -> Iterator[WeightedResamples]:
        """Yield resamples with exponential row weights, a few at a time.

        The weights of k rows add up to a gamma variable of shape k, so one draw for each run of
        rows is enough.
        """
        batch_size = max(1, _BATCH_ELEMENTS // len(self.between_blocks))
        for start in range(0, n_resamples, batch_size):
            n_drawn = min(batch_size, n_resamples - start)
            n_runs = len(self.between_blocks)
            n_blocks = len(self.incorrect)
            weighted_runs = RowRuns(
                between_blocks=random.standard_gamma(self.between_blocks, (n_drawn, n_runs)),
                correct=random.standard_gamma(self.correct, (n_drawn, n_blocks)),
                incorrect=random.standard_gamma(self.incorrect, (n_drawn, n_blocks)),
            )
            unseen_weights = random.standard_exponential((n_drawn, 2))
            yield WeightedResamples(weighted_runs.locate_errors(), unseen_weights)

    def as_one_resample(self) -> WeightedErrors:
        """Return the rows as one resample in which every row has weight 1."""
        batch_of_one = RowRuns(self.between_blocks[None], self.correct[None], self.incorrect[None])
        return batch_of_one.locate_errors()

    def locate_errors(self) -> WeightedErrors:
        """Compute where the blocks start and stop, for runs of shape (n_resamples, n_runs)."""
        block_weights = self.correct + self.incorrect
        stop = np.cumsum(self.between_blocks[:, :-1] + block_weights, axis=1)
        total = self.between_blocks.sum(axis=1, keepdims=True)
        total = total + block_weights.sum(axis=1, keepdims=True)
        return WeightedErrors(
            n_rows=total, start=stop - block_weights, stop=stop, wrong=self.incorrect
        )


@dataclass(frozen=True, eq=False)
class WeightedResamples:
    """Resamples with exponential row weights, and the weights of two unseen rows.

    Attributes
    ----------
    seen : WeightedErrors
        Rows of the sample.

    unseen : array of shape (n_resamples, 2)
        Weights of the unseen rows.
    """

    seen: WeightedErrors
    unseen: Float

    def unfavourable(self, *, both_kinds: bool) -> WeightedErrors:
        """Add an unseen incorrect row first and, with `both_kinds`, a correct row last."""
        incorrect, correct = self.unseen[:, :1], self.unseen[:, 1:]
        total = self.seen.n_rows + incorrect
        if both_kinds:
            total = total + correct
        return WeightedErrors(
            n_rows=total,
            start=np.hstack([np.zeros_like(incorrect), self.seen.start + incorrect]),
            stop=np.hstack([incorrect, self.seen.stop + incorrect]),
            wrong=np.hstack([incorrect, self.seen.wrong]),
        )

    def favourable(self, *, both_kinds: bool) -> WeightedErrors:
        """Add an unseen correct row first and, with `both_kinds`, an incorrect row last."""
        correct, incorrect = self.unseen[:, :1], self.unseen[:, 1:]
        total = self.seen.n_rows + correct
        start = self.seen.start + correct
        stop = self.seen.stop + correct
        if not both_kinds:
            return WeightedErrors(n_rows=total, start=start, stop=stop, wrong=self.seen.wrong)
        return WeightedErrors(
            n_rows=total + incorrect,
            start=np.hstack([start, total]),
            stop=np.hstack([stop, total + incorrect]),
            wrong=np.hstack([self.seen.wrong, incorrect]),
        )


@dataclass(frozen=True, eq=False)
class AreaStatistic:
    """Statistic of an area of a ranking, with limits that allow for unseen rows.

    Attributes
    ----------
    ranking : Ranking
        Scores and correctness of the rows.

    area : callable
        Function from `RankedErrors` to one area per resample.

    compares_kinds : bool
        Whether the area compares the ranks of incorrect rows with those of correct rows. It then
        gets an unseen row of each kind.

    smaller_is_better : bool
        Whether smaller areas are better.
    """

    ranking: Ranking
    area: Callable[[RankedErrors], Float]
    compares_kinds: bool = False
    smaller_is_better: bool = True

    def __call__(self, batch: Weights) -> Float:
        """Return one area per resample."""
        return self.area(self.ranking.errors(batch))

    def bounding_areas(self, resamples: WeightedResamples) -> tuple[Float, Float]:
        """Return the areas with the unseen row that lowers them, and with the one that raises."""
        worse_areas = self.area(resamples.unfavourable(both_kinds=self.compares_kinds))
        better_areas = self.area(resamples.favourable(both_kinds=self.compares_kinds))
        if self.smaller_is_better:
            return better_areas, worse_areas
        return worse_areas, better_areas


def area_limits(
    statistics: Mapping[str, AreaStatistic],
    n_resamples: int,
    tail: float,
    random: np.random.Generator,
) -> dict[str, tuple[float, float]]:
    """Compute the confidence limits of several areas of one ranking.

    Parameters
    ----------
    statistics : mapping of str to AreaStatistic
        Areas of the same `Ranking`.

    n_resamples : int
        Number of resamples, which all areas share.

    tail : float
        Error probability of each limit.

    random : numpy.random.Generator
        Source of randomness.

    Returns
    -------
    dict of str to tuple of two floats
        Lower and upper limit of each area.
    """
    lower_areas: dict[str, list[Float]] = {name: [] for name in statistics}
    upper_areas: dict[str, list[Float]] = {name: [] for name in statistics}
    ranking = next(iter(statistics.values())).ranking
    all_runs = RowRuns.from_ranking(ranking)
    merged_runs = all_runs.merge_blocks()
    for resamples in merged_runs.resample(n_resamples, random):
        for name, statistic in statistics.items():
            lowered, raised = statistic.bounding_areas(resamples)
            lower_areas[name].append(lowered)
            upper_areas[name].append(raised)

    limits = {}
    for name, statistic in statistics.items():
        lower_limit = _order_statistic(lower_areas[name], tail)
        upper_limit = _order_statistic(upper_areas[name], 1.0 - tail)
        # Merging blocks shifts the area a little. The limits are shifted back.
        area_of_all_runs = statistic.area(all_runs.as_one_resample())[0]
        shift = float(area_of_all_runs - statistic.area(merged_runs.as_one_resample())[0])
        limits[name] = lower_limit + shift, upper_limit + shift
    return limits


def _order_statistic(batches: list[Float], probability: float) -> float:
    """Return the quantile of the values of all batches, without interpolation."""
    return float(np.quantile(np.concatenate(batches), probability, method="inverted_cdf"))
