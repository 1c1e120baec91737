"""A confidence interval for every metric: exact for proportions, bootstrap for the rest.

`interval(metric, *data)` takes the metric function itself and the data it takes::

    interval(ece, proba, labels, n_bins=15)
    interval(ece, confidence, correct)
    interval(aurc, score, correct)
    interval(coverage_accuracy, accept, correct)

**Proportions** get the exact interval of Clopper & Pearson (1934). **Everything else** gets the hull of the percentile
and the basic bootstrap, ``θ ± max(q_high - θ, θ - q_low)``, clipped to the metric's range. A plug-in calibration error
is too large on a finite sample, and its resamples are larger again: the percentile interval can exclude its own
estimate, the basic one stops short above; the hull contains the estimate by construction. The interval of a
**calibration error** that could be chance alone reaches down to 0: decided by giving the residuals random signs (a
wild bootstrap) and asking whether errors as large as the estimate are rarer than the level allows. A resample is a
vector of row weights, never a resampled table.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from html import escape
from math import floor, inf, isfinite, isnan, nan
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv

from metacal import shown
from metacal.errors import InputError
from metacal.metrics.binning import Statistic, Weights, estimate, per_resample
from metacal.metrics.draws import batches, few_as_floats
from metacal.metrics.metric import DECISION, PROBABILITIES, TOP_LABEL, Measured, Metric
from metacal.metrics.ranking import RANKING, read_ranking
from metacal.metrics.registry import METRICS as REGISTERED
from metacal.metrics.registry import metric_of
from metacal.metrics.threads import one_blas_thread
from metacal.metrics.toplabel import FloatColumn
from metacal.rows import validate
from metacal.rows.memory import keep_freed_memory

#: What a float's last bits add to a decimal: 1e4 · 0.57 is 5699.999999999999.
_NOISE = 1e-6
EXACT = "Clopper-Pearson"
BOOTSTRAP = "bootstrap"
NO_INTERVAL = "none"

RandomState = int | np.random.Generator | None

#: Rows up to which fetching memory anew takes longer than the work.
_SMALL = 1 << 14

#: Draws of random signs for the question whether an error could be chance.
_CHANCE_DRAWS = 200


@dataclass(frozen=True)
class Interval:
    """An estimate and its two-sided confidence interval; all NaN when the metric is undefined on the data.

    Examples
    --------
    >>> found = clopper_pearson(97, 100)
    >>> print(found)
    0.9700 [0.9148, 0.9938]
    >>> 0.95 in found
    True
    """

    estimate: float
    low: float
    high: float
    level: float
    method: str

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        if isnan(self.estimate):
            return "undefined"
        if isnan(self.low):
            return f"{self.estimate:.4f}"
        return f"{self.estimate:.4f} {outward(self.low, self.high)}"

    def to_dict(self) -> dict[str, float | str | None]:
        """JSON-safe: what is not a finite number becomes None."""
        numbers = {"estimate": self.estimate, "low": self.low, "high": self.high, "level": self.level}
        return {**{name: value if isfinite(value) else None for name, value in numbers.items()}, "method": self.method}

    def to_frame(self) -> Any:
        """One row of a `pandas.DataFrame`: estimate, low, high, level, method."""
        return shown.frame([vars(self)])

    def _repr_html_(self) -> str:
        told = "" if isnan(self.low) else f", {100 * self.level:g}% interval ({self.method})"
        return f"<span>{escape(f'{self}{told}')}</span>"


def outward(low: float, high: float, digits: int = 4) -> str:
    """An interval in words, its ends rounded outward: what is said never claims more than what was computed.

    Examples
    --------
    >>> outward(0.91482, 0.99381), outward(0.57, 0.58)
    ('[0.9148, 0.9939]', '[0.5700, 0.5800]')
    """
    below, above = (side(value, digits) for side, value in ((_down, low), (_up, high)))
    return f"[{below:.{digits}f}, {above:.{digits}f}]"


def _down(value: float, digits: int) -> float:
    units = value * 10.0**digits
    return (round(units) if abs(units - round(units)) < _NOISE else floor(units)) / 10.0**digits


def _up(value: float, digits: int) -> float:
    return -_down(-value, digits)


def clopper_pearson(successes: int, n: int, level: float = 0.95) -> Interval:
    """Exact interval of a proportion from `successes` out of `n` (Clopper & Pearson 1934); NaN when n is 0.

    The ends are the proportions at which a one-sided binomial test of level (1 - level)/2 just rejects: quantiles of
    Beta(k, n - k + 1) and Beta(k + 1, n - k).

    Examples
    --------
    >>> clopper_pearson(0, 30)
    Interval(estimate=0.0, low=0.0, high=0.115..., level=0.95, method='Clopper-Pearson')
    """
    level = validate.fraction("level", level)
    if not 0 <= successes <= n:
        raise InputError(f"successes must lie between 0 and n = {n}, got {successes}.")
    if n == 0:
        return Interval(nan, nan, nan, level, EXACT)
    tail = (1.0 - level) / 2.0
    low = float(betaincinv(successes, n - successes + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, n - successes, 1.0 - tail)) if successes < n else 1.0
    share = successes / n
    return Interval(share, min(low, share), max(high, share), level, EXACT)


def bootstrap(
    statistic: Callable[..., float],
    *data: ArrayLike,
    level: float = 0.95,
    n_resamples: int = 1000,
    random_state: RandomState = 0,
    bounds: tuple[float, float] = (-inf, inf),
) -> Interval:
    """Bootstrap interval of any statistic of columns with integer row weights.

    The hull of the percentile and the basic interval, ``θ ± max(q_high - θ, θ - q_low)``; it always contains θ.

    Parameters
    ----------
    statistic : function of (*columns, weights)
        Must count row i ``weights[i]`` times; weights of one give the estimate.
    *data : arrays
        Columns with one entry per row.
    level, n_resamples, random_state
        Coverage asked for, number of resamples, and a seed or numpy Generator: same seed, same bits.
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
        raise InputError(f"bootstrap needs at least one column, all of one non-zero length; got lengths {lengths}.")
    weighted = per_resample(lambda weights: float(statistic(*arrays, weights)))
    plan = Resampling(level, n_resamples, random_state)
    return plan.interval(Target(weighted, *bounds), len(arrays[0]))


