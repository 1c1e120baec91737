"""`metacal attach`: put a calibrated gate into the ONNX graph of a classifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.export import check_onnx_output, input_option, onnx_output_option, print_export
from metacal.cli.options import as_command, column_option, option, switch_option
from metacal.cli.outputs import rejected_option

if TYPE_CHECKING:
    from metacal.gate import Gate, Rejected


@dataclass(frozen=True)
class Options:
    """Options of `metacal attach`."""

    output: str = onnx_output_option()
    logits: str | None = column_option(
        "Output or inner value of MODEL that holds the logits.  [default: the only table of floats]"
    )
    input_kind: str | None = input_option("Kind of numbers in that output")
    rejected: Rejected | None = rejected_option()
    inputs: str | None = option(
        "Inputs (.npz) for a test run of MODEL.  [default: generated]", "FILE"
    )
    unchecked: bool = switch_option("Write OUT even if the test run of MODEL fails.")


@as_command(Options, "MODEL", "GATE")
def command(model: str, artifact: str, options: Options) -> None:
    """Attach a gate to an ONNX classifier, so that it also returns decisions.

    MODEL is the classifier (.onnx), and GATE was fitted on its logits. OUT returns all outputs of
    MODEL, and also probs, score and accept. MODEL is not changed. If its weights are in separate
    files, write OUT to the same folder. The command runs OUT in onnxruntime and compares it with
    Python before it writes the file.

    \b
    Examples:
      metacal attach model.onnx cal.json -o served.onnx
      metacal attach model.onnx cal.json --logits output_0 -o served.onnx
      metacal attach forest.onnx cal.json --input probabilities -o served.onnx
      metacal attach model.onnx cal.json --inputs rows.npz -o served.onnx
    """  # noqa: D301
    # --inputs needs no check: an .npz cannot be an output that ends in .onnx.
    check_onnx_output(options.output, model, artifact)

    from metacal.cli.reading import load_gate
    from metacal.export.onnx import save_attached

    gate = load_gate(artifact, model)
    _check_reads_logits(gate, artifact)
    model_inputs = None
    if options.inputs is not None:
        model_inputs = read_inputs(options.inputs)
    saved_model = save_attached(
        model,
        gate,
        options.output,
        inputs=model_inputs,
        logits=options.logits,
        input=options.input_kind,
        rejected=options.rejected,
        unchecked=options.unchecked,
    )
    print_export(saved_model, artifact)


def _check_reads_logits(gate: Gate, artifact: str) -> None:
    """Raise a usage error if the gate does not read the logits of a single model."""
    if gate.is_logits_gate:
        return
    if gate.is_score_gate:
        gate_description = f"a gate on the score {gate.source.score!r}"
    else:
        gate_description = "a cascade of two models"
    raise click.UsageError(
        f"{artifact} holds {gate_description}, but only a gate on logits can be attached to a model."
        " Export the gate as a separate graph with 'metacal export'."
    )


def read_inputs(path: str) -> dict[str, Any]:
    """Read the arrays of an .npz file, keyed by name, without unpickling objects."""
    import numpy as np

    from metacal.io.formats import FORMATS
    from metacal.io.opening import check_first_bytes, input_error_if_decoding_fails

    check_first_bytes(path, FORMATS[".npz"].magic_bytes)
    with input_error_if_decoding_fails(path), np.load(path, allow_pickle=False) as archive:
        return dict(archive)
