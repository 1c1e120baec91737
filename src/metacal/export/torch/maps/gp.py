# mypy: allow-subclassing-any, allow-untyped-calls
"""Gaussian-process calibration: a sum of bumps on every tempered logit, then softmax."""

from __future__ import annotations

import torch
from torch import Tensor

from metacal.export.torch.fixed import Fixed, beside, largest, mean_of_possible
from metacal.kernels.gp import REACH
from metacal.maps.gp import GaussianProcessMap


class GaussianProcess(Fixed):
    """softmax(f(t)), f(t) = t + Σ_m w_m exp(-½ ((t - z_m)/ℓ)²), on tempered, centred logits t."""

    def __init__(self, fitted: GaussianProcessMap) -> None:
        super().__init__()
        self.centre = fitted.centre
        reach = REACH * fitted.lengthscale
        self.keep(inverse_temperature=fitted.inverse_temperature, lengthscale=fitted.lengthscale)
        self.keep(places=fitted.inducing / fitted.lengthscale, weights=fitted.weights)
        self.keep(low=fitted.inducing[0] - reach, high=fitted.inducing[-1] + reach)

    def forward(self, table: Tensor) -> Tensor:
        """Probabilities of each row."""
        gaps = table - largest(table)
        if self.centre == "mean":
            gaps = gaps - mean_of_possible(gaps)
        else:
            gaps = gaps - torch.log(torch.exp(gaps).sum(dim=1, keepdim=True))
        latent = gaps * beside(self.inverse_temperature, table)
        places, weights = beside(self.places, table), beside(self.weights, table)
        scaled = torch.maximum(torch.minimum(latent, beside(self.high, table)), beside(self.low, table))
        scaled = scaled / beside(self.lengthscale, table)
        for m in range(len(self.places)):
            away = scaled - places[m]
            latent = latent + weights[m] * torch.exp(-0.5 * away * away)
        return torch.softmax(latent - largest(latent), dim=1)
