"""What a comparison will cost: CPU seconds of a fit, roughly, from the number of entries of the table."""

from __future__ import annotations

from collections.abc import Iterable

#: CPU seconds per million entries of the table, measured on one core (5,000 rows of 100 and of 1,000 classes). Right
#: to a factor of two or so; what is not listed takes about a quarter of a second, and so do the metrics.
_PER_MILLION = {
    "gaussian-process": 1.0,
    "structured": 2.2,
    "vector": 2.5,
    "matrix": 6.0,
    "dirichlet": 9.0,
    "platt": 1.0,
    "beta": 1.0,
    "bbq": 0.5,
    "auto": 20.0,
}
_OTHERS = 0.25


def fold_seconds(names: Iterable[str], n_rows: int, n_classes: int) -> float:
    """CPU seconds to fit and measure these calibrators once.

    Examples
    --------
    >>> fold_seconds(["temperature", "matrix"], 10_000, 100)
    6.75
    """
    return sum(_PER_MILLION.get(name, _OTHERS) + _OTHERS for name in names) * n_rows * n_classes / 1e6


def affordable_folds(names: Iterable[str], n_rows: int, n_classes: int, n_folds: int, budget: float) -> int:
    """How many of the folds the budget (CPU seconds) allows, at least one.

    Examples
    --------
    >>> affordable_folds(["temperature"], 10_000, 100, 10, 600.0), affordable_folds(["matrix"], 25_000, 1000, 10, 600.0)
    (10, 3)
    """
    each = fold_seconds(names, n_rows, n_classes)
    return n_folds if each * n_folds <= budget else max(1, min(n_folds, int(budget / each)))
