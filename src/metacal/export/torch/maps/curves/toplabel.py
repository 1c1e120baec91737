# mypy: allow-subclassing-any, allow-untyped-calls
"""A new confidence for the predicted class, by a curve; the other classes share the rest in proportion."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from metacal.export.torch.fixed import Fixed, beside, largest, winner
from metacal.export.torch.maps.curves.onevsrest import Curves
from metacal.export.torch.scores import doubt
from metacal.kernels.lifted import AHEAD
from metacal.maps.curves.toplabel import TopLabelMap


def with_top(table: Tensor, confidence: Tensor, rest: Tensor) -> Tensor:
    """The new confidence on the largest logit's class; the others share the rest, and never come out ahead."""
    column = winner(table)
    others = table.scatter(1, column, -torch.inf)
    second = largest(others)
    alone = second == -torch.inf
    shares = torch.exp(others - torch.where(alone, torch.zeros_like(second), second))
    mass = shares.sum(dim=1, keepdim=True)
    confidence = torch.where(alone, torch.ones_like(mass), torch.maximum(confidence, AHEAD / (AHEAD + mass)))
    rest = torch.where(alone, torch.zeros_like(mass), torch.minimum(rest, mass / (AHEAD + mass)))
    shares = shares * (rest / torch.where(alone, torch.ones_like(mass), mass))
    return shares.scatter(1, column, confidence)


class TopLabel(Fixed):
    """The predicted class gets curve(max p), the others share the rest in proportion; p = softmax(b·x)."""

    def __init__(self, fitted: TopLabelMap) -> None:
        super().__init__()
        self.curve = Curves(fitted.knots, fitted.values, np.array([0, len(fitted.knots)]), fitted.interpolation)
        self.keep(inverse_temperature=fitted.inverse_temperature)

    def forward(self, table: Tensor) -> Tensor:
        """Probabilities of each row."""
        tempered = table * beside(self.inverse_temperature, table)
        confidence = self.curve((1.0 - doubt(tempered)).unsqueeze(1))
        return with_top(tempered, confidence, 1.0 - confidence)
