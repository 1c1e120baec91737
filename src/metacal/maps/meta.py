"""Meta-Cal's map: the base calibrator's probabilities on accepted rows, uniform 1/K on rejected ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metacal import kernels
from metacal.promises.certificate import accepts
from metacal.rows import Rows
from metacal.rows.validate import on_host, room_for_probabilities
from metacal.scores import Score, resolve, score_rows


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

    def write(self, block: NDArray[Any], out: NDArray[Any]) -> None:
        """Write the probabilities of a block of logits into `out`; the base map must be able to do so.

        Rounding a block's scores would cost more calls than arithmetic; a settled threshold needs none.
        """
        resolved = resolve(self.score)
        accept = accepts(resolved.unrounded(block), resolved.grid.settled(self.threshold))
        self.base.write(block, out)  # type: ignore[attr-defined]
        if not accept.all():
            out[~accept] = 1.0 / block.shape[1]

    def __call__(
        self,
        logits: NDArray[Any],
        *,
        accept: NDArray[np.bool_] | None = None,
        rows: Rows | None = None,
        out: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        """Probabilities of the same shape; pass `accept` where it is already known.

        Where the base map can, a block is scored and mapped while it is in the cache. A tensor on a GPU gives a tensor
        there; a base map that works on arrays only gets it as one.
        """
        rows = rows if rows is not None else Rows(logits)
        writes, device = getattr(self.base, "takes_out", False), rows.on_device
        if accept is None and writes and not device:
            return rows.fill(self.write, room_for_probabilities(logits, out))
        accept = self.accepts(rows) if accept is None else accept
        probabilities: NDArray[Any]
        if device and not getattr(self.base, "on_device", False):
            probabilities = kernels.device_kernels().beside(self.base(on_host(logits)), logits)
        else:
            keywords: Any = {"out": out} if writes else {}
            probabilities = self.base(logits, **keywords)
        if not accept.all():
            if device:
                kernels.device_kernels().fill_rows(probabilities, ~accept, 1.0 / logits.shape[1])
            else:
                probabilities[~accept] = 1.0 / logits.shape[1]
        if out is None or writes:
            return probabilities
        out[...] = probabilities
        return out