@dataclass(frozen=True, eq=False)
class Target:
    """What to bootstrap: a statistic, its range, and whether it is an error that is 0 under perfect calibration.

    A `wide` one goes through a whole table: it gets many resamples at a time, so that the table is read less often.
    """

    statistic: Statistic
    low: float = 0.0
    high: float = 1.0
    calibration_error: bool = False
    wide: bool = False


@dataclass(frozen=True)
class Resampling:
    """How to draw intervals; with ``n_resamples=0`` only estimates are computed and the ends are NaN."""

    level: float = 0.95
    n_resamples: int = 1000
    random_state: RandomState = 0

    def __post_init__(self) -> None:
        validate.fraction("level", self.level)
        if self.n_resamples != int(self.n_resamples) or self.n_resamples < 0:
            raise InputError(f"n_resamples must be a whole number, got {self.n_resamples!r}; 1000 is the usual choice.")

    def proportion(self, successes: int, n: int) -> Interval:
        """Return the exact interval of a proportion."""
        exact = clopper_pearson(successes, n, self.level)
        return exact if self.n_resamples else Interval(exact.estimate, nan, nan, self.level, NO_INTERVAL)

    def interval(self, target: Target, n_rows: int) -> Interval:
        """Return the interval of one statistic."""
        return self.intervals({"": target}, n_rows)[""]

    def measure(self, wanted: Iterable[tuple[Metric, Measured]], n_rows: int) -> dict[str, Interval]:
        """Return each metric's interval: exact for a proportion, from shared resamples otherwise, none for a number."""
        rows = list(wanted)
        targets = {
            metric.name: Target(found, *metric.range, metric.calibration_error, metric.whole_table)
            for metric, found in rows
            if callable(found)
        }
        drawn = self.intervals(targets, n_rows) if targets else {}
        return {
            metric.name: drawn[metric.name] if callable(found) else self._without_resamples(found)
            for metric, found in rows
        }

    def _without_resamples(self, found: tuple[int, int] | float) -> Interval:
        if isinstance(found, tuple):
            return self.proportion(*found)
        return Interval(found, nan, nan, self.level, NO_INTERVAL)

    @one_blas_thread()
    def intervals(self, targets: Mapping[str, Target], n_rows: int) -> dict[str, Interval]:
        """Return the intervals of several statistics from the same resamples; each is what it would be alone."""
        if n_rows <= _SMALL:
            keep_freed_memory()
        random = np.random.default_rng(self.random_state)
        by_chance = random.spawn(1)[0]
        kind = np.int32 if n_rows <= 1 << 31 else np.int64  # the same draws, in half the time

        def drawn() -> Weights:
            return np.bincount(random.integers(n_rows, size=n_rows, dtype=kind), minlength=n_rows)

        replicates = _replicates(targets, batches(self.n_resamples, n_rows, drawn))
        found = {
            name: self._hull(estimate(target.statistic, n_rows), replicates[name], target)
            for name, target in targets.items()
        }
        doubted = {name: target for name, target in targets.items() if target.calibration_error and found[name].low > 0}
        signs = batches(_CHANCE_DRAWS if doubted else 0, n_rows, lambda: 2 * by_chance.integers(2, size=n_rows) - 1)
        chance = _replicates(doubted, signs)
        return found | {
            name: self._down_to_chance(found[name], np.concatenate(drawn)) for name, drawn in chance.items()
        }

    def _hull(self, value: float, replicates: list[FloatColumn], target: Target) -> Interval:
        if not self.n_resamples:
            return Interval(value, nan, nan, self.level, NO_INTERVAL)
        drawn = np.concatenate(replicates)
        drawn = drawn[~np.isnan(drawn)]  # a resample may lack what the metric divides by
        if isnan(value) or not len(drawn):
            return Interval(value, nan, nan, self.level, BOOTSTRAP)
        tail = (1.0 - self.level) / 2.0
        # Order statistics, not interpolation: inf - inf between two infinite resamples would be NaN.
        lower = float(np.quantile(drawn, tail, method="inverted_cdf"))
        upper = float(np.quantile(drawn, 1.0 - tail, method="inverted_cdf"))
        if not isfinite(value):
            return Interval(value, min(lower, value), max(upper, value), self.level, BOOTSTRAP)
        reach = max(upper - value, value - lower)
        low, high = max(value - reach, target.low), min(value + reach, target.high)
        return Interval(value, min(low, value), max(high, value), self.level, BOOTSTRAP)

    def _down_to_chance(self, found: Interval, drawn: FloatColumn) -> Interval:
        """Let the interval reach 0 when chance alone gives errors as large as the estimate often enough."""
        by_chance = float(np.quantile(drawn, (1.0 + self.level) / 2.0, method="inverted_cdf"))
        return replace(found, low=0.0) if found.estimate <= by_chance * (1.0 + 1e-9) else found


