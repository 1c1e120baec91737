"""`metacal export`: a calibrated gate as an ONNX graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.options import as_command, option, switch_option
from metacal.cli.outputs import check_output_is_not_input, rejected_option
from metacal.cli.printing import flag_is_set, print_json, print_note
from metacal.cli.values import bad_option

if TYPE_CHECKING:
    from metacal.export.onnx import Saved
    from metacal.gate import Rejected


def input_option(help_text: str) -> Any:
    """Return a field for --input, the kind of table that a graph reads."""
    return option(
        f"{help_text}.  [default: the input that GATE was fitted on]",
        "--input",
        type=click.Choice(["logits", "probabilities"]),
    )


def onnx_output_option() -> Any:
    """Return a field for -o, the ONNX file to write."""
    return option(
        "Where the model goes: a name that ends in .onnx.", "-o --output OUT", required=True
    )


@dataclass(frozen=True)
class Options:
    """Options of `metacal export`."""

    target: str = option(
        "Format of the model.", "--to", type=click.Choice(["onnx"]), default="onnx"
    )
    output: str = onnx_output_option()
    dtype: str = option(
        "Type of the input logits.",
        type=click.Choice(["float32", "float16", "float64"]),
        default="float32",
    )
    opset: int | None = option(
        "ONNX operator set, at least 11.  [default: 17]", "N", type=click.IntRange(1, 1000)
    )
    ir_version: int | None = option(
        "ONNX IR version.  [default: 8]", "N", type=click.IntRange(1, 1000)
    )
    input_kind: str | None = input_option("Kind of the input")
    rejected: Rejected | None = rejected_option()
    one_score: bool = switch_option(
        "Two classes: the model takes one score per row (batch x 1), of the second class."
    )
    part: str | None = option(
        "For a cascade: both gates in one graph, or the gate of the small model.  [default: both]",
        type=click.Choice(["both", "small"]),
    )


@as_command(Options, "GATE")
def command(artifact: str, options: Options) -> None:
    """Export a gate as an ONNX model that runs without Python.

    GATE was saved by 'metacal fit'. The model takes logits (batch x K) and returns probs, score and
    accept. A gate on scores takes scores (batch) and returns accept and confidence. A cascade takes
    logits_small and logits_large, and also returns answered_by (0 small, 1 large, 2 review). The
    metadata hold the promise and the certificate. The command runs the model in onnxruntime and
    compares its decisions with those of Python before it writes the file.

    To add the gate to a classifier in ONNX, use 'metacal attach'.

    \b
    Examples:
      metacal export cal.json -o gate.onnx
      metacal export cal.json -o gate.onnx --dtype float16 --opset 13
      metacal export cascade.json -o cascade.onnx
    """  # noqa: D301
    check_onnx_output(options.output, artifact)

    from metacal.cli.reading import load_gate
    from metacal.export.onnx import save

    gate = load_gate(artifact)
    if options.part is not None and not gate.is_cascade:
        raise click.UsageError(
            f"--part requires a cascade, but {artifact} holds a gate with one model. Leave out"
            " --part."
        )
    if options.part == "small":
        gate_of_small_model = gate.stage(0)
        gate = gate_of_small_model
    export_options: dict[str, Any] = {
        "input": options.input_kind,
        "opset": options.opset,
        "ir_version": options.ir_version,
        "dtype": options.dtype,
        "rejected": options.rejected,
        "one_score": options.one_score,
    }
    print_export(save(gate, options.output, **export_options), artifact)


def check_onnx_output(output: str, *inputs: str) -> None:
    """Raise a usage error if the output is not an .onnx name, or is an input."""
    if not output.lower().endswith(".onnx"):
        raise bad_option("-o", f"The name of an ONNX file must end in .onnx, but got {output}.")
    check_output_is_not_input(output, *inputs)


def print_export(saved_model: Saved, artifact: str) -> None:
    """Print a description of the written model, and of the gate that it contains."""
    promise = saved_model.metadata.get("metacal.promise")
    if flag_is_set("json"):
        print_json(
            {
                "artifact": artifact,
                "output": saved_model.path,
                "opset": saved_model.opset,
                "ir_version": saved_model.ir_version,
                "outputs": saved_model.outputs,
                "ran": saved_model.ran,
                "metadata": saved_model.metadata,
                "promise": promise,
            }
        )
        return
    was_model_run = saved_model.ran
    if was_model_run:
        check_result = "checked and run"
    else:
        check_result = "checked and loaded, but NOT RUN: no inputs could be made up"
    print_note(
        f"Outputs {', '.join(saved_model.outputs)}; operator set {saved_model.opset}, IR version"
        f" {saved_model.ir_version}; {check_result}."
    )
    if promise:
        print_note(f"Promise: {promise}")
    print_note(f"Written to {saved_model.path}.")
