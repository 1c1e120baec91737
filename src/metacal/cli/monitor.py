"""`metacal monitor`: watch a gate's traffic, with alarms valid at any time."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.options import (
    ReadOptions,
    as_command,
    column_option,
    fraction_option,
    option,
    option_flag,
    option_group,
    switch_option,
)
from metacal.cli.outputs import OutputPath, check_not_input
from metacal.cli.printing import EXIT_REFUTED, print_note, print_result, wrap_lines
from metacal.cli.values import parse_fraction
from metacal.cli.verify import parse_confidence

if TYPE_CHECKING:
    from metacal.cli.intake import Intake
    from metacal.gate.watch import Watch
    from metacal.io.artifact.watch_journal import MonitorState
    from metacal.io.journal import Journal

#: Default of --least-probability.
_DEFAULT_LEAST_PROBABILITY = 0.01


def _parse_probability(value: Any) -> float:
    """Parse a probability above 0 and at most 1."""
    if str(value) in ("1", "1.0"):
        return 1.0
    return parse_fraction(value)


@dataclass(frozen=True)
class Options:
    """Options of `metacal monitor`."""

    confidence: float = option(
        "While nothing has changed, no alarm is ever raised with probability at least C, all alarms"
        " together.",
        "C",
        type=parse_confidence,
        default=0.95,
    )
    state: str | None = option(
        "Keep the state here; a later run continues from it.", "FILE", type=OutputPath()
    )
    acknowledge: str | None = option(
        "acknowledge the alarms that are raised in it, with what was found and done; every alarm"
        " begins again with the rows that come later.",
        "REASON",
        needs=("state",),
    )
    append: bool = switch_option(
        "FILE holds only rows that came after those counted.", needs=("state",)
    )
    follow: bool = switch_option("Keep waiting for new rows at the end of FILE, until Ctrl-C.")
    serve: bool = switch_option("Serve a live page, on this machine only; implies --follow.")
    port: int = option("Of the page; 0: a free one.", type=click.IntRange(0, 65535), default=8765)
    prometheus: str | None = option(
        "Write the metrics here, whole or not at all.", "FILE", type=OutputPath()
    )
    otlp: str | None = option(
        "Push the metrics to an OpenTelemetry collector, such as http://127.0.0.1:4318/v1/metrics.",
        "URL",
    )
    probability_key: str | None = column_option(
        "With which probability each row is chosen to be labelled."
    )
    least_probability: float | None = option(
        "none is lower.  [default: 0.01]", "P", type=_parse_probability, needs=("probability_key",)
    )
    tolerance: float = fraction_option(
        "The gap between confidence and accuracy to tolerate.", "T", default=0.02
    )
    horizon: int = option(
        "Where labels may come by outcome: a row counts once N rows have come after it.  [default:"
        " as labels come]",
        "N",
        type=click.IntRange(0, 39_999),
        default=0,
    )
    unit_key: str | None = option(
        "Of a gate certified by units: column or entry that says which rows belong together.",
        "NAME",
    )
    quarantine: str | None = option(
        "Lines that cannot be read go here, with place and reason.  [default:"
        " STATE.quarantine.jsonl beside --state]",
        "FILE",
        type=OutputPath(),
    )
    max_unreadable: float = fraction_option(
        "The share of unreadable lines to tolerate.", "SHARE", default=0.01
    )
    silence: float | None = option(
        "With --follow: raise an alarm when nothing has come in for this long.",
        "SECONDS",
        type=click.FloatRange(min=0.0, min_open=True),
    )
    reading: ReadOptions = option_group(ReadOptions, excluded_fields=("labels", "rows"))

    @property
    def waits_for_more_input(self) -> bool:
        """Whether the monitor waits for more input at the end of the file."""
        return self.follow or self.serve

    @property
    def quarantine_path(self) -> str | None:
        """File for unreadable lines; by default beside the state file, if there is one."""
        if self.quarantine is not None or self.state is None:
            return self.quarantine
        return os.path.splitext(self.state)[0] + ".quarantine.jsonl"


@as_command(Options, "GATE", "FILE")
def command(artifact: str, file: str, options: Options) -> None:
    """Watch a gate's traffic and raise an alarm when something has changed.

    GATE is what `metacal fit` saved; FILE holds rows as they came, csv or JSON lines as a stream (-
    is standard input), any other kind as a whole. A row may have a label, or an id, and its label
    on a later line without logits. Five things are watched, each valid however often one looks: the
    promise, from whatever labels come back; the rate of rejections and the spread of the scores,
    without labels; the confidence of accepted rows against outcomes; lines that cannot be read.
    Labels must not be chosen by the outcome; if rows are chosen with different probabilities, say
    which. If labels come sooner or later by outcome (complaints first), give a --horizon after
    which all have come. A gate that was certified by units (fit --unit-key) needs their --unit-key
    here: a unit counts as a whole, with the first row of another or once --horizon rows have come
    after its first. A gate about cases is watched by whole cases, which also need all of their
    labels to count; its only alarms are the promise and lines that cannot be read. Of a cascade on scores a row has the score of each model that was asked, by the
    keys that GATE remembers, and agrees (if GATE promises --max-loss) says whether the answer that
    was given is the last model's, or correct (if it promises an accuracy) whether it is right; or
    --agree-key or --correct-key lists what says so of each model. A cascade over tables is read as
    a whole: FILE and --large.

    A line that cannot be read ends nothing: it is put aside and counted (with --strict it is an
    error). With --follow FILE is read as tail -F does: it may be moved away, cut off or not there
    for a while; a line counts when its end has come.

    The exit code is 0 without an alarm, 3 with one; 1 and 2 as everywhere.

    An alarm stays until it is acknowledged: --acknowledge ends it and keeps it in the state, with
    time and reason. Rows that come later are then tested anew. Each such period raises a false
    alarm with probability at most 1 - C.

    With --state a run that was ended, by whatever, goes on where it was, also in a file that has
    been rotated since: nothing is counted twice. A FILE that the state does not know needs
    --append. Standard input is always new.

    \b
    Examples:
      metacal monitor cal.json today.csv
      metacal monitor cal.json today.csv --state watch.journal --json || alert "look at it"
      metacal monitor cal.json traffic.jsonl --follow --state watch.journal --silence 600
      tail -f traffic.jsonl | metacal monitor cal.json - --format jsonl --prometheus metacal.prom
      metacal monitor cal.json traffic.jsonl --serve
      metacal monitor cal.json traffic.jsonl --state watch.journal --acknowledge "camera cleaned"
      metacal monitor cascade.json answers.jsonl --state watch.journal
    """  # noqa: D301
    _check_options(artifact, file, options)
    from metacal.reports.status import format_next_step_lines, format_status_lines

    new_watch = _new_watch(artifact, file, options)
    options = replace(options, reading=replace(options.reading, unit_key=options.unit_key))
    final_status, n_silences = _run(new_watch, artifact, file, options)
    status_text = wrap_lines("\n".join(format_status_lines(final_status)))
    next_steps = format_next_step_lines(final_status, wrap_lines)
    if next_steps:
        status_text = "\n".join([status_text, "", *next_steps])
    print_result(final_status, status_text)
    if final_status["alarm"] or n_silences:
        click.get_current_context().exit(EXIT_REFUTED)


def _run(
    new_watch: Watch, artifact: str, file: str, options: Options
) -> tuple[dict[str, Any], int]:
    """Run the monitor until its source ends or a signal arrives.

    Parameters
    ----------
    new_watch : Watch
        State of a monitor that has seen nothing yet.
    artifact : str
        File of the gate.
    file : str
        File of the input.
    options : Options
        Options of the command.

    Returns
    -------
    final_status : dict
        Status at the end.
    n_silences : int
        How often too long a silence raised an alarm.
    """
    from metacal.cli.intake import Intake, Quarantine
    from metacal.cli.monitoring import StatusDisplay, open_journal, run_monitor
    from metacal.cli.sources import open_source

    with contextlib.ExitStack() as stack:
        journal = None
        if options.state is not None:
            journal = open_journal(options, file)
            stack.push(journal)
        monitor_state = _restore_state(journal, new_watch)
        source = open_source(monitor_state, artifact, file, options)
        quarantine = None
        if options.quarantine_path is not None:
            quarantine = Quarantine(options.quarantine_path)
        intake = Intake(monitor_state, source, journal, quarantine, options.silence)
        if options.acknowledge is not None:
            _acknowledge(intake, options.acknowledge)
        display = StatusDisplay(intake, os.path.basename(artifact), file, options)
        if options.serve:
            from metacal.reports.server import Server

            display.page = stack.enter_context(Server(display.status(), options.port))
            print_note(f"{display.page.address} shows it; Ctrl-C ends it.")
        if options.otlp is not None:
            from metacal.reports.telemetry import WatchMetrics, start_pushing

            stack.callback(start_pushing(WatchMetrics(lambda: display.latest_status), options.otlp))
        run_monitor(intake, source, display)
        return display.publish(ended=True), intake.n_silences


def _acknowledge(intake: Intake, reason: str) -> None:
    """Acknowledge the raised alarms of a monitor, and print which."""
    intake.acknowledge(reason)
    acknowledgement = intake.monitor_state.watch.acknowledgements[-1]
    print_note(
        f"Acknowledged: {', '.join(acknowledgement.names)}, raised up to row"
        f" {acknowledgement.n_rows:,}. Later rows are tested anew."
    )


def _check_options(artifact: str, file: str, options: Options) -> None:
    """Raise a usage error if options conflict or name the same file twice."""
    from metacal.io.input_paths import is_same_file
    from metacal.io.writing import check_output_directory

    outputs = {
        "--state": options.state,
        "--quarantine": options.quarantine_path,
        "--prometheus": options.prometheus,
    }
    earlier_outputs: dict[str, str] = {}
    for flag, output in outputs.items():
        check_not_input(output, file, artifact, reading=options.reading)
        if output is None:
            continue
        if output == "-":
            raise click.UsageError(f"{flag} is rewritten during monitoring, so it must be a file.")
        for earlier_flag, earlier_output in earlier_outputs.items():
            if is_same_file(output, earlier_output):
                raise click.UsageError(
                    f"{earlier_flag} and {flag} name the same file. Pass two different files."
                )
        earlier_outputs[flag] = output
        check_output_directory(output)
    if options.silence is not None and not options.waits_for_more_input and file != "-":
        raise click.UsageError(
            "--silence needs a stream. Pass --follow, --serve or - (standard input), or"
            " leave out --silence."
        )


def _new_watch(artifact: str, file: str, options: Options) -> Watch:
    """Build the state of a monitor that has seen nothing yet."""
    from metacal.cli.reading import load_gate
    from metacal.gate.judged_cases import is_about_cases
    from metacal.gate.watch import Watch
    from metacal.gate.watched_clusters import check_units

    gate = load_gate(artifact, None if file == "-" else file)
    unit_name = options.unit_key or gate.file_layout.unit_key
    if is_about_cases(gate):
        _check_case_options(options)
        unit_name = options.reading.case_key or gate.file_layout.case_key
    elif options.reading.case_key is not None:
        raise click.UsageError(
            f"--case-key is for a promise about cases, and that of {artifact} is about rows. Leave it"
            " out."
        )
    check_units(gate.certificate, has_units=unit_name is not None)
    # Without sampling probabilities, every row has the same chance to be labelled.
    least_probability = 1.0
    if options.probability_key is not None:
        least_probability = options.least_probability or _DEFAULT_LEAST_PROBABILITY
    return Watch.of(
        gate,
        round(1.0 - options.confidence, 12),
        least_probability=least_probability,
        tolerance=options.tolerance,
        most_unreadable=options.max_unreadable,
        horizon=options.horizon,
    )


def _check_case_options(options: Options) -> None:
    """Raise a usage error if an option does not suit the items of cases."""
    for name in ("probability_key", "unit_key"):
        if getattr(options, name) is not None:
            raise click.UsageError(
                f"{option_flag(name)} does not go with a promise about cases, of which whole cases"
                " are watched. Leave it out."
            )


def _restore_state(journal: Journal | None, new_watch: Watch) -> MonitorState:
    """Return the state in the journal, or the new state if there is none.

    Raises
    ------
    click.UsageError
        If the journal was begun with other options.
    """
    from metacal.io.artifact.watch import watch_settings
    from metacal.io.artifact.watch_journal import MonitorState, restore_state

    if journal is None or not journal.records:
        return MonitorState(new_watch)
    monitor_state = restore_state(journal.records, new_watch.gate, journal.path)
    if watch_settings(monitor_state.watch) != watch_settings(new_watch):
        raise click.UsageError(
            f"{journal.path} was started with a different --confidence, --tolerance,"
            " --max-unreadable, --horizon or --least-probability, which cannot change later."
            " Pass the original values, or start again with another --state."
        )
    return monitor_state
