"""Projected Newton steps for many small convex problems side by side: a logistic curve for each
class.

A problem is given by its sums over rows: loss, gradient and Hessian, all problems in one pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from metacal.errors import ConvergenceWarning, warn_caller
from metacal.formulas import Flags, Float

#: The fit ends when a Newton step promises less than this per unit of weight.
_TOLERANCE = 1e-13
#: What rounding may leave when no step helps any more.
_ROUNDING = 1e-10
_MAX_STEPS = 100
_MAX_HALVINGS = 40


class Sums(NamedTuple):
    """Loss, gradient and Hessian of C independent problems in P parameters: shapes (C,), (C, P),
    (C, P, P).
    """

    loss: Float
    gradient: Float
    hessian: Float


def logistic_sums(features: list[Float], targets: Float, weights: Float, theta: Float) -> Float:
    """Σ over rows of w·(log(1 + e^z) - t·z), z = Σ_i θ_i f_i, its gradient and Hessian, packed as
    (C, 1 + P + P²).

    Features, targets and weights are n × C; a feature may also be n × 1 or 1 × 1.
    """
    z = sum(theta[:, i] * feature for i, feature in enumerate(features))
    small = np.exp(-np.abs(z))
    probability = np.where(z >= 0.0, 1.0, small) / (1.0 + small)
    loss = np.maximum(z, 0.0) + np.log1p(small) - targets * z
    residual = weights * (probability - targets)
    curvature = weights * (small / (1.0 + small) ** 2)
    count = len(features)
    packed = np.empty((len(theta), 1 + count + count * count))
    packed[:, 0] = (weights * loss).sum(axis=0)
    for i, feature in enumerate(features):
        packed[:, 1 + i] = (residual * feature).sum(axis=0)
        scaled = curvature * feature
        for j in range(i + 1):
            entry = (scaled * features[j]).sum(axis=0)
            packed[:, 1 + count + i * count + j] = packed[:, 1 + count + j * count + i] = entry
    return packed


def unpack(packed: Float) -> Sums:
    """Split what `logistic_sums` packed."""
    classes, width = packed.shape
    count = int((np.sqrt(4 * width - 3) - 1) / 2)
    return Sums(
        packed[:, 0],
        packed[:, 1 : 1 + count],
        packed[:, 1 + count :].reshape(classes, count, count),
    )


def with_prior(
    sums: Callable[[Float], Sums], centre: Float, precision: Float, theta: Float
) -> Sums:
    """Add ½ (θ - centre)ᵀ · precision · (θ - centre); the precision is one for all problems, or one
    for each.
    """
    loss, gradient, hessian = sums(theta)
    away = theta - centre
    pull = (away[:, None, :] @ precision)[:, 0]
    return Sums(loss + 0.5 * (away * pull).sum(axis=1), gradient + pull, hessian + precision)


def minimise(
    sums: Callable[[Float], Sums],
    start: Float,
    bounded: Flags,
    total: Float,
    what: str,
    tolerance: float = _TOLERANCE,
) -> tuple[Float, Sums]:
    """Minimise C convex problems side by side by projected Newton steps with backtracking; θ_i >= 0
    where `bounded`.

    A problem is done when its Newton decrement promises less than the tolerance times its `total`
    weight; if that is not reached, a ConvergenceWarning tells the gradient norm. θ and the sums
    there; with a higher tolerance the last step is taken, and the sums are from before it.
    """
    theta, here = start, sums(start)
    scale = np.maximum(total, 1.0)
    stuck = np.zeros(len(theta), dtype=bool)
    for _ in range(_MAX_STEPS):
        held = bounded & (theta <= 0.0) & (here.gradient > 0.0)
        step, promise = _newton_step(here, held)
        done = (promise <= tolerance * scale) | stuck
        if done.all():
            if tolerance > _TOLERANCE:
                theta = theta + np.where(stuck[:, None], 0.0, step)
                theta[:, bounded] = np.maximum(theta[:, bounded], 0.0)
            break
        step[done] = 0.0
        theta, here, moved = _backtrack(sums, theta, here, step, bounded, _ROUNDING * 1e-4 * scale)
        stuck |= ~moved
    short = promise > max(_ROUNDING, tolerance) * scale
    if short.any():
        norm = np.abs(np.where(held, 0.0, here.gradient)).max(axis=1) / scale
        warn_caller(
            f"{what} did not converge for {int(short.sum())} of {len(theta)} classes: gradient norm"
            f" {norm[short].max():.3g} per row after {_MAX_STEPS} Newton steps at most.",
            ConvergenceWarning,
        )
    return theta, here


def _newton_step(here: Sums, held: Flags) -> tuple[Float, Float]:
    """The step of the parameters that are not held at zero, and the decrease ½ gᵀH⁻¹g that it
    promises.
    """
    gradient, hessian = here.gradient, here.hessian
    if held.any():
        gradient = np.where(held, 0.0, gradient)
        hessian = np.where(held[:, :, None] | held[:, None, :], 0.0, hessian)
    diagonal = np.arange(held.shape[1])
    # In units where the diagonal is one; the small addition picks a step where the data leave a
    # direction open.
    size = np.sqrt(hessian[:, diagonal, diagonal])
    size[size <= 0.0] = 1.0
    scaled = hessian / (size[:, :, None] * size[:, None, :])
    scaled[:, diagonal, diagonal] = 1.0 + 1e-12
    step = -np.linalg.solve(scaled, (gradient / size)[:, :, None])[:, :, 0] / size
    return step, np.asarray(-0.5 * (gradient * step).sum(axis=1))


def _backtrack(
    sums: Callable[[Float], Sums],
    theta: Float,
    here: Sums,
    step: Float,
    bounded: Flags,
    slack: Float,
) -> tuple[Float, Sums, Flags]:
    """Halve each problem's step until its loss falls enough; say which problems moved."""
    fraction = np.ones(len(theta))
    for _ in range(_MAX_HALVINGS):
        trial = theta + fraction[:, None] * step
        trial[:, bounded] = np.maximum(trial[:, bounded], 0.0)
        there = sums(trial)
        falls = 1e-4 * (here.gradient * (trial - theta)).sum(axis=1)
        better = there.loss <= here.loss + np.minimum(falls, 0.0) + slack
        if better.all():
            return trial, there, better
        fraction[~better] *= 0.5
    mixed = np.where(better[:, None], trial, theta)
    return mixed, sums(mixed), better
