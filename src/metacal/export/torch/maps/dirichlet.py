# mypy: allow-subclassing-any, allow-untyped-calls
"""Dirichlet calibration: softmax(A log p + c)."""

from __future__ import annotations

from metacal.export.torch.maps.affine import LogAffine
from metacal.maps.dirichlet import DirichletMap


class Dirichlet(LogAffine):
    """softmax(matrix @ log p + bias)."""

    def __init__(self, fitted: DirichletMap) -> None:
        super().__init__(fitted.matrix, fitted.bias)
