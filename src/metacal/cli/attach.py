"""metacal attach: the calibrated gate inside a classifier that is served already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from metacal.cli.export import check_onnx_output, input_option, onnx_output_option, print_export
from metacal.cli.options import as_command, column_option, option, switch_option


@dataclass(frozen=True)
class Options:
    """Options of `metacal attach`."""

    output: str = onnx_output_option()
    logits: str | None = column_option(
        "The output (or inner value) that holds the logits.  [default: the only floating-point"
        " table]"
    )
    kind: str | None = input_option("What that output holds")
    inputs: str | None = option(
        "An .npz with inputs by name, to run MODEL on.  [default: made up]", "FILE"
    )
    unchecked: bool = switch_option("Write OUT even if MODEL could not be run on made-up inputs.")


@as_command(Options, "MODEL", "GATE")
def command(model: str, artifact: str, options: Options) -> None:
    """Attach the gate to a classifier: an ONNX model that also says what it accepts.

    MODEL is the classifier (.onnx), GATE what `metacal fit` saved from its logits. OUT has all
    outputs of MODEL and `probs`, `score` and `accept` besides, at MODEL's own operator set and IR
    version. Weights in files beside MODEL stay there, so OUT has to go to the same folder. MODEL is
    never changed; OUT is run in onnxruntime and compared with Python before it takes its place.

    \b
    Examples:
      metacal attach model.onnx cal.json -o served.onnx
      metacal attach model.onnx cal.json --logits output_0 -o served.onnx
      metacal attach forest.onnx cal.json --input probabilities -o served.onnx
      metacal attach model.onnx cal.json --inputs rows.npz -o served.onnx
    """  # noqa: D301
    check_onnx_output(options.output, model, artifact)  # a name that ends in .onnx is no --inputs

    from metacal.cli.reading import load_gate
    from metacal.export.onnx import save_attached

    gate = load_gate(artifact, model)
    if gate.kind != "logits":
        held = (
            f"a gate on the score {gate.source.score!r}"
            if gate.kind == "scores"
            else "a cascade of two models"
        )
        raise click.UsageError(
            f"{artifact} holds {held}; what is attached to a model is a gate on its logits."
            " `metacal export` makes a graph of its own of any gate."
        )
    feed = None if options.inputs is None else read_inputs(options.inputs)
    known: dict[str, Any] = {
        "logits": options.logits,
        "input": options.kind,
        "unchecked": options.unchecked,
    }
    print_export(save_attached(model, gate, options.output, inputs=feed, **known), artifact)


def read_inputs(path: str) -> dict[str, Any]:
    """The arrays of an .npz by name; never pickled objects."""
    import numpy as np

    from metacal.io.formats import FORMATS
    from metacal.io.opening import check_head, decoding

    check_head(path, FORMATS[".npz"].begins)
    with decoding(path), np.load(path, allow_pickle=False) as archive:
        return dict(archive)
