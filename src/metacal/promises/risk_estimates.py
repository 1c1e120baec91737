"""Estimates of error probabilities, which order the tests of a cascade.

The quality of these estimates decides how far a sequence of tests gets, never whether the promise
holds.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import betainc, expit

from metacal.formulas import Flags, Float

# Observed errors and fitted probabilities have equal weights at this number of pilot rows.
_EQUAL_WEIGHT_ROWS = 500

# Ridge penalties keep the slopes of the logistic regression finite if errors are rare.
_INTERCEPT_PENALTY = 1e-6
_SLOPE_PENALTY = 0.1

# Limits of Newton's method: the number of steps, their size, and the step size at which it stops.
_MAX_NEWTON_STEPS = 30
_MAX_STEP_SIZE = 2.0
_STEP_TOLERANCE = 1e-8

# Smallest first parameter of `betainc`, which must be positive.
_MIN_BETA_PARAMETER = 1e-9


def compute_expected_p_value(n_answered: Float, n_errors: Float, min_accuracy: float) -> Float:
    """Compute P(Bin(n_answered, 1 - min_accuracy) <= n_errors) for fractional counts.

    The p-value is 1 where no row is answered.
    """
    n_correct = np.maximum(n_answered - n_errors, _MIN_BETA_PARAMETER)
    binomial_cdf = betainc(n_correct, n_errors + 1.0, min_accuracy)
    return np.where(n_answered > 0, binomial_cdf, 1.0)


def estimate_error_probabilities(scores: Float, correct: Flags) -> Float:
    """Estimate the error probability of each row, and average it with its outcome."""
    n_rows = len(scores)
    weight_of_observed_error = n_rows / (n_rows + _EQUAL_WEIGHT_ROWS)
    fitted_probabilities = fit_error_probabilities(scores, correct)
    weighted_observed_errors = weight_of_observed_error * ~correct
    return weighted_observed_errors + (1.0 - weight_of_observed_error) * fitted_probabilities


def fit_error_probabilities(scores: Float, correct: Flags) -> Float:
    """Fit the error probability of each row by logistic regression on score ranks.

    The features are the logits of the ranks. The regression has ridge penalties and is fitted by
    Newton's method.

    Parameters
    ----------
    scores : array of shape (n_rows,) or (n_rows, n_scores)
        One or several scores of each row.
    correct : array of bool of shape (n_rows,)
        Whether each prediction is correct.

    Returns
    -------
    array of shape (n_rows,)
        Fitted error probabilities.
    """
    n_rows = len(scores)
    score_columns = scores.reshape(n_rows, -1)
    ranks = np.argsort(np.argsort(score_columns, axis=0, kind="stable"), axis=0, kind="stable")
    rank_shares = (ranks + 0.5) / n_rows
    rank_logits = np.log(rank_shares / (1.0 - rank_shares))
    features = np.column_stack([np.ones(n_rows), rank_logits])
    is_error = (~correct).astype(np.float64)

    coefficients = np.zeros(features.shape[1])
    smoothed_error_odds = (is_error.sum() + 1.0) / (correct.sum() + 1.0)
    coefficients[0] = math.log(smoothed_error_odds)
    slope_penalties = [_SLOPE_PENALTY] * score_columns.shape[1]
    penalty_matrix = np.diag([_INTERCEPT_PENALTY, *slope_penalties])
    for _ in range(_MAX_NEWTON_STEPS):
        error_probabilities = expit(features @ coefficients)
        gradient = features.T @ (is_error - error_probabilities) - penalty_matrix @ coefficients
        variances = error_probabilities * (1.0 - error_probabilities)
        hessian = (features * variances[:, None]).T @ features + penalty_matrix
        newton_step = np.linalg.solve(hessian, gradient)
        step = np.clip(newton_step, -_MAX_STEP_SIZE, _MAX_STEP_SIZE)
        coefficients = coefficients + step
        if np.abs(step).max() < _STEP_TOLERANCE:
            break
    return np.asarray(expit(features @ coefficients))
