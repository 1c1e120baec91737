# mypy: allow-subclassing-any, allow-untyped-calls
"""Composed calibration: one map after another."""

from __future__ import annotations

import torch
from torch import Tensor

from metacal.export.torch.fixed import Fixed, possible
from metacal.maps.composed import SMALLEST, ComposedMap
from metacal.maps.map import Map
from metacal.maps.methods import method_of_map


class Composed(Fixed):
    """then(log first(x)), a masked class masked for both."""

    def __init__(self, fitted: ComposedMap) -> None:
        super().__init__()
        self.first, self.then = part(fitted.first), part(fitted.then)

    def forward(self, table: Tensor) -> Tensor:
        """Probabilities of each row."""
        lowest = SMALLEST if table.dtype == torch.float64 else -87.0
        seen = torch.clamp(torch.log(self.first(table)), min=lowest)
        return self.then(torch.where(possible(table), seen, torch.full_like(table, -torch.inf)))


def part(fitted: Map) -> Fixed:
    """A map inside another."""
    method = method_of_map(type(fitted))
    assert method is not None
    module: Fixed = method.torch_module()(fitted)
    return module
