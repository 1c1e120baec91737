"""Fit of piecewise curves, for one-vs-rest and top-label maps.

A method supplies a function that fits the curve of one class to `DistinctPoints`. This module
computes these points from a table of logits and builds the map. See `metacal.maps.curves`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.formulas import Codes, Float
from metacal.formulas.logits import scale_logits
from metacal.maps.curves import PiecewiseMap, TopLabelMap, softmax
from metacal.maps.labelled import LabelledRows, Weights
from metacal.maps.temperature import fit_temperature
from metacal.rows import Rows

#: Number of probabilities of a group of classes held in memory while fitting (64 MB).
MAX_GROUP_ENTRIES = 1 << 23
#: Number of steps of the step function that approximates the identity.
_IDENTITY_STEPS = 100


@dataclass(frozen=True)
class PiecewiseCurve:
    """Piecewise linear curve or step function on [0, 1].

    Attributes
    ----------
    knots : array of shape (n_knots,)
        Corners of a piecewise linear curve, or left ends of the pieces of a step function.

    values : array of shape (n_knots,)
        Values at the corners or on the pieces.
    """

    knots: Float
    values: Float


@dataclass(frozen=True)
class BinaryColumn:
    """Probability, outcome and weight of each row for one class.

    Attributes
    ----------
    probability : array of shape (n_rows,)
        Probability of the class.

    outcome : array of shape (n_rows,)
        1 if the class is the true class, else 0.

    weight : array of shape (n_rows,)
        Weight of the row.
    """

    probability: Float
    outcome: Float
    weight: Float


@dataclass(frozen=True)
class DistinctPoints:
    """Distinct probabilities in increasing order, with the weights of their rows.

    Attributes
    ----------
    probability : array of shape (n_points,)
        Distinct probabilities.

    weight : array of shape (n_points,)
        Weight of the rows with this probability.

    positive_weight : array of shape (n_points,)
        Weight of those rows whose outcome is 1.
    """

    probability: Float
    weight: Float
    positive_weight: Float


#: Function that fits the curve of one class.
FitCurve = Callable[[DistinctPoints], PiecewiseCurve]


def fit_piecewise(
    rows: Rows,
    labels: Codes,
    weights: Weights,
    fit_curve: FitCurve,
    interpolation: str,
    inverse_temperature: float = 1.0,
) -> PiecewiseMap:
    """Fit one curve per class and join the curves into a one-vs-rest map.

    It takes O(n K log n) time and holds 64 MB of probabilities at a time.

    Parameters
    ----------
    rows : Rows
        Rows of logits.

    labels : array of int of shape (n_rows,)
        Column index of the true class of each row.

    weights : array of shape (n_rows,) or None
        Weight of each row.

    fit_curve : function
        Fits the curve of one class.

    interpolation : {"linear", "step"}
        Kind of curve.

    inverse_temperature : float, default=1.0
        Inverse temperature applied first.

    Returns
    -------
    PiecewiseMap
    """
    sample = LabelledRows(rows, labels, weights).drop_zero_weight_rows()
    curves = []
    for class_column in iterate_class_columns(sample, inverse_temperature):
        is_masked_everywhere = len(class_column.probability) == 0
        if is_masked_everywhere:
            curves.append(make_identity_curve(interpolation))
        else:
            curves.append(fit_curve(merge_equal_probabilities(class_column)))
    return build_one_vs_rest_map(curves, interpolation, inverse_temperature)


def fit_top_label(
    rows: Rows,
    labels: Codes,
    weights: Weights,
    fit_curve: FitCurve,
    interpolation: str,
    *,
    tempered: bool,
) -> TopLabelMap:
    """Fit the curve from the confidence to the probability of being correct.

    It takes O(n K + n log n) time and O(n) memory.

    Parameters
    ----------
    rows, labels, weights, fit_curve, interpolation
        See `fit_piecewise`.

    tempered : bool
        Whether to fit a temperature first.

    Returns
    -------
    TopLabelMap
    """
    inverse_temperature = 1.0
    if tempered:
        inverse_temperature = fit_temperature(rows, labels, weights).inverse_temperature
    sample = LabelledRows(rows, labels, weights).drop_zero_weight_rows()
    confidence_column = BinaryColumn(
        probability=sample.rows.compute_column(partial(_compute_confidences, inverse_temperature)),
        outcome=sample.compute_correctness(),
        weight=sample.weights_or_ones,
    )
    curve = fit_curve(merge_equal_probabilities(confidence_column))
    return TopLabelMap(curve.knots, curve.values, interpolation, inverse_temperature)


def build_one_vs_rest_map(
    curves: Sequence[PiecewiseCurve], interpolation: str, inverse_temperature: float = 1.0
) -> PiecewiseMap:
    """Build a one-vs-rest map from the curve of each class."""
    n_knots_of_curves = [len(curve.knots) for curve in curves]
    return PiecewiseMap(
        knots=np.concatenate([curve.knots for curve in curves]),
        values=np.concatenate([curve.values for curve in curves]),
        offsets=np.append(0, np.cumsum(n_knots_of_curves)).astype(np.int64),
        interpolation=interpolation,
        inverse_temperature=inverse_temperature,
    )


def make_identity_curve(interpolation: str = "linear") -> PiecewiseCurve:
    """Return the identity curve, used for a class that is masked in every row."""
    if interpolation == "linear":
        end_points = np.linspace(0.0, 1.0, 2)
        return PiecewiseCurve(knots=end_points, values=end_points)
    step_edges = np.linspace(0.0, 1.0, _IDENTITY_STEPS + 1)
    return PiecewiseCurve(knots=step_edges[:-1], values=0.5 * (step_edges[1:] + step_edges[:-1]))


def iterate_class_columns(
    sample: LabelledRows, inverse_temperature: float = 1.0
) -> Iterator[BinaryColumn]:
    """Yield the unmasked probabilities and outcomes of each class that has a curve."""
    rows = sample.rows
    labels = sample.labels
    weights = sample.weights_or_ones
    # For two classes, the curve of the second class determines both probabilities.
    first_class_with_curve = 1 if rows.n_classes == 2 else 0
    n_classes_per_group = max(1, MAX_GROUP_ENTRIES // len(labels))
    for group_start in range(first_class_with_curve, rows.n_classes, n_classes_per_group):
        group_stop = min(group_start + n_classes_per_group, rows.n_classes)
        compute_group_probabilities = partial(
            compute_unmasked_probabilities,
            inverse_temperature=inverse_temperature,
            class_range=slice(group_start, group_stop),
        )
        group_probabilities = rows.compute_column(compute_group_probabilities)
        for class_index in range(group_start, group_stop):
            probability = group_probabilities[:, class_index - group_start]
            outcome = (labels == class_index).astype(np.float64)
            is_unmasked = ~np.isnan(probability)
            if is_unmasked.all():
                yield BinaryColumn(np.ascontiguousarray(probability), outcome, weights)
            else:
                yield BinaryColumn(
                    probability[is_unmasked], outcome[is_unmasked], weights[is_unmasked]
                )


def compute_unmasked_probabilities(
    block: NDArray[Any], inverse_temperature: float, class_range: slice
) -> Float:
    """Compute the tempered probabilities of a range of classes, NaN if masked."""
    probabilities = softmax(block, inverse_temperature)[:, class_range]
    probabilities = np.ascontiguousarray(probabilities)
    probabilities[np.isneginf(block[:, class_range])] = np.nan
    return probabilities


def merge_equal_probabilities(column: BinaryColumn) -> DistinctPoints:
    """Sort the probabilities of a class and sum the weights of equal probabilities."""
    rising_order = np.argsort(column.probability, kind="stable")
    sorted_probability = column.probability[rising_order]
    differs_from_previous = np.append(True, sorted_probability[1:] > sorted_probability[:-1])
    first_of_ties = np.flatnonzero(differs_from_previous)
    positive_weights = column.weight * column.outcome
    return DistinctPoints(
        probability=sorted_probability[first_of_ties],
        weight=np.add.reduceat(column.weight[rising_order], first_of_ties),
        positive_weight=np.add.reduceat(positive_weights[rising_order], first_of_ties),
    )


def _compute_confidences(inverse_temperature: float, block: NDArray[Any]) -> Float:
    """Compute the confidence of each row, the largest tempered probability."""
    return np.asarray(
        1.0 - kernels.one_minus_max_probability(scale_logits(block, inverse_temperature))
    )
