"""The lines of a log while it is written, as `tail -F` sees them: whole, in order, each once,
whatever a rotation does.

A line counts when its end has come. A file is known by device and inode and by the bytes just
before the place that was read to, so that these are told apart, while it is followed and after a
restart:

- *it has grown*: go on;
- *it was moved away* (`mv log log.1`): read the old one to its end. It has come once something
  stands in the new one: whoever writes has gone over to it. Those that were rotated in between are
  read in their order;
- *it was cut off* (`cp log log.1; : > log`): go on in the copy if there is one, then in the new
  one;
- *it was written anew with the same beginning*: go on;
- *it is gone*: a gap, which is counted and said.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from metacal.errors import InputError
from metacal.io.formats.jsonl import LONGEST_LINE
from metacal.io.lines import BYTES, MARK, PAUSE, Cutter, Line, Log, Logs, Position

#: What a rotation adds to a name: a number, or a date.
_ROTATED = re.compile(r"[.-](\d[\d_T-]*)")


class Tail:
    """The lines of a file as they come.

    Parameters
    ----------
    path : str
    follow : bool
        At its end wait for more; otherwise `ended` says that it has come.
    since : Position, optional
        Where an earlier one had got to.
    unfinished : bool
        At the end of a file that is not followed, give a last line without an end.
    logs, longest
        Where files lie; the longest line.

    Attributes
    ----------
    gaps : int
        How often something may have been lost before it was read.
    notes : list of str
        What happened, for people; whoever says it takes it out.
    """

    def __init__(
        self,
        path: str,
        *,
        follow: bool = False,
        since: Position | None = None,
        unfinished: bool = False,
        logs: Logs | None = None,
        longest: int = LONGEST_LINE,
    ) -> None:
        self.path, self.follow, self.unfinished, self._longest = path, follow, unfinished, longest
        self.gaps, self.ended, self.notes = 0, False, list[str]()
        self._logs, self._since = logs or Logs(), since
        self._file: Log | None = None
        self._moved, self._dropped, self._said, self._modified = False, False, "", 0
        self._begin()

    def read(self) -> list[Line]:
        """The lines that have come, all of one file; none where there are none for now."""
        while (file := self._file or self._open()) is not None:
            try:
                modified = file.modified()
                content = file.read(self._end - len(self._tail), len(self._tail) + BYTES)
            except OSError as error:  # a disk or a network that has gone away may come back
                return self._unreadable(error)
            again = True
            if not content.startswith(self._tail):
                lines = self._cut_off(file)
            else:
                self._modified = modified
                if data := content[len(self._tail) :]:
                    lines = self._fed(data)
                else:
                    lines, again = self._at_end(file)
            if lines or not again:
                return lines
        return []

    def wait(self) -> None:
        """A moment."""
        time.sleep(PAUSE)

    @property
    def position(self) -> Position | None:
        """The place up to which lines were given; None before any file is open."""
        if self._file is None:
            return self._since
        cutter = self._cutter
        place: dict[str, Any] = {
            "offset": self._end - cutter.held,
            "line": cutter.number,
            "skipping": cutter.skipping,
        }
        return Position.after(self._before, self._file, modified=self._modified, **place)

    @property
    def waits(self) -> bool:
        """Whether a line has begun whose end has not come."""
        return self._cutter.held > 0

    def _begin(
        self, end: int = 0, line: int = 0, before: bytes = b"", *, skipping: bool = False
    ) -> None:
        self._cutter = Cutter(line, skipping, self._longest)
        self._end, self._before, self._tail = end, before, before

    def _fed(self, data: bytes) -> list[Line]:
        lines = self._cutter.feed(data)
        taken = len(data) - self._cutter.held
        if taken > 0 or lines:
            self._before = (self._tail + data[: max(taken, 0)])[-MARK:]
        self._end, self._tail = self._end + len(data), (self._tail + data)[-MARK:]
        return lines

    def _unreadable(self, error: OSError) -> list[Line]:
        message = f"{self.path}: it cannot be read: {error.strerror or error}"
        if not self.follow:
            raise InputError(f"{message}.") from error
        self._note(f"{message}; trying again.")
        self._since, self._file = self.position, None
        return []

    def _note(self, text: str) -> None:
        """Say something, once."""
        if text != self._said:
            self.notes.append(text)
        self._said = text

    # ── which file ────────────────────────────────────────────────────────────────────────────────

    def _open(self) -> Log | None:
        """Open the file, or the one that an earlier position was in; None where there is none
        (yet).
        """
        here = self._look()
        if self._since is not None:
            return self._resume(here, self._since)
        if here is None and not self.follow:
            raise InputError(f"{self.path}: there is no such file; check the name and the folder.")
        if here is None:
            self._note(f"{self.path} is not there; waiting for it.")
        self._file = here
        return here

    def _look(self) -> Log | None:
        """What stands under the name now."""
        try:
            return self._logs.open(self.path)
        except InputError as error:
            if not self.follow:
                raise
            self._note(f"{error} Waiting.")
            return None

    def _resume(self, here: Log | None, since: Position) -> Log | None:
        file = here
        if here is None or here.identity != since.identity or not since.fits(here):
            anew = here if here is not None and since.offset > 0 and since.fits(here) else None
            moved = self._beside(lambda log: log.identity == since.identity and since.fits(log))
            # A copy before what stands there now: a new log may begin with the same header.
            file = moved or self._copy(since, here) or anew
        self._since = None
        if file is None:
            self._lost("it was moved away or cut off while nobody read it")
            # It may have been cut off, written to again, and then moved.
            self._file = self._beside(lambda log: log.identity == since.identity)
            return self._file or self._open()
        self._file, self._modified = file, since.modified
        before = file.read(since.offset - since.before, since.before)
        self._begin(since.offset, since.line, before, skipping=since.skipping)
        return file

    def _beside(self, fits: Callable[[Log], bool], *, rotated: bool = False) -> Log | None:
        """The file of the same folder that fits; of several the one that was last written to the
        longest time ago.
        """
        logs = (log for log, _ in self._neighbours(rotated=rotated) if fits(log))
        return min(logs, key=lambda log: log.modified(), default=None)

    def _neighbours(self, *, rotated: bool) -> Iterator[tuple[Log, Any]]:
        """The other files of the folder, all or those that were rotated, and their rank; not those
        of others.
        """
        folder, base = os.path.split(self.path)
        for name in self._logs.beside(self.path):
            rank = _rank(name, base)
            if name != base and (rank is not None or not rotated):
                with suppress(InputError, OSError):
                    if (log := self._logs.open(os.path.join(folder, name))) is not None:
                        yield log, rank

    def _copy(self, place: Position, here: Log | None) -> Log | None:
        """The copy that was made before the file was cut off.

        It is named as rotated logs are, and younger than what was read: an earlier log, which
        begins with the same header, say, is not.
        """
        other = None if here is None else here.identity

        def fits(log: Log) -> bool:
            later = log.identity != other and log.modified() > place.modified
            return later and place.offset > 0 and place.fits(log)

        return self._beside(fits, rotated=True)

    def _lost(self, why: str) -> None:
        self.gaps += 1
        self.notes.append(f"{self.path}: {why}; what had been written to it since cannot be seen.")

    def _cut_off(self, file: Log) -> list[Line]:
        """Something else stands where was read: go on in a copy; without one, from the
        beginning.
        """
        copy = self._copy(
            Position.after(self._tail, file, offset=self._end, modified=self._modified), file
        )
        if copy is not None:
            self._file = copy
            return []
        if lines := self._cutter.finish("the file was cut off within this line"):
            self._before = self._tail
            return lines
        self._lost("it was cut off")
        self._begin()
        return []

    def _at_end(self, file: Log) -> tuple[list[Line], bool]:
        """At the end of a file: lines, and whether to look again at once."""
        here = self._look()
        following = None  # as long as this one may grow
        if here is None or here.identity != file.identity:
            following = self._between(file) or (here if here is not None and here.size() else None)
        if following is None:
            self._moved = False
            if self.follow:
                return [], False
            self.ended = True
            return self._cutter.finish() if self.unfinished else [], False
        if (
            not self._moved
        ):  # what was written before the new one was begun may have come since the last look
            self._moved = True
            return [], True
        if lines := self._cutter.finish(
            "the file was moved away before the end of this line had come"
        ):
            self._before = self._tail
            return lines, True
        if self._dropped:
            self._lost("it was removed from the folder while it was read")
        self._file, self._moved, self._dropped = following, False, False
        if (
            self._end == 0
            or following.read(self._end - len(self._tail), len(self._tail)) != self._tail
        ):
            self._begin()
        return [], True

    def _between(self, file: Log) -> Log | None:
        """The file that was rotated just after this one, if it was not the last.

        Where that one is no longer in the folder others may have gone with it: `_dropped` says so.

        By the time they were last written to: some count upward from the oldest, others from the
        newest.
        """
        times = {(log.modified(), rank): log for log, rank in self._neighbours(rotated=True)}
        mine = next((one for one, log in times.items() if log.identity == file.identity), None)
        if (
            mine is None
        ):  # rotated out of the folder while it was read: what is younger came after it
            since = file.modified()
            self._dropped = any(one[0] >= since for one in times)
            later = [one for one in times if one[0] > since]
        else:
            self._dropped = False
            later = [one for one in times if one[1][:2] == mine[1][:2] and one > mine]
        return times[min(later)] if later else None


def _rank(name: str, base: str) -> tuple[Any, ...] | None:
    """Where a rotated file stands among its like, the oldest first; None for any other name.

    Examples
    --------
    >>> sorted(["a.log.1", "a.log.3", "a.log.2"], key=lambda name: _rank(name, "a.log"))
    ['a.log.3', 'a.log.2', 'a.log.1']
    >>> _rank("a-20260101.log", "a.log") < _rank("a-20260102.log", "a.log"), _rank("a.log.gz", "a.log")
    (True, None)
    """
    stem, ending = os.path.splitext(base)
    for k, (head, foot) in enumerate(((base, ""), (stem, ending))):
        if name.startswith(head) and name.endswith(foot) and len(name) > len(head) + len(foot):
            added = _ROTATED.fullmatch(name, len(head), len(name) - len(foot))
            if added is not None:
                number = added[1].isdigit() and len(added[1]) <= 4
                return (k, number, -int(added[1])) if number else (k, number, added[1])
    return None
