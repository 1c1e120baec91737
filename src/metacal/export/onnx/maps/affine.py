"""Vector, matrix, Dirichlet and structured scaling: softmax(A u + c), u the logits less their mean or logsumexp."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.export.onnx import rowwise
from metacal.export.onnx.graph import Arithmetic
from metacal.maps.affine import MatrixMap, VectorMap
from metacal.maps.dirichlet import DirichletMap
from metacal.maps.structured import StructuredMap


def vector(maths: Arithmetic, fitted: VectorMap, logits: str, n_classes: int) -> str:
    """softmax(scale · u + bias), u centred."""
    return _softmax(maths, maths("Mul", _centred(maths, logits), fitted.scale), fitted.bias, logits)


def matrix(maths: Arithmetic, fitted: MatrixMap, logits: str, n_classes: int) -> str:
    """softmax(matrix @ u + bias), u centred."""
    return _softmax(maths, maths("MatMul", _centred(maths, logits), fitted.matrix.T), fitted.bias, logits)


def dirichlet(maths: Arithmetic, fitted: DirichletMap, logits: str, n_classes: int) -> str:
    """softmax(matrix @ log p + bias)."""
    features = _log_probabilities(maths, logits, 1.0)
    return _softmax(maths, maths("MatMul", features, fitted.matrix.T), fitted.bias, logits)


def structured(maths: Arithmetic, fitted: StructuredMap, logits: str, n_classes: int) -> str:
    """softmax(scale · log softmax(b·x) + bias)."""
    features = _log_probabilities(maths, logits, fitted.inverse_temperature)
    return _softmax(maths, maths("Mul", features, fitted.scale), fitted.bias, logits)


def _centred(maths: Arithmetic, logits: str) -> str:
    """x less the mean of the classes that are not masked; a masked class counts as that mean, zero."""
    possible = maths.possible(logits)
    mean = maths("Div", maths.sum(maths("Where", possible, logits, 0.0)), maths.sum(maths.cast(possible)))
    return maths("Where", possible, maths("Sub", logits, mean), 0.0)


def _log_probabilities(maths: Arithmetic, logits: str, inverse_temperature: float) -> str:
    """log softmax(b·x); a masked class counts as the mean of the row's others."""
    tempered = maths("Mul", rowwise.gaps(maths, logits), inverse_temperature)
    features = maths("Sub", tempered, maths("Log", maths.sum(maths("Exp", tempered))))
    possible = maths.possible(features)
    mean = maths("Div", maths.sum(maths("Where", possible, features, 0.0)), maths.sum(maths.cast(possible)))
    return maths("Where", possible, features, mean)


def _softmax(maths: Arithmetic, scores: str, bias: NDArray[Any], logits: str) -> str:
    """softmax(z + bias); a class that is masked stays so."""
    shifted = maths("Add", scores, bias)
    return maths.graph.softmax(maths("Where", maths.possible(logits), shifted, -np.inf))
