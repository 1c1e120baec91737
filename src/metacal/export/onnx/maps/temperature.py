"""Temperature scaling."""

from __future__ import annotations

import numpy as np

from metacal.export.onnx.graph import Arithmetic
from metacal.maps.temperature import TemperatureMap


def temperature(maths: Arithmetic, fitted: TemperatureMap, logits: str, n_classes: int) -> str:
    """softmax(b·x)."""
    return tempered_softmax(maths, logits, fitted.inverse_temperature)


def tempered_softmax(maths: Arithmetic, logits: str, inverse_temperature: float) -> str:
    """softmax(b·x) in the precision of the table, where b·x may overflow though x does not: ∞ - ∞ is no number.

    That takes b > 1, and a largest logit so large that the others, unless they are equal, lie more than 1e20 below it:
    every b ≥ 1 gives such a row the same softmax, and it gets b = 1. With b ≤ 1 there is nothing to pay.
    """
    inverse: str | float = inverse_temperature
    if inverse_temperature > 1.0:
        ordinary = maths("Less", maths("Abs", maths.max(logits)), np.finfo(maths.dtype).max / inverse_temperature)
        inverse = maths("Where", ordinary, inverse_temperature, 1.0)
    return maths.graph.softmax(maths("Mul", logits, inverse))
