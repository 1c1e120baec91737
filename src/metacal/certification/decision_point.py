"""Decision point: the log-odds at which the predicted class changes."""

from __future__ import annotations

import numpy as np

from metacal.certification.procedures import SubgroupResult
from metacal.certification.rows import CalibrationRows
from metacal.formulas import Float

# Codes of the two classes, which are also the indices of their thresholds.
_FIRST_CLASS_CODE = 0
_SECOND_CLASS_CODE = 1


def find_decision_point(rows: CalibrationRows, result: SubgroupResult) -> float:
    """Find the log-odds at which the predicted class changes.

    It is the point of even odds, or the nearest point at which every row that is accepted as a class
    is also predicted as this class.

    Parameters
    ----------
    rows : CalibrationRows
        Rows of two classes.

    result : SubgroupResult
        Number of rows that are accepted as each class.

    Returns
    -------
    float

    Examples
    --------
    >>> from metacal.certification.rules.rule import ThresholdResult
    >>> rows = CalibrationRows(np.arange(10.0), np.arange(10) > 4)
    >>> round(find_decision_point(rows, SubgroupResult((None, None))), 3)
    4.5
    >>> accepted = SubgroupResult((ThresholdResult(n_accepted=7), ThresholdResult(n_accepted=2)))
    >>> find_decision_point(rows, accepted)
    6.5
    """
    n_accepted_as_first = result.count_accepted(_FIRST_CLASS_CODE)
    n_accepted_as_second = result.count_accepted(_SECOND_CLASS_CODE)
    separating_scores = _compute_separating_scores(rows.scores)
    # The lowest scores are accepted as the first class, so they must lie below the point.
    lowest_decision_point = -np.inf
    if n_accepted_as_first > 0:
        n_lowest_scores = n_accepted_as_first
        lowest_decision_point = separating_scores[n_lowest_scores]
    # The highest scores are accepted as the second class, so they must lie above the point.
    highest_decision_point = np.inf
    if n_accepted_as_second > 0:
        n_rows_below_point = len(rows) - n_accepted_as_second
        highest_decision_point = separating_scores[n_rows_below_point]
    return float(np.clip(rows.even_odds_score, lowest_decision_point, highest_decision_point))


def _compute_separating_scores(scores: Float) -> Float:
    """Compute, for each k, a score that separates the k lowest scores from the rest.

    The entry with index k is the midpoint between the k-th and the next higher score. The first entry
    lies below all finite scores, and the last one above them.
    """
    sorted_scores = np.sort(scores)
    finite_scores = sorted_scores[np.isfinite(sorted_scores)]
    lower_end = float(finite_scores.min(initial=0.0)) - 1.0
    upper_end = float(finite_scores.max(initial=0.0)) + 1.0
    clipped_scores = np.clip(sorted_scores, lower_end, upper_end)
    padded_scores = np.concatenate([[lower_end], clipped_scores, [upper_end]])
    lower_neighbours = padded_scores[:-1]
    upper_neighbours = padded_scores[1:]
    return 0.5 * lower_neighbours + 0.5 * upper_neighbours
