"""Search for the logits in the graph of a classifier."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from metacal.errors import ExportError, InputError, InputKindError, OnnxModelError
from metacal.export.onnx.graph import ELEMENT_TYPES, import_onnx
from metacal.spelling import format_option

# Names of the floating-point dtypes, keyed by their number in the ONNX format.
_FLOAT_DTYPES = {
    ELEMENT_TYPES[name]: name for name in ("float32", "float16", "float64", "bfloat16")
}

# Operators that output probabilities.
_PROBABILITY_OPERATORS = {"Softmax", "Sigmoid", "Normalizer"}

# Operators that do not change the values of their first input.
_IDENTITY_OPERATORS = {
    "Identity",
    "Cast",
    "Reshape",
    "Squeeze",
    "Unsqueeze",
    "Flatten",
    "Dropout",
}

# Operators whose output has the dtype of their first input.
_SAME_TYPE_OPERATORS = {"Softmax", "LogSoftmax", "Sigmoid", *_IDENTITY_OPERATORS} - {"Cast"}

# Operators whose output has the dtype and the shape of their first input.
_SAME_SHAPE_OPERATORS = {"Sigmoid", "Identity", "Dropout"}

# With these values of `post_transform`, an operator of ai.onnx.ml outputs probabilities.
_PROBABILITY_TRANSFORMS = {b"SOFTMAX", b"LOGISTIC", b"PROBIT", b"SOFTMAX_ZERO"}

# Name of the batch dimension of the gate if that of the model has no name.
_BATCH_NAME = "metacal_batch"

# Largest number of outputs that an error message lists.
_MAX_LISTED_OUTPUTS = 20


@dataclass(frozen=True)
class LogitsValue:
    """Tensor of a graph that a gate reads.

    Attributes
    ----------
    name : str
        Name of the value.

    dtype : str
        Dtype of the value.

    n_columns : int or None
        Number of columns. None if the model does not specify it.

    batch_dimension : int or str
        Size or name of the batch dimension.

    n_dimensions : int
        Number of dimensions: 2, or 1 if the model returns one score per row without columns.
    """

    name: str
    dtype: str
    n_columns: int | None = None
    batch_dimension: int | str = _BATCH_NAME
    n_dimensions: int = 2

    @property
    def has_one_score(self) -> bool:
        """Whether there is one score per row, for the second of two classes."""
        return self.n_dimensions == 1 or self.n_columns == 1


def find_logits(model: Any, logits_name: str | None, n_classes: int) -> LogitsValue:
    """Find the tensor of a classifier that contains the logits.

    Parameters
    ----------
    model : onnx.ModelProto
        Model of a classifier.

    logits_name : str or None
        Name of an output or of a tensor inside the graph. If None, the only floating-point output
        with two dimensions is used or, for two classes, the only one with one dimension.

    n_classes : int
        Number of classes of the gate. Two classes need one score per row only.

    Returns
    -------
    LogitsValue

    Raises
    ------
    InputError
        If there is no such value, or several outputs are possible.
    """
    allowed_n_dimensions = (2, 1) if n_classes == 2 else (2,)
    outputs = {output.name: output for output in model.graph.output}
    if len(outputs) < len(model.graph.output):
        raise OnnxModelError("Two outputs of the model have the same name. Export the model again.")
    if logits_name is not None:
        if logits_name in outputs:
            return _parse_logits_type(outputs[logits_name], allowed_n_dimensions)
        return _find_inner_logits(model, logits_name, outputs, allowed_n_dimensions)
    candidates: list[LogitsValue] = []
    for n_dimensions in allowed_n_dimensions:
        if not candidates:
            candidates = list(_iterate_possible_logits(outputs.values(), (n_dimensions,)))
    if len(candidates) == 1:
        return candidates[0]
    for output in outputs.values():
        _raise_if_list_of_dictionaries(output)
    problem = "Cannot tell which output holds the logits."
    if not candidates:
        problem = "No output of the model is a table of floating-point numbers."
    raise ExportError(
        f"{problem} The outputs are {_format_output_list(outputs)}. Name one of them with"
        f" {format_option('logits')}."
    )


def _parse_logits_type(tensor_info: Any, allowed_n_dimensions: Sequence[int]) -> LogitsValue:
    """Extract dtype and shape of the logits from the description of a tensor.

    Raise InputError unless it is a floating-point tensor with a number of dimensions that is
    allowed: 2, or 1 for one score per row.
    """
    _raise_if_list_of_dictionaries(tensor_info)
    tensor_type = tensor_info.type.tensor_type
    if not tensor_info.type.HasField("tensor_type") or tensor_type.elem_type not in _FLOAT_DTYPES:
        raise ExportError(
            f"Output {tensor_info.name!r} must be a table of floating-point numbers, but it is"
            f" {_describe_output(tensor_info)}. Logits have one row per item and one column per class."
        )
    dtype = _FLOAT_DTYPES[tensor_type.elem_type]
    if not tensor_type.HasField("shape"):
        return LogitsValue(name=tensor_info.name, dtype=dtype)
    dimensions = [_dimension_size_or_name(dimension) for dimension in tensor_type.shape.dim]
    if len(dimensions) == 1 and 1 in allowed_n_dimensions:
        return LogitsValue(
            name=tensor_info.name,
            dtype=dtype,
            n_columns=1,
            batch_dimension=dimensions[0] or _BATCH_NAME,
            n_dimensions=1,
        )
    if len(dimensions) != 2 or 2 not in allowed_n_dimensions:
        raise ExportError(
            f"Output {tensor_info.name!r} must have 2 dimensions, one row per item and one column per"
            f" class, but it has {len(dimensions)}."
        )
    batch_dimension, n_columns = dimensions
    return LogitsValue(
        name=tensor_info.name,
        dtype=dtype,
        n_columns=n_columns if isinstance(n_columns, int) else None,
        batch_dimension=batch_dimension or _BATCH_NAME,
    )


def _iterate_possible_logits(
    tensor_infos: Iterable[Any], allowed_n_dimensions: Sequence[int]
) -> Iterator[LogitsValue]:
    """Iterate over the tensors that could be logits, given their descriptions."""
    for tensor_info in tensor_infos:
        with contextlib.suppress(InputError):
            yield _parse_logits_type(tensor_info, allowed_n_dimensions)


def _dimension_size_or_name(dimension: Any) -> int | str:
    """Return the size or name of a dimension, or an empty string if it has neither."""
    if dimension.HasField("dim_value") and dimension.dim_value > 0:
        return int(dimension.dim_value)
    return str(dimension.dim_param)


def _find_inner_logits(
    model: Any, value_name: str, outputs: dict[str, Any], allowed_n_dimensions: Sequence[int]
) -> LogitsValue:
    """Find a tensor inside the graph, such as the input of the last softmax.

    Parameters
    ----------
    model : onnx.ModelProto
        Model of a classifier.

    value_name : str
        Name of the tensor.

    outputs : dict of str to onnx.ValueInfoProto
        Outputs of the model.

    allowed_n_dimensions : sequence of int
        Numbers of dimensions that the tensor may have: 2, and 1 for one score per row.

    Returns
    -------
    LogitsValue

    Raises
    ------
    InputError
        If there is no such value, or its dtype is not known.
    """
    if not any(value_name in node.output for node in model.graph.node):
        raise ExportError(
            f"The model has no value {value_name!r}. Its outputs are {_format_output_list(outputs)}."
        )
    for tensor_info in model.graph.value_info:
        if tensor_info.name == value_name:
            return _parse_logits_type(tensor_info, allowed_n_dimensions)

    # Without a stored type, an output that is computed from the tensor shows its dtype. The shape
    # only matters for one score per row, so it is taken from such outputs only.
    names_of_same_shape = _find_names_computed_from(model, value_name, _SAME_SHAPE_OPERATORS)
    outputs_of_same_shape = [outputs[name] for name in outputs if name in names_of_same_shape]
    for logits in _iterate_possible_logits(outputs_of_same_shape, allowed_n_dimensions):
        if logits.has_one_score:
            return replace(logits, name=value_name)
    names_of_same_dtype = _find_names_computed_from(model, value_name, _SAME_TYPE_OPERATORS)
    outputs_of_same_dtype = [outputs[name] for name in outputs if name in names_of_same_dtype]
    for logits in _iterate_possible_logits(outputs_of_same_dtype, allowed_n_dimensions):
        return LogitsValue(name=value_name, dtype=logits.dtype)
    raise ExportError(
        f"The model does not store the type of the value {value_name!r}. Run"
        " onnx.shape_inference.infer_shapes on the model, or make the value an output."
    )


def _find_names_computed_from(model: Any, value_name: str, operators: Collection[str]) -> set[str]:
    """Return the names of a tensor and of all tensors computed from it by given operators."""
    value_names = {value_name}
    for node in model.graph.node:
        if node.op_type in operators and len(node.input) > 0 and node.input[0] in value_names:
            value_names.update(node.output[:1])
    return value_names


def check_not_probabilities(model: Any, name: str) -> None:
    """Raise InputError if a tensor is obviously the output of a softmax or a sigmoid.

    A gate that was fitted on logits would silently return wrong results.
    """
    producers = {}
    for node in model.graph.node:
        for output_name in node.output:
            producers[output_name] = node
    tensor_name = name
    # Each node is visited once only, because the graph of a damaged file may contain a cycle.
    while tensor_name in producers:
        node = producers.pop(tensor_name)
        if not node.input:
            return
        if _outputs_probabilities(node):
            hint = ""
            if node.op_type in ("Softmax", "Sigmoid"):
                hint = f" (the input of the node, {node.input[0]!r}, may be the logits)"
            raise InputKindError(
                f"{name!r} holds probabilities, because it is the output of a {node.op_type}"
                f" node{hint}. Name the logits with {format_option('logits')}, export the"
                f" model with raw scores (skl2onnx: options={{'raw_scores': True}}), or pass"
                f" {format_option('input', 'probabilities')}."
            )
        if node.op_type not in _IDENTITY_OPERATORS:
            return
        tensor_name = node.input[0]


def _outputs_probabilities(node: Any) -> bool:
    """Check whether a node outputs probabilities."""
    if node.op_type in _PROBABILITY_OPERATORS:
        return True
    for attribute in node.attribute:
        if attribute.name == "post_transform":
            return attribute.s in _PROBABILITY_TRANSFORMS
    return False


def _raise_if_list_of_dictionaries(output: Any) -> None:
    """Raise InputError if an output is a list of dictionaries."""
    if output.type.HasField("sequence_type") or output.type.HasField("map_type"):
        raise ExportError(
            f"Output {output.name!r} is a list of dictionaries (the ZipMap of skl2onnx) instead"
            f" of a table. Export the model with options={{'zipmap': False, 'raw_scores': True}},"
            " then attach the gate again."
        )


def _format_output_list(outputs: dict[str, Any]) -> str:
    """List the outputs of a model with their descriptions."""
    descriptions = [f"{name!r} ({_describe_output(output)})" for name, output in outputs.items()]
    return ", ".join(descriptions[:_MAX_LISTED_OUTPUTS])


def _describe_output(output: Any) -> str:
    """Describe the dtype and shape of an output."""
    if not output.type.HasField("tensor_type"):
        return "no tensor"
    tensor_type = output.type.tensor_type
    data_types = import_onnx("attaching a gate").TensorProto.DataType
    type_name = "unknown"
    if tensor_type.elem_type in data_types.values():
        type_name = data_types.Name(tensor_type.elem_type).lower()
    shape = " × ".join(str(_dimension_size_or_name(size) or "?") for size in tensor_type.shape.dim)
    return f"{type_name} {shape}".rstrip()
