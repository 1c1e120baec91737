# mypy: allow-untyped-calls
"""Formulas in torch. Only plain tensor operations, so that `torch.export`, `torch.jit.trace` and
torch's ONNX exporters all follow.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from metacal.formulas.operations import Operations


class Torch(Operations):
    """Operations on tensors.

    Examples
    --------
    >>> from metacal.formulas.rowwise import doubt
    >>> doubt(TORCH, torch.tensor([[0.0, 0.0], [700.0, 0.0]], dtype=torch.float64))
    tensor([[ 5.0000e-01],
            [9.8597e-305]], dtype=torch.float64)
    """

    exp = staticmethod(torch.exp)
    log = staticmethod(torch.log)
    sqrt = staticmethod(torch.sqrt)
    absolute = staticmethod(torch.abs)
    logistic = staticmethod(torch.sigmoid)

    def log1p(self, x: Tensor) -> Tensor:
        """log(1 + x) in operators that every exporter knows: ONNX has no Log1p, and log(1 + x)
        alone loses a small x.

        Kahan's: with u = 1 + x as rounded, log(u) · x / (u - 1), and x itself where u is one.

        Examples
        --------
        >>> TORCH.log1p(torch.tensor([1e-20, 1.0], dtype=torch.float64))
        tensor([1.0000e-20, 6.9315e-01], dtype=torch.float64)
        """
        above = 1.0 + x
        lost = above == 1.0
        part = torch.where(lost, torch.ones_like(above), above - 1.0)
        return torch.where(lost, x, torch.log(above) * (x / part))

    def softmax(self, x: Tensor) -> Tensor:
        return torch.softmax(x, dim=1)

    def where(self, flags: Tensor, one: Any, other: Any) -> Tensor:
        one, other = (value() if callable(value) else value for value in (one, other))
        like = one if isinstance(one, Tensor) else other
        one, other = (
            value if isinstance(value, Tensor) else torch.full_like(like, value)
            for value in (one, other)
        )
        return torch.where(flags, one, other)

    def maximum(self, one: Tensor, other: Any) -> Tensor:
        return (
            torch.maximum(one, other) if isinstance(other, Tensor) else torch.clamp(one, min=other)
        )

    def minimum(self, one: Tensor, other: Any) -> Tensor:
        return (
            torch.minimum(one, other) if isinstance(other, Tensor) else torch.clamp(one, max=other)
        )

    def max(self, table: Tensor) -> Tensor:
        return torch.amax(table, dim=1, keepdim=True)

    def min(self, table: Tensor) -> Tensor:
        return torch.amin(table, dim=1, keepdim=True)

    def put(self, table: Tensor, places: Tensor, value: Any) -> Tensor:
        return table.scatter(1, places, value)

    def possible(self, x: Tensor) -> Tensor:
        return x > -torch.inf

    def number(self, flags: Tensor) -> Tensor:
        """1 where a flag is true, else 0; in the precision of what it meets."""
        return flags.to(torch.float32)

    def count(self, flags: Tensor, table: Tensor) -> Tensor:
        return flags.to(table.dtype).sum(dim=1, keepdim=True)

    def beside(self, one: Tensor, other: Tensor) -> Tensor:
        return torch.cat([one, other], dim=1)

    def piece(self, knots: Tensor, offsets: Tensor, longest: int, at: Tensor) -> Tensor:
        place = offsets[:-1] + torch.zeros_like(at, dtype=torch.int64)
        end = offsets[1:]
        step = 1 << (longest - 1).bit_length()
        while step > 1:
            step //= 2
            further = torch.where(place + step < end, place + step, place)
            place = torch.where(knots[further] < at, further, place)
        return place

    def finfo(self, x: Tensor) -> Any:
        return torch.finfo(x.dtype)

    def part(self, fitted: Any, x: Tensor) -> Tensor:
        """The probabilities of a map inside another: a module."""
        return fitted(x)


#: The runtime; kernels of devices register what they have a faster way for.
TORCH = Torch()
