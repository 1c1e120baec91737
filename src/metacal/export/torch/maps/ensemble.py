# mypy: allow-subclassing-any, allow-untyped-calls
"""Ensemble temperature scaling: tempered, plain and uniform probabilities, mixed."""

from __future__ import annotations

from torch import Tensor

from metacal.export.torch.fixed import Fixed, beside, possible, softmax
from metacal.maps.ensemble import EnsembleTemperatureMap


class EnsembleTemperature(Fixed):
    """w1·softmax(b·x) + w2·softmax(x) + w3/K, the last over the classes that are not masked."""

    def __init__(self, fitted: EnsembleTemperatureMap) -> None:
        super().__init__()
        self.keep(inverse_temperature=fitted.inverse_temperature, weights=fitted.weights)

    def forward(self, table: Tensor) -> Tensor:
        """Probabilities of each row."""
        weights = beside(self.weights, table)
        uniform = possible(table).to(table.dtype)
        uniform = uniform / uniform.sum(dim=1, keepdim=True)
        tempered = softmax(table, beside(self.inverse_temperature, table))
        return weights[0] * tempered + weights[1] * softmax(table) + weights[2] * uniform
