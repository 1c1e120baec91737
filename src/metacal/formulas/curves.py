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

#: Limit on the size of log-odds and log-probabilities. e^-700 is the smallest probability
#: with full precision.
FARTHEST = 700.0
#: Names of the arrays that describe one family of curves of a monotone map.
CURVES = ("low", "width", "rise", "start", "weight")
#: Smallest ratio of the predicted class's probability to that of any other class. It is
#: above one so that the prediction is unique.
AHEAD = 1.0 + 1e-6


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
    second = evaluate_curves(xp, fitted, xp.column(p, 1))
    return _join_two_classes(xp, x, 1.0 - second, second, fallback=p)


@formula
def shared(xp: Operations, fitted: Any, x: Any) -> Any:
    """Compute q_k = curve(p_k), one curve for all classes, normalised to sum 1."""
    p = tempered_softmax(xp, x, fitted.inverse_temperature)
    return _normalise(xp, x, evaluate_curves(xp, fitted, p), fallback=p)


@formula
def top_label(xp: Operations, fitted: Any, x: Any) -> Any:
    """Give the predicted class curve(max p) and the other classes the rest.

    p = softmax(b x), and the other classes share 1 - curve(max p) in proportion to p.
    """
    scaled_logits = x * fitted.inverse_temperature
    confidence = evaluate_curves(xp, fitted, 1.0 - one_minus_max_probability(xp, scaled_logits))
    return _replace_confidence(xp, scaled_logits, confidence, 1.0 - confidence)


@formula
def spline(xp: Operations, fitted: Any, x: Any) -> Any:
    """Give the predicted class σ(s(z)), where z are the log-odds of its confidence."""
    scaled_logits = x * fitted.inverse_temperature
    log_odds = spline_value(xp, fitted, confidence_log_odds(xp, scaled_logits))
    return _replace_confidence(xp, scaled_logits, xp.logistic(log_odds), xp.logistic(-log_odds))


@formula
def monotone(xp: Operations, fitted: Any, x: Any) -> Any:
    """Compute (1 - e) sum_m w_m σ(h_m(s)) + e r for the calibrated class.

    With two classes this is the probability of the second class, and s are its log-odds.
    Otherwise it is the probability of the predicted class, and s are the log-odds of its
    confidence. Each h_m is piecewise linear, either in s or in the shrunken log-odds of
    `shrink_log_odds`.
    """
    scaled_logits = x * fitted.inverse_temperature
    if fitted.two_classes:
        log_odds = _two_class_log_odds(xp, scaled_logits, is_flipped=fitted.turned)
    else:
        log_odds = confidence_log_odds(xp, scaled_logits)

    p_other = fitted.rest * (1.0 - fitted.level)
    p_own = fitted.rest * fitted.level
    curve_families = (
        ("", log_odds),
        ("_2", shrink_log_odds(xp, fitted.n_rows, log_odds)),
    )
    for suffix, curve_input in curve_families:
        h = _monotone_curves(xp, fitted, suffix, curve_input)
        weight = getattr(fitted, "weight" + suffix)
        p_other = p_other + xp.sum(xp.logistic(-h) * weight)
        p_own = p_own + xp.sum(xp.logistic(h) * weight)

    if not fitted.two_classes:
        return _replace_confidence(xp, scaled_logits, p_own, p_other)
    if fitted.turned:
        p_first, p_second = p_own, p_other
    else:
        p_first, p_second = p_other, p_own
    return _join_two_classes(
        xp, x, p_first, p_second, fallback=lambda: tempered_softmax(xp, x, 1.0)
    )


def _two_class_log_odds(xp: Operations, x: Any, *, is_flipped: bool) -> Any:
    """Compute the log-odds of the second class, or of the first class if flipped."""
    if is_flipped:
        own_column, other_column = 0, 1
    else:
        own_column, other_column = 1, 0
    log_odds = xp.column(x, own_column) - xp.column(x, other_column)
    return xp.clip(log_odds, -FARTHEST, FARTHEST)


