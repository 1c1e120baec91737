"""Confidence intervals of metrics: exact for proportions, by resampling for the others.

**Proportions** have the exact interval of Clopper & Pearson (1934).

**Most other metrics** have the hull of the percentile and the basic bootstrap interval,
``θ ± max(q_high - θ, θ - q_low)``, clipped to the range of the metric. A plug-in calibration error
is too large on a finite sample, and its resamples are larger again. The percentile interval alone
can exclude its own estimate, and the upper end of the basic interval alone is too low. The hull
always contains the estimate.

**Calibration errors** have an interval with a lower end that allows for chance.

1. A wild bootstrap gives the residuals random signs. The mean of the error is then c, although there
   is no gap.
2. By the triangle inequality, noise of mean absolute size c turns a gap g into at most g + c on
   average.
3. The lower end is therefore the estimate minus c minus half the spread of the resamples, or the
   lower end of the hull if that is lower. It is 0 if chance alone produces errors as large as the
   estimate.

**Areas of a ranking** (AUROC, AURC and others) have a Bayesian bootstrap that allows for an unseen
row, because a few rows contribute most of such an area (`metacal.metrics.area_intervals`).

**Few errors.** If nearly all rows are correct, the few incorrect rows contribute most of a log loss
or Brier score. With fewer than five of them the resamples do not show how large the metric may be,
so there is no interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, isfinite, isnan, nan

import numpy as np
from scipy.special import ndtri

from metacal.errors import InputError
from metacal.formulas import Float
from metacal.metrics.area_intervals import AreaStatistic, area_limits
from metacal.metrics.binning import NearlyNormalStatistic, Weights, estimate
from metacal.metrics.intervals import (
    BAYESIAN_BOOTSTRAP,
    BOOTSTRAP,
    NO_INTERVAL,
    TOO_FEW_ERRORS,
    Interval,
    clopper_pearson,
)
from metacal.metrics.registry import Measured, Metric
from metacal.metrics.replicates import Target, batches, one_blas_thread, replicates
from metacal.rows.arrays import check_fraction
from metacal.rows.draws import generator
from metacal.rows.memory import keep_freed_memory

RandomState = int | np.random.Generator | None

#: Number of rows up to which requesting memory takes longer than the computation.
_FEW_ROWS = 1 << 14
#: Smallest number of incorrect rows at which a metric with `needs_errors` has an interval.
_MIN_ERRORS = 5
#: Number of draws of random signs.
_N_SIGN_DRAWS = 200


@dataclass(frozen=True)
class Resampling:
    """Settings of the intervals, and their computation.

    Attributes
    ----------
    level : float
        Confidence level.

    n_resamples : int
        Number of resamples. If 0, only estimates are computed and the ends of the intervals are
        NaN.

    random_state : int, numpy.random.Generator or None
        Seed or generator.

    exact_proportions : bool
        Whether proportions have their exact interval even if `n_resamples` is 0.
    """

    level: float = 0.95
    n_resamples: int = 1000
    random_state: RandomState = 0
    exact_proportions: bool = False

    def __post_init__(self) -> None:
        check_fraction("level", self.level)
        if self.n_resamples != int(self.n_resamples) or self.n_resamples < 0:
            raise InputError(
                f"n_resamples must be a whole number, got {self.n_resamples!r}; 1000 is the usual"
                " choice."
            )

    def measure(
        self, wanted: list[tuple[Metric, Measured]], n_rows: int, errors: float = inf
    ) -> dict[str, Interval]:
        """Compute the interval of each metric.

        Parameters
        ----------
        wanted : list of tuples (Metric, Measured)
            Metrics with their counts, statistics or values. Proportions have an exact interval,
            statistics share their resamples, and a bare value has no interval.

        n_rows : int
            Number of rows.

        errors : float, default=inf
            Number of incorrect rows, if known.

        Returns
        -------
        dict of str to Interval
            Intervals in the order of `wanted`, keyed by the names of the metrics.
        """
        targets = {
            metric.name: Target(
                source,
                low=metric.range[0],
                high=metric.range[1],
                calibration_error=metric.calibration_error,
                wide=metric.whole_table,
            )
            for metric, source in wanted
            if callable(source) and metric.has_interval
        }
        resampled = self.intervals(targets, n_rows) if targets else {}
        has_too_few_errors = bool(self.n_resamples) and errors < _MIN_ERRORS

        intervals: dict[str, Interval] = {}
        for metric, source in wanted:
            if not callable(source):
                intervals[metric.name] = self._interval_without_resampling(source)
                continue
            if metric.has_interval:
                interval = resampled[metric.name]
            else:
                interval = self.without_interval(estimate(source, n_rows))
            if has_too_few_errors and metric.needs_errors and isfinite(interval.estimate):
                interval = replace(self.without_interval(interval.estimate), method=TOO_FEW_ERRORS)
            intervals[metric.name] = interval
        return intervals

    def _interval_without_resampling(self, source: tuple[int, int] | float) -> Interval:
        """Compute the interval of a proportion from its counts, or wrap a bare value."""
        if not isinstance(source, tuple):
            return self.without_interval(source)
        n_successes, n_trials = source
        exact = clopper_pearson(n_successes, n_trials, self.level)
        if self.n_resamples or self.exact_proportions:
            return exact
        return self.without_interval(exact.estimate)

    def without_interval(self, value: float = nan) -> Interval:
        """Return a value without an interval; NaN stands for an unknown value."""
        return Interval(value, nan, nan, self.level, NO_INTERVAL)

    def intervals(self, targets: Mapping[str, Target], n_rows: int) -> dict[str, Interval]:
        """Compute the intervals of several statistics from the same resamples.

        The interval of a statistic does not depend on the other statistics.

        Parameters
        ----------
        targets : mapping of str to Target
            Statistics.

        n_rows : int
            Number of rows.

        Returns
        -------
        dict of str to Interval
        """
        estimates = {name: estimate(target.statistic, n_rows) for name, target in targets.items()}
        if not self.n_resamples:
            return {name: self.without_interval(value) for name, value in estimates.items()}
        return self._resampled_intervals(targets, estimates, n_rows)

    @one_blas_thread()
    def _resampled_intervals(
        self, targets: Mapping[str, Target], estimates: Mapping[str, float], n_rows: int
    ) -> dict[str, Interval]:
        """Compute the intervals of statistics whose estimates are known.

        Parameters
        ----------
        targets : mapping of str to Target
            Statistics.

        estimates : mapping of str to float
            Values of the statistics on the sample.

        n_rows : int
            Number of rows.

        Returns
        -------
        dict of str to Interval
        """
        if n_rows <= _FEW_ROWS:
            keep_freed_memory()
        random = generator(self.random_state)
        sign_random, area_random = random.spawn(2)

        areas: dict[str, AreaStatistic] = {}
        other_targets: dict[str, Target] = {}
        for name, target in targets.items():
            if isinstance(target.statistic, AreaStatistic):
                areas[name] = target.statistic
            else:
                other_targets[name] = target
        area_intervals = self._area_intervals(areas, estimates, area_random)
        intervals = self._bootstrap_intervals(
            other_targets, estimates, n_rows, random=random, sign_random=sign_random
        )
        return {**intervals, **area_intervals}

    def _bootstrap_intervals(
        self,
        targets: Mapping[str, Target],
        estimates: Mapping[str, float],
        n_rows: int,
        *,
        random: np.random.Generator,
        sign_random: np.random.Generator,
    ) -> dict[str, Interval]:
        """Compute bootstrap intervals, with lower ends of calibration errors that allow for chance.

        Parameters
        ----------
        targets : mapping of str to Target
            Statistics.

        estimates : mapping of str to float
            Values of the statistics on the sample.

        n_rows : int
            Number of rows.

        random : numpy.random.Generator
            Source of the resamples.

        sign_random : numpy.random.Generator
            Source of the random signs.

        Returns
        -------
        dict of str to Interval
        """
        # Both types give the same draws, int32 in half the time.
        index_type = np.int32 if n_rows <= 1 << 31 else np.int64

        def draw_weights() -> Weights:
            drawn_rows = random.integers(n_rows, size=n_rows, dtype=index_type)
            return np.bincount(drawn_rows, minlength=n_rows)

        def draw_signs() -> Weights:
            return 2 * sign_random.integers(2, size=n_rows) - 1

        n_resamples = self.n_resamples if targets else 0
        values_by_name = replicates(targets, batches(n_resamples, n_rows, draw_weights))
        intervals: dict[str, Interval] = {}
        for name, target in targets.items():
            # A resample without any row in the denominator of the metric gives NaN.
            values = values_by_name[name]
            values_by_name[name] = values[~np.isnan(values)]
            intervals[name] = self._hull(estimates[name], values_by_name[name], target)

        positive_errors = {
            name: target
            for name, target in targets.items()
            if target.calibration_error and intervals[name].low > 0
        }
        n_sign_draws = _N_SIGN_DRAWS if positive_errors else 0
        chance_values = replicates(positive_errors, batches(n_sign_draws, n_rows, draw_signs))
        for name, target in positive_errors.items():
            intervals[name] = self._allow_for_chance(
                intervals[name], chance_values[name], values_by_name[name], target
            )
        return intervals

    def _area_intervals(
        self,
        areas: Mapping[str, AreaStatistic],
        estimates: Mapping[str, float],
        random: np.random.Generator,
    ) -> dict[str, Interval]:
        """Compute the intervals of areas of a ranking, which allow for an unseen row."""
        if not areas:
            return {}
        intervals = {}
        limits = area_limits(areas, self.n_resamples, (1.0 - self.level) / 2.0, random)
        for name, (low, high) in limits.items():
            value = estimates[name]
            if isnan(value):
                low = high = nan
            # An area lies between 0 and 1, but sums of real weights are rounded.
            low = max(min(low, value), 0.0)
            high = min(max(high, value), 1.0)
            intervals[name] = Interval(value, low, high, self.level, BAYESIAN_BOOTSTRAP)
        return intervals

    def _hull(self, value: float, replicate_values: Float, target: Target) -> Interval:
        """Compute the hull of the percentile and the basic bootstrap interval.

        If the estimate is infinite, the interval is the percentile interval, extended to the
        estimate.
        """
        if isnan(value) or not len(replicate_values):
            return Interval(value, nan, nan, self.level, BOOTSTRAP)
        lower_quantile, upper_quantile = self._tail_quantiles(replicate_values, target)
        if isfinite(value):
            reach = max(upper_quantile - value, value - lower_quantile)
            low = max(value - reach, target.low)
            high = min(value + reach, target.high)
        else:
            low = lower_quantile
            high = upper_quantile
        return Interval(value, min(low, value), max(high, value), self.level, BOOTSTRAP)

    def _tail_quantiles(self, replicate_values: Float, target: Target) -> tuple[float, float]:
        """Return the quantiles between which the replicates lie with probability `level`."""
        tail = (1.0 - self.level) / 2.0
        if isinstance(target.statistic, NearlyNormalStatistic) and len(replicate_values) > 1:
            mean = float(replicate_values.mean())
            reach = float(ndtri(1.0 - tail) * replicate_values.std(ddof=1))
            return mean - reach, mean + reach
        # Interpolation between two infinite resamples would give inf - inf = NaN.
        quantiles = np.quantile(replicate_values, [tail, 1.0 - tail], method="inverted_cdf")
        lower_quantile, upper_quantile = quantiles.tolist()
        return lower_quantile, upper_quantile

    def _allow_for_chance(
        self, interval: Interval, chance_values: Float, replicate_values: Float, target: Target
    ) -> Interval:
        """Lower the low end of a calibration error by what chance contributes.

        Parameters
        ----------
        interval : Interval
            Interval of the calibration error.

        chance_values : array
            Values under random signs.

        replicate_values : array
            Values of the resamples.

        target : Target
            The statistic.

        Returns
        -------
        Interval
            The low end is 0 if chance alone often produces errors as large as the estimate.
        """
        upper_probability = (1.0 + self.level) / 2.0
        chance_limit = float(np.quantile(chance_values, upper_probability, method="inverted_cdf"))
        if interval.estimate <= chance_limit * (1.0 + 1e-9):
            return replace(interval, low=0.0)
        lower_quantile, upper_quantile = self._tail_quantiles(replicate_values, target)
        half_spread = 0.5 * (upper_quantile - lower_quantile)
        low = interval.estimate - float(chance_values.mean()) - half_spread
        return replace(interval, low=max(0.0, min(interval.low, low)))
