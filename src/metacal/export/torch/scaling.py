# mypy: allow-subclassing-any, allow-untyped-calls
"""The scaling maps as modules: temperatures, ensembles, affine maps, the Gaussian process. Logits in, softmax out."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from metacal.export.torch.fixed import Fixed, beside, largest, mean_of_possible, possible, softmax
from metacal.export.torch.scores import entropy, negative_margin
from metacal.kernels.gp import _REACH
from metacal.maps.affine import MatrixMap, VectorMap
from metacal.maps.dirichlet import DirichletMap
from metacal.maps.ensemble import EnsembleTemperatureMap
from metacal.maps.gp import GaussianProcessMap
from metacal.maps.local import _FARTHEST, _LARGEST_LOGIT, LocalTemperatureMap
from metacal.maps.structured import StructuredMap
from metacal.maps.temperature import TemperatureMap


class Temperature(Fixed):
    """softmax(b·x)."""

    def __init__(self, fitted: TemperatureMap) -> None:
        super().__init__()
        self.keep(inverse_temperature=fitted.inverse_temperature)

    def forward(self, table: Tensor) -> Tensor:
        """Probabilities of each row."""
        return softmax(table, beside(self.inverse_temperature, table))


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
        standard = torch.clamp(standard, min=-_FARTHEST, max=_FARTHEST)
        coefficients = beside(self.coefficients, table)
        logarithm = coefficients[0] + (standard * coefficients[1:]).sum(dim=1, keepdim=True)
        return torch.softmax(gaps * torch.exp(torch.clamp(logarithm, min=-300.0, max=300.0)), dim=1)

    def _features(self, tempered: Tensor) -> Tensor:
        inside, zero = possible(tempered), torch.zeros_like(tempered)
        centred = torch.where(inside, tempered - mean_of_possible(tempered), zero)
        norm = torch.sqrt((centred * centred).sum(dim=1) / inside.to(tempered.dtype).sum(dim=1))
        margin = torch.clamp(-negative_margin(tempered), max=_LARGEST_LOGIT)
        norm = torch.clamp(norm, max=_LARGEST_LOGIT)
        return torch.stack([entropy(tempered), torch.log(1.0 + margin), torch.log(1.0 + norm)], dim=1)


class GaussianProcess(Fixed):
    """softmax(f(t)), f(t) = t + Σ_m w_m exp(-½ ((t - z_m)/ℓ)²), on tempered, centred logits t."""

    def __init__(self, fitted: GaussianProcessMap) -> None:
        super().__init__()
        self.centre = fitted.centre
        reach = _REACH * fitted.lengthscale
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


class Affine(Fixed):
    """softmax(A u + c): A diagonal or full, u the centred logits or the (tempered) log-probabilities.

    A masked class stays masked; as a feature of other classes it counts as the row's mean.
    """

    def __init__(self, fitted: VectorMap | MatrixMap | DirichletMap | StructuredMap) -> None:
        super().__init__()
        self.diagonal = isinstance(fitted, VectorMap | StructuredMap)
        self.centred = isinstance(fitted, VectorMap | MatrixMap)
        weight = (
            fitted.scale if isinstance(fitted, VectorMap | StructuredMap) else np.ascontiguousarray(fitted.matrix.T)
        )
        self.keep(weight=weight, bias=fitted.bias, inverse_temperature=getattr(fitted, "inverse_temperature", 1.0))

    def forward(self, table: Tensor) -> Tensor:
        """Probabilities of each row."""
        inside = possible(table)
        features = table - largest(table)
        if not self.centred:
            features = features * beside(self.inverse_temperature, table)
            features = features - torch.log(torch.exp(features).sum(dim=1, keepdim=True))
        mean = mean_of_possible(features)
        features = torch.where(inside, features, mean)
        if self.centred:
            features = features - mean
        weight, bias = beside(self.weight, table), beside(self.bias, table)
        scores = (features * weight if self.diagonal else features @ weight) + bias
        return torch.softmax(torch.where(inside, scores, torch.full_like(scores, -torch.inf)), dim=1)
