"""Temperature scaling, its ensemble, and the temperature that depends on the row."""

from __future__ import annotations

import numpy as np

from metacal.export.onnx import rowwise
from metacal.export.onnx.graph import Arithmetic, Graph
from metacal.export.onnx.maps.masks import has_no_masks, with_masks
from metacal.maps.ensemble import EnsembleTemperatureMap
from metacal.maps.local import LocalTemperatureMap
from metacal.maps.temperature import TemperatureMap

#: As in `metacal.maps.local`: the largest margin or norm that counts, where features are cut off, where log b is.
_LARGEST_LOGIT, _FARTHEST, _LARGEST_LOG = 100.0, 3.0, 300.0
#: Tempered logits below this count as this in the norm.
_LOWEST = -1e100


def temperature(maths: Arithmetic, fitted: TemperatureMap, logits: str, n_classes: int) -> str:
    """softmax(b·x)."""
    return _softmax(maths, logits, fitted.inverse_temperature)


def _softmax(maths: Arithmetic, logits: str, inverse_temperature: float) -> str:
    """softmax(b·x) in the precision of the table, where b·x may overflow though x does not: ∞ - ∞ is no number.

    That takes b > 1, and a largest logit so large that the others, unless they are equal, lie more than 1e20 below it:
    every b ≥ 1 gives such a row the same softmax, and it gets b = 1. With b ≤ 1 there is nothing to pay.
    """
    inverse: str | float = inverse_temperature
    if inverse_temperature > 1.0:
        ordinary = maths("Less", maths("Abs", maths.max(logits)), np.finfo(maths.dtype).max / inverse_temperature)
        inverse = maths("Where", ordinary, inverse_temperature, 1.0)
    return maths.graph.softmax(maths("Mul", logits, inverse))


def ensemble(maths: Arithmetic, fitted: EnsembleTemperatureMap, logits: str, n_classes: int) -> str:
    """w1·softmax(b·x) + w2·softmax(x) + w3/K, the last over the classes that are not masked."""
    graph = maths.graph
    first, second, third = fitted.weights
    tempered = maths("Mul", _softmax(maths, logits, fitted.inverse_temperature), first)
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


def local_temperature(maths: Arithmetic, fitted: LocalTemperatureMap, logits: str, n_classes: int) -> str:
    """softmax(b(x)·x), log b(x) linear in three standardised features of the row."""
    gaps = rowwise.gaps(maths, logits)
    tempered = maths("Mul", gaps, fitted.inverse_temperature)
    features = [rowwise.entropy(maths, tempered), _log_margin(maths, tempered), _log_norm(maths, tempered)]
    log_b = maths.value(fitted.coefficients[0])
    for feature, mean, scale, weight in zip(features, fitted.means, fitted.scales, fitted.coefficients[1:]):
        standard = maths("Div", maths("Sub", feature, mean), scale)
        log_b = maths("Add", log_b, maths("Mul", maths.clipped(standard, -_FARTHEST, _FARTHEST), weight))
    inverse = maths("Exp", maths.clipped(log_b, -_LARGEST_LOG, _LARGEST_LOG))
    return maths.graph.softmax(maths("Mul", gaps, inverse))


def _log_margin(maths: Arithmetic, tempered: str) -> str:
    """log(1 + margin), the margin no more than 100."""
    others = rowwise.replaced(maths, tempered, rowwise.winners(maths, tempered), -np.inf)
    margin = maths("Min", maths("Sub", maths.max(tempered), maths.max(others)), _LARGEST_LOGIT)
    return maths.log1p(margin)


def _log_norm(maths: Arithmetic, tempered: str) -> str:
    """log(1 + root mean square about the mean), over the classes that are not masked."""
    possible = maths.possible(tempered)
    count = maths.sum(maths.cast(possible))
    within = maths("Where", possible, maths("Max", tempered, _LOWEST), 0.0)
    centred = maths("Where", possible, maths("Sub", within, maths("Div", maths.sum(within), count)), 0.0)
    norm = maths("Sqrt", maths("Div", maths.sum(maths("Mul", centred, centred)), count))
    return maths.log1p(maths("Min", norm, _LARGEST_LOGIT))
