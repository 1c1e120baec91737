"""Spline calibration: the confidence through a monotone spline of its log-odds, fitted by
likelihood.

The idea of Gupta, Rahimi, Ajanthan, Mensink, Sminchisescu & Hartley, "Calibration of Neural
Networks using Splines", ICLR 2021: recalibrate the top label by a smooth curve, without bins. They
differentiate a spline through the cumulative accuracy, which need not be monotone; here the curve
is monotone by construction and found by penalised likelihood.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import InputError
from metacal.formulas import Codes, Float
from metacal.formulas import curves as formulas
from metacal.formulas.curves import spline
from metacal.formulas.logits import scaled
from metacal.formulas.operations import NUMPY
from metacal.kernels.columns import Curve
from metacal.maps.fitting.monotone import fit_slopes, quantiles, risen
from metacal.maps.fitting.newton import Sums, minimise, with_prior
from metacal.maps.labelled import Labelled, Weights
from metacal.maps.map import Map, check_count, positive
from metacal.maps.temperature import fit_temperature
from metacal.rows import Rows

#: How far the spline is from the identity before the rows are seen: the precision of how far it
#: lies off in the middle, of its mean slope, and of each change of slope from knot to knot. What a
#: temperature leaves on real tables is off by some .3 in the first two (a precision of 10), and
#: smooth to very different degrees: three of these; one that is far looser, for tables unlike
#: those, and one that is nearly the identity, which is right for most.
_PRIORS = (
    (1.0, 1.0, 1.0),
    (10.0, 10.0, 1.0),
    (10.0, 10.0, 30.0),
    (10.0, 10.0, 1e3),
    (1e3, 1e3, 1e3),
)
#: Added to all of them: a straight line is then no more than unlikely.
_LEAST_PRECISION = 1e-4
#: What the last step towards each of them promises per row: it is taken, and what is left is about
#: the square.
_ACCURACY = 1e-9
#: Rows that are worked on one by one; of more, log-odds are moved to the two nearest points of a
#: grid so fine.
_ROW_BY_ROW, GRID = 1 << 8, 1.0 / 32.0
#: No confidence is farther from one half in log-odds: a class alone would be.
_FARTHEST_ODDS = 50.0


@dataclass(frozen=True, eq=False)
class SplineMap(Map):
    """The predicted class gets σ(s(z)), z the log-odds of its confidence; the others share the
    rest.

    Confidence and shares are those of the tempered softmax(b·x). s' is the broken line through
    (knots, slopes), level beyond the outer knots; s(first knot) = `intercept`. With slopes >= 0 the
    spline s, quadratic between knots and straight outside, never falls. The predicted class is
    never pushed below another (see TopLabelMap), so every prediction is kept.

    Examples
    --------
    >>> halved = SplineMap(np.array([0.0]), np.array([0.5]), 0.0)
    >>> halved(np.array([[3.0, 0.0]])).round(3)                   # softmax(x / 2)
    array([[0.818, 0.182]])
    """

    knots: Float
    slopes: Float
    intercept: float
    inverse_temperature: float = 1.0

    preserves_accuracy = True
    derived = ("n_knots",)
    formula = staticmethod(spline)

    def check(self) -> None:
        """Raise unless the fields make a map."""
        flat = (
            self.knots.ndim == 1 and len(self.knots) > 0 and self.slopes.shape == self.knots.shape
        )
        if not flat or not np.isfinite(self.knots).all() or not (np.diff(self.knots) > 0.0).all():
            raise InputError("a spline needs knots that rise strictly, and a slope at each.")
        if not (np.isfinite(self.slopes) & (self.slopes >= 0.0)).all():
            raise InputError("the slopes of a spline must be finite and not negative.")
        if not (isinstance(self.intercept, int | float) and np.isfinite(self.intercept)):
            raise InputError(f"the intercept must be a finite number, got {self.intercept!r}.")
        positive("inverse_temperature", self.inverse_temperature)

    @property
    def n_knots(self) -> int:
        """How many knots there are."""
        return len(self.knots)

    @cached_property
    def curve(self) -> Curve:
        """The spline."""
        return Curve(self.knots, self.slopes, float(self.intercept))


#: Knot after knot, which sums in the order of the kernels that write spline and softmax at once.
NUMPY.fast[formulas.spline_value] = lambda xp, fitted, z: fitted.curve.value(z)


def fit_spline(
    rows: Rows, labels: Codes, weights: Weights = None, *, n_knots: int = 7, tempered: bool = True
) -> SplineMap:
    """Fit the spline to whether the predictions are right, by penalised likelihood under slopes
    g_1, …, g_m >= 0.

    A temperature comes first (b = 1 when `tempered` is False): it decides how the other classes
    share the rest. The knots are quantiles of z, the log-odds of the confidence; with c = s(first
    knot) what is minimised is::

        Σ w·(log(1 + e^s(z)) - correct·s(z))  +  ½·Σ (g_{i+1} - g_i)²  +  ½·0.01·(Σ (g_i - 1)² + (c
        - first knot)²)

    a convex problem in m + 1 parameters: projected Newton, O(n·K) once and O(n·m²) per step, O(n)
    memory.
    """
    count = check_count("n_knots", n_knots, usual=7)
    b = fit_temperature(rows, labels, weights).inverse_temperature if tempered else 1.0
    sample = Labelled(rows, labels, weights).counted()
    z = sample.rows.collect(partial(tempered_log_odds, b))
    knots = quantiles(z, sample.counts, count)
    identity = np.append(np.ones(len(knots)), knots[0])
    theta = fit_slopes(z, sample.correct(), sample.counts, knots, identity, "spline calibration")
    return SplineMap(knots, theta[:-1], float(theta[-1]), b)


def fit_averaged(z: Float, correct: Float, weights: Weights, *, n_knots: int = 7) -> SplineMap:
    """A spline of log-odds z that are nearly right already: the mean of splines that trust them
    more or less.

    Each prior has deviations from the identity, s(z) - z, normal with its own precisions: of the
    value at the median, of the mean slope, of each change of slope. The splines with the largest
    posterior density under each are weighted by how probable each prior makes the rows (Laplace's
    approximation)::

        log P(rows | prior) = -loss - ½ dᵀPd + ½ log|P| - ½ log|H + P|

    with d the deviation of the parameters, H the curvature of the loss. Where z is right the answer
    is close to the identity, with little of the noise that a free spline would have; where it is
    not, the rows outvote the prior. A row of weight 2 counts as two; weights that are shares count
    as the rows they are worth.

    Examples
    --------
    >>> from scipy.special import expit
    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(1.0, 2.0, 5000)
    >>> fit = fit_averaged(2.0 * z, np.asarray(rng.random(5000) < expit(z), dtype=float), None)
    >>> fit.curve.value(np.array([-2.0, 2.0, 4.0])).round(0)
    array([-1.,  1.,  2.])
    """
    return fit_averaged_each([(z, correct, weights)], n_knots=n_knots)[0]


def fit_averaged_each(
    parts: Sequence[tuple[Float, Float, Weights]], *, n_knots: int = 7, grid: float = GRID
) -> list[SplineMap]:
    """The same of several sets of rows (z, correct, weights), side by side: for little more than
    one of them costs.
    """
    few = [_few_rows(z, correct, _as_rows(weights), grid) for z, correct, weights in parts]
    knots = [quantiles(z, weights, n_knots) for z, _, weights in few]
    if len({len(own) for own in knots}) > 1:
        return [fit_averaged_each([part], n_knots=n_knots, grid=grid)[0] for part in parts]
    size = max(len(z) for z, _, _ in few)
    correct, weights = (
        np.array([np.append(part[i], np.zeros(size - len(part[i]))) for part in few])
        for i in (1, 2)
    )
    design = np.ones((len(few), size, len(knots[0]) + 1))
    for each, own, (z, _, _) in zip(design, knots, few):
        each[: len(z), :-1] = risen(own, z)
    identity = np.array([np.append(np.ones(len(own)), own[0]) for own in knots]).repeat(
        len(_PRIORS), axis=0
    )
    precisions = np.concatenate(
        [_precisions(own, quantiles(z, w, 1)) for own, (z, _, w) in zip(knots, few)]
    )
    squares = (design[:, :, :, None] * design[:, :, None]).reshape(*design.shape[:2], -1)
    bare = partial(_few_sums, design, squares, correct[:, None], weights[:, None])
    sums = partial(with_prior, bare, identity, precisions)
    bounded = np.append(np.ones(len(knots[0]), dtype=bool), False)
    total = weights.sum(axis=1).repeat(len(_PRIORS))
    found, (loss, _, curvature) = minimise(
        sums, identity, bounded, total, "spline calibration", _ACCURACY
    )
    evidence = -loss + 0.5 * (np.linalg.slogdet(precisions)[1] - np.linalg.slogdet(curvature)[1])
    evidence = evidence.reshape(len(few), -1)
    share = np.exp(evidence - evidence.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    theta = (share[:, None] @ found.reshape(len(few), len(_PRIORS), -1))[:, 0]
    np.maximum(theta[:, :-1], 0.0, out=theta[:, :-1])
    return [SplineMap(own, each[:-1], float(each[-1])) for own, each in zip(knots, theta)]


def _as_rows(weights: Weights) -> Weights:
    """Weights that sum to the number of rows they are worth, (Σw)² / Σw², where they are smaller
    numbers: shares.

    Examples
    --------
    >>> _as_rows(np.array([0.25, 0.25, 0.25, 0.25])), _as_rows(np.array([2.0, 1.0]))
    (array([1., 1., 1., 1.]), array([2., 1.]))
    """
    if weights is None:
        return None
    return weights * max(1.0, float(weights.sum()) / float(weights @ weights))


def _few_rows(
    z: Float, correct: Float, weights: Weights, grid: float
) -> tuple[Float, Float, Float]:
    """Rows as they are if there are few, else the points of the grid that they are moved to.

    Of each point the share of right rows, and its weight. A row between two points is at both in
    part, so that its log-odds are kept on average.
    """
    if len(z) <= _ROW_BY_ROW:
        z = np.clip(z, -_FARTHEST_ODDS, _FARTHEST_ODDS)
        return z, correct, np.ones(len(z)) if weights is None else weights
    low = math.floor(-_FARTHEST_ODDS / grid)
    size = math.floor(_FARTHEST_ODDS / grid) - low + 2
    sums = kernels.active.on_grid(z, correct, weights, grid, _FARTHEST_ODDS, low, size)
    used = sums[0] > 0.0
    total = sums[0][used]
    return (
        np.asarray((low + np.flatnonzero(used)) * grid),
        np.clip(sums[1][used] / total, 0.0, 1.0),
        total,
    )


def _few_sums(design: Float, squares: Float, correct: Float, weights: Float, theta: Float) -> Sums:
    """The same as `_spline_sums` on few rows, with a last column of ones: several splines of each
    of several sets.
    """
    z = theta.reshape(len(design), -1, theta.shape[1]) @ design.transpose(0, 2, 1)
    small = np.exp(-np.abs(z))
    all = 1.0 + small
    chance = np.where(z >= 0.0, 1.0, small) / all
    loss = np.maximum(z, 0.0) + np.log(all) - correct * z
    curvature = (weights * chance * (1.0 - chance)) @ squares
    gradient = (weights * (chance - correct)) @ design
    total = (loss @ weights.transpose(0, 2, 1)).reshape(-1)
    return Sums(total, gradient.reshape(theta.shape), curvature.reshape(*theta.shape, -1))


def _precisions(knots: Float, middle: Float) -> Float:
    """The matrices of `_PRIORS` in slopes and intercept."""
    level, count = np.append(risen(knots, middle)[0], 1.0), len(knots)
    slope = np.append(np.full(count, 1.0 / count), 0.0)
    bend = np.diff(np.eye(count, count + 1), axis=0)
    parts = np.array([np.outer(slope, slope), bend.T @ bend, np.eye(count + 1)])
    priors = np.array([(*prior, _LEAST_PRECISION) for prior in _PRIORS])
    found = (priors[:, 1:] @ parts.reshape(3, -1)).reshape(-1, count + 1, count + 1)
    return np.asarray(found + priors[:, 0, None, None] * np.outer(level, level))


def confidence_log_odds(block: NDArray[Any]) -> Float:
    """log(max p / (1 - max p)) of each row, without cancellation, at most 700 in size."""
    return np.asarray(NUMPY.run(formulas.confidence_log_odds, block)[:, 0])


def tempered_log_odds(inverse_temperature: float, block: NDArray[Any]) -> Float:
    """The same of the tempered softmax(b·x)."""
    return confidence_log_odds(scaled(block, inverse_temperature))
