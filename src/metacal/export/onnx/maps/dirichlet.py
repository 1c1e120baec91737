"""Dirichlet calibration: softmax(A log p + c)."""

from __future__ import annotations

from metacal.export.onnx.graph import Arithmetic
from metacal.export.onnx.maps.affine import log_probabilities, masked_softmax
from metacal.maps.dirichlet import DirichletMap


def dirichlet(maths: Arithmetic, fitted: DirichletMap, logits: str, n_classes: int) -> str:
    """softmax(matrix @ log p + bias)."""
    features = log_probabilities(maths, logits, 1.0)
    return masked_softmax(maths, maths("MatMul", features, fitted.matrix.T), fitted.bias, logits)
