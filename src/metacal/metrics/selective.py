"""How well a gate separates right answers from wrong ones.

Two kinds of input: a decision (``accept``, ``correct``: booleans) or a ranking (``score``: higher = less sure). Here
``correct`` says whether the uncalibrated model's answer is right, for accepted and rejected rows alike. A ratio whose
denominator is empty (nothing accepted, no correct row, …) is NaN.

Rows of equal score cannot be told apart by any threshold: only ends of blocks of ties are operating points, and areas
are the expectation under a random order of the tied rows, in closed form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metacal.errors import InputError
from metacal.metrics.binning import Statistic, Weights, distinct_codes, estimate, per_resample, sums_per_code
from metacal.metrics.toplabel import FloatColumn, number_column, same_length

BoolColumn = NDArray[np.bool_]


def coverage(accept: ArrayLike) -> float:
    """Share of rows accepted, P(accept).

    Examples
    --------
    >>> coverage([True, True, False, True])
    0.75
    """
    return _ratio(*coverage_counts(accept))


def miscoverage(accept: ArrayLike, correct: ArrayLike) -> float:
    """Share of the right answers that are turned away, P(reject | correct); NaN without a correct row.

    Examples
    --------
    >>> miscoverage([True, False, False], [True, True, False])
    0.5
    """
    return _ratio(*miscoverage_counts(accept, correct))


def coverage_accuracy(accept: ArrayLike, correct: ArrayLike) -> float:
    """Share of right answers among the accepted, P(correct | accept); NaN when nothing is accepted.

    Examples
    --------
    >>> coverage_accuracy([True, True, False], [True, False, False])
    0.5
    """
    return _ratio(*coverage_accuracy_counts(accept, correct))


def type_1_error(accept: ArrayLike, correct: ArrayLike) -> float:
    """P(reject | correct), the miscoverage rate under its statistical name: "correct" is the null hypothesis.

    Examples
    --------
    >>> type_1_error([True, False, False], [True, True, False])
    0.5
    """
    return miscoverage(accept, correct)


def type_2_error(accept: ArrayLike, correct: ArrayLike) -> float:
    """Share of the wrong answers that pass, P(accept | wrong); NaN without a wrong row.

    Examples
    --------
    >>> type_2_error([True, False, True], [False, False, True])
    0.5
    """
    return _ratio(*type_2_error_counts(accept, correct))


def coverage_counts(accept: ArrayLike) -> tuple[int, int]:
    """Count accepted rows and rows."""
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


@dataclass(frozen=True, eq=False)
class RiskCoverageCurve:
    """One operating point per distinct score, from the surest to the least sure.

    Attributes
    ----------
    threshold : float64 array
        Accept iff score <= threshold.
    coverage : float64 array
        Share of rows accepted.
    risk : float64 array
        Share of wrong answers among the accepted; accuracy is ``1 - risk``.
    generalized_risk : float64 array
        Share of all rows that are accepted and wrong (Traub et al. 2024).
    """

    threshold: FloatColumn
    coverage: FloatColumn
    risk: FloatColumn
    generalized_risk: FloatColumn


def risk_coverage_curve(score: ArrayLike, correct: ArrayLike) -> RiskCoverageCurve:
    """Risk against coverage at every threshold that can be told apart (El-Yaniv & Wiener 2010).

    Examples
    --------
    >>> curve = risk_coverage_curve([0.1, 0.3, 0.3, 0.9], [True, True, False, False])
    >>> curve.coverage, curve.risk
    (array([0.25, 0.75, 1.  ]), array([0.        , 0.33333333, 0.5       ]))
    """
    column, right = _ranking(score, correct)
    threshold, codes = np.unique(column, return_inverse=True)
    accepted = np.cumsum(np.bincount(codes.reshape(-1)))
    wrong = np.cumsum(np.bincount(codes.reshape(-1), ~right))
    return RiskCoverageCurve(threshold, accepted / len(column), wrong / accepted, wrong / len(column))


def aurc(score: ArrayLike, correct: ArrayLike) -> float:
    """Area under the risk-coverage curve, ``(1/n) Σ_m risk of the m surest rows`` (Geifman, Uziel & El-Yaniv 2019).

    Examples
    --------
    >>> round(aurc([0.1, 0.2, 0.3], [True, True, False]), 6)
    0.111111
    """
    return _area(aurc_statistic, score, correct)


def e_aurc(score: ArrayLike, correct: ArrayLike) -> float:
    """Excess AURC: the AURC less that of an oracle that ranks every wrong answer last (Geifman et al. 2019).

    Examples
    --------
    >>> e_aurc([0.1, 0.2, 0.3], [True, True, False])
    0.0
    """
    return _area(e_aurc_statistic, score, correct)


def augrc(score: ArrayLike, correct: ArrayLike) -> float:
    """Area under the generalized-risk-coverage curve, by the trapezoid rule from (0, 0) (Traub et al. 2024).

    Exactly ``(1 - AUROC) a (1 - a) + (1 - a)²/2`` with a the accuracy of the model.

    Examples
    --------
    >>> round(augrc([0.1, 0.2, 0.3], [True, True, False]), 6)
    0.055556
    """
    return _area(augrc_statistic, score, correct)


def auroc(score: ArrayLike, correct: ArrayLike) -> float:
    """P(score of a wrong row > score of a right row), ties one half; NaN unless both kinds occur.

    Examples
    --------
    >>> auroc([0.1, 0.2, 0.2, 0.3], [True, True, False, False])
    0.875
    """
    return _area(auroc_statistic, score, correct)


def aurc_statistic(score: ArrayLike, correct: ArrayLike) -> Statistic:
    """AURC as a function of row weights."""
    return _from_blocks(score, correct, _aurc)


def e_aurc_statistic(score: ArrayLike, correct: ArrayLike) -> Statistic:
    """Excess AURC as a function of row weights."""
    return _from_blocks(score, correct, _e_aurc)


def augrc_statistic(score: ArrayLike, correct: ArrayLike) -> Statistic:
    """AUGRC as a function of row weights."""
    return _from_blocks(score, correct, _augrc)


def auroc_statistic(score: ArrayLike, correct: ArrayLike) -> Statistic:
    """AUROC as a function of row weights."""
    return _from_blocks(score, correct, _auroc)


def bool_column(values: ArrayLike, name: str) -> BoolColumn:
    """Return `values` as a boolean column; numbers must be 0 or 1.

    Examples
    --------
    >>> bool_column([1, 0], "accept")
    array([ True, False])
    >>> bool_column([0.5], "correct")
    Traceback (most recent call last):
    metacal.errors.InputError: correct must be True or False in each row; row 0 holds 0.5. ...
    """
    column = number_column(values, name)
    other = (column != 0.0) & (column != 1.0)
    if other.any():
        row = int(other.argmax())
        raise InputError(
            f"{name} must be True or False in each row; row {row} holds {column[row]}. "
            "For correctness that is logits.argmax(axis=1) == labels."
        )
    return np.asarray(column == 1.0, dtype=np.bool_)


def _gate(accept: ArrayLike, correct: ArrayLike) -> tuple[BoolColumn, BoolColumn]:
    accepted, right = bool_column(accept, "accept"), bool_column(correct, "correct")
    same_length(accept=accepted, correct=right)
    return accepted, right


def _ranking(score: ArrayLike, correct: ArrayLike) -> tuple[FloatColumn, BoolColumn]:
    column, right = number_column(score, "score"), bool_column(correct, "correct")
    same_length(score=column, correct=right)
    return column, right


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


def _area(statistic: Callable[[ArrayLike, ArrayLike], Statistic], score: ArrayLike, correct: ArrayLike) -> float:
    return estimate(statistic(score, correct), len(np.asarray(score)))


def _from_blocks(
    score: ArrayLike, correct: ArrayLike, finish: Callable[[FloatColumn, FloatColumn], float]
) -> Statistic:
    """Make a statistic of the rows and wrong rows in each block of equal scores, surest block first."""
    column, right = _ranking(score, correct)
    codes, wrong = distinct_codes(column), (~right).astype(np.float64)
    if codes.max(initial=0) + 1 == len(codes):  # no ties: each row is a block of its own
        order = np.argsort(codes)
        in_order = wrong[order]

        def sorted_one(weights: Weights) -> float:
            rows = weights[order].astype(np.float64)
            return finish(rows, rows * in_order)

        return per_resample(sorted_one)

    def one(weights: Weights) -> float:
        return finish(sums_per_code(codes, weights), sums_per_code(codes, weights * wrong))

    return per_resample(one)


def _aurc(rows: FloatColumn, wrong: FloatColumn) -> float:
    """Mean over ranks m of E[E_m]/m, block by block.

    In a block after rank a with error rate r, E[E_m] = E_a + (m - a) r, and Σ 1/m over it is a difference of harmonic
    numbers.
    """
    stop = np.cumsum(rows)
    start = stop - rows
    before = np.cumsum(wrong) - wrong
    rate = wrong / np.maximum(rows, 1.0)
    harmonic = _harmonic_numbers(int(stop[-1]))
    spread = harmonic[stop.astype(np.intp)] - harmonic[start.astype(np.intp)]
    return float(((before - start * rate) * spread + wrong).sum() / stop[-1])


@lru_cache(maxsize=2)
def _harmonic_numbers(n: int) -> FloatColumn:
    """0, 1, 1 + 1/2, … up to the n-th; every resample of a sample has as many rows."""
    found: FloatColumn = np.concatenate(([0.0], np.cumsum(1.0 / np.arange(1, n + 1))))
    found.setflags(write=False)
    return found


def _e_aurc(rows: FloatColumn, wrong: FloatColumn) -> float:
    errors = wrong.sum()
    oracle = _aurc(np.array([rows.sum() - errors, errors]), np.array([0.0, errors]))
    return max(0.0, _aurc(rows, wrong) - oracle)


def _augrc(rows: FloatColumn, wrong: FloatColumn) -> float:
    before = np.cumsum(wrong) - wrong
    return float((rows * (before + 0.5 * wrong)).sum() / rows.sum() ** 2)


def _auroc(rows: FloatColumn, wrong: FloatColumn) -> float:
    right = rows - wrong
    pairs = right.sum() * wrong.sum()
    if pairs == 0:
        return float("nan")
    surer = np.cumsum(right) - right
    return float((wrong * (surer + 0.5 * right)).sum() / pairs)
