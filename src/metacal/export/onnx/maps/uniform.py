"""Temperature with a uniform part; and the uniform distribution over the classes that are not masked."""

from __future__ import annotations

from metacal.export.onnx.graph import Arithmetic, Graph
from metacal.export.onnx.maps.masks import has_no_masks, with_masks
from metacal.export.onnx.maps.temperature import tempered_softmax
from metacal.maps.uniform import UniformTemperatureMap


def uniform_temperature(maths: Arithmetic, fitted: UniformTemperatureMap, logits: str, n_classes: int) -> str:
    """(1 - ε)·softmax(b·x) + ε/K, the last over the classes that are not masked."""
    tempered = tempered_softmax(maths, logits, fitted.inverse_temperature)
    if fitted.uniform == 0.0:
        return tempered
    return with_uniform(maths, maths("Mul", tempered, 1.0 - fitted.uniform), fitted.uniform, logits, n_classes)


def with_uniform(maths: Arithmetic, mixed: str, weight: float, logits: str, n_classes: int) -> str:
    """What is mixed so far, plus weight/K over the classes that are not masked."""

    def over_all(branch: Graph) -> list[str]:
        return [Arithmetic(branch, maths.dtype)("Add", mixed, weight / n_classes)]

    def over_possible(branch: Graph) -> list[str]:
        inner = Arithmetic(branch, maths.dtype)
        table = logits if maths.masks_read else with_masks(inner, logits)
        possible = inner.cast(inner.possible(table))
        return [inner("Add", mixed, inner("Div", possible, inner("Div", inner.sum(possible), weight)))]

    return maths.graph.choose(has_no_masks(maths, logits), [maths.dtype], over_all, over_possible)[0]
