"""Structured scaling: temperature, then a scale and a bias per class on the log-probabilities."""

from __future__ import annotations

from metacal.export.onnx.graph import Arithmetic
from metacal.export.onnx.maps.affine import log_probabilities, masked_softmax
from metacal.maps.structured import StructuredMap


def structured(maths: Arithmetic, fitted: StructuredMap, logits: str, n_classes: int) -> str:
    """softmax(scale · log softmax(b·x) + bias)."""
    features = log_probabilities(maths, logits, fitted.inverse_temperature)
    return masked_softmax(maths, maths("Mul", features, fitted.scale), fitted.bias, logits)
