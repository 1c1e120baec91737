"""metacal export: the calibrated gate for another runtime."""

from __future__ import annotations

from typing import Any

import click

from metacal.cli.options import check_not_an_input, json_option, key_option
from metacal.cli.printing import note, say_json


@click.command()
@click.argument("artifact", type=click.Path())
@click.option("--to", "target", type=click.Choice(["onnx"]), default="onnx", show_default=True, help="The runtime.")
@click.option("-o", "--output", metavar="OUT", required=True, help="Where the model goes: a name that ends in .onnx.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "float64"]),
    default="float32",
    show_default=True,
    help="Type of the logits that the gate will be given.",
)
@click.option("--opset", type=click.IntRange(1, 1000), metavar="N", help="ONNX operator set, from 11.  [default: 17]")
@click.option("--ir-version", type=click.IntRange(1, 1000), metavar="N", help="ONNX IR version.  [default: 8]")
@click.option(
    "--input",
    "kind",
    type=click.Choice(["logits", "probabilities"]),
    help="What the gate will be given.  [default: what ARTIFACT was fitted on]",
)
@click.option(
    "--part",
    type=click.Choice(["both", "small"]),
    help="Of a cascade: both gates in one graph, or the small one's alone.  [default: both]",
)
@key_option
@json_option
def command(
    artifact: str,
    target: str,
    output: str,
    dtype: str,
    opset: int | None,
    ir_version: int | None,
    kind: str | None,
    part: str | None,
    as_json: bool,
) -> None:
    """Export the gate as a model of its own, without Python in it.

    ARTIFACT is what `metacal fit` saved. The model takes `logits` (batch × K) and gives `probs`, `score` and `accept`
    (a calibrator without a gate: `probs` alone), decided as Python decides on every row; promise and certificate are in
    its metadata. A gate on scores takes `scores` (batch) and gives `accept` and `confidence`. It is checked and run in
    onnxruntime before the file takes its place. To put the gate inside a classifier, see `metacal attach`.

    A cascade takes `logits_small` and `logits_large` and gives `probs`, `answered_by` (0 small, 1 large, 2 person),
    `accept` and `score`; with --part small its first gate alone, whose `accept` says what the small model answers.

    \b
    Examples:
      metacal export cal.json --to onnx -o gate.onnx
      metacal export cal.json -o gate.onnx --dtype float16 --opset 13
      metacal export cal.json -o gate.onnx --json
      metacal export cascade.json -o cascade.onnx
    """  # noqa: D301
    check_onnx_name(output)
    check_not_an_input(output, artifact)

    from metacal.cli.reading import load_gate
    from metacal.export.onnx import save

    gate = load_gate(artifact)
    if part is not None and gate.kind != "cascade":
        raise click.UsageError(f"--part belongs to a cascade; {artifact} holds one gate.")
    exported = gate.stage(0) if part == "small" else gate
    saved = save(exported, output, opset=opset, ir_version=ir_version, dtype=dtype, input=kind)
    report(saved, artifact, as_json)


def check_onnx_name(output: str) -> None:
    """Refuse an output that is no .onnx file as wrong usage."""
    if not output.lower().endswith(".onnx"):
        raise click.BadParameter(f"{output} must end in .onnx.", param_hint="'-o'")


def report(saved: Any, artifact: str, as_json: bool) -> None:
    """Say what was written, from which saved gate."""
    promise = saved.metadata.get("metacal.promise")
    if as_json:
        say_json(
            {
                "artifact": artifact,
                "output": saved.path,
                "opset": saved.opset,
                "ir_version": saved.ir_version,
                "outputs": list(saved.outputs),
                "ran": saved.ran,
                "promise": promise,
                "metadata": saved.metadata,
            }
        )
        return
    how = "checked and run" if saved.ran else "checked and loaded, but NOT RUN: no inputs could be made up"
    note(f"Outputs {', '.join(saved.outputs)}; operator set {saved.opset}, IR version {saved.ir_version}; {how}.")
    if promise:
        note(f"Promise: {promise}")
    note(f"Written to {saved.path}.")
