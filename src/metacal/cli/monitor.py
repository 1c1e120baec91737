"""`metacal monitor`: watch a gate's traffic, with alarms valid at any time."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from metacal.cli.options import (
    as_command,
    column_option,
    fraction_option,
    option,
    option_flag,
    option_group,
    switch_option,
)
from metacal.cli.outputs import OutputPath, check_output_is_not_input
from metacal.cli.printing import EXIT_REFUTED, print_note, print_result, wrap_lines
from metacal.cli.read_options import ReadOptions
from metacal.cli.values import convert_confidence_to_delta, parse_fraction
from metacal.cli.verify import parse_confidence

if TYPE_CHECKING:
    from metacal.cli.intake import Intake
    from metacal.gate.watch import Watch
    from metacal.io.artifact.watch_journal import MonitorState
    from metacal.io.journal import Journal

#: Lowest sampling probability that is assumed unless --least-probability is given.
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
        "Probability that no false alarm is ever raised, over all alarms together.",
        "C",
        type=parse_confidence,
        default=0.95,
    )
    state: str | None = option(
        "File that stores the state, so that a later run continues.", "FILE", type=OutputPath()
    )
    acknowledge: str | None = option(
        "acknowledge the raised alarms, with what was found and done. Testing starts again with"
        " later rows.",
        "REASON",
        needs=("state",),
    )
    append: bool = switch_option(
        "FILE holds only rows that are newer than those counted.", needs=("state",)
    )
    follow: bool = switch_option("Wait for new rows at the end of FILE, until Ctrl-C.")
    serve: bool = switch_option("Serve a live page on this machine. Implies --follow.")
    port: int = option(
        "Port of the page, 0 for a free one.", type=click.IntRange(0, 65535), default=8765
    )
    prometheus: str | None = option(
        "Write the metrics to this file, in the format of Prometheus.", "FILE", type=OutputPath()
    )
    otlp: str | None = option(
        "Send the metrics to an OpenTelemetry collector, such as http://127.0.0.1:4318/v1/metrics.",
        "URL",
    )
    probability_key: str | None = column_option(
        "Column of the probability with which each row was selected for labelling."
    )
    least_probability: float | None = option(
        "lowest of these probabilities.  [default: 0.01]",
        "P",
        type=_parse_probability,
        needs=("probability_key",),
    )
    tolerance: float = fraction_option(
        "Largest tolerated gap between confidence and accuracy.", "T", default=0.02
    )
    horizon: int = option(
        "Count a row only after N later rows, because the delay of a label may depend on the outcome.",
        "N",
        type=click.IntRange(0, 39_999),
        default=0,
    )
    unit_key: str | None = option(
        "Column of clusters, for a gate that was certified on clusters.",
        "NAME",
    )
    quarantine: str | None = option(
        "File for lines that cannot be read.  [default: STATE.quarantine.jsonl next to --state]",
        "FILE",
        type=OutputPath(),
    )
    max_unreadable: float = fraction_option(
        "Largest tolerated share of lines that cannot be read.", "SHARE", default=0.01
    )
    silence: float | None = option(
        "With --follow: raise an alarm if no row arrives for this long.",
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
        """File for unreadable lines, by default next to the state file."""
        if self.quarantine is not None or self.state is None:
            return self.quarantine
        return os.path.splitext(self.state)[0] + ".quarantine.jsonl"


@as_command(Options, "GATE", "FILE", has_help_sections=True)
def command(artifact: str, file: str, options: Options) -> None:
    """Monitor the traffic of a gate, and raise an alarm if it changes.

    GATE was saved by 'metacal fit'. FILE holds rows in the order of their arrival. CSV and JSON
    lines are read as a stream ('-' is standard input), other formats as a whole. A row may have a
    label, or an id whose label arrives on a later line.

    The command tests the promise and the calibration on labelled rows, and the rejection rate, the
    scores and the share of unreadable lines on all rows. You may look at the result at any time.
    Whether a row has a label must not depend on whether its prediction is correct. Without labels,
    only the tests on all rows run.

    An alarm stays until --acknowledge ends it. The exit code is 0 without an alarm and 3 with one.
    A gate that was certified on clusters needs --unit-key, and one about cases needs whole cases.

    \b
    Examples:
      metacal monitor cal.json today.csv
      metacal monitor cal.json today.csv --state watch.journal --json
      metacal monitor cal.json traffic.jsonl --follow --state watch.journal --silence 600
      metacal monitor cal.json traffic.jsonl --serve
      metacal monitor cal.json traffic.jsonl --state watch.journal --acknowledge "camera cleaned"
    """  # noqa: D301
    _check_options(artifact, file, options)
    from metacal.reports.status_lines import format_next_step_lines, format_status_lines

    initial_watch = _build_initial_watch(artifact, file, options)
    options = replace(options, reading=replace(options.reading, unit_key=options.unit_key))
    final_status, n_silences = _run_until_source_ends(initial_watch, artifact, file, options)
    status_text = wrap_lines("\n".join(format_status_lines(final_status)))
    next_steps = format_next_step_lines(final_status, wrap_lines)
    if next_steps:
        status_text = "\n".join([status_text, "", *next_steps])
    print_result(final_status, status_text)
    if final_status["alarm"] or n_silences:
        click.get_current_context().exit(EXIT_REFUTED)


def _run_until_source_ends(
    initial_watch: Watch, artifact: str, file: str, options: Options
) -> tuple[dict[str, Any], int]:
    """Run the monitor until its source ends or a signal arrives.

    Parameters
    ----------
    initial_watch : Watch
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
    from metacal.cli.monitoring import StatusDisplay, open_journal, run_monitor, waits_for_disk
    from metacal.cli.sources import open_source

    with contextlib.ExitStack() as stack:
        journal: Journal | None = None
        if options.state is not None:
            journal = open_journal(
                options.state, stack, waits_if_disk_is_full=waits_for_disk(options, file)
            )
        monitor_state = _restore_or_start_state(journal, initial_watch)
        source = open_source(monitor_state, artifact, file, options)
        quarantine: Quarantine | None = None
        if options.quarantine_path is not None:
            quarantine = Quarantine(options.quarantine_path)
        intake = Intake(
            monitor_state,
            source,
            journal=journal,
            quarantine=quarantine,
            max_silence_seconds=options.silence,
        )
        if options.acknowledge is not None:
            _acknowledge_alarms(intake, options.acknowledge)
        display = StatusDisplay(intake, os.path.basename(artifact), file, options)
        if options.serve:
            from metacal.reports.server import Server

            display.page = stack.enter_context(Server(display.compute_status(), options.port))
            print_note(f"{display.page.address} shows it; Ctrl-C ends it.")
        if options.otlp is not None:
            from metacal.reports.telemetry import WatchMetrics, start_pushing

            stack.callback(start_pushing(WatchMetrics(lambda: display.latest_status), options.otlp))
        run_monitor(intake, source, display)
        return display.publish(ended=True), intake.n_silences


