"""Composed calibration: one map after another."""

from __future__ import annotations

import numpy as np

from metacal.export.onnx.graph import Arithmetic
from metacal.maps.composed import SMALLEST, ComposedMap
from metacal.maps.map import Map
from metacal.maps.methods import method_of_map


def composed(maths: Arithmetic, fitted: ComposedMap, logits: str, n_classes: int) -> str:
    """then(log first(x)), a masked class masked for both."""
    first = part(maths, fitted.first, logits, n_classes)
    seen = maths("Max", maths("Log", first), SMALLEST)
    return part(maths, fitted.then, maths("Where", maths.possible(logits), seen, -np.inf), n_classes)


def part(maths: Arithmetic, fitted: Map, logits: str, n_classes: int) -> str:
    """A map inside another, in the same precision."""
    method = method_of_map(type(fitted))
    assert method is not None
    return method.onnx_writer()(maths, fitted, logits, n_classes)
