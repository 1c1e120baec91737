"""Replacement of a file that a person may be saving at the same moment.

`os.replace` destroys anything that a person saves between the last read of the file and the
replacement. The functions in this module exchange the two files instead, read the file that was
taken out, and put it back if it is not the expected one. A program that is writing to the file at
that moment continues to write to the same file.

A file is removed only if its content is known: it is the content that was read before, or the
content that was to be written. If a process is killed in between, a file remains under a temporary
name. `find_leftovers` finds it in the next call.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from metacal.io.atomic_rename import UnsupportedError
from metacal.io.disk import Disk, build_temporary_path


@dataclass(frozen=True)
class Replacement:
    """Outcome of an attempt to replace a file.

    Attributes
    ----------
    is_done : bool
        Whether the new content is in place. If not, the file is not the one that was read.

    backup_path : str or None
        A file that had to be renamed, and that was not read by anyone.
    """

    is_done: bool
    backup_path: str | None = None


def replace_if_unchanged(
    disk: Disk, path: str, new_content: bytes, expected_content: bytes | None
) -> Replacement:
    """Replace the content of a file unless the file has changed since it was read.

    Parameters
    ----------
    disk : Disk
        File system.

    path : str
        File to replace. A symbolic link remains a link.

    new_content : bytes
        New content. It is written to a temporary file before anything is compared.

    expected_content : bytes or None
        Content that was read last. None if the file did not exist.

    Returns
    -------
    Replacement

    Raises
    ------
    OSError
        If the disk fails. The file then has the old or the new content.
    """
    target = disk.real_path(path)
    temporary_path = build_temporary_path(target)
    try:
        disk.append(temporary_path, new_content)
    except OSError:
        disk.remove(temporary_path)
        raise
    try:
        if disk.read(target) != expected_content:
            return Replacement(is_done=False)
        if expected_content is None:
            return _rename_to_missing_target(disk, temporary_path, target)
        try:
            return _exchange_or_undo(disk, temporary_path, target, new_content, expected_content)
        except UnsupportedError:
            return _replace_in_steps(disk, temporary_path, target, expected_content)
    except FileNotFoundError:
        # Another process has removed the file in the meantime.
        return Replacement(is_done=False)
    finally:
        # Only the new content is removed, because other content belongs to another process.
        if disk.read(temporary_path) == new_content:
            disk.remove(temporary_path)


def _rename_to_missing_target(disk: Disk, temporary_path: str, target: str) -> Replacement:
    """Rename a temporary file to `target` unless `target` exists."""
    try:
        disk.rename_without_replacing(temporary_path, target)
    except FileExistsError:
        return Replacement(is_done=False)
    return Replacement(is_done=True)


def _exchange_or_undo(
    disk: Disk, temporary_path: str, target: str, new_content: bytes, expected_content: bytes
) -> Replacement:
    """Exchange two files, and undo the exchange if the old content is unexpected.

    Parameters
    ----------
    disk : Disk
        File system.

    temporary_path : str
        Temporary file with the new content.

    target : str
        File to replace.

    new_content : bytes
        New content.

    expected_content : bytes
        Content that was read last.

    Returns
    -------
    Replacement
    """
    disk.swap(temporary_path, target)
    # The file that was at `target` is now at `temporary_path`.
    if disk.read(temporary_path) == expected_content:
        disk.remove(temporary_path)
        return Replacement(is_done=True)
    try:
        disk.swap(temporary_path, target)
    except FileNotFoundError:
        # Another process has removed the new file, so the old one gets its name back.
        return Replacement(is_done=False, backup_path=_rename_back(disk, temporary_path, target))
    if disk.read(temporary_path) == new_content:
        return Replacement(is_done=False)
    # Another process has saved the file again, which replaced the new content.
    return Replacement(is_done=False, backup_path=rename_to_backup(disk, temporary_path, target))


def _replace_in_steps(
    disk: Disk, temporary_path: str, target: str, expected_content: bytes
) -> Replacement:
    """Replace a file by two renames, if an atomic exchange is not supported.

    Parameters
    ----------
    disk : Disk
        File system.

    temporary_path : str
        Temporary file with the new content.

    target : str
        File to replace.

    expected_content : bytes
        Content that was read last.

    Returns
    -------
    Replacement
    """
    old_file = build_temporary_path(target)
    disk.rename_without_replacing(target, old_file)
    if disk.read(old_file) != expected_content:
        return Replacement(is_done=False, backup_path=_rename_back(disk, old_file, target))
    replacement = _rename_to_missing_target(disk, temporary_path, target)
    disk.remove(old_file)
    return replacement


def _rename_back(disk: Disk, old_file: str, target: str) -> str | None:
    """Rename a file back to `target`.

    Returns
    -------
    str or None
        Name of the backup if a new file exists at `target`, None otherwise.
    """
    try:
        disk.rename_without_replacing(old_file, target)
    except FileExistsError:
        return rename_to_backup(disk, old_file, target)
    return None


def rename_to_backup(disk: Disk, temporary_path: str, target: str) -> str:
    """Rename a temporary file to a visible backup, such as `labels.saved-1.csv`.

    Returns
    -------
    str
        Path of the backup.
    """
    stem, suffix = os.path.splitext(target)
    backup_number = 1
    while True:
        backup = f"{stem}.saved-{backup_number}{suffix}"
        try:
            disk.rename_without_replacing(temporary_path, backup)
        except FileExistsError:
            backup_number += 1
        else:
            return backup


def find_leftovers(disk: Disk, path: str) -> list[str]:
    """Return the temporary files of `path` that killed processes have left."""
    folder, name = os.path.split(disk.real_path(path))
    suffix = re.escape(os.path.splitext(name)[1])
    temporary_name_pattern = re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{12}}\.part{suffix}")
    try:
        names_in_folder = disk.list_names(folder or ".")
    except PermissionError:
        # The user may be allowed to write to the directory but not to list it.
        return []
    return [
        os.path.join(folder, name)
        for name in names_in_folder
        if temporary_name_pattern.fullmatch(name)
    ]
