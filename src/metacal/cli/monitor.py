"""metacal monitor: a gate's traffic, watched for ever: alarms that are valid at any moment, an exit code, a page."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.options import OutputPath, Reading, check_not_an_input, json_option, key_option, reading_options, share
from metacal.cli.printing import echo, note, say_json, wrapped
from metacal.cli.stopping import Stopped
from metacal.cli.verify import surer_than_half

if TYPE_CHECKING:
    from metacal.artifact.watch import Progress
    from metacal.gate.watch import Watch

#: The exit code of an alarm; 1 and 2 mean what they mean everywhere.
ALARM = 3


def _chance(value: Any) -> float:
    """A probability above 0, at most 1."""
    return 1.0 if str(value) in ("1", "1.0") else share(value)


@click.command()
@click.argument("artifact", type=click.Path())
@click.argument("file", type=click.Path())
@click.option(
    "--confidence",
    type=surer_than_half,
    metavar="C",
    default=0.95,
    show_default=True,
    help="While nothing has changed, no alarm is ever raised with probability at least C, all alarms together.",
)
@click.option("--state", type=OutputPath(), metavar="JSON", help="Keep the state here; a later run goes on from it.")
@click.option("--append", is_flag=True, help="With --state: FILE holds only rows that came after those counted.")
@click.option("--follow", is_flag=True, help="At the end of FILE wait for more rows, until told to stop (Ctrl-C).")
@click.option("--serve", is_flag=True, help="Show it on a page that lives, on this machine only; implies --follow.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="Of the page; 0: a free one."
)
@click.option("--prometheus", type=OutputPath(), metavar="FILE", help="Write the metrics here, whole or not at all.")
@click.option("--probability-key", metavar="NAME", help="With which probability each row is chosen to be labelled.")
@click.option(
    "--least-probability",
    type=_chance,
    metavar="P",
    help="With --probability-key: none is lower.  [default: 0.01]",
)
@click.option(
    "--tolerance",
    type=share,
    metavar="T",
    default=0.02,
    show_default=True,
    help="A gap between confidence and accuracy that is no reason for an alarm.",
)
@reading_options(labels=False)
@key_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    artifact: str,
    file: str,
    confidence: float,
    state: str | None,
    append: bool,
    follow: bool,
    serve: bool,
    port: int,
    prometheus: str | None,
    probability_key: str | None,
    least_probability: float | None,
    tolerance: float,
    reading: Reading,
    as_json: bool,
) -> None:
    """Watch a gate's traffic and raise an alarm when something has changed.

    ARTIFACT is what `metacal fit` saved; FILE holds rows as they came, csv or JSON lines as a stream (- is standard
    input), any other kind as a whole. A row may have a label, or an id, and its label on a later line without logits.
    Four things are watched, each valid however often one looks: the promise, from whatever labels come back; the rate
    of rejections and the spread of the scores, without labels; the confidence of accepted rows against outcomes.
    Labels must not be chosen by the outcome; if rows are chosen with different probabilities, say which.

    The exit code is 0 without an alarm, 3 with one; 1 and 2 as everywhere.

    With --state a run that was ended, by whatever, goes on where it was: records of FILE that were counted are told by
    their position and a fingerprint, and never counted twice. Standard input is always new.

    \b
    Examples:
      metacal monitor cal.json today.csv
      metacal monitor cal.json today.csv --state watch.json --json || alert "look at it"
      tail -f traffic.jsonl | metacal monitor cal.json - --format jsonl --prometheus metacal.prom
      metacal monitor cal.json traffic.jsonl --serve
    """  # noqa: D301
    _check_options(state, append, prometheus, artifact, file, probability_key, least_probability, reading)
    from metacal.cli.watching import Keeper, source_of
    from metacal.report.status import lines, status, write_exposition

    watch, before = _begun(artifact, file, state, 1.0 - confidence, probability_key, least_probability, tolerance)
    if getattr(watch.gate, "by_group", False) and reading.group_key is None:
        raise click.UsageError(f"{artifact} has a threshold for each group; say where FILE has them: --group-key NAME.")
    follow = follow or serve
    source = source_of(watch, artifact, file, reading, probability_key, before, append=append, follow=follow)

    def told(ended: bool = False) -> dict[str, Any]:
        return status(watch, artifact=os.path.basename(artifact), file=file, ended=ended)

    def save() -> None:
        from metacal.artifact.watch import save_watch

        if state is not None:
            save_watch(watch, state, source.progress)

    with contextlib.ExitStack() as stack:
        page = None
        if serve:
            from metacal.report.server import Server

            page = stack.enter_context(Server(told(), port))
            note(f"{page.address} shows it; Ctrl-C ends it.")

        def publish(ended: bool = False) -> None:
            if page is None and prometheus is None:
                return
            found = told(ended)
            if page is not None:
                page.publish(found)
            if prometheus is not None:
                write_exposition(found, prometheus)

        keep = Keeper(save if state is not None else None, publish)
        _watched(source, lambda: keep(watch), save, stays=follow, page=page, publish=publish)
        publish(ended=True)
    found = told(ended=True)
    if as_json:
        say_json(found)
    else:
        echo(wrapped("\n".join(lines(found))))
    if found["alarm"]:
        ctx.exit(ALARM)


def _watched(source: Any, after: Any, save: Any, *, stays: bool, page: Any, publish: Any) -> None:
    """Read until the end, or until told to stop, which is no failure where there is no end."""
    try:
        source.run(after)
        if page is not None:
            publish(True)
            page.wait()
    except (KeyboardInterrupt, Stopped):
        save()
        if not stays:
            raise
        return
    save()


def _check_options(
    state: str | None,
    append: bool,
    prometheus: str | None,
    artifact: str,
    file: str,
    probability_key: str | None,
    least_probability: float | None,
    reading: Reading,
) -> None:
    for output in (state, prometheus):
        check_not_an_input(output, file, artifact, reading=reading)
        if output == "-":
            raise click.UsageError("--state and --prometheus are written again and again: give files.")
        if output is not None:
            from metacal.files.writing import check_folder

            check_folder(output)
    if state is not None and state == prometheus:
        raise click.UsageError("--state and --prometheus name the same file.")
    if append and state is None:
        raise click.UsageError("--append goes with --state: without it nothing had been counted.")
    if least_probability is not None and probability_key is None:
        raise click.UsageError("--least-probability goes with --probability-key, which names the probabilities.")


def _begun(
    artifact: str,
    file: str,
    state: str | None,
    delta: float,
    probability_key: str | None,
    least_probability: float | None,
    tolerance: float,
) -> tuple[Watch, Progress]:
    """A new watch, or the one whose state was kept."""
    from metacal.artifact.watch import Progress, load_watch
    from metacal.cli.reading import load_every_gate
    from metacal.gate import CascadeGate
    from metacal.gate.watch import Watch

    gate = load_every_gate(artifact, None if file == "-" else file)
    if isinstance(gate, CascadeGate):
        raise click.UsageError(
            f"{artifact} holds a cascade of two models, whose promise compares them; a monitor watches one gate. "
            "metacal verify --large tests its promise on labelled rows; each model's own gate can be watched."
        )
    sampled = (0.01 if least_probability is None else least_probability) if probability_key is not None else 1.0
    new = Watch.of(gate, round(delta, 12), least_probability=sampled, tolerance=tolerance)
    if state is None or not os.path.exists(state):
        return new, Progress()
    watch, before = load_watch(state, gate)
    one, other = (
        (each.alarms.delta, [(m.least_probability, m.tolerance) for m in each.alarms.calibration])
        for each in (watch, new)
    )
    if one != other:
        raise click.UsageError(
            f"{state} was begun with another --confidence, --tolerance or --least-probability; the levels of what runs "
            "cannot be changed. Give the same, or begin with another --state."
        )
    return watch, before
