"""How well a score ranks wrong answers behind right ones, whatever the threshold (``score``: higher
= less sure).

``correct`` says whether the uncalibrated model's answer is right. Rows of equal score cannot be
told apart by any threshold: only ends of blocks of ties are operating points, and areas are the
expectation under a random order of the tied rows, in closed form.

All areas are sums over the *wrong* rows of something that depends on how many rows, and how many
wrong ones, are surer. `Ranking` counts both under any row weights, once for all metrics of a batch
of resamples.

**Intervals.** An area depends on the few incorrect rows, and most of all on an incorrect row among
the surest ones. A sample without such a row does not show that there are none, so the spread of its
resamples is too small: nominal 95% intervals of the plain bootstrap missed in up to 93% of the
samples (`benchmarks/area_intervals.py`). `area_limits` therefore adds an unseen row to each
resample.

1. Every row gets an independent, exponentially distributed weight (the Bayesian bootstrap, Rubin 1981).
2. For the unfavourable end, an unseen incorrect row that ranks first gets such a weight too. For the favourable end,
   the unseen row is correct and ranks first. AUROC and excess AURC compare two kinds of rows. They
   get an unseen row of each kind.
3. The ends are quantiles of these resamples.

For the mean of zeros and ones this construction is the exact interval of Clopper & Pearson, because
the weighted mean has a beta distribution. For means of values between 0 and 1 it was proposed by
Gaffke (2005). For areas it is not proved. The benchmark above measures how often the intervals
miss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import xlogy

from metacal.formulas import Array, Flags, Float
from metacal.metrics.binning import CodeSums, Statistic, Weights, distinct_codes
from metacal.metrics.registry import Input, register, value
from metacal.metrics.toplabel import (
    bool_column,
    number_column,
    refuse_correct_first,
    refuse_where,
    same_length,
)

#: Numbers in one array of weighted resamples; a few such arrays fit into the cache.
_BATCH_ELEMENTS = 1 << 16
#: Blocks of equal score that are resampled one by one; later blocks are merged into as many.
_SINGLE_BLOCKS = 400


class Ranking:
    """A checked score with the correctness of its rows, ready to be counted under row weights."""

    def __init__(self, score: Float, correct: Flags) -> None:
        self.score, self.correct = score, correct
        codes, wrong = distinct_codes(score), ~correct
        blocks = np.unique(codes[wrong])  # the blocks of equal score that hold a wrong row
        place = np.searchsorted(blocks, codes)
        inside = (
            blocks[np.minimum(place, len(blocks) - 1)] == codes
            if len(blocks)
            else np.zeros(len(codes), np.bool_)
        )
        # Segments, surest first: what lies before the first such block, the block, what lies
        # between it and the next, …
        self._rows = CodeSums(2 * place + inside, 2 * len(blocks) + 1)
        self._wrong = CodeSums(place[wrong], len(blocks), None, np.flatnonzero(wrong))
        self._last: tuple[Weights, RankedErrors] | None = None

    def __len__(self) -> int:
        return len(self.score)

    def errors(self, batch: Weights) -> RankedErrors:
        """Count rows and wrong rows; metrics that look at one batch in turn share it."""
        if self._last is None or self._last[0] is not batch:
            # Whole numbers: each sum of integers is there before the next needs it, a sum of floats
            # is not.
            rows, wrong = (
                np.ascontiguousarray(self._rows(batch), np.int64),
                np.ascontiguousarray(self._wrong(batch)),
            )
            stop = np.cumsum(rows, axis=1).astype(np.float64)
            self._last = batch, RankedErrors(stop[:, -1:], stop[:, 0:-1:2], stop[:, 1::2], wrong)
        return self._last[1]

    def statistic(self, area: Callable[[RankedErrors], Float]) -> Statistic:
        """Make a statistic from a function of the counts. Its interval is that of the plain
        bootstrap.
        """
        return lambda batch: area(self.errors(batch))

    def runs(self) -> Runs:
        """Count the correct and the incorrect rows along the ranking."""
        counted = self.errors(np.ones((1, len(self)), dtype=np.intp))
        incorrect = counted.wrong[0]
        size = counted.stop[0] - counted.start[0]
        stop_before = np.concatenate(([0.0], counted.stop[0]))
        return Runs(
            gaps=np.append(counted.start[0], counted.n_rows[0]) - stop_before,
            correct=size - incorrect,
            incorrect=incorrect,
        )


@dataclass(frozen=True, eq=False)
class RankedErrors:
    """Blocks of equal score that hold a wrong row, surest first; arrays of shape (resamples,
    blocks).

    Attributes
    ----------
    n_rows : array of shape (resamples, 1)
    start, stop : arrays
        Rows that are surer than the block, and as sure or surer.
    wrong : array
        Wrong rows in the block.
    """

    n_rows: Float
    start: Float
    stop: Float
    wrong: Float

    @property
    def wrong_before(self) -> Float:
        """Wrong rows that are surer than the block."""
        # Sums of integers are faster than sums of floats.
        return np.cumsum(self.wrong.astype(np.int64), axis=1) - self.wrong

    @cached_property
    def aurc(self) -> Float:
        """(1/n) Σ_m E_m/m, E_m the errors among the m surest rows, summed by errors instead of by
        ranks.

        An error at rank r is in E_m for all m >= r and adds H_n - H_(r-1), H the harmonic numbers.
        Of w errors in a block of ranks a + 1 … b, (m - a) w / (b - a) are among the m surest on
        average over orders of the tied rows.
        """
        n_rows = self.n_rows[:, 0].astype(np.intp)
        harmonic = _harmonic_numbers(int(n_rows.max(initial=0)))
        at_stop, at_start = (
            harmonic[self.stop.astype(np.intp)],
            harmonic[self.start.astype(np.intp)],
        )
        rate = self.wrong / np.maximum(self.stop - self.start, 1.0)
        after = self.wrong * (harmonic[n_rows][:, None] - at_stop + 1.0)
        return np.asarray((after - rate * self.start * (at_stop - at_start)).sum(axis=1) / n_rows)


@dataclass(frozen=True, eq=False)
class WeightedErrors(RankedErrors):
    """`RankedErrors` whose rows have positive weights that are not whole numbers."""

    @property
    def wrong_before(self) -> Float:
        """Weight of the wrong rows that are surer than the block."""
        return np.cumsum(self.wrong, axis=1) - self.wrong

    @cached_property
    def aurc(self) -> Float:
        """Return ∫ E(u)/u du, where E(u) is the weight of the errors among the surest share u of
        all weight.

        Errors of density c between the shares a and b add c ∫ -log t dt, which is c (t - t log t)
        from a to b.
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
class Runs:
    """Numbers of rows along a ranking, the surest first.

    Attributes
    ----------
    gaps : array of blocks + 1 entries
        Correct rows before each block that holds an incorrect row, and after the last block.
    correct, incorrect : arrays
        Rows in each block.
    """

    gaps: Float
    correct: Float
    incorrect: Float

    def merged(self) -> Runs:
        """Merge neighbouring blocks, if there are so many that resamples would be slow.

        The first blocks stay as they are, because they count most in an AURC.
        """
        n_blocks = len(self.incorrect)
        if n_blocks <= 2 * _SINGLE_BLOCKS:
            return self
        later = np.linspace(_SINGLE_BLOCKS, n_blocks, _SINGLE_BLOCKS, endpoint=False).astype(
            np.intp
        )
        first_blocks = np.concatenate([np.arange(_SINGLE_BLOCKS), later])
        gaps_inside = self.gaps[:-1].copy()
        gaps_inside[first_blocks] = 0.0
        return Runs(
            gaps=self.gaps[np.append(first_blocks, n_blocks)],
            correct=np.add.reduceat(self.correct + gaps_inside, first_blocks),
            incorrect=np.add.reduceat(self.incorrect, first_blocks),
        )

    def resampled(self, count: int, random: np.random.Generator) -> Iterator[WeightedResamples]:
        """Yield `count` resamples with exponential row weights, a few at a time.

        The weights of k rows add up to a gamma variable of shape k. One draw for each run of rows
        is therefore enough.
        """
        step = max(1, _BATCH_ELEMENTS // len(self.gaps))
        for first in range(0, count, step):
            n_drawn = min(step, count - first)
            weights = [
                random.standard_gamma(run, (n_drawn, len(run)))
                for run in (self.gaps, self.correct, self.incorrect)
            ]
            yield WeightedResamples(
                weighted_errors(*weights), random.standard_exponential((n_drawn, 2))
            )

    def errors(self) -> WeightedErrors:
        """Return the runs themselves as one resample in which every row has weight one."""
        return weighted_errors(self.gaps[None], self.correct[None], self.incorrect[None])


def weighted_errors(gaps: Float, correct: Float, incorrect: Float) -> WeightedErrors:
    """Place the blocks of resamples from the weights of their runs, arrays of shape (resamples,
    runs).
    """
    size = correct + incorrect
    stop = np.cumsum(gaps[:, :-1] + size, axis=1)
    total = gaps.sum(axis=1, keepdims=True) + size.sum(axis=1, keepdims=True)
    return WeightedErrors(total, stop - size, stop, incorrect)


@dataclass(frozen=True, eq=False)
class WeightedResamples:
    """Resamples with exponential row weights, and the weights of two unseen rows.

    Attributes
    ----------
    seen : WeightedErrors
        The rows of the sample.
    unseen : array of shape (resamples, 2)
        Weights of the unseen rows.
    """

    seen: WeightedErrors
    unseen: Float

    def unfavourable(self, *, both_kinds: bool) -> WeightedErrors:
        """Put an unseen incorrect row first, and with `both_kinds` an unseen correct row last."""
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
        """Put an unseen correct row first, and with `both_kinds` an unseen incorrect row last."""
        correct, incorrect = self.unseen[:, :1], self.unseen[:, 1:]
        total = self.seen.n_rows + correct
        start = self.seen.start + correct
        stop = self.seen.stop + correct
        if not both_kinds:
            return WeightedErrors(total, start, stop, self.seen.wrong)
        return WeightedErrors(
            n_rows=total + incorrect,
            start=np.hstack([start, total]),
            stop=np.hstack([stop, total + incorrect]),
            wrong=np.hstack([self.seen.wrong, incorrect]),
        )


@dataclass(frozen=True, eq=False)
class AreaStatistic:
    """An area of a ranking under row weights, with limits that allow for unseen rows.

    Attributes
    ----------
    ranking : Ranking
    area : callable
        From counted (or weighted) errors to one number per resample.
    compares_kinds : bool
        Whether the area measures how incorrect rows rank among correct rows. It then gets an unseen
        row of each kind.
    smaller_is_better : bool
    """

    ranking: Ranking
    area: Callable[[RankedErrors], Float]
    compares_kinds: bool = False
    smaller_is_better: bool = True

    def __call__(self, batch: Weights) -> Float:
        """Return one area per row of weights."""
        return self.area(self.ranking.errors(batch))

    def bounding_areas(self, resamples: WeightedResamples) -> tuple[Float, Float]:
        """Return the area of every resample twice: with the unseen row that lowers it, and that
        raises it.
        """
        bad = self.area(resamples.unfavourable(both_kinds=self.compares_kinds))
        good = self.area(resamples.favourable(both_kinds=self.compares_kinds))
        return (good, bad) if self.smaller_is_better else (bad, good)


def area_limits(
    statistics: Mapping[str, AreaStatistic], count: int, tail: float, random: np.random.Generator
) -> dict[str, tuple[float, float]]:
    """Compute the lower and upper limit of several areas of one ranking from the same weighted
    resamples.

    Parameters
    ----------
    statistics : mapping of name to AreaStatistic
        All of them belong to the same `Ranking`.
    count : int
        Number of resamples.
    tail : float
        Probability to leave out at each end.
    random : numpy.random.Generator
    """
    lowered: dict[str, list[Float]] = {name: [] for name in statistics}
    raised: dict[str, list[Float]] = {name: [] for name in statistics}
    ranking = next(iter(statistics.values())).ranking
    runs = ranking.runs()
    merged = runs.merged()
    for resamples in merged.resampled(count, random):
        for name, statistic in statistics.items():
            low, high = statistic.bounding_areas(resamples)
            lowered[name].append(low)
            raised[name].append(high)
    limits = {}
    for name in statistics:
        lower_limit = np.quantile(np.concatenate(lowered[name]), tail, method="inverted_cdf")
        upper_limit = np.quantile(np.concatenate(raised[name]), 1.0 - tail, method="inverted_cdf")
        # Merging blocks moves the area a little. The limits are moved back by as much.
        moved = float(
            statistics[name].area(runs.errors())[0] - statistics[name].area(merged.errors())[0]
        )
        limits[name] = float(lower_limit) + moved, float(upper_limit) + moved
    return limits


def read_ranking(score: ArrayLike, correct: ArrayLike) -> Ranking:
    """Check both columns."""
    return Ranking(*ranking_columns(score, correct))


def ranking_columns(score: ArrayLike, correct: ArrayLike) -> tuple[Float, Flags]:
    """Return the score as numbers and the correctness as booleans, of one length."""
    column = number_column(score, "score")
    refuse_correct_first(np.asarray(score), np.asarray(correct), "score")
    right = bool_column(correct, "correct")
    same_length(score=column, correct=right)
    return column, right


def aurc_statistic(ranking: Ranking) -> Statistic:
    """(1/n) Σ_m E_m/m, E_m the errors among the m surest rows."""
    return AreaStatistic(ranking, lambda errors: errors.aurc)


def e_aurc_statistic(ranking: Ranking) -> Statistic:
    """AURC less that of the ranking that puts every wrong row last."""

    def excess(errors: RankedErrors) -> Float:
        wrong = errors.wrong.sum(axis=1, keepdims=True)
        # Rounding of real weights must not make the number of correct rows negative.
        n_correct = np.maximum(errors.n_rows - wrong, 0.0)
        oracle = type(errors)(errors.n_rows, n_correct, errors.n_rows, wrong)
        return np.maximum(0.0, errors.aurc - oracle.aurc)

    return AreaStatistic(ranking, excess, compares_kinds=True)


def augrc_statistic(ranking: Ranking) -> Statistic:
    """(1/n²) Σ over wrong rows of the rows that are less sure, ties one half: each is accepted
    along with them.
    """

    def area(errors: RankedErrors) -> Float:
        behind = errors.n_rows - 0.5 * (errors.start + errors.stop)
        return np.asarray((errors.wrong * behind).sum(axis=1) / errors.n_rows[:, 0] ** 2)

    return AreaStatistic(ranking, area)


def auroc_statistic(ranking: Ranking) -> Statistic:
    """Share of the pairs of a wrong and a right row in which the right one is surer, ties one
    half.
    """

    def area(errors: RankedErrors) -> Float:
        n_wrong = errors.wrong.sum(axis=1)
        pairs = n_wrong * (errors.n_rows[:, 0] - n_wrong)
        surer = 0.5 * (errors.start + errors.stop) - (errors.wrong_before + 0.5 * errors.wrong)
        ordered = (errors.wrong * surer).sum(axis=1)
        return np.divide(ordered, pairs, out=np.full_like(pairs, np.nan), where=pairs > 0)

    return AreaStatistic(ranking, area, compares_kinds=True, smaller_is_better=False)


def exponential_statistic(ranking: Ranking) -> Statistic:
    """Mean of exp(-score) over the wrong rows times mean of exp(score) over the right ones."""
    score = ranking.score
    advice = "Drop it, or use auroc, which only looks at the order."
    refuse_where(
        ~np.isfinite(score), score, "the exponential ranking loss needs finite scores", advice
    )
    top: list[float] = []
    columns: list[Array] = []
    for rows, exponent in ((~ranking.correct, -score), (ranking.correct, score)):
        # The largest exponents are taken out of both sums: what remains is at most 1 and cannot
        # overflow.
        top.append(np.max(exponent, where=rows, initial=-np.inf))
        columns += [rows, np.where(rows, np.exp(np.minimum(exponent - top[-1], 0.0)), 0.0)]
    parts = np.stack(columns, axis=1)

    def statistic(batch: Weights) -> Float:
        wrong, of_wrong, correct, of_right = (np.asarray(batch, dtype=np.float64) @ parts).T
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return np.asarray((of_wrong / wrong) * (of_right / correct) * np.exp(sum(top)))

    return statistic


#: (score, correct), a score and whether each answer is right; the statistic is prepared from a
#: `Ranking`.
RANKING: Input = read_ranking
_area = partial(register, input=RANKING, evaluated=True)


@_area(title="AURC", words="AURC (0 is best)", statistic=aurc_statistic)
def aurc(score: ArrayLike, correct: ArrayLike) -> float:
    """Area under the risk-coverage curve, ``(1/n) Σ_m risk of the m surest rows`` (Geifman, Uziel &
    El-Yaniv 2019).

    Examples
    --------
    >>> round(aurc([0.1, 0.2, 0.3], [True, True, False]), 6)
    0.111111
    """
    return value(RANKING, aurc_statistic, (score, correct))


@_area(title="excess AURC", statistic=e_aurc_statistic)
def e_aurc(score: ArrayLike, correct: ArrayLike) -> float:
    """Excess AURC: the AURC less that of an oracle that ranks every wrong answer last (Geifman et
    al. 2019).

    Examples
    --------
    >>> e_aurc([0.1, 0.2, 0.3], [True, True, False])
    0.0
    """
    return value(RANKING, e_aurc_statistic, (score, correct))


@_area(title="AUGRC", words="AUGRC (0 is best)", statistic=augrc_statistic)
def augrc(score: ArrayLike, correct: ArrayLike) -> float:
    """Area under the generalized-risk-coverage curve, by the trapezoid rule from (0, 0) (Traub et
    al. 2024).

    Exactly ``(1 - AUROC) a (1 - a) + (1 - a)²/2`` with a the accuracy of the model.

    Examples
    --------
    >>> round(augrc([0.1, 0.2, 0.3], [True, True, False]), 6)
    0.055556
    """
    return value(RANKING, augrc_statistic, (score, correct))


@_area(title="AUROC of the score", statistic=auroc_statistic, smaller_is_better=False)
def auroc(score: ArrayLike, correct: ArrayLike) -> float:
    """P(score of a wrong row > score of a right row), ties one half; NaN unless both kinds occur.

    Examples
    --------
    >>> auroc([0.1, 0.2, 0.2, 0.3], [True, True, False, False])
    0.875
    """
    return value(RANKING, auroc_statistic, (score, correct))


@register(
    title="exponential ranking loss",
    input=RANKING,
    statistic=exponential_statistic,
    range=(0.0, np.inf),
    has_interval=False,
)
def exponential_ranking_loss(score: ArrayLike, correct: ArrayLike) -> float:
    """Exponential surrogate of the ranking risk: how much the score of right rows exceeds that of
    wrong ones.

        (1/(n₋ n₊)) Σ_{i wrong} Σ_{j right} exp(-(s_i - s_j)) = mean over wrong of exp(-s) · mean
        over right of exp(s)

    The ranking risk, P((s - s')(ε - ε') < 0) with ε = 1 for wrong and -1 for right, counts the
    pairs in the wrong order (given one of each kind it is ``1 - auroc``); the exponential of the
    margin bounds it from above, is convex, and minimising it is consistent (Gao & Zhou 2015;
    Clémençon, Lugosi & Vayatis 2008). It depends on the scale of the score: 1 for a constant score,
    from 0 to infinity. NaN unless both kinds occur. It has no interval: a few rows make most of it,
    and with normal scores bootstrap intervals missed in 5% to 60% of samples with 100 incorrect
    rows or fewer.

    Examples
    --------
    >>> round(exponential_ranking_loss([0.0, 1.0, 3.0], [True, True, False]), 6)
    0.092561
    >>> exponential_ranking_loss([0.5, 0.5], [True, False])
    1.0
    """
    return value(RANKING, exponential_statistic, (score, correct))


@lru_cache(maxsize=2)
def _harmonic_numbers(n: int) -> Float:
    """0, 1, 1 + 1/2, … up to the n-th; every resample of a sample has as many rows."""
    found: Float = np.concatenate(([0.0], np.cumsum(1.0 / np.arange(1, n + 1))))
    found.setflags(write=False)
    return found
