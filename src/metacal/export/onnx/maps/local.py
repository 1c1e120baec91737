"""Local temperature scaling: a temperature that depends on the row."""

from __future__ import annotations

import numpy as np

from metacal.export.onnx import rowwise
from metacal.export.onnx.graph import Arithmetic
from metacal.maps.local import FARTHEST, LARGEST_LOG, LARGEST_LOGIT, LocalTemperatureMap

#: Tempered logits below this count as this in the norm.
_LOWEST = -1e100


def local_temperature(maths: Arithmetic, fitted: LocalTemperatureMap, logits: str, n_classes: int) -> str:
    """softmax(b(x)·x), log b(x) linear in three standardised features of the row."""
    gaps = rowwise.gaps(maths, logits)
    tempered = maths("Mul", gaps, fitted.inverse_temperature)
    features = [rowwise.entropy(maths, tempered), _log_margin(maths, tempered), _log_norm(maths, tempered)]
    log_b = maths.value(fitted.coefficients[0])
    for feature, mean, scale, weight in zip(features, fitted.means, fitted.scales, fitted.coefficients[1:]):
        standard = maths("Div", maths("Sub", feature, mean), scale)
        log_b = maths("Add", log_b, maths("Mul", maths.clipped(standard, -FARTHEST, FARTHEST), weight))
    inverse = maths("Exp", maths.clipped(log_b, -LARGEST_LOG, LARGEST_LOG))
    return maths.graph.softmax(maths("Mul", gaps, inverse))


def _log_margin(maths: Arithmetic, tempered: str) -> str:
    """log(1 + margin), the margin no more than 100."""
    others = rowwise.replaced(maths, tempered, rowwise.winners(maths, tempered), -np.inf)
    margin = maths("Min", maths("Sub", maths.max(tempered), maths.max(others)), LARGEST_LOGIT)
    return maths.log1p(margin)


def _log_norm(maths: Arithmetic, tempered: str) -> str:
    """log(1 + root mean square about the mean), over the classes that are not masked."""
    possible = maths.possible(tempered)
    count = maths.sum(maths.cast(possible))
    within = maths("Where", possible, maths("Max", tempered, _LOWEST), 0.0)
    centred = maths("Where", possible, maths("Sub", within, maths("Div", maths.sum(within), count)), 0.0)
    norm = maths("Sqrt", maths("Div", maths.sum(maths("Mul", centred, centred)), count))
    return maths.log1p(maths("Min", norm, LARGEST_LOGIT))
