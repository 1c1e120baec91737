"""Intervals by resampling: the bootstrap of any metric, and exact intervals where it is a
proportion.

`interval(metric, *data)` takes the metric function itself and the data it takes::

    interval(ece, proba, labels, n_bins=15)
    interval(ece, confidence, correct)
    interval(aurc, score, correct)
    interval(coverage_accuracy, accept, correct)

**Proportions** get the exact interval of Clopper & Pearson (1934). **Most other metrics** get the
hull of the percentile and the basic bootstrap, ``θ ± max(q_high - θ, θ - q_low)``, clipped to the
metric's range. A plug-in calibration error is too large on a finite sample, and its resamples are
larger again: the percentile interval can exclude its own estimate, the basic one stops short above;
the hull contains the estimate by construction. The interval of a **calibration error** reaches down
by what chance may have added: giving the residuals random signs (a wild bootstrap) says how large
the error would be on average without any gap, c. Noise of mean absolute size c makes of a gap g at
most g + c on average (the triangle inequality), so that the lower end is the estimate less c and
less half the spread of the resamples, or the hull's where that is lower; it is 0 where errors as
large as the estimate could be chance alone. A resample is a vector of row weights, never a
resampled table.

**Areas of a ranking** (AUROC, AURC and the like) get a Bayesian bootstrap that allows for an unseen
row, because a few rows make most of such an area: `metacal.metrics.ranking` describes it.

A log loss or Brier score of rows that are nearly all right is made by the few that are wrong, and
with fewer than five of them no resample knows how large it may be: it has no interval then, and
says why.

A draw is one small whole number a row. It is kept as such, a byte each, and turned into floats a
few resamples at a time: those stay in the cache while everything is computed from them. A bootstrap
is thousands of small products with other work in between. BLAS hands each to all cores, and its
threads then wait for the next one at full speed: on two cores 1,000 resamples of 25,000 x 1,000
burned five times the processor time of one thread, and more on more cores. One thread also gives
the same bits whatever the number of cores. A metric that is a sum over the thousands of cells of a
large table takes the longest and is nearly normal: it is drawn less often (`binning.NearlyNormal`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from math import inf, isfinite, isnan, nan
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from metacal.errors import InputError
from metacal.formulas import Float
from metacal.metrics.binning import NearlyNormal, Statistic, Weights, estimate, per_resample
from metacal.metrics.intervals import (
    BAYESIAN_BOOTSTRAP,
    BOOTSTRAP,
    NO_INTERVAL,
    TOO_FEW_ERRORS,
    Interval,
    clopper_pearson,
)
from metacal.metrics.ranking import AreaStatistic, area_limits
from metacal.metrics.registry import METRICS, Measured, Metric
from metacal.metrics.toplabel import TopLabel
from metacal.rows import advance
from metacal.rows.arrays import fraction
from metacal.rows.draws import generator
from metacal.rows.memory import keep_freed_memory

RandomState = int | np.random.Generator | None

#: Rows up to which fetching memory anew takes longer than the work.
_SMALL = 1 << 14
#: Wrong rows from which on a metric that they make has an interval.
_FEWEST_ERRORS = 5
#: Draws of random signs for the question whether an error could be chance.
_CHANCE_DRAWS = 200
#: Weights drawn at once, as small whole numbers, up to 64 resamples of them: one product with a
#: whole table.
_BATCH_ELEMENTS = 1 << 22
#: Those of them that are floats at a time, for everything else: up to 32 resamples of few rows, 8
#: of many.
_FEW_ELEMENTS, _LEAST_ELEMENTS = 1 << 18, 1 << 20
#: Rows from which on they are many: what is computed from 8 resamples then fills the cache.
_MANY = 1 << 14


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep BLAS to one thread inside.

    Examples
    --------
    >>> with one_blas_thread():
    ...     pass
    """
    with import_module("threadpoolctl").threadpool_limits(
        limits=1, user_api="blas"
    ):  # it comes with scikit-learn
        yield


