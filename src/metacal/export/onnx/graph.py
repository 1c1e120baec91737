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

from metacal.errors import ExportError, OnnxModelError, needs_extra
from metacal.formulas import Array

#: Oldest operator set with all operators that are used (ScatterND, and Equal on floats).
OLDEST_OPSET = 11

#: Element type numbers of the ONNX format (`TensorProto.DataType`), keyed by dtype.
ELEMENT_TYPES = {"float32": 1, "float16": 10, "float64": 11, "bool": 9, "int64": 7, "bfloat16": 16}

# Position of the class axis in a table of shape (n_rows, n_classes).
_CLASS_AXIS = 1

# Largest nesting depth of protocol buffer messages. Each nested graph adds three levels.
_MAX_NESTING_DEPTH = 150

# First operator set in which an operator receives its axes as an input, not as an attribute.
_FIRST_OPSET_WITH_AXES_INPUT = {
    "ReduceSum": 13,
    "ReduceMax": 18,
    "ReduceMin": 18,
    "Squeeze": 13,
    "Unsqueeze": 13,
}


def import_onnx(purpose: str) -> Any:
    """Import the onnx package. Raise MissingExtraError if it is not installed."""
    with needs_extra(purpose, "onnx"):
        import onnx
        import onnx.helper
        import onnx.numpy_helper
    return onnx


def make_tensor_info(
    name: str, dtype: str, shape: Sequence[Any] | None, description: str = ""
) -> Any:
    """Describe an input or output of an ONNX graph.

    Parameters
    ----------
    name : str
        Name of the tensor.

    dtype : str
        Dtype of the tensor.

    shape : sequence of int, str or None, or None
        Sizes or names of the dimensions. None if the number of dimensions is not known.

    description : str, default=""
        Text for readers of the graph.

    Returns
    -------
    onnx.ValueInfoProto
    """
    helper = import_onnx("ONNX export").helper
    return helper.make_tensor_value_info(name, ELEMENT_TYPES[dtype], shape, description)


