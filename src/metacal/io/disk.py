"""Durable file operations: when one of them returns, its effect survives a crash.

Everything that must last goes through a `Disk`: journals, files that people edit, and results. The
real disk is `DISK`. The tests use one that tears writes, runs full, loses what was not synced, and
dies at any moment (`tests/simulation`).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import socket
import stat
import time
import uuid
from collections.abc import Iterator
from typing import NamedTuple

from metacal.errors import BusyError, FileWriteError
from metacal.io.atomic_rename import UnsupportedError, rename_through_link, rename_with_flag

#: Error numbers of fsync for a directory that cannot be synced.
_UNSYNCABLE_ERRORS = (errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOTSUP)
#: Error numbers of a full device or an exhausted quota.
_DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)
#: Error numbers that mean that another process holds the lock.
_LOCK_HELD_ERRORS = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
#: Offset of the byte that is locked on Windows, beyond the text that others may read.
_LOCKED_BYTE_OFFSET = 1 << 30
#: Maximum number of bytes in the description of a lock holder.
_MAX_HOLDER_BYTES = 500
#: Access mode of new files, before the umask.
_NEW_FILE_MODE = 0o666


class Stamp(NamedTuple):
    """Metadata that changes when a file is changed or replaced.

    Attributes
    ----------
    bytes : int
        Size of the file.

    written_ns : int
        Modification time.

    changed_ns : int
        Time of the last change of the inode, which no program can set. On Windows, the creation
        time.

    inode : int
        Inode number.
    """

    bytes: int
    written_ns: int
    changed_ns: int
    inode: int


class Disk:
    """File system of this machine.

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
        """Return the content of a file, or None if it does not exist."""
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            return file.read()
        return None

    def real_path(self, path: str) -> str:
        """Return the path with all symbolic links resolved."""
        return os.path.realpath(path)

    def read_stamp(self, path: str) -> Stamp | None:
        """Return the metadata stamp of a regular file, or None if it does not exist."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            status = os.stat(path)
            if stat.S_ISREG(status.st_mode):
                return Stamp(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        return None

    def exists(self, path: str) -> bool:
        """Check whether a file, a directory or a link exists, even a broken link."""
        return os.path.lexists(path)

    def checksum(self, path: str) -> str:
        """Return the SHA-256 checksum of the content of a file."""
        with open(path, "rb") as file:
            return hashlib.file_digest(file, hashlib.sha256).hexdigest()

    def list_names(self, folder: str) -> list[str]:
        """Return the sorted names in a directory."""
        return sorted(os.listdir(folder))

    def now_ns(self) -> int:
        """Return the current time of the file system clock, in nanoseconds."""
        return time.time_ns()

    def pause(self, seconds: float) -> None:
        """Sleep for a number of seconds."""
        time.sleep(seconds)

    def append(self, path: str, content: bytes) -> None:
        """Append to a file durably. The file is created if it does not exist.

        Raises
        ------
        OSError
            If the disk fails. Some or all of the content may have been appended.
        """
        is_new = not os.path.exists(path)
        with _open_descriptor(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as descriptor:
            remaining_content = content
            while remaining_content:
                n_written = os.write(descriptor, remaining_content)
                remaining_content = remaining_content[n_written:]
            os.fsync(descriptor)
        if is_new:
            # The path may be a symbolic link to a file that did not exist yet.
            sync_parent_directory(os.path.realpath(path))

    def truncate(self, path: str, size: int) -> None:
        """Truncate a file to `size` bytes durably."""
        with _open_descriptor(path, os.O_WRONLY) as descriptor:
            os.ftruncate(descriptor, size)
            os.fsync(descriptor)

    def write(self, path: str, content: bytes) -> None:
        """Replace the content of a file atomically and durably. A link remains a link."""
        target = os.path.realpath(path)
        temporary_path = build_temporary_path(target)
        try:
            self.append(temporary_path, content)
            self.replace(temporary_path, target)
        finally:
            self.remove(temporary_path)

    def replace(self, temporary_path: str, target: str) -> None:
        """Rename a complete file to `target` in the same directory, durably.

        An existing target is replaced, and its access mode is kept.
        """
        with _open_descriptor(temporary_path, os.O_RDWR) as descriptor:
            os.fsync(descriptor)
        with contextlib.suppress(FileNotFoundError):
            os.chmod(temporary_path, stat.S_IMODE(os.stat(target).st_mode))
        os.replace(temporary_path, target)
        sync_parent_directory(target)

    def swap(self, temporary_path: str, target: str) -> None:
        """Exchange two files of one directory atomically.

        `temporary_path` gets the mode of `target`.

        Raises
        ------
        FileNotFoundError
            If one of the files does not exist.
        UnsupportedError
            If the operating system or file system has no such operation. Nothing was changed.
        """
        os.chmod(temporary_path, stat.S_IMODE(os.stat(target).st_mode))
        rename_with_flag(temporary_path, target, exchange=True)
        sync_parent_directory(target)

    def rename_without_replacing(self, source: str, target: str) -> None:
        """Rename a file within a directory. Raise FileExistsError if `target` exists."""
        if os.name == "nt":
            # On Windows, os.rename never replaces an existing file.
            os.rename(source, target)
            return
        try:
            rename_with_flag(source, target, exchange=False)
        except UnsupportedError:
            rename_through_link(source, target)
        sync_parent_directory(target)

    def remove(self, path: str) -> None:
        """Remove a file if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            sync_parent_directory(path)

    @contextlib.contextmanager
    def lock(self, path: str) -> Iterator[None]:
        """Hold an exclusive lock on a lock file, or raise BusyError.

        The lock ends with the process, even if the process is killed. The lock file remains, and
        its existence means nothing.
        """
        with _open_descriptor(path, os.O_RDWR | os.O_CREAT) as descriptor:
            try:
                _acquire_lock(descriptor)
            except OSError as error:
                if error.errno not in _LOCK_HELD_ERRORS:
                    raise
                locked_path = path.removesuffix(".lock")
                raise BusyError(
                    f"{locked_path} is in use by {_read_lock_holder(descriptor)}. Wait until this"
                    " process ends."
                ) from None
            _write_lock_holder(descriptor)
            try:
                yield
            finally:
                os.ftruncate(descriptor, 0)
                # Unlock explicitly, because forked processes may keep the file open.
                _release_lock(descriptor)

    @contextlib.contextmanager
    def lock_content(self, path: str) -> Iterator[None]:
        """Hold an exclusive lock on a file itself, or raise BusyError.

        `lock` protects one path. This lock belongs to the inode, so it also covers hard links,
        which have no path in common. It does nothing if the file does not exist or is read-only,
        and on Windows, where an open file cannot be replaced.
        """
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(FileNotFoundError, PermissionError, IsADirectoryError):
                if os.name != "nt":
                    descriptor = stack.enter_context(_open_descriptor(path, os.O_RDWR))
                    stack.enter_context(_hold_content_lock(descriptor, path))
            yield


