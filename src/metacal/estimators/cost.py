"""What a comparison may cost: CPU seconds of a fit, roughly, from the size of the table."""

from __future__ import annotations

from collections.abc import Iterable

#: CPU seconds per million entries of the table, measured on one core on tables of 10, 100, 176, 300
#: and 1,000 classes. Those that choose a strength stop early where classes have nothing of their
#: own to learn: these are the times where they have, and there they are right to a factor of two or
#: so. What is not listed takes less than a sixth of a second.
_PER_MILLION = {
    "gaussian-process": 0.5,
    "structured": 1.5,
    "vector": 1.5,
    "platt": 0.3,
    "beta": 1.2,
    "bbq": 1.0,
    "auto": 15.0,
}
#: Four rows in five are fitted on; to measure takes the last number, of all rows.
_OTHERS, _SHARE, _MEASURED = 0.15, 0.8, 0.05
#: A full matrix: the time goes with the classes, until there are so many that only strong penalties
#: are tried.
_FULL, _FULL_OF_MANY, _MANY_CLASSES = ("matrix", "dirichlet"), 2.5, 300


def fold_seconds(names: Iterable[str], n_rows: int, n_classes: int) -> float:
    """CPU seconds to fit and measure these calibrators once, where there is much to learn.

    Examples
    --------
    >>> round(fold_seconds(["temperature", "matrix"], 10_000, 100), 2)
    9.02
    """
    full = _FULL_OF_MANY if n_classes > _MANY_CLASSES else 3.0 + 0.08 * n_classes
    each = {**_PER_MILLION, **dict.fromkeys(_FULL, full)}
    return (
        sum(_SHARE * each.get(name, _OTHERS) + _MEASURED for name in names)
        * n_rows
        * n_classes
        / 1e6
    )


def affordable_folds(
    names: Iterable[str], n_rows: int, n_classes: int, n_folds: int, budget: float
) -> int:
    """How many of the folds the budget (CPU seconds) allows, at least one.

    Examples
    --------
    >>> affordable_folds(["temperature"], 10_000, 100, 10, 600.0), affordable_folds(["matrix"], 25_000, 1000, 10, 600.0)
    (10, 10)
    """
    each = fold_seconds(list(names), n_rows, n_classes)
    return n_folds if each * n_folds <= budget else max(1, min(n_folds, int(budget / each)))
