"""Confidence bands over thresholds, from counts or from scores.

A *band* is a curve over thresholds with a lower and an upper bound that hold at every threshold at
once. `metacal.statistics.bands` has the functions that take the scores of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from metacal.formulas import Float
from metacal.statistics.accepted_counts import AcceptedCounts
from metacal.statistics.distribution_band import DistributionBand
from metacal.statistics.selective_accuracy import bound_selective_accuracy


@dataclass(frozen=True, eq=False)
class Band:
    """Estimated curve over thresholds, with bounds that hold simultaneously.

    Attributes
    ----------
    threshold : array
        Thresholds. A row is accepted if its score is at most the threshold.
    lower, upper : arrays
        Bounds on the true value at each threshold.
    estimate : array
        Value in the sample at each threshold, NaN if it is undefined.
    delta : float
        Probability that the true curve leaves the band anywhere.
    """

    threshold: Float
    lower: Float
    estimate: Float
    upper: Float
    delta: float


def resolve_thresholds(thresholds: ArrayLike | None, *, default_scores: Float) -> Float:
    """Return the thresholds as an array, or all distinct scores by default."""
    if thresholds is None:
        return np.unique(default_scores)
    return np.asarray(thresholds, dtype=np.float64)


def compute_band_on_share_above(
    distribution: DistributionBand,
    thresholds: ArrayLike | None,
    delta: float,
    *,
    lower_delta: float,
    upper_delta: float,
) -> Band:
    """Compute a confidence band on P(X > s) for all thresholds s.

    Parameters
    ----------
    distribution : DistributionBand
        Draws of X.
    thresholds : array-like or None
        Values of s. None for all draws.
    delta : float
        Value of `delta` in the result.
    lower_delta, upper_delta : float
        Probability with which the lower and the upper side may fail.

    Returns
    -------
    Band
    """
    band_thresholds = resolve_thresholds(thresholds, default_scores=distribution.sorted_draws)
    estimate = np.full(len(band_thresholds), np.nan)
    if distribution.n_draws > 0:
        n_draws_above = distribution.n_draws - distribution.count_draws_at_most(band_thresholds)
        estimate = n_draws_above / distribution.n_draws
    return Band(
        threshold=band_thresholds,
        lower=1.0 - distribution.upper_bound_on_cdf(band_thresholds, lower_delta),
        estimate=estimate,
        upper=1.0 - distribution.lower_bound_on_cdf(band_thresholds, upper_delta),
        delta=delta,
    )


def compute_band_on_accuracy(
    counts: AcceptedCounts,
    thresholds: Float,
    delta: float,
    *,
    lower_delta: float,
    upper_delta: float,
) -> Band:
    """Compute a confidence band on the selective accuracy from counts.

    The upper side is a lower bound on the share of incorrect rows.

    Parameters
    ----------
    counts : AcceptedCounts
        Rows that each threshold accepts.
    thresholds : array
        Thresholds of the band.
    delta : float
        Value of `delta` in the result.
    lower_delta, upper_delta : float
        Probability with which the lower and the upper side may fail.

    Returns
    -------
    Band
    """
    n_correct, n_incorrect, n_rows = counts
    n_accepted = n_correct + n_incorrect
    estimate = np.where(n_accepted > 0, n_correct / np.maximum(n_accepted, 1), np.nan)
    min_accuracy = bound_selective_accuracy(
        n_correct=n_correct, n_incorrect=n_incorrect, n_rows=n_rows, delta=lower_delta
    )
    # A lower bound on the error rate follows if correct and incorrect rows are swapped.
    min_error_rate = bound_selective_accuracy(
        n_correct=n_incorrect, n_incorrect=n_correct, n_rows=n_rows, delta=upper_delta
    )
    return Band(
        threshold=thresholds,
        lower=min_accuracy,
        estimate=estimate,
        upper=1.0 - min_error_rate,
        delta=delta,
    )