def _acknowledge_alarms(intake: Intake, reason: str) -> None:
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
        check_output_is_not_input(output, file, artifact, reading=options.reading)
        if output is None:
            continue
        if output == "-":
            raise click.UsageError(
                f"metacal rewrites {flag} during monitoring, so {flag} must name a regular file."
            )
        for earlier_flag, earlier_output in earlier_outputs.items():
            if is_same_file(output, earlier_output):
                raise click.UsageError(
                    f"{earlier_flag} and {flag} name the same file. Pass two different files."
                )
        earlier_outputs[flag] = output
        check_output_directory(output)
    if options.silence is not None and not options.waits_for_more_input and file != "-":
        raise click.UsageError(
            "--silence requires a stream. Pass --follow, --serve or - (standard input), or leave"
            " out --silence."
        )


def _build_initial_watch(artifact: str, file: str, options: Options) -> Watch:
    """Build the state of a monitor that has seen nothing yet."""
    from metacal.cli.reading import load_gate
    from metacal.gate.judged_cases import is_about_cases
    from metacal.gate.watch import Watch
    from metacal.gate.watched_clusters import check_presence_of_clusters

    gate = load_gate(artifact, None if file == "-" else file)
    unit_column = options.unit_key or gate.file_layout.unit_key
    if is_about_cases(gate):
        _check_case_options(options)
        unit_column = options.reading.case_key or gate.file_layout.case_key
    elif options.reading.case_key is not None:
        raise click.UsageError(
            f"--case-key requires a promise about cases, but the promise of {artifact} is about"
            " rows. Leave out --case-key."
        )
    check_presence_of_clusters(gate.certificate, has_clusters=unit_column is not None)
    # Without sampling probabilities, every row has the same chance to be labelled.
    least_probability = 1.0
    if options.probability_key is not None:
        least_probability = options.least_probability or _DEFAULT_LEAST_PROBABILITY
    return Watch.of(
        gate,
        convert_confidence_to_delta(options.confidence),
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
                f"{option_flag(name)} does not support a promise about cases, because the monitor"
                f" watches whole cases. Leave out {option_flag(name)}."
            )


def _restore_or_start_state(journal: Journal | None, initial_watch: Watch) -> MonitorState:
    """Restore the state of a monitor from its journal, or start with the initial watch.

    Raises
    ------
    click.UsageError
        If the journal was begun with other options.
    """
    from metacal.io.artifact.watch import watch_settings
    from metacal.io.artifact.watch_journal import MonitorState, restore_state

    if journal is None or not journal.records:
        return MonitorState(initial_watch)
    monitor_state = restore_state(journal.records, initial_watch.gate, journal.path)
    if watch_settings(monitor_state.watch) != watch_settings(initial_watch):
        raise click.UsageError(
            f"{journal.path} was started with a different --confidence, --tolerance,"
            " --max-unreadable, --horizon or --least-probability. These options cannot change"
            " later. Pass the original values, or start again with another --state."
        )
    return monitor_state
