"""Ensemble temperature scaling: tempered, plain and uniform probabilities, mixed."""

from __future__ import annotations

from metacal.export.onnx.graph import Arithmetic
from metacal.export.onnx.maps.temperature import tempered_softmax
from metacal.export.onnx.maps.uniform import with_uniform
from metacal.maps.ensemble import EnsembleTemperatureMap


def ensemble(maths: Arithmetic, fitted: EnsembleTemperatureMap, logits: str, n_classes: int) -> str:
    """w1·softmax(b·x) + w2·softmax(x) + w3/K, the last over the classes that are not masked."""
    first, second, third = fitted.weights
    tempered = maths("Mul", tempered_softmax(maths, logits, fitted.inverse_temperature), first)
    plain = maths("Mul", maths.graph.softmax(logits), second)
    mixed = maths("Add", tempered, plain)
    return mixed if third <= 0.0 else with_uniform(maths, mixed, third, logits, n_classes)
