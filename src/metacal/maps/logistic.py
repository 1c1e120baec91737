"""Logistic curves of one class's log-probabilities, one class against the rest: Platt scaling and
beta calibration.

Platt, "Probabilistic Outputs for Support Vector Machines", 1999; Lin, Lin & Weng, "A Note on
Platt's Probabilistic Outputs for Support Vector Machines", Machine Learning 68, 2007; Kull, Silva
Filho & Flach, "Beta calibration", AISTATS
2017. Beyond two classes the answers are divided by their sum (Zadrozny & Elkan, 2002).
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
from metacal.formulas.logits import within_reach
from metacal.formulas.operations import NUMPY
from metacal.maps.curves import OneVsRestMap, questions
from metacal.maps.fitting.newton import Sums, logistic_sums, minimise, unpack, with_prior
from metacal.maps.labelled import Labelled, Weights
from metacal.rows import Rows

#: The prior precision of beta's parameters around the identity (a = b = 1, c = 0): a standard
#: deviation of ten.
_BETA_PRECISION = 0.01

#: From a block of logits to the features of each question.
_Design = Callable[[NDArray[Any]], list[Float]]


class LogisticMap(OneVsRestMap):
    """A logistic curve for each question: an intercept, and slopes that are not negative."""

    intercept: Float

    #: The fields that hold the slopes.
    slopes: ClassVar[tuple[str, ...]]
    derived = ("n_questions",)

    @property
    def n_questions(self) -> int:
        """One for each class, one for two."""
        return len(self.intercept)

    def check(self) -> None:
        """Raise unless these are the parameters of logistic curves, an entry for each class."""
        slopes = [getattr(self, name) for name in self.slopes]
        for array in (self.intercept, *slopes):
            same = array.ndim == 1 and len(array) > 0 and array.shape == self.intercept.shape
            if not same or not np.isfinite(array).all():
                raise InputError(
                    "a logistic map needs flat arrays of finite numbers, an entry for each class."
                )
        if any((slope < 0.0).any() for slope in slopes):
            raise InputError("the slopes of a logistic map must not be negative.")


@dataclass(frozen=True, eq=False)
class PlattMap(LogisticMap):
    """q_k = σ(slope_k · log(p_k / (1 - p_k)) + intercept_k) with p = softmax(x), then q / Σ q.
    Slopes are >= 0.

    One slope means two classes: q is the second one's probability.

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
    """q_k = σ(a_k · log p_k - b_k · log(1 - p_k) + c_k) with p = softmax(x), then q / Σ q; a, b >=
    0.

    One entry means two classes: q is the second one's probability.

    Examples
    --------
    >>> one = np.ones(1)
    >>> BetaMap(a=one, b=one, intercept=0 * one)(np.array([[0.0, 2.0]])).round(3)      # the identity
    array([[0.119, 0.881]])
    """

    a: Float
    b: Float
    intercept: Float

    formula = staticmethod(formulas.beta)
    slopes = ("a", "b")


def fit_platt(rows: Rows, labels: Codes, weights: Weights = None) -> PlattMap:
    """Maximise the likelihood of Lin, Lin & Weng's targets, (N₊+1)/(N₊+2) and 1/(N₋+2), class by
    class.

    The targets keep the maximum finite for a class that is absent, or told apart without error. The
    slope is kept non-negative, a deviation from Platt that matters only where a class is *less*
    likely the higher its probability. Newton's method for all classes at once, one pass over the
    rows per step: O(n·K) each, about ten of them.
    """
    sample = Labelled(rows, labels, weights).counted()
    total, positive = sample.rows.sum(_class_weights, sample.labels, sample.weights)
    low, high = 1.0 / (total - positive + 2.0), (positive + 1.0) / (positive + 2.0)
    sums = partial(_pass_over, sample, _log_odds, (low, high))
    # Lin, Lin & Weng's start: the class frequency. A class that no row says anything about keeps
    # its probability.
    start = np.stack(
        [(total == 0.0) * 1.0, np.log((positive + 1.0) / (total - positive + 1.0))], axis=1
    )
    slope, intercept = minimise(sums, start, np.array([True, False]), total, "Platt scaling")[0].T
    return PlattMap(slope, intercept)


