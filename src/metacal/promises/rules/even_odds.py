"""even_odds: where the odds of two classes are even, by logistic regression on one score."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
