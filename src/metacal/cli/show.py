"""`metacal show`: describe a saved gate in words or as JSON."""

from __future__ import annotations

import math
import shlex
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.options import as_command
from metacal.cli.printing import N_FORECAST_ROWS, print_result, wrap_lines
from metacal.display import escape_controls

if TYPE_CHECKING:
    from metacal.gate import Gate
    from metacal.gate.stages import Source
    from metacal.io.artifact.wrapping import Wrapping
    from metacal.maps.map import Map

# Key, in the following templates, of a calibrator that was saved without a gate.
_KIND_WITHOUT_PROMISE = "no promise"

# First line of the description, by kind of gate. {} stands for the kind of the document.
_TEMPLATES_BY_GATE_KIND = {
    _KIND_WITHOUT_PROMISE: "a calibrator ({}), without a gate: it promises nothing",
    "logits": "a gate ({})",
    "scores": "a gate on a score ({}), without logits",
    "cascade": "a cascade of two models ({})",
}
#: Largest array of which every number is shown; larger ones are summarised.
_MAX_SHOWN_NUMBERS = 6
#: Largest number of class names in the description, and of characters of each.
_MAX_LISTED_CLASSES = 8
_MAX_NAME_LENGTH = 40


@as_command(None, "GATE")
def command(artifact: str) -> None:
    """Show the promise, the calibrator and the classes of a saved gate.

    GATE was saved by 'metacal fit' or 'metacal.save'. The command checks the whole file before it
    shows anything.

    \b
    Examples:
      metacal show cal.json
      metacal show cal.json --json | jq .certificate
      metacal show cal.json --key public.pem
    """  # noqa: D301
    from metacal.io.artifact.document import read_content

    key = click.get_current_context().meta.get("metacal.key")
    content, file_properties = read_content(artifact, key)
    description = gate_file_as_json(content.gate, file_properties)
    print_result(
        {"artifact": artifact, **description},
        _format_description(artifact, content.gate, description),
    )


def gate_file_as_json(gate: Gate, file_properties: Wrapping) -> dict[str, Any]:
    """Describe a saved gate as JSON types.

    Parameters
    ----------
    gate : Gate
        Loaded gate.
    file_properties : Wrapping
        Format version, checksum and signature of its file.

    Returns
    -------
    dict
        A cascade has the entry "stages". Any other gate has the entries of its only stage.
    """
    from metacal.io.artifact.document import get_document_kind

    signature: dict[str, Any] | None = None
    if file_properties.signature is not None:
        signature = {
            "algorithm": file_properties.signature,
            "verified": file_properties.verified,
        }
    description: dict[str, Any] = {
        "kind": get_document_kind(gate),
        "format_version": file_properties.format_version,
        "metacal_version": file_properties.metacal_version,
        "checksum": file_properties.checksum,
        "signature": signature,
    }
    if gate.is_cascade:
        description["stages"] = [
            {"name": stage.name, **_stage_input_as_json(stage.source)} for stage in gate.stages
        ]
    else:
        description |= _stage_input_as_json(gate.source)
    if gate.has_classes:
        description["n_classes"] = gate.n_classes
        description["classes"] = None
        if gate.source.classes_given:
            description["classes"] = gate.classes.tolist()
    if gate.certificate is not None:
        description |= _promise_and_certificate_as_json(gate)
    return description


def _promise_and_certificate_as_json(gate: Gate) -> dict[str, Any]:
    """Describe the promise, threshold, certificate and forecast of a gate as JSON types."""
    from metacal.io.artifact.encoding import encode

    assert gate.certificate is not None
    certificate_entries = gate.certificate.to_dict(words=True)
    forecast_of_accepted_rows = gate.certificate.next_rows(N_FORECAST_ROWS)
    return {
        "threshold": certificate_entries["threshold"],
        "accept_if": gate.condition,
        "reject_label": gate.reject_label if gate.has_classes else None,
        "promise": encode(gate.promise, "the promise"),
        "certificate": certificate_entries,
        "next_rows": forecast_of_accepted_rows.to_dict(),
        "data_hash": gate.data_hash,
    }


