"""Risk-coverage curve: the error rate of accepted rows at every threshold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from metacal.formulas import Float
from metacal.metrics.ranked_errors import read_ranking_columns


@dataclass(frozen=True, eq=False)
class RiskCoverageCurve:
    """One operating point per distinct score, in increasing order of the score.

    Attributes
    ----------
    threshold : array of float64
        A row is accepted if its score is at most the threshold.

    coverage : array of float64
        Fraction of rows that are accepted.

    risk : array of float64
        Fraction of incorrect rows among the accepted rows. Selective accuracy is ``1 - risk``.

    generalized_risk : array of float64
        Fraction of all rows that are accepted and incorrect (Traub et al. 2024).
    """

    threshold: Float
    coverage: Float
    risk: Float
    generalized_risk: Float


def risk_coverage_curve(score: ArrayLike, correct: ArrayLike) -> RiskCoverageCurve:
    """Compute risk against coverage at every distinct threshold.

    A threshold accepts the rows whose score does not exceed it.

    Parameters
    ----------
    score : array of shape (n,)
        Ranking score. Higher scores are less confident.

    correct : array of bool of shape (n,)
        Whether each prediction is correct.

    Returns
    -------
    RiskCoverageCurve

    References
    ----------
    El-Yaniv & Wiener 2010.

    Examples
    --------
    >>> curve = risk_coverage_curve([0.1, 0.3, 0.3, 0.9], [True, True, False, False])
    >>> curve.coverage, curve.risk
    (array([0.25, 0.75, 1.  ]), array([0.        , 0.33333333, 0.5       ]))
    """
    scores, is_correct = read_ranking_columns(score, correct)
    n_rows = len(scores)
    distinct_scores, score_rank_of_row = np.unique(scores, return_inverse=True)
    score_rank_of_row = score_rank_of_row.reshape(-1)
    n_rows_at_score = np.bincount(score_rank_of_row)
    n_errors_at_score = np.bincount(score_rank_of_row, ~is_correct)
    # Higher scores are less confident, so a threshold accepts the rows with a score up to it.
    n_accepted = np.cumsum(n_rows_at_score)
    n_accepted_errors = np.cumsum(n_errors_at_score)
    return RiskCoverageCurve(
        threshold=distinct_scores,
        coverage=n_accepted / n_rows,
        risk=n_accepted_errors / n_accepted,
        generalized_risk=n_accepted_errors / n_rows,
    )
