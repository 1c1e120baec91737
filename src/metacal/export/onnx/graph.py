"""A list of ONNX nodes under construction: names, constants, and what changed from one operator set to the next."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.errors import InputError, MissingExtraError

#: The oldest operator set that has every operator used here (ScatterND, and Equal on floats).
OLDEST_OPSET = 11

#: dtype -> the number that ONNX has for it.
ELEMENT_TYPES = {"float32": 1, "float16": 10, "float64": 11, "bool": 9, "int64": 7, "bfloat16": 16}

#: Reductions take their axes as an attribute below these operator sets, and as an input from there on.
_AXES_AS_INPUT = {"ReduceSum": 13, "ReduceMax": 18, "ReduceMin": 18, "Squeeze": 13, "Unsqueeze": 13}


def onnx_library(what: str) -> Any:
    """The onnx package, or the error that names the extra."""
    try:
        import onnx
        import onnx.helper
        import onnx.numpy_helper
    except ImportError:
        raise MissingExtraError(what, "onnx") from None
    return onnx


#: What writes the nodes of a branch, and returns its values.
Branch = Callable[["Graph"], Sequence[str]]


class Graph:
    """Nodes and constants, appended one by one; every name begins with `prefix` and is none of `taken`.

    The same operator on the same inputs is written once: two formulas may ask for the same softmax.

    Examples
    --------
    >>> graph = Graph(opset=17)
    >>> total = graph.over_classes("ReduceSum", graph.op("Exp", "x"))
    >>> [node.op_type for node in graph.nodes], total == graph.over_classes("ReduceSum", graph.op("Exp", "x"))
    (['Exp', 'ReduceSum'], True)
    """

    def __init__(
        self, opset: int, *, prefix: str = "metacal/", taken: Collection[str] = (), constants_as_nodes: bool = False
    ) -> None:
        if opset < OLDEST_OPSET:
            raise InputError(f"operator set {opset} is too old: the gate needs at least {OLDEST_OPSET}.")
        self.opset = opset
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._onnx = onnx_library("ONNX export")
        self._prefix = prefix
        self._taken = set(taken)
        self._constants_as_nodes = constants_as_nodes
        self._written: MutableMapping[Any, str] = {}
        self._reduced: MutableMapping[tuple[str, str], str] = {}
        self._counter = [0]
        self._outer: Graph | None = None

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Append a node with one output, and return the name of that output."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, outputs: int, *inputs: str, **attributes: Any) -> tuple[str, ...]:
        """Append a node with several outputs, and return their names."""
        key = (kind, outputs, inputs, repr(sorted(attributes.items())))
        if key not in self._written:
            stem = self._fresh(kind)
            names = [stem, *(f"{stem}_{i}" for i in range(1, outputs))]
            self.nodes.append(self._onnx.helper.make_node(kind, list(inputs), names, name=stem, **attributes))
            self._written[key] = stem
        stem = self._written[key]
        return (stem, *(f"{stem}_{i}" for i in range(1, outputs)))

    def rename(self, value: str, name: str) -> None:
        """Give a value the name that the outside knows it by."""
        for node in _every_node(self.nodes):
            for names in (node.input, node.output):
                for place, old in enumerate(names):
                    if old == value:
                        names[place] = name

    def constant(self, array: NDArray[Any]) -> str:
        """The name of a constant with these values. Constants of a branch lie outside it, where both can see them."""
        if self._outer is not None:
            return self._outer.constant(array)
        array = np.ascontiguousarray(array) if array.ndim else array
        key = ("constant", array.dtype.str, array.shape, array.tobytes())
        if key not in self._written:
            name = self._fresh("constant")
            tensor = self._onnx.numpy_helper.from_array(array, name)
            if self._constants_as_nodes:  # before IR version 4 an initializer would have to be an input as well
                self.nodes.append(
                    self._onnx.helper.make_node("Constant", [], [name], name=f"{name}/node", value=tensor)
                )
            else:
                self.initializers.append(tensor)
            self._written[key] = name
        return self._written[key]

    def integers(self, *values: int) -> str:
        """A flat constant of whole numbers: axes, shapes, indices."""
        return self.constant(np.array(values, dtype=np.int64))

    def choose(self, condition: str, dtypes: Sequence[str], yes: Branch, no: Branch) -> tuple[str, ...]:
        """The values of one branch or of the other, whichever a single flag says; only that one is computed."""
        branches = {"then_branch": self._branch(dtypes, yes), "else_branch": self._branch(dtypes, no)}
        return self.ops("If", len(dtypes), condition, **branches)

    def _branch(self, dtypes: Sequence[str], write: Branch) -> Any:
        inner = Graph(self.opset, prefix=self._prefix, taken=self._taken)
        inner._counter, inner._outer = self._counter, self
        inner._written = ChainMap({}, self._written)
        inner._reduced = ChainMap({}, self._reduced)
        values = write(inner)
        made = {name for node in inner.nodes for name in node.output}
        results = [value if value in made else inner.op("Identity", value) for value in values]
        describe = self._onnx.helper.make_tensor_value_info
        outputs = [describe(name, ELEMENT_TYPES[dtype], None) for name, dtype in zip(results, dtypes)]
        return self._onnx.helper.make_graph(inner.nodes, self._fresh("branch"), [], outputs)

    def all(self, flags: str) -> str:
        """Whether every flag is true: one flag (true for none at all)."""
        counted = self.cast(flags, "float32")
        return self.cast(self.op("ReduceMin", counted, keepdims=0), "bool")

    def some_columns(self, table: str, step: int) -> str:
        """Every step-th column, without touching the others."""
        start, end, axis = self.integers(0), self.integers(np.iinfo(np.int64).max), self.integers(1)
        return self.op("Slice", table, start, end, axis, self.integers(step))

    def over_classes(self, kind: str, value: str) -> str:
        """Reduce every row (n × K) to one number (n × 1)."""
        return self._reduced.get((kind, value)) or self._along(kind, value, (1,), keepdims=1)

    def is_reduced(self, kind: str, value: str, found: str) -> None:
        """Whoever asks for this reduction later gets what another operator has found (n × 1) on its way."""
        self._reduced[kind, value] = found

    def squeeze(self, value: str) -> str:
        """From n × 1 to n."""
        return self._along("Squeeze", value, (1,))

    def unsqueeze(self, value: str) -> str:
        """From n to n × 1."""
        return self._along("Unsqueeze", value, (1,))

    def cast(self, value: str, dtype: str) -> str:
        """The value in another type."""
        return self.op("Cast", value, to=ELEMENT_TYPES[dtype])

    def at_most(self, left: str, right: str) -> str:
        """left <= right, false where either is NaN; Not(Greater) would be true there."""
        if self.opset >= 12:
            return self.op("LessOrEqual", left, right)
        return self.op("Or", self.op("Less", left, right), self.op("Equal", left, right))

    def softmax(self, value: str) -> str:
        """softmax of each row; on tables of rank 2 the same before and after operator set 13."""
        return self.op("Softmax", value, axis=1)

    def rows_where(self, flags: str) -> tuple[str, str]:
        """The indices of the rows (n) whose flag is true: as a list (m), and as ScatterND wants them (m × 1)."""
        found = self.op("Transpose", self.op("NonZero", flags), perm=[1, 0])
        return self.squeeze(found), found

    def _along(self, kind: str, value: str, axes: tuple[int, ...], **attributes: Any) -> str:
        if self.opset >= _AXES_AS_INPUT[kind]:
            return self.op(kind, value, self.integers(*axes), **attributes)
        return self.op(kind, value, axes=list(axes), **attributes)

    def _fresh(self, stem: str) -> str:
        while True:
            name = f"{self._prefix}{stem}_{self._counter[0]}"
            self._counter[0] += 1
            if name not in self._taken:
                return name


def _every_node(nodes: Iterable[Any]) -> Iterator[Any]:
    """These nodes and those of their branches, which may read values from outside."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            yield from _every_node(attribute.g.node)


