"""How well a gate's decisions separate right answers from wrong ones: shares of (``accept``,
``correct``).

``correct`` says whether the uncalibrated model's answer is right, for accepted and rejected rows
alike. A ratio whose denominator is empty (nothing accepted, no correct row, …) is NaN. How well a
score *ranks* the rows, whatever the threshold, is in `metacal.metrics.ranking`.
"""

from __future__ import annotations

from functools import partial

from numpy.typing import ArrayLike

from metacal.formulas import Flags
from metacal.metrics.registry import DECISION, register
from metacal.metrics.toplabel import bool_column, same_length


def _gate(accept: ArrayLike, correct: ArrayLike) -> tuple[Flags, Flags]:
    accepted, right = bool_column(accept, "accept"), bool_column(correct, "correct")
    same_length(accept=accepted, correct=right)
    return accepted, right


def coverage_counts(accept: ArrayLike, correct: ArrayLike | None = None) -> tuple[int, int]:
    """Count accepted rows and rows, right or wrong."""
    column = bool_column(accept, "accept")
    return int(column.sum()), len(column)


def miscoverage_counts(accept: ArrayLike, correct: ArrayLike) -> tuple[int, int]:
    """Count rejected correct rows and correct rows."""
    accepted, right = _gate(accept, correct)
    return int((right & ~accepted).sum()), int(right.sum())


def coverage_accuracy_counts(accept: ArrayLike, correct: ArrayLike) -> tuple[int, int]:
    """Count accepted correct rows and accepted rows."""
    accepted, right = _gate(accept, correct)
    return int((right & accepted).sum()), int(accepted.sum())


def type_2_error_counts(accept: ArrayLike, correct: ArrayLike) -> tuple[int, int]:
    """Count accepted wrong rows and wrong rows."""
    accepted, right = _gate(accept, correct)
    return int((accepted & ~right).sum()), int((~right).sum())


_share = partial(register, input=DECISION, evaluated=True)


@_share(
    title="coverage",
    words="coverage, P(accept)",
    counts=coverage_counts,
    smaller_is_better=False,
    needs_rejected=False,
)
def coverage(accept: ArrayLike) -> float:
    """Share of rows accepted, P(accept).

    Examples
    --------
    >>> coverage([True, True, False, True])
    0.75
    """
    return _ratio(*coverage_counts(accept))


@_share(
    title="miscoverage, P(reject | correct)",
    words="miscoverage, P(reject | right)",
    counts=miscoverage_counts,
)
def miscoverage(accept: ArrayLike, correct: ArrayLike) -> float:
    """Share of the right answers that are rejected, P(reject | correct); NaN without a correct row.

    Examples
    --------
    >>> miscoverage([True, False, False], [True, True, False])
    0.5
    """
    return _ratio(*miscoverage_counts(accept, correct))


@_share(
    title="coverage accuracy, P(correct | accept)",
    words="accuracy of accepted",
    counts=coverage_accuracy_counts,
    smaller_is_better=False,
    needs_rejected=False,
)
def coverage_accuracy(accept: ArrayLike, correct: ArrayLike) -> float:
    """Share of right answers among the accepted, P(correct | accept); NaN when nothing is accepted.

    Examples
    --------
    >>> coverage_accuracy([True, True, False], [True, False, False])
    0.5
    """
    return _ratio(*coverage_accuracy_counts(accept, correct))


@_share(
    title="type I error, P(reject | correct)", words=None, counts=miscoverage_counts
)  # the miscoverage again
def type_1_error(accept: ArrayLike, correct: ArrayLike) -> float:
    """P(reject | correct), the miscoverage rate under its statistical name: "correct" is the null
    hypothesis.

    Examples
    --------
    >>> type_1_error([True, False, False], [True, True, False])
    0.5
    """
    return miscoverage(accept, correct)


@_share(
    title="type II error, P(accept | wrong)", words="P(accept | wrong)", counts=type_2_error_counts
)
def type_2_error(accept: ArrayLike, correct: ArrayLike) -> float:
    """Share of the wrong answers that pass, P(accept | wrong); NaN without a wrong row.

    Examples
    --------
    >>> type_2_error([True, False, True], [False, False, True])
    0.5
    """
    return _ratio(*type_2_error_counts(accept, correct))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
