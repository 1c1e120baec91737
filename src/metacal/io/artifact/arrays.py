"""Conversion of NumPy arrays to JSON and back.

Arrays are stored in little-endian byte order. On reading, the size is compared with the number of
stored values before memory is allocated, and numbers that no fit can produce are rejected.
"""

from __future__ import annotations

import base64
import math
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from metacal.errors import ArtifactError, SavingError
from metacal.io.artifact.messages import check_keys, describe_json

# Maximum number of elements that are written as numbers. Larger arrays are written as base64.
_MAX_READABLE_SIZE = 64

# Maximum number of dimensions.
_MAX_DIMENSIONS = 8

# Largest absolute value of a float, because products of two larger ones could overflow.
# A fit does not produce larger parameters.
_MAX_FLOAT = 1e100

_DTYPE_NAMES = ("<f2", "<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "|b1")

#: Supported dtypes by their name in a file.
DTYPES = {name: np.dtype(name) for name in _DTYPE_NAMES}

# Python types of the JSON values of an array, by the kind of its dtype.
_VALUE_TYPES: dict[str, tuple[type, ...]] = {
    "f": (int, float),
    "i": (int,),
    "u": (int,),
    "b": (bool,),
}


def encode_array(array: NDArray[Any], location: str) -> dict[str, Any]:
    """Convert an array to a JSON object.

    Parameters
    ----------
    array : array
        Array to convert.

    location : str
        Name of the array in error messages.

    Returns
    -------
    dict
        Object with the keys "dtype", "shape" and "values". If the array is large or contains
        numbers that are not finite, "base64" replaces "values".

    Raises
    ------
    ArtifactError
        If the dtype is not supported.
    """
    little_endian = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    dtype_name = little_endian.dtype.str
    if dtype_name not in DTYPES:
        raise SavingError(
            f"Cannot save {location}, because it is an array of {array.dtype}. Use integers,"
            " floats, booleans or strings."
        )
    json_object: dict[str, Any] = {"dtype": dtype_name, "shape": list(array.shape)}
    if array.size <= _MAX_READABLE_SIZE and np.isfinite(little_endian).all():
        json_object["values"] = little_endian.ravel().tolist()
    else:
        json_object["base64"] = base64.b64encode(little_endian.tobytes()).decode("ascii")
    return json_object


def decode_array(annotation: Any, data: dict[str, Any], location: str) -> NDArray[Any]:
    """Convert a JSON object to an array.

    Parameters
    ----------
    annotation : type
        Annotation of the field, such as `NDArray[np.float64]`. It determines the allowed dtypes.

    data : dict
        Object that `encode_array` returned.

    location : str
        Position of the array in the file, used in error messages.

    Returns
    -------
    array
        Read-only, in native byte order.

    Raises
    ------
    ArtifactError
        If the object does not describe an array of the annotated type.
    """
    is_base64 = "base64" in data
    check_keys(data, ["dtype", "shape", "base64" if is_base64 else "values"], location)
    dtype = _decode_dtype(data["dtype"], location)
    shape = data["shape"]
    _check_shape(shape, location)
    if is_base64:
        values = _decode_base64(data["base64"], dtype, location)
    else:
        values = _decode_values(data["values"], dtype, location)
    # Python integers do not overflow, and nothing has been allocated for the claimed shape.
    if len(values) != math.prod(shape):
        raise ArtifactError(
            f"{location} must have as many numbers as its shape {shape} requires, but it has"
            f" {len(values)}."
        )

    array = values.reshape(shape).astype(dtype.newbyteorder("="))
    if dtype.kind == "f":
        _check_magnitude(array, location)
    required_type = _get_annotated_scalar_type(annotation)
    if required_type is not None and not issubclass(array.dtype.type, required_type):
        raise ArtifactError(
            f"{location} must be an array of {required_type.__name__}, but it is an array of"
            f" {array.dtype}."
        )
    array.flags.writeable = False
    return array


def _decode_dtype(name: Any, location: str) -> np.dtype[Any]:
    """Return the dtype with a name. Raise ArtifactError if it is not supported."""
    if type(name) is not str or name not in DTYPES:
        raise ArtifactError(f"{location} has the unknown dtype {describe_json(name)}.")
    return DTYPES[name]


def _check_shape(shape: Any, location: str) -> None:
    """Raise ArtifactError unless a value is a valid shape."""
    is_valid = isinstance(shape, list) and len(shape) <= _MAX_DIMENSIONS
    if not is_valid or not all(type(length) is int and length >= 0 for length in shape):
        raise ArtifactError(f"the shape of {location} must be a list of nonnegative integers.")


def _check_magnitude(array: NDArray[Any], location: str) -> None:
    """Raise ArtifactError if a float is NaN, infinite or too large."""
    # NaN compares as False, so it is rejected as well.
    is_valid = np.abs(array.astype(np.float64, copy=False)) <= _MAX_FLOAT
    if not is_valid.all():
        raise ArtifactError(
            f"{location} must hold finite numbers of magnitude at most {_MAX_FLOAT:g}."
        )


def _get_annotated_scalar_type(annotation: Any) -> type | None:
    """Return the scalar type of an array annotation, or None if it has none."""
    array_arguments = get_args(annotation)
    if not array_arguments:
        return None
    dtype_arguments = get_args(array_arguments[1])
    if not dtype_arguments or not isinstance(dtype_arguments[0], type):
        return None
    return dtype_arguments[0]


def _decode_base64(text: Any, dtype: np.dtype[Any], location: str) -> NDArray[Any]:
    """Decode base64 text to a 1-D array."""
    if type(text) is not str:
        raise ArtifactError(f"the base64 data of {location} are damaged.")
    try:
        content = base64.b64decode(text, validate=True)
        return np.frombuffer(content, dtype=dtype)
    except ValueError:
        raise ArtifactError(f"the base64 data of {location} are damaged.") from None


def _decode_values(values: Any, dtype: np.dtype[Any], location: str) -> NDArray[Any]:
    """Convert a list of JSON numbers to a 1-D array."""
    value_types = _VALUE_TYPES[dtype.kind]
    if not isinstance(values, list) or not all(type(value) in value_types for value in values):
        raise ArtifactError(f"the values of {location} must be a list of plain numbers.")
    # The range is checked with Python's integers, because NumPy 1 wraps integers that do not fit.
    limits: Any = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(np.float64)
    smallest = int(limits.min)
    largest = int(limits.max)
    if not all(smallest <= value <= largest for value in values):
        raise ArtifactError(f"{location} holds a number that does not fit the dtype {dtype}.")
    return np.array(values, dtype=dtype)
