"""metacal show: what a saved file holds, in words."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.options import json_option, key_option
from metacal.cli.printing import NEXT, echo, say_json, wrapped
from metacal.io.terminal import visible

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from metacal.gate import Gate
    from metacal.io.artifact.wrapping import Wrapping
    from metacal.maps.map import Map

#: How many numbers of an array are shown before it is summed up.
_FEW = 6


@click.command()
@click.argument("artifact", type=click.Path())
@key_option
@json_option
def command(artifact: str, as_json: bool) -> None:
    """Explain a saved file: its promise, its calibrator, its classes, where it comes from.

    ARTIFACT is what `metacal fit` or `mc.save` wrote. It is checked from end to end before anything is shown, as
    `metacal apply` would.

    \b
    Examples:
      metacal show cal.json
      metacal show cal.json --json | jq .certificate
      metacal show cal.json --key public.pem
    """  # noqa: D301
    from metacal.gate import CascadeGate, ScoredGate
    from metacal.io.artifact.file import load_with_wrapping

    gate, wrapping = load_with_wrapping(artifact, key=click.get_current_context().meta.get("metacal.key"))
    if isinstance(gate, CascadeGate):
        from metacal.cli.cascade_words import say_cascade

        say_cascade(artifact, gate, about_file(wrapping), as_json)
        return
    if isinstance(gate, ScoredGate):
        from metacal.cli.scored import show

        show(gate, artifact, about_file(wrapping), as_json)
        return
    answer = described(gate, wrapping)
    if as_json:
        say_json({"artifact": artifact, **answer})
    else:
        echo(_text(artifact, gate, answer))


def described(gate: Gate, wrapping: Wrapping) -> dict[str, Any]:
    """Everything worth knowing about a loaded file, as plain JSON types."""
    from metacal.io.artifact.document import WITH_PROMISE, method_of
    from metacal.io.artifact.promises import describe_promise
    from metacal.scores import name_of

    answer: dict[str, Any] = {
        "kind": WITH_PROMISE if gate.certificate is not None else method_of(gate).public_name,
        **about_file(wrapping),
        "input": gate.source.input,
        "n_classes": gate.n_classes,
        "classes": gate.classes.tolist() if gate.source.classes_given else None,
        "calibrator": {
            "kind": method_of(gate).public_name,
            "preserves_accuracy": bool(gate.source.map.preserves_accuracy),
            "numbers": numbers_of(gate.source.map),
        },
    }
    if gate.certificate is not None:
        certificate = gate.certificate.to_dict(words=True)
        answer |= {
            "score": name_of(gate.source.score),
            "threshold": certificate["threshold"],
            "reject_label": gate.reject_label,
            "promise": describe_promise(gate.promise),
            "certificate": certificate,
            "next_rows": gate.certificate.next_rows(NEXT).to_dict(),
            "data_hash": gate.data_hash,
        }
    return answer


def about_file(wrapping: Wrapping) -> dict[str, Any]:
    """What a file says about itself, as plain JSON types."""
    return {
        "format_version": wrapping.format_version,
        "metacal_version": wrapping.metacal_version,
        "checksum": wrapping.checksum,
        "signature": wrapping.signature and {"algorithm": wrapping.signature, "verified": wrapping.verified},
    }


def numbers_of(fitted: Map) -> dict[str, Any]:
    """What was fitted: single numbers as they are, arrays by their shape and range, a map within by its own numbers."""
    found: dict[str, Any] = {}
    for name, value in vars(fitted).items():
        if name == "inverse_temperature":
            found["temperature"] = 1.0 / value
        elif not isinstance(getattr(type(fitted), name, None), cached_property):  # kept beside what it follows from
            found[name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    import numpy as np

    from metacal.maps.map import Map

    if isinstance(value, Map):
        return {"type": type(value).__name__, "numbers": numbers_of(value)}
    if isinstance(value, np.ndarray):
        return _summed_up(value)
    return list(map(_plain, value)) if isinstance(value, tuple) else value


def _summed_up(array: NDArray[np.floating[Any]]) -> Any:
    if array.size <= _FEW:
        return array.tolist()
    return {"shape": list(array.shape), "min": float(array.min()), "max": float(array.max())}


def _text(artifact: str, gate: Gate, answer: dict[str, Any]) -> str:
    promises = gate.certificate is not None
    kind = "a gate (MetaCal)" if promises else f"a calibrator ({answer['kind']}), without a gate: it promises nothing"
    lines = [f"{artifact}: {kind}"]
    if gate.certificate is not None:
        lines += ["", str(gate.certificate), f"  expect       {gate.certificate.next_rows(NEXT)}"]
        lines += ["", f"  score        {answer['score']}: higher is less sure", _rejected(answer)]
    else:
        lines.append("")
    base = answer["calibrator"]
    keeps = "never changes" if base["preserves_accuracy"] else "may change"
    numbers = _numbers(base["numbers"], "; ")
    lines += [
        f"  calibrator   {base['kind']}, which {keeps} the most probable class",
        f"  numbers      {numbers}",
        f"  reads        {answer['input']} of {answer['n_classes']:,} classes{_listed(answer)}",
    ]
    if promises:
        lines.append(f"  data         {answer['data_hash'] or 'no fingerprint of the calibration rows was recorded'}")
    lines.append(file_line(answer))
    return "\n".join(wrapped(line) for line in lines)


def file_line(answer: dict[str, Any]) -> str:
    """The line about the file itself."""
    return (
        f"  file         format {answer['format_version']}, written by metacal {answer['metacal_version']}, intact, "
        f"{_signed(answer['signature'])}"
    )


def _signed(signature: dict[str, Any] | None) -> str:
    if signature is None:
        return "unsigned"
    checked = "verified with the key" if signature["verified"] else "not verified: give --key"
    return f"signed by {signature['algorithm']}, {checked}"


def _rejected(answer: dict[str, Any]) -> str:
    if answer["threshold"] == "inf":
        return "  rejected     nothing ever is"
    return f"  rejected     probabilities 1/{answer['n_classes']}, prediction {answer['reject_label']!r}"


def _name(text: str) -> str:
    """A name from the file, harmless for the screen, cut where it is very long."""
    return visible(text[:80], lines=False) + ("..." if len(text) > 80 else "")


def _numbers(found: dict[str, Any], between: str) -> str:
    return between.join(f"{name.replace('_', ' ')} {_shown(value)}" for name, value in found.items())


def _shown(value: Any) -> str:
    if isinstance(value, dict) and "type" in value:
        return f"{value['type']} ({_numbers(value['numbers'], ', ')})"
    if isinstance(value, dict):
        return f"{' × '.join(map(str, value['shape']))} numbers from {value['min']:.4g} to {value['max']:.4g}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _listed(answer: dict[str, Any]) -> str:
    names = answer["classes"]
    if names is None:
        return ", numbered from 0"
    few = ", ".join(_name(str(name)) for name in names[:8])
    return f": {few}{', ...' if len(names) > 8 else ''}"
