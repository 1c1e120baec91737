"""Meta-Cal's map: the base calibrator's probabilities on accepted rows, uniform 1/K on rejected ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.certificate import accepts
from metacal.rows import Rows
from metacal.scores import Score, score_rows
from metacal.validate import on_host


@dataclass(frozen=True)
class MetaMap:
    """Accept iff score(x) <= threshold; accepted rows get base(x), rejected ones 1/K in every class (the paper's map).

    Examples
    --------
    >>> from metacal.maps.temperature import TemperatureMap
    >>> gate = MetaMap(base=TemperatureMap(1.0), score="entropy", threshold=0.5)
    >>> gate(np.array([[5.0, 0.0], [0.1, 0.0]])).round(3)
    array([[0.993, 0.007], [0.5  , 0.5  ]])
    """

    base: Callable[[NDArray[Any]], NDArray[Any]]
    score: str | Score
    threshold: float

    def scores(self, rows: Rows) -> NDArray[np.float64]:
        """The ranking score of each row."""
        return score_rows(rows, self.score)

    def accepts(self, rows: Rows) -> NDArray[np.bool_]:
        """Whether each row is accepted."""
        return accepts(self.scores(rows), self.threshold)

    def __call__(self, logits: NDArray[Any], *, accept: NDArray[np.bool_] | None = None) -> NDArray[Any]:
        """Probabilities of the same shape; pass `accept` where it is already known.

        A tensor on a GPU gives a tensor there; a base map that works on arrays only gets it as one.
        """
        accept = self.accepts(Rows(logits)) if accept is None else accept
        probabilities: NDArray[Any]
        if kernels.on_device(logits) and not getattr(self.base, "on_device", False):
            probabilities = kernels.device_kernels().beside(self.base(on_host(logits)), logits)
        else:
            probabilities = self.base(logits)
        if not accept.all():
            probabilities[~accept] = 1.0 / logits.shape[1]
        return probabilities
