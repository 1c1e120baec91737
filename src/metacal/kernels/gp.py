"""One block's part in Gaussian-process calibration: the tempered logits, the bumps on them, the
bound and its slopes.

Everything in float64. A latent function of one variable is applied to every entry of the table, so
a block of n × K logits is worked on as n·K numbers; -inf (a masked class) keeps probability exactly
zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from metacal.formulas import Array, Codes, Float
from metacal.formulas.gp import BUMP_REACH, center_rows, latent
from metacal.formulas.logits import limit_logits
from metacal.formulas.operations import NUMPY, Operations

#: How a row of logits is made independent of the constant that softmax ignores.
CENTRES = ("mean", "log_softmax")


def tempered(block: Array, centre: str, inverse_temperature: float) -> Float:
    """t = b·(x - centre of the row), a fresh array."""
    table = np.asarray(limit_logits(block), dtype=np.float64)
    return np.asarray(NUMPY.evaluate(center_rows, table, centre) * inverse_temperature)


def bumps(values: Float, inducing: Float, lengthscale: float) -> Float:
    """exp(-½ ((t - z_m) / ℓ)²), one row per inducing input z_m and one column per value."""
    table = (values - inducing[:, None]) / lengthscale
    return np.asarray(np.exp(-0.5 * table * table))


def write_latent(xp: Operations, fitted: Any, t: Float) -> Float:
    """The formula `latent`, in two arrays: t itself is written over."""
    reach = BUMP_REACH * fitted.lengthscale
    near = np.clip(t, fitted.inducing[0] - reach, fitted.inducing[-1] + reach)
    near /= fitted.lengthscale
    work = np.empty_like(t)
    for place, weight in zip(fitted.inducing / fitted.lengthscale, fitted.weights):
        np.subtract(near, place, out=work)
        work *= work
        work *= -0.5
        np.exp(work, out=work)
        work *= weight
        t += work
    return t


NUMPY.kernels[latent] = write_latent


@dataclass(frozen=True, eq=False)
class Curve:
    """A sparse Gaussian process under q(v) = N(mean, covariance), written down on an even grid of
    tempered logits.

    Between grid points the features a(t), and with them everything else, are interpolated linearly.
    One number per grid point then holds all that a table of logits says about f: the probability
    mass there.
    """

    low: float
    step: float
    #: a(t), one row per grid point: what is looked up lies together.
    features: Float
    #: E f(t) - t.
    mean: Float
    #: E f(t) - t + ½ Var f(t).
    lifted: Float

    def place(self, values: Float) -> tuple[Codes, Float]:
        """The grid point below each value, and how far it is towards the next one."""
        position = (values.ravel() - self.low) / self.step
        np.clip(position, 0.0, len(self.features) - 1.000001, out=position)
        below = position.astype(np.intp)
        position -= below
        return below, position


def _probabilities(
    block: Array, curve: Curve, centre: str, inverse_temperature: float
) -> tuple[Float, Codes, Float, Float, Float]:
    """t, its place on the grid (two arrays), π = softmax(E f + ½ Var f) and its log-sum-exp."""
    values = tempered(block, centre, inverse_temperature)
    below, part = curve.place(values)
    rise = np.diff(curve.lifted, append=curve.lifted[-1])[below]
    rise *= part
    rise += curve.lifted[below]
    chances = rise.reshape(values.shape)
    chances += values
    top = chances.max(axis=1, keepdims=True)
    chances -= top
    np.exp(chances, out=chances)
    total = chances.sum(axis=1, keepdims=True)
    chances /= total
    return values, below, part, chances, np.asarray((top + np.log(total))[:, 0])


def sums(
    block: Array,
    labels: Codes,
    weights: Float | None,
    curve: Curve,
    centre: str,
    inverse_temperature: float,
    which: tuple[str, ...],
) -> Float:
    """The "evidence", the "covariances", or both one after the other: sums over rows in one vector.

    **Evidence**: the bound m_y - log Σ_j exp(m_j + σ_j²/2), then the mass of the true classes at
    each grid point, then the mass of π, the softmax of m + σ²/2. The bound's gradient in the mean
    is a·(true - π), and minus twice the gradient in the covariance Σ π a aᵀ.

    **Covariances**: Σ_rows Cov_π(a), Newton's curvature of the bound in the mean, in two parts to
    be finished later. First Σ_rows (Σ_j π_j a_j)(Σ_j π_j a_j)ᵀ, then the mass of π at each grid
    point, from which Σ π a aᵀ follows. Both take a at the grid point below, so that their
    difference is never negative.
    """
    values, below, part, chances, log_sum = _probabilities(
        block, curve, centre, inverse_temperature
    )
    parts, size = list[Any](), len(curve.mean)
    weighted = chances if weights is None else chances * weights[:, None]
    if "evidence" in which:
        own = np.arange(len(block)) * block.shape[1] + labels
        own_below, own_part = below[own], part[own]
        own_mean = np.interp(own_below + own_part, np.arange(size), curve.mean)
        gains = values.ravel()[own] + own_mean - log_sum
        counts = np.ones(len(block)) if weights is None else weights
        parts += [[gains @ counts], _masses(own_below, own_part, counts, size)]
        parts.append(_masses(below, part, weighted.ravel(), size))
    if "covariances" in which:
        features = np.take(curve.features, below, axis=0).reshape(*block.shape, -1)
        means = np.matmul(chances[:, None, :], features)[:, 0, :]
        within = (means if weights is None else means * weights[:, None]).T @ means
        parts += [within.ravel(), np.bincount(below, weighted.ravel(), minlength=size)]
    return np.concatenate(parts)


def _masses(below: Codes, part: Float, mass: Float, size: int) -> Float:
    """Each mass shared between its two grid points, as linear interpolation does."""
    upper = mass * part
    found = np.bincount(below, mass - upper, minlength=size)
    found[1:] += np.bincount(below, upper, minlength=size)[:-1]
    return np.asarray(found)


def probability_mass(
    block: Array, labels: Codes, weights: Float | None, centre: str, inverse_temperature: float
) -> Float:
    """(t, weight · (softmax(t) + 1 for the true class)) of every entry: where on the line the data
    speak.
    """
    values = tempered(block, centre, inverse_temperature)
    mass = np.exp(values - values.max(axis=1, keepdims=True))
    mass /= mass.sum(axis=1, keepdims=True)
    mass[np.arange(len(mass)), labels] += 1.0
    if weights is not None:
        mass *= weights[:, None]
    return np.column_stack([values.ravel(), mass.ravel()])
