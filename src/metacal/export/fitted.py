"""Checks that a gate can be exported to another runtime.

A threshold lies halfway between two values that a score can have, see `metacal.kernels.grid`. A
runtime that computes the score with other rounding errors therefore makes the same decisions.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from metacal.errors import ExportError, InputKindError, MissingPromiseError
from metacal.gate import Gate, LogitsSource
from metacal.gate.find_gate import find_gate
from metacal.maps.methods import find_map_method
from metacal.rows.arrays import check_choice
from metacal.scores import NAMED, get_score_name, needs_logits
from metacal.spelling import choose_spelling

#: Largest accepted difference between 1 and a sum of probabilities. `metacal.rows.validate` uses the
#: same numbers.
SUM_TOLERANCE = {"float16": 5e-3, "bfloat16": 1e-2, "float32": 1e-4, "float64": 1e-4}

_EXPORTABLE_TYPES = (
    "Expected a Gate, or a fitted MetaCal, calibrator or CalibratedClassifier"
    " (metacal.export.onnx also exports gates on scores and cascades)"
)


def check_exportable_gate(gate: Gate, input: str | None = None) -> Gate:
    """Return a gate that reads the requested input, or raise if it cannot be exported.

    Parameters
    ----------
    gate : Gate
        Gate to export.

    input : {"logits", "probabilities"} or None, default=None
        Type of the model outputs that the exported gate reads. By default, the type that the gate
        was fitted on. A gate fitted on logits can read probabilities, because their logarithms
        differ from the logits by a constant in each row. Only the energy score depends on it.

    Returns
    -------
    Gate

    Raises
    ------
    InputError
        If the gate cannot be exported, or cannot read the input.

    Examples
    --------
    >>> import metacal as mc
    >>> cal = mc.TemperatureScaling().fit([[2.0, 0.0], [0.0, 1.0], [0.5, 0.0]], [0, 1, 1])
    >>> check_exportable_gate(extract_gate(cal), "probabilities").source.input
    'probabilities'
    """
    has_promise = gate.certificate is not None
    can_reject = any(stage.thresholds.threshold != math.inf for stage in gate.stages)
    if can_reject and not has_promise:
        raise MissingPromiseError(
            "This gate has a threshold without a certificate, so it cannot be exported. Fit the"
            " gate with a promise, for example MetaCal(MaxMiscoverage(0.05))."
        )
    if not gate.has_classes:
        if input is not None:
            raise ExportError(
                f"A gate on scores does not support input={input}. Leave out"
                f" {choose_spelling('input', '--input')}."
            )
        return gate
    exported_stages = []
    for stage in gate.stages:
        assert isinstance(stage.source, LogitsSource)
        source = _source_with_input(stage.source, input, has_promise=has_promise)
        exported_stages.append(replace(stage, source=source))
    return replace(gate, stages=tuple(exported_stages))


def _source_with_input(
    source: LogitsSource, input: str | None, *, has_promise: bool
) -> LogitsSource:
    """Return a copy of a source that reads the requested kind of input, or raise an error."""
    if input is None:
        input = source.input
    check_choice("input", input, "logits", "probabilities")
    if input == "logits" and source.input == "probabilities":
        raise InputKindError(
            "This gate was fitted on probabilities, so it cannot read logits. Fit the gate on"
            " logits, or attach it to a model that returns probabilities."
        )
    if find_map_method(type(source.map)) is None:
        calibrator = getattr(source.map, "estimator", source.map)
        raise ExportError(
            f"The base calibrator {type(calibrator).__name__} is not one of metacal's"
            " calibrators, so it cannot be exported. Fit the gate with one of metacal's"
            " calibrators."
        )
    if has_promise and not isinstance(source.score, str):
        raise ExportError(
            f"The score {get_score_name(source.score)} is a Python function, so it cannot be"
            f" exported. Fit the gate with a named score: {', '.join(NAMED)}."
        )
    if has_promise and needs_logits(source.score) and input == "probabilities":
        raise ExportError(
            f"The score {source.score!r} requires logits, because it has the same value for every"
            " row of probabilities. Fit the gate with another score, such as 'entropy'."
        )
    return replace(source, input=input)


def extract_gate(cal: Any, *, requires_logits_gate: bool = False) -> Gate:
    """Return a gate, or the gate of a fitted estimator.

    Parameters
    ----------
    cal : Gate or fitted estimator
        Gate, or an estimator with the attribute `gate_`.

    requires_logits_gate : bool, default=False
        Whether the gate must have a single stage that reads logits or probabilities.

    Returns
    -------
    Gate

    Raises
    ------
    InputError
        If there is no gate, or it is of another kind.

    Examples
    --------
    >>> extract_gate(0.5)
    Traceback (most recent call last):
    metacal.errors.UnfittedError: Expected a Gate, or a fitted MetaCal, calibrator or ...
    """
    gate = find_gate(cal, _EXPORTABLE_TYPES)
    if requires_logits_gate and not gate.is_logits_gate:
        received_type = type(cal).__name__
        if gate is cal:
            received_type = f"a Gate ({gate.kind})"
        raise ExportError(f"{_EXPORTABLE_TYPES}, but got {received_type}.")
    return gate
