"""Estimated CPU time of a comparison of calibrators, from the size of the table."""

from __future__ import annotations

from collections.abc import Iterable

#: CPU seconds of a fit per million entries of the table. They were measured on one core, on tables
#: with 10, 100, 176, 300 and 1,000 classes. A calibrator that chooses the strength of its penalty
#: stops early if there is nothing to learn about single classes. These are the times if there is
#: something to learn, accurate to a factor of about two.
_SECONDS_PER_MILLION = {
    "gaussian-process": 0.5,
    "structured": 1.5,
    "vector": 1.5,
    "platt": 0.3,
    "beta": 1.2,
    "bbq": 1.0,
    "auto": 15.0,
}
#: The same for calibrators that are not listed, all of which take less than a sixth of a second.
_DEFAULT_SECONDS_PER_MILLION = 0.15
#: Calibrators that fit a full matrix. Their time grows with the number of classes, until there are
#: so many that only strong penalties are tried.
_MATRIX_METHODS = ("matrix", "dirichlet")
_MATRIX_SECONDS_MANY_CLASSES = 2.5
_MANY_CLASSES = 300
#: Fraction of the rows on which a fold is fitted.
_FIT_FRACTION = 0.8
#: CPU seconds per million entries for measuring the metrics of a fold.
_METRICS_SECONDS_PER_MILLION = 0.05


def estimate_fold_seconds(names: Iterable[str], n_rows: int, n_classes: int) -> float:
    """Estimate the CPU seconds for fitting and measuring calibrators on one fold.

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
    matrix_seconds = 3.0 + 0.08 * n_classes
    if n_classes > _MANY_CLASSES:
        matrix_seconds = _MATRIX_SECONDS_MANY_CLASSES
    fit_seconds = {**_SECONDS_PER_MILLION, **dict.fromkeys(_MATRIX_METHODS, matrix_seconds)}
    seconds_per_million = sum(
        _FIT_FRACTION * fit_seconds.get(name, _DEFAULT_SECONDS_PER_MILLION)
        + _METRICS_SECONDS_PER_MILLION
        for name in names
    )
    return seconds_per_million * n_rows * n_classes / 1e6


def count_affordable_folds(
    names: Iterable[str], n_rows: int, n_classes: int, n_folds: int, budget: float
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
    budget : float
        CPU seconds.

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
    seconds = estimate_fold_seconds(list(names), n_rows, n_classes)
    if seconds * n_folds <= budget:
        return n_folds
    return max(1, min(n_folds, int(budget / seconds)))
