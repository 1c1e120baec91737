"""Arrays as JSON, and back: little-endian, no larger than what is there, every number one that a
fit can give.
"""

from __future__ import annotations

import base64
import math
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from metacal.errors import ArtifactError
from metacal.io.artifact.messages import exact_keys, shown

#: Arrays up to this many elements are written as numbers, larger ones as base64.
_READABLE = 64
_KINDS = ("<f2", "<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "|b1")
DTYPES = {kind: np.dtype(kind) for kind in _KINDS}
#: Beyond this a parameter is no result of a fit, and products of two overflow.
LARGEST = 1e100


def encode_array(array: NDArray[Any], where: str) -> dict[str, Any]:
    """An array as {"dtype", "shape", "values"}, or with "base64" where there are many numbers, or
    some not finite.
    """
    little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    if little.dtype.str not in DTYPES:
        raise ArtifactError(f"{where} is an array of {array.dtype}, which cannot be saved.")
    head = {"dtype": little.dtype.str, "shape": list(array.shape)}
    if array.size <= _READABLE and np.isfinite(little).all():
        return {**head, "values": little.ravel().tolist()}
    return {**head, "base64": base64.b64encode(little.tobytes()).decode("ascii")}


def decode_array(annotation: Any, data: dict[str, Any], where: str) -> NDArray[Any]:
    """The array that `data` describes, of the type that the annotation says, or ArtifactError."""
    packed = "base64" in data
    exact_keys(data, ["dtype", "shape", "base64" if packed else "values"], where)
    kind, shape = data["dtype"], data["shape"]
    if type(kind) is not str or kind not in DTYPES:
        raise ArtifactError(f"{where}: unknown dtype {shown(kind)}.")
    if (
        not isinstance(shape, list)
        or len(shape) > 8
        or not all(type(n) is int and n >= 0 for n in shape)
    ):
        raise ArtifactError(f"{where}: a shape is a list of whole numbers.")
    size, dtype = (
        math.prod(shape),
        DTYPES[kind],
    )  # Python's integers: nothing overflows, nothing is allocated
    flat = (
        _unpacked(data["base64"], dtype, where)
        if packed
        else _listed_numbers(data["values"], dtype, where)
    )
    if len(flat) != size:
        raise ArtifactError(f"{where}: {len(flat)} numbers for shape {shape}.")
    array = flat.reshape(shape).astype(dtype.newbyteorder("="))
    # Written so that NaN fails too.
    if dtype.kind == "f" and not (np.abs(array.astype(np.float64, copy=False)) <= LARGEST).all():
        raise ArtifactError(f"{where} holds a number that is not finite or beyond {LARGEST:g}.")
    wanted = (
        next((a for a in get_args(get_args(annotation)[1])), Any) if get_args(annotation) else Any
    )
    if wanted is not Any and isinstance(wanted, type) and not issubclass(array.dtype.type, wanted):
        raise ArtifactError(f"{where} must be an array of {wanted.__name__}, not of {array.dtype}.")
    array.flags.writeable = False
    return array


def _unpacked(text: Any, dtype: np.dtype[Any], where: str) -> NDArray[Any]:
    try:
        content = base64.b64decode(text if type(text) is str else "?", validate=True)
        return np.frombuffer(content, dtype=dtype)
    except ValueError:
        raise ArtifactError(f"{where}: the base64 data are damaged.") from None


def _listed_numbers(values: Any, dtype: np.dtype[Any], where: str) -> NDArray[Any]:
    wanted: Any = {"f": (int, float), "i": (int,), "u": (int,), "b": (bool,)}[dtype.kind]
    if not isinstance(values, list) or not all(type(value) in wanted for value in values):
        raise ArtifactError(f"{where}: values must be a list of plain numbers.")
    # Asked of Python's integers: NumPy 1 wraps what does not fit, and says nothing.
    reach: Any = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(np.float64)
    if not all(int(reach.min) <= value <= int(reach.max) for value in values):
        raise ArtifactError(f"{where}: a number does not fit {dtype}.")
    return np.array(values, dtype=dtype)
