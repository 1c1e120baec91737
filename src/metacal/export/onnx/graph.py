"""Construction of ONNX graphs node by node.

`Graph` generates unique names, shares constants and equal nodes, and handles the differences
between operator sets.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, MutableMapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from metacal.errors import ArtifactError, InputError, needs_extra
from metacal.formulas import Array

#: Oldest operator set with all operators that are used (ScatterND, and Equal on floats).
OLDEST_OPSET = 11

#: Number of each dtype in the ONNX format.
ELEMENT_TYPES = {"float32": 1, "float16": 10, "float64": 11, "bool": 9, "int64": 7, "bfloat16": 16}

# Largest nesting depth of protocol buffer messages. A nested graph is three levels deeper.
_MAX_DEPTH = 150

# Operator sets from which the axes of an operator are an input instead of an attribute.
_AXES_INPUT_OPSET = {
    "ReduceSum": 13,
    "ReduceMax": 18,
    "ReduceMin": 18,
    "Squeeze": 13,
    "Unsqueeze": 13,
}


def onnx_library(purpose: str) -> Any:
    """Import the package onnx. If it is missing, raise an error that names the extra."""
    with needs_extra(purpose, "onnx"):
        import onnx
        import onnx.helper
        import onnx.numpy_helper
    return onnx


def tensor_info(name: str, dtype: str, shape: Sequence[Any] | None, description: str = "") -> Any:
    """Describe an input or output of a graph.

    Parameters
    ----------
    name : str
        Name of the value.

    dtype : str
        Dtype of the value.

    shape : sequence of int, str or None, or None
        Sizes or names of the dimensions. None if the number of dimensions is not known.

    description : str, default=""
        Text for readers of the graph.

    Returns
    -------
    onnx.ValueInfoProto
    """
    helper = onnx_library("ONNX export").helper
    return helper.make_tensor_value_info(name, ELEMENT_TYPES[dtype], shape, description)


class Graph:
    """ONNX graph under construction.

    An operator that is applied twice to the same inputs results in a single node, because several
    formulas may contain the same softmax.

    Parameters
    ----------
    opset : int
        Operator set.

    taken : collection of str
        Names that must not be used. All generated names begin with "metacal/".

    constants_as_nodes : bool, default=False
        Whether constants are nodes instead of initializers. Before IR version 4, an initializer
        would have to be an input as well.

    Attributes
    ----------
    nodes : list of onnx.NodeProto
        Nodes in order.

    initializers : list of onnx.TensorProto
        Constants.

    Examples
    --------
    >>> graph = Graph(opset=17)
    >>> total = graph.over_classes("ReduceSum", graph.op("Exp", "x"))
    >>> [node.op_type for node in graph.nodes]
    ['Exp', 'ReduceSum']
    >>> total == graph.over_classes("ReduceSum", graph.op("Exp", "x"))
    True
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
        self._taken_names = set(taken)
        self._constants_as_nodes = constants_as_nodes
        # Output names of the existing nodes and constants, by what they compute.
        self._outputs: MutableMapping[Any, tuple[str, ...]] = {}
        self._name_numbers = count()
        self._outer_graph: Graph | None = None

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Append a node with one output, and return the name of the output."""
        return self.ops(op_type, 1, *inputs, **attributes)[0]

    def ops(self, op_type: str, n_outputs: int, *inputs: str, **attributes: Any) -> tuple[str, ...]:
        """Append a node with several outputs, and return their names.

        Parameters
        ----------
        op_type : str
            ONNX operator.

        n_outputs : int
            Number of outputs.

        *inputs : str
            Names of the inputs.

        **attributes
            Attributes of the operator.

        Returns
        -------
        tuple of str
        """
        key = (op_type, n_outputs, inputs, repr(sorted(attributes.items())))
        if key not in self._outputs:
            name = self._new_name(op_type)
            output_names = (name, *(f"{name}_{index}" for index in range(1, n_outputs)))
            node = self._onnx.helper.make_node(
                op_type, inputs, output_names, name=name, **attributes
            )
            self.nodes.append(node)
            self._outputs[key] = output_names
        return self._outputs[key]

    def rename(self, value: str, name: str) -> None:
        """Rename a value in all nodes."""
        for node in messages_of("NodeProto", *self.nodes):
            for value_names in (node.input, node.output):
                for index, value_name in enumerate(value_names):
                    if value_name == value:
                        value_names[index] = name

    def constant(self, array: Array) -> str:
        """Add a constant, and return its name.

        The constants of a branch belong to the outer graph, so that both branches can use them.
        """
        if self._outer_graph is not None:
            return self._outer_graph.constant(array)
        key = ("constant", array.dtype.str, array.shape, array.tobytes())
        if key not in self._outputs:
            name = self._new_name("constant")
            tensor = self._onnx.numpy_helper.from_array(array, name)
            if self._constants_as_nodes:
                node = self._onnx.helper.make_node(
                    "Constant", [], [name], name=f"{name}/node", value=tensor
                )
                self.nodes.append(node)
            else:
                self.initializers.append(tensor)
            self._outputs[key] = (name,)
        return self._outputs[key][0]

    def integers(self, *values: int) -> str:
        """Add a 1-D constant of integers, such as axes, a shape or indices."""
        return self.constant(np.array(values, dtype=np.int64))

    def branch(self, dtypes: Sequence[str], write: Callable[[Graph], Sequence[str]]) -> Any:
        """Build a nested graph that can use the values of this graph.

        Parameters
        ----------
        dtypes : sequence of str
            Dtypes of the outputs.

        write : callable
            Function that appends nodes to the nested graph and returns the names of its outputs.

        Returns
        -------
        onnx.GraphProto
        """
        inner = Graph(self.opset, taken=self._taken_names)
        inner._name_numbers = self._name_numbers
        inner._outer_graph = self
        inner._outputs = ChainMap({}, self._outputs)
        values = write(inner)
        inner_values = {name for node in inner.nodes for name in node.output}
        outputs = []
        for value, dtype in zip(values, dtypes):
            # An output of a branch must be computed in the branch.
            name = value if value in inner_values else inner.op("Identity", value)
            outputs.append(tensor_info(name, dtype, None))
        return self._onnx.helper.make_graph(inner.nodes, self._new_name("branch"), [], outputs)

    def over_classes(self, op_type: str, value: str) -> str:
        """Reduce a table (n × K) over the classes to a column (n × 1)."""
        known_output = self._outputs.get((op_type, value))
        if known_output is not None:
            return known_output[0]
        return self.along_classes(op_type, value, keepdims=1)

    def declare_reduction(self, op_type: str, value: str, result: str) -> None:
        """Declare that `result` (n × 1) is the reduction of `value` by an operator.

        A later call of `over_classes` then returns it without appending a node.
        """
        self._outputs[op_type, value] = (result,)

    def along_classes(self, op_type: str, value: str, **attributes: Any) -> str:
        """Append an operator along the axis of the classes, and return its output."""
        if self.opset >= _AXES_INPUT_OPSET[op_type]:
            return self.op(op_type, value, self.integers(1), **attributes)
        return self.op(op_type, value, axes=[1], **attributes)

    def _new_name(self, stem: str) -> str:
        """Generate a name that is not taken."""
        for number in self._name_numbers:
            name = f"metacal/{stem}_{number}"
            if name not in self._taken_names:
                return name
        raise AssertionError("the numbers are infinite")


def messages(message: Any, depth: int = 0) -> Iterator[Any]:
    """Iterate over a protocol buffer message and all messages inside it.

    Raise ArtifactError if the messages are nested too deeply.
    """
    if depth > _MAX_DEPTH:
        raise ArtifactError("its graphs are nested too deeply.")
    yield message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            is_single = hasattr(value, "ListFields")
            for inner_message in [value] if is_single else value:
                yield from messages(inner_message, depth + 1)


def messages_of(type_name: str, *roots: Any) -> Iterator[Any]:
    """Iterate over all messages of one type, such as "NodeProto", inside some messages."""
    for root in roots:
        for message in messages(root):
            if message.DESCRIPTOR.name == type_name:
                yield message