def _stage_input_as_json(source: Source) -> dict[str, Any]:
    """Describe what a stage reads and computes (input, score, calibrator) as JSON types."""
    from metacal.gate import ScoreSource

    if isinstance(source, ScoreSource):
        return {"input": "scores", "score": source.score, "higher_is": source.higher_is}
    calibrator = {
        "kind": source.calibrator_name,
        "preserves_accuracy": bool(source.map.preserves_accuracy),
        "numbers": parameters_as_json(source.map),
    }
    return {"input": source.input, "score": source.score_name, "calibrator": calibrator}


def parameters_as_json(fitted_map: Map) -> dict[str, Any]:
    """Describe the fitted parameters of a calibration map as JSON types.

    Numbers stay as they are. A large array is described by its shape and range, and an inner map
    by its own parameters.
    """
    parameters: dict[str, Any] = {}
    for name, value in vars(fitted_map).items():
        # A cached property is computed from the parameters and is not one itself.
        is_cached_property = isinstance(getattr(type(fitted_map), name, None), cached_property)
        if name == "inverse_temperature":
            parameters["temperature"] = 1.0 / value
        elif not is_cached_property:
            parameters[name] = _parameter_as_json(value)
    return parameters


def _parameter_as_json(value: Any) -> Any:
    """Convert a parameter of a calibration map to JSON types."""
    import numpy as np

    from metacal.maps.map import Map

    if isinstance(value, Map):
        return {"type": type(value).__name__, "numbers": parameters_as_json(value)}
    if isinstance(value, np.ndarray) and value.size > _MAX_SHOWN_NUMBERS:
        return {"shape": list(value.shape), "min": float(value.min()), "max": float(value.max())}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple):
        return [_parameter_as_json(entry) for entry in value]
    return value


def _format_description(artifact: str, gate: Gate, description: dict[str, Any]) -> str:
    """Format the description of a saved gate, with one property per line."""
    # The description of a cascade has a list of stages. Any other gate is its own only stage.
    stages = description.get("stages", [description])
    has_promise = gate.certificate is not None
    text_lines = _format_promise_lines(artifact, gate, document_kind=description["kind"])
    for stage in stages:
        text_lines += _format_stage_lines(stage, has_promise=has_promise)
    if gate.is_score_gate:
        text_lines.append(format_confidence_line(gate))
    if gate.has_classes and has_promise:
        text_lines.append(_format_rejected_line(gate, description))
    if gate.has_classes:
        text_lines.append(_format_input_line(gate, description, stages))
    columns_line = _format_columns_line(gate)
    if columns_line is not None:
        text_lines.append(columns_line)
    if has_promise:
        fingerprint = (
            description["data_hash"] or "no fingerprint of the calibration rows was recorded"
        )
        text_lines.append(f"  data         {fingerprint}")
    text_lines.append(
        f"  file         format {description['format_version']}, written by metacal"
        f" {description['metacal_version']}, intact, {_format_signature(description['signature'])}"
    )
    return "\n".join(wrap_lines(line) for line in text_lines)


def _format_promise_lines(artifact: str, gate: Gate, *, document_kind: str) -> list[str]:
    """Return the lines about the kind of a saved gate, its certificate and its forecast."""
    if gate.certificate is None:
        first_line_template = _TEMPLATES_BY_GATE_KIND[_KIND_WITHOUT_PROMISE]
        return [f"{artifact}: {first_line_template.format(document_kind)}", ""]
    first_line_template = _TEMPLATES_BY_GATE_KIND[gate.kind]
    forecast_of_accepted_rows = gate.certificate.next_rows(N_FORECAST_ROWS)
    return [
        f"{artifact}: {first_line_template.format(document_kind)}",
        "",
        str(gate.certificate),
        f"  expect       {forecast_of_accepted_rows}",
        "",
    ]


def _format_input_line(
    gate: Gate, description: dict[str, Any], stages: list[dict[str, Any]]
) -> str:
    """Return the line about the table that the gate reads."""
    each_model = ", of each model" if gate.is_cascade else ""
    return (
        f"  reads        {stages[0]['input']} of {description['n_classes']:,} classes"
        f"{format_class_list(gate)}{each_model}"
    )


