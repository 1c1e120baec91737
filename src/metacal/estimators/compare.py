"""Compare calibrators on a table of logits by repeated cross-validation."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, clone

from metacal import display
from metacal.errors import InputError
from metacal.estimators.cost import affordable_folds
from metacal.formulas import Array, Codes, Flags, Float
from metacal.maps.fitting.crossvalidation import random_folds, said_once
from metacal.maps.methods import METHODS, calibrator
from metacal.maps.temperature import TemperatureMap
from metacal.metrics import registry
from metacal.metrics.binning import estimate
from metacal.metrics.paired import STANDARD_ERRORS, Paired, by_folds, by_resamples, by_rows
from metacal.metrics.toplabel import TopLabel, checked_table
from metacal.rows import validate, workers
from metacal.rows.draws import generator
from metacal.rows.executors import ExecutorLike, is_remote
from metacal.rows.plausibility import unquestioned, warn_of_suspicion
from metacal.rows.stored import StoredTable
from metacal.rows.tasks import in_order, sources_of

UNCALIBRATED = "uncalibrated"
#: CPU seconds that a comparison may take.
BUDGET = 600.0
#: Fits that are under way on a cluster at a time.
_WINDOW = 256

_MARKS = (
    f"* the best   · at most {STANDARD_ERRORS:g} standard errors of the paired difference worse "
    "(a rule of thumb, no confidence level)"
)
_INDEX = ("calibrator",)

#: Wraps an iterator that yields `total` results, to show how far it is.
Progress = Callable[[Iterator[Any], int], Iterable[Any]]


class Estimate(NamedTuple):
    """A mean over held-out rows and its standard error."""

    mean: float
    standard_error: float

    def __str__(self) -> str:
        spread = "" if np.isnan(self.standard_error) else f" ± {self.standard_error:.4f}"
        return f"{self.mean:.4f}{spread}"


@dataclass(frozen=True)
class Entry:
    """One calibrator: its metrics on held-out rows, and the CPU seconds of one fit."""

    name: str
    metrics: Mapping[str, Estimate]
    fit_seconds: float
    failed: str | None = None
    #: Held-out rows whose true class was given no probability at all: their log loss is infinite.
    impossible: int = 0

    def loss(self, metric: str) -> float:
        """The mean, with its sign turned where more is better."""
        row = registry.METRICS.get(metric)
        return self.metrics[metric].mean * (
            -1.0 if row is not None and not row.smaller_is_better else 1.0
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        if self.failed is not None:
            return {"name": self.name, "failed": self.failed}
        finite = {
            metric: {
                part: value if np.isfinite(value) else None for part, value in own._asdict().items()
            }
            for metric, own in self.metrics.items()
        }
        why = {"impossible_rows": self.impossible} if self.impossible else {}
        return {"name": self.name, "metrics": finite, "fit_seconds": self.fit_seconds, **why}

    def record(self) -> dict[str, Any]:
        """A row of the frame."""
        columns: dict[str, Any] = {}
        for metric, own in self.metrics.items():
            columns |= {metric: own.mean, f"{metric}_standard_error": own.standard_error}
        return {
            **columns,
            "fit_seconds": self.fit_seconds,
            "impossible_rows": self.impossible,
            "failed": self.failed,
        }


@dataclass(frozen=True)
class Comparison:
    """Calibrators side by side, best NLL first: prints itself, is a table in a notebook, `to_frame`
    for pandas.

    Attributes
    ----------
    entries : tuple of Entry
    n_rows, n_classes, n_splits, n_repeats : int
    n_folds : int
        How many of the folds were measured.
    near_best_names : mapping of metric to names
        The calibrators that `near_best` returns.
    """

    entries: tuple[Entry, ...]
    n_rows: int
    n_classes: int
    n_splits: int
    n_repeats: int
    n_folds: int
    near_best_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def best(self, metric: str = "nll") -> str:
        """The calibrator with the best mean: the lowest, of a metric of which more is better the
        highest.
        """
        return min(self._fitted(), key=lambda entry: entry.loss(metric)).name

    def near_best(self, metric: str = "nll") -> tuple[str, ...]:
        """Return the best calibrator and those that are hardly worse.

        A calibrator is hardly worse if its mean is at most three standard errors of the paired
        difference worse. This is a rule of thumb for a shortlist, not a confidence statement. If a
        calibrator has a very large loss on rare rows, a sample without such a row ranks it too
        high, and the truly best calibrator may be missing here.
        """
        return self.near_best_names.get(metric, (self.best(metric),))

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON types."""
        return {
            **{
                name: getattr(self, name)
                for name in ("n_rows", "n_classes", "n_splits", "n_repeats", "n_folds")
            },
            "best": {metric: self.best(metric) for metric in self._measured()},
            "near_best": {metric: list(self.near_best(metric)) for metric in self._measured()},
            "near_best_standard_errors": STANDARD_ERRORS,
            "calibrators": [entry.to_dict() for entry in self.entries],
        }

    def to_frame(self) -> Any:
        """A `pandas.DataFrame`, a row for each calibrator: of each metric its mean and its standard
        error.
        """
        return display.frame(
            [entry.record() for entry in self.entries],
            [entry.name for entry in self.entries],
            _INDEX,
        )

    def __str__(self) -> str:
        head, *rows = self._table()
        shown_in_full = [head, *(row for row in rows if row[1][:7] != "failed:")]
        lines = display.aligned([head, *rows], shown_in_full)
        return "\n".join([self._head(), "", *lines, "", _MARKS, *self._causes()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head, *rows = self._table()
        return f"<div>{display.table(head, rows, caption=self._head())}{display.notes(_MARKS, *self._causes())}</div>"

    def _head(self) -> str:
        """What the table is of."""
        many, every = (
            f"{self.n_rows:,} rows, {self.n_classes} classes",
            f"{self.n_repeats} x {self.n_splits} folds",
        )
        folds = (
            every
            if self.n_folds == self.n_repeats * self.n_splits
            else f"{self.n_folds} of {every}"
        )
        return f"{many}; estimate ± standard error from rows not used in the fit, {folds}"

    def _table(self) -> list[tuple[str, ...]]:
        """The heading, and a row for each calibrator, with the best and those near it marked."""
        marks = {
            metric: (self.best(metric), set(self.near_best(metric))) for metric in self._measured()
        }
        lines: list[tuple[str, ...]] = [
            ("calibrator", *(_heading(metric) for metric in marks), "fit, s")
        ]
        for entry in self.entries:
            if entry.failed is not None:
                lines.append((entry.name, f"failed: {entry.failed}", *[""] * len(marks)))
                continue
            cells = []
            for metric, (best, near) in marks.items():
                mark = " *" if entry.name == best else " ·" if entry.name in near else "  "
                cells.append(f"{entry.metrics[metric]}{mark}")
            lines.append((entry.name, *cells, f"{entry.fit_seconds:.3f}"))
        return lines

    def _causes(self) -> list[str]:
        """Why a log loss is infinite."""
        return [
            f"{entry.name}: infinite, since the true class of {entry.impossible:,} held-out "
            f"row{'s' if entry.impossible > 1 else ''} got probability 0"
            for entry in self.entries
            if entry.impossible
        ]

    def _fitted(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.failed is None]

    def _measured(self) -> list[str]:
        """The names of the metrics, in the order in which they were measured."""
        return list(self._fitted()[0].metrics)


def compare(
    logits: ArrayLike,
    labels: ArrayLike,
    calibrators: Mapping[str, Any] | Sequence[str] | None = None,
    *,
    n_splits: int = 5,
    n_repeats: int = 2,
    random_state: int = 0,
    input: str = "logits",
    classes: Sequence[Any] | None = None,
    n_jobs: int | None = None,
    progress: Progress | None = None,
    budget: float = BUDGET,
    executor: ExecutorLike | None = None,
) -> Comparison:
    """Fit every calibrator on folds of the rows and measure it on the others.

    Losses are averaged row by row, and an ECE comes from the held-out rows of all folds together,
    without what chance adds to it (`debiased_ece`). Calibrators are compared on the same rows. The
    standard error of a difference is then much smaller than that of either mean, and
    `Comparison.near_best` uses it for a shortlist. The shortlist is a rule of thumb: it has no
    confidence level.

    Parameters
    ----------
    logits, labels : array-like
        One row per item, one column per class; the true classes.
    calibrators : sequence of names or mapping of name to estimator, optional
        All of metacal's when None. Estimators need `fit` and `predict_proba` on logits.
    n_splits, n_repeats : int
        Folds, and how often they are drawn anew.
    random_state : int
        Seed of the folds; the same seed gives the same table (but for the seconds).
    input, classes, n_jobs
        As in the estimators; `n_jobs` runs fits side by side.
    progress : callable, optional
        Called with an iterator over the finished fits and their number; iterate over what it
        returns.
    budget : float
        CPU seconds: of a table so large that all folds would take longer, by a rough estimate
        (`estimators.cost`), only some of them are measured, at least one.
    executor : concurrent.futures.Executor or distributed.Client, optional
        Where fits run side by side: a pool of processes, a Dask client. A worker holds the whole
        table; of one that stays in its files (`read_predictions`) it reads it. The table is the
        same, but for the seconds.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> mc.compare(data.logits[:2000], data.labels[:2000], ["temperature"]).best("nll")
    'temperature'
    """
    table = validate.logits_from(logits, input)
    codes = validate.label_codes(labels, len(table), validate.class_list(classes, table.shape[1]))
    warn_of_suspicion(table, input)
    candidates = _candidates(calibrators)
    if not 2 <= n_splits <= len(table):
        raise InputError(
            f"n_splits must be between 2 and the number of rows, {len(table)}; got {n_splits}."
        )
    held_out = partial(_held_out, len(codes), n_splits, random_state)
    n_folds = affordable_folds(candidates, len(table), table.shape[1], n_splits * n_repeats, budget)
    jobs = [(estimator, at) for estimator in candidates.values() for at in range(n_folds)]
    with workers(n_jobs, executor) as pool, said_once():
        done = _fits(pool, table, partial(_fit_and_measure, codes, held_out), jobs)
        found = list(done if progress is None else progress(done, len(jobs)))
    results = {name: found[k * n_folds : (k + 1) * n_folds] for k, name in enumerate(candidates)}
    failed = {
        name: next((one for one in folds if isinstance(one, str)), None)
        for name, folds in results.items()
    }
    fitted = [name for name, why in failed.items() if why is None]
    rows = [np.flatnonzero(held_out(at)) for at in range(n_folds)]
    measured = {
        metric.name: _measured(metric, [results[name] for name in fitted], rows, n_splits)
        for metric in (registry.compared() if fitted else ())
    }
    entries = [_summary(name, results[name], failed[name], fitted, measured) for name in candidates]
    entries.sort(key=lambda entry: entry.metrics["nll"].mean if entry.failed is None else np.inf)
    near_best = {
        name: tuple(np.array(fitted)[one.near_best].tolist()) for name, one in measured.items()
    }
    return Comparison(
        tuple(entries), len(table), table.shape[1], n_splits, n_repeats, n_folds, near_best
    )


def _fits(
    pool: Executor | None, table: Any, task: Callable[..., Any], jobs: list[tuple[Any, int]]
) -> Iterator[Any]:
    """What each job measured, in order."""
    if pool is not None and is_remote(pool):
        source = table if isinstance(table, StoredTable) else np.asarray(table)
        named = sources_of(table)
        place = (lambda piece: named) if named else None
        return in_order(pool, partial(task, source), jobs, _WINDOW, held=len(jobs), place=place)
    whole = np.asarray(table)
    return (map if pool is None else pool.map)(lambda job: task(whole, *job), jobs)


def _held_out(n_rows: int, n_splits: int, random_state: int, at: int) -> Flags:
    """The rows that fold number `at` of all repeats holds out, drawn from the seed wherever they
    are needed.
    """
    rng = generator(random_state)
    repeat, held = divmod(at, n_splits)
    for _ in range(repeat):
        random_folds(n_rows, n_splits, rng)
    return np.asarray(random_folds(n_rows, n_splits, rng) == held)


#: The table that a worker read last, whole: every fit draws its folds from it.
_last_read: dict[bytes, Array] = {}


def _whole(table: Any) -> Array:
    if not isinstance(table, StoredTable):
        return np.asarray(table)
    key = pickle.dumps(table)
    found = _last_read.get(key)
    if found is None:
        _last_read.clear()  # two would be one too many
        found = _last_read[key] = np.asarray(table)
    return found


class _Uncalibrated(BaseEstimator):
    """The classifier's own softmax, in the same table."""

    def fit(self, logits: Array, codes: Codes) -> _Uncalibrated:
        return self

    def predict_proba(self, logits: Array) -> Array:
        return TemperatureMap(1.0)(logits)


def _candidates(calibrators: Mapping[str, Any] | Sequence[str] | None) -> dict[str, Any]:
    if isinstance(calibrators, Mapping):
        return dict(calibrators)
    names = list(METHODS) if calibrators is None else list(calibrators)
    return {UNCALIBRATED: _Uncalibrated(), **{name: calibrator(name)() for name in names}}


class _Fold(NamedTuple):
    """What one fit leaves of the rows it was held out from: a column of each loss, the top label,
    other metrics.
    """

    losses: dict[str, Float]
    top: TopLabel
    others: dict[str, float]
    seconds: float
    impossible: int


def _fit_and_measure(
    codes: Codes, held_out: Callable[[int], Flags], table: Any, estimator: Any, at: int
) -> _Fold | str:
    """What the held-out rows say; a message where the fit cannot be done."""
    table, held, fresh = _whole(table), held_out(at), clone(estimator)
    started = time.thread_time()
    try:
        with unquestioned():
            fresh.fit(table[~held], codes[~held])
    except ValueError as error:
        return str(error)
    seconds = time.thread_time() - started
    checked = checked_table(fresh.predict_proba(table[held]), codes[held])
    losses, others = {}, {}
    for metric in registry.compared():
        if metric.losses is not None:
            losses[metric.name] = metric.losses(checked)
        elif metric.input is not registry.TOP_LABEL:
            others[metric.name] = estimate(metric.prepared(checked), len(checked))
    return _Fold(
        losses, checked.top_label(), others, seconds, int((checked.true_probability <= 0.0).sum())
    )


def _measured(
    metric: registry.Metric, results: list[list[_Fold]], rows: list[Codes], n_splits: int
) -> Paired:
    """A metric of every calibrator from its folds, whose rows these are; of the top label once from
    every row.
    """
    better = metric.smaller_is_better
    if metric.losses is not None:
        losses = [np.concatenate([fold.losses[metric.name] for fold in folds]) for folds in results]
        return by_rows(losses, np.concatenate(rows), better)
    if metric.input is not registry.TOP_LABEL:
        return by_folds([[fold.others[metric.name] for fold in folds] for folds in results], better)
    tops = [zip(*(fold.top for fold in folds[:n_splits]), strict=True) for folds in results]
    own, n = metric.debiased or metric.prepared, sum(map(len, rows[:n_splits]))
    return by_resamples([own(TopLabel(*map(np.concatenate, top))) for top in tops], n, better)


def _summary(
    name: str, folds: list[Any], failed: str | None, fitted: list[str], measured: dict[str, Paired]
) -> Entry:
    if failed is not None:
        return Entry(name, {}, float("nan"), failed)
    at = fitted.index(name)
    metrics = {
        metric: Estimate(float(own.estimates[at]), own.error(at))
        for metric, own in measured.items()
    }
    seconds = float(np.median([fold.seconds for fold in folds]))
    return Entry(name, metrics, seconds, impossible=sum(fold.impossible for fold in folds))


def _heading(metric: str) -> str:
    row = registry.METRICS.get(metric)
    return metric if row is None else row.heading or row.title
