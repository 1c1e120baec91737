"""metacal attach: the calibrated gate inside a classifier that is served already."""

from __future__ import annotations

import click

from metacal.cli.export import check_onnx_name, report
from metacal.cli.options import check_not_an_input, json_option, key_option


@click.command()
@click.argument("model", type=click.Path())
@click.argument("artifact", type=click.Path())
@click.option("-o", "--output", metavar="OUT", required=True, help="Where the model goes: a name that ends in .onnx.")
@click.option(
    "--logits",
    metavar="NAME",
    help="The output (or inner value) that holds the logits.  [default: the only floating-point table]",
)
@click.option(
    "--input",
    "kind",
    type=click.Choice(["logits", "probabilities"]),
    help="What that output holds.  [default: what ARTIFACT was fitted on]",
)
@key_option
@json_option
def command(model: str, artifact: str, output: str, logits: str | None, kind: str | None, as_json: bool) -> None:
    """Attach the gate to a classifier: an ONNX model that also says what it accepts.

    MODEL is the classifier (.onnx), ARTIFACT what `metacal fit` saved from its logits. OUT has all outputs of MODEL and
    `probs`, `score` and `accept` besides, at MODEL's own operator set and IR version. Weights in files beside MODEL
    stay there, so OUT has to go to the same folder. MODEL is never changed; OUT is checked in onnxruntime before it
    takes its place.

    \b
    Examples:
      metacal attach model.onnx cal.json -o served.onnx
      metacal attach model.onnx cal.json --logits output_0 -o served.onnx
      metacal attach forest.onnx cal.json --input probabilities -o served.onnx
    """  # noqa: D301
    check_onnx_name(output)
    check_not_an_input(output, model, artifact)

    from metacal.cli.reading import load_saved
    from metacal.export.onnx import save_attached

    cal = load_saved(artifact)
    report(save_attached(model, cal, output, logits=logits, input=kind), as_json)
