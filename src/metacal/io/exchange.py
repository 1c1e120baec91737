"""Replacement of a file that a person may be saving at the same moment.

`os.replace` destroys whatever a person saved between the last look at a file and the replacement.
The functions here exchange the two files instead, look at the file that was taken out, and put it
back if it is not the one that was read. Whoever is writing into the file at that moment goes on
writing into the same file.

No file is removed unless its content is known: it is what was read before, or what was to be
written. If a process is killed in between, a file stays under a temporary name; `find_leftovers`
finds it in the next call.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from metacal.io.disk import Disk, UnsupportedError, part_beside


@dataclass(frozen=True)
class Replacement:
    """Result of `replace_unchanged`.

    Attributes
    ----------
    done : bool
        Whether the new content is in place. If not, the file on the disk is not the one that was
        read.
    backup : str or None
        A file that had to be moved out of the way, and that nobody has read.
    """

    done: bool
    backup: str | None = None


def replace_unchanged(disk: Disk, path: str, content: bytes, expected: bytes | None) -> Replacement:
    """Replace a file if it still holds the bytes that were read last.

    Parameters
    ----------
    disk : Disk
    path : str
        A symbolic link stays a link.
    content : bytes
        The new content. It is on the disk, under a temporary name, before anything is compared.
    expected : bytes or None
        What was read last; None if there was no file.

    Returns
    -------
    Replacement

    Raises
    ------
    OSError
        If the disk fails. The file is then the old one or the new one.
    """
    target = disk.real_path(path)
    part = part_beside(target)
    try:
        disk.append(part, content)
    except OSError:
        disk.remove(part)
        raise
    try:
        if disk.read(target) != expected:
            return Replacement(done=False)
        if expected is None:
            return _put_new(disk, part, target)
        try:
            return _exchange(disk, part, target, content, expected)
        except UnsupportedError:
            return _replace_in_steps(disk, part, target, expected)
    except FileNotFoundError:  # the file was removed meanwhile
        return Replacement(done=False)
    finally:
        if disk.read(part) == content:
            disk.remove(part)


def _put_new(disk: Disk, part: str, target: str) -> Replacement:
    try:
        disk.rename_new(part, target)
    except FileExistsError:
        return Replacement(done=False)
    return Replacement(done=True)


def _exchange(disk: Disk, part: str, target: str, content: bytes, expected: bytes) -> Replacement:
    """Exchange the files, and exchange them again if the one taken out is not the expected one."""
    disk.swap(part, target)
    if disk.read(part) == expected:
        disk.remove(part)
        return Replacement(done=True)
    try:
        disk.swap(part, target)
    except FileNotFoundError:  # the new file was removed: what was taken out goes back
        return Replacement(done=False, backup=_put_back(disk, part, target))
    if disk.read(part) == content:
        return Replacement(done=False)
    # Somebody saved once more, over the new file.
    return Replacement(done=False, backup=keep_beside(disk, part, target))


def _replace_in_steps(disk: Disk, part: str, target: str, expected: bytes) -> Replacement:
    """Do the same without an exchange: move the old file aside, then put the new one in its
    place.
    """
    aside = part_beside(target)
    disk.rename_new(target, aside)
    if disk.read(aside) != expected:
        return Replacement(done=False, backup=_put_back(disk, aside, target))
    replacement = _put_new(disk, part, target)
    disk.remove(aside)
    return replacement


def _put_back(disk: Disk, aside: str, target: str) -> str | None:
    """Give a file its name back, or a name beside it if there is a new file. Return the latter."""
    try:
        disk.rename_new(aside, target)
    except FileExistsError:
        return keep_beside(disk, aside, target)
    return None


def keep_beside(disk: Disk, part: str, target: str) -> str:
    """Give a file a visible name beside `target`, such as `labels.saved-1.csv`. Return that
    name.
    """
    stem, suffix = os.path.splitext(target)
    number = 1
    while True:
        backup = f"{stem}.saved-{number}{suffix}"
        try:
            disk.rename_new(part, backup)
        except FileExistsError:
            number += 1
        else:
            return backup


def find_leftovers(disk: Disk, path: str) -> list[str]:
    """Return the temporary files of `path` that killed processes have left."""
    folder, name = os.path.split(disk.real_path(path))
    suffix = re.escape(os.path.splitext(name)[1])
    pattern = re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{12}}\.part{suffix}")
    try:
        names = disk.names(folder or ".")
    except PermissionError:  # a folder that may be written but not listed
        return []
    return [os.path.join(folder, found) for found in names if pattern.fullmatch(found)]
