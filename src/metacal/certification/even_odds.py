"""Score at which both classes are equally likely, by logistic regression."""

from __future__ import annotations

import numpy as np

from metacal.formulas import Flags, Float

# Prior standard deviation of the intercept and the slope for standardized scores.
_PRIOR_STD = 3.0

# Number of Newton steps of the logistic regression.
_N_NEWTON_STEPS = 50

# Maximum absolute value of the log-odds, to avoid an overflow of the exponential.
_MAX_LOG_ODDS = 30.0

# Lower bound on the slope, to avoid a division by zero.
_MIN_SLOPE = 1e-6


def find_even_odds_score(scores: Float, is_positive: Flags) -> float:
    """Find the score at which both classes are equally likely.

    The odds are estimated by logistic regression with a ridge penalty.

    Parameters
    ----------
    scores : array of float of shape (n_rows,)
        Scores, which may be infinite.

    is_positive : array of bool of shape (n_rows,)
        Whether each row belongs to the positive class.

    Returns
    -------
    float
        A score at most 1 outside of the range of the finite scores.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.normal(size=5000)
    >>> is_positive = rng.random(5000) < 1 / (1 + np.exp(1 - 2 * scores))
    >>> round(find_even_odds_score(scores, is_positive), 1)
    0.5
    """
    if len(scores) == 0:
        return 0.0
    finite_scores = scores[np.isfinite(scores)]
    lower_limit = float(finite_scores.min(initial=0.0)) - 1.0
    upper_limit = float(finite_scores.max(initial=0.0)) + 1.0
    clipped_scores = np.clip(scores, lower_limit, upper_limit)
    mean = float(clipped_scores.mean())
    std = float(clipped_scores.std())
    if std == 0.0:
        std = 1.0
    intercept, fitted_slope = _fit_logistic_regression((clipped_scores - mean) / std, is_positive)
    slope = max(float(fitted_slope), _MIN_SLOPE)
    # Even odds solve intercept + slope * (score - mean) / std = 0.
    even_odds_score = mean - std * intercept / slope
    return float(np.clip(even_odds_score, lower_limit, upper_limit))


def _fit_logistic_regression(feature: Float, is_positive: Flags) -> Float:
    """Return the intercept and slope of a ridge-penalised logistic regression."""
    design_matrix = np.column_stack([np.ones(len(feature)), feature])
    coefficients = np.array([0.0, 1.0])
    for _ in range(_N_NEWTON_STEPS):
        log_odds = np.clip(design_matrix @ coefficients, -_MAX_LOG_ODDS, _MAX_LOG_ODDS)
        probabilities = 1.0 / (1.0 + np.exp(-log_odds))
        gradient = design_matrix.T @ (probabilities - is_positive) + coefficients / _PRIOR_STD**2
        variances = probabilities * (1.0 - probabilities)
        hessian = (design_matrix * variances[:, None]).T @ design_matrix + np.eye(2) / _PRIOR_STD**2
        newton_step = np.linalg.solve(hessian, gradient)
        # Newton steps are limited to a length of 1, so that the method does not diverge.
        largest_step = float(np.abs(newton_step).max())
        coefficients = coefficients - newton_step / max(1.0, largest_step)
    return coefficients
