"""Comparison of calibrators on a table of logits by repeated cross-validation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator

from metacal.errors import InputError
from metacal.estimators.comparison import Comparison, ComparisonEntry, Estimate
from metacal.estimators.cost import count_affordable_folds
from metacal.estimators.fold_fits import FoldResult, draw_held_out_mask, fit_and_evaluate
from metacal.formulas import Array, Codes, Float
from metacal.maps.fitting.crossvalidation import deduplicate_warnings
from metacal.maps.methods import METHODS, get_calibrator_class
from metacal.maps.temperature import TemperatureMap
from metacal.metrics import registry
from metacal.metrics.paired import (
    PairedEstimates,
    compare_by_folds,
    compare_by_resamples,
    compare_by_rows,
)
from metacal.metrics.toplabel import TopLabel
from metacal.rows import open_executor, validate
from metacal.rows.executors import ExecutorLike, is_remote
from metacal.rows.plausibility import warn_if_implausible
from metacal.rows.stored import StoredTable
from metacal.rows.tasks import describe_table_files, run_in_order

#: Name of the softmax of the logits in a comparison.
UNCALIBRATED = "uncalibrated"
#: CPU seconds that a comparison may take by default.
DEFAULT_BUDGET = 600.0
#: Maximum number of fits that run on a cluster at the same time.
_MAX_CONCURRENT_FITS = 256
#: Function of an iterator over results, and of their number. It shows the progress.
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

    Raises
    ------
    InputError
        If a calibrator is unknown, or the rows are invalid or too few for the folds.

    See Also
    --------
    compare_scores : Compare ranking scores.
    AutoCalibrator : Weighted average of several calibrators.

    Examples
    --------
    >>> import metacal as mc
    >>> data = mc.datasets.load("cifar10-resnet110")
    >>> mc.compare(data.logits[:2000], data.labels[:2000], ["temperature"]).best("nll")
    'temperature'
    """
    logits_table = validate.read_logits(logits, input)
    n_rows, n_classes = logits_table.shape
    true_codes = validate.encode_labels(labels, n_rows, validate.check_classes(classes, n_classes))
    warn_if_implausible(logits_table, input)
    estimators = _make_estimators(calibrators)
    if not 2 <= n_splits <= n_rows:
        raise InputError(
            f"n_splits must be between 2 and the number of rows, {n_rows}, but got {n_splits}."
        )
    draw_mask_of_fold = partial(draw_held_out_mask, n_rows, n_splits, random_state)
    n_folds = count_affordable_folds(
        estimators, n_rows, n_classes, n_splits * n_repeats, budget_seconds=budget
    )
    fit_tasks = [
        _FitTask(estimator, fold) for estimator in estimators.values() for fold in range(n_folds)
    ]
    fit_fold = partial(fit_and_evaluate, true_codes, draw_mask_of_fold)
    with open_executor(n_jobs, executor) as pool, deduplicate_warnings():
        result_iterator = _run_fits(pool, logits_table, fit_fold, fit_tasks)
        if progress is not None:
            result_iterator = iter(progress(result_iterator, len(fit_tasks)))
        fold_results = list(result_iterator)
    held_out_rows = [np.flatnonzero(draw_mask_of_fold(fold)) for fold in range(n_folds)]
    results_by_name = _group_results(estimators, fold_results, n_folds)
    entries, near_best_names = _summarise_results(results_by_name, held_out_rows, n_splits)
    return Comparison(
        entries=entries,
        n_rows=n_rows,
        n_classes=n_classes,
        n_splits=n_splits,
        n_repeats=n_repeats,
        n_folds=n_folds,
        near_best_names=near_best_names,
    )


class _FitTask(NamedTuple):
    """Fit of one estimator without one fold.

    Attributes
    ----------
    estimator : estimator
        Unfitted estimator.
    fold : int
        Number of the fold, counted over all repetitions.
    """

    estimator: Any
    fold: int