def batches(count: int, n_rows: int, draw: Callable[[], Weights]) -> Iterator[Weights]:
    """Yield `count` draws of row weights, several at a time; the draws do not depend on the batch
    size.

    A batch has the shape (resamples, rows). Weights are a handful at most: that a row is drawn 128
    times out of n rows has a probability below 1/128!.
    """
    step = max(1, min(64, _BATCH_ELEMENTS // n_rows))
    held = np.empty((step, n_rows), dtype=np.int8)
    for start in range(0, count, step):
        n_drawn = min(step, count - start)
        for number in range(n_drawn):
            held[number] = draw()
        yield held[:n_drawn]
        advance(n_drawn * n_rows)


def few_as_floats(batch: Weights) -> Iterator[Weights]:
    """The same weights a few resamples at a time; in memory as (rows, resamples), as sparse
    products want them.
    """
    n_rows = batch.shape[1]
    step = (
        min(8, _LEAST_ELEMENTS // n_rows) if n_rows >= _MANY else min(32, _FEW_ELEMENTS // n_rows)
    )
    step = max(1, step)
    for start in range(0, len(batch), step):
        yield np.ascontiguousarray(batch[start : start + step].T, dtype=np.float64).T


def bootstrap(
    statistic: Callable[..., float],
    *data: ArrayLike,
    level: float = 0.95,
    n_resamples: int = 1000,
    random_state: RandomState = 0,
    bounds: tuple[float, float] = (-inf, inf),
) -> Interval:
    """Bootstrap interval of any statistic of columns with integer row weights.

    The hull of the percentile and the basic interval, ``θ ± max(q_high - θ, θ - q_low)``; it always
    contains θ.

    Parameters
    ----------
    statistic : function of (*columns, weights)
        Must count row i ``weights[i]`` times; weights of one give the estimate.
    *data : arrays
        Columns with one entry per row.
    level, n_resamples, random_state
        Coverage asked for, number of resamples, and a seed or numpy Generator: same seed, same
        bits.
    bounds : (low, high), optional
        The range of the statistic; the interval is clipped to it.

    Examples
    --------
    >>> def mean(x, weights):
    ...     return float((x * weights).sum() / weights.sum())
    >>> found = bootstrap(mean, [1.0, 2.0, 3.0, 4.0], n_resamples=200)
    >>> found.estimate, 2.5 in found, found.method
    (2.5, True, 'bootstrap')

    References
    ----------
    Davison & Hinkley, Bootstrap Methods and their Application, 1997, section 5.2.
    """
    arrays = [np.asarray(column) for column in data]
    if not arrays or len({len(column) for column in arrays}) != 1 or not len(arrays[0]):
        lengths = [len(column) for column in arrays]
        raise InputError(
            "bootstrap needs at least one column, all of one non-zero length; got lengths"
            f" {lengths}."
        )
    weighted = per_resample(lambda weights: float(statistic(*arrays, weights)))
    plan = Resampling(level, n_resamples, random_state)
    return plan.intervals({"": Target(weighted, *bounds)}, len(arrays[0]))[""]


@dataclass(frozen=True, eq=False)
class Target:
    """What to bootstrap: a statistic, its range, and whether it is an error that is 0 under perfect
    calibration.

    A `wide` one goes through a whole table: it gets many resamples at a time, so that the table is
    read less often.
    """

    statistic: Statistic
    low: float = 0.0
    high: float = 1.0
    calibration_error: bool = False
    wide: bool = False

    @property
    def draws(self) -> float:
        """How many resamples are enough."""
        return self.statistic.draws if isinstance(self.statistic, NearlyNormal) else inf


@dataclass(frozen=True)
class Resampling:
    """How to draw intervals; with ``n_resamples=0`` only estimates are computed and the ends are
    NaN.

    Shares have their exact interval all the same, where `shares` asks for it.
    """

    level: float = 0.95
    n_resamples: int = 1000
    random_state: RandomState = 0
    shares: bool = False

    def __post_init__(self) -> None:
        fraction("level", self.level)
        if self.n_resamples != int(self.n_resamples) or self.n_resamples < 0:
            raise InputError(
                f"n_resamples must be a whole number, got {self.n_resamples!r}; 1000 is the usual"
                " choice."
            )

    def measure(
        self, wanted: list[tuple[Metric, Measured]], n_rows: int, errors: float = inf
    ) -> dict[str, Interval]:
        """Return each metric's interval: exact for a proportion, from shared resamples otherwise,
        none for a number.

        `errors` of the rows are wrong, where that is known.
        """
        targets = {
            metric.name: Target(found, *metric.range, metric.calibration_error, metric.whole_table)
            for metric, found in wanted
            if callable(found) and metric.has_interval
        }
        drawn = self.intervals(targets, n_rows) if targets else {}
        for metric, found in wanted:
            if callable(found) and not metric.has_interval:
                drawn[metric.name] = self.bare(estimate(found, n_rows))
        if self.n_resamples and errors < _FEWEST_ERRORS:
            for metric, found in wanted:
                if (
                    callable(found)
                    and metric.needs_errors
                    and isfinite(drawn[metric.name].estimate)
                ):
                    drawn[metric.name] = replace(
                        self.bare(drawn[metric.name].estimate), method=TOO_FEW_ERRORS
                    )
        return {
            one.name: drawn[one.name] if callable(own) else self._without_draws(own)
            for one, own in wanted
        }

    def _without_draws(self, found: tuple[int, int] | float) -> Interval:
        if not isinstance(found, tuple):
            return self.bare(found)
        exact = clopper_pearson(*found, self.level)
        return exact if self.n_resamples or self.shares else self.bare(exact.estimate)

    def bare(self, value: float = nan) -> Interval:
        """A number without an interval; NaN where it is not known."""
        return Interval(value, nan, nan, self.level, NO_INTERVAL)

    def intervals(self, targets: Mapping[str, Target], n_rows: int) -> dict[str, Interval]:
        """Return the intervals of several statistics from the same resamples; each is what it would
        be alone.
        """
        plain = {name: estimate(target.statistic, n_rows) for name, target in targets.items()}
        return (
            self._drawn(targets, plain, n_rows)
            if self.n_resamples
            else {n: self.bare(v) for n, v in plain.items()}
        )

    @one_blas_thread()
    def _drawn(
        self, targets: Mapping[str, Target], values: Mapping[str, float], n_rows: int
    ) -> dict[str, Interval]:
        if n_rows <= _SMALL:
            keep_freed_memory()
        random = generator(self.random_state)
        by_chance, area_draws = random.spawn(2)
        kind = np.int32 if n_rows <= 1 << 31 else np.int64  # the same draws, in half the time

        def drawn() -> Weights:
            return np.bincount(random.integers(n_rows, size=n_rows, dtype=kind), minlength=n_rows)

        areas = {
            name: target.statistic
            for name, target in targets.items()
            if isinstance(target.statistic, AreaStatistic)
        }
        area_intervals = self._area_intervals(areas, values, area_draws)
        targets = {name: target for name, target in targets.items() if name not in areas}
        again = replicates(targets, batches(self.n_resamples if targets else 0, n_rows, drawn))
        # A resample may lack what the metric divides by.
        again = {name: own[~np.isnan(own)] for name, own in again.items()}
        found = {
            name: self._hull(values[name], again[name], target) for name, target in targets.items()
        }
        doubted = {
            name: target
            for name, target in targets.items()
            if target.calibration_error and found[name].low > 0
        }
        signs = batches(
            _CHANCE_DRAWS if doubted else 0,
            n_rows,
            lambda: 2 * by_chance.integers(2, size=n_rows) - 1,
        )
        for name, chance in replicates(doubted, signs).items():
            found[name] = self._down_to_chance(found[name], chance, again[name], doubted[name])
        return {**found, **area_intervals}

    def _area_intervals(
        self,
        areas: Mapping[str, AreaStatistic],
        values: Mapping[str, float],
        random: np.random.Generator,
    ) -> dict[str, Interval]:
        """Compute the intervals of the areas of a ranking, which allow for an unseen row."""
        if not areas:
            return {}
        intervals = {}
        for name, (low, high) in area_limits(
            areas, self.n_resamples, (1.0 - self.level) / 2.0, random
        ).items():
            value = values[name]
            if isnan(value):
                low = high = nan
            # An area lies between 0 and 1, but sums of real weights are rounded.
            low, high = max(min(low, value), 0.0), min(max(high, value), 1.0)
            intervals[name] = Interval(value, low, high, self.level, BAYESIAN_BOOTSTRAP)
        return intervals

    def _hull(self, value: float, drawn: Float, target: Target) -> Interval:
        if isnan(value) or not len(drawn):
            return Interval(value, nan, nan, self.level, BOOTSTRAP)
        lower, upper = self._tails(drawn, target)
        if not isfinite(value):
            return Interval(value, min(lower, value), max(upper, value), self.level, BOOTSTRAP)
        reach = max(upper - value, value - lower)
        low, high = max(value - reach, target.low), min(value + reach, target.high)
        return Interval(value, min(low, value), max(high, value), self.level, BOOTSTRAP)

    def _tails(self, drawn: Float, target: Target) -> tuple[float, float]:
        """Where the tails of the replicates end: of few that are nearly normal by their spread."""
        tail = (1.0 - self.level) / 2.0
        if isinstance(target.statistic, NearlyNormal) and len(drawn) > 1:
            reach = float(ndtri(1.0 - tail) * drawn.std(ddof=1))
            return float(drawn.mean()) - reach, float(drawn.mean()) + reach
        # Order statistics, not interpolation: inf - inf between two infinite resamples would be
        # NaN.
        lower, upper = np.quantile(drawn, [tail, 1.0 - tail], method="inverted_cdf").tolist()
        return lower, upper

    def _down_to_chance(
        self, found: Interval, drawn: Float, again: Float, target: Target
    ) -> Interval:
        """Let the interval reach down by what chance adds, to 0 where it alone gives as much often
        enough.
        """
        by_chance = float(np.quantile(drawn, (1.0 + self.level) / 2.0, method="inverted_cdf"))
        if found.estimate <= by_chance * (1.0 + 1e-9):
            return replace(found, low=0.0)
        lower, upper = self._tails(again, target)
        low = found.estimate - float(drawn.mean()) - 0.5 * (upper - lower)
        return replace(found, low=max(0.0, min(found.low, low)))


def replicates(targets: Mapping[str, Target], drawn: Iterable[Weights]) -> dict[str, Float]:
    """What each statistic comes to under each row of weights, in order."""
    found: dict[str, list[Float]] = {name: [] for name in targets}
    for batch in drawn:
        for name, target in targets.items():
            if target.wide and sum(map(len, found[name])) < target.draws:
                found[name].append(target.statistic(batch))
        for some in few_as_floats(batch):
            for name, target in targets.items():
                if not target.wide:
                    found[name].append(target.statistic(some))
    return {name: np.concatenate([np.empty(0), *own]) for name, own in found.items()}


def interval(
    metric: Callable[..., float],
    *data: ArrayLike,
    level: float = 0.95,
    n_resamples: int = 1000,
    random_state: RandomState = 0,
    **options: Any,
) -> Interval:
    """Compute the confidence interval of one metric of this package.

    Parameters
    ----------
    metric : function
        Any metric of `metacal.metrics` that returns one number.
    *data
        What the metric takes: (proba, labels), (confidence, correct), (accept, correct) or (score,
        correct).
    level, n_resamples, random_state
        As in `bootstrap`; proportions are exact and draw nothing.
    **options
        Passed on to the metric: `n_bins`, `binning`, `classes`.

    Examples
    --------
    >>> from metacal.metrics import coverage, ece
    >>> print(interval(coverage, [True] * 9 + [False]))
    0.9000 [0.5549, 0.9975]
    >>> found = interval(ece, [0.9, 0.8, 0.7, 0.6], [1, 1, 0, 1], n_bins=5, n_resamples=100)
    >>> found.low <= found.estimate <= found.high
    True
    """
    plan = Resampling(level, n_resamples, random_state)
    name = getattr(metric, "__name__", str(metric))
    row = METRICS.get(name)
    if row is None or row.function is not metric:
        raise InputError(
            f"there is no interval for {name!r}; known are {', '.join(sorted(METRICS))}. "
            "For a statistic of your own use bootstrap(statistic, *columns)."
        )
    known = list(inspect.signature(metric).parameters)
    if unknown := [option for option in options if option not in known]:
        raise InputError(
            f"{name} has no option {unknown[0]!r}; its arguments are {', '.join(known)}."
        )
    if row.input is None:  # decisions are only counted
        counts = row.counts(*data, **options) if row.counts is not None else None
        return plan.measure([(row, counts or (0, 0))], 0)[row.name]
    source = row.input(
        *data, **({"classes": options.pop("classes")} if "classes" in options else {})
    )
    errors = inf
    if row.needs_errors:
        top = source if isinstance(source, TopLabel) else source.top_label()
        errors = float((top.correct < 1.0).sum())
    return plan.measure([(row, row.measured(source, **options))], len(source), errors)[row.name]
