# mypy: allow-subclassing-any, allow-untyped-calls
"""Modules that hold fitted numbers: buffers without gradients, in float64 whatever the model around is turned to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn


class Fixed(nn.Module):
    """A module whose buffers follow a change of device, never one of dtype.

    `model.half()` or `model.to(torch.bfloat16)` would otherwise round a certified threshold along with the weights.

    Examples
    --------
    >>> module = Fixed()
    >>> module.keep(threshold=0.1)
    >>> module.half().threshold.dtype
    torch.float64
    """

    def keep(self, **arrays: Any) -> None:
        """Register numbers as buffers: floats in float64, whole numbers in int64."""
        for name, value in arrays.items():
            array = np.array(value)  # a copy: fitted maps are read-only
            self.register_buffer(name, torch.from_numpy(array.astype(np.int64 if array.dtype.kind in "iu" else float)))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        if recurse:
            for child in self.children():
                child._apply(fn, recurse)
        for name, buffer in self._buffers.items():
            if buffer is None:
                continue
            device = fn(torch.zeros(0, device=buffer.device)).device  # where to, and nothing else
            dtype = work_type(device) if buffer.is_floating_point() else buffer.dtype
            self._buffers[name] = (
                torch.empty_like(buffer, device=device)
                if device.type == "meta"
                else buffer.to(device=device, dtype=dtype)
            )
        return self


def work_type(device: torch.device) -> torch.dtype:
    """float64, so that a decision does not depend on how the logits were stored; float32 where a device has no other.

    Examples
    --------
    >>> work_type(torch.device("cpu")), work_type(torch.device("mps"))
    (torch.float64, torch.float32)
    """
    return torch.float32 if device.type == "mps" else torch.float64


def beside(buffer: Tensor, table: Tensor) -> Tensor:
    """The buffer on the table's device and, where it holds floats, in the table's dtype."""
    dtype = table.dtype if buffer.is_floating_point() else buffer.dtype
    if buffer.device == table.device and buffer.dtype == dtype:
        return buffer
    return buffer.to(device=table.device, dtype=dtype)
