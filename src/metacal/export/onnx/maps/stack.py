"""Stacking: a mixture of maps."""

from __future__ import annotations

from metacal.export.onnx.graph import Arithmetic
from metacal.export.onnx.maps.composed import part
from metacal.maps.stack import StackMap


def stack(maths: Arithmetic, fitted: StackMap, logits: str, n_classes: int) -> str:
    """Σ_m w_m map_m(x). The same front of several members is written once."""
    mixed = None
    for member, weight in zip(fitted.members, fitted.weights):
        own = maths("Mul", part(maths, member, logits, n_classes), weight)
        mixed = own if mixed is None else maths("Add", mixed, own)
    assert mixed is not None
    return mixed
