"""Bytes as they come, cut into lines: none longer than is good, none before its end has come; and those of a pipe."""

from __future__ import annotations

import os
import select
from dataclasses import dataclass, field
from typing import NamedTuple

from metacal.io.formats.jsonl import LONGEST_LINE

#: Bytes asked for at a time, and seconds between two looks.
BYTES, PAUSE = 1 << 20, 0.2
#: What is kept of a line that cannot be read.
KEPT = 2000


class Line(NamedTuple):
    """A line without its end; `fault` says why it cannot be read, whatever it holds (then it may be cut)."""

    number: int
    content: bytes
    fault: str = ""


@dataclass
class Cutter:
    r"""Cuts bytes into lines as they come, and holds no more than one line of the longest length.

    Examples
    --------
    >>> cutter = Cutter(longest=5)
    >>> [line.content for line in cutter.feed(b"ab\nc")], cutter.held, [line.content for line in cutter.feed(b"d\r\n")]
    ([b'ab'], 1, [b'cd'])
    >>> cutter.feed(b"far too ")
    [Line(number=3, content=b'far too ', fault='the line has more than 5 bytes')]
    >>> cutter.feed(b"long\nef\n")
    [Line(number=4, content=b'ef', fault='')]
    """

    number: int = 0
    skipping: bool = False
    longest: int = LONGEST_LINE
    held: int = 0
    _pieces: list[bytes] = field(default_factory=list)

    def feed(self, data: bytes) -> list[Line]:
        """The lines that end in these bytes, and one that has become too long."""
        if self.skipping:
            end = data.find(b"\n")
            if end < 0:
                return []
            self.skipping, data = False, data[end + 1 :]
        *whole, rest = data.split(b"\n")
        if whole:
            whole[0], self._pieces, self.held = b"".join([*self._pieces, whole[0]]), [], 0
        lines = [self._line(content) for content in whole]
        if rest:
            self._pieces.append(rest)
            self.held += len(rest)
        if self.held > self.longest:
            lines.append(self._line(b"".join(self._pieces)))
            self._pieces, self.held, self.skipping = [], 0, True
        return lines

    def finish(self, fault: str = "") -> list[Line]:
        """The line that has begun, if there is one, as it is: no more of it will come."""
        lines = [self._line(b"".join(self._pieces), fault)] if self.held else []
        self._pieces, self.held = [], 0
        return lines

    def _line(self, content: bytes, fault: str = "") -> Line:
        self.number += 1
        if len(content) > self.longest:
            size = f"{self.longest >> 20} MB" if self.longest >> 20 else f"{self.longest} bytes"
            return Line(self.number, content[:KEPT], f"the line has more than {size}")
        return Line(self.number, content.rstrip(b"\r"), fault)


class Pipe:
    """The lines of standard input, or of another pipe, as they come; what was read from it cannot be read again."""

    position, gaps, waits = None, 0, False

    def __init__(self, file: int, *, longest: int = LONGEST_LINE) -> None:
        self._file, self._cutter = file, Cutter(longest=longest)
        self.ended, self.notes = False, list[str]()

    def read(self) -> list[Line]:
        """The lines that have come; none where there are none for now."""
        if not self._ready(0.0):
            return []
        data = os.read(self._file, BYTES)
        if data:
            return self._cutter.feed(data)
        self.ended = True
        return self._cutter.finish()

    def wait(self) -> None:
        """Until something has come, for a moment at most."""
        self._ready(PAUSE)

    def close(self) -> None:
        """It is for whoever opened it to close it."""

    def _ready(self, seconds: float) -> bool:
        # Windows cannot wait for a pipe: there reading waits.
        return os.name != "posix" or bool(select.select([self._file], [], [], seconds)[0])
