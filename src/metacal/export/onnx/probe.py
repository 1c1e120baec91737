"""Check and run of one model file in a separate process, with limits on memory and time.

Models come from anywhere, so they are not trusted. This file is run as a script:
`python probe.py MODEL FOLDER MEMORY_BYTES SECONDS`. It only imports onnx, onnxruntime and NumPy.

The inputs are read from inputs.npz in the folder. If that file does not exist, inputs are generated
from the model's own description. The result is written to reply.json, with arrays in outputs.npz.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

# Largest number of elements of a generated input.
_MAX_ELEMENTS = 1 << 24


class _SizeGuess(NamedTuple):
    """Sizes to try for the dimensions of an input whose sizes the model does not state.

    Attributes
    ----------
    batch_size : int
        Size of the first dimension.

    other_size : int
        Size of every other dimension.
    """

    batch_size: int
    other_size: int


# Sizes that are tried one after the other until the model runs.
_SIZE_GUESSES = (
    _SizeGuess(batch_size=3, other_size=8),
    _SizeGuess(batch_size=1, other_size=1),
    _SizeGuess(batch_size=2, other_size=64),
    _SizeGuess(batch_size=2, other_size=224),
    _SizeGuess(batch_size=1, other_size=32),
    _SizeGuess(batch_size=1, other_size=8),
    _SizeGuess(batch_size=1, other_size=224),
)

# An input of four dimensions is usually a batch of images: rows, channels, height and width.
_N_IMAGE_DIMENSIONS = 4
_N_IMAGE_CHANNELS = 3

# Largest number of characters of an error message.
_MAX_MESSAGE_LENGTH = 600

#: Name of the node that fails if the logits do not have one column per class.
COLUMN_CHECK_NODE_NAME = "metacal/one_column_per_class"

# NumPy dtype names of the onnxruntime types that are spelled differently.
_NUMPY_NAMES = {"float": "float32", "double": "float64", "string": "str"}


@dataclass(frozen=True)
class _RunResult:
    """Result of running a model.

    Attributes
    ----------
    outputs : list of array or None
        Outputs of the model. None if it could not be run.

    reason_not_run : str
        Reason why the model could not be run.

    integer_value : int
        Value of all elements of the generated integer inputs.
    """

    outputs: list[Any] | None
    reason_not_run: str = ""
    integer_value: int = 1


def main(model: str, folder: str, memory_bytes: str, seconds: str) -> None:
    """Check and run a model, and write the result to reply.json.

    Parameters
    ----------
    model : str
        Model file.

    folder : str
        Folder of inputs.npz, reply.json and outputs.npz.

    memory_bytes : str
        Limit on the memory that is allocated in addition to the imported libraries.

    seconds : str
        Limit on the processor time.
    """
    import onnx.checker
    import onnxruntime

    _set_limits(int(memory_bytes), int(seconds))
    probe_reply = _check_and_run(model, folder, onnx.checker.check_model, onnxruntime)
    with open(os.path.join(folder, "reply.json"), "w", encoding="utf-8") as file:
        json.dump(probe_reply, file)


def _check_and_run(model: str, folder: str, check_model: Any, onnxruntime: Any) -> dict[str, Any]:
    """Check, load and run a model.

    Parameters
    ----------
    model : str
        Model file.

    folder : str
        Folder of inputs.npz and outputs.npz.

    check_model : callable
        Checker of onnx.

    onnxruntime : module
        The module onnxruntime.

    Returns
    -------
    dict
        Reply: the last stage that was reached ("check", "load", "run", "loaded" or "ran"), the
        metadata, the names of the outputs, and the error, if there was one.
    """
    probe_reply: dict[str, Any] = {"stage": "check"}
    try:
        check_model(model)
        probe_reply["stage"] = "load"
        session = _open_session(onnxruntime, model)
        probe_reply["metadata"] = dict(session.get_modelmeta().custom_metadata_map)
        output_names = _numeric_output_names(session)
        probe_reply["outputs"] = output_names
        probe_reply["stage"] = "run"
        run_result = _run_model(session, output_names, folder)
        probe_reply["reason_not_run"] = run_result.reason_not_run
        probe_reply["generated_integer"] = run_result.integer_value
        probe_reply["stage"] = "loaded" if run_result.outputs is None else "ran"
        np.savez(os.path.join(folder, "outputs.npz"), *(run_result.outputs or []))
    except Exception as error:
        probe_reply["error"] = _error_message(error)
    return probe_reply


def _error_message(error: Exception) -> str:
    """Return the message of an error on one line of limited length."""
    return " ".join(str(error).split())[:_MAX_MESSAGE_LENGTH] or type(error).__name__


def _set_limits(memory_bytes: int, seconds: int) -> None:
    """Limit memory and processor time of this process, if the system supports it."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            n_pages = int(file.read().split()[0])
        used_bytes = n_pages * os.sysconf("SC_PAGE_SIZE")
        max_bytes = used_bytes + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _open_session(onnxruntime: Any, path: str) -> Any:
    """Load a model in onnxruntime, with one thread."""
    session_options = onnxruntime.SessionOptions()
    session_options.intra_op_num_threads = 1
    session_options.inter_op_num_threads = 1
    session_options.log_severity_level = 4
    session_options.enable_cpu_mem_arena = False
    return onnxruntime.InferenceSession(path, session_options, providers=["CPUExecutionProvider"])


