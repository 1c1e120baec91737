"""What a gate's base map is by default: a monotone spline on a temperature with a uniform part, on all rows.

Why not a temperature on the accepted rows: accepted rows have few errors, and a few rows with an almost impossible true
class among them rule T. The uniform part takes those over, and the spline mends the confidence, which is what a gate
shows. Both parts keep every prediction, so a promise about the largest logit stays one about the largest probability.
Measured in `docs/quality.md`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from metacal.maps.composed import ComposedMap, fit_composed
from metacal.rows import Rows

#: The method's name.
DEFAULT_BASE = "composed"


def fit_default_base(rows: Rows, labels: NDArray[np.intp], weights: NDArray[np.float64] | None = None) -> ComposedMap:
    """The spline on a temperature with a uniform part; a `FitMap` for `fit_gate`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(2000, 3))
    >>> labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    >>> fitted = fit_default_base(Rows(3.0 * logits), labels)
    >>> fitted.preserves_accuracy, fitted(np.array([[0.0, 3.0, 0.0]])).round(1)       # e³ : 1 is really e : 1
    (True, array([[0.2, 0.6, 0.2]]))
    """
    return fit_composed(rows, labels, weights)
