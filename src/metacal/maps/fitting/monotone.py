"""A monotone spline of one number, by penalised likelihood: how likely a row is right as it rises.

Arrays alone. The slope of s runs straight from knot to knot, level beyond the outer ones, and is
never negative.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from metacal.formulas import Float
from metacal.maps.fitting.newton import Sums, logistic_sums, minimise, unpack, with_prior

#: Prior precision of slopes and intercept around the identity (a standard deviation of ten), and of
#: each change of slope from knot to knot (a standard deviation of one): the first keeps the maximum
#: finite, the second is the smoothing.
_PRECISION, _SMOOTHING = 0.01, 1.0
#: Rows worked on at a time.
_CHUNK = 1 << 15


def fit_slopes(
    z: Float, correct: Float, weights: Float, knots: Float, centre: Float, what: str
) -> Float:
    """The slopes at the knots, not negative, and the intercept, by penalised likelihood around a
    centre.
    """
    bend = np.diff(np.eye(len(knots)), axis=0)
    precision = _PRECISION * np.eye(len(knots) + 1)
    precision[:-1, :-1] += _SMOOTHING * bend.T @ bend
    right, total = float(weights @ correct), float(weights.sum())
    start = np.append(np.zeros(len(knots)), np.log((right + 1.0) / (total - right + 1.0)))[None, :]
    bounded = np.append(np.ones(len(knots), dtype=bool), False)
    bare = partial(_spline_sums, risen(knots, z), correct, weights)
    sums = partial(with_prior, bare, centre[None, :], precision)
    theta, _ = minimise(sums, start, bounded, np.array([total]), what)
    return theta[0]


def risen(knots: Float, z: Float) -> Float:
    """How far s has risen from the first knot to z for a unit slope at each knot: the columns of
    the design.

    Examples
    --------
    >>> risen(np.array([0.0, 2.0]), np.array([-1.0, 1.0, 3.0]))
    array([[-1.  , 0.  ], [ 0.75, 0.25], [ 1.  , 2.  ]])
    """
    design, width = np.zeros((len(z), len(knots))), knots[1:] - knots[:-1]
    along = np.minimum(np.maximum((z[:, None] - knots[:-1]) / width, 0.0), 1.0)
    design[:, :-1] = width * along * (1.0 - 0.5 * along)
    design[:, 1:] += width * 0.5 * along**2
    design[:, 0] += np.minimum(z - knots[0], 0.0)
    design[:, -1] += np.maximum(z - knots[-1], 0.0)
    return design


def quantiles(z: Float, weights: Float, count: int) -> Float:
    """The points that leave (i - ½)/count of the weight at or below them, without repetition."""
    order = np.argsort(z, kind="stable")
    below = np.cumsum(weights[order])
    at = np.searchsorted(below, below[-1] * (np.arange(count) + 0.5) / count, side="left")
    return np.unique(z[order][at])


def _spline_sums(design: Float, correct: Float, weights: Float, theta: Float) -> Sums:
    """Log loss of σ(design @ slopes + intercept), its gradient and curvature; theta holds slopes,
    then intercept.
    """
    packed = np.zeros((1, 1))
    for first in range(0, len(design), _CHUNK):
        part = slice(first, first + _CHUNK)
        features = [*design[part].T[:, :, None], np.ones((1, 1))]
        packed = packed + logistic_sums(features, correct[part, None], weights[part, None], theta)
    return unpack(packed)
