"""Formulas as ONNX nodes: what a formula computes is written down, node by node, in one
precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from metacal.export.onnx.graph import ELEMENT_TYPES, Graph
from metacal.formulas import Array
from metacal.formulas.logits import LARGEST_FINITE_MASK, replace_finite_masks_formula
from metacal.formulas.operations import Operations


def _on_the_left(kind: str) -> Callable[[Value, Any], Value]:
    return lambda self, other: self.xp.op(kind, self, other)


def _on_the_right(kind: str) -> Callable[[Value, Any], Value]:
    return lambda self, other: self.xp.op(kind, other, self)


@dataclass(frozen=True, eq=False)
class Value:
    """A value of the graph; arithmetic with it appends a node. Other operands are numbers and
    arrays.

    Examples
    --------
    >>> graph = Graph(opset=17)
    >>> x = Traced(graph, "float64").value("x")
    >>> _ = (1.0 - x * np.array([0.5, 2.0])) <= 0.0
    >>> [node.op_type for node in graph.nodes], len(graph.initializers)
    (['Mul', 'Sub', 'LessOrEqual'], 3)
    """

    xp: Traced
    name: str

    __array_ufunc__ = None  # an array on the left leaves the operation to us
    __hash__ = None  # type: ignore[assignment]

    def __le__(self, other: Any) -> Value:
        return self.xp.at_most(self, other)

    def __ge__(self, other: Any) -> Value:
        return self.xp.at_most(other, self)

    def __neg__(self) -> Value:
        return self.xp.op("Neg", self)

    def __invert__(self) -> Value:
        return self.xp.op("Not", self)

    __add__, __sub__, __mul__, __truediv__, __matmul__ = map(
        _on_the_left, ("Add", "Sub", "Mul", "Div", "MatMul")
    )
    __radd__, __rsub__, __rmul__, __rtruediv__ = map(_on_the_right, ("Add", "Sub", "Mul", "Div"))
    __lt__, __gt__, __and__, __or__ = map(_on_the_left, ("Less", "Greater", "And", "Or"))
    __eq__ = _on_the_left("Equal")  # type: ignore[assignment]


#: What writes a branch, and returns its values.
Branch = Callable[["Traced"], Sequence[Value]]


def _operator(kind: str) -> Callable[..., Value]:
    return lambda self, *operands: self.op(kind, *operands)


def _over_classes(kind: str) -> Callable[..., Value]:
    return lambda self, table: self.value(self.graph.over_classes(kind, table.name))


@dataclass(frozen=True)
class Traced(Operations):
    """Operations that append nodes to a graph, in one precision.

    `masks_read` says of the logits that a map gets with it that finite masks are -inf already: what
    is low among them now is low, and must not be looked at a second time.

    Examples
    --------
    >>> from metacal.formulas.rowwise import doubt
    >>> graph = Graph(opset=17)
    >>> xp = Traced(graph, "float64")
    >>> _ = doubt(xp, xp.value("x"))
    >>> [node.op_type for node in graph.nodes][:4]
    ['ArgMax', 'ReduceMax', 'Sub', 'Exp']
    """

    graph: Graph
    dtype: str
    n_classes: int = 0
    masks_read: bool = False
    kernels: dict[Callable[..., Any], Callable[..., Any]] = field(default_factory=dict)

    def value(self, value: str | Value) -> Value:
        """A value by its name, or one of another precision or branch as it is."""
        return Value(self, value.name if isinstance(value, Value) else value)

    def name(self, operand: Any) -> str:
        """The name of an operand: a value or its name, a number or an array."""
        if isinstance(operand, str):
            return operand
        if isinstance(operand, Value):
            return operand.name
        return self.graph.constant(np.asarray(operand, dtype=self.dtype))

    def op(self, kind: str, *operands: Any, **attributes: Any) -> Value:
        """Append an operator on these operands."""
        return self.value(self.graph.op(kind, *map(self.name, operands), **attributes))

    def cast(self, value: str | Value) -> Value:
        """A value of another type in this precision."""
        return self.op("Cast", value, to=ELEMENT_TYPES[self.dtype])

    def to(self, dtype: str) -> Traced:
        """The same in another precision."""
        return replace(self, dtype=dtype)

    def choose(
        self, condition: Value, yes: Branch, no: Branch, dtypes: Sequence[str] = ()
    ) -> list[Value]:
        """The values of one branch or of the other, whichever a single flag says; only that one is
        computed.
        """
        dtypes = dtypes or [self.dtype]

        def inside(write: Branch) -> Any:
            return self.graph.branch(
                dtypes, lambda graph: [v.name for v in write(replace(self, graph=graph))]
            )

        sides = {"then_branch": inside(yes), "else_branch": inside(no)}
        return [
            self.value(name) for name in self.graph.ops("If", len(dtypes), condition.name, **sides)
        ]

    def squeeze(self, value: Value) -> Value:
        """From n × 1 to n."""
        return self.value(self.graph.along_classes("Squeeze", value.name))

    def unsqueeze(self, value: Value) -> Value:
        """From n to n × 1."""
        return self.value(self.graph.along_classes("Unsqueeze", value.name))

    def all(self, flags: Value) -> Value:
        """Whether every flag is true: one flag (true for none at all)."""
        counted = self.to("float32").cast(flags)
        return self.to("bool").cast(self.op("ReduceMin", counted, keepdims=0))

    def at_most(self, left: Any, right: Any) -> Value:
        """left <= right, false where either is NaN; Not(Greater) would be true there."""
        if self.graph.opset >= 12:
            return self.op("LessOrEqual", left, right)
        return self.op("Less", left, right) | self.op("Equal", left, right)

    def rows_where(self, flags: Value) -> tuple[Value, Value]:
        """The indices of the rows (n) whose flag is true: as a list (m), and as ScatterND wants
        them (m × 1).
        """
        places = self.op("Transpose", self.op("NonZero", flags), perm=[1, 0])
        return self.squeeze(places), places

    exp, log, sqrt, absolute, maximum, minimum = map(
        _operator, ("Exp", "Log", "Sqrt", "Abs", "Max", "Min")
    )
    sum, max, min = map(_over_classes, ("ReduceSum", "ReduceMax", "ReduceMin"))

    def log1p(self, x: Value) -> Value:
        """log(1 + x) without cancellation, for which ONNX has no operator: log(u)·x / (u - 1) with
        u = 1 + x rounded.

        The rounding of u is in both, and cancels (Higham, "Accuracy and Stability of Numerical
        Algorithms", 1.14).
        """
        u = x + 1.0
        plain = u == 1.0
        below = self.where(plain, 1.0, u - 1.0)
        return self.where(plain, x, self.log(u) * x / below)

    def logistic(self, x: Value) -> Value:
        return 1.0 / (self.exp(-x) + 1.0)

    def softmax(self, x: Value) -> Value:
        return self.op(
            "Softmax", x, axis=1
        )  # on tables of rank 2 the same before and after operator set 13

    def where(self, condition: Value, if_true: Any, if_false: Any) -> Value:
        if_true, if_false = (value() if callable(value) else value for value in (if_true, if_false))
        return self.op("Where", condition, if_true, if_false)

    def argmax(self, table: Value) -> Value:
        return self.op("ArgMax", table, axis=1, keepdims=1)

    def put(self, table: Value, class_index: Value, value: Any) -> Value:
        if not isinstance(value, Value):
            value = self.op("Expand", value, self.op("Shape", class_index))
        return self.op("ScatterElements", table, class_index, value, axis=1)

    def unmasked(self, x: Value) -> Value:
        return x > -np.inf

    def to_float(self, flags: Value) -> Value:
        return self.cast(flags)

    def count(self, flags: Value, table: Value) -> Value:
        return self.sum(self.to_float(flags))

    def column(self, table: Value, class_index: int) -> Value:
        return self.op("Gather", table, self.graph.integers(class_index), axis=1)

    def join_columns(self, first: Value, second: Value) -> Value:
        return self.op("Concat", first, second, axis=1)

    def take(self, values: Any, indices: Value) -> Value:
        return self.op("Gather", values, indices, axis=0)

    def find_piece(self, knots: Array, offsets: Array, max_knots: int, points: Value) -> Value:
        whole = self.to("int64")
        first, end = (whole.value(whole.name(side[None])) for side in (offsets[:-1], offsets[1:]))
        place = whole.op("Expand", first, whole.op("Shape", points))
        step = 1 << (max_knots - 1).bit_length()
        while step > 1:
            step //= 2
            further = place + np.array([step])
            inside = whole.where(further < end, further, place)
            place = whole.where(self.take(knots, inside) < points, inside, place)
        return self.value(place)

    def finfo(self, x: Value) -> Any:
        return np.finfo(self.dtype)

    def apply_map(self, fitted: Any, x: Value) -> Value:
        return fitted.formula(self, fitted, x)


def unless_masked(
    xp: Traced,
    x: Value,
    plainly: Callable[[Traced], Value],
    masked: Callable[[Traced], Value],
    dtype: str = "",
) -> Value:
    """The first where no logit of the table is so low that it may stand for a mask, else (or of a
    NaN) the second.
    """
    written, ordinary = (
        xp.to(dtype or xp.dtype),
        xp.op("ReduceMin", x, keepdims=0) > LARGEST_FINITE_MASK,
    )
    (chosen,) = written.choose(
        ordinary, lambda inner: [plainly(inner)], lambda inner: [masked(inner)]
    )
    return chosen


def with_masks(xp: Traced, x: Value) -> Value:
    """The logits with -inf where a finite number stands for a masked class, by the rule of
    `formulas.logits`.
    """
    return replace_finite_masks_formula(xp, xp.value(x))
