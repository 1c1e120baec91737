"""Lines of pipes and log files, returned as soon as they are complete.

A line is complete when its end has arrived. An open log file remains the same file even if it is
renamed.
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
from metacal.io.formats.jsonl import MAX_LINE_BYTES
from metacal.io.opening import plain_read_errors

#: Number of bytes to read at a time.
READ_BYTES = 1 << 20
#: Seconds to wait for new data.
PAUSE_SECONDS = 0.2
#: Number of bytes to keep of a line that is too long.
MAX_KEPT_BYTES = 2000
#: Largest number of bytes before a position that identify it.
MAX_MARK_BYTES = 1 << 12


class Line(NamedTuple):
    """Line of a file, without its end.

    Attributes
    ----------
    number : int
        Line number, from 1.

    content : bytes
        Content of the line. It is truncated if the line is too long.

    fault : str
        Reason why the line cannot be used, or "".
    """

    number: int
    content: bytes
    fault: str = ""


@dataclass
class LineSplitter:
    r"""Buffer that splits incoming bytes into lines.

    Attributes
    ----------
    number : int
        Number of the last line.

    skipping : bool
        Whether the rest of a line that is too long is being skipped.

    max_length : int
        Largest length of a line. The buffer is not much larger.

    n_buffered_bytes : int
        Number of bytes of the incomplete line in the buffer.

    Examples
    --------
    >>> splitter = LineSplitter(max_length=5)
    >>> [line.content for line in splitter.feed(b"ab\nc")], splitter.n_buffered_bytes
    ([b'ab'], 1)
    >>> [line.content for line in splitter.feed(b"d\r\n")]
    [b'cd']
    >>> splitter.feed(b"far too ")
    [Line(number=3, content=b'far too ', fault='the line has more than 5 bytes')]
    >>> splitter.feed(b"long\nef\n")
    [Line(number=4, content=b'ef', fault='')]
    """

    number: int = 0
    skipping: bool = False
    max_length: int = MAX_LINE_BYTES
    n_buffered_bytes: int = 0
    _pieces: list[bytes] = field(default_factory=list)

    def feed(self, new_bytes: bytes) -> list[Line]:
        """Add bytes, and return the lines that end in them or have become too long."""
        if self.skipping:
            line_end = new_bytes.find(b"\n")
            if line_end < 0:
                return []
            self.skipping = False
            new_bytes = new_bytes[line_end + 1 :]

        *complete_lines, incomplete_line = new_bytes.split(b"\n")
        lines = []
        for line_content in complete_lines:
            self._pieces.append(line_content)
            lines.append(self._build_line(self._take_pieces()))
        if incomplete_line:
            self._pieces.append(incomplete_line)
            self.n_buffered_bytes += len(incomplete_line)
        if self.n_buffered_bytes > self.max_length:
            lines.append(self._build_line(self._take_pieces()))
            self.skipping = True
        return lines

    def finish(self, fault: str = "") -> list[Line]:
        """Return the incomplete line, if there is one. No more of it will arrive."""
        if self.n_buffered_bytes == 0:
            return []
        return [self._build_line(self._take_pieces(), fault)]

    def _take_pieces(self) -> bytes:
        """Return the content of the buffer and empty it."""
        content = b"".join(self._pieces)
        self._pieces = []
        self.n_buffered_bytes = 0
        return content

    def _build_line(self, content: bytes, fault: str = "") -> Line:
        """Number a line, and truncate it if it is too long."""
        self.number += 1
        if len(content) <= self.max_length:
            return Line(self.number, content.rstrip(b"\r"), fault)
        limit = f"{self.max_length} bytes"
        if self.max_length >> 20:
            limit = f"{self.max_length >> 20} MB"
        return Line(self.number, content[:MAX_KEPT_BYTES], f"the line has more than {limit}")


class Pipe:
    """Reader of the lines of standard input or of another pipe.

    Parameters
    ----------
    descriptor : int
        File descriptor.

    Attributes
    ----------
    ended : bool
        Whether the pipe was closed.

    notes : list of str
        Always empty. `position`, `n_gaps` and `has_incomplete_line` are constant, too; they exist because a `Tail`
        has them.
    """

    position = None
    n_gaps = 0
    has_incomplete_line = False

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._splitter = LineSplitter()
        self.ended = False
        self.notes: list[str] = []

    def read(self) -> list[Line]:
        """Return the lines that have arrived, without waiting."""
        if not self._has_data(timeout=0.0):
            return []
        new_bytes = os.read(self._descriptor, READ_BYTES)
        if new_bytes:
            return self._splitter.feed(new_bytes)
        self.ended = True
        return self._splitter.finish()

    def wait(self) -> None:
        """Wait for a moment, or until data arrive."""
        self._has_data(timeout=PAUSE_SECONDS)

    def _has_data(self, timeout: float) -> bool:
        """Check whether data have arrived, waiting at most `timeout` seconds."""
        if os.name != "posix":
            # Windows cannot wait for a pipe, so reading waits instead.
            return True
        readable, _, _ = select.select([self._descriptor], [], [], timeout)
        return bool(readable)


class Log:
    """Open log file. It is closed when the object is deleted.

    Attributes
    ----------
    identity : tuple of int
        Device and inode.
    """

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{path}: this is no file; give one, or - for standard input.")
        self.identity = (status.st_dev, status.st_ino)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def size(self) -> int:
        """Return the current size in bytes."""
        return os.fstat(self._descriptor).st_size

    def modification_time_ns(self) -> int:
        """Return the modification time in nanoseconds."""
        return os.fstat(self._descriptor).st_mtime_ns

    def read(self, offset: int, n_bytes: int) -> bytes:
        """Read up to `n_bytes` bytes from an offset."""
        os.lseek(self._descriptor, offset, os.SEEK_SET)
        return os.read(self._descriptor, n_bytes)


class Logs:
    """Access to the log files of the file system, which tests can replace."""

    def open(self, path: str) -> Log | None:
        """Open a file, or return None if it does not exist."""
        with plain_read_errors(path), suppress(FileNotFoundError):
            return Log(path)
        return None

    def list_directory_of(self, path: str) -> Iterator[str]:
        """Yield the names of the regular files in the directory of a file."""
        with suppress(OSError), os.scandir(os.path.dirname(path) or ".") as entries:
            yield from sorted(entry.name for entry in entries if entry.is_file())


@dataclass(frozen=True)
class Position:
    """Position up to which a log file was read.

    Attributes
    ----------
    device, inode : int
        Identity of the file.

    offset : int
        Offset of the first byte that was not read.

    line : int
        Number of the last line.

    mark : str
        Digest of the bytes before the offset.

    before : int
        Number of these bytes.

    modified : int
        Modification time of the file when it was read.

    skipping : bool
        Whether the offset lies within a line that is too long.
    """

    device: int
    inode: int
    offset: int
    line: int
    mark: str
    before: int
    modified: int
    skipping: bool = False

    def matches(self, file: Log) -> bool:
        """Check whether a file has the bytes that were read before the offset."""
        content = file.read(self.offset - self.before, self.before)
        return len(content) == self.before and _digest(content) == self.mark

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the file."""
        return self.device, self.inode

    @classmethod
    def after(
        cls,
        bytes_before: bytes,
        file: Log,
        *,
        offset: int,
        modified: int,
        line: int = 0,
        skipping: bool = False,
    ) -> Self:
        """Build the position after some bytes of a file.

        Parameters
        ----------
        bytes_before : bytes
            Bytes just before the position.

        file : Log
            The file.

        offset : int
            Offset of the position.

        modified : int
            Modification time of the file when it was read.

        line : int, default=0
            Number of the last line.

        skipping : bool, default=False
            Whether the position lies within a line that is too long.

        Returns
        -------
        Position
        """
        device, inode = file.identity
        return cls(
            device=device,
            inode=inode,
            offset=offset,
            line=line,
            mark=_digest(bytes_before),
            before=len(bytes_before),
            modified=modified,
            skipping=skipping,
        )

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Build a position from the result of `asdict`.

        Raise ValueError if that is invalid.
        """
        if not isinstance(data, dict):
            raise ValueError("this is no place in a file")
        field_types = dict.fromkeys(cls.__annotations__, int) | {"mark": str, "skipping": bool}
        value_types = [(name, type(value)) for name, value in data.items()]
        if value_types != list(field_types.items()):
            raise ValueError("this is no place in a file")
        position = cls(**data)
        if not 0 <= position.before <= min(MAX_MARK_BYTES, position.offset) or position.line < 0:
            raise ValueError("this is no place in a file")
        return position


def _digest(content: bytes) -> str:
    """Return a digest that identifies the bytes before a position."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()
