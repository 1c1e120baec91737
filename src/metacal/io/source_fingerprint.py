"""Fingerprints that reveal whether a source file has changed.

A fingerprint is taken before a source is read and compared afterwards. The size, times and inode of
a file reveal most changes without reading it. They do not reveal all of them: the clock of a file
system ticks, so a file that is written twice within a tick, with the same size, looks as if it had
been written once.

A file is *settled* if it was written at least two seconds ago. Any later change gives it another
modification time. The fingerprint of a file that is not settled also holds a checksum of its
content (Git calls such files racy).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from metacal.errors import FileReadError, InputError
from metacal.io.disk import DISK, Disk
from metacal.io.remote import compute_remote_fingerprint, is_url

#: Age after which any change of a file is visible in its modification time.
SETTLED_NS = 2_000_000_000
#: Number of attempts to read a source that changes while it is read.
MAX_ATTEMPTS = 3

Fingerprint = dict[str, Any]
_Result = TypeVar("_Result")


def compute_fingerprint(source: str, disk: Disk = DISK) -> Fingerprint | None:
    """Return the fingerprint of a source.

    Parameters
    ----------
    source : str
        Path or URL.

    disk : Disk, optional
        File system of local sources.

    Returns
    -------
    dict or None
        None for pipes, for files that cannot be read, and for URLs without a checksum or date.

    Examples
    --------
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "a.csv")
    >>> DISK.write(path, b"1,2")
    >>> first_fingerprint = compute_fingerprint(path)
    >>> has_fingerprint(first_fingerprint, path)
    True
    >>> with open(path, "r+b") as file:
    ...     _ = file.write(b"1,3")
    >>> has_fingerprint(first_fingerprint, path)
    False
    """
    # Take the time before the stamp, so that later changes have a later time.
    now_ns = disk.now_ns()
    return _build_fingerprint(
        source, disk, needs_checksum=lambda stamp: not _reveals_later_changes(stamp, now_ns)
    )


def has_fingerprint(known_fingerprint: Fingerprint, source: str, disk: Disk = DISK) -> bool:
    """Check whether a source still has the given fingerprint."""
    known_stamp = _drop_checksum(known_fingerprint)
    has_known_checksum = "checksum" in known_fingerprint

    def needs_checksum(current_stamp: Fingerprint) -> bool:
        # The checksum is computed only if everything else is equal.
        return has_known_checksum and current_stamp == known_stamp

    current_fingerprint = _build_fingerprint(source, disk, needs_checksum=needs_checksum)
    return current_fingerprint == known_fingerprint


def read_until_unchanged(
    source: str, read_source: Callable[[], _Result], disk: Disk = DISK
) -> tuple[_Result, Fingerprint | None]:
    """Read a source, and read it again if it changed in the meantime.

    Parameters
    ----------
    source : str
        Path or URL.

    read_source : callable
        Reads the source. An InputError that it raises is ignored if the source has changed.

    disk : Disk, optional
        File system of local sources.

    Returns
    -------
    result : object
        Result of `read_source` for a source that was the same before and after the call.

    fingerprint : dict or None
        Fingerprint of the source, None if it has none.

    Raises
    ------
    InputError
        If the source changes in every attempt.
    """
    for _ in range(MAX_ATTEMPTS):
        initial_fingerprint = compute_fingerprint(source, disk)
        try:
            read_result = read_source()
        except InputError:
            if initial_fingerprint is None or has_fingerprint(initial_fingerprint, source, disk):
                raise
            continue
        if initial_fingerprint is None:
            return read_result, None
        now_ns = disk.now_ns()
        if has_fingerprint(initial_fingerprint, source, disk):
            if "checksum" in initial_fingerprint and _reveals_later_changes(
                initial_fingerprint, now_ns
            ):
                # From now on, the stamp alone reveals every change.
                return read_result, _drop_checksum(initial_fingerprint)
            return read_result, initial_fingerprint
    raise FileReadError(
        f"{source}: the file changed {MAX_ATTEMPTS} times while it was read. Wait until the file"
        " is complete, and call again."
    )


def _build_fingerprint(
    source: str, disk: Disk, *, needs_checksum: Callable[[Fingerprint], bool]
) -> Fingerprint | None:
    """Return the stamp of a source as a dict, with a checksum if one is needed.

    Parameters
    ----------
    source : str
        Path or URL.

    disk : Disk
        File system of local sources.

    needs_checksum : callable
        Decides from the stamp of a local file whether its content must be read.

    Returns
    -------
    dict or None
        None if the source has no stamp.
    """
    if is_url(source):
        return compute_remote_fingerprint(source)
    try:
        stamp = disk.read_stamp(source)
        if stamp is None:
            return None
        stamp_fields = stamp._asdict()
        if not needs_checksum(stamp_fields):
            return stamp_fields
        return {**stamp_fields, "checksum": disk.checksum(source)}
    except OSError:
        # The error is reported when the source is read.
        return None


def _drop_checksum(source_stamp: Fingerprint) -> Fingerprint:
    return {name: value for name, value in source_stamp.items() if name != "checksum"}


def _reveals_later_changes(stamp: Fingerprint, now_ns: int) -> bool:
    """Check whether later changes of a file would be visible in its file times."""
    last_change_ns = max(stamp["written_ns"], stamp["changed_ns"])
    return bool(now_ns - last_change_ns >= SETTLED_NS)
