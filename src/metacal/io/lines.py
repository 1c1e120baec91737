"""Lines as they come: bytes cut into lines, none before its end has come; of a pipe, and of log
files by their places.

An open log stays what it is under any name.
"""

from __future__ import annotations

import hashlib
import os
import select
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from metacal.errors import InputError
from metacal.io.formats.jsonl import LONGEST_LINE
from metacal.io.opening import plain_read_errors

#: Bytes asked for at a time, and seconds between two looks.
BYTES, PAUSE = 1 << 20, 0.2
#: What is kept of a line that cannot be read.
KEPT = 2000
#: Bytes before a place by which it is known again.
MARK = 1 << 12


class Line(NamedTuple):
    """A line without its end; `fault` says why it cannot be read, whatever it holds (then it may be
    cut).
    """

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
    """The lines of standard input, or of another pipe, as they come; what was read from it cannot
    be read again.
    """

    position, gaps, waits = None, 0, False

    def __init__(self, file: int) -> None:
        self._file, self._cutter = file, Cutter()
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

    def _ready(self, seconds: float) -> bool:
        # Windows cannot wait for a pipe: there reading waits.
        return os.name != "posix" or bool(select.select([self._file], [], [], seconds)[0])


class Log:
    """An open file, which is closed when nobody has it any more."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        status = os.fstat(self._file)
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{path}: this is no file; give one, or - for standard input.")
        self.identity = (status.st_dev, status.st_ino)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def size(self) -> int:
        """How many bytes it has now."""
        return os.fstat(self._file).st_size

    def modified(self) -> int:
        """When it was last written to; a higher number is later."""
        return os.fstat(self._file).st_mtime_ns

    def read(self, at: int, n: int) -> bytes:
        """Up to n bytes from a place on."""
        os.lseek(self._file, at, os.SEEK_SET)
        return os.read(self._file, n)


class Logs:
    """The files of this machine; the tests bring others."""

    def open(self, path: str) -> Log | None:
        """A file to be read; None where there is none."""
        with plain_read_errors(path), suppress(FileNotFoundError):
            return Log(path)
        return None

    def beside(self, path: str) -> Iterator[str]:
        """The names of the regular files in the folder of a file."""
        with suppress(OSError), os.scandir(os.path.dirname(path) or ".") as entries:
            yield from sorted(entry.name for entry in entries if entry.is_file())


@dataclass(frozen=True)
class Position:
    """How far a log was read: in which file, to which byte and line, after which bytes; within a
    line that is skipped?

    `mark` and `before` are a digest of the bytes before the place, and how many they are;
    `modified` is when the file had last been written to when it was read.
    """

    device: int
    inode: int
    offset: int
    line: int
    mark: str
    before: int
    modified: int
    skipping: bool = False

    def fits(self, file: Log) -> bool:
        """Whether a file holds, up to this place, what was read."""
        content = file.read(self.offset - self.before, self.before)
        return len(content) == self.before and _digest(content) == self.mark

    @property
    def identity(self) -> tuple[int, int]:
        """Of the file."""
        return self.device, self.inode

    @classmethod
    def after(
        cls,
        before: bytes,
        file: Log,
        *,
        offset: int,
        modified: int,
        line: int = 0,
        skipping: bool = False,
    ) -> Self:
        """The place in a file that these bytes lead to."""
        return cls(*file.identity, offset, line, _digest(before), len(before), modified, skipping)

    @classmethod
    def of(cls, data: Any) -> Self:
        """From what `asdict` gave; ValueError where that cannot be one."""
        kinds = [
            (name, bool if name == "skipping" else str if name == "mark" else int)
            for name in cls.__annotations__
        ]
        if (
            isinstance(data, dict)
            and [(name, type(value)) for name, value in data.items()] == kinds
        ):
            place = cls(**data)
            if 0 <= place.before <= min(MARK, place.offset) and place.line >= 0:
                return place
        raise ValueError("this is no place in a file")


def _digest(content: bytes) -> str:
    """What bytes before a place are known by."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()
