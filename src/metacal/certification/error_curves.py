r"""Error curves: how errors accumulate along a ranking.

An *error curve* is the binormal model of ROC curves. Correct rows have a latent score z ~ N(0, 1), and
errors have z ~ N(d, s²), except for a share ρ of the errors, which look like correct rows (wrong
labels, for example). With the error rate e, the numbers d, s and ρ determine the share of errors among
the rows with the lowest scores. On the eight sets of logits that come with the package, d is 1.4 to
1.8 and s is 0.6 to 0.8. The prior is chosen around these values, because few rows show how often the
most certain rows err. The curves have log e evenly spaced, d normal, and three values of s and of ρ.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from metacal.certification.ranking import Ranking
from metacal.formulas import Float


class _WeightedValue(NamedTuple):
    """Parameter value of the binormal model, with its prior weight."""

    value: float
    prior_weight: float


# Grid of row shares for the error curves, which is finer for the most certain rows.
ROW_SHARE_GRID = np.concatenate(
    [[0.0], np.geomspace(0.004, 0.05, 8)[:-1], np.linspace(0.05, 1.0, 39)]
)

# Grid of the error rate e of the binormal model.
_ERROR_RATES = np.geomspace(2e-4, 0.9, 72)

# Values of the distance d in the binormal model, with normal prior weights.
_PRIOR_MEAN_OF_DISTANCE = 1.6
_PRIOR_STD_OF_DISTANCE = 0.8
_DISTANCES = tuple(
    _WeightedValue(
        distance,
        math.exp(-0.5 * ((distance - _PRIOR_MEAN_OF_DISTANCE) / _PRIOR_STD_OF_DISTANCE) ** 2),
    )
    for distance in np.arange(0.0, 3.3, 0.2)
)

# Values of the standard deviation s in the binormal model.
_ERROR_STDS = (
    _WeightedValue(0.58, 1 / 6),
    _WeightedValue(0.72, 2 / 3),
    _WeightedValue(0.9, 1 / 6),
)

# Values of the share ρ of errors that look like correct rows.
_HIDDEN_ERROR_SHARES = (
    _WeightedValue(0.0, 0.85),
    _WeightedValue(0.03, 0.1),
    _WeightedValue(0.12, 0.05),
)

# Latent scores at which the distribution functions of the binormal model are evaluated.
_LATENT_SCORES = np.linspace(-7.0, 9.0, 800)

# Smallest probability of an error or of a correct row, so that its logarithm is finite.
_MIN_PROBABILITY = 1e-9

# Error curves with a lower weight, relative to the largest weight, are ignored.
_MIN_RELATIVE_WEIGHT = 0.005

# Maximum distance from the observed error rate, in standard errors.
_MAX_STANDARD_ERRORS = 4.0

# Margin on the log error rate, so that the range of error rates is never empty.
_LOG_RATE_MARGIN = 0.1

# Upper bound on the lowest error rate of the range.
_MAX_LOWEST_RATE = 0.5

# Approximate number of error rates in the range that are evaluated.
_N_USED_RATES = 16


@dataclass(frozen=True, eq=False)
class ErrorCurves:
    """Candidate curves of the errors along a ranking.

    Attributes
    ----------
    cumulative_error_shares : array of float of shape (n_error_rates, n_shapes, n_shares)
        Errors up to each of `ROW_SHARE_GRID`, as a fraction of all rows.

    log_odds_of_error : array of float of shape (n_error_rates, n_shapes, n_shares - 1)
        Log-odds of an error between consecutive shares.

    mean_log_probability_of_correct : array of float of shape (n_error_rates, n_shapes)
        Mean logarithm of the probability that a row is correct.

    prior_weights : array of float of shape (n_shapes,)
        Prior weight of each shape.
    """

    cumulative_error_shares: Float
    log_odds_of_error: Float
    mean_log_probability_of_correct: Float
    prior_weights: Float


@dataclass(frozen=True, eq=False)
class WeightedErrorCurves:
    """Error curves, weighted by how well they explain the observed errors.

    Attributes
    ----------
    cumulative_error_shares : array of float of shape (n_shares, n_curves)
        Errors up to each of `ROW_SHARE_GRID`, as a fraction of all rows.

    weights : array of float of shape (n_curves,)
        Weight of each curve, not normalised.
    """

    cumulative_error_shares: Float
    weights: Float


@cache
def build_binormal_error_curves() -> ErrorCurves:
    """Build the error curves of the binormal model for all parameter values."""
    curves_by_shape = []
    prior_weights = []
    for distance, error_std, hidden_share in itertools.product(
        _DISTANCES, _ERROR_STDS, _HIDDEN_ERROR_SHARES
    ):
        curves_by_error_rate = _compute_binormal_curves(
            distance.value, error_std.value, hidden_share.value
        )
        curves_by_shape.append(curves_by_error_rate)
        prior_weights.append(
            distance.prior_weight * error_std.prior_weight * hidden_share.prior_weight
        )
    # The first axis is the error rate, and the second axis is the curve shape.
    cumulative_error_shares = np.swapaxes(np.array(curves_by_shape), 0, 1)
    return build_error_curves(cumulative_error_shares, np.array(prior_weights))


def _compute_binormal_curves(distance: float, error_std: float, hidden_share: float) -> list[Float]:
    """Compute the binormal error curve at each error rate of a grid.

    Parameters
    ----------
    distance, error_std : float
        Mean and standard deviation of the latent scores of visible errors.

    hidden_share : float
        Share of the errors that have the same scores as correct rows.

    Returns
    -------
    list of array of float of shape (n_shares,)
        For each error rate, the errors up to each of `ROW_SHARE_GRID`, as a fraction of all rows.
    """
    error_rates = _ERROR_RATES[:, None]
    correct_cdf = ndtr(_LATENT_SCORES)
    visible_error_cdf = ndtr((_LATENT_SCORES - distance) / error_std)
    error_cdf = (1.0 - hidden_share) * visible_error_cdf + hidden_share * correct_cdf
    row_shares_by_rate = (1.0 - error_rates) * correct_cdf + error_rates * error_cdf
    error_shares_by_rate = error_rates * error_cdf
    return [
        np.interp(ROW_SHARE_GRID, row_shares, error_shares)
        for row_shares, error_shares in zip(row_shares_by_rate, error_shares_by_rate)
    ]


def build_error_curves(cumulative_error_shares: Float, prior_weights: Float) -> ErrorCurves:
    """Compute the log-probabilities of errors and correct rows along error curves.

    Parameters
    ----------
    cumulative_error_shares : array of float of shape (n_error_rates, n_shapes, n_shares)
        Errors up to each share of the rows, as a fraction of all rows.

    prior_weights : array of float of shape (n_shapes,)
        Prior weight of each shape.
    """
    row_shares_of_steps = np.diff(ROW_SHARE_GRID)
    error_shares_of_steps = np.diff(cumulative_error_shares)
    error_rates_of_steps = np.clip(
        error_shares_of_steps / row_shares_of_steps, _MIN_PROBABILITY, 1.0 - _MIN_PROBABILITY
    )
    log_probability_of_correct = np.log1p(-error_rates_of_steps)
    return ErrorCurves(
        cumulative_error_shares=cumulative_error_shares,
        log_odds_of_error=np.log(error_rates_of_steps) - log_probability_of_correct,
        mean_log_probability_of_correct=log_probability_of_correct @ row_shares_of_steps,
        prior_weights=prior_weights,
    )


def weight_error_curves(ranking: Ranking, error_curves: ErrorCurves) -> WeightedErrorCurves:
    """Weight error curves by the likelihood of the errors of a ranking.

    Curves with a small weight are dropped. A row in a step with error rate p adds log(1 - p) to the
    log-likelihood of a curve, and an error adds log(p / (1 - p)) to that.
    """
    n_rows = ranking.n_rows
    n_errors_up_to_share = np.interp(
        ROW_SHARE_GRID * n_rows,
        np.append(0, ranking.tie_block_end_ranks),
        np.append(0, ranking.cumulative_errors),
    )
    # Measured curves have only one error rate, so the first axis has length 1.
    plausible_rate_slice = slice(None)
    has_several_error_rates = len(error_curves.cumulative_error_shares) > 1
    if has_several_error_rates:
        n_errors = n_errors_up_to_share[-1]
        plausible_rate_slice = _select_plausible_error_rates(n_errors, n_rows)

    n_errors_of_steps = np.diff(n_errors_up_to_share)
    log_likelihoods = (
        error_curves.log_odds_of_error[plausible_rate_slice] @ n_errors_of_steps
        + n_rows * error_curves.mean_log_probability_of_correct[plausible_rate_slice]
    )
    relative_likelihoods = np.exp(log_likelihoods - log_likelihoods.max())
    posterior_weights = relative_likelihoods * error_curves.prior_weights
    is_likely = posterior_weights > _MIN_RELATIVE_WEIGHT * posterior_weights.max()
    plausible_curves = error_curves.cumulative_error_shares[plausible_rate_slice]
    return WeightedErrorCurves(
        cumulative_error_shares=np.ascontiguousarray(plausible_curves[is_likely].T),
        weights=posterior_weights[is_likely],
    )


def _select_plausible_error_rates(n_errors: float, n_rows: int) -> slice:
    """Select the indices of about 16 error rates near the observed error rate."""
    # Half an error is added, so that the observed rate is always positive.
    observed_rate = (n_errors + 0.5) / (n_rows + 1.0)
    relative_standard_error = math.sqrt((1.0 - observed_rate) / (n_rows * observed_rate))
    range_factor = math.exp(_MAX_STANDARD_ERRORS * relative_standard_error + _LOG_RATE_MARGIN)
    lowest_rate = min(observed_rate / range_factor, _MAX_LOWEST_RATE)
    highest_rate = observed_rate * range_factor
    start_index, stop_index = np.searchsorted(_ERROR_RATES, [lowest_rate, highest_rate])
    n_rates_in_range = stop_index - start_index
    index_step = 1 + n_rates_in_range // _N_USED_RATES
    return slice(start_index, stop_index, index_step)