#: Default disk.
DISK = Disk()


def build_temporary_path(target: str | os.PathLike[str]) -> str:
    """Return a unique path for a temporary file in the directory of `target`."""
    folder, name = os.path.split(target)
    suffix = os.path.splitext(name)[1]
    # The suffix comes last because np.savez would otherwise append .npz.
    return os.path.join(folder, f".{name}.{uuid.uuid4().hex[:12]}.part{suffix}")


@contextlib.contextmanager
def input_error_if_write_fails(path: str | os.PathLike[str]) -> Iterator[None]:
    """Convert an OSError inside the context to an InputError about writing a file."""
    path_text = os.fspath(path)
    directory = os.path.dirname(path_text) or "."
    try:
        yield
    except FileNotFoundError:
        raise FileWriteError(
            f"cannot write {path_text}: the folder {directory} does not exist. Create the folder"
            " first."
        ) from None
    except NotADirectoryError:
        raise FileWriteError(
            f"cannot write {path_text}: {directory} is not a folder. Choose a path inside a folder."
        ) from None
    except OSError as error:
        raise FileWriteError(f"cannot write {path_text}: {error.strerror or error}.") from error


def is_disk_full(error: BaseException | None) -> bool:
    """Check whether an error, or one of its causes, means that the disk is full.

    Examples
    --------
    >>> is_disk_full(OSError(errno.ENOSPC, "No space left on device"))
    True
    >>> is_disk_full(OSError(errno.EACCES, "denied"))
    False
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in _DISK_FULL_ERRORS:
            return True
        error = error.__cause__
    return False


def sync_parent_directory(path: str) -> None:
    """Sync the directory of a file, so that a new or renamed file survives a crash."""
    if os.name == "nt":
        # Windows cannot open a directory, and NTFS records new names in its own journal.
        return
    try:
        with _open_descriptor(os.path.dirname(path) or ".", os.O_RDONLY) as descriptor:
            os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSYNCABLE_ERRORS:
            raise


@contextlib.contextmanager
def _open_descriptor(path: str, flags: int) -> Iterator[int]:
    """Open a file descriptor, and close it when the context ends."""
    platform_flags = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags | platform_flags, _NEW_FILE_MODE)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _hold_content_lock(descriptor: int, path: str) -> Iterator[None]:
    """Hold the lock of an open file. Raise BusyError if another process holds it."""
    try:
        _acquire_lock(descriptor)
    except OSError as error:
        if error.errno not in _LOCK_HELD_ERRORS:
            # The file system does not support locks, so only the separate lock file protects it.
            yield
            return
        raise BusyError(
            f"{path} is in use by another process, which opened it by another name (a hard link)."
            " Wait until this process ends."
        ) from None
    try:
        yield
    finally:
        _release_lock(descriptor)


def _read_lock_holder(descriptor: int) -> str:
    """Return the description of the process that holds a lock."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    content = os.read(descriptor, _MAX_HOLDER_BYTES)
    return content.decode(errors="replace").strip() or "another process"


def _write_lock_holder(descriptor: int) -> None:
    """Write the description of this process to a lock file."""
    os.ftruncate(descriptor, 0)
    # On Windows, locking moves the file position, and there is no positional write.
    os.lseek(descriptor, 0, os.SEEK_SET)
    start_time = time.strftime("%Y-%m-%d %H:%M:%S")
    description = f"process {os.getpid()} on {socket.gethostname()} since {start_time}"
    # The lock is valid even if the disk is too full for a description of its holder.
    with contextlib.suppress(OSError):
        os.write(descriptor, description.encode())


def _acquire_lock(descriptor: int) -> None:
    """Acquire the exclusive lock of an open file without waiting."""
    try:
        import fcntl
    except ImportError:
        # Windows has no fcntl module.
        import msvcrt

        os.lseek(descriptor, _LOCKED_BYTE_OFFSET, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _release_lock(descriptor: int) -> None:
    """Release the lock of an open file."""
    try:
        import fcntl
    except ImportError:
        # Windows has no fcntl module.
        import msvcrt

        os.lseek(descriptor, _LOCKED_BYTE_OFFSET, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined]
    else:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