def _run_fits(
    pool: Executor | None,
    table: Any,
    fit_fold: Callable[[Any, Any, int], FoldResult | str],
    tasks: list[_FitTask],
) -> Iterator[FoldResult | str]:
    """Run fits and their evaluations, and return an iterator over the results in order.

    Parameters
    ----------
    pool : Executor or None
        Executor. None runs the fits one after the other.
    table : array or stored table
        Logits.
    fit_fold : callable
        Called with the table, an estimator and the number of a fold.
    tasks : list of _FitTask
        The fits, in the order of the results.

    Returns
    -------
    iterator of FoldResult or str
    """
    if pool is not None and is_remote(pool):
        return _run_remote_fits(pool, table, fit_fold, tasks)
    logits = np.asarray(table)

    def run_fit(task: _FitTask) -> FoldResult | str:
        return fit_fold(logits, task.estimator, task.fold)

    if pool is None:
        return map(run_fit, tasks)
    return pool.map(run_fit, tasks)


def _run_remote_fits(
    pool: Executor,
    table: Any,
    fit_fold: Callable[[Any, Any, int], FoldResult | str],
    tasks: list[_FitTask],
) -> Iterator[FoldResult | str]:
    """Run the fits in other processes.

    The parameters are those of `_run_fits`.
    """
    # The workers read a stored table themselves, and get any other table as an array.
    table_for_workers = table if isinstance(table, StoredTable) else np.asarray(table)
    file_names_text = describe_table_files(table)
    is_read_from_files = file_names_text != ""

    def name_files_of_task(_task: tuple[Any, ...]) -> str:
        # Every fit reads the whole table, so messages name the same files for all of them.
        return file_names_text

    return run_in_order(
        pool,
        partial(fit_fold, table_for_workers),
        tasks,
        max_running=_MAX_CONCURRENT_FITS,
        max_pending=len(tasks),
        describe_piece=name_files_of_task if is_read_from_files else None,
    )


class _Uncalibrated(BaseEstimator):
    """Calibrator that learns nothing and returns the softmax of the logits."""

    def fit(self, logits: Array, codes: Codes) -> _Uncalibrated:
        return self

    def predict_proba(self, logits: Array) -> Array:
        return TemperatureMap(1.0)(logits)


def _make_estimators(
    calibrators: Mapping[str, Any] | Sequence[str] | None,
) -> dict[str, Any]:
    """Create the estimators to compare, keyed by name."""
    if isinstance(calibrators, Mapping):
        return dict(calibrators)
    calibrator_names: Iterable[str] = METHODS if calibrators is None else calibrators
    estimator_by_name: dict[str, Any] = {UNCALIBRATED: _Uncalibrated()}
    for calibrator_name in calibrator_names:
        estimator_by_name[calibrator_name] = get_calibrator_class(calibrator_name)()
    return estimator_by_name


def _group_results(
    names: Iterable[str], fold_results: list[FoldResult | str], n_folds: int
) -> dict[str, list[FoldResult | str]]:
    """Group the results of all folds by the name of the calibrator."""
    results_by_name = {}
    for calibrator_index, name in enumerate(names):
        first_result = calibrator_index * n_folds
        results_by_name[name] = fold_results[first_result : first_result + n_folds]
    return results_by_name


