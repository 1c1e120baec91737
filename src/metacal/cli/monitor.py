"""metacal monitor: a gate's traffic, watched for ever: alarms that are valid at any moment, an exit code, a page."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.options import OutputPath, Reading, check_not_an_input, json_option, key_option, reading_options, share
from metacal.cli.printing import echo, is_strict, note, say_json, wrapped
from metacal.cli.verify import surer_than_half

if TYPE_CHECKING:
    from metacal.gate.watch import Watch
    from metacal.io.artifact.watch import Kept
    from metacal.io.journal import Journal

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
@click.option("--state", type=OutputPath(), metavar="FILE", help="Keep the state here; a later run goes on from it.")
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
@click.option(
    "--quarantine",
    type=OutputPath(),
    metavar="FILE",
    help="Lines that cannot be read go here, with place and reason.  [default: STATE.quarantine.jsonl beside --state]",
)
@click.option(
    "--max-unreadable",
    type=share,
    metavar="SHARE",
    default=0.01,
    show_default=True,
    help="A share of unreadable lines that is no reason for an alarm.",
)
@click.option(
    "--silence",
    type=click.FloatRange(min=0.0, min_open=True),
    metavar="SECONDS",
    help="With --follow: an alarm when nothing has come for so long.",
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
    quarantine: str | None,
    max_unreadable: float,
    silence: float | None,
    reading: Reading,
    as_json: bool,
) -> None:
    """Watch a gate's traffic and raise an alarm when something has changed.

    ARTIFACT is what `metacal fit` saved; FILE holds rows as they came, csv or JSON lines as a stream (- is standard
    input), any other kind as a whole. A row may have a label, or an id, and its label on a later line without logits.
    Five things are watched, each valid however often one looks: the promise, from whatever labels come back; the rate
    of rejections and the spread of the scores, without labels; the confidence of accepted rows against outcomes; lines
    that cannot be read. Labels must not be chosen by the outcome; if rows are chosen with different probabilities, say
    which.

    A line that cannot be read ends nothing: it is put aside and counted (with --strict it is an error). With --follow
    FILE is read as tail -F does: it may be moved away, cut off or not there for a while; a line counts when its end has
    come.

    The exit code is 0 without an alarm, 3 with one; 1 and 2 as everywhere.

    With --state a run that was ended, by whatever, goes on where it was, also in a file that has been rotated since:
    nothing is counted twice. A FILE that the state does not know needs --append. Standard input is always new.

    \b
    Examples:
      metacal monitor cal.json today.csv
      metacal monitor cal.json today.csv --state watch.journal --json || alert "look at it"
      metacal monitor cal.json traffic.jsonl --follow --state watch.journal --silence 600
      tail -f traffic.jsonl | metacal monitor cal.json - --format jsonl --prometheus metacal.prom
      metacal monitor cal.json traffic.jsonl --serve
    """  # noqa: D301
    follow = follow or serve
    if state is not None and quarantine is None:
        quarantine = os.path.splitext(state)[0] + ".quarantine.jsonl"
    outputs = {"--state": state, "--quarantine": quarantine, "--prometheus": prometheus}
    _check_options(outputs, append, artifact, file, probability_key, least_probability, reading)
    if silence is not None and not follow and file != "-":
        raise click.UsageError("--silence goes with --follow, --serve or - (standard input): a file has an end.")
    from metacal.cli.intake import Intake, Quarantine
    from metacal.cli.monitor_loop import Shown, watched
    from metacal.cli.watching import source_of

    new = _new_watch(artifact, file, 1.0 - confidence, probability_key, least_probability, tolerance, max_unreadable)
    if getattr(new.gate, "by_group", False) and reading.group_key is None:
        raise click.UsageError(f"{artifact} has a threshold for each group; say where FILE has them: --group-key NAME.")
    with contextlib.ExitStack() as stack:
        journal = None if state is None else stack.enter_context(_journal(state))
        kept = _kept(journal, new)
        source = source_of(
            kept,
            artifact,
            file,
            reading,
            probability_key,
            append=append,
            follow=follow,
            lasts=state is not None,
            strict=is_strict(),
        )
        intake = Intake(
            kept,
            source,
            journal=journal,
            quarantine=None if quarantine is None else Quarantine(quarantine),
            silence=silence,
        )
        shown = Shown(intake, os.path.basename(artifact), file, prometheus, quarantine, goes_on=follow)
        if serve:
            from metacal.report.server import Server

            shown.page = stack.enter_context(Server(shown.status(), port))
            note(f"{shown.page.address} shows it; Ctrl-C ends it.")
        watched(intake, source, shown, stays=follow)
        found = shown.publish(ended=True)
    if as_json:
        say_json(found)
    else:
        from metacal.report.status import lines

        echo(wrapped("\n".join(lines(found))))
    if found["alarm"] or intake.silences:
        ctx.exit(ALARM)


def _check_options(
    outputs: dict[str, str | None],
    append: bool,
    artifact: str,
    file: str,
    probability_key: str | None,
    least_probability: float | None,
    reading: Reading,
) -> None:
    taken: dict[str, str] = {}
    for option, output in outputs.items():
        check_not_an_input(output, file, artifact, reading=reading)
        if output is None:
            continue
        if output == "-":
            raise click.UsageError(f"{option} is written again and again: give a file.")
        if output in taken:
            raise click.UsageError(f"{taken[output]} and {option} name the same file.")
        taken[output] = option
        from metacal.io.writing import check_folder

        check_folder(output)
    if append and outputs["--state"] is None:
        raise click.UsageError("--append goes with --state: without it nothing had been counted.")
    if least_probability is not None and probability_key is None:
        raise click.UsageError("--least-probability goes with --probability-key, which names the probabilities.")


def _new_watch(
    artifact: str,
    file: str,
    delta: float,
    probability_key: str | None,
    least_probability: float | None,
    tolerance: float,
    max_unreadable: float,
) -> Watch:
    from metacal.cli.reading import load_gate
    from metacal.gate.watch import Watch

    gate = load_gate(artifact, None if file == "-" else file)
    if len(gate.stages) > 1:
        raise click.UsageError(
            f"{artifact} holds a cascade of two models, whose promise compares them; a monitor watches one gate. "
            "metacal verify --large tests its promise on labelled rows; each model's own gate can be watched."
        )
    sampled = (0.01 if least_probability is None else least_probability) if probability_key is not None else 1.0
    return Watch.of(
        gate, round(delta, 12), least_probability=sampled, tolerance=tolerance, most_unreadable=max_unreadable
    )


def _journal(state: str) -> Journal:
    from metacal.io.artifact.watch import MONITOR
    from metacal.io.journal import Journal

    return Journal(state, MONITOR)


def _kept(journal: Journal | None, new: Watch) -> Kept:
    """A new watch, or the one whose state was kept."""
    from metacal.io.artifact.watch import Kept, kept_from

    if journal is None or not journal.records:
        return Kept(new)
    kept = kept_from(journal.records, new.gate, journal.path)
    if _levels(kept.watch) != _levels(new):
        raise click.UsageError(
            f"{journal.path} was begun with another --confidence, --tolerance, --max-unreadable or "
            "--least-probability; the levels of what runs cannot be changed. Give the same, or begin with another "
            "--state."
        )
    return kept


def _levels(watch: Watch) -> tuple[Any, ...]:
    alarms = watch.alarms
    return (
        alarms.delta,
        [(one.least_probability, one.tolerance) for one in alarms.calibration],
        [one.limit for one in alarms.unreadable],
    )
