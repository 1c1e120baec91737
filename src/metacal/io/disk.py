"""The few things that a tool which keeps state asks of a disk, each durable when it returns.

Everything that must last goes through a `Disk`: journals, the files that people fill in, results.
The real one is `DISK`; the tests bring one that tears writes, runs full, forgets what was not
synced and dies at any moment (`tests/simulation`).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import socket
import stat
import sys
import time
import uuid
from collections.abc import Iterator
from typing import NamedTuple

from metacal.errors import BusyError, InputError

#: Of a folder that may be written but not listed, and on file systems (some that are shared)
#: without such a thing.
_UNSYNCABLE = (errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOTSUP)
#: No space left, and no space left for this user.
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_LOCKED = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
#: Where the byte that Windows locks lies: beyond the text, so that others can read who holds the
#: lock.
_FAR = 1 << 30


class Stamp(NamedTuple):
    """What tells a file from another in its place, or from itself after a change, without reading
    it.
    """

    bytes: int
    written_ns: int
    #: When anything about it was last changed, which nobody can set back; on Windows, when it was
    #: made.
    changed_ns: int
    inode: int


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
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            return file.read()
        return None

    def real_path(self, path: str) -> str:
        """Return the path of the file itself, with every symbolic link followed."""
        return os.path.realpath(path)

    def stamp(self, path: str) -> Stamp | None:
        """The stamp of a plain file; None where there is none."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            status = os.stat(path)
            if stat.S_ISREG(status.st_mode):
                return Stamp(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        return None

    def exists(self, path: str) -> bool:
        """Return whether there is anything under this name: a file, a folder, or a link to
        nothing.
        """
        return os.path.lexists(path)

    def checksum(self, path: str) -> str:
        """A checksum of all bytes of a file."""
        with open(path, "rb") as file:
            return hashlib.file_digest(file, hashlib.sha256).hexdigest()

    def names(self, folder: str) -> list[str]:
        """The names of what lies in a folder."""
        return sorted(os.listdir(folder))

    def now_ns(self) -> int:
        """The time, by the clock that stamps files."""
        return time.time_ns()

    def pause(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def append(self, path: str, content: bytes) -> None:
        """Add bytes to the end of a file, which is made if it is not there; they last once this
        returns.

        OSError: any part of them may have been added, or all.
        """
        new = not os.path.exists(path)
        with _opened(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as file:
            while content:
                content = content[os.write(file, content) :]
            os.fsync(file)
        if new:
            sync_folder(os.path.realpath(path))  # a link may point to a file that did not exist

    def truncate(self, path: str, size: int) -> None:
        """Cut a file after `size` bytes."""
        with _opened(path, os.O_WRONLY) as file:
            os.ftruncate(file, size)
            os.fsync(file)

    def write(self, path: str, content: bytes) -> None:
        """Put these bytes in the place of a file: whole or not at all, whatever happens. A link
        stays a link.
        """
        target = os.path.realpath(path)
        part = part_beside(target)
        try:
            self.append(part, content)
            self.replace(part, target)
        finally:
            self.remove(part)

    def replace(self, part: str, target: str) -> None:
        """Give a file that is whole the name `target`, in the same folder; what had it is gone. The
        mode stays.
        """
        with _opened(part, os.O_RDWR) as file:
            os.fsync(file)
        with contextlib.suppress(FileNotFoundError):
            os.chmod(part, stat.S_IMODE(os.stat(target).st_mode))
        os.replace(part, target)
        sync_folder(target)

    def swap(self, part: str, target: str) -> None:
        """Exchange the names of two files of one folder in one step; `part` takes the mode of
        `target`.

        Raises
        ------
        FileNotFoundError
            If one of the files does not exist.
        UnsupportedError
            If the operating system or the file system has no such operation. Nothing was changed.
        """
        os.chmod(part, stat.S_IMODE(os.stat(target).st_mode))
        _rename_with_flag(part, target, exchange=True)
        sync_folder(target)

    def rename_new(self, source: str, target: str) -> None:
        """Rename a file of one folder. Raise FileExistsError if `target` exists."""
        if os.name == "nt":
            os.rename(source, target)  # on Windows this never replaces a file
            return
        try:
            _rename_with_flag(source, target, exchange=False)
        except UnsupportedError:
            _link_and_unlink(source, target)
        sync_folder(target)

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            sync_folder(path)

    @contextlib.contextmanager
    def lock(self, path: str) -> Iterator[None]:
        """Hold `path`, a file of its own beside what it is about, alone; BusyError where another
        process does.

        The lock dies with whoever holds it, however that happens: the file stays, and says nothing
        by being there.
        """
        with _opened(path, os.O_RDWR | os.O_CREAT) as file:
            try:
                _lock(file, take=True)
            except OSError as error:
                if error.errno not in _LOCKED:
                    raise
                os.lseek(file, 0, os.SEEK_SET)
                holder = os.read(file, 500).decode(errors="replace").strip() or "another process"
                whose = path.removesuffix(".lock")
                raise BusyError(
                    f"{whose} is in use by {holder}; wait until that has ended."
                ) from None
            os.ftruncate(file, 0)
            os.lseek(
                file, 0, os.SEEK_SET
            )  # Windows looks for its byte elsewhere, and cannot write by position
            since = time.strftime("%Y-%m-%d %H:%M:%S")  # what others are told of this process
            with contextlib.suppress(
                OSError
            ):  # The lock holds on a full disk too; others then read no name in it.
                os.write(
                    file, f"process {os.getpid()} on {socket.gethostname()} since {since}".encode()
                )
            try:
                yield
            finally:
                os.ftruncate(file, 0)
                # Closing is not enough: processes that were forked meanwhile hold the same file
                # open.
                _lock(file, take=False)

    @contextlib.contextmanager
    def lock_content(self, path: str) -> Iterator[None]:
        """Lock the file itself, whatever its name; raise BusyError if another process holds it.

        `lock` protects one path. This lock belongs to the inode, so it also covers hard links,
        which have no path in common. It does nothing if the file does not exist or is read-only,
        and on Windows, where an open file cannot be replaced.
        """
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(FileNotFoundError, PermissionError, IsADirectoryError):
                if os.name != "nt":
                    file = stack.enter_context(_opened(path, os.O_RDWR))
                    stack.enter_context(_locked_content(file, path))
            yield


@contextlib.contextmanager
def _locked_content(file: int, path: str) -> Iterator[None]:
    """Hold the lock of an open file. Raise BusyError if another process has it."""
    try:
        _lock(file, take=True)
    except OSError as error:
        if error.errno not in _LOCKED:
            yield  # this file system has no locks; the lock beside the file is all there is
            return
        raise BusyError(
            f"{path} is in use by another process under another name (a hard link); wait until that"
            " has ended."
        ) from None
    try:
        yield
    finally:
        _lock(file, take=False)


class UnsupportedError(OSError):
    """The operating system or the file system lacks an operation; nothing was changed."""


#: The one that everything uses unless it is given another.
DISK = Disk()

#: Errors of a rename with a flag where the kernel, the file system or a container does not know the
#: flag. What a container does not know it forbids.
_UNKNOWN_FLAG = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM)
#: The same of a hard link: exFAT and some network file systems have none.
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK)
_AT_FDCWD = -100


def _rename_with_flag(source: str, target: str, *, exchange: bool) -> None:
    """Rename atomically: exchange both files, or fail if `target` exists.

    Linux has renameat2(2) and macOS renamex_np(2) for this; Python wraps neither.
    """
    import ctypes

    if os.name != "posix":
        raise UnsupportedError(errno.ENOSYS, os.strerror(errno.ENOSYS), source)
    library = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(source), os.fsencode(target)
    if sys.platform == "linux" and hasattr(library, "renameat2"):
        flag = 2 if exchange else 1  # RENAME_EXCHANGE, RENAME_NOREPLACE
        failed = library.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], ctypes.c_uint(flag))
    elif sys.platform == "darwin" and hasattr(library, "renamex_np"):
        flag = 2 if exchange else 4  # RENAME_SWAP, RENAME_EXCL
        failed = library.renamex_np(names[0], names[1], ctypes.c_uint(flag))
    else:
        raise UnsupportedError(errno.ENOSYS, os.strerror(errno.ENOSYS), source)
    if not failed:
        return
    number = ctypes.get_errno()
    if number in _UNKNOWN_FLAG:
        raise UnsupportedError(number, os.strerror(number), source)
    raise OSError(number, os.strerror(number), source, None, target)


