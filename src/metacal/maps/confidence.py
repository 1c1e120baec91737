"""Probability that a prediction is correct, as a monotone curve of any score.

The scale of a score (a judge's grade, a log-probability, a distance) is unknown, but its
order is meaningful. The curve is therefore fitted to ranks: z is the log-odds of the rank
of a score among the calibration scores, and the log-odds of being correct are a monotone
spline of z (see `metacal.maps.fitting.spline`). The result is stored as a piecewise-linear
curve of the score.

The choice was measured on the embedded data sets (maximum probability, the same rounded to
two digits, and margin; 300, 1,000 and 4,000 rows). The log loss is below that of isotonic
regression everywhere (maximum probability: .298 against .320 at 300 rows, .293 against
.296 at 4,000). A spline of the score itself, scaled by its quartiles, gains .003 on margins
and loses .026 on rounded probabilities.

In this module, the *uncertainty* of a row is its score with the sign that makes a higher value
less certain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from metacal.errors import InputError
from metacal.formulas import Codes, Flags, Float
from metacal.maps.fitting.spline import (
    build_spline_design,
    compute_weighted_quantiles,
    fit_spline_slopes,
)

_N_SPLINE_KNOTS = 7
#: Largest number of knots of the stored piecewise-linear curve.
_MAX_CURVE_KNOTS = 129


@dataclass(frozen=True, eq=False)
class ConfidenceCurve:
    """Probability of being correct as a piecewise-linear function of the uncertainty.

    The function never increases with the uncertainty and is constant beyond its outer knots.

    Attributes
    ----------
    knots : array of shape (n_knots,)
        Increasing uncertainties. If a higher score means more certain, the uncertainty is minus the
        score.
    values : array of shape (n_knots,)
        Probability of being correct at each knot, never increasing.

    Examples
    --------
    >>> curve = ConfidenceCurve(np.array([0.0, 1.0]), np.array([0.9, 0.5]))
    >>> curve(np.array([-1.0, 0.5, 7.0, np.nan]))
    array([0.9, 0.7, 0.5, nan])
    """

    knots: Float
    values: Float

    def __post_init__(self) -> None:
        is_one_dimensional = self.knots.ndim == 1 and len(self.knots) > 0
        has_valid_knots = (
            is_one_dimensional
            and self.values.shape == self.knots.shape
            and np.isfinite(self.knots).all()
            and (np.diff(self.knots) > 0.0).all()
        )
        if not has_valid_knots:
            raise InputError(
                "A confidence curve must have strictly increasing knots, and one value for each"
                " knot."
            )
        are_probabilities = ((self.values >= 0.0) & (self.values <= 1.0)).all()
        if not are_probabilities or (np.diff(self.values) > 0.0).any():
            raise InputError(
                "The values of a confidence curve must lie between 0 and 1, and must not increase."
            )

    def __call__(self, uncertainty: Float) -> Float:
        """Return the probability of being correct, NaN if the uncertainty is NaN."""
        return np.asarray(np.interp(uncertainty, self.knots, self.values))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConfidenceCurve):
            return NotImplemented
        return np.array_equal(self.knots, other.knots) and np.array_equal(self.values, other.values)

    __hash__ = None  # type: ignore[assignment]


def fit_confidence(uncertainty: Float, correct: Flags) -> ConfidenceCurve:
    """Fit the probability of being correct as a monotone curve of the uncertainty.

    Let F be the fraction of rows below an uncertainty, with half of the ties counted, and
    z = -log(F / (1 - F)). The fit minimises the log loss of σ(s(z)) over splines s with
    non-negative slopes g_i at quantiles of z, plus ½ Σ (g_{i+1} - g_i)² and a weak penalty
    towards zero. For an uninformative score the result is the overall accuracy.

    No value is closer to 0 or 1 than 1 / (2n + 2), because n rows cannot show more. On the
    embedded data sets this changes the log loss by .0003 at 100 rows.

    Parameters
    ----------
    uncertainty : array of shape (n_rows,)
        Score of each row, higher for less certain rows.

    correct : array of bool of shape (n_rows,)
        Whether the prediction of each row is correct.

    Returns
    -------
    ConfidenceCurve
    """
    n_rows = len(correct)
    distinct_uncertainties, distinct_index, n_ties = np.unique(
        uncertainty, return_inverse=True, return_counts=True
    )
    # The spline is fitted to the log-odds of mean ranks, which are highest for certain rows.
    fraction_below = (np.cumsum(n_ties) - 0.5 * n_ties) / n_rows
    distinct_rank_log_odds = np.log1p(-fraction_below) - np.log(fraction_below)
    rank_log_odds = distinct_rank_log_odds[distinct_index.ravel()]

    spline_knots = compute_weighted_quantiles(rank_log_odds, np.ones(n_rows), _N_SPLINE_KNOTS)
    slopes_and_intercept = fit_spline_slopes(
        rank_log_odds,
        correct=correct.astype(np.float64),
        weights=np.ones(n_rows),
        knots=spline_knots,
        prior_mean=np.zeros(len(spline_knots) + 1),
        method_name="the confidence",
    )
    slopes = slopes_and_intercept[:-1]
    intercept = slopes_and_intercept[-1]

    knot_indices = _choose_knot_indices(n_ties)
    design = build_spline_design(spline_knots, distinct_rank_log_odds[knot_indices])
    confidence = expit(intercept + design @ slopes)
    min_confidence = 0.5 / (n_rows + 1.0)
    confidence = np.clip(confidence, min_confidence, 1.0 - min_confidence)
    return ConfidenceCurve(
        knots=distinct_uncertainties[knot_indices],
        values=np.minimum.accumulate(confidence),
    )


def _choose_knot_indices(n_ties: Codes) -> Codes:
    """Choose which distinct uncertainties become knots of the curve.

    These are all of them, or about evenly spaced quantiles if they are many.

    Parameters
    ----------
    n_ties : array of int of shape (n_distinct,)
        Number of rows with each distinct uncertainty.

    Returns
    -------
    array of int
        Increasing indices of distinct uncertainties.
    """
    n_distinct = len(n_ties)
    if n_distinct <= _MAX_CURVE_KNOTS:
        return np.arange(n_distinct)
    cumulative_rows = np.cumsum(n_ties)
    ranks = np.linspace(1, cumulative_rows[-1], _MAX_CURVE_KNOTS)
    knot_indices = np.searchsorted(cumulative_rows, ranks)
    return np.unique(np.clip(knot_indices, 0, n_distinct - 1))
