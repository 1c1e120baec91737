"""Cross-validation: the folds, choosing the strength of a penalty, and warnings that are the same
in every fold.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from metacal.errors import InputError
from metacal.formulas import Codes, Float
from metacal.maps.labelled import Labelled
from metacal.rows.draws import generator

#: The strengths tried, strongest first; weaker ones only while the held-out loss keeps falling.
STRENGTHS = (1e3, 1e2, 1e1, 1e0, 1e-1, 1e-2, 1e-3, 1e-4)
#: A strength counts in rows and so does not depend on how many there are: this many suffice to
#: choose it; of a table with more entries than that, fewer rows, and one fold.
MOST_ROWS, _LARGE_TABLE, _MOST_ROWS_OF_LARGE = 25_000, 1 << 22, 10_000


def random_folds(n_rows: int, n_folds: int, random_state: int | np.random.Generator) -> Codes:
    """The fold of each row, at random; sizes differ by at most one.

    Not stratified on purpose: when every fold has the same class frequencies, a map that learns the
    frequencies of this very sample looks better on the held-out fold than it will be on new rows.

    Examples
    --------
    >>> np.bincount(random_folds(7, 3, 0))
    array([3, 2, 2])
    """
    folds = np.empty(n_rows, dtype=np.intp)
    folds[generator(random_state).permutation(n_rows)] = np.arange(n_rows) % n_folds
    return folds


@contextmanager
def said_once() -> Iterator[None]:
    """Of warnings that differ in their numbers alone, as fits on the folds of one table give them,
    pass on the first.

    Examples
    --------
    >>> with warnings.catch_warnings(record=True) as heard:
    ...     warnings.simplefilter("always")
    ...     with said_once():
    ...         for fold in range(5):
    ...             warnings.warn(f"bounded at 0.00{fold}", UserWarning)
    >>> [str(one.message) for one in heard]
    ['bounded at 0.000']
    """
    heard: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as heard:  # what the user's filters let through
            yield
    finally:
        seen = set()
        for one in heard:
            kind = (one.category, re.sub(r"\d[\d.,]*(e[+-]?\d+)?", "#", str(one.message)))
            if kind not in seen:
                seen.add(kind)
                warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def choose_strength(
    sample: Labelled,
    fit: Callable[[Labelled, float, Float], Float],
    loss: Callable[[Labelled, Float], float],
    start: Float,
    *,
    strengths: Sequence[float] = STRENGTHS,
    n_folds: int = 3,
    random_state: int | np.random.Generator = 0,
    patience: int = 2,
) -> tuple[float, Float]:
    """Return the strength with the lowest held-out loss, and the mean of its fits: a good place to
    start the last one.

    `fit(rows, strength, start)` gives parameters, `loss(rows, parameters)` the summed loss. Each
    fold walks from the strongest penalty to weaker ones, every fit starting from the one before;
    `patience` strengths in a row that do no better end the walk. Of a table with more than four
    million entries, 10,000 rows and one of the folds are looked at. They are read once, and the
    walk is this machine's alone: on a cluster as on one.
    """
    if n_folds < 2:
        raise InputError(f"n_folds must be at least 2, got {n_folds!r}.")
    if len(sample.labels) < 2:
        return 1.0, start
    large = len(sample.labels) * sample.rows.n_classes > _LARGE_TABLE
    most = _MOST_ROWS_OF_LARGE if large else MOST_ROWS
    sample = sample.every(-(-len(sample.labels) // most)).in_memory()
    folds = random_folds(len(sample.labels), min(n_folds, len(sample.labels)), random_state)
    used = range(1 if large else int(folds.max()) + 1)
    parts = [(sample.where(folds != fold), sample.where(folds == fold)) for fold in used]
    fits, best, worse = [start] * len(parts), (np.inf, strengths[0], start), 0
    for strength in strengths:
        fits = [fit(train, strength, theta) for (train, _), theta in zip(parts, fits)]
        held_out = sum(loss(test, theta) for (_, test), theta in zip(parts, fits))
        if held_out < best[0]:
            best, worse = (held_out, strength, sum(fits[1:], start=fits[0]) / len(fits)), 0
        else:
            worse += 1
        if worse == patience:
            break
    return best[1], best[2]
