"""Fingerprints of sources: which file a result was made from, known before it is read and compared after.

The stamps of a file (length, times, number) tell most changes without reading it. Not all: clocks tick, so that a file
which is written twice within a tick, to the same length, looks as if it had been written once. A file that was written
less than two seconds ago is therefore not settled, and its fingerprint holds a checksum of its bytes too (Git calls
such files racy). Whatever is written later than that has another stamp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from metacal.errors import InputError
from metacal.io.disk import DISK, Disk
from metacal.io.many import is_url, mark_of

#: From this age on a file has another stamp when it is written again, on every file system in use.
SETTLED_NS = 2_000_000_000
#: How often a source that changes while it is read is read anew.
TRIES = 3

Fingerprint = dict[str, Any]
_Result = TypeVar("_Result")


def fingerprint(source: str, disk: Disk = DISK) -> Fingerprint | None:
    """What tells a source from what may stand in its place later; None where nothing does.

    That is so of pipes, and behind a URL without checksums and dates.

    Examples
    --------
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "a.csv")
    >>> DISK.write(path, b"1,2")
    >>> first = fingerprint(path)
    >>> is_unchanged(first, path)
    True
    >>> with open(path, "r+b") as file:
    ...     _ = file.write(b"1,3")
    >>> is_unchanged(first, path)
    False
    """
    if is_url(source):
        return mark_of(source)
    now_ns = disk.now_ns()  # before the stamp: whatever comes after the stamp comes after this
    try:
        stamp = disk.stamp(source)
        if stamp is None:
            return None
        known: Fingerprint = stamp._asdict()
        return known if _is_settled(known, now_ns) else {**known, "checksum": disk.checksum(source)}
    except OSError:
        return None  # whoever reads it says why


def is_unchanged(known: Fingerprint, source: str, disk: Disk = DISK) -> bool:
    """Whether the source is still the one with this fingerprint."""
    if is_url(source):
        return mark_of(source) == known
    try:
        stamp = disk.stamp(source)
        if stamp is None or any(known.get(name) != value for name, value in stamp._asdict().items()):
            return False
        return "checksum" not in known or disk.checksum(source) == known["checksum"]
    except OSError:
        return False


def read_unchanged(source: str, work: Callable[[], _Result], disk: Disk = DISK) -> tuple[_Result, Fingerprint | None]:
    """What `work` makes of a source that was the same before and after it, and the source's fingerprint.

    Where the source has changed meanwhile the work is done again, whatever came of it.
    """
    for _ in range(TRIES):
        known = fingerprint(source, disk)
        try:
            result = work()
        except InputError:
            if known is None or is_unchanged(known, source, disk):
                raise
            continue
        if known is None:
            return result, None
        now_ns = disk.now_ns()
        if is_unchanged(known, source, disk):
            if "checksum" in known and _is_settled(known, now_ns):  # its stamp alone tells from now on
                known = {name: value for name, value in known.items() if name != "checksum"}
            return result, known
    raise InputError(
        f"{source}: it changed while it was read, {TRIES} times; wait until it is written, and call again."
    )


def _is_settled(known: Fingerprint, now_ns: int) -> bool:
    return bool(now_ns - max(known["written_ns"], known["changed_ns"]) >= SETTLED_NS)
