"""Formulas as ONNX nodes: what a formula computes is written down, node by node, in one precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.export.onnx.graph import Arithmetic, Graph
from metacal.formulas.operations import Operations


def _on_the_left(kind: str) -> Callable[[Value, Any], Value]:
    return lambda self, other: self._op(kind, self, other)


def _on_the_right(kind: str) -> Callable[[Value, Any], Value]:
    return lambda self, other: self._op(kind, other, self)


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

    def __le__(self, other: Any) -> Value:
        right = other.name if isinstance(other, Value) else self.maths.value(other)
        return Value(self.maths, self.maths.graph.at_most(self.name, right))

    def __neg__(self) -> Value:
        return self._op("Neg", self)

    __add__, __sub__, __mul__, __truediv__, __matmul__ = map(_on_the_left, ("Add", "Sub", "Mul", "Div", "MatMul"))
    __radd__, __rsub__, __rmul__, __rtruediv__ = map(_on_the_right, ("Add", "Sub", "Mul", "Div"))
    __lt__, __gt__, __and__, __or__ = map(_on_the_left, ("Less", "Greater", "And", "Or"))
    __eq__ = _on_the_left("Equal")  # type: ignore[assignment]


def _operator(kind: str) -> Callable[..., Any]:
    return lambda self, *operands: self.op(kind, *operands)


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

    exp, log, sqrt, absolute, maximum, minimum = map(_operator, ("Exp", "Log", "Sqrt", "Abs", "Max", "Min"))

    def log1p(self, x: Value) -> Value:
        return self.value(self.maths.log1p(x.name))

    def logistic(self, x: Value) -> Value:
        return self.value(self.maths.logistic(x.name))

    def softmax(self, x: Value) -> Value:
        return self.value(self.graph.softmax(x.name))

    def where(self, flags: Value, one: Any, other: Any) -> Value:
        one, other = (value() if callable(value) else value for value in (one, other))
        return self.op("Where", flags, one, other)

    def sum(self, table: Value) -> Value:
        return self.value(self.maths.sum(table.name))

    def max(self, table: Value) -> Value:
        return self.value(self.maths.max(table.name))

    def min(self, table: Value) -> Value:
        return self.value(self.maths.min(table.name))

    def argmax(self, table: Value) -> Value:
        return self.op("ArgMax", table, axis=1, keepdims=1)

    def put(self, table: Value, places: Value, value: Any) -> Value:
        if not isinstance(value, Value):
            value = self.op("Expand", value, self.op("Shape", places))
        return self.op("ScatterElements", table, places, value, axis=1)

    def possible(self, x: Value) -> Value:
        return x > -np.inf

    def number(self, flags: Value) -> Value:
        return self.value(self.maths.cast(flags.name))

    def count(self, flags: Value, table: Value) -> Value:
        return self.sum(self.number(flags))

    def column(self, table: Value, place: int) -> Value:
        return self.value(self.graph.op("Gather", table.name, self.graph.integers(place), axis=1))

    def beside(self, one: Value, other: Value) -> Value:
        return self.op("Concat", one, other, axis=1)

    def take(self, values: NDArray[Any], places: Value) -> Value:
        return self.op("Gather", values, places, axis=0)

    def piece(self, knots: NDArray[Any], offsets: NDArray[Any], longest: int, at: Value) -> Value:
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
        return np.finfo(self.maths.dtype)

    def part(self, fitted: Any, x: Value) -> Value:
        found: Value = fitted.formula(self, fitted, x)
        return found
