"""Atomic renames that exchange two files, or that never replace a file."""

from __future__ import annotations

import errno
import os
import sys

#: Errors of a rename flag that the kernel, the file system or a container does not support.
#: A container may forbid the system call (EPERM) instead of not supporting it.
_UNSUPPORTED_FLAG_ERRORS = (
    errno.EINVAL,
    errno.ENOSYS,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
    errno.EPERM,
)
#: Errors of a hard link on exFAT and some network file systems, which do not support links.
_UNSUPPORTED_LINK_ERRORS = (
    errno.EPERM,
    errno.ENOSYS,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
    errno.EMLINK,
)
#: Constants of Linux (fcntl.h, fs.h) and macOS (stdio.h).
_AT_FDCWD = -100
_LINUX_RENAME_NOREPLACE = 1
_LINUX_RENAME_EXCHANGE = 2
_MACOS_RENAME_SWAP = 2
_MACOS_RENAME_EXCL = 4


class UnsupportedError(OSError):
    """Error about a rename that the system does not support. Nothing was changed."""


def rename_with_flag(source: str, target: str, *, exchange: bool) -> None:
    """Rename atomically: exchange two files, or fail if the target exists.

    Linux has renameat2(2) and macOS has renamex_np(2) for this. Python wraps neither.

    Parameters
    ----------
    source : str
        File to rename.

    target : str
        New name.

    exchange : bool
        Whether to exchange the two files. Otherwise the target must not exist.

    Raises
    ------
    UnsupportedError
        If the system has no such operation.
    OSError
        If the operation fails.
    """
    import ctypes

    if os.name != "posix":
        raise UnsupportedError(errno.ENOSYS, os.strerror(errno.ENOSYS), source)
    library = ctypes.CDLL(None, use_errno=True)
    source_bytes = os.fsencode(source)
    target_bytes = os.fsencode(target)
    if sys.platform == "linux" and hasattr(library, "renameat2"):
        flag = _LINUX_RENAME_EXCHANGE if exchange else _LINUX_RENAME_NOREPLACE
        return_code = library.renameat2(
            _AT_FDCWD, source_bytes, _AT_FDCWD, target_bytes, ctypes.c_uint(flag)
        )
    elif sys.platform == "darwin" and hasattr(library, "renamex_np"):
        flag = _MACOS_RENAME_SWAP if exchange else _MACOS_RENAME_EXCL
        return_code = library.renamex_np(source_bytes, target_bytes, ctypes.c_uint(flag))
    else:
        raise UnsupportedError(errno.ENOSYS, os.strerror(errno.ENOSYS), source)

    if return_code == 0:
        return
    error_number = ctypes.get_errno()
    if error_number in _UNSUPPORTED_FLAG_ERRORS:
        raise UnsupportedError(error_number, os.strerror(error_number), source)
    raise OSError(error_number, os.strerror(error_number), source, None, target)


def rename_through_link(source: str, target: str) -> None:
    """Rename a file through a second hard link, without replacing an existing file.

    Raises
    ------
    FileExistsError
        If the target exists.
    """
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _UNSUPPORTED_LINK_ERRORS:
            raise
        # This last resort is not atomic: a file may appear between the check and the rename.
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from None
        os.rename(source, target)
    else:
        os.unlink(source)
