"""The few things that a tool which keeps state asks of a disk, each durable when it returns.

Everything that must last goes through a `Disk`: journals, the files that people fill in, results. The real one is
`DISK`; the tests bring one that tears writes, runs full, forgets what was not synced and dies at any moment
(`tests/simulation`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import time
import uuid
from collections.abc import Callable, Iterator

_LOCKED = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
#: Where the byte that Windows locks lies: beyond the text, so that others can read who holds the lock.
_FAR = 1 << 30


class LockedError(OSError):
    """Somebody else holds the lock; `holder` is what they wrote into it."""

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(errno.EAGAIN, "in use", path)
        self.holder = holder


class Disk:
    """The disk of this machine.

    Examples
    --------
    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "a")
    >>> DISK.append(path, b"one")
    >>> DISK.append(path, b"two")
    >>> DISK.read(path)
    b'onetwo'
    >>> DISK.write(path, b"three")
    >>> DISK.read(path), DISK.read(path + "?") is None
    (b'three', True)
    """

    def read(self, path: str) -> bytes | None:
        """All bytes of a file; None where there is none."""
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def append(self, path: str, content: bytes) -> None:
        """Add bytes to the end of a file, which is made if it is not there; they last once this returns.

        OSError: any part of them may have been added, or all.
        """
        new = not os.path.exists(path)
        with _opened(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as file:
            while content:
                content = content[os.write(file, content) :]
            os.fsync(file)
        if new:
            sync_folder(path)

    def truncate(self, path: str, size: int) -> None:
        """Cut a file after `size` bytes."""
        with _opened(path, os.O_WRONLY) as file:
            os.ftruncate(file, size)
            os.fsync(file)

    def write(self, path: str, content: bytes) -> None:
        """Put these bytes in the place of a file: whole or not at all, whatever happens. A link stays a link."""
        target = os.path.realpath(path)
        folder, name = os.path.split(target)
        part = os.path.join(folder, f".{name}.{uuid.uuid4().hex[:12]}.part")
        try:
            self.append(part, content)
            with contextlib.suppress(FileNotFoundError):
                os.chmod(part, stat.S_IMODE(os.stat(target).st_mode))
            os.replace(part, target)
            sync_folder(target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            sync_folder(path)

    @contextlib.contextmanager
    def lock(self, path: str) -> Iterator[None]:
        """Hold `path`, a file of its own, alone; LockedError where another process does.

        The lock dies with whoever holds it, however that happens: the file stays, and says nothing by being there.
        """
        with _opened(path, os.O_RDWR | os.O_CREAT) as file:
            try:
                _take(file)
            except OSError as error:
                if error.errno not in _LOCKED:
                    raise
                raise LockedError(path, os.pread(file, 500, 0).decode(errors="replace").strip()) from None
            os.ftruncate(file, 0)
            os.pwrite(file, whoami().encode(), 0)
            yield
            os.ftruncate(file, 0)


#: The one that everything uses unless it is given another.
DISK = Disk()


def whoami() -> str:
    """What others are told of this process."""
    return f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}"


def sync_folder(path: str) -> None:
    """Make a new name in the folder of `path` last."""
    if os.name == "nt":
        return  # a folder cannot be opened there; NTFS keeps names in its own journal
    with _opened(os.path.dirname(path) or ".", os.O_RDONLY) as folder:
        os.fsync(folder)


@contextlib.contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    file = os.open(path, flags | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0), 0o666)
    try:
        yield file
    finally:
        os.close(file)


def _taker() -> Callable[[int], None]:
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        def take(file: int) -> None:
            os.lseek(file, _FAR, os.SEEK_SET)
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]

        return take
    return lambda file: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


_take = _taker()
