"""Rotated log files: their names, their order, and the file that follows another.

Rotation appends a number or a date to the name of a log, as in `a.log.1` or `a-20260101.log`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from metacal.errors import InputError
from metacal.io.lines import LogFile, LogFileSystem

#: Number or date that a rotation adds to a name.
_ROTATION_PATTERN = re.compile(r"[.-](\d[\d_T-]*)")
#: Largest number of digits of a number. Longer ones are dates.
_MAX_NUMBER_DIGITS = 4

#: Position of the addition, whether it is a number, and a sort key. The oldest file comes first.
Rank = tuple[int, bool, Any]


@dataclass(frozen=True)
class Neighbour:
    """Open file in the directory of a log.

    Attributes
    ----------
    log : Log
        The file.

    rank : tuple or None
        Rank among the rotated files. None if the name is not that of a rotated file.
    """

    log: LogFile
    rank: Rank | None


@dataclass(frozen=True)
class NextRotated:
    """File that was rotated after a given file, if there is one.

    Attributes
    ----------
    log : Log or None
        File that was rotated just after the given one. None if the given file is the last.

    file_was_removed : bool
        Whether the given file is no longer in the directory although rotated files of the same age
        or younger are. Files after it may have been removed too.
    """

    log: LogFile | None
    file_was_removed: bool


def iterate_neighbours(
    logs: LogFileSystem, path: str, *, only_rotated: bool
) -> Iterator[Neighbour]:
    """Yield the other files in the directory of a log that can be opened.

    Parameters
    ----------
    logs : Logs
        Access to files.

    path : str
        Path of the log.

    only_rotated : bool
        Whether to yield only files that are named like rotated ones.

    Yields
    ------
    Neighbour
    """
    directory, base_name = os.path.split(path)
    for name in logs.list_directory_of(path):
        rank = rotation_rank(name, base_name)
        if name == base_name or (rank is None and only_rotated):
            continue
        # Files of other users may not be readable.
        with suppress(InputError, OSError):
            log = logs.open(os.path.join(directory, name))
            if log is not None:
                yield Neighbour(log=log, rank=rank)


def find_next_rotated(logs: LogFileSystem, path: str, file: LogFile) -> NextRotated:
    """Find the file that was rotated just after the given one.

    Files are ordered by modification time, because some systems number them from the oldest and
    others from the newest.

    Parameters
    ----------
    logs : Logs
        Access to files.

    path : str
        Path of the log.

    file : Log
        File that was read.

    Returns
    -------
    NextRotated
    """
    rotated_logs: dict[tuple[int, Any], LogFile] = {}
    for neighbour in iterate_neighbours(logs, path, only_rotated=True):
        rotated_logs[neighbour.log.modification_time_ns(), neighbour.rank] = neighbour.log

    for file_key, log in rotated_logs.items():
        if log.identity == file.identity:
            later_keys = [
                key for key in rotated_logs if _is_same_scheme(key, file_key) and key > file_key
            ]
            return NextRotated(log=_first_log(rotated_logs, later_keys), file_was_removed=False)

    # The file was removed from the directory while it was read. Younger files came after it.
    file_time_ns = file.modification_time_ns()
    later_keys = [key for key in rotated_logs if key[0] > file_time_ns]
    return NextRotated(
        log=_first_log(rotated_logs, later_keys),
        file_was_removed=any(key[0] >= file_time_ns for key in rotated_logs),
    )


def _is_same_scheme(key: tuple[int, Any], other_key: tuple[int, Any]) -> bool:
    """Check whether two rotated files are named by the same scheme."""
    return bool(key[1][:2] == other_key[1][:2])


def _first_log(
    rotated_logs: dict[tuple[int, Any], LogFile], keys: list[tuple[int, Any]]
) -> LogFile | None:
    """Return the log with the smallest key, or None if there are no keys."""
    if not keys:
        return None
    return rotated_logs[min(keys)]


def rotation_rank(name: str, base_name: str) -> Rank | None:
    """Return the rank of a rotated file, the oldest first.

    Return None for any other name.

    Parameters
    ----------
    name : str
        Name of the file.

    base_name : str
        Name of the log.

    Returns
    -------
    tuple or None

    Examples
    --------
    >>> sorted(["a.log.1", "a.log.3", "a.log.2"], key=lambda name: rotation_rank(name, "a.log"))
    ['a.log.3', 'a.log.2', 'a.log.1']
    >>> rotation_rank("a-20260101.log", "a.log") < rotation_rank("a-20260102.log", "a.log")
    True
    >>> rotation_rank("a.log.gz", "a.log") is None
    True
    """
    stem, suffix = os.path.splitext(base_name)
    # The addition is at the end of the name, or before its suffix.
    for scheme, (beginning, ending) in enumerate(((base_name, ""), (stem, suffix))):
        n_fixed_characters = len(beginning) + len(ending)
        has_addition = len(name) > n_fixed_characters
        if not (has_addition and name.startswith(beginning) and name.endswith(ending)):
            continue
        match = _ROTATION_PATTERN.fullmatch(name, len(beginning), len(name) - len(ending))
        if match is None:
            continue
        is_number = match[1].isdigit() and len(match[1]) <= _MAX_NUMBER_DIGITS
        if is_number:
            return scheme, True, -int(match[1])
        return scheme, False, match[1]
    return None
