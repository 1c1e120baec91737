"""From a score to the probability of being right: a monotone curve for scores of any scale.

The scale of a judge's mark, a log-probability or a distance says nothing, its order does. So the
curve is fitted in ranks: z is the log-odds of a score's place among the calibration scores, and the
log-odds of being right are a monotone spline of z, the one of `metacal.maps.spline`, by penalised
likelihood. What is kept is the outcome, a broken line. Measured on the embedded sets (maximum
probability, the same rounded to two digits, margin; 300, 1,000 and 4,000 rows) its log loss is
below that of isotonic regression everywhere (maximum probability: .298 against .320 at 300 rows,
.293 against .296 at 4,000). A spline in the score itself, scaled by its quartiles, gains .003 on
margins and loses .026 on rounded probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from metacal.errors import InputError
from metacal.formulas import Codes, Flags, Float
from metacal.maps.fitting.monotone import fit_slopes, quantiles, risen

#: Knots of the spline, and the most corners of the broken line that is kept.
_KNOTS, _MOST_CORNERS = 7, 129


@dataclass(frozen=True, eq=False)
class ConfidenceCurve:
    """P(right | score): a broken line that never rises with doubt, level beyond its ends.

    Attributes
    ----------
    knots : array
        Doubts, rising: the score where higher is less sure, minus the score where higher is surer.
    values : array
        The probability of being right at each, never rising.

    Examples
    --------
    >>> curve = ConfidenceCurve(np.array([0.0, 1.0]), np.array([0.9, 0.5]))
    >>> curve(np.array([-1.0, 0.5, 7.0, np.nan]))
    array([0.9, 0.7, 0.5, nan])
    """

    knots: Float
    values: Float

    def __post_init__(self) -> None:
        flat = (
            self.knots.ndim == 1 and len(self.knots) > 0 and self.values.shape == self.knots.shape
        )
        if not flat or not np.isfinite(self.knots).all() or not (np.diff(self.knots) > 0.0).all():
            raise InputError(
                "a confidence curve needs knots that rise strictly, and a value at each."
            )
        if (
            not ((self.values >= 0.0) & (self.values <= 1.0)).all()
            or (np.diff(self.values) > 0.0).any()
        ):
            raise InputError(
                "the values of a confidence curve must lie between 0 and 1 and never rise."
            )

    def __call__(self, doubt: Float) -> Float:
        """The probability of being right; NaN where there is no score."""
        return np.asarray(np.interp(doubt, self.knots, self.values))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConfidenceCurve):
            return NotImplemented
        return np.array_equal(self.knots, other.knots) and np.array_equal(self.values, other.values)

    __hash__ = None  # type: ignore[assignment]


def fit_confidence(doubt: Float, correct: Flags) -> ConfidenceCurve:
    """Fit the curve to rows that all have a score.

    With F the share of rows below a score (half of its ties counted), z = -log(F / (1 - F)) and s a
    spline with slopes g_1, …, g_m >= 0 at quantiles of z, what is minimised is the log loss of
    σ(s(z)) plus ½·Σ (g_{i+1} - g_i)² and a weak pull to zero: scores that say nothing give the
    overall accuracy. No answer is surer than n rows can show: closer to 0 or 1 than 1/(2n + 2),
    which on the embedded sets changes the log loss by .0003 at 100 rows.
    """
    distinct, place, count = np.unique(doubt, return_inverse=True, return_counts=True)
    below = (np.cumsum(count) - 0.5 * count) / len(doubt)
    odds = np.log1p(-below) - np.log(below)  # higher: surer
    z = odds[place.ravel()]
    knots = quantiles(z, np.ones(len(z)), _KNOTS)
    level, n = np.zeros(len(knots) + 1), len(correct)
    theta = fit_slopes(z, correct.astype(np.float64), np.ones(n), knots, level, "the confidence")
    corners = _corners(count)
    values = expit(theta[-1] + risen(knots, odds[corners]) @ theta[:-1])
    least = 0.5 / (n + 1.0)
    return ConfidenceCurve(
        distinct[corners], np.minimum.accumulate(np.clip(values, least, 1.0 - least))
    )


def _corners(count: Codes) -> Codes:
    """Which distinct scores are kept: all of a few, otherwise about as many rows between one and
    the next.
    """
    if len(count) <= _MOST_CORNERS:
        return np.arange(len(count))
    ends = np.cumsum(count)
    at = np.searchsorted(ends, np.linspace(1, ends[-1], _MOST_CORNERS))
    return np.unique(np.clip(at, 0, len(count) - 1))
