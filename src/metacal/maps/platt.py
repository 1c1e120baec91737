"""Platt scaling: a logistic curve of each class's log-odds, one class against the rest.

Platt, "Probabilistic Outputs for Support Vector Machines", 1999; Lin, Lin & Weng, "A Note on Platt's Probabilistic
Outputs for Support Vector Machines", Machine Learning 68, 2007.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from metacal.formulas.curves import platt
from metacal.maps.curves.logistic import check_parameters, class_weights, log_odds, pass_over
from metacal.maps.curves.onevsrest import Labels, Weights, classes_of_questions, counted
from metacal.maps.fitting.newton import minimise
from metacal.maps.map import Map
from metacal.rows import Rows


@dataclass(frozen=True, eq=False)
class PlattMap(Map):
    """q_k = σ(slope_k · log(p_k / (1 - p_k)) + intercept_k) with p = softmax(x), then q / Σ q. Slopes are >= 0.

    One slope means two classes: q is the second one's probability.

    Examples
    --------
    >>> PlattMap(np.array([0.5]), np.array([0.0]))(np.array([[0.0, 2.0]])).round(3)
    array([[0.269, 0.731]])
    """

    slope: NDArray[np.float64]
    intercept: NDArray[np.float64]

    preserves_accuracy = False
    derived = ("n_questions",)
    formula = staticmethod(platt)

    def check(self) -> None:
        """Raise unless the fields make a map."""
        check_parameters(self.intercept, self.slope)

    @property
    def n_questions(self) -> int:
        """One for each class, one for two."""
        return len(self.slope)

    @property
    def n_classes(self) -> int:
        """The number of classes the map was fitted for."""
        return classes_of_questions(self.n_questions)


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
    total, positive = rows.sum(class_weights, labels, weights)
    low, high = 1.0 / (total - positive + 2.0), (positive + 1.0) / (positive + 2.0)
    sums = partial(pass_over, rows, labels, weights, log_odds, (low, high))
    # Lin, Lin & Weng's start: the class frequency. A class that no row says anything about keeps its probability.
    start = np.stack([(total == 0.0) * 1.0, np.log((positive + 1.0) / (total - positive + 1.0))], axis=1)
    slope, intercept = minimise(sums, start, np.array([True, False]), total, "Platt scaling").T
    return PlattMap(slope, intercept)
