"""Cross-validation: folds, choice of a penalty strength, and repeated warnings."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from metacal.errors import InputError
from metacal.formulas import Codes, Float
from metacal.maps.labelled import LabelledRows
from metacal.rows.draws import make_generator

#: Penalty strengths to compare, strongest first, while the held-out loss decreases.
STRENGTHS = (1e3, 1e2, 1e1, 1e0, 1e-1, 1e-2, 1e-3, 1e-4)
#: Strength for a table of one row, which cannot be split into folds.
_STRENGTH_WITHOUT_FOLDS = 1.0
#: Largest number of rows of a table that are used to choose a strength.
_MAX_ROWS = 25_000
#: Number of entries above which a table is large; only one fold of it is evaluated.
_LARGE_TABLE_ENTRIES = 1 << 22
#: Largest number of rows of a large table that are used to choose a strength.
_MAX_ROWS_OF_LARGE_TABLE = 10_000

#: Pattern of a number in the text of a warning.
_NUMBER_PATTERN = r"\d[\d.,]*(e[+-]?\d+)?"

#: Function that fits parameters: fit(sample, strength, start).
FitParameters = Callable[[LabelledRows, float, Float], Float]
#: Function that sums over rows the loss under given parameters: sum_loss(sample, parameters).
SumLoss = Callable[[LabelledRows, Float], float]


@dataclass(frozen=True)
class _Fold:
    """Training and test rows of one fold."""

    training: LabelledRows
    test: LabelledRows


def draw_random_folds(n_rows: int, n_folds: int, random_state: int | np.random.Generator) -> Codes:
    """Assign the rows to folds at random, with sizes that differ by at most one.

    The folds are deliberately not stratified. If every fold had the same class frequencies, a
    map that learns the frequencies of this sample would look better on the held-out fold than
    it is on new rows.

    Parameters
    ----------
    n_rows : int
        Number of rows.

    n_folds : int
        Number of folds.

    random_state : int or numpy.random.Generator
        Seed.

    Returns
    -------
    array of int of shape (n_rows,)
        Fold of each row.

    Examples
    --------
    >>> np.bincount(draw_random_folds(7, 3, 0))
    array([3, 2, 2])
    """
    fold_of_row = np.empty(n_rows, dtype=np.intp)
    shuffled_rows = make_generator(random_state).permutation(n_rows)
    fold_of_row[shuffled_rows] = np.arange(n_rows) % n_folds
    return fold_of_row


@contextmanager
def deduplicate_warnings() -> Iterator[None]:
    """Suppress repeated warnings that differ only in their numbers.

    The fits on the folds of one table issue such warnings.

    Examples
    --------
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     with deduplicate_warnings():
    ...         for fold in range(5):
    ...             warnings.warn(f"bounded at 0.00{fold}", UserWarning)
    >>> [str(warning.message) for warning in caught]
    ['bounded at 0.000']
    """
    caught: list[warnings.WarningMessage] = []
    try:
        # The filters of the user decide which warnings are recorded.
        with warnings.catch_warnings(record=True) as caught:
            yield
    finally:
        issued_kinds = set()
        for warning in caught:
            text_without_numbers = re.sub(_NUMBER_PATTERN, "#", str(warning.message))
            kind = (warning.category, text_without_numbers)
            if kind not in issued_kinds:
                issued_kinds.add(kind)
                warnings.warn_explicit(
                    warning.message, warning.category, warning.filename, warning.lineno
                )


def choose_strength(
    sample: LabelledRows,
    fit: FitParameters,
    sum_loss: SumLoss,
    start: Float,
    *,
    strengths: Sequence[float] = STRENGTHS,
    n_folds: int = 3,
    random_state: int | np.random.Generator = 0,
    patience: int = 2,
) -> tuple[float, Float]:
    """Choose the penalty strength with the lowest held-out loss.

    Each fold goes from the strongest penalty to weaker ones, and every fit starts from the
    previous one. A table of more than four million entries is represented by 10,000 rows and
    one fold. The rows are read once, on this machine even if a cluster is used.

    Parameters
    ----------
    sample : LabelledRows
        Rows with labels.

    fit : function
        Fits parameters to rows at a strength, starting from other parameters.

    sum_loss : function
        Sums the loss of parameters over rows.

    start : array
        Parameters to start from.

    strengths : sequence of float
        Strengths to compare, strongest first.

    n_folds : int, default=3
        Number of folds.

    random_state : int or numpy.random.Generator, default=0
        Seed of the folds.

    patience : int, default=2
        Number of consecutive strengths without improvement after which to stop.

    Returns
    -------
    strength : float
        Best strength.

    parameters : array
        Mean of the parameters of the folds at this strength, a good starting point.
    """
    if n_folds < 2:
        raise InputError(f"n_folds must be at least 2, but got {n_folds!r}.")
    if len(sample.labels) < 2:
        return _STRENGTH_WITHOUT_FOLDS, start
    folds = _sample_folds(sample, n_folds, random_state)
    fold_parameters = [start] * len(folds)
    best_loss = np.inf
    best_strength = strengths[0]
    best_parameters = start
    n_without_improvement = 0
    for strength in strengths:
        # Each fit starts from the parameters of the same fold at the previous strength.
        held_out_loss = 0.0
        for fold_index, fold in enumerate(folds):
            parameters = fit(fold.training, strength, fold_parameters[fold_index])
            fold_parameters[fold_index] = parameters
            held_out_loss += sum_loss(fold.test, parameters)
        if held_out_loss < best_loss:
            best_loss = held_out_loss
            best_strength = strength
            parameter_sum = sum(fold_parameters[1:], start=fold_parameters[0])
            best_parameters = parameter_sum / len(folds)
            n_without_improvement = 0
        else:
            n_without_improvement += 1
        if n_without_improvement == patience:
            break
    return best_strength, best_parameters


def _sample_folds(
    sample: LabelledRows, n_folds: int, random_state: int | np.random.Generator
) -> list[_Fold]:
    """Split a sample of the rows into folds; return only one fold of a large table."""
    n_entries = len(sample.labels) * sample.rows.n_classes
    is_large = n_entries > _LARGE_TABLE_ENTRIES
    max_rows = _MAX_ROWS_OF_LARGE_TABLE if is_large else _MAX_ROWS
    stride = math.ceil(len(sample.labels) / max_rows)
    sample = sample.every_nth_row(stride).load_into_memory()
    n_rows = len(sample.labels)
    fold_of_row = draw_random_folds(n_rows, min(n_folds, n_rows), random_state)
    n_used_folds = 1 if is_large else int(fold_of_row.max()) + 1
    folds = []
    for fold_number in range(n_used_folds):
        is_test = fold_of_row == fold_number
        folds.append(_Fold(training=sample.select(~is_test), test=sample.select(is_test)))
    return folds
