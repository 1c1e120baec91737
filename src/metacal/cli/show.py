"""metacal show: what a saved file holds, in words."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.options import as_command
from metacal.cli.printing import N_FORECAST_ROWS, print_result, wrap_lines
from metacal.display import visible

if TYPE_CHECKING:
    from metacal.gate import Gate
    from metacal.io.artifact.wrapping import Wrapping
    from metacal.maps.map import Map

_KINDS = {
    None: "a calibrator ({}), without a gate: it promises nothing",
    "logits": "a gate ({})",
    "scores": "a gate on a score ({}), without logits",
    "cascade": "a cascade of two models ({})",
}
#: How many numbers of an array are shown before it is summed up.
_FEW = 6


@as_command(None, "GATE")
def command(artifact: str) -> None:
    """Explain a saved file: its promise, its calibrator, its classes, where it comes from.

    GATE is what `metacal fit` or `mc.save` wrote. It is checked from end to end before anything is
    shown, as `metacal apply` would.

    \b
    Examples:
      metacal show cal.json
      metacal show cal.json --json | jq .certificate
      metacal show cal.json --key public.pem
    """  # noqa: D301
    from metacal.io.artifact.document import read_content

    content, wrapping = read_content(artifact, click.get_current_context().meta.get("metacal.key"))
    answer = describe_artifact(content.gate, wrapping)
    print_result({"artifact": artifact, **answer}, _text(artifact, content.gate, answer))


def describe_artifact(gate: Gate, wrapping: Wrapping) -> dict[str, Any]:
    """Everything worth knowing about a loaded file, as plain JSON types; of a cascade each of its
    stages.
    """
    from metacal.io.artifact.document import kind_of
    from metacal.io.artifact.encoding import encode

    first, *later = [
        {"name": stage.name, **_described_source(stage.source)} for stage in gate.stages
    ]
    answer: dict[str, Any] = {"kind": kind_of(gate)}
    answer |= {
        name: getattr(wrapping, name) for name in ("format_version", "metacal_version", "checksum")
    }
    answer["signature"] = wrapping.signature and {
        "algorithm": wrapping.signature,
        "verified": wrapping.verified,
    }
    answer |= (
        {"stages": [first, *later]}
        if later
        else {name: first[name] for name in first if name != "name"}
    )
    if gate.n_classes:
        answer["n_classes"] = gate.n_classes
        answer["classes"] = gate.classes.tolist() if gate.source.classes_given else None
    if gate.certificate is not None:
        certificate = gate.certificate.to_dict(words=True)
        answer |= {
            "threshold": certificate["threshold"],
            "accept_if": gate.condition,
            "reject_label": gate.reject_label if gate.n_classes else None,
            "promise": encode(gate.promise, "the promise"),
            "certificate": certificate,
            "next_rows": gate.certificate.next_rows(N_FORECAST_ROWS).to_dict(),
            "data_hash": gate.data_hash,
        }
    return answer


def _described_source(source: Any) -> dict[str, Any]:
    """What ranks the rows, and what calibrates them."""
    if not source.n_classes:
        return {"input": "scores", "score": source.score, "higher_is": source.higher_is}
    numbers = describe_parameters(source.map)
    fitted = {
        "kind": source.calibrator_name,
        "preserves_accuracy": bool(source.map.preserves_accuracy),
    }
    return {
        "input": source.input,
        "score": source.score_name,
        "calibrator": {**fitted, "numbers": numbers},
    }


def describe_parameters(fitted: Map) -> dict[str, Any]:
    """What was fitted: single numbers as they are, arrays by their shape and range, a map within by
    its own numbers.
    """
    found: dict[str, Any] = {}
    for name, value in vars(fitted).items():
        if name == "inverse_temperature":
            found["temperature"] = 1.0 / value
        elif not isinstance(
            getattr(type(fitted), name, None), cached_property
        ):  # kept beside what it follows from
            found[name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    import numpy as np

    from metacal.maps.map import Map

    if isinstance(value, Map):
        return {"type": type(value).__name__, "numbers": describe_parameters(value)}
    if isinstance(value, np.ndarray) and value.size > _FEW:
        return {"shape": list(value.shape), "min": float(value.min()), "max": float(value.max())}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return list(map(_plain, value)) if isinstance(value, tuple) else value


def _text(artifact: str, gate: Gate, answer: dict[str, Any]) -> str:
    certificate, stages = gate.certificate, answer.get("stages", [answer])
    kind = _KINDS[None if certificate is None else gate.kind].format(answer["kind"])
    lines = [f"{artifact}: {kind}", ""]
    if certificate is not None:
        lines += [str(certificate), f"  expect       {certificate.next_rows(N_FORECAST_ROWS)}", ""]
    for stage in stages:
        lines += _stage_lines(stage, promises=certificate is not None)
    if gate.kind == "scores":
        lines.append(confidence_line(gate))
    if gate.n_classes:
        lines += [_rejected(gate, answer)] if certificate is not None else []
        reads = f"{stages[0]['input']} of {answer['n_classes']:,} classes{class_list_text(gate)}"
        lines.append(f"  reads        {reads}{', of each model' if len(stages) > 1 else ''}")
    if certificate is not None:
        lines.append(
            "  data        "
            f" {answer['data_hash'] or 'no fingerprint of the calibration rows was recorded'}"
        )
    lines.append(
        f"  file         format {answer['format_version']}, written by metacal"
        f" {answer['metacal_version']}, intact, {_signed(answer['signature'])}"
    )
    return "\n".join(wrap_lines(line) for line in lines)


def _stage_lines(stage: dict[str, Any], *, promises: bool) -> list[str]:
    """The score and the calibrator of a stage."""
    if "higher_is" in stage:
        return [
            f"  score        {stage['score']}: higher is {stage['higher_is']}; a row without one is"
            " rejected"
        ]
    lines = [f"  {stage['name']}"] if stage.get("name") else []
    lines += [f"  score        {stage['score']}: higher is less sure"] if promises else []
    base = stage["calibrator"]
    keeps = "never changes" if base["preserves_accuracy"] else "may change"
    lines.append(f"  calibrator   {base['kind']}, which {keeps} the most probable class")
    return [*lines, f"  numbers      {_numbers(base['numbers'], '; ')}"]


def confidence_line(gate: Gate) -> str:
    """What a gate on scores says of the probability of being right."""
    curve = gate.source.curve
    if curve is None:
        return "  confidence   none"
    low, high = float(curve.values[-1]), float(curve.values[0])
    return (
        f"  confidence   P(right | {gate.source.score}) from {low:.4g} to {high:.4g}, not covered"
        " by the promise"
    )


def _signed(signature: dict[str, Any] | None) -> str:
    if signature is None:
        return "unsigned"
    checked = "verified with the key" if signature["verified"] else "not verified: give --key"
    return f"signed by {signature['algorithm']}, {checked}"


def _rejected(gate: Gate, answer: dict[str, Any]) -> str:
    if gate.stages[-1].policy.threshold == math.inf:
        return "  rejected     nothing ever is"
    return (
        f"  rejected     probabilities 1/{answer['n_classes']}, prediction"
        f" {answer['reject_label']!r}"
    )


def _numbers(found: dict[str, Any], between: str) -> str:
    return between.join(
        f"{name.replace('_', ' ')} {_shown(value)}" for name, value in found.items()
    )


def _shown(value: Any) -> str:
    if isinstance(value, dict) and "type" in value:
        return f"{value['type']} ({_numbers(value['numbers'], ', ')})"
    if isinstance(value, dict):
        return (
            f"{' × '.join(map(str, value['shape']))} numbers from {value['min']:.4g} to"
            f" {value['max']:.4g}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def class_list_text(gate: Gate) -> str:
    """The first classes by name, cut where one is very long: a column that is none would stand
    among them.
    """
    if not gate.source.classes_given:
        return ", numbered from 0"
    few = ", ".join(
        name if len(name) <= 40 else f"{name[:37]}..." for name in map(str, gate.classes[:8])
    )
    return f": {visible(few, lines=False)}{', ...' if gate.n_classes > 8 else ''}"
