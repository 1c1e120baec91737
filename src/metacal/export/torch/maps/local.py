# mypy: allow-subclassing-any, allow-untyped-calls
"""Local temperature scaling: a temperature that depends on the row."""

from __future__ import annotations

import torch
from torch import Tensor

from metacal.export.torch.fixed import Fixed, beside, largest, mean_of_possible, possible
from metacal.export.torch.scores import entropy, negative_margin
from metacal.maps.local import FARTHEST, LARGEST_LOG, LARGEST_LOGIT, LocalTemperatureMap


class LocalTemperature(Fixed):
    """softmax(b(x)·x), log b(x) linear in three standardised features of the row."""

    def __init__(self, fitted: LocalTemperatureMap) -> None:
        super().__init__()
        self.keep(inverse_temperature=fitted.inverse_temperature, coefficients=fitted.coefficients)
        self.keep(means=fitted.means, scales=fitted.scales)

    def forward(self, table: Tensor) -> Tensor:
        """Probabilities of each row."""
        gaps = table - largest(table)
        features = self._features(gaps * beside(self.inverse_temperature, table))
        standard = (features - beside(self.means, table)) / beside(self.scales, table)
        standard = torch.clamp(standard, min=-FARTHEST, max=FARTHEST)
        coefficients = beside(self.coefficients, table)
        logarithm = coefficients[0] + (standard * coefficients[1:]).sum(dim=1, keepdim=True)
        return torch.softmax(gaps * torch.exp(torch.clamp(logarithm, min=-LARGEST_LOG, max=LARGEST_LOG)), dim=1)

    def _features(self, tempered: Tensor) -> Tensor:
        inside, zero = possible(tempered), torch.zeros_like(tempered)
        centred = torch.where(inside, tempered - mean_of_possible(tempered), zero)
        norm = torch.sqrt((centred * centred).sum(dim=1) / inside.to(tempered.dtype).sum(dim=1))
        margin = torch.clamp(-negative_margin(tempered), max=LARGEST_LOGIT)
        norm = torch.clamp(norm, max=LARGEST_LOGIT)
        return torch.stack([entropy(tempered), torch.log(1.0 + margin), torch.log(1.0 + norm)], dim=1)
