"""What a monitor does with what comes: into the watch, onto the disk, step by step, so that it can
end at any moment.

A step takes what has come from a source, gives it to the watch, and writes it into the journal;
only then is the next one taken. So what was counted is in the journal, and what is in the journal
is counted once, however a process ends: whoever opens the journal next has the state that follows
from it, and the place from which to read on. Where the disk fails a step is not done: it is tried
again, and nothing more is read meanwhile. This includes the first record, so that a full disk does
not stop a monitor at its start.

`Intake` does not wait by itself: `tests/simulation` drives it through histories of its own.
`watched` steps until the end or a signal, and `Shown` is what people and machines see of it
meanwhile.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from metacal.cli.printing import print_note
from metacal.cli.signals import StopRequested, delay_signals
from metacal.cli.sources import LineSource, TableSource
from metacal.errors import InputError
from metacal.io.artifact.watch import MONITOR, Kept, Taken, checkpoint
from metacal.io.disk import DISK, Disk, is_disk_full, plain_write_errors
from metacal.io.journal import Journal
from metacal.io.opening import plain_read_errors
from metacal.report.status import status
from metacal.report.telemetry import write_exposition

if TYPE_CHECKING:
    from metacal.cli.monitor import Options
    from metacal.report.server import Server

#: A journal that has grown to so many bytes is written anew: one whole state in place of all.
_MIN_COMPACTION_BYTES = 1 << 24
#: Seconds between two tries to write to a disk that is full.
DISK_RETRY_SECONDS = 1.0
_WAITING = "The monitor waits, and goes on by itself."
#: Bytes of unreadable lines that are kept; more are only counted.
MAX_QUARANTINE_BYTES = 1 << 26


class NotRecordedError(InputError):
    """What has come could not be written; it is held, and the next step tries again."""


class Quarantine:
    """A file of lines that could not be read: each once, with place and reason, whatever happens.

    `at` is where the file ended before the last lines were added, so that they are not added twice
    after a crash.
    """

    def __init__(self, path: str, disk: Disk = DISK) -> None:
        self.path, self._disk = path, disk
        with plain_read_errors(path):
            self.at = len(disk.read(path) or b"")

    def put(self, taken: Taken, place: str, *, again: bool = False) -> None:
        """Add the unreadable lines; `again` where some of them may be there already."""
        content = b"".join(
            json.dumps(
                {"place": f"{place}:{one.line}", "reason": one.reason, "line": one.text}
            ).encode()
            + b"\n"
            for one in taken.unreadable
        )
        if not content or self.at > MAX_QUARANTINE_BYTES:
            return
        if again:
            whole = self._disk.read(self.path) or b""
            here = whole[self.at :]
            if here.startswith(content):
                self.at = len(whole)
                return
            if here and len(here) <= len(content):  # a torn beginning of it
                self._disk.truncate(self.path, self.at)
            else:
                self.at = len(whole)
        self._disk.append(self.path, content)
        self.at += len(content)


class Intake:
    """A source into a watch, step by step.

    Parameters
    ----------
    kept : Kept
        The watch, and how far sources were read: a new one, or what the journal gives.
    source : Text or Table
        Where rows and labels come from.
    journal : Journal or None
        An open one; without it nothing is kept.
    quarantine : Quarantine or None
    silence : float or None
        Seconds without anything that are an alarm.
    """

    def __init__(
        self,
        kept: Kept,
        source: LineSource | TableSource,
        journal: Journal | None,
        quarantine: Quarantine | None,
        silence: float | None,
    ) -> None:
        self.kept, self.source, self.journal, self.quarantine = kept, source, journal, quarantine
        self.silence, self.silences, self._heard, self._silent = silence, 0, time.monotonic(), False
        self._record: dict[str, Any] | None = None
        self._journalled = self._failed = self._begun = False
        self._largest = _MIN_COMPACTION_BYTES
        try:
            self._begin()
        except InputError as error:
            if not is_disk_full(error):
                # `step` tries again if the disk is full; nothing else can be expected to pass.
                raise

    @property
    def has_unrecorded_rows(self) -> bool:
        """Whether the rows that came last are not in the journal, because the disk failed."""
        return self.journal is not None and self._record is not None and not self._journalled

    @property
    def silent(self) -> bool:
        """Whether nothing has come for too long."""
        long = self.silence is not None and time.monotonic() - self._heard >= self.silence
        self.silences += long and not self._silent
        self._silent = long
        return long

    def step(self) -> bool:
        """Take in what has come; False where nothing has. NotKeptError where the disk fails: call
        again.
        """
        if not self._begun:
            try:
                self._begin()
            except InputError as error:
                raise NotRecordedError(str(error)) from error
        if self._record is None:
            taken = self.source.take()
            if taken is None:
                return False
            if taken.lines or len(taken.rows):
                self._heard, self._silent = time.monotonic(), False
            self._record, self._journalled = (
                self.kept.add(taken, self.source.name, self.source.state),
                False,
            )
            if self.quarantine is not None:
                self._record["quarantine"] = [
                    self.quarantine.path,
                    self.quarantine.at,
                    self.source.place,
                ]
        try:
            self._keep()
        except InputError as error:
            self._failed = True
            raise NotRecordedError(str(error)) from error
        return True

    def checkpoint(self) -> None:
        """Write the whole state in place of all records, once all that was taken is written."""
        if self.journal is not None and self._begun and self._record is None:
            self.journal.rewrite([checkpoint(self.kept)])
            self._largest = max(_MIN_COMPACTION_BYTES, 3 * self.journal.size)

    def _begin(self) -> None:
        """Write the first record of a new journal, and finish what an earlier process left."""
        if self.journal is not None and not self.journal.records:
            self._write(self.journal, checkpoint(self.kept))
        self._last_of_before()
        self._begun = True

    def _write(self, journal: Journal, record: dict[str, Any]) -> None:
        """Add a record to the journal, which is rewritten if an earlier failure left it
        incomplete.
        """
        if journal.broken:
            journal.rewrite([*journal.records, record])
        else:
            journal.append(record)

    def _keep(self) -> None:
        assert self._record is not None
        if self.journal is not None and not self._journalled:
            self._write(self.journal, self._record)
            self._journalled = True
        if self.quarantine is not None:
            assert self.kept.last is not None
            with plain_write_errors(self.quarantine.path):
                self.quarantine.put(self.kept.last, self.source.place, again=self._failed)
        self._record, self._failed = None, False
        if self.journal is not None and self.journal.size > self._largest:
            self.checkpoint()

    def _last_of_before(self) -> None:
        """The last record may have been journalled, and its unreadable lines not put where they
        belong.
        """
        if self.journal is None or self.quarantine is None or self.kept.last is None:
            return
        path, at, place = self.journal.records[-1].get("quarantine") or ("", 0, "")
        if path == self.quarantine.path and at <= self.quarantine.at:
            self.quarantine.at = at
            with plain_write_errors(path):
                self.quarantine.put(self.kept.last, place, again=True)


# ── a monitor while it runs ───────────────────────────────────────────────────────────────────────

#: Unreadable lines that are named on stderr; the rest are counted, and kept where there is a file
#: for them.
_NAMED = 3


class StatusDisplay:
    """Where people and machines see how it stands: the page, the metrics, stderr."""

    def __init__(self, intake: Intake, artifact: str, file: str, options: Options) -> None:
        self.intake, self.artifact, self.file, self.options = intake, artifact, file, options
        self.page: Server | None = None
        self.last = self.status()
        self._silent: bool | None = None
        self._named, self._said = 0, ""

    def status(self, *, ended: bool = False) -> dict[str, Any]:
        """How it stands."""
        intake = self.intake
        after, silent = intake.silence, not ended and intake.silent
        silence = (
            None if after is None else {"after": after, "raised": silent, "times": intake.silences}
        )
        about = {"artifact": self.artifact, "file": self.file, "quarantine": self.options.put_aside}
        return status(intake.kept.watch, ended=ended, silence=silence, **about)

    def publish(self, *, ended: bool = False) -> dict[str, Any]:
        """Show how it stands on the page and in the metrics."""
        self.last = found = self.status(ended=ended)
        if self.page is not None:
            self.page.publish(found)
        if self.options.prometheus is not None:
            try:
                write_exposition(found, self.options.prometheus)
            except InputError as error:
                if not self.options.goes_on:
                    raise
                self.say(str(error))
        return found

    def __call__(self, *, came: bool) -> None:
        """Publish what is new: what came, and silence."""
        silent, before = self.intake.silent, self._silent
        if not came and silent == before:
            return
        if silent and not before:
            self.say(f"ALARM: nothing has come in for {self.intake.silence:g} seconds.")
        self._silent, self._said = silent, ""
        if (
            self.page is not None
            or self.options.prometheus is not None
            or self.options.otlp is not None
        ):
            self.publish()

    def say(self, text: str) -> None:
        """Tell people once what may happen again and again."""
        if text != self._said:
            print_note(text)
        self._said = text

    def name_unreadable(self) -> None:
        """Name the first unreadable lines of what has just been taken."""
        taken = self.intake.kept.last
        for one in [] if taken is None else taken.unreadable:
            self._named += 1
            if self._named <= _NAMED:
                print_note(f"Put aside: {self.intake.source.place}:{one.line}: {one.reason}.")
            elif self._named == _NAMED + 1:
                where = (
                    "" if self.options.put_aside is None else f"; {self.options.put_aside} has them"
                )
                print_note(f"Further lines that cannot be read are counted, not named{where}.")


def run_monitor(intake: Intake, source: LineSource | TableSource, shown: StatusDisplay) -> None:
    """Read until the end, or until told to stop, which is no failure where there is no end."""
    stopped: BaseException | None = None
    try:
        _read_all(intake, source, shown)
        if shown.page is not None:
            shown.publish(ended=True)
            shown.page.wait()
    except (KeyboardInterrupt, StopRequested) as signal:
        stopped = signal
    try:
        intake.checkpoint()
    except InputError as error:  # the long journal stays, and has all of it
        print_note(f"{error} What was counted is there.")
    if intake.has_unrecorded_rows:
        print_note(
            f"The rows that came last are not in {shown.options.state}, because the disk failed."
            f" {_again(shown)}"
        )
    if stopped is not None and not shown.options.goes_on:
        raise stopped
    if stopped is None and source.first_fault and not source.good:
        raise InputError(
            f"no line of {source.place} could be read; the first: {source.first_fault}"
        )


def waits_for_disk(options: Options, file: str) -> bool:
    """Return whether a monitor waits for a full disk: one of a finished file ends with an error
    instead.
    """
    return options.goes_on or file == "-"


def open_journal(options: Options, file: str) -> Journal:
    """Open and lock the journal of a monitor. Wait if the disk is too full even for the lock."""
    assert options.state is not None
    told = False
    while True:
        try:
            return Journal(options.state, MONITOR).__enter__()
        except InputError as error:
            if not (waits_for_disk(options, file) and is_disk_full(error)):
                raise
            if not told:
                print_note(f"{error} {_WAITING}")
            told = True
        time.sleep(DISK_RETRY_SECONDS)


def _again(shown: StatusDisplay) -> str:
    """Say what becomes of rows that were read and not recorded."""
    if shown.file == "-":
        return "Send them again."
    return "The next run reads them again."


def _read_all(intake: Intake, source: LineSource | TableSource, shown: StatusDisplay) -> None:
    while True:
        try:
            with delay_signals():
                came = intake.step()
        except NotRecordedError as error:
            if not waits_for_disk(shown.options, shown.file):
                raise
            shown.say(f"{error} {_WAITING}")
            time.sleep(DISK_RETRY_SECONDS)
            continue
        while source.lines.notes:
            print_note(source.lines.notes.pop(0))
        if came:
            shown.name_unreadable()
        shown(came=came)
        if source.lines.ended and not came:
            break
        if not came:
            source.lines.wait()
    if source.lines.waits:
        print_note(f"The last line of {source.place} has no end yet; it counts once it has.")
