# mypy: allow-untyped-calls
"""Array operations of the formulas in torch.

They use only plain tensor operations, which `torch.export`, `torch.jit.trace` and the
ONNX exporters of torch all support.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from metacal.formulas.operations import Operations


class Torch(Operations):
    """Array operations on tensors.

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
        """Compute log(1 + x) accurately with operators that every exporter supports.

        ONNX has no Log1p, and log(1 + x) alone loses a small x. Kahan's formula is
        log(u) x / (u - 1) with the rounded u = 1 + x, and x itself if u is one.

        Examples
        --------
        >>> TORCH.log1p(torch.tensor([1e-20, 1.0], dtype=torch.float64))
        tensor([1.0000e-20, 6.9315e-01], dtype=torch.float64)
        """
        u = 1.0 + x
        is_one = u == 1.0
        rounded_x = torch.where(is_one, torch.ones_like(u), u - 1.0)
        return torch.where(is_one, x, torch.log(u) * (x / rounded_x))

    def softmax(self, x: Tensor) -> Tensor:
        return torch.softmax(x, dim=1)

    def where(self, flags: Tensor, one: Any, other: Any) -> Tensor:
        if callable(one):
            one = one()
        if callable(other):
            other = other()
        if not isinstance(one, Tensor):
            one = torch.full_like(other, one)
        if not isinstance(other, Tensor):
            other = torch.full_like(one, other)
        return torch.where(flags, one, other)

    def maximum(self, one: Tensor, other: Any) -> Tensor:
        if isinstance(other, Tensor):
            return torch.maximum(one, other)
        return torch.clamp(one, min=other)

    def minimum(self, one: Tensor, other: Any) -> Tensor:
        if isinstance(other, Tensor):
            return torch.minimum(one, other)
        return torch.clamp(one, max=other)

    def max(self, table: Tensor) -> Tensor:
        return torch.amax(table, dim=1, keepdim=True)

    def min(self, table: Tensor) -> Tensor:
        return torch.amin(table, dim=1, keepdim=True)

    def put(self, table: Tensor, places: Tensor, value: Any) -> Tensor:
        return table.scatter(1, places, value)

    def possible(self, x: Tensor) -> Tensor:
        return x > -torch.inf

    def number(self, flags: Tensor) -> Tensor:
        """Convert flags to 1 and 0 in float32, which takes the other operand's precision."""
        return flags.to(torch.float32)

    def count(self, flags: Tensor, table: Tensor) -> Tensor:
        return flags.to(table.dtype).sum(dim=1, keepdim=True)

    def beside(self, one: Tensor, other: Tensor) -> Tensor:
        return torch.cat([one, other], dim=1)

    def piece(self, knots: Tensor, offsets: Tensor, longest: int, at: Tensor) -> Tensor:
        # Binary search for all entries at once.
        piece = offsets[:-1] + torch.zeros_like(at, dtype=torch.int64)
        end = offsets[1:]
        step = 1 << (longest - 1).bit_length()
        while step > 1:
            step //= 2
            candidate = torch.where(piece + step < end, piece + step, piece)
            piece = torch.where(knots[candidate] < at, candidate, piece)
        return piece

    def finfo(self, x: Tensor) -> Any:
        return torch.finfo(x.dtype)

    def part(self, fitted: Any, x: Tensor) -> Tensor:
        """Compute the probabilities of a module that is a component of another map."""
        return fitted(x)


#: torch runtime. Device kernels register themselves in its `fast`.
TORCH = Torch()
