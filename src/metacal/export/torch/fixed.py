# mypy: allow-subclassing-any, allow-untyped-calls
"""Modules that hold fitted numbers: buffers without gradients, in float64 whatever the model around them is turned to.

Only plain tensor operations are used, so that `torch.export`, `torch.jit.trace` and torch's ONNX exporters all follow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from metacal.kernels.masks import FURTHER, NAMED, NO_LOGIT


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


def log1p(values: Tensor) -> Tensor:
    """log(1 + v) in operators that every exporter knows: ONNX has no Log1p, and log(1 + v) alone loses a small v.

    Kahan's: with u = 1 + v as rounded, log(u) · v / (u - 1), and v itself where u is one.

    Examples
    --------
    >>> log1p(torch.tensor([1e-20, 1.0], dtype=torch.float64))
    tensor([1.0000e-20, 6.9315e-01], dtype=torch.float64)
    """
    above = 1.0 + values
    lost = above == 1.0
    part = torch.where(lost, torch.ones_like(above), above - 1.0)
    return torch.where(lost, values, torch.log(above) * (values / part))


def softmax(table: Tensor, inverse_temperature: Tensor | float = 1.0) -> Tensor:
    """softmax(b·x) of each row; nothing overflows, -inf gives exactly zero."""
    return torch.softmax((table - largest(table)) * inverse_temperature, dim=1)


def largest(table: Tensor) -> Tensor:
    """The largest entry of each row, as a column."""
    return torch.amax(table, dim=1, keepdim=True)


def winner(table: Tensor) -> Tensor:
    """The first column that holds the largest entry of each row, as a column: an index for gather and scatter."""
    return torch.argmax(table, dim=1, keepdim=True)


def with_masks(table: Tensor) -> Tensor:
    """-inf for the finite numbers that stand for a masked class: the rule of `metacal.kernels.masks`."""
    written = table <= NO_LOGIT
    for number in NAMED:
        written = written | (table == number)
    mask = written & (table <= -FURTHER * largest(table).abs())
    return torch.where(mask, torch.full_like(table, -torch.inf), table)


def possible(table: Tensor) -> Tensor:
    """True where a class is not masked by -inf."""
    return table > -torch.inf


def mean_of_possible(table: Tensor) -> Tensor:
    """The mean over the classes that are not masked, as a column."""
    inside = possible(table)
    total = torch.where(inside, table, torch.zeros_like(table)).sum(dim=1, keepdim=True)
    return total / inside.to(table.dtype).sum(dim=1, keepdim=True)
