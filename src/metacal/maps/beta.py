"""Beta calibration: a logistic curve of log p and log(1 - p) of each class, one class against the rest.

Kull, Silva Filho & Flach, "Beta calibration", AISTATS 2017.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError
from metacal.formulas.curves import beta
from metacal.maps.curves.logistic import check_parameters, class_weights, log_odds, log_probabilities, pass_over
from metacal.maps.curves.onevsrest import Float, Labels, Weights, classes_of_questions, counted
from metacal.maps.fitting.newton import minimise, with_prior
from metacal.maps.map import Map
from metacal.rows import Rows

#: The prior precision of beta's parameters around the identity (a = b = 1, c = 0): a standard deviation of ten.
_BETA_PRECISION = 0.01

BETA_VARIANTS = ("abm", "am", "ab")


@dataclass(frozen=True, eq=False)
class BetaMap(Map):
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

    preserves_accuracy = False
    derived = ("n_questions",)
    formula = staticmethod(beta)

    def check(self) -> None:
        """Raise unless the fields make a map."""
        check_parameters(self.intercept, self.a, self.b)

    @property
    def n_questions(self) -> int:
        """One for each class, one for two."""
        return len(self.a)

    @property
    def n_classes(self) -> int:
        """The number of classes the map was fitted for."""
        return classes_of_questions(self.n_questions)


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
    total, positive = rows.sum(class_weights, labels, weights)
    design = {"abm": _both_logs, "am": log_odds, "ab": _centred_logs}[variant]
    identity = {"abm": [1.0, 1.0, 0.0], "am": [1.0, 0.0], "ab": [1.0, 1.0]}[variant]
    centre = np.tile(identity, (len(total), 1))
    bare = partial(pass_over, rows, labels, weights, design, (np.zeros(len(total)), np.ones(len(total))))
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


def _both_logs(block: NDArray[Any]) -> list[Float]:
    return [*log_probabilities(block), np.ones((1, 1))]


def _centred_logs(block: NDArray[Any]) -> list[Float]:
    log_p, minus_log_rest = log_probabilities(block)
    return [log_p + np.log(2.0), minus_log_rest - np.log(2.0)]
