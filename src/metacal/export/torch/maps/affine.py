# mypy: allow-subclassing-any, allow-untyped-calls
"""Vector and matrix scaling, softmax(A u + c) of centred logits u; and what Dirichlet and structured scaling share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metacal.export.torch.fixed import Fixed, beside, largest, mean_of_possible, possible
from metacal.maps.affine import MatrixMap, VectorMap


class Affine(Fixed):
    """softmax(A u + c): A diagonal (one number per class) or full, u the features of a row, centred logits here.

    A masked class stays masked; as a feature of other classes it counts as the row's mean.
    """

    def __init__(self, weight: NDArray[Any], bias: NDArray[Any]) -> None:
        super().__init__()
        self.diagonal = weight.ndim == 1
        self.keep(weight=weight if self.diagonal else np.ascontiguousarray(weight.T), bias=bias)

    def features(self, table: Tensor) -> Tensor:
        """u, the logits less the mean of those that are not masked."""
        gaps = table - largest(table)
        mean = mean_of_possible(gaps)
        return torch.where(possible(table), gaps, mean) - mean

    def forward(self, table: Tensor) -> Tensor:
        """Probabilities of each row."""
        features, weight, bias = self.features(table), beside(self.weight, table), beside(self.bias, table)
        scores = (features * weight if self.diagonal else features @ weight) + bias
        return torch.softmax(torch.where(possible(table), scores, torch.full_like(scores, -torch.inf)), dim=1)


class LogAffine(Affine):
    """The same with u = log softmax(b·x)."""

    def __init__(self, weight: NDArray[Any], bias: NDArray[Any], inverse_temperature: float = 1.0) -> None:
        super().__init__(weight, bias)
        self.keep(inverse_temperature=inverse_temperature)

    def features(self, table: Tensor) -> Tensor:
        """u, the log-probabilities; a masked class counts as the mean of the row's others."""
        tempered = (table - largest(table)) * beside(self.inverse_temperature, table)
        logarithms = tempered - torch.log(torch.exp(tempered).sum(dim=1, keepdim=True))
        return torch.where(possible(table), logarithms, mean_of_possible(logarithms))


class Vector(Affine):
    """softmax(scale · u + bias)."""

    def __init__(self, fitted: VectorMap) -> None:
        super().__init__(fitted.scale, fitted.bias)


class Matrix(Affine):
    """softmax(matrix @ u + bias)."""

    def __init__(self, fitted: MatrixMap) -> None:
        super().__init__(fitted.matrix, fitted.bias)
