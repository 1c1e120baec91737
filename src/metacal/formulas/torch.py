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
    >>> from metacal.formulas.rowwise import one_minus_max_probability
    >>> one_minus_max_probability(TORCH, torch.tensor([[0.0, 0.0], [700.0, 0.0]], dtype=torch.float64))
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

    def where(self, condition: Tensor, if_true: Any, if_false: Any) -> Tensor:
        if callable(if_true):
            if_true = if_true()
        if callable(if_false):
            if_false = if_false()
        if not isinstance(if_true, Tensor):
            if_true = torch.full_like(if_false, if_true)
        if not isinstance(if_false, Tensor):
            if_false = torch.full_like(if_true, if_false)
        return torch.where(condition, if_true, if_false)

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

    def replace_class_entry(self, table: Tensor, class_index: Tensor, value: Any) -> Tensor:
        return table.scatter(1, class_index, value)

    def find_unmasked(self, x: Tensor) -> Tensor:
        return x > -torch.inf

    def to_float(self, flags: Tensor) -> Tensor:
        """Convert flags to 1 and 0 in float32, which takes the other operand's precision."""
        return flags.to(torch.float32)

    def count_true(self, flags: Tensor, table: Tensor) -> Tensor:
        return flags.to(table.dtype).sum(dim=1, keepdim=True)

    def join_columns(self, first: Tensor, second: Tensor) -> Tensor:
        return torch.cat([first, second], dim=1)

    def find_last_knots_below(
        self, knots: Tensor, offsets: Tensor, max_knots: int, points: Tensor
    ) -> Tensor:
        # The binary search runs for all entries in parallel.
        # The knots of curve k start at `offsets[k]` and end before `offsets[k + 1]`.
        first_knots = offsets[:-1]
        ends_of_curves = offsets[1:]
        knot_index = first_knots + torch.zeros_like(points, dtype=torch.int64)
        next_power_of_two = 1 << (max_knots - 1).bit_length()
        step = next_power_of_two
        while step > 1:
            step //= 2
            is_in_curve = knot_index + step < ends_of_curves
            candidate_index = torch.where(is_in_curve, knot_index + step, knot_index)
            is_below_point = knots[candidate_index] < points
            knot_index = torch.where(is_below_point, candidate_index, knot_index)
        return knot_index

    def finfo(self, x: Tensor) -> Any:
        return torch.finfo(x.dtype)

    def apply_map(self, fitted: Any, x: Tensor) -> Tensor:
        """Compute the probabilities of a module that is a component of another map."""
        return fitted(x)


#: torch runtime. Device kernels register themselves in its `kernels`.
TORCH = Torch()