class Arithmetic:
    """Formulas over a graph's values in one precision. An operand is the name of a value, a number or an array.

    `masks_read` says of the logits that a map gets with it that finite masks are -inf already: what is low among them
    now is low, and must not be looked at a second time.

    Examples
    --------
    >>> graph = Graph(opset=17)
    >>> double = Arithmetic(graph, "float64")
    >>> _ = double("Mul", double("Add", "x", 1.0), [[0.5, 2.0]])
    >>> [node.op_type for node in graph.nodes], len(graph.initializers)
    (['Add', 'Mul'], 2)
    """

    def __init__(self, graph: Graph, dtype: str, masks_read: bool = False) -> None:
        self.graph = graph
        self.dtype = dtype
        self.masks_read = masks_read

    def __call__(self, kind: str, *operands: Any, **attributes: Any) -> str:
        """Append an operator on these operands."""
        return self.graph.op(kind, *map(self.value, operands), **attributes)

    def value(self, operand: Any) -> str:
        """The name of an operand."""
        return operand if isinstance(operand, str) else self.graph.constant(np.asarray(operand, dtype=self.dtype))

    def cast(self, value: str) -> str:
        """A value of another type in this precision."""
        return self.graph.cast(value, self.dtype)

    def sum(self, table: str) -> str:
        """Σ over the classes."""
        return self.graph.over_classes("ReduceSum", table)

    def max(self, table: str) -> str:
        """The largest over the classes."""
        return self.graph.over_classes("ReduceMax", table)

    def min(self, table: str) -> str:
        """The smallest over the classes."""
        return self.graph.over_classes("ReduceMin", table)

    def log1p(self, x: str) -> str:
        """log(1 + x) without cancellation, for which ONNX has no operator: log(u)·x / (u - 1) with u = 1 + x rounded.

        The rounding of u is in both, and cancels (Higham, "Accuracy and Stability of Numerical Algorithms", 1.14).
        """
        u = self("Add", x, 1.0)
        plain = self("Equal", u, 1.0)
        below = self("Where", plain, 1.0, self("Sub", u, 1.0))
        return self("Where", plain, x, self("Div", self("Mul", self("Log", u), x), below))

    def logistic(self, z: str) -> str:
        """1 / (1 + e^-z)."""
        return self("Div", 1.0, self("Add", self("Exp", self("Neg", z)), 1.0))

    def possible(self, logits: str) -> str:
        """Which classes are not masked."""
        return self("Greater", logits, -np.inf)

    def clipped(self, value: str, low: float, high: float) -> str:
        """The value, no less than `low` and no more than `high`."""
        return self("Min", self("Max", value, low), high)
