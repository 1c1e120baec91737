"""Ensemble temperature scaling: tempered, plain and uniform probabilities, mixed."""

from __future__ import annotations

from metacal.export.onnx.graph import Arithmetic, Graph
from metacal.export.onnx.maps.masks import has_no_masks, with_masks
from metacal.export.onnx.maps.temperature import tempered_softmax
from metacal.maps.ensemble import EnsembleTemperatureMap


def ensemble(maths: Arithmetic, fitted: EnsembleTemperatureMap, logits: str, n_classes: int) -> str:
    """w1·softmax(b·x) + w2·softmax(x) + w3/K, the last over the classes that are not masked."""
    graph = maths.graph
    first, second, third = fitted.weights
    tempered = maths("Mul", tempered_softmax(maths, logits, fitted.inverse_temperature), first)
    plain = maths("Mul", graph.softmax(logits), second)
    mixed = maths("Add", tempered, plain)
    if third <= 0.0:
        return mixed

    def over_all(branch: Graph) -> list[str]:
        return [Arithmetic(branch, maths.dtype)("Add", mixed, third / n_classes)]

    def over_possible(branch: Graph) -> list[str]:
        inner = Arithmetic(branch, maths.dtype)
        possible = inner.cast(inner.possible(with_masks(inner, logits)))
        return [inner("Add", mixed, inner("Div", possible, inner("Div", inner.sum(possible), third)))]

    return graph.choose(has_no_masks(maths, logits), [maths.dtype], over_all, over_possible)[0]
