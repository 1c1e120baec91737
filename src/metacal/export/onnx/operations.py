"""Array operations that append nodes to an ONNX graph.

`OnnxOperations` implements the operations of `metacal.formulas.operations`. Evaluating a formula
with these operations writes the formula into the graph, in one precision.
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

# First operator set with the operator LessOrEqual.
_LESS_OR_EQUAL_OPSET = 12


def _left_operand(op_type: str) -> Callable[[GraphValue, Any], GraphValue]:
    """Return a method that appends a binary operator with `self` as first operand."""
    return lambda self, other: self.xp.append_node(op_type, self, other)


def _right_operand(op_type: str) -> Callable[[GraphValue, Any], GraphValue]:
    """Return a method that appends a binary operator with `self` as second operand."""
    return lambda self, other: self.xp.append_node(op_type, other, self)


@dataclass(frozen=True, eq=False)
class GraphValue:
    """Tensor in an ONNX graph, with arithmetic operators that append nodes.

    The other operand of an operator can be a graph value, a number or an array.

    Attributes
    ----------
    xp : OnnxOperations
        Operations that the arithmetic operators use, in their precision.

    name : str
        Name of the tensor in the graph.

    Examples
    --------
    >>> graph = Graph(opset=17)
    >>> x = OnnxOperations(graph, "float64").graph_value("x")
    >>> _ = (1.0 - x * np.array([0.5, 2.0])) <= 0.0
    >>> [node.op_type for node in graph.nodes], len(graph.initializers)
    (['Mul', 'Sub', 'LessOrEqual'], 3)
    """

    xp: OnnxOperations
    name: str

    # NumPy then leaves `array + value` to `__radd__` instead of looping over the elements.
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __le__(self, other: Any) -> GraphValue:
        return self.xp.less_or_equal(self, other)

    def __ge__(self, other: Any) -> GraphValue:
        return self.xp.less_or_equal(other, self)

    def __neg__(self) -> GraphValue:
        return self.xp.append_node("Neg", self)

    def __invert__(self) -> GraphValue:
        return self.xp.append_node("Not", self)

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


#: Function that appends the nodes of a branch and returns the outputs of the branch.
BranchWriter = Callable[["OnnxOperations"], Sequence[GraphValue]]


def _elementwise(op_type: str) -> Callable[..., GraphValue]:
    """Return a method that appends an elementwise operator."""
    return lambda self, *operands: self.append_node(op_type, *operands)


def _reduction(op_type: str) -> Callable[..., GraphValue]:
    """Return a method that appends a reduction of a table over the classes."""
    return lambda self, table: self.graph_value(self.graph.reduce_over_classes(op_type, table.name))


@dataclass(frozen=True)
class OnnxOperations(Operations):
    """Array operations that append nodes to an ONNX graph.

    Attributes
    ----------
    graph : Graph
        Graph under construction.

    dtype : str
        Precision of the computations.

    n_classes : int, default=0
        Number of classes.

    all_masks_are_infinite : bool, default=False
        Whether finite masks in the logits have been replaced by -inf already, and other logits
        limited. Low logits must not be interpreted as masks then.

    kernels : dict
        Faster implementations of formulas, see `Operations`.

    Examples
    --------
    >>> from metacal.formulas.rowwise import one_minus_max_probability
    >>> graph = Graph(opset=17)
    >>> xp = OnnxOperations(graph, "float64")
    >>> _ = one_minus_max_probability(xp, xp.graph_value("x"))
    >>> [node.op_type for node in graph.nodes][:4]
    ['ArgMax', 'ReduceMax', 'Sub', 'Exp']
    """

    graph: Graph
    dtype: str
    n_classes: int = 0
    all_masks_are_infinite: bool = False
    kernels: dict[Callable[..., Any], Callable[..., Any]] = field(default_factory=dict)

    def graph_value(self, value: str | GraphValue) -> GraphValue:
        """Return a tensor, given by name or from another branch, as a `GraphValue`."""
        name = value.name if isinstance(value, GraphValue) else value
        return GraphValue(self, name)

    def operand_name(self, operand: Any) -> str:
        """Return the name of an operand, after adding a number or array as a constant."""
        if isinstance(operand, str):
            return operand
        if isinstance(operand, GraphValue):
            return operand.name
        return self.graph.add_constant(np.asarray(operand, dtype=self.dtype))

    def constant(self, array: Any) -> GraphValue:
        """Add a number, list or array to the graph as a constant in this precision."""
        return self.graph_value(self.operand_name(array))

    def append_node(self, op_type: str, *operands: Any, **attributes: Any) -> GraphValue:
        """Append a node with one output, and return the output."""
        input_names = [self.operand_name(operand) for operand in operands]
        output_name = self.graph.append_node(op_type, *input_names, **attributes)
        return self.graph_value(output_name)

    def cast(self, value: str | GraphValue) -> GraphValue:
        """Append the node that casts a tensor to `dtype`."""
        return self.append_node("Cast", value, to=ELEMENT_TYPES[self.dtype])

    def cast_if_needed(self, value: GraphValue) -> GraphValue:
        """Return a tensor of `dtype`, after appending a cast if it has another dtype."""
        if value.xp.dtype == self.dtype:
            return self.graph_value(value)
        return self.cast(value)

    def with_dtype(self, dtype: str) -> OnnxOperations:
        """Return a copy of the operations with another dtype."""
        return replace(self, dtype=dtype)

    def if_else(
        self,
        condition: GraphValue,
        write_then: BranchWriter,
        write_else: BranchWriter,
        dtypes: Sequence[str] = (),
    ) -> list[GraphValue]:
        """Append an If operator, which computes only one of two branches.

        Parameters
        ----------
        condition : GraphValue
            Single boolean.

        write_then : callable
            Function that appends the branch for a true condition and returns its outputs.

        write_else : callable
            Function that appends the branch for a false condition and returns its outputs.

        dtypes : sequence of str, default=()
            Dtypes of the outputs. By default, there is one output in this precision.

        Returns
        -------
        list of GraphValue
        """
        output_dtypes = dtypes or [self.dtype]

        def build_branch(write_branch: BranchWriter) -> Any:
            def write_nodes(branch_graph: Graph) -> list[str]:
                branch_outputs = write_branch(replace(self, graph=branch_graph))
                return [output.name for output in branch_outputs]

            return self.graph.build_branch(output_dtypes, write_nodes)

        output_names = self.graph.append_multi_output_node(
            "If",
            len(output_dtypes),
            condition.name,
            then_branch=build_branch(write_then),
            else_branch=build_branch(write_else),
        )
        return [self.graph_value(name) for name in output_names]

    def squeeze(self, column: GraphValue) -> GraphValue:
        """Reshape a column of shape (n, 1) to (n,)."""
        return self.graph_value(self.graph.append_class_axis_node("Squeeze", column.name))

    def unsqueeze(self, vector: GraphValue) -> GraphValue:
        """Reshape a vector of shape (n,) to a column of shape (n, 1)."""
        return self.graph_value(self.graph.append_class_axis_node("Unsqueeze", vector.name))

    def all_true(self, flags: GraphValue) -> GraphValue:
        """Compute whether all elements are true, as a single boolean."""
        flags_as_floats = self.with_dtype("float32").cast(flags)
        smallest_flag = self.append_node("ReduceMin", flags_as_floats, keepdims=0)
        return self.with_dtype("bool").cast(smallest_flag)

    def less_or_equal(self, left: Any, right: Any) -> GraphValue:
        """Compute left <= right, which is false if an operand is NaN.

        The negation of Greater is not equivalent, because it is true for NaN.
        """
        if self.graph.opset >= _LESS_OR_EQUAL_OPSET:
            return self.append_node("LessOrEqual", left, right)
        return self.append_node("Less", left, right) | self.append_node("Equal", left, right)

    def find_true_rows(self, flags: GraphValue) -> tuple[GraphValue, GraphValue]:
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
        # NonZero returns one row of indices per axis. Flags of shape (n,) have a single axis.
        index_row = self.append_node("NonZero", flags)
        scatter_indices = self.append_node("Transpose", index_row, perm=[1, 0])
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
        """Compute log(1 + x) accurately for small x. ONNX has no operator for it.

        With u = 1 + x rounded, the result is log(u) · x / (u - 1). The rounding error of u is in
        both log(u) and u - 1 and cancels (Higham, "Accuracy and Stability of Numerical Algorithms",
        section 1.14). Evaluating log(1 + x) directly is not accurate: the result is 0 for small x.
        """
        u = x + 1.0
        is_tiny = u == 1.0
        denominator = self.where(is_tiny, 1.0, u - 1.0)
        return self.where(is_tiny, x, self.log(u) * x / denominator)

    def logistic(self, x: GraphValue) -> GraphValue:
        return 1.0 / (self.exp(-x) + 1.0)

    def softmax(self, x: GraphValue) -> GraphValue:
        # Operator set 13 changed Softmax, but not along the last axis, which is axis 1 of a table.
        return self.append_node("Softmax", x, axis=1)

    def where(self, condition: GraphValue, if_true: Any, if_false: Any) -> GraphValue:
        if callable(if_true):
            if_true = if_true()
        if callable(if_false):
            if_false = if_false()
        return self.append_node("Where", condition, if_true, if_false)

    def argmax(self, table: GraphValue) -> GraphValue:
        return self.append_node("ArgMax", table, axis=1, keepdims=1)

    def replace_class_entry(
        self, table: GraphValue, class_index: GraphValue, value: Any
    ) -> GraphValue:
        if not isinstance(value, GraphValue):
            column_shape = self.append_node("Shape", class_index)
            value = self.append_node("Expand", value, column_shape)
        return self.append_node("ScatterElements", table, class_index, value, axis=1)

    def find_unmasked(self, x: GraphValue) -> GraphValue:
        return x > -np.inf

    def to_float(self, flags: GraphValue) -> GraphValue:
        return self.cast(flags)

    def count_true(self, flags: GraphValue, table: GraphValue) -> GraphValue:
        return self.sum(self.to_float(flags))

    def column(self, table: GraphValue, class_index: int) -> GraphValue:
        return self.append_node("Gather", table, self.graph.add_integers(class_index), axis=1)

    def join_columns(self, first: GraphValue, second: GraphValue) -> GraphValue:
        return self.append_node("Concat", first, second, axis=1)

    def take(self, values: Any, indices: GraphValue) -> GraphValue:
        return self.append_node("Gather", values, indices, axis=0)

    def find_last_knots_below(
        self, knots: Array, offsets: Array, max_knots: int, points: GraphValue
    ) -> GraphValue:
        # ONNX has no operator for binary search, so each halving of the step appends its nodes.
        # Column k searches the knots from `offsets[k]` to `offsets[k + 1]`, those of curve k.
        integer_xp = self.with_dtype("int64")
        first_knot_of_curve = integer_xp.constant(offsets[:-1][None])
        end_of_curve = integer_xp.constant(offsets[1:][None])
        points_shape = integer_xp.append_node("Shape", points)
        knot_index = integer_xp.append_node("Expand", first_knot_of_curve, points_shape)
        # The first step is the smallest power of two that is at least the number of knots.
        step = 1 << (max_knots - 1).bit_length()
        while step > 1:
            step //= 2
            next_index = knot_index + np.array([step])
            candidate_index = integer_xp.where(next_index < end_of_curve, next_index, knot_index)
            is_below_point = self.take(knots, candidate_index) < points
            knot_index = integer_xp.where(is_below_point, candidate_index, knot_index)
        return self.graph_value(knot_index)

    def finfo(self, x: GraphValue) -> Any:
        return np.finfo(self.dtype)

    def apply_map(self, fitted_map: Any, x: GraphValue) -> GraphValue:
        return fitted_map.formula(self, fitted_map, x)


def branch_on_masks(
    xp: OnnxOperations,
    logits: GraphValue,
    write_unmasked: Callable[[OnnxOperations], GraphValue],
    write_masked: Callable[[OnnxOperations], GraphValue],
    dtype: str = "",
) -> GraphValue:
    """Append an If operator that computes a table without masked classes by fewer nodes.

    Parameters
    ----------
    xp : OnnxOperations
        Operations of the graph.

    logits : GraphValue of shape (n, K)
        Table in which a class may be masked.

    write_unmasked : callable
        Function that appends the branch for a table in which no logit is low enough to be a mask.

    write_masked : callable
        Function that appends the branch for a table in which a logit is that low, or is NaN.

    dtype : str, default=""
        Dtype of the result. By default that of `xp`.

    Returns
    -------
    GraphValue
    """
    smallest_logit = xp.append_node("ReduceMin", logits, keepdims=0)
    has_no_masks = smallest_logit > LARGEST_FINITE_MASK
    output_xp = xp.with_dtype(dtype or xp.dtype)
    (selected_output,) = output_xp.if_else(
        has_no_masks,
        lambda branch_xp: [write_unmasked(branch_xp)],
        lambda branch_xp: [write_masked(branch_xp)],
    )
    return selected_output


def replace_finite_masks(xp: OnnxOperations, logits: GraphValue) -> GraphValue:
    """Append the nodes that replace finite masks in the logits by -inf."""
    return replace_finite_masks_formula(xp, xp.graph_value(logits))
