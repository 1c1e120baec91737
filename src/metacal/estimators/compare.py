"""Comparison of calibrators on a table of logits by repeated cross-validation."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, clone

from metacal.errors import InputError
from metacal.estimators.comparison import Comparison, ComparisonEntry, Estimate
from metacal.estimators.cost import count_affordable_folds
from metacal.formulas import Array, Codes, Flags, Float
from metacal.maps.fitting.crossvalidation import deduplicate_warnings, random_folds
from metacal.maps.methods import METHODS, get_calibrator_class
from metacal.maps.temperature import TemperatureMap
from metacal.metrics import registry
from metacal.metrics.binning import evaluate_on_sample
from metacal.metrics.paired import (
    PairedEstimates,
    compare_by_folds,
    compare_by_resamples,
    compare_by_rows,
)
from metacal.metrics.toplabel import TopLabel, checked_table
from metacal.rows import open_executor, validate
from metacal.rows.draws import generator
from metacal.rows.executors import ExecutorLike, is_remote
from metacal.rows.plausibility import skip_plausibility_checks, warn_of_suspicion
from metacal.rows.stored import StoredTable
from metacal.rows.tasks import describe_sources, run_in_order

UNCALIBRATED = "uncalibrated"
#: Default budget of a comparison, in CPU seconds.
DEFAULT_BUDGET = 600.0
#: Maximal number of fits that are in progress on a cluster at a time.
_MAX_FITS_IN_PROGRESS = 256


#: Wraps an iterator that yields `total` results, to show the progress.
Progress = Callable[[Iterator[Any], int], Iterable[Any]]


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
    budget: float = DEFAULT_BUDGET,
    executor: ExecutorLike | None = None,
) -> Comparison:
    """Compare calibrators by repeated cross-validation.

    Losses are averaged over rows. An ECE is computed from the held-out rows of all folds together,
    corrected for its bias (`debiased_ece`). The calibrators are compared on the same rows, so the
    standard error of a difference is much smaller than that of either mean, and
    `Comparison.near_best` uses it for a shortlist. The shortlist is a rule of thumb: it has no
    confidence level.

    Parameters
    ----------
    logits : array-like of shape (n_rows, n_classes)
        Logits or probabilities.
    labels : array-like of shape (n_rows,)
        True labels.
    calibrators : sequence of str, mapping of str to estimator, or None, default=None
        Calibrators to compare. None compares all of metacal. Estimators need `fit` and
        `predict_proba` on logits.
    n_splits : int, default=5
        Number of folds of a repetition.
    n_repeats : int, default=2
        Number of repetitions.
    random_state : int, default=0
        Seed of the folds. The same seed gives the same table, except for the times.
    input : {"logits", "probabilities"}, default="logits"
        Content of `logits`.
    classes : sequence or None, default=None
        Labels in column order.
    n_jobs : int or None, default=None
        Number of fits that run in parallel.
    progress : callable or None, default=None
        Called with an iterator over the finished fits and their number. The comparison iterates
        over the result.
    budget : float, default=600.0
        CPU seconds. If all folds of a large table would take longer, by the estimate of
        `metacal.estimators.cost`, only some of them are measured, at least one.
    executor : concurrent.futures.Executor or distributed.Client or None, default=None
        Executor of the fits: a process pool, or a Dask client. Each worker has the whole table in
        memory, and reads it itself if it stays in its files (`read_predictions`). The result is the
        same, except for the times.

    Returns
    -------
    Comparison

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> mc.compare(data.logits[:2000], data.labels[:2000], ["temperature"]).best("nll")
    'temperature'
    """
    table = validate.read_logits(logits, input)
    n_rows, n_classes = table.shape
    codes = validate.encode_labels(labels, n_rows, validate.check_classes(classes, n_classes))
    warn_of_suspicion(table, input)
    estimators = _estimators_by_name(calibrators)
    if not 2 <= n_splits <= n_rows:
        raise InputError(
            f"n_splits must be between 2 and the number of rows, {n_rows}; got {n_splits}."
        )
    held_out_mask = partial(_held_out_mask, n_rows, n_splits, random_state)
    n_folds = count_affordable_folds(estimators, n_rows, n_classes, n_splits * n_repeats, budget)
    jobs = [(estimator, fold) for estimator in estimators.values() for fold in range(n_folds)]
    with open_executor(n_jobs, executor) as pool, deduplicate_warnings():
        fold_results = _run_jobs(pool, table, partial(_fit_and_measure, codes, held_out_mask), jobs)
        if progress is not None:
            fold_results = iter(progress(fold_results, len(jobs)))
        results = list(fold_results)
    held_out_rows = [np.flatnonzero(held_out_mask(fold)) for fold in range(n_folds)]
    results_by_name = _group_results(estimators, results, n_folds)
    entries, near_best_names = _summarise(results_by_name, held_out_rows, n_splits)
    return Comparison(
        entries=entries,
        n_rows=n_rows,
        n_classes=n_classes,
        n_splits=n_splits,
        n_repeats=n_repeats,
        n_folds=n_folds,
        near_best_names=near_best_names,
    )


def _run_jobs(
    pool: Executor | None, table: Any, task: Callable[..., Any], jobs: list[tuple[Any, int]]
) -> Iterator[Any]:
    """Run all jobs, and yield their results in order.

    Parameters
    ----------
    pool : Executor or None
        Executor. None runs the jobs one after the other.
    table : array or stored table
        Logits.
    task : callable
        Called with the table, an estimator and the number of a fold.
    jobs : list of tuples
        Estimator and number of the fold of each job.

    Returns
    -------
    iterator
    """
    if pool is not None and is_remote(pool):
        source = table if isinstance(table, StoredTable) else np.asarray(table)
        file_names = describe_sources(table)
        place = (lambda piece: file_names) if file_names else None
        remote_task = partial(task, source)
        return run_in_order(
            pool,
            remote_task,
            jobs,
            _MAX_FITS_IN_PROGRESS,
            max_pending=len(jobs),
            describe_piece=place,
        )
    whole_table = np.asarray(table)

    def run_job(job: tuple[Any, int]) -> Any:
        return task(whole_table, *job)

    if pool is None:
        return map(run_job, jobs)
    return pool.map(run_job, jobs)


def _held_out_mask(n_rows: int, n_splits: int, random_state: int, fold: int) -> Flags:
    """Return the mask of the held-out rows of a fold, drawn again from the seed.

    Parameters
    ----------
    n_rows : int
        Number of rows.
    n_splits : int
        Number of folds of a repetition.
    random_state : int
        Seed of the folds.
    fold : int
        Number of the fold, counted over all repetitions.

    Returns
    -------
    array of bool of shape (n_rows,)
    """
    rng = generator(random_state)
    repetition, fold_in_repetition = divmod(fold, n_splits)
    for _ in range(repetition):
        random_folds(n_rows, n_splits, rng)
    return np.asarray(random_folds(n_rows, n_splits, rng) == fold_in_repetition)


#: The table that a worker process has read, keyed by its description. It holds at most one table.
_table_cache: dict[bytes, Array] = {}


def _read_whole_table(table: Any) -> Array:
    """Return a table as an array; a stored table is read once per worker process."""
    if not isinstance(table, StoredTable):
        return np.asarray(table)
    key = pickle.dumps(table)
    if key not in _table_cache:
        _table_cache.clear()
        _table_cache[key] = np.asarray(table)
    return _table_cache[key]


class _Uncalibrated(BaseEstimator):
    """Softmax of the logits, as a calibrator that learns nothing."""

    def fit(self, logits: Array, codes: Codes) -> _Uncalibrated:
        return self

    def predict_proba(self, logits: Array) -> Array:
        return TemperatureMap(1.0)(logits)


def _estimators_by_name(
    calibrators: Mapping[str, Any] | Sequence[str] | None,
) -> dict[str, Any]:
    """Return the estimators to compare, keyed by name."""
    if isinstance(calibrators, Mapping):
        return dict(calibrators)
    names = METHODS if calibrators is None else calibrators
    estimators: dict[str, Any] = {UNCALIBRATED: _Uncalibrated()}
    for name in names:
        estimators[name] = get_calibrator_class(name)()
    return estimators


@dataclass(frozen=True, eq=False)
class _FoldResult:
    """Measurements of one fit on its held-out rows.

    Attributes
    ----------
    losses : dict of str to array
        Losses of each row, keyed by metric.
    top : TopLabel
        Confidence and correctness of each row.
    other_metrics : dict of str to float
        Metrics that are neither a mean of losses nor a function of the top label.
    seconds : float
        CPU seconds of the fit.
    n_impossible : int
        Number of rows whose true class got probability 0.
    """

    losses: dict[str, Float]
    top: TopLabel
    other_metrics: dict[str, float]
    seconds: float
    n_impossible: int


def _fit_and_measure(
    codes: Codes,
    held_out_mask: Callable[[int], Flags],
    table: Any,
    estimator: Any,
    fold: int,
) -> _FoldResult | str:
    """Fit an estimator without one fold, and measure it on that fold.

    Parameters
    ----------
    codes : array of int of shape (n_rows,)
        Column of each label.
    held_out_mask : callable
        Returns the mask of the held-out rows of a fold.
    table : array or stored table
        Logits.
    estimator : estimator
        Unfitted estimator.
    fold : int
        Number of the fold.

    Returns
    -------
    _FoldResult or str
        Error message if the estimator cannot be fitted.
    """
    logits = _read_whole_table(table)
    is_held_out = held_out_mask(fold)
    fold_estimator = clone(estimator)
    start_time = time.thread_time()
    try:
        with skip_plausibility_checks():
            fold_estimator.fit(logits[~is_held_out], codes[~is_held_out])
    except ValueError as error:
        return str(error)
    seconds = time.thread_time() - start_time
    probabilities = fold_estimator.predict_proba(logits[is_held_out])
    checked = checked_table(probabilities, codes[is_held_out])
    losses = {}
    other_metrics = {}
    for metric in registry.list_compared_metrics():
        if metric.losses is not None:
            losses[metric.name] = metric.losses(checked)
        elif metric.input is not registry.TOP_LABEL:
            other_metrics[metric.name] = evaluate_on_sample(
                metric.prepare_statistic(checked), len(checked)
            )
    return _FoldResult(
        losses=losses,
        top=checked.top_label(),
        other_metrics=other_metrics,
        seconds=seconds,
        n_impossible=int((checked.true_probability <= 0.0).sum()),
    )


def _group_results(names: Iterable[str], results: list[Any], n_folds: int) -> dict[str, list[Any]]:
    """Group the results of all jobs by calibrator."""
    results_by_name = {}
    for index, name in enumerate(names):
        first = index * n_folds
        results_by_name[name] = results[first : first + n_folds]
    return results_by_name


def _summarise(
    results_by_name: dict[str, list[Any]], held_out_rows: list[Codes], n_splits: int
) -> tuple[tuple[ComparisonEntry, ...], dict[str, tuple[str, ...]]]:
    """Combine the results of all folds.

    Parameters
    ----------
    results_by_name : dict of str to list
        Results of the folds of each calibrator, or error messages.
    held_out_rows : list of arrays of int
        Held-out rows of each fold.
    n_splits : int
        Number of folds of a repetition.

    Returns
    -------
    entries : tuple of ComparisonEntry
        Result of each calibrator, lowest log loss first.
    near_best_names : dict of str to tuple of str
        For each metric, the best calibrator and those that are hardly worse.
    """
    error_by_name = {}
    for name, results in results_by_name.items():
        errors = [result for result in results if isinstance(result, str)]
        if errors:
            error_by_name[name] = errors[0]
    fitted_names = [name for name in results_by_name if name not in error_by_name]
    fitted_results = [results_by_name[name] for name in fitted_names]
    paired_metrics: dict[str, PairedEstimates] = {}
    if fitted_names:
        for metric in registry.list_compared_metrics():
            paired_metrics[metric.name] = _compare_metric(
                metric, fitted_results, held_out_rows, n_splits
            )

    entries = []
    for name, results in results_by_name.items():
        if name in error_by_name:
            entries.append(
                ComparisonEntry(name, {}, float("nan"), error_message=error_by_name[name])
            )
        else:
            entries.append(_build_entry(name, results, fitted_names.index(name), paired_metrics))
    entries.sort(
        key=lambda entry: entry.metrics["nll"].mean if entry.error_message is None else np.inf
    )
    near_best_names = {
        metric: tuple(np.array(fitted_names)[paired.near_best].tolist())
        for metric, paired in paired_metrics.items()
    }
    return tuple(entries), near_best_names


def _compare_metric(
    metric: registry.Metric,
    results: list[list[_FoldResult]],
    held_out_rows: list[Codes],
    n_splits: int,
) -> PairedEstimates:
    """Compute a metric of every calibrator, with paired differences.

    Parameters
    ----------
    metric : Metric
        The metric.
    results : list of lists of _FoldResult
        Results of the folds of each calibrator.
    held_out_rows : list of arrays of int
        Held-out rows of each fold.
    n_splits : int
        Number of folds of a repetition. A metric of the top label uses the first repetition, so
        that it counts each row once.

    Returns
    -------
    PairedEstimates
    """
    smaller_is_better = metric.smaller_is_better
    if metric.losses is not None:
        losses = [
            np.concatenate([result.losses[metric.name] for result in folds]) for folds in results
        ]
        return compare_by_rows(losses, np.concatenate(held_out_rows), smaller_is_better)
    if metric.input is not registry.TOP_LABEL:
        values = [[result.other_metrics[metric.name] for result in folds] for folds in results]
        return compare_by_folds(values, smaller_is_better)
    compute_statistic = metric.debiased or metric.prepare_statistic
    statistics = []
    for folds in results:
        top_columns = zip(*(result.top for result in folds[:n_splits]), strict=True)
        statistics.append(compute_statistic(TopLabel(*map(np.concatenate, top_columns))))
    n_rows = sum(map(len, held_out_rows[:n_splits]))
    return compare_by_resamples(statistics, n_rows, smaller_is_better)


def _build_entry(
    name: str, results: list[_FoldResult], index: int, paired_metrics: dict[str, PairedEstimates]
) -> ComparisonEntry:
    """Build the result of one calibrator.

    Parameters
    ----------
    name : str
        Name of the calibrator.
    results : list of _FoldResult
        Results of its folds.
    index : int
        Its index among the calibrators of `paired_metrics`.
    paired_metrics : dict of str to PairedEstimates
        Metrics of all calibrators.

    Returns
    -------
    ComparisonEntry
    """
    metrics = {
        metric: Estimate(float(paired.estimates[index]), paired.standard_error(index))
        for metric, paired in paired_metrics.items()
    }
    return ComparisonEntry(
        name,
        metrics,
        fit_seconds=float(np.median([result.seconds for result in results])),
        n_zero_probability_rows=sum(result.n_impossible for result in results),
    )
