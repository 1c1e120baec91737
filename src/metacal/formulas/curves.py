"""Curves of each class's own probability, one class against the rest, and of the predicted class's
confidence.

Beyond two classes the K answers are divided by their sum; two classes are one question, asked of
the second column.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from metacal.formulas.operations import Operations, formula
from metacal.formulas.rowwise import doubt, tail
from metacal.formulas.temperature import tempered

#: Log-odds beyond this say nothing more: e^-700 is the smallest probability of full precision.
FARTHEST = 700.0
#: What a monotone map has of its curves, of either kind.
CURVES = ("low", "width", "rise", "start", "weight")
#: The predicted class's probability is at least this times that of any other: a tie would be no
#: prediction.
AHEAD = 1.0 + 1e-6


@formula
def platt(xp: Operations, fitted: Any, x: Any) -> Any:
    """σ(slope · log(p / (1 - p)) + intercept) of each class; then divided by their sum."""
    return _logistic(xp, fitted, fitted.slope, fitted.slope, x)


@formula
def beta(xp: Operations, fitted: Any, x: Any) -> Any:
    """σ(a · log p - b · log(1 - p) + c) of each class; then divided by their sum."""
    return _logistic(xp, fitted, fitted.a, fitted.b, x)


@formula
def piecewise(xp: Operations, fitted: Any, x: Any) -> Any:
    """q_k = curve_k(p_k), p = softmax(b·x); then q / Σ q, and p itself where every q is zero."""
    plain = tempered(xp, x, fitted.inverse_temperature)
    if fitted.n_questions > 1:
        return _combined(xp, x, follow(xp, fitted, plain), plain)
    answer = follow(xp, fitted, xp.column(plain, 1))
    return _of_two(xp, x, 1.0 - answer, answer, plain)


@formula
def shared(xp: Operations, fitted: Any, x: Any) -> Any:
    """q_k = curve(p_k) with one curve for all classes; then q / Σ q."""
    plain = tempered(xp, x, fitted.inverse_temperature)
    return _combined(xp, x, follow(xp, fitted, plain), plain)


@formula
def top_label(xp: Operations, fitted: Any, x: Any) -> Any:
    """The winner gets curve(max p), any other its share of what is left; p = softmax(b·x)."""
    scaled = x * fitted.inverse_temperature
    confidence = follow(xp, fitted, 1.0 - doubt(xp, scaled))
    return _with_top(xp, scaled, confidence, 1.0 - confidence)


@formula
def spline(xp: Operations, fitted: Any, x: Any) -> Any:
    """The winner gets σ(s(z)), z the log-odds of its confidence."""
    scaled = x * fitted.inverse_temperature
    z = spline_value(xp, fitted, confidence_log_odds(xp, scaled))
    return _with_top(xp, scaled, xp.logistic(z), xp.logistic(-z))


@formula
def monotone(xp: Operations, fitted: Any, x: Any) -> Any:
    """(1 - e)·Σ_m w_m σ(h_m(s)) + e·r: of two classes for the second, s its log-odds; of more for
    the winner's own.

    h_m is straight between knots, of s or of log((n·p + ½)/(n·(1 - p) + ½)), p = σ(s).
    """
    scaled = x * fitted.inverse_temperature
    if fitted.two_classes:
        one, other = (0, 1) if fitted.turned else (1, 0)
        s = xp.clip(xp.column(scaled, one) - xp.column(scaled, other), -FARTHEST, FARTHEST)
    else:
        s = confidence_log_odds(xp, scaled)
    first, second = fitted.rest * (1.0 - fitted.level), fitted.rest * fitted.level
    for end, seen in (("", s), ("_2", _shrunk(xp, fitted.n_rows, s))):
        low, width, rise, start, weight = (getattr(fitted, name + end) for name in CURVES)
        beyond = xp.minimum(seen - low[0], 0.0) + xp.maximum(seen - low[-1] - width[-1], 0.0)
        h = (
            xp.clip((seen - low) / width, 0.0, 1.0) @ rise
            + start
            + beyond * (rise.sum(0) / width.sum())
        )
        first = first + xp.sum(xp.logistic(-h) * weight)
        second = second + xp.sum(xp.logistic(h) * weight)
    if fitted.two_classes:
        first, second = (second, first) if fitted.turned else (first, second)
        return _of_two(xp, x, first, second, lambda: tempered(xp, x, 1.0))
    return _with_top(xp, scaled, second, first)


def _shrunk(xp: Operations, n_rows: Any, s: Any) -> Any:
    """The log-odds of n·σ(s) + ½ against n·σ(-s) + ½: what is beyond one in n says little more."""
    return xp.log(xp.logistic(s) * n_rows + 0.5) - xp.log(xp.logistic(-s) * n_rows + 0.5)


@formula
def follow(xp: Operations, fitted: Any, at: Any) -> Any:
    """The value of column k's curve at each of its entries; beyond the outer knots it goes on
    level.

    `fitted` has the curves one after another: `knots`, which pieces are looked up by as `lifted`,
    `values`, `rises` (the slope from each knot to the next) and `offsets`; the longest has
    `longest` knots.
    """
    piece = xp.piece(fitted.lifted, fitted.offsets, fitted.longest, at)
    level = xp.take(fitted.values, piece)
    if fitted.interpolation == "step":
        return level
    return level + xp.take(fitted.rises, piece) * xp.maximum(at - xp.take(fitted.knots, piece), 0.0)


def confidence_log_odds(xp: Operations, x: Any) -> Any:
    """log(max p / (1 - max p)), without cancellation, at most 700 in size."""
    unsure = xp.maximum(doubt(xp, x), float(np.exp(-FARTHEST)))
    return xp.log1p(-unsure) - xp.log(unsure)


@formula
def spline_value(xp: Operations, fitted: Any, z: Any) -> Any:
    """s(z): its slope runs straight from knot to knot, level beyond the outer ones; s(first knot)
    is the intercept.
    """
    knots, slopes = fitted.knots, fitted.slopes
    s = (
        fitted.intercept
        + xp.minimum(z - knots[0], 0.0) * slopes[0]
        + xp.maximum(z - knots[-1], 0.0) * slopes[-1]
    )
    if fitted.n_knots == 1:
        return s
    width = knots[1:] - knots[:-1]
    along = xp.clip(z - knots[:-1], 0.0, width)
    return s + xp.sum(along * (slopes[:-1] + along * (0.5 * (slopes[1:] - slopes[:-1]) / width)))


def log_probabilities(xp: Operations, x: Any) -> tuple[Any, Any]:
    """log p and -log(1 - p) of each class, without cancellation, at most 700 in size."""
    found = tail(xp, x)
    log_sum = xp.log1p(found.mass)
    log_p, shares = found.gaps, found.powers
    log_p -= log_sum
    shares /= 1.0 + found.mass
    minus_log_rest = -xp.log1p(-shares)
    of_winner = xp.minimum(log_sum - xp.log(found.mass), FARTHEST)
    return xp.maximum(log_p, -FARTHEST), xp.put(minus_log_rest, found.winner, of_winner)


def _logistic(xp: Operations, fitted: Any, a: Any, b: Any, x: Any) -> Any:
    log_p, minus_log_rest = log_probabilities(xp, x)
    plain = lambda: tempered(xp, x, 1.0)  # noqa: E731
    if fitted.n_questions == 1:
        log_p, minus_log_rest = xp.column(log_p, 1), xp.column(minus_log_rest, 1)
    z = log_p * a + minus_log_rest * b + fitted.intercept
    if fitted.n_questions > 1:
        return _combined(xp, x, xp.logistic(z), plain)
    return _of_two(xp, x, xp.logistic(-z), xp.logistic(z), plain)


def _combined(xp: Operations, x: Any, answers: Any, plain: Any) -> Any:
    """The answers divided by their sum; masked classes get zero, a row without a positive answer
    the plain softmax.
    """
    table = xp.where(xp.possible(x), answers, 0.0)
    total = xp.sum(table)
    lost = total <= 0.0
    return xp.where(lost, plain, table / xp.where(lost, 1.0, total))


def _of_two(xp: Operations, x: Any, first: Any, second: Any, plain: Any) -> Any:
    """The same for two classes, whose answers need no common sum; of a masked pair the other class
    is certain.
    """
    whole = xp.min(x) > -np.inf
    return _combined(xp, x, xp.where(whole, xp.beside(first, second), 1.0), plain)


def _with_top(xp: Operations, x: Any, confidence: Any, rest: Any) -> Any:
    """The new confidence on the winner, never behind another class, and the rest in proportion
    among the others.
    """
    winner = xp.argmax(x)
    others = xp.put(x, winner, -np.inf)
    second = xp.max(others)
    accompanied = second > -np.inf
    others -= xp.where(accompanied, second, 0.0)
    shares = xp.exp(others)
    mass = xp.sum(shares)
    # The largest share is 1 / mass: below this confidence the second class would come out ahead.
    own = xp.where(accompanied, xp.maximum(confidence, AHEAD / (AHEAD + mass)), 1.0)
    left = xp.minimum(rest, mass / (AHEAD + mass)) / xp.where(accompanied, mass, 1.0)
    shares *= xp.where(accompanied, left, 0.0)
    return xp.put(shares, winner, own)