def _monotone_curves(xp: Operations, fitted: Any, suffix: str, curve_input: Any) -> Any:
    """Evaluate one family of piecewise-linear curves of a monotone map.

    Parameters
    ----------
    xp : Operations
        Array operations of the runtime.

    fitted : MonotoneMap
        Fitted map. Its fields `low`, `width`, `rise` and `start`, with the suffix
        appended, hold the left ends and widths of the pieces, the rise of each curve
        over each piece, and the value of each curve at its left end.

    suffix : {"", "_2"}
        Family of curves.

    curve_input : column of shape (n_rows, 1)
        Points at which to evaluate.

    Returns
    -------
    table of shape (n_rows, n_curves)
    """
    low = getattr(fitted, "low" + suffix)
    width = getattr(fitted, "width" + suffix)
    rise = getattr(fitted, "rise" + suffix)
    start = getattr(fitted, "start" + suffix)
    below_first = xp.minimum(curve_input - low[0], 0.0)
    above_last = xp.maximum(curve_input - low[-1] - width[-1], 0.0)
    outside = below_first + above_last
    piece_fraction = xp.clip((curve_input - low) / width, 0.0, 1.0)
    # Outside the knots each curve continues with its mean slope.
    return piece_fraction @ rise + start + outside * (rise.sum(0) / width.sum())


def shrink_log_odds(xp: Operations, n_rows: Any, s: Any) -> Any:
    """Compute log((n σ(s) + ½) / (n σ(-s) + ½)), where n is the number of rows.

    Probabilities far below 1/n are hardly distinguished, because n rows contain little
    information about them.
    """
    log_p = xp.log(xp.logistic(s) * n_rows + 0.5)
    log_rest = xp.log(xp.logistic(-s) * n_rows + 0.5)
    return log_p - log_rest


@formula
def evaluate_curves(xp: Operations, fitted: Any, points: Any) -> Any:
    """Evaluate the curve of each column at the entries of that column.

    Beyond its outer knots a curve is constant.

    Parameters
    ----------
    xp : Operations
        Array operations of the runtime.

    fitted : CurvesMap
        Curves, concatenated: `knots`, `values`, `slopes_after_knots` and `lookup_knots`,
        which determine the piece of an entry. `offsets` holds the index of the first knot
        of each curve; `max_knots` is the largest number of knots of a curve.

    points : table
        Points at which to evaluate, one column per curve.

    Returns
    -------
    table of the same shape
    """
    piece = xp.find_piece(fitted.lookup_knots, fitted.offsets, fitted.max_knots, points)
    value_at_knot = xp.take(fitted.values, piece)
    if fitted.interpolation == "step":
        return value_at_knot
    distance = xp.maximum(points - xp.take(fitted.knots, piece), 0.0)
    return value_at_knot + xp.take(fitted.slopes_after_knots, piece) * distance


def confidence_log_odds(xp: Operations, x: Any) -> Any:
    """Compute log(max p / (1 - max p)) without cancellation, at most 700 in size."""
    error_probability = xp.maximum(one_minus_max_probability(xp, x), float(np.exp(-FARTHEST)))
    return xp.log1p(-error_probability) - xp.log(error_probability)


@formula
def spline_value(xp: Operations, fitted: Any, z: Any) -> Any:
    """Evaluate the spline s(z).

    The slope of s is linear between neighbouring knots and constant beyond the outer
    knots. The value at the first knot is the intercept.
    """
    knots = fitted.knots
    slopes = fitted.slopes
    below_first = xp.minimum(z - knots[0], 0.0)
    above_last = xp.maximum(z - knots[-1], 0.0)
    value = fitted.intercept + below_first * slopes[0] + above_last * slopes[-1]
    if fitted.n_knots == 1:
        return value
    width = knots[1:] - knots[:-1]
    distance = xp.clip(z - knots[:-1], 0.0, width)
    half_slope_change = 0.5 * (slopes[1:] - slopes[:-1]) / width
    return value + xp.sum(distance * (slopes[:-1] + distance * half_slope_change))


def log_probabilities(xp: Operations, x: Any) -> tuple[Any, Any]:
    """Compute log p and -log(1 - p) of each class without cancellation.

    Parameters
    ----------
    xp : Operations
        Array operations of the runtime.

    x : table of shape (n_rows, n_classes)
        Logits.

    Returns
    -------
    log_p, minus_log_rest : tables of shape (n_rows, n_classes)
        Their entries are at most 700 in size.
    """
    row_tail = exponentiate_gaps(xp, x)
    log_sum = xp.log1p(row_tail.mass)
    log_p = row_tail.gaps
    p = row_tail.powers
    log_p -= log_sum
    p /= 1.0 + row_tail.mass
    minus_log_rest = -xp.log1p(-p)
    minus_log_rest_of_winner = xp.minimum(log_sum - xp.log(row_tail.mass), FARTHEST)
    log_p = xp.maximum(log_p, -FARTHEST)
    return log_p, xp.put(minus_log_rest, row_tail.winner, minus_log_rest_of_winner)


