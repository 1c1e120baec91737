"""Output buffers for tables of probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import ShapeError
from metacal.rows.stored import StoredTable


def get_probability_buffer(table: Any, out: Any = None) -> Any:
    """Return the buffer for the probabilities of a table of logits.

    Parameters
    ----------
    table : array, StoredTable or tensor of shape (n, K)
        Logits.

    out : array or tensor, default=None
        Buffer of the caller. If None, a new one is allocated.

    Returns
    -------
    array or tensor of shape (n, K)
        float64 for float64 logits, else float32.

    Raises
    ------
    InputError
        If `out` has another shape, type or device, is not writeable, or overlaps the table.

    Examples
    --------
    >>> get_probability_buffer(np.zeros((2, 3), dtype=np.float16)).dtype
    dtype('float32')
    >>> get_probability_buffer(np.zeros((2, 3)), out=np.empty((3, 3)))
    Traceback (most recent call last):
    metacal.errors.ShapeError: out must be a writeable float64 array of shape (2, 3), like the ...
    """
    shape = tuple(table.shape)
    is_double = str(table.dtype) in ("float64", "torch.float64")
    dtype = "float64" if is_double else "float32"
    is_on_device = kernels.is_device_tensor(table)
    if out is None:
        if is_on_device:
            return kernels.device_kernels().empty_probabilities(table)
        return np.empty(shape, dtype=dtype)
    if is_on_device:
        is_suitable = _is_matching_tensor(out, dtype, table.device)
        required_type = f"contiguous {dtype} tensor on {table.device}"
    else:
        is_suitable = _is_matching_array(out, dtype)
        required_type = f"writeable {dtype} array"
    if not is_suitable or tuple(out.shape) != shape:
        raise ShapeError(
            f"out must be a {required_type} of shape {shape}, like the result, but got"
            f" {_describe(out)}."
        )
    if _overlaps(table, out):
        raise ShapeError(
            "out overlaps the table of logits, so rows would be overwritten before they are"
            " read. Pass another array, or pass the table itself to work in place."
        )
    return out


def _is_matching_tensor(out: Any, dtype: str, device: Any) -> bool:
    """Check whether an object is a contiguous tensor of this type on this device."""
    if not kernels.is_device_tensor(out) or out.device != device:
        return False
    return bool(out.is_contiguous()) and str(out.dtype) == f"torch.{dtype}"


def _is_matching_array(out: Any, dtype: str) -> bool:
    """Check whether an object is a writeable array of this type."""
    if type(out) not in (np.ndarray, np.memmap):
        return False
    return bool(out.flags.writeable) and out.dtype == dtype


def _describe(out: Any) -> str:
    """Describe an unsuitable buffer by its class, type and shape."""
    class_name = type(out).__name__
    if not hasattr(out, "dtype") or not hasattr(out, "shape"):
        return class_name
    flags = getattr(out, "flags", None)
    is_read_only = getattr(flags, "writeable", True) is False
    prefix = "read-only " if is_read_only else ""
    return f"a {prefix}{out.dtype} {class_name} of shape {tuple(out.shape)}"


def _overlaps(table: Any, out: Any) -> bool:
    """Check whether two arrays share memory without being exactly the same memory."""
    while isinstance(table, StoredTable):
        table = getattr(table, "source", None)
    if kernels.is_device_tensor(out):
        return kernels.device_kernels().overlaps_partially(table, out)
    # Several entries of a broadcast array share memory.
    if any(stride == 0 and size > 1 for stride, size in zip(out.strides, out.shape)):
        return True
    if not isinstance(table, np.ndarray) or not np.may_share_memory(table, out):
        return False
    return _memory_layout(table) != _memory_layout(out)


def _memory_layout(array: NDArray[Any]) -> tuple[Any, ...]:
    """Return address, strides, shape and type of an array."""
    address = array.__array_interface__["data"][0]
    return address, array.strides, array.shape, array.dtype
