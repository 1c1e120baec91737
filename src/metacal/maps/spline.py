"""Spline calibration: the confidence through a monotone spline of its log-odds, fitted by likelihood.

The idea of Gupta, Rahimi, Ajanthan, Mensink, Sminchisescu & Hartley, "Calibration of Neural Networks using Splines",
ICLR 2021: recalibrate the top label by a smooth curve, without bins. They differentiate a spline through the cumulative
accuracy, which need not be monotone; here the curve is monotone by construction and found by penalised likelihood.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from metacal import kernels
from metacal.errors import InputError
from metacal.maps.curves.onevsrest import (
    FARTHEST,
    Float,
    Labels,
    Weights,
    check_count,
    counted,
)
from metacal.maps.curves.toplabel import correct_predictions, scaled, write_top
from metacal.maps.fitting.newton import Sums, logistic_sums, minimise, unpack, with_prior
from metacal.maps.map import Map, positive
from metacal.maps.temperature import fit_temperature
from metacal.rows import Rows

#: Prior precision of slopes and intercept around the identity (a standard deviation of ten), and of each change of
#: slope from knot to knot (a standard deviation of one): the first keeps the maximum finite, the second is the
#: smoothing.
PRECISION, SMOOTHING = 0.01, 1.0
#: Rows worked on at a time.
_CHUNK = 1 << 15


@dataclass(frozen=True, eq=False)
class SplineMap(Map):
    """The predicted class gets σ(s(z)), z the log-odds of its confidence; the others share the rest.

    Confidence and shares are those of the tempered softmax(b·x). s' is the broken line through (knots, slopes), level
    beyond the outer knots; s(first knot) = `intercept`. With slopes >= 0 the spline s, quadratic between knots and
    straight outside, never falls. The predicted class is never pushed below another (see TopLabelMap), so every
    prediction is kept.

    Examples
    --------
    >>> halved = SplineMap(np.array([0.0]), np.array([0.5]), 0.0)
    >>> halved(np.array([[3.0, 0.0]])).round(3)                   # softmax(x / 2)
    array([[0.818, 0.182]])
    """

    knots: NDArray[np.float64]
    slopes: NDArray[np.float64]
    intercept: float
    inverse_temperature: float = 1.0

    preserves_accuracy = True

    def check(self) -> None:
        """Raise unless the fields make a map."""
        flat = self.knots.ndim == 1 and len(self.knots) > 0 and self.slopes.shape == self.knots.shape
        if not flat or not np.isfinite(self.knots).all() or not (np.diff(self.knots) > 0.0).all():
            raise InputError("a spline needs knots that rise strictly, and a slope at each.")
        if not (np.isfinite(self.slopes) & (self.slopes >= 0.0)).all():
            raise InputError("the slopes of a spline must be finite and not negative.")
        if not (isinstance(self.intercept, int | float) and np.isfinite(self.intercept)):
            raise InputError(f"the intercept must be a finite number, got {self.intercept!r}.")
        positive("inverse_temperature", self.inverse_temperature)

    def write(self, block: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the probabilities of a block of logits into `out`."""
        tempered = scaled(block, self.inverse_temperature)
        z = self.intercept + risen(self.knots, confidence_log_odds(tempered)) @ self.slopes
        write_top(tempered, expit(z), expit(-z), out)


