"""Numbers of rows that thresholds accept, and the candidates for the best threshold."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from metacal.errors import ShapeError
from metacal.formulas import Codes, Flags, Float


def find_candidate_thresholds(scores: Float, correct: Flags) -> Float:
    """Find the scores that are candidates for the best threshold.

    Accepting further correct rows without an incorrect one improves both bounds. So the candidates
    are the largest score, and each score whose next larger score has an incorrect row.
    """
    distinct_scores, score_codes = np.unique(scores, return_inverse=True)
    score_has_incorrect_row = np.bincount(score_codes.reshape(-1), ~correct) > 0
    next_score_has_incorrect_row = score_has_incorrect_row[1:]
    is_candidate = np.append(next_score_has_incorrect_row, True)
    return np.asarray(distinct_scores[is_candidate])


class AcceptedCounts(NamedTuple):
    """Numbers of rows that each threshold accepts.

    Attributes
    ----------
    n_correct, n_incorrect : arrays of int
        Accepted rows of each kind, for each threshold.
    n_rows : int
        Number of rows, accepted or not.
    """

    n_correct: Codes
    n_incorrect: Codes
    n_rows: int


def count_accepted(scores: ArrayLike, correct: ArrayLike, thresholds: ArrayLike) -> AcceptedCounts:
    """Count the correct and the incorrect rows that each threshold accepts."""
    score_array = check_scores(scores)
    is_correct = check_correct(correct)
    if score_array.shape != is_correct.shape:
        raise ShapeError(
            "Expected one score and one flag for each row, but got arrays of shape"
            f" {score_array.shape} and {is_correct.shape}."
        )
    correct_scores = np.sort(score_array[is_correct])
    incorrect_scores = np.sort(score_array[~is_correct])
    return AcceptedCounts(
        n_correct=np.searchsorted(correct_scores, thresholds, side="right"),
        n_incorrect=np.searchsorted(incorrect_scores, thresholds, side="right"),
        n_rows=len(score_array),
    )


def check_scores(scores: ArrayLike) -> Float:
    """Convert scores to a one-dimensional array without NaN, or raise InputError."""
    score_array = np.asarray(scores, dtype=np.float64)
    if score_array.ndim != 1 or np.isnan(score_array).any():
        raise ShapeError(
            "scores must be a one-dimensional array without NaN, but got an array of shape"
            f" {score_array.shape}."
        )
    return score_array


def check_correct(correct: ArrayLike) -> Flags:
    """Convert correctness to a one-dimensional boolean array, or raise InputError."""
    is_correct = np.asarray(correct)
    if is_correct.ndim != 1 or is_correct.dtype != bool:
        raise ShapeError(
            f"correct must have one boolean per row, but got an array of type {is_correct.dtype}"
            f" and shape {is_correct.shape}."
        )
    return is_correct
