"""Formulas of the maps that apply fitted curves to probabilities.

There are two kinds. A *one-vs-rest* map applies a curve to the probability of each class
and divides the K values by their sum. For two classes there is a single curve, of the
second class. A *top-label* map applies one curve to the confidence, which is the
probability of the predicted class; the other classes share the rest of the probability
in proportion to their softmax.

"Log-odds" of a probability p means log(p / (1 - p)).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from metacal.formulas.operations import Operations, formula
from metacal.formulas.rowwise import exponentiate_gaps, one_minus_max_probability
from metacal.formulas.temperature import tempered_softmax

#: Largest size of log-odds and log-probabilities. A double holds e^-700 in full precision.
MAX_LOG_ODDS = 700.0
#: Smallest ratio of the largest to the second largest probability, above one to avoid ties.
MIN_CONFIDENCE_RATIO = 1.0 + 1e-6


@formula
def platt(xp: Operations, fitted: Any, x: Any) -> Any:
    """Compute σ(slope log(p / (1 - p)) + intercept) per class, normalised to sum 1."""
    return _logistic_curves(xp, fitted, fitted.slope, fitted.slope, x)


@formula
def beta(xp: Operations, fitted: Any, x: Any) -> Any:
    """Compute σ(a log p - b log(1 - p) + c) per class, normalised to sum 1."""
    return _logistic_curves(xp, fitted, fitted.a, fitted.b, x)


@formula
def piecewise(xp: Operations, fitted: Any, x: Any) -> Any:
    """Compute q_k = curve_k(p_k) with p = softmax(b x), normalised to sum 1.

    If every q_k of a row is zero, the result is p.
    """
    p = tempered_softmax(xp, x, fitted.inverse_temperature)
    if fitted.n_curves > 1:
        return _normalise(xp, x, evaluate_curves(xp, fitted, p), fallback=p)
    p_second = evaluate_curves(xp, fitted, xp.column(p, 1))
    return _join_two_classes(xp, x, 1.0 - p_second, p_second, fallback=p)


@formula
def shared_curve(xp: Operations, fitted: Any, x: Any) -> Any:
    """Compute q_k = curve(p_k) with one curve for all classes, normalised to sum 1."""
    p = tempered_softmax(xp, x, fitted.inverse_temperature)
    return _normalise(xp, x, evaluate_curves(xp, fitted, p), fallback=p)


@formula
def top_label(xp: Operations, fitted: Any, x: Any) -> Any:
    """Set the confidence to curve(max p), and rescale the other classes.

    p = softmax(b x), and the other classes share 1 - curve(max p) in proportion to p.
    """
    scaled_logits = x * fitted.inverse_temperature
    max_probability = 1.0 - one_minus_max_probability(xp, scaled_logits)
    confidence = evaluate_curves(xp, fitted, max_probability)
    return _build_table_with_confidence(
        xp, scaled_logits, confidence, error_probability=1.0 - confidence
    )


@formula
def spline(xp: Operations, fitted: Any, x: Any) -> Any:
    """Give the predicted class σ(s(z)), where z are the log-odds of its confidence."""
    scaled_logits = x * fitted.inverse_temperature
    log_odds = spline_value(xp, fitted, confidence_log_odds(xp, scaled_logits))
    confidence = xp.logistic(log_odds)
    return _build_table_with_confidence(
        xp, scaled_logits, confidence, error_probability=xp.logistic(-log_odds)
    )


@formula
def monotone(xp: Operations, fitted: Any, x: Any) -> Any:
    """Compute (1 - e) sum_m w_m σ(h_m(s)) + e r for the positive class.

    With two classes this is the probability of the second class (or of the first one, if
    `turned`), and s are its log-odds. Otherwise it is the probability of the predicted class,
    and s are the log-odds of its confidence. The frequency r is the field `level`, its weight
    e the field `rest`. Each h_m is piecewise linear, either in s or in the shrunken log-odds of
    `shrink_log_odds`.
    """
    scaled_logits = x * fitted.inverse_temperature
    if fitted.two_classes:
        log_odds = _two_class_log_odds(xp, scaled_logits, first_is_positive=fitted.turned)
    else:
        log_odds = confidence_log_odds(xp, scaled_logits)

    frequency_of_positives = fitted.level
    frequency_weight = fitted.rest
    p_negative = frequency_weight * (1.0 - frequency_of_positives)
    p_positive = frequency_weight * frequency_of_positives
    input_by_field_suffix = {
        "": log_odds,
        "_2": shrink_log_odds(xp, fitted.n_rows, log_odds),
    }
    for field_suffix, curve_input in input_by_field_suffix.items():
        curve_log_odds = _evaluate_monotone_curves(xp, fitted, field_suffix, curve_input)
        curve_weights = getattr(fitted, "weight" + field_suffix)
        p_negative = p_negative + xp.sum(xp.logistic(-curve_log_odds) * curve_weights)
        p_positive = p_positive + xp.sum(xp.logistic(curve_log_odds) * curve_weights)

    if not fitted.two_classes:
        return _build_table_with_confidence(
            xp, scaled_logits, p_positive, error_probability=p_negative
        )

    def uncalibrated() -> Any:
        return tempered_softmax(xp, x, 1.0)

    first_is_positive = fitted.turned
    if first_is_positive:
        p_first = p_positive
        p_second = p_negative
    else:
        p_first = p_negative
        p_second = p_positive
    return _join_two_classes(xp, x, p_first, p_second, fallback=uncalibrated)


def _two_class_log_odds(xp: Operations, x: Any, *, first_is_positive: bool) -> Any:
    """Compute the clipped log-odds of the positive class of two classes."""
    if first_is_positive:
        log_odds = xp.column(x, 0) - xp.column(x, 1)
    else:
        log_odds = xp.column(x, 1) - xp.column(x, 0)
    return xp.clip(log_odds, -MAX_LOG_ODDS, MAX_LOG_ODDS)


def _evaluate_monotone_curves(
    xp: Operations, fitted: Any, field_suffix: str, curve_input: Any
) -> Any:
    """Evaluate piecewise-linear curves of a monotone map at one point per row.

    Parameters
    ----------
    xp : Operations
        Array operations of the runtime.

    fitted : MonotoneMap
        Fitted map. Its fields `low`, `width`, `rise` and `start`, with the suffix
        appended, hold the left ends and widths of the pieces, the rise of each curve
        over each piece, and the value of each curve at its left end.

    field_suffix : {"", "_2"}
        Suffix of the fields of the family of curves.

    curve_input : column of shape (n_rows, 1)
        Points at which to evaluate.

    Returns
    -------
    table of shape (n_rows, n_curves)
    """
    piece_starts = getattr(fitted, "low" + field_suffix)
    piece_widths = getattr(fitted, "width" + field_suffix)
    piece_rises = getattr(fitted, "rise" + field_suffix)
    start_values = getattr(fitted, "start" + field_suffix)
    distance_below_knots = xp.minimum(curve_input - piece_starts[0], 0.0)
    distance_above_knots = xp.maximum(curve_input - piece_starts[-1] - piece_widths[-1], 0.0)
    distance_outside_knots = distance_below_knots + distance_above_knots
    piece_fraction = xp.clip((curve_input - piece_starts) / piece_widths, 0.0, 1.0)
    value_between_knots = piece_fraction @ piece_rises + start_values
    # Outside the knots each curve continues with its mean slope.
    mean_slope = piece_rises.sum(0) / piece_widths.sum()
    return value_between_knots + distance_outside_knots * mean_slope


def shrink_log_odds(xp: Operations, n_rows: Any, s: Any) -> Any:
    """Compute log((n σ(s) + ½) / (n σ(-s) + ½)), where n is the number of rows.

    Probabilities far below 1/n are hardly distinguished, because n rows contain little
    information about them.
    """
    log_n_positive = xp.log(xp.logistic(s) * n_rows + 0.5)
    log_n_negative = xp.log(xp.logistic(-s) * n_rows + 0.5)
    return log_n_positive - log_n_negative


@formula
def evaluate_curves(xp: Operations, fitted: Any, points: Any) -> Any:
    """Evaluate the curve of each column at the entries of that column.

    Beyond its outer knots a curve is constant.

    Parameters
    ----------
    xp : Operations
        Array operations of the runtime.

    fitted : CurvesMap
        Curves, concatenated: `knots`, `values`, `slopes_after_knots` and `rounding_tolerant_knots`,
        which determine the piece of an entry. `offsets` holds the index of the first knot
        of each curve; `max_knots` is the largest number of knots of a curve.

    points : table
        Points at which to evaluate, one column per curve.

    Returns
    -------
    table of the same shape
    """
    knot_index = xp.find_last_knots_below(
        fitted.rounding_tolerant_knots, fitted.offsets, fitted.max_knots, points
    )
    value_at_knot = xp.take(fitted.values, knot_index)
    if fitted.interpolation == "step":
        return value_at_knot
    distance_from_knot = xp.maximum(points - xp.take(fitted.knots, knot_index), 0.0)
    return value_at_knot + xp.take(fitted.slopes_after_knots, knot_index) * distance_from_knot


def confidence_log_odds(xp: Operations, x: Any) -> Any:
    """Compute log(max p / (1 - max p)) without cancellation, at most 700 in size."""
    error_probability = xp.maximum(one_minus_max_probability(xp, x), float(np.exp(-MAX_LOG_ODDS)))
    return xp.log1p(-error_probability) - xp.log(error_probability)


@formula
def spline_value(xp: Operations, fitted: Any, z: Any) -> Any:
    """Evaluate the spline s(z).

    The slope of s is linear between neighbouring knots and constant beyond the outer
    knots. The value at the first knot is the intercept.
    """
    knots = fitted.knots
    slopes = fitted.slopes
    distance_below_knots = xp.minimum(z - knots[0], 0.0)
    distance_above_knots = xp.maximum(z - knots[-1], 0.0)
    spline = fitted.intercept + distance_below_knots * slopes[0] + distance_above_knots * slopes[-1]
    if fitted.n_knots == 1:
        return spline
    piece_widths = knots[1:] - knots[:-1]
    distance_into_piece = xp.clip(z - knots[:-1], 0.0, piece_widths)
    half_slope_change = 0.5 * (slopes[1:] - slopes[:-1]) / piece_widths
    mean_slope = slopes[:-1] + distance_into_piece * half_slope_change
    return spline + xp.sum(distance_into_piece * mean_slope)


def log_probabilities_and_complements(xp: Operations, x: Any) -> tuple[Any, Any]:
    """Compute log p and -log(1 - p) of each class without cancellation.

    Parameters
    ----------
    xp : Operations
        Array operations of the runtime.

    x : table of shape (n_rows, n_classes)
        Logits.

    Returns
    -------
    log_p, minus_log_complement : tables of shape (n_rows, n_classes)
        Their entries are at most 700 in size.
    """
    exponentials = exponentiate_gaps(xp, x)
    exp_sum_of_others = exponentials.others_sum
    log_total = xp.log1p(exp_sum_of_others)
    # The tables are temporary results of `exponentiate_gaps`, so they may be overwritten.
    log_p = exponentials.gaps
    log_p -= log_total
    p_of_others = exponentials.other_exponentials
    p_of_others /= 1.0 + exp_sum_of_others
    minus_log_complement = -xp.log1p(-p_of_others)
    # The complement of the confidence is S / (1 + S), because 1 - p loses digits.
    predicted_entry = xp.minimum(log_total - xp.log(exp_sum_of_others), MAX_LOG_ODDS)
    log_p = xp.maximum(log_p, -MAX_LOG_ODDS)
    minus_log_complement = xp.replace_class_entry(
        minus_log_complement, exponentials.predicted_class, predicted_entry
    )
    return log_p, minus_log_complement


def _logistic_curves(xp: Operations, fitted: Any, a: Any, b: Any, x: Any) -> Any:
    """Compute σ(a log p - b log(1 - p) + intercept) per class, normalised to sum 1."""
    log_p, minus_log_complement = log_probabilities_and_complements(xp, x)
    has_two_classes = fitted.n_curves == 1
    if has_two_classes:
        log_p = xp.column(log_p, 1)
        minus_log_complement = xp.column(minus_log_complement, 1)
    z = log_p * a + minus_log_complement * b + fitted.intercept

    def uncalibrated() -> Any:
        return tempered_softmax(xp, x, 1.0)

    if has_two_classes:
        p_first = xp.logistic(-z)
        p_second = xp.logistic(z)
        return _join_two_classes(xp, x, p_first, p_second, fallback=uncalibrated)
    return _normalise(xp, x, xp.logistic(z), fallback=uncalibrated)


def _normalise(xp: Operations, x: Any, class_values: Any, fallback: Any) -> Any:
    """Divide the values of each row by their sum; masked classes get zero.

    Parameters
    ----------
    xp : Operations
        Array operations of the runtime.

    x : table of shape (n_rows, n_classes)
        Logits, which show the masked classes.

    class_values : table of shape (n_rows, n_classes)
        Non-negative values.

    fallback : table or function without parameters
        Probabilities of the rows whose values are all zero.

    Returns
    -------
    table of shape (n_rows, n_classes)
    """
    unmasked_values = xp.where(xp.find_unmasked(x), class_values, 0.0)
    row_sum = xp.sum(unmasked_values)
    is_zero = row_sum <= 0.0
    return xp.where(is_zero, fallback, unmasked_values / xp.where(is_zero, 1.0, row_sum))


def _join_two_classes(xp: Operations, x: Any, p_first: Any, p_second: Any, fallback: Any) -> Any:
    """Build the table of two classes from the columns of their probabilities.

    If one class of a row is masked, the other gets probability 1.

    Parameters
    ----------
    xp : Operations
        Array operations of the runtime.

    x : table of shape (n_rows, 2)
        Logits, which show the masked classes.

    p_first, p_second : columns of shape (n_rows, 1)
        Probabilities of the two classes.

    fallback : table or function without parameters
        Probabilities of the rows in which both columns are zero.

    Returns
    -------
    table of shape (n_rows, 2)
    """
    has_both_classes = xp.min(x) > -np.inf
    class_values = xp.where(has_both_classes, xp.join_columns(p_first, p_second), 1.0)
    return _normalise(xp, x, class_values, fallback=fallback)


def _build_table_with_confidence(
    xp: Operations, x: Any, confidence: Any, error_probability: Any
) -> Any:
    """Build a table in which the predicted class has the given probability.

    The other classes share the error probability in proportion to e^x. The confidence is
    raised if necessary, so that the predicted class stays more probable than any other.

    Parameters
    ----------
    xp : Operations
        Array operations of the runtime.

    x : table of shape (n_rows, n_classes)
        Logits. They are overwritten.

    confidence : column of shape (n_rows, 1)
        New probability of the predicted class.

    error_probability : column of shape (n_rows, 1)
        1 - confidence, passed separately to preserve its digits.

    Returns
    -------
    table of shape (n_rows, n_classes)
    """
    predicted_class = xp.argmax(x)
    other_logits = xp.replace_class_entry(x, predicted_class, -np.inf)
    second_logit = xp.max(other_logits)
    has_other_class = second_logit > -np.inf
    other_logits -= xp.where(has_other_class, second_logit, 0.0)
    # Odds are ratios to the probability of the second class, whose odds are 1.
    other_odds = xp.exp(other_logits)
    total_other_odds = xp.sum(other_odds)
    min_total_odds = MIN_CONFIDENCE_RATIO + total_other_odds
    min_confidence = MIN_CONFIDENCE_RATIO / min_total_odds
    predicted_p = xp.where(has_other_class, xp.maximum(confidence, min_confidence), 1.0)
    max_error_probability = total_other_odds / min_total_odds
    total_other_p = xp.minimum(error_probability, max_error_probability)
    probability_per_odds = total_other_p / xp.where(has_other_class, total_other_odds, 1.0)
    other_p = other_odds
    other_p *= xp.where(has_other_class, probability_per_odds, 0.0)
    return xp.replace_class_entry(other_p, predicted_class, predicted_p)
