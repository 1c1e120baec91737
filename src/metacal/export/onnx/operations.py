"""Formulas as ONNX nodes.

`OnnxOperations` implements the operations of `metacal.formulas.operations` such that each one
appends nodes to a graph. Evaluating a formula with it writes the formula into the graph, in one
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

# Operator set from which ONNX has LessOrEqual.
_LESS_OR_EQUAL_OPSET = 12


def _left_operand(op_type: str) -> Callable[[GraphValue, Any], GraphValue]:
    """Return a method that applies an operator with the value as its first operand."""
    return lambda self, other: self.xp.op(op_type, self, other)


def _right_operand(op_type: str) -> Callable[[GraphValue, Any], GraphValue]:
    """Return a method that applies an operator with the value as its second operand."""
    return lambda self, other: self.xp.op(op_type, other, self)


@dataclass(frozen=True, eq=False)
class GraphValue:
    """Value of a graph. Arithmetic with it appends nodes.

    The other operand of an operation can be a value, a number or an array.

    Attributes
    ----------
    xp : OnnxOperations
        Operations that the value was created by.

    name : str
        Name of the value in the graph.

    Examples
    --------
    >>> graph = Graph(opset=17)
    >>> x = OnnxOperations(graph, "float64").value("x")
    >>> _ = (1.0 - x * np.array([0.5, 2.0])) <= 0.0
    >>> [node.op_type for node in graph.nodes], len(graph.initializers)
    (['Mul', 'Sub', 'LessOrEqual'], 3)
    """

    xp: OnnxOperations
    name: str

    # An array as the left operand leaves the operation to this class.
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __le__(self, other: Any) -> GraphValue:
        return self.xp.at_most(self, other)

    def __ge__(self, other: Any) -> GraphValue:
        return self.xp.at_most(other, self)

    def __neg__(self) -> GraphValue:
        return self.xp.op("Neg", self)

    def __invert__(self) -> GraphValue:
        return self.xp.op("Not", self)

    __add__ = _left_operand("Add")
    __sub__ = _left_operand("Sub")
    __mul__ = _left_operand("Mul")
    __truediv__ = _left_operand("Div")
    __matmul__ = _left_operand("MatMul")
    __radd__ = _right_operand("Add")
    __rsub__ = _right_operand("Sub")
    __rmul__ = _right_operand("Mul")
    __rtruediv__ = _right_operand("Div")
    __lt__ = _left_operand("Less")
    __gt__ = _left_operand("Greater")
    __and__ = _left_operand("And")
    __or__ = _left_operand("Or")
    __eq__ = _left_operand("Equal")  # type: ignore[assignment]


#: Function that writes a branch of a graph and returns its values.
Branch = Callable[["OnnxOperations"], Sequence[GraphValue]]


def _elementwise(op_type: str) -> Callable[..., GraphValue]:
    """Return a method that applies an elementwise operator."""
    return lambda self, *operands: self.op(op_type, *operands)


def _reduction(op_type: str) -> Callable[..., GraphValue]:
    """Return a method that reduces a table over the classes."""
    return lambda self, table: self.value(self.graph.over_classes(op_type, table.name))


@dataclass(frozen=True)
class OnnxOperations(Operations):
    """Operations that append nodes to a graph.

    Attributes
    ----------
    graph : Graph
        Graph under construction.

    dtype : str
        Precision of the computations.

    n_classes : int, default=0
        Number of classes.

    masks_read : bool, default=False
        Whether finite masks in the logits have been replaced by -inf already. In that case, other
        low logits must not be interpreted as masks.

    kernels : dict
        Faster implementations of formulas, see `Operations`.

    Examples
    --------
    >>> from metacal.formulas.rowwise import one_minus_max_probability
    >>> graph = Graph(opset=17)
    >>> xp = OnnxOperations(graph, "float64")
    >>> _ = one_minus_max_probability(xp, xp.value("x"))
    >>> [node.op_type for node in graph.nodes][:4]
    ['ArgMax', 'ReduceMax', 'Sub', 'Exp']
    """

    graph: Graph
    dtype: str
    n_classes: int = 0
    masks_read: bool = False
    kernels: dict[Callable[..., Any], Callable[..., Any]] = field(default_factory=dict)

    def value(self, value: str | GraphValue) -> GraphValue:
        """Return the value with a name, or a value of another branch or precision, unchanged."""
        name = value.name if isinstance(value, GraphValue) else value
        return GraphValue(self, name)

    def name(self, operand: Any) -> str:
        """Return the name of an operand. A number or array becomes a constant."""
        if isinstance(operand, str):
            return operand
        if isinstance(operand, GraphValue):
            return operand.name
        return self.graph.constant(np.asarray(operand, dtype=self.dtype))

    def op(self, op_type: str, *operands: Any, **attributes: Any) -> GraphValue:
        """Append an operator with one output."""
        return self.value(self.graph.op(op_type, *map(self.name, operands), **attributes))

    def cast(self, value: str | GraphValue) -> GraphValue:
        """Convert a value to this precision."""
        return self.op("Cast", value, to=ELEMENT_TYPES[self.dtype])

    def to(self, dtype: str) -> OnnxOperations:
        """Return the same operations in another precision."""
        return replace(self, dtype=dtype)

    def choose(
        self, condition: GraphValue, yes: Branch, no: Branch, dtypes: Sequence[str] = ()
    ) -> list[GraphValue]:
        """Append a conditional operator, which computes only one of two branches.

        Parameters
        ----------
        condition : GraphValue
            Single boolean.

        yes : callable
            Function that writes the branch for a true condition and returns its values.

        no : callable
            Function that writes the branch for a false condition.

        dtypes : sequence of str, default=()
            Dtypes of the values. By default, one value in this precision.

        Returns
        -------
        list of GraphValue
        """
        dtypes = dtypes or [self.dtype]

        def build_branch(write: Branch) -> Any:
            def write_names(graph: Graph) -> list[str]:
                return [value.name for value in write(replace(self, graph=graph))]

            return self.graph.branch(dtypes, write_names)

        output_names = self.graph.ops(
            "If",
            len(dtypes),
            condition.name,
            then_branch=build_branch(yes),
            else_branch=build_branch(no),
        )
        return [self.value(name) for name in output_names]

    def squeeze(self, value: GraphValue) -> GraphValue:
        """Change the shape n × 1 to n."""
        return self.value(self.graph.along_classes("Squeeze", value.name))

    def unsqueeze(self, value: GraphValue) -> GraphValue:
        """Change the shape n to n × 1."""
        return self.value(self.graph.along_classes("Unsqueeze", value.name))

    def all(self, flags: GraphValue) -> GraphValue:
        """Compute whether all elements are true, as a single boolean."""
        numbers = self.to("float32").cast(flags)
        return self.to("bool").cast(self.op("ReduceMin", numbers, keepdims=0))

    def at_most(self, left: Any, right: Any) -> GraphValue:
        """Compute left <= right, which is false for NaN. Not(Greater) would be true."""
        if self.graph.opset >= _LESS_OR_EQUAL_OPSET:
            return self.op("LessOrEqual", left, right)
        return self.op("Less", left, right) | self.op("Equal", left, right)

    def rows_where(self, flags: GraphValue) -> tuple[GraphValue, GraphValue]:
        """Return the indices of the rows whose flag is true.

        Parameters
        ----------
        flags : GraphValue of shape (n,)
            Boolean of each row.

        Returns
        -------
        indices : GraphValue of shape (m,)

        scatter_indices : GraphValue of shape (m, 1)
            The same indices in the shape that ScatterND requires.
        """
        scatter_indices = self.op("Transpose", self.op("NonZero", flags), perm=[1, 0])
        return self.squeeze(scatter_indices), scatter_indices

    exp = _elementwise("Exp")
    log = _elementwise("Log")
    sqrt = _elementwise("Sqrt")
    absolute = _elementwise("Abs")
    maximum = _elementwise("Max")
    minimum = _elementwise("Min")
    sum = _reduction("ReduceSum")
    max = _reduction("ReduceMax")
    min = _reduction("ReduceMin")

    def log1p(self, x: GraphValue) -> GraphValue:
        """Compute log(1 + x) without cancellation, for which ONNX has no operator.

        With u = 1 + x rounded, the result is log(u) · x / (u - 1). The rounding error of u is in
        both log(u) and u - 1 and cancels (Higham, "Accuracy and Stability of Numerical Algorithms",
        section 1.14). The tempting log(1 + x) is 0 for small x.
        """
        u = x + 1.0
        is_tiny = u == 1.0
        denominator = self.where(is_tiny, 1.0, u - 1.0)
        return self.where(is_tiny, x, self.log(u) * x / denominator)

    def logistic(self, x: GraphValue) -> GraphValue:
        return 1.0 / (self.exp(-x) + 1.0)

    def softmax(self, x: GraphValue) -> GraphValue:
        # For tables of rank 2, the operator is the same before and after operator set 13.
        return self.op("Softmax", x, axis=1)

    def where(self, condition: GraphValue, if_true: Any, if_false: Any) -> GraphValue:
        if callable(if_true):
            if_true = if_true()
        if callable(if_false):
            if_false = if_false()
        return self.op("Where", condition, if_true, if_false)

    def argmax(self, table: GraphValue) -> GraphValue:
        return self.op("ArgMax", table, axis=1, keepdims=1)

    def replace_class_entry(
        self, table: GraphValue, class_index: GraphValue, value: Any
    ) -> GraphValue:
        if not isinstance(value, GraphValue):
            value = self.op("Expand", value, self.op("Shape", class_index))
        return self.op("ScatterElements", table, class_index, value, axis=1)

    def find_unmasked(self, x: GraphValue) -> GraphValue:
        return x > -np.inf

    def to_float(self, flags: GraphValue) -> GraphValue:
        return self.cast(flags)

    def count_true(self, flags: GraphValue, table: GraphValue) -> GraphValue:
        return self.sum(self.to_float(flags))

    def column(self, table: GraphValue, class_index: int) -> GraphValue:
        return self.op("Gather", table, self.graph.integers(class_index), axis=1)

    def join_columns(self, first: GraphValue, second: GraphValue) -> GraphValue:
        return self.op("Concat", first, second, axis=1)

    def take(self, values: Any, indices: GraphValue) -> GraphValue:
        return self.op("Gather", values, indices, axis=0)

    def find_piece(
        self, knots: Array, offsets: Array, max_knots: int, points: GraphValue
    ) -> GraphValue:
        # A binary search in the knots of each column.
        integers = self.to("int64")
        first_index = integers.value(integers.name(offsets[:-1][None]))
        end_index = integers.value(integers.name(offsets[1:][None]))
        index = integers.op("Expand", first_index, integers.op("Shape", points))
        step = 1 << (max_knots - 1).bit_length()
        while step > 1:
            step //= 2
            next_index = index + np.array([step])
            candidate = integers.where(next_index < end_index, next_index, index)
            index = integers.where(self.take(knots, candidate) < points, candidate, index)
        return self.value(index)

    def finfo(self, x: GraphValue) -> Any:
        return np.finfo(self.dtype)

    def apply_map(self, fitted: Any, x: GraphValue) -> GraphValue:
        return fitted.formula(self, fitted, x)


def branch_on_masks(
    xp: OnnxOperations,
    x: GraphValue,
    plainly: Callable[[OnnxOperations], GraphValue],
    masked: Callable[[OnnxOperations], GraphValue],
    dtype: str = "",
) -> GraphValue:
    """Append two branches: one for tables without masked classes, one for the others.

    Parameters
    ----------
    xp : OnnxOperations
        Operations of the graph.

    x : GraphValue of shape (n, K)
        Logits.

    plainly : callable
        Function that writes the branch for a table in which no logit is low enough to be a mask.

    masked : callable
        Function that writes the branch for a table in which a logit is that low, or is NaN.

    dtype : str, default=""
        Dtype of the result. By default that of `xp`.

    Returns
    -------
    GraphValue
    """
    has_no_masks = xp.op("ReduceMin", x, keepdims=0) > LARGEST_FINITE_MASK
    branch_operations = xp.to(dtype or xp.dtype)
    (result,) = branch_operations.choose(
        has_no_masks, lambda inner: [plainly(inner)], lambda inner: [masked(inner)]
    )
    return result


def replace_finite_masks(xp: OnnxOperations, x: GraphValue) -> GraphValue:
    """Replace finite masks in the logits by -inf, by the rule of `formulas.logits`."""
    return replace_finite_masks_formula(xp, xp.value(x))