def _replicates(targets: Mapping[str, Target], drawn: Iterable[Weights]) -> dict[str, list[FloatColumn]]:
    """What each statistic comes to under each row of weights, in order."""
    found: dict[str, list[FloatColumn]] = {name: [] for name in targets}
    for batch in drawn:
        for name, target in targets.items():
            if target.wide:
                found[name].append(target.statistic(batch))
        for some in few_as_floats(batch):
            for name, target in targets.items():
                if not target.wide:
                    found[name].append(target.statistic(some))
    return found


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
        What the metric takes: (proba, labels), (confidence, correct), (accept, correct) or (score, correct).
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
    row = metric_of(metric)
    if row is None:
        raise InputError(
            f"there is no interval for {getattr(metric, '__name__', metric)!r}; "
            f"known are {', '.join(sorted(REGISTERED))}. "
            "For a statistic of your own use bootstrap(statistic, *columns)."
        )
    _check_options(metric, options)
    read = row.input.read
    if read is None:  # decisions are only counted
        return plan.proportion(*(row.counts(*data, **options) if row.counts is not None else None) or (0, 0))
    source = read(*data, **({"classes": options.pop("classes")} if "classes" in options else {}))
    return plan.measure([(row, row.measured(source, **options))], len(source))[row.name]


def _check_options(metric: Callable[..., float], options: Mapping[str, Any]) -> None:
    known = list(inspect.signature(metric).parameters)
    unknown = [name for name in options if name not in known]
    if unknown:
        raise InputError(f"{metric.__name__} has no option {unknown[0]!r}; its arguments are {', '.join(known)}.")


def _by_input(input: object) -> dict[Callable[..., float], Callable[..., Any]]:
    return {metric.function: metric.prepared for metric in REGISTERED.values() if metric.input is input}


#: What the package itself registers, by what it takes: metric -> what prepares its statistic from checked data.
TOP_LABEL_METRICS = _by_input(TOP_LABEL)
TABLE_METRICS = _by_input(PROBABILITIES)
#: … from (score, correct)
SCORE_METRICS = {
    metric: lambda score, correct, prepared=prepared: prepared(read_ranking(score, correct))
    for metric, prepared in _by_input(RANKING).items()
}
#: metric of (accept, correct) -> successes and trials
PROPORTIONS = {metric.function: metric.counts for metric in REGISTERED.values() if metric.input is DECISION}

#: every metric `interval` knows
METRICS: tuple[Callable[..., float], ...] = (
    *TOP_LABEL_METRICS,
    *TABLE_METRICS,
    *SCORE_METRICS,
    *PROPORTIONS,
)
