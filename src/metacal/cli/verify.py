"""metacal verify: does the promise still stand? An exact test on labelled rows, and an exit code."""

from __future__ import annotations

from typing import Any

import click

from metacal.cli.cascade_rows import large_option, verify_cascade_file
from metacal.cli.options import Reading, json_option, key_option, reading_options, share
from metacal.cli.printing import echo, say_json, wrapped
from metacal.errors import warn_caller


def surer_than_half(value: Any) -> float:
    """Parse a confidence above 0.5."""
    number = share(value)
    if number <= 0.5:
        raise click.BadParameter(f"{value} is not above 0.5; give how surely a kept promise passes, such as 0.95.")
    return number


@click.command()
@click.argument("artifact", type=click.Path())
@click.argument("file", type=click.Path())
@click.option(
    "--confidence",
    type=surer_than_half,
    metavar="C",
    default=0.95,
    show_default=True,
    help="A promise that is kept is called refuted with probability at most 1 - C.",
)
@large_option
@reading_options()
@key_option
@json_option
@click.pass_context
def command(
    ctx: click.Context, artifact: str, file: str, confidence: float, large: str | None, reading: Reading, as_json: bool
) -> None:
    """Check on labelled rows whether the promise of a saved gate still stands.

    ARTIFACT is what `metacal fit` saved; FILE holds logits and true labels of rows that it has not seen: last week's
    traffic, say. An exact binomial test: the right answers that were turned away among the right ones, or the wrong
    ones among the accepted. Both where both are promised, each at half of 1 - C. A review budget needs no labels; costs
    of many sizes are tested by betting.

    Of a cascade FILE holds the small model's rows and --large the large one's.

    The exit code is 0 when the promise is not refuted, 1 when it is.

    \b
    Examples:
      metacal verify cal.json lastweek.npz
      metacal verify cal.json lastweek.csv --confidence 0.99 --json
      metacal verify cal.json lastweek.npz || alert "fit again"
    """  # noqa: D301
    from metacal.cli.reading import labels_as_columns, load_every_gate, read_for
    from metacal.gate import CascadeGate, ScoredGate
    from metacal.promises.verification import verify_decisions
    from metacal.rows import Rows

    gate = load_every_gate(artifact, file)
    if isinstance(gate, CascadeGate):
        ctx.exit(int(verify_cascade_file(gate, artifact, file, large, reading, confidence, as_json)))
    if large is not None:
        raise click.UsageError(f"--large belongs to a cascade; {artifact} holds one gate.")
    if isinstance(gate, ScoredGate):
        from metacal.cli.scored import verify

        verify(ctx, gate, artifact, file, confidence, reading, as_json)
        return
    if gate.certificate is None:
        kind = "a calibrator" if gate.source.recipe is None else gate.source.recipe.estimator
        raise click.UsageError(
            f"{artifact} holds {kind} without a gate: it promises nothing. metacal evaluate measures its calibration."
        )
    found = read_for(gate, artifact, file, reading)
    bare = found.labels is None and not any(quantity.needs_labels for quantity, _ in gate.certificate.limits)
    codes = None if bare else labels_as_columns(found, gate.classes)
    rows = Rows(gate.read(found.table, by_rows=True))
    decision = gate.decide(rows, probabilities=False, groups=found.groups)
    correct = None if codes is None else decision.top == codes
    losses = None if codes is None else gate.losses(codes, decision.top)
    fitted_here = gate.fitted_on(decision.score, correct)
    if fitted_here:
        warn_caller(f"{file} holds the very rows that {artifact} was fitted on; they say nothing new.")
    names = gate.part_names(decision.top, found.groups)
    result = verify_decisions(gate.certificate, decision.accept, correct, confidence, losses, names)
    if as_json:
        say_json({"file": file, "artifact": artifact, **result.to_dict(), "fitted_here": fitted_here})
    else:
        echo(wrapped(result.text(f" of {file} through {artifact}")))
    if result.refuted:
        ctx.exit(1)
