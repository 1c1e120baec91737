# mypy: allow-subclassing-any, allow-untyped-calls
"""Beta calibration: a logistic curve of log p and log(1 - p) of each class."""

from __future__ import annotations

from metacal.export.torch.maps.curves.logistic import Logistic
from metacal.maps.beta import BetaMap


class Beta(Logistic):
    """σ(a · log p - b · log(1 - p) + c) of each class; then divided by their sum."""

    def __init__(self, fitted: BetaMap) -> None:
        super().__init__(fitted.a, fitted.b, fitted.intercept)
