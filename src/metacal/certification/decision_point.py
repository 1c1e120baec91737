"""Decision point of two classes: the log-odds at which the predicted class changes."""

from __future__ import annotations

import numpy as np

from metacal.certification.procedures import SubgroupResult
from metacal.certification.rows import CalibrationRows
from metacal.formulas import Float


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
    n_accepted_as_first = result.count_accepted(0)
    n_accepted_as_second = result.count_accepted(1)
    separators = _compute_separators(rows.scores)
    lowest_decision_point = -np.inf
    if n_accepted_as_first > 0:
        lowest_decision_point = separators[n_accepted_as_first]
    highest_decision_point = np.inf
    if n_accepted_as_second > 0:
        highest_decision_point = separators[len(rows) - n_accepted_as_second]
    return float(np.clip(rows.even_odds_score, lowest_decision_point, highest_decision_point))


def _compute_separators(scores: Float) -> Float:
    """Compute the points between consecutive scores.

    The entry with index k separates the k lowest scores from the other scores.
    """
    sorted_scores = np.sort(scores)
    finite_scores = sorted_scores[np.isfinite(sorted_scores)]
    lower_end = float(finite_scores.min(initial=0.0)) - 1.0
    upper_end = float(finite_scores.max(initial=0.0)) + 1.0
    clipped_scores = np.clip(sorted_scores, lower_end, upper_end)
    padded_scores = np.concatenate([[lower_end], clipped_scores, [upper_end]])
    return 0.5 * padded_scores[:-1] + 0.5 * padded_scores[1:]
