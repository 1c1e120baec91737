"""Formulas as ONNX nodes: what a formula computes is written down, node by node, in one precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.export.onnx.graph import Arithmetic, Graph
from metacal.formulas.operations import Operations


@dataclass(frozen=True, eq=False)
class Value:
    """A value of the graph; arithmetic with it appends a node. Other operands are numbers and arrays.

    Examples
    --------
    >>> graph = Graph(opset=17)
    >>> x = Value(Arithmetic(graph, "float64"), "x")
    >>> _ = (1.0 - x * np.array([0.5, 2.0])) <= 0.0
    >>> [node.op_type for node in graph.nodes]
    ['Mul', 'Sub', 'LessOrEqual']
    """

    maths: Arithmetic
    name: str

    __array_ufunc__ = None  # an array on the left leaves the operation to us
    __hash__ = None  # type: ignore[assignment]

    def _op(self, kind: str, *operands: Any) -> Value:
        named = (operand.name if isinstance(operand, Value) else operand for operand in operands)
        return Value(self.maths, self.maths(kind, *named))

    def __add__(self, other: Any) -> Value:
        return self._op("Add", self, other)

    def __radd__(self, other: Any) -> Value:
        return self._op("Add", other, self)

    def __sub__(self, other: Any) -> Value:
        return self._op("Sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return self._op("Sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return self._op("Mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return self._op("Mul", other, self)

    def __truediv__(self, other: Any) -> Value:
        return self._op("Div", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return self._op("Div", other, self)

    def __matmul__(self, other: Any) -> Value:
        return self._op("MatMul", self, other)

    def __neg__(self) -> Value:
        return self._op("Neg", self)

    def __lt__(self, other: Any) -> Value:
        return self._op("Less", self, other)

    def __gt__(self, other: Any) -> Value:
        return self._op("Greater", self, other)

    def __le__(self, other: Any) -> Value:
        right = other.name if isinstance(other, Value) else self.maths.value(other)
        return Value(self.maths, self.maths.graph.at_most(self.name, right))

    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        return self._op("Equal", self, other)

    def __and__(self, other: Value) -> Value:
        return self._op("And", self, other)

    def __or__(self, other: Value) -> Value:
        return self._op("Or", self, other)


class Traced(Operations):
    """Operations that append nodes to a graph.

    Examples
    --------
    >>> from metacal.formulas.rowwise import doubt
    >>> graph = Graph(opset=17)
    >>> xp = Traced(Arithmetic(graph, "float64"))
    >>> _ = doubt(xp, xp.value("x"))
    >>> [node.op_type for node in graph.nodes][:4]
    ['ArgMax', 'ReduceMax', 'Sub', 'Exp']
    """

    def __init__(self, maths: Arithmetic, n_classes: int = 0) -> None:
        from metacal.export.onnx.shortcuts import SHORTCUTS

        self.maths, self.graph, self.n_classes = maths, maths.graph, n_classes
        self.fast = SHORTCUTS

    def value(self, name: str) -> Value:
        """A value by its name."""
        return Value(self.maths, name)

    def within(self, branch: Graph) -> Traced:
        """The same in a branch of the graph."""
        return Traced(Arithmetic(branch, self.maths.dtype, self.maths.masks_read), self.n_classes)

    def op(self, kind: str, *operands: Any, **attributes: Any) -> Value:
        """Append an operator on these operands."""
        named = (operand.name if isinstance(operand, Value) else operand for operand in operands)
        return Value(self.maths, self.maths(kind, *named, **attributes))

    def exp(self, x: Value) -> Value:
        """e^x."""
        return self.op("Exp", x)

    def log(self, x: Value) -> Value:
        """The natural logarithm."""
        return self.op("Log", x)

    def log1p(self, x: Value) -> Value:
        """log(1 + x) without cancellation."""
        return self.value(self.maths.log1p(x.name))

    def sqrt(self, x: Value) -> Value:
        """The square root."""
        return self.op("Sqrt", x)

    def absolute(self, x: Value) -> Value:
        """|x|."""
        return self.op("Abs", x)

    def logistic(self, x: Value) -> Value:
        """1 / (1 + e^-x)."""
        return self.value(self.maths.logistic(x.name))

    def softmax(self, x: Value) -> Value:
        """softmax of each row."""
        return self.value(self.graph.softmax(x.name))

    def where(self, flags: Value, one: Any, other: Any) -> Value:
        """`one` where a flag is true, else `other`."""
        one, other = (value() if callable(value) else value for value in (one, other))
        return self.op("Where", flags, one, other)

    def maximum(self, one: Any, other: Any) -> Value:
        """The larger of the two."""
        return self.op("Max", one, other)

    def minimum(self, one: Any, other: Any) -> Value:
        """The smaller of the two."""
        return self.op("Min", one, other)

    def sum(self, table: Value) -> Value:
        """Σ over the classes."""
        return self.value(self.maths.sum(table.name))

    def max(self, table: Value) -> Value:
        """The largest over the classes."""
        return self.value(self.maths.max(table.name))

    def min(self, table: Value) -> Value:
        """The smallest over the classes."""
        return self.value(self.maths.min(table.name))

    def argmax(self, table: Value) -> Value:
        """The place of the largest, the lowest on a tie."""
        return self.op("ArgMax", table, axis=1, keepdims=1)

    def put(self, table: Value, places: Value, value: Any) -> Value:
        """The table with one entry of each row replaced."""
        if not isinstance(value, Value):
            value = self.op("Expand", value, self.op("Shape", places))
        return self.op("ScatterElements", table, places, value, axis=1)

    def possible(self, x: Value) -> Value:
        """Which classes are not masked."""
        return x > -np.inf

    def number(self, flags: Value) -> Value:
        """1 where a flag is true, else 0."""
        return self.value(self.maths.cast(flags.name))

    def count(self, flags: Value, table: Value) -> Value:
        """How many flags of each row are true."""
        return self.sum(self.number(flags))

    def column(self, table: Value, place: int) -> Value:
        """One class's column."""
        return self.value(self.graph.op("Gather", table.name, self.graph.integers(place), axis=1))

    def beside(self, one: Value, other: Value) -> Value:
        """Two columns as a table."""
        return self.op("Concat", one, other, axis=1)

    def take(self, values: NDArray[Any], places: Value) -> Value:
        """The values at these places."""
        return self.op("Gather", values, places, axis=0)

    def piece(self, knots: NDArray[Any], offsets: NDArray[Any], longest: int, at: Value) -> Value:
        """The place of the last knot below each entry: bisection over all columns at once."""
        graph = self.graph
        first, end = (graph.constant(side[None].astype(np.int64)) for side in (offsets[:-1], offsets[1:]))
        place = graph.op("Expand", first, graph.op("Shape", at.name))
        step = 1 << (longest - 1).bit_length()
        while step > 1:
            step //= 2
            further = graph.op("Add", place, graph.integers(step))
            inside = graph.op("Where", graph.op("Less", further, end), further, place)
            below = graph.op("Less", graph.op("Gather", self.maths.value(knots), inside, axis=0), at.name)
            place = graph.op("Where", below, inside, place)
        return self.value(place)

    def finfo(self, x: Value) -> Any:
        """What there is of numbers in this precision."""
        return np.finfo(self.maths.dtype)

    def part(self, fitted: Any, x: Value) -> Value:
        """The probabilities of a map, of its own or inside another."""
        found: Value = fitted.formula(self, fitted, x)
        return found
