"""Confidence intervals of metrics: exact for proportions, otherwise resampled.

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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf, isfinite, isnan, nan

import numpy as np
from scipy.special import ndtri

from metacal.errors import InputError
from metacal.formulas import Float
from metacal.metrics.area_intervals import AreaStatistic, compute_area_limits
from metacal.metrics.binning import NearlyNormalStatistic, Weights, evaluate_on_sample
from metacal.metrics.intervals import (
    BAYESIAN_BOOTSTRAP,
    BOOTSTRAP,
    NO_INTERVAL,
    TOO_FEW_ERRORS,
    Interval,
    clopper_pearson,
)
from metacal.metrics.registry import CountsStatisticOrValue, Metric
from metacal.metrics.replicates import (
    Target,
    compute_replicates,
    draw_batches,
    one_blas_thread,
)
from metacal.rows.arrays import check_fraction
from metacal.rows.draws import make_generator
from metacal.rows.memory import make_allocator_keep_freed_memory

RandomState = int | np.random.Generator | None

#: Largest number of rows at which the process keeps freed memory for later resamples.
#: Requesting memory again would take longer than the computation.
_FEW_ROWS = 1 << 14
#: Smallest number of incorrect rows at which a metric with `needs_errors` has an interval.
_MIN_ERRORS = 5
#: Factor that allows for rounding errors when an estimate is compared with a limit.
_ONE_PLUS_ROUNDING_ERROR = 1.0 + 1e-9
#: Largest number of rows whose indices fit into int32.
_MAX_INT32_ROWS = 1 << 31
#: Number of draws of random signs.
_N_SIGN_DRAWS = 200


@dataclass(frozen=True)
class Resampling:
    """Settings and methods that compute confidence intervals of metrics.

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
                f"n_resamples must be an integer, but got {self.n_resamples!r}. A usual value is"
                " 1000."
            )

    def compute_intervals(
        self,
        prepared_metrics: list[tuple[Metric, CountsStatisticOrValue]],
        n_rows: int,
        n_errors: float = inf,
    ) -> dict[str, Interval]:
        """Compute the estimate and the interval of each metric.

        Parameters
        ----------
        prepared_metrics : list of tuples (Metric, CountsStatisticOrValue)
            Metrics with their counts, statistics or values. The interval of counts is exact,
            statistics share their resamples, and a bare value has no interval.

        n_rows : int
            Number of rows.

        n_errors : float, default=inf
            Number of incorrect rows, if known.

        Returns
        -------
        dict of str to Interval
            Intervals in the order of `prepared_metrics`, keyed by the names of the metrics.
        """
        targets = _collect_resampling_targets(prepared_metrics)
        resampled_intervals: dict[str, Interval] = {}
        if targets:
            resampled_intervals = self.resample_statistics(targets, n_rows)
        are_intervals_requested = self.n_resamples > 0
        has_too_few_errors = are_intervals_requested and n_errors < _MIN_ERRORS

        intervals: dict[str, Interval] = {}
        for metric, counts_statistic_or_value in prepared_metrics:
            if isinstance(counts_statistic_or_value, tuple):
                n_successes, n_trials = counts_statistic_or_value
                intervals[metric.name] = self.compute_proportion_interval(n_successes, n_trials)
                continue
            if not callable(counts_statistic_or_value):
                value = counts_statistic_or_value
                intervals[metric.name] = self.make_point_estimate(value)
                continue
            statistic = counts_statistic_or_value
            if metric.has_interval:
                interval = resampled_intervals[metric.name]
            else:
                interval = self.make_point_estimate(evaluate_on_sample(statistic, n_rows))
            if has_too_few_errors and metric.needs_errors and isfinite(interval.estimate):
                point_estimate = self.make_point_estimate(interval.estimate)
                interval = replace(point_estimate, method=TOO_FEW_ERRORS)
            intervals[metric.name] = interval
        return intervals

    def compute_proportion_interval(self, n_successes: int, n_trials: int) -> Interval:
        """Compute the exact interval of a proportion, or only its estimate."""
        exact_interval = clopper_pearson(n_successes, n_trials, self.level)
        if self.n_resamples or self.exact_proportions:
            return exact_interval
        return self.make_point_estimate(exact_interval.estimate)

    def make_point_estimate(self, value: float = nan) -> Interval:
        """Build an interval that has an estimate but no limits."""
        return Interval(estimate=value, low=nan, high=nan, level=self.level, method=NO_INTERVAL)

    def resample_statistics(
        self, targets: Mapping[str, Target], n_rows: int
    ) -> dict[str, Interval]:
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
        estimates = {
            name: evaluate_on_sample(target.statistic, n_rows) for name, target in targets.items()
        }
        if not self.n_resamples:
            return {name: self.make_point_estimate(value) for name, value in estimates.items()}
        return self._compute_resampled_intervals(targets, estimates, n_rows)

    @one_blas_thread()
    def _compute_resampled_intervals(
        self, targets: Mapping[str, Target], estimates: Mapping[str, float], n_rows: int
    ) -> dict[str, Interval]:
        """Draw resamples and compute the interval of each statistic from them.

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
            make_allocator_keep_freed_memory()
        resample_random = make_generator(self.random_state)
        sign_random, area_random = resample_random.spawn(2)

        area_statistics: dict[str, AreaStatistic] = {}
        other_targets: dict[str, Target] = {}
        for name, target in targets.items():
            if isinstance(target.statistic, AreaStatistic):
                area_statistics[name] = target.statistic
            else:
                other_targets[name] = target
        area_intervals = self._compute_area_intervals(area_statistics, estimates, area_random)
        other_intervals = self._compute_bootstrap_intervals(
            other_targets, estimates, n_rows, random=resample_random, sign_random=sign_random
        )
        return {**other_intervals, **area_intervals}

    def _compute_bootstrap_intervals(
        self,
        targets: Mapping[str, Target],
        estimates: Mapping[str, float],
        n_rows: int,
        *,
        random: np.random.Generator,
        sign_random: np.random.Generator,
    ) -> dict[str, Interval]:
        """Compute bootstrap intervals, which allow for chance in calibration errors.

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
        n_resamples = self.n_resamples if targets else 0
        weight_batches = _draw_bootstrap_weights(n_resamples, n_rows, random)
        replicates_by_name = compute_replicates(targets, weight_batches)
        intervals: dict[str, Interval] = {}
        for name, target in targets.items():
            # A resample without any row in the denominator of the metric gives NaN.
            replicates = replicates_by_name[name]
            replicates_by_name[name] = replicates[~np.isnan(replicates)]
            intervals[name] = self._compute_bootstrap_interval(
                estimates[name], replicates_by_name[name], target
            )

        # A positive lower limit indicates miscalibration, so chance must be ruled out as its cause.
        calibration_error_targets = {}
        for name, target in targets.items():
            if target.is_calibration_error and intervals[name].low > 0:
                calibration_error_targets[name] = target
        chance_values_by_name = _compute_calibration_errors_by_chance(
            calibration_error_targets, n_rows, sign_random
        )
        for name, chance_values in chance_values_by_name.items():
            intervals[name] = self._allow_for_chance(
                intervals[name],
                chance_values=chance_values,
                replicate_values=replicates_by_name[name],
                target=targets[name],
            )
        return intervals

    def _compute_area_intervals(
        self,
        areas: Mapping[str, AreaStatistic],
        estimates: Mapping[str, float],
        random: np.random.Generator,
    ) -> dict[str, Interval]:
        """Compute intervals of areas of a ranking that allow for an unseen row."""
        if not areas:
            return {}
        intervals = {}
        tail_probability = (1.0 - self.level) / 2.0
        limits = compute_area_limits(areas, self.n_resamples, tail_probability, random)
        for name, (lower_limit, upper_limit) in limits.items():
            estimate = estimates[name]
            if isnan(estimate):
                lower_limit = upper_limit = nan
            # An area lies between 0 and 1, but sums of real weights are rounded.
            low = max(min(lower_limit, estimate), 0.0)
            high = min(max(upper_limit, estimate), 1.0)
            intervals[name] = Interval(
                estimate, low=low, high=high, level=self.level, method=BAYESIAN_BOOTSTRAP
            )
        return intervals

    def _compute_bootstrap_interval(
        self, estimate: float, replicate_values: Float, target: Target
    ) -> Interval:
        """Compute the hull of the percentile and the basic bootstrap interval.

        If the estimate is infinite, the interval is the percentile interval, extended to the
        estimate.
        """
        if isnan(estimate) or not len(replicate_values):
            return Interval(estimate, low=nan, high=nan, level=self.level, method=BOOTSTRAP)
        lower_quantile, upper_quantile = self._compute_tail_quantiles(replicate_values, target)
        if isfinite(estimate):
            half_width = max(upper_quantile - estimate, estimate - lower_quantile)
            low = max(estimate - half_width, target.low)
            high = min(estimate + half_width, target.high)
        else:
            low = lower_quantile
            high = upper_quantile
        return Interval(
            estimate,
            low=min(low, estimate),
            high=max(high, estimate),
            level=self.level,
            method=BOOTSTRAP,
        )

    def _compute_tail_quantiles(
        self, replicate_values: Float, target: Target
    ) -> tuple[float, float]:
        """Compute the quantiles between which a fraction `level` of the replicates lies."""
        tail = (1.0 - self.level) / 2.0
        if isinstance(target.statistic, NearlyNormalStatistic) and len(replicate_values) > 1:
            mean = float(replicate_values.mean())
            half_width = float(ndtri(1.0 - tail) * replicate_values.std(ddof=1))
            return mean - half_width, mean + half_width
        # Interpolation between two infinite resamples would give inf - inf = NaN.
        quantiles = np.quantile(replicate_values, [tail, 1.0 - tail], method="inverted_cdf")
        lower_quantile, upper_quantile = quantiles.tolist()
        return lower_quantile, upper_quantile

    def _allow_for_chance(
        self, interval: Interval, chance_values: Float, replicate_values: Float, target: Target
    ) -> Interval:
        """Widen the interval of a calibration error downwards to allow for chance.

        Parameters
        ----------
        interval : Interval
            Interval of the calibration error.

        chance_values : array of shape (n_draws,)
            Calibration errors after the residuals got random signs.

        replicate_values : array of shape (n_resamples,)
            Calibration errors of the resamples.

        target : Target
            Statistic of the calibration error.

        Returns
        -------
        Interval
            The low end is 0 if chance alone often produces errors as large as the estimate.
        """
        limit_probability = (1.0 + self.level) / 2.0
        chance_limit = float(np.quantile(chance_values, limit_probability, method="inverted_cdf"))
        if interval.estimate <= chance_limit * _ONE_PLUS_ROUNDING_ERROR:
            return replace(interval, low=0.0)
        lower_quantile, upper_quantile = self._compute_tail_quantiles(replicate_values, target)
        half_width = 0.5 * (upper_quantile - lower_quantile)
        debiased_estimate = interval.estimate - float(chance_values.mean())
        low = min(interval.low, debiased_estimate - half_width)
        return replace(interval, low=max(0.0, low))


