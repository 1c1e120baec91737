"""What an export starts from: the gate, taken from whatever holds one, once it is clear that it can be exported.

The threshold lies in the middle between two numbers that a score can be (`kernels.grid`): another runtime compares its
own unrounded score with it, and decides as Python does.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from metacal.errors import InputError
from metacal.gate import Gate
from metacal.maps.methods import method_of_map
from metacal.scores import NAMED, name_of, needs_logits


def fitted_parts(cal: Any, *, input: str | None = None) -> Gate:
    """The gate to export, reading `input`, or why it cannot be exported.

    `input` says what the graph will be given; by default what `cal` was fitted on. A gate fitted on logits can stand
    behind a model that gives probabilities: their logarithms differ from the logits by a constant in each row, which
    only the energy notices.

    Examples
    --------
    >>> import metacal as mc
    >>> cal = mc.TemperatureScaling().fit([[2.0, 0.0], [0.0, 1.0], [0.5, 0.0]], [0, 1, 1])
    >>> fitted_parts(cal).map == cal.map_, fitted_parts(cal).certificate
    (True, None)
    """
    gate = gate_of(cal)
    kind = gate.source.input if input is None else input
    if kind not in ("logits", "probabilities"):
        raise InputError(f"input must be 'logits' or 'probabilities', got {kind!r}.")
    if kind == "logits" and gate.source.input == "probabilities":
        raise InputError(
            "this was fitted on probabilities and cannot take logits; fit it on logits, or attach it to a model that "
            "gives probabilities."
        )
    if method_of_map(type(gate.source.map)) is None:
        raise InputError(
            f"the base calibrator is a {_kind(getattr(gate.source.map, 'estimator', gate.source.map))}, which is not metacal's own; "
            "fit with one of metacal's calibrators to export it."
        )
    _check_promise(gate, kind)
    return replace(gate, input=kind)


def gate_of(cal: Any) -> Gate:
    """The gate itself, or the one that a fitted estimator holds: `gate_` of a MetaCal, calibrator, classifier.

    Examples
    --------
    >>> gate_of(0.5)
    Traceback (most recent call last):
    metacal.errors.InputError: what can be exported is a Gate or a fitted MetaCal, calibrator ...
    """
    found = cal
    while not isinstance(found, Gate):
        cls = type(found)
        if not (hasattr(cls, "gate_") or hasattr(cls, "map_")):
            raise InputError(
                "what can be exported is a Gate or a fitted MetaCal, calibrator or CalibratedClassifier; "
                f"got {_kind(cal)}. Of gates on scores and cascades metacal.export.onnx makes a graph."
            )
        try:
            found = found.gate_
        except AttributeError as error:  # scikit-learn's "not fitted" is a ValueError besides
            if hasattr(cls, "gate_") and not isinstance(error, ValueError):
                raise InputError(f"this {_kind(cal)} has no gate to export: {error}") from None
            raise InputError(f"this {_kind(cal)} is not fitted; call fit(logits, labels) first, then export.") from None
    return found


def _check_promise(gate: Gate, kind: str) -> None:
    if gate.certificate is None:
        if gate.threshold != math.inf:
            raise InputError(
                "this gate has a threshold without a certificate, and a threshold is only exported with its promise; "
                "fit it with one, say MetaCal(MaxMiscoverage(0.05))."
            )
        return
    if not isinstance(gate.source.score, str):
        raise InputError(
            f"the score is a Python function ({name_of(gate.source.score)}), which no other runtime can call; "
            f"fit with a named score: {', '.join(NAMED)}."
        )
    if needs_logits(gate.source.score) and kind == "probabilities":
        raise InputError(
            f"the score {gate.source.score!r} needs logits: it is the same for every row of probabilities."
        )


def _kind(thing: Any) -> str:
    return thing.__name__ if isinstance(thing, type) else type(thing).__name__
