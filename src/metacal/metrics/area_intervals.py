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
    """Error blocks of rows with arbitrary positive weights.

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
        of all weight. A block of error rate c between the fractions a and b adds c ∫ -log t dt from
        a to b.
        """
        coverage_before_block = self.rows_before_block / self.total_rows
        coverage_through_block = self.rows_through_block / self.total_rows
        block_weights = self.rows_through_block - self.rows_before_block
        error_rates = np.divide(
            self.n_errors, block_weights, out=np.zeros_like(block_weights), where=block_weights > 0
        )
        areas_of_blocks = error_rates * _integrate_minus_log(
            coverage_before_block, coverage_through_block
        )
        return np.asarray(areas_of_blocks.sum(axis=1))


def _integrate_minus_log(start: Float, stop: Float) -> Float:
    """Integrate -log t from `start` to `stop`. Its antiderivative is t - t log t."""
    antiderivative_at_stop = stop - xlogy(stop, stop)
    antiderivative_at_start = start - xlogy(start, start)
    return np.asarray(antiderivative_at_stop - antiderivative_at_start)


@dataclass(frozen=True, eq=False)
class RankingCounts:
    """Numbers of rows in the error blocks of a ranking and in their gaps.

    An error block contains the rows of one score, at least one of them incorrect. A gap contains
    the correct rows between two error blocks, before the first or after the last one.

    Attributes
    ----------
    n_correct_in_gaps : array of shape (n_blocks + 1,)
        Number of correct rows in each gap. Gap b precedes error block b.

    n_correct_in_blocks, n_incorrect_in_blocks : arrays of shape (n_blocks,)
        Numbers of correct and of incorrect rows in each error block.
    """

    n_correct_in_gaps: Float
    n_correct_in_blocks: Float
    n_incorrect_in_blocks: Float

    @classmethod
    def from_ranking(cls, ranking: Ranking) -> RankingCounts:
        """Count the rows in each error block and each gap of a ranking."""
        unit_weights = np.ones((1, len(ranking)), dtype=np.intp)
        blocks_of_sample = ranking.get_error_blocks(unit_weights)
        # The first axis of each array has one element, because the sample is the only resample.
        n_rows_before_block = blocks_of_sample.rows_before_block[0]
        n_rows_through_block = blocks_of_sample.rows_through_block[0]
        n_incorrect_in_blocks = blocks_of_sample.n_errors[0]
        n_rows = blocks_of_sample.total_rows[0]
        n_rows_in_blocks = n_rows_through_block - n_rows_before_block
        n_rows_before_gap = np.concatenate(([0.0], n_rows_through_block))
        n_rows_through_gap = np.append(n_rows_before_block, n_rows)
        return cls(
            n_correct_in_gaps=n_rows_through_gap - n_rows_before_gap,
            n_correct_in_blocks=n_rows_in_blocks - n_incorrect_in_blocks,
            n_incorrect_in_blocks=n_incorrect_in_blocks,
        )

    def merge_late_blocks(self) -> RankingCounts:
        """Merge neighbouring error blocks if there are too many to resample quickly.

        The first blocks stay as they are, because they have the largest influence on an AURC.
        """
        n_blocks = len(self.n_incorrect_in_blocks)
        if n_blocks <= _N_UNMERGED_BLOCKS + _N_MERGED_BLOCKS:
            return self
        unmerged_blocks = np.arange(_N_UNMERGED_BLOCKS)
        first_blocks_of_merged = np.linspace(
            _N_UNMERGED_BLOCKS, n_blocks, _N_MERGED_BLOCKS, endpoint=False
        ).astype(np.intp)
        first_blocks = np.concatenate([unmerged_blocks, first_blocks_of_merged])
        # Gap b precedes block b, so a gap remains if its block is the first of a merged block.
        remaining_gaps = np.append(first_blocks, n_blocks)
        # All other gaps lie inside a merged block, so their correct rows are counted in the block.
        n_correct_in_inner_gaps = self.n_correct_in_gaps[:-1].copy()
        n_correct_in_inner_gaps[first_blocks] = 0.0
        n_correct = self.n_correct_in_blocks + n_correct_in_inner_gaps
        return RankingCounts(
            n_correct_in_gaps=self.n_correct_in_gaps[remaining_gaps],
            n_correct_in_blocks=np.add.reduceat(n_correct, first_blocks),
            n_incorrect_in_blocks=np.add.reduceat(self.n_incorrect_in_blocks, first_blocks),
        )

    def draw_resamples(
        self, n_resamples: int, random: np.random.Generator
    ) -> Iterator[WeightedResamples]:
        """Yield batches of resamples with exponential row weights.

        The weights of k rows add up to a gamma variable of shape k, so one draw for the correct
        rows of each gap or block, and one for the incorrect rows of each block, are enough.
        """
        n_gaps = len(self.n_correct_in_gaps)
        n_blocks = len(self.n_incorrect_in_blocks)
        max_batch_size = max(1, _BATCH_ELEMENTS // n_gaps)
        for start in range(0, n_resamples, max_batch_size):
            batch_size = min(max_batch_size, n_resamples - start)
            observed = _build_weighted_blocks(
                weights_of_gaps=random.standard_gamma(self.n_correct_in_gaps, (batch_size, n_gaps)),
                correct_weights=random.standard_gamma(
                    self.n_correct_in_blocks, (batch_size, n_blocks)
                ),
                incorrect_weights=random.standard_gamma(
                    self.n_incorrect_in_blocks, (batch_size, n_blocks)
                ),
            )
            weights_of_two_unseen_rows = random.standard_exponential((batch_size, 2))
            first_weight, last_weight = np.hsplit(weights_of_two_unseen_rows, 2)
            yield WeightedResamples(
                observed, unseen_first_weight=first_weight, unseen_last_weight=last_weight
            )

    def get_blocks_of_sample(self) -> WeightedErrorBlocks:
        """Return the error blocks of the sample itself, in which every row has weight 1."""
        return _build_weighted_blocks(
            weights_of_gaps=self.n_correct_in_gaps[None],
            correct_weights=self.n_correct_in_blocks[None],
            incorrect_weights=self.n_incorrect_in_blocks[None],
        )


def _build_weighted_blocks(
    *, weights_of_gaps: Float, correct_weights: Float, incorrect_weights: Float
) -> WeightedErrorBlocks:
    """Build error blocks from the total row weights of each gap and block.

    Parameters
    ----------
    weights_of_gaps : array of shape (n_resamples, n_blocks + 1)
        Weight of the correct rows in each gap. Gap b precedes block b.

    correct_weights, incorrect_weights : arrays of shape (n_resamples, n_blocks)
        Weights of the correct and of the incorrect rows in each block.

    Returns
    -------
    WeightedErrorBlocks
    """
    weights_of_blocks = correct_weights + incorrect_weights
    weights_of_preceding_gaps = weights_of_gaps[:, :-1]
    weight_through_block = np.cumsum(weights_of_preceding_gaps + weights_of_blocks, axis=1)
    total_weight_of_gaps = weights_of_gaps.sum(axis=1, keepdims=True)
    total_weight_of_blocks = weights_of_blocks.sum(axis=1, keepdims=True)
    return WeightedErrorBlocks(
        total_rows=total_weight_of_gaps + total_weight_of_blocks,
        rows_before_block=weight_through_block - weights_of_blocks,
        rows_through_block=weight_through_block,
        n_errors=incorrect_weights,
    )


@dataclass(frozen=True, eq=False)
class WeightedResamples:
    """Resamples with exponential row weights, and the weights of two unseen rows.

    Attributes
    ----------
    observed : WeightedErrorBlocks
        Error blocks of the rows of the sample.

    unseen_first_weight, unseen_last_weight : arrays of shape (n_resamples, 1)
        Weights of the unseen row that ranks first and of the one that ranks last.
    """

    observed: WeightedErrorBlocks
    unseen_first_weight: Float
    unseen_last_weight: Float

    def add_unfavourable_rows(self, *, adds_correct_row_last: bool) -> WeightedErrorBlocks:
        """Add an unseen incorrect row first and, if requested, a correct row last."""
        observed = self.observed
        first_weight = self.unseen_first_weight
        total_rows = observed.total_rows + first_weight
        if adds_correct_row_last:
            total_rows = total_rows + self.unseen_last_weight
        # The unseen incorrect row forms the first block. The unseen correct row needs no block.
        rows_before_first = np.zeros_like(first_weight)
        return WeightedErrorBlocks(
            total_rows=total_rows,
            rows_before_block=np.hstack(
                [rows_before_first, observed.rows_before_block + first_weight]
            ),
            rows_through_block=np.hstack(
                [first_weight, observed.rows_through_block + first_weight]
            ),
            n_errors=np.hstack([first_weight, observed.n_errors]),
        )

    def add_favourable_rows(self, *, adds_incorrect_row_last: bool) -> WeightedErrorBlocks:
        """Add an unseen correct row first and, if requested, an incorrect row last."""
        observed = self.observed
        total_rows = observed.total_rows + self.unseen_first_weight
        rows_before = observed.rows_before_block + self.unseen_first_weight
        rows_through = observed.rows_through_block + self.unseen_first_weight
        if not adds_incorrect_row_last:
            return WeightedErrorBlocks(
                total_rows=total_rows,
                rows_before_block=rows_before,
                rows_through_block=rows_through,
                n_errors=observed.n_errors,
            )
        # The unseen incorrect row forms the last block.
        total_rows_with_last = total_rows + self.unseen_last_weight
        return WeightedErrorBlocks(
            total_rows=total_rows_with_last,
            rows_before_block=np.hstack([rows_before, total_rows]),
            rows_through_block=np.hstack([rows_through, total_rows_with_last]),
            n_errors=np.hstack([observed.n_errors, self.unseen_last_weight]),
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

    needs_unseen_last_row : bool
        Whether an unseen row ranks last, too. An area that compares the ranks of incorrect rows
        with those of correct rows needs an unseen row of each kind.

    smaller_is_better : bool
        Whether smaller areas are better.
    """

    ranking: Ranking
    compute_area: Callable[[ErrorBlocks], Float]
    needs_unseen_last_row: bool = False
    smaller_is_better: bool = True

    def __call__(self, row_weights: Weights) -> Float:
        """Compute one area per resample."""
        return self.compute_area(self.ranking.get_error_blocks(row_weights))

    def compute_bounding_areas(self, resamples: WeightedResamples) -> tuple[Float, Float]:
        """Compute a lower and an upper bound of the area by adding unseen rows."""
        unfavourable_blocks = resamples.add_unfavourable_rows(
            adds_correct_row_last=self.needs_unseen_last_row
        )
        favourable_blocks = resamples.add_favourable_rows(
            adds_incorrect_row_last=self.needs_unseen_last_row
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
    shared_ranking = next(iter(statistics.values())).ranking
    counts = RankingCounts.from_ranking(shared_ranking)
    merged_counts = counts.merge_late_blocks()
    for resamples in merged_counts.draw_resamples(n_resamples, random):
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
        (sample_area,) = statistic.compute_area(counts.get_blocks_of_sample())
        (area_after_merging,) = statistic.compute_area(merged_counts.get_blocks_of_sample())
        merging_correction = float(sample_area - area_after_merging)
        limits[name] = (lower_limit + merging_correction, upper_limit + merging_correction)
    return limits


def _compute_quantile_of_batches(value_batches: list[Float], probability: float) -> float:
    """Compute a quantile of the values of all batches, without interpolation."""
    all_values = np.concatenate(value_batches)
    return float(np.quantile(all_values, probability, method="inverted_cdf"))