def _collect_resampling_targets(
    prepared_metrics: list[tuple[Metric, CountsStatisticOrValue]],
) -> dict[str, Target]:
    """Return the statistics that are resampled, keyed by the names of their metrics."""
    targets = {}
    for metric, counts_statistic_or_value in prepared_metrics:
        if callable(counts_statistic_or_value) and metric.has_interval:
            smallest_value, largest_value = metric.range
            targets[metric.name] = Target(
                statistic=counts_statistic_or_value,
                low=smallest_value,
                high=largest_value,
                is_calibration_error=metric.calibration_error,
                needs_large_batches=metric.reads_whole_table,
            )
    return targets


def _draw_bootstrap_weights(
    n_resamples: int, n_rows: int, random: np.random.Generator
) -> Iterator[Weights]:
    """Yield the count of each row in each resample, in batches of resamples."""
    # The draws are equal for both types, but int32 takes half the time.
    index_type = np.int32 if n_rows <= _MAX_INT32_ROWS else np.int64

    def draw_weights() -> Weights:
        drawn_rows = random.integers(n_rows, size=n_rows, dtype=index_type)
        return np.bincount(drawn_rows, minlength=n_rows)

    return draw_batches(n_resamples, n_rows, draw_weights)


def _compute_calibration_errors_by_chance(
    targets: Mapping[str, Target], n_rows: int, random: np.random.Generator
) -> dict[str, Float]:
    """Compute the calibration errors that chance alone produces.

    This is a wild bootstrap. A random sign for the residual of each row removes the gap between confidence and accuracy, but
    keeps the size of the noise.

    Parameters
    ----------
    targets : mapping of str to Target
        Statistics of calibration errors.

    n_rows : int
        Number of rows.

    random : numpy.random.Generator
        Source of the random signs.

    Returns
    -------
    dict of str to array of shape (n_draws,)
        Values under random signs, keyed like `targets`.
    """
    n_draws = _N_SIGN_DRAWS if targets else 0
    sign_batches = _draw_random_signs(n_draws, n_rows, random)
    return compute_replicates(targets, sign_batches)


def _draw_random_signs(n_draws: int, n_rows: int, random: np.random.Generator) -> Iterator[Weights]:
    """Yield a weight of 1 or -1 for each row, in batches of draws."""

    def draw_signs() -> Weights:
        zeros_and_ones = random.integers(2, size=n_rows)
        return 2 * zeros_and_ones - 1

    return draw_batches(n_draws, n_rows, draw_signs)
