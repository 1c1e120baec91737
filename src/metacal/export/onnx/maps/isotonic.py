"""IRM: one isotonic curve for the probabilities of all classes. One per class stands in `curves.onevsrest`."""

from __future__ import annotations

import numpy as np

from metacal.export.onnx.graph import Arithmetic
from metacal.export.onnx.maps.curves.onevsrest import combine, follow, softmax
from metacal.maps.isotonic import SharedMap


def shared(maths: Arithmetic, fitted: SharedMap, logits: str, n_classes: int) -> str:
    """q_k = curve(p_k) with one curve for all classes; then q / Σ q."""
    tempered = softmax(maths, logits, fitted.inverse_temperature)
    offsets = np.array([0, len(fitted.knots)])
    answers = follow(maths, fitted.knots, fitted.values, offsets, "linear", tempered)
    return combine(maths, answers, logits, fitted.inverse_temperature)
