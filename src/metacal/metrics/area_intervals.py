"""Confidence limits of areas of a ranking (AUROC, AURC, excess AURC and AUGRC).

An area depends on the few incorrect rows, and most of all on an incorrect row among the most
confident ones. A sample without such a row does not show that there are none, so its resamples vary
too little: nominal 95% intervals of the plain bootstrap missed the true area in up to 93% of the
samples (`benchmarks/area_intervals.py`). `compute_area_limits` therefore adds an unseen row to each
resample.

1. Every row gets an independent weight with an exponential distribution (the Bayesian bootstrap,
   Rubin 1981).
2. For the unfavourable end, an unseen incorrect row that ranks first gets such a weight, too. For
   the favourable end, the unseen row is correct and ranks first. AUROC and excess AURC compare
   correct with incorrect rows. They get an unseen row of each kind.
3. The ends are quantiles of these resamples.

For the mean of zeros and ones this construction is the exact interval of Clopper & Pearson, because
the weighted mean has a beta distribution. For means of values between 0 and 1 it was proposed by
Gaffke (2005). For areas it is not proved. The benchmark above measures how often the intervals
miss the true area.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import xlogy

from metacal.formulas import Float
from metacal.metrics.binning import Weights
from metacal.metrics.ranked_errors import ErrorBlocks, Ranking

#: Number of elements of one array of weighted resamples. A few such arrays fit into the cache.
_BATCH_ELEMENTS = 1 << 16
#: Number of blocks at the start of a ranking that are never merged.
_N_UNMERGED_BLOCKS = 400
#: Number of blocks into which the other blocks of a long ranking are merged.
_N_MERGED_BLOCKS = 400


@dataclass(frozen=True, eq=False)
class WeightedErrorBlocks(ErrorBlocks):
    """Error blocks of rows whose positive weights are not whole numbers.

    All numbers of rows and errors are sums of weights.
    """

    @property
    def errors_before_block(self) -> Float:
        """Weight of the errors that rank before each block."""
        return np.cumsum(self.n_errors, axis=1) - self.n_errors

    @cached_property
    def aurc(self) -> Float:
        """Area under the risk-coverage curve of each resample.

        The area is ∫ E(u)/u du, where E(u) is the weight of the errors among the first fraction u
        of all weight. Errors of density c between the fractions a and b add c ∫ -log t dt from a to
        b, and the antiderivative of -log t is t - t log t.
        """
        start = self.rows_before_block / self.total_rows
        stop = self.rows_through_block / self.total_rows
        block_weight = self.rows_through_block - self.rows_before_block
        density = np.divide(
            self.n_errors, block_weight, out=np.zeros_like(block_weight), where=block_weight > 0
        )
        antiderivative_at_stop = stop - xlogy(stop, stop)
        antiderivative_at_start = start - xlogy(start, start)
        return np.asarray(
            (density * (antiderivative_at_stop - antiderivative_at_start)).sum(axis=1)
        )


@dataclass(frozen=True, eq=False)
class RowRuns:
    """Weights of the correct and incorrect rows in each run of a ranking.

    A run is a block with an incorrect row, or the correct rows between two such blocks.

    Attributes
    ----------
    weights_between_blocks : array of shape (n_blocks + 1,)
        Weight of the correct rows before each block with an incorrect row, and after the last block.
        Without resampling, every row has weight 1.

    correct_weights, incorrect_weights : array of shape (n_blocks,)
        Weights of the correct and incorrect rows in each block.
    """

    weights_between_blocks: Float
    correct_weights: Float
    incorrect_weights: Float

    @classmethod
    def from_ranking(cls, ranking: Ranking) -> RowRuns:
        """Count the rows of each run of a ranking."""
        # The arrays of blocks have one row per resample; here the sample is the only one.
        unit_weights = np.ones((1, len(ranking)), dtype=np.intp)
        blocks = ranking.get_error_blocks(unit_weights)
        rows_before_block = blocks.rows_before_block[0]
        rows_through_block = blocks.rows_through_block[0]
        n_incorrect = blocks.n_errors[0]
        n_rows = blocks.total_rows[0]
        rows_before_gap = np.concatenate(([0.0], rows_through_block))
        rows_through_gap = np.append(rows_before_block, n_rows)
        return cls(
            weights_between_blocks=rows_through_gap - rows_before_gap,
            correct_weights=rows_through_block - rows_before_block - n_incorrect,
            incorrect_weights=n_incorrect,
        )

    def merge_blocks(self) -> RowRuns:
        """Merge neighbouring blocks if there are too many to resample quickly.

        The first blocks stay as they are, because they have the largest influence on an AURC.
        """
        n_blocks = len(self.incorrect_weights)
        if n_blocks <= _N_UNMERGED_BLOCKS + _N_MERGED_BLOCKS:
            return self
        unmerged_blocks = np.arange(_N_UNMERGED_BLOCKS)
        first_merged_blocks = np.linspace(
            _N_UNMERGED_BLOCKS, n_blocks, _N_MERGED_BLOCKS, endpoint=False
        ).astype(np.intp)
        first_old_blocks = np.concatenate([unmerged_blocks, first_merged_blocks])
        first_old_gaps = np.append(first_old_blocks, n_blocks)
        # Correct rows between two blocks that are merged belong to the merged block.
        absorbed_weights = self.weights_between_blocks[:-1].copy()
        absorbed_weights[first_old_blocks] = 0.0
        correct_weights = self.correct_weights + absorbed_weights
        return RowRuns(
            weights_between_blocks=self.weights_between_blocks[first_old_gaps],
            correct_weights=np.add.reduceat(correct_weights, first_old_blocks),
            incorrect_weights=np.add.reduceat(self.incorrect_weights, first_old_blocks),
        )

    def resample(
        self, n_resamples: int, random: np.random.Generator
    ) -> Iterator[WeightedResamples]:
        """Yield resamples with exponential row weights, several per batch.

        The weights of k rows add up to a gamma variable of shape k, so one draw for each run of
        rows is enough.
        """
        n_gaps = len(self.weights_between_blocks)
        n_blocks = len(self.incorrect_weights)
        batch_size = max(1, _BATCH_ELEMENTS // n_gaps)
        for start in range(0, n_resamples, batch_size):
            n_drawn = min(batch_size, n_resamples - start)
            weighted_runs = RowRuns(
                weights_between_blocks=random.standard_gamma(
                    self.weights_between_blocks, (n_drawn, n_gaps)
                ),
                correct_weights=random.standard_gamma(self.correct_weights, (n_drawn, n_blocks)),
                incorrect_weights=random.standard_gamma(
                    self.incorrect_weights, (n_drawn, n_blocks)
                ),
            )
            unseen_weights = random.standard_exponential((n_drawn, 2))
            yield WeightedResamples(weighted_runs.to_error_blocks(), unseen_weights)

    def to_unit_weight_blocks(self) -> WeightedErrorBlocks:
        """Return the error blocks of a single resample in which every row has weight 1."""
        single_resample = RowRuns(
            weights_between_blocks=self.weights_between_blocks[None],
            correct_weights=self.correct_weights[None],
            incorrect_weights=self.incorrect_weights[None],
        )
        return single_resample.to_error_blocks()

    def to_error_blocks(self) -> WeightedErrorBlocks:
        """Convert two-dimensional runs, one row per resample, to error blocks."""
        block_weights = self.correct_weights + self.incorrect_weights
        weights_before_blocks = self.weights_between_blocks[:, :-1]
        weight_through_block = np.cumsum(weights_before_blocks + block_weights, axis=1)
        gap_total = self.weights_between_blocks.sum(axis=1, keepdims=True)
        block_total = block_weights.sum(axis=1, keepdims=True)
        return WeightedErrorBlocks(
            total_rows=gap_total + block_total,
            rows_before_block=weight_through_block - block_weights,
            rows_through_block=weight_through_block,
            n_errors=self.incorrect_weights,
        )


@dataclass(frozen=True, eq=False)
class WeightedResamples:
    """Resamples with exponential row weights, and the weights of two unseen rows.

    Attributes
    ----------
    observed : WeightedErrorBlocks
        Error blocks of the rows of the sample.

    unseen_weights : array of shape (n_resamples, 2)
        Weights of the unseen row that ranks first and of the one that ranks last.
    """

    observed: WeightedErrorBlocks
    unseen_weights: Float

    def add_unfavourable_rows(self, *, adds_correct_row_last: bool) -> WeightedErrorBlocks:
        """Add an unseen incorrect row first and, if requested, a correct row last."""
        observed = self.observed
        weight_of_first = self.unseen_weights[:, :1]
        weight_of_last = self.unseen_weights[:, 1:]
        total_rows = observed.total_rows + weight_of_first
        if adds_correct_row_last:
            total_rows = total_rows + weight_of_last
        # The first row is an error block of its own. A correct row needs no block.
        no_weight = np.zeros_like(weight_of_first)
        return WeightedErrorBlocks(
            total_rows=total_rows,
            rows_before_block=np.hstack([no_weight, observed.rows_before_block + weight_of_first]),
            rows_through_block=np.hstack(
                [weight_of_first, observed.rows_through_block + weight_of_first]
            ),
            n_errors=np.hstack([weight_of_first, observed.n_errors]),
        )

    def add_favourable_rows(self, *, adds_incorrect_row_last: bool) -> WeightedErrorBlocks:
        """Add an unseen correct row first and, if requested, an incorrect row last."""
        observed = self.observed
        weight_of_first = self.unseen_weights[:, :1]
        weight_of_last = self.unseen_weights[:, 1:]
        total_rows = observed.total_rows + weight_of_first
        rows_before = observed.rows_before_block + weight_of_first
        rows_through = observed.rows_through_block + weight_of_first
        if not adds_incorrect_row_last:
            return WeightedErrorBlocks(
                total_rows=total_rows,
                rows_before_block=rows_before,
                rows_through_block=rows_through,
                n_errors=observed.n_errors,
            )
        # The last row is an error block of its own.
        new_total_rows = total_rows + weight_of_last
        return WeightedErrorBlocks(
            total_rows=new_total_rows,
            rows_before_block=np.hstack([rows_before, total_rows]),
            rows_through_block=np.hstack([rows_through, new_total_rows]),
            n_errors=np.hstack([observed.n_errors, weight_of_last]),
        )


@dataclass(frozen=True, eq=False)
class AreaStatistic:
    """Statistic of an area of a ranking, with limits that allow for unseen rows.

    Attributes
    ----------
    ranking : Ranking
        Scores and correctness of the rows.

    compute_area : callable
        Function from `ErrorBlocks` to one area per resample.

    compares_correct_with_incorrect : bool
        Whether the area compares the ranks of incorrect rows with those of correct rows. It then
        gets an unseen row of each kind.

    smaller_is_better : bool
        Whether smaller areas are better.
    """

    ranking: Ranking
    compute_area: Callable[[ErrorBlocks], Float]
    compares_correct_with_incorrect: bool = False
    smaller_is_better: bool = True

    def __call__(self, row_weights: Weights) -> Float:
        """Compute one area per resample."""
        return self.compute_area(self.ranking.get_error_blocks(row_weights))

    def compute_bounding_areas(self, resamples: WeightedResamples) -> tuple[Float, Float]:
        """Compute the areas lowered by unseen rows and the areas raised by unseen rows."""
        unfavourable_blocks = resamples.add_unfavourable_rows(
            adds_correct_row_last=self.compares_correct_with_incorrect
        )
        favourable_blocks = resamples.add_favourable_rows(
            adds_incorrect_row_last=self.compares_correct_with_incorrect
        )
        worse_areas = self.compute_area(unfavourable_blocks)
        better_areas = self.compute_area(favourable_blocks)
        if self.smaller_is_better:
            return better_areas, worse_areas
        return worse_areas, better_areas


def compute_area_limits(
    statistics: Mapping[str, AreaStatistic],
    n_resamples: int,
    tail_probability: float,
    random: np.random.Generator,
) -> dict[str, tuple[float, float]]:
    """Compute the confidence limits of several areas of one ranking.

    Parameters
    ----------
    statistics : mapping of str to AreaStatistic
        Areas of the same `Ranking`.

    n_resamples : int
        Number of resamples, which all areas share.

    tail_probability : float
        Error probability of each limit.

    random : numpy.random.Generator
        Source of randomness.

    Returns
    -------
    dict of str to tuple of two floats
        Lower and upper limit of each area.
    """
    lowered_areas_by_batch: dict[str, list[Float]] = {name: [] for name in statistics}
    raised_areas_by_batch: dict[str, list[Float]] = {name: [] for name in statistics}
    any_statistic = next(iter(statistics.values()))
    all_runs = RowRuns.from_ranking(any_statistic.ranking)
    merged_runs = all_runs.merge_blocks()
    for resamples in merged_runs.resample(n_resamples, random):
        for name, statistic in statistics.items():
            lowered_areas, raised_areas = statistic.compute_bounding_areas(resamples)
            lowered_areas_by_batch[name].append(lowered_areas)
            raised_areas_by_batch[name].append(raised_areas)

    limits = {}
    for name, statistic in statistics.items():
        lower_limit = _compute_quantile_of_batches(lowered_areas_by_batch[name], tail_probability)
        upper_limit = _compute_quantile_of_batches(
            raised_areas_by_batch[name], 1.0 - tail_probability
        )
        # Merging blocks changes the area slightly, so the limits are shifted back by the change.
        (sample_area,) = statistic.compute_area(all_runs.to_unit_weight_blocks())
        (merged_sample_area,) = statistic.compute_area(merged_runs.to_unit_weight_blocks())
        shift = float(sample_area - merged_sample_area)
        limits[name] = (lower_limit + shift, upper_limit + shift)
    return limits


def _compute_quantile_of_batches(value_batches: list[Float], probability: float) -> float:
    """Compute a quantile of the values of all batches, without interpolation."""
    all_values = np.concatenate(value_batches)
    return float(np.quantile(all_values, probability, method="inverted_cdf"))
