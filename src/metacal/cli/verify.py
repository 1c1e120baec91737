"""metacal verify: does the promise still stand? An exact test on labelled rows, and an exit code."""

from __future__ import annotations

from typing import Any

import click

from metacal.cli.given import large_option, read_given
from metacal.cli.options import Reading, json_option, key_option, reading_options, share
from metacal.cli.printing import echo, say_json, wrapped


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
    from metacal.cli.reading import load_gate
    from metacal.promises.verification import verify_decisions

    gate = load_gate(artifact, file)
    if gate.certificate is None:
        raise click.UsageError(
            f"{artifact} holds {gate.source.calibrator_name} without a gate: it promises nothing. metacal evaluate "
            "measures its calibration."
        )
    given = read_given(gate, artifact, file, reading, large)
    bare = not any(quantity.needs_labels for quantity, _ in gate.certificate.limits)
    seen = given.judged(gate, artifact, bare=bare)
    result = verify_decisions(gate.certificate, seen.accept, seen.correct, confidence, seen.losses, seen.names)
    if as_json:
        more = {"fitted_here": seen.fitted_here, **({} if large is None else {"large": large})}
        say_json({"file": file, "artifact": artifact, **result.to_dict(), **more})
    else:
        echo(wrapped(result.text(f" of {file} through {artifact}")))
    if result.refuted:
        ctx.exit(1)
