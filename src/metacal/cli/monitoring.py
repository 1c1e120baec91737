"""Running of a monitor: steps of its intake, and display of its status."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from metacal.cli.intake import Intake, NotRecordedError
from metacal.cli.line_source import LineSource
from metacal.cli.printing import print_note
from metacal.cli.repeat import build_repeat_command
from metacal.cli.signals import StopRequested, delay_signals
from metacal.cli.sources import TableSource
from metacal.errors import InputError, MonitoringError
from metacal.io.artifact.watch import MONITOR
from metacal.io.disk import is_disk_full
from metacal.io.journal import Journal
from metacal.reports.status import status
from metacal.reports.telemetry import write_exposition

if TYPE_CHECKING:
    from metacal.cli.monitor import Options
    from metacal.reports.server import Server

#: Seconds between two attempts to write to a full disk.
DISK_RETRY_SECONDS = 1.0
#: Options that do not belong to a later run of the same monitor.
_NOT_REPEATED_OPTIONS = ("acknowledge", "append", "json", "quiet")
_WAITING_NOTE = "The monitor waits, and goes on by itself."
#: Number of unreadable lines that are printed; further ones are only counted.
_MAX_PRINTED_LINES = 3


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
        self._command = build_repeat_command(_NOT_REPEATED_OPTIONS)
        self.latest_status = self.status()
        self._was_silent: bool | None = None
        self._n_unreadable = 0
        self._last_note = ""

    def status(self, *, ended: bool = False) -> dict[str, Any]:
        """Compute the status as JSON types."""
        intake = self.intake
        is_silent = not ended and intake.update_silence()
        silence = None
        if intake.max_silence_seconds is not None:
            silence = {
                "after": intake.max_silence_seconds,
                "raised": is_silent,
                "times": intake.n_silences,
            }
        return status(
            intake.monitor_state.watch,
            ended=ended,
            silence=silence,
            artifact=self.artifact,
            file=self.file,
            quarantine=self.options.quarantine_path,
            command=self._command,
            has_state=self.options.state is not None,
        )

    def publish(self, *, ended: bool = False) -> dict[str, Any]:
        """Update the live page and the metrics file, and return the status."""
        self.latest_status = self.status(ended=ended)
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
        is_silent = self.intake.update_silence()
        if not has_input and is_silent == self._was_silent:
            return
        if is_silent and not self._was_silent:
            self.print_note_once(
                f"ALARM: nothing has come in for {self.intake.max_silence_seconds:g} seconds."
            )
        self._was_silent = is_silent
        self._last_note = ""
        has_metrics = self.options.prometheus is not None or self.options.otlp is not None
        if self.page is not None or has_metrics:
            self.publish()

    def print_note_once(self, text: str) -> None:
        """Print a note, unless it repeats the previous one."""
        if text != self._last_note:
            print_note(text)
        self._last_note = text

    def note_unreadable_lines(self) -> None:
        """Print the place and reason of unreadable lines, up to a maximum."""
        received_batch = self.intake.monitor_state.last_batch
        if received_batch is None:
            return
        for unreadable_line in received_batch.unreadable_lines:
            self._n_unreadable += 1
            if self._n_unreadable <= _MAX_PRINTED_LINES:
                line_place = f"{self.intake.source.place}:{unreadable_line.line_number}"
                print_note(f"Put aside: {line_place}: {unreadable_line.reason}.")
            elif self._n_unreadable == _MAX_PRINTED_LINES + 1:
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
    try:
        intake.checkpoint()
    except InputError as error:
        # The journal remains as it was, only longer, and contains everything that was counted.
        print_note(f"{error} What was counted is there.")
    if intake.has_unrecorded_rows:
        print_note(
            f"The rows that came last are not in {display.options.state}, because the disk failed."
            f" {_unrecorded_rows_advice(display.file)}"
        )
    if stop_signal is not None and not display.options.waits_for_more_input:
        raise stop_signal
    if stop_signal is None and source.first_error_message and not source.n_readable:
        raise MonitoringError(
            f"{source.place}: no line could be read. The first error is:"
            f" {source.first_error_message}"
        )


def waits_for_disk(options: Options, file: str) -> bool:
    """Check whether a monitor waits if the disk is full, instead of failing."""
    return options.waits_for_more_input or file == "-"


def open_journal(options: Options, file: str) -> Journal:
    """Open and lock the journal of a monitor, waiting if the disk is full."""
    assert options.state is not None
    has_printed_note = False
    while True:
        try:
            return Journal(options.state, MONITOR).__enter__()
        except InputError as error:
            if not (waits_for_disk(options, file) and is_disk_full(error)):
                raise
            if not has_printed_note:
                print_note(f"{error} {_WAITING_NOTE}")
            has_printed_note = True
        time.sleep(DISK_RETRY_SECONDS)


def _unrecorded_rows_advice(file: str) -> str:
    """Return the advice about rows that were read but not recorded."""
    if file == "-":
        return "Send them again."
    return "The next run reads them again."


def _read_until_end(
    intake: Intake, source: LineSource | TableSource, display: StatusDisplay
) -> None:
    """Repeat the steps of the intake until the source ends."""
    while True:
        try:
            with delay_signals():
                has_input = intake.process_next_batch()
        except NotRecordedError as error:
            if not waits_for_disk(display.options, display.file):
                raise
            display.print_note_once(f"{error} {_WAITING_NOTE}")
            time.sleep(DISK_RETRY_SECONDS)
            continue
        while source.lines.notes:
            print_note(source.lines.notes.pop(0))
        if has_input:
            display.note_unreadable_lines()
        display.update(has_input=has_input)
        if source.lines.ended and not has_input:
            break
        if not has_input:
            source.lines.wait()
    if source.lines.has_incomplete_line:
        print_note(f"The last line of {source.place} has no end yet; it counts once it has.")
