"""What a monitor does with what comes: into the watch, onto the disk, step by step, so that it can end at any moment.

A step takes what has come from a source, gives it to the watch, and writes it into the journal; only then is the next
one taken. So what was counted is in the journal, and what is in the journal is counted once, however a process ends:
whoever opens the journal next has the state that follows from it, and the place from which to read on. Where the disk
fails a step is not done: it is tried again, and nothing more is read meanwhile.

Nothing here waits or looks at the time by itself: `tests/simulation` drives it through histories of its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Protocol

from metacal.errors import InputError
from metacal.gate.watch import Watch
from metacal.io.artifact.watch import Kept, Taken, checkpoint
from metacal.io.disk import DISK, Disk, plain_write_errors
from metacal.io.journal import Journal

#: A journal that has grown to so many bytes is written anew: one whole state in place of all.
_LARGE = 1 << 24
#: Bytes of unreadable lines that are kept; more are only counted.
MOST_QUARANTINED = 1 << 26


class Source(Protocol):
    """Where rows and labels come from."""

    name: str

    def take(self) -> Taken | None:
        """What has come since the last time; None where there is nothing for now."""
        ...

    @property
    def state(self) -> dict[str, Any]:
        """How far it was read, as JSON."""
        ...

    @property
    def place(self) -> str:
        """What its lines are called."""
        ...


class NotKeptError(InputError):
    """What has come could not be written; it is held, and the next step tries again."""


class Quarantine:
    """A file of lines that could not be read: each once, with place and reason, whatever happens.

    `at` is where the file ended before the last lines were added, so that they are not added twice after a crash.
    """

    def __init__(self, path: str, disk: Disk = DISK) -> None:
        self.path, self._disk = path, disk
        try:
            self.at = len(disk.read(path) or b"")
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}.") from error

    def put(self, taken: Taken, place: str, *, again: bool = False) -> None:
        """Add the unreadable lines; `again` where some of them may be there already."""
        content = b"".join(
            json.dumps({"place": f"{place}:{one.line}", "reason": one.reason, "line": one.text}).encode() + b"\n"
            for one in taken.unreadable
        )
        if not content or self.at > MOST_QUARANTINED:
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
    source : Source
    journal : Journal, optional
        An open one; without it nothing is kept.
    quarantine : Quarantine, optional
    silence : float, optional
        Seconds without anything that are an alarm.
    clock : callable
        Seconds.
    large : int
        Bytes of a journal that is written anew.
    """

    def __init__(
        self,
        kept: Kept,
        source: Source,
        *,
        journal: Journal | None = None,
        quarantine: Quarantine | None = None,
        silence: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        large: int = _LARGE,
    ) -> None:
        self.kept, self.source, self.journal, self.quarantine = kept, source, journal, quarantine
        self.silence, self.silences, self._clock, self._large = silence, 0, clock, large
        self._heard, self._silent = clock(), False
        self._record: dict[str, Any] | None = None
        self._journalled = self._failed = False
        self._largest = large
        if journal is not None and not journal.records:
            journal.append(checkpoint(kept))
        self._last_of_before()

    @property
    def watch(self) -> Watch:
        """The watch as it is now."""
        return self.kept.watch

    @property
    def settled(self) -> bool:
        """Whether all that was taken is written."""
        return self._record is None

    @property
    def silent(self) -> bool:
        """Whether nothing has come for too long."""
        long = self.silence is not None and self._clock() - self._heard >= self.silence
        self.silences += long and not self._silent
        self._silent = long
        return long

    def step(self) -> bool:
        """Take in what has come; False where nothing has. NotKeptError where the disk fails: call again."""
        if self._record is None:
            taken = self.source.take()
            if taken is None:
                return False
            if taken.lines or len(taken.rows):
                self._heard, self._silent = self._clock(), False
            self._record, self._journalled = self.kept.add(taken, self.source.name, self.source.state), False
            if self.quarantine is not None:
                self._record["quarantine"] = [self.quarantine.path, self.quarantine.at, self.source.place]
        try:
            self._keep()
        except (InputError, OSError) as error:
            self._failed = True
            raise NotKeptError(str(error)) from error
        return True

    def checkpoint(self) -> None:
        """Write the whole state in place of all records."""
        if self.journal is not None:
            self.journal.rewrite([checkpoint(self.kept)])
            self._largest = max(self._large, 3 * self.journal.size)

    def _keep(self) -> None:
        assert self._record is not None
        if self.journal is not None and not self._journalled:
            if self.journal.broken:
                self.journal.rewrite([*self.journal.records, self._record])
            else:
                self.journal.append(self._record)
            self._journalled = True
        if self.quarantine is not None:
            assert self.kept.last is not None
            self.quarantine.put(self.kept.last, self.source.place, again=self._failed)
        self._record, self._failed = None, False
        if self.journal is not None and self.journal.size > self._largest:
            self.checkpoint()

    def _last_of_before(self) -> None:
        """The last record may have been journalled, and its unreadable lines not put where they belong."""
        if self.journal is None or self.quarantine is None or self.kept.last is None:
            return
        path, at, place = self.journal.records[-1].get("quarantine") or ("", 0, "")
        if path == self.quarantine.path and at <= self.quarantine.at:
            self.quarantine.at = at
            with plain_write_errors(path):
                self.quarantine.put(self.kept.last, place, again=True)
