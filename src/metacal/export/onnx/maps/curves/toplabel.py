"""A new confidence for the predicted class, by a curve; the other classes share the rest in proportion."""

from __future__ import annotations

import numpy as np

from metacal.export.onnx import rowwise
from metacal.export.onnx.graph import Arithmetic
from metacal.export.onnx.maps.curves.onevsrest import follow
from metacal.kernels.lifted import AHEAD
from metacal.maps.curves.toplabel import TopLabelMap


def top_label(maths: Arithmetic, fitted: TopLabelMap, logits: str, n_classes: int) -> str:
    """The winner gets curve(max p), any other its share of what is left; p = softmax(b·x)."""
    tempered = maths("Mul", logits, fitted.inverse_temperature)
    confidence = maths("Sub", 1.0, rowwise.doubt(maths, tempered))
    offsets = np.array([0, len(fitted.knots)])
    answer = follow(maths, fitted.knots, fitted.values, offsets, fitted.interpolation, confidence)
    return shared_out(maths, tempered, answer, maths("Sub", 1.0, answer))


def shared_out(maths: Arithmetic, tempered: str, confidence: str, rest: str) -> str:
    """The new confidence on the winner, never behind another class, and the rest among the others."""
    winner = rowwise.winners(maths, tempered)
    others = rowwise.replaced(maths, tempered, winner, -np.inf)
    second = maths.max(others)
    accompanied = maths("Greater", second, -np.inf)
    shares = maths("Exp", maths("Sub", others, maths("Where", accompanied, second, 0.0)))
    mass = maths.sum(shares)
    # The largest share is 1 / mass: below this confidence the second class would come out ahead.
    level = maths("Div", AHEAD, maths("Add", mass, AHEAD))
    own = maths("Where", accompanied, maths("Max", confidence, level), 1.0)
    left = maths("Min", rest, maths("Div", mass, maths("Add", mass, AHEAD)))
    factor = maths("Where", accompanied, maths("Div", left, maths("Where", accompanied, mass, 1.0)), 0.0)
    return rowwise.replaced(maths, maths("Mul", shares, factor), winner, own)
