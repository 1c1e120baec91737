"""The risk-coverage curve of a ranking score: the error rate among accepted rows at every
threshold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from metacal.formulas import Float
from metacal.metrics.ranking import ranking_columns


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

    threshold: Float
    coverage: Float
    risk: Float
    generalized_risk: Float


def risk_coverage_curve(score: ArrayLike, correct: ArrayLike) -> RiskCoverageCurve:
    """Risk against coverage at every threshold that can be told apart (El-Yaniv & Wiener 2010).

    Examples
    --------
    >>> curve = risk_coverage_curve([0.1, 0.3, 0.3, 0.9], [True, True, False, False])
    >>> curve.coverage, curve.risk
    (array([0.25, 0.75, 1.  ]), array([0.        , 0.33333333, 0.5       ]))
    """
    column, right = ranking_columns(score, correct)
    threshold, codes = np.unique(column, return_inverse=True)
    accepted = np.cumsum(np.bincount(codes.reshape(-1)))
    wrong = np.cumsum(np.bincount(codes.reshape(-1), ~right))
    return RiskCoverageCurve(
        threshold, accepted / len(column), wrong / accepted, wrong / len(column)
    )