def _link_and_unlink(source: str, target: str) -> None:
    """Rename without replacing a file, through a second hard link."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # The last resort has a gap between the check and the rename.
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from None
        os.rename(source, target)
    else:
        os.unlink(source)


def part_beside(target: str | os.PathLike[str]) -> str:
    """A name that nobody else has, in the folder of `target`, for what will take its place."""
    folder, name = os.path.split(target)
    # The suffix stays last: writers that look at it (np.savez appends .npz) must find it.
    return os.path.join(folder, f".{name}.{uuid.uuid4().hex[:12]}.part{os.path.splitext(name)[1]}")


@contextlib.contextmanager
def plain_write_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what the system says about a file that cannot be written into one line."""
    shown = os.fspath(path)
    parent = os.path.dirname(shown) or "."
    try:
        yield
    except FileNotFoundError:
        raise InputError(
            f"cannot write {shown}: there is no folder {parent}; create it first."
        ) from None
    except NotADirectoryError:
        raise InputError(
            f"cannot write {shown}: {parent} is not a folder; choose a path inside a folder."
        ) from None
    except OSError as error:
        raise InputError(f"cannot write {shown}: {error.strerror or error}.") from error


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether an error, or one that caused it, is that no space is left on the disk.

    Examples
    --------
    >>> is_disk_full(OSError(errno.ENOSPC, "No space left on device")), is_disk_full(OSError(errno.EACCES, "denied"))
    (True, False)
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            return True
        error = error.__cause__
    return False


def sync_folder(path: str) -> None:
    """Make a new name in the folder of `path` last."""
    if os.name == "nt":
        return  # a folder cannot be opened there; NTFS keeps names in its own journal
    try:
        with _opened(os.path.dirname(path) or ".", os.O_RDONLY) as folder:
            os.fsync(folder)
    except OSError as error:
        if error.errno not in _UNSYNCABLE:
            raise


@contextlib.contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    file = os.open(path, flags | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0), 0o666)
    try:
        yield file
    finally:
        os.close(file)


def _lock(file: int, *, take: bool) -> None:
    """Take the lock of a file, or give it back."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        os.lseek(file, _FAR, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_NBLCK if take else msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined]
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB if take else fcntl.LOCK_UN)
