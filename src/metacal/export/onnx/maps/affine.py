"""Vector and matrix scaling, softmax(A u + c) of centred logits u; and what Dirichlet and structured scaling share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal.export.onnx import rowwise
from metacal.export.onnx.graph import Arithmetic
from metacal.maps.affine import MatrixMap, VectorMap


def vector(maths: Arithmetic, fitted: VectorMap, logits: str, n_classes: int) -> str:
    """softmax(scale · u + bias), u centred."""
    return masked_softmax(maths, maths("Mul", _centred(maths, logits), fitted.scale), fitted.bias, logits)


def matrix(maths: Arithmetic, fitted: MatrixMap, logits: str, n_classes: int) -> str:
    """softmax(matrix @ u + bias), u centred."""
    return masked_softmax(maths, maths("MatMul", _centred(maths, logits), fitted.matrix.T), fitted.bias, logits)


def _centred(maths: Arithmetic, logits: str) -> str:
    """x less the mean of the classes that are not masked; a masked class counts as that mean, zero."""
    centred = maths("Sub", logits, rowwise.mean_of_possible(maths, logits))
    return maths("Where", maths.possible(logits), centred, 0.0)


def log_probabilities(maths: Arithmetic, logits: str, inverse_temperature: float) -> str:
    """log softmax(b·x); a masked class counts as the mean of the row's others."""
    tempered = maths("Mul", rowwise.gaps(maths, logits), inverse_temperature)
    features = maths("Sub", tempered, maths("Log", maths.sum(maths("Exp", tempered))))
    return maths("Where", maths.possible(features), features, rowwise.mean_of_possible(maths, features))


def masked_softmax(maths: Arithmetic, scores: str, bias: NDArray[Any], logits: str) -> str:
    """softmax(z + bias); a class that is masked stays so."""
    shifted = maths("Add", scores, bias)
    return maths.graph.softmax(maths("Where", maths.possible(logits), shifted, -np.inf))
