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

from metacal.errors import FileReadError
from metacal.io.formats.jsonl import MAX_LINE_BYTES
from metacal.io.opening import input_error_if_read_fails

#: Number of bytes to read at a time.
READ_BYTES = 1 << 20
#: Number of seconds to wait for new data.
PAUSE_SECONDS = 0.2
#: Number of bytes to keep from a line that is too long.
MAX_KEPT_BYTES = 2000
#: Maximum number of bytes before a position that its digest covers.
MAX_DIGEST_BYTES = 1 << 12


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
    last_line_number : int
        Number of the last line.

    is_inside_long_line : bool
        Whether the rest of a line that is too long is being skipped.

    max_line_bytes : int
        Largest length of a line in bytes. The buffer is not much larger.

    n_buffered_bytes : int
        Number of bytes of the incomplete line in the buffer.

    Examples
    --------
    >>> splitter = LineSplitter(max_line_bytes=5)
    >>> [line.content for line in splitter.feed(b"ab\nc")], splitter.n_buffered_bytes
    ([b'ab'], 1)
    >>> [line.content for line in splitter.feed(b"d\r\n")]
    [b'cd']
    >>> splitter.feed(b"far too ")
    [Line(number=3, content=b'far too ', fault='the line has more than 5 bytes')]
    >>> splitter.feed(b"long\nef\n")
    [Line(number=4, content=b'ef', fault='')]
    """

    last_line_number: int = 0
    is_inside_long_line: bool = False
    max_line_bytes: int = MAX_LINE_BYTES
    n_buffered_bytes: int = 0
    _buffered_pieces: list[bytes] = field(default_factory=list)

    def feed(self, new_bytes: bytes) -> list[Line]:
        """Add bytes, and return the lines that are now complete or too long."""
        if self.is_inside_long_line:
            line_end = new_bytes.find(b"\n")
            if line_end < 0:
                return []
            self.is_inside_long_line = False
            new_bytes = new_bytes[line_end + 1 :]

        *complete_lines, incomplete_line = new_bytes.split(b"\n")
        lines = []
        for line_content in complete_lines:
            self._buffered_pieces.append(line_content)
            lines.append(self._build_next_line(self._take_buffered_bytes()))
        if incomplete_line:
            self._buffered_pieces.append(incomplete_line)
            self.n_buffered_bytes += len(incomplete_line)
        if self.n_buffered_bytes > self.max_line_bytes:
            lines.append(self._build_next_line(self._take_buffered_bytes()))
            self.is_inside_long_line = True
        return lines

    def flush(self, fault: str = "") -> list[Line]:
        """Return the incomplete last line, if there is one, and empty the buffer."""
        if self.n_buffered_bytes == 0:
            return []
        return [self._build_next_line(self._take_buffered_bytes(), fault)]

    def _take_buffered_bytes(self) -> bytes:
        """Return the bytes in the buffer, and empty the buffer."""
        content = b"".join(self._buffered_pieces)
        self._buffered_pieces = []
        self.n_buffered_bytes = 0
        return content

    def _build_next_line(self, content: bytes, fault: str = "") -> Line:
        """Number a line, and truncate it if it is too long."""
        self.last_line_number += 1
        if len(content) <= self.max_line_bytes:
            return Line(self.last_line_number, content.rstrip(b"\r"), fault)
        limit = f"{self.max_line_bytes} bytes"
        if self.max_line_bytes >> 20:
            limit = f"{self.max_line_bytes >> 20} MB"
        return Line(
            self.last_line_number, content[:MAX_KEPT_BYTES], f"the line has more than {limit}"
        )


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
        return self._splitter.flush()

    def wait(self) -> None:
        """Wait until data arrive or a short timeout ends."""
        self._has_data(timeout=PAUSE_SECONDS)

    def _has_data(self, timeout: float) -> bool:
        """Check whether data have arrived, waiting at most `timeout` seconds."""
        if os.name != "posix":
            # Windows cannot wait for a pipe, so the read call blocks instead.
            return True
        readable, _, _ = select.select([self._descriptor], [], [], timeout)
        return bool(readable)


class LogFile:
    """Open log file, which is closed when the object is deleted.

    Attributes
    ----------
    identity : tuple of int
        Device and inode.
    """

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FileReadError(
                f"{path}: the path is not a regular file. Pass a file, or - for standard input."
            )
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


class LogFileSystem:
    """Access to the log files of the file system, which tests can replace."""

    def open(self, path: str) -> LogFile | None:
        """Open a file, or return None if it does not exist."""
        with input_error_if_read_fails(path), suppress(FileNotFoundError):
            return LogFile(path)
        return None

    def list_directory_of(self, path: str) -> Iterator[str]:
        """Yield the names of the regular files in the directory of `path`."""
        with suppress(OSError), os.scandir(os.path.dirname(path) or ".") as entries:
            yield from sorted(entry.name for entry in entries if entry.is_file())


#: Key of each field of a `Position` in JSON, mapped to the name of the field.
_POSITION_FIELDS = {
    "device": "device",
    "inode": "inode",
    "offset": "offset",
    "line": "line_number",
    "mark": "digest",
    "before": "n_digest_bytes",
    "modified": "modification_time_ns",
    "skipping": "is_inside_long_line",
}
#: Types of the entries of a stored position that are not integers.
_POSITION_TYPES = {"mark": str, "skipping": bool}


@dataclass(frozen=True)
class Position:
    """Position up to which a log file was read.

    Attributes
    ----------
    device, inode : int
        Identity of the file.

    offset : int
        Offset of the first byte that was not read.

    line_number : int
        Number of the last line.

    digest : str
        Digest of the bytes just before the offset.

    n_digest_bytes : int
        Number of bytes that the digest covers.

    modification_time_ns : int
        Modification time of the file when it was read, in nanoseconds.

    is_inside_long_line : bool
        Whether the offset lies within a line that is too long.
    """

    device: int
    inode: int
    offset: int
    line_number: int
    digest: str
    n_digest_bytes: int
    modification_time_ns: int
    is_inside_long_line: bool = False

    def matches(self, file: LogFile) -> bool:
        """Check whether a file has the bytes that were read before the offset."""
        content = file.read(self.offset - self.n_digest_bytes, self.n_digest_bytes)
        return len(content) == self.n_digest_bytes and _digest(content) == self.digest

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the file."""
        return self.device, self.inode

    @classmethod
    def in_file(
        cls,
        file: LogFile,
        *,
        offset: int,
        bytes_before_offset: bytes,
        modification_time_ns: int,
        line_number: int = 0,
        is_inside_long_line: bool = False,
    ) -> Self:
        """Build the position at an offset of a file.

        Parameters
        ----------
        file : LogFile
            The file.

        offset : int
            Offset of the first byte that was not read.

        bytes_before_offset : bytes
            Bytes just before the offset.

        modification_time_ns : int
            Modification time of the file when it was read, in nanoseconds.

        line_number : int, default=0
            Number of the last line.

        is_inside_long_line : bool, default=False
            Whether the offset lies within a line that is too long.

        Returns
        -------
        Position
        """
        device, inode = file.identity
        return cls(
            device=device,
            inode=inode,
            offset=offset,
            line_number=line_number,
            digest=_digest(bytes_before_offset),
            n_digest_bytes=len(bytes_before_offset),
            modification_time_ns=modification_time_ns,
            is_inside_long_line=is_inside_long_line,
        )

    def to_dict(self) -> dict[str, int | str | bool]:
        """Convert the position to a JSON object."""
        return {key: getattr(self, name) for key, name in _POSITION_FIELDS.items()}

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Build a position from a JSON object. Raise ValueError if it is not valid."""
        if not isinstance(data, dict) or list(data) != list(_POSITION_FIELDS):
            raise ValueError("the saved position in the file is not valid")
        for key, value in data.items():
            required_type = _POSITION_TYPES.get(key, int)
            if type(value) is not required_type:
                raise ValueError("the saved position in the file is not valid")
        position = cls(**{name: data[key] for key, name in _POSITION_FIELDS.items()})
        max_digest_bytes = min(MAX_DIGEST_BYTES, position.offset)
        if not 0 <= position.n_digest_bytes <= max_digest_bytes or position.line_number < 0:
            raise ValueError("the saved position in the file is not valid")
        return position


def _digest(content: bytes) -> str:
    """Return a digest that identifies the bytes before a position."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()
