# mypy: allow-subclassing-any, allow-untyped-calls
"""IRM: one isotonic curve for the probabilities of all classes. One per class stands in `curves.onevsrest`."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from metacal.export.torch.fixed import Fixed, beside, softmax
from metacal.export.torch.maps.curves.onevsrest import Curves, combined
from metacal.maps.isotonic import SharedMap


class Shared(Fixed):
    """q_k = curve(p_k) with one curve for all classes, then q / Σ q."""

    def __init__(self, fitted: SharedMap) -> None:
        super().__init__()
        self.curve = Curves(fitted.knots, fitted.values, np.array([0, len(fitted.knots)]), "linear")
        self.keep(inverse_temperature=fitted.inverse_temperature)

    def forward(self, table: Tensor) -> Tensor:
        """Probabilities of each row."""
        plain = softmax(table, beside(self.inverse_temperature, table))
        return combined(table, self.curve(plain), None, plain)
