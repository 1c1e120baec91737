# mypy: allow-subclassing-any, allow-untyped-calls
"""Temperature with a uniform part."""

from __future__ import annotations

from torch import Tensor

from metacal.export.torch.fixed import Fixed, beside, possible, softmax
from metacal.maps.uniform import UniformTemperatureMap


class UniformTemperature(Fixed):
    """(1 - ε)·softmax(b·x) + ε/K, the last over the classes that are not masked."""

    def __init__(self, fitted: UniformTemperatureMap) -> None:
        super().__init__()
        self.keep(inverse_temperature=fitted.inverse_temperature, uniform=fitted.uniform)

    def forward(self, table: Tensor) -> Tensor:
        """Probabilities of each row."""
        share, inside = beside(self.uniform, table), possible(table).to(table.dtype)
        tempered = softmax(table, beside(self.inverse_temperature, table))
        return (1.0 - share) * tempered + share * inside / inside.sum(dim=1, keepdim=True)