class Graph:
    """ONNX graph under construction.

    An operator that is applied twice to the same inputs results in a single node, because several
    formulas may contain the same softmax.

    Parameters
    ----------
    opset : int
        Operator set.

    reserved_names : collection of str, default=()
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
    >>> total = graph.reduce_over_classes("ReduceSum", graph.append_node("Exp", "x"))
    >>> [node.op_type for node in graph.nodes]
    ['Exp', 'ReduceSum']
    >>> total == graph.reduce_over_classes("ReduceSum", graph.append_node("Exp", "x"))
    True
    """

    def __init__(
        self, opset: int, *, reserved_names: Collection[str] = (), constants_as_nodes: bool = False
    ) -> None:
        if opset < OLDEST_OPSET:
            raise ExportError(
                f"The gate requires operator set {OLDEST_OPSET} or newer, but got {opset}. Pass a"
                " newer operator set."
            )
        self.opset = opset
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._onnx = import_onnx("ONNX export")
        self._reserved_names = set(reserved_names)
        self._constants_as_nodes = constants_as_nodes
        # A node or constant that exists already is not added again, so outputs are found by content.
        self._output_names_by_content: MutableMapping[Any, tuple[str, ...]] = {}
        self._name_counter = count()
        self._outer_graph: Graph | None = None

    def append_node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Append a node with one output, and return the name of the output."""
        return self.append_multi_output_node(op_type, 1, *inputs, **attributes)[0]

    def append_multi_output_node(
        self, op_type: str, n_outputs: int, *inputs: str, **attributes: Any
    ) -> tuple[str, ...]:
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
        content_key = (op_type, n_outputs, inputs, repr(sorted(attributes.items())))
        if content_key not in self._output_names_by_content:
            node_name = self._new_name(op_type)
            further_outputs = [f"{node_name}_{index}" for index in range(1, n_outputs)]
            output_names = (node_name, *further_outputs)
            node = self._onnx.helper.make_node(
                op_type, inputs, output_names, name=node_name, **attributes
            )
            self.nodes.append(node)
            self._output_names_by_content[content_key] = output_names
        return self._output_names_by_content[content_key]

    def rename_value(self, old_name: str, new_name: str) -> None:
        """Rename a tensor in the inputs and outputs of all nodes."""
        for node in iterate_messages_of_type("NodeProto", *self.nodes):
            for tensor_names in (node.input, node.output):
                for index, tensor_name in enumerate(tensor_names):
                    if tensor_name == old_name:
                        tensor_names[index] = new_name

    def add_constant(self, array: Array) -> str:
        """Add a constant, and return its name.

        The constants of a branch belong to the outer graph, so that both branches can use them.
        """
        if self._outer_graph is not None:
            return self._outer_graph.add_constant(array)
        content_key = ("constant", array.dtype.str, array.shape, array.tobytes())
        if content_key not in self._output_names_by_content:
            constant_name = self._new_name("constant")
            tensor = self._onnx.numpy_helper.from_array(array, constant_name)
            if self._constants_as_nodes:
                node = self._onnx.helper.make_node(
                    "Constant", [], [constant_name], name=f"{constant_name}/node", value=tensor
                )
                self.nodes.append(node)
            else:
                self.initializers.append(tensor)
            self._output_names_by_content[content_key] = (constant_name,)
        (constant_name,) = self._output_names_by_content[content_key]
        return constant_name

    def add_integers(self, *values: int) -> str:
        """Add a 1-D constant of integers, such as axes, a shape or indices."""
        return self.add_constant(np.array(values, dtype=np.int64))

    def build_branch(
        self, dtypes: Sequence[str], write_nodes: Callable[[Graph], Sequence[str]]
    ) -> Any:
        """Build a nested graph whose nodes can read the tensors of this graph.

        Parameters
        ----------
        dtypes : sequence of str
            Dtypes of the outputs.

        write_nodes : callable
            Function that appends nodes to the nested graph and returns the names of its outputs.

        Returns
        -------
        onnx.GraphProto
        """
        branch = Graph(self.opset, reserved_names=self._reserved_names)
        branch._name_counter = self._name_counter
        branch._outer_graph = self
        branch._output_names_by_content = ChainMap({}, self._output_names_by_content)
        output_names = write_nodes(branch)
        names_computed_in_branch = {name for node in branch.nodes for name in node.output}
        output_infos = []
        for output_name, dtype in zip(output_names, dtypes):
            # ONNX requires that an output of a branch is computed in the branch.
            if output_name not in names_computed_in_branch:
                output_name = branch.append_node("Identity", output_name)
            output_infos.append(make_tensor_info(output_name, dtype, None))
        branch_name = self._new_name("branch")
        return self._onnx.helper.make_graph(branch.nodes, branch_name, [], output_infos)

    def reduce_over_classes(self, op_type: str, table_name: str) -> str:
        """Reduce a table (n × K) over the classes to a column (n × 1)."""
        declared_reduction = self._output_names_by_content.get((op_type, table_name))
        if declared_reduction is not None:
            (column_name,) = declared_reduction
            return column_name
        return self.append_class_axis_node(op_type, table_name, keepdims=1)

    def declare_reduction(self, op_type: str, table_name: str, column_name: str) -> None:
        """Declare that a column (n × 1) is the reduction of a table by an operator.

        A later call of `reduce_over_classes` then returns the column without appending a node.
        """
        self._output_names_by_content[op_type, table_name] = (column_name,)

    def append_class_axis_node(self, op_type: str, input_name: str, **attributes: Any) -> str:
        """Append an operator along the class axis, and return the name of its output."""
        return self.append_axis_node(op_type, input_name, _CLASS_AXIS, **attributes)

    def append_axis_node(self, op_type: str, input_name: str, axis: int, **attributes: Any) -> str:
        """Append an operator along one axis, and return the name of its output."""
        if self.opset >= _FIRST_OPSET_WITH_AXES_INPUT[op_type]:
            axes_name = self.add_integers(axis)
            return self.append_node(op_type, input_name, axes_name, **attributes)
        return self.append_node(op_type, input_name, axes=[axis], **attributes)

    def _new_name(self, stem: str) -> str:
        """Generate a name that neither the model nor this graph uses."""
        for number in self._name_counter:
            name = f"metacal/{stem}_{number}"
            if name not in self._reserved_names:
                return name
        raise AssertionError("the numbers are infinite")


def iterate_messages(message: Any, depth: int = 0) -> Iterator[Any]:
    """Iterate over a protocol buffer message and all messages inside it.

    Raise ArtifactError if the messages are nested too deeply.
    """
    if depth > _MAX_NESTING_DEPTH:
        raise OnnxModelError("the graphs of the model are nested too deeply.")
    yield message
    for field, field_value in message.ListFields():
        if field.type != field.TYPE_MESSAGE:
            continue
        is_repeated = not hasattr(field_value, "ListFields")
        inner_messages = field_value if is_repeated else [field_value]
        for inner_message in inner_messages:
            yield from iterate_messages(inner_message, depth + 1)


def iterate_messages_of_type(type_name: str, *roots: Any) -> Iterator[Any]:
    """Iterate over the nested messages of a type, such as "NodeProto"."""
    for root in roots:
        for message in iterate_messages(root):
            if message.DESCRIPTOR.name == type_name:
                yield message
