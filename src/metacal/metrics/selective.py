"""Metrics of the decisions of a gate: proportions of (``accept``, ``correct``).

``correct`` is whether the prediction of the uncalibrated model is correct, for accepted and rejected
rows alike. A ratio with an empty denominator (nothing accepted, no correct row) is NaN. Metrics of
how well a score ranks the rows at all thresholds are in `metacal.metrics.ranking`.
"""

from __future__ import annotations

from functools import partial

from numpy.typing import ArrayLike

from metacal.formulas import Flags
from metacal.metrics.registry import DECISION, register
from metacal.metrics.toplabel import check_same_length, read_bool_column


def count_accepted_rows(accept: ArrayLike, correct: ArrayLike | None = None) -> tuple[int, int]:
    """Count the accepted rows and all rows. `correct` is not used."""
    is_accepted = read_bool_column(accept, "accept")
    return int(is_accepted.sum()), len(is_accepted)


def count_rejected_correct_rows(accept: ArrayLike, correct: ArrayLike) -> tuple[int, int]:
    """Count the rejected correct rows and all correct rows."""
    is_accepted, is_correct = _read_decisions(accept, correct)
    return int((is_correct & ~is_accepted).sum()), int(is_correct.sum())


def count_correct_accepted_rows(accept: ArrayLike, correct: ArrayLike) -> tuple[int, int]:
    """Count the accepted correct rows and all accepted rows."""
    is_accepted, is_correct = _read_decisions(accept, correct)
    return int((is_correct & is_accepted).sum()), int(is_accepted.sum())


def count_incorrect_accepted_rows(accept: ArrayLike, correct: ArrayLike) -> tuple[int, int]:
    """Count the accepted incorrect rows and all incorrect rows."""
    is_accepted, is_correct = _read_decisions(accept, correct)
    return int((is_accepted & ~is_correct).sum()), int((~is_correct).sum())


_register_proportion = partial(register, input=DECISION, evaluated=True)


@_register_proportion(
    title="coverage, P(accept)",
    heading="coverage",
    compute_counts=count_accepted_rows,
    smaller_is_better=False,
    needs_rejected=False,
)
def coverage(accept: ArrayLike) -> float:
    """Compute the coverage: the fraction of rows that are accepted, P(accept).

    Parameters
    ----------
    accept : array of bool of shape (n,)
        Whether each row is accepted.

    Returns
    -------
    float

    Examples
    --------
    >>> coverage([True, True, False, True])
    0.75
    """
    n_accepted, n_rows = count_accepted_rows(accept)
    return _divide_or_nan(n_accepted, n_rows)


@_register_proportion(
    title="miscoverage, P(reject | correct)",
    heading="miscoverage",
    compute_counts=count_rejected_correct_rows,
)
def miscoverage(accept: ArrayLike, correct: ArrayLike) -> float:
    """Compute the miscoverage (false rejection rate), P(reject | correct).

    Parameters
    ----------
    accept, correct : array of bool of shape (n,)
        Whether each row is accepted, and whether its prediction is correct.

    Returns
    -------
    float
        NaN if no row is correct.

    Examples
    --------
    >>> miscoverage([True, False, False], [True, True, False])
    0.5
    """
    n_rejected, n_correct = count_rejected_correct_rows(accept, correct)
    return _divide_or_nan(n_rejected, n_correct)


@_register_proportion(
    title="selective accuracy, P(correct | accept)",
    heading="selective accuracy",
    compute_counts=count_correct_accepted_rows,
    smaller_is_better=False,
    needs_rejected=False,
)
def selective_accuracy(accept: ArrayLike, correct: ArrayLike) -> float:
    """Compute the selective accuracy, P(correct | accept).

    Parameters
    ----------
    accept, correct : array of bool of shape (n,)
        Whether each row is accepted, and whether its prediction is correct.

    Returns
    -------
    float
        NaN if no row is accepted.

    Examples
    --------
    >>> selective_accuracy([True, True, False], [True, False, False])
    0.5
    """
    n_correct, n_accepted = count_correct_accepted_rows(accept, correct)
    return _divide_or_nan(n_correct, n_accepted)


@_register_proportion(
    title="type I error, P(reject | correct)",
    printed_title=None,
    compute_counts=count_rejected_correct_rows,
)
def type_1_error(accept: ArrayLike, correct: ArrayLike) -> float:
    """Compute the type I error P(reject | correct), which is the miscoverage.

    The name takes "the prediction is correct" as the null hypothesis.

    Parameters
    ----------
    accept, correct : array of bool of shape (n,)
        Whether each row is accepted, and whether its prediction is correct.

    Returns
    -------
    float
        NaN if no row is correct.

    Examples
    --------
    >>> type_1_error([True, False, False], [True, True, False])
    0.5
    """
    return miscoverage(accept, correct)


@_register_proportion(
    title="type II error, P(accept | incorrect)",
    printed_title="P(accept | incorrect)",
    compute_counts=count_incorrect_accepted_rows,
)
def type_2_error(accept: ArrayLike, correct: ArrayLike) -> float:
    """Compute the type II error, P(accept | incorrect).

    Parameters
    ----------
    accept, correct : array of bool of shape (n,)
        Whether each row is accepted, and whether its prediction is correct.

    Returns
    -------
    float
        NaN if every row is correct.

    Examples
    --------
    >>> type_2_error([True, False, True], [False, False, True])
    0.5
    """
    n_accepted, n_incorrect = count_incorrect_accepted_rows(accept, correct)
    return _divide_or_nan(n_accepted, n_incorrect)


def _read_decisions(accept: ArrayLike, correct: ArrayLike) -> tuple[Flags, Flags]:
    """Validate the columns of decisions and correctness as boolean arrays."""
    is_accepted = read_bool_column(accept, "accept")
    is_correct = read_bool_column(correct, "correct")
    check_same_length(accept=is_accepted, correct=is_correct)
    return is_accepted, is_correct


def _divide_or_nan(numerator: int, denominator: int) -> float:
    """Divide two counts. Return NaN if the denominator is 0."""
    if not denominator:
        return float("nan")
    return numerator / denominator