def _logistic_curves(xp: Operations, fitted: Any, a: Any, b: Any, x: Any) -> Any:
    """Compute σ(a log p - b log(1 - p) + intercept) per class, normalised to sum 1."""
    log_p, minus_log_rest = log_probabilities(xp, x)
    has_one_curve = fitted.n_curves == 1
    if has_one_curve:
        log_p = xp.column(log_p, 1)
        minus_log_rest = xp.column(minus_log_rest, 1)
    z = log_p * a + minus_log_rest * b + fitted.intercept

    def softmax() -> Any:
        return tempered_softmax(xp, x, 1.0)

    if has_one_curve:
        return _join_two_classes(xp, x, xp.logistic(-z), xp.logistic(z), fallback=softmax)
    return _normalise(xp, x, xp.logistic(z), fallback=softmax)


def _normalise(xp: Operations, x: Any, q: Any, fallback: Any) -> Any:
    """Divide the values of each row by their sum; masked classes get zero.

    Parameters
    ----------
    xp : Operations
        Array operations of the runtime.

    x : table of shape (n_rows, n_classes)
        Logits, which show the masked classes.

    q : table of shape (n_rows, n_classes)
        Non-negative values.

    fallback : table or function without parameters
        Probabilities of the rows whose values are all zero.

    Returns
    -------
    table of shape (n_rows, n_classes)
    """
    unmasked_q = xp.where(xp.unmasked(x), q, 0.0)
    total = xp.sum(unmasked_q)
    is_zero = total <= 0.0
    return xp.where(is_zero, fallback, unmasked_q / xp.where(is_zero, 1.0, total))


def _join_two_classes(xp: Operations, x: Any, first: Any, second: Any, fallback: Any) -> Any:
    """Build the table of two classes from their columns.

    If one class of a row is masked, the other gets probability 1.

    Parameters
    ----------
    xp : Operations
        Array operations of the runtime.

    x : table of shape (n_rows, 2)
        Logits, which show the masked classes.

    first, second : columns of shape (n_rows, 1)
        Probabilities of the two classes.

    fallback : table or function without parameters
        Probabilities of the rows in which both columns are zero.

    Returns
    -------
    table of shape (n_rows, 2)
    """
    no_class_masked = xp.min(x) > -np.inf
    q = xp.where(no_class_masked, xp.join_columns(first, second), 1.0)
    return _normalise(xp, x, q, fallback=fallback)


def _replace_confidence(xp: Operations, x: Any, confidence: Any, rest: Any) -> Any:
    """Give the predicted class a new probability and divide the rest among the others.

    The other classes share the rest in proportion to e^x. The predicted class always
    stays more probable than any other class.

    Parameters
    ----------
    xp : Operations
        Array operations of the runtime.

    x : table of shape (n_rows, n_classes)
        Logits. They are overwritten.

    confidence : column of shape (n_rows, 1)
        New probability of the predicted class.

    rest : column of shape (n_rows, 1)
        1 - confidence, passed separately to preserve its digits.

    Returns
    -------
    table of shape (n_rows, n_classes)
    """
    winner = xp.argmax(x)
    other_logits = xp.put(x, winner, -np.inf)
    second_logit = xp.max(other_logits)
    has_other_class = second_logit > -np.inf
    other_logits -= xp.where(has_other_class, second_logit, 0.0)
    shares = xp.exp(other_logits)
    mass = xp.sum(shares)
    # The largest share is 1 / mass, so with less confidence than this the second class
    # would overtake the predicted class.
    lowest_confidence = AHEAD / (AHEAD + mass)
    winner_p = xp.where(has_other_class, xp.maximum(confidence, lowest_confidence), 1.0)
    others_p = xp.minimum(rest, mass / (AHEAD + mass)) / xp.where(has_other_class, mass, 1.0)
    shares *= xp.where(has_other_class, others_p, 0.0)
    return xp.put(shares, winner, winner_p)
