"""A saved cascade in words, for `metacal show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metacal.cli.printing import echo, say_json, wrapped

if TYPE_CHECKING:
    from metacal.gate import CascadeGate


def say_cascade(artifact: str, gate: CascadeGate, about_file: dict[str, Any], as_json: bool) -> None:
    """Print what a file with a cascade holds."""
    answer = described_cascade(gate, about_file)
    if as_json:
        say_json({"artifact": artifact, **answer})
        return
    signature = answer["signature"]
    signed = "unsigned" if signature is None else f"signed by {signature['algorithm']}"
    lines = [
        f"{artifact}: a cascade of two models",
        "",
        str(gate.certificate),
        "",
        *(f"  {name:<12} {_calibrated(answer[name])}" for name in ("small", "large")),
        f"  reads        {answer['input']} of {answer['n_classes']:,} classes, of both models",
        f"  data         {answer['data_hash'] or 'no fingerprint of the calibration rows was recorded'}",
        f"  file         format {answer['format_version']}, written by metacal {answer['metacal_version']}, intact, "
        f"{signed}",
    ]
    echo("\n".join(wrapped(line) for line in lines))


def described_cascade(gate: CascadeGate, about_file: dict[str, Any]) -> dict[str, Any]:
    """Everything worth knowing about a cascade, as plain JSON types."""
    from metacal.io.artifact.cascade import CASCADE

    return {
        "kind": CASCADE,
        **about_file,
        "input": gate.small.input,
        "n_classes": gate.n_classes,
        "classes": gate.classes.tolist() if gate.small.classes_given else None,
        "reject_label": gate.reject_label,
        "small": _part(gate, "small"),
        "large": _part(gate, "large"),
        "certificate": gate.certificate.to_dict(words=True),
        "data_hash": gate.data_hash,
    }


def _part(gate: CascadeGate, name: str) -> dict[str, Any]:
    from metacal.cli.show import numbers_of
    from metacal.scores import name_of

    part = getattr(gate, name)
    return {"calibrator": part.calibrator_name, "numbers": numbers_of(part.map), "score": name_of(part.score)}


def _calibrated(part: dict[str, Any]) -> str:
    plain = {name: value for name, value in part["numbers"].items() if isinstance(value, int | float)}
    numbers = "".join(f", {name.replace('_', ' ')} {value:.4g}" for name, value in plain.items())
    return f"ranked by {part['score']}, calibrated by {part['calibrator']}{numbers}"
