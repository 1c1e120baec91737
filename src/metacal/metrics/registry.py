"""The one registry of metrics: what `evaluate`, `compare`, `interval`, the command line and the
report ask.

**To add a metric** touch its family's file (`calibration`, `proper`, `selective`, `ranking`): the
function, what prepares its statistic, and `register` above it; and docs/metrics.md, the line that
says what it measures. `metacal.metrics` has every metric that is registered, by its name. A metric
of your own, outside the package, is entered in the same way.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from metacal.errors import InputError
from metacal.formulas import Float
from metacal.metrics.binning import Statistic, estimate, mean_statistic
from metacal.metrics.toplabel import CheckedTable, checked_table, top_columns

F = TypeVar("F", bound=Callable[..., Any])

#: What an interval is made from: the successes and trials of a proportion, or a statistic of row
#: weights; a bare number has none.
Measured = tuple[int, int] | Statistic | float


#: What a metric is a function of, said by what reads it: from the arguments of the public function
#: to the checked value that statistics are prepared from; None where only counts are taken.
Input = Callable[..., Any]
#: (proba, labels), the whole table; the statistic is prepared from a `CheckedTable`.
PROBABILITIES: Input = checked_table
#: (proba, labels), the top class alone, or its two columns; the statistic is prepared from a
#: `TopLabel`.
TOP_LABEL: Input = top_columns
#: (accept, correct), the gate's decisions; only counted.
DECISION = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Metric:
    """One metric. Exactly one of `statistic`, `losses` and `counts` is enough; `counts` may stand
    beside either.

    Attributes
    ----------
    function : callable
        The public function; its name is the metric's name in JSON.
    title, heading : str
        Its name in a table, and a short one for the head of a narrow column.
    input : Input
        What the function takes.
    statistic : callable, optional
        From what `input` reads (and `n_bins` where `binned`) to a function of row weights.
    debiased : callable, optional
        A statistic in place of `statistic` where methods are compared: without what chance adds on
        few rows.
    losses : callable, optional
        For a mean over rows of something that each row of the table has by itself: from a
        `CheckedTable` to one number per row. Such a metric can be computed block by block.
    sums : callable, optional
        For a metric of the whole table that comes from sums over its rows: from (n_classes, n_bins)
        to something with `add(checked, accept)`, ``+=`` and `value(accepted)`, of the accepted rows
        or of all, the same in whatever order rows are added. It is then measured where the rows
        are; only an interval needs the table.
    counts : callable, optional
        For a proportion: successes and trials, which give an exact interval; None where the data
        are no plain counts.
    range : (float, float)
        Where its values lie; intervals are clipped to it.
    smaller_is_better : bool
    calibration_error : bool
        Whether it is 0 under perfect calibration but never on a sample; its interval reaches 0 when
        chance explains it.
    evaluated, compared : bool
        Whether `evaluate` (and the report) and `compare` show it.
    proper : bool
        A proper scoring rule; comparisons show these first.
    needs_errors : bool
        Whether a few wrong rows make most of it: without enough of them no resample knows how large
        it may be.
    has_interval : bool
        Whether an interval is computed. False for a metric whose bootstrap interval does not hold
        at any sample size.
    needs_rejected : bool
        Of a decision: whether the model's own answer on rejected rows enters.
    words : str or None
        What `metacal evaluate` prints it as; the title when "", nothing (only --json has it) when
        None.
    """

    function: Callable[..., float]
    title: str
    input: Input | None
    heading: str = ""
    statistic: Callable[..., Statistic] | None = None
    debiased: Callable[..., Statistic] | None = None
    losses: Callable[[CheckedTable], Float] | None = None
    sums: Callable[[int, int], Any] | None = None
    counts: Callable[..., tuple[int, int] | None] | None = None
    range: tuple[float, float] = (0.0, 1.0)
    smaller_is_better: bool = True
    calibration_error: bool = False
    evaluated: bool = False
    compared: bool = False
    proper: bool = False
    needs_errors: bool = False
    has_interval: bool = True
    needs_rejected: bool = True
    words: str | None = ""

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.function.__name__

    @property
    def binned(self) -> bool:
        """Whether it takes `n_bins`."""
        return "n_bins" in inspect.signature(self.function).parameters

    @property
    def whole_table(self) -> bool:
        """Whether its statistic goes through the whole table under every row of weights."""
        return self.input is PROBABILITIES and self.losses is None

    def prepared(self, source: Any, **options: Any) -> Statistic:
        """Return the statistic of checked data as a function of row weights.

        Examples
        --------
        >>> import numpy as np
        >>> statistic = METRICS["ece"].prepared(top_columns([[0.9, 0.1], [0.6, 0.4]], [0, 1]), n_bins=5)
        >>> statistic(np.array([[1, 1], [2, 0]])).round(6)
        array([0.35, 0.1 ])
        """
        if self.losses is not None:
            return mean_statistic(self.losses(source))
        if self.statistic is None:
            raise TypeError(f"{self.name} is counted, it has no statistic of row weights.")
        return self.statistic(source, **options)

    def measured(self, source: Any, **options: Any) -> Measured:
        """Return successes and trials where the metric is a plain proportion of these data, else
        its statistic.
        """
        counts = None if self.counts is None else self.counts(source)
        return self.prepared(source, **options) if counts is None else counts


def value(
    input: Input,
    statistic: Callable[..., Statistic],
    data: tuple[Any, ...],
    *options: object,
    **classes: Any,
) -> float:
    """A metric itself: its statistic on these data, with every row counted once."""
    source = input(*data, **classes)
    return estimate(statistic(source, *options), len(source))


#: Every metric by name, in the order in which tables show them.
METRICS: dict[str, Metric] = {}


def register(**facts: Any) -> Callable[[F], F]:
    """Enter the function below as a metric: it is evaluated, compared and reported as `Metric`
    says, with an interval.

    Examples
    --------
    >>> @register(title="mine", input=PROBABILITIES, losses=lambda checked: checked.top)
    ... def nll(proba, labels):
    ...     return 0.0
    Traceback (most recent call last):
    metacal.errors.InputError: there is a metric named 'nll' already; give the function another name.
    """

    def enter(function: F) -> F:
        metric = Metric(function=function, **facts)
        if metric.name in METRICS:
            raise InputError(
                f"there is a metric named {metric.name!r} already; give the function another name."
            )
        METRICS[metric.name] = metric
        return function

    return enter


def homes() -> dict[str, str]:
    """The module of each metric, by its name."""
    return {name: metric.function.__module__ for name, metric in METRICS.items()}


def evaluated(*inputs: Input | None) -> list[Metric]:
    """Return what `evaluate` shows of the metrics that take one of `inputs`.

    Examples
    --------
    >>> [metric.name for metric in evaluated(DECISION)]
    ['coverage', 'miscoverage', 'coverage_accuracy', 'type_1_error', 'type_2_error']
    """
    return [metric for metric in METRICS.values() if metric.evaluated and metric.input in inputs]


def compared() -> list[Metric]:
    """Return what `compare` measures, proper scoring rules first.

    Examples
    --------
    >>> [metric.heading for metric in compared()]
    ['NLL', 'Brier', 'ECE', 'ECE eq. mass']
    """
    return sorted(
        (metric for metric in METRICS.values() if metric.compared),
        key=lambda metric: not metric.proper,
    )


def titles_of(names: Iterable[str], *, few: bool = False) -> dict[str, str]:
    """What people see of these metrics, and as what: their titles, or names where they are not
    registered (any more).

    With `few` those that `metacal evaluate` prints, in its words.
    """
    titles = {name: METRICS[name].title if name in METRICS else name for name in names}
    words = {name: METRICS[name].words if name in METRICS else "" for name in titles}
    return {
        name: words[name] or title if few else title
        for name, title in titles.items()
        if not few or words[name] is not None
    }
