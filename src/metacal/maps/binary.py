"""Platt scaling and beta calibration: logistic curves of one class's log-probabilities, one class against the rest.

Platt, "Probabilistic Outputs for Support Vector Machines", 1999; Lin, Lin & Weng, "A Note on Platt's Probabilistic
Outputs for Support Vector Machines", Machine Learning 68, 2007; Kull, Silva Filho & Flach, "Beta calibration", AISTATS
2017. Beyond two classes the answers are divided by their sum (Zadrozny & Elkan, 2002).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from metacal.errors import InputError
from metacal.maps.curves.onevsrest import (
    Float,
    Labels,
    Weights,
    check_columns,
    combine,
    counted,
    fill,
    freeze,
    log_probabilities,
    questions,
)
from metacal.maps.fitting.lbfgs import ConvergenceWarning
from metacal.rows import Rows

#: The fit ends when a Newton step promises less than this per unit of weight.
_TOLERANCE = 1e-13
#: What rounding may leave when no step helps any more.
_ROUNDING = 1e-10
_MAX_STEPS = 100
_MAX_HALVINGS = 40
#: The prior precision of beta's parameters around the identity (a = b = 1, c = 0): a standard deviation of ten.
_BETA_PRECISION = 0.01

BETA_VARIANTS = ("abm", "am", "ab")


@dataclass(frozen=True, eq=False)
class PlattMap:
    """q_k = σ(slope_k · log(p_k / (1 - p_k)) + intercept_k) with p = softmax(x), then q / Σ q. Slopes are >= 0.

    One slope means two classes: q is the second one's probability.

    Examples
    --------
    >>> PlattMap(np.array([0.5]), np.array([0.0]))(np.array([[0.0, 2.0]])).round(3)
    array([[0.269, 0.731]])
    """

    slope: NDArray[np.float64]
    intercept: NDArray[np.float64]

    preserves_accuracy: ClassVar[bool] = False

    def __post_init__(self) -> None:
        freeze(self, "slope", "intercept")
        _check_parameters(self.intercept, self.slope)

    def __call__(self, logits: NDArray[Any], *, rows: Rows | None = None) -> NDArray[Any]:
        """Probabilities of the same shape; float32 stays float32, float16 becomes float32."""
        check_columns(len(self.slope), logits)
        return fill(logits, rows, partial(_write, self.slope, self.slope, self.intercept))


@dataclass(frozen=True, eq=False)
class BetaMap:
    """q_k = σ(a_k · log p_k - b_k · log(1 - p_k) + c_k) with p = softmax(x), then q / Σ q; a, b >= 0.

    One entry means two classes: q is the second one's probability.

    Examples
    --------
    >>> one = np.ones(1)
    >>> BetaMap(a=one, b=one, intercept=0 * one)(np.array([[0.0, 2.0]])).round(3)      # the identity
    array([[0.119, 0.881]])
    """

    a: NDArray[np.float64]
    b: NDArray[np.float64]
    intercept: NDArray[np.float64]

    preserves_accuracy: ClassVar[bool] = False

    def __post_init__(self) -> None:
        freeze(self, "a", "b", "intercept")
        _check_parameters(self.intercept, self.a, self.b)

    def __call__(self, logits: NDArray[Any], *, rows: Rows | None = None) -> NDArray[Any]:
        """Probabilities of the same shape; float32 stays float32, float16 becomes float32."""
        check_columns(len(self.a), logits)
        return fill(logits, rows, partial(_write, self.a, self.b, self.intercept))


def fit_platt(rows: Rows, labels: Labels, weights: Weights = None) -> PlattMap:
    """Maximise the likelihood of Lin, Lin & Weng's targets, (N₊+1)/(N₊+2) and 1/(N₋+2), class by class.

    The targets keep the maximum finite for a class that is absent, or told apart without error. The slope is kept
    non-negative, a deviation from Platt that matters only where a class is *less* likely the higher its probability.
    Newton's method for all classes at once, one pass over the rows per step: O(n·K) each, about ten of them.

    Examples
    --------
    >>> logits = np.log([[0.9, 0.1], [0.1, 0.9]] * 500) * 3.0     # three times too confident
    >>> labels = np.array([0, 1] * 450 + [1, 0] * 50)
    >>> round(float(fit_platt(Rows(logits), labels).slope[0]), 2)
    0.33
    """
    rows, labels, weights = counted(rows, labels, weights)
    total, positive = rows.sum(_class_weights, labels, weights)
    low, high = 1.0 / (total - positive + 2.0), (positive + 1.0) / (positive + 2.0)
    sums = partial(_pass, rows, labels, weights, _log_odds, (low, high))
    # Lin, Lin & Weng's start: the class frequency. A class that no row says anything about keeps its probability.
    start = np.stack([(total == 0.0) * 1.0, np.log((positive + 1.0) / (total - positive + 1.0))], axis=1)
    slope, intercept = minimise(sums, start, np.array([True, False]), total, "Platt scaling").T
    return PlattMap(slope, intercept)


def fit_beta(rows: Rows, labels: Labels, weights: Weights = None, *, variant: str = "abm") -> BetaMap:
    """Maximise the likelihood of σ(a·log p - b·log(1 - p) + c) with a, b >= 0, class by class.

    Variant "abm" is free, "am" has a = b, "ab" has its midpoint at 1/2: c = (a - b)·log 2. A normal prior of standard
    deviation ten around the identity keeps the maximum finite for a class that is absent or told apart without error;
    against a hundred rows it is not felt. Where Kull's method drops a parameter that comes out negative and fits again,
    this finds the maximum under a, b >= 0 itself. O(n·K) per Newton step, about fifteen steps.

    Examples
    --------
    >>> logits = np.log([[0.9, 0.1], [0.1, 0.9]] * 500) * 3.0
    >>> labels = np.array([0, 1] * 450 + [1, 0] * 50)
    >>> round(float(fit_beta(Rows(logits), labels, variant="am").a[0]), 2)
    0.33
    """
    if variant not in BETA_VARIANTS:
        raise InputError(f"variant must be one of {', '.join(map(repr, BETA_VARIANTS))}; got {variant!r}.")
    rows, labels, weights = counted(rows, labels, weights)
    total, positive = rows.sum(_class_weights, labels, weights)
    design = {"abm": _both_logs, "am": _log_odds, "ab": _centred_logs}[variant]
    identity = {"abm": [1.0, 1.0, 0.0], "am": [1.0, 0.0], "ab": [1.0, 1.0]}[variant]
    centre = np.tile(identity, (len(total), 1))
    bare = partial(_pass, rows, labels, weights, design, (np.zeros(len(total)), np.ones(len(total))))
    start = centre.copy()
    if variant != "ab":
        start[:, :-1] = 0.0
        start[:, -1] = np.log((positive + 1.0) / (total - positive + 1.0))
    sums = partial(with_prior, bare, centre, np.eye(centre.shape[1]) * _BETA_PRECISION)
    theta = minimise(sums, start, np.array(identity) > 0.0, total, f"beta calibration ({variant!r})")
    if variant == "am":
        return BetaMap(theta[:, 0], theta[:, 0], theta[:, 1])
    if variant == "ab":
        return BetaMap(theta[:, 0], theta[:, 1], (theta[:, 0] - theta[:, 1]) * np.log(2.0))
    return BetaMap(*theta.T)


# ── what is minimised ────────────────────────────────────────────────────────────────────────────────────────────────


class Sums(NamedTuple):
    """Loss, gradient and Hessian of C independent problems in P parameters: shapes (C,), (C, P), (C, P, P)."""

    loss: Float
    gradient: Float
    hessian: Float


def logistic_sums(features: list[Float], targets: Float, weights: Float, theta: Float) -> Float:
    """Σ over rows of w·(log(1 + e^z) - t·z), z = Σ_i θ_i f_i, its gradient and Hessian, packed as (C, 1 + P + P²).

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
    return Sums(packed[:, 0], packed[:, 1 : 1 + count], packed[:, 1 + count :].reshape(classes, count, count))


