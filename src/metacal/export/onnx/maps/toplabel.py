"""A new confidence for the predicted class, by a curve or a spline; the other classes share the rest in proportion."""

from __future__ import annotations

import numpy as np

from metacal.export.onnx import rowwise
from metacal.export.onnx.graph import Arithmetic
from metacal.export.onnx.maps.onevsrest import follow
from metacal.maps.curves.onevsrest import FARTHEST
from metacal.maps.curves.toplabel import TopLabelMap
from metacal.maps.spline import SplineMap

#: The predicted class's probability is at least this times that of any other.
_AHEAD = 1.0 + 1e-6


def top_label(maths: Arithmetic, fitted: TopLabelMap, logits: str, n_classes: int) -> str:
    """The winner gets curve(max p), any other its share of what is left; p = softmax(b·x)."""
    tempered = maths("Mul", logits, fitted.inverse_temperature)
    confidence = maths("Sub", 1.0, rowwise.doubt(maths, tempered))
    offsets = np.array([0, len(fitted.knots)])
    answer = follow(maths, fitted.knots, fitted.values, offsets, fitted.interpolation, confidence)
    return _shared_out(maths, tempered, answer, maths("Sub", 1.0, answer))


def spline(maths: Arithmetic, fitted: SplineMap, logits: str, n_classes: int) -> str:
    """The winner gets σ(s(z)), z the log-odds of its confidence."""
    tempered = maths("Mul", logits, fitted.inverse_temperature)
    doubt = maths("Max", rowwise.doubt(maths, tempered), float(np.exp(-FARTHEST)))
    odds = maths("Sub", maths.log1p(maths("Neg", doubt)), maths("Log", doubt))
    z = maths("Add", _risen(maths, fitted, odds), fitted.intercept)
    return _shared_out(maths, tempered, maths.logistic(z), maths.logistic(maths("Neg", z)))


def _risen(maths: Arithmetic, fitted: SplineMap, z: str) -> str:
    """How far the spline has risen from its first knot to z: straight outside the knots, quadratic between them."""
    knots, slopes = fitted.knots, fitted.slopes
    before = maths("Mul", maths("Min", maths("Sub", z, knots[0]), 0.0), slopes[0])
    after = maths("Mul", maths("Max", maths("Sub", z, knots[-1]), 0.0), slopes[-1])
    risen = maths("Add", before, after)
    if len(knots) == 1:
        return risen
    width = np.diff(knots)
    along = maths.clipped(maths("Div", maths("Sub", z, knots[None, :-1]), width[None]), 0.0, 1.0)
    half = maths("Mul", maths("Mul", along, along), 0.5)
    from_left = maths("Mul", maths("Sub", along, half), (width * slopes[:-1])[None])
    from_right = maths("Mul", half, (width * slopes[1:])[None])
    return maths("Add", risen, maths.sum(maths("Add", from_left, from_right)))


def _shared_out(maths: Arithmetic, tempered: str, confidence: str, rest: str) -> str:
    """The new confidence on the winner, never behind another class, and the rest among the others."""
    winner = rowwise.winners(maths, tempered)
    others = rowwise.replaced(maths, tempered, winner, -np.inf)
    second = maths.max(others)
    accompanied = maths("Greater", second, -np.inf)
    shares = maths("Exp", maths("Sub", others, maths("Where", accompanied, second, 0.0)))
    mass = maths.sum(shares)
    # The largest share is 1 / mass: below this confidence the second class would come out ahead.
    level = maths("Div", _AHEAD, maths("Add", mass, _AHEAD))
    own = maths("Where", accompanied, maths("Max", confidence, level), 1.0)
    left = maths("Min", rest, maths("Div", mass, maths("Add", mass, _AHEAD)))
    factor = maths("Where", accompanied, maths("Div", left, maths("Where", accompanied, mass, 1.0)), 0.0)
    return rowwise.replaced(maths, maths("Mul", shares, factor), winner, own)
