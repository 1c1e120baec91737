# mypy: allow-subclassing-any, allow-untyped-calls
"""Spline calibration: a monotone spline of the log-odds of the predicted class."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from metacal.export.torch.fixed import Fixed, beside, log1p
from metacal.export.torch.maps.curves.toplabel import with_top
from metacal.export.torch.scores import doubt
from metacal.maps.curves.onevsrest import FARTHEST
from metacal.maps.spline import SplineMap


class Spline(Fixed):
    """The predicted class gets σ(s(z)), z the log-odds of its confidence and s a monotone spline."""

    def __init__(self, fitted: SplineMap) -> None:
        super().__init__()
        self.n_knots = len(fitted.knots)
        self.keep(knots=fitted.knots, slopes=fitted.slopes, intercept=fitted.intercept)
        self.keep(inverse_temperature=fitted.inverse_temperature)

    def forward(self, table: Tensor) -> Tensor:
        """Probabilities of each row."""
        tempered = table * beside(self.inverse_temperature, table)
        unsure = torch.clamp(doubt(tempered), min=float(np.exp(-FARTHEST)))
        z = self._risen(log1p(-unsure) - torch.log(unsure)).unsqueeze(1)
        return with_top(tempered, torch.sigmoid(z), torch.sigmoid(-z))

    def _risen(self, z: Tensor) -> Tensor:
        """s(z): the intercept, and what the broken line of slopes adds from the first knot to z."""
        knots, slopes = beside(self.knots, z), beside(self.slopes, z)
        height = beside(self.intercept, z) + slopes[0] * torch.clamp(z - knots[0], max=0.0)
        for i in range(self.n_knots - 1):
            width = knots[i + 1] - knots[i]
            along = torch.clamp((z - knots[i]) / width, min=0.0, max=1.0)
            height = height + width * along * (slopes[i] * (1.0 - 0.5 * along) + slopes[i + 1] * 0.5 * along)
        return height + slopes[-1] * torch.clamp(z - knots[-1], min=0.0)
