# mypy: allow-subclassing-any, allow-untyped-calls
"""Platt scaling: a logistic curve of each class's log-odds."""

from __future__ import annotations

from metacal.export.torch.maps.curves.logistic import Logistic
from metacal.maps.platt import PlattMap


class Platt(Logistic):
    """σ(slope · log(p / (1 - p)) + intercept) of each class; then divided by their sum."""

    def __init__(self, fitted: PlattMap) -> None:
        super().__init__(fitted.slope, fitted.slope, fitted.intercept)
