"""A fitted map as ONNX nodes: its formula, in the table's precision or in double, and what is
shorter than the formula.

Smooth maps of one exponential are written in single precision for a float32 table, as in Python,
where a kernel writes them. There b·x may overflow, masks may still be finite numbers, and a branch
that counts the possible classes is only taken where a class may be masked: the usual table pays for
one look at it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from metacal.errors import InputError
from metacal.export.onnx.traced import Traced, Value, unless_masked, with_masks
from metacal.formulas import curves, parts, temperature
from metacal.formulas.logits import limit_logits_formula
from metacal.formulas.probabilities import limit_probabilities, probability_limits
from metacal.kernels.columns import lifted
from metacal.maps.map import Map
from metacal.maps.methods import METHODS


def probabilities(xp: Traced, fitted: Map, x: Value) -> Value:
    """The map's probabilities (n × K) of logits in float32 or float64, in the same precision.

    The table's own precision is enough for smooth maps. The others are written in double: steps and
    steep curves show the last bits of a probability.
    """
    if fitted.formula is None:
        known = ", ".join(sorted({row.map.partition(":")[2] for row in METHODS.values()}))
        raise InputError(
            f"a {type(fitted).__name__} cannot be exported to ONNX; what can is {known}."
        )
    if fitted.in_table_precision:
        return _inside(xp, x, replace(xp, kernels=SHORTCUTS).apply_map(fitted, x))
    double = replace(xp, dtype="float64", masks_read=True, kernels=SHORTCUTS)
    written = double.apply_map(fitted, double.value(_doubles(xp, x)))
    return _inside(xp, x, written if xp.dtype == "float64" else xp.cast(written))


def _inside(xp: Traced, x: Value, probs: Value) -> Value:
    """None of them 0 or 1; masks are looked for where there may be some."""

    def over_all(inner: Traced) -> Value:
        least, most = probability_limits(np.finfo(xp.dtype))
        own = inner.value(probs)
        own = inner.where(own < least, least, own)
        return inner.where(own > most, most, own)

    def over_possible(inner: Traced) -> Value:
        own = inner.value(x) if inner.masks_read else with_masks(inner, x)
        return limit_probabilities(inner, own, inner.value(probs))

    return unless_masked(xp, x, over_all, over_possible)


def _doubles(xp: Traced, x: Value) -> Value:
    """The logits in double, finite masks as -inf, none beyond reach; the usual table pays for one
    look at it.
    """

    def masked(inner: Traced) -> Value:
        return inner.cast(with_masks(inner.to(xp.dtype), x))

    table = unless_masked(xp, x, lambda inner: inner.cast(x), masked, "float64")
    # No float32 logit is out of a double's reach.
    return limit_logits_formula(xp, table) if xp.dtype == "float64" else table


def are_numbers(xp: Traced, fitted: Map, probs: Value) -> Value:
    """Whether the probabilities of a row (n) are numbers at all.

    One NaN makes every entry of a softmax NaN, so that one column tells; of the other maps the sum
    of the row does.
    """
    if fitted.ends_in_softmax:
        return xp.op("Gather", probs, xp.to("int64").name(0), axis=1) <= 2.0
    return xp.squeeze(xp.sum(probs)) <= 2.0


def tempered(xp: Traced, x: Value, inverse_temperature: float) -> Value:
    """softmax(b·x) in the precision of the table, where b·x may overflow though x does not: ∞ - ∞
    is no number.

    That takes b > 1, and a largest logit so large that the others, unless they are equal, lie more
    than 1e20 below it: every b ≥ 1 gives such a row the same softmax, and it gets b = 1. With b ≤ 1
    there is nothing to pay. (Softmax itself takes the largest logit off.)
    """
    inverse: Value | float = inverse_temperature
    if inverse_temperature > 1.0 and not xp.masks_read:  # what is read is within reach
        ordinary = xp.absolute(xp.max(x)) < np.finfo(xp.dtype).max / inverse_temperature
        inverse = xp.where(ordinary, inverse_temperature, 1.0)
    return xp.softmax(x * inverse if inverse_temperature != 1.0 else x)


def _uniform_temperature(xp: Traced, fitted: Any, x: Value) -> Value:
    plain = tempered(xp, x, fitted.inverse_temperature)
    return (
        plain
        if fitted.uniform == 0.0
        else _with_uniform(xp, plain * (1.0 - fitted.uniform), fitted.uniform, x)
    )


def _ensemble(xp: Traced, fitted: Any, x: Value) -> Value:
    first, second, third = fitted.weights
    mixed = tempered(xp, x, fitted.inverse_temperature) * first + xp.softmax(x) * second
    return mixed if third <= 0.0 else _with_uniform(xp, mixed, third, x)


def _with_uniform(xp: Traced, mixed: Value, weight: float, x: Value) -> Value:
    """What is mixed so far, plus weight/K over the classes that are not masked."""

    def over_all(inner: Traced) -> Value:
        return inner.value(mixed) + weight / xp.n_classes

    def over_possible(inner: Traced) -> Value:
        possible = _possible(inner, x)
        return inner.value(mixed) + possible / (inner.sum(possible) / weight)

    return unless_masked(xp, x, over_all, over_possible)


def _lifted(xp: Traced, fitted: Any, x: Value) -> Value:
    """A softmax in the table's precision; what it is multiplied with and what is added, a few
    numbers a row, in double.

    `metacal.kernels.columns` says what is computed.
    """
    double, (first, then) = xp.to("float64"), fitted.usual
    winner = xp.argmax(x)
    others = xp.put(tempered(xp, x, first.inverse_temperature), winner, 0.0)
    rest, second = (double.cast(column) for column in (xp.sum(others), xp.max(others)))
    value = partial(curves.spline_value, double, then)
    scale, add, own = map(xp.cast, lifted(double, rest, second, _even(xp, x), first.uniform, value))
    lower = others * scale + add
    kept = unless_masked(
        xp,
        x,
        lambda inner: inner.op("Identity", lower),
        lambda inner: inner.value(lower) * _possible(inner, x),
    )
    return xp.put(kept, winner, own)


def _even(xp: Traced, x: Value) -> Value:
    """One over the number of possible classes, in double (n × 1)."""

    def over_all(inner: Traced) -> Value:
        return inner.value(inner.name([[1.0 / xp.n_classes]]))

    def over_possible(inner: Traced) -> Value:
        own = inner.to(xp.dtype)
        return 1.0 / inner.cast(own.sum(_possible(own, x)))

    return unless_masked(xp, x, over_all, over_possible, "float64")


def _possible(xp: Traced, x: Value) -> Value:
    """1 where a class is possible, else 0; finite masks are read where they have not been."""
    return xp.to_float(xp.unmasked(xp.value(x) if xp.masks_read else with_masks(xp, x)))


#: formula -> what is written in its stead.
SHORTCUTS: dict[Callable[..., Any], Callable[..., Any]] = {
    temperature.tempered_softmax: tempered,
    temperature.uniform_temperature: _uniform_temperature,
    temperature.ensemble: _ensemble,
    parts.spline_after_uniform: _lifted,
}