def fit_spline(
    rows: Rows, labels: Labels, weights: Weights = None, *, n_knots: int = 7, tempered: bool = True
) -> SplineMap:
    """Fit the spline to whether the predictions are right, by penalised likelihood under slopes g_1, …, g_m >= 0.

    A temperature comes first (b = 1 when `tempered` is False): it decides how the other classes share the rest. The
    knots are quantiles of z, the log-odds of the confidence; with c = s(first knot) what is minimised is::

        Σ w·(log(1 + e^s(z)) - correct·s(z))  +  ½·Σ (g_{i+1} - g_i)²  +  ½·0.01·(Σ (g_i - 1)² + (c - first knot)²)

    a convex problem in m + 1 parameters: projected Newton, O(n·K) once and O(n·m²) per step, O(n) memory.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(2000, 2))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    >>> fit_spline(Rows(3.0 * logits), labels)(np.array([[0.0, 3.0]])).round(1)       # e³ : 1 is really e : 1
    array([[0.3, 0.7]])
    """
    count = check_count("n_knots", n_knots, usual=7)
    b = fit_temperature(rows, labels, weights).inverse_temperature if tempered else 1.0
    rows, labels, weights = counted(rows, labels, weights)
    correct = correct_predictions(rows, labels)
    z = rows.collect(partial(_tempered_log_odds, b))
    weights = np.ones(len(z)) if weights is None else weights
    knots = quantiles(z, weights, count)
    bare = partial(spline_sums, risen(knots, z), correct, weights)
    identity = np.append(np.ones(len(knots)), knots[0])[None, :]
    bend = np.diff(np.eye(len(knots)), axis=0)
    precision = PRECISION * np.eye(len(knots) + 1)
    precision[:-1, :-1] += SMOOTHING * bend.T @ bend
    right, total = float(weights @ correct), float(weights.sum())
    start = np.append(np.zeros(len(knots)), np.log((right + 1.0) / (total - right + 1.0)))[None, :]
    bounded = np.append(np.ones(len(knots), dtype=bool), False)
    sums = partial(with_prior, bare, identity, precision)
    theta = minimise(sums, start, bounded, np.array([total]), "spline calibration")[0]
    return SplineMap(knots, theta[:-1], float(theta[-1]), b)


def confidence_log_odds(block: NDArray[Any]) -> Float:
    """log(max p / (1 - max p)) of each row, without cancellation, at most 700 in size."""
    doubt = np.maximum(kernels.doubt(block), np.exp(-FARTHEST))
    return np.asarray(np.log1p(-doubt) - np.log(doubt))


def _tempered_log_odds(inverse_temperature: float, block: NDArray[Any]) -> Float:
    return confidence_log_odds(scaled(block, inverse_temperature))


def risen(knots: Float, z: Float) -> Float:
    """How far s has risen from the first knot to z for a unit slope at each knot: the columns of the design.

    Examples
    --------
    >>> risen(np.array([0.0, 2.0]), np.array([-1.0, 1.0, 3.0]))
    array([[-1.  , 0.  ], [ 0.75, 0.25], [ 1.  , 2.  ]])
    """
    design = np.zeros((len(z), len(knots)))
    design[:, 0] = np.minimum(z - knots[0], 0.0)
    for i, width in enumerate(np.diff(knots)):
        along = np.clip((z - knots[i]) / width, 0.0, 1.0)
        design[:, i] += width * along * (1.0 - 0.5 * along)
        design[:, i + 1] += width * 0.5 * along**2
    design[:, -1] += np.maximum(z - knots[-1], 0.0)
    return design


def quantiles(z: Float, weights: Float, count: int) -> Float:
    """The points that leave (i - ½)/count of the weight at or below them, without repetition."""
    order = np.argsort(z, kind="stable")
    below = np.cumsum(weights[order])
    at = np.searchsorted(below, below[-1] * (np.arange(count) + 0.5) / count, side="left")
    return np.unique(z[order][at])


def spline_sums(design: Float, correct: Float, weights: Float, theta: Float) -> Sums:
    """Log loss of σ(design @ slopes + intercept), its gradient and curvature; theta holds slopes, then intercept."""
    packed = np.zeros((1, 1))
    for first in range(0, len(design), _CHUNK):
        part = slice(first, first + _CHUNK)
        features = [*design[part].T[:, :, None], np.ones((1, 1))]
        packed = packed + logistic_sums(features, correct[part, None], weights[part, None], theta)
    return unpack(packed)
