"""What is told of each row that a gate has decided on: one list of columns, for files and for record batches."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from metacal.decision import Decision
from metacal.errors import InputError
from metacal.files.request import ClassNames, listed
from metacal.gate import Gate


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


def order_of_classes(names: ClassNames | None, own: ClassNames, held: str, fitted: str) -> list[int] | None:
    """Which of the columns called `names` is each of a gate's `own` classes; None where they stand as they should.

    Columns without names, and names of another kind than the gate's (column numbers beside words), are taken in order.
    `held` and `fitted` are what messages call the rows and the gate.

    Examples
    --------
    >>> order_of_classes(("dog", "cat"), ("cat", "dog"), "new.csv", "cal.json")
    [1, 0]
    >>> order_of_classes(("dog", "cow"), ("cat", "dog"), "new.csv", "cal.json")
    Traceback (most recent call last):
    metacal.errors.InputError: new.csv has the classes 'dog', 'cow' but cal.json was fitted on 'cat', 'dog'; ...
    """
    if names is None or type(names[0]) is not type(own[0]) or names == own:
        return None
    if sorted(map(str, names)) != sorted(map(str, own)):
        raise InputError(
            f"{held} has the classes {listed(names)} but {fitted} was fitted on {listed(own)}; "
            "give predictions of the same classifier."
        )
    return [names.index(name) for name in own]
