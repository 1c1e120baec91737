"""Running of a monitor: steps of its intake, and display of its status."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from metacal.cli.intake import Intake, NotRecordedError
from metacal.cli.line_source import LineSource
from metacal.cli.printing import print_note
from metacal.cli.repeat import build_repeat_command
from metacal.cli.signals import StopRequested, delay_signals
from metacal.cli.sources import TableSource
from metacal.errors import InputError, MonitoringError
from metacal.io.artifact.watch import MONITOR as MONITOR_KIND
from metacal.io.disk import is_disk_full
from metacal.io.journal import Journal
from metacal.reports.status import status as build_status
from metacal.reports.telemetry import write_exposition

if TYPE_CHECKING:
    from metacal.cli.monitor import Options
    from metacal.reports.server import Server

#: Seconds between two attempts to write to a full disk.
DISK_RETRY_SECONDS = 1.0
#: Options that are left out of the command that starts the same monitor again.
_NOT_REPEATED_OPTIONS = ("acknowledge", "append", "json", "quiet")
_WAITS_FOR_DISK_NOTE = "The monitor waits, and goes on by itself."
#: Maximum number of unreadable lines that are printed. Further ones are only counted.
_MAX_PRINTED_UNREADABLE_LINES = 3


class StatusDisplay:
    """Display of a monitor's status: live page, metrics file, notes on stderr.

    Parameters
    ----------
    intake : Intake
        Intake of the monitor.
    artifact : str
        Name of the gate's file.
    file : str
        File of the input.
    options : Options
        Options of the command.

    Attributes
    ----------
    page : Server or None
        Live page.
    latest_status : dict
        Status that was computed last.
    """

    def __init__(self, intake: Intake, artifact: str, file: str, options: Options) -> None:
        self.intake = intake
        self.artifact = artifact
        self.file = file
        self.options = options
        self.page: Server | None = None
        self._command_to_repeat = build_repeat_command(_NOT_REPEATED_OPTIONS)
        self.latest_status = self.compute_status()
        self._was_silent: bool | None = None
        self._n_unreadable_lines = 0
        self._previous_note = ""

    def compute_status(self, *, ended: bool = False) -> dict[str, Any]:
        """Compute the status as JSON types."""
        intake = self.intake
        is_input_silent = not ended and intake.detect_silence()
        silence_alarm: dict[str, Any] | None = None
        if intake.max_silence_seconds is not None:
            silence_alarm = {
                "after": intake.max_silence_seconds,
                "raised": is_input_silent,
                "times": intake.n_silences,
            }
        return build_status(
            intake.monitor_state.watch,
            ended=ended,
            silence=silence_alarm,
            artifact=self.artifact,
            file=self.file,
            quarantine=self.options.quarantine_path,
            command=self._command_to_repeat,
            has_state=self.options.state is not None,
        )

    def publish(self, *, ended: bool = False) -> dict[str, Any]:
        """Update the live page and the metrics file, and return the status."""
        self.latest_status = self.compute_status(ended=ended)
        if self.page is not None:
            self.page.publish(self.latest_status)
        if self.options.prometheus is not None:
            try:
                write_exposition(self.latest_status, self.options.prometheus)
            except InputError as error:
                if not self.options.waits_for_more_input:
                    raise
                self.print_note_once(str(error))
        return self.latest_status

    def update(self, *, has_input: bool) -> None:
        """Publish the status if input has arrived, or if a silence has begun or ended."""
        is_input_silent = self.intake.detect_silence()
        if not has_input and is_input_silent == self._was_silent:
            return
        if is_input_silent and not self._was_silent:
            self.print_note_once(
                f"ALARM: nothing has come in for {self.intake.max_silence_seconds:g} seconds."
            )
        self._was_silent = is_input_silent
        # A note that was printed before this change may be printed again after it.
        self._previous_note = ""
        publishes_metrics = self.options.prometheus is not None or self.options.otlp is not None
        if self.page is not None or publishes_metrics:
            self.publish()

    def print_note_once(self, text: str) -> None:
        """Print a note, unless it repeats the previous one."""
        if text != self._previous_note:
            print_note(text)
        self._previous_note = text

    def print_unreadable_lines(self) -> None:
        """Print the place and reason of unreadable lines, up to a maximum."""
        received_batch = self.intake.monitor_state.last_batch
        if received_batch is None:
            return
        for unreadable_line in received_batch.unreadable_lines:
            self._n_unreadable_lines += 1
            if self._n_unreadable_lines <= _MAX_PRINTED_UNREADABLE_LINES:
                line_place = f"{self.intake.source.place}:{unreadable_line.line_number}"
                print_note(f"Put aside: {line_place}: {unreadable_line.reason}.")
            elif self._n_unreadable_lines == _MAX_PRINTED_UNREADABLE_LINES + 1:
                quarantine_path = self.options.quarantine_path
                storage_note = "" if quarantine_path is None else f"; {quarantine_path} has them"
                print_note(
                    f"Further lines that cannot be read are counted, not named{storage_note}."
                )


def run_monitor(intake: Intake, source: LineSource | TableSource, display: StatusDisplay) -> None:
    """Read the source until it ends or a signal arrives.

    Parameters
    ----------
    intake : Intake
        Intake of the monitor.
    source : LineSource or TableSource
        Its source.
    display : StatusDisplay
        Display of the status.

    Raises
    ------
    InputError
        If no line of the source is readable.
    KeyboardInterrupt, StopRequested
        If a signal arrives while a source with an end is read. With --follow, a signal is the
        normal end.
    """
    stop_signal: BaseException | None = None
    try:
        _read_until_end(intake, source, display)
        if display.page is not None:
            display.publish(ended=True)
            display.page.wait_for_signal()
    except (KeyboardInterrupt, StopRequested) as error:
        stop_signal = error
    _finish_journal(intake, display.options.state, input_file=display.file)
    if stop_signal is not None and not display.options.waits_for_more_input:
        raise stop_signal
    has_only_unreadable_lines = bool(source.first_error_message) and source.n_readable_lines == 0
    if stop_signal is None and has_only_unreadable_lines:
        raise MonitoringError(
            f"{source.place}: no line could be read. The first error is:"
            f" {source.first_error_message}"
        )


def _finish_journal(intake: Intake, state_file: str | None, *, input_file: str) -> None:
    """Compact the journal at the end of a run, and print a note if the disk fails."""
    try:
        intake.compact_journal()
    except InputError as error:
        # A journal that was not compacted is longer, but it still has everything that was counted.
        print_note(f"{error} What was counted is there.")
    if intake.has_unrecorded_rows:
        advice = "The next run reads them again."
        if input_file == "-":
            advice = "Send them again."
        print_note(
            f"The rows that came last are not in {state_file}, because the disk failed. {advice}"
        )


def waits_for_disk(options: Options, file: str) -> bool:
    """Check whether a monitor waits if the disk is full, instead of failing."""
    return options.waits_for_more_input or file == "-"


def open_journal(state_file: str, exit_stack: ExitStack, *, waits_if_disk_is_full: bool) -> Journal:
    """Open and lock the journal of a monitor until the exit stack is closed.

    Parameters
    ----------
    state_file : str
        File of the journal.
    exit_stack : ExitStack
        Closes and unlocks the journal.
    waits_if_disk_is_full : bool
        Whether to try again until the disk has space, instead of failing.

    Returns
    -------
    Journal
    """
    has_printed_note = False
    while True:
        try:
            return exit_stack.enter_context(Journal(state_file, MONITOR_KIND))
        except InputError as error:
            if not (waits_if_disk_is_full and is_disk_full(error)):
                raise
            if not has_printed_note:
                print_note(f"{error} {_WAITS_FOR_DISK_NOTE}")
            has_printed_note = True
        time.sleep(DISK_RETRY_SECONDS)


def _print_and_remove_notes(notes: list[str]) -> None:
    """Print the notes in a list, and empty the list."""
    for note in notes:
        print_note(note)
    notes.clear()


def _read_until_end(
    intake: Intake, source: LineSource | TableSource, display: StatusDisplay
) -> None:
    """Process batches of input and show the status until the source ends."""
    while True:
        try:
            with delay_signals():
                has_input = intake.process_next_batch()
        except NotRecordedError as error:
            if not waits_for_disk(display.options, display.file):
                raise
            display.print_note_once(f"{error} {_WAITS_FOR_DISK_NOTE}")
            time.sleep(DISK_RETRY_SECONDS)
            continue
        _print_and_remove_notes(source.lines.notes)
        if has_input:
            display.print_unreadable_lines()
        display.update(has_input=has_input)
        if source.lines.ended and not has_input:
            break
        if not has_input:
            source.lines.wait()
    if source.lines.has_incomplete_line:
        print_note(f"The last line of {source.place} has no end yet; it counts once it has.")
