"""Platt scaling and beta calibration, one class against the rest.

Both fit a logistic curve of the log-probabilities of each class. For more than two classes
the values are divided by their sum (Zadrozny & Elkan, 2002). Two classes need one curve,
that of the second class.

References
----------
Platt, "Probabilistic Outputs for Support Vector Machines", 1999.

Lin, Lin & Weng, "A Note on Platt's Probabilistic Outputs for Support Vector Machines",
Machine Learning 68, 2007.

Kull, Silva Filho & Flach, "Beta calibration", AISTATS 2017.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.formulas import Codes, Flags, Float
from metacal.formulas import curves as formulas
from metacal.formulas.logits import limit_logits
from metacal.formulas.operations import NUMPY
from metacal.maps.curves import OneVsRestMap, get_one_vs_rest_columns
from metacal.maps.fitting.newton import (
    Derivatives,
    add_normal_prior,
    minimise_by_newton,
    sum_logistic_derivatives,
    unpack_derivatives,
)
from metacal.maps.labelled import LabelledRows, Weights
from metacal.rows import Rows

#: Prior precision of the parameters of beta calibration, a standard deviation of ten.
_BETA_PRIOR_PRECISION = 0.01

#: Function that computes the features of each curve from a block of logits.
_ComputeFeatures = Callable[[NDArray[Any]], list[Float]]


class LogisticMap(OneVsRestMap):
    """One-vs-rest map with a logistic curve per class and non-negative slopes."""

    intercept: Float

    #: Names of the fields of a map that hold its slopes.
    slopes: ClassVar[tuple[str, ...]]
    derived = ("n_curves",)

    @property
    def n_curves(self) -> int:
        """Number of curves: one per class, or one for two classes."""
        return len(self.intercept)

    def check(self) -> None:
        """Raise InputError unless every class has finite parameters and valid slopes."""
        slopes = [getattr(self, name) for name in self.slopes]
        for parameter in (self.intercept, *slopes):
            is_flat = parameter.ndim == 1 and len(parameter) > 0
            has_same_shape = parameter.shape == self.intercept.shape
            if not is_flat or not has_same_shape or not np.isfinite(parameter).all():
                raise InputError(
                    "The arrays of a logistic map must be 1-D and finite, with one entry for"
                    " each class."
                )
        if any((slope < 0.0).any() for slope in slopes):
            raise InputError("The slopes of a logistic map must not be negative.")


@dataclass(frozen=True, eq=False)
class PlattMap(LogisticMap):
    """Platt scaling: q_k = σ(slope_k log(p_k / (1 - p_k)) + intercept_k), normalised.

    Here p = softmax(x) and the slopes are non-negative. One slope means two classes; q is
    then the probability of the second class.

    Examples
    --------
    >>> PlattMap(np.array([0.5]), np.array([0.0]))(np.array([[0.0, 2.0]])).round(3)
    array([[0.269, 0.731]])
    """

    slope: Float
    intercept: Float

    formula = staticmethod(formulas.platt)
    slopes = ("slope",)


@dataclass(frozen=True, eq=False)
class BetaMap(LogisticMap):
    """Beta calibration: q_k = σ(a_k log p_k - b_k log(1 - p_k) + c_k), normalised.

    Here p = softmax(x), and a and b are non-negative. One entry means two classes; q is
    then the probability of the second class.

    Examples
    --------
    >>> one = np.ones(1)
    >>> BetaMap(a=one, b=one, intercept=0 * one)(np.array([[0.0, 2.0]])).round(3)  # the identity
    array([[0.119, 0.881]])
    """

    a: Float
    b: Float
    intercept: Float

    formula = staticmethod(formulas.beta)
    slopes = ("a", "b")


@dataclass(frozen=True)
class _TargetProbabilities:
    """Target probabilities of the negative and the positive rows of each class."""

    negative: Float
    positive: Float


@dataclass(frozen=True)
class _CurveWeights:
    """Weight of all rows and of the positive rows of each one-vs-rest curve."""

    total: Float
    positive: Float

    @property
    def negative(self) -> Float:
        """Weight of the rows of the other classes."""
        return self.total - self.positive

    def compute_smoothed_log_odds(self) -> Float:
        """Compute the log-odds of the positive class with one extra row of each outcome."""
        return np.asarray(np.log((self.positive + 1.0) / (self.negative + 1.0)))


@dataclass(frozen=True)
class _BetaVariant:
    """Features of a variant of beta calibration, and its parameters for the identity."""

    compute_features: _ComputeFeatures
    identity: list[float]
    has_intercept: bool


def fit_platt_scaling(rows: Rows, labels: Codes, weights: Weights = None) -> PlattMap:
    """Fit Platt scaling by maximum likelihood, class by class.

    The targets are those of Lin, Lin & Weng, (N₊ + 1) / (N₊ + 2) and 1 / (N₋ + 2). They keep
    the maximum finite if a class is absent or separated without error. Unlike Platt's
    method, the slope is kept non-negative, which matters only if a class is *less* likely
    the higher its probability. Newton's method treats all classes at once, with one pass
    over the rows per step: O(n K) time each, about ten steps.

    Parameters
    ----------
    rows : Rows
        Rows of logits.

    labels : array of int of shape (n_rows,)
        Column index of the true class of each row.

    weights : array of shape (n_rows,), optional
        Weight of each row.

    Returns
    -------
    PlattMap
    """
    sample = LabelledRows(rows, labels, weights).drop_zero_weight_rows()
    curve_weights = _sum_curve_weights(sample)
    positive_weight = curve_weights.positive
    smoothed_targets = _TargetProbabilities(
        negative=1.0 / (curve_weights.negative + 2.0),
        positive=(positive_weight + 1.0) / (positive_weight + 2.0),
    )
    # A slope of one keeps the probability of a class that is masked in every row.
    is_masked_everywhere = curve_weights.total == 0.0
    start_slope = np.where(is_masked_everywhere, 1.0, 0.0)
    start_intercept = curve_weights.compute_smoothed_log_odds()
    compute_derivatives = partial(
        _sum_loss_derivatives,
        sample,
        compute_features=_compute_log_odds_features,
        targets=smoothed_targets,
    )
    slope_is_nonnegative = True
    intercept_is_nonnegative = False
    theta, _ = minimise_by_newton(
        compute_derivatives,
        start=np.stack([start_slope, start_intercept], axis=1),
        is_nonnegative=np.array([slope_is_nonnegative, intercept_is_nonnegative]),
        total_weights=curve_weights.total,
        method_name="Platt scaling",
    )
    return PlattMap(slope=theta[:, 0], intercept=theta[:, 1])


def fit_beta_calibration(
    rows: Rows, labels: Codes, weights: Weights = None, *, variant: str = "abm"
) -> BetaMap:
    """Fit σ(a log p - b log(1 - p) + c) with a, b >= 0 for each class.

    A normal prior of standard deviation ten around the identity keeps the maximum finite if
    a class is absent or separated without error. Its effect is negligible with a hundred
    rows. Kull's method drops a parameter that comes out negative and fits again; this
    function finds the maximum under a, b >= 0. It takes O(n K) time per Newton step and
    about fifteen steps.

    Parameters
    ----------
    rows : Rows
        Rows of logits.

    labels : array of int of shape (n_rows,)
        Column index of the true class of each row.

    weights : array of shape (n_rows,), optional
        Weight of each row.

    variant : {"abm", "am", "ab"}, default="abm"
        "abm" leaves all parameters free, "am" has a = b, and "ab" has its midpoint at 1/2,
        c = (a - b) log 2.

    Returns
    -------
    BetaMap
    """
    if variant not in _BETA_VARIANTS:
        raise InputError(
            f"variant must be one of {', '.join(map(repr, _BETA_VARIANTS))}, but got {variant!r}."
        )
    sample = LabelledRows(rows, labels, weights).drop_zero_weight_rows()
    curve_weights = _sum_curve_weights(sample)
    n_curves = len(curve_weights.total)
    beta_variant = _BETA_VARIANTS[variant]
    identity_theta = np.array(beta_variant.identity)
    prior_means = np.tile(identity_theta, (n_curves, 1))
    prior_precision = np.eye(len(identity_theta)) * _BETA_PRIOR_PRECISION
    start_theta = prior_means.copy()
    if beta_variant.has_intercept:
        # The fit starts from a constant curve, the frequency of the class.
        start_theta[:, :-1] = 0.0
        start_theta[:, -1] = curve_weights.compute_smoothed_log_odds()

    targets = _TargetProbabilities(negative=np.zeros(n_curves), positive=np.ones(n_curves))
    likelihood = partial(
        _sum_loss_derivatives,
        sample,
        compute_features=beta_variant.compute_features,
        targets=targets,
    )
    negative_log_posterior = partial(
        add_normal_prior, likelihood, prior_mean=prior_means, precision=prior_precision
    )
    slopes_are_nonnegative = identity_theta > 0.0
    theta, _ = minimise_by_newton(
        negative_log_posterior,
        start_theta,
        is_nonnegative=slopes_are_nonnegative,
        total_weights=curve_weights.total,
        method_name=f"beta calibration ({variant!r})",
    )
    return _build_beta_map(theta, variant)


def _build_beta_map(theta: Float, variant: str) -> BetaMap:
    """Build the map of beta calibration from the parameters of a variant."""
    if variant == "am":
        return BetaMap(a=theta[:, 0], b=theta[:, 0], intercept=theta[:, 1])
    if variant == "ab":
        intercept = (theta[:, 0] - theta[:, 1]) * np.log(2.0)
        return BetaMap(a=theta[:, 0], b=theta[:, 1], intercept=intercept)
    return BetaMap(a=theta[:, 0], b=theta[:, 1], intercept=theta[:, 2])


def _sum_loss_derivatives(
    sample: LabelledRows,
    theta: Float,
    *,
    compute_features: _ComputeFeatures,
    targets: _TargetProbabilities,
) -> Derivatives:
    """Sum loss, gradient and Hessian of every curve in one pass over the rows.

    Parameters
    ----------
    sample : LabelledRows
        Rows with labels.

    theta : array of shape (n_curves, n_parameters)
        Parameters.

    compute_features : function
        Computes the features of the curves.

    targets : _TargetProbabilities
        Target probabilities.

    Returns
    -------
    Derivatives
    """
    kernel = partial(
        _sum_block_derivatives, compute_features=compute_features, targets=targets, theta=theta
    )
    packed_sums = sample.rows.sum(kernel, sample.labels, sample.weights)
    return unpack_derivatives(packed_sums)


def _sum_block_derivatives(
    block: NDArray[Any],
    labels: Codes,
    weights: Weights,
    compute_features: _ComputeFeatures,
    targets: _TargetProbabilities,
    theta: Float,
) -> Float:
    """Sum loss, gradient and Hessian of every curve over a block of rows.

    Parameters
    ----------
    block : array of shape (n_rows, n_classes)
        Logits.

    labels : array of int of shape (n_rows,)
        Column index of the true class of each row.

    weights : array of shape (n_rows,) or None
        Weight of each row.

    compute_features, targets, theta
        See `_sum_loss_derivatives`.

    Returns
    -------
    array
        Packed sums of `sum_logistic_derivatives`.
    """
    curve_weights = _compute_curve_weights(block, weights)
    is_positive = _find_positive_rows(block, labels)
    target_table = np.where(is_positive, targets.positive, targets.negative)
    return sum_logistic_derivatives(compute_features(block), target_table, curve_weights, theta)


def _compute_curve_weights(block: NDArray[Any], weights: Weights) -> Float:
    """Return the weight of each row in each curve, zero if the class is masked."""
    is_unmasked = get_one_vs_rest_columns(block) > -np.inf
    if weights is None:
        return np.asarray(is_unmasked, dtype=np.float64)
    return np.asarray(is_unmasked * weights[:, None], dtype=np.float64)


def _find_positive_rows(block: NDArray[Any], labels: Codes) -> Flags:
    """Return a mask of the rows (by curve) whose true class is that of the curve."""
    return get_one_vs_rest_columns(labels[:, None] == np.arange(block.shape[1]))


def _sum_curve_weights(sample: LabelledRows) -> _CurveWeights:
    """Sum the weights of all rows and of the positive rows of each curve."""
    total, positive = sample.rows.sum(_sum_block_curve_weights, sample.labels, sample.weights)
    return _CurveWeights(total=total, positive=positive)


def _sum_block_curve_weights(block: NDArray[Any], labels: Codes, weights: Weights) -> Float:
    """Sum the weights of all rows and of the positive rows of each curve in a block."""
    curve_weights = _compute_curve_weights(block, weights)
    positive_weights = curve_weights * _find_positive_rows(block, labels)
    return np.stack([curve_weights.sum(axis=0), positive_weights.sum(axis=0)])


def compute_log_probabilities(block: NDArray[Any]) -> tuple[Float, Float]:
    """Compute log p and -log(1 - p) for the class of each one-vs-rest curve."""
    logits = np.asarray(limit_logits(block), dtype=np.float64)
    log_p, minus_log_complement = NUMPY.evaluate(formulas.log_probabilities_and_complements, logits)
    return get_one_vs_rest_columns(log_p), get_one_vs_rest_columns(minus_log_complement)


def _compute_log_odds_features(block: NDArray[Any]) -> list[Float]:
    """Compute the features log(p / (1 - p)) and 1."""
    log_p, minus_log_complement = compute_log_probabilities(block)
    return [log_p + minus_log_complement, np.ones((1, 1))]


def _compute_log_features(block: NDArray[Any]) -> list[Float]:
    """Compute the features log p, -log(1 - p) and 1."""
    log_p, minus_log_complement = compute_log_probabilities(block)
    return [log_p, minus_log_complement, np.ones((1, 1))]


def _compute_centred_log_features(block: NDArray[Any]) -> list[Float]:
    """Compute the features log p and -log(1 - p), shifted to be zero at p = 1/2."""
    log_p, minus_log_complement = compute_log_probabilities(block)
    return [log_p + np.log(2.0), minus_log_complement - np.log(2.0)]


#: Variants of beta calibration by name.
_BETA_VARIANTS = {
    "abm": _BetaVariant(
        compute_features=_compute_log_features, identity=[1.0, 1.0, 0.0], has_intercept=True
    ),
    "am": _BetaVariant(
        compute_features=_compute_log_odds_features, identity=[1.0, 0.0], has_intercept=True
    ),
    "ab": _BetaVariant(
        compute_features=_compute_centred_log_features, identity=[1.0, 1.0], has_intercept=False
    ),
}
