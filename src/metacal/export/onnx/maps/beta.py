"""Beta calibration: a logistic curve of log p and log(1 - p) of each class."""

from __future__ import annotations

from metacal.export.onnx.graph import Arithmetic
from metacal.export.onnx.maps.curves.logistic import logistic
from metacal.maps.beta import BetaMap


def beta(maths: Arithmetic, fitted: BetaMap, logits: str, n_classes: int) -> str:
    """σ(a · log p - b · log(1 - p) + c) of each class; then divided by their sum."""
    return logistic(maths, fitted.a, fitted.b, fitted.intercept, logits, n_classes)
