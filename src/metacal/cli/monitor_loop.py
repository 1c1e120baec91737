"""A monitor while it runs: steps until the end or a signal, and what people and machines see of it meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metacal.cli.intake import Intake, NotKeptError
from metacal.cli.printing import note
from metacal.cli.sources import Table, Text
from metacal.cli.stopping import Stopped, held
from metacal.errors import InputError
from metacal.report.status import Silence, status, write_exposition

if TYPE_CHECKING:
    from metacal.cli.monitor import Options
    from metacal.report.server import Server

#: Unreadable lines that are named on stderr; the rest are counted, and kept where there is a file for them.
_NAMED = 3


class Shown:
    """Where people and machines see how it stands: the page, the metrics, stderr."""

    def __init__(self, intake: Intake, artifact: str, file: str, options: Options) -> None:
        self.intake, self.artifact, self.file, self.goes_on = intake, artifact, file, options.goes_on
        self.prometheus, self.quarantine = options.prometheus, options.put_aside
        self.page: Server | None = None
        self._seen: tuple[Any, ...] = ()
        self._named, self._said = 0, ""

    def status(self, *, ended: bool = False) -> dict[str, Any]:
        """How it stands."""
        intake = self.intake
        silence = None
        if intake.silence is not None:
            silence = Silence(intake.silence, not ended and intake.silent, intake.silences)
        about = {"artifact": self.artifact, "file": self.file, "quarantine": self.quarantine}
        return status(intake.watch, ended=ended, silence=silence, **about)

    def publish(self, *, ended: bool = False) -> dict[str, Any]:
        """Show how it stands on the page and in the metrics."""
        found = self.status(ended=ended)
        if self.page is not None:
            self.page.publish(found)
        if self.prometheus is not None:
            try:
                write_exposition(found, self.prometheus)
            except InputError as error:
                if not self.goes_on:
                    raise
                self.say(str(error))
        return found

    def __call__(self) -> None:
        """Publish what is new."""
        watch = self.intake.watch
        now: tuple[int, ...] = (watch.counts.rows, watch.counts.labelled, watch.unknown, watch.gaps, self.intake.silent)
        now += tuple(one.lines for one in watch.alarms.unreadable)
        if now == self._seen:
            return
        if self.intake.silent and self._seen[4:5] != (True,):
            self.say(f"ALARM: nothing has come for {self.intake.silence:g} seconds.")
        self._seen, self._said = now, ""
        if self.page is not None or self.prometheus is not None:
            self.publish()

    def say(self, text: str) -> None:
        """Tell people once what may happen again and again."""
        if text != self._said:
            note(text)
        self._said = text

    def name_unreadable(self) -> None:
        """Name the first unreadable lines of what has just been taken."""
        taken = self.intake.kept.last
        for one in [] if taken is None else taken.unreadable:
            self._named += 1
            if self._named <= _NAMED:
                note(f"Put aside: {self.intake.source.place}:{one.line}: {one.reason}.")
            elif self._named == _NAMED + 1:
                where = "" if self.quarantine is None else f"; {self.quarantine} has them"
                note(f"Further lines that cannot be read are counted, not named{where}.")


def watched(intake: Intake, source: Text | Table, shown: Shown) -> None:
    """Read until the end, or until told to stop, which is no failure where there is no end."""
    try:
        _read_all(intake, source, shown)
        if shown.page is not None:
            shown.publish(ended=True)
            shown.page.wait()
    except (KeyboardInterrupt, Stopped):
        _settle(intake)
        if not shown.goes_on:
            raise
        return
    _settle(intake)
    if source.first_fault and not source.good:
        raise InputError(f"no line of {source.place} could be read; the first: {source.first_fault}")


def _settle(intake: Intake) -> None:
    """The whole state in place of a long journal; where that cannot be written the journal stays, and has all of it."""
    if intake.settled:
        try:
            intake.checkpoint()
        except InputError as error:
            note(f"{error} What was counted is there.")


def _read_all(intake: Intake, source: Text | Table, shown: Shown) -> None:
    while True:
        try:
            with held():
                came = intake.step()
        except NotKeptError as error:
            if not shown.goes_on:
                raise
            shown.say(f"{error} Waiting.")
            source.wait()
            continue
        for text in source.notes():
            note(text)
        if came:
            shown.name_unreadable()
        shown()
        if came:
            continue
        if source.ended:
            break
        source.wait()
    if source.waits:
        note(f"The last line of {source.place} has no end yet; it counts once it has.")
