# mypy: allow-subclassing-any, allow-untyped-calls
"""Stacking: a mixture of maps."""

from __future__ import annotations

from torch import Tensor, nn

from metacal.export.torch.fixed import Fixed, beside
from metacal.export.torch.maps.composed import part
from metacal.maps.stack import StackMap


class Stack(Fixed):
    """Σ_m w_m map_m(x)."""

    def __init__(self, fitted: StackMap) -> None:
        super().__init__()
        self.members = nn.ModuleList([part(member) for member in fitted.members])
        self.keep(weights=fitted.weights)

    def forward(self, table: Tensor) -> Tensor:
        """Probabilities of each row."""
        weights = beside(self.weights, table)
        mixed = weights[0] * self.members[0](table)
        for m, member in enumerate(self.members):
            if m > 0:
                mixed = mixed + weights[m] * member(table)
        return mixed
