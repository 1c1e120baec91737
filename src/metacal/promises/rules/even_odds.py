"""Where two classes are told apart: even odds by logistic regression on one score, and the decision beside them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from metacal.promises.sample import Ranking

#: Standard deviation of slope and intercept, in units in which the scores have one of 1.
_RIDGE = 3.0
_STEPS = 50


def even_odds(s: NDArray[np.float64], positive: NDArray[np.bool_]) -> float:
    """The score at which the odds are even, by logistic regression with a ridge; within the scores, or just beyond.

    >>> rng = np.random.default_rng(0)
    >>> s = rng.normal(size=5000)
    >>> round(even_odds(s, rng.random(5000) < 1 / (1 + np.exp(1 - 2 * s))), 1)
    0.5
    """
    low, high = float(s[np.isfinite(s)].min(initial=0.0)), float(s[np.isfinite(s)].max(initial=0.0))
    finite = np.clip(s, low - 1.0, high + 1.0)
    centre, scale = float(finite.mean()), float(finite.std()) or 1.0
    design = np.column_stack([np.ones(len(s)), (finite - centre) / scale])
    theta = np.array([0.0, 1.0])
    for _ in range(_STEPS):
        p = 1.0 / (1.0 + np.exp(-np.clip(design @ theta, -30.0, 30.0)))
        gradient = design.T @ (p - positive) + theta / _RIDGE**2
        hessian = (design * (p * (1.0 - p))[:, None]).T @ design + np.eye(2) / _RIDGE**2
        step = np.linalg.solve(hessian, gradient)
        theta = theta - step / max(1.0, float(np.abs(step).max()))
    slope = max(float(theta[1]), 1e-6)
    return float(np.clip(centre - scale * theta[0] / slope, low - 1.0, high + 1.0))


def decision_point(ordered: NDArray[np.float64], low: int, high: int, even: float) -> float:
    """Where calling changes: at even odds, or as near as the rows called from either end leave it.

    >>> decision_point(np.arange(10.0), 4, 2, 5.2), decision_point(np.arange(10.0), 7, 2, 5.2)
    (5.2, 6.5)
    """
    finite = ordered[np.isfinite(ordered)]
    ends = float(finite.min(initial=0.0)) - 1.0, float(finite.max(initial=0.0)) + 1.0
    around = np.concatenate([ends[:1], np.clip(ordered, *ends), ends[1:]])
    between = 0.5 * around[:-1] + 0.5 * around[1:]
    lowest, highest = between[low] if low else -np.inf, between[len(ordered) - high] if high else np.inf
    return float(np.clip(even, lowest, highest))


def rows_below(ranking: Ranking, score: float) -> int:
    """How many rows have a score below this one: the end of a block of ties."""
    before = int(np.searchsorted(ranking.scores, score))
    return int(ranking.ranks[before - 1]) if before else 0
