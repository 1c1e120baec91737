"""What is told of each row that a gate has decided on: one list of columns, for files and for record batches."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from metacal.gate import Decision, Gate


def decided_columns(gate: Gate, decision: Decision, ids: NDArray[Any] | None = None) -> dict[str, Any]:
    """Columns by name, `probs` being 2-D; a calibrator, which rejects nothing, has no answer, accept and score.

    Examples
    --------
    >>> import numpy as np
    >>> from metacal.gate import Table
    >>> from metacal.maps.temperature import TemperatureMap
    >>> gate = Gate.of(Table(TemperatureMap(1.0), np.arange(2)), 0.5)
    >>> list(decided_columns(gate, gate.decide(np.zeros((1, 2)))))
    ['prediction', 'answer', 'confidence', 'accept', 'score', 'probs']
    """
    named = {"id": ids, "prediction": decision.label, **decision.columns, "probs": decision.probabilities}
    hidden = ("label", "answer", "accept", "score") if gate.is_calibrator else ("label",)
    return {name: column for name, column in named.items() if column is not None and name not in hidden}
