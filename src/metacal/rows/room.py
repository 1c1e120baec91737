"""Where probabilities go: a fresh table, or the caller's own, checked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.errors import InputError
from metacal.rows.stored import StoredTable


def room_for_probabilities(table: Any, out: Any = None) -> Any:
    """Return where probabilities of `table` go: `out`, checked, or a fresh table; float64 for float64, else float32.

    Examples
    --------
    >>> room_for_probabilities(np.zeros((2, 3), dtype=np.float16)).dtype
    dtype('float32')
    >>> room_for_probabilities(np.zeros((2, 3)), out=np.empty((3, 3)))
    Traceback (most recent call last):
    metacal.errors.InputError: out must be a writeable float64 array of shape (2, 3), like the result; got a float64 ...
    """
    shape, device = tuple(table.shape), kernels.on_device(table)
    dtype = "float64" if str(table.dtype) in ("float64", "torch.float64") else "float32"
    if out is None:
        return kernels.device_kernels().empty_probabilities(table) if device else np.empty(shape, dtype=dtype)
    if device:
        there = kernels.on_device(out) and out.device == table.device
        fits = there and out.is_contiguous() and str(out.dtype) == f"torch.{dtype}"
    else:
        fits = type(out) in (np.ndarray, np.memmap) and out.flags.writeable and out.dtype == dtype
    if not fits or tuple(out.shape) != shape:
        kind = f"contiguous {dtype} tensor on {table.device}" if device else f"writeable {dtype} array"
        got = type(out).__name__
        if hasattr(out, "dtype") and hasattr(out, "shape"):
            still = "read-only " if getattr(getattr(out, "flags", None), "writeable", True) is False else ""
            got = f"a {still}{out.dtype} {got} of shape {tuple(out.shape)}"
        raise InputError(f"out must be a {kind} of shape {shape}, like the result; got {got}.")
    if _overlap(table, out):
        raise InputError(
            "out overlaps the table of logits, so that rows would be written over before they are read; "
            "pass another array, or exactly the same one to work in place."
        )
    return out


def _overlap(table: Any, out: Any) -> bool:
    """Whether the two lie partly on top of each other; the very same memory in the same order is no overlap."""
    while isinstance(table, StoredTable):
        table = getattr(table, "source", None)
    if kernels.on_device(out):
        return kernels.device_kernels().overlap(table, out)  # type: ignore[no-any-return]
    if any(step == 0 and size > 1 for step, size in zip(out.strides, out.shape)):
        return True
    if not isinstance(table, np.ndarray) or not np.may_share_memory(table, out):
        return False
    return _place(table) != _place(out)


def _place(array: NDArray[Any]) -> tuple[Any, ...]:
    return array.__array_interface__["data"][0], array.strides, array.shape, array.dtype
