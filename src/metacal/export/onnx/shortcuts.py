"""What ONNX has a shorter way for than the formula: softmaxes in the table's own precision, and a look for masks first.

Smooth maps of one exponential are written in single precision for a float32 table, as in Python, where a kernel writes
them. There b·x may overflow, masks may still be finite numbers, and a branch that counts the possible classes is only
taken where a class may be masked: the usual table pays for one look at it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from metacal.export.onnx.graph import Arithmetic
from metacal.export.onnx.traced import Traced, Value
from metacal.formulas import curves, parts, temperature
from metacal.formulas.logits import LOWEST_ORDINARY, read_masks


def tempered(xp: Traced, x: Value, inverse_temperature: float) -> Value:
    """softmax(b·x) in the precision of the table, where b·x may overflow though x does not: ∞ - ∞ is no number.

    That takes b > 1, and a largest logit so large that the others, unless they are equal, lie more than 1e20 below it:
    every b ≥ 1 gives such a row the same softmax, and it gets b = 1. With b ≤ 1 there is nothing to pay. (Softmax
    itself takes the largest logit off.)
    """
    inverse: Value | float = inverse_temperature
    if inverse_temperature > 1.0 and not xp.maths.masks_read:  # what is read is within reach
        ordinary = xp.absolute(xp.max(x)) < np.finfo(xp.maths.dtype).max / inverse_temperature
        inverse = xp.where(ordinary, inverse_temperature, 1.0)
    return xp.softmax(x * inverse if inverse_temperature != 1.0 else x)


def _uniform_temperature(xp: Traced, fitted: Any, x: Value) -> Value:
    plain = tempered(xp, x, fitted.inverse_temperature)
    return plain if fitted.uniform == 0.0 else _with_uniform(xp, plain * (1.0 - fitted.uniform), fitted.uniform, x)


def _ensemble(xp: Traced, fitted: Any, x: Value) -> Value:
    first, second, third = fitted.weights
    mixed = tempered(xp, x, fitted.inverse_temperature) * first + xp.softmax(x) * second
    return mixed if third <= 0.0 else _with_uniform(xp, mixed, third, x)


def _with_uniform(xp: Traced, mixed: Value, weight: float, x: Value) -> Value:
    """What is mixed so far, plus weight/K over the classes that are not masked."""

    def over_all(inner: Traced) -> Value:
        return inner.value(mixed.name) + weight / xp.n_classes

    def over_possible(inner: Traced) -> Value:
        possible = _possible(inner, x)
        return inner.value(mixed.name) + possible / (inner.sum(possible) / weight)

    return _unless_masked(xp, x, over_all, over_possible)


def _lifted(xp: Traced, fitted: Any, x: Value) -> Value:
    """A softmax in the table's precision; what it is multiplied with and what is added, a few numbers a row, in double.

    `metacal.kernels.columns` says what is computed.
    """
    double, (first, then) = Traced(Arithmetic(xp.graph, "float64"), xp.n_classes), fitted.usual
    uniform, winner = first.uniform, xp.argmax(x)
    others = xp.put(tempered(xp, x, first.inverse_temperature), winner, 0.0)
    even, keep = _even(xp, x)
    rest, second = (double.value(double.maths.cast(column.name)) for column in (xp.sum(others), xp.max(others)))
    shift = even * uniform
    left = rest * (1.0 - uniform) + (1.0 - even) * uniform
    alone = left == 0.0
    left = double.where(alone, 1.0, left)
    ahead = (1.0 - rest) * (1.0 - uniform) + shift
    z = curves.spline_value(double, then, double.log(ahead) - double.log(left))
    share = (second * (1.0 - uniform) + shift) * curves.AHEAD / left
    most = 1.0 / (share + 1.0)
    below = double.minimum(double.logistic(-z), most)
    top = double.maximum(double.logistic(z), share * most)  # never below the second class
    each = double.where(alone, 0.0, below / left)
    scale, add, own = (
        xp.value(xp.maths.cast(column.name))
        for column in (each * (1.0 - uniform), each * shift, double.where(alone, 1.0, top))
    )
    return xp.put(keep(others * scale + add), winner, own)


def _even(xp: Traced, x: Value) -> tuple[Value, Callable[[Value], Value]]:
    """One over the number of possible classes in double (n × 1), and what sets those that are masked to zero."""
    double = Traced(Arithmetic(xp.graph, "float64"), xp.n_classes)

    def over_all(inner: Traced) -> Value:
        return inner.value(inner.maths.value([[1.0 / xp.n_classes]]))

    def over_possible(inner: Traced) -> Value:
        possible = _possible(xp.within(inner.graph), x)
        counted = inner.graph.over_classes("ReduceSum", possible.name)
        return 1.0 / inner.value(inner.maths.cast(counted))

    def keep(table: Value) -> Value:
        return _unless_masked(
            xp,
            x,
            lambda inner: inner.op("Identity", table),
            lambda inner: inner.value(table.name) * _possible(inner, x),
        )

    return _unless_masked(double, x, over_all, over_possible, seen=xp), keep


def _unless_masked(
    xp: Traced,
    x: Value,
    plainly: Callable[[Traced], Value],
    masked: Callable[[Traced], Value],
    seen: Traced | None = None,
) -> Value:
    """The first where no logit of the table is so low that it may stand for a mask, else the second."""
    flag = has_no_masks((seen or xp).maths, x.name)
    branches = [lambda branch, write=write: [write(xp.within(branch)).name] for write in (plainly, masked)]
    return xp.value(xp.graph.choose(flag, [xp.maths.dtype], *branches)[0])


def has_no_masks(maths: Arithmetic, logits: str) -> str:
    """One flag: no logit of the table is so low that it may stand for a masked class; false where one is NaN."""
    return maths("Greater", maths.graph.op("ReduceMin", logits, keepdims=0), LOWEST_ORDINARY)


def with_masks(maths: Arithmetic, logits: str) -> str:
    """The logits with -inf where a finite number stands for a masked class, by the rule of `formulas.masks`."""
    xp = Traced(maths)
    found: Value = read_masks(xp, xp.value(logits))
    return found.name


def _possible(xp: Traced, x: Value) -> Value:
    """1 where a class is possible, else 0; finite masks are read where they have not been."""
    logits = x.name if xp.maths.masks_read else with_masks(xp.maths, x.name)
    return xp.number(xp.possible(xp.value(logits)))


#: formula -> what is written in its stead.
SHORTCUTS: dict[Callable[..., Any], Callable[..., Any]] = {
    temperature.tempered: tempered,
    temperature.uniform_temperature: _uniform_temperature,
    temperature.ensemble: _ensemble,
    parts.lifted: _lifted,
}