def with_prior(sums: Callable[[Float], Sums], centre: Float, precision: Float, theta: Float) -> Sums:
    """Add ½ (θ - centre)ᵀ · precision · (θ - centre)."""
    loss, gradient, hessian = sums(theta)
    away = theta - centre
    pull = away @ precision
    return Sums(loss + 0.5 * (away * pull).sum(axis=1), gradient + pull, hessian + precision)


def minimise(sums: Callable[[Float], Sums], start: Float, bounded: NDArray[np.bool_], total: Float, what: str) -> Float:
    """Minimise C convex problems side by side by projected Newton steps with backtracking; θ_i >= 0 where `bounded`.

    A problem is done when its Newton decrement promises less than 1e-13 of its `total` weight; if that is not
    reached, a ConvergenceWarning tells the gradient norm.
    """
    theta, here = start, sums(start)
    scale = np.maximum(total, 1.0)
    stuck = np.zeros(len(theta), dtype=bool)
    for _ in range(_MAX_STEPS):
        held = bounded & (theta <= 0.0) & (here.gradient > 0.0)
        step, promise = _newton_step(here, held)
        done = (promise <= _TOLERANCE * scale) | stuck
        if done.all():
            break
        step[done] = 0.0
        theta, here, moved = _backtrack(sums, theta, here, step, bounded, _ROUNDING * 1e-4 * scale)
        stuck |= ~moved
    short = promise > _ROUNDING * scale
    if short.any():
        norm = np.abs(np.where(held, 0.0, here.gradient)).max(axis=1) / scale
        warnings.warn(
            f"{what} did not converge for {int(short.sum())} of {len(theta)} classes: gradient norm "
            f"{norm[short].max():.3g} per row after {_MAX_STEPS} Newton steps at most.",
            ConvergenceWarning,
            stacklevel=4,
        )
    return theta


