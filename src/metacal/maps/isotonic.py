"""Isotonic calibration: one-vs-rest, top-label, or one curve for all classes.

References
----------
Zadrozny & Elkan, "Transforming classifier scores into accurate multiclass probability
estimates", KDD 2002.

Zhang, Kailkhura & Han, "Mix-n-Match: Ensemble and Compositional Methods for Uncertainty
Calibration", ICML 2020 (IROvA-TS and IRM).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from metacal.formulas import Codes, Float
from metacal.formulas.curves import shared_curve
from metacal.maps.curve_fitting import (
    BinaryColumn,
    DistinctPoints,
    FitCurve,
    PiecewiseCurve,
    fit_piecewise,
    fit_top_label,
    make_identity_curve,
    merge_equal_probabilities,
)
from metacal.maps.curves import OneCurveMap, PiecewiseMap, TopLabelMap, softmax
from metacal.maps.labelled import LabelledRows, Weights
from metacal.maps.map import check_prior_rows
from metacal.maps.temperature import fit_temperature
from metacal.rows import Rows


@dataclass(frozen=True, eq=False)
class SharedMap(OneCurveMap):
    """Map q_k = curve(p_k) with one increasing curve for all classes, normalised.

    Here p = softmax(b x). A shared increasing curve preserves the order of the classes, so
    every prediction is preserved. If all q_k of a row are zero, which only happens with
    `prior_rows=0`, the result is p.

    Examples
    --------
    >>> square_ish = SharedMap(np.array([0.0, 0.5, 1.0]), np.array([0.0, 0.25, 1.0]))
    >>> square_ish(np.log([[0.5, 0.3, 0.2]])).round(3)
    array([[0.5, 0.3, 0.2]])
    """

    knots: Float
    values: Float
    inverse_temperature: float = 1.0

    preserves_accuracy = True
    interpolation = "linear"
    derived = (*OneCurveMap.derived, "interpolation")
    formula = staticmethod(shared_curve)


def fit_isotonic(
    rows: Rows, labels: Codes, weights: Weights = None, *, prior_rows: float = 1.0
) -> PiecewiseMap:
    """Fit one-vs-rest isotonic regression, blended with the input probabilities.

    The calibrated value is q_k = (N iso_k(p_k) + s p_k) / (N + s), where iso_k minimises
    Σ w (outcome - iso(p))² among non-decreasing functions (pool adjacent violators, with tied
    p pooled first). Like scikit-learn's, it is linear between the
    blocks and constant beyond the outer ones. Plain isotonic regression gives zeros and
    ones, which n rows cannot justify. The s rows' worth of the uncalibrated model keep each
    value inside (0, 1) and each curve strictly increasing; Zhang et al. add 1e-9 p for the
    same reason.

    Parameters
    ----------
    rows : Rows
        Rows of logits.

    labels : array of int of shape (n_rows,)
        Column index of the true class of each row.

    weights : array of shape (n_rows,), optional
        Weight of each row. N is the sum of the weights.

    prior_rows : float, default=1.0
        Number s of pseudo-rows. 0 gives plain isotonic regression.

    Returns
    -------
    PiecewiseMap
    """
    return fit_piecewise(rows, labels, weights, _make_curve_fitter(prior_rows), "linear")


def fit_top_label_isotonic(
    rows: Rows,
    labels: Codes,
    weights: Weights = None,
    *,
    tempered: bool = True,
    prior_rows: float = 1.0,
) -> TopLabelMap:
    """Fit isotonic regression of the correctness on the confidence.

    Parameters
    ----------
    rows, labels, weights, prior_rows
        See `fit_isotonic`.

    tempered : bool, default=True
        Whether to fit a temperature first.

    Returns
    -------
    TopLabelMap
    """
    fit_curve = _make_curve_fitter(prior_rows)
    return fit_top_label(rows, labels, weights, fit_curve, "linear", tempered=tempered)


def fit_irova_ts(
    rows: Rows, labels: Codes, weights: Weights = None, *, prior_rows: float = 1.0
) -> PiecewiseMap:
    """Fit IROvA-TS: a temperature, then one-vs-rest isotonic regression.

    Parameters
    ----------
    rows, labels, weights, prior_rows
        See `fit_isotonic`.

    Returns
    -------
    PiecewiseMap
    """
    inverse_temperature = fit_temperature(rows, labels, weights).inverse_temperature
    fit_curve = _make_curve_fitter(prior_rows)
    return fit_piecewise(rows, labels, weights, fit_curve, "linear", inverse_temperature)


def fit_irm(
    rows: Rows,
    labels: Codes,
    weights: Weights = None,
    *,
    tempered: bool = True,
    prior_rows: float = 1.0,
) -> SharedMap:
    """Fit IRM: one isotonic curve for the pooled probabilities of all classes.

    The curve is fitted to the probabilities of all classes in all rows. The outcome of a
    probability is 1 if the class is the true one, else 0.

    The blend with `prior_rows` of `fit_isotonic` makes the curve strictly increasing. The
    constant pieces of isotonic regression begin at probabilities of true classes. It is
    therefore found exactly from these n probabilities and the weights of the others between
    them, in two passes, O(n K log) time and O(n) memory.

    Parameters
    ----------
    rows, labels, weights, prior_rows
        See `fit_isotonic`.

    tempered : bool, default=True
        Whether to fit a temperature first.

    Returns
    -------
    SharedMap
    """
    prior_rows = check_prior_rows(prior_rows)
    inverse_temperature = 1.0
    if tempered:
        inverse_temperature = fit_temperature(rows, labels, weights).inverse_temperature
    sample = LabelledRows(rows, labels, weights).drop_zero_weight_rows()
    rows = sample.rows
    row_weights = sample.weights_or_ones
    true_probability = rows.compute_column(
        partial(_compute_true_class_probability, inverse_temperature=inverse_temperature),
        sample.labels,
    )
    is_unmasked = ~np.isnan(true_probability)
    if not is_unmasked.any():
        identity_curve = make_identity_curve()
        return SharedMap(identity_curve.knots, identity_curve.values, inverse_temperature)

    unmasked_true_classes = BinaryColumn(
        probability=true_probability[is_unmasked],
        outcome=np.ones(int(is_unmasked.sum())),
        weight=row_weights[is_unmasked],
    )
    true_class_points = merge_equal_probabilities(unmasked_true_classes)
    pieces = _fit_constant_pieces(rows, row_weights, true_class_points, inverse_temperature)
    piece_ends = _find_piece_ends(rows, pieces.starts, inverse_temperature)
    knots = np.stack([pieces.starts, piece_ends], axis=1).ravel()
    values_at_both_ends = np.repeat(pieces.values, 2)
    is_distinct = np.append(True, np.diff(knots) > 0.0)
    curve = PiecewiseCurve(knots=knots[is_distinct], values=values_at_both_ends[is_distinct])
    curve = blend_with_identity(curve, float(row_weights.sum()), prior_rows)
    return SharedMap(curve.knots, curve.values, inverse_temperature)


class _ConstantPieces(NamedTuple):
    """Pieces on which an isotonic regression is constant, in increasing order.

    Attributes
    ----------
    starts : array of shape (n_pieces,)
        Probability at which each piece starts.

    values : array of shape (n_pieces,)
        Fitted frequency of each piece.
    """

    starts: Float
    values: Float


def _fit_constant_pieces(
    rows: Rows, row_weights: Float, true_class_points: DistinctPoints, inverse_temperature: float
) -> _ConstantPieces:
    """Fit the constant pieces of an isotonic regression to all classes.

    The probabilities of the true classes divide [0, 1] into intervals that include their left
    end. In an interval, every later probability is that of a false class. Pooling the interval
    therefore changes no isotonic regression.

    Parameters
    ----------
    rows : Rows
        Rows of logits.

    row_weights : array of shape (n_rows,)
        Weight of each row.

    true_class_points : DistinctPoints
        Distinct probabilities of the true classes.

    inverse_temperature : float
        Inverse temperature applied first.

    Returns
    -------
    _ConstantPieces
    """
    interval_starts = np.append(0.0, true_class_points.probability)
    sum_weights_by_interval = partial(
        _sum_weights_between_cuts,
        cuts=true_class_points.probability,
        inverse_temperature=inverse_temperature,
    )
    interval_weight = rows.sum(sum_weights_by_interval, row_weights)
    true_class_weight = np.append(0.0, true_class_points.positive_weight)
    has_weight = interval_weight > 0.0
    frequency = true_class_weight[has_weight] / interval_weight[has_weight]
    fitted_frequency = isotonic_regression(frequency, weights=interval_weight[has_weight]).x
    is_piece_start = np.append(True, np.diff(fitted_frequency) > 0.0)
    return _ConstantPieces(
        starts=interval_starts[has_weight][is_piece_start],
        values=fitted_frequency[is_piece_start],
    )


def _find_piece_ends(rows: Rows, piece_starts: Float, inverse_temperature: float) -> Float:
    """Find the largest probability in each constant piece."""
    find_ends_in_block = partial(
        _find_largest_between_cuts, cuts=piece_starts[1:], inverse_temperature=inverse_temperature
    )
    piece_ends_by_block = rows.compute_column(find_ends_in_block)
    piece_ends_by_block = piece_ends_by_block.reshape(-1, len(piece_starts))
    return np.maximum(piece_ends_by_block.max(axis=0), piece_starts)


def _make_curve_fitter(prior_rows: object) -> FitCurve:
    """Return the function that fits an isotonic curve with a number of prior rows."""
    return partial(fit_isotonic_curve, prior_rows=check_prior_rows(prior_rows))


def fit_isotonic_curve(distinct_points: DistinctPoints, prior_rows: float) -> PiecewiseCurve:
    """Fit the isotonic curve of one class, blended with prior rows of the identity."""
    frequency = distinct_points.positive_weight / distinct_points.weight
    fitted_frequency = np.clip(
        isotonic_regression(frequency, weights=distinct_points.weight).x, 0.0, 1.0
    )
    increases_to_next = np.diff(fitted_frequency) > 0.0
    is_corner = np.append(True, increases_to_next) | np.append(increases_to_next, True)
    curve = PiecewiseCurve(
        knots=distinct_points.probability[is_corner], values=fitted_frequency[is_corner]
    )
    return blend_with_identity(curve, float(distinct_points.weight.sum()), prior_rows)


def blend_with_identity(
    curve: PiecewiseCurve, total_weight: float, prior_rows: float
) -> PiecewiseCurve:
    """Compute (N curve + s p) / (N + s) for a curve of weight N and s prior rows."""
    # The curve is constant beyond its outer knots.
    knots = curve.knots
    values = curve.values
    if knots[0] > 0.0:
        knots = np.append(0.0, knots)
        values = np.append(values[0], values)
    if knots[-1] < 1.0:
        knots = np.append(knots, 1.0)
        values = np.append(values, values[-1])
    identity_share = prior_rows / (total_weight + prior_rows)
    blended_values = (1.0 - identity_share) * values + identity_share * knots
    return PiecewiseCurve(knots=knots, values=np.clip(blended_values, 0.0, 1.0))


def _compute_true_class_probability(
    block: NDArray[Any], labels: Codes, inverse_temperature: float
) -> Float:
    """Compute the probability of the true class of each row, NaN if masked."""
    row_indices = np.arange(len(block))
    probability = softmax(block, inverse_temperature)[row_indices, labels]
    probability[np.isneginf(block[row_indices, labels])] = np.nan
    return probability


def _sum_weights_between_cuts(
    block: NDArray[Any], weights: Float, cuts: Float, inverse_temperature: float
) -> Float:
    """Sum the weights of the probabilities of a block between neighbouring cuts.

    Parameters
    ----------
    block : array of shape (n_rows, n_classes)
        Logits.

    weights : array of shape (n_rows,)
        Weight of each row.

    cuts : array of shape (n_cuts,)
        Increasing probabilities.

    inverse_temperature : float
        Inverse temperature applied first.

    Returns
    -------
    array of shape (n_cuts + 1,)
        Weight below the first cut, from each cut to the next, and from the last cut on.
    """
    is_unmasked = block > -np.inf
    probabilities = softmax(block, inverse_temperature)[is_unmasked]
    weight_table = np.broadcast_to(weights[:, None], block.shape)
    probability_weights = weight_table[is_unmasked]
    rising_order = np.argsort(probabilities, kind="stable")
    cumulative_weight = np.append(0.0, np.cumsum(probability_weights[rising_order]))
    total_weight = cumulative_weight[-1:]
    n_below_cuts = np.searchsorted(probabilities[rising_order], cuts, side="left")
    weight_below_cuts = cumulative_weight[n_below_cuts]
    return np.diff(np.concatenate(([0.0], weight_below_cuts, total_weight)))


def _find_largest_between_cuts(
    block: NDArray[Any], cuts: Float, inverse_temperature: float
) -> Float:
    """Find the largest probability of a block between neighbouring cuts, 0 if none.

    The groups are those of `_sum_weights_between_cuts`.
    """
    probabilities = np.sort(softmax(block, inverse_temperature)[block > -np.inf])
    n_below_cuts = np.searchsorted(probabilities, cuts, side="left")
    group_edges = np.concatenate(([0], n_below_cuts, [len(probabilities)]))
    largest_of_group = probabilities[np.maximum(group_edges[1:] - 1, 0)]
    is_empty = group_edges[1:] == group_edges[:-1]
    return np.where(is_empty, 0.0, largest_of_group)