def fit_beta(
    rows: Rows, labels: Codes, weights: Weights = None, *, variant: str = "abm"
) -> BetaMap:
    """Maximise the likelihood of σ(a·log p - b·log(1 - p) + c) with a, b >= 0, class by class.

    Variant "abm" is free, "am" has a = b, "ab" has its midpoint at 1/2: c = (a - b)·log 2. A normal
    prior of standard deviation ten around the identity keeps the maximum finite for a class that is
    absent or told apart without error; against a hundred rows it is not felt. Where Kull's method
    drops a parameter that comes out negative and fits again, this finds the maximum under a, b >= 0
    itself. O(n·K) per Newton step, about fifteen steps.
    """
    if variant not in _VARIANTS:
        raise InputError(
            f"variant must be one of {', '.join(map(repr, _VARIANTS))}; got {variant!r}."
        )
    sample = Labelled(rows, labels, weights).counted()
    total, positive = sample.rows.sum(_class_weights, sample.labels, sample.weights)
    design, identity = _VARIANTS[variant]
    centre = np.tile(identity, (len(total), 1))
    bare = partial(_pass_over, sample, design, (np.zeros(len(total)), np.ones(len(total))))
    start = centre.copy()
    if variant != "ab":
        start[:, :-1] = 0.0
        start[:, -1] = np.log((positive + 1.0) / (total - positive + 1.0))
    sums = partial(with_prior, bare, centre, np.eye(centre.shape[1]) * _BETA_PRECISION)
    theta, _ = minimise(
        sums, start, np.array(identity) > 0.0, total, f"beta calibration ({variant!r})"
    )
    if variant == "am":
        return BetaMap(theta[:, 0], theta[:, 0], theta[:, 1])
    if variant == "ab":
        return BetaMap(theta[:, 0], theta[:, 1], (theta[:, 0] - theta[:, 1]) * np.log(2.0))
    return BetaMap(*theta.T)


def _pass_over(
    sample: Labelled, design: _Design, targets: tuple[Float, Float], theta: Float
) -> Sums:
    """Loss, gradient and Hessian of every class's curve, from one pass over the rows."""
    sums = partial(_block_sums, design=design, targets=targets, theta=theta)
    return unpack(sample.rows.sum(sums, sample.labels, sample.weights))


def _block_sums(
    block: NDArray[Any],
    labels: Codes,
    weights: Weights,
    design: _Design,
    targets: tuple[Float, Float],
    theta: Float,
) -> Float:
    low, high = targets
    table = _counted(block, weights)
    return logistic_sums(design(block), np.where(_outcomes(block, labels), high, low), table, theta)


def _counted(block: NDArray[Any], weights: Weights) -> Float:
    """How much each row counts for each question: nothing where its class is masked."""
    return np.asarray(
        (questions(block) > -np.inf) * (1.0 if weights is None else weights[:, None]),
        dtype=np.float64,
    )


def _outcomes(block: NDArray[Any], labels: Codes) -> Flags:
    return questions(labels[:, None] == np.arange(block.shape[1]))


def _class_weights(block: NDArray[Any], labels: Codes, weights: Weights) -> Float:
    """For each question the weight of the rows where its class is possible, and of those where it
    is true.
    """
    table = _counted(block, weights)
    return np.stack([table.sum(axis=0), (table * _outcomes(block, labels)).sum(axis=0)])


def _log_odds(block: NDArray[Any]) -> list[Float]:
    """The features log(p / (1 - p)) and 1."""
    log_p, minus_log_rest = log_probabilities(block)
    return [log_p + minus_log_rest, np.ones((1, 1))]


def log_probabilities(block: NDArray[Any]) -> tuple[Float, Float]:
    """log p and -log(1 - p) of each question."""
    table = np.asarray(within_reach(block), dtype=np.float64)
    log_p, minus_log_rest = NUMPY.run(formulas.log_probabilities, table)
    return questions(log_p), questions(minus_log_rest)


def _both_logs(block: NDArray[Any]) -> list[Float]:
    return [*log_probabilities(block), np.ones((1, 1))]


def _centred_logs(block: NDArray[Any]) -> list[Float]:
    log_p, minus_log_rest = log_probabilities(block)
    return [log_p + np.log(2.0), minus_log_rest - np.log(2.0)]


#: The features of each variant of beta calibration, and the parameters of the identity.
_VARIANTS: dict[str, tuple[_Design, list[float]]] = {
    "abm": (_both_logs, [1.0, 1.0, 0.0]),
    "am": (_log_odds, [1.0, 0.0]),
    "ab": (_centred_logs, [1.0, 1.0]),
}
