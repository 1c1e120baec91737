"""Top-label calibration: a new confidence for the predicted class; the other classes share the rest in proportion.

Both start from tempered probabilities softmax(b·x): an over-confident network spreads the rest too unevenly as well.

Gupta & Ramdas, "Top-label calibration and multiclass-to-binary reductions", ICLR 2022, without their split by predicted
class: one curve serves all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.formulas.curves import top_label
from metacal.formulas.logits import within_reach
from metacal.maps.curves.onevsrest import (
    Draw,
    Float,
    Labels,
    OneCurveMap,
    Weights,
    check_curve,
    counted,
)
from metacal.maps.map import positive
from metacal.maps.temperature import fit_temperature
from metacal.rows import Rows


@dataclass(frozen=True, eq=False)
class TopLabelMap(OneCurveMap):
    """The predicted class gets curve(max p), any other its share p_j / (1 - max p) of what is left; p = softmax(b·x).

    The curve's corners (`interpolation` "linear") or the left ends of its right-closed pieces ("step") are `knots`.
    The predicted class is never pushed below another: its probability is at least a millionth more than the second
    one's. So every prediction is kept.

    Examples
    --------
    >>> steps = TopLabelMap(np.array([0.0, 0.9]), np.array([0.6, 0.8]), "step")
    >>> steps(np.log([[0.95, 0.04, 0.01], [0.5, 0.3, 0.2]])).round(3)
    array([[0.8 , 0.16, 0.04], [0.6 , 0.24, 0.16]])
    """

    knots: NDArray[np.float64]
    values: NDArray[np.float64]
    interpolation: str
    inverse_temperature: float = 1.0

    preserves_accuracy = True
    formula = staticmethod(top_label)

    def check(self) -> None:
        """Raise unless the fields make a map."""
        check_curve(self.knots, self.values, self.interpolation, starts=(0, len(self.knots)))
        positive("inverse_temperature", self.inverse_temperature)


def fit_top_label(
    rows: Rows, labels: Labels, weights: Weights, draw: Draw, interpolation: str, tempered: bool
) -> TopLabelMap:
    """Draw the curve of "is the prediction right?" over its confidence: O(n·K + n·log n) time, O(n) memory."""
    b = fit_temperature(rows, labels, weights).inverse_temperature if tempered else 1.0
    rows, labels, weights = counted(rows, labels, weights)
    weights = np.ones(len(labels)) if weights is None else weights
    confidence = rows.collect(partial(_tempered_confidences, b))
    return TopLabelMap(*draw(confidence, correct_predictions(rows, labels), weights), interpolation, b)


def correct_predictions(rows: Rows, labels: Labels) -> Float:
    """1 where the largest logit's class is the label, else 0."""
    return np.asarray(rows.collect(kernels.predicted) == labels, dtype=np.float64)


def scaled(block: NDArray[Any], inverse_temperature: float) -> Float:
    """b·x in float64."""
    return np.asarray(np.multiply(within_reach(block), inverse_temperature, dtype=np.float64))


def confidences(block: NDArray[Any]) -> Float:
    """Max p of each row."""
    return np.asarray(1.0 - kernels.doubt(block))


def _tempered_confidences(inverse_temperature: float, block: NDArray[Any]) -> Float:
    return confidences(scaled(block, inverse_temperature))
