"""Spline calibration: a monotone spline of the log-odds of the predicted class."""

from __future__ import annotations

import numpy as np

from metacal.export.onnx import rowwise
from metacal.export.onnx.graph import Arithmetic
from metacal.export.onnx.maps.curves.toplabel import shared_out
from metacal.maps.curves.onevsrest import FARTHEST
from metacal.maps.spline import SplineMap


def spline(maths: Arithmetic, fitted: SplineMap, logits: str, n_classes: int) -> str:
    """The winner gets σ(s(z)), z the log-odds of its confidence."""
    tempered = maths("Mul", logits, fitted.inverse_temperature)
    doubt = maths("Max", rowwise.doubt(maths, tempered), float(np.exp(-FARTHEST)))
    odds = maths("Sub", maths.log1p(maths("Neg", doubt)), maths("Log", doubt))
    z = maths("Add", risen(maths, fitted, odds), fitted.intercept)
    return shared_out(maths, tempered, maths.logistic(z), maths.logistic(maths("Neg", z)))


def risen(maths: Arithmetic, fitted: SplineMap, z: str) -> str:
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
