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
    >>> from metacal.maps.temperature import TemperatureMap
    >>> from metacal.rows import Rows
    >>> gate = Gate(TemperatureMap(1.0), classes=np.arange(2), threshold=0.5)
    >>> list(decided_columns(gate, gate.decide(Rows(np.zeros((1, 2))))))
    ['prediction', 'answer', 'confidence', 'accept', 'score', 'probs']
    """
    told: dict[str, Any] = {} if ids is None else {"id": ids}
    told["prediction"] = decision.label
    if not gate.is_calibrator:
        told["answer"] = decision.answer
    if decision.confidence is not None:
        told["confidence"] = decision.confidence
    if not gate.is_calibrator:
        told |= {"accept": decision.accept, "score": decision.score}
    if decision.probabilities is not None:
        told["probs"] = decision.probabilities
    return told
