"""Formulas in NumPy, one block of rows at a time, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.formulas.operations import Operations

Float = NDArray[np.float64]


class NumPy(Operations):
    """Operations on arrays. What needs no work is not done: a block without a masked class has the flags True.

    Examples
    --------
    >>> from metacal.formulas.rowwise import mean_of_possible
    >>> xp, x = NumPy(), np.array([[3.0, 1.0, -np.inf], [0.0, 3.0, 6.0]])
    >>> mean_of_possible(xp, x, xp.possible(x))
    array([[2.], [3.]])
    """

    def __init__(self) -> None:
        self.fast = {}

    exp: Any = staticmethod(np.exp)
    log: Any = staticmethod(np.log)
    log1p: Any = staticmethod(np.log1p)
    sqrt: Any = staticmethod(np.sqrt)
    absolute: Any = staticmethod(np.abs)
    maximum: Any = staticmethod(np.maximum)
    minimum: Any = staticmethod(np.minimum)

    def logistic(self, x: Float) -> Float:
        from scipy.special import expit  # not loaded by what only scores

        return np.asarray(expit(x))

    def softmax(self, x: Float) -> Float:
        powers: Float = x - x.max(axis=1, keepdims=True)
        np.exp(powers, out=powers)
        powers /= powers.sum(axis=1, keepdims=True)
        return powers

    def where(self, flags: Any, one: Any, other: Any) -> Any:
        """`one` where a flag is true, else `other`; a function of nothing is called only if its value is seen."""
        if flags is True:
            return _value(one)
        if flags.shape[1] == 1 and (not callable(other) and np.ndim(other)) and not flags.any():
            return other  # of a column of flags that are all false nothing is seen
        return np.where(flags, _value(one), _value(other))

    def sum(self, table: Float) -> Float:
        return np.asarray(table.sum(axis=1, keepdims=True))

    def max(self, table: Float) -> Float:
        return np.asarray(table.max(axis=1, keepdims=True))

    def min(self, table: Float) -> Float:
        return np.asarray(table.min(axis=1, keepdims=True))

    def argmax(self, table: Float) -> NDArray[np.intp]:
        return np.asarray(table.argmax(axis=1)[:, None])

    def put(self, table: Float, places: NDArray[np.intp], value: Any) -> Float:
        """The table itself, written over."""
        table[np.arange(len(table)), places[:, 0]] = value[:, 0] if np.ndim(value) else value
        return table

    def possible(self, x: Float) -> Any:
        return bool(x.min(initial=0.0) > -np.inf) or x > -np.inf  # the first is false where there is a NaN

    def number(self, flags: Any) -> Any:
        return 1.0 if flags is True else flags.astype(np.float64)

    def count(self, flags: Any, table: Float) -> Any:
        return table.shape[1] if flags is True else flags.sum(axis=1, keepdims=True)

    def column(self, table: Float, place: int) -> Float:
        return table[:, place : place + 1]

    def beside(self, one: Float, other: Float) -> Float:
        return np.concatenate([one, other], axis=1)

    def take(self, values: Float, places: NDArray[np.intp]) -> Float:
        return np.asarray(values[places])

    def piece(self, knots: Float, offsets: NDArray[np.int64], longest: int, at: Float) -> NDArray[np.intp]:
        if len(offsets) == 2:
            return np.asarray(np.searchsorted(knots[1:], at, side="left"))
        found = np.empty(at.shape, dtype=np.intp, order="F")
        for k, first in enumerate(offsets[:-1]):
            found[:, k] = first + np.searchsorted(knots[first + 1 : offsets[k + 1]], at[:, k], side="left")
        return found

    def finfo(self, x: Float) -> Any:
        return np.finfo(np.float64)

    def part(self, fitted: Any, x: Float) -> Float:
        """The probabilities of a map inside another, by its own fastest way."""
        out = np.empty(x.shape)
        fitted.write(x, out)
        return out

    def run(self, formula: Callable[..., Any], *values: Any) -> Any:
        """A formula's value; what divides by zero or overflows on the way is meant to."""
        with np.errstate(all="ignore"):
            return formula(self, *values)


def _value(given: Any) -> Any:
    return given() if callable(given) else given


#: The runtime; kernels register what they have a faster way for.
NUMPY = NumPy()