def _format_stage_lines(stage: dict[str, Any], *, has_promise: bool) -> list[str]:
    """Return the lines that describe the score and the calibrator of a stage."""
    if "higher_is" in stage:
        return [
            f"  score        {stage['score']}: higher is {stage['higher_is']}; a row without one is"
            " rejected"
        ]
    text_lines = []
    if stage.get("name"):
        text_lines.append(f"  {stage['name']}")
    if has_promise:
        text_lines.append(f"  score        {stage['score']}: higher is less sure")
    calibrator = stage["calibrator"]
    effect = "never changes" if calibrator["preserves_accuracy"] else "may change"
    text_lines.append(
        f"  calibrator   {calibrator['kind']}, which {effect} the most probable class"
    )
    text_lines.append(f"  numbers      {_format_parameters(calibrator['numbers'], '; ')}")
    return text_lines


def format_confidence_line(gate: Gate) -> str:
    """Return the line about the confidence that a gate on scores assigns."""
    curve = gate.score_source.curve
    if curve is None:
        return "  confidence   none"
    # The confidence never increases along the curve.
    lowest = float(curve.values[-1])
    highest = float(curve.values[0])
    return (
        f"  confidence   P(correct | {gate.source.score}) from {lowest:.4g} to {highest:.4g}, not"
        " covered by the promise"
    )


def _format_signature(signature: dict[str, Any] | None) -> str:
    """Return whether the file is signed, and whether the signature was verified."""
    if signature is None:
        return "unsigned"
    verification_text = (
        "verified with the key" if signature["verified"] else "not verified: give --key"
    )
    return f"signed by {signature['algorithm']}, {verification_text}"


def _format_rejected_line(gate: Gate, description: dict[str, Any]) -> str:
    """Return the line about the output for rejected rows."""
    if gate.stages[-1].thresholds.threshold == math.inf:
        return "  rejected     nothing ever is"
    probabilities = "calibrated probabilities"
    if gate.default_rejected == "uniform":
        probabilities = f"probabilities 1/{description['n_classes']}"
    return f"  rejected     {probabilities}, prediction {description['reject_label']!r}"


def _format_columns_line(gate: Gate) -> str | None:
    """Return the line about the stored column names, or None if there are none."""
    from metacal.cli.options import format_option_arguments

    option_arguments: list[str] = []
    for name, value in vars(gate.file_layout).items():
        option_arguments += format_option_arguments(name, value)
    if not option_arguments:
        return None
    options_text = escape_controls(shlex.join(option_arguments), keep_line_breaks=False)
    return f"  columns      {options_text}"


def _format_parameters(parameters: dict[str, Any], separator: str) -> str:
    """Return names and values of the parameters of a map."""
    parameter_texts = [
        f"{name.replace('_', ' ')} {_format_parameter_value(value)}"
        for name, value in parameters.items()
    ]
    return separator.join(parameter_texts)


def _format_parameter_value(value: Any) -> str:
    """Format a parameter of a calibration map as text."""
    if isinstance(value, dict) and "type" in value:
        return f"{value['type']} ({_format_parameters(value['numbers'], ', ')})"
    if isinstance(value, dict):
        shape = " × ".join(map(str, value["shape"]))
        return f"{shape} numbers from {value['min']:.4g} to {value['max']:.4g}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_format_parameter_value, value)) + "]"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def format_class_list(gate: Gate) -> str:
    """Format the first class names, after a colon."""
    if not gate.source.classes_given:
        return ", numbered from 0"
    short_names = []
    for class_name in map(str, gate.classes[:_MAX_LISTED_CLASSES]):
        if len(class_name) > _MAX_NAME_LENGTH:
            class_name = f"{class_name[: _MAX_NAME_LENGTH - 3]}..."
        short_names.append(class_name)
    name_list = escape_controls(", ".join(short_names), keep_line_breaks=False)
    ellipsis = ", ..." if gate.n_classes > _MAX_LISTED_CLASSES else ""
    return f": {name_list}{ellipsis}"
