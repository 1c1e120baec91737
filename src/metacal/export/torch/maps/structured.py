# mypy: allow-subclassing-any, allow-untyped-calls
"""Structured scaling: temperature, then a scale and a bias per class on the log-probabilities."""

from __future__ import annotations

from metacal.export.torch.maps.affine import LogAffine
from metacal.maps.structured import StructuredMap


class Structured(LogAffine):
    """softmax(scale · log softmax(b·x) + bias)."""

    def __init__(self, fitted: StructuredMap) -> None:
        super().__init__(fitted.scale, fitted.bias, fitted.inverse_temperature)
