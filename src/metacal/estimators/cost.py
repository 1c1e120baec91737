"""Estimated CPU time of a comparison of calibrators, from the size of the table.

The times were measured on one core, on tables with 10, 100, 176, 300 and 1,000 classes. A
calibrator that chooses the strength of its penalty stops early if there is nothing to learn about
single classes. The times are those for tables with something to learn.
"""

from __future__ import annotations

from collections.abc import Iterable

_MILLION = 1e6
#: CPU seconds of a fit per million entries of the table, accurate to a factor of about two.
_FIT_SECONDS_PER_MILLION = {
    "gaussian-process": 0.5,
    "structured": 1.5,
    "vector": 1.5,
    "platt": 0.3,
    "beta": 1.2,
    "bbq": 1.0,
    "auto": 15.0,
}
#: CPU seconds per million entries of every calibrator that is not listed above.
_DEFAULT_FIT_SECONDS_PER_MILLION = 0.15
#: Calibrators that fit a full matrix, whose time per entry grows with the number of classes.
_MATRIX_METHODS = ("matrix", "dirichlet")
_MATRIX_BASE_SECONDS = 3.0
_MATRIX_SECONDS_PER_CLASS = 0.08
#: With more classes, only strong penalties are tried in the fit of a matrix, which is fast.
_MANY_CLASSES = 300
_MATRIX_SECONDS_MANY_CLASSES = 2.5
#: Fraction of the rows on which a fold is fitted.
_FIT_FRACTION = 0.8
#: CPU seconds per million entries for the metrics of one fold.
_METRICS_SECONDS_PER_MILLION = 0.05


def estimate_fold_seconds(names: Iterable[str], n_rows: int, n_classes: int) -> float:
    """Estimate the CPU seconds for fitting and evaluating calibrators on one fold.

    Parameters
    ----------
    names : iterable of str
        Names of the calibrators.
    n_rows, n_classes : int
        Shape of the table.

    Returns
    -------
    float

    Examples
    --------
    >>> round(estimate_fold_seconds(["temperature", "matrix"], 10_000, 100), 2)
    9.02
    """
    matrix_seconds = _MATRIX_BASE_SECONDS + _MATRIX_SECONDS_PER_CLASS * n_classes
    if n_classes > _MANY_CLASSES:
        matrix_seconds = _MATRIX_SECONDS_MANY_CLASSES
    seconds_by_name = dict(_FIT_SECONDS_PER_MILLION)
    for name in _MATRIX_METHODS:
        seconds_by_name[name] = matrix_seconds
    seconds_per_million = []
    for name in names:
        fit_seconds = seconds_by_name.get(name, _DEFAULT_FIT_SECONDS_PER_MILLION)
        seconds_per_million.append(_FIT_FRACTION * fit_seconds + _METRICS_SECONDS_PER_MILLION)
    return sum(seconds_per_million) * n_rows * n_classes / _MILLION


def count_affordable_folds(
    names: Iterable[str], n_rows: int, n_classes: int, n_folds: int, budget_seconds: float
) -> int:
    """Compute how many folds a budget of CPU time allows, at least one.

    Parameters
    ----------
    names : iterable of str
        Names of the calibrators.
    n_rows, n_classes : int
        Shape of the table.
    n_folds : int
        Number of folds that were requested.
    budget_seconds : float
        CPU seconds that all folds together may take.

    Returns
    -------
    int

    Examples
    --------
    >>> count_affordable_folds(["temperature"], 10_000, 100, 10, 600.0)
    10
    >>> count_affordable_folds(["matrix"], 25_000, 1000, 10, 600.0)
    10
    """
    seconds_per_fold = estimate_fold_seconds(list(names), n_rows, n_classes)
    if seconds_per_fold * n_folds <= budget_seconds:
        return n_folds
    n_affordable_folds = int(budget_seconds / seconds_per_fold)
    return max(1, min(n_folds, n_affordable_folds))
