"""Platt scaling: a logistic curve of each class's log-odds."""

from __future__ import annotations

from metacal.export.onnx.graph import Arithmetic
from metacal.export.onnx.maps.curves.logistic import logistic
from metacal.maps.platt import PlattMap


def platt(maths: Arithmetic, fitted: PlattMap, logits: str, n_classes: int) -> str:
    """σ(slope · log(p / (1 - p)) + intercept) of each class; then divided by their sum."""
    return logistic(maths, fitted.slope, fitted.slope, fitted.intercept, logits, n_classes)
