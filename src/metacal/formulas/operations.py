"""What a formula is written in: a few operations that NumPy, torch and ONNX each have.

A map's formula is a function `formula(xp, fitted, x)` from logits x to probabilities; a score's is `formula(xp, x)`.
`fitted` has the numbers of the fitted map under the names of its fields. Values are tables (n × K) and columns (n × 1),
in one precision, with + - * / @, comparisons, & and |; of a masked class x is -inf. A formula looks at no value: what
it branches on (`fitted.n_knots`, a name) is known before the first row comes. What it has made itself it may change in
place (`d -= c`), which saves NumPy an array; never x.

A runtime may have a faster way to what a formula says: `fast`, by the formula. It is tested against the formula.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import Any


class Operations(ABC):
    """The operations. A value that is expensive may be given to `where` as a function of nothing.

    Attributes
    ----------
    fast : dict
        formula -> what this runtime computes in its stead, of the same arguments.
    """

    fast: dict[Callable[..., Any], Callable[..., Any]]

    @abstractmethod
    def exp(self, x: Any) -> Any:
        """e^x."""

    @abstractmethod
    def log(self, x: Any) -> Any:
        """The natural logarithm; -inf of zero."""

    @abstractmethod
    def log1p(self, x: Any) -> Any:
        """log(1 + x) without cancellation."""

    @abstractmethod
    def sqrt(self, x: Any) -> Any:
        """The square root."""

    @abstractmethod
    def absolute(self, x: Any) -> Any:
        """|x|."""

    @abstractmethod
    def logistic(self, x: Any) -> Any:
        """1 / (1 + e^-x)."""

    @abstractmethod
    def softmax(self, x: Any) -> Any:
        """softmax of each row; a masked class has exactly zero."""

    @abstractmethod
    def where(self, flags: Any, one: Any, other: Any) -> Any:
        """`one` where a flag is true, else `other`."""

    @abstractmethod
    def maximum(self, one: Any, other: Any) -> Any:
        """The larger of the two, entry by entry."""

    @abstractmethod
    def minimum(self, one: Any, other: Any) -> Any:
        """The smaller of the two, entry by entry."""

    @abstractmethod
    def sum(self, table: Any) -> Any:
        """Σ over the classes, a column."""

    @abstractmethod
    def max(self, table: Any) -> Any:
        """The largest over the classes, a column."""

    @abstractmethod
    def min(self, table: Any) -> Any:
        """The smallest over the classes, a column."""

    @abstractmethod
    def argmax(self, table: Any) -> Any:
        """The place of the largest, the lowest on a tie: a column of whole numbers."""

    @abstractmethod
    def put(self, table: Any, places: Any, value: Any) -> Any:
        """The table with one entry of each row replaced by a number or a column. The table itself is given up."""

    @abstractmethod
    def possible(self, x: Any) -> Any:
        """Which classes are not masked: flags for `where`, `number` and `count`."""

    @abstractmethod
    def number(self, flags: Any) -> Any:
        """1 where a flag is true, else 0."""

    @abstractmethod
    def count(self, flags: Any, table: Any) -> Any:
        """How many flags of each row of this table are true: a column, or one number for all rows."""

    @abstractmethod
    def column(self, table: Any, place: int) -> Any:
        """One class's column."""

    @abstractmethod
    def beside(self, one: Any, other: Any) -> Any:
        """Two columns as a table of two classes."""

    @abstractmethod
    def take(self, values: Any, places: Any) -> Any:
        """The values at these places of a flat array."""

    @abstractmethod
    def piece(self, knots: Any, offsets: Any, longest: int, at: Any) -> Any:
        """The place of the last knot below each entry, or of the first knot; column k has its own.

        Those of column k are knots[offsets[k]:offsets[k + 1]], `longest` at most; one curve serves all columns.
        """

    @abstractmethod
    def finfo(self, x: Any) -> Any:
        """What there is of numbers in the precision of x: `max`, `tiny`."""

    @abstractmethod
    def part(self, fitted: Any, x: Any) -> Any:
        """The probabilities of a map inside another."""

    def clip(self, x: Any, low: Any, high: Any) -> Any:
        """x, no less than `low` and no more than `high`."""
        return self.minimum(self.maximum(x, low), high)


def formula(written: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function of operations as a formula: where the runtime has a faster way to it, that is taken."""

    @wraps(written)
    def computed(xp: Operations, *values: Any) -> Any:
        return xp.fast.get(computed, written)(xp, *values)

    return computed