def _summarise_results(
    results_by_name: dict[str, list[FoldResult | str]], held_out_rows: list[Codes], n_splits: int
) -> tuple[tuple[ComparisonEntry, ...], dict[str, tuple[str, ...]]]:
    """Combine the results of all folds into one entry per calibrator.

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
    fitted_results: dict[str, list[FoldResult]] = {}
    error_by_name: dict[str, str] = {}
    for calibrator_name, fold_results in results_by_name.items():
        error_messages = [result for result in fold_results if isinstance(result, str)]
        if error_messages:
            error_by_name[calibrator_name] = error_messages[0]
        else:
            fitted_results[calibrator_name] = cast(list[FoldResult], fold_results)
    paired_metrics: dict[str, PairedEstimates] = {}
    if fitted_results:
        for metric in registry.list_compared_metrics():
            paired_metrics[metric.name] = _compare_metric(
                metric, list(fitted_results.values()), held_out_rows, n_splits
            )

    fitted_names = list(fitted_results)
    entries = []
    for calibrator_name in results_by_name:
        if calibrator_name in error_by_name:
            calibrator_entry = ComparisonEntry(
                calibrator_name,
                metrics={},
                fit_seconds=float("nan"),
                error_message=error_by_name[calibrator_name],
            )
        else:
            calibrator_index = fitted_names.index(calibrator_name)
            calibrator_entry = _build_entry(
                calibrator_name, fitted_results[calibrator_name], calibrator_index, paired_metrics
            )
        entries.append(calibrator_entry)
    entries.sort(key=_get_log_loss)
    near_best_names = {
        metric: tuple(np.array(fitted_names)[paired.near_best].tolist())
        for metric, paired in paired_metrics.items()
    }
    return tuple(entries), near_best_names


def _get_log_loss(entry: ComparisonEntry) -> float:
    """Return the mean log loss of a calibrator, infinity if it could not be fitted."""
    if entry.error_message is not None:
        return np.inf
    return entry.metrics["nll"].mean


def _compare_metric(
    metric: registry.Metric,
    fold_results: list[list[FoldResult]],
    held_out_rows: list[Codes],
    n_splits: int,
) -> PairedEstimates:
    """Compute one metric of every calibrator, to compare them on the same rows.

    Parameters
    ----------
    metric : Metric
        The metric.
    fold_results : list of lists of FoldResult
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
    if metric.is_mean_of_row_losses:
        row_losses = [
            _concatenate_losses(calibrator_results, metric.name)
            for calibrator_results in fold_results
        ]
        return compare_by_rows(row_losses, np.concatenate(held_out_rows), metric.smaller_is_better)
    if not metric.reads_top_label:
        fold_values = []
        for calibrator_results in fold_results:
            values_of_calibrator = [
                result.value_by_metric[metric.name] for result in calibrator_results
            ]
            fold_values.append(values_of_calibrator)
        return compare_by_folds(fold_values, metric.smaller_is_better)
    prepare_statistic = metric.debiased or metric.prepare_statistic
    statistics = []
    for calibrator_results in fold_results:
        first_repetition = calibrator_results[:n_splits]
        statistics.append(prepare_statistic(_concatenate_top_labels(first_repetition)))
    n_rows = sum(len(rows_of_fold) for rows_of_fold in held_out_rows[:n_splits])
    return compare_by_resamples(statistics, n_rows, metric.smaller_is_better)


def _concatenate_losses(fold_results: list[FoldResult], metric_name: str) -> Float:
    """Concatenate the losses of the rows of several folds."""
    return np.concatenate([result.losses[metric_name] for result in fold_results])


def _concatenate_top_labels(fold_results: list[FoldResult]) -> TopLabel:
    """Concatenate the confidence and correctness of the rows of several folds."""
    top_labels = [result.top_label for result in fold_results]
    return TopLabel(
        confidence=np.concatenate([top_label.confidence for top_label in top_labels]),
        correct=np.concatenate([top_label.correct for top_label in top_labels]),
    )


def _build_entry(
    name: str,
    fold_results: list[FoldResult],
    index: int,
    paired_metrics: dict[str, PairedEstimates],
) -> ComparisonEntry:
    """Build the entry of one calibrator from its results on all folds.

    Parameters
    ----------
    name : str
        Name of the calibrator.
    fold_results : list of FoldResult
        Results of its folds.
    index : int
        Its index among the calibrators of `paired_metrics`.
    paired_metrics : dict of str to PairedEstimates
        Metrics of all calibrators.

    Returns
    -------
    ComparisonEntry
    """
    metrics = {}
    for metric_name, paired_estimates in paired_metrics.items():
        metrics[metric_name] = Estimate(
            mean=float(paired_estimates.estimates[index]),
            standard_error=paired_estimates.standard_error(index),
        )
    fit_seconds = [result.fit_seconds for result in fold_results]
    n_zero_probability_rows = sum(result.n_zero_probability_rows for result in fold_results)
    return ComparisonEntry(
        name,
        metrics,
        fit_seconds=float(np.median(fit_seconds)),
        n_zero_probability_rows=n_zero_probability_rows,
    )
