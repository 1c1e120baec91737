"""Logistic curves of one class's log-probabilities, one class against the rest: what Platt and beta scaling share.

Beyond two classes the answers are divided by their sum (Zadrozny & Elkan, 2002).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.formulas import curves as formulas
from metacal.formulas.logits import within_reach
from metacal.formulas.operations import NUMPY
from metacal.maps.curves.onevsrest import Float, Labels, Weights, questions
from metacal.maps.fitting.newton import Sums, logistic_sums, unpack
from metacal.rows import Rows


def pass_over(
    rows: Rows,
    labels: Labels,
    weights: Weights,
    design: Callable[[NDArray[Any]], list[Float]],
    targets: tuple[Float, Float],
    theta: Float,
) -> Sums:
    """Loss, gradient and Hessian of every class's curve, from one pass over the rows."""
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


def class_weights(block: NDArray[Any], labels: Labels, weights: Weights) -> Float:
    """For each question the weight of the rows where its class is possible, and of those where it is true."""
    table = (questions(block) > -np.inf) * (1.0 if weights is None else weights[:, None])
    return np.stack([table.sum(axis=0), (table * _outcomes(block, labels)).sum(axis=0)])


def log_odds(block: NDArray[Any]) -> list[Float]:
    """The features log(p / (1 - p)) and 1."""
    log_p, minus_log_rest = log_probabilities(block)
    return [log_p + minus_log_rest, np.ones((1, 1))]


def log_probabilities(block: NDArray[Any]) -> tuple[Float, Float]:
    """log p and -log(1 - p) of each question."""
    table = np.asarray(within_reach(block), dtype=np.float64)
    log_p, minus_log_rest = NUMPY.run(formulas.log_probabilities, table)
    return questions(log_p), questions(minus_log_rest)


def check_parameters(intercept: Float, *slopes: Float) -> None:
    """Raise unless these are the parameters of logistic curves, an entry for each class."""
    for array in (intercept, *slopes):
        if array.ndim != 1 or not len(array) or array.shape != intercept.shape or not np.isfinite(array).all():
            raise InputError("a logistic map needs flat arrays of finite numbers, an entry for each class.")
    if any((slope < 0.0).any() for slope in slopes):
        raise InputError("the slopes of a logistic map must not be negative.")
