# mypy: allow-subclassing-any, allow-untyped-calls
"""Temperature scaling."""

from __future__ import annotations

from torch import Tensor

from metacal.export.torch.fixed import Fixed, beside, softmax
from metacal.maps.temperature import TemperatureMap


class Temperature(Fixed):
    """softmax(b·x)."""

    def __init__(self, fitted: TemperatureMap) -> None:
        super().__init__()
        self.keep(inverse_temperature=fitted.inverse_temperature)

    def forward(self, table: Tensor) -> Tensor:
        """Probabilities of each row."""
        return softmax(table, beside(self.inverse_temperature, table))
