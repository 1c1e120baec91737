"""What a metric is: one row that says everything the rest of the package wants to know about it.

A row stands in ``METRICS`` of its family's file (`calibration`, `proper`, `selective`, `ranking`), below the function
it is about; `metacal.metrics.registry` joins the families. `evaluate`, `compare`, `interval`, the command line and the
report ask the registry and hold no list of their own.

**To add a metric** touch its family's file: the function, what prepares its statistic, its name in ``__all__``, its
row; and docs/metrics.md, the line that says what it measures.

`metacal.metrics` takes over each family's ``__all__``. A metric of your own, outside the package, is entered by
`metacal.metrics.registry.register`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from metacal.metrics.binning import Statistic, mean_statistic
from metacal.metrics.toplabel import CheckedTable, FloatColumn, checked_table, top_columns


@dataclass(frozen=True, eq=False)
class Input:
    """What a metric is a function of.

    Attributes
    ----------
    takes : str
        The arguments, in words.
    read : callable
        From the arguments of the public function to the checked value that statistics are prepared from; None where
        only counts are taken.
    """

    takes: str
    read: Callable[..., Any] | None


#: The whole table; the statistic is prepared from a `CheckedTable`.
PROBABILITIES = Input("proba, labels", checked_table)
#: The top class alone, or its two columns; the statistic is prepared from a `TopLabel`.
TOP_LABEL = Input("proba, labels", top_columns)
#: The gate's decisions; only counted.
DECISION = Input("accept, correct", None)


@dataclass(frozen=True, eq=False, kw_only=True)
class Metric:
    """One metric. Exactly one of `statistic`, `losses` and `counts` is enough; `counts` may stand beside either.

    Attributes
    ----------
    function : callable
        The public function; its name is the metric's name in JSON.
    title, heading : str
        Its name in a table, and a short one for the head of a narrow column.
    input : Input
        What the function takes.
    statistic : callable, optional
        From what `input.read` gives (and `n_bins` where `binned`) to a function of row weights.
    losses : callable, optional
        For a mean over rows of something that each row of the table has by itself: from a `CheckedTable` to one number
        per row. Such a metric can be computed block by block.
    sums : callable, optional
        For a metric of the whole table that comes from sums over its rows: from (n_classes, n_bins) to something with
        `add(checked, accept, others)`, which takes the accepted rows and gives the rest to `others`, ``+=`` and
        `value()`, the same in whatever order rows are added. It is then measured where the rows are; only an interval
        needs the table.
    counts : callable, optional
        For a proportion: successes and trials, which give an exact interval; None where the data are no plain counts.
    range : (float, float)
        Where its values lie; intervals are clipped to it.
    smaller_is_better : bool
    calibration_error : bool
        Whether it is 0 under perfect calibration but never on a sample; its interval reaches 0 when chance explains it.
    binned : bool
        Whether it takes `n_bins`.
    evaluated, compared : bool
        Whether `evaluate` (and the report) and `compare` show it.
    proper : bool
        A proper scoring rule; comparisons show these first.
    needs_rejected : bool
        Of a decision: whether the model's own answer on rejected rows enters.
    words : str or None
        What `metacal evaluate` prints it as; the title when "", nothing (only --json has it) when None.
    """

    function: Callable[..., float]
    title: str
    input: Input
    heading: str = ""
    statistic: Callable[..., Statistic] | None = None
    losses: Callable[[CheckedTable], FloatColumn] | None = None
    sums: Callable[[int, int], Any] | None = None
    counts: Callable[..., tuple[int, int] | None] | None = None
    range: tuple[float, float] = (0.0, 1.0)
    smaller_is_better: bool = True
    calibration_error: bool = False
    binned: bool = False
    evaluated: bool = False
    compared: bool = False
    proper: bool = False
    needs_rejected: bool = True
    words: str | None = ""

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.function.__name__

    @property
    def whole_table(self) -> bool:
        """Whether its statistic goes through the whole table under every row of weights."""
        return self.input is PROBABILITIES and self.losses is None

    def prepared(self, source: Any, **options: Any) -> Statistic:
        """Return the statistic of checked data as a function of row weights.

        Examples
        --------
        >>> import numpy as np
        >>> from metacal.metrics.registry import METRICS
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
        """Return successes and trials where the metric is a plain proportion of these data, else its statistic."""
        counts = None if self.counts is None else self.counts(source)
        return self.prepared(source, **options) if counts is None else counts


#: What an interval is made from: the successes and trials of a proportion, or a statistic of row weights; a bare number
#: has none.
Measured = tuple[int, int] | Statistic | float
