"""A list of ONNX nodes under construction: names, constants, and what changed from one operator set
to the next.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, MutableMapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from metacal.errors import ArtifactError, InputError, needs_extra
from metacal.formulas import Array

#: The oldest operator set that has every operator used here (ScatterND, and Equal on floats).
OLDEST_OPSET = 11

#: dtype -> the number that ONNX has for it.
ELEMENT_TYPES = {"float32": 1, "float16": 10, "float64": 11, "bool": 9, "int64": 7, "bfloat16": 16}

#: Messages inside messages; a graph inside a graph is three deeper.
_MAX_DEPTH = 150

#: Operators take their axes as an attribute below these operator sets, and as an input from there
#: on.
_AXES_AS_INPUT = {"ReduceSum": 13, "ReduceMax": 18, "ReduceMin": 18, "Squeeze": 13, "Unsqueeze": 13}


def onnx_library(what: str) -> Any:
    """The onnx package, or the error that names the extra."""
    with needs_extra(what, "onnx"):
        import onnx
        import onnx.helper
        import onnx.numpy_helper
    return onnx


def described(name: str, dtype: str, shape: Sequence[Any] | None, says: str = "") -> Any:
    """An input or output of a graph: its type, the sizes or names of its dimensions, and what it
    holds.
    """
    return onnx_library("ONNX export").helper.make_tensor_value_info(
        name, ELEMENT_TYPES[dtype], shape, says
    )


class Graph:
    """Nodes and constants, appended one by one; every name begins with "metacal/" and is none of
    `taken`.

    The same operator on the same inputs is written once: two formulas may ask for the same softmax.

    Examples
    --------
    >>> graph = Graph(opset=17)
    >>> total = graph.over_classes("ReduceSum", graph.op("Exp", "x"))
    >>> [node.op_type for node in graph.nodes], total == graph.over_classes("ReduceSum", graph.op("Exp", "x"))
    (['Exp', 'ReduceSum'], True)
    """

    def __init__(
        self, opset: int, *, taken: Collection[str] = (), constants_as_nodes: bool = False
    ) -> None:
        if opset < OLDEST_OPSET:
            raise InputError(
                f"operator set {opset} is too old: the gate needs at least {OLDEST_OPSET}."
            )
        self.opset = opset
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._onnx = onnx_library("ONNX export")
        self._taken = set(taken)
        self._constants_as_nodes = constants_as_nodes
        self._written: MutableMapping[Any, tuple[str, ...]] = {}
        self._numbers = count()
        self._outer: Graph | None = None

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Append a node with one output, and return the name of that output."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, outputs: int, *inputs: str, **attributes: Any) -> tuple[str, ...]:
        """Append a node with several outputs, and return their names."""
        key = (kind, outputs, inputs, repr(sorted(attributes.items())))
        if key not in self._written:
            stem = self._fresh(kind)
            names = self._written[key] = (stem, *(f"{stem}_{i}" for i in range(1, outputs)))
            self.nodes.append(
                self._onnx.helper.make_node(kind, inputs, names, name=stem, **attributes)
            )
        return self._written[key]

    def rename(self, value: str, name: str) -> None:
        """Give a value the name that the outside knows it by."""
        for node in messages_of("NodeProto", *self.nodes):
            for names in (node.input, node.output):
                for place, old in enumerate(names):
                    if old == value:
                        names[place] = name

    def constant(self, array: Array) -> str:
        """The name of a constant with these values. Constants of a branch lie outside it, where
        both can see them.
        """
        if self._outer is not None:
            return self._outer.constant(array)
        key = ("constant", array.dtype.str, array.shape, array.tobytes())
        if key not in self._written:
            name = self._fresh("constant")
            tensor = self._onnx.numpy_helper.from_array(array, name)
            if (
                self._constants_as_nodes
            ):  # before IR version 4 an initializer would have to be an input as well
                self.nodes.append(
                    self._onnx.helper.make_node(
                        "Constant", [], [name], name=f"{name}/node", value=tensor
                    )
                )
            else:
                self.initializers.append(tensor)
            self._written[key] = (name,)
        return self._written[key][0]

    def integers(self, *values: int) -> str:
        """A flat constant of whole numbers: axes, shapes, indices."""
        return self.constant(np.array(values, dtype=np.int64))

    def branch(self, dtypes: Sequence[str], write: Callable[[Graph], Sequence[str]]) -> Any:
        """A graph inside this one, which sees its values: what `write` appends, and the values that
        it returns.
        """
        inner = Graph(self.opset, taken=self._taken)
        inner._numbers, inner._outer = self._numbers, self
        inner._written = ChainMap({}, self._written)
        values = write(inner)
        made = {name for node in inner.nodes for name in node.output}
        results = [value if value in made else inner.op("Identity", value) for value in values]
        outputs = [described(name, dtype, None) for name, dtype in zip(results, dtypes)]
        return self._onnx.helper.make_graph(inner.nodes, self._fresh("branch"), [], outputs)

    def over_classes(self, kind: str, value: str) -> str:
        """Reduce every row (n × K) to one number (n × 1)."""
        known = self._written.get((kind, value))
        return known[0] if known else self.along_classes(kind, value, keepdims=1)

    def is_reduced(self, kind: str, value: str, result: str) -> None:
        """Whoever asks for this reduction later gets what another operator has made (n × 1) on its
        way.
        """
        self._written[kind, value] = (result,)

    def along_classes(self, kind: str, value: str, **attributes: Any) -> str:
        """Append an operator that is told the axis of the classes, in the way of the operator
        set.
        """
        if self.opset >= _AXES_AS_INPUT[kind]:
            return self.op(kind, value, self.integers(1), **attributes)
        return self.op(kind, value, axes=[1], **attributes)

    def _fresh(self, stem: str) -> str:
        names = (f"metacal/{stem}_{number}" for number in self._numbers)
        return next(name for name in names if name not in self._taken)


def messages(message: Any, depth: int = 0) -> Iterator[Any]:
    """A message of protocol buffers and every one inside it: graphs, nodes, attributes, tensors, in
    functions too.
    """
    if depth > _MAX_DEPTH:
        raise ArtifactError("its graphs are nested too deeply.")
    yield message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inner in [value] if hasattr(value, "ListFields") else value:
                yield from messages(inner, depth + 1)


def messages_of(kind: str, *within: Any) -> Iterator[Any]:
    """Those of a kind, by its name: every "NodeProto", say."""
    for message in within:
        yield from (inner for inner in messages(message) if inner.DESCRIPTOR.name == kind)
