"""Log files as they lie in a folder: open ones, which stay what they are under any name, and places in them."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, Self

from metacal.errors import InputError
from metacal.io.opening import plain_read_errors

#: Bytes before a place by which it is known again.
MARK = 1 << 12


class Log(Protocol):
    """An open file: what `Tail` asks of it."""

    identity: tuple[int, int]

    def size(self) -> int:
        """How many bytes it has now."""
        ...

    def modified(self) -> int:
        """When it was last written to; a higher number is later."""
        ...

    def read(self, at: int, n: int) -> bytes:
        """Up to n bytes from a place on."""
        ...

    def close(self) -> None:
        """Let it go."""
        ...


class Logs:
    """The files of this machine; the tests bring others."""

    def open(self, path: str) -> Log | None:
        """A file to be read; None where there is none."""
        try:
            with plain_read_errors(path):
                return _OpenFile(path)
        except InputError as error:
            if isinstance(error.__context__, FileNotFoundError):
                return None
            raise

    def beside(self, path: str) -> Iterator[str]:
        """The names of the regular files in the folder of a file."""
        try:
            with os.scandir(os.path.dirname(path) or ".") as entries:
                yield from sorted(entry.name for entry in entries if entry.is_file())
        except OSError:
            return


class _OpenFile:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        found = os.fstat(self._file)
        if not stat.S_ISREG(found.st_mode):
            os.close(self._file)
            raise InputError(f"{path}: this is no file; give one, or - for standard input.")
        self.identity = (found.st_dev, found.st_ino)

    def size(self) -> int:
        return os.fstat(self._file).st_size

    def modified(self) -> int:
        return os.fstat(self._file).st_mtime_ns

    def read(self, at: int, n: int) -> bytes:
        os.lseek(self._file, at, os.SEEK_SET)
        return os.read(self._file, n)

    def close(self) -> None:
        os.close(self._file)


@dataclass(frozen=True)
class Position:
    """How far a log was read: in which file, to which byte and line, after which bytes; within a line that is skipped?

    `mark` and `before` are a digest of the bytes before the place, and how many they are; `modified` is when the file
    had last been written to when it was read.
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
        return len(content) == self.before and digest(content) == self.mark

    @property
    def identity(self) -> tuple[int, int]:
        """Of the file."""
        return self.device, self.inode

    @classmethod
    def of(cls, data: Any) -> Self:
        """From what `asdict` gave; ValueError where that cannot be one."""
        kinds = [(name, bool if name == "skipping" else str if name == "mark" else int) for name in cls.__annotations__]
        if not isinstance(data, dict) or [(name, type(value)) for name, value in data.items()] != kinds:
            raise ValueError("this is no place in a file")
        place = cls(**data)
        if not 0 <= place.before <= min(MARK, place.offset) or place.line < 0:
            raise ValueError("this is no place in a file")
        return place


def digest(content: bytes) -> str:
    """What bytes before a place are known by."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()