def _numeric_output_names(session: Any) -> list[str]:
    """Return the names of the outputs that are tensors of numbers.

    Text is not an output of a gate, and could only be stored as pickled objects.
    """
    numeric_names = []
    for output in session.get_outputs():
        if output.type.startswith("tensor(") and output.type != "tensor(string)":
            numeric_names.append(output.name)
    return numeric_names


def _run_model(session: Any, output_names: list[str], folder: str) -> _RunResult:
    """Run a model on the inputs in a folder, or on generated ones."""
    input_path = os.path.join(folder, "inputs.npz")
    if os.path.exists(input_path):
        with np.load(input_path, allow_pickle=False) as arrays:
            inputs = {name: arrays[name] for name in arrays.files}
        return _RunResult(outputs=session.run(output_names, inputs))

    dtypes = {}
    for model_input in session.get_inputs():
        dtype = _numpy_dtype(model_input.type)
        if dtype is None:
            reason_not_run = (
                f"its input {model_input.name!r} is a {model_input.type}, for which no values can"
                " be made up"
            )
            return _RunResult(outputs=None, reason_not_run=reason_not_run)
        dtypes[model_input.name] = dtype
    return _run_on_generated_inputs(session, output_names, dtypes)


def _run_on_generated_inputs(
    session: Any, output_names: list[str], dtypes: dict[str, Any]
) -> _RunResult:
    """Run a model on generated inputs of several shapes until one succeeds."""
    reason_not_run = "its inputs are too large to be made up"
    has_integers = any(dtype.kind in "iu" for dtype in dtypes.values())
    integer_values = (1, 0) if has_integers else (1,)
    for size_guess, integer_value in itertools.product(_SIZE_GUESSES, integer_values):
        inputs = _generate_inputs(session.get_inputs(), dtypes, size_guess, integer_value)
        if inputs is None:
            continue
        try:
            outputs = session.run(output_names, inputs)
            return _RunResult(outputs=outputs, integer_value=integer_value)
        except Exception as error:
            reason_not_run = _error_message(error)
            has_wrong_column_count = COLUMN_CHECK_NODE_NAME in reason_not_run
            if has_wrong_column_count:
                # The number of columns of the logits does not depend on the generated sizes.
                raise
    return _RunResult(outputs=None, reason_not_run=reason_not_run)


def _numpy_dtype(onnx_type: str) -> Any:
    """Return the NumPy dtype of an onnxruntime type, or None if there is none."""
    if not onnx_type.startswith("tensor("):
        return None
    element_type = onnx_type.removeprefix("tensor(").removesuffix(")")
    try:
        return np.dtype(_NUMPY_NAMES.get(element_type, element_type))
    except TypeError:
        return None


def _generate_inputs(
    model_inputs: Sequence[Any],
    dtypes: dict[str, Any],
    size_guess: _SizeGuess,
    integer_value: int,
) -> dict[str, Any] | None:
    """Generate values for all inputs of a model.

    Parameters
    ----------
    model_inputs : sequence of onnxruntime.NodeArg
        Inputs of the model.

    dtypes : dict of str to dtype
        Dtypes of the inputs.

    size_guess : _SizeGuess
        Sizes of the dimensions that the model leaves open.

    integer_value : int
        Value of the elements of integer inputs.

    Returns
    -------
    dict of str to array, or None
        None if an input would be too large.
    """
    named_sizes: dict[str, int] = {}
    inputs = {}
    for model_input in model_inputs:
        shape = _guess_shape(model_input.shape, size_guess, named_sizes)
        # Python integers do not overflow, unlike the int64 product of NumPy.
        n_elements = int(np.prod(shape, dtype=object))
        if n_elements > _MAX_ELEMENTS:
            return None
        dtype = dtypes[model_input.name]
        inputs[model_input.name] = _generate_array(dtype, shape, integer_value)
    return inputs


def _guess_shape(
    dimensions: Sequence[Any], size_guess: _SizeGuess, named_sizes: dict[str, int]
) -> list[int]:
    """Choose the shape of an input. Dimensions with the same name get the same size.

    Parameters
    ----------
    dimensions : sequence of int, str or None
        Size or name of each dimension.

    size_guess : _SizeGuess
        Sizes of the dimensions that the model leaves open.

    named_sizes : dict of str to int
        Sizes of named dimensions. New names are added.

    Returns
    -------
    list of int
    """
    shape = []
    is_image_batch = len(dimensions) == _N_IMAGE_DIMENSIONS
    for axis, dimension in enumerate(dimensions):
        size = size_guess.other_size
        if axis == 0:
            size = size_guess.batch_size
        elif axis == 1 and is_image_batch:
            size = _N_IMAGE_CHANNELS
        if isinstance(dimension, int) and dimension > 0:
            size = dimension
        elif isinstance(dimension, str):
            size = named_sizes.setdefault(dimension, size)
        shape.append(size)
    return shape


def _generate_array(dtype: Any, shape: list[int], integer_value: int) -> Any:
    """Generate random floats or bytes, or an array of equal integers or strings."""
    rng = np.random.default_rng(0)
    if dtype.kind == "f":
        return rng.normal(size=shape).astype(dtype)
    if dtype == np.uint8:
        return rng.integers(0, 256, size=shape).astype(dtype)
    if dtype.kind == "U":
        return np.full(shape, "a").astype(dtype)
    return np.full(shape, integer_value).astype(dtype)


if __name__ == "__main__":
    main(*sys.argv[1:])
