"""What a formula is written in: a few operations that NumPy, torch and ONNX each have.

A map's formula is a function `formula(xp, fitted, x)` from logits x to probabilities; a score's is
`formula(xp, x)`. `fitted` has the numbers of the fitted map under the names of its fields. Values
are tables (n × K) and columns (n × 1), in one precision, with + - * / @, comparisons, & and |; of a
masked class x is -inf. A formula looks at no value: what it branches on (`fitted.n_knots`, a name)
is known before the first row comes. What it has made itself it may change in place (`d -= c`),
which saves NumPy an array; never x.

A runtime may have a faster way to what a formula says: `fast`, by the formula. It is tested against
the formula. NumPy, which is always there, stands here, torch in `torch.py`, ONNX in
`metacal.export.onnx`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np


class Operations:
    """The operations in NumPy, on one block of rows at a time, in float64; torch and ONNX have them
    all, too.

    What needs no work is not done: a block without a masked class has the flags True. A value that
    is expensive may be given to `where` as a function of nothing.

    Attributes
    ----------
    fast : dict
        formula -> what this runtime computes in its stead, of the same arguments.
    exp, log, log1p, sqrt, absolute, maximum, minimum : functions
        Of each entry: log is -inf of zero, log1p(x) is log(1 + x) without cancellation.

    Examples
    --------
    >>> from metacal.formulas.rowwise import mean_of_possible
    >>> xp, x = Operations(), np.array([[3.0, 1.0, -np.inf], [0.0, 3.0, 6.0]])
    >>> mean_of_possible(xp, x, xp.possible(x))
    array([[2.], [3.]])
    """

    fast: dict[Callable[..., Any], Callable[..., Any]]

    def __init__(self) -> None:
        self.fast = {}

    exp: Any = staticmethod(np.exp)
    log: Any = staticmethod(np.log)
    log1p: Any = staticmethod(np.log1p)
    sqrt: Any = staticmethod(np.sqrt)
    absolute: Any = staticmethod(np.abs)
    maximum: Any = staticmethod(np.maximum)
    minimum: Any = staticmethod(np.minimum)

    def logistic(self, x: Any) -> Any:
        """1 / (1 + e^-x)."""
        from scipy.special import expit  # not loaded by what only scores

        return expit(x)

    def softmax(self, x: Any) -> Any:
        """softmax of each row; a masked class has exactly zero."""
        powers = x - x.max(axis=1, keepdims=True)
        np.exp(powers, out=powers)
        powers /= powers.sum(axis=1, keepdims=True)
        return powers

    def where(self, flags: Any, one: Any, other: Any) -> Any:
        """`one` where a flag is true, else `other`; a function of nothing is called only if its
        value is seen.
        """
        if flags is True:
            return _value(one)
        if flags.shape[1] == 1 and (not callable(other) and np.ndim(other)) and not flags.any():
            return other  # of a column of flags that are all false nothing is seen
        return np.where(flags, _value(one), _value(other))

    def clip(self, x: Any, low: Any, high: Any) -> Any:
        """x, no less than `low` and no more than `high`."""
        return self.minimum(self.maximum(x, low), high)

    def sum(self, table: Any) -> Any:
        """Σ over the classes, a column."""
        return table.sum(axis=1, keepdims=True)

    def max(self, table: Any) -> Any:
        """The largest over the classes, a column."""
        return table.max(axis=1, keepdims=True)

    def min(self, table: Any) -> Any:
        """The smallest over the classes, a column."""
        return table.min(axis=1, keepdims=True)

    def argmax(self, table: Any) -> Any:
        """The place of the largest, the lowest on a tie: a column of whole numbers."""
        return table.argmax(axis=1)[:, None]

    def put(self, table: Any, places: Any, value: Any) -> Any:
        """The table with one entry of each row replaced by a number or a column. The table itself
        is given up.
        """
        table[np.arange(len(table)), places[:, 0]] = value[:, 0] if np.ndim(value) else value
        return table

    def possible(self, x: Any) -> Any:
        """Which classes are not masked: flags for `where`, `number` and `count`."""
        return (
            bool(x.min(initial=0.0) > -np.inf) or x > -np.inf
        )  # the first is false where there is a NaN

    def number(self, flags: Any) -> Any:
        """1 where a flag is true, else 0."""
        return 1.0 if flags is True else flags.astype(np.float64)

    def count(self, flags: Any, table: Any) -> Any:
        """How many flags of each row of this table are true: a column, or one number for all
        rows.
        """
        return table.shape[1] if flags is True else flags.sum(axis=1, keepdims=True)

    def column(self, table: Any, place: int) -> Any:
        """One class's column."""
        return table[:, place : place + 1]

    def beside(self, one: Any, other: Any) -> Any:
        """Two columns as a table of two classes."""
        return np.concatenate([one, other], axis=1)

    def take(self, values: Any, places: Any) -> Any:
        """The values at these places of a flat array."""
        return values[places]

    def piece(self, knots: Any, offsets: Any, longest: int, at: Any) -> Any:
        """The place of the last knot below each entry, or of the first knot; column k has its own.

        Those of column k are knots[offsets[k]:offsets[k + 1]], `longest` at most; one curve serves
        all columns.
        """
        if len(offsets) == 2:
            return np.searchsorted(knots[1:], at, side="left")
        found = np.empty(at.shape, dtype=np.intp, order="F")
        for k, first in enumerate(offsets[:-1]):
            found[:, k] = first + np.searchsorted(
                knots[first + 1 : offsets[k + 1]], at[:, k], side="left"
            )
        return found

    def finfo(self, x: Any) -> Any:
        """What there is of numbers in the precision of x: `max`, `tiny`."""
        return np.finfo(np.float64)

    def part(self, fitted: Any, x: Any) -> Any:
        """The probabilities of a map inside another, by its own fastest way."""
        out = np.empty(x.shape)
        fitted.write(x, out)
        return out

    def run(self, formula: Callable[..., Any], *values: Any) -> Any:
        """A formula's value; what divides by zero or overflows on the way is meant to."""
        with np.errstate(all="ignore"):
            return formula(self, *values)


def formula(written: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function of operations as a formula: where the runtime has a faster way to it, that is
    taken.
    """

    @wraps(written)
    def computed(xp: Operations, *values: Any) -> Any:
        return xp.fast.get(computed, written)(xp, *values)

    return computed


def _value(given: Any) -> Any:
    return given() if callable(given) else given


#: The runtime; kernels register what they have a faster way for.
NUMPY = Operations()
