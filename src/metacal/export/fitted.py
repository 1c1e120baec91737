"""What an export starts from: the gate, taken from whatever holds one, once it is clear that it can
be exported.

The threshold lies in the middle between two numbers that a score can be (`kernels.grid`): another
runtime compares its own unrounded score with it, and decides as Python does.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from metacal.errors import InputError, spelled
from metacal.gate import Gate, Table
from metacal.gate.gate import gate_in
from metacal.maps.methods import method_of_map
from metacal.rows.arrays import one_of
from metacal.scores import NAMED, name_of, needs_logits

#: How far a row of probabilities may be from summing to one, as in `metacal.rows.validate`.
SUM_TOLERANCE = {"float16": 5e-3, "bfloat16": 1e-2, "float32": 1e-4, "float64": 1e-4}

_EXPORTED = (
    "what can be exported is a Gate or a fitted MetaCal, calibrator or CalibratedClassifier (of"
    " gates on scores and cascades metacal.export.onnx makes a graph)"
)


def exportable(gate: Gate, input: str | None = None) -> Gate:
    """The gate with every stage reading `input`, or why it cannot be exported.

    `input` says what the graph will be given; by default what the gate was fitted on. A gate fitted
    on logits can stand behind a model that gives probabilities: their logarithms differ from the
    logits by a constant in each row, which only the energy notices.

    Examples
    --------
    >>> import metacal as mc
    >>> cal = mc.TemperatureScaling().fit([[2.0, 0.0], [0.0, 1.0], [0.5, 0.0]], [0, 1, 1])
    >>> exportable(gate_of(cal), "probabilities").source.input
    'probabilities'
    """
    if gate.certificate is None and any(
        stage.policy.threshold != math.inf for stage in gate.stages
    ):
        raise InputError(
            "this gate has a threshold without a certificate, and a threshold is only exported with"
            " its promise; fit it with one, say MetaCal(MaxMiscoverage(0.05))."
        )
    if gate.source.kind == "scores":
        if input is not None:
            raise InputError(
                f"a gate on scores takes scores, not {input}; leave out"
                f" {spelled('input', '--input')}."
            )
        return gate
    promised = gate.certificate is not None
    stages = (
        replace(stage, source=_reading(stage.source, input, promised)) for stage in gate.stages
    )
    return replace(gate, stages=tuple(stages))


def _reading(source: Any, input: str | None, promised: bool) -> Table:
    kind = source.input if input is None else input
    one_of("input", kind, "logits", "probabilities")
    if kind == "logits" and source.input == "probabilities":
        raise InputError(
            "this was fitted on probabilities and cannot take logits; fit it on logits, or attach"
            " it to a model that gives probabilities."
        )
    if method_of_map(type(source.map)) is None:
        raise InputError(
            "the base calibrator is a"
            f" {type(getattr(source.map, 'estimator', source.map)).__name__}, which is not"
            " metacal's own; fit with one of metacal's calibrators to export it."
        )
    if promised and not isinstance(source.score, str):
        raise InputError(
            f"the score is a Python function ({name_of(source.score)}), which no other runtime can"
            f" call; fit with a named score: {', '.join(NAMED)}."
        )
    if promised and needs_logits(source.score) and kind == "probabilities":
        raise InputError(
            f"the score {source.score!r} needs logits: it is the same for every row of"
            " probabilities."
        )
    return replace(source, input=kind)


def gate_of(cal: Any, *, on_tables: bool = False) -> Gate:
    """The gate itself, or the one that a fitted estimator holds: `gate_` of a MetaCal, calibrator,
    classifier.

    With `on_tables` only a gate of one stage that reads logits or probabilities will do.

    Examples
    --------
    >>> gate_of(0.5)
    Traceback (most recent call last):
    metacal.errors.InputError: what can be exported is a Gate or a fitted MetaCal, calibrator ...
    """
    held = gate_in(cal, _EXPORTED)
    if on_tables and held.kind != "logits":
        raise InputError(
            f"{_EXPORTED}; got {f'a Gate ({held.kind})' if held is cal else type(cal).__name__}."
        )
    return held