def _newton_step(here: Sums, held: NDArray[np.bool_]) -> tuple[Float, Float]:
    """The step of the parameters that are not held at zero, and the decrease ½ gᵀH⁻¹g that it promises."""
    gradient = np.where(held, 0.0, here.gradient)
    hessian = np.where(held[:, :, None] | held[:, None, :], 0.0, here.hessian)
    count = held.shape[1]
    diagonal = np.arange(count)
    # In units where the diagonal is one; the small addition picks a step where the data leave a direction open.
    size = np.sqrt(np.where(held, 0.0, here.hessian[:, diagonal, diagonal]))
    size[size <= 0.0] = 1.0
    scaled = hessian / (size[:, :, None] * size[:, None, :])
    scaled[:, diagonal, diagonal] = 1.0 + 1e-12
    step = -np.linalg.solve(scaled, (gradient / size)[:, :, None])[:, :, 0] / size
    return step, np.asarray(-0.5 * (gradient * step).sum(axis=1))


def _backtrack(
    sums: Callable[[Float], Sums], theta: Float, here: Sums, step: Float, bounded: NDArray[np.bool_], slack: Float
) -> tuple[Float, Sums, NDArray[np.bool_]]:
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


# ── one pass over the rows ───────────────────────────────────────────────────────────────────────────────────────────


def _pass(
    rows: Rows,
    labels: Labels,
    weights: Weights,
    design: Callable[[NDArray[Any]], list[Float]],
    targets: tuple[Float, Float],
    theta: Float,
) -> Sums:
    return unpack(rows.sum(partial(_block_sums, design=design, targets=targets, theta=theta), labels, weights))


def _block_sums(
    block: NDArray[Any],
    labels: Labels,
    weights: Weights,
    design: Callable[[NDArray[Any]], list[Float]],
    targets: tuple[Float, Float],
    theta: Float,
) -> Float:
    low, high = targets
    is_class = _outcomes(block, labels)
    counts = questions(block) > -np.inf
    table = counts.astype(np.float64) if weights is None else counts * weights[:, None]
    return logistic_sums(design(block), np.where(is_class, high, low), table, theta)


def _outcomes(block: NDArray[Any], labels: Labels) -> NDArray[np.bool_]:
    n_classes = block.shape[1]
    return questions(labels[:, None] == np.arange(n_classes))


def _class_weights(block: NDArray[Any], labels: Labels, weights: Weights) -> Float:
    """For each question the weight of the rows where its class is possible, and of those where it is true."""
    table = (questions(block) > -np.inf) * (1.0 if weights is None else weights[:, None])
    return np.stack([table.sum(axis=0), (table * _outcomes(block, labels)).sum(axis=0)])


def _log_odds(block: NDArray[Any]) -> list[Float]:
    log_p, minus_log_rest = log_probabilities(block)
    return [log_p + minus_log_rest, np.ones((1, 1))]


def _both_logs(block: NDArray[Any]) -> list[Float]:
    return [*log_probabilities(block), np.ones((1, 1))]


def _centred_logs(block: NDArray[Any]) -> list[Float]:
    log_p, minus_log_rest = log_probabilities(block)
    return [log_p + np.log(2.0), minus_log_rest - np.log(2.0)]


def _write(a: Float, b: Float, intercept: Float, block: NDArray[Any], out: NDArray[Any]) -> None:
    log_p, minus_log_rest = log_probabilities(block)
    z = a * log_p + b * minus_log_rest + intercept
    combine(block, expit(z), expit(-z) if z.shape[1] == 1 else None, out)


def _check_parameters(intercept: Float, *slopes: Float) -> None:
    for array in (intercept, *slopes):
        if array.ndim != 1 or not len(array) or array.shape != intercept.shape or not np.isfinite(array).all():
            raise InputError("a logistic map needs flat arrays of finite numbers, an entry for each class.")
    if any((slope < 0.0).any() for slope in slopes):
        raise InputError("the slopes of a logistic map must not be negative.")
